"""Payloads of log format 2: what is written is read, and everything else is refused with its position and a reason."""

from __future__ import annotations

import resource
import struct
import time
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from delivery.group_log import COMMIT_US, Work, rows_of_work, schema_of
from delivery.payload_samples import TYPES, value_of
from trunkline.client.entries import Entry
from trunkline.client.headers import encode_headers
from trunkline.delivery.changes.arrow_stream import END
from trunkline.delivery.changes.columns import arrow_schema
from trunkline.delivery.changes.database_entries import (
    Group,
    entry_of,
    group_heading,
)
from trunkline.delivery.changes.groups import (
    DECODED_BYTES_MAX,
    KIND,
    SEQ,
    TX,
    UNCHANGED,
    GroupHead,
    Layout,
    Layouts,
    RowKind,
    TableRows,
    TableShare,
    Transaction,
    encode_group,
    table_rows,
)
from trunkline.delivery.changes.schemas import (
    Identity,
    SourceColumn,
    TableSchema,
)
from trunkline.errors import CorruptEntry

KEYED = schema_of(1, "id BIGINT, note VARCHAR, size INTEGER")
PLAIN = schema_of(2, "a INTEGER, b DOUBLE", key=())
LAYOUTS: Layouts = {(schema.number, schema.version): Layout(schema) for schema in (KEYED, PLAIN)}
INSERT, DELETE, OLD, NEW, TRUNCATE, READ = RowKind
WORK: list[Work] = [
    [(KEYED, INSERT, (1, "one", 1)), (PLAIN, INSERT, (1, 0.5))],
    [(KEYED, OLD, (1, "one", 1)), (KEYED, NEW, (2, None, None), b"\x06"), (KEYED, DELETE, (2, None, None))],
    [],
    [(PLAIN, TRUNCATE, ()), (KEYED, TRUNCATE, ()), (PLAIN, INSERT, (2, None))],
]


def transactions(work: list[Work]) -> list[Transaction]:
    return [Transaction(10 * tx + 10, COMMIT_US, tx, len(changes)) for tx, changes in enumerate(work)]


def entry(payload: bytes, headers: dict[str, bytes] | None = None) -> Entry:
    given = group_heading('{"lsn":40}', 2).headers() if headers is None else headers
    return Entry(7, payload, encoded_headers=encode_headers(given))


def rows_in(payload: bytes, layouts: Layouts = LAYOUTS) -> tuple[TableRows, ...]:
    found = entry_of(entry(payload))
    assert isinstance(found, Group)
    return found.rows(layouts)


GOOD = encode_group(0, transactions(WORK), rows_of_work(WORK))


def test_g1_what_is_written_is_read_with_every_place_and_kind() -> None:
    found = entry_of(entry(GOOD))
    assert isinstance(found, Group)
    assert found.heading == group_heading('{"lsn":40}', 2)
    assert list(found.head.transactions) == transactions(WORK)
    read = found.rows(LAYOUTS)
    for mine, theirs in zip(read, rows_of_work(WORK), strict=True):
        assert mine.batch.equals(theirs.batch)
    assert read[0].batch.column(SEQ).to_pylist() == [0, 2, 3, 4, 6]
    assert read[0].batch.column(TX).to_pylist() == [0, 1, 1, 1, 3]
    assert read[0].batch.column(UNCHANGED).to_pylist() == [None, None, b"\x06", None, None]
    assert read[1].batch.column(KIND).to_pylist() == [INSERT, TRUNCATE, INSERT]
    [chosen] = found.rows(LAYOUTS, {2})
    assert chosen.batch.equals(read[1].batch)


def test_every_type_travels_alone_and_in_lists_and_compressed() -> None:
    kinds = [*TYPES, *(f"{kind}[]" for kind in TYPES), "TIME[][]"]
    columns = tuple(SourceColumn(f"c{number}", kind, number) for number, kind in enumerate(kinds))
    schema = msgspec.structs.replace(PLAIN, columns=columns)
    types = arrow_schema(schema.vocabulary()).types
    arrays = [pa.array([value_of(kind, row) for row in range(4)], types[at]) for at, kind in enumerate(kinds)]
    layout = Layout(schema)
    rows = table_rows(layout, arrays, tx=[0] * 4, seq=range(4), kind=[0] * 4)
    layouts = {(2, 1): layout}
    assert rows_in(encode_group(0, [Transaction(1, 0, 0, 4)], [rows]), layouts)[0].batch.equals(rows.batch)
    packed = framed([Transaction(1, 0, 0, 4)], [rows.batch], [TableShare(2, 1, 4, 0)], compression="zstd")
    assert rows_in(packed, layouts)[0].batch.equals(rows.batch)


def framed(
    work: list[Transaction], batches: list[pa.RecordBatch], shares: list[TableShare], *, after: int = 0, **options: Any
) -> bytes:
    """A payload by a writer that states what it wants."""
    messages = [serialized(each, **options) for each in batches]
    stated = [
        TableShare(share.number, share.version, share.rows, share.size or len(message))
        for share, message in zip(shares, messages, strict=True)
    ]
    head = msgspec.msgpack.encode(GroupHead(after, tuple(work), tuple(stated)))
    return struct.pack("<I", len(head)) + head + bytes(-(4 + len(head)) % 8) + b"".join(messages)


def serialized(batch: pa.RecordBatch, **options: Any) -> bytes:
    """The message of a batch, from a stream: only those can be compressed."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())[batch.schema.serialize().size : -len(END)]


def keyed(kinds: list[int | None], rows: list[Any] | None = None, **places: Any) -> bytes:
    """A group of one transaction with these rows of KEYED, whatever they are."""
    rows = (
        [(at, "x", at) if kind != TRUNCATE else (None,) * 3 for at, kind in enumerate(kinds)] if rows is None else rows
    )
    return raw(KEYED, kinds, rows, **places)


def raw(schema: TableSchema, kinds: list[int | None], rows: list[Any], **places: Any) -> bytes:
    count = len(kinds)
    layout = Layout(schema)
    arrays = [
        pa.array(places.get("tx", [0] * count), pa.uint32()),
        pa.array(places.get("seq", list(range(count))), pa.uint32()),
        pa.array(kinds, pa.int8()),
        pa.array(places.get("unchanged", [None] * count), pa.binary()),
    ]
    arrays += [pa.array([row[at] for row in rows], kind) for at, kind in enumerate(layout.arrow.types[4:])]
    batch = pa.RecordBatch.from_arrays(arrays, schema=layout.arrow)
    work = places.get("work", [Transaction(10, 0, 0, count)])
    return framed(work, [batch], [TableShare(schema.number, 1, count, 0)])


def restated(change: Callable[[dict[str, Any]], Any]) -> bytes:
    """GOOD with another head."""
    size = struct.unpack_from("<I", GOOD)[0]
    head = msgspec.msgpack.decode(GOOD[4 : 4 + size])
    change(head)
    made = msgspec.msgpack.encode(head)
    return struct.pack("<I", len(made)) + made + bytes(-(4 + len(made)) % 8) + GOOD[4 + size + -(4 + size) % 8 :]


def put(*path: Any) -> Callable[[dict[str, Any]], None]:
    """A change of a head: the value that comes last, at the place before it."""

    def change(head: Any) -> None:
        for step in path[:-2]:
            head = head[step]
        head[path[-2]] = path[-1]

    return change


def wide_batch() -> bytes:
    """A batch with one more column than the schema has."""
    [rows, _] = rows_of_work(WORK)
    batch = rows.batch.append_column("more", pa.array(range(rows.batch.num_rows)))
    return framed([Transaction(10, 0, 0, 5)], [batch], [TableShare(1, 1, 5, 0)])


CORRUPT: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "truncated"),
    "three bytes": (b"\0\0\0", "truncated"),
    "a head that is longer than the payload": (struct.pack("<I", 2**32 - 1) + GOOD[4:], "head does not fit"),
    "text": (b"no group at all, but letters", "head does not fit"),
    "the end is cut": (GOOD[:-8], "other sizes"),
    "something behind it": (GOOD + bytes(8), "other sizes"),
    "no transactions": (restated(put("transactions", [])), "length >= 1"),
    "an unknown field": (restated(put("more", 1)), "unknown field"),
    "a negative count": (restated(put("transactions", 0, 3, -1)), "Expected `int` >= 0"),
    "a huge number": (restated(put("tables", 0, 3, 2**64 - 1)), "Expected `int`"),
    "text for a number": (restated(put("tables", 0, 2, "5")), "Expected `int`"),
    "transactions not in commit order": (restated(put("transactions", 1, 0, 10)), "commit order"),
    "a transaction before the one before": (restated(put("after", 10)), "commit order"),
    "more rows than stated": (restated(put("transactions", 0, 3, 1)), "different numbers"),
    "rows of another transaction": (
        restated(lambda head: (put("transactions", 0, 3, 1)(head), put("transactions", 2, 3, 1)(head))),
        "other rows than its head states",
    ),
    "rows of another table": (
        restated(lambda head: (put("tables", 0, 2, 4)(head), put("tables", 1, 2, 4)(head))),
        "has 5 rows",
    ),
    "a table twice": (restated(put("tables", 1, 0, 1)), "twice"),
    "an unknown table": (restated(put("tables", 1, 0, 3)), "no schema entry has version 1 of table 3"),
    "an unknown version": (restated(put("tables", 1, 1, 2)), "no schema entry has version 2 of table 2"),
    "sizes that add up but do not fit": (
        restated(lambda head: [put("tables", at, 3, head["tables"][at][3] + by)(head) for at, by in ((0, 8), (1, -8))]),
        "",
    ),
    "batches of other tables": (
        restated(lambda head: [put("tables", at, [3 - t[0], *t[1:]])(head) for at, t in enumerate(head["tables"])]),
        "arrays and buffers",
    ),
    "one column too many": (wide_batch(), "arrays and buffers"),
    "an unknown kind": (keyed([6]), "unknown kind"),
    "a negative kind": (keyed([-1]), "unknown kind"),
    "no kind": (keyed([None]), "no place"),
    "no transaction": (keyed([0], tx=[None]), "no place"),
    "a read outside of a chunk": (keyed([READ]), "unknown kind"),
    "a transaction that is not there": (keyed([0], tx=[1]), "of no transaction"),
    "transactions mixed": (
        keyed([0, 0], tx=[1, 0], work=[Transaction(1, 0, 0, 1), Transaction(2, 0, 1, 1)]),
        "order of transactions",
    ),
    "a gap": (keyed([0, 0], seq=[0, 2]), "not in order"),
    "one place twice": (keyed([0, 0], seq=[0, 0]), "not in order"),
    "places backwards": (keyed([0, 0], seq=[1, 0]), "not in order"),
    "an old row alone": (keyed([OLD]), "old row"),
    "an old row before another kind": (keyed([OLD, INSERT, NEW]), "old row"),
    "an old row in another transaction": (
        keyed([OLD, NEW], tx=[0, 1], work=[Transaction(1, 0, 0, 1), Transaction(2, 0, 1, 1)]),
        "old row",
    ),
    "two old rows": (keyed([OLD, OLD, NEW]), "old row"),
    "an update without its old row and without a key": (raw(PLAIN, [NEW], [(1, 1.0)]), "no old row"),
    "a key that is NULL": (keyed([DELETE], [(None, "x", 1)]), "key is NULL"),
    "a truncation with values": (keyed([TRUNCATE], [(None, "x", None)]), "truncation has values"),
    "unchanged columns of an insert": (keyed([INSERT], [(1, None, 1)], unchanged=[b"\2"]), "neither an update"),
    "unchanged columns with a value": (keyed([NEW], unchanged=[b"\2"]), "has a value"),
    "an unchanged key": (keyed([NEW], [(1, None, 1)], unchanged=[b"\1"]), "is a key"),
    "unchanged columns that are not there": (keyed([NEW], [(1, None, 1)], unchanged=[b"\x08"]), "not there"),
    "too few unchanged columns": (keyed([NEW], unchanged=[b""]), "one bit for each"),
    "too many unchanged columns": (keyed([NEW], unchanged=[b"\0\0"]), "one bit for each"),
}  # fmt: skip


@pytest.mark.parametrize("name", CORRUPT)
def test_g5_a_payload_that_lies_is_corrupt_and_says_where_and_why(name: str) -> None:
    payload, why = CORRUPT[name]
    with pytest.raises(CorruptEntry) as caught:
        rows_in(payload)
    assert (caught.value.first, caught.value.end) == (7, 8)
    assert str(caught.value).startswith("entry 7 is corrupt (")
    assert why in str(caught.value)


def test_rows_that_are_not_chosen_are_not_needed_but_their_sizes_are_checked() -> None:
    broken = GOOD[:-64] + bytes(64)
    found = entry_of(entry(broken))
    assert isinstance(found, Group)
    assert [each.number for each in found.rows(LAYOUTS, {1})] == [1]


def test_a_removal_needs_a_key_or_the_whole_row() -> None:
    nothing = msgspec.structs.replace(PLAIN, identity=Identity.NOTHING)
    layouts = {(2, 1): Layout(nothing)}
    assert rows_in(raw(PLAIN, [INSERT, DELETE], [(1, 1.0), (1, 1.0)]))
    assert rows_in(raw(PLAIN, [INSERT], [(1, 1.0)]), layouts)
    with pytest.raises(CorruptEntry, match="which row"):
        rows_in(raw(PLAIN, [DELETE], [(1, 1.0)]), layouts)


def test_a_batch_that_swells_is_refused_before_memory_is_taken() -> None:
    count = 3_000_000
    schema = schema_of(1, "id BIGINT, a BIGINT, b BIGINT")
    zeros = pa.array(np.zeros(count, np.int64))
    rows = table_rows(Layout(schema), [zeros] * 3, tx=np.zeros(count), seq=np.arange(count), kind=np.zeros(count))
    assert rows.batch.nbytes > DECODED_BYTES_MAX
    work = [Transaction(1, 0, 0, count)]
    payload = framed(work, [rows.batch], [TableShare(1, 1, count, 0)], compression="zstd")
    assert len(payload) < DECODED_BYTES_MAX / 4
    del rows, zeros
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CorruptEntry, match="more than"):
        rows_in(payload, {(1, 1): Layout(schema)})
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 8 * 1024


def test_a_group_costs_microseconds_for_each_transaction() -> None:
    """A tenth of the speed that a loaded machine of two cores has, so that a loop over rows is seen."""
    count, schemas = 1_000, [schema_of(number, "id BIGINT, note VARCHAR, size INTEGER") for number in range(1, 5)]
    layouts = {(schema.number, 1): Layout(schema) for schema in schemas}
    work = [Transaction(10 * tx + 10, COMMIT_US, tx, 1) for tx in range(count)]

    def written() -> bytes:
        tables = []
        for offset, layout in enumerate(layouts.values()):
            places = np.arange(offset, count, len(schemas))
            columns = [pa.array(places), pa.array(["a note"] * len(places)), pa.array(places.astype(np.int32))]
            tables.append(table_rows(layout, columns, tx=places, seq=places, kind=np.zeros(len(places))))
        return encode_group(0, work, tables)

    payload = written()
    for act in (written, lambda: rows_in(payload, layouts)):
        spent = []
        for _ in range(5):
            begun = time.process_time()
            act()
            spent.append(time.process_time() - begun)
        assert count / min(spent) > 100_000
