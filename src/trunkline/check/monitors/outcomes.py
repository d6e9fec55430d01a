"""Outcomes: what an append was told is true for ever."""

from __future__ import annotations

from typing import NamedTuple

from trunkline.check.scenario import Completed, Invoked, Observed, Violation
from trunkline.core.entries import Frame, Kind
from trunkline.core.events import AppendRefused, Committed, EntriesRead, Projected
from trunkline.core.messages import AppendRequested


class NoLostAck:
    """An acknowledged entry is never cut; a refused one never appears; none appears twice.

    Batches are told apart by their checksum: scenarios append each value once.
    """

    name = "NoLostAck"

    class State(NamedTuple):
        asked: tuple[tuple[str, int, int], ...] = ()  # process, operation, checksum
        acknowledged: tuple[tuple[int, int], ...] = ()  # segment, position after it
        placed: tuple[tuple[int, int], ...] = ()  # checksum, first position
        refused: tuple[int, ...] = ()  # checksums

    def initial(self) -> State:
        return self.State()

    def observe(self, state: State, observed: Observed) -> State:
        match observed.event:
            case Invoked(operation, AppendRequested(checksum=checksum)):
                entry = (observed.process, operation, checksum)
                return state._replace(asked=tuple(sorted((*state.asked, entry))))
            case Completed(operation, AppendRefused()):
                return self._refused(state, observed.process, operation)
            case Committed(_, segment, _, frame):
                acknowledged = {*state.acknowledged, (segment, frame.next)}
                return self._placed(state._replace(acknowledged=tuple(sorted(acknowledged))), frame)
            case EntriesRead(_, _, frame):
                return self._placed(state, frame)
            case Projected(projection):
                for segment in projection.segments:
                    self._keeps(state, segment.index, segment.end)
        return state

    def hot(self, state: State) -> str:
        return ""

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

    def _keeps(self, state: State, segment: int, end: int | None) -> None:
        for index, after in state.acknowledged:
            if index == segment and end is not None and end < after:
                raise Violation(f"segment {segment} ended at {end}, but {after - 1} in it was acknowledged")
