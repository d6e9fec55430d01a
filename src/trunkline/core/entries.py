"""Entries and the batches they travel in.

Roles know a batch by its identity only; the bytes stay with the host, which stores and sends them by that identity.

    GLSN   1    2    3    4    5    6
         +---------+----+--------------+
         | frame A | J  |   frame B    |     A = (first 1, count 2), J = JUNK at 3, B = (first 4, count 3)
         +---------+----+--------------+
"""

from __future__ import annotations

import bisect
import enum

from msgspec import Struct


class Kind(enum.Enum):
    DATA = "data"
    JUNK = "junk"


class Frame(Struct, frozen=True):
    """A batch at its position. Two frames are the same value only if every field is equal."""

    first: int  # GLSN of its first entry
    count: int
    kind: Kind
    writer: str
    seq: int
    checksum: int

    @property
    def next(self) -> int:
        return self.first + self.count

    def brief(self) -> str:
        at = str(self.first) if self.count == 1 else f"{self.first}-{self.next - 1}"
        return (
            f"JUNK {at}"
            if self == junk(self.first)
            else f"{self.kind.name} {at}={self.checksum} {self.writer}/{self.seq}"
        )


def junk(glsn: int) -> Frame:
    """The one canonical form of a filled hole: one position, no writer."""
    return Frame(glsn, 1, Kind.JUNK, "", 0, 0)


class Frames:
    """Frames of one stream, sorted by position and never overlapping."""

    def __init__(self, frames: tuple[Frame, ...] = ()) -> None:
        self._frames = sorted(frames, key=lambda frame: frame.first)  # a disk has them in order of arrival

    def __len__(self) -> int:
        return len(self._frames)

    def overlapping(self, first: int, count: int) -> Frame | None:
        """The first frame that shares a position with ``[first, first + count)``."""
        at = bisect.bisect_right(self._frames, first, key=lambda frame: frame.first)
        if at and self._frames[at - 1].next > first:
            return self._frames[at - 1]
        if at < len(self._frames) and self._frames[at].first < first + count:
            return self._frames[at]
        return None

    def at(self, glsn: int) -> Frame | None:
        return self.overlapping(glsn, 1)

    def add(self, frame: Frame) -> None:
        at = bisect.bisect_right(self._frames, frame.first, key=lambda kept: kept.first)
        self._frames.insert(at, frame)

    def highest(self) -> int:
        """The highest position that holds an entry; 0 if there is none."""
        return self._frames[-1].next - 1 if self._frames else 0

    def run_from(self, glsn: int, limit: int) -> tuple[Frame, ...]:
        """Up to ``limit`` frames that follow each other without a hole, the first one holding ``glsn``."""
        found: list[Frame] = []
        while len(found) < limit and (frame := self.at(glsn)) is not None:
            found.append(frame)
            glsn = frame.next
        return tuple(found)

    def contiguous_end(self, start: int) -> int:
        """The first position at or after ``start`` that is not written."""
        while (frame := self.at(start)) is not None:
            start = frame.next
        return start

    def between(self, first: int, end: int) -> tuple[Frame, ...]:
        """Frames that share a position with ``[first, end)``."""
        if first >= end:
            return ()
        low = bisect.bisect_right(self._frames, first, key=lambda frame: frame.next)
        high = bisect.bisect_left(self._frames, end, key=lambda frame: frame.first)
        return tuple(self._frames[low:high])

    def cut_from(self, end: int) -> None:
        """Forget every frame that begins at or past ``end``."""
        del self._frames[bisect.bisect_left(self._frames, end, key=lambda frame: frame.first) :]

    def drop_through(self, point: int) -> None:
        """Forget every frame that lies wholly at or below ``point``."""
        self._frames = [frame for frame in self._frames if frame.next > point + 1]

    def all(self) -> tuple[Frame, ...]:
        return tuple(self._frames)
