"""An Arrow stream from an untrusted writer: checked before Arrow reads it, and before its rows are used.

Arrow trusts the metadata of a stream: it allocates what a compressed buffer declares, and reads wherever offsets point.
So sizes and offsets of all messages are checked here first:

    FF FF FF FF, i32 size, metadata (a flatbuffer), body          a schema, then record batches
    FF FF FF FF, 0                                                the end

Rules
 M1  A stream is one schema, record batches and the end marker, and nothing after it. A truncated stream is invalid,
     even if the cut is between two messages. Dictionaries and big-endian byte order are refused.
 M2  All offsets in a message are aligned and point inside it, and the decompressed size of all buffers of a stream is
     bounded.
 M3  A batch is returned only after Arrow has validated it fully: lengths, offsets, UTF-8, digits. One exception: the
     time 24:00:00, which Arrow refuses, is valid in PostgreSQL and DuckDB.
 M4  A message on its own is one record batch, with exactly the arrays and buffers of the schema under which it is read.
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
ALIGNMENT: Final = 8  # bytes; of messages, bodies and buffers: Arrow reads numbers in place
BUFFER_HEAD_BYTES: Final = 8  # of a compressed buffer: its decompressed size
NOT_COMPRESSED: Final = -1
DAY_MICROS: Final = 86_400 * 10**6


class MalformedStream(ValueError):
    """The stream is invalid or not allowed."""


def read_stream(
    content: bytes, bytes_max: int, check_schema: Callable[[pa.Schema], None]
) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    """Schema and validated batches of a stream. ``check_schema`` runs before the first batch is read, and may raise.

    Raises ``MalformedStream``, and what Arrow raises.
    """
    check_messages(content, bytes_max)
    with pa.ipc.open_stream(content) as reader:
        check_schema(reader.schema)
        batches = list(reader)
        for batch in batches:
            _validate(batch)
        return reader.schema, batches


def read_batch(content: memoryview, schema: pa.Schema, bytes_max: int) -> pa.RecordBatch:
    """The validated batch of one message, whose schema is known from elsewhere (M4).

    Raises ``MalformedStream``, and what Arrow raises.
    """
    message, end = _message(content, 0)
    if message.kind != RECORD_BATCH or end != len(content):
        raise MalformedStream("it is not one record batch")
    held = (sum(1 for _ in message.header.pairs(1)), sum(1 for _ in message.header.pairs(2)))
    if held != (wanted := _nodes_and_buffers([field.type for field in schema])):
        raise MalformedStream(f"it has {held} arrays and buffers, and its schema {wanted}")
    if _decompressed_bytes(message) > bytes_max:
        raise MalformedStream(f"its buffers have more than {bytes_max:,} bytes")
    batch = pa.ipc.read_record_batch(pa.py_buffer(content), schema)
    _validate(batch)
    return batch


def _nodes_and_buffers(types: list[pa.DataType]) -> tuple[int, int]:
    """How many arrays and buffers a batch of the types of captured columns has: Arrow ignores further ones."""
    nodes = buffers = 0
    for kind in types:
        nodes += 1
        buffers += 3 if pa.types.is_string(kind) or pa.types.is_binary(kind) else 2
        if pa.types.is_list(kind):
            inner = _nodes_and_buffers([kind.value_type])
            nodes, buffers = nodes + inner[0], buffers + inner[1]
    return nodes, buffers


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
            raise MalformedStream("a time of day is out of range")


def _times_as_numbers(kind: pa.DataType) -> pa.DataType:
    """The same type, with int64 instead of times."""
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_times_as_numbers(kind.value_type)))
    return pa.int64() if kind == pa.time64("us") else kind


def check_messages(content: bytes, bytes_max: int) -> None:
    """Raises ``MalformedStream`` for what breaks M1 or M2. ``bytes_max``: of all buffers together, decompressed."""
    held = 0
    for number, message in enumerate(_messages(content)):
        if message.kind != (SCHEMA if number == 0 else RECORD_BATCH):
            raise MalformedStream(
                f"message {number} is of kind {message.kind}: a schema comes first, then record batches"
            )
        if message.kind == SCHEMA:
            if message.header.number(0, "<h", LITTLE_ENDIAN) != LITTLE_ENDIAN:
                raise MalformedStream("its byte order is not little-endian")
            continue
        held += _decompressed_bytes(message)
        if held > bytes_max:
            raise MalformedStream(f"its buffers have more than {bytes_max:,} bytes")


class _FlatbufferTable(Struct, frozen=True):
    """A table of a flatbuffer."""

    data: memoryview
    at: int

    def place(self, field: int) -> int | None:
        """The offset of a field; None if it is absent."""
        vtable = self.at - _number(self.data, self.at, "<i")
        slot = 4 + 2 * field
        if slot >= _number(self.data, vtable, "<H"):
            return None
        offset = _number(self.data, vtable + slot, "<H")
        return self.at + offset if offset else None

    def number(self, field: int, form: str, absent: int) -> int:
        place = self.place(field)
        return absent if place is None else _number(self.data, place, form)

    def table(self, field: int) -> _FlatbufferTable | None:
        place = self.place(field)
        return None if place is None else _FlatbufferTable(self.data, place + _number(self.data, place, "<I"))

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
    header: _FlatbufferTable
    body: memoryview


def _messages(content: bytes) -> Iterator[_Message]:
    """All messages before the end marker, which must end the content (M1)."""
    view = memoryview(content)
    at = 0
    while content[at : at + 8] != END:
        message, at = _message(view, at)
        yield message
    if at + len(END) != len(content):
        raise MalformedStream(f"there are {len(content) - at - len(END)} bytes after its end")


def _message(view: memoryview, at: int) -> tuple[_Message, int]:
    """The message at a byte, and where it ends."""
    if bytes(view[at : at + 4]) != CONTINUES:
        raise MalformedStream(f"there is no message at byte {at}: it is truncated, or not an Arrow stream")
    start = at + 8
    end = start + _number(view, at + 4, "<i")
    if not start <= end <= len(view) or end % ALIGNMENT:
        raise MalformedStream(f"the message at byte {at} does not fit")
    metadata = view[start:end]
    message = _FlatbufferTable(metadata, _number(metadata, 0, "<I"))
    size = message.number(3, "<q", 0)
    header = message.table(2)
    if message.number(0, "<h", 0) != METADATA_V5 or header is None:
        raise MalformedStream(f"the message at byte {at} is empty, or in another version of Arrow's format")
    if not 0 <= size <= len(view) - end or size % ALIGNMENT:
        raise MalformedStream(f"the message at byte {at} has a body that does not fit")
    return _Message(message.number(1, "<B", 0), header, view[end : end + size]), end + size


def _decompressed_bytes(message: _Message) -> int:
    """What Arrow allocates for a batch's buffers at most (M2)."""
    compressed = message.header.place(3) is not None
    total = 0
    for offset, length in message.header.pairs(2):
        if offset < 0 or length < 0 or offset + length > len(message.body) or offset % ALIGNMENT:
            raise MalformedStream("a buffer lies outside of its message, or is not aligned")
        if compressed and length > 0:
            stated = _number(message.body[offset : offset + length], 0, "<q")
            if stated < NOT_COMPRESSED:
                raise MalformedStream("a buffer declares a negative size")
            total += length - BUFFER_HEAD_BYTES if stated == NOT_COMPRESSED else stated
        else:
            total += length
    return total


def _number(data: memoryview, at: int, form: str) -> int:
    if not 0 <= at <= len(data) - struct.calcsize(form):
        raise MalformedStream("its metadata has an offset out of bounds")
    found: int = struct.unpack_from(form, data, at)[0]
    return found
