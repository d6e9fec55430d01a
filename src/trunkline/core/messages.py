"""Everything that travels between processes, request beside answer.

An answer repeats what it answers (stream, position, writer and seq), so that a late or doubled answer can be told
from the awaited one by its content. Nobody sends a request for a segment that it has not read in an accepted
projection.
"""

from __future__ import annotations

import enum

from msgspec import Struct

from trunkline.core.effects import Message
from trunkline.core.entries import Frame
from trunkline.core.projection import Group, Member, Owner, Policy, Projection, Segment
from trunkline.core.space import Space as Space  # of a node, in the registry

# ---------------------------------------------------------------------------------------------- identity of a stream


class StreamTarget(Struct, frozen=True, array_like=True):
    """Which stream a request is for. A node compares every field for equality."""

    cluster: str
    log: str
    segment: int
    epoch: int  # the segment's epoch, never the projection's
    stream: str
    incarnation: int

    def brief(self) -> str:
        return f"{self.log}:{self.segment}@{self.epoch}/{self.stream}#{self.incarnation}"


class Descriptor(Struct, frozen=True, array_like=True):
    """What a node must know of a stream."""

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
    """The descriptor of a member's stream. Members are those that the segment has now; only their order is told."""
    group = next(group for group in segment.groups if member in group)
    target = target_of(projection, segment, member)
    return Descriptor(target, segment.base, segment.policy, segment.stripe_unit, group, segment.owner)


# --------------------------------------------------------------------------------------------------- storage requests


class Open(Message, frozen=True):
    descriptor: Descriptor


class Opened(Message, frozen=True):
    stream: str


class Write(Message, frozen=True):
    """Chain: store a frame at its position. ``repair`` writes pass a seal, but need a known end above the frame."""

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
    """Broadcast: store the next frame of the owner; ``lac`` is the last GLSN that the owner knows to be committed."""

    target: StreamTarget
    owner: Owner
    frame: Frame
    lac: int


class Release(Message, frozen=True):
    """Broadcast: tell the LAC of an idle owner."""

    target: StreamTarget
    owner: Owner
    lac: int


class Read(Message, frozen=True):
    """Frames from ``glsn`` on, in order and without a hole, at most ``limit`` of them."""

    target: StreamTarget
    glsn: int
    limit: int


class ReadFrames(Message, frozen=True):
    stream: str
    glsn: int
    frames: tuple[Frame, ...]


class Unwritten(Message, frozen=True):
    """Nothing readable at ``glsn``. ``written`` is the position after the highest one that the stream holds."""

    stream: str
    glsn: int
    written: int
    sealed: bool


class Subscribe(Message, frozen=True):
    """Like ``Read``, but answered only when there is something to say: frames, a seal, or an end."""

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
    """The stream takes no more writes. ``next``: chain, after the highest ever written; broadcast, the contiguous
    end.
    """

    stream: str
    next: int
    intact: bool
    uncertain: bool


class Finalize(Message, frozen=True):
    descriptor: Descriptor
    end: int
    nonce: int = 0  # repeated in the answer, for callers that need an answer to this very question


class Finalized(Message, frozen=True):
    """``intact``: the stream has not lost data, as far as it knows."""

    stream: str
    intact: bool = True
    nonce: int = 0


class Drop(Message, frozen=True):
    """Only for a stream id that has left the projection for ever."""

    target: StreamTarget


class Dropped(Message, frozen=True):
    stream: str


class Inventory(Message, frozen=True):
    """Which streams of this log do you keep?"""

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
    """Identities of all frames that share a position with ``[first, end)``."""

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
    glsn: int  # the position that was asked for (FindTail: its operation); 0 where a request has none
    reason: Reason
    point: int = 0


# ------------------------------------------------------------------------------------------------- sequencer requests


class Next(Message, frozen=True):
    """Ask for ``count`` positions for the append that the writer numbered ``seq``.

    ``beaten``: how many positions this append was given before that readers filled before its bytes had arrived.
    """

    log: str
    segment: Segment
    writer: str
    seq: int
    count: int
    expect: int | None = None
    beaten: int = 0


class Granted(Message, frozen=True):
    """``first`` … ``first + count - 1`` are the writer's. ``skipped`` … ``first - 1`` are nobody's and must be
    filled.
    """

    log: str
    segment: int
    writer: str
    seq: int
    first: int
    skipped: int


class Peek(Message, frozen=True):
    """Which position is handed out next? And how long may the one at ``glsn`` take?"""

    log: str
    segment: Segment
    glsn: int = 0


class Peeked(Message, frozen=True):
    """``next`` is handed out next. From the position that was asked about up to ``alike``, the appends were beaten as
    often as ``beaten`` says: whoever fills waits the longer.
    """

    log: str
    segment: int
    next: int
    alike: int
    beaten: int


class NotGranted(Message, frozen=True):
    """``next`` is the sequencer's next position where ``expect`` failed, otherwise 0."""

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
    CLIENT = (
        "client"  # no node: a process that writes a broadcast log. It is in the registry as long as its lease holds
    )


class NodeInfo(Struct, frozen=True, array_like=True):
    node: str
    incarnation: int
    start: int  # of the running process: unique to it, and larger than those of the node's processes before it
    state: NodeState = NodeState.RW
    live: bool = True
    address: str = ""  # host:port
    zone: str = ""  # nodes of one zone fail together; nothing said: a zone of its own
    damaged: int = 0  # how often this process found that it cannot read what it has stored
    space: Space = Space.ROOMY

    def brief(self) -> str:
        notes = [] if self.state is NodeState.RW else [self.state.value]
        notes += [] if self.live else ["lease lost"]
        notes += [f"damaged {self.damaged}"] if self.damaged else []
        notes += [self.space.name.lower()] if self.space else []
        return f"{self.node}#{self.incarnation}.{self.start}" + (f" ({', '.join(notes)})" if notes else "")


class Get(Message, frozen=True):
    log: str
    nonce: int = 0  # repeated in the answer, for callers that need an answer to this very question
    known: int = 0  # the epoch that the asker has, 0: none. That one need not be told again


class Got(Message, frozen=True):
    """The projection (None: no such log), unless it is the one that the asker has: then ``unchanged`` is its epoch."""

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
    """Another projection is there. It is not told: read it again, so that one way of learning is enough."""

    log: str
    expected: int


class Register(Message, frozen=True):
    """A node process says who it is. It renews its lease."""

    info: NodeInfo


class Registered(Message, frozen=True):
    node: str
    start: int


class LeaseExpired(Message, frozen=True):
    """From the register's host, whose clock keeps the leases."""

    node: str
    start: int
