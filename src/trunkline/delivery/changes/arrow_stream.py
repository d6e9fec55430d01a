"""An Arrow stream of somebody who may be broken or lie: checked before Arrow reads it, and before anybody uses it.

Arrow believes what a stream says of itself: it allocates what a compressed buffer declares, and reads wherever offsets
point. So the messages are taken apart here first, as far as they speak of sizes and places:

    FF FF FF FF, i32 size, metadata (a flatbuffer), body          a schema, then record batches
    FF FF FF FF, 0                                                the end

Rules
 M1  A stream is one schema, record batches and its end, and nothing behind it. What was cut off, be it between two
     messages, is no stream. There are no dictionaries and no foreign byte orders.
 M2  All that a message names lies inside of it, aligned, and all buffers of a stream together have a bounded size once
     they are decompressed.
 M3  A batch is given out only after Arrow has validated it fully: lengths, offsets, UTF-8, digits. One thing is allowed
     that Arrow does not: the time 24:00:00, which PostgreSQL and DuckDB have.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

CONTINUES: Final = b"\xff\xff\xff\xff"
END: Final = CONTINUES + bytes(4)
METADATA_V5: Final = 4
LITTLE_ENDIAN: Final = 0
SCHEMA, RECORD_BATCH = 1, 3  # kinds of messages
ALIGNED: Final = 8  # bytes: where messages, bodies and buffers begin; Arrow reads numbers there as they lie
BUFFER_HEAD_BYTES: Final = 8  # of a compressed buffer: its size before
NOT_COMPRESSED: Final = -1
DAY_MICROS: Final = 86_400 * 10**6


class MalformedStream(ValueError):
    """The stream is none that may be read."""


def read_stream(
    content: bytes, bytes_most: int, check_schema: Callable[[pa.Schema], None]
) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    """Schema and validated batches of a stream. ``check_schema`` is called before the first one is read, and may raise.

    Raises ``Malformed``, and what Arrow raises.
    """
    check_messages(content, bytes_most)
    with pa.ipc.open_stream(content) as reader:
        check_schema(reader.schema)
        batches = list(reader)
        for batch in batches:
            _validate(batch)
        return reader.schema, batches


def _validate(batch: pa.RecordBatch) -> None:
    """M3."""
    batch.validate()
    for column in batch.columns:
        numbers, leaf = _times_as_numbers(column.type), column.type
        if numbers == column.type:
            column.validate(full=True)
            continue
        found = column.view(numbers)
        found.validate(full=True)
        while pa.types.is_list(leaf):
            found, leaf = found.flatten(), leaf.value_type
        low, high = pc.min_max(found).as_py().values()
        if low is not None and not 0 <= low <= high <= DAY_MICROS:
            raise MalformedStream("a time is not of a day")


def _times_as_numbers(kind: pa.DataType) -> pa.DataType:
    """The same type, with numbers where there are times."""
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_times_as_numbers(kind.value_type)))
    return pa.int64() if kind == pa.time64("us") else kind


def check_messages(content: bytes, bytes_most: int) -> None:
    """Raises ``Malformed`` for what breaks M1 or M2. ``bytes_most``: of all buffers together, decompressed."""
    held = 0
    for number, message in enumerate(_messages(content)):
        if message.kind != (SCHEMA if number == 0 else RECORD_BATCH):
            raise MalformedStream(
                f"message {number} is of kind {message.kind}: a schema comes first, then record batches"
            )
        if message.kind == SCHEMA:
            if message.header.number(0, "<h", LITTLE_ENDIAN) != LITTLE_ENDIAN:
                raise MalformedStream("its byte order is not little endian")
            continue
        held += _decompressed_bytes(message)
        if held > bytes_most:
            raise MalformedStream(f"its buffers have more than {bytes_most:,} bytes")


class _Table(Struct, frozen=True):
    """A table of a flatbuffer."""

    data: memoryview
    at: int

    def place(self, field: int) -> int | None:
        """Where a field lies; None if it is left out."""
        vtable = self.at - _number(self.data, self.at, "<i")
        slot = 4 + 2 * field
        if slot >= _number(self.data, vtable, "<H"):
            return None
        offset = _number(self.data, vtable + slot, "<H")
        return self.at + offset if offset else None

    def number(self, field: int, form: str, absent: int) -> int:
        place = self.place(field)
        return absent if place is None else _number(self.data, place, form)

    def table(self, field: int) -> _Table | None:
        place = self.place(field)
        return None if place is None else _Table(self.data, place + _number(self.data, place, "<I"))

    def pairs(self, field: int) -> Iterator[tuple[int, int]]:
        """A vector of structs of two i64."""
        place = self.place(field)
        if place is None:
            return
        start = place + _number(self.data, place, "<I")
        count = _number(self.data, start, "<I")
        if start + 4 + 16 * count > len(self.data):
            raise MalformedStream("a vector is longer than its message")
        yield from struct.iter_unpack("<qq", self.data[start + 4 : start + 4 + 16 * count])


class _Message(Struct, frozen=True):
    kind: int
    header: _Table
    body: memoryview


def _messages(content: bytes) -> Iterator[_Message]:
    """Those before the end, which has to be the end of the content (M1)."""
    view = memoryview(content)
    at = 0
    while content[at : at + 8] != END:
        if content[at : at + 4] != CONTINUES:
            raise MalformedStream(f"there is no message at byte {at}: it is cut short, or no Arrow stream")
        start = at + 8
        end = start + _number(view, at + 4, "<i")
        if not start <= end <= len(view) or end % ALIGNED:
            raise MalformedStream(f"the message at byte {at} does not fit")
        metadata = view[start:end]
        message = _Table(metadata, _number(metadata, 0, "<I"))
        size = message.number(3, "<q", 0)
        header = message.table(2)
        if message.number(0, "<h", 0) != METADATA_V5 or header is None:
            raise MalformedStream(
                f"the message at byte {at} has no content, or is of another version of Arrow's format"
            )
        if not 0 <= size <= len(view) - end or size % ALIGNED:
            raise MalformedStream(f"the message at byte {at} has a body that does not fit")
        yield _Message(message.number(1, "<B", 0), header, view[end : end + size])
        at = end + size
    if at + len(END) != len(content):
        raise MalformedStream(f"there are {len(content) - at - len(END)} bytes behind its end")


def _decompressed_bytes(message: _Message) -> int:
    """Of a batch's buffers; what Arrow will allocate for them at most (M2)."""
    compressed = message.header.place(3) is not None
    total = 0
    for offset, length in message.header.pairs(2):
        if offset < 0 or length < 0 or offset + length > len(message.body) or offset % ALIGNED:
            raise MalformedStream("a buffer lies outside of its message, or where none may begin")
        if compressed and length > 0:
            stated = _number(message.body[offset : offset + length], 0, "<q")
            if stated < NOT_COMPRESSED:
                raise MalformedStream("a buffer states a negative size")
            total += length - BUFFER_HEAD_BYTES if stated == NOT_COMPRESSED else stated
        else:
            total += length
    return total


def _number(data: memoryview, at: int, form: str) -> int:
    if not 0 <= at <= len(data) - struct.calcsize(form):
        raise MalformedStream("its metadata points outside of itself")
    found: int = struct.unpack_from(form, data, at)[0]
    return found
