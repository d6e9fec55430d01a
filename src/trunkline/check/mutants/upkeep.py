"""Known bugs of upkeep: the coordinator's duties, repair and rebuild."""

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


def _keeps_first_view(self: Coordinator, view: Projection | None, nodes: tuple[NodeInfo, ...]) -> Effects:
    """What was read first is believed for ever."""
    return _on_view(self, self.view or view, nodes)


def _believes_inventory_to_be_empty(self: Coordinator, source: Address, streams: tuple[StreamTarget, ...]) -> Effects:
    """Nodes are not asked what they keep: what the process before this one left to be dropped is forgotten."""
    return self._tidied(source.process) if self.duty is not None else []


def _drains_without_witness(now: Situation, segment: Segment) -> Duty | None:
    """A member on a node that is being drained leaves when enough others are named, be they away."""
    for group in segment.groups:
        staying = [member for member in group if member.node not in now.draining]
        leaving = next((member for member in group if member.node in now.draining), None)
        if leaving is not None and len(staying) >= now.view.settings.replicas:
            return RemoveJoiner(segment.index, leaving.stream)
    return _width_duty(now, segment)


def _asks_no_witness(self: Coordinator, duty: Duty, view: Projection) -> Effects:
    """What a witness said some time ago is enough."""
    if isinstance(duty, RemoveServingMember):
        return self._remove(duty.segment, duty.stream)
    return _begin(self, duty, view)


def _awaits_nobody(self: Patience, view: Projection | None, nodes: tuple[NodeInfo, ...]) -> Effects:
    return []


def _passes_over_nobody(self: Patience, nodes: Iterable[str]) -> Effects:
    return []


def _tries_full_nodes(self: Patience, node: str) -> Effects:
    return []


def _begins_at_the_front(now: Situation) -> Duty | None:
    """Each look at a long map examines its first part."""
    now.done.place = 0
    return _ended_segments_duty(now)


def _forgets_small(now: Situation, segments: Iterable[Segment]) -> ForgetTheSegments | None:
    """Segments with one entry are taken for empty."""
    gone = (s.index for s in now.view.segments[:-1] if s.end is not None and s.end <= s.base + 1)
    return next((ForgetTheSegments((index,)) for index in gone), None)


def _forgets_anything(projection: Projection, indexes: set[int]) -> Projection:
    return projections._next(projection, tuple(s for s in projection.segments if s.index not in indexes))


def _reuses_stream(projection: Projection, change: AddJoiner) -> Projection:
    """The joiner gets the id of the member whose place it takes."""
    segment = projection.segment(change.index)
    assert segment is not None
    stream = f"{segment.epoch}.{change.group}.{len(segment.groups[change.group])}"
    joiner = Member(change.seat.node, change.seat.incarnation, stream, joining=True)
    groups = tuple((*g, joiner) if i == change.group else g for i, g in enumerate(segment.groups))
    return projections._with_segment(projection, replace(segment, groups=groups))


def _joins_at_once(projection: Projection, change: AddJoiner) -> Projection:
    segment = projection.segment(change.index)
    assert segment is not None
    member = Member(change.seat.node, change.seat.incarnation, f"{projection.epoch + 1}.{change.group}.0")
    groups = tuple((*g, member) if i == change.group else g for i, g in enumerate(segment.groups))
    return projections._with_segment(projection, replace(segment, groups=groups))


def _proved_at_once(self: MemberCopy) -> Effects:
    """The joiner is admitted without a copy."""
    self.finished = True
    return []


def _copies_one_span(self: MemberCopy) -> Effects:
    """The copy is taken as complete, and as proved, after its first span."""
    self.finished = self.cursor > self.first
    return [] if self.finished else _fetch(self)


def _asks_the_head_alone(self: SegmentRepair, view: Projection, segment: Segment, span: int) -> None:
    _repair(self, view, replace(segment, groups=tuple(group[:1] for group in segment.groups)), span)


def _compares_nothing(self: SegmentRepair, group: Group) -> list[int]:
    return []


def _repairs_one_span(self: SegmentRepair) -> Effects:
    """The segment is called repaired after its first span."""
    effects = _next_of_repair(self)
    self.finished = self.finished or not self.unsettled
    return effects


def _ignores_absent_nodes(view: Projection, nodes: tuple[NodeInfo, ...], done: DutyMemory) -> bool:
    return view.deleted and all(info.node in done.tidied for info in nodes if info.live)


def _never_unblocked(self: Coordinator) -> Effects:
    """What was announced as blocked is never withdrawn."""
    return _announce_blocked(self) if self.done.blocked >= 0 else []


UPKEEP_MUTANTS = (
    Mutant(
        "first-view-kept",
        "a coordinator decides from the projection that it read first",
        "dead-member",
        patch((Coordinator, "_on_view", _keeps_first_view)),
        "Progress",
        "breadth",
        20_000,
        breaks=("coordinator C1",),
    ),
    Mutant(
        "leftovers-forgotten",
        "a coordinator does not ask nodes what they keep",
        "leftovers",
        patch((Coordinator, "_on_inventory", _believes_inventory_to_be_empty)),
        "Progress",
        "swarm",
        50,
        breaks=("coordinator C3",),
    ),
    Mutant(
        "drained-without-witness",
        "a node is drained although no other copy is there",
        "drain-beside-dead",
        patch((duties, "_width_duty", _drains_without_witness)),
        "LastCopy",
        "breadth",
        1_000,
        breaks=("coordinator C5",),
    ),
    Mutant(
        "witness-not-asked",
        "a member is removed although nobody was asked for it whether another one is intact",
        "witness-away",
        patch((Coordinator, "_begin", _asks_no_witness)),
        "LastCopy",
        "breadth",
        5_000,
        breaks=("coordinator C5",),
    ),
    Mutant(
        "no-patience",
        "a node that restarts has its repaired segments copied away at once",
        "restart-in-time",
        patch((Patience, "_await_the_absent", _awaits_nobody)),
        "PatienceKept",
        "breadth",
        5_000,
        breaks=("coordinator C9",),
    ),
    Mutant(
        "silence-endured",
        "a node that does not answer is asked again and again before anything else is done",
        "silent-node",
        patch((Patience, "pass_over_silent", _passes_over_nobody)),
        "Progress",
        "breadth",
        2_000,
        breaks=("coordinator C10",),
    ),
    Mutant(
        "full-node-tried-for-ever",
        "a joiner whose node has no space keeps its place",
        "full-joiner",
        patch((Patience, "pass_over_full", _tries_full_nodes)),
        "Progress",
        "breadth",
        5_000,
        breaks=("coordinator C11",),
    ),
    Mutant(
        "front-of-a-long-map",
        "a look at a long map always begins at its front",
        "long-map-scrub",
        patch((duties, "_ended_segments_duty", _begins_at_the_front)),
        "Progress",
        "breadth",
        2_000,
        breaks=("coordinator C12",),
    ),
    Mutant(
        "absent-node-ignored",
        "the duties of a deleted log end although an absent node may come back with a stream of it",
        "delete-absent",
        patch((coordinator, "is_over", _ignores_absent_nodes)),
        "DutiesEnd",
        "breadth",
        5_000,
        breaks=("coordinator C13",),
    ),
    Mutant(
        "blocked-for-ever",
        "a log stays announced as blocked after its segment has ended",
        "blocked-resolved",
        patch((Coordinator, "_announce_blocked", _never_unblocked)),
        "Progress",
        "breadth",
        5_000,
        breaks=("coordinator C14",),
    ),
    Mutant(
        "small-taken-for-empty",
        "a segment with one entry is forgotten as if it were empty",
        "empty-segments",
        patch((duties, "_forget_duty", _forgets_small), (projections, "_forget", _forgets_anything), TRUSTING_REGISTER),
        "BoundaryWrittenOnce",
        "breadth",
        5_000,
        breaks=("projection P9",),
    ),
    Mutant(
        "joiner-under-an-old-id",
        "a joiner gets the stream id of the member whose place it takes",
        "rebuild",
        patch((projections, "_add_joiner", _reuses_stream), TRUSTING_REGISTER),
        "BoundaryWrittenOnce",
        "breadth",
        2_000,
        breaks=("rebuild J1",),
    ),
    Mutant(
        "joiner-without-copy",
        "a joiner is admitted although nothing was copied to it",
        "rebuild",
        patch((MemberCopy, "start", _proved_at_once)),
        "CommitDurability",
        "breadth",
        5_000,
        breaks=("rebuild J2",),
    ),
    Mutant(
        "rejoin-with-old-data",
        "a member counts before its copy is proved",
        "rebuild",
        patch((projections, "_add_joiner", _joins_at_once), TRUSTING_REGISTER),
        ("BoundaryWrittenOnce", "ReadCommitted", "CommitDurability"),
        "breadth",
        1_000,
        breaks=("projection P5", "rebuild J2"),
    ),
    Mutant(
        "one-span-copied",
        "a copy is taken as complete after its first span",
        "rebuild-spans",
        patch((MemberCopy, "_fetch", _copies_one_span)),
        "CommitDurability",
        "breadth",
        5_000,
        breaks=("rebuild J2",),
    ),
    Mutant(
        "head-alone-repaired",
        "a segment is repaired without asking all of its members",
        "repair-spans",
        patch((SegmentRepair, "__init__", _asks_the_head_alone)),
        "RepairedAlike",
        "breadth",
        5_000,
        breaks=("repair E1",),
    ),
    Mutant(
        "nothing-compared",
        "a segment is called repaired although its members differ",
        "finish-segment",
        patch((SegmentRepair, "_differing", _compares_nothing)),
        "RepairedAlike",
        "breadth",
        5_000,
        breaks=("repair E2",),
    ),
    Mutant(
        "one-span-repaired",
        "a segment is called repaired after its first span",
        "repair-spans",
        patch((SegmentRepair, "_next", _repairs_one_span)),
        "RepairedAlike",
        "breadth",
        5_000,
        breaks=("repair E2",),
    ),
)

UNSEEN: dict[str, str] = {
    "coordinator C4": "it says what is not there: no client has a message for a coordinator",
    "coordinator C7": "an early widening is right in every interleaving: it costs segments, which nothing counts",
    "coordinator C8": "timers have no length in a search, so a procedure that takes long cannot be told from a silence",
}
