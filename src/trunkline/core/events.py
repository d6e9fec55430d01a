"""Events for monitors, and the results of operations.

Roles announce the first part; monitors see the same events in searches and in recordings. The host reports the second
part about its clients and processes. The third part are results: each says whether the thing happened, did not happen,
or may have.
"""

from __future__ import annotations

from collections.abc import Sequence

from trunkline.core.effects import Event, Message
from trunkline.core.entries import Frame
from trunkline.core.messages import Reason
from trunkline.core.projection import Owner, Projection


class Projected(Event, frozen=True):
    """The metadata store accepted this projection (repeated when its process starts)."""

    projection: Projection


class FrameStored(Event, frozen=True):
    """A node stored the frame durably."""

    node: str
    incarnation: int
    log: str
    segment: int
    stream: str
    frame: Frame


class StreamRecovered(Event, frozen=True):
    """A node started with these durable frames and this end."""

    node: str
    incarnation: int
    log: str
    segment: int
    stream: str
    frames: Sequence[Frame]  # perhaps the container of the role: read it at once, do not keep it
    end: int | None


class StreamDamaged(Event, frozen=True):
    """A running node can no longer read these frames of a stream."""

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
    """Everything up to ``point`` was deleted."""

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
    """Every member has the frame, and the appender knows it."""

    log: str
    segment: int
    owner: Owner | None  # broadcast only
    frame: Frame


class EntriesRead(Event, frozen=True):
    """A reader returned this frame to its caller, starting at ``position``."""

    log: str
    position: int
    frame: Frame


class PositionsSkipped(Event, frozen=True):
    """A reader skipped ``[first, end)``: trimmed, or declared lost."""

    log: str
    first: int
    end: int
    why: Reason  # TRIMMED or LOST


class HoleFilled(Event, frozen=True):
    log: str
    segment: int
    frame: Frame


class ValueCarried(Event, frozen=True):
    """A value that only some members had is on all of them now."""

    log: str
    segment: int
    frame: Frame


class NoRedundancy(Event, frozen=True):
    """The new segment has fewer replicas than the settings of the log require."""

    log: str
    segment: int
    replicas: int
    wanted: int


class ReopenRequested(Event, frozen=True):
    """An operator reopens a read-only log."""

    log: str


class ReconfigurationBlocked(Event, frozen=True):
    """No intact member of a group is reachable: ending the segment would risk committed entries."""

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
    """A node was absent for so long that its repaired segments are copied elsewhere."""

    log: str
    node: str


class LeaseLost(Event, frozen=True):
    node: str


class FollowedSegment(Event, frozen=True):
    """A reader moved on to a later segment, at ``position``."""

    log: str
    segment: int
    position: int


# --------------------------------------------------------------------------------------------------- of the host


class Invoked(Event, frozen=True):
    """An operation of a client began."""

    operation: int
    request: Message


class Completed(Event, frozen=True):
    """An operation of a client ended (from the role's ``Complete``)."""

    operation: int
    result: Event


class ProcessEnded(Event, frozen=True):
    """The process crashed, or its disk was wiped (reported by the checker: a process does not record its own end)."""

    kind: str


# ------------------------------------------------------------------------------------------------------------ results


class Appended(Event, frozen=True):
    """Committed; its first entry is at ``glsn``."""

    glsn: int


class AppendRefused(Event, frozen=True):
    """Not committed, now or ever."""

    why: str
    cause: Reason = Reason.OTHER
    next: int = 0  # CONDITION: the position that it would have received; 0: unknown
    owner: str = ""  # OWNED


class OutcomeUnknown(Event, frozen=True):
    """It may have been committed: the position was trimmed or declared lost."""

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
    """The next position that the sequencer would grant."""

    glsn: int


class Deleted(Event, frozen=True):
    epoch: int


class Trimmed(Event, frozen=True):
    point: int


class SegmentEnded(Event, frozen=True):
    segment: int
    end: int
