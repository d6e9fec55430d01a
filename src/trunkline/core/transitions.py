"""Whether a projection may follow the one that is stored: the register asks, for it cannot trust who sends one.

``projection.apply`` makes what follows; this looks at the result, as far as two maps alone can tell. What a role sends
always passes, so a projection that does not is of another program or another version.

    rule    what is looked at here
    P1      the epoch is the next; cluster, log and settings stay
    P2, P3  only the open segment gets an end, and then keeps some of its members in their order; one may be opened
    P4      index, epoch, base, policy, stripe unit and owner of a segment stay
    P5      a member joins an ended, repaired segment, as ``joining``, under a stream id of this very epoch
    P6      each group of an ended segment keeps a serving member, unless the segment is given up as a gap
    P7      the trim point does not shrink; segments go from the front, when all of them is trimmed
    P8      a deleted log never changes
"""

from __future__ import annotations

from msgspec.structs import replace

from trunkline.core.projection import Group, IllegalChange, Projection, Segment, epoch_of


def transition_fault(before: Projection | None, after: Projection) -> str:
    """What speaks against storing ``after``; nothing where it may follow."""
    try:
        if before is None:
            _require_first(after)
        else:
            _require_next(before, after)
    except (IllegalChange, ValueError) as error:  # the latter: a stream id that holds no epoch
        return str(error)
    return ""


def _require_first(first: Projection) -> None:
    _require(len(first.segments) == 1 and first.epoch == 1, "a log begins at epoch 1, with one segment")
    _require((first.trim, first.gaps, first.deleted) == (0, (), False), "a log begins with nothing trimmed, lost, gone")
    only = first.last
    _require((only.index, only.base) == (0, 1), "a log's first segment has index 0 and base 1")
    _require_opened(first, only)


def _require_next(before: Projection, after: Projection) -> None:
    _require(not before.deleted, "the log was deleted")  # P8
    same = (before.cluster, before.log, before.settings, before.epoch + 1)
    _require((after.cluster, after.log, after.settings, after.epoch) == same, "only the epoch counts on")  # P1
    _require(after.trim >= before.trim, "the trim point only grows")  # P7
    _require(after.gaps[: len(before.gaps)] == before.gaps, "what is lost stays lost")
    _require(len(after.gaps) <= len(before.gaps) + 1, "one gap is declared at a time")
    if after.deleted:
        _require(replace(after, deleted=False, epoch=before.epoch) == before, "deleting changes nothing else")
        _require(not before.last.is_open, "an open log is closed before it is deleted")
        return
    forgotten = after.segments[0].index - before.segments[0].index
    _require(0 <= forgotten < len(before.segments), "segments go from the front, and one stays")
    for segment in before.segments[:forgotten]:
        _require(segment.end is not None and segment.end <= before.trim + 1, "a segment that is not trimmed stays")
    kept = before.segments[forgotten:]
    lost = len(after.gaps) > len(before.gaps)
    _require(len(kept) <= len(after.segments) <= len(kept) + 1, "one segment is opened at a time")
    for old, new in zip(kept, after.segments, strict=False):
        if new is not old and new != old:
            _require_changed(old, new, after.epoch, lost=lost)
    if len(after.segments) > len(kept):
        before_it, opened = after.segments[-2:]
        _require((opened.index, opened.base) == (before_it.index + 1, before_it.end), "a segment begins where one ends")
        _require_opened(after, opened)


def _require_opened(projection: Projection, segment: Segment) -> None:
    settings = projection.settings
    _require(segment.is_open and not segment.repaired, "a new segment is open")
    shape = (segment.policy, segment.stripe_unit, segment.epoch)
    _require(shape == (settings.policy, settings.stripe_unit, projection.epoch), "a new segment is as the log is set")
    for group in segment.groups:
        _require(len({member.node for member in group}) == len(group) > 0, "a node appears once in a group")
        for member in group:
            _require(not member.joining and epoch_of(member.stream) == projection.epoch, "new members have new streams")
    streams = [member.stream for member in segment.members()]
    _require(len(set(streams)) == len(streams), "no two members share a stream")


def _require_changed(old: Segment, new: Segment, epoch: int, *, lost: bool) -> None:
    """A segment that is there before and after: it may end, and an ended one may be repaired."""
    same = replace(new, end=old.end, repaired=old.repaired, groups=old.groups)
    _require(same == old, f"what segment {old.index} is does not change")  # P4
    _require(new.repaired or not old.repaired, "a repaired segment stays repaired")
    _require(len(new.groups) == len(old.groups), "a segment keeps its groups")
    if old.end is None:
        _require(new.end is not None and new.end >= old.base, "an open segment changes only by its end")  # P2, P3
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
            _require(member in (before, replace(before, joining=False)), "a member stays what it is")


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise IllegalChange(otherwise)
