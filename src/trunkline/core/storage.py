"""The storage node: stores log streams and serves them.

States of a stream
    (unknown) --Open--> open --Seal--> sealed --Finalize--> final        any --Drop--> (tombstone, for ever)
    Seal and Finalize create an unknown stream, and make it durable before they answer.

Rules
 N1  Identity first: cluster, incarnation, segment index, segment epoch and stream id must be equal; otherwise nothing
     changes.
 N2  Everything that is needed to repeat an answer after a crash is persisted before the answer.
 N3  A dropped stream id answers GONE and is never created again.
 N4  Reads of an open broadcast stream stop at the LAC.
 N5  Data that should be here and is unreadable is CORRUPT, never Unwritten.
 N6  Space is reserved for what keeps a log alive. A tight disk accepts no copies, a full one no entries either; an
     exhausted one stores nothing and creates no stream. Each is refused with NO_SPACE and changes nothing. Fills, and
     repairs of what should be here, use the reserve; seal, end, trim and drop of existing streams always work.
The order of the checks of a write: identity; policy and base; trimmed; identical -> Stored; overlap -> Written; lost
or sealed -> refused; no space -> refused; store.
"""

from __future__ import annotations

from msgspec import Struct

from trunkline.core.effects import Address, Announce, Effects, Message, Persist, Send
from trunkline.core.entries import Frame, FrameKind, junk
from trunkline.core.events import (
    FrameStored,
    StreamDamaged,
    StreamDropped,
    StreamFinalized,
    StreamRecovered,
    StreamSealed,
    StreamTrimmed,
)
from trunkline.core.messages import (
    Append,
    Descriptor,
    Digest,
    Digested,
    Drop,
    Dropped,
    Fetch,
    Fetched,
    FillRun,
    Finalize,
    Finalized,
    FindTail,
    Inventoried,
    Inventory,
    Open,
    Opened,
    Read,
    ReadFrames,
    Reason,
    Rejected,
    Release,
    RunFilled,
    Seal,
    Sealed,
    Space,
    Stored,
    StreamTarget,
    Subscribe,
    TailFound,
    Trim,
    TrimDone,
    Unwritten,
    Write,
    Written,
)
from trunkline.core.projection import Policy
from trunkline.core.streams import (
    FrameWritten,
    JunkWritten,
    Key,
    Stream,
    StreamDropping,
    StreamEnding,
    StreamImage,
    StreamLosing,
    StreamOpened,
    StreamSealing,
    StreamTrimming,
)


class NodeImage(Struct, frozen=True):
    """The streams of a node as recovered from its disk."""

    streams: tuple[StreamImage, ...] = ()
    tombstones: tuple[Key, ...] = ()


class SpaceChanged(Message, frozen=True):
    """From the host: how much space the disk has."""

    space: Space


class SubscriberGone(Message, frozen=True):
    """From the host: the connection to this process is closed, so no subscriber waits there."""

    process: str


class FramesDamaged(Message, frozen=True):
    """From the host: these stored frames of a stream are unreadable."""

    key: Key
    frames: tuple[Frame, ...]


class StorageNode:
    def __init__(self, cluster: str, node: str, incarnation: int, image: NodeImage) -> None:
        self.cluster = cluster
        self.node = node
        self.incarnation = incarnation
        self.streams = {stream.key: stream for stream in map(Stream, image.streams)}
        self.tombstones = set(image.tombstones)
        self.waiting: dict[Key, list[tuple[Address, Subscribe]]] = {}  # by stream, in order of arrival
        self.space = Space.ROOMY

    @property
    def phase(self) -> str:
        if not self.streams:
            return "empty"
        newest = list(self.streams.values())[-1]
        if newest.data_loss:
            return "lossy"
        if newest.end is not None:
            return "final"
        return "sealed" if newest.sealed else "open"

    def on_start(self) -> Effects:
        """Announce the recovered streams: a frame may have become durable just before a crash."""
        return [
            Announce(
                StreamRecovered(
                    self.node,
                    self.incarnation,
                    stream.descriptor.target.log,
                    stream.descriptor.target.segment,
                    stream.id,
                    stream.frames.all(),
                    stream.end,
                )
            )
            for stream in self.streams.values()
        ]

    def on_timer(self, key: str) -> Effects:
        raise AssertionError(f"a storage node sets no timer, but {key} fired")

    def on_choice(self, key: str, option: object) -> Effects:
        raise AssertionError(f"a storage node makes no choice, but {key} was chosen")

    def on_message(self, source: Address, message: Message) -> Effects:
        match message:  # the busiest first
            case Write() | Append() | Release() | Read() | Subscribe() | FindTail():
                return self._on_stream_request(source, message)
            case FillRun() | Trim() | Digest() | Fetch():
                return self._on_stream_request(source, message)
            case SpaceChanged(space):
                self.space = space
                return []
            case SubscriberGone(process):
                return self._on_subscriber_gone(process)
            case FramesDamaged(key, frames):
                return self._on_damaged(key, frames)
            case Open(descriptor):
                return self._on_open(source, descriptor)
            case Seal(descriptor):
                return self._on_seal(source, descriptor)
            case Finalize():
                return self._on_finalize(source, message)
            case Drop(target):
                return self._on_drop(source, target)
            case Inventory(log):
                kept = tuple(s.descriptor.target for s in self.streams.values() if s.descriptor.target.log == log)
                return [Send(source, Inventoried(log, kept))]
        raise AssertionError(f"a storage node does not accept {message}")

    # ------------------------------------------------------------------------------------------------ making streams

    def _on_open(self, source: Address, descriptor: Descriptor) -> Effects:
        refused = self._making_refusal(descriptor.target)
        if refused is not None:
            return [Send(source, refused)]
        _, effects = self._find_or_make(descriptor)
        return [*effects, Send(source, Opened(descriptor.target.stream))]

    def _making_refusal(self, target: StreamTarget) -> Rejected | None:
        """Why a stream cannot be found or created (N1, N3, N6)."""
        refused = self._identity_refusal(target, may_be_new=True)
        is_new = refused is None and (target.log, target.stream) not in self.streams
        if is_new and self.space is Space.EXHAUSTED:
            return Rejected(target.stream, 0, Reason.NO_SPACE)
        return refused

    def _find_or_make(self, descriptor: Descriptor) -> tuple[Stream, Effects]:
        target = descriptor.target
        stream = self.streams.get((target.log, target.stream))
        if stream is not None:
            return stream, []
        stream = Stream(StreamImage(descriptor))
        self.streams[stream.key] = stream
        return stream, [Persist(StreamOpened(descriptor))]

    def _on_seal(self, source: Address, descriptor: Descriptor) -> Effects:
        refused = self._making_refusal(descriptor.target)
        if refused is not None:
            return [Send(source, refused)]
        stream, effects = self._find_or_make(descriptor)
        answer = Sealed(stream.id, stream.seal_answer(), not stream.data_loss, stream.uncertain)
        if not stream.sealed:
            stream.sealed = True
            event = StreamSealed(self.node, descriptor.target.log, descriptor.target.segment, stream.id, answer.next)
            effects += [Persist(StreamSealing(stream.key)), Announce(event)]
        return [*effects, Send(source, answer), *self._wake(stream)]

    def _on_finalize(self, source: Address, message: Finalize) -> Effects:
        descriptor, end = message.descriptor, message.end
        refused = self._making_refusal(descriptor.target)
        if refused is not None:
            return [Send(source, refused)]
        stream, effects = self._find_or_make(descriptor)
        if stream.end not in (None, end):  # S2
            return [Send(source, stream.reject(0, Reason.MISMATCH, self.incarnation))]
        if stream.lacks_below(end) and not stream.data_loss:  # S6
            stream.data_loss = True
            effects.append(Persist(StreamLosing(stream.key)))
        if stream.end is None:
            stream.sealed, stream.end = True, end
            stream.frames.cut_from(end)
            event = StreamFinalized(self.node, descriptor.target.log, descriptor.target.segment, stream.id, end)
            effects += [Persist(StreamEnding(stream.key, end)), Announce(event)]
        answer = Finalized(stream.id, not stream.data_loss, message.nonce)
        return [*effects, Send(source, answer), *self._wake(stream)]

    def _on_drop(self, source: Address, target: StreamTarget) -> Effects:
        refused = self._identity_refusal(target, may_be_new=True)
        if refused is not None:
            again = refused.reason is Reason.GONE
            return [Send(source, Dropped(target.stream) if again else refused)]
        key = (target.log, target.stream)
        self.streams.pop(key, None)
        self.waiting.pop(key, None)  # subscribers read the projection again by themselves
        self.tombstones.add(key)
        event = StreamDropped(self.node, target.log, target.stream)
        return [Persist(StreamDropping(key)), Announce(event), Send(source, Dropped(target.stream))]

    def _on_damaged(self, key: Key, frames: tuple[Frame, ...]) -> Effects:
        """The stream becomes what a restart with the same damage would recover (S5)."""
        stream = self.streams.get(key)
        if stream is None:
            return []  # dropped in the meantime
        lost = tuple(frame for frame in frames if stream.frames.at(frame.first) == frame)
        if not lost:
            return []  # already known, or trimmed in the meantime
        for frame in lost:
            stream.frames.remove(frame)
        stream.data_loss = stream.sealed = True
        event = StreamDamaged(self.node, key[0], stream.descriptor.target.segment, stream.id, lost)
        return [Persist(StreamLosing(key, lost)), Announce(event), *self._wake(stream)]

    # ----------------------------------------------------------------------------------------- requests to a stream

    def _identity_refusal(self, target: StreamTarget, *, may_be_new: bool) -> Rejected | None:
        """Why the request is not for this node (N1, N3)."""
        if target.cluster != self.cluster or target.incarnation != self.incarnation:
            return Rejected(target.stream, 0, Reason.MISMATCH, self.incarnation)
        key = (target.log, target.stream)
        if key in self.tombstones:
            return Rejected(target.stream, 0, Reason.GONE)
        stream = self.streams.get(key)
        if stream is None:
            return None if may_be_new else Rejected(target.stream, 0, Reason.UNKNOWN)
        if stream.descriptor.target != target:
            return Rejected(target.stream, 0, Reason.MISMATCH, self.incarnation)
        return None

    def _on_stream_request(
        self,
        source: Address,
        message: Write | Append | Release | Read | Subscribe | FindTail | FillRun | Trim | Digest | Fetch,
    ) -> Effects:
        refused = self._identity_refusal(message.target, may_be_new=False)
        if refused is not None:
            return [Send(source, Rejected(refused.stream, _position(message), refused.reason, refused.point))]
        stream = self.streams[(message.target.log, message.target.stream)]
        match message:
            case Write():
                return self._on_write(source, stream, message)
            case Append():
                return self._on_append(source, stream, message)
            case FillRun():
                return self._on_fill_run(source, stream, message)
            case Release():
                return self._on_release(stream, message)
            case Read(_, glsn, limit):
                return [Send(source, self._read_answer(stream, glsn, limit))]
            case Subscribe(_, glsn, limit):
                return self._on_subscribe(source, stream, message)
            case FindTail(_, operation):
                return [Send(source, self._tail_answer(stream, operation))]
            case Trim(_, point):
                return self._on_trim(source, stream, point)
            case Digest() | Fetch():
                return [Send(source, self._digest_answer(stream, message))]

    def _on_write(self, source: Address, stream: Stream, message: Write) -> Effects:
        frame, descriptor = message.frame, stream.descriptor
        others = descriptor.policy is Policy.BROADCAST and not message.repair  # only the owner appends there
        if others or frame.first < descriptor.base:
            return [Send(source, stream.reject(frame.first, Reason.MISMATCH, self.incarnation))]
        if frame.first <= stream.trim:
            return [Send(source, stream.reject(frame.first, Reason.TRIMMED, stream.trim))]
        existing = stream.frames.overlapping(frame.first, frame.count)
        if existing is not None:  # S1
            same = existing == frame
            return [Send(source, Stored(stream.id, frame) if same else Written(stream.id, frame, existing))]
        reason = stream.write_refusal(frame, repair=message.repair)
        if reason is None and self.space >= _refused_from(stream, message):
            reason = Reason.NO_SPACE
        if reason is not None:
            return [Send(source, stream.reject(frame.first, reason))]
        return self._store(source, stream, frame)

    def _on_fill_run(self, source: Address, stream: Stream, message: FillRun) -> Effects:
        """Store JUNK at each free position up to the first entry, as single writes would."""
        first, end, descriptor = message.first, message.end, stream.descriptor
        if descriptor.policy is Policy.BROADCAST or first < descriptor.base:
            return [Send(source, stream.reject(first, Reason.MISMATCH, self.incarnation))]
        if first <= stream.trim:
            return [Send(source, stream.reject(first, Reason.TRIMMED, stream.trim))]
        reached, free = stream.free_runs(first, end)
        reason = stream.write_refusal(junk(free[-1][1] - 1), repair=message.repair) if free else None
        if reason is None and free and self.space is Space.EXHAUSTED:  # N6
            reason = Reason.NO_SPACE
        if reason is not None:
            return [Send(source, stream.reject(first, reason))]
        effects: Effects = []
        for run in free:
            effects += self._store_junk(stream, *run)
        return [*effects, Send(source, RunFilled(stream.id, first, end, reached)), *self._wake(stream)]

    def _store_junk(self, stream: Stream, first: int, end: int) -> Effects:
        frames = [junk(glsn) for glsn in range(first, end)]
        for frame in frames:
            stream.frames.add(frame)
        me, target = (self.node, self.incarnation), stream.descriptor.target
        stored = [Announce(FrameStored(*me, target.log, target.segment, stream.id, frame)) for frame in frames]
        return [Persist(JunkWritten(stream.key, first, end)), *stored]

    def _on_append(self, source: Address, stream: Stream, message: Append) -> Effects:
        frame, owner = message.frame, stream.descriptor.owner
        if stream.descriptor.policy is not Policy.BROADCAST:
            return [Send(source, stream.reject(frame.first, Reason.MISMATCH, self.incarnation))]
        if message.owner != owner:
            return [Send(source, stream.reject(frame.first, Reason.NOT_OWNER))]
        stream.lac = max(stream.lac, message.lac)
        if stream.frames.at(frame.first) == frame or frame.next <= stream.trim + 1:
            return [Send(source, Stored(stream.id, frame)), *self._wake(stream)]
        reason = stream.write_refusal(frame, repair=False)
        if reason is None and stream.contiguous_end() != frame.first:
            reason = Reason.GAP
        if reason is None and self.space >= Space.FULL:
            reason = Reason.NO_SPACE
        if reason is not None:
            refusal = stream.reject(frame.first, reason, stream.contiguous_end())
            return [Send(source, refusal), *self._wake(stream)]
        return self._store(source, stream, frame)

    def _store(self, source: Address, stream: Stream, frame: Frame) -> Effects:
        stream.frames.add(frame)
        target = stream.descriptor.target
        event = FrameStored(self.node, self.incarnation, target.log, target.segment, stream.id, frame)
        effects: Effects = [Persist(FrameWritten(stream.key, frame)), Announce(event)]
        return [*effects, Send(source, Stored(stream.id, frame)), *self._wake(stream)]

    def _on_release(self, stream: Stream, message: Release) -> Effects:
        if message.owner == stream.descriptor.owner:
            stream.lac = max(stream.lac, message.lac)
        return self._wake(stream)

    def _on_trim(self, source: Address, stream: Stream, point: int) -> Effects:
        if point <= stream.trim:
            return [Send(source, TrimDone(stream.id, stream.trim))]
        stream.trim = point
        stream.frames.drop_through(point)
        target = stream.descriptor.target
        event = StreamTrimmed(self.node, target.log, target.segment, stream.id, point)
        return [Persist(StreamTrimming(stream.key, point)), Announce(event), Send(source, TrimDone(stream.id, point))]

    # ------------------------------------------------------------------------------------------------------- reading

    def _read_answer(self, stream: Stream, glsn: int, limit: int) -> ReadFrames | Unwritten | Rejected:
        if glsn <= stream.trim:
            return stream.reject(glsn, Reason.TRIMMED, stream.trim)
        frames = stream.readable_from(glsn, limit)
        if frames:
            return ReadFrames(stream.id, glsn, frames)
        if stream.data_loss:
            return stream.reject(glsn, Reason.CORRUPT)  # N5
        return Unwritten(stream.id, glsn, stream.seal_answer(), stream.sealed)

    def _tail_answer(self, stream: Stream, operation: int) -> TailFound | Rejected:
        if stream.data_loss or stream.uncertain:  # S5, S6: it may have had more
            return stream.reject(operation, Reason.CORRUPT)
        return TailFound(stream.id, operation, stream.seal_answer(), stream.lac)

    def _on_subscribe(self, source: Address, stream: Stream, message: Subscribe) -> Effects:
        answer = self._read_answer(stream, message.glsn, message.limit)
        released_later = stream.descriptor.policy is Policy.BROADCAST
        if isinstance(answer, Unwritten) and not answer.sealed and (released_later or answer.written <= message.glsn):
            waiting = self.waiting.setdefault(stream.key, [])
            if (source, message) not in waiting:
                waiting.append((source, message))
            return []
        return [Send(source, answer)]

    def _on_subscriber_gone(self, process: str) -> Effects:
        for key, waiting in list(self.waiting.items()):
            staying = [entry for entry in waiting if entry[0].process != process]
            if staying:
                self.waiting[key] = staying
            else:
                del self.waiting[key]
        return []

    def _wake(self, stream: Stream) -> Effects:
        """Answer the subscribers that waited for this change."""
        if not self.waiting or (waiting := self.waiting.pop(stream.key, None)) is None:
            return []
        return [effect for source, message in waiting for effect in self._on_subscribe(source, stream, message)]

    def _digest_answer(self, stream: Stream, message: Digest | Fetch) -> Digested | Fetched | Rejected:
        if stream.data_loss:
            return stream.reject(message.first, Reason.CORRUPT)
        frames = stream.frames.between(message.first, message.end)
        answer = Fetched if isinstance(message, Fetch) else Digested
        return answer(stream.id, message.first, message.end, frames)


def _refused_from(stream: Stream, message: Write) -> Space:
    """The level from which on a write is refused (N6)."""
    if message.repair:
        return Space.TIGHT if stream.is_copy else Space.EXHAUSTED
    return Space.FULL if message.frame.kind is FrameKind.DATA else Space.EXHAUSTED


def _position(message: Message) -> int:
    match message:
        case Write(_, frame, _):
            return frame.first
        case Append(_, _, frame, _):
            return frame.first
        case Read(_, glsn, _) | Subscribe(_, glsn, _):
            return glsn
        case FillRun(_, first, _, _) | Digest(_, first, _) | Fetch(_, first, _):
            return first
        case FindTail(_, operation):
            return operation
    return 0
