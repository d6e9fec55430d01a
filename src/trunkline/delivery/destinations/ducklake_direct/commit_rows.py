"""The rows that one commit adds to a catalog, gathered for all its tables and written in few statements.

    ducklake_snapshot            the next number; a new ``next_file_id``
    ducklake_snapshot_changes    what happened to which table
    ducklake_data_file           new files, and the end of files without rows
    ducklake_file_column_stats   bounds of each column of each new file
    ducklake_delete_file         new ones; a replaced one goes, and its path is scheduled for deletion
    ducklake_table_stats         rows ever added (deletions do not lower it), the next row id, bytes
    ducklake_table_column_stats  bounds of each column of the table, widened

Rules
 W1  The first row id of a file is the table's ``next_row_id``, which moves on by its rows.
 W2  ``next_file_id`` moves on with each file, and by one more if rows are inlined: the extension's caches of statistics
     are valid for one value of it.
 W3  A column without bounds of the table was added after its first rows. It stays so.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from typing import Any, Final

from trunkline.delivery.destinations.ducklake_direct.bounds import (
    ColumnBounds,
    TableBounds,
    first_bounds,
    widened,
)
from trunkline.delivery.destinations.ducklake_direct.catalog import Catalog, insert
from trunkline.delivery.destinations.ducklake_direct.parquet_file import WrittenFile
from trunkline.delivery.destinations.ducklake_direct.table_state import (
    DataFile,
    DeleteFile,
    Head,
    TableCounts,
    TableState,
)

BOUNDS_EACH: Final = 1000  # of one statement; more: SQLite refuses it
KINDS: Final = ("inserted_into_table", "deleted_from_table", "inlined_insert", "inlined_delete")


class CommitRows:
    """Of one attempt."""

    def __init__(self, catalog: Catalog, head: Head) -> None:
        self._catalog = catalog
        self._head = head
        self.snapshot = head.snapshot + 1
        self._next_file = head.next_file_id
        self._time = _now()
        self._changes: dict[str, list[int]] = {kind: [] for kind in KINDS}
        self._data_files: list[tuple[Any, ...]] = []
        self._file_bounds: list[tuple[Any, ...]] = []
        self._delete_files: list[tuple[Any, ...]] = []
        self._replaced: list[int] = []
        self._scheduled: list[tuple[Any, ...]] = []
        self._ended: list[int] = []
        self._counts: dict[int, TableCounts] = {}
        self._new_counts: set[int] = set()
        self._bounds: list[tuple[Any, ...]] = []
        self._new_bounds: list[tuple[Any, ...]] = []

    def begin(self) -> None:
        """The row whose number is the conflict, before any other write."""
        insert(
            self._catalog,
            "ducklake_snapshot",
            "snapshot_id, snapshot_time, schema_version, next_catalog_id, next_file_id",
            [(self.snapshot, self._time, self._head.schema_version, self._head.next_catalog_id, self._next_file)],
        )

    # ------------------------------------------------------------------------------------------------------- files

    def added(self, state: TableState, file: WrittenFile, bounds: Mapping[int, ColumnBounds]) -> None:
        """A data file; ``bounds`` by column, in the order of the file's columns."""
        number, counts = self._numbered(), self._counts_of(state)
        self._note("inserted_into_table", state)
        start = counts.next_row_id  # W1
        sizes = (file.rows, file.size_bytes, file.footer_bytes, start)
        self._data_files.append((number, state.id, self.snapshot, file.name, True, "parquet", *sizes))
        kinds = {each.id: each.column.type for each in state.columns}
        for (column, each), size in zip(bounds.items(), file.column_bytes, strict=True):
            texts = each.texts(kinds[column])
            self._file_bounds.append((number, state.id, column, size, each.values, each.nulls, *texts, each.nan))
        self._widen(state, bounds)
        self._counts[state.id] = TableCounts(
            counts.rows + file.rows, start + file.rows, counts.size_bytes + file.size_bytes
        )

    def deleted(
        self, state: TableState, data_file: DataFile, file: WrittenFile, count: int, held: DeleteFile | None
    ) -> None:
        """Rows of a data file, by a delete file that replaces ``held``."""
        number = self._numbered()
        self._note("deleted_from_table", state)
        begin, partial = (self.snapshot, None) if held is None else (held.begin, self.snapshot)
        sizes = (count, file.size_bytes, file.footer_bytes, partial)
        self._delete_files.append((number, state.id, begin, data_file.id, file.name, True, "parquet", *sizes))
        if held is not None:
            self._replaced.append(held.id)
            self._scheduled.append((held.id, held.relative, True, self._time))

    def emptied(self, state: TableState, data_file: DataFile) -> None:
        """A data file has no row left."""
        self._note("deleted_from_table", state)
        self._ended.append(data_file.id)

    def inlined(self, state: TableState, count: int, bounds: Mapping[int, ColumnBounds]) -> None:
        """Rows were replaced by inlined ones, whose row ids they keep."""
        self._next_file += 1  # W2
        self._note("inlined_insert", state)
        self._note("inlined_delete", state)
        counts = self._counts_of(state)
        self._widen(state, bounds)
        self._counts[state.id] = TableCounts(counts.rows + count, counts.next_row_id, counts.size_bytes)

    def _numbered(self) -> int:
        self._next_file += 1
        return self._next_file - 1

    def _note(self, kind: str, state: TableState) -> None:
        if state.id not in self._changes[kind]:
            self._changes[kind].append(state.id)

    def _counts_of(self, state: TableState) -> TableCounts:
        found = self._counts.get(state.id, state.counts)
        if found is None:
            self._new_counts.add(state.id)
            found = TableCounts(0, 0, 0)
        return found

    def _widen(self, state: TableState, bounds: Mapping[int, ColumnBounds]) -> None:
        kinds = {each.id: each.column.type for each in state.columns}
        if state.counts is None:
            made = {column: first_bounds(kinds[column], each) for column, each in bounds.items()}
            self._new_bounds += [_bounds_row(state, column, each) for column, each in made.items()]
            return
        for column, each in bounds.items():
            if (held := state.bounds.get(column)) is not None:  # W3
                had = held.low is not None or held.high is not None or self._had_values(state, column, each)
                if (wide := widened(kinds[column], held, each, had_values=had)) != held:
                    self._bounds.append(_bounds_row(state, column, wide))

    def _had_values(self, state: TableState, column: int, new: ColumnBounds) -> bool:
        """Whether any row may have had a value (B5)."""
        if new.values == 0 or state.inlined:
            return True
        found = self._catalog.rows(
            f"SELECT 1 FROM ducklake_file_column_stats WHERE table_id = {state.id} AND column_id = {column} "
            "AND (value_count IS NULL OR value_count > 0) LIMIT 1"
        )
        without = self._catalog.rows(
            f"SELECT count(*) FROM ducklake_data_file f WHERE f.table_id = {state.id} AND NOT EXISTS (SELECT 1 FROM "
            "ducklake_file_column_stats s WHERE s.data_file_id = f.data_file_id AND s.table_id = f.table_id "
            f"AND s.column_id = {column})"
        )
        return bool(found) or without != [(0,)]

    # ------------------------------------------------------------------------------------------------------ writing

    def write(self) -> None:
        """Everything but the row of ``begin``, which gets its last value."""
        catalog, snapshot = self._catalog, self.snapshot
        made = ",".join(f"{kind}:{table}" for kind, tables in self._changes.items() for table in tables)
        catalog.run(
            f"UPDATE ducklake_snapshot SET next_file_id = {self._next_file} WHERE snapshot_id = {self.snapshot}"
        )
        insert(catalog, "ducklake_snapshot_changes", "snapshot_id, changes_made", [(snapshot, made)])
        insert(catalog, "ducklake_data_file", _DATA_FILE, self._data_files)
        insert(catalog, "ducklake_file_column_stats", _FILE_BOUNDS, self._file_bounds)
        if self._replaced:
            catalog.run(f"DELETE FROM ducklake_delete_file WHERE delete_file_id IN ({_listed(self._replaced)})")
        insert(catalog, "ducklake_delete_file", _DELETE_FILE, self._delete_files)
        insert(catalog, "ducklake_files_scheduled_for_deletion", _SCHEDULED, self._scheduled)
        if self._ended:
            ended = _listed(self._ended)
            catalog.run(f"UPDATE ducklake_data_file SET end_snapshot = {snapshot} WHERE data_file_id IN ({ended})")
        self._write_counts()
        self._write_bounds()

    def _write_counts(self) -> None:
        columns = "table_id, record_count, next_row_id, file_size_bytes"
        if known := [number for number in self._counts if number not in self._new_counts]:
            self._catalog.run(f"DELETE FROM ducklake_table_stats WHERE table_id IN ({_listed(known)})")
        rows = [(number, each.rows, each.next_row_id, each.size_bytes) for number, each in self._counts.items()]
        insert(self._catalog, "ducklake_table_stats", columns, rows)

    def _write_bounds(self) -> None:
        """Those that changed are replaced, in as many statements as there are chunks."""
        for begin in range(0, len(self._bounds), BOUNDS_EACH):
            pairs = ", ".join(f"({table}, {column})" for table, column, *_ in self._bounds[begin : begin + BOUNDS_EACH])
            self._catalog.run(
                f"DELETE FROM ducklake_table_column_stats WHERE (table_id, column_id) IN (VALUES {pairs})"
            )
        rows = [*self._bounds, *self._new_bounds]
        insert(self._catalog, "ducklake_table_column_stats", _TABLE_BOUNDS, rows)


_DATA_FILE: Final = (
    "data_file_id, table_id, begin_snapshot, path, path_is_relative, file_format, record_count, file_size_bytes, "
    "footer_size, row_id_start"
)
_FILE_BOUNDS: Final = (
    "data_file_id, table_id, column_id, column_size_bytes, value_count, null_count, min_value, max_value, contains_nan"
)
_DELETE_FILE: Final = (
    "delete_file_id, table_id, begin_snapshot, data_file_id, path, path_is_relative, format, delete_count, "
    "file_size_bytes, footer_size, partial_max"
)
_SCHEDULED: Final = "data_file_id, path, path_is_relative, schedule_start"
_TABLE_BOUNDS: Final = "table_id, column_id, contains_null, contains_nan, min_value, max_value"


def _bounds_row(state: TableState, column: int, bounds: TableBounds) -> tuple[Any, ...]:
    return state.id, column, bounds.nulls, bounds.nan, bounds.low, bounds.high


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


def _now() -> str:
    """As the extension spells a time."""
    now = datetime.datetime.now(datetime.UTC)
    part = f".{now.microsecond:06}".rstrip("0") if now.microsecond else ""
    return f"{now:%Y-%m-%d %H:%M:%S}{part}+00"
