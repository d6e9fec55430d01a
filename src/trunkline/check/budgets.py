"""What the world may still do to the processes: what is left of each fault budget, and the cut that lasts now."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from trunkline.check.interning import Interner
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


class Budget:
    """One ``Left`` made ready for the hot path: the number of the budget that remains after each spending, or None."""

    __slots__ = (*NAMES, "blocked", "cut_now", "early_crash", "faulty", "healed", "restart_crash")

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


class Budgets:
    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._numbers: Interner[Left] = Interner()
        self._ready: dict[int, Budget] = {}

    def initial(self) -> int:
        return self._numbers.intern(Left(tuple(getattr(self._scenario.faults, name) for name in NAMES)))

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

    def _spent(self, left: Left, *names: str) -> int | None:
        faults = list(left.faults)
        for name in names:
            place = NAMES.index(name)
            if not faults[place]:
                return None
            faults[place] -= 1
        return self._numbers.intern(left._replace(faults=tuple(faults)))
