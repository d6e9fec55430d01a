"""The chunk of a snapshot that a capture reads, and whether its rows may be written (K5, K7 of ``core/capture.py``)."""

from __future__ import annotations

from msgspec import Struct

from trunkline.core.capture_messages import ChunkRead, ChunkRefused, Piece, ReadChunk, TableCursor
from trunkline.core.effects import Address, Effects, Send


class OpenChunk:
    """A chunk that is being read."""

    def __init__(self, number: int, table: int) -> None:
        self.number = number
        self.table = table
        self.low = False  # its low watermark has passed
        self.high = False
        self.touched: set[str] = set()  # keys, since the low watermark; an empty one is a truncation
        self.window: set[int] = set()  # transactions since the low watermark
        self.read: ChunkRead | None = None


class WholeChunk(Struct, frozen=True):
    """A chunk whose rows are there, and whose high watermark has passed."""

    number: int
    table: int
    read: ChunkRead
    touched: tuple[str, ...]

    def dropped(self) -> tuple[str, ...]:
        """Its keys whose rows are not written."""
        return tuple(key for key in self.read.keys if key in self.touched or "" in self.touched)


class ChunkReader:
    """Reads one chunk at a time."""

    def __init__(self, writer: str, source: Address, tables: tuple[int, ...]) -> None:
        self.writer = writer
        self.source = source
        self.tables = frozenset(tables)  # to read
        self.number = 0  # of the last chunk; grows over sessions, so that no old watermark counts
        self.chunk: OpenChunk | None = None
        self.idle = True  # every table is complete
        self.doubted: set[int] = set()  # ran when the session began: the log may have them
        self.streamed: set[int] = set()  # in this session, and perhaps not visible to others yet

    def begin(self, running: tuple[int, ...]) -> None:
        """A session begins. ``running``: read after the log was taken over (K5)."""
        self.chunk, self.idle = None, False
        self.doubted, self.streamed = set(running), set()

    @property
    def table(self) -> int | None:
        return None if self.chunk is None else self.chunk.table

    def read_next(self, session: int, cursors: tuple[TableCursor, ...]) -> Effects:
        """Read on where the first incomplete table stands."""
        cursor = next((each for each in cursors if not each.complete and each.table in self.tables), None)
        if cursor is None:
            self.idle, self.doubted, self.streamed = True, set(), set()
        if cursor is None or self.chunk is not None:
            return []
        self.number += 1
        self.chunk = OpenChunk(self.number, cursor.table)
        return [Send(self.source, ReadChunk(session, self.writer, self.number, cursor.table, cursor.after))]

    def on_watermark(self, writer: str, number: int, *, high: bool) -> None:
        chunk = self.chunk
        if chunk is not None and (writer, number) == (self.writer, chunk.number):
            chunk.low, chunk.high = True, high

    def on_piece(self, piece: Piece) -> None:
        chunk = self.chunk
        if self.idle:
            return
        if chunk is None or not chunk.low:
            self.streamed.add(piece.xid)
            return
        chunk.window.add(piece.xid)
        chunk.touched |= {each.key for each in piece.touched if each.table == chunk.table}

    def on_read(self, read: ChunkRead) -> None:
        if self.chunk is not None and self.chunk.number == read.chunk:
            self.chunk.read = read

    def ended(self) -> WholeChunk | None:
        chunk = self.chunk
        if chunk is None or not chunk.high or chunk.read is None:
            return None
        return WholeChunk(chunk.number, chunk.table, chunk.read, tuple(sorted(chunk.touched)))

    def refusal(self) -> ChunkRefused | None:
        """Ends the chunk. Why its rows cannot be used, or ``None`` (K5)."""
        chunk, self.chunk = self.chunk, None
        assert chunk is not None and chunk.read is not None
        read = chunk.read
        unseen = {xid for xid in self.streamed | self.doubted | chunk.window if not _sees(read, xid)}
        before = self.streamed | (self.doubted - chunk.window)  # the low watermark in the log, or perhaps
        refused = sorted(unseen & before)
        self.streamed = (self.streamed | chunk.window) & unseen  # what this snapshot sees, all later ones see
        self.doubted &= unseen
        return ChunkRefused(chunk.table, refused[0]) if refused else None


def _sees(read: ChunkRead, xid: int) -> bool:
    return xid < read.xid_next and xid not in read.running
