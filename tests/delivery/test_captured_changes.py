"""Entries of captured changes: what is written is read, and whatever else lies there is called corrupt."""

from __future__ import annotations

import resource
import struct
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from delivery.payload_samples import KEY, columns_of, rows_of, streams, with_options
from trunkline.client.entries import Entry
from trunkline.client.headers import encode_headers
from trunkline.dashboard.payloads import shown
from trunkline.delivery.changes.arrow_stream import END, read_stream
from trunkline.delivery.changes.captured import (
    COLUMNS_KEY,
    DECODED_BYTES_MAX,
    INDEX_HEADER,
    POSITION_HEADER,
    EntryPlace,
    change_rows,
    decoded,
    encoded,
    entry_place,
)
from trunkline.delivery.changes.columns import Column, Columns, arrow_schema
from trunkline.delivery.changes.rows import KIND_COLUMN, ChangeKind
from trunkline.errors import CorruptEntry

OURS = ("plain", "several batches", "zstd", "lz4", "lists", "lists, zstd", "truncation", "nothing")
ROWS = change_rows(ChangeKind.INSERT, rows_of(KEY))
PLAIN = encoded(KEY, ROWS)


def test_x1_what_a_capture_writes_is_read_compressed_or_not() -> None:
    found = [name for name, _ in streams()]
    assert set(OURS) < set(found)
    for name, payload in streams():
        if name in OURS:
            columns, changes = decoded(payload)
            assert changes.column_names == [KIND_COLUMN, *(column.name for column in columns)]
    assert decoded(PLAIN) == (KEY, ROWS.select([KIND_COLUMN, "id", "tenant"]))


def stating(columns: Any, table: pa.Table = ROWS, **options: Any) -> bytes:
    """A stream that says something else of itself."""
    stated = columns if isinstance(columns, bytes) else msgspec.json.encode(columns)
    ordered = table.select([KIND_COLUMN, *(name for name in table.column_names if name != KIND_COLUMN)])
    schema = ordered.schema.with_metadata({COLUMNS_KEY: stated})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, **options) as writer:
        writer.write_table(ordered.cast(schema))
    return bytes(sink.getvalue())


def typed(kind: str) -> Columns:
    return (KEY[0], Column("tenant", kind))


def swapped(payload: bytes, old: bytes, new: bytes) -> bytes:
    assert payload.count(old) >= 1
    return payload.replace(old, new)


def kinds(values: list[str | None]) -> pa.Table:
    return ROWS.slice(0, len(values)).set_column(2, KIND_COLUMN, pa.array(values, pa.string()))


CORRUPT: dict[str, bytes] = {
    "nothing": b"",
    "text": b"no arrow at all",
    "its end alone": END,
    "cut between two messages": PLAIN[: -len(END)],
    "a batch is missing and the end too": PLAIN[: len(PLAIN) // 2],
    "something behind its end": PLAIN + b"\0" * 8,
    "another stream behind its end": PLAIN + PLAIN,
    "no columns stated": with_options(KEY, rows_of(KEY)).replace(COLUMNS_KEY, b"trunkline.nothing"),
    "columns that are no JSON": stating(b"{"),
    "columns that are no UTF-8": stating(b'[{"name":"\xff","type":"BIGINT"}]'),
    "columns nested too deeply": stating(b'[{"name":"id","type":"BIGINT","x":' + b"[" * 100_000),
    "other types than stated": stating(typed("BIGINT")),
    "an unknown type": stating(typed("TEXT")),
    "a decimal that there is not": stating(typed("DECIMAL(99,3)")),
    "digits without end": stating(typed("DECIMAL(" + "9" * 5000 + ",3)")),
    "lists without end": stating(typed("BIGINT" + "[]" * 100_000)),
    "a column twice": stating((KEY[0], KEY[0])),
    "a column more than stated": stating((KEY[0],)),
    "a column less than stated": stating((*KEY, Column("more", "BIGINT"))),
    "a kind of change that there is not": stating(KEY, kinds(["insert", "upsert"])),
    "no kind of change": stating(KEY, kinds(["insert", None])),
    "an older version of Arrow's metadata": stating(
        KEY, options=pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V4)
    ),
}


@pytest.mark.parametrize("payload", CORRUPT.values(), ids=CORRUPT.keys())
def test_x5_an_entry_that_is_not_a_batch_of_changes_is_corrupt(payload: bytes) -> None:
    with pytest.raises(CorruptEntry, match="was this log written by a capture") as corrupt:
        decoded(payload)
    assert len(str(corrupt.value)) < 500
    assert shown(payload).kind != "changes"


@pytest.mark.parametrize("name", sorted({name for name, _ in streams()} - set(OURS)))
def test_x5_types_that_no_capture_writes_are_corrupt(name: str) -> None:
    for each, payload in streams():
        if each == name:
            with pytest.raises(CorruptEntry):
                decoded(payload)


def test_x5_offsets_that_go_back_or_out_are_corrupt() -> None:
    right = struct.pack("<6i", 0, 7, 7, 14, 21, 28)  # of the tenants
    for hostile in (
        (0, 99, 7, 14, 21, 28),
        (0, 7, 7, 14, 21, 2**31 - 1),
        (0, -9, 7, 14, 21, 28),
        (9, 7, 7, 14, 21, 28),
    ):
        with pytest.raises(CorruptEntry):
            decoded(swapped(PLAIN, right, struct.pack("<6i", *hostile)))


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_x5_a_small_payload_does_not_become_a_large_table(codec: str) -> None:
    columns = (*KEY, Column("text", "VARCHAR"))
    rows = rows_of(KEY, 64).append_column("text", pa.array(["x" * (4 << 20)] * 64))
    bomb = with_options(columns, rows, compression=codec)
    del rows
    assert len(bomb) < DECODED_BYTES_MAX // 50
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CorruptEntry, match="more than 67,108,864 bytes"):
        decoded(bomb)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 << 10  # KiB


def test_x5_a_buffer_that_lies_about_its_size_is_corrupt() -> None:
    rows = rows_of(columns_of(("VARCHAR",)), 60)
    payload = with_options(columns_of(("VARCHAR",)), rows, compression="zstd")
    frame = payload.index(b"\x28\xb5\x2f\xfd")  # how zstd begins: its size before lies in front of it
    for size in (-2, 0, 1, 2**31, 2**62):
        with pytest.raises(CorruptEntry):
            decoded(payload[: frame - 8] + size.to_bytes(8, "little", signed=True) + payload[frame:])


def test_m3_batches_are_validated_before_they_are_returned() -> None:
    def anything(_: pa.Schema) -> None:
        pass

    assert [batch.num_rows for batch in read_stream(PLAIN, DECODED_BYTES_MAX, anything)[1]] == [5]
    utf8 = swapped(PLAIN, "straße".encode(), b"stra\xff\xffe")
    with pytest.raises(pa.ArrowInvalid, match="UTF8"):
        read_stream(utf8, DECODED_BYTES_MAX, anything)


def test_m3_the_end_of_a_day_is_a_time_and_what_is_after_it_is_corrupt() -> None:
    day = 86_400 * 10**6
    for kind, arrow, wrap in (
        ("TIME", pa.int64(), lambda micros: micros),
        ("TIME[][]", pa.list_(pa.list_(pa.int64())), lambda micros: [[None, micros], None]),
    ):
        columns = (KEY[0], Column("at", kind))
        for micros, sound in ((0, True), (day, True), (day + 1, False), (-1, False)):
            times = pa.array([None, wrap(micros)], arrow).view(arrow_schema(columns).field("at").type)
            payload = encoded(columns, change_rows(ChangeKind.INSERT, pa.table({"id": pa.array([1, 2]), "at": times})))
            if sound:
                assert decoded(payload)[1].column("at").chunk(0).view(arrow).to_pylist() == [None, wrap(micros)]
            else:
                with pytest.raises(CorruptEntry, match="a time of day is out of range"):
                    decoded(payload)


# ------------------------------------------------------------------------------------------------------------- places


def entry_with(headers: dict[str, bytes]) -> Entry:
    return Entry(7, b"", encoded_headers=encode_headers(headers))


def test_x2_an_entry_stands_where_its_headers_say() -> None:
    for place in (EntryPlace(), EntryPlace(0, False, "p"), EntryPlace(12, True, "ö")):
        assert entry_place(entry_with(place.headers())) == place
    assert entry_place(Entry(7, b"")) == EntryPlace()
    assert entry_place(entry_with({"other": b"x"})) == EntryPlace()


def test_x5_headers_that_no_capture_wrote_are_corrupt() -> None:
    good = EntryPlace(1, False, "p").headers()
    wrong: list[dict[str, bytes]] = [
        {**good, INDEX_HEADER: value} for value in (b"", b"-1", b"+1", b"x", b"1_0", b" 1", b"9" * 30, b"9" * 5000)
    ]
    broken = [*map(entry_with, wrong), entry_with({**good, POSITION_HEADER: b"\xff"}), Entry(7, b"", "", 0, 0, b"\xc1")]
    for entry in broken:
        with pytest.raises(CorruptEntry, match="entry 7 has headers that no capture writes") as corrupt:
            entry_place(entry)
        assert (corrupt.value.first, corrupt.value.end) == (7, 8)
