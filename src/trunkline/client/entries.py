"""What readers get: entries, and batches of them without a copy."""

from __future__ import annotations

import importlib
from array import array
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from trunkline.client.bodies import Body, Buffer, CorruptBody, ends_of
from trunkline.client.headers import decode_headers
from trunkline.core.entries import Frame
from trunkline.errors import ConfigError, CorruptEntry

OFFSET_BYTES: Final = 4
TIME_MS_MAX: Final = 253_402_300_799_999  # the end of the year 9999; later times are invalid


class Entry(msgspec.Struct, frozen=True):
    """One entry at its position. ``writer``, ``seq`` and ``time_ms`` are those of its batch."""

    glsn: int
    payload: bytes
    writer: str = ""
    seq: int = 0
    time_ms: int = 0
    encoded_headers: bytes = b""

    @property
    def headers(self) -> Mapping[str, bytes]:
        """Empty if there are none, or if they cannot be decoded: see ``unreadable_headers``."""
        return decode_headers(self.encoded_headers) or {}

    @property
    def unreadable_headers(self) -> bytes:
        """The bytes of headers that cannot be decoded; empty as a rule."""
        return self.encoded_headers if decode_headers(self.encoded_headers) is None else b""


class Batch:
    """Contiguous entries as they were stored, from ``first`` to ``last``. Iterating yields ``Entry`` objects.

    ``offsets`` (int32) and ``data`` are views of the received bytes in Arrow's layout; ``to_arrow`` wraps them. A
    batch that a reader enters in the middle starts with ``skip`` entries that were not requested.

    A malicious writer can store anything under a valid checksum. Every access to the entries then raises
    ``CorruptEntry`` before it returns one of them.
    """

    __slots__ = ("_body", "_log", "first", "frame", "last", "skip", "stop")

    def __init__(self, frame: Frame, body: Buffer, position: int, until: int | None = None, log: str = "") -> None:
        self.frame = frame
        self._log = log
        self.skip = max(position - frame.first, 0)
        self.stop = frame.count if until is None else min(frame.count, until - frame.first + 1)
        self.first = frame.first + self.skip
        self.last = frame.first + self.stop - 1
        try:
            self._body = Body(body, frame.count)
        except CorruptBody as error:
            raise self._corrupt(error) from error

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
        try:
            ends_of(self._body.offsets)
        except CorruptBody as error:
            raise self._corrupt(error) from error
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
        try:
            return self._body.payloads()[self.skip : self.stop]
        except CorruptBody as error:
            raise self._corrupt(error) from error

    @property
    def has_headers(self) -> bool:
        """Whether any of its entries has headers."""
        return self._body.has_headers

    def headers(self) -> list[dict[str, bytes]]:
        """The headers of each entry; empty if it has none, or if they cannot be decoded."""
        return [decode_headers(encoded) or {} for encoded in self.encoded_headers()]

    def encoded_headers(self) -> list[bytes]:
        try:
            return self._body.headers()[self.skip : self.stop]
        except CorruptBody as error:
            raise self._corrupt(error) from error

    def __iter__(self) -> Iterator[Entry]:
        writer, seq, time_ms = self.frame.writer, self.frame.seq, self._body.last_ms
        glsn = self.first
        if not self.has_headers:
            for payload in self.payloads():
                yield Entry(glsn, payload, writer, seq, time_ms)
                glsn += 1
            return
        for payload, headers in zip(self.payloads(), self.encoded_headers(), strict=True):
            yield Entry(glsn, payload, writer, seq, time_ms, headers)
            glsn += 1

    def to_arrow(self) -> Any:
        """A ``pyarrow.RecordBatch`` with a row for each entry: ``glsn``, ``payload``, ``time`` (UTC, from the client
        that appended it; NULL past the year 9999) and ``headers`` (a map; NULL if they cannot be decoded).

        Payloads are not copied. Needs pyarrow, which is optional.
        """
        arrow = _pyarrow()
        payloads, count = self.arrow_payloads(), len(self)  # first: it rejects a wrong count
        glsn = arrow.py_buffer(array("q", range(self.first, self.last + 1)))
        time = self.time_ms if 0 <= self.time_ms <= TIME_MS_MAX else None
        return arrow.RecordBatch.from_arrays(
            [
                arrow.Array.from_buffers(arrow.int64(), count, [None, glsn]),
                payloads,
                arrow.repeat(arrow.scalar(time, arrow.timestamp("ms", tz="UTC")), count),
                self._arrow_headers(arrow),
            ],
            names=["glsn", "payload", "time", "headers"],
        )

    def _arrow_headers(self, arrow: Any) -> Any:
        kind = arrow.map_(arrow.string(), arrow.binary())
        if not self.has_headers:
            return arrow.repeat(arrow.scalar([], kind), len(self))
        decoded = [decode_headers(encoded) for encoded in self.encoded_headers()]
        return arrow.array([None if headers is None else list(headers.items()) for headers in decoded], kind)

    def arrow_payloads(self) -> Any:
        """The payloads as a ``pyarrow.BinaryArray`` over the received bytes. Needs pyarrow, which is optional."""
        arrow = _pyarrow()
        offsets, data = arrow.py_buffer(self._body.offsets), arrow.py_buffer(self._body.data)
        if offsets.address % OFFSET_BYTES:  # Arrow needs aligned numbers
            offsets = arrow.py_buffer(bytes(self._body.offsets))
        try:
            whole = arrow.Array.from_buffers(arrow.binary(), self.frame.count, [None, offsets, data])
            whole.validate(full=True)  # otherwise Arrow trusts offsets, and reads wherever they point
        except arrow.ArrowInvalid as error:
            raise self._corrupt(error) from error
        return whole.slice(self.skip, len(self))

    def _corrupt(self, why: Exception) -> CorruptEntry:
        first, end = self.frame.first, self.frame.first + self.frame.count
        of = f" of {self._log}" if self._log else ""
        return CorruptEntry(
            f"positions {first} to {end - 1}{of} hold a corrupt batch ({why}); read on from {end}, and fix the writer "
            f"{self.frame.writer}",
            first,
            end,
        )


def _pyarrow() -> Any:
    try:
        return importlib.import_module("pyarrow")
    except ModuleNotFoundError:
        raise ConfigError("to_arrow() needs the package pyarrow, which is not installed: pip install pyarrow") from None
