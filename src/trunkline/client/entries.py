"""What readers are given: entries, and batches of them without a copy."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from trunkline.client.bodies import Body, Buffer
from trunkline.core.entries import Frame


class Entry(msgspec.Struct, frozen=True):
    """One entry at its position. Batch facts (writer, seq, times) are those of the batch that it was appended in."""

    glsn: int
    payload: bytes
    writer: str = ""
    seq: int = 0
    time_ms: int = 0
    encoded_headers: bytes = b""

    @property
    def headers(self) -> Mapping[str, bytes]:
        return decode_headers(self.encoded_headers)


def encode_headers(headers: Mapping[str, bytes] | None) -> bytes:
    return msgspec.msgpack.encode(dict(headers)) if headers else b""


def decode_headers(encoded: bytes) -> dict[str, bytes]:
    return msgspec.msgpack.decode(encoded, type=dict[str, bytes]) if encoded else {}


class Batch:
    """Contiguous entries as they were stored, from ``first`` to ``last``. Iterating makes ``Entry`` objects.

    ``offsets`` (int32) and ``data`` are views of the received bytes in Arrow's layout; ``to_arrow`` wraps them. A
    batch that a reader enters in the middle begins with ``skip`` entries that are not part of what was asked for.
    """

    __slots__ = ("_body", "first", "frame", "last", "skip", "stop")

    def __init__(self, frame: Frame, body: Buffer, position: int, until: int | None = None) -> None:
        self.frame = frame
        self._body = Body(body, frame.count)
        self.skip = max(position - frame.first, 0)
        self.stop = frame.count if until is None else min(frame.count, until - frame.first + 1)
        self.first = frame.first + self.skip
        self.last = frame.first + self.stop - 1

    def __len__(self) -> int:
        return self.stop - self.skip

    @property
    def writer(self) -> str:
        return self.frame.writer

    @property
    def seq(self) -> int:
        return self.frame.seq

    @property
    def offsets(self) -> memoryview:
        return self._body.offsets[self.skip : self.stop + 1]

    @property
    def data(self) -> memoryview:
        return self._body.data

    @property
    def time_ms(self) -> int:
        return int(self._body.last_ms)

    @property
    def size_bytes(self) -> int:
        return len(self._body.data)

    def payloads(self) -> list[bytes]:
        return self._body.payloads()[self.skip : self.stop]

    @property
    def has_headers(self) -> bool:
        """Whether any entry of it was appended with headers."""
        return self._body.header_offsets is not None

    def headers(self) -> list[dict[str, bytes]]:
        """The headers of each entry; empty for those that have none."""
        if not self.has_headers:
            return [{} for _ in range(len(self))]
        return [decode_headers(self._body.header(index)) for index in range(self.skip, self.stop)]

    def __iter__(self) -> Iterator[Entry]:
        writer, seq, time_ms = self.frame.writer, self.frame.seq, self._body.last_ms
        glsn = self.first
        if self._body.header_offsets is None:
            for payload in self.payloads():
                yield Entry(glsn, payload, writer, seq, time_ms)
                glsn += 1
            return
        for index, payload in enumerate(self.payloads(), start=self.skip):
            yield Entry(glsn, payload, writer, seq, time_ms, self._body.header(index))
            glsn += 1

    def to_arrow(self) -> Any:
        """The payloads as a ``pyarrow.BinaryArray`` over the received bytes. Needs pyarrow, which is optional."""
        arrow = importlib.import_module("pyarrow")
        buffers = [None, arrow.py_buffer(self._body.offsets), arrow.py_buffer(self._body.data)]
        whole = arrow.Array.from_buffers(arrow.binary(), self.frame.count, buffers)
        return whole.slice(self.skip, len(self))
