"""A DuckLake table as a source of changes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock

import duckdb
import pyarrow as pa
from msgspec import Struct

from trunkline.delivery.backends.duckdb_pool import pooled_duckdb
from trunkline.delivery.backends.ducklake_attachment import catalog_location, catalog_scanners, detach
from trunkline.delivery.backends.file_stamp import file_stamp
from trunkline.delivery.backends.object_errors import store_reason
from trunkline.delivery.backends.object_store import only_secret
from trunkline.delivery.changes.columns import Columns
from trunkline.delivery.changes.history import VersionedChanges
from trunkline.delivery.changes.row_versions import versions_of_net
from trunkline.delivery.changes.rows import NetChanges
from trunkline.delivery.changes.versions import BEFORE_ALL, Lineage, Window
from trunkline.delivery.config.addresses import LakeAddress
from trunkline.delivery.sources.contract import Backlog, ReadRequest, RouteFilter, SourceState, TableSurvey
from trunkline.delivery.sources.ducklake_catalog import CATALOG, LakeCatalog, plain, restatement
from trunkline.delivery.sources.ducklake_snapshot import LakeSnapshots
from trunkline.delivery.sources.ducklake_spark import LakeLargeReads
from trunkline.delivery.sources.ducklake_window import WindowPlan, WindowReader, plan_window
from trunkline.errors import Unreachable

THREADS = 1  # of a DuckDB instance: as many tasks read at once as there are cores
OUTSIDE = (  # errors of files and servers; DuckDB has no class for those of PostgreSQL
    duckdb.Error,
    duckdb.IOException,
    duckdb.HTTPException,
    duckdb.ConnectionException,
)


class DuckLakeSource(Struct, frozen=True):
    """A table of a lake.

    Each call opens the catalog, and closes it before any file is read: a catalog in a DuckDB file can be open in one
    process at a time, and a reader of one in SQLite blocks writers.
    """

    address: LakeAddress
    of_set: bool = False  # it is one table of a set: marks are those of the set

    def change_hint(self) -> object:
        """The stamps of a catalog's files: each commit changes them."""
        kind, location = catalog_location(self.address.catalog)
        if kind == "postgres":
            return None
        return tuple(file_stamp(location + suffix) for suffix in ("", ".wal", "-wal"))

    def state(self, known: int) -> SourceState:
        with self.catalog() as (_, catalog):
            return catalog.state(known)

    def lineage(self, versions: Collection[int]) -> Lineage:
        with self.catalog() as (_, catalog):
            return catalog.lineage(versions)

    def columns(self, version: int) -> Columns:
        with self.catalog() as (_, catalog):
            return plain(catalog.columns(version))

    def check_keys(self, key: tuple[str, ...], routing: str) -> None:
        """Removed rows are whole."""

    def survey(self, window: Window) -> TableSurvey:
        with self.opened(window) as (_, catalog, plan):
            return surveyed(catalog, plan)

    def plan(self, window: Window, mark: str = "") -> WindowPlan:
        with self.opened(window) as (_, catalog, plan):
            catalog.check_mark(window.through, mark)
            return plan

    @contextmanager
    def catalog(self) -> Iterator[tuple[duckdb.DuckDBPyConnection, LakeCatalog]]:
        """The catalog in one transaction, which may block writers of the lake."""
        with self.connection() as connection, self.attached(connection) as catalog:
            yield connection, catalog

    @contextmanager
    def opened(self, window: Window) -> Iterator[tuple[duckdb.DuckDBPyConnection, LakeCatalog, WindowPlan]]:
        """The catalog in one transaction, with the plan of a window."""
        with self.catalog() as (connection, catalog):
            yield connection, catalog, plan_window(catalog, window)

    def net_changes(self, window: Window, request: ReadRequest, routes: RouteFilter) -> NetChanges:
        with self.reader(window, request) as reader:
            return reader.read(routes)

    def versions(self, window: Window, request: ReadRequest, routes: RouteFilter) -> VersionedChanges:
        net = self.net_changes(window, request, routes)
        with self.catalog() as (_, catalog):
            return versions_of_net(net, request.columns, window.through, catalog.committed_us(window.through))

    def live(self, version: int, request: ReadRequest, keys: pa.Table) -> pa.Table:
        with self.reader(Window(BEFORE_ALL, version), request) as reader:
            return reader.arrived_among(keys)

    def scan(self, version: int, request: ReadRequest, routes: RouteFilter) -> Iterator[pa.RecordBatch]:
        with self.reader(Window(BEFORE_ALL, version), request) as reader:
            yield from reader.arrived(routes)

    def large_reads(self) -> LakeLargeReads:
        return LakeLargeReads(self)

    def native_reads(self) -> LakeSnapshots:
        return LakeSnapshots(self.address)

    # --- opening ---

    @contextmanager
    def reader(
        self, window: Window, request: ReadRequest, part_of: Callable[[WindowPlan], WindowPlan] | None = None
    ) -> Iterator[WindowReader]:
        """Reads a window, or the part of its plan that ``part_of`` returns."""
        with self.connection() as connection:
            with self.attached(connection) as catalog:
                catalog.check_mark(window.through, request.mark)
                plan = plan_window(catalog, window)
                reader = WindowReader(connection, catalog, part_of(plan) if part_of else plan, request)
            yield reader

    @contextmanager
    def connection(self) -> Iterator[duckdb.DuckDBPyConnection]:
        with self._translated_errors(), pooled_duckdb(*catalog_scanners(self.address)) as connection:
            connection.execute(f"SET threads = {THREADS}")
            only_secret(connection, self.address)
            yield connection

    @contextmanager
    def attached(self, connection: duckdb.DuckDBPyConnection) -> Iterator[LakeCatalog]:
        """The catalog, open for one transaction."""
        with _catalog_lock(self.address.catalog):
            with LakeCatalog(connection, self.address, marks_lake=self.of_set) as catalog:
                yield catalog
            detach(connection, CATALOG)

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Translates errors about a catalog or a file that cannot be read."""
        try:
            yield
        except duckdb.Error as error:
            if type(error) not in OUTSIDE:
                raise
            said = store_reason(error, self.address)
            raise Unreachable(f"the lake {self.address.catalog} cannot be read now: {said}") from error


def surveyed(catalog: LakeCatalog, plan: WindowPlan) -> TableSurvey:
    """In the transaction of the plan."""
    window = plan.window
    rows = 0 if plan.quiet else plan.rows + catalog.inlined_rows(window)
    backlog = Backlog(rows, plan.size_bytes, quiet=plan.quiet)
    before = plan.columns if window.after == BEFORE_ALL else catalog.columns_before(window)
    altered, restated = plain(before) != plain(plan.columns), restatement(before, plan.columns)
    identity, marks = catalog.table(window.through).uuid, catalog.marks(window)
    numbers = tuple(known.id for known in plan.columns)
    return TableSurvey(backlog, plain(plan.columns), identity, altered, restated, *marks, numbers=numbers)


@cache
def _catalog_lock(catalog: str) -> Lock:
    """One thread of a process at a time can have a catalog in a DuckDB file open."""
    return Lock()
