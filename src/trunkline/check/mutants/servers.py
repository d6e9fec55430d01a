"""Mutants of servers: storage nodes, sequencers, the register, the coordinator."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from trunkline.check.mutant import Mutant
from trunkline.check.mutants.patches import patch, persisted_last, without_records
from trunkline.core import coordinator as coordinating
from trunkline.core import duties
from trunkline.core import projection as projections
from trunkline.core import sequencer as sequencing
from trunkline.core.coordinator import Coordinator
from trunkline.core.duties import Duty, DutyMemory, FinalizeMembers, ForgetTheSegments, RemoveServingMember
from trunkline.core.effects import Address, Announce, Effects, Persist, Send
from trunkline.core.entries import Frame, Frames
from trunkline.core.events import Projected
from trunkline.core.messages import (
    Descriptor,
    Drop,
    Dropped,
    NodeInfo,
    Reason,
    Rejected,
    Sealed,
    StreamTarget,
    Swapped,
    target_of,
)
from trunkline.core.projection import Owner, Projection, Segment
from trunkline.core.register import MetadataRegister, ProjectionAccepted
from trunkline.core.sequencer import Sequencer, Serving
from trunkline.core.storage import StorageNode
from trunkline.core.streams import Stream, StreamDropping, StreamSealing

_on_seal = StorageNode._on_seal
_store = StorageNode._store
_begin = Coordinator._begin
_next_duty = duties.next_duty
_left_streams = duties.left_streams
_sequencer = Sequencer.__init__
_frames = Frames.__init__


def _read_all_when_sealed(self: Stream) -> int | None:
    return self.end if self.sealed else self.lac + 1


def _read_past_lac(self: Stream) -> int | None:
    return self.end


def _forget_trim_in_seal_answer(self: Stream) -> int:
    return max(self.frames.highest() + 1, self.descriptor.base)


def _reopen_by_late_seal(self: StorageNode, source: Address, descriptor: Descriptor) -> Effects:
    stream = self.streams.get((descriptor.target.log, descriptor.target.stream))
    if stream is not None and stream.end is not None:
        stream.sealed, stream.end = False, None
    return _on_seal(self, source, descriptor)


def _seal_unknown_stream_in_memory(self: StorageNode, source: Address, descriptor: Descriptor) -> Effects:
    known = (descriptor.target.log, descriptor.target.stream) in self.streams
    effects = _on_seal(self, source, descriptor)
    return effects if known else without_records(effects)


def _skip_identity_check(self: StorageNode, target: StreamTarget, *, may_be_new: bool) -> Rejected | None:
    """Neither incarnation nor epoch is compared."""
    key = (target.log, target.stream)
    if key in self.tombstones:
        return Rejected(target.stream, 0, Reason.GONE)
    if key not in self.streams:
        return None if may_be_new else Rejected(target.stream, 0, Reason.UNKNOWN)
    return None


def _drop_without_tombstone(self: StorageNode, source: Address, target: StreamTarget) -> Effects:
    key = (target.log, target.stream)
    self.streams.pop(key, None)
    return [Persist(StreamDropping(key)), Send(source, Dropped(target.stream))]


def _answer_before_persist(self: StorageNode, source: Address, stream: Stream, frame: Frame) -> Effects:
    return persisted_last(_store(self, source, stream, frame))


def _answer_seal_before_persist(self: StorageNode, source: Address, descriptor: Descriptor) -> Effects:
    return persisted_last(_on_seal(self, source, descriptor))


def _reuse_first_start(self: Sequencer, me: Owner) -> None:
    _sequencer(self, Owner(me.process, 1))


def _accept_any_start(self: Sequencer, log: str, segment: Segment) -> Reason | None:
    """The owner is the node, whatever process runs there."""
    if segment.owner.process != self.me.process:
        return Reason.NOT_OWNER
    serving = self.serving.get(log)
    if serving is None or serving.segment < segment.index:
        self.serving[log] = Serving(segment.index, segment.base)
    return None


def _ignore_stripe_units(segment: Segment, position: int, count: int) -> int:
    return position


def _accept_every_swap(
    self: MetadataRegister, source: Address, log: str, expected: int, projection: Projection
) -> Effects:
    self.projections[log] = projection
    accepted: Effects = [Persist(ProjectionAccepted(projection)), Announce(Projected(projection))]
    return [*accepted, Send(source, Swapped(log, projection.epoch))]


def _swap_in_memory(
    self: MetadataRegister, source: Address, log: str, expected: int, projection: Projection
) -> Effects:
    return without_records(_on_swap(self, source, log, expected, projection))


_on_swap = MetadataRegister._on_swap


def _finalize_once(self: Coordinator, duty: Duty, view: Projection) -> Effects:
    if isinstance(duty, FinalizeMembers):
        self.done.finalized.update(member.stream for _, members in duty.segments for member in members)
    return _begin(self, duty, view)


def _never_remove_members(view: Projection, nodes: tuple[NodeInfo, ...], done: DutyMemory) -> Duty | None:
    duty = _next_duty(view, nodes, done)
    return None if isinstance(duty, RemoveServingMember) else duty


def _vote_despite_loss(self: StorageNode, source: Address, descriptor: Descriptor) -> Effects:
    """A stream votes although it lost data."""
    return [
        Send(e.to, Sealed(e.message.stream, e.message.next, True, False))
        if isinstance(e, Send) and isinstance(e.message, Sealed)
        else e
        for e in _on_seal(self, source, descriptor)
    ]


def _never_ask_again(self: Coordinator, view: Projection | None, nodes: tuple[NodeInfo, ...]) -> Effects:
    """A node's first report of its streams counts forever."""
    return []


def _left_if_unnamed(view: Projection, kept: tuple[StreamTarget, ...]) -> tuple[StreamTarget, ...]:
    """A stream that the projection does not name has left, even if it is newer."""
    return tuple(target for target in kept if target.stream not in view.streams())


def _left_if_older(view: Projection, kept: tuple[StreamTarget, ...]) -> tuple[StreamTarget, ...]:
    """A stream that is older than the open segment has left."""
    return tuple(target for target in kept if projections.epoch_of(target.stream) < view.last.epoch)


def _treat_closed_as_deleted(view: Projection, nodes: tuple[NodeInfo, ...], done: DutyMemory) -> Duty | None:
    """A closed log is treated as deleted."""
    return _next_duty(view if view.last.is_open else replace(view, deleted=True), nodes, done)


def _left_if_closed(view: Projection, kept: tuple[StreamTarget, ...]) -> tuple[StreamTarget, ...]:
    return _left_streams(view if view.last.is_open else replace(view, deleted=True), kept)


def _keep_disk_order(self: Frames, frames: Sequence[Frame] = ()) -> None:
    _frames(self, frames)
    self._frames = list(frames)
    self._highest = frames[-1].next - 1 if frames else 0


def _seal_in_memory(self: StorageNode, source: Address, descriptor: Descriptor) -> Effects:
    return without_records(_on_seal(self, source, descriptor), StreamSealing)


def _drop_before_swap(self: Coordinator, duty: Duty, view: Projection) -> Effects:
    effects = _begin(self, duty, view)
    if isinstance(duty, ForgetTheSegments):
        forgotten = [self._segment(view, index) for index in duty.segments]
        dropped = [(segment, member) for segment in forgotten for member in segment.members()]
        drops = [Send(Address(m.node, "storage"), Drop(target_of(view, segment, m))) for segment, m in dropped]
        return [*drops, *effects]
    return effects


def _serve_from_position_1(self: Sequencer, log: str, segment: Segment) -> Reason | None:
    """A segment is served from the beginning of the log, whatever its base."""
    if segment.owner != self.me:
        return Reason.NOT_OWNER
    serving = self.serving.get(log)
    if serving is None or serving.segment < segment.index:
        self.serving[log] = Serving(segment.index, 1)
    return None


SERVER_MUTANTS = (
    Mutant(
        "drop-before-swap",
        "streams are dropped before their segment leaves the projection",
        "forget",
        patch((Coordinator, "_begin", _drop_before_swap)),
        "BoundaryWrittenOnce",
        "breadth",
        600_000,
        breaks=("coordinator C3",),
    ),
    Mutant(
        "sequencer-below-base",
        "a sequencer does not begin at its segment's base",
        "chain",
        patch((Sequencer, "_refusal", _serve_from_position_1)),
        ("SingleOwner", "CommitDurability", "TotalOrder"),
        "breadth",
        60_000,
        breaks=("sequencer Q2",),
    ),
    Mutant(
        "last-entry-ambiguity",
        "a sealed segment is read up to what the node has, without an exact boundary",
        "takeover",
        patch((Stream, "readable_end", _read_all_when_sealed)),
        ("ReadCommitted", "TotalOrder"),
        "breadth",
        10_000,
        breaks=("storage N4",),
    ),
    Mutant(
        "broadcast-read-past-lac",
        "an open broadcast stream is read past the released entries",
        "broadcast-append",
        patch((Stream, "readable_end", _read_past_lac)),
        "ReadCommitted",
        "breadth",
        1_000,
        breaks=("storage N4",),
    ),
    Mutant(
        "seal-forgets-trim",
        "the answer to Seal does not count trimmed positions",
        "trim-and-end",
        patch((Stream, "seal_answer", _forget_trim_in_seal_answer)),
        "NoLostAck",
        "breadth",
        150_000,
        breaks=("streams S4",),
    ),
    Mutant(
        "late-seal-reopens",
        "a late Seal reopens a finalized stream",
        "broadcast-finish",
        patch((StorageNode, "_on_seal", _reopen_by_late_seal)),
        ("BoundaryWrittenOnce", "NoLostAck"),
        "breadth",
        400_000,
        breaks=("streams S2",),
    ),
    Mutant(
        "seal-of-unknown-volatile",
        "the seal of an unknown stream is not persisted",
        "unopened",
        patch((StorageNode, "_on_seal", _seal_unknown_stream_in_memory)),
        ("NoLostAck", "CommitDurability"),
        "breadth",
        200_000,
        breaks=("storage N2",),
    ),
    Mutant(
        "no-identity-check",
        "requests for another incarnation or epoch are served",
        "node-returns-wiped",
        patch((StorageNode, "_identity_refusal", _skip_identity_check)),
        ("NoLostAck", "TotalOrder", "ReadCommitted", "RoleError"),
        "breadth",
        80_000,
        breaks=("storage N1",),
    ),
    Mutant(
        "dropped-stream-made-again",
        "a dropped stream leaves no tombstone",
        "dropped-streams",
        patch((StorageNode, "_on_drop", _drop_without_tombstone)),
        ("NoLostAck", "CommitDurability", "BoundaryWrittenOnce", "TotalOrder"),
        "breadth",
        1_500_000,
        breaks=("storage N3",),
    ),
    Mutant(
        "unsynced-acknowledged",
        "a frame is acknowledged before it is on disk",
        "power-cut",
        patch((StorageNode, "_store", _answer_before_persist)),
        ("TotalOrder", "NoLostAck", "CommitDurability", "ReadCommitted", "Progress"),
        "swarm",
        200,
        breaks=("storage N2",),
    ),
    Mutant(
        "owner-start-reused",
        "a restarted sequencer counts as its previous process",
        "sequencer-loss",
        patch((Sequencer, "__init__", _reuse_first_start)),
        "SingleOwner",
        "breadth",
        1_000,
        breaks=("sequencer Q1",),
    ),
    Mutant(
        "sequencer-known-by-node",
        "a sequencer is identified by its node and not by its process",
        "sequencer-loss",
        patch((Sequencer, "_refusal", _accept_any_start)),
        "SingleOwner",
        "breadth",
        1_000,
        breaks=("sequencer Q1",),
    ),
    Mutant(
        "batch-across-stripe-unit",
        "a grant may cross a stripe unit",
        "striping-readers",
        patch((sequencing, "unit_start", _ignore_stripe_units)),
        ("TotalOrder", "ReadCommitted"),
        "breadth",
        30_000,
        breaks=("sequencer Q3",),
    ),
    Mutant(
        "two-boundaries",
        "the metadata store accepts every swap: two takers write two boundaries",
        "two-takeovers",
        patch((MetadataRegister, "_on_swap", _accept_every_swap)),
        ("BoundaryWrittenOnce", "SingleOwner"),
        "breadth",
        20_000,
        breaks=("register M1",),
    ),
    Mutant(
        "metadata-commit-lost",
        "an acknowledged metadata commit is lost in a crash",
        "metadata-restart",
        patch((MetadataRegister, "_on_swap", _swap_in_memory)),
        ("BoundaryWrittenOnce", "SingleOwner", "NoLostAck"),
        "breadth",
        10_000,
        breaks=("register M2",),
    ),
    Mutant(
        "finalize-sent-once",
        "Finalize is sent only once",
        "finalize",
        patch((Coordinator, "_begin", _finalize_once)),
        "Progress",
        "breadth",
        5_000,
        breaks=("coordinator C2",),
    ),
    Mutant(
        "dead-member-kept",
        "a dead member of an ended, unrepaired segment is never removed",
        "dead-member",
        patch((coordinating, "next_duty", _never_remove_members)),
        "Progress",
        "breadth",
        5_000,
        breaks=("coordinator C2",),
    ),
    Mutant(
        "damage-ignored",
        "the coordinator does not ask a node again after it found damage",
        "scrub",
        patch((Coordinator, "_doubt", _never_ask_again)),
        "Progress",
        "swarm",
        200,
        breaks=("coordinator C6",),
    ),
    Mutant(
        "drop-newer-than-view",
        "streams that are newer than the coordinator's projection are dropped",
        "leftovers",
        patch((coordinating, "left_streams", _left_if_unnamed)),
        "BoundaryWrittenOnce",
        "breadth",
        200_000,
        breaks=("coordinator C3",),
    ),
    Mutant(
        "drop-what-is-named",
        "streams of older segments are dropped although the projection names them",
        "finalize",
        patch((coordinating, "left_streams", _left_if_older)),
        "BoundaryWrittenOnce",
        "breadth",
        5_000,
        breaks=("coordinator C3",),
    ),
    Mutant(
        "drop-before-delete",
        "streams of a closed log are dropped before the log is deleted",
        "delete",
        patch(
            (coordinating, "next_duty", _treat_closed_as_deleted),
            (coordinating, "left_streams", _left_if_closed),
        ),
        "BoundaryWrittenOnce",
        "breadth",
        400_000,
        breaks=("coordinator C3",),
    ),
    Mutant(
        "lost-suffix-votes",
        "a stream that lost acknowledged frames still votes",
        "rot",
        patch((StorageNode, "_on_seal", _vote_despite_loss)),
        ("NoLostAck", "TotalOrder"),
        "swarm",
        1_000,
        breaks=("streams S5",),
    ),
    Mutant(
        "seal-not-persisted",
        "an acknowledged seal is lost in a crash",
        "unopened",
        patch((StorageNode, "_on_seal", _seal_in_memory)),
        ("NoLostAck", "CommitDurability"),
        "breadth",
        30_000,
        breaks=("storage N2",),
    ),
    Mutant(
        "seal-answered-before-sync",
        "a seal is answered before it is on disk",
        "power-cut-after-seal",
        patch((StorageNode, "_on_seal", _answer_seal_before_persist)),
        ("NoLostAck", "CommitDurability", "TotalOrder"),
        "breadth",
        100_000,
        breaks=("storage N2",),
    ),
    Mutant(
        "recovered-in-disk-order",
        "recovery assumes that frames on disk are in the order of positions",
        "unopened",
        patch((Frames, "__init__", _keep_disk_order)),
        ("NoLostAck",),
        "breadth",
        400_000,
        breaks=("streams S4",),
    ),
)
