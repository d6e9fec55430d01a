"""What every source of changes provides.

Versions of a source are ordered, but there need not be an order inside a version. So a window is not read as events but
as the net difference of two states, found without a full read of either:

    removed = rows live at `after` and not at `through`          arrived = rows live at `through` and not at `after`
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final, Protocol

import duckdb
import pyarrow as pa
from msgspec import Struct

from trunkline.delivery.backends.duckdb_pool import Extension
from trunkline.delivery.changes.column_steps import ColumnSteps
from trunkline.delivery.changes.columns import Columns, arrow_schema
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


class Backlog(Struct, frozen=True):
    """The amount of changes in a window by the source's metadata: cheap, and not exact."""

    rows: int
    size_bytes: int
    quiet: bool  # nothing in the window touches the table


class Survey(Struct, frozen=True):
    """What the driver needs to know about a window."""

    backlog: Backlog
    columns: Columns  # as of `through`
    identity: str
    altered: bool = False  # the columns at `after` were others: destinations follow at once, rows or not
    restated: str = ""  # why rows have other values without having been written, so that no window contains them
    after_mark: str = ""  # empty: it is no longer known
    mark: str = ""  # of `through`
    steps: ColumnSteps | None = None  # of the columns, from `after` to `through`; None: the source cannot tell


class RouteFilter(Struct, frozen=True):
    """The rows with some routing values: each task reads its own part of a window."""

    values: tuple[str | None, ...]
    all_but: tuple[str | None, ...] | None = None  # also every row whose value is none of these


ALL_ROUTES: Final = RouteFilter((), ())


class ReadRequest(Struct, frozen=True):
    """Which columns of a window to read."""

    columns: Columns  # as of `through`
    key: tuple[str, ...]
    routing: str
    mark: str = ""  # of `through`, from its survey: the read fails if the version has another one; empty: no check

    def empty_rows(self) -> pa.Table:
        """No rows, with ROUTE_COLUMN and every column."""
        return pa.schema([pa.field(ROUTE_COLUMN, pa.string()), *arrow_schema(self.columns)]).empty_table()


class WindowFrames(Protocol):
    """The net changes of a window as data frames of ROUTE_COLUMN and columns.

    Values of types that Spark lacks travel in others; a cast to the Arrow type of the column restores them.
    """

    def removed(self) -> DataFrame: ...

    def arrived(self) -> DataFrame: ...


class LargeReads(Protocol):
    """Reads windows that are too large for one task, by Spark."""

    def frames(self, spark: SparkSession, window: Window, request: ReadRequest) -> WindowFrames:
        """Raises as ``Source.net_changes``."""
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


class Source(Protocol):
    """A table or log that a pipeline reads. A value that can be sent to a Spark task, which opens what it needs."""

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

    def survey(self, window: Window) -> Survey:
        """Raises ``SourceExpired`` if the window can no longer be read."""
        ...

    def net_changes(self, window: Window, request: ReadRequest, routes: RouteFilter) -> NetChanges:
        """The net changes of some routing values. Raises ``SourceExpired``, ``Unreachable``; the latter also if the
        source was replaced since the survey."""
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
