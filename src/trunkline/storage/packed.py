"""Frames in columns: about 30 bytes each instead of 200, read from a file without an object for each."""

from __future__ import annotations

import bisect
from array import array
from collections.abc import Iterable, Iterator, MutableSequence, Sequence
from typing import overload

from trunkline.core.entries import Frame, FrameKind

KINDS = (FrameKind.DATA, FrameKind.JUNK)
KIND_CODES = {kind: code for code, kind in enumerate(KINDS)}

COLUMN_TYPES = "qIqIIB"  # first, count, seq, checksum, writer, kind


class PackedFrames(MutableSequence[Frame]):
    """A list of frames; ``Frame`` objects are created on access.

    It keeps the given order, as a list does; ``add`` keeps it sorted by position.
    """

    def __init__(self, frames: Iterable[Frame] = ()) -> None:
        self.firsts = array("q")
        self.counts = array("I")
        self.seqs = array("q")
        self.checksums = array("I")
        self.writers = array("I")  # indexes of writer_names
        self.kinds = array("B")
        self.writer_names: list[str] = []
        self._writer_codes: dict[str, int] = {}
        for frame in frames:
            self.append(frame)

    @classmethod
    def of_columns(cls, columns: Sequence[array[int]], writer_names: list[str]) -> PackedFrames:
        """Frames over existing columns, in the order of ``COLUMN_TYPES``."""
        made = cls()
        made.firsts, made.counts, made.seqs, made.checksums, made.writers, made.kinds = columns
        made.writer_names = writer_names
        made._writer_codes = {name: code for code, name in enumerate(writer_names)}
        return made

    @property
    def columns(self) -> tuple[array[int], ...]:
        """The columns in the order of ``COLUMN_TYPES``."""
        return (self.firsts, self.counts, self.seqs, self.checksums, self.writers, self.kinds)

    def _writer_code(self, name: str) -> int:
        code = self._writer_codes.get(name)
        if code is None:
            code = self._writer_codes[name] = len(self.writer_names)
            self.writer_names.append(name)
        return code

    # ----------------------------------------------------------------------------------------------- as a sequence

    def __len__(self) -> int:
        return len(self.firsts)

    def _frame(self, at: int) -> Frame:
        return Frame(
            self.firsts[at],
            self.counts[at],
            KINDS[self.kinds[at]],
            self.writer_names[self.writers[at]],
            self.seqs[at],
            self.checksums[at],
        )

    @overload
    def __getitem__(self, index: int) -> Frame: ...
    @overload
    def __getitem__(self, index: slice) -> PackedFrames: ...
    def __getitem__(self, index: int | slice) -> Frame | PackedFrames:
        if not isinstance(index, slice):
            return self._frame(index)
        part = PackedFrames()
        part.firsts, part.counts, part.seqs, part.checksums, part.writers, part.kinds = (
            column[index] for column in self.columns
        )
        part.writer_names, part._writer_codes = self.writer_names, self._writer_codes  # shared: they only grow
        return part

    def __iter__(self) -> Iterator[Frame]:
        return map(self._frame, range(len(self)))

    @overload
    def __setitem__(self, index: int, value: Frame) -> None: ...
    @overload
    def __setitem__(self, index: slice, value: Iterable[Frame]) -> None: ...
    def __setitem__(self, index: int | slice, value: Frame | Iterable[Frame]) -> None:
        raise TypeError("a stored frame never changes: delete it or insert another")

    def __delitem__(self, index: int | slice) -> None:
        for column in self.columns:
            del column[index]

    def insert(self, index: int, value: Frame) -> None:
        writer = self._writer_code(value.writer)
        self.counts.insert(index, value.count)
        self.seqs.insert(index, value.seq)
        self.checksums.insert(index, value.checksum)
        self.writers.insert(index, writer)
        self.kinds.insert(index, KIND_CODES[value.kind])
        self.firsts.insert(index, value.first)

    def append(self, value: Frame) -> None:
        writer = self._writer_code(value.writer)
        self.counts.append(value.count)
        self.seqs.append(value.seq)
        self.checksums.append(value.checksum)
        self.writers.append(writer)
        self.kinds.append(KIND_CODES[value.kind])
        self.firsts.append(value.first)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<PackedFrames of {len(self)}>"

    # ------------------------------------------------------------------------------------------------ sorted frames

    def add(self, frame: Frame) -> int:
        """Insert by position; returns the index."""
        firsts = self.firsts
        at = len(firsts)
        if at and firsts[-1] > frame.first:
            at = bisect.bisect_right(firsts, frame.first)
            self.insert(at, frame)
        else:
            self.append(frame)
        return at

    def merge(self, other: PackedFrames) -> None:
        """Add all frames of another sorted list."""
        if not len(other):
            return
        if len(self) and self.firsts[-1] > other.firsts[0]:
            for frame in other:
                self.add(frame)
            return
        codes = [self._writer_code(name) for name in other.writer_names]
        if codes == list(range(len(codes))):
            self.writers.extend(other.writers)
        else:
            self.writers.extend(array("I", [codes[code] for code in other.writers]))
        for mine, its in zip(self.columns, other.columns, strict=True):
            if mine is not self.writers:
                mine.extend(its)

    def forget(self, first: int) -> None:
        """Remove the frame that begins at ``first``, if there is one."""
        at = bisect.bisect_left(self.firsts, first)
        if at < len(self.firsts) and self.firsts[at] == first:
            del self[at]

    def cut_from(self, end: int) -> None:
        """Remove frames that begin at or past ``end``."""
        del self[bisect.bisect_left(self.firsts, end) :]

    def drop_through(self, point: int) -> None:
        """Remove frames that lie entirely at or below ``point``. Frames do not overlap, so these are the first ones."""
        keep = bisect.bisect_right(self.firsts, point)
        if keep and self.firsts[keep - 1] + self.counts[keep - 1] > point + 1:
            keep -= 1
        del self[:keep]
