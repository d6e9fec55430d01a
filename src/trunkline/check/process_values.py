"""Values of a process's steps: its whole state, what it is told, and every way in which that may go."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from trunkline.check.role_steps import RoleEvent
from trunkline.check.scenario import ObservedEvent
from trunkline.check.views import Finding
from trunkline.core.effects import Effect


class ProcessState(NamedTuple):
    """The whole state of one process."""

    place: int  # among the scenario's processes
    up: bool
    incarnation: int
    start: int
    image: Hashable
    roles: tuple[tuple[str, int], ...] = ()
    timers: tuple[tuple[str, str], ...] = ()  # (role, key), sorted
    operations_begun: int = 0
    busy: bool = False
    withheld: tuple[tuple[str, Effect], ...] = ()  # (role, effect)

    def ended(self) -> ProcessState:
        return ProcessState(self.place, False, self.incarnation, self.start, self.image, (), (), self.operations_begun)


class StepCause(NamedTuple):
    """What a process is told: exactly one of the handlers of one role, or of the host itself."""

    kind: str  # deliver, timer, operate, sync, restart, wipe
    role: str = ""
    event: RoleEvent | None = None


class Notice(NamedTuple):
    """One thing that monitors are told; a role's own failure ends the list."""

    observed: ObservedEvent | None
    finding: Finding | None = None


class Crash(NamedTuple):
    """The process ended after ``effects`` effects."""

    effects: int
    process: ProcessState
    sent: tuple[int, ...]
    told: tuple[Notice, ...]
    persisted: tuple[str, ...]


class StepOutcome(NamedTuple):
    """One way in which a step may go; ``crashes`` are the points where it may break off."""

    choice: tuple[int, ...]
    process: ProcessState
    sent: tuple[int, ...]
    told: tuple[Notice, ...]
    persisted: tuple[str, ...]
    crashes: tuple[Crash, ...]
    notes: tuple[str, ...]  # phase changes and choices, for people
