"""Mutants of upkeep: the coordinator's duties, repair and rebuild."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from trunkline.check.mutant import Mutant
from trunkline.check.mutants.patches import TRUSTING_REGISTER, patch
from trunkline.core import coordinator, duties
from trunkline.core import projection as projections
from trunkline.core.coordinator import Coordinator
from trunkline.core.duties import (
    Duty,
    DutyMemory,
    ForgetTheSegments,
    RemoveJoiner,
    RemoveServingMember,
    Situation,
)
from trunkline.core.effects import Address, Effects
from trunkline.core.messages import NodeInfo, StreamTarget
from trunkline.core.patience import Patience
from trunkline.core.projection import AddJoiner, Group, Member, Projection, Segment
from trunkline.core.rebuild import MemberCopy
from trunkline.core.repair import SegmentRepair

_announce_blocked = Coordinator._announce_blocked
_begin = Coordinator._begin
_on_view = Coordinator._on_view
_width_duty = duties._width_duty
_repair = SegmentRepair.__init__
_ended_segments_duty = duties._ended_segments_duty
_fetch = MemberCopy._fetch
_next_of_repair = SegmentRepair._next


def _keep_first_projection(self: Coordinator, view: Projection | None, nodes: tuple[NodeInfo, ...]) -> Effects:
    """The first projection is used forever."""
    return _on_view(self, self.view or view, nodes)


def _ignore_inventory(self: Coordinator, source: Address, streams: tuple[StreamTarget, ...]) -> Effects:
    """Streams that the previous coordinator left to be dropped are forgotten."""
    return self._tidied(source.process) if self.duty is not None else []


def _drain_without_witness(now: Situation, segment: Segment) -> Duty | None:
    """A member on a draining node leaves when there are enough others, even if they are unreachable."""
    for group in segment.groups:
        staying = [member for member in group if member.node not in now.draining]
        leaving = next((member for member in group if member.node in now.draining), None)
        if leaving is not None and len(staying) >= now.view.settings.replicas:
            return RemoveJoiner(segment.index, leaving.stream)
    return _width_duty(now, segment)


def _remove_without_witness(self: Coordinator, duty: Duty, view: Projection) -> Effects:
    """An earlier answer of a witness is enough."""
    if isinstance(duty, RemoveServingMember):
        return self._remove(duty.segment, duty.stream)
    return _begin(self, duty, view)


def _never_wait_for_absent(self: Patience, view: Projection | None, nodes: tuple[NodeInfo, ...]) -> Effects:
    return []


def _never_skip_silent(self: Patience, nodes: Iterable[str]) -> Effects:
    return []


def _never_skip_full(self: Patience, node: str) -> Effects:
    return []


def _examine_first_part(now: Situation) -> Duty | None:
    """Each poll examines the first part of a long projection."""
    now.done.place = 0
    return _ended_segments_duty(now)


def _forget_small_segments(now: Situation, segments: Iterable[Segment]) -> ForgetTheSegments | None:
    """Segments with one entry count as empty."""
    small = (s.index for s in now.view.segments[:-1] if s.end is not None and s.end <= s.base + 1)
    return next((ForgetTheSegments((index,)) for index in small), None)


def _forget_unchecked(projection: Projection, indexes: set[int]) -> Projection:
    return projections._next(projection, tuple(s for s in projection.segments if s.index not in indexes))


def _reuse_stream_id(projection: Projection, change: AddJoiner) -> Projection:
    """The joiner gets the stream id of the member that it replaces."""
    segment = projection.segment(change.index)
    assert segment is not None
    stream = f"{segment.epoch}.{change.group}.{len(segment.groups[change.group])}"
    joiner = Member(change.seat.node, change.seat.incarnation, stream, joining=True)
    groups = tuple((*g, joiner) if i == change.group else g for i, g in enumerate(segment.groups))
    return projections._with_segment(projection, replace(segment, groups=groups))


def _serve_before_copy(projection: Projection, change: AddJoiner) -> Projection:
    segment = projection.segment(change.index)
    assert segment is not None
    member = Member(change.seat.node, change.seat.incarnation, f"{projection.epoch + 1}.{change.group}.0")
    groups = tuple((*g, member) if i == change.group else g for i, g in enumerate(segment.groups))
    return projections._with_segment(projection, replace(segment, groups=groups))


def _admit_without_copy(self: MemberCopy) -> Effects:
    """The joiner is admitted without a copy."""
    self.finished = True
    return []


def _copy_one_span(self: MemberCopy) -> Effects:
    """The copy counts as complete and proved after its first span."""
    self.finished = self.cursor > self.first
    return [] if self.finished else _fetch(self)


def _repair_head_alone(self: SegmentRepair, view: Projection, segment: Segment, span: int) -> None:
    _repair(self, view, replace(segment, groups=tuple(group[:1] for group in segment.groups)), span)


def _skip_comparison(self: SegmentRepair, group: Group) -> list[int]:
    return []


def _repair_one_span(self: SegmentRepair) -> Effects:
    """The segment counts as repaired after its first span."""
    effects = _next_of_repair(self)
    self.finished = self.finished or not self.unsettled
    return effects


def _ignore_absent_nodes(view: Projection, nodes: tuple[NodeInfo, ...], done: DutyMemory) -> bool:
    return view.deleted and all(info.node in done.tidied for info in nodes if info.live)


def _never_unblock(self: Coordinator) -> Effects:
    """A blocked log is never announced as unblocked."""
    return _announce_blocked(self) if self.done.blocked >= 0 else []


UPKEEP_MUTANTS = (
    Mutant(
        "first-view-kept",
        "a coordinator always uses the first projection that it read",
        "dead-member",
        patch((Coordinator, "_on_view", _keep_first_projection)),
        "Progress",
        "breadth",
        20_000,
        breaks=("coordinator C1",),
    ),
    Mutant(
        "leftovers-forgotten",
        "a coordinator does not ask nodes for their streams",
        "leftovers",
        patch((Coordinator, "_on_inventory", _ignore_inventory)),
        "Progress",
        "swarm",
        50,
        breaks=("coordinator C3",),
    ),
    Mutant(
        "drained-without-witness",
        "a node is drained although no other copy is reachable",
        "drain-beside-dead",
        patch((duties, "_width_duty", _drain_without_witness)),
        "LastCopy",
        "breadth",
        1_000,
        breaks=("coordinator C5",),
    ),
    Mutant(
        "witness-not-asked",
        "a member is removed without asking whether another one is intact",
        "witness-away",
        patch((Coordinator, "_begin", _remove_without_witness)),
        "LastCopy",
        "breadth",
        5_000,
        breaks=("coordinator C5",),
    ),
    Mutant(
        "no-patience",
        "repaired segments of a restarting node are copied elsewhere at once",
        "restart-in-time",
        patch((Patience, "_await_the_absent", _never_wait_for_absent)),
        "PatienceKept",
        "breadth",
        5_000,
        breaks=("coordinator C9",),
    ),
    Mutant(
        "silence-endured",
        "a node that does not answer is asked again and again before any other duty",
        "silent-node",
        patch((Patience, "pass_over_silent", _never_skip_silent)),
        "Progress",
        "breadth",
        2_000,
        breaks=("coordinator C10",),
    ),
    Mutant(
        "full-node-tried-for-ever",
        "a joiner whose node has no space is not replaced",
        "full-joiner",
        patch((Patience, "pass_over_full", _never_skip_full)),
        "Progress",
        "breadth",
        5_000,
        breaks=("coordinator C11",),
    ),
    Mutant(
        "front-of-a-long-map",
        "each poll examines the first part of a long projection",
        "long-map-scrub",
        patch((duties, "_ended_segments_duty", _examine_first_part)),
        "Progress",
        "breadth",
        2_000,
        breaks=("coordinator C12",),
    ),
    Mutant(
        "absent-node-ignored",
        "the duties of a deleted log end although an absent node may return with a stream",
        "delete-absent",
        patch((coordinator, "is_over", _ignore_absent_nodes)),
        "DutiesEnd",
        "breadth",
        5_000,
        breaks=("coordinator C13",),
    ),
    Mutant(
        "blocked-for-ever",
        "a log stays announced as blocked after its segment has ended",
        "blocked-resolved",
        patch((Coordinator, "_announce_blocked", _never_unblock)),
        "Progress",
        "breadth",
        5_000,
        breaks=("coordinator C14",),
    ),
    Mutant(
        "small-taken-for-empty",
        "a segment with one entry is forgotten as an empty one",
        "empty-segments",
        patch(
            (duties, "_forget_duty", _forget_small_segments),
            (projections, "_forget", _forget_unchecked),
            TRUSTING_REGISTER,
        ),
        "BoundaryWrittenOnce",
        "breadth",
        5_000,
        breaks=("projection P9",),
    ),
    Mutant(
        "joiner-under-an-old-id",
        "a joiner gets the stream id of the member that it replaces",
        "rebuild",
        patch((projections, "_add_joiner", _reuse_stream_id), TRUSTING_REGISTER),
        "BoundaryWrittenOnce",
        "breadth",
        2_000,
        breaks=("rebuild J1",),
    ),
    Mutant(
        "joiner-without-copy",
        "a joiner is admitted without a copy",
        "rebuild",
        patch((MemberCopy, "start", _admit_without_copy)),
        "CommitDurability",
        "breadth",
        5_000,
        breaks=("rebuild J2",),
    ),
    Mutant(
        "rejoin-with-old-data",
        "a member counts before its copy is proved",
        "rebuild",
        patch((projections, "_add_joiner", _serve_before_copy), TRUSTING_REGISTER),
        ("BoundaryWrittenOnce", "ReadCommitted", "CommitDurability"),
        "breadth",
        1_000,
        breaks=("projection P5", "rebuild J2"),
    ),
    Mutant(
        "one-span-copied",
        "a copy counts as complete after its first span",
        "rebuild-spans",
        patch((MemberCopy, "_fetch", _copy_one_span)),
        "CommitDurability",
        "breadth",
        5_000,
        breaks=("rebuild J2",),
    ),
    Mutant(
        "head-alone-repaired",
        "a segment is repaired without asking all of its members",
        "repair-spans",
        patch((SegmentRepair, "__init__", _repair_head_alone)),
        "RepairedAlike",
        "breadth",
        5_000,
        breaks=("repair E1",),
    ),
    Mutant(
        "nothing-compared",
        "a segment is marked repaired although its members differ",
        "finish-segment",
        patch((SegmentRepair, "_differing", _skip_comparison)),
        "RepairedAlike",
        "breadth",
        5_000,
        breaks=("repair E2",),
    ),
    Mutant(
        "one-span-repaired",
        "a segment is marked repaired after its first span",
        "repair-spans",
        patch((SegmentRepair, "_next", _repair_one_span)),
        "RepairedAlike",
        "breadth",
        5_000,
        breaks=("repair E2",),
    ),
)

UNSEEN: dict[str, str] = {
    "coordinator C4": "it excludes a message: no client has one for a coordinator",
    "coordinator C7": "an early widening is correct in every interleaving: it costs segments, which no monitor counts",
    "coordinator C8": "timers have no length in a search, so a long procedure looks like silence",
}
