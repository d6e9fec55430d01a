"""What the page shows, as values. They are compared to find what changed, and sent as JSON under these very names."""

from __future__ import annotations

from msgspec import Struct

from trunkline.core.status import Level, MinuteCounts


class Member(Struct, frozen=True):
    """One copy of a segment. ``joining``: it is being copied, and does not count yet."""

    node: str
    joining: bool = False


class Segment(Struct, frozen=True):
    index: int
    epoch: int
    base: int
    end: int | None  # None: it is open
    repaired: bool
    owner: str  # who orders it: a node (chain) or a client (broadcast)
    groups: tuple[tuple[Member, ...], ...]  # each from head to tail


class Log(Struct, frozen=True):
    """``segments``: the last ones, oldest first; empty where the cluster has too many logs to tell of each."""

    name: str
    policy: str
    replicas: int
    epoch: int
    trim: int
    gaps: tuple[tuple[int, int], ...] = ()
    segments: tuple[Segment, ...] = ()
    segments_total: int = 0
    blocked: bool = False
    duty: str = ""  # what the coordinator is doing for it
    deleted: bool = False


class Disk(Struct, frozen=True):
    """What a node says of itself."""

    bytes_used: int
    bytes_free: int
    full: bool
    streams: int
    sync: str
    start: int = 0  # of its process
    entries_read: int | None = None  # since then; None: it is too old to tell


class Node(Struct, frozen=True):
    name: str
    address: str
    zone: str
    state: str  # rw, draining, gone
    live: bool
    start: int
    damaged: int  # how often it found that it cannot read what it has stored
    disk: Disk | None = None  # None: it does not answer


class Cluster(Struct, frozen=True):
    """What the coordinator says. ``cluster``: its id; ``name``: of the coordinator that answered."""

    cluster: str
    name: str
    active: bool
    nodes: tuple[Node, ...]
    logs: tuple[Log, ...]
    address: str = ""
    active_coordinator: str | None = None
    logs_total: int = 0  # those that are left out among them


class Health(Struct, frozen=True):
    """The worst thing first, in words."""

    level: Level
    words: str
    more: tuple[str, ...] = ()


class Standing(Struct, frozen=True):
    """The head of the page."""

    cluster: str
    coordinator: str
    address: str
    active: bool
    health: Health
    logs_total: int


class Deliverer(Struct, frozen=True):
    name: str
    live: bool
    held: int


class Unrouted(Struct, frozen=True):
    """Rows that no destination takes, up to version ``through``. ``values``: the most frequent; None is NULL."""

    rows: int
    through: int
    values: tuple[tuple[str | None, int], ...]


class Pipeline(Struct, frozen=True):
    store: int
    name: str
    deliverers: tuple[Deliverer, ...]
    destinations_total: int
    unrouted: Unrouted | None = None  # None: every row that was counted has a destination


class Store(Struct, frozen=True):
    """A control store. ``error``: why it cannot be read now."""

    address: str
    error: str
    pipelines: tuple[Pipeline, ...]


class Destination(Struct, frozen=True):
    """``state``: the deliverer's word, and the operator's where it was not followed yet."""

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


class Said(Struct, frozen=True):
    """One line of the feed."""

    level: Level
    text: str


class FeedItem(Struct, frozen=True):
    """``order_ms``: where it stands among the others, whatever a clock did."""

    number: int
    at_ms: int
    level: Level
    text: str
    order_ms: int
    log: str = ""


class Sample(Struct, frozen=True):
    """``tails``: by log, of some of them; ``lags_ms``: the worst of each pipeline, by ``store/pipeline``.

    ``appends``: by how much these tails have grown since each was known before; None: nothing was known.
    ``reads``: how many entries each node has sent since the look before. It is without the nodes of which that is not
    known: those that were silent, lost or restarted in between.
    """

    at_ms: int
    tails: dict[str, int]
    lags_ms: dict[str, int]
    reads: dict[str, int] = {}
    appends: int | None = None


class Counterexample(Struct, frozen=True):
    name: str
    size_bytes: int
    at_ms: int


class Changed(Struct, frozen=True):
    """Rows that are new or different, and the keys of those that are gone."""

    rows: tuple[Destination, ...] = ()
    gone: tuple[str, ...] = ()


class ChangedLogs(Struct, frozen=True):
    """Logs that are new or different, and the names of those that are gone."""

    rows: tuple[Log, ...] = ()
    gone: tuple[str, ...] = ()


class Patch(Struct, frozen=True, omit_defaults=True):
    """What changed; what did is whole, but for rows, samples and the feed, which come in addition."""

    reset: bool = False  # forget everything first
    standing: Standing | None = None
    nodes: tuple[Node, ...] | None = None
    logs: ChangedLogs | None = None
    stores: tuple[Store, ...] | None = None
    destinations: Changed | None = None
    counterexamples: tuple[Counterexample, ...] | None = None
    samples: tuple[Sample, ...] = ()
    feed: tuple[FeedItem, ...] = ()
    minutes: tuple[MinuteCounts, ...] | None = None
    may_operate: bool | None = None
