"""Entries of log format 2 by kind: headers, schemas and catalogs, and how format 1 differs."""

from __future__ import annotations

import time
import zlib
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from delivery.group_log import COMMIT_US, GroupLog, Work, changed, rows_of_work, schema_of
from trunkline.client.entries import Entry
from trunkline.client.headers import encode_headers
from trunkline.delivery.changes.captured import EntryPlace, change_rows, decoded, encoded
from trunkline.delivery.changes.columns import Column
from trunkline.delivery.changes.database_entries import (
    CATALOG_HEADER,
    FORMAT_HEADER,
    KIND_HEADER,
    CatalogEntry,
    Chunk,
    Group,
    Mark,
    OneTable,
    Part,
    SchemaEntry,
    entry_of,
    group_heading,
)
from trunkline.delivery.changes.groups import (
    RowKind,
    Transaction,
    encode_group,
)
from trunkline.delivery.changes.rows import ChangeKind
from trunkline.delivery.changes.schemas import (
    Catalog,
    CatalogTable,
    Identity,
    Malformed,
    SchemaChange,
    SourceColumn,
    TableSchema,
    check_step,
    encode_catalog,
    encode_schema,
)
from trunkline.errors import ConfigError, CorruptEntry

KEYED = schema_of(1, "id BIGINT, note VARCHAR, size INTEGER")
PLAIN = schema_of(2, "a INTEGER, b DOUBLE", key=())
INSERT, DELETE, OLD, NEW, TRUNCATE, READ = RowKind
WORK: list[Work] = [[(KEYED, INSERT, (1, "one", 1))], [(PLAIN, INSERT, (1, 0.5))]]
GOOD = encode_group(0, [Transaction(10, COMMIT_US, 1, 1), Transaction(20, COMMIT_US, 2, 1)], rows_of_work(WORK))


def entry(payload: bytes, headers: dict[str, bytes]) -> Entry:
    return Entry(7, payload, encoded_headers=encode_headers(headers))


def log_of_everything() -> GroupLog:
    """One entry of each kind at least."""
    log = GroupLog()
    keyed, plain = log.schema(KEYED), log.schema(PLAIN)
    log.chunk(keyed, 0, [(1, "one", 1)], complete=False)
    log.chunk(keyed, 1, [(2, "two", 2)])
    log.chunk(plain, 0, [(1, 0.5)])
    log.group([(keyed, INSERT, (3, "three", 3))], [(plain, DELETE, (1, 0.5)), (keyed, NEW, (1, None, 7), b"\x02")])
    log.part(0, [(keyed, INSERT, (4, "four", 4))])
    log.part(1, [(keyed, DELETE, (2, None, None))], last=True)
    log.mark()
    log.catalog()
    return log


def test_e1_headers_say_the_kind_of_an_entry() -> None:
    kinds = [type(entry_of(each)) for each in log_of_everything().entries]
    start = [Mark, CatalogEntry, SchemaEntry, SchemaEntry, Chunk, Chunk, Chunk, Group, Part, Part, Mark, CatalogEntry]
    assert kinds == start


def test_e1_entries_of_format_1_and_of_other_writers_are_of_one_table() -> None:
    columns = (Column("id", "BIGINT"),)
    changes = change_rows(ChangeKind.INSERT, pa.table({"id": pa.array([1])}))
    place = EntryPlace(0, True, "p")
    found = entry_of(entry(encoded(columns, changes), place.headers()))
    assert isinstance(found, OneTable)
    assert found.place == place
    assert decoded(found.payload)[0] == columns
    assert entry_of(entry(b"", {})) == OneTable(7, EntryPlace(), b"")


def test_a_program_that_knows_format_1_alone_never_takes_an_entry_for_rows() -> None:
    for each in log_of_everything().entries:
        if each.payload:
            with pytest.raises(CorruptEntry):
                decoded(each.payload)


HEADERS = group_heading("p", 2).headers()


def without(name: str) -> dict[str, bytes]:
    return {each: value for each, value in HEADERS.items() if each != f"trunkline-{name}"}


MARK = {FORMAT_HEADER: b"2", KIND_HEADER: b"mark", "trunkline-last": b"1"}
PART = {**HEADERS, KIND_HEADER: b"part", "trunkline-index": b"0"}
WRONG: dict[str, tuple[dict[str, bytes], str]] = {
    "a format of the future": ({**HEADERS, FORMAT_HEADER: b"3"}, "install a newer one"),
    "no format": ({KIND_HEADER: b"group"}, "no trunkline-capture"),
    "a catalog without a format": ({CATALOG_HEADER: b"1"}, "no trunkline-capture"),
    "no kind": ({FORMAT_HEADER: b"2"}, KIND_HEADER),
    "an unknown kind": ({**HEADERS, KIND_HEADER: b"table"}, "not a valid EntryKind"),
    "a kind that is not text": ({**HEADERS, KIND_HEADER: b"\xff"}, "decode"),
    "no position": (without("position"), "no position"),
    "a long position": ({**HEADERS, "trunkline-position": b"x" * 5000}, "too long"),
    "a position that is not text": ({**HEADERS, "trunkline-position": b"\xff"}, "decode"),
    "no catalog": (without("catalog"), "no catalog"),
    "its own catalog": ({**HEADERS, CATALOG_HEADER: b"7"}, "not before it"),
    "catalog 0": ({**HEADERS, CATALOG_HEADER: b"0"}, "not before it"),
    "a negative catalog": ({**HEADERS, CATALOG_HEADER: b"-1"}, "is none"),
    "a huge catalog": ({**HEADERS, CATALOG_HEADER: b"9" * 5000}, "is none"),
    "a group that is not an end": (without("last"), "is an end"),
    "an end that is unsure": ({**HEADERS, "trunkline-last": b"0"}, "neither"),
    "a group with an index": ({**HEADERS, "trunkline-index": b"0"}, "parts have an index"),
    "a part without one": ({**HEADERS, KIND_HEADER: b"part"}, "parts have an index"),
    "a part of several transactions": (PART, "of one transaction"),
    "a mark with a position": ({**MARK, "trunkline-position": b"p"}, "a mark has a position and a catalog, or neither"),
    "a mark with content": (MARK, "no content"),
    "a catalog that is an end": ({**HEADERS, KIND_HEADER: b"catalog"}, "is an end"),
    "a group as a schema": ({**without("last"), KIND_HEADER: b"schema"}, ""),
    "a group as a catalog": ({**without("last"), KIND_HEADER: b"catalog"}, ""),
    "a group as a chunk": ({**HEADERS, KIND_HEADER: b"chunk"}, "unknown field"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_e5_headers_that_lie_make_an_entry_corrupt(name: str) -> None:
    headers, why = WRONG[name]
    with pytest.raises(CorruptEntry) as caught:
        entry_of(entry(GOOD, headers))
    assert why in str(caught.value)
    assert caught.value.first == 7


def test_e5_unreadable_headers_are_corrupt() -> None:
    with pytest.raises(CorruptEntry):
        entry_of(Entry(7, GOOD, encoded_headers=b"\xc1"))


# --------------------------------------------------------------------------------------------- schemas and catalogs


SCHEMAS: dict[str, tuple[TableSchema, str]] = {
    "a name twice": (schema_of(1, "id BIGINT, id BIGINT"), "one name"),
    "a number twice": (
        msgspec.structs.replace(KEYED, columns=(SourceColumn("id", "BIGINT", 1), SourceColumn("b", "BIGINT", 1))),
        "one name",
    ),
    "a reserved name": (schema_of(1, "id BIGINT, _trunkline_seq BIGINT"), "reserved"),
    "a key that is not a column": (schema_of(1, "id BIGINT", key=("other",)), "key is not of its columns"),
    "no key": (schema_of(1, "id BIGINT", key=(), identity=Identity.KEY), "has none"),
    "created late": (schema_of(1, "id BIGINT", version=2), "not the first"),
    "defaults that are no batch": (schema_of(1, "id BIGINT", defaults=b"x"), "no message"),
    "defaults of other columns": (
        msgspec.structs.replace(KEYED, defaults=changed(PLAIN, SchemaChange.ADDED, defaults={"a": 1}).defaults),
        "arrays and buffers",
    ),
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_that_no_capture_writes_is_neither_written_nor_read(name: str) -> None:
    schema, why = SCHEMAS[name]
    with pytest.raises(ValueError, match=why):
        encode_schema(schema)
    headers = {FORMAT_HEADER: b"2", KIND_HEADER: b"schema", CATALOG_HEADER: b"2"}
    with pytest.raises(CorruptEntry, match=why):
        entry_of(entry(msgspec.msgpack.encode(schema), headers))


def test_a_type_that_cannot_be_delivered_is_refused() -> None:
    with pytest.raises(ConfigError, match="HUGEINT"):
        encode_schema(schema_of(1, "id HUGEINT"))
    headers = {FORMAT_HEADER: b"2", KIND_HEADER: b"schema", CATALOG_HEADER: b"2"}
    for empty in (b"", b"\x80", msgspec.msgpack.encode(schema_of(1, "id HUGEINT"))):
        with pytest.raises(CorruptEntry):
            entry_of(entry(empty, headers))


def catalog_entry(payload: bytes) -> Any:
    return entry_of(entry(payload, {FORMAT_HEADER: b"2", KIND_HEADER: b"catalog"}))


def test_a_catalog_is_read_as_it_was_written_and_not_beyond_its_limit() -> None:
    later = changed(KEYED, SchemaChange.TABLE_RENAMED, name="renamed")
    catalog = Catalog(3, 90, 9, (CatalogTable((KEYED, later), True, 4, b"7"), CatalogTable((PLAIN,))))
    payload = encode_catalog(catalog)
    assert catalog_entry(payload).catalog == catalog
    for broken in (payload[:-1], payload + b"x", payload[:8] + b"\xff" + payload[9:], b""):
        with pytest.raises(CorruptEntry):
            catalog_entry(broken)
    with pytest.raises(CorruptEntry, match="too large"):
        catalog_entry(zlib.compress(bytes(200 * 1024 * 1024), 1))


@pytest.mark.parametrize(
    "tables",
    [
        (CatalogTable((KEYED,)), CatalogTable((KEYED,))),
        (CatalogTable((schema_of(9, "id BIGINT"),)),),
        (CatalogTable((KEYED,), complete=True),),
        (CatalogTable((KEYED, KEYED)),),
        (CatalogTable((KEYED, changed(KEYED, SchemaChange.RECAPTURED))),),
        (CatalogTable((changed(KEYED, SchemaChange.TABLE_DROPPED),)),),
    ],
    ids=["twice", "of the future", "complete", "same version", "two generations", "dropped"],
)
def test_a_catalog_that_contradicts_itself_is_refused(tables: tuple[CatalogTable, ...]) -> None:
    with pytest.raises(Malformed):
        encode_catalog(Catalog(1, 0, 9, tables))
    with pytest.raises(CorruptEntry):
        catalog_entry(zlib.compress(msgspec.msgpack.encode(Catalog(1, 0, 9, tables))))


def test_ten_thousand_tables_fit_into_a_catalog() -> None:
    columns = ", ".join(f"a_column_with_a_name_{number} VARCHAR" for number in range(30))
    tables = tuple(CatalogTable((schema_of(number, f"id BIGINT, {columns}"),)) for number in range(1, 10_001))
    begun = time.process_time()
    payload = encode_catalog(Catalog(1, 0, 10_001, tables))
    assert len(payload) < 4 * 1024 * 1024
    assert catalog_entry(payload).catalog.tables == tables
    assert time.process_time() - begun < 60


def test_s3_a_column_may_widen_and_not_change_otherwise() -> None:
    def typed(kind: str) -> TableSchema:
        return changed(KEYED, SchemaChange.WIDENED, columns=(*KEYED.columns[:2], SourceColumn("size", kind, 3)))

    check_step(KEYED, typed("BIGINT"))
    for kind in ("SMALLINT", "VARCHAR", "DOUBLE"):
        with pytest.raises(Malformed, match="turns from INTEGER"):
            check_step(KEYED, typed(kind))
    again = msgspec.structs.replace(typed("VARCHAR"), generation=2, changes=(SchemaChange.RECAPTURED,))
    check_step(KEYED, again)
    for wrong in (KEYED, msgspec.structs.replace(again, generation=3), msgspec.structs.replace(again, version=3)):
        with pytest.raises(Malformed, match="does not follow"):
            check_step(KEYED, wrong)
