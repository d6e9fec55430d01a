"""What a new shape of a table continues: exactly, or it is captured again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import structs

from delivery.catalog_model import CONSTRAINT, OID, Committed, ModelTable, Rows, Write
from trunkline.delivery.capture.postgres.catalog import (
    DefinedColumn,
    TableDefinition,
    relation_of,
    schema_of,
)
from trunkline.delivery.capture.postgres.pgoutput import Relation
from trunkline.delivery.capture.postgres.shape_changes import Changed, Recapture, Refused, Same, Verdict, fits, judged
from trunkline.delivery.changes.schemas import (
    Identity,
    SchemaChange,
    TableSchema,
    check_schema,
    check_step,
    defaults_in,
)

pytestmark = pytest.mark.fast


# --- random alterations, with the catalog read at any later moment ---


@dataclass
class Reader:
    """Rebuilds the table from the stream, as the log would; its rows are read again when they have to be."""

    table: ModelTable
    known: TableSchema
    rows: Rows = field(default_factory=dict)
    complete: bool = True
    read_after: int = 0  # rows may be read again from here on
    definitions: list[TableDefinition] = field(default_factory=list)
    verdicts: list[str] = field(default_factory=list)

    def follow(self, committed: Committed, definition: TableDefinition, *, delay: bool) -> None:
        for write in committed.writes:
            if write.relation is not None:
                self.judge(write.relation, definition, committed.lsn)
            self.apply(write)
        if (
            not self.complete
            and committed.lsn >= self.read_after
            and not delay
            and fits(self.known, committed.definition)
        ):
            numbers = {column.number for column in self.known.columns}
            self.rows = {
                key: {number: value for number, value in row.items() if number in numbers}
                for key, row in committed.rows.items()
            }
            self.complete = True

    def judge(self, relation: Relation, definition: TableDefinition, lsn: int) -> None:
        before = [each for each in self.definitions if each.lsn <= lsn]
        verdict = judged(self.known, relation, definition, earlier=before[-1] if before else None)
        self.definitions.append(definition)
        self.verdicts.append(type(verdict).__name__)
        assert not isinstance(verdict, Refused)
        check_schema(verdict.schema)
        if not isinstance(verdict, Same):
            check_step(self.known, verdict.schema)
        assert names(verdict.schema) == [each.name for each in relation.columns]
        match verdict:
            case Changed(schema=schema):
                defaults = defaults_in(schema)
                old = {column.number for column in self.known.columns}
                for place, column in enumerate(schema.columns):
                    if column.number not in old:
                        value = None if defaults is None else defaults.column(place)[0].as_py()
                        for row in self.rows.values():
                            row[column.number] = value
                for number in old - {column.number for column in schema.columns}:
                    for row in self.rows.values():
                        del row[number]
            case Recapture():
                self.complete, self.rows, self.read_after = False, {}, definition.lsn
        self.known = verdict.schema

    def apply(self, write: Write) -> None:
        match write.kind:
            case "truncate":
                self.rows = {}
            case "delete":
                gone = self.rows.pop(write.key, None)
                assert gone is not None or not self.complete
            case _:
                numbers = [column.number for column in self.known.columns][1:]
                self.rows[write.key] = dict(zip(numbers, write.row, strict=True))

    def named(self) -> dict[int, dict[str, Any]]:
        titles = {column.number: column.name for column in self.known.columns}
        return {key: {titles[number]: value for number, value in row.items()} for key, row in self.rows.items()}


def names(schema: TableSchema) -> list[str]:
    return [column.name for column in schema.columns]


def named_rows(committed: Committed) -> dict[int, dict[str, Any]]:
    titles = {column.number: column.name for column in committed.definition.live if column.number > 1}
    return {
        key: {titles[number]: value for number, value in row.items() if number in titles}
        for key, row in committed.rows.items()
    }


LAG_MAX = 4
NAMES = ["a", "b", "c", "d"]
OPERATIONS = st.one_of(
    st.tuples(st.just("add"), st.sampled_from(NAMES), st.sampled_from(["null", "constant", "volatile", "generated"])),
    st.tuples(st.just("drop"), st.integers(0, 3)),
    st.tuples(st.just("rename"), st.integers(0, 3), st.sampled_from(NAMES)),
    st.tuples(st.sampled_from(["widen", "recompute", "lengthen", "touch"]), st.integers(0, 3)),
    st.tuples(st.sampled_from(["rewrite", "drop_expression", "invalidate", "truncate"])),
    st.tuples(st.sampled_from(["insert", "insert", "insert", "delete"]), st.integers(1, 3)),
)
HISTORIES = st.lists(
    st.tuples(st.lists(OPERATIONS, min_size=1, max_size=4), st.integers(0, LAG_MAX), st.booleans(), st.booleans()),
    min_size=1,
    max_size=14,
)


def carry_out(table: ModelTable, operation: tuple[Any, ...]) -> None:
    name, *arguments = operation
    if name in ("drop", "rename", "widen", "recompute", "lengthen", "touch"):
        live = table.live()
        if not live:
            return
        column = live[arguments[0] % len(live)]
        match name:
            case "drop":
                table.drop(column)
            case "rename":
                table.rename(column, arguments[1])
            case "widen":
                table.widen(column)
            case "recompute":
                table.recompute(column)
            case "lengthen":
                table.recompute(column, modifier=1)
            case "touch":
                table.touch(column)
    else:
        getattr(table, name)(*arguments)


def followed(history: list[tuple[list[tuple[Any, ...]], int, bool, bool]]) -> Reader:
    """Let a reader follow; after each write it must have the rows of the database, or know that it has not."""
    table = ModelTable()
    for operations, _, _, _ in history:
        for operation in operations:
            carry_out(table, operation)
        table.commit()
    plans = [(lag, poll, delay) for _, lag, poll, delay in history]
    for _ in range(LAG_MAX + 3):  # the end: writes, each with its relation; the last ones catch up
        table.invalidate()
        table.insert(9)
        table.commit()
        plans.append((0, False, False))
    begun = table.history[0]
    reader = Reader(table, schema_of(begun.definition, 1))
    now = 0
    for place, (committed, (lag, poll, delay)) in enumerate(zip(table.history[1:], plans, strict=True), start=1):
        now = min(max(now, place + lag), len(table.history) - 1)
        reader.follow(committed, table.history[now].definition, delay=delay)
        if reader.complete and committed.settled:
            assert reader.named() == named_rows(committed), reader.verdicts
        if poll:
            reader.definitions.append(table.history[now].definition)
    assert reader.complete
    return reader


@settings(max_examples=400, deadline=None)
@given(HISTORIES)
@example([([("insert", 1)], 0, False, False), ([("invalidate",), ("insert", 1)], 4, False, False),
          ([("drop", 1)], 0, False, False), ([("add", "b", "null")], 0, False, False)])  # fmt: skip
@example([([("insert", 1)], 0, False, False), ([("rename", 1, "c"), ("insert", 1)], 4, False, False),
          ([("drop", 1), ("add", "c", "null")], 0, False, False)])  # fmt: skip
@example([([("insert", 1)], 0, False, False), ([("add", "c", "null"), ("drop", 2)], 0, False, False),
          ([("add", "d", "constant")], 0, False, False), ([("insert", 2)], 0, False, False)])  # fmt: skip
@example([([("insert", 1)], 0, False, False), ([("add", "c", "generated"), ("insert", 2)], 0, False, False),
          ([("drop_expression",)], 0, True, False), ([("insert", 2)], 0, False, False)])  # fmt: skip
@example([([("add", "c", "generated"), ("drop", 0), ("drop", 0), ("insert", 1)], 0, False, False),
          ([("drop_expression",), ("insert", 1), ("drop", 0), ("add", "a", "null")], 0, False, False)])  # fmt: skip
@example([([("insert", 1), ("drop", 0), ("add", "a", "generated")], 0, False, False), ([("drop", 0)], 2, False, False),
          ([("insert", 1)], 0, False, False), ([("drop_expression",)], 0, False, False)])  # fmt: skip
def test_no_wrong_column_or_value_passes_whatever_is_altered_and_however_late_the_catalog_is_read(
    history: list[tuple[list[tuple[Any, ...]], int, bool, bool]],
) -> None:
    followed(history)


# --- each alteration ---

A, B, C = DefinedColumn(2, "a", 1043, 14, 5), DefinedColumn(3, "b", 23, -1, 5), DefinedColumn(4, "c", 25, -1, 9)
ID = DefinedColumn(1, "id", 20, -1, 5, not_null=True)
TOMB = DefinedColumn(3, "........pg.dropped.3........", 0, -1, 9, dropped=True)
TABLE = TableDefinition(OID, "public", "orders", 1, "d", (ID, A, B), 100, CONSTRAINT, (1,))
KNOWN = schema_of(TABLE, 7)


def after(*columns: DefinedColumn, **changes: Any) -> TableDefinition:
    return structs.replace(TABLE, columns=(ID, *columns), **({"lsn": 200} | changes))


def judge(definition: TableDefinition, **options: Any) -> Verdict:
    return judged(KNOWN, relation_of(definition), definition, **options)


def changed(verdict: Verdict) -> tuple[SchemaChange, ...]:
    assert isinstance(verdict, Changed), verdict
    check_step(KNOWN, verdict.schema)
    check_schema(verdict.schema)
    return verdict.schema.changes


def reason(verdict: Verdict) -> str:
    assert isinstance(verdict, Recapture), verdict
    check_step(KNOWN, verdict.schema)
    check_schema(verdict.schema)
    assert verdict.schema.changes == (SchemaChange.RECAPTURED,)
    return verdict.reason


def test_an_unchanged_shape_is_the_same_and_so_is_a_truncated_or_compacted_table() -> None:
    assert judge(TABLE) == Same(KNOWN)
    verdict = judge(after(A, B, storage=2))
    assert isinstance(verdict, Same)
    assert verdict.schema.storage == 2


def test_a_column_is_added_with_the_value_that_older_rows_have() -> None:
    constant = structs.replace(C, has_missing=True, missing="x, y")
    verdict = judge(after(A, B, constant))
    assert changed(verdict) == (SchemaChange.ADDED,)
    assert isinstance(verdict, Changed)
    defaults = defaults_in(verdict.schema)
    assert defaults is not None
    assert defaults.to_pylist() == [{"id": None, "a": None, "b": None, "c": "x, y"}]

    verdict = judge(after(A, B, C))
    assert changed(verdict) == (SchemaChange.ADDED,)
    assert isinstance(verdict, Changed)
    assert defaults_in(verdict.schema) is None
    assert "a value of its own" in reason(judge(after(A, B, C, storage=2)))


def test_a_default_that_no_log_can_hold_is_refused() -> None:
    odd = DefinedColumn(4, "c", 1700, (10 << 16 | 2) + 4, 9, has_missing=True, missing="NaN")
    verdict = judge(after(A, B, odd))
    assert isinstance(verdict, Refused)
    assert "'c' has the default NaN" in verdict.reason


def test_a_column_is_dropped_or_renamed_or_gets_room() -> None:
    assert changed(judge(after(A, TOMB))) == (SchemaChange.DROPPED,)
    assert changed(judge(after(structs.replace(A, name="z", stamp=9), B))) == (SchemaChange.RENAMED,)
    assert changed(judge(after(structs.replace(A, modifier=24, stamp=9), B))) == (SchemaChange.WIDENED,)
    assert changed(judge(after(structs.replace(A, type_oid=25, modifier=-1, stamp=9), B))) == (SchemaChange.WIDENED,)
    several = after(structs.replace(A, name="z", modifier=24, stamp=9), B, C)
    assert changed(judge(several)) == (SchemaChange.ADDED, SchemaChange.RENAMED, SchemaChange.WIDENED)


def test_a_type_that_changes_with_its_rows_or_its_texts_is_captured_again() -> None:
    bigint = structs.replace(B, type_oid=20, stamp=9)
    assert "rewritten" in reason(judge(after(A, bigint, storage=2)))
    assert "altered and the rows were rewritten" in reason(judge(after(A, structs.replace(B, stamp=9), storage=2)))
    assert "'b' changed" in reason(
        judge(after(A, structs.replace(B, type_oid=26, stamp=9)))
    )  # oid: -1 reads 4294967295


def test_a_column_that_was_dropped_and_added_again_is_certain_only_between_two_equal_definitions() -> None:
    again = after(A, TOMB, structs.replace(B, number=4, stamp=9))
    assert relation_of(again).columns == relation_of(TABLE).columns
    assert "too fast" in reason(judge(again))
    assert changed(judge(again, earlier=structs.replace(again, lsn=150))) == (SchemaChange.ADDED, SchemaChange.DROPPED)
    assert "too fast" in reason(judge(again, earlier=TABLE))


def test_a_table_is_renamed_or_moved_to_another_schema() -> None:
    verdict = judge(after(A, B, name="orders_2", schema="old"))
    assert changed(verdict) == (SchemaChange.TABLE_RENAMED,)
    assert isinstance(verdict, Changed)
    assert (verdict.schema.schema, verdict.schema.name) == ("old", "orders_2")


def test_another_identity_with_the_same_key_is_followed_and_another_key_is_captured_again() -> None:
    full = judge(after(A, B, identity="f"))
    assert changed(full) == (SchemaChange.KEY,)
    assert isinstance(full, Changed)
    assert (full.schema.key, full.schema.identity) == (("id",), Identity.FULL)

    wider = judge(after(A, B, primary=(2, 1), constraint=CONSTRAINT + 1))
    assert reason(wider) == "its key was (id), and is (a, id) now"
    assert isinstance(wider, Recapture)
    assert (wider.schema.key, wider.schema.identity) == (("a", "id"), Identity.KEY)

    index = judge(after(A, B, identity="i", index=(3,)))
    assert reason(index) == "its key was (id), and is (b) now"

    lost = judge(after(A, B, primary=(), constraint=0))
    assert reason(lost) == "its key was (id), and is () now"
    assert isinstance(lost, Recapture)
    assert (lost.schema.key, lost.schema.identity) == ((), Identity.NOTHING)


def test_with_full_identity_a_primary_key_counts_only_when_it_was_there_all_the_time() -> None:
    without = structs.replace(TABLE, identity="f", primary=(), constraint=0)
    known = schema_of(without, 7)
    keyed = structs.replace(TABLE, identity="f", lsn=200)
    assert judged(known, relation_of(keyed), keyed) == Same(known)
    verdict = judged(known, relation_of(keyed), keyed, earlier=structs.replace(keyed, lsn=150))
    assert isinstance(verdict, Recapture)
    assert (verdict.schema.key, verdict.schema.constraint) == (("id",), CONSTRAINT)

    known = schema_of(keyed, 7)
    verdict = judged(known, relation_of(keyed), structs.replace(keyed, constraint=CONSTRAINT + 1))
    assert isinstance(verdict, Recapture)  # between the two keys, rows may have been equal


def test_columns_that_no_log_can_hold_are_refused_with_the_remedy() -> None:
    verdict = judge(after(A, B, structs.replace(C, name="B")))
    assert isinstance(verdict, Refused)
    assert "differ only in case" in verdict.reason
    verdict = judge(after(A, B, structs.replace(C, name="_trunkline_seq")))
    assert isinstance(verdict, Refused)
    assert "reserved" in verdict.reason
    verdict = judged(KNOWN, structs.replace(relation_of(TABLE), columns=(), key=()), TABLE)
    assert isinstance(verdict, Refused)


def test_a_table_that_was_dropped_or_replaced_is_captured_again() -> None:
    verdict = judged(KNOWN, relation_of(TABLE), None)
    assert "dropped" in reason(verdict)
    assert isinstance(verdict, Recapture)
    assert verdict.schema.attributes == 0
    assert "several times" in reason(
        judged(structs.replace(verdict.schema, generation=1, version=1), relation_of(TABLE), TABLE)
    )
    other = structs.replace(TABLE, oid=OID + 1)
    assert "another table" in reason(judge(other))


def test_rows_fit_only_the_version_with_their_columns() -> None:
    assert fits(KNOWN, TABLE)
    assert fits(KNOWN, after(A, B, storage=2))
    assert not fits(KNOWN, after(A, TOMB, structs.replace(B, number=4)))
    assert not fits(KNOWN, after(structs.replace(A, modifier=24), B))
