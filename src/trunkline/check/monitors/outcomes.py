"""Outcomes: what an append was told is true for ever."""

from __future__ import annotations

from typing import NamedTuple

from trunkline.check.scenario import Completed, Invoked, Observed, Violation
from trunkline.core.entries import Frame, Kind
from trunkline.core.events import Appended, AppendRefused, Committed, EntriesRead, OutcomeUnknown, Projected
from trunkline.core.messages import AppendRequested
from trunkline.core.projection import Gap, Projection


class NoLostAck:
    """An acknowledged entry is never cut; a refused one never appears; none appears twice.

    "Unknown" is said only of what was trimmed away or declared lost.

    Batches are told apart by their checksum: scenarios append each value once.
    """

    name = "NoLostAck"

    class State(NamedTuple):
        asked: frozenset[tuple[str, int, int]] = frozenset()  # process, operation, checksum
        acknowledged: tuple[tuple[int, int], ...] = ()  # segment, position after it
        placed: tuple[tuple[int, int], ...] = ()  # checksum, first position
        refused: tuple[int, ...] = ()  # checksums
        ends: tuple[tuple[int, int], ...] = ()  # of segments that ended
        trim: int = 0
        gaps: tuple[Gap, ...] = ()

    def __init__(self, projection: Projection | None = None) -> None:
        self._projection = projection

    def initial(self) -> State:
        return self._projected(self.State(), self._projection) if self._projection is not None else self.State()

    def observe(self, state: State, observed: Observed) -> State:
        match observed.event:
            case Invoked(operation, AppendRequested(checksum=checksum)):
                entry = (observed.process, operation, checksum)
                return state._replace(asked=state.asked | {entry})
            case Completed(operation, AppendRefused()):
                return self._refused(state, observed.process, operation)
            case Completed(operation, Appended(glsn)):
                self._appended(state, observed.process, operation, glsn)
            case Completed(_, OutcomeUnknown(glsn)) if glsn > state.trim and not _in_gap(state.gaps, glsn):
                raise Violation(
                    f"the outcome at {glsn} is unknown to {observed.process}; nothing there is trimmed or lost"
                )
            case Committed(_, segment, _, frame):
                self._keeps(segment, frame.next, dict(state.ends).get(segment))
                acknowledged = {*state.acknowledged, (segment, frame.next)}
                return self._placed(state._replace(acknowledged=tuple(sorted(acknowledged))), frame)
            case EntriesRead(_, _, frame):
                return self._placed(state, frame)
            case Projected(projection):
                return self._projected(state, projection)
        return state

    def hot(self, state: State) -> str:
        return ""

    def _appended(self, state: State, process: str, operation: int, glsn: int) -> None:
        checksum = next((c for p, o, c in state.asked if (p, o) == (process, operation)), None)
        if checksum is not None and dict(state.placed).get(checksum) != glsn:
            raise Violation(f"{process} was told that it appended at {glsn}, but its value was not committed there")

    def _refused(self, state: State, process: str, operation: int) -> State:
        checksum = next((c for p, o, c in state.asked if (p, o) == (process, operation)), None)
        if checksum is None:
            return state
        if checksum in dict(state.placed):
            raise Violation(f"value {checksum} was refused, but stands at {dict(state.placed)[checksum]}")
        return state._replace(refused=tuple(sorted((*state.refused, checksum))))

    def _placed(self, state: State, frame: Frame) -> State:
        if frame.kind is Kind.JUNK:
            return state
        first = dict(state.placed).get(frame.checksum, frame.first)
        if first != frame.first:
            raise Violation(f"value {frame.checksum} stands at {first} and at {frame.first}")
        if frame.checksum in state.refused:
            raise Violation(f"value {frame.checksum} was refused, and then read at {frame.first}")
        return state._replace(placed=tuple(sorted({*state.placed, (frame.checksum, first)})))

    def _projected(self, state: State, projection: Projection) -> State:
        ends = {**dict(state.ends), **{s.index: s.end for s in projection.segments if s.end is not None}}
        for index, after in state.acknowledged:
            self._keeps(index, after, ends.get(index))
        return state._replace(ends=tuple(sorted(ends.items())), trim=projection.trim, gaps=projection.gaps)

    def _keeps(self, segment: int, after: int, end: int | None) -> None:
        if end is not None and end < after:
            raise Violation(f"segment {segment} ended at {end}, but {after - 1} in it was acknowledged")


def _in_gap(gaps: tuple[Gap, ...], glsn: int) -> bool:
    return any(gap.first <= glsn < gap.end for gap in gaps)
