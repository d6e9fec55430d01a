"""What processes report about themselves: the status of a cluster, of a node, and the events of a coordinator.

All of it travels as JSON under these names. A peer may be older or newer: unknown fields are ignored, a missing field
has a default, and a field that may get more values (a state, a policy) is a string.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from trunkline.core.messages import NodeInfo
from trunkline.core.projection import Projection, Segment

Count = Annotated[int, Meta(ge=0, le=2**53)]  # a node may report anything
Level = Literal["good", "info", "warn", "bad"]


class MemberStatus(Struct, frozen=True):
    """One replica of a segment. ``joining``: it is still being copied, and does not count."""

    node: str = ""
    stream: str = ""
    joining: bool = False


class SegmentStatus(Struct, frozen=True):
    index: int = 0
    epoch: int = 0
    base: int = 0
    end: int | None = None  # None: it is open
    repaired: bool = False
    owner: str = ""
    groups: tuple[tuple[MemberStatus, ...], ...] = ()  # each from head to tail

    def copies(self) -> int:
        """Complete replicas of the group that has the fewest."""
        return min((sum(not member.joining for member in group) for group in self.groups), default=0)


class LogStatus(Struct, frozen=True):
    """``segments``: the last ones and those with missing copies; unset where a cluster has too many logs to list them.
    ``problems_total`` counts the segments with missing copies.
    """

    name: str = ""
    policy: str = ""
    replicas: int = 1
    min_replicas: int = 1
    epoch: int = 0
    trim: int = 0
    deleted: bool = False
    gaps: tuple[tuple[int, int], ...] = ()  # positions that were declared lost: [first, end)
    segments: tuple[SegmentStatus, ...] | UnsetType = UNSET
    segments_total: int = 0
    problems_total: int = 0
    blocked: bool = False
    duty: str = ""  # what the coordinator does for it now
    refused: str = ""  # why its last change could not be stored

    def listed(self) -> tuple[SegmentStatus, ...]:
        return () if self.segments is UNSET else self.segments


class RegisteredNode(Struct, frozen=True):
    """A node as the registry knows it. ``streams_named``: how many streams the logs have on it."""

    name: str = ""
    address: str = ""
    zone: str = ""
    state: str = "rw"  # rw, draining, gone
    live: bool = False
    incarnation: int = 0
    start: int = 0
    damaged: int = 0
    streams_named: int = 0


class NodeStatus(Struct, frozen=True):
    """What a node reports about itself. The counts of entries and bytes begin with its process (``start``)."""

    node: str = ""
    address: str = ""
    zone: str = ""
    incarnation: int = 0
    start: int = 0
    sync: str = "-"
    streams: int = 0
    extents: int = 0
    bytes_used: int = 0
    bytes_free: int = 0
    full: bool = False
    tight: bool = False  # it accepts no replicas
    fresh: bool = False  # its lease holds
    unsynced_bytes: int = 0
    connections: int = 0
    uptime_s: float = 0.0
    entries_appended: Count | None = None  # None: the node is too old to count
    bytes_appended: Count | None = None
    entries_read: Count | None = None
    bytes_read: Count | None = None
    observe: str = ""


class RefusedPeer(Struct, frozen=True):
    """A peer that could not connect. ``name`` is unproven, and empty where the peer gave none."""

    name: str = ""
    address: str = ""
    why: str = ""
    count: int = 0
    code: str = ""  # the reason, for programs: a ``RefusalCode``


class ClusterStatus(Struct, frozen=True):
    """``cluster``: its id; ``name``, ``address``: of the coordinator that answered."""

    cluster: str = ""
    name: str = ""
    address: str = ""
    active: bool = False
    active_coordinator: str | None = None
    default_policy: str = "chain"
    observe: str = ""
    nodes: tuple[RegisteredNode, ...] = ()
    logs_total: int = 0
    refused: tuple[RefusedPeer, ...] = ()
    logs_left_out: int = 0  # of `logs`, for want of room; none of them has a problem
    logs: tuple[LogStatus, ...] = ()


class ClusterEvent(Struct, frozen=True, omit_defaults=True):
    """``node``: the event reports whether that node is ``live``; ``log``: the event is about that log."""

    number: int
    at_ms: int
    level: Level
    text: str
    log: str = ""
    node: str = ""
    live: bool = True


class MinuteCounts(Struct, frozen=True):
    """What nodes did in about a minute that ended at ``at_ms``. Every copy of an entry counts as written."""

    at_ms: int
    seconds: float
    written: int
    read: int


class ClusterEvents(Struct, frozen=True):
    """``events``: oldest first, numbered within a ``book``. ``lost``: since when (ms) lost nodes are lost, if known."""

    book: str = ""
    events: tuple[ClusterEvent, ...] = ()
    minutes: tuple[MinuteCounts, ...] = ()
    lost: dict[str, int] = {}


def registered_node(info: NodeInfo, streams_named: int) -> RegisteredNode:
    return RegisteredNode(
        name=info.node,
        address=info.address,
        zone=info.zone,
        state=info.state.value,
        live=info.live,
        incarnation=info.incarnation,
        start=info.start,
        damaged=info.damaged,
        streams_named=streams_named,
    )


def log_status(view: Projection, shown: tuple[Segment, ...] | None = None) -> LogStatus:
    """The status of a log, with all its segments or those in ``shown``."""
    settings = view.settings
    return LogStatus(
        name=view.log,
        policy=settings.policy.value,
        replicas=settings.replicas,
        min_replicas=settings.min_replicas,
        epoch=view.epoch,
        trim=view.trim,
        deleted=view.deleted,
        gaps=tuple((gap.first, gap.end) for gap in view.gaps),
        segments=tuple(map(segment_status, view.segments if shown is None else shown)),
        segments_total=len(view.segments),
        problems_total=len(short_segments(view)),
    )


def short_segments(view: Projection) -> list[Segment]:
    """The segments with fewer copies than the log should have."""
    return [segment for segment in view.segments if 0 < copies_of(segment) < view.settings.replicas]


def copies_of(segment: Segment) -> int:
    """Complete replicas of the group that has the fewest."""
    return min(len(segment.serving(group)) for group in segment.groups)


def segment_status(segment: Segment) -> SegmentStatus:
    return SegmentStatus(
        index=segment.index,
        epoch=segment.epoch,
        base=segment.base,
        end=segment.end,
        repaired=segment.repaired,
        owner=segment.owner.process,
        groups=tuple(
            tuple(MemberStatus(member.node, member.stream, member.joining) for member in group)
            for group in segment.groups
        ),
    )
