"""The extents of a stream, and where each frame is in them.

Columns hold where frames are, 16 bytes for each. The frames themselves are kept in memory only for extents without a
footer, which is made from them.
"""

from __future__ import annotations

import bisect
from array import array
from pathlib import Path
from typing import NamedTuple

from trunkline.core.entries import Frame
from trunkline.core.streams import Key
from trunkline.storage.directory import extent_name
from trunkline.storage.layout import FRAME_HEADER, WRITER_BYTES_MAX, Footer, StoredWriter, padded, stored_writer
from trunkline.storage.packed import PackedFrames

WRITERS_KEPT_MAX = 1024  # writer ids of a stream that are kept in their stored form


class BodyPlace(NamedTuple):
    """Where the body of a frame is."""

    extent: Extent
    body: int
    size: int

    def is_followed_by(self, other: BodyPlace) -> bool:
        """Whether only a header lies between, so that one read gets both."""
        gap = other.body - self.body - padded(self.size)
        return self.extent is other.extent and 0 < gap <= FRAME_HEADER.size + padded(WRITER_BYTES_MAX)


class Extent:
    def __init__(self, directory: Path, number: int, first_slot: int) -> None:
        self.path = directory / extent_name(number)
        self.number = number
        self.first_slot = first_slot
        self.slots = 0
        self.size = 0  # where the next frame goes
        self.closed = False  # it has a footer
        self.damaged = False  # it has bad slots: it stays as it is, without a footer
        self.frames: PackedFrames | None = PackedFrames()
        self.firsts = array("q")
        self.bodies = array("I")
        self.sizes = array("I")
        self.next_max = 0  # after the highest position

    def __len__(self) -> int:
        return len(self.firsts)

    def add(self, frame: Frame, body: int, size: int) -> None:
        assert self.frames is not None, f"{self.path} is closed"
        at = self.frames.add(frame)
        self.bodies.insert(at, body)
        self.sizes.insert(at, size)
        self.firsts.insert(at, frame.first)
        self.next_max = max(self.next_max, frame.next)

    def place_of(self, first: int) -> BodyPlace | None:
        if first >= self.next_max:
            return None
        at = bisect.bisect_left(self.firsts, first)
        if at == len(self.firsts) or self.firsts[at] != first:
            return None
        return BodyPlace(self, self.bodies[at], self.sizes[at])

    def footer(self, *, successor: bool) -> Footer:
        assert self.frames is not None, f"{self.path} has a footer"
        return Footer(self.first_slot, self.slots, self.size, successor, self.frames, self.bodies, self.sizes)

    def take_footer(self, footer: Footer) -> PackedFrames:
        """Take positions from a footer; returns its frames, which are not kept."""
        self.first_slot, self.slots, self.size = footer.first_slot, footer.slots, footer.end
        self.firsts, self.bodies, self.sizes = footer.frames.firsts[:], footer.bodies, footer.sizes
        self.next_max = footer.frames.firsts[-1] + footer.frames.counts[-1] if len(footer.frames) else 0
        self.frames = None
        self.closed = True
        return footer.frames


class StreamFiles:
    """One stream's files. ``extents`` are in order, without a gap in their numbers."""

    def __init__(self, key: Key, path: Path, salt: int) -> None:
        self.key = key
        self.path = path
        self.salt = salt
        self.extents: list[Extent] = []
        self.active: Extent | None = None  # receives new frames
        self.slots = 0
        self.synced = 0  # slots that are durable
        self.marked = 0  # slots that a mark on disk vouches for
        self.sealed = False
        self.late = False  # frames were written after the seal
        self.dropped = False
        self._hit: Extent | None = None
        self._writers: dict[str, StoredWriter] = {}

    def writer(self, name: str) -> StoredWriter:
        stored = self._writers.get(name)
        if stored is None:
            if len(self._writers) >= WRITERS_KEPT_MAX:
                self._writers.clear()
            stored = self._writers[name] = stored_writer(name)
        return stored

    def next_extent(self) -> Extent:
        number = self.extents[-1].number + 1 if self.extents else 1
        return Extent(self.path, number, self.slots)

    def add_extent(self, extent: Extent) -> None:
        self.extents.append(extent)
        self.active = extent

    def place_of(self, first: int) -> BodyPlace | None:
        """Where the frame at a position is. Readers continue where they were, or start near the end."""
        if self._hit is not None:
            found = self._hit.place_of(first)
            if found is not None:
                return found
        for extent in reversed(self.extents):
            found = extent.place_of(first)
            if found is not None:
                self._hit = extent
                return found
        return None

    def trimmed_extents(self, point: int) -> int:
        """How many of the oldest extents hold nothing above ``point``. The last extent always stays."""
        count = 0
        for extent in self.extents[:-1]:
            if extent.next_max > point + 1 or extent is self.active:
                break
            count += 1
        return count

    def drop_extents(self, count: int) -> list[Extent]:
        dropped, self.extents = self.extents[:count], self.extents[count:]
        if self._hit in dropped:
            self._hit = None
        return dropped
