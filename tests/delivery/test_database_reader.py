"""The reader of a captured database: whole transactions, versions, generations, and what can be read where."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from delivery.group_log import GroupLog, Work, changed, schema_of
from trunkline.client.entries import Entry
from trunkline.delivery.changes.database_entries import CatalogEntry, OneTable, entry_of
from trunkline.delivery.changes.database_reader import DatabaseReader, End, ends
from trunkline.delivery.changes.groups import UNCHANGED, RowKind
from trunkline.delivery.changes.rebuilt import rebuild
from trunkline.delivery.changes.schemas import Catalog, CatalogTable, SchemaChange, SourceColumn
from trunkline.errors import CorruptEntry

KEYED = schema_of(1, "id BIGINT, note VARCHAR, size INTEGER")
PLAIN = schema_of(2, "a INTEGER, b DOUBLE", key=())
INSERT, DELETE, OLD, NEW, TRUNCATE, READ = RowKind


def started() -> GroupLog:
    """A log with both tables complete and empty."""
    log = GroupLog()
    for schema in (KEYED, PLAIN):
        log.schema(schema)
        log.chunk(schema, 0, [])
    return log


def ends_of(entries: list[Entry], **options: Any) -> list[End]:
    found = (entry_of(entry) for entry in entries)
    start = next(entry for entry in found if isinstance(entry, CatalogEntry))
    return list(ends(DatabaseReader(start, **options), found))


def state(log: GroupLog, number: int = 1, upto: int | None = None) -> list[tuple[Any, ...]]:
    table = rebuild(log.entries, upto or log.last)[number]
    return sorted((tuple(row.values()) for row in table.to_pylist()), key=repr)


def one(number: int) -> tuple[Any, ...]:
    return (number, f"note {number}", number)


def inserted(number: int) -> Work:
    return [(KEYED, INSERT, one(number))]


# ------------------------------------------------------------------------------------------------------------- rows


def test_the_state_at_an_end_follows_every_kind_of_change() -> None:
    log = started()
    log.group(inserted(1), inserted(2), [*inserted(3), (PLAIN, INSERT, (1, 0.5)), (PLAIN, INSERT, (1, 0.5))])
    first = log.last
    log.group(
        [(KEYED, NEW, (1, "new", 9))],
        [(KEYED, OLD, (2, None, None)), (KEYED, NEW, (20, None, 4), b"\x02")],
        [(KEYED, DELETE, (3, None, None)), (PLAIN, DELETE, (1, 0.5))],
    )
    assert state(log) == [(1, "new", 9), (20, "note 2", 4)]
    assert state(log, 2) == [(1, 0.5)]
    assert state(log, upto=first) == [one(1), one(2), one(3)]
    log.group([(KEYED, TRUNCATE, ()), (KEYED, INSERT, one(7))])
    assert state(log) == [one(7)]


def test_equal_rows_of_a_table_without_a_key_are_counted_even_if_they_are_no_numbers() -> None:
    log = started()
    odd = (None, float("nan"))
    log.group([(PLAIN, INSERT, odd)] * 3, [(PLAIN, DELETE, odd)])
    log.group([(PLAIN, OLD, odd), (PLAIN, NEW, (5, None))])
    assert [str(row) for row in state(log, 2)] == ["(5, None)", "(None, nan)"]


def test_a_change_that_does_not_fit_a_complete_table_is_not_passed_over() -> None:
    unfit: list[Work] = [[(KEYED, DELETE, one(9))], [(KEYED, NEW, one(9))], [*inserted(9), *inserted(9)]]
    for work in unfit:
        log = started()
        log.group(work)
        with pytest.raises(ValueError, match="a row that is"):
            state(log)


def test_only_ends_have_a_state() -> None:
    log = started()
    log.part(0, inserted(1))
    with pytest.raises(ValueError, match="not an end"):
        state(log)
    with pytest.raises(ValueError, match="do not begin"):
        rebuild(log.entries[2:], log.last)


def test_only_chosen_tables_are_decoded() -> None:
    log = started()
    log.group([*inserted(1), (PLAIN, INSERT, (1, 0.5))])
    found = ends_of(log.entries, chosen=lambda schema: schema.number == 2)
    assert [[rows.number for rows in step.rows] for step in found[-1].steps] == [[2]]
    assert found[-1].transactions[0].rows == 2


# ------------------------------------------------------------------------------------------------------------ parts


def test_r2_parts_are_one_transaction_and_schemas_may_lie_between() -> None:
    log = started()
    later = changed(
        KEYED,
        SchemaChange.ADDED,
        columns=(*KEYED.columns, SourceColumn("more", "BIGINT", 4)),
        defaults={"more": 77},
    )
    log.part(0, inserted(1))
    log.schema(later)
    log.part(1, [(later, INSERT, (2, "x", 2, 2))])
    log.part(2, [(KEYED, INSERT, one(3))], last=True)
    last = ends_of(log.entries)[-1]
    assert [(each.rows, each.lsn) for each in last.transactions] == [(3, log.lsn)]
    assert state(log) == [(*one(1), 77), (2, "x", 2, 2), (*one(3), 77)]


@pytest.mark.parametrize("crashes", [False, True])
def test_r2_a_table_that_is_captured_again_between_parts_loses_its_rows_of_those_before(crashes: bool) -> None:
    log = started()
    log.group(inserted(1))
    log.part(0, [*inserted(2), (PLAIN, INSERT, (1, 0.5))])
    again = log.schema(changed(KEYED, SchemaChange.RECAPTURED))
    if crashes:
        log.part(1, [(again, INSERT, one(3))])
        log.mark()
        log.part(0, [(PLAIN, INSERT, (1, 0.5))])
    log.part(1, [(again, INSERT, one(3)), (PLAIN, INSERT, (2, 0.5))], last=True)
    assert ends_of(log.entries)[-1].blocked == (KEYED.number,)
    assert [table.rows for table in log.reader().tables()] == [1, 2]
    log.catalog()
    log.chunk(again, 0, [one(1), one(2)], complete=True)
    assert state(log) == [one(1), one(2), one(3)]


def test_r2_a_table_may_end_between_parts() -> None:
    log = started()
    log.part(0, [*inserted(2), (PLAIN, INSERT, (1, 0.5))])
    log.schema(changed(KEYED, SchemaChange.TABLE_DROPPED))
    log.part(1, [(PLAIN, INSERT, (2, 0.5))], last=True)
    assert [table.newest.number for table in log.reader().tables()] == [PLAIN.number]
    assert ends_of(log.entries)[-1].glsn == log.last


def test_r2_a_mark_with_a_position_forgets_no_parts_and_may_not_lie_between_them() -> None:
    log = started()
    log.group(inserted(1))
    log.position_mark()
    assert ends_of(log.entries)[-1].glsn == log.last
    assert state(log) == [one(1)]
    log.part(0, inserted(2))
    log.position_mark()
    with pytest.raises(CorruptEntry, match="between parts"):
        ends_of(log.entries)


def test_changes_of_each_table_are_counted_without_those_of_forgotten_parts() -> None:
    log = started()
    log.group([*inserted(1), *inserted(2), (PLAIN, INSERT, (1, 0.5))])
    log.part(0, inserted(3))
    log.mark()
    log.part(0, inserted(3))
    log.part(1, inserted(4), last=True)
    assert [table.rows for table in log.reader().tables()] == [4, 1]
    log.catalog()
    log.schema(changed(PLAIN, SchemaChange.RECAPTURED))
    log.group(inserted(5))
    assert [table.rows for table in log.reader().tables()] == [5, 0]
    wrong = log.reader().catalog()
    log.catalog(msgspec.structs.replace(wrong, tables=tuple(replaced(each, 7) for each in wrong.tables)))
    with pytest.raises(CorruptEntry, match="other than the entries before it"):
        log.reader()


def replaced(table: CatalogTable, rows: int) -> CatalogTable:
    return msgspec.structs.replace(table, rows=rows)


def test_r2_parts_without_a_last_part_are_forgotten_at_a_mark() -> None:
    log = started()
    log.part(0, inserted(1))
    log.part(1, inserted(2))
    log.mark()
    log.part(0, inserted(1))
    log.part(1, inserted(2), last=True)
    found = ends_of(log.entries)
    assert [sum(each.rows for each in end.transactions) for end in found[-2:]] == [0, 2]
    assert state(log) == [one(1), one(2)]
    assert state(log, upto=log.last - 2) == []


def _between(log: GroupLog, what: str) -> None:
    match what:
        case "a group":
            log.group(inserted(5))
        case "a chunk":
            log.chunk(KEYED, 1, [])
        case "a first part":
            log.part(0, inserted(5))
        case "a gap":
            log.part(2, inserted(5))
        case "a part twice":
            log.part(0, inserted(1))
        case "another transaction":
            log.lsn += 10
            log.part(1, inserted(5))
        case "a catalog":
            log.catalog(Catalog(1, 0, 3, ()))


@pytest.mark.parametrize(
    "what",
    ["a group", "a chunk", "a first part", "a gap", "a part twice", "another transaction", "a catalog"],
)  # fmt: skip
def test_r2_anything_else_between_parts_is_corrupt(what: str) -> None:
    log = started()
    log.part(0, inserted(1))
    _between(log, what)
    with pytest.raises(CorruptEntry, match=f"entry {log.last} "):
        ends_of(log.entries)


# --------------------------------------------------------------------------------------- entries that are not there


def everything() -> GroupLog:
    log = GroupLog()
    log.schema(KEYED)
    log.schema(PLAIN)
    log.chunk(KEYED, 0, [one(1)], complete=False)
    log.group(inserted(5))
    log.chunk(KEYED, 1, [one(2)])
    log.chunk(PLAIN, 0, [(1, 0.5)])
    log.catalog()
    log.group(inserted(6), inserted(7))
    log.part(0, inserted(8))
    log.part(1, inserted(9), last=True)
    log.schema(changed(PLAIN, SchemaChange.TABLE_RENAMED, name="other"))
    log.group([(KEYED, DELETE, (1, None, None))])
    log.catalog()
    log.group(inserted(10))
    return log


def renumbered(entries: list[Entry]) -> list[Entry]:
    return [msgspec.structs.replace(entry, glsn=glsn) for glsn, entry in enumerate(entries, start=1)]


def test_r1_an_entry_that_is_lost_is_found_out_at_the_next() -> None:
    log = everything()
    for lost in range(2, log.last - 1):  # not the mark and the catalog in front
        entries = [entry for entry in log.entries if entry.glsn != lost + 1]
        kind = type(entry_of(log.entries[lost])).__name__
        if kind == "CatalogEntry":
            assert lost + 1 < log.last  # each later group names it
        with pytest.raises(CorruptEntry):
            ends_of(entries)


def test_r1_an_entry_that_is_repeated_or_moved_is_found_out() -> None:
    log = everything()
    for at in range(2, log.last):
        if isinstance(entry_of(log.entries[at]), CatalogEntry):
            continue  # it says again what is so
        with pytest.raises(CorruptEntry):
            ends_of(renumbered([*log.entries[: at + 1], *log.entries[at:]]))
        with pytest.raises(CorruptEntry, match="comes after"):
            ends_of([*log.entries[: at + 1], *log.entries[at:]])
    swapped = [*log.entries[:8], log.entries[9], log.entries[8], *log.entries[10:]]
    with pytest.raises(CorruptEntry):
        ends_of(swapped)


def test_r1_no_two_entries_that_change_places_give_another_state() -> None:
    log = everything()
    expected = rebuild(log.entries, log.last)
    refused = 0
    for at in range(1, log.last):
        for to in range(at + 1, log.last):
            entries = list(log.entries)
            entries[at], entries[to] = entries[to], entries[at]
            try:
                assert rebuild(renumbered(entries), log.last) == expected
            except (CorruptEntry, ValueError):
                refused += 1
    assert refused > log.last * (log.last - 2) / 2 * 0.8


def test_an_entry_of_format_1_among_others_is_corrupt() -> None:
    log = started()
    reader = log.reader()
    foreign = entry_of(Entry(log.last + 1, b""))
    assert isinstance(foreign, OneTable)
    with pytest.raises(CorruptEntry, match="not of format 2"):
        reader.feed(foreign)


# ------------------------------------------------------------------------------------------ chunks and generations


def test_r3_a_table_is_blocked_until_its_last_chunk_and_others_are_not() -> None:
    log = GroupLog()
    log.schema(KEYED)
    log.schema(PLAIN)
    log.chunk(PLAIN, 0, [(1, 0.5)])
    log.chunk(KEYED, 0, [one(1), one(2)], complete=False)
    log.group([(KEYED, NEW, (2, "new", 2)), (KEYED, NEW, (4, "later", 4)), (KEYED, DELETE, (5, None, None))])
    log.chunk(KEYED, 1, [one(3), (4, "later", 4)])
    assert [end.blocked for end in ends_of(log.entries)] == [(1,)] * 3 + [()]
    assert [end.blocked for end in ends_of(log.entries, chosen=lambda schema: schema.number == 2)] == [()] * 4
    assert list(rebuild(log.entries, log.last - 1)) == [2]
    assert state(log) == [one(1), (2, "new", 2), one(3), (4, "later", 4)]
    assert log.reader().tables()[0].chunks == 2


def test_r3_a_new_generation_replaces_all_rows_and_blocks_again() -> None:
    log = started()
    log.group(inserted(1), inserted(2))
    again = log.schema(
        changed(
            KEYED,
            SchemaChange.RECAPTURED,
            columns=(SourceColumn("id", "VARCHAR", 1), SourceColumn("size", "DOUBLE", 3)),
        )
    )
    log.group([(again, INSERT, ("7", 0.5))])
    assert list(rebuild(log.entries, log.last)) == [2]
    log.chunk(again, 0, [("1", 1.0)])
    found = ends_of(log.entries)
    assert [end.blocked for end in found[-2:]] == [(1,), ()]
    assert [step.emptied for step in found[-2].steps] == [(1,), ()]
    assert state(log) == [("1", 1.0), ("7", 0.5)]
    log.group(inserted(9))
    with pytest.raises(CorruptEntry, match="no schema entry has version 1"):
        ends_of(log.entries)


def test_r3_the_snapshot_of_a_table_without_a_key_has_what_came_before_it() -> None:
    log = GroupLog()
    log.schema(KEYED)
    log.schema(PLAIN)
    log.group([(PLAIN, INSERT, (1, 0.5))])
    log.chunk(PLAIN, 0, [(1, 0.5)], complete=False)
    log.chunk(PLAIN, 1, [(2, 0.5)])
    log.group([(PLAIN, INSERT, (1, 0.5))])
    assert state(log, 2) == [(1, 0.5), (1, 0.5), (2, 0.5)]


@pytest.mark.parametrize("wrong", ["skipped", "again", "of another generation", "of an old version", "after the last"])
def test_a_chunk_that_does_not_follow_is_corrupt(wrong: str) -> None:
    log = GroupLog()
    log.schema(KEYED)
    log.chunk(KEYED, 0, [one(1)], complete=wrong == "after the last")
    match wrong:
        case "skipped":
            log.chunk(KEYED, 2, [])
        case "again":
            log.chunk(KEYED, 0, [])
        case "of another generation":
            log.chunk(msgspec.structs.replace(KEYED, generation=2), 1, [])
        case "of an old version":
            log.schema(changed(KEYED, SchemaChange.TABLE_RENAMED, name="other"))
            log.chunk(KEYED, 1, [])
        case _:
            log.chunk(KEYED, 1, [])
    with pytest.raises(CorruptEntry, match=f"entry {log.last} "):
        ends_of(log.entries)


# ---------------------------------------------------------------------------------------------------------- schemas


def test_r5_older_rows_are_presented_under_the_newest_version() -> None:
    log = started()
    log.group(inserted(1), [(KEYED, NEW, (1, None, 5), b"\x02")])
    id_, note, size = KEYED.columns
    on, text = SourceColumn("on", "BOOLEAN", 4), SourceColumn("text", "VARCHAR", 2)
    large, day = SourceColumn("size", "BIGINT", 3), SourceColumn("on", "DATE", 5)
    versions = [KEYED]
    for change, columns, defaults in (
        (SchemaChange.ADDED, (id_, SourceColumn("flag", "BOOLEAN", 4), note, size), {"flag": True}),
        (SchemaChange.RENAMED, (id_, on, text, size), {}),
        (SchemaChange.WIDENED, (id_, on, text, large), {}),
        (SchemaChange.DROPPED, (id_, text, large), {}),
        (SchemaChange.ADDED, (id_, text, large, day), {}),
    ):
        versions.append(log.schema(changed(versions[-1], change, columns=columns, defaults=defaults)))
        log.group([])
    log.catalog()
    log.group([(versions[-1], INSERT, (2, "two", 2**40, None))])
    assert state(log) == [(1, "note 1", 5, None), (2, "two", 2**40, None)]
    assert state(log, upto=log.last - 6) == [(1, True, "note 1", 5)]
    reader = log.reader()
    rows = [each for end in ends_of(log.entries) for step in end.steps for each in step.rows if each.number == 1]
    old = next(each for each in rows if each.batch.num_rows == 2)
    shown = reader.presented(old)
    assert shown.version == 6
    assert shown.batch.schema.names[4:] == ["id", "text", "size", "on"]
    assert shown.batch.column(UNCHANGED).to_pylist() == [None, b"\x02"]
    middle = reader.presented(old, 2)
    assert middle.batch.column("flag").to_pylist() == [True, True]
    assert middle.batch.column(UNCHANGED).to_pylist() == [None, b"\x04"]
    with pytest.raises(ValueError, match="has no versions 1 and 7"):
        reader.presented(old, 7)


def test_r4_rows_after_a_catalog_have_versions_that_it_names() -> None:
    log = started()
    later = log.schema(changed(KEYED, SchemaChange.TABLE_RENAMED, name="other"))
    whole = log.reader().catalog()
    log.catalog()
    log.group(inserted(1))
    assert state(log) == [one(1)]
    first = CatalogTable((later,), True, 1, rows=1)
    log.catalog(msgspec.structs.replace(log.reader().catalog(), tables=(first, whole.tables[1])))
    log.group([(later, INSERT, one(2))])
    assert state(log) == [one(1), one(2)]
    log.group(inserted(3))
    with pytest.raises(CorruptEntry, match="no schema entry has version 1"):
        state(log)


@pytest.mark.parametrize(
    "wrong",
    ["a table of a used number", "a number left out", "a version left out", "a lost table", "another version"],
)
def test_a_schema_that_does_not_follow_is_corrupt(wrong: str) -> None:
    log = started()
    match wrong:
        case "a table of a used number":
            log.schema(changed(KEYED, SchemaChange.TABLE_DROPPED))
            log.schema(KEYED)
        case "a number left out":
            log.schema(schema_of(4, "id BIGINT"))
        case "a version left out":
            log.schema(changed(KEYED, SchemaChange.RENAMED, version=3))
        case "a lost table":
            log.schema(schema_of(3, "id BIGINT", changes=(SchemaChange.RENAMED,)))
        case _:
            log.schema(KEYED)
    with pytest.raises(CorruptEntry, match=f"entry {log.last} "):
        ends_of(log.entries)


def test_a_dropped_table_has_no_state_and_no_more_rows() -> None:
    log = started()
    log.group(inserted(1))
    log.schema(changed(KEYED, SchemaChange.TABLE_DROPPED))
    log.catalog()
    log.group([(PLAIN, INSERT, (1, 0.5))])
    assert list(rebuild(log.entries, log.last)) == [2]
    log.group(inserted(2))
    with pytest.raises(CorruptEntry, match="no schema entry"):
        ends_of(log.entries)


# --------------------------------------------------------------------------------------------------------- catalogs


def test_s4_a_reader_can_begin_at_any_catalog() -> None:
    log = everything()
    whole = ends_of(log.entries)
    starts = [entry_of(entry) for entry in log.entries]
    for start in starts:
        if isinstance(start, CatalogEntry):
            reader = DatabaseReader(start)
            rest = list(ends(reader, (entry for entry in starts if entry.glsn > start.glsn)))
            expected = [end for end in whole if end.glsn > start.glsn]
            assert [(end.glsn, end.transactions, end.blocked) for end in rest] == [
                (end.glsn, end.transactions, end.blocked) for end in expected
            ]
            assert [rows for end in rest for step in end.steps for rows in step.rows] == [
                rows for end in expected for step in end.steps for rows in step.rows
            ]
            assert reader.lsn == log.lsn


def test_a_reader_follows_without_rows_up_to_where_it_begins() -> None:
    log = everything()
    reader = DatabaseReader(entry_of(log.entries[1]))  # type: ignore[arg-type]
    steps = [reader.feed(entry_of(entry), rows=False) for entry in log.entries[2:]]
    assert not any(step.rows for step in steps)
    assert reader.catalog() == log.reader().catalog()


@pytest.mark.parametrize("wrong", ["lsn", "next_number", "a table less", "not complete", "a cursor", "an epoch"])
def test_r4_a_catalog_that_says_something_else_is_corrupt(wrong: str) -> None:
    log = everything()
    found = log.reader().catalog()
    first, second = found.tables
    match wrong:
        case "lsn" | "next_number":
            found = msgspec.structs.replace(found, **{wrong: getattr(found, wrong) + 1})
        case "a table less":
            found = msgspec.structs.replace(found, tables=(first,))
        case "not complete":
            found = msgspec.structs.replace(found, tables=(msgspec.structs.replace(first, complete=False), second))
        case "a cursor":
            found = msgspec.structs.replace(found, tables=(msgspec.structs.replace(first, cursor=b"x"), second))
        case _:
            found = msgspec.structs.replace(found, epoch=2)
    log.catalog(found)
    with pytest.raises(CorruptEntry, match=f"entry {log.last} "):
        ends_of(log.entries)


def test_a_source_that_was_replaced_begins_a_new_epoch_and_captures_every_table_again() -> None:
    log = everything()
    log.part(0, inserted(11))
    log.mark()
    again = changed(KEYED, SchemaChange.RECAPTURED)
    log.lsn = 0
    log.catalog(Catalog(2, 0, 3, (CatalogTable((again,)),)))
    log.group([(again, INSERT, one(1))])
    assert rebuild(log.entries, log.last) == {}
    log.chunk(again, 0, [one(4)])
    assert state(log) == [one(1), one(4)]
    assert {number for end in ends_of(log.entries) for step in end.steps for number in step.emptied} == {1, 2}
