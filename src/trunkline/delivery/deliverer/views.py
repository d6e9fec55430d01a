"""What health, metrics and the command line show of a deliverer: values as of one moment."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from trunkline.delivery.control.contract import UnroutedCounts

JobKind = Literal["reading", "flush", "seed"]


class DestinationView(Struct, frozen=True, kw_only=True):
    """One destination. Totals count since this deliverer acquired it."""

    name: str
    stage: str  # of the planner
    life: str  # the desired state
    owned: bool  # by this deliverer
    position: int | None = None  # as stored in the destination; None: not known yet
    effective: int | None = None  # nothing changes for the destination between its position and this version
    lag_versions: int | None = None  # of the source, behind `effective`
    lag_ms: int | None = None  # since the first version that it lacks was seen
    flushed_at_ms: int | None = None  # since 1970
    rows_last: int = 0  # removed and written by the last flush or seed
    removed: int = 0
    written: int = 0
    flushes: int = 0
    seeds: int = 0
    duplicates: int = 0  # rows that shared a key with another row (policy warn)
    missing: int = 0  # keys that another program removed
    failures: int = 0  # in a row
    breaker: bool = False  # it failed so often that retries are rare
    error: str = ""


class JobView(Struct, frozen=True, kw_only=True):
    """A job in flight: ``(after, through]``, or a seed as of ``through``."""

    job: int
    kind: JobKind
    after: int
    through: int
    destinations: int
    elapsed_ms: int


class ProgressView(Struct, frozen=True, kw_only=True):
    """Long work: seeds (in destinations), or catching up of the slowest destination (in versions)."""

    done: int
    total: int
    elapsed_ms: int
    percent: float
    left_ms: int | None  # an estimate; None: not known


class DelivererView(Struct, frozen=True, kw_only=True):
    """The whole deliverer."""

    pipeline: str
    deliverer: str
    state: str  # starting, running, draining, stopping, stopped
    at_ms: int  # since 1970
    turned_ms_ago: int  # since the last turn of the host's loop
    source_version: int = 0
    source_oldest: int = 0
    source_error: str = ""  # empty: the source is reachable
    store_error: str = ""  # empty: the control store is reachable
    died: tuple[str, ...] = ()  # threads that failed, each with the reason; the deliverer then stops
    held: int = 0  # leases
    waiting_rows: int | None = None  # for the end of the interval, in all; None: the source gives no estimate
    unrouted: UnroutedCounts | None = None  # of the whole pipeline; None: not known yet
    unrouted_through: int | None = None  # up to this version
    jobs: tuple[JobView, ...] = ()
    seeding: ProgressView | None = None  # None: no seed takes long
    catching_up: ProgressView | None = None  # to the version that was the newest at its start; None: not far behind
    destinations: tuple[DestinationView, ...] = ()
