"""Processes: how a step runs to completion, and where it may crash.

The handler's effects are carried out in order; a ``Choose`` is answered at once; messages to the same process and the
next operation follow, first come first served.

A crash keeps what was written to the disk and what left the process, and loses everything else. Crash points count the
effects that leave the process's memory: ``Persist``, ``Send`` to another process, ``Announce``, ``Complete``, and the
begin of an operation.

Group commit (``atomic_disk=False``): while the disk's image is unsynced, all effects that would leave the process are
withheld in order; a sync releases them. This also applies to a process that restarts on an unsynced image.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import NamedTuple

from trunkline.check.frozen import text
from trunkline.check.network import Network
from trunkline.check.process_values import Crash, Notice, ProcessState, StepCause, StepOutcome
from trunkline.check.role_steps import Alarm, Arrival, Chosen, Coverage, RoleEvent, RoleSteps, Start, last_line
from trunkline.check.scenario import (
    Boot,
    Completed,
    Invoked,
    ObservedEvent,
    OperationEnd,
    ProcessEnded,
    ProcessSpec,
    Scenario,
)
from trunkline.check.views import Finding
from trunkline.core.effects import (
    SELF,
    Address,
    Announce,
    CancelTimer,
    Choose,
    Complete,
    Effect,
    Event,
    Message,
    Persist,
    Send,
    SetTimer,
)

INTERNAL_STEPS_MAX = 1000
CHOICES_MAX = 20  # in one step
APPLICATION = "application"


class _Point(NamedTuple):
    """Where a step may crash: the process, and how much had left it by then."""

    process: ProcessState
    sent: int
    notices: int
    persisted: int


@dataclass
class _Run:
    """A step in progress. It holds only values and containers of values, so that a choice can fork it."""

    process: ProcessState
    roles: dict[str, int]
    timers: set[tuple[str, str]]
    queue: deque[tuple[str, RoleEvent] | None]  # None: begin the next operation
    withheld: list[tuple[str, Effect]]
    sent: list[int]
    notices: list[Notice]
    points: list[_Point]
    choice: tuple[int, ...]
    notes: list[str]
    persisted: list[str]

    def fork(self) -> _Run:
        return replace(
            self,
            roles=dict(self.roles),
            timers=set(self.timers),
            queue=deque(self.queue),
            withheld=list(self.withheld),
            sent=list(self.sent),
            notices=list(self.notices),
            points=list(self.points),
            notes=list(self.notes),
            persisted=list(self.persisted),
        )

    def mark(self) -> None:
        """An effect left the memory of the process: a crash may happen before and after it."""
        self.points.append(_Point(self.process, len(self.sent), len(self.notices), len(self.persisted)))


class Processes:
    """Runs steps of the scenario's processes. Pure, except for interned values and coverage."""

    def __init__(self, scenario: Scenario, network: Network, roles: RoleSteps, coverage: Coverage) -> None:
        self._scenario = scenario
        self._network = network
        self._roles = roles
        self._coverage = coverage
        self._names = {spec.name for spec in scenario.processes}

    def spec(self, process: ProcessState) -> ProcessSpec:
        return self._scenario.processes[process.spec_index]

    def not_started(self, index: int) -> ProcessState:
        return ProcessState(index, False, 1, 0, self._scenario.processes[index].image)

    def unsynced(self, process: ProcessState) -> bool:
        return not self._scenario.atomic_disk and not self.spec(process).disk.synced(process.image)

    def may_operate(self, process: ProcessState, *, gated: bool) -> bool:
        """Whether it can begin its next operation now. ``gated``: one that waits for operations of others."""
        if not process.up or process.busy or process.operations_begun >= len(self.spec(process).operations):
            return False
        return bool(self.gate(process)) == gated

    def gate(self, process: ProcessState) -> tuple[OperationEnd, ...]:
        """The operations that must end before the process begins its next one."""
        return self.spec(process).operations[process.operations_begun].after

    def ignores(self, process: ProcessState, source: Address, role: str, message: Message) -> bool:
        number = dict(process.roles).get(role)
        return number is not None and self._roles.ignores(number, source, message)

    def may_ignore(self, process: ProcessState) -> bool:
        return any(hasattr(self._roles.roles[number], "ignores") for _, number in process.roles)

    def ended(self, process: ProcessState, kind: str) -> tuple[ProcessState, tuple[Notice, ...]]:
        """The process ends between two steps."""
        return process.ended(), (self._notice(process, "", ProcessEnded(kind)),)

    def step(self, process: ProcessState, cause: StepCause) -> list[StepOutcome]:
        """All outcomes, in the order of the chosen options. The failure of a role is the last notice of its outcome."""
        run = self._begin(process, cause)
        finished: list[_Run] = []
        failure = self._first(run, cause, finished)
        if failure is not None:
            self._fail(run, failure, process, finished)
        seen: set[Hashable] = set()
        return [self._outcome(each, cause, seen) for each in finished]

    # Beginning a step

    def _begin(self, process: ProcessState, cause: StepCause) -> _Run:
        notices: list[Notice] = []
        if cause.kind == "wipe":
            notices.append(self._notice(process, "", ProcessEnded("wipe")))
            spec = self.spec(process)
            empty = spec.image if spec.blank is None else spec.blank
            process = process._replace(incarnation=process.incarnation + 1, image=empty)
        if cause.kind in ("restart", "wipe"):
            process = process._replace(up=True, start=process.start + 1)
        roles, timers = dict(process.roles), set(process.timers)
        run = _Run(process, roles, timers, deque(), list(process.withheld), [], notices, [], (), [], [])
        run.mark()
        return run

    def _first(self, run: _Run, cause: StepCause, finished: list[_Run]) -> Finding | None:
        if cause.kind in ("restart", "wipe"):
            failure = self._boot(run)
            if failure is not None:
                return failure
        elif cause.kind == "sync":
            self._sync(run)
        elif cause.kind == "operate":
            run.queue.append(self._operation(run))
        elif cause.event is not None:
            if isinstance(cause.event, Alarm):
                run.timers.discard((cause.role, cause.event.key))
            run.queue.append((cause.role, cause.event))
        return self._drain(run, finished)

    def _boot(self, run: _Run) -> Finding | None:
        spec, process = self.spec(run.process), run.process
        try:
            boot = Boot(spec.name, process.incarnation, process.start, spec.disk.load(process.image))
            roles = spec.start(boot)
        except Exception as error:  # failing to read its own disk is a finding
            return Finding("RoleError", f"{spec.name} cannot start: {last_line(error)}")
        for name, role in roles.items():
            run.roles[name] = self._roles.intern(role)
            run.queue.append((name, Start()))
        if self._scenario.eager_operations and spec.operations:
            run.queue.append(None)
        return None

    def _sync(self, run: _Run) -> None:
        run.process = run.process._replace(image=self.spec(run.process).disk.sync(run.process.image))
        run.persisted.append("synced")
        run.mark()
        released, run.withheld = run.withheld, []
        for role, effect in released:
            self._emit(run, role, effect)

    # Running it

    def _drain(self, run: _Run, finished: list[_Run]) -> Finding | None:
        """Handle the events inside the process until none is left; a choice forks the run for each option."""
        for _ in range(INTERNAL_STEPS_MAX):
            if not run.queue:
                finished.append(run)
                return None
            item = run.queue.popleft() or self._next_operation(run)
            if item is None:
                continue
            role, event = item
            if role not in run.roles:
                return Finding("RoleError", f"process {self.spec(run.process).name} has no role {role!r}")
            answer = self._handle(run, role, event)
            if isinstance(answer, Choose):
                return self._fork(run, role, answer, finished)
            if answer is not None:
                return answer
        return Finding("RoleError", f"one step takes more than {INTERNAL_STEPS_MAX} events inside its process")

    def _next_operation(self, run: _Run) -> tuple[str, RoleEvent] | None:
        return self._operation(run) if self.may_operate(run.process, gated=False) else None

    def _operation(self, run: _Run) -> tuple[str, RoleEvent]:
        spec, begun = self.spec(run.process), run.process.operations_begun
        operation = spec.operations[begun]
        run.process = run.process._replace(operations_begun=begun + 1, busy=True)
        run.notices.append(self._notice(run.process, operation.role, Invoked(begun + 1, operation.request)))
        run.mark()
        return operation.role, Arrival(Address(spec.name, APPLICATION), operation.request)

    def _handle(self, run: _Run, role: str, event: RoleEvent) -> Choose | Finding | None:
        """Run one handler and carry out its effects; a ``Choose`` at the end is returned instead."""
        before = run.roles[role]
        step = self._roles.step(before, event)
        if step.error is not None:
            return step.error
        run.roles[role] = step.after
        run.notes.append(self._note(role, event, before, step.after))
        for effect in step.effects:
            if isinstance(effect, Choose):
                return effect
            failure = self._carry_out(run, role, effect)
            if failure is not None:
                return failure
        return None

    def _fork(self, run: _Run, role: str, choose: Choose, finished: list[_Run]) -> Finding | None:
        kind = type(self._roles.roles[run.roles[role]]).__name__
        options = choose.options if self._scenario.every_choice else choose.options[:1]
        if not options or len(run.choice) == CHOICES_MAX:
            return Finding(
                "RoleError",
                f"{kind}: Choose {choose.key!r} has no options, or the step has more than {CHOICES_MAX} choices",
            )
        for index, option in enumerate(options):
            self._coverage.choices.add((kind, choose.key, index))
            branch = run.fork()
            branch.choice = (*run.choice, index)
            branch.notes.append(f"{role} chose {choose.key}={text(option)}")
            branch.queue.appendleft((role, Chosen(choose.key, option)))
            failure = self._drain(branch, finished)
            if failure is not None:
                self._fail(branch, failure, run.process, finished)
        return None

    # Effects

    def _carry_out(self, run: _Run, role: str, effect: Effect) -> Finding | None:
        name = self.spec(run.process).name
        if isinstance(effect, SetTimer):
            run.timers.add((role, effect.key))
        elif isinstance(effect, CancelTimer):
            run.timers.discard((role, effect.key))
        elif isinstance(effect, Persist):
            self._persist(run, effect)
        elif isinstance(effect, Send) and effect.to.process in (SELF, name):
            run.queue.append((effect.to.role, Arrival(Address(name, role), effect.message)))
        elif isinstance(effect, Send) and effect.to.process not in self._names:
            return Finding("RoleError", f"{name}.{role} sent to an unknown process {effect.to.process!r}")
        elif self.unsynced(run.process):
            run.withheld.append((role, effect))
        else:
            self._emit(run, role, effect)
        return None

    def _persist(self, run: _Run, effect: Persist) -> None:
        disk = self.spec(run.process).disk
        image = disk.write(run.process.image, effect.record)
        if self._scenario.atomic_disk:
            image = disk.sync(image)
        run.process = run.process._replace(image=image)
        run.persisted.append(text(effect.record))
        run.mark()

    def _emit(self, run: _Run, role: str, effect: Effect) -> None:
        """An effect leaves the process."""
        if isinstance(effect, Send):
            source = Address(self.spec(run.process).name, role)
            run.sent.append(self._network.message(source, effect.to, effect.message))
        elif isinstance(effect, Announce):
            run.notices.append(self._notice(run.process, role, effect.event))
        elif isinstance(effect, Complete):
            run.notices.append(self._notice(run.process, role, Completed(effect.operation, effect.result)))
            run.process = run.process._replace(busy=False)
            if self._scenario.eager_operations:
                run.queue.append(None)
        else:
            raise TypeError(f"not an effect: {effect!r}")
        run.mark()

    # Ending it

    def _fail(self, run: _Run, failure: Finding, process: ProcessState, finished: list[_Run]) -> None:
        run.notices.append(Notice(None, failure))
        run.process = process
        finished.append(run)

    def _outcome(self, run: _Run, cause: StepCause, seen: set[Hashable]) -> StepOutcome:
        process = run.process._replace(
            roles=tuple(run.roles.items()),
            timers=tuple(sorted(run.timers)),
            withheld=tuple(run.withheld),
        )
        crashes = self._crashes(run, cause, seen)
        notices, persisted = tuple(run.notices), tuple(run.persisted)
        return StepOutcome(run.choice, process, tuple(run.sent), notices, persisted, crashes, tuple(run.notes))

    def _crashes(self, run: _Run, cause: StepCause, seen: set[Hashable]) -> tuple[Crash, ...]:
        """The crash points of this run whose world no other point, of any choice, leaves.

        A crash at the last point equals a crash after the step. One at the first point counts only where the cause is
        already consumed: the message was delivered, the start was counted.
        """
        seen.add(self._left_by(run, run.points[-1]))
        if cause.kind in ("timer", "sync", "operate"):
            seen.add(self._left_by(run, run.points[0]))
        crashes: list[Crash] = []
        for effects, point in enumerate(run.points[:-1]):
            left = self._left_by(run, point)
            if left in seen:
                continue
            seen.add(left)
            notices = (*run.notices[: point.notices], self._notice(point.process, "", ProcessEnded("crash")))
            sent, persisted = tuple(run.sent[: point.sent]), tuple(run.persisted[: point.persisted])
            crashes.append(Crash(effects, point.process.ended(), sent, notices, persisted))
        return tuple(crashes)

    def _left_by(self, run: _Run, point: _Point) -> Hashable:
        process = point.process
        return (
            process.image,
            process.operations_begun,
            tuple(run.sent[: point.sent]),
            tuple(run.notices[: point.notices]),
        )

    def _notice(self, process: ProcessState, role: str, event: Event) -> Notice:
        return Notice(ObservedEvent(self.spec(process).name, role, event))

    def _note(self, role: str, event: RoleEvent, before: int, after: int) -> str:
        phases = [self._roles.roles[number].phase for number in (before, after)]
        change = phases[0] if phases[0] == phases[1] else f"{phases[0]} → {phases[1]}"
        return f"{role} handled {event.name} ({change})"
