"""Reads a stream's files after a restart; ``core.recovery`` judges them.

Rules
 R1  An extent with a good footer is not scanned: everything in it is durable (L4). Any other is scanned.
 R2  Garbage holds a frame only if later slot numbers show it, or if it is at the end of the stream and long enough for
     one.
 R3  First the found frames are synced, then the verdict is made durable, then the rest is cut off. A crash between
     these steps leads to the same verdict again.
 R4  Certainly lost: the first extent is missing, or one that a footer promises. For one between two others the slot
     numbers decide: a power cut may lose the directory entry of a new file and keep that of a newer one.
 R5  An extent of another version is neither read nor cut: the node does not start.
"""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import NamedTuple

import msgspec

from trunkline.core.entries import junk
from trunkline.core.recovery import Condition, Recovered, Slot, recover
from trunkline.storage.directory import extent_number
from trunkline.storage.errors import AnotherVersion
from trunkline.storage.extents import Extent, StreamFiles
from trunkline.storage.files import Files, read_all, read_range
from trunkline.storage.layout import (
    EXTENT_HEADER,
    TRAILER,
    VERSION,
    Footer,
    FoundMark,
    extent_first_slot,
    extent_version,
    footer_place,
    pack_extent_header,
    unpack_footer,
)
from trunkline.storage.manifest import StreamState
from trunkline.storage.packed import PackedFrames
from trunkline.storage.scan import MISSING_SLOTS_MAX, Garbage, Piece, scan

CONDITIONS = (Condition.GOOD, Condition.BAD, Condition.SHORT)
GOOD, BAD, SHORT = range(len(CONDITIONS))

_UNKNOWN = junk(1)  # the rule needs only conditions and marks


class CutPoint(NamedTuple):
    """Everything from here on is cut off."""

    extent: int  # its index among the stream's extents
    size: int


class SlotColumns:
    """The slots of a stream from ``base`` on. Earlier ones are good: footers vouch for them."""

    def __init__(self, base: int) -> None:
        self.base = base
        self.conditions = bytearray()
        self.marks = array("Q")
        self.starts = array("Q")
        self.extents = array("I")

    @property
    def next(self) -> int:
        return self.base + len(self.conditions)

    def add(self, condition: int, mark: int, place: CutPoint, count: int = 1) -> None:
        for _ in range(count):
            self.conditions.append(condition)
            self.marks.append(mark)
            self.extents.append(place.extent)
            self.starts.append(place.size)

    def add_vouched(self, count: int, extent: int) -> None:
        if self.conditions:
            self.add(GOOD, 0, CutPoint(extent, 0), count)
        else:
            self.base += count

    def judged(self, own_mark: int) -> Recovered:
        mark = max([own_mark, *set(self.marks)])
        if not any(self.conditions) and mark <= self.next:
            return Recovered(len(self.conditions), (), data_loss=False, uncertain=False)
        slots = tuple(
            Slot(_UNKNOWN, max(0, mark - self.base), CONDITIONS[code])
            for mark, code in zip(self.marks, self.conditions, strict=True)
        )
        return recover(slots, max(0, own_mark - self.base))


class StreamReading:
    """One pass over a stream's extents."""

    def __init__(self, files: Files, state: StreamState, path: Path, slots_end: int | None = None) -> None:
        """``slots_end``: slots from this one on are ignored; they are being cut off."""
        self._files = files
        self._slots_end = slots_end
        self._garbage: tuple[CutPoint, bool] | None = None  # its start, and whether it may hold a frame
        self._promised = False
        self.stream = StreamFiles((state.descriptor.target.log, state.descriptor.target.stream), path, state.salt)
        self.frames = PackedFrames()
        self.slots = SlotColumns(state.first_slot)
        self.own_mark = state.mark
        self.marked = 0
        self.scanned: list[Extent] = []
        numbers = self._numbers(state.first_extent)
        self.lost = state.first_extent not in numbers  # R4
        for number in numbers:
            self._read_extent(Extent(path, number, self.slots.next))
        self.lost = self.lost or self._promised
        if self._garbage is not None:  # R2
            place, may_be_a_frame = self._garbage
            self.slots.add(BAD if may_be_a_frame else SHORT, 0, place)

    def _numbers(self, first: int) -> list[int]:
        directory = self.stream.path
        if directory.name not in self._files.names(directory.parent):
            return []
        found = (extent_number(name) for name in self._files.names(directory))
        return sorted(number for number in found if number is not None and number >= first)

    def _read_extent(self, extent: Extent) -> None:
        self.stream.extents.append(extent)
        fd = self._files.open(extent.path)
        try:
            version = extent_version(self.stream.salt, read_range(self._files, fd, 0, EXTENT_HEADER.size))
            if version not in (None, VERSION):  # R5
                raise AnotherVersion(str(extent.path), version, VERSION)
            footer = read_footer(self._files, fd, self.stream.salt)
            if footer is not None and self._follows(footer.first_slot):
                self._take_footer(extent, footer)
            else:
                self._promised = False
                self._scan(extent, read_all(self._files, fd))
        finally:
            self._files.close(fd)

    def _follows(self, slot: int) -> bool:
        return self.slots.next <= slot <= self.slots.next + MISSING_SLOTS_MAX

    def _take_footer(self, extent: Extent, footer: Footer) -> None:
        self._skip_to(footer.first_slot)
        self.slots.add_vouched(footer.slots, len(self.stream.extents) - 1)
        self._mark(footer.first_slot + footer.slots)
        self._promised = footer.successor
        self.frames.merge(extent.take_footer(footer))

    def _scan(self, extent: Extent, content: bytes) -> None:
        number_of = len(self.stream.extents) - 1
        first_slot = extent_first_slot(self.stream.salt, content, extent.number)
        if first_slot is not None and self._follows(first_slot):
            self._skip_to(first_slot)
        extent.first_slot = self.slots.next
        extent.size = len(content)
        if len(content) < EXTENT_HEADER.size:  # truncated at its creation
            self._garbage = self._garbage or (CutPoint(number_of, 0), False)
        for piece in scan(self.stream.salt, content, self.slots.next):
            self._take_piece(extent, number_of, piece)
        extent.slots = self.slots.next - extent.first_slot
        assert extent.frames is not None
        self.frames.merge(extent.frames)
        self.scanned.append(extent)

    def _take_piece(self, extent: Extent, number_of: int, piece: Piece) -> None:
        if isinstance(piece, Garbage):
            place, before = self._garbage or (CutPoint(number_of, piece.start), False)
            self._garbage = (place, before or piece.may_be_a_frame)
            extent.damaged = True
            return
        if isinstance(piece, FoundMark):
            self._skip_to(piece.slots, piece.start)
            self._mark(piece.mark)
            if piece.closing:
                extent.damaged = True  # its footer is damaged: no other one is appended
            return
        found = piece.frame
        place = self._skip_to(found.slot, found.start)
        self.slots.add(SHORT if piece.short else GOOD if piece.good else BAD, found.mark, place)
        if not piece.good:
            extent.damaged = True
        elif self._slots_end is None or found.slot < self._slots_end:
            self.marked = max(self.marked, found.mark)
            extent.add(found.frame, found.body, found.size)

    def _mark(self, mark: int) -> None:
        self.own_mark = max(self.own_mark, mark)
        self.marked = max(self.marked, mark)

    def _skip_to(self, slot: int, start: int = 0) -> CutPoint:
        """The stream continues here with this slot: the slots expected before it are missing.

        Returns where to cut if this slot goes: with the garbage before it, which would end the file otherwise.
        """
        here = CutPoint(len(self.stream.extents) - 1, start)
        before = self._garbage[0] if self._garbage is not None else here
        self._garbage = None
        missing = slot - self.slots.next
        if missing:
            self.slots.add(BAD, 0, before, missing)
        return here if missing else before


def read_footer(files: Files, fd: int, salt: int) -> Footer | None:
    size = files.size(fd)
    tail = read_range(files, fd, max(0, size - TRAILER.size), min(size, TRAILER.size))
    place = footer_place(salt, tail, size)
    if place is None:
        return None
    return unpack_footer(place, read_range(files, fd, place.columns, place.columns_bytes))


class Judged(NamedTuple):
    """A stream with its verdict in ``state``. ``cut`` is still to be done."""

    stream: StreamFiles
    state: StreamState
    frames: PackedFrames
    scanned: list[Extent]
    cut: CutPoint | None


def judge(files: Files, state: StreamState, path: Path, *, power_lost: bool) -> Judged:
    """Read and judge a stream. ``power_lost``: a power cut happened while answers did not wait for syncs."""
    reading = StreamReading(files, state, path)
    verdict = reading.slots.judged(reading.own_mark)
    kept = reading.slots.base + verdict.kept
    unsynced = power_lost and (not state.sealed or state.late)
    cut = None
    if verdict.kept < len(reading.slots.conditions):
        cut = CutPoint(reading.slots.extents[verdict.kept], reading.slots.starts[verdict.kept])
        slots = reading.slots
        reading = StreamReading(files, state, path, slots_end=kept)
        _forget_after(reading, slots, cut, kept)
    state = msgspec.structs.replace(
        state,
        data_loss=state.data_loss or verdict.data_loss or reading.lost or unsynced,
        uncertain=state.uncertain or verdict.uncertain,
        late=False,
    )
    stream = reading.stream
    stream.slots = stream.synced = max(kept, state.mark)
    stream.marked = min(reading.marked, stream.synced)
    stream.sealed = state.sealed
    last = stream.extents[-1] if stream.extents else None
    if last is not None and not last.closed and not last.damaged and not state.data_loss:
        stream.active = last
    if state.end is not None:
        reading.frames.cut_from(state.end)
    reading.frames.drop_through(state.trim)
    for first in state.lost:
        reading.frames.forget(first)
    return Judged(stream, state, reading.frames, reading.scanned, cut)


def _forget_after(reading: StreamReading, slots: SlotColumns, cut: CutPoint, kept: int) -> None:
    """Make memory agree with the files as they are after the cut."""
    extents = reading.stream.extents
    del extents[cut.extent + 1 :]
    reading.scanned = [extent for extent in reading.scanned if extent in extents]
    at = extents[cut.extent]
    at.size = max(cut.size, EXTENT_HEADER.size)
    at.first_slot = min(at.first_slot, kept)  # its header may claim more if everything before it was lost
    at.slots = kept - at.first_slot
    below = (code for code, index in zip(slots.conditions, slots.extents, strict=True) if index == cut.extent)
    at.damaged = any(list(below)[: at.slots])


def carry_out(files: Files, judged: Judged) -> None:
    """Perform the cut, durably (R3)."""
    if judged.cut is None:
        return
    stream = judged.stream
    extent = stream.extents[-1]
    for name in reversed(files.names(stream.path)):
        number = extent_number(name)
        if number is not None and number > extent.number:
            files.unlink(stream.path / name)
    files.sync_directory(stream.path)
    fd = files.open(extent.path)
    try:
        if files.size(fd) < extent.size or extent.size == EXTENT_HEADER.size:
            files.write(fd, [pack_extent_header(stream.salt, extent.number, extent.first_slot)], 0)
        files.truncate(fd, extent.size)
        files.sync(fd)
    finally:
        files.close(fd)
