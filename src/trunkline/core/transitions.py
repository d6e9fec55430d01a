"""Whether a projection may follow the stored one. The register checks it, because it cannot trust the sender.

``projection.apply`` makes the next projection; this module checks the result, as far as two maps can show. A projection
of a role always passes: one that fails comes from another program or another version.

    rule    check
    P1      the epoch is the next; cluster, log and settings stay
    P2, P3  only the open segment gets an end, and then keeps some of its members in their order; one may be opened
    P4      index, epoch, base, policy, stripe unit and owner of a segment stay
    P5      a member joins an ended, repaired segment, as ``joining``, under a stream id of this epoch
    P6      each group of an ended segment keeps a serving member, unless the segment is given up as a gap
    P7      the trim point does not shrink
    P8      a deleted log never changes
    P9      only segments without a position above the trim go: trimmed ones from the front, empty ones anywhere

The stored projection is valid, so only differences are checked: a long map costs a comparison.
"""

from __future__ import annotations

from itertools import pairwise

from msgspec.structs import replace

from trunkline.core.names import is_bounded
from trunkline.core.projection import Group, IllegalChange, Projection, Segment, epoch_of

POSITION_MAX = 1 << 62  # positions are below it: sums of them fit everywhere
COUNT_MAX = 1 << 32
NUMBER_MAX = 1 << 63
_DIGITS = frozenset("0123456789.")


def transition_fault(before: Projection | None, after: Projection) -> str:
    """Why ``after`` must not be stored; empty if it may follow."""
    try:
        if before is None:
            _require_first(after)
        else:
            _require_next(before, after)
    except (IllegalChange, ValueError) as error:  # the latter: a stream id without an epoch
        return str(error)
    return ""


def _require_first(first: Projection) -> None:
    _require(bool(first.segments) and first.epoch == 1, "a log begins at epoch 1, with a segment")
    untouched = first.trim == 0 and first.gaps == () and not first.deleted
    _require(untouched, "a log begins with nothing trimmed, lost or deleted")
    _require(
        (first.segments[0].index, first.segments[0].base) == (0, 1), "the first segment of a log has index 0 and base 1"
    )
    if len(first.segments) == 1:
        return _require_opened(first, first.last)
    for segment in first.segments:
        _require_bounded(segment)
        _require(all(segment.groups) and segment.stripe_unit >= 1, "a segment has members in each group")
    for before, after in pairwise(first.segments):
        _require(before.index < after.index and before.end == after.base, "a segment begins where one ends")
    return None


def _require_next(before: Projection, after: Projection) -> None:
    _require(not before.deleted, "the log was deleted")  # P8
    same = (before.cluster, before.log, before.settings, before.epoch + 1)
    _require((after.cluster, after.log, after.settings, after.epoch) == same, "only the epoch moves, by one")  # P1
    _require(after.trim >= before.trim, "the trim point only grows")  # P7
    _require(after.gaps[: len(before.gaps)] == before.gaps, "a gap stays a gap")
    _require(len(after.gaps) <= len(before.gaps) + 1, "one gap is declared at a time")
    if after.deleted:
        _require(replace(after, deleted=False, epoch=before.epoch) == before, "deleting changes nothing else")
        _require(not before.last.is_open, "an open log must be closed before it is deleted")
        return
    _require(bool(after.segments), "a log has a segment")
    opened = after.last.index > before.last.index
    kept, lost = after.segments[: len(after.segments) - opened], len(after.gaps) > len(before.gaps)
    place = 0
    for segment in kept:
        while place < len(before.segments) and before.segments[place].index < segment.index:
            _require_forgotten(before.segments[place], before.trim, first=segment is kept[0])
            place += 1
        old = before.segments[place] if place < len(before.segments) else None
        _require(old is not None and old.index == segment.index, "segments appear only at the end")
        if old is not None and segment is not old and segment != old:
            _require_bounded(segment)
            _require_changed(old, segment, after.epoch, lost=lost)
        place += 1
    _require(place == len(before.segments), "a log keeps its last segment")
    if opened:
        _require(bool(kept) and kept[-1].end == after.last.base, "a segment begins where one ends")
        _require(after.last.index == before.last.index + 1, "segments are numbered one after another")
        _require_opened(after, after.last)


def _require_forgotten(segment: Segment, trim: int, *, first: bool) -> None:
    empty = segment.end is not None and segment.end <= segment.base
    trimmed = segment.end is not None and segment.end <= trim + 1
    _require(empty or (trimmed and first), "a segment with a position above the trim stays")  # P9


def _require_bounded(segment: Segment) -> None:
    numbers = (segment.index, segment.epoch, segment.base, segment.end or 0, segment.owner.start)
    _require(all(0 <= number < POSITION_MAX for number in numbers), "a number is out of bounds")
    _require(0 < segment.stripe_unit < COUNT_MAX, "a stripe unit is out of bounds")
    _require(not segment.owner.process or is_bounded(segment.owner.process), "a name is too long")
    for member in segment.members():
        _require(is_bounded(member.node) and 0 <= member.incarnation < NUMBER_MAX, "a member is out of bounds")
        _require(_is_stream_id(member.stream), "a stream id is not valid")


def _is_stream_id(stream: str) -> bool:
    """``epoch.group.member``, as nodes accept it."""
    parts = stream.split(".") if len(stream) <= 62 and _DIGITS.issuperset(stream) else []
    return len(parts) == 3 and all(0 < len(part) <= 20 for part in parts)


def _require_opened(projection: Projection, segment: Segment) -> None:
    settings = projection.settings
    _require_bounded(segment)
    _require(bool(segment.groups), "a segment has a group")
    _require(segment.is_open and not segment.repaired, "a new segment is open")
    shape = (segment.policy, segment.stripe_unit, segment.epoch)
    _require(
        shape == (settings.policy, settings.stripe_unit, projection.epoch),
        "a new segment follows the settings of the log",
    )
    for group in segment.groups:
        _require(len({member.node for member in group}) == len(group) > 0, "a node appears once in a group")
        for member in group:
            _require(not member.joining and epoch_of(member.stream) == projection.epoch, "new members have new streams")
    streams = [member.stream for member in segment.members()]
    _require(len(set(streams)) == len(streams), "no two members share a stream")


def _require_changed(old: Segment, new: Segment, epoch: int, *, lost: bool) -> None:
    """A segment in both maps: it may end, and an ended one may be repaired."""
    same = replace(new, end=old.end, repaired=old.repaired, groups=old.groups)
    _require(same == old, f"the identity of segment {old.index} never changes")  # P4
    _require(new.repaired or not old.repaired, "a repaired segment stays repaired")
    _require(len(new.groups) == len(old.groups), "a segment keeps its groups")
    if old.end is None:
        _require(new.end is not None and new.end >= old.base, "an open segment only gets an end")  # P2, P3
        for was, now in zip(old.groups, new.groups, strict=True):
            _require(tuple(m for m in was if m in now) == now, "survivors keep their order")
            _require(lost or len(now) > 0, "a group needs a member that answered intact")
        return
    _require(new.end == old.end, "an end is written once")  # P3
    for was, now in zip(old.groups, new.groups, strict=True):
        if was != now:
            _require(lost or bool(new.serving(now)), "the last serving member stays")  # P6
            _require_members(was, now, epoch, repaired=old.repaired)


def _require_members(was: Group, now: Group, epoch: int, *, repaired: bool) -> None:
    known = {member.stream: member for member in was}
    for member in now:
        before = known.get(member.stream)
        if before is None:  # P5
            _require(repaired and member.joining, "a member joins a repaired segment")
            _require(epoch_of(member.stream) == epoch, "a member joins under a new stream id")
        else:
            _require(member in (before, replace(before, joining=False)), "the identity of a member never changes")


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise IllegalChange(otherwise)
