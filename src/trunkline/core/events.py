"""What roles tell monitors, and how operations end.

The first part is announced; monitors in searches and over recorded traces see the same events. The second part is told
by the host about its clients and processes. The third part are results: each says whether the thing happened, did not
happen, or may have.
"""

from __future__ import annotations

from collections.abc import Sequence

from trunkline.core.effects import Event, Message
from trunkline.core.entries import Frame
from trunkline.core.messages import Reason
from trunkline.core.projection import Owner, Projection


class Projected(Event, frozen=True):
    """The metadata accepted this projection (told again when its process starts)."""

    projection: Projection


class FrameStored(Event, frozen=True):
    """A node holds the frame durably."""

    node: str
    incarnation: int
    log: str
    segment: int
    stream: str
    frame: Frame


class StreamRecovered(Event, frozen=True):
    """A node that starts holds these frames durably, and knows this end."""

    node: str
    incarnation: int
    log: str
    segment: int
    stream: str
    frames: Sequence[Frame]  # perhaps the role's own: read it at once, keep it never
    end: int | None


class StreamDamaged(Event, frozen=True):
    """A running node found that it cannot read these frames of a stream any more."""

    node: str
    log: str
    segment: int
    stream: str
    frames: tuple[Frame, ...]


class StreamSealed(Event, frozen=True):
    node: str
    log: str
    segment: int
    stream: str
    next: int


class StreamFinalized(Event, frozen=True):
    node: str
    log: str
    segment: int
    stream: str
    end: int


class StreamTrimmed(Event, frozen=True):
    """Everything up to ``point`` has been deleted."""

    node: str
    log: str
    segment: int
    stream: str
    point: int


class StreamDropped(Event, frozen=True):
    node: str
    log: str
    stream: str


class PositionsGranted(Event, frozen=True):
    log: str
    segment: int
    owner: Owner
    first: int
    count: int


class Committed(Event, frozen=True):
    """The appender knows that every member has the frame."""

    log: str
    segment: int
    owner: Owner | None  # broadcast only
    frame: Frame


class EntriesRead(Event, frozen=True):
    """A reader returned this frame to its caller, from ``position`` on."""

    log: str
    position: int
    frame: Frame


class PositionsSkipped(Event, frozen=True):
    """A reader passed ``[first, end)``: trimmed away, or declared lost."""

    log: str
    first: int
    end: int
    why: Reason  # TRIMMED or LOST


class HoleFilled(Event, frozen=True):
    log: str
    segment: int
    frame: Frame


class ValueCarried(Event, frozen=True):
    """A value that only some members had is now on all of them."""

    log: str
    segment: int
    frame: Frame


class NoRedundancy(Event, frozen=True):
    """The new segment has fewer replicas than the log asks for."""

    log: str
    segment: int
    replicas: int
    wanted: int


class ReopenRequested(Event, frozen=True):
    """An operator asked for a read-only log to be opened again."""

    log: str


class ReconfigurationBlocked(Event, frozen=True):
    """No intact member of a group can be reached: ending the segment would risk committed entries."""

    log: str
    segment: int


class LogBlocked(Event, frozen=True):
    """The coordinator must end the open segment and cannot: the log waits for one of its nodes."""

    log: str
    segment: int


class LogUnblocked(Event, frozen=True):
    log: str


class DutiesOver(Event, frozen=True):
    """The log was deleted, and no node that may come back holds a stream of it."""

    log: str


class MemberRebuilt(Event, frozen=True):
    log: str
    segment: int
    stream: str


class MemberRemoved(Event, frozen=True):
    log: str
    segment: int
    stream: str


class NodeGivenUp(Event, frozen=True):
    """A node has been away for so long that its repaired segments are copied elsewhere."""

    log: str
    node: str


class LeaseLost(Event, frozen=True):
    node: str


class FollowedSegment(Event, frozen=True):
    """A reader went from one segment to a later one, and goes on at ``position``."""

    log: str
    segment: int
    position: int


# --------------------------------------------------------------------------------------------------- told by the host


class Invoked(Event, frozen=True):
    """An operation of a client began."""

    operation: int
    request: Message


class Completed(Event, frozen=True):
    """An operation of a client ended (from the role's ``Complete``)."""

    operation: int
    result: Event


class ProcessEnded(Event, frozen=True):
    """The process crashed, or its disk was wiped (told by the checker; nobody records its own end)."""

    kind: str


# ------------------------------------------------------------------------------------------------------------ results


class Appended(Event, frozen=True):
    """Committed; its first entry is at ``glsn``."""

    glsn: int


class AppendRefused(Event, frozen=True):
    """Not committed, now or ever."""

    why: str
    cause: Reason = Reason.OTHER
    next: int = 0  # CONDITION: the position that it would have got; 0: not known
    owner: str = ""  # OWNED


class OutcomeUnknown(Event, frozen=True):
    """It may have been committed: the position has been trimmed away or declared lost."""

    glsn: int


class Created(Event, frozen=True):
    epoch: int


class CreateRefused(Event, frozen=True):
    why: str


class RequestRefused(Event, frozen=True):
    """Nothing was changed."""

    why: str
    cause: Reason = Reason.OTHER


class SubscriptionEnded(Event, frozen=True):
    next: int


class TailIs(Event, frozen=True):
    glsn: int


class PeekIs(Event, frozen=True):
    """The next position that would be handed out."""

    glsn: int


class Deleted(Event, frozen=True):
    epoch: int


class Trimmed(Event, frozen=True):
    point: int


class SegmentEnded(Event, frozen=True):
    segment: int
    end: int
