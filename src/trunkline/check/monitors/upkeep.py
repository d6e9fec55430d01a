"""Upkeep: what a coordinator may do to copies, and what it must achieve when faults have stopped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from trunkline.check.monitors.durability import StoredFrames, StoredFramesMonitor
from trunkline.check.scenario import ObservedEvent, ProcessEnded, SafetyMonitor, Violation
from trunkline.core.entries import Frame
from trunkline.core.events import (
    DutiesOver,
    FrameStored,
    LogBlocked,
    LogUnblocked,
    NodeGivenUp,
    Projected,
    StreamDamaged,
    StreamDropped,
    StreamFinalized,
    StreamRecovered,
    StreamSealed,
    StreamTrimmed,
)
from trunkline.core.projection import Group, Member, Projection, Segment


class LastCopy(SafetyMonitor):
    """A serving member of an ended segment is removed only while another one is up and intact.

    A coordinator reads the projection, asks a witness, and changes that same projection: so the witness was up and
    intact at some moment since the previous projection was accepted.
    """

    name = "LastCopy"

    class State(NamedTuple):
        projection: Projection | None = None
        down: frozenset[str] = frozenset()
        damaged: frozenset[str] = frozenset()  # streams
        unfit: frozenset[str] = frozenset()  # nodes and streams that were down or damaged ever since the projection

    def __init__(self, projection: Projection | None = None, dead: tuple[str, ...] = ()) -> None:
        """``dead``: nodes that are down from the beginning."""
        self._initial = self.State(projection, frozenset(dead), unfit=frozenset(dead))

    def initial(self) -> State:
        return self._initial

    def observe(self, state: State, observed: ObservedEvent) -> State:
        match observed.event:
            case ProcessEnded():
                return state._replace(down=state.down | {observed.process})
            case StreamRecovered(node=node) if node in state.down:
                return state._replace(down=state.down - {node}, unfit=state.unfit - {node})
            case StreamDamaged(stream=stream):
                return state._replace(damaged=state.damaged | {stream})
            case Projected(projection):
                for member, others in _removed(state.projection, projection):
                    if all(other.node in state.unfit or other.stream in state.unfit for other in others):
                        raise Violation(f"{member.brief()} was removed while no other copy was up and intact")
                return state._replace(projection=projection, unfit=state.down | state.damaged)
        return state


class RepairedAlike(StoredFramesMonitor):
    """All serving members of a repaired segment hold the same frame at each position."""

    name = "RepairedAlike"

    def observe(self, state: StoredFrames, observed: ObservedEvent) -> StoredFrames:
        if isinstance(observed.event, Projected):
            after = observed.event.projection
            for segment in after.segments:
                before = state.projection.segment(segment.index) if state.projection is not None else None
                if segment.repaired and (before is None or not before.repaired):
                    self._judge(state, after.trim, segment)
        return state.after(observed)

    def _judge(self, state: StoredFrames, trim: int, segment: Segment) -> None:
        assert segment.end is not None
        common = {group: self._alike(state, segment.serving(group)) for group in segment.groups if group}
        for glsn in range(max(segment.base, trim + 1), segment.end):
            group = segment.group_of(glsn)
            if group and not any(frame.first <= glsn < frame.next for frame in common[group]):
                raise Violation(
                    f"segment {segment.index} is marked repaired, but its members differ at position {glsn}"
                )

    def _alike(self, state: StoredFrames, serving: Group) -> set[Frame]:
        kept = [{f for _, beside in state.frames(m.stream).items() for f in beside} for m in serving]
        return set.intersection(*kept)


class PatienceKept(SafetyMonitor):
    """A node that returns in time stays a member of repaired segments."""

    name = "PatienceKept"

    class State(NamedTuple):
        projection: Projection | None = None
        excused: frozenset[str] = frozenset()  # nodes that were given up, streams that were damaged

    def __init__(self, projection: Projection | None = None, draining: tuple[str, ...] = ()) -> None:
        self._initial = self.State(projection, frozenset(draining))

    def initial(self) -> State:
        return self._initial

    def observe(self, state: State, observed: ObservedEvent) -> State:
        match observed.event:
            case NodeGivenUp(node=name) | StreamDamaged(stream=name):
                return state._replace(excused=state.excused | {name})
            case Projected(projection):
                for member, _ in _removed(state.projection, projection, repaired=True):
                    if member.node not in state.excused and member.stream not in state.excused:
                        raise Violation(f"{member.brief()} was removed although {member.node} was not given up")
                return state._replace(projection=projection)
        return state


class Upkeep:
    """Hot until there are enough copies, repairs are done, and nodes have freed what was trimmed."""

    name = "Upkeep"

    class State(NamedTuple):
        projection: Projection | None = None
        trimmed: tuple[tuple[str, int], ...] = ()  # by stream, sorted

    def __init__(
        self,
        projection: Projection | None = None,
        *,
        width: int = 0,
        repaired: tuple[int, ...] = (),
        freed: bool = False,
        segments_max: int = 0,
    ) -> None:
        """``width``: serving members of each group of an ended segment; ``repaired``: segments that must be repaired;
        ``freed``: members must know the trim point, and trimmed segments must be forgotten; ``segments_max``: of the
        projection (0: no limit).
        """
        self._initial = self.State(projection)
        self._width = width
        self._repaired = repaired
        self._freed = freed
        self._segments_max = segments_max

    def initial(self) -> State:
        return self._initial

    def observe(self, state: State, observed: ObservedEvent) -> State:
        match observed.event:
            case Projected(projection):
                return state._replace(projection=projection)
            case StreamTrimmed(stream=stream, point=point) if self._freed:
                return state._replace(trimmed=tuple(sorted({**dict(state.trimmed), stream: point}.items())))
            case StreamDropped(stream=stream) if self._freed:
                return state._replace(trimmed=tuple(each for each in state.trimmed if each[0] != stream))
        return state

    def hot(self, state: State) -> str:
        return "; ".join(self._wanting(state)) if state.projection is not None else ""

    def _wanting(self, state: State) -> Iterator[str]:
        view = state.projection
        assert view is not None
        for segment in view.segments:
            narrow = [group for group in segment.groups if len(segment.serving(group)) < self._width]
            if segment.end is not None and segment.end > view.trim + 1 and narrow:
                yield f"segment {segment.index} has too few copies"
            if segment.index in self._repaired and not segment.repaired:
                yield f"segment {segment.index} is not repaired"
        if self._freed:
            yield from self._kept_though_trimmed(view, dict(state.trimmed))
        if 0 < self._segments_max < len(view.segments):
            yield f"the projection has {len(view.segments)} segments"

    def _kept_though_trimmed(self, view: Projection, trimmed: dict[str, int]) -> Iterator[str]:
        for segment in view.segments:
            if segment.end is not None and segment.end <= view.trim + 1 and segment is not view.last:
                yield f"segment {segment.index} is not forgotten"
            elif segment.base <= view.trim:
                behind = [m.stream for m in segment.members() if trimmed.get(m.stream, 0) < view.trim]
                yield from (f"{stream} is not trimmed to {view.trim}" for stream in behind)


class DutiesEnd(SafetyMonitor):
    """The duties of a deleted log end only when its streams are dropped and no absent node can hold one."""

    name = "DutiesEnd"

    class State(NamedTuple):
        deleted: bool = False
        held: tuple[str, ...] = ()  # streams that nodes had when the log was deleted, sorted

    def __init__(self, projection: Projection, absent: tuple[str, ...] = ()) -> None:
        """``absent``: nodes that are down and may return with their streams."""
        self._absent = [m.brief() for s in projection.segments for m in s.members() if m.node in absent]

    def initial(self) -> State:
        return self.State()

    def observe(self, state: State, observed: ObservedEvent) -> State:
        match observed.event:
            case (
                FrameStored(stream=stream)
                | StreamSealed(stream=stream)
                | StreamFinalized(stream=stream)
                | StreamRecovered(stream=stream)
            ) if not state.deleted:
                return state._replace(held=tuple(sorted({*state.held, stream})))
            case StreamDropped(stream=stream):
                return state._replace(held=tuple(each for each in state.held if each != stream))
            case Projected(projection) if projection.deleted:
                return state._replace(deleted=True)
            case DutiesOver() if not state.deleted:
                raise Violation("the duties of a log end although it is not deleted")
            case DutiesOver() if state.held or self._absent:
                left = ", ".join([*state.held, *self._absent])
                raise Violation(f"the duties of a deleted log end while nodes hold {left}")
        return state


class BlockedWithdrawn:
    """Hot while a log is announced as blocked by a segment that has ended."""

    name = "BlockedWithdrawn"

    class State(NamedTuple):
        open: int = 0  # index of the open segment; -1: none
        blocked: tuple[tuple[str, int], ...] = ()  # process and segment, sorted

    def initial(self) -> State:
        return self.State()

    def observe(self, state: State, observed: ObservedEvent) -> State:
        others = tuple(each for each in state.blocked if each[0] != observed.process)
        match observed.event:
            case Projected(projection):
                return state._replace(open=projection.last.index if projection.last.is_open else -1)
            case LogBlocked(segment=segment):
                return state._replace(blocked=tuple(sorted([*others, (observed.process, segment)])))
            case LogUnblocked() | ProcessEnded():
                return state._replace(blocked=others)
        return state

    def hot(self, state: State) -> str:
        stale = [f"{process}: segment {segment}" for process, segment in state.blocked if segment != state.open]
        return f"announced as blocked, but ended: {', '.join(stale)}" if stale else ""


def _removed(before: Projection | None, after: Projection, *, repaired: bool = False) -> Iterator[tuple[Member, Group]]:
    """Serving members that left an ended (or repaired) segment, each with the remaining serving members."""
    for new in after.segments:
        old = before.segment(new.index) if before is not None else None
        if old is None or old.end is None or (repaired and not old.repaired):
            continue
        for was, now in zip(old.groups, new.groups, strict=True):
            streams = [member.stream for member in now]
            for member in old.serving(was):
                if member.stream not in streams:
                    yield member, new.serving(now)
