"""Which rows of a chunk are written, for keys of every kind."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from delivery.group_log import Change, rows_of_work, schema_of
from trunkline.delivery.capture.chunk_rows import moves_unstated, touched_rows, truncates, written_rows
from trunkline.delivery.changes.groups import UNCHANGED, RowKind, TableRows
from trunkline.delivery.changes.schemas import TableSchema

INSERT, DELETE, OLD, NEW, TRUNCATE, READ = RowKind
NOTES = schema_of(1, "id BIGINT, note VARCHAR, size INTEGER")
LARGE = 10**9


def table(schema: TableSchema, *changes: tuple[Any, ...]) -> TableRows:
    work: list[Change] = [(schema, *change) for change in changes]
    [found] = rows_of_work([work])
    return found


def read(schema: TableSchema, *rows: tuple[Any, ...]) -> pa.RecordBatch:
    return table(schema, *((READ, row) for row in rows)).batch


def written(schema: TableSchema, rows: pa.RecordBatch, *touched: TableRows) -> list[tuple[Any, ...]]:
    found = written_rows(rows, schema, [touched_rows(each, schema) for each in touched], LARGE)
    assert [each.batch.column(1).to_pylist() for each in found] == [list(range(each.batch.num_rows)) for each in found]
    return [tuple(row.values())[4:] for each in found for row in each.batch.to_pylist()]


KEYS = {
    "BIGINT": (1, 2),
    "VARCHAR": ("a", "b"),
    "BLOB": (b"a", b"b"),
    "BOOLEAN": (True, False),
    "DOUBLE": (0.5, float("nan")),
    "DECIMAL(30,2)": (Decimal("1.50"), Decimal("2.50")),
    "DATE": (dt.date(2026, 1, 1), dt.date(2026, 1, 2)),
    "TIMESTAMP": (dt.datetime(2026, 1, 1), dt.datetime(2026, 1, 2)),  # noqa: DTZ001
    "UUID": (str(uuid.UUID(int=1)), str(uuid.UUID(int=2))),
    "INTEGER[]": ([1, 2], [1]),
}


@pytest.mark.parametrize("kind", KEYS)
def test_t1_rows_of_touched_keys_are_left_out_whatever_the_type_of_the_key(kind: str) -> None:
    schema = schema_of(1, f"k {kind}, n INTEGER", ("k",))
    one, two = KEYS[kind]
    rows = read(schema, (one, 1), (two, 2))
    for key, left in ((one, 2), (two, 1)):
        assert [row[1] for row in written(schema, rows, table(schema, (NEW, (key, 9))))] == [left]


def test_t1_a_key_of_several_columns_is_compared_as_a_whole() -> None:
    schema = schema_of(1, "a INTEGER, b VARCHAR, n INTEGER", ("b", "a"))
    rows = read(schema, (1, "x", 1), (1, "y", 2), (2, "x", 3))
    assert written(schema, rows, table(schema, (DELETE, (1, "x", None)))) == [(1, "y", 2), (2, "x", 3)]
    assert written(schema, rows) == [(1, "x", 1), (1, "y", 2), (2, "x", 3)]


def test_t2_a_row_states_just_what_no_change_stated() -> None:
    rows = read(NOTES, (1, "one", 1), (2, "two", 2), (3, "three", 3), (4, "four", 4))
    touched = [
        table(NOTES, (NEW, (1, None, 7), b"\x02"), (NEW, (2, None, None), b"\x06"), (NEW, (3, None, 7), b"\x02")),
        table(NOTES, (NEW, (1, None, 8), b"\x02"), (DELETE, (3, None, None))),
    ]
    found = written_rows(rows, NOTES, [touched_rows(each, NOTES) for each in touched], LARGE)
    [batch] = [each.batch for each in found]
    assert [tuple(row.values())[4:] for row in batch.to_pylist()] == [(4, "four", 4), (1, "one", None), (2, "two", 2)]
    assert batch.column(UNCHANGED).to_pylist() == [None, b"\x04", b"\x00"]


def test_t2_nothing_is_written_of_a_row_that_moved_to_another_key() -> None:
    rows = read(NOTES, (1, "large", 1))
    partly = (NEW, (1, None, 2), b"\x02")
    moved = ((OLD, (1, None, None)), (NEW, (9, "stated", 3)))
    assert written(NOTES, rows, table(NOTES, partly, *moved)) == []
    assert written(NOTES, rows, table(NOTES, partly), table(NOTES, *moved)) == []
    back = ((OLD, (9, None, None)), (NEW, (1, "stated", 3)), partly)
    assert written(NOTES, rows, table(NOTES, partly, *moved, *back)) == []
    whole = (OLD, (1, "large", 1))
    assert written(NOTES, rows, table(NOTES, whole, partly)) == [(1, "large", None)]


def test_t3_only_an_update_that_moves_a_row_and_leaves_columns_out_spoils_a_table() -> None:
    assert moves_unstated(table(NOTES, (OLD, (1, None, None)), (NEW, (2, None, 5), b"\x02")), NOTES)
    assert not moves_unstated(table(NOTES, (OLD, (1, None, None)), (NEW, (2, "all", 5))), NOTES)
    assert not moves_unstated(table(NOTES, (OLD, (1, "whole", 4)), (NEW, (1, None, 5), b"\x02")), NOTES)
    assert not moves_unstated(table(NOTES, (NEW, (1, None, 5), b"\x02")), NOTES)


def test_a_truncation_is_found_and_large_chunks_are_cut() -> None:
    assert truncates(table(NOTES, (TRUNCATE, ()), (INSERT, (1, "a", 1))))
    assert not truncates(table(NOTES, (INSERT, (1, "a", 1))))
    rows = read(NOTES, *((number, "x" * 1000, number) for number in range(100)))
    pieces = written_rows(rows, NOTES, [], 10_000)
    assert len(pieces) > 8
    assert all(piece.batch.nbytes <= 10_000 for piece in pieces)
    assert [number for piece in pieces for number in piece.batch.column("id").to_pylist()] == list(range(100))
