"""Delivery: every destination holds its part of the source at its position, whatever fails.

The tables of the checked world announce their whole content at each commit, so most properties are judged per commit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from trunkline.check.delivery_rows import Rows, SourceScript
from trunkline.check.scenario import Monitor, ObservedEvent, ProcessEnded, SafetyMonitor, Violation
from trunkline.core.delivery_events import GroupStarted, JobEnded, PlanDropped
from trunkline.core.delivery_messages import Outcome
from trunkline.core.effects import Event


class SourceMoved(Event, frozen=True):
    """The source has this version now, and no longer has versions before ``oldest``."""

    version: int
    oldest: int
    incarnation: int = 0  # grows when the source is replaced


class TableWritten(Event, frozen=True):
    """A destination committed: its whole content."""

    destination: str
    rows: Rows
    position: int
    token: int
    seeded: int  # the version of its last seed; 0: its rows are not from this pipeline
    restored: bool = False  # an operator restored it from a backup
    mark: str = ""  # of the position


class Parts(NamedTuple):
    """What each destination should hold."""

    script: SourceScript
    tenants: Mapping[str, tuple[int, ...]]  # of each destination
    append: bool = False
    token_first: int = 0  # writes under an older token are not judged: they had another configuration

    def expected(self, destination: str, version: int, script: SourceScript | None = None) -> Rows:
        return (script or self.script).part(self.tenants[destination], version)


class CommitMonitor(SafetyMonitor):
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

    def judge(self, table: TableWritten) -> None:
        raise NotImplementedError


class NoPhantom(CommitMonitor):
    """A destination holds only rows that the source has at its position (in append mode: ever had)."""

    name = "NoPhantom"

    def judge(self, table: TableWritten) -> None:
        versions = range(table.seeded, table.position + 1) if self._parts.append else (table.position,)
        real = {row for version in versions for row in self._parts.script.of(table.mark).versions[version]}
        for row in table.rows:
            if row not in real:
                raise Violation(f"{table.destination} at {table.position} holds {row.brief()}, the source does not")


class NoLoss(CommitMonitor):
    """A destination holds every row of its part of the source at its position."""

    name = "NoLoss"

    def judge(self, table: TableWritten) -> None:
        for row in self._parts.expected(table.destination, table.position, self._parts.script.of(table.mark)):
            if row not in table.rows:
                raise Violation(f"{table.destination} at {table.position} lacks {row.brief()}")


class PartitionCorrectness(CommitMonitor):
    """A destination holds only rows of its own tenants."""

    name = "PartitionCorrectness"

    def judge(self, table: TableWritten) -> None:
        for row in table.rows:
            if row.tenant not in self._parts.tenants[table.destination]:
                raise Violation(f"{table.destination} holds {row.brief()}, which belongs to another destination")


class ExactlyOnce(CommitMonitor):
    """No change takes effect twice: a row is in a table once, and so is its key in a mirror."""

    name = "ExactlyOnce"

    def judge(self, table: TableWritten) -> None:
        counted = Counter(row if self._parts.append else row.key for row in table.rows)
        for what, times in counted.items():
            if times > 1:
                raise Violation(f"{table.destination} at {table.position} holds {what} {times} times")


class CursorMonotone(SafetyMonitor):
    """The position of a destination never goes back, unless it is restored from a backup, or the source was and no
    longer has this version.
    """

    name = "CursorMonotone"

    class State(NamedTuple):
        incarnation: int = 0
        written: tuple[tuple[str, int, str], ...] = ()  # destination, position, mark

    def __init__(self, parts: Parts) -> None:
        self._script = parts.script

    def initial(self) -> State:
        return self.State()

    def observe(self, state: State, observed: ObservedEvent) -> State:
        event = observed.event
        if isinstance(event, SourceMoved):
            return state._replace(incarnation=event.incarnation)
        if not isinstance(event, TableWritten):
            return state
        last = {name: (position, mark) for name, position, mark in state.written}
        position, mark = last.get(event.destination, (0, ""))
        real = mark == self._script.mark(state.incarnation, position)
        if event.position < position and real and not event.restored:
            raise Violation(f"{event.destination} went back from {position} to {event.position}")
        last[event.destination] = (event.position, event.mark)
        return state._replace(written=tuple(sorted((name, *written) for name, written in last.items())))


class SingleDeliverer(SafetyMonitor):
    """Once a deliverer with a newer token has written, no write with an older token follows."""

    name = "SingleDeliverer"

    def initial(self) -> tuple[tuple[str, int], ...]:
        return ()

    def observe(self, state: tuple[tuple[str, int], ...], observed: ObservedEvent) -> tuple[tuple[str, int], ...]:
        event = observed.event
        if not isinstance(event, TableWritten):
            return state
        last = dict(state)
        if event.token < last.get(event.destination, 0) and not event.restored:
            raise Violation(f"{event.destination} was written with token {event.token} after {last[event.destination]}")
        return tuple(sorted({**last, event.destination: event.token}.items()))


class FlushState(SafetyMonitor):
    """A deliverer has at most one job in flight for a destination."""

    name = "FlushState"
    State = tuple[tuple[str, int, tuple[str, ...]], ...]  # process, job, what it writes to

    def initial(self) -> State:
        return ()

    def observe(self, state: State, observed: ObservedEvent) -> State:
        process = observed.process
        match observed.event:
            case GroupStarted(job, _, _, members):
                names = self._written([member.destination for member in members])
                for other, number, taken in state:
                    twice = [name for name in names if other == process and name in taken]
                    if twice:
                        raise Violation(f"{process} has two jobs for {twice[0]} in flight: {number} and {job}")
                return tuple(sorted((*state, (process, job, names))))
            case JobEnded(job):
                return tuple(each for each in state if each[:2] != (process, job))
            case ProcessEnded():
                return tuple(each for each in state if each[0] != process)
        return state

    def _written(self, destinations: Sequence[str]) -> tuple[str, ...]:
        """What a job for these destinations writes to."""
        return tuple(destinations)


class OnePlace(FlushState):
    """A deliverer has at most one job in flight that writes to a place."""

    name = "OnePlace"

    def __init__(self, places: Mapping[str, str]) -> None:
        """``places``: by destination; a destination without one shares no place."""
        self._places = places

    def _written(self, destinations: Sequence[str]) -> tuple[str, ...]:
        return tuple(sorted({self._places[each] for each in destinations if each in self._places}))


class BufferBound(SafetyMonitor):
    """A flush is planned within these bounds: stored position <= after <= through <= source."""

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
                        raise Violation(
                            f"{member.destination} at {member.expected} is planned to get ({after}, {through}]"
                        )
                    if member.expected > dict(state.positions).get(member.destination, member.expected):
                        raise Violation(f"{member.destination} is not at {member.expected} yet")
        return state


class ReadOnce(SafetyMonitor):
    """A deliverer reads the windows of a destination without gap or overlap, until a plan is dropped.

    A failure drops the plan of the failed destination only.
    """

    name = "ReadOnce"
    State = tuple[tuple[tuple[str, str], int], ...]  # (process, destination), begin of the next window

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


class EventualConsistency:
    """When faults have stopped, every destination reaches its part of the newest version."""

    name = "EventualConsistency"

    class State(NamedTuple):
        version: int = 1
        tables: tuple[tuple[str, Rows], ...] = ()
        incarnation: int = 0

    def __init__(self, parts: Parts, tables: Mapping[str, Rows]) -> None:
        """``tables``: the destinations that must reach their part, with their initial rows."""
        self._parts = parts
        self._tables = tables

    def initial(self) -> State:
        return self.State(1, tuple(sorted(self._tables.items())))

    def observe(self, state: State, observed: ObservedEvent) -> State:
        match observed.event:
            case SourceMoved(version, _, incarnation):
                return state._replace(version=version, incarnation=incarnation)
            case TableWritten(destination, rows) if destination in self._tables:
                return state._replace(tables=tuple(sorted({**dict(state.tables), destination: rows}.items())))
        return state

    def hot(self, state: State) -> str:
        for destination, rows in state.tables:
            expected = self._parts.expected(
                destination, state.version, self._parts.script.in_incarnation(state.incarnation)
            )
            lacking = [row for row in expected if row not in rows]
            beyond = [row for row in rows if row not in expected and not self._parts.append]
            if lacking or beyond:
                return f"{destination} does not hold its part of version {state.version}"
        return ""


def delivery_safety(parts: Parts) -> tuple[Monitor, ...]:
    """The safety properties of delivery."""
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
