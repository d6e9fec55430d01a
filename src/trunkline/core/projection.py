"""The map of a log: an immutable projection, and the changes that lead from one to the next.

    segments   [ 0: base 1, end 6 | 1: base 6, end 6 | 2: base 6, end None ]
    GLSN         1 2 3 4 5                             6 7 8 ...

Rules
 P1  A projection is immutable; a change makes the next one, with epoch + 1.
 P2  Only the last segment may be open. Its groups never gain a member.
 P3  ``end`` is written once, together with the members that answered intact, in their old order.
 P4  The index, epoch, base, policy, stripe unit and owner of a segment never change.
 P5  A member joins only a repaired segment, as ``joining``, under a stream id that was never used before.
 P6  The last serving member of a group is never removed.
 P7  The trim point only grows and stays below the base of the unwritten part of an open segment (the caller settled
     it).
 P8  A deleted log is closed, names no stream, and never changes again.
 P9  A segment is removed from the map when it holds no position above the trim: it was trimmed, with all before it, or
     is empty. The last one stays. So a position above the trim whose segment is not in the map lies at or past the end
     of that segment.

A stream id contains the epoch that first names it, so no two memberships ever share one.
"""

from __future__ import annotations

import enum
from bisect import bisect_left, bisect_right
from itertools import pairwise
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace


class Policy(enum.Enum):
    CHAIN = "chain"
    BROADCAST = "broadcast"


class IllegalChange(Exception):
    """The change breaks a rule of projections; nothing was changed."""


class Owner(NamedTuple):
    """The process start that orders an open segment. A restarted process is another owner."""

    process: str
    start: int

    def brief(self) -> str:
        return f"{self.process}#{self.start}"


class Member(Struct, frozen=True, array_like=True):
    node: str
    incarnation: int
    stream: str
    joining: bool = False

    def brief(self) -> str:
        return f"{self.node}#{self.incarnation}:{self.stream}" + ("+joining" if self.joining else "")


Group = tuple[Member, ...]


class Segment(Struct, frozen=True, array_like=True):
    index: int
    epoch: int
    base: int
    end: int | None
    repaired: bool
    policy: Policy
    stripe_unit: int
    groups: tuple[Group, ...]
    owner: Owner

    @property
    def is_open(self) -> bool:
        return self.end is None

    def group_of(self, glsn: int) -> Group:
        return self.groups[(glsn - self.base) // self.stripe_unit % len(self.groups)]

    def holds(self, glsn: int) -> bool:
        return self.base <= glsn and (self.end is None or glsn < self.end)

    def members(self) -> Group:
        return tuple(member for group in self.groups for member in group)

    def serving(self, group: Group) -> Group:
        return tuple(member for member in group if not member.joining)

    def brief(self) -> str:
        end = "open" if self.end is None else f"{self.end})" + (" repaired" if self.repaired else "")
        groups = " / ".join(" ".join(member.brief() for member in group) for group in self.groups)
        unit = f" unit {self.stripe_unit}" if len(self.groups) > 1 else ""
        return (
            f"{self.index}@{self.epoch} [{self.base}, {end} {self.policy.value} {groups} by {self.owner.brief()}{unit}"
        )


class Settings(Struct, frozen=True, array_like=True):
    policy: Policy = Policy.CHAIN
    replicas: int = 3
    min_replicas: int = 1
    groups: int = 1
    stripe_unit: int = 1024

    def brief(self) -> str:
        return (
            f"{self.policy.value} {self.groups}x{self.replicas} (at least {self.min_replicas}) unit {self.stripe_unit}"
        )


class Gap(Struct, frozen=True, array_like=True):
    """A range ``[first, end)`` that an operator declared lost."""

    first: int
    end: int


class Projection(Struct, frozen=True, array_like=True):
    cluster: str
    log: str
    epoch: int
    trim: int
    segments: tuple[Segment, ...]
    settings: Settings
    gaps: tuple[Gap, ...] = ()
    deleted: bool = False

    @property
    def last(self) -> Segment:
        return self.segments[-1]

    def segment(self, index: int) -> Segment | None:
        place = self.place_of(index)
        return self.segments[place] if place is not None else None

    def place_of(self, index: int) -> int | None:
        """The place of a segment in ``segments``, which may have gaps (P9)."""
        place = bisect_left(self.segments, index, key=_index_of)
        return place if place < len(self.segments) and self.segments[place].index == index else None

    def segment_of(self, glsn: int) -> Segment | None:
        """The segment that holds a position. The open one holds all positions after the ended ones."""
        place = bisect_right(self.segments, glsn, key=_base_of) - 1  # with one base, only the last is not empty
        return self.segments[place] if place >= 0 and self.segments[place].holds(glsn) else None

    def brief(self) -> str:
        segments = " | ".join(segment.brief() for segment in self.segments)
        gaps = "".join(f" gap {gap.first}-{gap.end - 1}" for gap in self.gaps)
        deleted = " deleted" if self.deleted else ""
        return f"<epoch {self.epoch}{deleted} trim {self.trim}{gaps}: {segments}; {self.settings.brief()}>"

    def streams(self) -> tuple[str, ...]:
        """The ids of all streams of the log."""
        if self.deleted:  # P8
            return ()
        return tuple(member.stream for segment in self.segments for group in segment.groups for member in group)

    def gap_at(self, glsn: int) -> Gap | None:
        """The gap that holds a position. Gaps are whole segments, so they are in order."""
        place = bisect_right(self.gaps, glsn, key=_first_of) - 1
        return self.gaps[place] if place >= 0 and glsn < self.gaps[place].end else None


def _index_of(segment: Segment) -> int:
    return segment.index


def _base_of(segment: Segment) -> int:
    return segment.base


def _first_of(gap: Gap) -> int:
    return gap.first


class Seat(NamedTuple):
    """A node chosen as a new member. Its stream id comes from the projection that names it."""

    node: str
    incarnation: int


class Opening(Struct, frozen=True):
    """The members and the owner of a new segment."""

    groups: tuple[tuple[Seat, ...], ...]
    owner: Owner


class EndSegment(Struct, frozen=True):
    """Write the end of the open segment once, and open the next (unless the log becomes read-only)."""

    index: int
    end: int
    survivors: tuple[Group, ...]
    opening: Opening | None
    gap: Gap | None = None


class Reopen(Struct, frozen=True):
    opening: Opening


class MarkRepaired(Struct, frozen=True):
    index: int


class RemoveMember(Struct, frozen=True):
    index: int
    stream: str


class AddJoiner(Struct, frozen=True):
    index: int
    group: int
    seat: Seat


class AdmitJoiner(Struct, frozen=True):
    index: int
    stream: str


class RaiseTrim(Struct, frozen=True):
    point: int


class ForgetSegment(Struct, frozen=True):
    """Remove ended segments that hold no position above the trim (P9)."""

    index: int
    others: tuple[int, ...] = ()


class DeleteLog(Struct, frozen=True):
    """Delete a closed log."""


Change = (
    EndSegment | Reopen | MarkRepaired | RemoveMember | AddJoiner | AdmitJoiner | RaiseTrim | ForgetSegment | DeleteLog
)


def epoch_of(stream: str) -> int:
    """The epoch of the projection that first named a stream."""
    return int(stream.partition(".")[0])


def create(cluster: str, log: str, settings: Settings, opening: Opening) -> Projection:
    first = _open(opening, settings, index=0, epoch=1, base=1)
    return Projection(cluster, log, 1, 0, (first,), settings)


def apply(projection: Projection, change: Change) -> Projection:
    """The next projection, or ``IllegalChange``."""
    _require(not projection.deleted, "the log was deleted")  # P8
    match change:
        case EndSegment():
            return _end_segment(projection, change)
        case Reopen(opening):
            _require(not projection.last.is_open, "the log is already open")
            return _next(projection, (*projection.segments, _following(projection, opening)))
        case MarkRepaired(index):
            segment = _ended(projection, index)
            return _with_segment(projection, replace(segment, repaired=True))
        case RemoveMember(index, stream):
            return _remove_member(projection, index, stream)
        case AddJoiner():
            return _add_joiner(projection, change)
        case AdmitJoiner(index, stream):
            return _admit_joiner(projection, index, stream)
        case RaiseTrim(point):
            _require(point > projection.trim, "the trim point only grows")
            return replace(projection, epoch=projection.epoch + 1, trim=point)
        case ForgetSegment(index, others):
            return _forget(projection, {index, *others})
        case DeleteLog():
            _require(not projection.last.is_open, "an open log must be closed before it is deleted")
            return replace(projection, epoch=projection.epoch + 1, deleted=True)


def _end_segment(projection: Projection, change: EndSegment) -> Projection:
    last = projection.last
    _require(last.index == change.index and last.is_open, "only the open segment can be ended")  # P2, P3
    _require(change.end >= last.base, "a segment cannot end before its base")
    _require(len(change.survivors) == len(last.groups), "survivors are required for each group")
    for before, after in zip(last.groups, change.survivors, strict=True):
        _require(change.gap is not None or len(after) > 0, "a group needs a member that answered intact")
        _require(tuple(m for m in before if m in after) == after, "survivors keep their order")
    settled = max(last.base, projection.trim + 1) >= change.end
    repaired = last.policy is Policy.BROADCAST or settled or change.gap is not None
    ended = replace(last, end=change.end, groups=change.survivors, repaired=repaired)
    gaps = projection.gaps if change.gap is None else (*projection.gaps, change.gap)
    without_next = replace(projection, segments=(*projection.segments[:-1], ended), gaps=gaps)
    if change.opening is None:
        return _next(without_next, without_next.segments)
    return _next(without_next, (*without_next.segments, _following(without_next, change.opening)))


def _forget(projection: Projection, indexes: set[int]) -> Projection:
    forgotten = [segment for segment in projection.segments if segment.index in indexes]
    _require(len(forgotten) == len(indexes) > 0, "no such segment")
    _require(forgotten[-1] is not projection.last, "a log keeps its last segment")
    for segment in forgotten:  # P9
        held = segment.end is None or segment.end > max(segment.base, projection.trim + 1)
        _require(not held, "the segment is neither trimmed nor empty")
    kept = tuple(segment for segment in projection.segments if segment.index not in indexes)
    _require(all(before.end == after.base for before, after in pairwise(kept)), "older segments are forgotten first")
    return _next(projection, kept)


def _following(projection: Projection, opening: Opening) -> Segment:
    last = projection.last
    assert last.end is not None
    return _open(opening, projection.settings, index=last.index + 1, epoch=projection.epoch + 1, base=last.end)


def _open(opening: Opening, settings: Settings, *, index: int, epoch: int, base: int) -> Segment:
    groups = tuple(
        tuple(Member(seat.node, seat.incarnation, f"{epoch}.{g}.{m}") for m, seat in enumerate(seats))
        for g, seats in enumerate(opening.groups)
    )
    _require(all(groups) and len(groups) > 0, "a segment needs a member in each group")
    for group in groups:
        _require(len({member.node for member in group}) == len(group), "a node appears once in a group")
    _require(settings.policy is Policy.CHAIN or len(groups) == 1, "a broadcast segment has one group")
    return Segment(index, epoch, base, None, False, settings.policy, settings.stripe_unit, groups, opening.owner)


def _remove_member(projection: Projection, index: int, stream: str) -> Projection:
    segment = _ended(projection, index)
    _require(any(m.stream == stream for m in segment.members()), "no such member")
    groups = tuple(tuple(m for m in group if m.stream != stream) for group in segment.groups)
    _require(all(segment.serving(group) for group in groups), "the last serving member stays")  # P6
    return _with_segment(projection, replace(segment, groups=groups))


def _add_joiner(projection: Projection, change: AddJoiner) -> Projection:
    segment = _ended(projection, change.index)
    _require(segment.repaired, "only a repaired segment accepts a new member")  # P5
    _require(0 <= change.group < len(segment.groups), "no such group")
    group = segment.groups[change.group]
    _require(all(m.node != change.seat.node for m in group), "the node is already a member")
    stream = f"{projection.epoch + 1}.{change.group}.0"
    joiner = Member(change.seat.node, change.seat.incarnation, stream, joining=True)
    groups = (*segment.groups[: change.group], (*group, joiner), *segment.groups[change.group + 1 :])
    return _with_segment(projection, replace(segment, groups=groups))


def _admit_joiner(projection: Projection, index: int, stream: str) -> Projection:
    segment = _ended(projection, index)
    _require(any(m.stream == stream and m.joining for m in segment.members()), "no such joiner")
    groups = tuple(
        tuple(replace(m, joining=False) if m.stream == stream else m for m in group) for group in segment.groups
    )
    return _with_segment(projection, replace(segment, groups=groups))


def _ended(projection: Projection, index: int) -> Segment:
    segment = projection.segment(index)
    if segment is None or segment.is_open:
        raise IllegalChange(f"segment {index} has not ended")
    return segment


def _with_segment(projection: Projection, segment: Segment) -> Projection:
    place = projection.place_of(segment.index)
    assert place is not None
    return _next(projection, (*projection.segments[:place], segment, *projection.segments[place + 1 :]))


def _next(projection: Projection, segments: tuple[Segment, ...]) -> Projection:
    return replace(projection, epoch=projection.epoch + 1, segments=segments)


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise IllegalChange(otherwise)
