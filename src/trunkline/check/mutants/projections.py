"""Mutants that propose illegal changes of a projection."""

from __future__ import annotations

from msgspec.structs import replace

from trunkline.check.mutant import Mutant
from trunkline.check.mutants.endings import delete_open_log
from trunkline.check.mutants.patches import ANY_CHANGE, TRUSTING_REGISTER, patch
from trunkline.core import coordinator as coordinating
from trunkline.core import duties
from trunkline.core import projection as projections
from trunkline.core.administrator import Administrator
from trunkline.core.duties import Duty, DutyMemory, RemoveJoiner
from trunkline.core.messages import NodeInfo
from trunkline.core.projection import EndSegment, Projection, Segment

_end_segment = projections._end_segment
_with_segment = projections._with_segment
_next_duty = duties.next_duty


def _keep_epoch(projection: Projection, segments: tuple[Segment, ...]) -> Projection:
    return replace(projection, segments=segments)


def _leave_segment_open(projection: Projection, change: EndSegment) -> Projection:
    """The next segment opens although the previous one has not ended."""
    after = _end_segment(projection, change)
    kept = tuple(replace(each, end=None) if each.index == change.index else each for each in after.segments)
    return replace(after, segments=kept)


def _change_epoch_of_segment(projection: Projection, segment: Segment) -> Projection:
    """A segment gets the epoch of its last change."""
    return _with_segment(projection, replace(segment, epoch=projection.epoch + 1))


def _remove_last_member(projection: Projection, index: int, stream: str) -> Projection:
    segment = projections._ended(projection, index)
    groups = tuple(tuple(m for m in group if m.stream != stream) for group in segment.groups)
    return _with_segment(projection, replace(segment, groups=groups))


def _remove_members_without_lease(view: Projection, nodes: tuple[NodeInfo, ...], done: DutyMemory) -> Duty | None:
    """A member without a lease is removed, even the last one."""
    expired = {info.node for info in nodes if not info.live}
    ended = [segment for segment in view.segments if not segment.is_open]
    removed = [(segment.index, m.stream) for segment in ended for m in segment.members() if m.node in expired]
    return RemoveJoiner(*removed[0]) if removed else _next_duty(view, nodes, done)


PROJECTION_MUTANTS = (
    Mutant(
        "epoch-stays",
        "a change does not raise the epoch, so that it is never accepted",
        "sequencer-replaced",
        patch((projections, "_next", _keep_epoch)),
        "Progress",
        "breadth",
        5_000,
        breaks=("projection P1",),
    ),
    Mutant(
        "two-open-segments",
        "a segment opens although the previous one has not ended",
        "chain",
        patch((projections, "_end_segment", _leave_segment_open), TRUSTING_REGISTER),
        "BoundaryWrittenOnce",
        "breadth",
        10_000,
        breaks=("projection P2",),
    ),
    Mutant(
        "segment-changes-epoch",
        "a segment gets the epoch of its last change",
        "finalize",
        patch((projections, "_with_segment", _change_epoch_of_segment), TRUSTING_REGISTER),
        "BoundaryWrittenOnce",
        "breadth",
        1_000,
        breaks=("projection P4",),
    ),
    Mutant(
        "last-member-removed",
        "the last member of a group is removed because its lease expired",
        "all-leases-lost",
        patch(
            (projections, "_remove_member", _remove_last_member),
            (coordinating, "next_duty", _remove_members_without_lease),
            TRUSTING_REGISTER,
        ),
        "BoundaryWrittenOnce",
        "breadth",
        5_000,
        breaks=("projection P6",),
    ),
    Mutant(
        "open-log-deleted",
        "a log is deleted without being closed first",
        "delete",
        patch(
            ANY_CHANGE,
            (Administrator, "_on_delete_view", delete_open_log),
            TRUSTING_REGISTER,
        ),
        "BoundaryWrittenOnce",
        "breadth",
        2_000,
        breaks=("projection P8",),
    ),
)
