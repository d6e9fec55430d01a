"""Reads the log of one table in ranges, and in parts by routing value and key: for windows that are too large for one
task. Rules of ``log``; and

 W1  A transaction may cross ranges: a snapshot is one. Each range reports how its first one goes on and its last one
     ends, which together shows those that were interrupted. If any was, the ranges are read again without it.
 W2  Entries that are corrupt, or do not fit the present columns, do not matter before the last truncation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace

from trunkline.client.entries import Entry
from trunkline.delivery.changes.captured import EntryPlace, decoded
from trunkline.delivery.changes.columns import Columns, arrow_schema
from trunkline.delivery.changes.net import filled
from trunkline.delivery.changes.ordered import arrivals_only, net_of_ordered
from trunkline.delivery.changes.rows import (
    KIND_COLUMN,
    ORDINAL_COLUMN,
    ROUTE_COLUMN,
    VERSION_COLUMN,
    ChangeKind,
    NetChanges,
)
from trunkline.delivery.config.addresses import LogAddress
from trunkline.delivery.sources.contract import ReadRequest
from trunkline.delivery.sources.log_reader import ChangeLogReader, with_reader
from trunkline.delivery.sources.row_hashes import row_hashes
from trunkline.delivery.sources.shuffled_reads import AllFacts, Facts
from trunkline.errors import CorruptEntry

RANGE_ENTRIES: Final = 64  # of up to 2 MiB each
PIECE_BYTES: Final = 48 * 1024 * 1024  # of rows that a task splits at once
PART_BYTES: Final = 32 * 1024 * 1024
PARTS_MAX: Final = 1024

ONE: Final = 0  # the number of the table

Span = tuple[int, int]  # positions, both included


class Piece(Struct, frozen=True, array_like=True):
    """Entries of one transaction in a range that are not all of it."""

    first: int
    last: int
    first_index: int
    last_index: int
    ends: bool  # its last entry is that of the transaction
    head: bool  # it begins the range
    tail: bool = False  # it ends the range


class RangeNote(Struct, frozen=True, array_like=True):
    """What a range reports of transactions (W1)."""

    number: int
    entries: int
    pieces: tuple[Piece, ...]


class LogSplit(Struct, frozen=True):
    """A window of the log, or a state; a value for tasks."""

    address: LogAddress
    request: ReadRequest
    log_ranges: tuple[Span, ...]
    parts: int
    lost: tuple[Span, ...] = ()  # positions of interrupted transactions
    cut: bool = False  # a trim may have cut the first transaction
    whole: bool = False  # it is a state

    @property
    def number(self) -> int:
        return ONE

    @property
    def ranges(self) -> int:
        return len(self.log_ranges)

    @property
    def travel(self) -> pa.Schema:
        return marked_schema(self.request)

    def split(self, number: int, all_facts: AllFacts) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        """The rows of a range, by table and part."""
        facts = all_facts.setdefault(ONE, Facts())
        reading = _RangeReading(self, *self.log_ranges[number], facts)
        for tables in reading.tables():
            parted = self._parted(pa.concat_tables(tables).combine_chunks(), number)
            yield from ((ONE, part, rows) for part, rows in parted)
        facts.notes.append(RangeNote(number, reading.order.entries, reading.order.pieces()))

    def _parted(self, rows: pa.Table, number: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        everywhere = pc.equal(rows.column(KIND_COLUMN), ChangeKind.TRUNCATE).to_numpy(zero_copy_only=False)
        parts = np.full(rows.num_rows, number % self.parts, np.int64)
        if self.parts > 1 and self.request.key:
            parts = (row_hashes(rows, [ROUTE_COLUMN, *self.request.key]) % np.uint64(self.parts)).astype(np.int64)
        for part in range(self.parts) if everywhere.any() else np.unique(parts).tolist():
            mine = rows.take(pa.array(np.flatnonzero((parts == part) | everywhere)))
            yield from ((part, batch) for batch in mine.combine_chunks().to_batches())

    def settled(self, rows: pa.Table, facts: Facts) -> NetChanges:
        """What the rows of a part come to."""
        net, truncated = net_of_ordered(rows, self.request.key) if self.request.key else arrivals_only(rows)
        facts.truncated |= truncated
        return NetChanges(net.removed.slice(0, 0) if truncated else net.removed, net.arrived)


def ranges_of(first: int, last: int) -> tuple[Span, ...]:
    return tuple((at, min(at + RANGE_ENTRIES - 1, last)) for at in range(first, last + 1, RANGE_ENTRIES))


class _RangeReading:
    def __init__(self, split: LogSplit, first: int, last: int, facts: Facts) -> None:
        self._split, self._next, self._last, self._facts = split, first, last, facts
        self._tables: list[pa.Table] = []
        self._size = 0
        self.order = _Order()

    def tables(self) -> Iterator[list[pa.Table]]:
        """Changes with their places; some PIECE_BYTES at a time."""
        while self._next <= self._last:
            with_reader(self._split.address, self._read_some)
            if self._tables:
                found, self._tables, self._size = self._tables, [], 0
                yield found

    def _read_some(self, log: ChangeLogReader) -> None:
        begin = self._next
        try:
            for entry in log.entries(self._next, self._last):
                self._next = entry.glsn + 1
                self.order.take(entry.glsn, log.place(entry))
                self._take(entry)
                if self._size >= PIECE_BYTES:
                    return
            self._next = self._last + 1
        except CorruptEntry as error:  # of the order, or a whole batch of entries
            self._next = max(error.end, self._next, begin + 1)
            self._facts.misfit = max(self._facts.misfit, self._next - 1)
            self.order.interrupt()

    def _take(self, entry: Entry) -> None:
        if not entry.payload or any(first <= entry.glsn <= last for first, last in self._split.lost):
            return
        try:
            changes = decoded_entry(entry)[1]
            if pc.any(pc.equal(changes.column(KIND_COLUMN), ChangeKind.TRUNCATE)).as_py():
                self._facts.truncation = max(self._facts.truncation, entry.glsn)
            self._tables.append(with_places(entry.glsn, changes, self._split.request))
            self._size += self._tables[-1].nbytes
        except (CorruptEntry, pa.ArrowInvalid, pa.ArrowNotImplementedError):
            self._facts.misfit = max(self._facts.misfit, entry.glsn)


class _Order:
    """The transactions of a range, entry by entry."""

    def __init__(self) -> None:
        self.entries = 0
        self._open: Piece | None = None
        self._pieces: list[Piece] = []

    def take(self, glsn: int, place: EntryPlace) -> None:
        head, open_ = not self.entries, self._open
        self.entries += 1
        if place.index == 0:
            self._pieces += [open_] if open_ is not None else []  # it was interrupted
            self._open = None if place.last else Piece(glsn, glsn, 0, 0, False, head)
            return
        self._open = None
        if open_ is None and head:
            open_ = Piece(glsn, glsn, place.index, place.index, place.last, head)
        elif open_ is None or place.index != open_.last_index + 1:
            raise CorruptEntry(f"entry {glsn} is number {place.index} of no transaction", glsn, glsn + 1)
        open_ = replace(open_, last=glsn, last_index=place.index, ends=place.last)
        if not place.last:
            self._open = open_
        elif open_.first_index:
            self._pieces.append(open_)

    def interrupt(self) -> None:
        """An entry cannot be read: what comes next is of no transaction, until one begins."""
        self.entries += 1
        self._open = None

    def pieces(self) -> tuple[Piece, ...]:
        return (*self._pieces, *([] if self._open is None else [replace(self._open, tail=True)]))


def interrupted(notes: Sequence[RangeNote], *, cut: bool) -> tuple[Span, ...] | None:
    """The positions of interrupted transactions; ``None`` if the entries are not in order. ``cut``: a trim may have
    cut the first transaction."""
    lost: list[Span] = []
    open_: Piece | None = None  # at the end of the range before
    for note in sorted((note for note in notes if note.entries), key=lambda note: note.number):
        pieces = list(note.pieces)
        if open_ is not None and pieces and pieces[0].head and pieces[0].first_index == open_.last_index + 1:
            follows = pieces.pop(0)
            open_ = replace(follows, first=open_.first, first_index=open_.first_index)
            if open_.ends and not open_.first_index:
                open_ = None
            elif not open_.tail:
                lost.append((open_.first, open_.last))
                open_ = None
        elif open_ is not None:
            lost.append((open_.first, open_.last))
            open_ = None
        for piece in pieces:
            if piece.first_index and not (cut and piece.head):
                return None
            if piece.tail:
                open_ = piece
            else:
                lost.append((piece.first, piece.last))
        cut = False
    return (*lost, *([] if open_ is None else [(open_.first, open_.last)]))


# -------------------------------------------------------------------------------------------------------------- rows


def decoded_entry(entry: Entry) -> tuple[Columns, pa.Table]:
    """Raises ``CorruptEntry`` with the position."""
    try:
        return decoded(entry.payload)
    except MemoryError:
        raise  # not the fault of the entry
    except Exception as error:  # whatever an entry holds, the error names its position
        raise CorruptEntry(f"entry {entry.glsn}: {error}", entry.glsn, entry.glsn + 1) from error


def marked_schema(request: ReadRequest) -> pa.Schema:
    marks = [pa.field(VERSION_COLUMN, pa.int64()), pa.field(ORDINAL_COLUMN, pa.int64())]
    kinds = [pa.field(KIND_COLUMN, pa.string()), pa.field(ROUTE_COLUMN, pa.string())]
    return pa.schema([*marks, *kinds, *arrow_schema(request.columns)])


def with_places(glsn: int, changes: pa.Table, request: ReadRequest) -> pa.Table:
    """Changes of one entry with their version and ordinal, in the requested columns."""
    count = changes.num_rows
    routes = changes.column(request.routing).cast(pa.string()) if request.routing in changes.column_names else None
    marked = {
        VERSION_COLUMN: pa.array(np.full(count, glsn, np.int64)),
        ORDINAL_COLUMN: pa.array(np.arange(count, dtype=np.int64)),
        KIND_COLUMN: changes.column(KIND_COLUMN),
        ROUTE_COLUMN: pa.nulls(count, pa.string()) if routes is None else routes,
    }
    wanted = [column.name for column in request.columns if column.name in changes.column_names]
    return filled(pa.table({**marked, **{name: changes.column(name) for name in wanted}}), marked_schema(request))
