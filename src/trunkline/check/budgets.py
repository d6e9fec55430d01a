"""The faults that may still happen: what is left of each fault budget, and the present network cut."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from trunkline.check.interner import Interner
from trunkline.check.scenario import Faults, Scenario
from trunkline.check.views import NamedTexts

NAMES = tuple(field.name for field in dataclasses.fields(Faults))


class RemainingBudget(NamedTuple):
    """``cut`` is one plus the index of the present cut in ``Scenario.cuts``; 0: no cut.

    ``healing``: faults are over, and restarts cost nothing.
    """

    faults: tuple[int, ...]  # in the order of NAMES
    cut: int = 0
    healing: bool = False
    free_timers: tuple[int, ...] = ()  # counts, in the order of the scenario
    drops: tuple[int, ...] = ()


class FreeTimerBudget(NamedTuple):
    """The budgets after a free timer fired, and after a crash inside its step."""

    fired: int
    crashed: int | None


class Budget:
    """One ``RemainingBudget``, prepared for the hot path: the number of the budget after each expense, or None."""

    __slots__ = (
        *NAMES,
        "blocked",
        "cut_now",
        "drops",
        "early_crash",
        "faulty",
        "free_timers",
        "healed",
        "restart_crash",
    )

    def __init__(self) -> None:
        self.cut_now = 0  # as in RemainingBudget.cut
        self.blocked: frozenset[tuple[str, str]] = frozenset()
        self.faulty = False  # some fault can still happen
        self.loss: int | None = None
        self.duplicate: int | None = None
        self.crash: int | None = None
        self.restart: int | None = None
        self.wipe: int | None = None
        self.power_cut: int | None = None
        self.rot: int | None = None
        self.cut: int | None = None
        self.early_timer: int | None = None
        self.early_crash: int | None = None  # an early timer with a crash inside its step
        self.restart_crash: int | None = None
        self.healed: int | None = None  # without the present cut
        self.free_timers: dict[int, FreeTimerBudget] = {}  # by index in Scenario.free_timers
        self.drops: dict[int, int] = {}  # by index in Scenario.drops


class Budgets:
    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._numbers: Interner[RemainingBudget] = Interner()
        self._ready: dict[int, Budget] = {}

    def initial(self) -> int:
        scenario = self._scenario
        return self._numbers.intern(
            RemainingBudget(
                tuple(getattr(scenario.faults, name) for name in NAMES),
                free_timers=tuple(each.count for each in scenario.free_timers),
                drops=tuple(each.count for each in scenario.drops),
            )
        )

    def ready(self, number: int) -> Budget:
        budget = self._ready.get(number)
        if budget is None:
            budget = self._ready[number] = self._make_ready(self._numbers.values[number])
        return budget

    def cut(self, number: int, index: int) -> int:
        """``number`` while ``Scenario.cuts[index]`` lasts; its cost is already spent."""
        return self._numbers.intern(self._numbers.values[number]._replace(cut=index + 1))

    def healing(self) -> int:
        return self._numbers.intern(RemainingBudget(tuple(0 for _ in NAMES), healing=True))

    def described(self, number: int) -> NamedTexts:
        left = self._numbers.values[number]
        texts = [(name, str(count)) for name, count in zip(NAMES, left.faults, strict=True) if count]
        for named, counts in (("free timers", left.free_timers), ("drops", left.drops)):
            if any(counts):
                texts.append((named, " ".join(map(str, counts))))
        if left.cut:
            texts.append(("cut now", self._scenario.cuts[left.cut - 1].name))
        if left.healing:
            texts.append(("healing", "faults are over"))
        return tuple(texts)

    def _make_ready(self, left: RemainingBudget) -> Budget:
        budget = Budget()
        for name in NAMES:
            setattr(budget, name, self._spent(left, name))
        budget.faulty = any(count for name, count in zip(NAMES, left.faults, strict=True) if name != "restart")
        budget.drops = {
            index: self._numbers.intern(left._replace(drops=_one_less(left.drops, index)))
            for index, count in enumerate(left.drops)
            if count
        }
        budget.faulty = budget.faulty or bool(budget.drops)
        budget.free_timers = {index: self._fired(left, index) for index, count in enumerate(left.free_timers) if count}
        budget.early_crash = self._spent(left, "early_timer", "crash")
        if left.healing:
            budget.restart = self._numbers.intern(left)
        budget.restart_crash = self._spent(left, "restart", "crash")
        if left.cut:
            budget.cut = None
            budget.cut_now = left.cut
            budget.healed = self._numbers.intern(left._replace(cut=0))
            budget.blocked = frozenset(self._scenario.cuts[left.cut - 1].blocked)
        return budget

    def _fired(self, left: RemainingBudget, index: int) -> FreeTimerBudget:
        after = left._replace(free_timers=_one_less(left.free_timers, index))
        return FreeTimerBudget(self._numbers.intern(after), self._spent(after, "crash"))

    def _spent(self, left: RemainingBudget, *names: str) -> int | None:
        faults = list(left.faults)
        for name in names:
            index = NAMES.index(name)
            if not faults[index]:
                return None
            faults[index] -= 1
        return self._numbers.intern(left._replace(faults=tuple(faults)))


def _one_less(counts: tuple[int, ...], index: int) -> tuple[int, ...]:
    return (*counts[:index], counts[index] - 1, *counts[index + 1 :])
