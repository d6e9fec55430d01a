"""History of a log: its projection changes only in legal ways, and one owner orders each segment."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from trunkline.check.scenario import ObservedEvent, SafetyMonitor, Violation
from trunkline.core.events import (
    Committed,
    HoleFilled,
    PositionsGranted,
    Projected,
    ReopenRequested,
    StreamDropped,
    StreamFinalized,
    StreamSealed,
)
from trunkline.core.projection import Owner, Projection, Segment


class SingleOwner(SafetyMonitor):
    """Each segment has one owner: one start of one process grants its positions, each once.

    A position that was never granted is never filled.
    """

    name = "SingleOwner"

    class State(NamedTuple):
        owners: tuple[tuple[int, Owner], ...] = ()
        granted: tuple[tuple[int, int], ...] = ()  # segment, first position not yet granted

    def __init__(self, projection: Projection | None = None, granted: int = 0) -> None:
        """``granted``: segment 0 was granted up to this position at the beginning; 0: nothing was."""
        self._projection = projection
        self._granted_before = ((0, granted),) if granted else ()

    def initial(self) -> State:
        begun = self.State(granted=self._granted_before)
        return self._projected(begun, self._projection) if self._projection is not None else begun

    def observe(self, state: State, observed: ObservedEvent) -> State:
        match observed.event:
            case Projected(projection):
                return self._projected(state, projection)
            case PositionsGranted(_, segment, owner, first, count):
                self._is_owner(state, segment, owner)
                return self._granted(state, segment, first, count)
            case Committed(_, segment, owner) if owner is not None:
                self._is_owner(state, segment, owner)
            case HoleFilled(_, segment, frame) if frame.first >= dict(state.granted).get(segment, 0):
                raise Violation(f"position {frame.first} was filled, but never granted")
        return state

    def _projected(self, state: State, projection: Projection) -> State:
        owners, granted = dict(state.owners), dict(state.granted)
        for segment in projection.segments:
            owners[segment.index] = segment.owner
            granted.setdefault(segment.index, segment.base if segment.end is None else segment.end)
        return self.State(tuple(sorted(owners.items())), tuple(sorted(granted.items())))

    def _is_owner(self, state: State, segment: int, owner: Owner) -> None:
        named = dict(state.owners).get(segment)
        if named != owner:
            raise Violation(f"{owner} ordered segment {segment}, which belongs to {named}")

    def _granted(self, state: State, segment: int, first: int, count: int) -> State:
        free = dict(state.granted).get(segment, 0)
        if first < free:
            raise Violation(f"position {first} of segment {segment} was granted twice")
        granted = {**dict(state.granted), segment: first + count}
        return state._replace(granted=tuple(sorted(granted.items())))


class BoundaryWrittenOnce(SafetyMonitor):
    """The metadata store records a segment's end once; survivors keep their order; no member joins an open segment.

    A finalized stream stays finalized, and a log that an operator closed stays closed until an operator reopens it. A
    log is closed before it is deleted, and a deleted log never changes.
    """

    name = "BoundaryWrittenOnce"

    class State(NamedTuple):
        projection: Projection | None = None
        ends: tuple[tuple[int, int], ...] = ()  # of all segments that ended
        final: tuple[str, ...] = ()  # streams that were finalized
        may_reopen: bool = False  # an operator requested it since the log was closed
        seen: tuple[str, ...] = ()  # all stream ids so far

    def __init__(self, projection: Projection | None = None) -> None:
        self._projection = projection

    def initial(self) -> State:
        return self._projected(self.State(), self._projection) if self._projection is not None else self.State()

    def observe(self, state: State, observed: ObservedEvent) -> State:
        match observed.event:
            case Projected(projection):
                return self._projected(state, projection)
            case StreamFinalized(_, _, segment, stream, end):
                decided = dict(state.ends).get(segment)
                if decided != end:
                    raise Violation(f"stream {stream} was finalized at {end}, but the projection has {decided}")
                return state._replace(final=tuple(sorted({*state.final, stream})))
            case ReopenRequested():
                return state._replace(may_reopen=True)
            case StreamDropped(stream=stream) if stream in _streams(state.projection):
                raise Violation(f"stream {stream} was dropped, but is still in the projection")
            case StreamSealed(stream=stream) if stream in state.final:
                raise Violation(f"stream {stream} was finalized and then sealed again")
        return state

    def _projected(self, state: State, projection: Projection) -> State:
        if projection == state.projection:  # announced again after a restart
            return state
        ends = dict(state.ends)
        for segment in projection.segments:
            if segment.end is None:
                continue
            if ends.setdefault(segment.index, segment.end) != segment.end:
                raise Violation(f"segment {segment.index} ended at {ends[segment.index]}, but now at {segment.end}")
        before = state.projection
        may_reopen = state.may_reopen
        for one, following in pairwise(projection.segments):
            if one.end != following.base:
                raise Violation(
                    f"segment {following.index} begins at {following.base}, but the previous one ends at {one.end}"
                )
        ids = _streams(projection)
        returned = [each for each in ids if each in state.seen and each not in _streams(before)]
        if returned:
            raise Violation(f"stream {returned[0]} left the projection and returned")
        if before is not None:
            _succeeds(before, projection)
            reopened = not before.last.is_open and projection.last.is_open
            if reopened and not may_reopen:
                raise Violation("a log that an operator closed was reopened without a request")
            may_reopen = may_reopen and not reopened
        seen = tuple(sorted({*state.seen, *ids}))
        return state._replace(projection=projection, ends=tuple(sorted(ends.items())), may_reopen=may_reopen, seen=seen)


def _streams(projection: Projection | None) -> list[str]:
    return list(projection.streams()) if projection is not None else []


def _succeeds(before: Projection, after: Projection) -> None:
    if after.epoch != before.epoch + 1:
        raise Violation(f"epoch {before.epoch} was followed by {after.epoch}")
    if before.deleted:
        raise Violation("a deleted log was changed")
    if after.deleted and after.last.is_open:
        raise Violation("an open log was deleted")
    if after.trim < before.trim:
        raise Violation("the trim point went back")
    for old in before.segments:
        new = after.segment(old.index)
        if new is not None:
            _same_segment(old, new, lost=any(gap.first == old.base for gap in after.gaps))
        elif old.end is None or old.end > max(old.base, after.trim + 1):
            raise Violation(f"segment {old.index} was forgotten before it was trimmed")


def _same_segment(old: Segment, new: Segment, *, lost: bool) -> None:
    fixed = ("epoch", "base", "policy", "stripe_unit", "owner")
    if any(getattr(old, field) != getattr(new, field) for field in fixed):
        raise Violation(f"segment {old.index} changed a fixed property")
    if old.end is not None and new.end != old.end:
        raise Violation(f"segment {old.index} ended at {old.end}, but now at {new.end}")
    if len(old.groups) != len(new.groups):
        raise Violation(f"segment {old.index} had {len(old.groups)} groups and now has {len(new.groups)}")
    if old.repaired and not new.repaired:
        raise Violation(f"segment {old.index} was repaired and no longer is")
    for before, after in zip(old.groups, new.groups, strict=True):
        streams = [member.stream for member in before]
        kept = [member.stream for member in after if member.stream in streams]
        if kept != [stream for stream in streams if stream in kept]:
            raise Violation(f"survivors of segment {old.index} changed their order")
        if before and not new.serving(after) and not lost:
            raise Violation(f"a group of segment {old.index} has no serving member left")
        joined = [member for member in after if member.stream not in streams]
        if joined and not (old.repaired and all(member.joining for member in joined)):
            raise Violation(f"segment {old.index} gained a member before it was repaired")
