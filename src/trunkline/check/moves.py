"""The moves of single processes, memoised: from a process's number and a cause to the numbers of what changes."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple, TypeVar

from trunkline.check.actions import OF_TIMER, Action, is_fault
from trunkline.check.budgets import Budget
from trunkline.check.interner import Interner
from trunkline.check.network import Network
from trunkline.check.process_values import Notice, ProcessState, StepCause
from trunkline.check.processes import Processes
from trunkline.check.role_steps import Alarm, Arrival, Coverage
from trunkline.check.scenario import Completed, OperationEnd, Scenario
from trunkline.check.verdicts import Verdicts


class Move(NamedTuple):
    action: int
    process: int  # after the move
    bundle: int  # messages that it sends
    notices: int  # for monitors


Moves = tuple[Move, ...]


class Handled(NamedTuple):
    """One cause: its possible moves, and the crashes inside them."""

    moves: Moves
    crashes: Moves


class DeliveryMove(NamedTuple):
    """A move that takes a message out of the process's own inbox."""

    action: int
    process: int
    inbox: int  # after the move
    bundle: int
    notices: int


class FreeTimerMoves(NamedTuple):
    """A timer that may fire at any moment while one of these budgets is left."""

    indexes: tuple[int, ...]  # in Scenario.free_timers
    handled: Handled


class DiskAfterPowerCut(NamedTuple):
    """One possible disk image after a power cut."""

    label: str
    process: int
    notices: int


class Local:
    """One state of one process, and its moves so far computed. None: not computed yet."""

    __slots__ = (
        "arrivals",
        "attention",
        "crash",
        "deliveries",
        "doubles",
        "early_timers",
        "free_timers",
        "gated",
        "kept",
        "power_cut",
        "process",
        "restart",
        "rot",
        "timers",
        "up",
        "waiting",
        "wipe",
    )

    def __init__(self, process: ProcessState, *, may_ignore: bool) -> None:
        self.process = process
        self.up = process.up
        self.attention = may_ignore or not process.up  # messages to it may have to be removed
        self.arrivals: dict[int, Handled] = {}  # by message
        self.deliveries: dict[tuple[int, int], tuple[DeliveryMove, ...]] = {}  # by inbox and present cut
        self.doubles: dict[int, Moves] = {}
        self.kept: dict[int, int] = {}  # by inbox: the messages that it does not ignore
        self.waiting: tuple[Handled, ...] | None = None
        self.timers: tuple[Handled, ...] | None = None
        self.early_timers: tuple[Handled, ...] | None = None
        self.free_timers: tuple[FreeTimerMoves, ...] | None = None
        self.gated: tuple[Handled, ...] | None = None
        self.restart: Handled | None = None
        self.wipe: Handled | None = None
        self.crash: Moves | None = None
        self.rot: Moves | None = None
        self.power_cut: tuple[DiskAfterPowerCut, ...] | None = None


Found = TypeVar("Found")


def _memoised(compute: Callable[[LocalMoves, Local], Found]) -> Callable[[LocalMoves, Local], Found]:
    """Keep the result in the attribute of ``Local`` with the same name."""
    name = compute.__name__

    def moves(self: LocalMoves, here: Local) -> Found:
        found: Found | None = getattr(here, name)
        if found is None:
            found = compute(self, here)
            if self.memo:
                setattr(here, name, found)
        return found

    return moves


class LocalMoves:
    """``locals`` is indexed by a process's number. Without ``memo`` each call runs its handlers again."""

    def __init__(
        self,
        scenario: Scenario,
        processes: Processes,
        network: Network,
        verdicts: Verdicts,
        coverage: Coverage,
        *,
        memo: bool,
    ) -> None:
        self._scenario = scenario
        self._processes = processes
        self._network = network
        self._verdicts = verdicts
        self._coverage = coverage
        self.memo = memo
        self._numbers: Interner[ProcessState] = Interner()
        self.locals: list[Local] = []
        self.actions: Interner[Action] = Interner()
        self.faults: list[bool] = []

    def number(self, process: ProcessState) -> int:
        number = self._numbers.intern(process)
        if number == len(self.locals):
            self.locals.append(Local(process, may_ignore=process.up and self._processes.may_ignore(process)))
        return number

    def action(self, action: Action) -> int:
        number = self.actions.intern(action)
        if number == len(self.faults):
            self.faults.append(is_fault(action))
        return number

    def cause(self, action: Action, message: int | None) -> StepCause:
        """The cause in the process of an action; ``message`` is the number of the action's message, if any."""
        if message is not None:
            envelope = self._network.messages.values[message]
            return StepCause("deliver", envelope.target.role, Arrival(envelope.source, envelope.message))
        if action.kind in OF_TIMER:
            role, _, key = action.subject.partition(" ")
            return StepCause("timer", role, Alarm(key))
        return StepCause(action.kind)

    # Moves of a process

    def arrival(self, here: Local, message: int) -> Handled:
        handled = here.arrivals.get(message)
        if handled is None:
            action = Action("deliver", self._name(here), self._network.texts[message])
            handled = self._handled(here.process, self.cause(action, message), action)
            if self.memo:
                here.arrivals[message] = handled
        return handled

    def deliveries(self, here: Local, inbox: int, budget: Budget) -> tuple[DeliveryMove, ...]:
        """All deliveries of a message from the inbox of a running process."""
        key = (inbox, budget.cut_now)
        found = here.deliveries.get(key)
        if found is None:
            found = tuple(
                DeliveryMove(move.action, move.process, self.kept(move.process, rest), move.bundle, move.notices)
                for message, rest in self._network.flights(inbox)
                if self._network.channels[message] not in budget.blocked
                for move in self.arrival(here, message).moves
            )
            if self.memo:
                here.deliveries[key] = found
        return found

    def kept(self, process: int, inbox: int) -> int:
        """An inbox without the messages that a running process ignores for good."""
        here = self.locals[process]
        if not here.attention or not here.up:
            return inbox
        kept = here.kept.get(inbox)
        if kept is None:
            ignored = [each for each in self._network.contents(inbox) if self._ignores(here, each)]
            kept = here.kept[inbox] = self._network.without(inbox, ignored) if ignored else inbox
        return kept

    def doubled(self, here: Local, message: int) -> Moves:
        """The moves of an arrival whose message stays in flight."""
        found = here.doubles.get(message)
        if found is None:
            moves = self.arrival(here, message).moves
            actions = [self.actions.values[move.action]._replace(kind="duplicate") for move in moves]
            pairs = zip(moves, actions, strict=True)
            found = tuple(move._replace(action=self.action(action)) for move, action in pairs)
            if self.memo:
                here.doubles[message] = found
        return found

    @_memoised
    def waiting(self, here: Local) -> tuple[Handled, ...]:
        """What a process can do by itself without time passing: sync its disk, begin its next operation."""
        found: list[Handled] = []
        if here.up and self._processes.unsynced(here.process):
            found.append(self._handled(here.process, StepCause("sync"), Action("sync", self._name(here))))
        if not self._scenario.eager_operations and self._processes.may_operate(here.process, gated=False):
            found.append(self._handled(here.process, StepCause("operate"), Action("operate", self._name(here))))
        return tuple(found)

    @_memoised
    def gated(self, here: Local) -> tuple[Handled, ...]:
        """The next operation of a process, if it waits for others to end. The caller knows whether they have."""
        if not self._processes.may_operate(here.process, gated=True):
            return ()
        return (self._handled(here.process, StepCause("operate"), Action("operate", self._name(here))),)

    def gate(self, here: Local) -> tuple[OperationEnd, ...]:
        """The operations that ``gated`` waits for."""
        return self._processes.gate(here.process)

    @_memoised
    def timers(self, here: Local) -> tuple[Handled, ...]:
        return self._fired(here, "timer")

    @_memoised
    def early_timers(self, here: Local) -> tuple[Handled, ...]:
        return self._fired(here, "early_timer")

    @_memoised
    def free_timers(self, here: Local) -> tuple[FreeTimerMoves, ...]:
        process, name, entries = here.process, self._name(here), self._scenario.free_timers
        found: list[FreeTimerMoves] = []
        for role, key in process.timers:
            indexes = tuple(index for index, each in enumerate(entries) if each.matches(name, role, key))
            if indexes:
                action = Action("free_timer", name, f"{role} {key}")
                found.append(FreeTimerMoves(indexes, self._handled(process, self.cause(action, None), action)))
        return tuple(found)

    @_memoised
    def restart(self, here: Local) -> Handled:
        return self._handled(here.process, StepCause("restart"), Action("restart", self._name(here)))

    @_memoised
    def wipe(self, here: Local) -> Handled:
        return self._handled(here.process, StepCause("wipe"), Action("wipe", self._name(here)))

    @_memoised
    def crash(self, here: Local) -> Moves:
        """The process ends between two steps."""
        if not here.up:
            return ()
        process, notices = self._processes.ended(here.process, "crash")
        self._count(notices)
        return (self._move(Action("crash", self._name(here)), process, (), notices),)

    @_memoised
    def rot(self, here: Local) -> Moves:
        images = self._processes.spec(here.process).disk.after_rot(here.process.image)
        pairs = [
            (Action("rot", self._name(here), label), here.process._replace(image=image)) for label, image in images
        ]
        return tuple(self._move(action, process, (), ()) for action, process in pairs)

    @_memoised
    def power_cut(self, here: Local) -> tuple[DiskAfterPowerCut, ...]:
        """Each possible image once."""
        notices: tuple[Notice, ...] = ()
        process = here.process
        if process.up:
            process, notices = self._processes.ended(process, "power_cut")
            self._count(notices)
        number_of_notices = self._verdicts.number_of(notices)
        labels: dict[Hashable, str] = {}
        for label, image in self._processes.spec(process).disk.after_power_cut(process.image):
            labels.setdefault(image, label)
        numbers = [(label, self.number(process._replace(image=image))) for image, label in labels.items()]
        return tuple(DiskAfterPowerCut(label, number, number_of_notices) for label, number in numbers)

    # Computing moves

    def _ignores(self, here: Local, message: int) -> bool:
        source, target, content = self._network.messages.values[message]
        return self._processes.ignores(here.process, source, target.role, content)

    def _fired(self, here: Local, kind: str) -> tuple[Handled, ...]:
        actions = [Action(kind, self._name(here), f"{role} {key}") for role, key in here.process.timers]
        return tuple(self._handled(here.process, self.cause(action, None), action) for action in actions)

    def _handled(self, process: ProcessState, cause: StepCause, action: Action) -> Handled:
        crashable = self._scenario.faults.crash > 0 and action.actor in self._scenario.crashable
        moves: list[Move] = []
        crashes: list[Move] = []
        for outcome in self._processes.step(process, cause):
            taken = action._replace(choice=outcome.choice)
            moves.append(self._move(taken, outcome.process, outcome.sent, outcome.notices))
            self._count(outcome.notices)
            for crash in outcome.crashes if crashable else ():
                ended = Action("crash_in", action.actor, "", (), crash.effects, taken)
                crashes.append(self._move(ended, crash.process, crash.sent, crash.notices))
                name = cause.event.name if cause.event is not None else cause.kind
                self._coverage.crash_points.add((action.actor, name, crash.effects))
                self._count(crash.notices[-1:])
        return Handled(tuple(moves), tuple(crashes))

    def _count(self, notices: tuple[Notice, ...]) -> None:
        for each in notices:
            if each.observed is not None:
                event = each.observed.event
                for seen in (event, event.result) if isinstance(event, Completed) else (event,):
                    name = type(seen).__name__
                    self._coverage.events[name] = self._coverage.events.get(name, 0) + 1

    def _move(self, action: Action, process: ProcessState, sent: tuple[int, ...], notices: tuple[Notice, ...]) -> Move:
        bundle = self._network.bundle(sent)
        return Move(self.action(action), self.number(process), bundle, self._verdicts.number_of(notices))

    def _name(self, here: Local) -> str:
        return self._processes.spec(here.process).name
