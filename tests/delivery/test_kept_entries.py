"""Entries as earlier versions wrote them: they lie in logs for years, so they must stay readable.

``kept_entries.json`` is never written again. A new format, or an entry that it lacks, is added at the end.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delivery.payload_samples import TYPES, columns_of, rows_of
from trunkline.client.entries import Entry
from trunkline.client.headers import encode_headers
from trunkline.delivery.changes.captured import EntryPlace, change_rows, decoded, entry_place
from trunkline.delivery.changes.database_entries import (
    CatalogEntry,
    Chunk,
    Group,
    Mark,
    OneTable,
    Part,
    SchemaEntry,
    entry_of,
)
from trunkline.delivery.changes.rebuilt import rebuild
from trunkline.delivery.changes.rows import KIND_COLUMN, ChangeKind

KEPT = Path(__file__).with_name("kept_entries.json")


def kept(form: str) -> list[Entry]:
    return [
        Entry(
            each["glsn"],
            base64.b64decode(each["payload"]),
            encoded_headers=encode_headers({name: value.encode() for name, value in each["headers"].items()}),
        )
        for each in json.loads(KEPT.read_text())[form]
    ]


def test_entries_of_format_1_are_read_as_they_were_written() -> None:
    mark, emptied, rows, gone = kept("format 1")
    columns = columns_of((*TYPES, "INTEGER[]", "VARCHAR[][]"))
    assert [entry_place(each) for each in (mark, emptied, rows, gone)] == [
        EntryPlace(),
        EntryPlace(0, False, "p1"),
        EntryPlace(1, True, "p1"),
        EntryPlace(0, True, "p2"),
    ]
    assert all(isinstance(entry_of(each), OneTable) for each in (mark, emptied, rows, gone))
    for entry, kind, count in ((rows, ChangeKind.INSERT, 3), (gone, ChangeKind.DELETE, 1)):
        found, changes = decoded(entry.payload)
        expected = change_rows(kind, rows_of(columns, count))
        assert found == columns
        assert changes.equals(expected.select(changes.column_names))
    assert decoded(emptied.payload)[1].column(KIND_COLUMN).to_pylist() == [ChangeKind.TRUNCATE]


def test_each_kind_of_entry_of_format_2_is_kept() -> None:
    kinds = {type(entry_of(each)) for each in kept("format 2")}
    assert kinds == {Mark, CatalogEntry, SchemaEntry, Chunk, Group, Part}


DAY = dt.date(2024, 10, 4)
MIDNIGHT = 86_400_000_000
FIVE: tuple[Any, ...] = (5, "x", None, None, [], None)
THREE: tuple[Any, ...] = (3, "three", Decimal("-9.500"), MIDNIGHT, None)
STATES: dict[int, dict[int, list[tuple[Any, ...]]]] = {
    7: {1: [(1, "one", Decimal("1.250"), 11_045_000_000, [1, 2]), (2, None, None, None, []), THREE]},
    14: {
        1: [(2, None, None, None, [], DAY), (*THREE, DAY), (4, "four", None, None, [None], DAY), FIVE],
        2: [(1, 0.5, b"x")] * 3,
    },
    15: {1: [(2, None, None, None, [], DAY), (*THREE, DAY), FIVE], 2: [(2, None, None)]},
    19: {1: [(2, None, None, None, [], DAY), (*THREE, DAY), FIVE]},
}  # fmt: skip


@pytest.mark.parametrize("end", STATES)
def test_a_log_of_format_2_has_the_states_that_it_had(end: int) -> None:
    found = rebuild(kept("format 2"), end)
    assert {number: rows(table) for number, table in found.items()} == STATES[end]


def rows(table: pa.Table) -> list[tuple[Any, ...]]:
    if "at" in table.column_names:
        place = table.column_names.index("at")
        table = table.set_column(place, "at", table.column("at").cast(pa.int64()))  # Python has no 24:00
    return sorted((tuple(row.values()) for row in table.to_pylist()), key=lambda row: int(row[0]))
