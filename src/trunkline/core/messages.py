"""Messages between processes, each request next to its answer.

An answer repeats what it answers (stream, position, writer and seq), so a late or duplicated answer differs from the
awaited one by its content. A process sends requests for a segment only after it has read it in an accepted projection.
"""

from __future__ import annotations

import enum

from msgspec import Struct

from trunkline.core.effects import Message
from trunkline.core.entries import Frame
from trunkline.core.projection import Group, Member, Owner, Policy, Projection, Segment
from trunkline.core.space import Space as Space

# ---------------------------------------------------------------------------------------------- identity of a stream


class StreamTarget(Struct, frozen=True, array_like=True):
    """The stream that a request is for. A node compares every field."""

    cluster: str
    log: str
    segment: int
    epoch: int  # of the segment, never of the projection
    stream: str
    incarnation: int

    def brief(self) -> str:
        return f"{self.log}:{self.segment}@{self.epoch}/{self.stream}#{self.incarnation}"


class Descriptor(Struct, frozen=True, array_like=True):
    """What a node must know about a stream."""

    target: StreamTarget
    base: int
    policy: Policy
    stripe_unit: int
    members: Group
    owner: Owner

    def brief(self) -> str:
        members = " ".join(member.brief() for member in self.members)
        return f"{self.target.brief()} from {self.base} {self.policy.value} {members} by {self.owner.brief()}"


def target_of(projection: Projection, segment: Segment, member: Member) -> StreamTarget:
    return StreamTarget(
        projection.cluster, projection.log, segment.index, segment.epoch, member.stream, member.incarnation
    )


def descriptor_of(projection: Projection, segment: Segment, member: Member) -> Descriptor:
    """The descriptor of the stream of a member, with the present members of its group."""
    group = next(group for group in segment.groups if member in group)
    target = target_of(projection, segment, member)
    return Descriptor(target, segment.base, segment.policy, segment.stripe_unit, group, segment.owner)


# --------------------------------------------------------------------------------------------------- storage requests


class Open(Message, frozen=True):
    descriptor: Descriptor


class Opened(Message, frozen=True):
    stream: str


class Write(Message, frozen=True):
    """Chain: store a frame at its position. A ``repair`` write passes a seal, but only below a known end."""

    target: StreamTarget
    frame: Frame
    repair: bool = False


class Stored(Message, frozen=True):
    stream: str
    frame: Frame


class FillRun(Message, frozen=True):
    """Chain: store JUNK at every free position of ``[first, end)``, up to the first that holds an entry."""

    target: StreamTarget
    first: int
    end: int
    repair: bool = False


class RunFilled(Message, frozen=True):
    """JUNK holds every position of ``[first, reached)``; the next one holds an entry, unless it is ``end``."""

    stream: str
    first: int
    end: int
    reached: int


class Written(Message, frozen=True):
    """The position holds another frame; nothing was stored."""

    stream: str
    offered: Frame
    existing: Frame


class Append(Message, frozen=True):
    """Broadcast: store the next frame of the owner. ``lac``: the last add confirmed, the highest committed GLSN."""

    target: StreamTarget
    owner: Owner
    frame: Frame
    lac: int


class Release(Message, frozen=True):
    """Broadcast: the LAC of an idle owner."""

    target: StreamTarget
    owner: Owner
    lac: int


class Read(Message, frozen=True):
    """Up to ``limit`` frames from ``glsn``, in order and without a hole."""

    target: StreamTarget
    glsn: int
    limit: int


class ReadFrames(Message, frozen=True):
    stream: str
    glsn: int
    frames: tuple[Frame, ...]


class Unwritten(Message, frozen=True):
    """Nothing readable at ``glsn``. ``written``: the position after the highest one in the stream."""

    stream: str
    glsn: int
    written: int
    sealed: bool


class Subscribe(Message, frozen=True):
    """Like ``Read``, but answered only when there are frames, a seal or an end."""

    target: StreamTarget
    glsn: int
    limit: int


class FindTail(Message, frozen=True):
    target: StreamTarget
    operation: int


class TailFound(Message, frozen=True):
    """``written``: after the highest position (broadcast: the contiguous end). ``lac``: broadcast only."""

    stream: str
    operation: int
    written: int
    lac: int


class Seal(Message, frozen=True):
    descriptor: Descriptor


class Sealed(Message, frozen=True):
    """The stream accepts no more writes. ``next``: chain, after the highest position ever written; broadcast, the
    contiguous end.
    """

    stream: str
    next: int
    intact: bool
    uncertain: bool


class Finalize(Message, frozen=True):
    descriptor: Descriptor
    end: int
    nonce: int = 0  # repeated in the answer


class Finalized(Message, frozen=True):
    """``intact``: the stream knows of no lost data."""

    stream: str
    intact: bool = True
    nonce: int = 0


class Drop(Message, frozen=True):
    """Only for a stream id that has left the projection; it never returns."""

    target: StreamTarget


class Dropped(Message, frozen=True):
    stream: str


class Inventory(Message, frozen=True):
    """List the streams of this log on the node."""

    log: str


class Inventoried(Message, frozen=True):
    log: str
    streams: tuple[StreamTarget, ...]


class Trim(Message, frozen=True):
    target: StreamTarget
    point: int


class TrimDone(Message, frozen=True):
    stream: str
    point: int


class Digest(Message, frozen=True):
    """The identities of all frames that overlap ``[first, end)``."""

    target: StreamTarget
    first: int
    end: int


class Digested(Message, frozen=True):
    stream: str
    first: int
    end: int
    frames: tuple[Frame, ...]


class Fetch(Message, frozen=True):
    """Frames with their bytes, for a joining member. A stream that lost data refuses."""

    target: StreamTarget
    first: int
    end: int


class Fetched(Message, frozen=True):
    stream: str
    first: int
    end: int
    frames: tuple[Frame, ...]


class Reason(enum.Enum):
    """Why a request or an operation was refused, for programs. A text beside it is for people, and may change."""

    # of a node or a sequencer
    UNKNOWN = "unknown stream"
    GONE = "dropped stream"
    MISMATCH = "another identity"
    CORRUPT = "corrupt"
    NOT_OWNER = "not the owner"
    GAP = "not contiguous"
    END_UNKNOWN = "end unknown"
    SILENT = "no answer"
    STALE = "another value further down"

    # of both
    SEALED = "sealed"
    TRIMMED = "trimmed"
    NO_SPACE = "no space"
    TOO_LARGE = "larger than a stripe unit"

    # of an operation
    NO_SUCH_LOG = "no such log"  # or it was deleted
    OWNED = "owned"  # by another writer
    CONDITION = "condition"  # a conditional append did not get its position
    LOST = "lost"  # an operator declared the positions lost
    OTHER = "other"

    @classmethod
    def _missing_(cls, value: object) -> Reason | None:
        return cls.TOO_LARGE if value == "too large" else None  # as older recordings have it


class Rejected(Message, frozen=True):
    """The request changed nothing. ``point``: trim point (TRIMMED), expected position (GAP), incarnation (MISMATCH)."""

    stream: str
    glsn: int  # the requested position (FindTail: its operation); 0 if the request has none
    reason: Reason
    point: int = 0


# ------------------------------------------------------------------------------------------------- sequencer requests


class Next(Message, frozen=True):
    """Request ``count`` positions for append ``seq`` of the writer.

    ``beaten``: how many earlier positions of this append were filled by readers before its bytes arrived.
    """

    log: str
    segment: Segment
    writer: str
    seq: int
    count: int
    expect: int | None = None
    beaten: int = 0


class Granted(Message, frozen=True):
    """``first`` … ``first + count - 1`` belong to the writer. It must fill ``skipped`` … ``first - 1``, which stay
    unused.
    """

    log: str
    segment: int
    writer: str
    seq: int
    first: int
    skipped: int


class Peek(Message, frozen=True):
    """Ask for the next position, and how patient a reader should be at ``glsn``."""

    log: str
    segment: Segment
    glsn: int = 0


class Peeked(Message, frozen=True):
    """``next``: the next position to be granted. The appends from the requested position up to ``alike`` were beaten
    ``beaten`` times: a reader waits longer before it fills them.
    """

    log: str
    segment: int
    next: int
    alike: int
    beaten: int


class NotGranted(Message, frozen=True):
    """``next``: the next position of the sequencer if ``expect`` failed, otherwise 0."""

    log: str
    segment: int
    writer: str
    seq: int
    reason: Reason
    next: int = 0


# -------------------------------------------------------------------------------------------------- metadata requests


class NodeState(enum.Enum):
    RW = "rw"
    DRAINING = "draining"
    GONE = "gone"
    CLIENT = "client"  # not a node: the writer of a broadcast log, registered while its lease holds


class NodeInfo(Struct, frozen=True, array_like=True):
    node: str
    incarnation: int
    start: int  # of the running process: unique, and larger than that of any earlier process of the node
    state: NodeState = NodeState.RW
    live: bool = True
    address: str = ""  # host:port
    zone: str = ""  # nodes of one zone fail together; empty: a zone of its own
    damaged: int = 0  # how often this process found stored data unreadable
    space: Space = Space.ROOMY

    def brief(self) -> str:
        notes = [] if self.state is NodeState.RW else [self.state.value]
        notes += [] if self.live else ["lease lost"]
        notes += [f"damaged {self.damaged}"] if self.damaged else []
        notes += [self.space.name.lower()] if self.space else []
        return f"{self.node}#{self.incarnation}.{self.start}" + (f" ({', '.join(notes)})" if notes else "")


class Get(Message, frozen=True):
    log: str
    nonce: int = 0  # repeated in the answer
    known: int = 0  # the epoch that the sender has, 0: none. The answer omits a projection of this epoch


class Got(Message, frozen=True):
    """The projection (None: no such log). ``unchanged``: the epoch, if the sender has that projection already."""

    log: str
    nonce: int
    projection: Projection | None
    nodes: tuple[NodeInfo, ...]
    unchanged: int = 0


class Swap(Message, frozen=True):
    """Store a projection if the log's epoch is still ``expected`` (0: the log does not exist)."""

    log: str
    expected: int
    projection: Projection


class Swapped(Message, frozen=True):
    log: str
    epoch: int


class SwapLost(Message, frozen=True):
    """The epoch is another one. Read the projection again: there is one way to learn it."""

    log: str
    expected: int


class Register(Message, frozen=True):
    """A process registers, or renews its lease."""

    info: NodeInfo


class Registered(Message, frozen=True):
    node: str
    start: int


class LeaseExpired(Message, frozen=True):
    """From the host of the register, whose clock keeps the leases."""

    node: str
    start: int
