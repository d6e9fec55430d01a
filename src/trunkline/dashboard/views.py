"""What the page shows, as values: they are compared to find changes, and sent as JSON under these names."""

from __future__ import annotations

from msgspec import Struct

from trunkline.core.status import Level, MinuteCounts


class ShownMember(Struct, frozen=True):
    """A replica of a segment. ``joining``: it is still being copied, and does not count."""

    node: str
    joining: bool = False


class ShownSegment(Struct, frozen=True):
    index: int
    epoch: int
    base: int
    end: int | None  # None: it is open
    repaired: bool
    owner: str  # the sequencer: a node (chain) or a client (broadcast)
    groups: tuple[tuple[ShownMember, ...], ...]  # each from head to tail


class ShownLog(Struct, frozen=True):
    """``segments``: the last ones, oldest first; empty if the cluster has too many logs to list them."""

    name: str
    policy: str
    replicas: int
    epoch: int
    trim: int
    gaps: tuple[tuple[int, int], ...] = ()
    segments: tuple[ShownSegment, ...] = ()
    segments_total: int = 0
    blocked: bool = False
    duty: str = ""  # what the coordinator does for it now
    deleted: bool = False


class ShownDisk(Struct, frozen=True):
    """What a node reports about itself."""

    bytes_used: int
    bytes_free: int
    full: bool
    streams: int
    sync: str
    start: int = 0  # of its process
    entries_read: int | None = None  # since then; None: the node is too old to count


class ShownNode(Struct, frozen=True):
    name: str
    address: str
    zone: str
    state: str  # rw, draining, gone
    live: bool
    start: int
    damaged: int  # how often it found data that it cannot read
    disk: ShownDisk | None = None  # None: it does not answer


class ShownCluster(Struct, frozen=True):
    """What the coordinator reports. ``cluster``: its id; ``name``: of the coordinator that answered."""

    cluster: str
    name: str
    active: bool
    nodes: tuple[ShownNode, ...]
    logs: tuple[ShownLog, ...]
    address: str = ""
    active_coordinator: str | None = None
    logs_total: int = 0  # with those that are left out


class ClusterHealth(Struct, frozen=True):
    """In words, the worst first."""

    level: Level
    words: str
    more: tuple[str, ...] = ()


class PageHead(Struct, frozen=True):
    """The head of the page."""

    cluster: str
    coordinator: str
    address: str
    active: bool
    health: ClusterHealth
    logs_total: int


class ShownDeliverer(Struct, frozen=True):
    name: str
    live: bool
    held: int


class ShownUnrouted(Struct, frozen=True):
    """Unrouted rows up to version ``through``. ``values``: the most frequent; None is NULL."""

    rows: int
    through: int
    values: tuple[tuple[str | None, int], ...]


class ShownPipeline(Struct, frozen=True):
    store: int
    name: str
    deliverers: tuple[ShownDeliverer, ...]
    destinations_total: int
    unrouted: ShownUnrouted | None = None  # None: all rows that were counted have a destination


class ShownStore(Struct, frozen=True):
    """A control store. ``error``: why it cannot be read now."""

    address: str
    error: str
    pipelines: tuple[ShownPipeline, ...]


class ShownDestination(Struct, frozen=True):
    """``state``: as the deliverer reported it, and the desired state while it differs."""

    key: str
    store: int
    pipeline: str
    name: str
    state: str
    desired_state: str
    owner: str | None
    halted: bool
    position: int | None = None
    lag_versions: int | None = None
    lag_ms: int | None = None
    flushed_at_ms: int | None = None
    rows: int = 0
    rows_total: int = 0
    error: str = ""


class FeedLine(Struct, frozen=True):
    """One sentence of the feed."""

    level: Level
    text: str


class FeedItem(Struct, frozen=True):
    """``order_ms``: its place among the others, whatever a clock did."""

    number: int
    at_ms: int
    level: Level
    text: str
    order_ms: int
    log: str = ""


class Sample(Struct, frozen=True):
    """``tails``: by log, of some of them; ``lags_ms``: the worst of each pipeline, by ``store/pipeline``.

    ``appends``: how much these tails have grown since they were last known; None: none was.
    ``reads``: how many entries each node sent since the last poll, without nodes that were silent, lost or restarted in
    between.
    """

    at_ms: int
    tails: dict[str, int]
    lags_ms: dict[str, int]
    reads: dict[str, int] = {}
    appends: int | None = None


class CounterexampleFile(Struct, frozen=True):
    name: str
    size_bytes: int
    at_ms: int


class ChangedDestinations(Struct, frozen=True):
    """Rows that are new or different, and the keys of those that were removed."""

    rows: tuple[ShownDestination, ...] = ()
    removed: tuple[str, ...] = ()


class ChangedLogs(Struct, frozen=True):
    """Logs that are new or different, and the names of those that were removed."""

    rows: tuple[ShownLog, ...] = ()
    removed: tuple[str, ...] = ()


class Patch(Struct, frozen=True, omit_defaults=True):
    """What changed. Each field replaces its old value; rows, samples and the feed are added to it."""

    reset: bool = False  # forget everything first
    head: PageHead | None = None
    nodes: tuple[ShownNode, ...] | None = None
    logs: ChangedLogs | None = None
    stores: tuple[ShownStore, ...] | None = None
    destinations: ChangedDestinations | None = None
    counterexamples: tuple[CounterexampleFile, ...] | None = None
    samples: tuple[Sample, ...] = ()
    feed: tuple[FeedItem, ...] = ()
    minutes: tuple[MinuteCounts, ...] | None = None
    may_operate: bool | None = None
