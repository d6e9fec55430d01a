"""The configuration of one pipeline: one frozen tree. The texts document the keys (``reference.py``)."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct, field

from trunkline.delivery.changes.rows import DuplicatePolicy, Mode
from trunkline.delivery.changes.shape import Mask
from trunkline.delivery.config.addresses import Address


def about(text: str, *, allowed: str | None = None, pattern: str | None = None) -> Meta:
    """Documents a key. ``allowed``: its values, where the type does not say it."""
    return Meta(description=text, pattern=pattern, extra=None if allowed is None else {"allowed": allowed})


def whole(least: int, most: int, text: str) -> Meta:
    """A whole number between limits. The text says what goes wrong when it is too big or too small."""
    return Meta(ge=least, le=most, description=text)


SeedMode = Literal["scan", "history", "now"]
DAY_MS: Final = 86_400_000
ColumnName = Annotated[str, Meta(extra={"allowed": "the name of a column"})]
Text = Annotated[str, Meta(min_length=0, extra={"as_text": True, "allowed": "a text, a whole number, true or false"})]
Expression = Annotated[str, Meta(extra={"as_text": True, "allowed": "an SQL expression of DuckDB"})]
Key = tuple[ColumnName, ...]
Filter = Annotated[
    Expression | None,
    about(
        "an SQL predicate over a row's columns, such as `status <> 'draft'`: only rows for which it is true are "
        "delivered, and a row that stops to match is removed. Changing it seeds the destinations again",
        allowed="an SQL expression of DuckDB without functions whose result varies, such as `now()`",
    ),
]
Masks = Annotated[
    dict[str, Mask],
    about(
        "what replaces the values of a column: `hash` (keyed by the secret of `mask_secret_env`), `null`, or "
        "`{constant: TEXT}`. A column that is not named is delivered as it is",
        allowed="a mapping of columns to hash, null or {constant: TEXT}",
    ),
]
Computed = Annotated[
    dict[str, Expression],
    about(
        "new columns: an SQL expression over the columns of the source for each",
        allowed="a mapping of new columns to SQL expressions of DuckDB",
    ),
]
SecretEnv = Annotated[
    str | None,
    about(
        "the environment variable that holds the key of hashes, required for `hash`; with another key every hash is "
        "another, so the destinations are seeded again"
    ),
]


class RoutingConfig(Struct, frozen=True, kw_only=True):
    """How a row finds its destination."""

    column: Annotated[
        ColumnName,
        about(
            "the source's column whose text form is looked up among the destinations' `values`. Without `routing` "
            "every destination takes every row"
        ),
    ]


class ColumnsConfig(Struct, frozen=True, kw_only=True):
    """Which columns are delivered, and under which names."""

    include: Annotated[
        Key, about("only these columns; one that the source gains is not delivered. Not together with `exclude`")
    ] = ()
    exclude: Annotated[Key, about("all columns but these; one that the source gains is delivered")] = ()
    rename: Annotated[
        dict[str, str],
        about("names in the destinations, by the source's", allowed="a mapping of columns to new names"),
    ] = field(default_factory=dict)


class TableConfig(Struct, frozen=True, kw_only=True):
    """An entry of ``tables``: which tables, and how they differ from others."""

    table: Annotated[
        str,
        about(
            "the tables: SCHEMA.TABLE, in which `*` stands for any letters and `?` for one; names are folded to lower "
            "case unless they are in double quotes. An entry may be this text alone. Tables that an entry with `!` in "
            "front matches are left out; for each other table, the first entry that matches it counts",
            allowed='a pattern, such as public.orders, shop.order_* or "!public.tmp_*"',
        ),
    ]
    key: Annotated[
        Key, about("like `key` of the pipeline; none: the table's primary key, as the source records it")
    ] = ()
    routing: Annotated[ColumnName | None, about("its routing column, if it is not that of `routing.column`")] = None
    mode: Annotated[Mode | None, about("like `mode` of the pipeline; it wins over that of a destination")] = None
    duplicates: Annotated[
        DuplicatePolicy | None, about("like `duplicates` of the pipeline; it wins over that of a destination")
    ] = None
    columns: Annotated[ColumnsConfig | None, about("like `columns` of the pipeline, which it replaces as a whole")] = (
        None
    )
    filter: Annotated[
        Expression | None, about("like `filter` of the pipeline, which it replaces; `true`: every row")
    ] = None
    mask: Annotated[
        dict[str, Mask],
        about(
            "like `mask` of the pipeline, besides that one",
            allowed="a mapping of columns to hash, null or {constant: TEXT}",
        ),
    ] = field(default_factory=dict)
    computed: Annotated[
        dict[str, Expression],
        about(
            "like `computed` of the pipeline, besides that one",
            allowed="a mapping of new columns to SQL expressions of DuckDB",
        ),
    ] = field(default_factory=dict)
    mask_secret_env: Annotated[str | None, about("like `mask_secret_env` of the pipeline, which it replaces")] = None
    line: int = 0  # of the file


class DestinationConfig(Struct, frozen=True, kw_only=True):
    """One table, or one set of tables, that follows its part of the source."""

    name: Annotated[
        str,
        about(
            "unique; its state is stored under this name, so a destination with a new name is a new one",
            allowed="1 to 128 of A-Z, a-z, 0-9, _, . and -",
            pattern=r"^(?!\.{1,2}$)[A-Za-z0-9_.-]{1,128}\Z",
        ),
    ]
    address: Address
    values: Annotated[
        tuple[Text, ...] | None,
        about(
            "the routing values of its rows; each value belongs to one destination. Rows whose value has no "
            'destination are counted, not delivered. `"*"`: every row, besides other destinations',
            allowed='a list, such as [a, b], each a text, a whole number, true or false; or "*"',
        ),
    ]  # None: every row
    mode: Annotated[Mode, about("like `mode` of the pipeline")]
    duplicates: Annotated[DuplicatePolicy, about("like `duplicates` of the pipeline")]
    seed: Annotated[
        SeedMode,
        about(
            "like `seed` of the pipeline; `{from: NAME}`: a copy of that destination, also if the source no longer has "
            "its oldest changes. NAME is a mirror without duplicates, with all values of this one, and no columns are "
            "left out, masked or computed",
            allowed="history, now, scan or {from: NAME}",
        ),
    ]
    replace_existing: Annotated[
        bool,
        about(
            "true: an existing table that no delivery created is replaced, and its rows are lost; false: such a "
            "destination halts with a message"
        ),
    ] = False
    seed_from: str | None = None  # the destination that it copies first; ``seed`` is scan then


class DiscoverConfig(Struct, frozen=True, kw_only=True):
    """A destination for each new routing value. The template's address has placeholders; its name is not used."""

    template: Annotated[
        DestinationConfig,
        about(
            "the settings of discovered destinations; `{value}` in its address is the routing value, made safe for "
            "names. Keys under `defaults` may be left out",
            allowed="a mapping with the keys of a destination except `name` and `values`",
        ),
    ]
    limit: Annotated[
        int,
        whole(
            1,
            1_000_000,
            "maximum number of discovered destinations; too big: a wrong routing column creates a table for each of "
            "its values; too small: rows of later values are only counted",
        ),
    ] = 10_000
    pattern: Annotated[
        str | None, about("a regular expression that the whole value must match; too narrow: tenants are only counted")
    ] = None


class FlushConfig(Struct, frozen=True, kw_only=True):
    """When changes are delivered: at the first limit that is reached."""

    interval_ms: Annotated[
        int,
        whole(
            1,
            DAY_MS,
            "how long a change may wait for others; too small: many small commits, each with its full cost; too big: "
            "destinations lag",
        ),
    ] = 1000
    rows: Annotated[
        int, whole(1, 10**12, "this many waiting changes are flushed at once; too small: like `interval_ms`")
    ] = 100_000
    bytes: Annotated[
        int, whole(1, 2**50, "this many waiting bytes are flushed at once; too big: bursts wait for the interval")
    ] = 64 * 1024 * 1024
    groups: Annotated[
        int,
        whole(
            1,
            64,
            "groups of destinations that are flushed concurrently; too small: destinations that catch up delay the "
            "others; too big: they compete for cores and memory",
        ),
    ] = 2


class RetryConfig(Struct, frozen=True, kw_only=True):
    """Retries after a transient failure."""

    first_ms: Annotated[
        int,
        whole(1, DAY_MS, "wait after the first failure, doubled each time; too small: overloads a server in trouble"),
    ] = 500
    most_ms: Annotated[int, whole(1, DAY_MS, "longest wait; too big: a repaired destination is noticed late")] = 60_000
    breaker_after: Annotated[
        int,
        whole(
            1,
            1000,
            "consecutive failures after which a destination is retried alone, once per `most_ms`; too big: it takes "
            "task slots from healthy ones; too small: a short outage causes a long wait",
        ),
    ] = 5


class ReadingConfig(Struct, frozen=True, kw_only=True):
    """How the source is read."""

    poll_ms: Annotated[
        int,
        whole(
            10,
            DAY_MS,
            "how often the source is checked for new versions; too small: an idle pipeline costs more; too big: "
            "changes are noticed late",
        ),
    ] = 500
    small_bytes: Annotated[
        int,
        whole(
            0,
            2**50,
            "windows up to this size are read by DuckDB in a few tasks, larger ones by Spark's Parquet reader; too "
            "big: a few tasks do all the work and need the memory; too small: small windows wait for a shuffle",
        ),
    ] = 128 * 1024 * 1024


class ControlConfig(Struct, frozen=True, kw_only=True):
    """Where deliverers agree on who owns which destination."""

    store: Annotated[
        str,
        about(
            "`sqlite:PATH` for deliverers on one machine, `postgres:` and a libpq connection string (without a "
            "password) for several machines. With a new store every destination gets a new owner, and positions are "
            "read again",
            allowed="sqlite:PATH or postgres:DSN",
        ),
    ] = "sqlite:control.db"
    password_env: Annotated[
        str | None, about("the environment variable that holds the password of a PostgreSQL store")
    ] = None
    lease_ms: Annotated[
        int,
        whole(
            1000,
            DAY_MS,
            "how long a silent deliverer keeps its destinations; too small: a pause of the process moves them; too "
            "big: those of a crashed one stand still for as long",
        ),
    ] = 15_000


class SparkConfig(Struct, frozen=True, kw_only=True):
    """Where tasks run."""

    master: Annotated[
        str,
        about(
            "`local[*]` is this machine with all its cores; on a cluster every task must reach every path",
            allowed="local[*], local[N], spark://HOST:PORT, k8s://URL or yarn",
            pattern=r"^(local(\[[0-9*]+(,[0-9]+)?\])?|local-cluster\[[0-9]+,[0-9]+,[0-9]+\]|spark://.+|k8s://.+|yarn)\Z",
        ),
    ] = "local[*]"
    conf: Annotated[
        dict[str, Text], about("settings of Spark, such as `spark.driver.memory: 4g`; secrets are rejected here")
    ] = field(default_factory=dict)
    conf_env: Annotated[
        dict[str, str],
        about("settings of Spark that are secrets: the name of the environment variable that holds each"),
    ] = field(default_factory=dict)


class Pipeline(Struct, frozen=True, kw_only=True, dict=True):
    """One source of one or many tables, many destinations. Paths are absolute."""

    name: Annotated[
        str,
        about(
            "the pipeline's name; its state is stored under it: with a new name every destination gets a new owner",
            allowed="1 to 64 of a-z, 0-9, _ and -",
            pattern=r"^[a-z0-9_-]{1,64}\Z",
        ),
    ] = field(name="pipeline")
    source: Annotated[
        Address,
        about(
            "the table whose changes are delivered; with `tables`: a lake, or a log of a whole database, without its "
            "`table`",
            allowed="an address (below) of type ducklake, delta or log",
        ),
    ]
    routing: RoutingConfig | None = None
    tables: Annotated[
        tuple[TableConfig, ...],
        about("the tables of the source that are delivered together; none: the source is one table"),
    ] = ()
    without_routing_column: Annotated[
        Literal["refuse", "leave_out"],
        about("a table that lacks its routing column: halt the pipeline, or leave the table out"),
    ] = "refuse"
    dropped_tables: Annotated[
        Literal["keep", "drop", "halt"],
        about(
            "a table that the source no longer has: keep it in the destinations as it is, drop it there, or halt them"
        ),
    ] = "keep"
    key: Annotated[
        Key,
        about(
            "columns that identify a row, required for modes mirror and history; too few: different rows count as "
            "duplicates; too many: an update of one of them becomes a delete and an insert. With `tables`: of those "
            "without a `key` of their own; none: each has its primary key, as the source records it. Renamed and "
            "computed columns have their new names here, also in `routing`"
        ),
    ] = ()
    mode: Annotated[
        Mode,
        about(
            "mirror: equal to the source; append: inserts only, later changes are not applied; history: every version "
            "of a row, with the time from which and to which it was valid"
        ),
    ] = "mirror"
    duplicates: Annotated[
        DuplicatePolicy,
        about("two live rows with one key: halt the destination, or warn (one of them is kept, and they are counted)"),
    ] = "halt"
    seed: Annotated[
        SeedMode,
        about(
            "the first load of a new destination: scan (a copy of the source as it is), history (every change that "
            "the source still has), now (nothing: only later changes, so it never equals the source)"
        ),
    ] = "scan"
    columns: ColumnsConfig | None = None
    filter: Filter = None
    mask: Masks = field(default_factory=dict)
    computed: Computed = field(default_factory=dict)
    mask_secret_env: SecretEnv = None
    destinations: tuple[DestinationConfig, ...] = ()
    discover: DiscoverConfig | None = None
    flush: FlushConfig = FlushConfig()
    retry: RetryConfig = RetryConfig()
    reading: ReadingConfig = ReadingConfig()
    control: ControlConfig = ControlConfig()
    spark: SparkConfig = SparkConfig()
    listen: Annotated[
        str | None,
        about(
            "metrics and health; port 0: any free port; `none`: no server, so the pipeline cannot be observed",
            allowed="host:port, or none",
        ),
    ] = "127.0.0.1:0"
    listen_names: Annotated[
        tuple[str, ...], about("host names under which the server answers, besides the address of `listen`")
    ] = ()

    @cached_property
    def living(self) -> frozenset[str]:
        """The names of its destinations as their records have them; none if others may be discovered."""
        return frozenset(() if self.discover else (f"{self.name}/{each.name}" for each in self.destinations))
