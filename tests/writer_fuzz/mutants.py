"""Mutants of the direct writer, each with one known bug: the fuzz must find them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from trunkline.delivery.destinations.ducklake_direct import commit_rows, deletions, member, transaction
from trunkline.delivery.destinations.ducklake_direct import record_table as records
from trunkline.delivery.destinations.ducklake_direct.commit_rows import CommitRows
from trunkline.delivery.destinations.ducklake_direct.table_state import TableCounts, TableState


class WriterMutant(Struct, frozen=True):
    name: str
    summary: str
    place: Any  # where the bug is: a module or a class
    attribute: str
    bug: Callable[[Any], Any]  # what is there -> what replaces it

    @contextmanager
    def planted(self) -> Iterator[None]:
        before = getattr(self.place, self.attribute)
        setattr(self.place, self.attribute, self.bug(before))
        try:
            yield
        finally:
            setattr(self.place, self.attribute, before)


def _insert_without(table: str) -> Callable[[Any], Any]:
    """Rows of one table of the catalog are not written."""

    def bug(right: Any) -> Any:
        def insert(catalog: Any, name: str, columns: str, rows: Sequence[Any]) -> None:
            right(catalog, name, columns, [] if name == table else rows)

        return insert

    return bug


def _insert_with(table: str, change: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> Callable[[Any], Any]:
    """Rows of one table of the catalog are wrong."""

    def bug(right: Any) -> Any:
        def insert(catalog: Any, name: str, columns: str, rows: Sequence[Any]) -> None:
            right(catalog, name, columns, [change(row) for row in rows] if name == table else rows)

        return insert

    return bug


def _row_id_start(right: Any) -> Any:
    def counts_of(rows: CommitRows, state: TableState) -> TableCounts:
        found: TableCounts = right(rows, state)
        return replace(found, next_row_id=max(0, found.next_row_id - 1))

    return counts_of


def _no_widening(_: Any) -> Any:
    def widened(kind: str, held: Any, new: Any, *, had_values: bool) -> Any:
        return held

    return widened


def _low_bound(right: Any) -> Any:
    """The largest value of a file is taken for its smallest."""

    def bounds_of(kind: str, column: pa.ChunkedArray) -> Any:
        found = right(kind, column)
        return replace(found, low=found.high)

    return bounds_of


def _only_new(right: Any) -> Any:
    """A later delete file forgets what the earlier one had."""

    def with_more(held: Any, positions: Any, snapshot: int) -> Any:
        return right(deletions.no_deleted(), positions, snapshot)

    return with_more


def _undated(right: Any) -> Any:
    """A later delete file has no third column."""

    def delete_rows(file: Any, deleted: Any, *, later: bool) -> pa.Table:
        return right(file, deleted, later=False)

    return delete_rows


def _keeps_old(right: Any) -> Any:
    """The delete file that was replaced stays in the catalog."""

    def deleted(rows: CommitRows, state: Any, data_file: Any, file: Any, count: int, held: Any) -> None:
        right(rows, state, data_file, file, count, held)
        rows._replaced.clear()

    return deleted


def _begins_now(right: Any) -> Any:
    """A later delete file begins at its own snapshot."""

    def deleted(rows: CommitRows, state: Any, data_file: Any, file: Any, count: int, held: Any) -> None:
        now = None if held is None else replace(held, begin=rows.snapshot)
        right(rows, state, data_file, file, count, now)

    return deleted


def _same_file_id(right: Any) -> Any:
    """``next_file_id`` does not move for delete files."""

    def deleted(rows: CommitRows, state: Any, data_file: Any, file: Any, count: int, held: Any) -> None:
        right(rows, state, data_file, file, count, held)
        rows._next_file -= 1

    return deleted


def _ends_early(_: Any) -> Any:
    """A data file ends though some of its rows are left."""

    def write_change(change: Any, rows: CommitRows, files: Any) -> None:
        for file, positions, gone in change.removed:
            if file.rows // 2 < len(gone.positions) + len(positions) < file.rows:
                rows.emptied(change.state, file)
                change.removed[:] = [each for each in change.removed if each[0] is not file]
                break
        RIGHT_CHANGE(change, rows, files)

    return write_change


RIGHT_CHANGE: Final = member.write_change


def _off_by_one(right: Any) -> Any:
    """The position after the right one is deleted."""

    def positions_in(file: Any, keys: Any) -> Any:
        positions, codes = right(file, keys)
        return np.minimum(positions + 1, file.rows - 1), codes

    return positions_in


def _no_nulls(right: Any) -> Any:
    """NULL does not equal NULL."""

    def positions_in(file: Any, keys: Any) -> Any:
        positions, codes = right(file, keys)
        whole = [code for code in range(len(keys)) if all(c[code].is_valid for c in keys.table.columns)]
        living = np.isin(codes, whole)
        return positions[living], codes[living]

    return positions_in


def _resurrected(right: Any) -> Any:
    """Rows that are deleted already are found again."""

    def deleted_rows(files: Any) -> Any:
        return deletions.no_deleted()

    return deleted_rows


def _other_field_ids(right: Any) -> Any:
    """Columns of a file have the numbers of their places, from 0 on."""

    def numbered(name: str, kind: pa.DataType, number: int) -> pa.Field:
        found: pa.Field = right(name, kind, number - 1)
        return found

    return numbered


def _changed_at(place: int, value: Callable[[Any], Any]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    return lambda row: (*row[:place], value(row[place]), *row[place + 1 :])


def _stays(right: Any) -> Any:
    """The record stays where it was."""

    def values(held: Any, reached: Any) -> Any:
        return right(held, held.standing)

    return values


MUTANTS: Final = (
    WriterMutant("row-id-start", "a file begins with a row id that is taken", CommitRows, "_counts_of", _row_id_start),
    WriterMutant(
        "no-file-stats",
        "columns of a file have no statistics",
        commit_rows,
        "insert",
        _insert_without("ducklake_file_column_stats"),
    ),
    WriterMutant("low-bound", "the smallest value of a column is wrong", member, "bounds_of", _low_bound),
    WriterMutant("no-widening", "bounds of the table stay", commit_rows, "widened", _no_widening),
    WriterMutant("stale-delete-file", "a later delete file lacks the first rows", member, "with_more", _only_new),
    WriterMutant("undated-deletes", "a later delete file has no snapshots", member, "delete_rows", _undated),
    WriterMutant("two-delete-files", "the replaced delete file stays", CommitRows, "deleted", _keeps_old),
    WriterMutant("delete-begins-now", "a later delete file has a new beginning", CommitRows, "deleted", _begins_now),
    WriterMutant("same-file-id", "next_file_id stays behind", CommitRows, "deleted", _same_file_id),
    WriterMutant("ends-early", "a file ends with rows left", transaction, "write_change", _ends_early),
    WriterMutant("off-by-one", "the row beside the right one is deleted", member, "positions_in", _off_by_one),
    WriterMutant("null-is-not-null", "a key with NULL is not found", member, "positions_in", _no_nulls),
    WriterMutant("deleted-again", "delete files are not looked at", member, "deleted_rows", _resurrected),
    WriterMutant("field-ids", "columns of a file have wrong numbers", member, "numbered", _other_field_ids),
    WriterMutant(
        "no-changes",
        "the list of changes is empty",
        commit_rows,
        "insert",
        _insert_with("ducklake_snapshot_changes", _changed_at(1, lambda _: "")),
    ),
    WriterMutant(
        "not-scheduled",
        "a replaced delete file is not scheduled for deletion",
        commit_rows,
        "insert",
        _insert_without("ducklake_files_scheduled_for_deletion"),
    ),
    WriterMutant(
        "later-beginning",
        "a data file begins one snapshot late",
        commit_rows,
        "insert",
        _insert_with("ducklake_data_file", _changed_at(2, lambda begin: begin + 1)),
    ),
    WriterMutant("record-stays", "the member's record does not move", records, "_values", _stays),
)
