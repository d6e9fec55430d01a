"""Known bugs of the log's map: changes of a projection that are not legal, and that somebody proposes."""

from __future__ import annotations

from msgspec.structs import replace

from trunkline.check.mutant import Mutant
from trunkline.check.mutants.patches import TRUSTING_REGISTER, patch
from trunkline.core import coordinator as coordinating
from trunkline.core import duties
from trunkline.core import projection as projections
from trunkline.core.administrator import Administrator, AdministratorState
from trunkline.core.duties import Duty, DutyMemory, RemoveJoiner
from trunkline.core.effects import SELF, Address, Effects, Send
from trunkline.core.messages import NodeInfo
from trunkline.core.projection import DeleteLog, EndSegment, Projection, Segment
from trunkline.core.siblings import ChangeProjection

_end_segment = projections._end_segment
_with_segment = projections._with_segment
_on_delete_view = Administrator._on_delete_view
_next_duty = duties.next_duty


def _epoch_stays(projection: Projection, segments: tuple[Segment, ...]) -> Projection:
    return replace(projection, segments=segments)


def _stays_open(projection: Projection, change: EndSegment) -> Projection:
    """The next segment is opened beside one that goes on."""
    after = _end_segment(projection, change)
    kept = tuple(replace(each, end=None) if each.index == change.index else each for each in after.segments)
    return replace(after, segments=kept)


def _new_epoch(projection: Projection, segment: Segment) -> Projection:
    """A segment takes on the epoch of its last change."""
    return _with_segment(projection, replace(segment, epoch=projection.epoch + 1))


def _removes_anybody(projection: Projection, index: int, stream: str) -> Projection:
    segment = projections._ended(projection, index)
    groups = tuple(tuple(m for m in group if m.stream != stream) for group in segment.groups)
    return _with_segment(projection, replace(segment, groups=groups))


def _removes_all_that_are_away(view: Projection, nodes: tuple[NodeInfo, ...], done: DutyMemory) -> Duty | None:
    """Whoever keeps no lease is removed, be there another or not."""
    away = {info.node for info in nodes if not info.live}
    ended = [segment for segment in view.segments if not segment.is_open]
    gone = [(segment.index, m.stream) for segment in ended for m in segment.members() if m.node in away]
    return RemoveJoiner(*gone[0]) if gone else _next_duty(view, nodes, done)


def _allow(holds: bool, otherwise: str) -> None:
    """Every change is legal."""


def _deletes_at_once(self: Administrator, view: Projection | None) -> Effects:
    if view is None:
        return _on_delete_view(self, view)
    self.state = AdministratorState.CHANGING
    change = ChangeProjection(view.epoch, projections.apply(view, DeleteLog()))
    return [Send(Address(SELF, "reconfigurer"), change)]


PROJECTION_MUTANTS = (
    Mutant(
        "epoch-stays",
        "a change makes no new epoch, so that it is never accepted",
        "sequencer-replaced",
        patch((projections, "_next", _epoch_stays)),
        "Progress",
        "breadth",
        5_000,
        breaks=("projection P1",),
    ),
    Mutant(
        "two-open-segments",
        "a segment is opened although the one before it has not ended",
        "chain",
        patch((projections, "_end_segment", _stays_open), TRUSTING_REGISTER),
        "BoundaryWrittenOnce",
        "breadth",
        10_000,
        breaks=("projection P2",),
    ),
    Mutant(
        "segment-changes-epoch",
        "a segment takes on the epoch of its last change",
        "finalize",
        patch((projections, "_with_segment", _new_epoch), TRUSTING_REGISTER),
        "BoundaryWrittenOnce",
        "breadth",
        1_000,
        breaks=("projection P4",),
    ),
    Mutant(
        "last-member-removed",
        "the last member of a group is removed, as its lease has run out",
        "all-leases-lost",
        patch(
            (projections, "_remove_member", _removes_anybody),
            (coordinating, "next_duty", _removes_all_that_are_away),
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
            (projections, "_require", _allow),
            (Administrator, "_on_delete_view", _deletes_at_once),
            TRUSTING_REGISTER,
        ),
        "BoundaryWrittenOnce",
        "breadth",
        2_000,
        breaks=("projection P8",),
    ),
)
