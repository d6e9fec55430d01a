"""What the world may still do to the processes: what is left of each fault budget, and the cut that lasts now."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from trunkline.check.interner import Interner
from trunkline.check.scenario import Faults, Scenario
from trunkline.check.views import NamedTexts

NAMES = tuple(field.name for field in dataclasses.fields(Faults))


class Left(NamedTuple):
    """``cut`` is the place of the lasting cut in ``Scenario.cuts``, plus one; 0: the network is whole.

    ``healing``: faults are over, and restarts cost nothing.
    """

    faults: tuple[int, ...]  # in the order of NAMES
    cut: int = 0
    healing: bool = False
    free_timers: tuple[int, ...] = ()  # counts, in the order of the scenario
    drops: tuple[int, ...] = ()


class FreeFire(NamedTuple):
    """The budgets after a free timer fired, and after a crash inside of its step."""

    fired: int
    crashed: int | None


class Budget:
    """One ``Left`` made ready for the hot path: the number of the budget that remains after each spending, or None."""

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
        self.cut_now = 0  # as in Left.cut
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
        self.early_crash: int | None = None  # an early timer and a crash inside its step
        self.restart_crash: int | None = None
        self.healed: int | None = None  # without the cut that lasts now
        self.free_timers: dict[int, FreeFire] = {}  # by place in Scenario.free_timers, where some are left
        self.drops: dict[int, int] = {}  # by place in Scenario.drops, where some are left


class Budgets:
    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._numbers: Interner[Left] = Interner()
        self._ready: dict[int, Budget] = {}

    def initial(self) -> int:
        scenario = self._scenario
        return self._numbers.intern(
            Left(
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
        """``number`` with the cut of that place in ``Scenario.cuts`` begun; its cost was already spent."""
        return self._numbers.intern(self._numbers.values[number]._replace(cut=index + 1))

    def healing(self) -> int:
        return self._numbers.intern(Left(tuple(0 for _ in NAMES), healing=True))

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

    def _make_ready(self, left: Left) -> Budget:
        budget = Budget()
        for name in NAMES:
            setattr(budget, name, self._spent(left, name))
        budget.faulty = any(count for name, count in zip(NAMES, left.faults, strict=True) if name != "restart")
        budget.drops = {
            place: self._numbers.intern(left._replace(drops=_one_less(left.drops, place)))
            for place, count in enumerate(left.drops)
            if count
        }
        budget.faulty = budget.faulty or bool(budget.drops)
        budget.free_timers = {place: self._fired(left, place) for place, count in enumerate(left.free_timers) if count}
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

    def _fired(self, left: Left, place: int) -> FreeFire:
        after = left._replace(free_timers=_one_less(left.free_timers, place))
        return FreeFire(self._numbers.intern(after), self._spent(after, "crash"))

    def _spent(self, left: Left, *names: str) -> int | None:
        faults = list(left.faults)
        for name in names:
            place = NAMES.index(name)
            if not faults[place]:
                return None
            faults[place] -= 1
        return self._numbers.intern(left._replace(faults=tuple(faults)))


def _one_less(counts: tuple[int, ...], place: int) -> tuple[int, ...]:
    return (*counts[:place], counts[place] - 1, *counts[place + 1 :])
