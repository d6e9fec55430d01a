"""Entries, and the batches that hold them.

Roles know a batch by its identity only; the host stores and sends the bytes under that identity.

    GLSN   1    2    3    4    5    6
         +---------+----+--------------+
         | frame A | J  |   frame B    |     A = (first 1, count 2), J = JUNK at 3, B = (first 4, count 3)
         +---------+----+--------------+
"""

from __future__ import annotations

import bisect
import enum
from collections.abc import Iterator, MutableSequence, Sequence
from itertools import islice

from msgspec import Struct


class FrameKind(enum.Enum):
    DATA = "data"
    JUNK = "junk"


class Frame(Struct, frozen=True, array_like=True):
    """A batch at its position. Two frames are equal only if every field is."""

    first: int  # GLSN of its first entry
    count: int
    kind: FrameKind
    writer: str
    seq: int
    checksum: int

    @property
    def next(self) -> int:
        return self.first + self.count

    def brief(self) -> str:
        at = str(self.first) if self.count == 1 else f"{self.first}-{self.next - 1}"
        if self == junk(self.first):
            return f"JUNK {at}"
        return f"{self.kind.name} {at}={self.checksum} {self.writer}/{self.seq}"


def junk(glsn: int) -> Frame:
    """The canonical form of a filled hole: one position, no writer."""
    return Frame(glsn, 1, FrameKind.JUNK, "", 0, 0)


class Frames:
    """Frames of one stream, sorted by position, without overlaps.

    A tuple is in order of arrival, as read from a disk, and is copied. Any other sequence must be sorted, and is used
    in place: a host keeps millions of frames in a container of its own.
    """

    def __init__(self, frames: Sequence[Frame] = ()) -> None:
        found = not isinstance(frames, MutableSequence)
        self._frames = frames if isinstance(frames, MutableSequence) else sorted(frames, key=_first)
        self._highest = self._frames[-1].next - 1 if self._frames else 0
        self._covered = sum(frame.count for frame in self._frames) if found else None  # positions; None: not counted

    def __len__(self) -> int:
        return len(self._frames)

    def overlapping(self, first: int, count: int) -> Frame | None:
        """The first frame that overlaps ``[first, first + count)``."""
        if first > self._highest:
            return None
        at = bisect.bisect_right(self._frames, first, key=_first)
        if at and (before := self._frames[at - 1]).next > first:
            return before
        if at < len(self._frames) and (after := self._frames[at]).first < first + count:
            return after
        return None

    def at(self, glsn: int) -> Frame | None:
        return self.overlapping(glsn, 1)

    def add(self, frame: Frame) -> None:
        """Add a frame that overlaps no other."""
        if frame.first > self._highest:
            self._frames.append(frame)
            self._highest = frame.next - 1
        else:
            self._frames.insert(bisect.bisect_right(self._frames, frame.first, key=_first), frame)
        if self._covered is not None:
            self._covered += frame.count

    def remove(self, frame: Frame) -> None:
        """Remove a frame, which must be present."""
        at = bisect.bisect_left(self._frames, frame.first, key=_first)
        self._forget(at, at + 1)

    def highest(self) -> int:
        """The highest written position; 0 if there is none."""
        return self._highest

    def run_from(self, glsn: int, limit: int) -> tuple[Frame, ...]:
        """Up to ``limit`` consecutive frames without a hole; the first holds ``glsn``."""
        return tuple(islice(self._run(glsn), limit))

    def contiguous_end(self, start: int) -> int:
        """The first position at or after ``start`` that is not written."""
        if start > self._highest or not self._frames:
            return start
        if self._covered is None:
            self._covered = sum(frame.count for frame in self._frames)
        lowest = self._frames[0].first
        if lowest <= start and self._highest + 1 - lowest == self._covered:  # there is no hole
            return self._highest + 1
        for frame in self._run(start):
            start = frame.next
        return start

    def between(self, first: int, end: int) -> tuple[Frame, ...]:
        """Frames that overlap ``[first, end)``."""
        if first >= end:
            return ()
        low = bisect.bisect_right(self._frames, first, key=_next)
        high = bisect.bisect_left(self._frames, end, key=_first)
        return tuple(self._frames[low:high])

    def cut_from(self, end: int) -> None:
        """Remove every frame that begins at or past ``end``."""
        self._forget(bisect.bisect_left(self._frames, end, key=_first), len(self._frames))

    def drop_through(self, point: int) -> None:
        """Remove every frame that lies entirely at or below ``point``."""
        self._forget(0, bisect.bisect_right(self._frames, point + 1, key=_next))

    def all(self) -> Sequence[Frame]:
        """All frames. It may be the container itself: read it at once."""
        return tuple(self._frames) if isinstance(self._frames, list) else self._frames

    def _run(self, glsn: int) -> Iterator[Frame]:
        """Consecutive frames without a hole; the first holds ``glsn``."""
        at = bisect.bisect_right(self._frames, glsn, key=_first) - 1
        if at < 0 or self._frames[at].next <= glsn:
            return
        frame = self._frames[at]
        yield frame
        for index in range(at + 1, len(self._frames)):
            following = self._frames[index]
            if following.first != frame.next:
                return
            frame = following
            yield frame

    def _forget(self, low: int, high: int) -> None:
        if low >= high:
            return
        if self._covered is not None:
            self._covered -= sum(self._frames[at].count for at in range(low, high))
        del self._frames[low:high]
        self._highest = self._frames[-1].next - 1 if self._frames else 0


def _first(frame: Frame) -> int:
    return frame.first


def _next(frame: Frame) -> int:
    return frame.first + frame.count
