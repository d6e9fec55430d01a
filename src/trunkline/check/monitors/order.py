"""Order: one value per position, positions in real-time order, and readers that skip nothing."""

from __future__ import annotations

from typing import NamedTuple

from trunkline.check.monitors.sorted_map import SortedMap
from trunkline.check.scenario import Completed, Invoked, ObservedEvent, ProcessEnded, SafetyMonitor, Violation
from trunkline.core.calls import AppendRequested, SubscribeRequested
from trunkline.core.effects import Message
from trunkline.core.entries import Frame
from trunkline.core.events import (
    Appended,
    Committed,
    EntriesRead,
    FollowedSegment,
    HoleFilled,
    PositionsSkipped,
    Projected,
    TailIs,
    ValueCarried,
)
from trunkline.core.messages import Reason
from trunkline.core.projection import Gap, Projection

SHARED_READER = "reader"

Begun = tuple[str, int, int, int]  # process, operation, floor at its start, entries


class TotalOrder(SafetyMonitor):
    """A position holds one value: readers, fillers and acknowledged writers agree on it.

    Only settled positions are trimmed.
    """

    name = "TotalOrder"

    class State(NamedTuple):
        frames: SortedMap[Frame] = SortedMap()  # read, filled or acknowledged, by first position; they never overlap
        trim: int = 0

    def __init__(self, projection: Projection | None = None) -> None:
        self._trim = projection.trim if projection is not None else 0

    def initial(self) -> State:
        return self.State(trim=self._trim)

    def observe(self, state: State, observed: ObservedEvent) -> State:
        match observed.event:
            case (
                EntriesRead(frame=frame) | Committed(frame=frame) | HoleFilled(frame=frame) | ValueCarried(frame=frame)
            ):
                return self._seen(state, frame, observed.process)
            case Projected(projection) if projection.trim > state.trim:
                return self._trimmed(state, projection.trim)
        return state

    def _seen(self, state: State, frame: Frame, process: str) -> State:
        known = state.frames.floor(frame.next - 1)
        if known is None or known.next <= frame.first:
            return state._replace(frames=state.frames.put(frame.first, frame))
        if known != frame:
            raise Violation(f"position {frame.first} is {_value(frame)} for {process}, but was {_value(known)}")
        return state

    def _trimmed(self, state: State, trim: int) -> State:
        glsn = state.trim + 1
        while glsn <= trim:
            frame = state.frames.floor(glsn)
            if frame is None or frame.next <= glsn:
                raise Violation(f"position {glsn} was trimmed before it was settled")
            glsn = frame.next
        return state._replace(trim=trim)


class Completeness(SafetyMonitor):
    """A reader passes positions one after another: each is returned, trimmed or declared lost.

    A process may have several readers, each a role. The role ``reader`` also serves other roles of its process: each
    trim reads the log from its beginning.
    """

    name = "Completeness"

    class State(NamedTuple):
        readers: frozenset[tuple[str, str, int]] = frozenset()  # process, role, next position
        trim: int = 0
        gaps: tuple[Gap, ...] = ()

    def initial(self) -> State:
        return self.State()

    def observe(self, state: State, observed: ObservedEvent) -> State:
        match observed.event:
            case Invoked(_, SubscribeRequested(_, _, start)):
                return self._moved(state, observed, start)
            case Invoked():
                return self._without(state, observed.process, (SHARED_READER, observed.role))
            case Completed() if observed.role != SHARED_READER:  # such a reader serves one operation
                return self._without(state, observed.process, (observed.role,))
            case ProcessEnded():
                return self._without(state, observed.process)
            case Projected(projection):
                return state._replace(trim=projection.trim, gaps=projection.gaps)
            case EntriesRead(_, position, frame):
                self._at(state, observed, position)
                if not frame.first <= position < frame.next:
                    raise Violation(f"{observed.process} got {_value(frame)} for position {position}")
                return self._moved(state, observed, frame.next)
            case FollowedSegment(_, _, position):
                self._at(state, observed, position)
            case PositionsSkipped(_, first, end, why):
                self._at(state, observed, first)
                self._may_skip(state, first, end, why)
                return self._moved(state, observed, end)
        return state

    def _at(self, state: State, observed: ObservedEvent, position: int) -> None:
        reader = (observed.process, observed.role)
        expected = next((r[2] for r in state.readers if r[:2] == reader), position)
        if position != expected:
            raise Violation(f"{observed.process} continued at {position} although it had not read {expected}")

    def _may_skip(self, state: State, first: int, end: int, why: Reason) -> None:
        trimmed = why is Reason.TRIMMED and end <= state.trim + 1
        lost = any(gap.first <= first and end <= gap.end for gap in state.gaps)
        if not (trimmed or lost):
            raise Violation(f"positions {first} to {end - 1} were skipped as {why.value}, but are not")

    def _moved(self, state: State, observed: ObservedEvent, position: int) -> State:
        reader = (observed.process, observed.role)
        others = frozenset(r for r in state.readers if r[:2] != reader)
        return state._replace(readers=others | {(*reader, position)})

    def _without(self, state: State, process: str, roles: tuple[str, ...] | None = None) -> State:
        ended = frozenset(r for r in state.readers if r[0] == process and (roles is None or r[1] in roles))
        return state._replace(readers=state.readers - ended) if ended else state


class RealTimeOrder(SafetyMonitor):
    """An append or a tail call that begins after another operation ended returns a higher position."""

    name = "RealTimeOrder"

    class State(NamedTuple):
        floor: int = 0  # the highest position below the tail, as completed operations reported it
        begun: frozenset[Begun] = frozenset()

    def initial(self) -> State:
        return self.State()

    def observe(self, state: State, observed: ObservedEvent) -> State:
        match observed.event:
            case Invoked(operation, request):
                return self._began(state, observed.process, operation, request)
            case Completed(operation, result):
                return self._ended(state, observed.process, operation, result)
            case ProcessEnded():
                return state._replace(begun=frozenset(b for b in state.begun if b[0] != observed.process))
        return state

    def _began(self, state: State, process: str, operation: int, request: Message) -> State:
        if _under_way(state.begun, process, operation) is not None:
            raise Violation(f"operation {operation} of {process} began, but one with that number is under way")
        count = request.count if isinstance(request, AppendRequested) else 0
        return state._replace(begun=state.begun | {(process, operation, state.floor, count)})

    def _ended(self, state: State, process: str, operation: int, result: object) -> State:
        begun = _under_way(state.begun, process, operation)
        if begun is None:
            raise Violation(f"operation {operation} of {process} ended, but is not under way")
        left = state._replace(begun=state.begun - {begun})
        match result:
            case Appended(glsn):
                if glsn <= begun[2]:
                    raise Violation(f"{process} appended at {glsn}, but {begun[2]} was known before it began")
                return left._replace(floor=max(state.floor, glsn + begun[3] - 1))
            case TailIs(glsn):
                if glsn <= begun[2]:
                    raise Violation(f"{process} got the tail {glsn}, but {begun[2]} was known before it asked")
                return left._replace(floor=max(state.floor, glsn - 1))
        return left


def _under_way(begun: frozenset[Begun], process: str, operation: int) -> Begun | None:
    return next((each for each in begun if each[:2] == (process, operation)), None)


def _value(frame: Frame) -> str:
    return f"{frame.kind.name}[{frame.first}..{frame.next - 1}] value {frame.checksum} of {frame.writer or 'no writer'}"
