"""Parses packets from a stream of bytes, however it is split. It needs no socket.

1. Receive bytes into ``room()``, report them with ``received(count)``, then call ``next()`` until it returns None.
2. A packet that fits into the receive buffer is parsed there; its attachments are copied out in one piece, because the
   buffer is reused.
3. A larger packet gets a buffer of exactly its size, and the rest of it is received straight into that. The buffer
   belongs to this packet alone, so views into it may be kept.
4. Nothing is trusted before its checksum is verified: a head that fits into the receive buffer is verified before
   memory is allocated for its attachments.
"""

from __future__ import annotations

import mmap
from typing import NamedTuple

from trunkline.net.limits import KIB
from trunkline.net.packets import HEADER_BYTES, ProtocolViolation, checked_head, parse_header

RECEIVE_BYTES = 128 * KIB  # a batch of 100 entries of 1 KiB fits; a larger one gets a buffer of its own

_NOTHING = memoryview(b"")


class Packet(NamedTuple):
    kind: int
    head: bytes
    body: memoryview  # read-only; it owns its bytes


class PacketParser:
    def __init__(self, packet_bytes_max: int, head_bytes_max: int, receive_bytes: int = RECEIVE_BYTES) -> None:
        self.packet_bytes_max = packet_bytes_max
        self.head_bytes_max = head_bytes_max
        self.packets = 0  # so far
        self._view = memoryview(mmap.mmap(-1, receive_bytes))  # pages are allocated on first use
        self._start = 0  # [start, end) of the receive buffer is not yet parsed
        self._end = 0
        self._large: memoryview | None = None  # the packet that is received straight into its own buffer
        self._large_end = 0
        self._large_parts = (0, 0, 0)  # its head length, kind and crc

    @property
    def midway(self) -> bool:
        """A packet has begun and is not complete."""
        return self._large is not None or self._end > self._start

    def room(self) -> memoryview:
        """Where the next bytes go; never empty after ``next`` returned None."""
        if self._large is not None:
            return self._large[self._large_end :]
        return self._view[self._end :]

    def received(self, count: int) -> None:
        if self._large is not None:
            self._large_end += count
        else:
            self._end += count

    def next(self) -> Packet | None:
        """The next packet, or None: more bytes are needed. After ``ProtocolViolation`` the stream is unusable."""
        if self._large is not None:
            return self._finish_large(self._large)
        start, available = self._start, self._end - self._start
        if available < HEADER_BYTES:
            self._make_room()
            return None
        length, head_length, kind, crc = parse_header(self._view, start)
        if length > self.packet_bytes_max or head_length > self.head_bytes_max:
            raise ProtocolViolation(
                f"a packet of {length} bytes with a head of {head_length} is larger than this process accepts"
                f" ({self.packet_bytes_max} and {self.head_bytes_max}); send smaller batches"
            )
        size = HEADER_BYTES + length
        if available < size:
            self._begin(size, head_length, kind, crc)
            return None
        head = checked_head(self._view, start, head_length, crc)
        body_start = start + HEADER_BYTES + head_length
        self._start = start + size
        self.packets += 1
        if body_start == self._start:
            return Packet(kind, head, _NOTHING)
        return Packet(kind, head, memoryview(bytes(self._view[body_start : self._start])))  # rule 2

    def _begin(self, size: int, head_length: int, kind: int, crc: int) -> None:
        """Make room for the rest of a packet."""
        start, available = self._start, self._end - self._start
        head_end = HEADER_BYTES + head_length
        if size <= len(self._view) or available < head_end <= len(self._view):
            self._make_room()
            return
        if available >= head_end:
            checked_head(self._view, start, head_length, crc)  # rule 4
        self._large = memoryview(bytearray(size))
        self._large[:available] = self._view[start : self._end]
        self._large_end, self._large_parts = available, (head_length, kind, crc)
        self._start = self._end = 0

    def _make_room(self) -> None:
        if self._start:
            available = self._end - self._start
            self._view[:available] = self._view[self._start : self._end]
            self._start, self._end = 0, available

    def _finish_large(self, large: memoryview) -> Packet | None:
        if self._large_end < len(large):
            return None
        head_length, kind, crc = self._large_parts
        head = checked_head(large, 0, head_length, crc)
        self._large = None
        self.packets += 1
        return Packet(kind, head, large.toreadonly()[HEADER_BYTES + head_length :])
