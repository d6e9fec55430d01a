"""Known bugs of servers: storage nodes, sequencers, the register, the coordinator."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from trunkline.check.mutant import Mutant
from trunkline.check.mutants.patches import patch
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


def _everything_when_sealed(self: Stream) -> int | None:
    return self.end if self.sealed else self.lac + 1


def _past_lac(self: Stream) -> int | None:
    return self.end


def _forgets_trim(self: Stream) -> int:
    return max(self.frames.highest() + 1, self.descriptor.base)


def _seal_reopens(self: StorageNode, source: Address, descriptor: Descriptor) -> Effects:
    stream = self.streams.get((descriptor.target.log, descriptor.target.stream))
    if stream is not None and stream.end is not None:
        stream.sealed, stream.end = False, None
    return _on_seal(self, source, descriptor)


def _seal_unknown_volatile(self: StorageNode, source: Address, descriptor: Descriptor) -> Effects:
    """Seal of an unknown stream is kept in memory only."""
    known = (descriptor.target.log, descriptor.target.stream) in self.streams
    effects = _on_seal(self, source, descriptor)
    return effects if known else [effect for effect in effects if not isinstance(effect, Persist)]


def _anybody(self: StorageNode, target: StreamTarget, *, may_be_new: bool) -> Rejected | None:
    """No incarnation and no epoch is compared."""
    key = (target.log, target.stream)
    if key in self.tombstones:
        return Rejected(target.stream, 0, Reason.GONE)
    if key not in self.streams:
        return None if may_be_new else Rejected(target.stream, 0, Reason.UNKNOWN)
    return None


def _no_tombstone(self: StorageNode, source: Address, target: StreamTarget) -> Effects:
    key = (target.log, target.stream)
    self.streams.pop(key, None)
    return [Persist(StreamDropping(key)), Send(source, Dropped(target.stream))]


def _answers_first(self: StorageNode, source: Address, stream: Stream, frame: Frame) -> Effects:
    effects = _store(self, source, stream, frame)
    return [*(e for e in effects if not isinstance(e, Persist)), *(e for e in effects if isinstance(e, Persist))]


def _seal_answers_first(self: StorageNode, source: Address, descriptor: Descriptor) -> Effects:
    effects = _on_seal(self, source, descriptor)
    return [*(e for e in effects if not isinstance(e, Persist)), *(e for e in effects if isinstance(e, Persist))]


def _same_start(self: Sequencer, me: Owner) -> None:
    _sequencer(self, Owner(me.process, 1))


def _by_name(self: Sequencer, log: str, segment: Segment) -> Reason | None:
    """The owner is the node, whichever process runs there."""
    if segment.owner.process != self.me.process:
        return Reason.NOT_OWNER
    serving = self.serving.get(log)
    if serving is None or serving.segment < segment.index:
        self.serving[log] = Serving(segment.index, segment.base)
    return None


def _anywhere(segment: Segment, position: int, count: int) -> int:
    return position


def _last_swap_wins(
    self: MetadataRegister, source: Address, log: str, expected: int, projection: Projection
) -> Effects:
    self.projections[log] = projection
    accepted: Effects = [Persist(ProjectionAccepted(projection)), Announce(Projected(projection))]
    return [*accepted, Send(source, Swapped(log, projection.epoch))]


def _swap_not_persisted(
    self: MetadataRegister, source: Address, log: str, expected: int, projection: Projection
) -> Effects:
    effects = _on_swap(self, source, log, expected, projection)
    return [effect for effect in effects if not isinstance(effect, Persist)]


_on_swap = MetadataRegister._on_swap


def _finalizes_once(self: Coordinator, duty: Duty, view: Projection) -> Effects:
    if isinstance(duty, FinalizeMembers):
        self.done.finalized.update(member.stream for _, members in duty.segments for member in members)
    return _begin(self, duty, view)


def _never_removes(view: Projection, nodes: tuple[NodeInfo, ...], done: DutyMemory) -> Duty | None:
    duty = _next_duty(view, nodes, done)
    return None if isinstance(duty, RemoveServingMember) else duty


def _lossy_votes(self: StorageNode, source: Address, descriptor: Descriptor) -> Effects:
    """Lost data does not keep a stream from voting."""
    return [
        Send(e.to, Sealed(e.message.stream, e.message.next, True, False))
        if isinstance(e, Send) and isinstance(e.message, Sealed)
        else e
        for e in _on_seal(self, source, descriptor)
    ]


def _never_doubts(self: Coordinator, view: Projection | None, nodes: tuple[NodeInfo, ...]) -> Effects:
    """What a node once said of its streams is believed for ever."""
    return []


def _left_by_name(view: Projection, kept: tuple[StreamTarget, ...]) -> tuple[StreamTarget, ...]:
    """Whatever the view does not name has left, be it newer than the view."""
    return tuple(target for target in kept if target.stream not in view.streams())


def _left_by_epoch(view: Projection, kept: tuple[StreamTarget, ...]) -> tuple[StreamTarget, ...]:
    """Whatever is older than the open segment has left."""
    return tuple(target for target in kept if projections.epoch_of(target.stream) < view.last.epoch)


def _closed_is_deleted(view: Projection, nodes: tuple[NodeInfo, ...], done: DutyMemory) -> Duty | None:
    """A closed log is treated as deleted, before the metadata say so."""
    return _next_duty(view if view.last.is_open else replace(view, deleted=True), nodes, done)


def _left_when_closed(view: Projection, kept: tuple[StreamTarget, ...]) -> tuple[StreamTarget, ...]:
    return _left_streams(view if view.last.is_open else replace(view, deleted=True), kept)


def _unsorted(self: Frames, frames: Sequence[Frame] = ()) -> None:
    _frames(self, frames)
    self._frames = list(frames)
    self._highest = frames[-1].next - 1 if frames else 0


def _seal_forgotten(self: StorageNode, source: Address, descriptor: Descriptor) -> Effects:
    """A seal is kept in memory only."""
    return [
        e
        for e in _on_seal(self, source, descriptor)
        if not (isinstance(e, Persist) and isinstance(e.record, StreamSealing))
    ]


def _drops_before_swap(self: Coordinator, duty: Duty, view: Projection) -> Effects:
    effects = _begin(self, duty, view)
    if isinstance(duty, ForgetTheSegments):
        forgotten = [self._segment(view, index) for index in duty.segments]
        gone = [(segment, member) for segment in forgotten for member in segment.members()]
        drops = [Send(Address(m.node, "storage"), Drop(target_of(view, segment, m))) for segment, m in gone]
        return [*drops, *effects]
    return effects


def _starts_anywhere(self: Sequencer, log: str, segment: Segment) -> Reason | None:
    """A segment is served from the beginning of the log, whatever its base is."""
    if segment.owner != self.me:
        return Reason.NOT_OWNER
    serving = self.serving.get(log)
    if serving is None or serving.segment < segment.index:
        self.serving[log] = Serving(segment.index, 1)
    return None


SERVER_MUTANTS = (
    Mutant(
        "drop-before-swap",
        "streams are dropped before their segment has left the projection",
        "forget",
        patch((Coordinator, "_begin", _drops_before_swap)),
        "BoundaryWrittenOnce",
        "breadth",
        600_000,
        breaks=("coordinator C3",),
    ),
    Mutant(
        "sequencer-below-base",
        "a sequencer begins elsewhere than at its segment's base",
        "chain",
        patch((Sequencer, "_refusal", _starts_anywhere)),
        ("SingleOwner", "CommitDurability", "TotalOrder"),
        "breadth",
        60_000,
        breaks=("sequencer Q2",),
    ),
    Mutant(
        "last-entry-ambiguity",
        "a closed segment is read up to what the node has: no exact boundary",
        "takeover",
        patch((Stream, "readable_end", _everything_when_sealed)),
        ("ReadCommitted", "TotalOrder"),
        "breadth",
        10_000,
        breaks=("storage N4",),
    ),
    Mutant(
        "broadcast-read-past-lac",
        "an open broadcast stream is read past what its owner released",
        "broadcast-append",
        patch((Stream, "readable_end", _past_lac)),
        "ReadCommitted",
        "breadth",
        1_000,
        breaks=("storage N4",),
    ),
    Mutant(
        "seal-forgets-trim",
        "Seal's answer does not count trimmed positions",
        "trim-and-end",
        patch((Stream, "seal_answer", _forgets_trim)),
        "NoLostAck",
        "breadth",
        150_000,
        breaks=("streams S4",),
    ),
    Mutant(
        "late-seal-reopens",
        "a late Seal opens a finalized stream again",
        "broadcast-finish",
        patch((StorageNode, "_on_seal", _seal_reopens)),
        ("BoundaryWrittenOnce", "NoLostAck"),
        "breadth",
        400_000,
        breaks=("streams S2",),
    ),
    Mutant(
        "seal-of-unknown-volatile",
        "the seal of an unknown stream is not persisted",
        "unopened",
        patch((StorageNode, "_on_seal", _seal_unknown_volatile)),
        ("NoLostAck", "CommitDurability"),
        "breadth",
        200_000,
        breaks=("storage N2",),
    ),
    Mutant(
        "no-identity-check",
        "requests for another incarnation or epoch are served",
        "node-returns-wiped",
        patch((StorageNode, "_identity_refusal", _anybody)),
        ("NoLostAck", "TotalOrder", "ReadCommitted", "RoleError"),
        "breadth",
        80_000,
        breaks=("storage N1",),
    ),
    Mutant(
        "dropped-stream-made-again",
        "a dropped stream leaves no tombstone",
        "dropped-streams",
        patch((StorageNode, "_on_drop", _no_tombstone)),
        ("NoLostAck", "CommitDurability", "BoundaryWrittenOnce", "TotalOrder"),
        "breadth",
        1_500_000,
        breaks=("storage N3",),
    ),
    Mutant(
        "unsynced-acknowledged",
        "a frame is acknowledged before it is on disk",
        "power-cut",
        patch((StorageNode, "_store", _answers_first)),
        ("TotalOrder", "NoLostAck", "CommitDurability", "ReadCommitted", "Progress"),
        "swarm",
        200,
        breaks=("storage N2",),
    ),
    Mutant(
        "owner-start-reused",
        "a restarted sequencer takes itself for the one before",
        "sequencer-loss",
        patch((Sequencer, "__init__", _same_start)),
        "SingleOwner",
        "breadth",
        1_000,
        breaks=("sequencer Q1",),
    ),
    Mutant(
        "sequencer-known-by-node",
        "a sequencer is known by its disk and not by its process",
        "sequencer-loss",
        patch((Sequencer, "_refusal", _by_name)),
        "SingleOwner",
        "breadth",
        1_000,
        breaks=("sequencer Q1",),
    ),
    Mutant(
        "batch-across-stripe-unit",
        "a grant may cross a stripe unit",
        "striping-readers",
        patch((sequencing, "unit_start", _anywhere)),
        ("TotalOrder", "ReadCommitted"),
        "breadth",
        30_000,
        breaks=("sequencer Q3",),
    ),
    Mutant(
        "two-boundaries",
        "the metadata takes every swap: two takers write two boundaries",
        "two-takeovers",
        patch((MetadataRegister, "_on_swap", _last_swap_wins)),
        ("BoundaryWrittenOnce", "SingleOwner"),
        "breadth",
        20_000,
        breaks=("register M1",),
    ),
    Mutant(
        "metadata-commit-lost",
        "a metadata commit that was answered is lost in a crash",
        "metadata-restart",
        patch((MetadataRegister, "_on_swap", _swap_not_persisted)),
        ("BoundaryWrittenOnce", "SingleOwner", "NoLostAck"),
        "breadth",
        10_000,
        breaks=("register M2",),
    ),
    Mutant(
        "finalize-sent-once",
        "Finalize is sent once and never again",
        "finalize",
        patch((Coordinator, "_begin", _finalizes_once)),
        "Progress",
        "breadth",
        5_000,
        breaks=("coordinator C2",),
    ),
    Mutant(
        "dead-member-kept",
        "a dead member of an ended, unrepaired segment is never removed",
        "dead-member",
        patch((coordinating, "next_duty", _never_removes)),
        "Progress",
        "breadth",
        5_000,
        breaks=("coordinator C2",),
    ),
    Mutant(
        "damage-ignored",
        "the coordinator does not ask again when a node has found damage",
        "scrub",
        patch((Coordinator, "_doubt", _never_doubts)),
        "Progress",
        "swarm",
        200,
        breaks=("coordinator C6",),
    ),
    Mutant(
        "drop-newer-than-view",
        "streams that the coordinator's view is too old to name are dropped",
        "leftovers",
        patch((coordinating, "left_streams", _left_by_name)),
        "BoundaryWrittenOnce",
        "breadth",
        200_000,
        breaks=("coordinator C3",),
    ),
    Mutant(
        "drop-what-is-named",
        "streams of older segments are dropped although the projection names them",
        "finalize",
        patch((coordinating, "left_streams", _left_by_epoch)),
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
            (coordinating, "next_duty", _closed_is_deleted),
            (coordinating, "left_streams", _left_when_closed),
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
        patch((StorageNode, "_on_seal", _lossy_votes)),
        ("NoLostAck", "TotalOrder"),
        "swarm",
        1_000,
        breaks=("streams S5",),
    ),
    Mutant(
        "seal-not-persisted",
        "a seal is answered and forgotten in a crash",
        "unopened",
        patch((StorageNode, "_on_seal", _seal_forgotten)),
        ("NoLostAck", "CommitDurability"),
        "breadth",
        30_000,
        breaks=("storage N2",),
    ),
    Mutant(
        "seal-answered-before-sync",
        "a seal is answered before it is on disk",
        "power-cut-after-seal",
        patch((StorageNode, "_on_seal", _seal_answers_first)),
        ("NoLostAck", "CommitDurability", "TotalOrder"),
        "breadth",
        100_000,
        breaks=("storage N2",),
    ),
    Mutant(
        "recovered-in-disk-order",
        "frames found at a restart are taken to be in order of position",
        "unopened",
        patch((Frames, "__init__", _unsorted)),
        ("NoLostAck",),
        "breadth",
        400_000,
        breaks=("streams S4",),
    ),
)
