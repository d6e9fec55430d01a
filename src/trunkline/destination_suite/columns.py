"""What every kind of destination does if its source says what happened to the columns: rule T6 of its contract."""

from __future__ import annotations

import datetime
import decimal
import uuid
from typing import Any, Final

import pyarrow as pa
import pytest
from msgspec import Struct
from msgspec.structs import replace

from trunkline.delivery.changes.column_steps import no_steps
from trunkline.delivery.changes.columns import Column, Columns, arrow_schema
from trunkline.delivery.changes.rows import Op
from trunkline.delivery.destinations.contract import Applied, Standing
from trunkline.destination_suite.place import Change, Kind, Plan, Row, Table, content, needs
from trunkline.destination_suite.processes import worker
from trunkline.destination_suite.steps import (
    CHANGES,
    FLUSH,
    FLUSHED,
    ORDERS,
    SEED,
    SEEDED,
    flushed,
    seeded,
    standing,
    steps,
    unchanged,
)
from trunkline.errors import PositionMoved, SchemaMismatch

ID, TENANT, AMOUNT = ORDERS
ROUNDS: Final = 6


class Alteration(Struct, frozen=True):
    """One change of the source's columns, and what becomes of a row that no window contains."""

    after: dict[Column, str | None]
    defaults: dict[str, Any]
    key: tuple[str, ...] = ("id",)


def text(name: str) -> Column:
    return Column(name, "VARCHAR")


SUM, WIDE = Column("sum", "INTEGER"), Column("sum", "BIGINT")
HISTORY: Final[dict[str, Alteration]] = {  # one after the other
    "renamed": Alteration({ID: "id", TENANT: "tenant", SUM: "amount"}, {}),
    "added": Alteration({ID: "id", TENANT: "tenant", SUM: "sum", text("a"): None}, {}),
    "added with a default": Alteration(
        {ID: "id", TENANT: "tenant", SUM: "sum", text("a"): "a", text("b"): None}, {"b": "it's 50%"}
    ),
    "swapped": Alteration({ID: "id", TENANT: "tenant", SUM: "sum", text("b"): "a", text("a"): "b"}, {}),
    "each takes the name of the next": Alteration(
        {ID: "id", TENANT: "tenant", SUM: "sum", text("a"): "b", text("c"): "a"}, {}
    ),
    "dropped and added again": Alteration(
        {ID: "id", TENANT: "tenant", SUM: "sum", text("a"): "a", text("c"): None}, {"c": "new"}
    ),
    "widened": Alteration({ID: "id", TENANT: "tenant", WIDE: "sum", text("a"): "a", text("c"): "c"}, {}),
    "in another order": Alteration({text("c"): "c", text("a"): "a", WIDE: "sum", TENANT: "tenant", ID: "id"}, {}),
    "another case": Alteration({ID: "id", TENANT: "tenant", WIDE: "sum", text("C"): "a", text("A"): "c"}, {}),
    "the key renamed": Alteration(
        {Column("ID number", "BIGINT"): "id", TENANT: "tenant", WIDE: "sum", text("C"): "C", text("A"): "A"},
        {},
        key=("ID number",),
    ),
    "dropped": Alteration(
        {Column("ID number", "BIGINT"): "ID number", TENANT: "tenant", text("A"): "A"}, {}, key=("ID number",)
    ),
    "everything": Alteration(
        {Column("id", "BIGINT"): "ID number", text("A"): "tenant", text("tenant"): "A", Column("n", "BIGINT"): None},
        {"n": 2**40},
    ),
    "nothing stays but the key": Alteration({ID: "id", text("n"): None, text("A"): None}, {"A": ""}),
}


def stepped(row: Row, change: Alteration) -> Row:
    return {new.name: change.defaults.get(new.name) if old is None else row[old] for new, old in change.after.items()}


def a_row(columns: Columns, number: int, key: str) -> Row:
    """Distinct values in every column."""
    return {
        column.name: number if column.name == key else f"{column.name} {number}" if column.type == "VARCHAR" else number
        for column in columns
    }


@needs("column_steps")
@pytest.mark.parametrize("touched", [False, True], ids=["no row touched", "rows touched"])
def test_t6_columns_follow_what_happened_in_the_source_with_the_values_of_every_row(
    table: Table, touched: bool
) -> None:
    seeded(table)
    held, columns, position = list(SEEDED), ORDERS, 10
    for name, change in HISTORY.items():
        moved = steps(columns, change.after, change.defaults)
        columns, held, [key] = tuple(change.after), [stepped(row, change) for row in held], change.key
        flush = replace(FLUSH, expected=position, through=position + 1, columns=columns, key=change.key, steps=moved)
        changes: list[Change] = []
        if touched:
            changes = [(Op.INSERT, a_row(columns, position, key)), (Op.REPLACE, a_row(columns, held[1][key], key))]
            changes.append((Op.REMOVE, {key: held[0][key]}))
            held = [*held[2:], changes[0][1], changes[1][1]]
        applied = flushed(table, flush, changes)
        assert (applied.removed, applied.written, applied.missing) == ((2, 2, 0) if touched else (0, 0, 0)), name
        assert applied.reshaped.startswith(moved.spelled()), name
        position += 1
        assert content(table.held()) == content(held), name
        assert standing(table) == Standing(position, 1, "lake/orders"), name
        destination = table.open()
        assert sorted(destination.columns() or (), key=str) == sorted(columns, key=str), name
        destination.close()
        before = table.trace()
        assert flushed(table, flush, changes) == Applied(position, already=True), name
        assert table.trace() == before
    replaced = a_row(columns, held[0]["id"], "id")  # and the table goes on
    still = replace(FLUSH, expected=position, through=position + 1, columns=columns, steps=no_steps(columns))
    assert flushed(table, still, [(Op.REPLACE, replaced)]) == Applied(position + 1, removed=1, written=1)
    assert content(table.held()) == content([replaced, *held[1:]])


LEAP_DAY: Final = datetime.datetime.fromisoformat("2024-02-29 01:02:03.456789")
VALUES: Final[dict[str, Any]] = {
    "BOOLEAN": False,
    "TINYINT": -3,
    "SMALLINT": -300,
    "INTEGER": -(2**31),
    "BIGINT": -(2**63),
    "UTINYINT": 255,
    "USMALLINT": 65_535,
    "UINTEGER": 2**32 - 1,
    "UBIGINT": 2**64 - 1,
    "FLOAT": 0.5,
    "DOUBLE": 0.1,
    "VARCHAR": 'it\'s "50%" \\ \n {x} $1 é',
    "JSON": '{"a": [1, null]}',
    "UUID": "0e5c4a1e-7a5f-4f4a-b6b4-0f4d2f6a3c11",
    "BLOB": b"\x00\xff'\\x",
    "DATE": datetime.date(1, 1, 1),
    "TIME": datetime.time(1, 2, 3, 4),
    "TIMESTAMP": LEAP_DAY,
    "TIMESTAMP_S": LEAP_DAY.replace(microsecond=0),
    "TIMESTAMP_MS": LEAP_DAY.replace(microsecond=456_000),
    "TIMESTAMP WITH TIME ZONE": LEAP_DAY.replace(tzinfo=datetime.UTC),
    "DECIMAL(38,10)": decimal.Decimal("-1234567890123456789012345678.0123456789"),
    "INTEGER[]": [1, None, 3],
    "VARCHAR[]": ["a", "b,'c", None, ""],
}


@needs("column_steps")
def test_t6_rows_that_are_older_than_a_column_have_its_default_of_any_type(kind: Kind, table: Table) -> None:
    seeded(table)
    added = [each for each in VALUES if kind.adds_lists or not each.endswith("[]")]
    names = {f"c{place}": each for place, each in enumerate(added)}
    defaults = {name: VALUES[each] for name, each in names.items()}
    after: dict[Column, str | None] = {column: column.name for column in ORDERS}
    after |= {Column(name, each): None for name, each in names.items()}
    flush = replace(FLUSH, columns=tuple(after), steps=steps(ORDERS, after, defaults))
    empty: Row = {"id": 4, "tenant": "acme", "amount": 40}
    flushed(table, flush, [(Op.INSERT, empty), (Op.REMOVE, {"id": 1})])
    expected = [{**row, **defaults} for row in SEEDED[1:]] + [{**empty, **dict.fromkeys(names)}]

    def assert_held(rows: list[dict[str, Any]], columns: Columns) -> None:
        destination = table.open()
        _, batches = destination.rows()
        read = [row for batch in batches for row in batch.to_pylist()]
        assert content(read) == content(pa.Table.from_pylist(rows, arrow_schema(columns)).to_pylist())
        destination.close()

    assert_held(expected, tuple(after))
    wider = {"TINYINT": "INTEGER", "FLOAT": "DOUBLE", "DECIMAL(38,10)": "DECIMAL(38,10)"}
    later: dict[Column, str | None] = {  # a default outlives the next changes of its column
        Column(
            f"{column.name}!" if column.type in wider else column.name, wider.get(column.type, column.type)
        ): column.name
        for column in after
    }
    late: Any = [7] if kind.adds_lists else 7
    later[Column("late", "INTEGER[]" if kind.adds_lists else "INTEGER")] = None
    moved = steps(tuple(after), later, {"late": late})
    flushed(table, replace(flush, expected=20, through=21, columns=tuple(later), steps=moved), [])
    now = {old: new.name for new, old in later.items() if old is not None}
    assert_held([{**{now[name]: each for name, each in row.items()}, "late": late} for row in expected], tuple(later))


@needs("column_steps")
def test_t6_a_default_outlives_the_next_changes_of_its_column(kind: Kind, table: Table) -> None:
    """DuckLake loses a default that its catalog records, if rows are read after their column was widened."""
    seeded(table)
    kept: dict[Column, str | None] = {column: column.name for column in ORDERS}
    first = steps(ORDERS, {**kept, Column("n", "INTEGER"): None, Column("f", "FLOAT"): None}, {"n": 7, "f": 0.5})
    flushed(table, replace(FLUSH, columns=first.after, steps=first), [])
    wide, listed = Column("wide", "BIGINT"), Column("l", "INTEGER[]" if kind.adds_lists else "INTEGER")
    one: Any = [1] if kind.adds_lists else 1
    then = steps(first.after, {**kept, wide: "n", Column("f", "DOUBLE"): "f", listed: None}, {"l": one})
    row: Row = {"id": 1, "tenant": "acme", "amount": 1, "wide": 2**40, "f": None, "l": None}
    flush = replace(FLUSH, expected=20, through=21, columns=then.after, steps=then)
    flushed(table, flush, [(Op.REPLACE, row)])
    assert content(table.held()) == content([row, *({**each, "wide": 7, "f": 0.5, "l": one} for each in SEEDED[1:])])


@needs("column_steps")
@pytest.mark.parametrize(
    ("before", "named"),
    [
        ((*ORDERS, Column("more", "INTEGER")), "'more' is missing"),
        (ORDERS[:2], "'amount' is not in the source"),
        ((*ORDERS[:2], Column("amount", "SMALLINT")), "'amount' is INTEGER here and was SMALLINT"),
    ],
    ids=["dropped", "added", "another type"],
)
@pytest.mark.parametrize("moving", [False, True], ids=["no steps", "steps"])
def test_t6_a_table_that_was_changed_by_hand_is_refused_with_what_differs(
    table: Table, before: Columns, named: str, moving: bool
) -> None:
    seeded(table)
    after: dict[Column, str | None] = {column: column.name for column in before}
    if moving:
        after = {ID: "id", Column("customer", "VARCHAR"): "tenant"}
    trace = table.trace()
    with pytest.raises(SchemaMismatch, match=named):
        flushed(table, replace(FLUSH, columns=tuple(after), steps=steps(before, after)), [(Op.REMOVE, {"id": 1})])
    assert table.trace() == trace
    unchanged(table)


@needs("column_steps")
def test_t6_steps_of_another_position_are_refused_by_the_position(table: Table) -> None:
    seeded(table)
    moved = steps(ORDERS, {ID: "id", TENANT: "tenant", SUM: "amount"})
    with pytest.raises(PositionMoved):
        flushed(table, replace(FLUSH, expected=9, columns=moved.after, steps=moved), [])
    unchanged(table)


@needs("column_steps")
def test_t6_a_first_flush_makes_the_table_as_the_columns_are_now(table: Table) -> None:
    moved = steps(ORDERS, {ID: "id", SUM: "amount"})
    rows: list[Change] = [(Op.INSERT, {"id": 1, "sum": 5})]
    flushed(table, replace(FLUSH, expected=0, columns=moved.after, steps=moved), rows)
    assert content(table.held()) == content([{"id": 1, "sum": 5}])


def test_t6_steps_that_change_nothing_are_a_flush_like_any_other(table: Table) -> None:
    seeded(table)
    assert flushed(table, replace(FLUSH, steps=no_steps(ORDERS)), CHANGES) == Applied(20, removed=2, written=2)
    assert content(table.held()) == content(FLUSHED)


@needs("column_steps")
def test_t6_mode_append_follows_too(table: Table) -> None:
    seeded(table, replace(SEED, mode="append"))
    moved = steps(ORDERS, {text("id"): None, text("tenant"): "tenant"}, {"id": str(uuid.UUID(int=7))})
    flush = replace(FLUSH, mode="append", key=(), columns=moved.after, steps=moved)
    flushed(table, flush, [(Op.INSERT, {"id": "x", "tenant": "y"})])
    old = {"id": str(uuid.UUID(int=7)), "tenant": "acme"}
    assert content(table.held()) == content([old, old, old, {"id": "x", "tenant": "y"}])


@needs("column_steps")
def test_t6_of_two_processes_that_race_one_moves_the_columns(table: Table) -> None:
    seeded(table)
    columns, name = ORDERS, "amount"
    with worker(table) as one, worker(table) as two:
        for number in range(ROUNDS):
            to = Column(f"name {number}", "INTEGER")
            moved = steps(columns, {ID: "id", TENANT: "tenant", to: name})
            columns, name = moved.after, to.name
            row = {"id": 100 + number, "tenant": "x", name: number}
            flush = replace(FLUSH, expected=10 + number, through=11 + number, columns=columns, steps=moved)
            one.send((replace(flush, token=number + 2), [(Op.INSERT, row)]))
            two.send((replace(flush, token=number + 2), [(Op.INSERT, row)]))
            answers = [one.recv(), two.recv()]
            written = [answer for answer in answers if isinstance(answer, Applied) and not answer.already]
            assert len(written) == 1, answers
            assert Applied(11 + number, already=True) in answers
    expected = [{"id": row["id"], "tenant": "acme", name: row["amount"]} for row in SEEDED]
    expected += [{"id": 100 + number, "tenant": "x", name: number} for number in range(ROUNDS)]
    assert content(table.held()) == content(expected)


@needs("column_steps")
def test_a_flush_with_steps_that_fails_at_its_rows_leaves_the_old_columns(table: Table) -> None:
    seeded(table)
    moved = steps(ORDERS, {ID: "id", TENANT: "tenant", SUM: "amount"})
    flush: Plan = replace(FLUSH, columns=moved.after, steps=moved)
    trace = table.trace()
    with pytest.raises(Exception, match="3"):
        flushed(table, flush, [(Op.INSERT, {"id": 3, "tenant": "acme", "sum": 1})])  # a duplicate key
    assert table.trace() == trace
    unchanged(table)
