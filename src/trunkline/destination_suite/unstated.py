"""Values that the source did not state stay as the destination has them, in every kind of destination (T8)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from trunkline.delivery.changes.column_steps import ColumnSteps
from trunkline.delivery.changes.columns import Column, Columns, arrow_schema
from trunkline.delivery.changes.rows import OP_COLUMN, ORIGIN_COLUMN, ROUTE_COLUMN, UNCHANGED_COLUMN, Op
from trunkline.delivery.destinations.contract import Applied
from trunkline.destination_suite.place import Plan, Table, content, needs
from trunkline.destination_suite.processes import apply
from trunkline.destination_suite.steps import FLUSH, SEED, standing
from trunkline.errors import DestinationHalted

DOCUMENTS: Columns = (
    Column("id", "BIGINT"),
    Column("part", "UUID"),
    Column("title", "VARCHAR"),
    Column("body", "VARCHAR"),
    Column("raw", "BLOB"),
    Column("tags", "VARCHAR[]"),
    Column("at", "TIMESTAMP WITH TIME ZONE"),
    Column("price", "DECIMAL(12,3)"),
)
KEY = ("id", "part")
PART = "00000000-0000-0000-0000-00000000000{}"
DOCUMENTS_SEED: Plan = replace(SEED, columns=DOCUMENTS, key=KEY)
DOCUMENTS_FLUSH: Plan = replace(FLUSH, columns=DOCUMENTS, key=KEY)
LARGE = "large % \u00fc \"'" * 5_000

Row = Mapping[str, Any]
Partial = tuple[Op, Row, tuple[int, str] | None]  # what is stated, and the key that the row had


def document(number: int, **changed: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "id": number,
        "part": PART.format(number),
        "title": f"title {number}",
        "body": f"{LARGE}{number}",
    }
    row |= {"raw": bytes([number, 0, 255]), "tags": ["a", None, f'{number},"'], "at": None, "price": None}
    return row | changed


def staged(columns: Columns, *changes: Partial) -> list[pa.RecordBatch]:
    """What a change does not name is not stated, if it has an origin."""
    schema = arrow_schema(columns)
    arrays = [pa.array([int(op) for op, _, _ in changes], pa.int8())]
    arrays += [pa.array([row.get(field.name) for _, row, _ in changes], field.type) for field in schema]
    bits = [
        None if origin is None else sum(1 << n for n, each in enumerate(columns) if each.name not in row)
        for _, row, origin in changes
    ]
    arrays.append(pa.array([None if each is None else each.to_bytes(1, "little") for each in bits], pa.binary()))
    keys = [
        None if origin is None else {ROUTE_COLUMN: "a", "id": origin[0], "part": origin[1]} for *_, origin in changes
    ]
    kind = pa.struct([(ROUTE_COLUMN, pa.string()), ("id", pa.int64()), ("part", pa.string())])
    arrays.append(pa.array(keys, kind))
    whole = pa.RecordBatch.from_arrays(arrays, [OP_COLUMN, *schema.names, UNCHANGED_COLUMN, ORIGIN_COLUMN])
    return [whole.slice(0, 1), whole.slice(1)]


def flushed(table: Table, flush: Plan, *changes: Partial) -> Applied:
    destination = table.open()
    try:
        return destination.flush(flush, staged(flush.columns, *changes))
    finally:
        destination.close()


def seeded(table: Table, *rows: Row) -> None:
    destination = table.open()
    apply(destination, (DOCUMENTS_SEED, list(rows)))
    destination.close()


def test_t8_unstated_values_stay_also_when_the_key_changes_or_changes_hands(table: Table) -> None:
    seeded(table, *map(document, range(1, 6)))
    two, three = (document(number) for number in (2, 3))
    found = flushed(
        table,
        DOCUMENTS_FLUSH,
        (Op.REMOVE, {"id": 1, "part": PART.format(1)}, None),
        # 2 and 3 swap their keys, and 1 becomes 7: their rows were under other keys
        (Op.REPLACE, {"id": 2, "part": PART.format(2), "title": "was 3"}, (3, PART.format(3))),
        (Op.REPLACE, {"id": 3, "part": PART.format(3), "title": "was 2", "tags": []}, (2, PART.format(2))),
        (Op.INSERT, {"id": 7, "part": PART.format(7), "title": None}, (1, PART.format(1))),
        (Op.REPLACE, document(4, body=None, title="whole"), None),
        (Op.INSERT, document(8), None),
    )
    assert found == Applied(20, removed=4, written=5)
    assert content(table.held()) == content(
        [
            three | {"id": 2, "part": PART.format(2), "title": "was 3"},
            two | {"id": 3, "part": PART.format(3), "title": "was 2", "tags": []},
            document(1) | {"id": 7, "part": PART.format(7), "title": None},
            document(4, body=None, title="whole"),
            document(5),
            document(8),
        ]
    )


def test_t8_a_row_that_is_not_there_halts_and_nothing_is_written(table: Table) -> None:
    seeded(table, document(1))
    lost = {"id": 9, "part": PART.format(9), "title": "x"}
    with pytest.raises(DestinationHalted, match=r"lacks the row id = 9, part = .*reseed"):
        flushed(
            table,
            DOCUMENTS_FLUSH,
            (Op.REPLACE, document(1, title="new"), None),
            (Op.REPLACE, lost, (9, PART.format(9))),
        )
    held = standing(table)
    assert held is not None
    assert held.position == 10
    assert content(table.held()) == content([document(1)])


@needs("column_steps")
def test_t8_unstated_values_are_found_under_columns_that_changed_in_the_same_window(table: Table) -> None:
    seeded(table, document(1), document(2))
    after = (*DOCUMENTS[:3], Column("text", "VARCHAR"), *DOCUMENTS[4:7], Column("score", "INTEGER"))
    steps = ColumnSteps(DOCUMENTS, after, (0, 1, 2, 3, 4, 5, 6, -1))
    found = flushed(
        table,
        replace(DOCUMENTS_FLUSH, columns=after, steps=steps),
        (Op.REPLACE, {"id": 1, "part": PART.format(1), "title": "new", "score": 5}, (1, PART.format(1))),
    )
    assert (found.removed, found.written, found.missing) == (1, 1, 0)
    expected = []
    for number in (1, 2):
        row = document(number)
        row["text"] = row.pop("body")
        del row["price"]
        expected.append(row | ({"title": "new", "score": 5} if number == 1 else {"score": None}))
    assert content(table.held()) == content(expected)
