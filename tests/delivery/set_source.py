"""A source with a set of tables in memory: every version is a state, and windows are differences of states."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from trunkline.delivery.changes.column_steps import NEW, ColumnSteps
from trunkline.delivery.changes.columns import Column, Columns, arrow_schema
from trunkline.delivery.changes.history import VersionedChanges
from trunkline.delivery.changes.net import less, row_codes
from trunkline.delivery.changes.row_versions import versions_of_net
from trunkline.delivery.changes.rows import ROUTE_COLUMN, NetChanges
from trunkline.delivery.changes.versions import Lineage, Window, version_mark
from trunkline.delivery.sources.contract import (
    Backlog,
    ReadRequest,
    Requests,
    RouteFilter,
    SourceState,
    SourceTable,
    Survey,
    SurveyedTable,
    TableSurvey,
)
from trunkline.delivery.sources.route_filter import filtered_table

Row = Mapping[str, Any]
IDENTITY = "a set in memory"
COMMIT_US = 1_790_000_000_000_000


class MemoryTable(Struct, frozen=True):
    """One table in one state. Another ``identity``: it was emptied in between, or is another table."""

    columns: Columns
    rows: tuple[Row, ...] = ()
    key: tuple[str, ...] = ("id",)
    identity: str = "1"

    def table(self, routing: str) -> pa.Table:
        schema = arrow_schema(self.columns)
        rows = pa.Table.from_pylist([dict(row) for row in self.rows], schema)
        routes = rows.column(routing).cast(pa.string()) if routing else pa.nulls(len(rows), pa.string())
        return rows.add_column(0, ROUTE_COLUMN, routes)


State = dict[str, MemoryTable]


def memory_table(columns: str, *rows: Row, **options: Any) -> MemoryTable:
    """``columns``: "id BIGINT, note VARCHAR"."""
    named = (text.strip().split(" ", 1) for text in columns.split(","))
    return MemoryTable(tuple(Column(name, kind) for name, kind in named), rows, **options)


def _steps(before: Columns, after: Columns) -> ColumnSteps:
    """Columns are the same if their names are."""
    places = {column.name: place for place, column in enumerate(before)}
    return ColumnSteps(before, after, tuple(places.get(column.name, NEW) for column in after))


class SetSource:
    """Versions begin at 1. It pickles with all its states."""

    def __init__(self, **first: MemoryTable) -> None:
        self.states: list[State] = []
        self.reads: list[set[str]] = []  # the tables of each read of a window
        self.commit(**first)

    def commit(self, **tables: MemoryTable | None) -> int:
        """The next version: ``public.NAME`` is this table, or (None) there is none. Returns the version."""
        before = self.states[-1] if self.states else {}
        new = before | {f"public.{name}": table for name, table in tables.items() if table is not None}
        self.states.append({name: new[name] for name in new if tables.get(name.partition(".")[2], True) is not None})
        return len(self.states)

    def put(self, name: str, *rows: Row, without: Sequence[object] = ()) -> int:
        """Rows by key replace others; those ``without`` go."""
        table = self.states[-1][f"public.{name}"]
        (key,) = table.key
        kept = {row[key]: row for row in table.rows if row[key] not in without} | {row[key]: row for row in rows}
        return self.commit(**{name: replace(table, rows=tuple(kept.values()))})

    def at(self, version: int) -> State:
        return self.states[version - 1] if version > 0 else {}

    # --- as a source ---

    def change_hint(self) -> object:
        return None

    def state(self, known: int) -> SourceState:
        version = len(self.states)
        return SourceState(version, 1, (), IDENTITY, mark=self._mark(version), known_mark=self._mark(known))

    def lineage(self, versions: Collection[int]) -> Lineage:
        return Lineage(IDENTITY, len(self.states), {version: self._mark(version) for version in versions if version})

    def _mark(self, version: int) -> str:
        return version_mark(IDENTITY, version)

    def tables(self, version: int) -> tuple[SourceTable, ...]:
        found = self.at(version or len(self.states))
        return tuple(self._table(name, found[name]) for name in sorted(found))

    def _table(self, name: str, table: MemoryTable) -> SourceTable:
        return SourceTable(name, table.columns, table.key, table.identity)

    def check_keys(self, table: str, key: tuple[str, ...], routing: str) -> None:
        pass

    def survey(self, window: Window) -> Survey:
        before, now = self.at(window.after), self.at(window.through)
        marks = (self._mark(window.after), self._mark(window.through))
        tables = []
        for name in sorted(now):
            old, new = before.get(name), now[name]
            whole = window.after > 0 and (old is None or old.identity != new.identity)
            quiet = old is not None and old.rows == new.rows and not whole
            altered = old is not None and old.columns != new.columns
            steps = None if old is None or whole else _steps(old.columns, new.columns)
            backlog = Backlog(len(new.rows), 0, quiet)
            survey = TableSurvey(backlog, new.columns, new.identity, altered, "", *marks, steps=steps)
            tables.append(SurveyedTable(self._table(name, new), survey, whole))
        return Survey(tuple(tables), IDENTITY, tuple(sorted(before.keys() - now.keys())), *marks)

    def net_changes(self, window: Window, requests: Requests, routes: RouteFilter) -> dict[str, NetChanges]:
        self.reads.append(set(requests))
        return {name: self._net(window, name, request, routes) for name, request in requests.items()}

    def _net(self, window: Window, name: str, request: ReadRequest, routes: RouteFilter) -> NetChanges:
        old, new = self.at(window.after).get(name), self.at(window.through)[name]
        names = [ROUTE_COLUMN, *(column.name for column in request.columns)]
        now = new.table(request.routing).select(names)
        whole = old is None or old.identity != new.identity
        if old is None or whole:
            nothing = now.slice(0, 0).select([ROUTE_COLUMN, *request.stated])
            return NetChanges(nothing, filtered_table(now, routes), emptied=window.after > 0)
        was = old.table(request.routing)
        for column in arrow_schema(request.columns):
            if column.name not in was.column_names:
                was = was.append_column(column, pa.nulls(len(was), column.type))
        was = was.select(names)
        removed = less(was, now).select([ROUTE_COLUMN, *request.stated])
        return NetChanges(filtered_table(removed, routes), filtered_table(less(now, was), routes))

    def versions(self, window: Window, requests: Requests, routes: RouteFilter) -> dict[str, VersionedChanges]:
        found = self.net_changes(window, requests, routes)
        return {
            name: versions_of_net(net, requests[name].columns, window.through, COMMIT_US + window.through)
            for name, net in found.items()
        }

    def live(self, table: str, version: int, request: ReadRequest, keys: pa.Table) -> pa.Table:
        rows = self.at(version)[table].table(request.routing)
        names = [ROUTE_COLUMN, *request.key]
        codes = row_codes(pa.concat_tables([rows.select(names), keys.select(names).cast(rows.select(names).schema)]))
        wanted = set(codes[len(rows) :].tolist())
        found = rows.take([place for place in range(len(rows)) if codes[place] in wanted])
        return found.select([ROUTE_COLUMN, *(column.name for column in request.columns)])

    def scan(
        self, version: int, requests: Requests, routes: RouteFilter
    ) -> Iterator[tuple[str, Iterator[pa.RecordBatch]]]:
        for name, request in requests.items():
            rows = self.at(version)[name].table(request.routing)
            wanted = rows.select([ROUTE_COLUMN, *(column.name for column in request.columns)])
            yield name, iter(filtered_table(wanted, routes).to_batches())

    def large_reads(self, tables: Collection[str]) -> None:
        return None

    def native_reads(self, table: str) -> None:
        return None
