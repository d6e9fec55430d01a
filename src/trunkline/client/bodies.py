"""The body of a batch: its entries in Arrow's layout of variable binary, so that no process copies or parses entries.

    offset  0   u8 layout version, u8 flags (1: entry headers follow), u16 zero, u32 count
            8   i64 time of the first entry in ms, i64 time of the last
           24   int32 offsets[count + 1], padded to 8 bytes
                the entries' bytes back to back, padded to 8 bytes
                (flag 1) a second pair of the same form: the entries' headers, each a msgpack map

All numbers are little endian. Storage nodes keep a body as it is and verify its checksum only.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from itertools import accumulate, pairwise

import crc32c

from trunkline.errors import ConfigError, ProtocolError

LAYOUT = 1
HAS_HEADERS = 1
ENTRY_BYTES_MAX = 16 * 1024 * 1024
BODY_BYTES_MAX = 32 * 1024 * 1024

_HEAD = struct.Struct("<BBHIqq")

Buffer = bytes | bytearray | memoryview


def checksum(body: Buffer) -> int:
    return int(crc32c.crc32c(body))


def encode(payloads: Sequence[Buffer], headers: Sequence[bytes] | None, first_ms: int, last_ms: int) -> bytes:
    """The body of a batch of these entries."""
    head = _HEAD.pack(LAYOUT, HAS_HEADERS if headers else 0, 0, len(payloads), first_ms, last_ms)
    parts: list[Buffer] = [head]
    _add_column(parts, payloads)
    if headers:
        _add_column(parts, headers)
    return b"".join(parts)


def _add_column(parts: list[Buffer], values: Sequence[Buffer]) -> None:
    offsets = array("i", accumulate(map(len, values), initial=0))
    parts.append(offsets.tobytes())
    if len(offsets) % 2:
        parts.append(b"\0\0\0\0")
    parts.extend(values)
    parts.append(bytes(-offsets[-1] % 8))


class CorruptBody(ProtocolError):
    """The writer of the batch is broken or malicious."""


class Body:
    """A received body, parsed without copying. ``offsets`` and ``data`` are Arrow's two buffers.

    Its checksum proves that it is what its writer made, not that the writer made it right. So sizes are checked at
    once; that offsets only grow is checked when they are used, because Arrow does that in a tenth of the time.
    """

    __slots__ = ("_headers", "count", "data", "first_ms", "last_ms", "offsets")

    def __init__(self, body: Buffer, count: int) -> None:
        view = memoryview(body)
        if len(view) < _HEAD.size:
            raise CorruptBody(f"a batch body has {len(view)} bytes, fewer than its header")
        layout, flags, _, self.count, self.first_ms, self.last_ms = _HEAD.unpack_from(view)
        if layout != LAYOUT or flags & ~HAS_HEADERS:
            raise ProtocolError(
                f"a batch has layout {layout} with flags {flags}; this version reads {LAYOUT}: upgrade the reader"
            )
        if self.count != count:
            raise CorruptBody(f"a batch body holds {self.count} entries, its frame {count}")
        at, self.offsets, self.data = _column(view, _HEAD.size, count)
        self._headers: tuple[memoryview, memoryview] | None = None
        if flags & HAS_HEADERS:
            _, *column = _column(view, at, count)
            self._headers = (column[0], column[1])

    @property
    def has_headers(self) -> bool:
        return self._headers is not None

    def payloads(self) -> list[bytes]:
        """Raises ``CorruptBody`` for offsets that decrease."""
        return _values(self.offsets, self.data)

    def headers(self) -> list[bytes]:
        """Still encoded. Raises ``CorruptBody`` for offsets that decrease."""
        return [b""] * self.count if self._headers is None else _values(*self._headers)


def _column(view: memoryview, at: int, count: int) -> tuple[int, memoryview, memoryview]:
    """Where the column ends, its offsets and its bytes."""
    end = at + 4 * (count + 1)
    start = end + (-end % 8)
    if start > len(view):
        raise CorruptBody("a batch body is cut short: its offsets do not fit")
    offsets = view[at:end].cast("i")
    size = offsets[count]
    if offsets[0] != 0 or size < 0 or start + size > len(view):
        raise CorruptBody("a batch body is cut short: its entries do not fit")
    return start + size + (-size % 8), offsets, view[start : start + size]


def ends_of(offsets: memoryview) -> list[int]:
    """The offsets, checked to be in order; ``_column`` has checked the first and the last."""
    ends: list[int] = offsets.tolist()
    if ends != sorted(ends):
        raise CorruptBody("the offsets of a batch body decrease")
    return ends


def _values(offsets: memoryview, data: memoryview) -> list[bytes]:
    whole = bytes(data)
    return [whole[start:end] for start, end in pairwise(ends_of(offsets))]


def _check_kind(payload: object) -> None:
    """Only bytes: the length of anything else need not be its size."""
    if isinstance(payload, memoryview):
        if payload.itemsize != 1 or not payload.contiguous or payload.ndim != 1:
            raise ConfigError(
                'an entry is a memoryview of contiguous bytes; this one is not: append view.cast("B"), or bytes(view)'
            )
    elif not isinstance(payload, bytes | bytearray):
        raise ConfigError(f"an entry must be bytes, not {type(payload).__name__}: encode it first")


def check_sizes(payloads: Sequence[Buffer], headers: Sequence[bytes] | None = None) -> int:
    """The size of these entries; ``ConfigError`` if they do not fit into one batch."""
    total = 8 * len(payloads) + (sum(map(len, headers)) + 8 * len(headers) if headers else 0)
    for payload in payloads:
        if type(payload) is not bytes:
            _check_kind(payload)
        size = len(payload)
        if size > ENTRY_BYTES_MAX:
            raise ConfigError(f"an entry of {size} bytes is larger than {ENTRY_BYTES_MAX}: append it in parts")
        total += size
    if total > BODY_BYTES_MAX - 64:
        raise ConfigError(f"a batch of {total} bytes is larger than {BODY_BYTES_MAX}: append it in parts")
    return total
