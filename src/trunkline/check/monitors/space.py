"""Free space: what a node may store on a nearly full disk, and that copies are made where there is space."""

from __future__ import annotations

from typing import NamedTuple

from trunkline.check.scenario import ObservedEvent, SafetyMonitor, Violation
from trunkline.core.effects import Event
from trunkline.core.entries import FrameKind
from trunkline.core.events import FrameStored, Projected, StreamFinalized, StreamRecovered
from trunkline.core.messages import Space
from trunkline.core.projection import Projection


class RoomChanged(Event, frozen=True):
    """The free space of a node's disk changed."""

    space: Space


class KeepsRoom(SafetyMonitor):
    """A tight disk accepts no copies, a full one no new entries either, and an exhausted one nothing."""

    name = "KeepsRoom"

    class State(NamedTuple):
        rooms: tuple[tuple[str, Space], ...] = ()  # by node, sorted
        copies: frozenset[str] = frozenset()  # streams that were joiners
        ended: frozenset[str] = frozenset()  # finalized streams: writes to them are repairs

    def __init__(self, projection: Projection | None = None) -> None:
        self._initial = self.State()
        if projection is not None:
            self._initial = self._initial._replace(copies=_joiners(projection))

    def initial(self) -> State:
        return self._initial

    def observe(self, state: State, observed: ObservedEvent) -> State:
        match observed.event:
            case RoomChanged(space):
                return state._replace(rooms=tuple(sorted({**dict(state.rooms), observed.process: space}.items())))
            case Projected(projection):
                return state._replace(copies=state.copies | _joiners(projection))
            case StreamFinalized(stream=stream):
                return state._replace(ended=state.ended | {stream})
            case StreamRecovered(stream=stream, end=end) if end is not None:
                return state._replace(ended=state.ended | {stream})
            case FrameStored(node=node, stream=stream, frame=frame):
                space = dict(state.rooms).get(node, Space.ROOMY)
                entry = frame.kind is FrameKind.DATA and stream not in state.ended
                least = Space.TIGHT if stream in state.copies else Space.FULL if entry else Space.EXHAUSTED
                if space >= least:
                    raise Violation(f"{node} stored {frame.brief()} in {stream} although its disk is {space.name}")
        return state


class CopiesMade:
    """Hot until every ended segment has ``width`` serving members."""

    name = "CopiesMade"

    def __init__(self, projection: Projection, width: int) -> None:
        self._width = width
        self._narrow = self._narrow_in(projection)

    def initial(self) -> tuple[int, ...]:
        """Segments with too few copies."""
        return self._narrow

    def observe(self, state: tuple[int, ...], observed: ObservedEvent) -> tuple[int, ...]:
        return self._narrow_in(observed.event.projection) if isinstance(observed.event, Projected) else state

    def hot(self, state: tuple[int, ...]) -> str:
        return f"too few copies of segments {', '.join(map(str, state))}" if state else ""

    def _narrow_in(self, projection: Projection) -> tuple[int, ...]:
        ended = (segment for segment in projection.segments if segment.end is not None)
        return tuple(s.index for s in ended if any(len(s.serving(group)) < self._width for group in s.groups))


def _joiners(projection: Projection) -> frozenset[str]:
    return frozenset(m.stream for segment in projection.segments for m in segment.members() if m.joining)
