"""Outcomes: the result of an append stays true, and only what a client asked to trim is deleted."""

from __future__ import annotations

from typing import NamedTuple

from trunkline.check.monitors.sorted_map import SortedMap
from trunkline.check.scenario import Completed, Invoked, ObservedEvent, ProcessEnded, SafetyMonitor, Violation
from trunkline.core.calls import AppendRequested, TrimRequested
from trunkline.core.entries import Frame, FrameKind
from trunkline.core.events import Appended, AppendRefused, Committed, EntriesRead, OutcomeUnknown, Projected
from trunkline.core.projection import Gap, Projection


class NoLostAck(SafetyMonitor):
    """An acknowledged entry is never cut; a refused one never appears; none appears twice.

    An outcome is unknown only if the position was trimmed, deleted or declared lost.

    A batch is identified by its checksum, which other batches may share: it is at no more positions than there were
    appends of it that were not refused. Where each value is appended once, that is exact.
    """

    name = "NoLostAck"

    class State(NamedTuple):
        asked: frozenset[tuple[str, int, int]] = frozenset()  # process, operation under way, checksum
        allowed: SortedMap[int] = SortedMap()  # by checksum: appends that were not refused
        placed: SortedMap[tuple[int, ...]] = SortedMap()  # by checksum: first positions
        acknowledged: tuple[tuple[int, SortedMap[bool]], ...] = ()  # segment, positions after acknowledged batches
        ends: tuple[tuple[int, int], ...] = ()  # of segments that ended
        trim: int = 0
        gaps: tuple[Gap, ...] = ()
        deleted: bool = False

    def __init__(self, projection: Projection | None = None) -> None:
        self._projection = projection

    def initial(self) -> State:
        return self._projected(self.State(), self._projection) if self._projection is not None else self.State()

    def observe(self, state: State, observed: ObservedEvent) -> State:
        match observed.event:
            case Invoked(operation, AppendRequested(checksum=checksum)):
                allowed = state.allowed.put(checksum, (state.allowed.get(checksum) or 0) + 1)
                return state._replace(asked=state.asked | {(observed.process, operation, checksum)}, allowed=allowed)
            case Completed(operation, AppendRefused() | Appended() as result):
                return self._ended(state, observed.process, operation, result)
            case Completed(_, OutcomeUnknown(glsn)) if not (
                state.deleted or glsn <= state.trim or _in_gap(state.gaps, glsn)
            ):
                raise Violation(
                    f"{observed.process} got an unknown outcome at {glsn}, which is neither trimmed nor lost"
                )
            case Committed(_, segment, _, frame):
                self._keeps(segment, frame.next, dict(state.ends).get(segment))
                return self._placed(self._acknowledged(state, segment, frame.next), frame)
            case EntriesRead(_, _, frame):
                return self._placed(state, frame)
            case Projected(projection):
                return self._projected(state, projection)
            case ProcessEnded():
                return state._replace(asked=frozenset(each for each in state.asked if each[0] != observed.process))
        return state

    def _ended(self, state: State, process: str, operation: int, result: AppendRefused | Appended) -> State:
        asked = next((each for each in state.asked if each[:2] == (process, operation)), None)
        if asked is None:
            return state
        checksum, left = asked[2], state._replace(asked=state.asked - {asked})
        places = state.placed.get(checksum) or ()
        if isinstance(result, Appended):
            if result.glsn not in places:
                raise Violation(f"{process} got position {result.glsn}, but its value was not committed there")
            return left
        allowed = (state.allowed.get(checksum) or 0) - 1
        if len(places) > allowed:
            raise Violation(f"value {checksum} was refused, but is at {places[0]}")
        return left._replace(allowed=state.allowed.put(checksum, allowed))

    def _acknowledged(self, state: State, segment: int, after: int) -> State:
        known = dict(state.acknowledged)
        known[segment] = known.get(segment, SortedMap[bool]()).put(after, True)
        return state._replace(acknowledged=tuple(sorted(known.items())))

    def _placed(self, state: State, frame: Frame) -> State:
        places = state.placed.get(frame.checksum) or ()
        if frame.kind is FrameKind.JUNK or frame.first in places:
            return state
        allowed = state.allowed.get(frame.checksum)
        if allowed == 0:
            raise Violation(f"value {frame.checksum} was refused and then read at {frame.first}")
        if len(places) >= (1 if allowed is None else allowed):
            raise Violation(f"value {frame.checksum} is at {places[-1]} and at {frame.first}")
        return state._replace(placed=state.placed.put(frame.checksum, tuple(sorted((*places, frame.first)))))

    def _projected(self, state: State, projection: Projection) -> State:
        ends = {**dict(state.ends), **{s.index: s.end for s in projection.segments if s.end is not None}}
        for index, positions in state.acknowledged:
            self._keeps(index, positions.highest() or 0, ends.get(index))
        state = state._replace(trim=projection.trim, gaps=projection.gaps, deleted=projection.deleted)
        return state._replace(ends=tuple(sorted(ends.items())))

    def _keeps(self, segment: int, after: int, end: int | None) -> None:
        if end is not None and end < after:
            raise Violation(f"segment {segment} ended at {end}, but {after - 1} was acknowledged in it")


class TrimAsked(SafetyMonitor):
    """Nothing is trimmed past the highest point that a client asked for."""

    name = "TrimAsked"

    def __init__(self, projection: Projection | None = None) -> None:
        self._trim = projection.trim if projection is not None else 0

    def initial(self) -> int:
        return self._trim

    def observe(self, state: int, observed: ObservedEvent) -> int:
        match observed.event:
            case Invoked(_, TrimRequested(_, _, point)):
                return max(state, point)
            case Projected(projection) if projection.trim > state:
                raise Violation(f"the log was trimmed to {projection.trim}, but clients asked for {state} at most")
        return state


def _in_gap(gaps: tuple[Gap, ...], glsn: int) -> bool:
    return any(gap.first <= glsn < gap.end for gap in gaps)
