"""Scans an extent without a footer: frames, marks, and garbage between them.

A damaged header has no usable length, so the scan searches for the next good one. Slot numbers show how many frames lie
between.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from trunkline.storage.layout import (
    ALIGNMENT,
    CLOSING_MAGIC,
    EXTENT_HEADER,
    FRAME_HEADER,
    FRAME_MAGIC,
    MARK,
    MARK_MAGIC,
    FoundFrame,
    FoundMark,
    unpack_frame,
    unpack_mark,
)

MISSING_SLOTS_MAX = 1 << 20  # a frame with a larger gap is garbage

_MAGIC = re.compile(b"|".join(map(re.escape, (FRAME_MAGIC, MARK_MAGIC, CLOSING_MAGIC))))


class Garbage(NamedTuple):
    """Bytes that are neither a frame nor a mark."""

    start: int
    size: int

    @property
    def may_be_a_frame(self) -> bool:
        """A shorter piece was never acknowledged (L3)."""
        return self.size >= FRAME_HEADER.size


class ScannedFrame(NamedTuple):
    frame: FoundFrame
    good: bool  # its body is complete and matches its checksum
    short: bool  # the file ends inside it


Piece = ScannedFrame | FoundMark | Garbage


def scan(salt: int, content: bytes, slot: int) -> Iterator[Piece]:
    """The pieces of an extent in order, up to its footer. ``slot`` is the lowest slot expected.

    Garbage is followed by a valid piece or by the end.
    """
    at = min(EXTENT_HEADER.size, len(content))
    while at < len(content):
        piece = _piece_at(salt, content, at, slot)
        if piece is None:
            following = _next_piece(salt, content, at + ALIGNMENT, slot)
            yield Garbage(at, following - at)
            at = following
            continue
        yield piece
        if isinstance(piece, FoundMark):
            if piece.closing:
                return
            at += MARK.size
            slot = piece.slots
        else:
            at = piece.frame.end
            slot = piece.frame.slot + 1


def _piece_at(salt: int, content: bytes, at: int, slot: int) -> ScannedFrame | FoundMark | None:
    frame = unpack_frame(salt, content, at)
    if frame is None:
        mark = unpack_mark(salt, content, at)
        return mark if mark is not None and slot <= mark.slots <= slot + MISSING_SLOTS_MAX else None
    if not slot <= frame.slot <= slot + MISSING_SLOTS_MAX:
        return None
    short = frame.end > len(content)
    return ScannedFrame(frame, not short and frame.body_is_good(content), short)


def _next_piece(salt: int, content: bytes, start: int, slot: int) -> int:
    for match in _MAGIC.finditer(content, min(start, len(content))):
        if match.start() % ALIGNMENT == 0 and _piece_at(salt, content, match.start(), slot) is not None:
            return match.start()
    return len(content)
