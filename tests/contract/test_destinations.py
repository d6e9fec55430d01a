"""What every kind of destination promises: rules T1 to T7 of ``delivery/destinations/contract.py``.

Crashes and races are in ``test_destination_crashes.py``. The kinds are in ``<kind>_destination.py``.
"""

from __future__ import annotations

import datetime
import random
import uuid
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pytest
from msgspec.structs import replace

from contract.destination_place import Change, Kind, Row, Table, apply, content, plain, staged
from trunkline.delivery.columns import Column, Columns
from trunkline.delivery.destinations.contract import Applied, Flush, Seed, Standing
from trunkline.delivery.windows import OP_COLUMN, Op
from trunkline.errors import (
    ConfigError,
    DestinationHalted,
    DuplicateKey,
    Fenced,
    PositionMoved,
    SchemaMismatch,
    Unreachable,
)

ORDERS: Final[Columns] = (Column("id", "BIGINT"), Column("tenant", "VARCHAR"), Column("amount", "INTEGER"))
SEED: Final = Seed(through=10, token=1, source="lake/orders", columns=ORDERS, key=("id",))
FLUSH: Final = Flush(expected=10, through=20, token=1, source="lake/orders", columns=ORDERS, key=("id",))
SEEDED: Final[list[Row]] = [{"id": n, "tenant": "acme", "amount": n * 10} for n in (1, 2, 3)]
CHANGES: Final[list[Change]] = [
    (Op.REMOVE, {"id": 1}),
    (Op.REPLACE, {"id": 2, "tenant": "acme", "amount": 21}),
    (Op.INSERT, {"id": 4, "tenant": "acme", "amount": 40}),
]
FLUSHED: Final = [
    {"id": 2, "tenant": "acme", "amount": 21},
    {"id": 3, "tenant": "acme", "amount": 30},
    {"id": 4, "tenant": "acme", "amount": 40},
]


def seeded(table: Table, seed: Seed = SEED, rows: list[Row] | None = None) -> None:
    destination = table.open()
    apply(destination, (seed, list(SEEDED) if rows is None else rows))
    destination.close()


def flushed(table: Table, flush: Flush, changes: list[Change]) -> Applied:
    """Do one flush with a destination object of its own."""
    destination = table.open()
    try:
        return destination.flush(flush, staged(flush.columns, flush.key, changes))
    finally:
        destination.close()


def standing(table: Table) -> Standing | None:
    destination = table.open()
    try:
        return destination.standing()
    finally:
        destination.close()


def unchanged(table: Table) -> None:
    """The table is as ``seeded`` left it."""
    assert content(table.held()) == content(SEEDED)
    assert standing(table) == Standing(10, 1, "lake/orders")


# ------------------------------------------------------------------------------------ T1: rows, position and token


def test_t1_rows_position_and_token_change_together(table: Table) -> None:
    seeded(table)
    unchanged(table)
    applied = flushed(table, replace(FLUSH, token=3), CHANGES)
    assert applied == Applied(20, removed=2, written=2)
    assert content(table.held()) == content(FLUSHED)
    assert standing(table) == Standing(20, 3, "lake/orders")


def test_t1_a_flush_whose_rows_break_off_changes_nothing(table: Table) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield next(staged(ORDERS, ("id",), CHANGES))
        raise EOFError("the rows broke off")

    seeded(table)
    destination = table.open()
    with pytest.raises(EOFError, match="broke off"):
        destination.flush(FLUSH, broken())
    unchanged(table)
    assert destination.flush(FLUSH, staged(ORDERS, ("id",), CHANGES)).position == 20  # and it can be used again
    destination.close()
    assert content(table.held()) == content(FLUSHED)


def test_t1_a_seed_whose_rows_break_off_changes_nothing(table: Table) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield from plain(ORDERS, [{"id": 7}])
        raise EOFError("the rows broke off")

    destination = table.open()
    with pytest.raises(EOFError, match="broke off"):
        destination.seed(SEED, broken())
    assert destination.standing() is None
    destination.close()
    seeded(table)
    destination = table.open()
    with pytest.raises(EOFError, match="broke off"):
        destination.seed(replace(SEED, through=30), broken())
    destination.close()
    unchanged(table)


def test_t1_a_flush_without_rows_moves_the_position(table: Table) -> None:
    seeded(table)
    assert flushed(table, FLUSH, []) == Applied(20)
    destination = table.open()
    assert destination.flush(replace(FLUSH, expected=20, through=21), []) == Applied(21)  # not even a batch
    destination.close()
    assert standing(table) == Standing(21, 1, "lake/orders")
    assert content(table.held()) == content(SEEDED)


# ------------------------------------------------------------------------------------------- T2: token and position


def test_t2_a_newer_token_fences_an_older_one(table: Table) -> None:
    seeded(table, replace(SEED, token=5))
    before = table.trace()
    with pytest.raises(Fenced):
        flushed(table, replace(FLUSH, token=4), CHANGES)
    with pytest.raises(Fenced):  # also where the work was done already
        flushed(table, replace(FLUSH, token=4, expected=5, through=10), CHANGES)
    with pytest.raises(Fenced):
        seeded(table, replace(SEED, token=4, through=30))
    assert table.trace() == before
    assert standing(table) == Standing(10, 5, "lake/orders")
    assert content(table.held()) == content(SEEDED)


def test_t2_a_flush_that_was_done_already_succeeds_and_writes_nothing(table: Table) -> None:
    seeded(table)
    flushed(table, FLUSH, CHANGES)
    before = table.trace()
    assert flushed(table, FLUSH, CHANGES) == Applied(20, already=True)
    assert flushed(table, replace(FLUSH, through=15, token=2), CHANGES) == Applied(20, already=True)
    assert table.trace() == before
    assert content(table.held()) == content(FLUSHED)
    assert standing(table) == Standing(20, 1, "lake/orders")


def test_t2_a_flush_from_another_position_is_refused(table: Table) -> None:
    seeded(table)
    before = table.trace()
    for expected in (5, 11):
        with pytest.raises(PositionMoved) as refused:
            flushed(table, replace(FLUSH, expected=expected), CHANGES)
        assert refused.value.position == 10
    assert table.trace() == before
    unchanged(table)


def test_t2_a_destination_that_was_never_seeded_takes_a_flush_from_zero_only(table: Table) -> None:
    assert standing(table) is None
    with pytest.raises(PositionMoved) as refused:
        flushed(table, FLUSH, CHANGES)
    assert refused.value.position == 0
    assert table.held() is None
    inserts: list[Change] = [(Op.INSERT, row) for row in SEEDED]
    assert flushed(table, replace(FLUSH, expected=0, through=10), inserts) == Applied(10, written=3)
    unchanged(table)


def test_t2_rows_of_another_source_are_refused(table: Table) -> None:
    seeded(table)
    before = table.trace()
    with pytest.raises(DestinationHalted, match="lake/orders"):
        flushed(table, replace(FLUSH, source="lake/others"), CHANGES)
    with pytest.raises(DestinationHalted, match="lake/orders"):
        seeded(table, replace(SEED, source="lake/others"))
    assert table.trace() == before
    unchanged(table)
    seeded(table, replace(SEED, source="lake/others", replace_existing=True))
    assert standing(table) == Standing(10, 1, "lake/others")


# -------------------------------------------------------------------------------------------- T3: deletes, then rows


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


# ----------------------------------------------------------------------------------------------- T4: duplicate keys


def test_t4_an_insert_whose_key_is_held_is_refused_and_nothing_is_written(table: Table) -> None:
    seeded(table)
    before = table.trace()
    held: Change = (Op.INSERT, {"id": 3, "tenant": "acme", "amount": 31})
    with pytest.raises(DuplicateKey, match="3"):
        flushed(table, FLUSH, [*CHANGES, held])
    assert table.trace() == before
    unchanged(table)


def test_t4_a_duplicate_is_not_hidden_by_a_missing_key(table: Table) -> None:
    """The counts of both cancel out; the keys do not."""
    seeded(table)
    changes: list[Change] = [(Op.REMOVE, {"id": 77}), (Op.INSERT, {"id": 3, "tenant": "acme", "amount": 31})]
    with pytest.raises(DuplicateKey, match="3"):
        flushed(table, FLUSH, changes)
    unchanged(table)
    assert flushed(table, replace(FLUSH, duplicates="warn"), changes) == Applied(
        20, removed=1, written=1, duplicates=1, missing=1
    )


def test_t4_policy_warn_takes_the_newer_row_and_counts(table: Table) -> None:
    seeded(table)
    changes: list[Change] = [*CHANGES, (Op.INSERT, {"id": 3, "tenant": "acme", "amount": 31})]
    applied = flushed(table, replace(FLUSH, duplicates="warn"), changes)
    assert applied == Applied(20, removed=3, written=3, duplicates=1)
    assert content(table.held()) == content([FLUSHED[0], changes[-1][1], FLUSHED[2]])


def test_t4_a_null_key_that_is_held_is_a_duplicate_too(table: Table) -> None:
    seeded(table, rows=[{"id": None, "tenant": "acme", "amount": 1}])
    with pytest.raises(DuplicateKey, match="id"):
        flushed(table, FLUSH, [(Op.INSERT, {"id": None, "tenant": "acme", "amount": 2})])
    assert len(table.held() or []) == 1


# --------------------------------------------------------------------------------------------------------- T5: seeds


def test_t5_a_seed_makes_the_table_and_a_second_one_replaces_it(table: Table) -> None:
    assert standing(table) is None
    assert table.held() is None
    seeded(table)
    unchanged(table)
    flushed(table, FLUSH, CHANGES)
    other = (Column("id", "BIGINT"), Column("note", "VARCHAR"))
    rows: list[Row] = [{"id": 8, "note": "x"}, {"id": 9, "note": None}]
    destination = table.open()
    seed = replace(SEED, through=30, token=2, columns=other)
    assert destination.seed(seed, plain(other, rows)) == Applied(30, removed=3, written=2)
    assert destination.columns() == other
    destination.close()
    assert content(table.held()) == content(rows)
    assert standing(table) == Standing(30, 2, "lake/orders")


def test_t5_an_empty_seed_is_a_table_without_rows(table: Table) -> None:
    destination = table.open()
    assert destination.seed(SEED, iter(())) == Applied(10)
    assert destination.columns() == ORDERS
    destination.close()
    assert table.held() == []
    inserts: list[Change] = [(Op.INSERT, row) for row in SEEDED]
    assert flushed(table, FLUSH, inserts) == Applied(20, written=3)


def test_t5_a_table_that_is_not_ours_is_replaced_only_if_asked(table: Table) -> None:
    table.make_foreign()
    before = table.trace()
    assert standing(table) is None
    with pytest.raises(DestinationHalted, match="replace_existing"):
        seeded(table)
    with pytest.raises(DestinationHalted, match="replace_existing"):
        flushed(table, replace(FLUSH, expected=0), CHANGES)
    assert table.trace() == before
    assert content(table.held()) == content([{"id": 99}])
    seeded(table, replace(SEED, replace_existing=True))
    unchanged(table)


def test_t5_a_seed_with_two_rows_of_one_key_is_refused(table: Table) -> None:
    with pytest.raises(DuplicateKey, match="id"):
        seeded(table, rows=[*SEEDED, SEEDED[1]])
    assert standing(table) is None
    assert table.held() is None


def test_t5_a_seed_that_comes_too_late_changes_nothing(table: Table) -> None:
    seeded(table)
    flushed(table, FLUSH, CHANGES)
    before = table.trace()
    destination = table.open()
    assert destination.seed(SEED, plain(ORDERS, SEEDED)) == Applied(20, already=True)
    destination.close()
    assert table.trace() == before
    assert content(table.held()) == content(FLUSHED)


def test_t5_a_seed_repeated_by_the_same_deliverer_gives_the_same_state(table: Table) -> None:
    seeded(table)
    seeded(table)
    unchanged(table)


# ------------------------------------------------------------------------------------------------------- T6: columns


def test_t6_a_column_that_the_source_gained_is_added_within_the_flush(table: Table) -> None:
    seeded(table)
    wider = (Column("note", "VARCHAR"), *ORDERS)  # not at the end: columns go by name
    changes: list[Change] = [(Op.INSERT, {"id": 4, "tenant": "acme", "amount": 40, "note": "new"})]
    assert flushed(table, replace(FLUSH, columns=wider), changes) == Applied(20, written=1)
    assert content(table.held()) == content([{**row, "note": None} for row in SEEDED] + [changes[0][1]])


def test_t6_a_column_that_was_widened_is_widened_within_the_flush(table: Table, kind: Kind) -> None:
    seeded(table)
    wider = (*ORDERS[:2], Column("amount", "BIGINT"))
    changes: list[Change] = [(Op.INSERT, {"id": 4, "tenant": "acme", "amount": 2**40})]
    if not kind.widens:
        with pytest.raises(SchemaMismatch, match="amount"):
            flushed(table, replace(FLUSH, columns=wider), changes)
        return unchanged(table)
    assert flushed(table, replace(FLUSH, columns=wider), changes) == Applied(20, written=1)
    assert content(table.held()) == content([*SEEDED, changes[0][1]])
    destination = table.open()
    assert destination.columns() == wider
    return destination.close()


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ((*ORDERS[:2], Column("amount", "VARCHAR")), "amount"),
        ((*ORDERS[:2], Column("amount", "SMALLINT")), "amount"),
        (ORDERS[:2], "amount"),
        ((*ORDERS[:2], Column("sum", "INTEGER")), "amount"),
    ],
    ids=["another type", "narrower", "dropped", "renamed"],
)
def test_t6_any_other_difference_is_named_and_nothing_is_written(table: Table, columns: Columns, named: str) -> None:
    seeded(table)
    before = table.trace()
    with pytest.raises(SchemaMismatch, match=named):
        flushed(table, replace(FLUSH, columns=columns), [(Op.REMOVE, {"id": 1})])
    assert table.trace() == before
    unchanged(table)


def test_t6_columns_in_another_order_are_matched_by_name(table: Table) -> None:
    seeded(table)
    assert flushed(table, replace(FLUSH, columns=ORDERS[::-1]), CHANGES) == Applied(20, removed=2, written=2)
    assert content(table.held()) == content(FLUSHED)


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


# ---------------------------------------------------------------------------------------------- T7: what went wrong


def test_t7_a_destination_that_nobody_answers_for_is_unreachable(table: Table) -> None:
    destination = table.lost().open()
    with pytest.raises(Unreachable):
        destination.standing()
    with pytest.raises(Unreachable):
        destination.flush(FLUSH, staged(ORDERS, ("id",), CHANGES))
    with pytest.raises(Unreachable):
        destination.seed(SEED, plain(ORDERS, SEEDED))
    destination.close()


# --------------------------------------------------------------------------------------------------- everything else


def test_looking_writes_nothing(table: Table) -> None:
    seeded(table)
    before = table.trace()
    destination = table.open()
    for _ in range(3):
        assert destination.standing() == Standing(10, 1, "lake/orders")
        assert destination.columns() == ORDERS
        at, batches = destination.rows()
        assert at == Standing(10, 1, "lake/orders")
        assert content(row for batch in batches for row in batch.to_pylist()) == content(SEEDED)
    destination.close()
    assert table.trace() == before


def test_a_reserved_column_name_is_refused(table: Table) -> None:
    for name in (OP_COLUMN, "_trunkline_x", "_Trunkline"):
        columns = (*ORDERS, Column(name, "BIGINT"))
        with pytest.raises(ConfigError, match=name):
            seeded(table, replace(SEED, columns=columns), [])
    assert table.held() is None


def test_a_retired_table_keeps_its_rows_and_belongs_to_nobody(table: Table) -> None:
    seeded(table)
    destination = table.open()
    destination.retire()
    destination.retire()  # twice is as good as once
    assert destination.standing() is None
    destination.close()
    assert content(table.held()) == content(SEEDED)
    with pytest.raises(DestinationHalted, match="replace_existing"):
        seeded(table)
    seeded(table, replace(SEED, replace_existing=True))
    unchanged(table)


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
        flush = Flush(version, version + 1, 1, SEED.source, columns, key)
        applied = destination.flush(flush, staged(columns, key, changes))
        assert (applied.duplicates, applied.missing) == (0, 0)
        if version % 3 == 0:
            at, batches = destination.rows()
            assert at.position == version + 1
            assert content(row for batch in batches for row in batch.to_pylist()) == content(model.values())
    destination.close()
    assert content(table.held()) == content(model.values())
