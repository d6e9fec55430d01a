"""Steps of single roles: a handler runs once for each distinct (local state, event), on a copy of the role."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, NamedTuple

from trunkline.check.frozen import clone, freeze, rename
from trunkline.check.interner import Interner
from trunkline.check.views import Finding
from trunkline.core.effects import Address, Choose, Effect, Message
from trunkline.core.role import Role


class Start(NamedTuple):
    """``on_start``. Each of these four kinds of event has a name for coverage."""

    @property
    def name(self) -> str:
        return "start"

    def run(self, role: Role) -> list[Effect]:
        return role.on_start()


class Arrival(NamedTuple):
    source: Address
    message: Message

    @property
    def name(self) -> str:
        return type(self.message).__name__

    def run(self, role: Role) -> list[Effect]:
        return role.on_message(self.source, self.message)


class Alarm(NamedTuple):
    key: str

    @property
    def name(self) -> str:
        return f"timer {self.key}"

    def run(self, role: Role) -> list[Effect]:
        return role.on_timer(self.key)


class Chosen(NamedTuple):
    key: str
    option: Any

    @property
    def name(self) -> str:
        return f"choice {self.key}"

    def run(self, role: Role) -> list[Effect]:
        return role.on_choice(self.key, self.option)


RoleEvent = Start | Arrival | Alarm | Chosen


class RoleStep(NamedTuple):
    """``after`` is the role's number after the step; ``error`` is set if the role itself failed."""

    after: int
    effects: tuple[Effect, ...]
    error: Finding | None


@dataclass
class Coverage:
    """What was run. Counts are of distinct steps, not of how often a step was taken."""

    pairs: set[tuple[str, str, str]] = field(default_factory=set)  # role class, phase, event name
    choices: set[tuple[str, str, int]] = field(default_factory=set)  # role class, key, index of the option
    crash_points: set[tuple[str, str, int]] = field(default_factory=set)  # process, event name, effects carried out
    events: dict[str, int] = field(default_factory=dict)  # by type name: events that monitors observed
    steps_computed: int = 0


class RoleSteps:
    """Interned roles and their memoised steps. An interned role never changes: handlers run on a copy."""

    def __init__(self, coverage: Coverage, *, memo: bool) -> None:
        self._coverage = coverage
        self._memo = memo
        self._numbers: Interner[Hashable] = Interner()
        self.roles: list[Role] = []
        self._steps: dict[tuple[int, type, RoleEvent], RoleStep] = {}
        self._ignored: dict[tuple[int, Address, Message], bool] = {}

    def intern(self, role: Role) -> int:
        """The number of a role's state. The caller must not use the object afterwards."""
        number = self._numbers.intern(freeze(role))
        if number == len(self.roles):
            self.roles.append(role)
        return number

    def step(self, role: int, event: RoleEvent) -> RoleStep:
        # The events are tuples, so their type has to be part of the key.
        key = (role, type(event), event)
        step = self._steps.get(key)
        if step is None or not self._memo:
            step = self._steps[key] = self._run(role, event)
        return step

    def ignores(self, role: int, source: Address, message: Message) -> bool:
        ignores: Callable[[Address, Message], bool] | None = getattr(self.roles[role], "ignores", None)
        if ignores is None:
            return False
        key = (role, source, message)
        ignored = self._ignored.get(key)
        if ignored is None:
            ignored = self._ignored[key] = bool(ignores(source, message))
        return ignored

    def renamed(self, role: int, names: dict[str, str]) -> int:
        return self.intern(rename(self.roles[role], names))

    def _run(self, number: int, event: RoleEvent) -> RoleStep:
        role = clone(self.roles[number])
        self._coverage.steps_computed += 1
        self._coverage.pairs.add((type(role).__name__, role.phase, event.name))
        try:
            effects = tuple(event.run(role))
        except Exception as error:  # an exception is a finding about the role, not about the checker
            return RoleStep(number, (), Finding("RoleError", f"{type(role).__name__}: {last_line(error)}"))
        if any(isinstance(each, Choose) for each in effects[:-1]):
            return RoleStep(number, (), Finding("RoleError", f"{type(role).__name__}: Choose is not its last effect"))
        return RoleStep(self.intern(role), effects, None)


def last_line(error: Exception) -> str:
    """The exception and where it was raised, without machine-specific paths."""
    line = traceback.format_exception_only(error)[-1].strip()
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return line
    return f"{line} (in {frames[-1].name}, {PurePath(frames[-1].filename).name}:{frames[-1].lineno})"
