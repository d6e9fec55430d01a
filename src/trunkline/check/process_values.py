"""Values of a process's steps: its state, the cause of a step, and the possible outcomes."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from trunkline.check.role_steps import RoleEvent
from trunkline.check.scenario import ObservedEvent
from trunkline.check.views import Finding
from trunkline.core.effects import Effect


class ProcessState(NamedTuple):
    """The whole state of one process."""

    spec_index: int  # among the scenario's processes
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
        return ProcessState(
            self.spec_index, False, self.incarnation, self.start, self.image, (), (), self.operations_begun
        )


class StepCause(NamedTuple):
    """Why a process runs: one handler of one role, or the host itself."""

    kind: str  # deliver, timer, operate, sync, restart, wipe
    role: str = ""
    event: RoleEvent | None = None


class Notice(NamedTuple):
    """One observed event, or the failure of a role, which ends the list."""

    observed: ObservedEvent | None
    finding: Finding | None = None


class Crash(NamedTuple):
    """The process crashed after ``effects`` effects."""

    effects: int
    process: ProcessState
    sent: tuple[int, ...]
    notices: tuple[Notice, ...]
    persisted: tuple[str, ...]


class StepOutcome(NamedTuple):
    """One outcome of a step; ``crashes`` are the points where it may crash."""

    choice: tuple[int, ...]
    process: ProcessState
    sent: tuple[int, ...]
    notices: tuple[Notice, ...]
    persisted: tuple[str, ...]
    crashes: tuple[Crash, ...]
    notes: tuple[str, ...]  # phase changes and choices, for reports
