"""One window of a DuckLake table as the net difference of two states, found by DuckDB from the files that differ.

Rows are identified by (file, position); an inlined row by its place in the catalog. For a data file F and a version v
let dead(F, v) be the positions deleted by v, and born(F, v) the rows whose own snapshot id is <= v (all, unless F has
`partial_max`).

    F is part of       arrived                                     removed
    `through` only     born(F, through) - dead(F, through)         -
    `after` only       -                                           born(F, after) - dead(F, after)
    both               born in the window - dead(F, through)       born(F, after) and dead(F, through) - dead(F, after)

This is exact because the catalog describes every state exactly (see ``ducklake_catalog``): no feed of events is read.
No other file can differ: a row born, or a position deleted, after `after` lies in a file that was written after
`after`, and ids of files only grow.

The errors of DuckLake 1.0's own feeds were measured; each is a mutant that ``./run fuzz`` finds. Their bounds are
inclusive on both sides. Rows that a transaction wrote and removed appear, with no order inside a version. A row gets
another row id when files are merged. A rewrite appears as removals and arrivals of every row. After inlined rows were
flushed, deletions have wrong versions. Even ``AT (VERSION => v)`` shows deleted rows again where a file was rewritten
before the deletes in the catalog were flushed; the union of all dead positions, which is used here, does not.

Rows have the columns as of `through`, identified by their ids: renamed and widened ones with their new name and type,
added ones with the default that the lake gives to older rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import duckdb
import pyarrow as pa
from msgspec import Struct

from trunkline.delivery.backends.duckdb_pool import registered
from trunkline.delivery.backends.sql import identifier, identifiers, literal, same_key
from trunkline.delivery.changes.net import less
from trunkline.delivery.changes.rows import BATCH_ROWS, ROUTE_COLUMN, NetChanges
from trunkline.delivery.changes.versions import BEFORE_ALL, Window
from trunkline.delivery.sources.contract import ALL_ROUTES, ReadRequest, RouteFilter
from trunkline.delivery.sources.ducklake_catalog import (
    InlinedTable,
    LakeCatalog,
    LakeColumn,
    LakeDataFile,
    LakeDeleteFile,
    alive,
)
from trunkline.delivery.sources.ducklake_format import WindowSummary
from trunkline.delivery.sources.route_filter import filtered_rows, route_item

SNAPSHOT_FIELD = 2147483539  # the field id of a row's own snapshot id, in data files and delete files
POSITION_FIELD = 2147483645
FAR = 2**62  # a version after all others


class WindowFile(Struct, frozen=True):
    """A data file whose rows differ between the two ends of a window."""

    file: LakeDataFile
    at_after: bool
    at_through: bool


class WindowPlan(Struct, frozen=True):
    """The files and inlined rows of a table that differ between the ends of a window, by the catalog."""

    window: Window
    columns: tuple[LakeColumn, ...]
    files: tuple[WindowFile, ...] = ()
    deletes: tuple[LakeDeleteFile, ...] = ()  # of those files
    inlined: tuple[InlinedTable, ...] = ()
    inlined_dead: tuple[tuple[int, int, int], ...] = ()  # (file id, position, version): deletes in the catalog
    quiet: bool = False  # nothing in the window changes a row
    moved: bool = False  # files may have been rewritten: rows that are equal on both sides were only moved

    @property
    def size_bytes(self) -> int:
        """Of the files that must be read in full."""
        return sum(part.file.size_bytes for part in self.files if part.at_after != part.at_through)

    @property
    def rows(self) -> int:
        """The approximate number of rows and deleted positions of the window in files."""
        whole = sum(part.file.rows for part in self.files if part.at_after != part.at_through)
        dead = sum(file.positions for file in self.deletes if file.begin > self.window.after)
        return whole + dead + sum(version > self.window.after for *_, version in self.inlined_dead)


def plan_window(catalog: LakeCatalog, window: Window) -> WindowPlan:
    """Find the files in which a row was born or died in the window. Call it in the catalog's transaction."""
    return plan_summary(catalog, window, catalog.summary(window))


def plan_summary(catalog: LakeCatalog, window: Window, summary: WindowSummary) -> WindowPlan:
    """The plan of a window whose changes are known."""
    columns = catalog.columns(window.through)
    if not summary.changes_rows:
        return WindowPlan(window, columns, quiet=True)
    dead = catalog.inlined_dead(window.through)
    deletes = catalog.delete_files(window)
    touched = {file for file, _, version in dead if version > window.after}
    touched |= {file.data_file for file in deletes if file.begin > window.after or file.id >= summary.new_files}
    files = tuple(_parts(catalog.data_files(window, summary.new_files, sorted(touched)), window))
    ids = {part.file.id for part in files}
    return WindowPlan(
        window,
        columns,
        files,
        tuple(file for file in deletes if file.data_file in ids),
        catalog.inlined_tables(window.through),
        tuple(row for row in dead if row[0] in ids),
        moved=summary.may_move_rows and window.after != BEFORE_ALL,
    )


def _parts(files: Iterable[LakeDataFile], window: Window) -> Iterator[WindowFile]:
    for file in files:
        part = WindowFile(file, alive(file.begin, file.end, window.after), alive(file.begin, file.end, window.through))
        if part.at_after or part.at_through:
            yield part


class WindowReader:
    """Reads a planned window with DuckDB.

    Create it in the transaction of the plan: it reads inlined rows at once. All other reads need only the files, so
    they do not block writers of the lake.
    """

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, catalog: LakeCatalog, plan: WindowPlan, request: ReadRequest
    ) -> None:
        self._connection = connection
        self._plan = plan
        self._columns = tuple(column.name for column in request.columns)
        self._key = self._columns if plan.moved else request.stated  # moved rows are identified by all their values
        self._request = request
        self._known = {column.column.name: column for column in plan.columns}
        self._inlined_removed = self._read_inlined(catalog, self._key, _inlined_removed(plan.window))
        self._inlined_arrived = self._read_inlined(catalog, self._columns, _inlined_arrived(plan.window))

    def read(self, routes: RouteFilter) -> NetChanges:
        """The net changes of some routing values."""
        with self._dead_positions(self._plan):
            removed = self._fetch(self._removed(), self._inlined_removed, routes)
            arrived = self._fetch(self._arrived(), self._inlined_arrived, routes)
        if not self._plan.moved:
            return NetChanges(removed, arrived)
        return NetChanges(less(removed, arrived).select([ROUTE_COLUMN, *self._request.stated]), less(arrived, removed))

    def arrived(self, routes: RouteFilter) -> Iterator[pa.RecordBatch]:
        """The arrived rows of some routing values, in batches. Only for a plan without moved rows."""
        assert not self._plan.moved, "moved rows are known only when all rows are"
        with self._dead_positions(self._plan), self._relation(self._arrived(), self._inlined_arrived, routes) as found:
            yield from found.to_arrow_reader(BATCH_ROWS)

    def arrived_among(self, keys: pa.Table) -> pa.Table:
        """The arrived rows whose (route, key) is in ``keys``; NULL equals NULL."""
        names = [ROUTE_COLUMN, *self._request.key]
        with (
            self._dead_positions(self._plan),
            self._relation(self._arrived(), self._inlined_arrived, ALL_ROUTES) as found,
            registered(self._connection, window_keys=keys.select(names)),
        ):
            chosen = f"SELECT t.* FROM arrived_rows t SEMI JOIN window_keys k ON {same_key(names, 't', 'k')}"
            return found.query("arrived_rows", chosen).to_arrow_table()

    def _fetch(self, parts: Sequence[str], inlined: pa.Table, routes: RouteFilter) -> pa.Table:
        if not parts and (routes == ALL_ROUTES or not inlined.num_rows):
            return inlined
        with self._relation(parts, inlined, routes) as found:
            return found.to_arrow_table()

    @contextmanager
    def _relation(
        self, parts: Sequence[str], inlined: pa.Table, routes: RouteFilter
    ) -> Iterator[duckdb.DuckDBPyRelation]:
        """Rows of files and inlined rows, together."""
        named = identifiers(inlined.column_names)
        if inlined.num_rows or not parts:
            parts = [*parts, f"SELECT {named} FROM window_inlined"]
        query = f"SELECT {named} FROM ({' UNION ALL '.join(parts)})"
        with (
            registered(self._connection, window_inlined=inlined),
            filtered_rows(self._connection, query, routes) as chosen,
        ):
            yield self._connection.sql(chosen)

    # --- dead positions ---

    @contextmanager
    def _dead_positions(self, plan: WindowPlan) -> Iterator[None]:
        """A table of (file, position, by_after, by_through) for every file of a plan that has deletes."""
        window, held = plan.window, plan.inlined_dead
        if not held and not plan.deletes:
            yield  # nothing refers to the table
            return
        inlined_dead = pa.table(
            [pa.array([row[place] for row in held], pa.int64()) for place in range(3)], ["file", "position", "died"]
        )
        events = [f"SELECT file, position, died, {FAR} AS ended FROM window_dead"]
        events += [self._deletions(plan.deletes)] if plan.deletes else []
        with registered(self._connection, window_dead=inlined_dead):
            self._connection.execute(
                f"""CREATE OR REPLACE TEMP TABLE dead AS SELECT file, position,
                bool_or(died <= {window.after} AND ended > {window.after}) AS by_after,
                bool_or(died <= {window.through} AND ended > {window.through}) AS by_through
                FROM ({" UNION ALL ".join(events)}) GROUP BY ALL"""
            )
        yield
        self._connection.execute("DROP TABLE temp.dead")

    def _deletions(self, files: Sequence[LakeDeleteFile]) -> str:
        """The content of delete files: (file, position, died, ended)."""
        spans = ", ".join(
            f"({place}, {file.data_file}, {file.begin}, {file.end or FAR})" for place, file in enumerate(files)
        )
        fields = {POSITION_FIELD: ("position", "BIGINT", None), SNAPSHOT_FIELD: ("died", "BIGINT", None)}
        joined = (
            f"{parquet([file.path for file in files], fields)} p JOIN (VALUES {spans}) b(place, file, begun, ended)"
        )
        died = "coalesce(p.died, b.begun) AS died"
        return f"SELECT b.file, p.position, {died}, b.ended FROM {joined} ON p.file_index = b.place"

    # --- rows of files ---

    def _arrived(self) -> list[str]:
        window = self._plan.window
        new = [part.file for part in self._plan.files if not part.at_after]
        kept = [part.file for part in self._plan.files if part.at_after and part.at_through]
        late = [file for file in kept if (file.partial_max or 0) > window.after]
        born = f"p._snapshot > {window.after} AND p._snapshot <= {window.through}"
        return [
            *self._file_queries(
                new, self._columns, f"coalesce(p._snapshot, 0) <= {window.through}", "ANTI", "by_through"
            ),
            *self._file_queries(late, self._columns, born, "ANTI", "by_through"),
        ]

    def _removed(self) -> list[str]:
        ended = [part.file for part in self._plan.files if not part.at_through]
        kept = [part.file for part in self._plan.files if part.at_after and part.at_through]
        born = f"coalesce(p._snapshot, 0) <= {self._plan.window.after}"
        return [
            *self._file_queries(ended, self._key, born, "ANTI", "by_after"),
            *self._file_queries(kept, self._key, born, "INNER", "by_through AND NOT by_after"),
        ]

    def _file_queries(
        self, files: Sequence[LakeDataFile], names: Sequence[str], born: str, join: str, dead: str
    ) -> Iterator[str]:
        """Rows of files that are ``born``, only (INNER) or without (ANTI) those at some dead positions."""
        dying = {file.data_file for file in self._plan.deletes} | {row[0] for row in self._plan.inlined_dead}
        for partial in (False, True):
            alike = [file for file in files if (file.partial_max is not None) == partial]
            where = f" WHERE {born}" if partial else ""
            clean = [file for file in alike if file.id not in dying]
            if clean and join == "ANTI":
                yield f"SELECT {self._row_items(names)} FROM {self._parquet(clean, names, partial)} p{where}"
            if mixed := [file for file in alike if file.id in dying]:
                places = ", ".join(f"({place}, {file.id})" for place, file in enumerate(mixed))
                chosen = (
                    f"SELECT place, position FROM dead JOIN (VALUES {places}) f(place, file) USING (file) WHERE {dead}"
                )
                joined = f"{join} JOIN ({chosen}) d ON d.place = p.file_index AND d.position = p.file_row_number"
                yield f"SELECT {self._row_items(names)} FROM {self._parquet(mixed, names, partial)} p {joined}{where}"

    def _row_items(self, names: Sequence[str]) -> str:
        return self._select_items(names, lambda column: f"p.c{column.id}")

    def _parquet(self, files: Sequence[LakeDataFile], names: Sequence[str], partial: bool) -> str:
        """Files with columns named after their ids: names of the table may have another meaning in DuckDB."""
        named = dict.fromkeys([*names, *self._request.routings])
        wanted = [self._known[name] for name in named] or [*self._known.values()][:1]  # rows need a column
        fields = {column.id: (f"c{column.id}", column.column.type, column.default) for column in wanted}
        if partial:
            fields[SNAPSHOT_FIELD] = ("_snapshot", "BIGINT", None)
        return parquet([file.path for file in files], fields)

    def _select_items(self, names: Sequence[str], value: Callable[[LakeColumn], str]) -> str:
        """ROUTE_COLUMN and some columns, as SQL."""
        route = route_item(*(value(self._known[name]) for name in self._request.routings))
        return ", ".join([route, *(f"{value(self._known[name])} AS {identifier(name)}" for name in names)])

    # --- inlined rows ---

    def _read_inlined(self, catalog: LakeCatalog, names: Sequence[str], condition: str) -> pa.Table:
        parts = [self._inlined_query(catalog, table, names, condition) for table in self._plan.inlined]
        nothing = (
            f"SELECT {self._select_items(names, lambda column: f'CAST(NULL AS {column.column.type})')} WHERE false"
        )
        return self._connection.sql(" UNION ALL ".join(parts or [nothing])).to_arrow_table()

    def _inlined_query(self, catalog: LakeCatalog, table: InlinedTable, names: Sequence[str], condition: str) -> str:
        """Rows with their names and types as of `through`."""
        held = {known.id: known.column for known in table.columns}

        def value(column: LakeColumn) -> str:
            if column.id not in held:
                return f"CAST({'NULL' if column.default is None else literal(column.default)} AS {column.column.type})"
            kept = held[column.id]
            stored = identifier(kept.name)
            if catalog.kind == "postgres" and kept.type in ("VARCHAR", "JSON"):
                stored = f"decode({stored})"  # PostgreSQL's text cannot hold every string, so they are stored as bytes
            return f"CAST(CAST({stored} AS {kept.type}) AS {column.column.type})"

        return f"SELECT {self._select_items(names, value)} FROM {catalog.reference(table.name)} WHERE {condition}"


def _inlined_arrived(window: Window) -> str:
    born = f"begin_snapshot > {window.after} AND begin_snapshot <= {window.through}"
    return f"{born} AND (end_snapshot IS NULL OR end_snapshot > {window.through})"


def _inlined_removed(window: Window) -> str:
    return f"begin_snapshot <= {window.after} AND end_snapshot > {window.after} AND end_snapshot <= {window.through}"


def parquet(paths: Sequence[str], fields: Mapping[int, tuple[str, str, str | None]]) -> str:
    """Files read by field id, as (name, type, default), with ``file_index`` and ``file_row_number``."""
    entries = ", ".join(
        f"{field}: {{name: {literal(name)}, type: {literal(kind)}, "
        f"default_value: {'NULL' if default is None else literal(default)}}}"
        for field, (name, kind, default) in fields.items()
    )
    listed = ", ".join(literal(path) for path in paths)
    return f"read_parquet([{listed}], schema = MAP {{{entries}}})"
