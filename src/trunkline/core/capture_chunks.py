"""The chunk of a snapshot that a capture reads, and whether its rows may be written (K5, K7 of ``core/capture.py``)."""

from __future__ import annotations

from collections.abc import Iterable

from trunkline.core.capture_messages import ChunkRead, ChunkRefused, Piece, ReadChunk, Shape, TableCursor
from trunkline.core.effects import Address, Effects, Send


class Transactions:
    """Those that a snapshot may not see, bounded: when they are too many, all up to the last of them count (K10)."""

    def __init__(self, count_max: int) -> None:
        self.count_max = count_max
        self.xids: set[int] = set()
        self.through = 0

    def add(self, xids: Iterable[int], through: int = 0) -> None:
        self.xids.update(xids)
        self.through = max(self.through, through)
        if len(self.xids) > self.count_max:
            self.through = max(self.through, *self.xids)
            self.xids = set()

    def unseen(self, read: ChunkRead) -> set[int]:
        """Those that this snapshot does not see, or some of them."""
        later = {self.through} if self.through >= read.xid_next else set()
        return _unseen(read, self.xids) | {xid for xid in read.running if xid <= self.through} | later

    def forget(self, read: ChunkRead) -> None:
        """What this snapshot sees, all later ones see."""
        self.xids = self.unseen(read)
        self.through = self.through if self.through >= read.xid_next else 0


class OpenChunk:
    """A chunk that is being read."""

    def __init__(self, number: int, cursor: TableCursor, xids_max: int) -> None:
        self.number = number
        self.table = cursor.table
        self.whole = not cursor.keyed  # of a table without a key: its rows come in several messages
        self.low = False  # its low watermark has passed
        self.high = False
        self.touched: tuple[str, ...] = ()  # tokens, since the low watermark
        self.window = Transactions(xids_max)  # since the low watermark
        self.reads: tuple[ChunkRead, ...] = ()  # that are not written yet


class ChunkReader:
    """Reads one chunk at a time."""

    def __init__(self, writer: str, source: Address, xids_max: int) -> None:
        self.writer = writer
        self.source = source
        self.xids_max = xids_max
        self.number = 0  # of the last chunk; grows over sessions, so that no old watermark counts
        self.chunk: OpenChunk | None = None
        self.doubted: set[int] = set()  # ran when the session began
        self.must_see: dict[int, frozenset[int]] = {}  # by table: ran when it began in this session
        self.streamed = Transactions(xids_max)  # in this session, and perhaps not visible to others yet

    def begin(self, running: tuple[int, ...]) -> None:
        """A session begins. ``running``: read after the log was taken over (K5)."""
        self.chunk = None
        self.doubted, self.must_see, self.streamed = set(running), {}, Transactions(self.xids_max)

    @property
    def watched(self) -> int | None:
        """The table whose chunk lies open in the stream."""
        return None if self.chunk is None or not self.chunk.low else self.chunk.table

    @property
    def pauses(self) -> bool:
        """A table without a key is being written: nothing may come between its rows."""
        return self.chunk is not None and self.chunk.whole and self.chunk.high

    def read_next(self, session: int, cursors: Iterable[TableCursor]) -> Effects:
        """Read on where the first incomplete table stands."""
        if self.chunk is not None:
            return []
        cursor = next((each for each in cursors if _is_to_read(each)), None)
        if cursor is None:
            return []
        self.number += 1
        self.chunk = OpenChunk(self.number, cursor, self.xids_max)
        whole = self.chunk.whole
        return [Send(self.source, ReadChunk(session, self.writer, self.number, cursor.table, cursor.after, whole))]

    def on_watermark(self, writer: str, number: int, *, high: bool) -> None:
        chunk = self.chunk
        if chunk is not None and (writer, number) == (self.writer, chunk.number):
            chunk.low, chunk.high = True, high

    def on_piece(self, piece: Piece) -> None:
        chunk = self.chunk
        if chunk is None or not chunk.low:
            self.streamed.add(piece.xids)
            return
        chunk.window.add(piece.xids)
        chunk.touched += tuple(each.token for each in piece.touched if each.table == chunk.table)

    def on_shape(self, shape: Shape) -> tuple[int, ...]:
        """Ends an open chunk of the table, and returns the units that were read of it."""
        if shape.must_see:
            self.must_see[shape.table] = self.must_see.get(shape.table, frozenset()) | set(shape.must_see)
        return self.close() if self.chunk is not None and self.chunk.table == shape.table else ()

    def on_read(self, read: ChunkRead) -> bool:
        """Whether it is of the open chunk."""
        chunk = self.chunk
        if chunk is None or chunk.number != read.chunk or (chunk.reads and not chunk.whole):
            return False
        chunk.reads += (read,)
        return True

    def refusal(self, chunk: OpenChunk) -> ChunkRefused | None:
        """Why the rows that were read cannot be used (K5)."""
        if chunk.whole:  # the lock waited for all that changed the table
            return ChunkRefused(chunk.table, 0) if chunk.touched else None
        read, doubted = chunk.reads[0], self.doubted | self.must_see.get(chunk.table, frozenset())
        unseen = self.streamed.unseen(read) | _unseen(read, doubted)  # they are before it in the log, or may be
        return ChunkRefused(chunk.table, min(unseen)) if unseen else None

    def close(self) -> tuple[int, ...]:
        """End the chunk. The units that were read of it and not written."""
        chunk, self.chunk = self.chunk, None
        assert chunk is not None
        self.streamed.add(chunk.window.xids, chunk.window.through)
        return tuple(read.unit for read in chunk.reads)

    def forget(self, read: ChunkRead) -> None:
        """What this snapshot sees, all later ones see."""
        self.streamed.forget(read)
        self.doubted = _unseen(read, self.doubted)
        left = {table: frozenset(_unseen(read, xids)) for table, xids in self.must_see.items()}
        self.must_see = {table: xids for table, xids in left.items() if xids}


def _is_to_read(cursor: TableCursor) -> bool:
    """A table without a key that was begun is read again only when the source begins a new generation."""
    return not cursor.complete and (cursor.keyed or not cursor.chunks)


def _unseen(read: ChunkRead, xids: Iterable[int]) -> set[int]:
    return {xid for xid in xids if xid >= read.xid_next or xid in read.running}
