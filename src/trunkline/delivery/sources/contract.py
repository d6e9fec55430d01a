"""What every source of changes provides: a set of tables with common versions.

Versions of a source are ordered, but there need not be an order inside a version. So a window is not read as events but
as the net difference of two states, found without a full read of either:

    removed = rows live at `after` and not at `through`          arrived = rows live at `through` and not at `after`

A ``Source`` has one or many tables. A ``TableSource`` is one table; ``sources/table_set.py`` makes a ``Source`` of one
or several of them. The table of a pipeline with one table has the empty name.

Rules
 S1  All tables of a source are read at the same version: a destination that has every table as of one version has a
     state that the source really had.
 S2  A table that is new in a window, or was emptied in it (truncated, captured again, created again), is read whole:
     ``emptied`` is true and ``arrived`` has all its rows at `through`.
 S3  A table that is not complete (its first snapshot is under way) is not in the set yet, and delays no other. While a
     table of the set is captured again, no version is newer than the last one before that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final, Protocol

import duckdb
import pyarrow as pa
from msgspec import Struct

from trunkline.delivery.backends.duckdb_pool import Extension
from trunkline.delivery.changes.column_steps import ColumnSteps
from trunkline.delivery.changes.columns import Columns, arrow_schema
from trunkline.delivery.changes.history import VersionedChanges
from trunkline.delivery.changes.rows import ROUTE_COLUMN, NetChanges
from trunkline.delivery.changes.versions import Lineage, Window

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class SourceState(Struct, frozen=True):
    """The versions that a source has."""

    version: int  # the newest
    oldest: int  # the oldest version that can still be an `after`
    stops: tuple[int, ...] = ()  # windows may end at these versions, but not cross them; ascending
    identity: str = ""  # of the table itself: that of another table with the same name differs
    first: int = 0  # the first version that can be seeded from, if that is not ``oldest``
    mark: str = ""  # of the newest version (see ``lineage``)
    known_mark: str = ""  # of the version that the caller knew; empty: the source no longer has it
    waiting: str = ""  # why there is nothing newer, though the source has changes
    awaited: tuple[str, ...] = ()  # tables that come into the set when their first snapshot is complete


class Backlog(Struct, frozen=True):
    """The amount of changes in a window by the source's metadata: cheap, and not exact."""

    rows: int
    size_bytes: int
    quiet: bool  # nothing in the window touches the table


class TableSurvey(Struct, frozen=True):
    """What the driver needs to know about one table over a window."""

    backlog: Backlog
    columns: Columns  # as of `through`
    identity: str
    altered: bool = False  # the columns at `after` were others: destinations follow at once, rows or not
    restated: str = ""  # why rows have other values without having been written, so that no window contains them
    after_mark: str = ""  # empty: it is no longer known
    mark: str = ""  # of `through`
    steps: ColumnSteps | None = None  # of the columns, from `after` to `through`; None: the source cannot tell
    numbers: tuple[int, ...] = ()  # see ``SourceTable``


class RouteFilter(Struct, frozen=True):
    """The rows with some routing values: each task reads its own part of a window."""

    values: tuple[str | None, ...]
    all_but: tuple[str | None, ...] | None = None  # also every row whose value is none of these


ALL_ROUTES: Final = RouteFilter((), ())


class ReadRequest(Struct, frozen=True):
    """Which columns of a window to read."""

    columns: Columns  # as of `through`
    key: tuple[str, ...]
    routing: str  # empty: none, every row has the route NULL
    mark: str = ""  # of `through`, from its survey: the read fails if the version has another one; empty: no check
    also: tuple[str, ...] = ()  # more columns of removed rows, as they were at `after`, if all of them are known

    @property
    def stated(self) -> tuple[str, ...]:
        """The columns of removed rows, where these are whole."""
        return (*self.key, *self.also)

    @property
    def routings(self) -> tuple[str, ...]:
        """The routing column, if there is one."""
        return (self.routing,) if self.routing else ()

    @property
    def named(self) -> tuple[str, ...]:
        """The columns by which rows of destinations are found."""
        return (*self.routings, *self.key)

    def empty_rows(self) -> pa.Table:
        """No rows, with ROUTE_COLUMN and every column."""
        return pa.schema([pa.field(ROUTE_COLUMN, pa.string()), *arrow_schema(self.columns)]).empty_table()


class WindowFrames(Protocol):
    """The net changes of a window as data frames of ROUTE_COLUMN and columns.

    Values of types that Spark lacks travel in others; a cast to the Arrow type of the column restores them.
    """

    @property
    def emptied(self) -> bool:
        """Whether ``arrived`` is the whole table (S2). A survey need not know: only rows tell of a truncation."""
        ...

    def removed(self) -> DataFrame: ...

    def arrived(self) -> DataFrame: ...


class LargeReads(Protocol):
    """Reads windows that are too large for one task, by Spark."""

    def frames(self, spark: SparkSession, window: Window, request: ReadRequest) -> WindowFrames | None:
        """Raises as ``Source.net_changes``. ``None``: this window can only be read in one piece."""
        ...


class TableSnapshot(Struct, frozen=True):
    """A table at a version, as its format's own reader shows it to DuckDB."""

    table: str  # for use after FROM
    columns: Columns
    only_grew: bool  # no row was ever removed or changed up to here, as far as the history goes back


class NativeReads(Protocol):
    """Reads states with the format's own reader, independently of the code that reads windows."""

    @property
    def extensions(self) -> tuple[Extension, ...]:
        """What DuckDB must load."""
        ...

    def snapshot(self, connection: duckdb.DuckDBPyConnection, version: int) -> AbstractContextManager[TableSnapshot]:
        """Raises ``SourceExpired``, ``Unreachable``, ``ConfigError``. While it is open, writers may have to wait."""
        ...


class TableSource(Protocol):
    """One table, or a log with one. A value that can be sent to a Spark task, which opens what it needs."""

    def change_hint(self) -> object:
        """A cheap value that differs whenever the source may have changed; ``None``: call ``state``."""
        ...

    def state(self, known: int) -> SourceState:
        """The newest version, and the stops after ``known``."""
        ...

    def lineage(self, versions: Collection[int]) -> Lineage:
        """The present marks of these versions."""
        ...

    def columns(self, version: int) -> Columns: ...

    def check_keys(self, key: tuple[str, ...], routing: str) -> None:
        """Raises ``ConfigError`` if removed rows lack columns by which destinations find them."""
        ...

    def survey(self, window: Window) -> TableSurvey:
        """Raises ``SourceExpired`` if the window can no longer be read."""
        ...

    def net_changes(self, window: Window, request: ReadRequest, routes: RouteFilter) -> NetChanges:
        """The net changes of some routing values. Raises ``SourceExpired``, ``Unreachable``; the latter also if the
        source was replaced since the survey."""
        ...

    def versions(self, window: Window, request: ReadRequest, routes: RouteFilter) -> VersionedChanges:
        """The versions of rows in a window with a beginning, for mode history. Raises as ``net_changes``."""
        ...

    def live(self, version: int, request: ReadRequest, keys: pa.Table) -> pa.Table:
        """Every row at a version whose (route, key) is in ``keys``; NULL equals NULL."""
        ...

    def scan(self, version: int, request: ReadRequest, routes: RouteFilter) -> Iterator[pa.RecordBatch]:
        """The rows at a version; ROUTE_COLUMN and every column."""
        ...

    def large_reads(self) -> LargeReads | None:
        """``None``: every window is read inside of tasks."""
        ...

    def native_reads(self) -> NativeReads | None:
        """``None``: ``scan`` itself is the format's own reader, or there is no other."""
        ...


# ---------------------------------------------------------------------------------------------------- sets of tables


class SourceTable(Struct, frozen=True):
    """A table of a set."""

    name: str  # SCHEMA.TABLE; empty if the pipeline has one table
    columns: Columns
    key: tuple[str, ...] = ()  # its primary key, if the source records it
    identity: str = ""  # another table of the same name has another one
    numbers: tuple[int, ...] = ()  # of the columns, which they keep under other names; empty: the source cannot tell


class SurveyedTable(Struct, frozen=True):
    """A table of a set, at the end of a window."""

    table: SourceTable
    survey: TableSurvey
    whole: bool = False  # it is read whole (S2); False: as far as the survey knows


class Survey(Struct, frozen=True):
    """What the driver needs to know about a window of a set."""

    tables: tuple[SurveyedTable, ...]  # that the set has at `through`, by name
    identity: str
    left: tuple[str, ...] = ()  # tables that the set had at `after` and has no longer
    after_mark: str = ""  # empty: it is no longer known
    mark: str = ""  # of `through`

    @property
    def size_bytes(self) -> int:
        return sum(each.survey.backlog.size_bytes for each in self.tables)


Requests = Mapping[str, ReadRequest]  # by table


class Source(Protocol):
    """What a pipeline reads. A value that can be sent to a Spark task, which opens what it needs."""

    def change_hint(self) -> object:
        """A cheap value that differs whenever the source may have changed; ``None``: call ``state``."""
        ...

    def state(self, known: int) -> SourceState:
        """The newest version, and the stops after ``known``."""
        ...

    def lineage(self, versions: Collection[int]) -> Lineage:
        """The present marks of these versions."""
        ...

    def tables(self, version: int) -> tuple[SourceTable, ...]:
        """The set at a version; 0: the newest, with tables that are not complete yet. Raises ``ConfigError`` if a table
        that is named without wildcards is not there."""
        ...

    def check_keys(self, table: str, key: tuple[str, ...], routing: str) -> None:
        """Raises ``ConfigError`` if removed rows lack columns by which destinations find them."""
        ...

    def survey(self, window: Window) -> Survey:
        """Raises ``SourceExpired`` if the window can no longer be read."""
        ...

    def net_changes(self, window: Window, requests: Requests, routes: RouteFilter) -> dict[str, NetChanges]:
        """The net changes of some tables and routing values (S2). The window is read once for all of them. Raises
        ``SourceExpired``, ``Unreachable``; the latter also if the source was replaced since the survey."""
        ...

    def versions(self, window: Window, requests: Requests, routes: RouteFilter) -> dict[str, VersionedChanges]:
        """The versions of rows in a window with a beginning, for mode history: every one from an ordered source, at
        most one for each row from a lake. The requests are those of ``ShapedTable.request`` with ``whole``. Raises as
        ``net_changes``."""
        ...

    def live(self, table: str, version: int, request: ReadRequest, keys: pa.Table) -> pa.Table:
        """Every row at a version whose (route, key) is in ``keys``; NULL equals NULL."""
        ...

    def scan(
        self, version: int, requests: Requests, routes: RouteFilter
    ) -> Iterator[tuple[str, Iterator[pa.RecordBatch]]]:
        """The rows of some tables at a version, one table after the other; ROUTE_COLUMN and every column."""
        ...

    def large_reads(self, tables: Collection[str]) -> Mapping[str, LargeReads] | None:
        """Of some tables, which may share what they read; used for one job. ``None``: every window is read inside of
        tasks."""
        ...

    def native_reads(self, table: str) -> NativeReads | None:
        """``None``: ``scan`` itself is the format's own reader, or there is no other."""
        ...
