"""Delivery: every destination is its part of the source at its position, whatever fails.

The tables of the checked world tell each of their commits whole, so that most properties are judged commit by commit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from trunkline.check.delivery_rows import Rows, SourceScript
from trunkline.check.scenario import Monitor, ObservedEvent, ProcessEnded, Violation
from trunkline.core.delivery_events import GroupStarted, JobEnded, PlanDropped
from trunkline.core.delivery_messages import Outcome
from trunkline.core.effects import Event


class SourceMoved(Event, frozen=True):
    """The source has this version now, and has forgotten what lies before ``oldest``."""

    version: int
    oldest: int
    life: int = 0  # grows when it was replaced by another


class TableWritten(Event, frozen=True):
    """A destination committed: this is all it holds."""

    destination: str
    rows: Rows
    position: int
    token: int
    seeded: int  # the version of its last seed; 0: nobody vouches for its rows
    restored: bool = False  # an operator took it back to a backup
    mark: str = ""  # of the position


class Parts(NamedTuple):
    """What the destinations are to hold."""

    history: SourceScript
    tenants: Mapping[str, tuple[int, ...]]  # of each destination
    append: bool = False
    token_first: int = 0  # what was written under an older token is not judged: another configuration held then

    def expected(self, destination: str, version: int, history: SourceScript | None = None) -> Rows:
        return (history or self.history).part(self.tenants[destination], version)


class CommitMonitor:
    """A property of one commit alone."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def initial(self) -> tuple[()]:
        return ()

    def observe(self, state: tuple[()], observed: ObservedEvent) -> tuple[()]:
        event = observed.event
        if isinstance(event, TableWritten) and event.seeded and event.token >= self._parts.token_first:
            self.judge(event)
        return state

    def hot(self, state: tuple[()]) -> str:
        return ""

    def judge(self, table: TableWritten) -> None:
        raise NotImplementedError


class NoPhantom(CommitMonitor):
    """A destination holds no row that the source does not have at its position (in mode append: ever had)."""

    name = "NoPhantom"

    def judge(self, table: TableWritten) -> None:
        versions = range(table.seeded, table.position + 1) if self._parts.append else (table.position,)
        real = {row for version in versions for row in self._parts.history.of(table.mark).versions[version]}
        for row in table.rows:
            if row not in real:
                raise Violation(f"{table.destination} at {table.position} holds {row.brief()}, the source does not")


class NoLoss(CommitMonitor):
    """A destination holds every row that its part of the source has at its position."""

    name = "NoLoss"

    def judge(self, table: TableWritten) -> None:
        for row in self._parts.expected(table.destination, table.position, self._parts.history.of(table.mark)):
            if row not in table.rows:
                raise Violation(f"{table.destination} at {table.position} lacks {row.brief()}")


class PartitionCorrectness(CommitMonitor):
    """A destination holds rows of its own tenants only."""

    name = "PartitionCorrectness"

    def judge(self, table: TableWritten) -> None:
        for row in table.rows:
            if row.tenant not in self._parts.tenants[table.destination]:
                raise Violation(f"{table.destination} holds {row.brief()}, which is not its own")


class ExactlyOnce(CommitMonitor):
    """No change has its effect twice: a row is in a table once, and in a mirror so is its key."""

    name = "ExactlyOnce"

    def judge(self, table: TableWritten) -> None:
        counted = Counter(row if self._parts.append else row.key for row in table.rows)
        for what, times in counted.items():
            if times > 1:
                raise Violation(f"{table.destination} at {table.position} holds {what} {times} times")


class CursorMonotone:
    """The position of a destination never goes back, but by a backup: its own, or one that the source was restored from
    so that it does not have this version any more."""

    name = "CursorMonotone"

    class State(NamedTuple):
        life: int = 0  # of the source
        written: tuple[tuple[str, int, str], ...] = ()  # destination, position, mark

    def __init__(self, parts: Parts) -> None:
        self._history = parts.history

    def initial(self) -> State:
        return self.State()

    def observe(self, state: State, observed: ObservedEvent) -> State:
        event = observed.event
        if isinstance(event, SourceMoved):
            return state._replace(life=event.life)
        if not isinstance(event, TableWritten):
            return state
        last = {name: (position, mark) for name, position, mark in state.written}
        position, mark = last.get(event.destination, (0, ""))
        real = mark == self._history.mark(state.life, position)
        if event.position < position and real and not event.restored:
            raise Violation(f"{event.destination} went back from {position} to {event.position}")
        last[event.destination] = (event.position, event.mark)
        return state._replace(written=tuple(sorted((name, *written) for name, written in last.items())))

    def hot(self, state: State) -> str:
        return ""


class SingleDeliverer:
    """After a deliverer with a newer token has written, nothing with an older one is written any more."""

    name = "SingleDeliverer"

    def initial(self) -> tuple[tuple[str, int], ...]:
        return ()

    def observe(self, state: tuple[tuple[str, int], ...], observed: ObservedEvent) -> tuple[tuple[str, int], ...]:
        event = observed.event
        if not isinstance(event, TableWritten):
            return state
        last = dict(state)
        if event.token < last.get(event.destination, 0) and not event.restored:
            raise Violation(
                f"{event.destination} was written under token {event.token}, after {last[event.destination]}"
            )
        return tuple(sorted({**last, event.destination: event.token}.items()))

    def hot(self, state: tuple[tuple[str, int], ...]) -> str:
        return ""


class FlushState:
    """A deliverer has one job in flight for a destination, not two."""

    name = "FlushState"
    State = tuple[tuple[str, int, tuple[str, ...]], ...]  # process, job, destinations

    def initial(self) -> State:
        return ()

    def observe(self, state: State, observed: ObservedEvent) -> State:
        process = observed.process
        match observed.event:
            case GroupStarted(job, _, _, members):
                names = tuple(member.destination for member in members)
                for other in state:
                    twice = [name for name in names if other[0] == process and name in other[2]]
                    if twice:
                        raise Violation(f"{process} has two jobs for {twice[0]} in flight: {other[1]} and {job}")
                return tuple(sorted((*state, (process, job, names))))
            case JobEnded(job):
                return tuple(each for each in state if each[:2] != (process, job))
            case ProcessEnded():
                return tuple(each for each in state if each[0] != process)
        return state

    def hot(self, state: State) -> str:
        return ""


class OnePlace:
    """A deliverer has one job in flight that writes to a place, not two."""

    name = "OnePlace"
    State = tuple[tuple[str, int, tuple[str, ...]], ...]  # process, job, places

    def __init__(self, places: Mapping[str, str]) -> None:
        """``places``: of destinations; those that are not named share none."""
        self._places = places

    def initial(self) -> State:
        return ()

    def observe(self, state: State, observed: ObservedEvent) -> State:
        process = observed.process
        match observed.event:
            case GroupStarted(job, _, _, members):
                named = {self._places[each.destination] for each in members if each.destination in self._places}
                for other, number, taken in state:
                    if other == process and named.intersection(taken):
                        raise Violation(f"{process} has two jobs for one place in flight: {number} and {job}")
                return tuple(sorted((*state, (process, job, tuple(sorted(named))))))
            case JobEnded(job):
                return tuple(each for each in state if each[:2] != (process, job))
            case ProcessEnded():
                return tuple(each for each in state if each[0] != process)
        return state

    def hot(self, state: State) -> str:
        return ""


class BufferBound:
    """A flush is planned inside of what is, or was, there: stored position <= after <= through <= source."""

    name = "BufferBound"

    class State(NamedTuple):
        version: int = 0
        oldest: int = 0
        positions: tuple[tuple[str, int], ...] = ()

    def initial(self) -> State:
        return self.State()

    def observe(self, state: State, observed: ObservedEvent) -> State:
        match observed.event:
            case SourceMoved(version, oldest):
                return state._replace(version=max(state.version, version), oldest=oldest)
            case TableWritten(destination=destination, position=position):
                positions = {**dict(state.positions), destination: position}
                return state._replace(positions=tuple(sorted(positions.items())))
            case GroupStarted(_, after, through, members, seed):
                if through > state.version:
                    raise Violation(f"{observed.process} plans up to {through}, but the source is at {state.version}")
                for member in () if seed else members:
                    if not member.expected <= after <= through:
                        raise Violation(f"{member.destination} at {member.expected} is to get ({after}, {through}]")
                    if member.expected > dict(state.positions).get(member.destination, member.expected):
                        raise Violation(f"{member.destination} is not at {member.expected} yet")
        return state

    def hot(self, state: State) -> str:
        return ""


class ReadOnce:
    """A deliverer reads window after window of a destination, without a gap and nothing twice, until a plan is dropped.

    A failure drops the plan of the destination that failed, and of no other.
    """

    name = "ReadOnce"
    State = tuple[tuple[tuple[str, str], int], ...]  # process and destination, where the next window begins

    def initial(self) -> State:
        return ()

    def observe(self, state: State, observed: ObservedEvent) -> State:
        process, ends = observed.process, dict(state)
        match observed.event:
            case GroupStarted(_, after, through, members, seed):
                for member in members:
                    place = (process, member.destination)
                    if not seed and ends.get(place, after) != after:
                        raise Violation(f"{process} read {place[1]} up to {ends[place]}, and now from {after}")
                    ends[place] = through
            case JobEnded(_, results):
                for result in results:
                    if result.outcome not in (Outcome.APPLIED, Outcome.EMPTY):
                        ends.pop((process, result.destination), None)
            case PlanDropped(destination):
                ends.pop((process, destination), None)
            case ProcessEnded():
                ends = {place: end for place, end in ends.items() if place[0] != process}
        return tuple(sorted(ends.items()))

    def hot(self, state: State) -> str:
        return ""


class EventualConsistency:
    """When faults have stopped, every destination comes to hold its part of the newest version."""

    name = "EventualConsistency"

    class State(NamedTuple):
        version: int = 1
        tables: tuple[tuple[str, Rows], ...] = ()
        life: int = 0

    def __init__(self, parts: Parts, tables: Mapping[str, Rows]) -> None:
        """``tables``: those that are to come to their part, and what they hold at the beginning."""
        self._parts = parts
        self._tables = tables

    def initial(self) -> State:
        return self.State(1, tuple(sorted(self._tables.items())))

    def observe(self, state: State, observed: ObservedEvent) -> State:
        match observed.event:
            case SourceMoved(version, _, life):
                return state._replace(version=version, life=life)
            case TableWritten(destination, rows) if destination in self._tables:
                return state._replace(tables=tuple(sorted({**dict(state.tables), destination: rows}.items())))
        return state

    def hot(self, state: State) -> str:
        for destination, rows in state.tables:
            expected = self._parts.expected(destination, state.version, self._parts.history.lived(state.life))
            lacking = [row for row in expected if row not in rows]
            beyond = [row for row in rows if row not in expected and not self._parts.append]
            if lacking or beyond:
                return f"{destination} is not its part of version {state.version}"
        return ""


def delivery_safety(parts: Parts) -> tuple[Monitor, ...]:
    """All that must never happen."""
    return (
        NoPhantom(parts),
        NoLoss(parts),
        PartitionCorrectness(parts),
        ExactlyOnce(parts),
        CursorMonotone(parts),
        SingleDeliverer(),
        FlushState(),
        BufferBound(),
        ReadOnce(),
    )
