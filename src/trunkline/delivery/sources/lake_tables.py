"""Several tables of one lake as a source.

Rules
 U1  The tables of a lake share its snapshots: a version of the set is a snapshot, and all tables are read at it.
 U2  A table that is created, renamed or created again in a window is read whole; so is one whose rows have other values
     without having been written, or whose changes DuckLake lost.
 U3  A call reads the catalog in one transaction, and costs what the tables with changes cost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from trunkline.delivery.changes.columns import Columns
from trunkline.delivery.changes.history import VersionedChanges
from trunkline.delivery.changes.row_versions import versions_of_net
from trunkline.delivery.changes.rows import NetChanges
from trunkline.delivery.changes.versions import BEFORE_ALL, Lineage, Window
from trunkline.delivery.config.addresses import LakeAddress
from trunkline.delivery.config.table_patterns import Selection
from trunkline.delivery.sources.contract import (
    LargeReads,
    NativeReads,
    ReadRequest,
    Requests,
    RouteFilter,
    SourceState,
    SourceTable,
    Survey,
    SurveyedTable,
    WindowFrames,
)
from trunkline.delivery.sources.ducklake import DuckLakeSource, surveyed
from trunkline.delivery.sources.ducklake_catalog import LakeCatalog, LakeColumn, plain
from trunkline.delivery.sources.ducklake_set import LakeSet
from trunkline.delivery.sources.ducklake_window import WindowReader, plan_window
from trunkline.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class TableOfLake(Struct, frozen=True):
    """A table at a snapshot. ``id``: its number in the lake."""

    id: int
    schema: str
    name: str
    columns: Columns


class SnapshotOfLake(Struct, frozen=True):
    """``lake``: its identity."""

    lake: str
    number: int  # -1: the lake does not have this snapshot
    time_us: int = 0
    mark: str = ""
    tables: tuple[TableOfLake, ...] = ()


class LakeTables(Struct, frozen=True):
    """Several tables of one lake. ``address``: of the lake, whatever table it names."""

    address: LakeAddress
    selection: Selection

    def _source(self, table: str = "") -> DuckLakeSource:
        schema, _, name = table.partition(".")
        return DuckLakeSource(replace(self.address, schema=schema, table=name), of_set=True)

    def change_hint(self) -> object:
        return self._source().change_hint()

    def state(self, known: int) -> SourceState:
        with self._source().catalog() as (_, catalog):
            return LakeSet(catalog, self.address, self.selection).state(known)

    def lineage(self, versions: Collection[int]) -> Lineage:
        with self._source().catalog() as (_, catalog):
            identity = catalog.lake()
            return Lineage(identity, catalog.newest(), catalog.marks_of(versions, identity))

    def tables(self, version: int) -> tuple[SourceTable, ...]:
        with self._source().catalog() as (_, catalog):
            known = LakeSet(catalog, self.address, self.selection)
            at = version or catalog.newest()
            found = known.tables(at)
            if not version and (lacking := [".".join(each) for each in self.selection.named() if each not in found]):
                raise ConfigError(
                    f"the lake {self.address.catalog} has no table {', '.join(lacking)}; name others in `tables`"
                )
            views = known.views(Window(BEFORE_ALL, at))
            return tuple(_table(name, view.columns(at), view.table(at).uuid) for name, view in views.items())

    def snapshot(self, number: int | None) -> SnapshotOfLake:
        """One snapshot, or the newest, with the tables of the set."""
        with self._source().catalog() as (_, catalog):
            identity, at = catalog.lake(), catalog.newest() if number is None else number
            if (mark := catalog.marks_of([at], identity).get(at)) is None:
                return SnapshotOfLake(identity, -1)
            known = LakeSet(catalog, self.address, self.selection)
            ids, views = known.tables(at), known.views(Window(BEFORE_ALL, at))
            tables = [
                TableOfLake(table.id, schema, name, plain(views[f"{schema}.{name}"].columns(at)))
                for (schema, name), table in sorted(ids.items())
            ]
            return SnapshotOfLake(identity, at, catalog.time_us(at), mark, tuple(tables))

    def check_keys(self, table: str, key: tuple[str, ...], routing: str) -> None:
        """Removed rows are whole."""

    def survey(self, window: Window) -> Survey:
        with self._source().catalog() as (_, catalog):
            known = LakeSet(catalog, self.address, self.selection)
            catalog.check_ends(window)
            identity = catalog.lake()
            marks = catalog.marks_of({window.after, window.through}, identity)
            tables = tuple(self._surveyed(known, name, view, window) for name, view in known.plannable(window).items())
            gone = sorted(known.tables(window.after).keys() - known.tables(window.through).keys())
            left = tuple(".".join(each) for each in gone)
            return Survey(tables, identity, left, marks.get(window.after, ""), marks.get(window.through, ""))

    def _surveyed(self, known: LakeSet, name: str, view: LakeCatalog, window: Window) -> SurveyedTable:
        part = known.reading(view, window)
        found = surveyed(view, plan_window(view, part))
        whole = part != window
        if whole:
            backlog = replace(found.backlog, rows=max(found.backlog.rows, 1), quiet=False)
            found = replace(found, backlog=backlog)
        table = SourceTable(name, found.columns, identity=found.identity, numbers=found.numbers)
        return SurveyedTable(table, found, whole)

    def net_changes(self, window: Window, requests: Requests, routes: RouteFilter) -> dict[str, NetChanges]:
        source = self._source()
        readers: dict[str, tuple[WindowReader, bool]] = {}
        with source.connection() as connection:
            with source.attached(connection) as catalog:
                known = LakeSet(catalog, self.address, self.selection)
                for name, view in known.plannable(window, requests).items():
                    view.check_mark(window.through, requests[name].mark)
                    part = known.reading(view, window)
                    reader = WindowReader(connection, view, plan_window(view, part), requests[name])
                    readers[name] = (reader, part != window)
            found: dict[str, NetChanges] = {}
            for name in list(readers):
                reader, whole = readers.pop(name)
                net = reader.read(routes)
                found[name] = NetChanges(net.removed, net.arrived, whole)
            return found

    def versions(self, window: Window, requests: Requests, routes: RouteFilter) -> dict[str, VersionedChanges]:
        found = self.net_changes(window, requests, routes)
        with self._source().catalog() as (_, catalog):
            time_us = catalog.committed_us(window.through)
        return {
            name: versions_of_net(net, requests[name].columns, window.through, time_us) for name, net in found.items()
        }

    def live(self, table: str, version: int, request: ReadRequest, keys: pa.Table) -> pa.Table:
        return self._source(table).live(version, request, keys)

    def scan(
        self, version: int, requests: Requests, routes: RouteFilter
    ) -> Iterator[tuple[str, Iterator[pa.RecordBatch]]]:
        for name, request in requests.items():
            yield name, self._source(name).scan(version, request, routes)

    def large_reads(self, tables: Collection[str]) -> Mapping[str, LargeReads]:
        return {table: _LargeTable(self, table) for table in tables}

    def native_reads(self, table: str) -> NativeReads:
        return self._source(table).native_reads()


def _table(name: str, columns: Sequence[LakeColumn], identity: str) -> SourceTable:
    return SourceTable(name, plain(columns), identity=identity, numbers=tuple(known.id for known in columns))


class _LargeTable(Struct, frozen=True):
    """Large windows of one table of a lake's set."""

    lake: LakeTables
    table: str

    def frames(self, spark: SparkSession, window: Window, request: ReadRequest) -> WindowFrames:
        """A survey says which tables are read whole."""
        source = self.lake._source(self.table)
        with source.catalog() as (_, catalog):
            known = LakeSet(catalog, self.lake.address, self.lake.selection)
            part = known.reading(known.views(window, [self.table])[self.table], window)
        return source.large_reads().frames(spark, part, request)
