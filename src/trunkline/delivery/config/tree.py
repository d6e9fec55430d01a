"""What one pipeline is: one frozen tree. Each field says what goes wrong when it is too big or too small.

The texts are also the documentation of the file's keys (``reference.py``).
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct, field

from trunkline.delivery.changes.rows import DuplicatePolicy, Mode
from trunkline.delivery.config.addresses import Address

SeedMode = Literal["scan", "history", "now"]
DAY_MS: Final = 86_400_000
ColumnName = Annotated[str, Meta(extra={"allowed": "the name of a column"})]
Text = Annotated[str, Meta(min_length=0, extra={"as_text": True, "allowed": "a text, a whole number, true or false"})]


class RoutingConfig(Struct, frozen=True, kw_only=True):
    """How a row finds its destination."""

    column: Annotated[
        ColumnName,
        Meta(description="the source's column whose text form is looked up among the destinations' `values`"),
    ]


class DestinationConfig(Struct, frozen=True, kw_only=True):
    """One table that is kept equal to its part of the source. ``values`` are texts."""

    name: Annotated[
        str,
        Meta(
            pattern=r"^(?!\.{1,2}$)[A-Za-z0-9_.-]{1,128}\Z",
            extra={"allowed": "1 to 128 of A-Z, a-z, 0-9, _, . and -"},
            description="unique; its state is kept under this name: a destination with a new name is a new one",
        ),
    ]
    address: Address
    values: Annotated[
        tuple[Text, ...],
        Meta(
            description="the routing values of its rows; no two destinations share one. Rows of a "
            "value that no destination has are counted, not delivered"
        ),
    ]
    mode: Annotated[Mode, Meta(description="as `mode` of the pipeline")]
    duplicates: Annotated[DuplicatePolicy, Meta(description="as `duplicates` of the pipeline")]
    seed: Annotated[SeedMode, Meta(description="as `seed` of the pipeline")]
    replace_existing: Annotated[
        bool,
        Meta(
            description="true: a table that is there already and was not made by a delivery is replaced, and its "
            "rows are gone; false: such a destination halts and says so"
        ),
    ] = False


class DiscoverConfig(Struct, frozen=True, kw_only=True):
    """A destination for each new routing value. The template's address has placeholders, its name means nothing."""

    template: Annotated[
        DestinationConfig,
        Meta(
            extra={"allowed": "a mapping with the keys of a destination but `name` and `values`"},
            description="what the destinations are like; `{value}` in its address is the routing value, made safe "
            "for names. What is under `defaults` need not be here",
        ),
    ]
    limit: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000_000,
            description="destinations that are discovered at most; too big: a wrong routing column makes a table for "
            "each of its values; too small: rows of later values are only counted",
        ),
    ] = 10_000
    pattern: Annotated[
        str | None,
        Meta(description="a regular expression that a whole value must match; too narrow: tenants are only counted"),
    ] = None


class FlushConfig(Struct, frozen=True, kw_only=True):
    """When changes are delivered. The first limit that is reached decides."""

    interval_ms: Annotated[
        int,
        Meta(
            ge=1,
            le=DAY_MS,
            description="how long a change may wait for others; too small: many small commits, each at its full price; "
            "too big: destinations lag",
        ),
    ] = 1000
    rows: Annotated[
        int,
        Meta(ge=1, le=10**12, description="as many waiting changes flush at once; too small: as for `interval_ms`"),
    ] = 100_000
    bytes: Annotated[
        int,
        Meta(ge=1, le=2**50, description="as many waiting bytes flush at once; too big: bursts wait for the interval"),
    ] = 64 * 1024 * 1024
    groups: Annotated[
        int,
        Meta(
            ge=1,
            le=64,
            description="groups of destinations flushed at the same time; too small: those that catch up delay the "
            "others; too big: they share the same cores and memory",
        ),
    ] = 2


class RetryConfig(Struct, frozen=True, kw_only=True):
    """What follows a failure that may pass."""

    first_ms: Annotated[
        int,
        Meta(
            ge=1,
            le=DAY_MS,
            description="wait after the first failure, doubled each time; too small: hammers a sick server",
        ),
    ] = 500
    most_ms: Annotated[
        int,
        Meta(ge=1, le=DAY_MS, description="longest wait; too big: a mended destination is noticed late"),
    ] = 60_000
    breaker_after: Annotated[
        int,
        Meta(
            ge=1,
            le=1000,
            description="failures in a row after which a destination is tried alone, once in `most_ms`; too big: it "
            "takes task slots from the healthy ones; too small: a short outage costs a long wait",
        ),
    ] = 5


class ReadingConfig(Struct, frozen=True, kw_only=True):
    """How the source is read."""

    poll_ms: Annotated[
        int,
        Meta(
            ge=10,
            le=DAY_MS,
            description="how often the source is looked at for new versions; too small: idle costs more; too big: "
            "changes are noticed late",
        ),
    ] = 500

    small_bytes: Annotated[
        int,
        Meta(
            ge=0,
            le=2**50,
            description="windows up to this size are read by DuckDB in a few tasks, larger ones by Spark's Parquet "
            "reader; too big: few tasks do the work of many and need the memory; too small: small windows wait for a "
            "shuffle",
        ),
    ] = 128 * 1024 * 1024


class ControlConfig(Struct, frozen=True, kw_only=True):
    """Where deliverers agree on who owns which destination."""

    store: Annotated[
        str,
        Meta(
            extra={"allowed": "sqlite:PATH or postgres:DSN"},
            description="`sqlite:PATH` for deliverers of one machine, `postgres:` and a libpq connection string "
            "(without a password) for several. Another store: everything is owned anew and standings are read again",
        ),
    ] = "sqlite:control.db"
    password_env: Annotated[
        str | None,
        Meta(description="the environment variable that holds the password of a PostgreSQL store"),
    ] = None
    lease_ms: Annotated[
        int,
        Meta(
            ge=1000,
            le=DAY_MS,
            description="how long a silent deliverer keeps its destinations; too small: a pause of the process moves "
            "them; too big: those of a dead one stand still as long",
        ),
    ] = 15_000


class SparkConfig(Struct, frozen=True, kw_only=True):
    """Where tasks run."""

    master: Annotated[
        str,
        Meta(
            pattern=r"^(local(\[[0-9*]+(,[0-9]+)?\])?|local-cluster\[[0-9]+,[0-9]+,[0-9]+\]|spark://.+|k8s://.+|yarn)\Z",
            extra={"allowed": "local[*], local[N], spark://HOST:PORT, k8s://URL or yarn"},
            description="`local[*]` is this machine with all its cores; on a cluster every path must be reachable "
            "from each task",
        ),
    ] = "local[*]"
    conf: Annotated[
        dict[str, Text],
        Meta(description="settings of Spark, such as `spark.driver.memory: 4g`; secrets are refused here"),
    ] = field(default_factory=dict)
    conf_env: Annotated[
        dict[str, str],
        Meta(description="settings of Spark that are secrets: the name of the environment variable that holds each"),
    ] = field(default_factory=dict)


class Pipeline(Struct, frozen=True, kw_only=True):
    """One source, many destinations. Paths are absolute."""

    name: Annotated[
        str,
        Meta(
            pattern=r"^[a-z0-9_-]{1,64}\Z",
            extra={"allowed": "1 to 64 of a-z, 0-9, _ and -"},
            description="the pipeline's name; its state is kept under it: with a new name everything is owned anew",
        ),
    ] = field(name="pipeline")
    source: Annotated[
        Address,
        Meta(
            extra={"allowed": "an address (below) of type ducklake, delta or log"},
            description="the table whose changes are delivered",
        ),
    ]
    routing: RoutingConfig
    key: Annotated[
        tuple[ColumnName, ...],
        Meta(
            description="columns that identify a row, needed for mode mirror; too few: different rows count as "
            "duplicates; too many: an update of one of them is a removal and an arrival"
        ),
    ] = ()
    mode: Annotated[
        Mode, Meta(description="mirror: equal to the source; append: arrivals only, nothing is changed later")
    ] = "mirror"
    duplicates: Annotated[
        DuplicatePolicy,
        Meta(
            description="two live rows with one key: halt the destination, or warn (one of them is kept, and they "
            "are counted)"
        ),
    ] = "halt"
    seed: Annotated[
        SeedMode,
        Meta(
            description="how a new destination begins: scan (a copy of the source as it is), history (every change "
            "that the source still has), now (only what changes from now on: never equal to the source)"
        ),
    ] = "scan"
    destinations: tuple[DestinationConfig, ...] = ()
    discover: DiscoverConfig | None = None
    flush: FlushConfig = FlushConfig()
    retry: RetryConfig = RetryConfig()
    reading: ReadingConfig = ReadingConfig()
    control: ControlConfig = ControlConfig()
    spark: SparkConfig = SparkConfig()
    listen: Annotated[
        str | None,
        Meta(
            extra={"allowed": "host:port, or none"},
            description="metrics and health; port 0: any free one; `none`: nobody can see the pipeline from outside",
        ),
    ] = "127.0.0.1:0"
    listen_names: Annotated[
        tuple[str, ...],
        Meta(description="names by which metrics and health may be asked for, besides the address of `listen`"),
    ] = ()
