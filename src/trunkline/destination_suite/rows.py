"""What every kind of destination does with rows and keys: rule T3, and values of every type (T6), of its contract."""

from __future__ import annotations

import datetime
import random
import uuid
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pytest
from msgspec.structs import replace

from trunkline.delivery.changes.columns import Column
from trunkline.delivery.changes.rows import Op
from trunkline.delivery.destinations.contract import Applied
from trunkline.destination_suite.place import Change, Plan, Row, Table, content, plain, staged
from trunkline.destination_suite.steps import (
    CHANGES,
    FLUSH,
    FLUSHED,
    SEED,
    SEEDED,
    flushed,
    seeded,
)
from trunkline.errors import (
    DuplicateKey,
)


def test_t3_two_rows_may_swap_their_keys(table: Table) -> None:
    seeded(table)
    swap: list[Change] = [
        (Op.REPLACE, {"id": 1, "tenant": "acme", "amount": 20}),
        (Op.REPLACE, {"id": 2, "tenant": "acme", "amount": 10}),
    ]
    assert flushed(table, FLUSH, swap) == Applied(20, removed=2, written=2)
    assert content(table.held()) == content([SEEDED[2], *(row for _, row in swap)])


def test_t3_keys_that_are_not_there_are_counted_as_missing(table: Table) -> None:
    seeded(table)
    changes = [*CHANGES, (Op.REMOVE, {"id": 77}), (Op.REPLACE, {"id": 78, "tenant": "acme", "amount": 1})]
    assert flushed(table, FLUSH, changes) == Applied(20, removed=2, written=3, missing=2)
    assert content(table.held()) == content([*FLUSHED, {"id": 78, "tenant": "acme", "amount": 1}])


def test_t3_in_mode_append_equal_rows_stay_side_by_side(table: Table) -> None:
    seed, flush = replace(SEED, mode="append", key=()), replace(FLUSH, mode="append", key=())
    seeded(table, seed, [SEEDED[0], SEEDED[0]])
    inserts: list[Change] = [(Op.INSERT, SEEDED[0]), (Op.INSERT, SEEDED[0]), (Op.INSERT, SEEDED[1])]
    assert flushed(table, flush, inserts) == Applied(20, written=3)
    assert content(table.held()) == content([SEEDED[0]] * 4 + [SEEDED[1]])
    assert flushed(table, flush, inserts) == Applied(20, already=True)
    assert len(table.held() or []) == 5


ODD_TEXTS: Final = (
    "",
    " ",
    "'",
    '"',
    "\\",
    "\\N",
    "NULL",
    "a,b",
    "a\tb",
    "a\nb",
    "\r\n",
    "ü☂𝄞",
    "%_",
    "A",
    "a",
    "0",
    "-0",
)
KEYS_OF_TYPES: Final[dict[str, list[Any]]] = {
    "BIGINT": [0, -1, 2**63 - 1, -(2**63)],
    "INTEGER": [0, -1, 2**31 - 1],
    "SMALLINT": [0, -1, 2**15 - 1],
    "BOOLEAN": [True, False],
    "DECIMAL(18,3)": [Decimal("0.000"), Decimal("0.100"), Decimal("-123456789012345.678"), Decimal("100.000")],
    "DECIMAL(38,0)": [Decimal("1" + "0" * 37), Decimal(-1)],
    "VARCHAR": list(ODD_TEXTS),
    "BLOB": [b"", b"\x00", b"\x00\x01", b"\xff\\x00", b"'"],
    "UUID": [str(uuid.UUID(int=n)) for n in (0, 1, 2**128 - 1)],
    "DATE": [datetime.date(1, 1, 1), datetime.date(1970, 1, 1), datetime.date(2026, 2, 28)],
    "TIMESTAMP": [datetime.datetime(1970, 1, 1), datetime.datetime(2026, 11, 15, 12, 0, 0, 1)],  # noqa: DTZ001
    "TIMESTAMP WITH TIME ZONE": [datetime.datetime(2026, 11, 15, 12, 0, 0, 1, tzinfo=datetime.UTC)],
}


@pytest.mark.parametrize("nulls", [False, True], ids=["values", "values and NULL"])
def test_t3_keys_of_every_type_are_found(table: Table, nulls: bool) -> None:
    """One key of many columns, and rows that differ from one another in one of them only."""
    key = tuple(f"k{n}" for n in range(len(KEYS_OF_TYPES)))
    columns = (*(Column(*each) for each in zip(key, KEYS_OF_TYPES, strict=True)), Column("v", "BIGINT"))
    values = [[*each, None] if nulls else each for each in KEYS_OF_TYPES.values()]
    first = {name: each[0] for name, each in zip(key, values, strict=True)}
    keys = [first, *({**first, name: value} for name, each in zip(key, values, strict=True) for value in each[1:])]
    count = len(keys)
    destination = table.open()
    destination.seed(replace(SEED, columns=columns, key=key), plain(columns, [{**each, "v": 1} for each in keys]))
    flush = replace(FLUSH, columns=columns, key=key)
    replaced: list[Change] = [(Op.REPLACE, {**each, "v": 2}) for each in keys]
    assert destination.flush(flush, staged(columns, key, replaced)) == Applied(20, removed=count, written=count)
    assert content(table.held()) == content(row for _, row in replaced)
    flush = replace(flush, expected=20, through=30)
    for each in (keys[0], keys[-1]):
        with pytest.raises(DuplicateKey):
            destination.flush(flush, staged(columns, key, [(Op.INSERT, {**each, "v": 3})]))
    removals: list[Change] = [(Op.REMOVE, each) for each in keys]
    assert destination.flush(flush, staged(columns, key, removals)) == Applied(30, removed=count)
    destination.close()
    assert table.held() == []


def test_t3_a_composite_key_is_compared_null_safe_column_by_column(table: Table) -> None:
    columns = (Column("a", "VARCHAR"), Column("b", "DECIMAL(10,2)"), Column("v", "BIGINT"))
    values: list[tuple[str | None, Decimal | None]] = [
        (a, b) for a in ("x", "", None) for b in (Decimal("1.00"), Decimal("0.00"), None)
    ]
    rows: list[Row] = [{"a": a, "b": b, "v": n} for n, (a, b) in enumerate(values)]
    destination = table.open()
    destination.seed(replace(SEED, columns=columns, key=("a", "b")), plain(columns, rows))
    for n in range(3):  # each time one of them goes that differs from the others by a NULL
        removals: list[Change] = [(Op.REMOVE, row) for row in rows[n::3]]
        flush = replace(FLUSH, columns=columns, key=("a", "b"), expected=10 + n, through=11 + n)
        assert destination.flush(flush, staged(columns, ("a", "b"), removals)) == Applied(11 + n, removed=3)
        assert content(table.held()) == content(row for at, row in enumerate(rows) if at % 3 > n)
    destination.close()


def test_t3_five_thousand_composite_deletes_are_one_flush(table: Table) -> None:
    columns = (Column("a", "VARCHAR"), Column("b", "BIGINT"), Column("v", "BIGINT"))
    rows: list[Row] = [{"a": f"a{n % 70}", "b": n, "v": n} for n in range(6000)]
    seeded(table, replace(SEED, columns=columns, key=("a", "b")), rows)
    removals: list[Change] = [(Op.REMOVE, row) for row in rows[:5000]]
    applied = flushed(table, replace(FLUSH, columns=columns, key=("a", "b")), removals)
    assert applied == Applied(20, removed=5000)
    assert content(table.held()) == content(rows[5000:])


EVERY_TYPE: Final[dict[str, Any]] = {
    "BOOLEAN": True,
    "TINYINT": -128,
    "SMALLINT": 7,
    "INTEGER": 7,
    "BIGINT": 2**62,
    "UTINYINT": 255,
    "USMALLINT": 65535,
    "UINTEGER": 2**32 - 1,
    "UBIGINT": 2**64 - 1,
    "FLOAT": 0.5,
    "DOUBLE": 0.1,
    "DECIMAL(18,3)": Decimal("1.250"),
    "VARCHAR": "ü☂",
    "JSON": '{"a": [1, null]}',
    "UUID": str(uuid.UUID(int=77)),
    "BLOB": b"\x00\xff",
    "DATE": datetime.date(2026, 11, 15),
    "TIMESTAMP": datetime.datetime(2026, 11, 15, 1, 2, 3, 4),  # noqa: DTZ001
    "TIMESTAMP WITH TIME ZONE": datetime.datetime(2026, 11, 15, 1, 2, 3, 4, tzinfo=datetime.UTC),
    "INTEGER[]": [1, None, 3],
    "VARCHAR[]": ["a", "", "'"],
}


def test_t6_a_value_of_every_type_comes_back_with_its_type(table: Table) -> None:
    columns = (Column("id", "BIGINT"), *(Column(f"c{n}", name) for n, name in enumerate(EVERY_TYPE)))
    full: Row = {"id": 1, **{f"c{n}": value for n, value in enumerate(EVERY_TYPE.values())}}
    rows = [full, {**full, "id": 2}, {"id": 3}]
    seeded(table, replace(SEED, columns=columns), [full])
    destination = table.open()
    changes: list[Change] = [(Op.INSERT, row) for row in rows[1:]]
    assert destination.flush(replace(FLUSH, columns=columns), staged(columns, ("id",), changes)).written == 2
    assert destination.columns() == columns
    _, batches = destination.rows()
    read = pa.Table.from_batches(list(batches))
    destination.close()
    assert content(read.to_pylist()) == content([{name: row.get(name) for name in full} for row in rows])


def test_random_flushes_leave_what_a_dictionary_holds(table: Table) -> None:
    draw = random.Random(4)
    columns = (Column("a", "INTEGER"), Column("b", "VARCHAR"), Column("v", "BIGINT"))
    key = ("a", "b")
    seeded(table, replace(SEED, columns=columns, key=key, through=1), [])
    model: dict[tuple[int | None, str | None], Row] = {}
    keys = [(a, b) for a in (*range(12), None) for b in ("x", "y", None)]
    destination = table.open()
    for version in range(1, 19):
        changes: list[Change] = []
        for a, b in draw.sample(keys, draw.choice((0, 1, 5, 20))):
            row = {"a": a, "b": b, "v": version}
            if (a, b) not in model:
                changes.append((Op.INSERT, row))
                model[a, b] = row
            elif draw.random() < 0.5:
                changes.append((Op.REPLACE, row))
                model[a, b] = row
            else:
                changes.append((Op.REMOVE, row))
                del model[a, b]
        flush = Plan(version + 1, 1, SEED.source, columns, key, expected=version)
        applied = destination.flush(flush, staged(columns, key, changes))
        assert (applied.duplicates, applied.missing) == (0, 0)
        if version % 3 == 0:
            at, batches = destination.rows()
            assert at.position == version + 1
            assert content(row for batch in batches for row in batch.to_pylist()) == content(model.values())
    destination.close()
    assert content(table.held()) == content(model.values())
