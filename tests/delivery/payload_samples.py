"""Contents of entries to mutate, and their readers: what a pipeline, the dashboard and Spark do with them."""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import decimal
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pyarrow as pa
from msgspec import Struct

from delivery.hostile_entries import log_content, mutated_json, mutated_log, use_log
from delivery.hostile_entries import use_event as use_event_between
from delivery.hostile_groups import log_content as group_log_content
from delivery.hostile_groups import mutated_group_log, use_group_log
from trunkline.client.bodies import checksum, encode
from trunkline.client.dedupe import Repeats, row_headers
from trunkline.client.entries import Batch
from trunkline.core.entries import Frame, FrameKind
from trunkline.dashboard.payloads import shown
from trunkline.delivery.changes.captured import COLUMNS_KEY, change_rows, decoded, encoded, truncation
from trunkline.delivery.changes.columns import ARROW_TYPES, Column, Columns, arrow_schema
from trunkline.delivery.changes.ordered import net_of_ordered
from trunkline.delivery.changes.rows import KIND_COLUMN, ChangeKind
from trunkline.delivery.sources.contract import ReadRequest
from trunkline.delivery.sources.log_split import with_places
from trunkline.errors import ProtocolError
from trunkline.proxy.documents import document_of
from trunkline.spark.columns import arrow_schema as spark_schema
from trunkline.spark.columns import record_batch, whole_schema

ROWS = 5
VALUES: dict[str, Any] = {
    "BOOLEAN": True,
    "FLOAT": 1.5,
    "DOUBLE": -2.25,
    "VARCHAR": "straße",
    "JSON": '{"a": [1]}',
    "UUID": "6f1c1f0e-4d3a-4a62-9e58-3b0f6f0d8a11",
    "BLOB": b"\x00\xff bytes",
    "DATE": dt.date(2026, 1, 2),
    "TIME": dt.time(3, 4, 5),
    "TIMESTAMP WITH TIME ZONE": dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
    "DECIMAL(18,3)": decimal.Decimal("12.345"),
    "DECIMAL(38,10)": decimal.Decimal("-1.5"),
    **dict.fromkeys(
        ("TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS"), dt.datetime.fromisoformat("2026-01-02")
    ),
}  # the others are whole numbers
TYPES = (*ARROW_TYPES, "DECIMAL(18,3)", "DECIMAL(38,10)")
KEY = (Column("id", "BIGINT"), Column("tenant", "VARCHAR"))


class Sample(Struct, frozen=True):
    name: str  # "kind of content: which"
    content: bytes
    use: Callable[[bytes], None]
    mutate: Callable[[bytes, bytes, random.Random], bytes] | None = None  # None: its bytes


# -------------------------------------------------------------------------------------------------- captured changes


def columns_of(types: tuple[str, ...]) -> Columns:
    return (*KEY, *(Column(f"c{number}", kind) for number, kind in enumerate(types)))


def value_of(kind: str, row: int) -> Any:
    if kind.endswith("[]"):
        return [value_of(kind[:-2], each) for each in range(row)]
    return None if row == 1 else VALUES.get(kind, row)


def rows_of(columns: Columns, count: int = ROWS) -> pa.Table:
    schema = arrow_schema(columns)
    values = {
        column.name: pa.array(
            [number if column.name == "id" else value_of(column.type, number) for number in range(count)],
            schema.field(column.name).type,
        )
        for column in columns
    }
    return pa.table(values, schema=schema)


def with_options(columns: Columns, rows: pa.Table, **options: Any) -> bytes:
    """As ``encoded``, by a writer with other options."""
    changes = change_rows(ChangeKind.INSERT, rows)
    fields = [changes.schema.field(name) for name in (KIND_COLUMN, *rows.column_names)]
    schema = pa.schema(fields, metadata={COLUMNS_KEY: msgspec.json.encode(columns)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(changes.select(schema.names).cast(schema))
    return bytes(sink.getvalue())


def streams() -> Iterator[tuple[str, bytes]]:
    for types in (TYPES[:8], TYPES[8:16], TYPES[16:]):
        columns = columns_of(types)
        inserted = change_rows(ChangeKind.INSERT, rows_of(columns))
        yield "plain", encoded(columns, inserted)
        yield "several batches", encoded(columns, pa.concat_tables([inserted, inserted.slice(1)]))
        yield "zstd", with_options(columns, rows_of(columns, 60), compression="zstd")
        yield "lz4", with_options(columns, rows_of(columns, 60), compression="lz4")
    lists = columns_of(("INTEGER[]", "VARCHAR[]", "DECIMAL(18,3)[]", "TIMESTAMP[][]", "BOOLEAN[][]", "TIME[][]"))
    yield "lists", encoded(lists, change_rows(ChangeKind.DELETE, rows_of(lists)))
    yield "lists, zstd", with_options(lists, rows_of(lists, 20), compression="zstd")
    yield "truncation", encoded(lists, truncation(lists))
    yield "nothing", encoded(KEY, change_rows(ChangeKind.INSERT, rows_of(KEY, 0)))
    plain = rows_of(KEY)
    yield "dictionary", with_options(KEY, plain.set_column(1, "tenant", plain.column("tenant").dictionary_encode()))
    foreign = {
        "struct": pa.array([{"a": each, "b": "x"} for each in range(ROWS)]),
        "map": pa.array([[("a", each)] for each in range(ROWS)], pa.map_(pa.string(), pa.int64())),
        "view": pa.array(["a string that is longer than twelve"] * ROWS, pa.string_view()),
        "union": pa.UnionArray.from_sparse(pa.array([0] * ROWS, pa.int8()), [pa.array(range(ROWS))]),
        "null": pa.nulls(ROWS),
        "encoded in runs": pa.RunEndEncodedArray.from_arrays(pa.array([ROWS], pa.int32()), pa.array([1])),
    }
    for name, values in foreign.items():
        yield name, with_options((*KEY, Column("c", "VARCHAR")), plain.append_column("c", values))


def use_changes(payload: bytes) -> None:
    """As a pipeline does, then as the dashboard does."""
    shown(payload)
    columns, changes = decoded(payload)
    assert changes.schema.names == [KIND_COLUMN, *(column.name for column in columns)]
    changes.validate(full=True)
    if {"id", "tenant"} <= set(changes.column_names):
        net_of_ordered(with_places(7, changes, ReadRequest(columns, ("id",), "tenant")), ("id",))
    whole = pa.concat_tables([changes, changes]).combine_chunks()
    whole.take(pa.array(range(0, whole.num_rows, 2), pa.int64()))
    with contextlib.suppress(ValueError, OverflowError):  # a date that Python does not have
        whole.to_pylist()


# ------------------------------------------------------------------------------------------------------------ batches


def bodies() -> Iterator[tuple[str, bytes]]:
    payloads = [b"", b"one", b"x" * 100, b"\x00\xff", "straße".encode()] * 3
    yield "plain", encode(payloads, None, 1_790_000_000_000, 1_790_000_000_001)
    given = [msgspec.msgpack.encode(row_headers("query", 1, 2, number)) for number in range(len(payloads))]
    yield "with headers", encode(payloads, given, 1_790_000_000_000, 1_790_000_000_001)
    poison = [msgspec.msgpack.encode({"n": "text"}), b"\xc1", b"", b"\xdf\xff\xff\xff\xff", b"\x81\xa1n\x05"]
    yield "with poisoned headers", encode(payloads[:5], poison, 1, 2)


def use_body(body: bytes) -> None:
    """As readers do; the count comes from the writer, so it may be the one in the body."""
    count = int.from_bytes(body[4:8], "little")
    frame = Frame(17, count if 0 < count < 100_000 else 15, FrameKind.DATA, "writer#1", 1, checksum(body))
    batch = Batch(frame, body, 18, 2**40, "orders")
    assert _refused(lambda: batch.arrow_payloads().to_pylist()) == _refused(batch.payloads)
    entries = list(batch)
    assert len(entries) == len(batch) == len(batch.payloads()) == len(batch.headers())
    for entry in Repeats().without_repeats(entries):
        msgspec.json.encode(document_of(entry))
    rows = batch.to_arrow()
    rows.validate(full=True)
    assert [tuple(row.values()) for row in rows.select(["glsn", "payload"]).to_pylist()] == [
        (entry.glsn, entry.payload) for entry in entries
    ]
    record_batch([batch, batch], spark_schema(whole_schema())).validate(full=True)


def _refused(look: Callable[[], object]) -> bool:
    try:
        look()
    except ProtocolError:
        return True
    return False


# ------------------------------------------------------------------------------------------------- Debezium's events

EVENT_COLUMNS = {
    "id": "BIGINT",
    "tenant": "VARCHAR",
    "amount": "DECIMAL(12,2)",
    "at": "TIMESTAMP_US",
    "tags": "INTEGER[]",
}


def events() -> Iterator[tuple[str, bytes]]:
    row = {"id": 1, "tenant": "acme", "amount": "1.50", "at": 1_767_225_600_000_000, "tags": [1, 2]}
    yield "plain", json.dumps({"op": "u", "before": row, "after": {**row, "amount": 2.5}}).encode()
    unscaled = base64.b64encode((150).to_bytes(2, "big")).decode()
    decimal_field = {
        "field": "amount",
        "type": "bytes",
        "name": "org.apache.kafka.connect.data.Decimal",
        "parameters": {"scale": "2", "connect.decimal.precision": "12"},
    }
    fields = [
        {"field": "id", "type": "int64"},
        {"field": "tenant", "type": "string", "optional": True},
        decimal_field,
        {"field": "at", "type": "int64", "name": "io.debezium.time.MicroTimestamp"},
        {"field": "tags", "type": "array", "items": {"type": "int32"}},
    ]
    schema = {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": fields}]}
    yield (
        "with its schema",
        json.dumps({"schema": schema, "payload": {"op": "c", "after": {**row, "amount": unscaled}}}).encode(),
    )


def _good_event(number: int) -> bytes:
    """One that needs no declared columns."""
    fields = [{"field": "id", "type": "int64"}, {"field": "tenant", "type": "string"}]
    schema = {"fields": [{"field": "after", "fields": fields}]}
    return json.dumps({"schema": schema, "payload": {"op": "c", "after": {"id": number, "tenant": "acme"}}}).encode()


def use_event(content: bytes) -> None:
    """Whatever it is: changes, or a dead letter with a reason that can be stored."""
    use_event_between(EVENT_COLUMNS, content, _good_event)


class Consumer:
    def __init__(self) -> None:
        kinds = ((streams, use_changes, "changes"), (bodies, use_body, "body"), (events, use_event, "event"))
        self.samples = [
            Sample(f"{kind}: {name}", content, use) for make, use, kind in kinds for name, content in make()
        ]
        self.samples += [Sample(f"json: {name}", content, use_event, mutated_json) for name, content in events()] * 4
        self.samples += [Sample("log: captured", log_content(), use_log, mutated_log)] * 4
        self.samples += [Sample("groups: captured", group_log_content(), use_group_log, mutated_group_log)] * 30

    def use(self, index: int, content: bytes) -> str:
        """How it ended, for the count; whatever else it raises is a failure."""
        sample = self.samples[index]
        try:
            sample.use(content)
        except ProtocolError:
            return f"{sample.name} refused"
        return f"{sample.name} taken"
