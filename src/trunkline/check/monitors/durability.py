"""Durability: every member of the group stores what is acknowledged or returned."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from trunkline.check.monitors.sorted_map import SortedMap
from trunkline.check.scenario import ObservedEvent, SafetyMonitor, Violation
from trunkline.core.entries import Frame
from trunkline.core.events import Committed, EntriesRead, FrameStored, Projected, StreamRecovered
from trunkline.core.projection import Projection

Frames = SortedMap[tuple[Frame, ...]]  # by first position; after a loss, a position may get another frame


class StoredFrames(NamedTuple):
    """The frames that nodes announced as stored, and the current projection."""

    projection: Projection | None = None
    stored: tuple[tuple[str, Frames], ...] = ()  # by stream

    def after(self, observed: ObservedEvent) -> StoredFrames:
        match observed.event:
            case Projected(projection):
                return self._replace(projection=projection)
            case FrameStored(stream=stream, frame=frame):
                return self._with(stream, (frame,))
            case StreamRecovered(stream=stream, frames=frames):
                return self._with(stream, frames)
        return self

    def frames(self, stream: str) -> Frames:
        at = bisect_left(self.stored, (stream,))
        return self.stored[at][1] if at < len(self.stored) and self.stored[at][0] == stream else Frames()

    def _with(self, stream: str, frames: Sequence[Frame]) -> StoredFrames:
        before = after = self.frames(stream)
        for frame in frames:
            beside = after.get(frame.first) or ()
            if frame not in beside:
                after = after.put(frame.first, tuple(sorted((*beside, frame), key=lambda each: each.seq)))
        if after is before:
            return self
        at = bisect_left(self.stored, (stream,))
        known = at < len(self.stored) and self.stored[at][0] == stream
        return self._replace(stored=(*self.stored[:at], (stream, after), *self.stored[at + known :]))

    def lacking(self, frame: Frame) -> list[str]:
        """Nodes of serving members that never announced the frame as stored."""
        segment = self.projection.segment_of(frame.first) if self.projection is not None else None
        if segment is None or self.projection is None or frame.first <= self.projection.trim:
            return []
        serving = segment.serving(segment.group_of(frame.first))
        return [m.node for m in serving if frame not in (self.frames(m.stream).get(frame.first) or ())]


class StoredFramesMonitor(SafetyMonitor):
    """A property of what nodes store."""

    def __init__(self, projection: Projection | None = None) -> None:
        self._projection = projection

    def initial(self) -> StoredFrames:
        return StoredFrames(self._projection)


class CommitDurability(StoredFramesMonitor):
    """An entry is acknowledged only when every member of its group has it on disk.

    A member that starts to serve an ended segment has all entries of the members that served it before.
    """

    name = "CommitDurability"

    def observe(self, state: StoredFrames, observed: ObservedEvent) -> StoredFrames:
        event = observed.event
        if isinstance(event, Committed) and (lacking := state.lacking(event.frame)):
            raise Violation(f"position {event.frame.first} was acknowledged, but {', '.join(lacking)} never stored it")
        if isinstance(event, Projected):
            _admitted(state, event.projection)
        return state.after(observed)


class ReadCommitted(StoredFramesMonitor):
    """A reader returns only what every member of the group has."""

    name = "ReadCommitted"

    def observe(self, state: StoredFrames, observed: ObservedEvent) -> StoredFrames:
        event = observed.event
        if isinstance(event, EntriesRead) and (lacking := state.lacking(event.frame)):
            raise Violation(
                f"{observed.process} read position {event.position}, which {', '.join(lacking)} never stored"
            )
        return state.after(observed)


def _admitted(state: StoredFrames, after: Projection) -> None:
    """New serving members must have what all previous serving members had."""
    before = state.projection
    for segment in after.segments:
        known = before.segment(segment.index) if before is not None else None
        if known is None or segment.end is None:
            continue
        served = {member.stream for group in known.groups for member in known.serving(group)}
        for group in segment.groups:
            serving = segment.serving(group)
            if all(member.stream in served for member in serving):
                continue
            settled = [_stored(state, member.stream) for member in serving if member.stream in served]
            wanted = set.intersection(*settled) if settled else set()
            for member in serving:
                lacking = wanted - _stored(state, member.stream)
                missing = {f.first for f in lacking if f.next > after.trim + 1 and f.first < segment.end}
                if member.stream not in served and missing:
                    raise Violation(f"{member.node} serves segment {segment.index}, but lacks position {min(missing)}")


def _stored(state: StoredFrames, stream: str) -> set[Frame]:
    return {frame for _, beside in state.frames(stream).items() for frame in beside}
