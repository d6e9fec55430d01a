"""One log stream: the share of one group of one segment on one node, and what of it is durable.

Rules
 S1  A position holds one value for ever. An identical frame is ``Stored`` again, any other overlap is ``Written``.
 S2  ``sealed`` and ``end`` are final; ``end`` is set once and implies sealed.
 S3  A repair write passes the seal only below a known ``end``.
 S4  The answer to Seal covers every write ever acknowledged, trimmed ones included.
 S5  A stream that lost acknowledged data is never an authority: it is sealed, not intact, and answers ``CORRUPT`` for
     what it lacks.
 S6  A stream that may have lost data (``uncertain``) seals itself: nothing may be written where something may have
     been. Broadcast: an end above what it has proves the loss. A chain may have several groups, each with its share
     below the end: there a survivor has answered a seal, which covers what it has (V4), and an end proves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from trunkline.core.effects import Record
from trunkline.core.entries import Frame, FrameKind, Frames
from trunkline.core.messages import Descriptor, Reason, Rejected
from trunkline.core.projection import Policy

Key = tuple[str, str]  # log, stream id


class StreamImage(Struct, frozen=True):
    """A stream as recovered from disk."""

    descriptor: Descriptor
    frames: Sequence[Frame] = ()  # see ``Frames``: a tuple is copied, a sorted mutable sequence is used in place
    sealed: bool = False
    end: int | None = None
    trim: int = 0
    data_loss: bool = False
    uncertain: bool = False


class StreamOpened(Record, frozen=True):
    descriptor: Descriptor


class FrameWritten(Record, frozen=True):
    key: Key
    frame: Frame


class JunkWritten(Record, frozen=True):
    """JUNK at each position of ``[first, end)``, written together."""

    key: Key
    first: int
    end: int


class StreamSealing(Record, frozen=True):
    key: Key


class StreamEnding(Record, frozen=True):
    key: Key
    end: int


class StreamTrimming(Record, frozen=True):
    key: Key
    point: int


class StreamLosing(Record, frozen=True):
    """The stream has lost acknowledged data: these frames, if known."""

    key: Key
    frames: tuple[Frame, ...] = ()


class StreamDropping(Record, frozen=True):
    """The stream is dropped; its id stays as a tombstone."""

    key: Key


class Stream:
    def __init__(self, image: StreamImage) -> None:
        self.descriptor = image.descriptor
        self.frames = Frames(image.frames)
        self.sealed = image.sealed or image.data_loss or image.uncertain  # S5, S6
        self.end = image.end
        self.trim = image.trim
        self.data_loss = image.data_loss
        self.uncertain = image.uncertain
        self.lac = 0

    @property
    def id(self) -> str:
        return self.descriptor.target.stream

    @property
    def key(self) -> Key:
        return (self.descriptor.target.log, self.id)

    @property
    def is_copy(self) -> bool:
        """Whether it belongs to a joiner: all writes to it are copies."""
        return any(member.joining for member in self.descriptor.members if member.stream == self.id)

    def seal_answer(self) -> int:
        """The first position that was certainly never written here (S4)."""
        base = self.descriptor.base
        if self.descriptor.policy is Policy.BROADCAST:
            return self.contiguous_end()
        return max(self.frames.highest() + 1, self.trim + 1, base)

    def contiguous_end(self) -> int:
        return self.frames.contiguous_end(max(self.descriptor.base, self.trim + 1))

    def lacks_below(self, end: int) -> bool:
        """Whether an end proves that an uncertain stream has lost data (S6)."""
        broadcast = self.descriptor.policy is Policy.BROADCAST
        return self.uncertain and broadcast and self.seal_answer() < end

    def write_refusal(self, frame: Frame, *, repair: bool) -> Reason | None:
        """Why a frame that overlaps no other cannot be stored now."""
        if self.data_loss:
            return Reason.CORRUPT
        if not self.sealed:
            return None
        if not repair:
            return Reason.SEALED
        if self.end is None:
            return Reason.END_UNKNOWN  # S3
        return Reason.SEALED if frame.next > self.end else None

    def free_runs(self, first: int, end: int) -> tuple[int, list[tuple[int, int]]]:
        """The first entry in ``[first, end)`` (or ``end``), and the free runs before it."""
        reached, free = first, []
        for frame in self.frames.between(first, end):
            if frame.first > reached:
                free.append((reached, frame.first))
            if frame.kind is not FrameKind.JUNK:
                return max(first, frame.first), free
            reached = frame.next
        return end, [*free, (reached, end)] if reached < end else free

    def readable_end(self) -> int | None:
        """Reads stop before this position: the end or, for an open broadcast stream, what the owner has released."""
        if self.end is not None:
            return self.end
        return self.lac + 1 if self.descriptor.policy is Policy.BROADCAST else None

    def readable_from(self, glsn: int, limit: int) -> tuple[Frame, ...]:
        bound = self.readable_end()
        run = self.frames.run_from(glsn, limit)
        return run if bound is None else tuple(frame for frame in run if frame.next <= bound)

    def reject(self, glsn: int, reason: Reason, point: int = 0) -> Rejected:
        return Rejected(self.id, glsn, reason, point)
