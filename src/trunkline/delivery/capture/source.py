"""What the capture of a database reads: one ordered stream of units, and chunks of tables between its watermarks.

PostgreSQL and MariaDB are such sources. A source is used by one thread. It never writes to the log: the capture decides
what becomes an entry (``core/capture.py``), and what a source may forget (``confirm``).

Rules
 U1  Units come in the order of the stream. Transactions are whole and in commit order; a large one comes in pieces,
     with nothing but schemas and watermarks between them.
 U2  A schema comes before the first rows that need it. The source alone numbers tables and versions, after those that
     the log has (``SourceStart.catalog``).
 U3  The unit of a chunk comes after the watermark that ends it, if its rows were read by then, else as soon as they
     are. Its rows are those that one snapshot of the source sees.
 U4  Transactions that the log has may be streamed again, but not in one unit with others; the capture skips them.
 U5  A table without a key is read whole, with a lock that makes its two watermarks one place in the stream: there, and
     nowhere else, its snapshot and the stream agree. The capture takes no units after the high watermark until the last
     rows are there; they come in several units of one chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from msgspec import Struct

from trunkline.core.capture_messages import Origin, SlotState
from trunkline.delivery.changes.groups import TableRows, Transaction
from trunkline.delivery.changes.schemas import Catalog, TableSchema

OFFSET_BITS: Final = 40  # of a position in MariaDB's binlog: the rest is the number of the file
OFFSET_MAX: Final = (1 << OFFSET_BITS) - 1


class SourceStart(Struct, frozen=True):
    """Where the log stands: a source goes on from here."""

    position: int  # after the last whole transaction that the log has; 0: it has none
    catalog: Catalog | None  # None: the log is empty
    create: bool = False  # make the slot if it is absent or lost


class SourceOpened(Struct, frozen=True):
    """As in ``core/capture_messages``: the state of the source while this capture holds the slot."""

    origin: Origin
    ends: tuple[tuple[int, int], ...]  # of timelines
    slot: SlotState
    confirmed: int
    running: tuple[int, ...]


class Changes(Struct, frozen=True):
    """Whole transactions (``part`` is None), or one piece of a large one. ``size``: about its bytes in the log."""

    transactions: tuple[Transaction, ...]  # their lsn: where their commit begins (a piece knows no more), not its end
    tables: tuple[TableRows, ...]
    size: int
    part: int | None = None  # number of the piece, from 0
    last: bool = True
    end: int = 0  # the position after all of it, also after transactions without rows; of a piece but the last: 0


class SchemaUnit(Struct, frozen=True):
    """A table begins, changes, is captured again or ends, here in the stream.

    ``must_see``, of a table that is to be read: every transaction that has begun and that a snapshot would not see,
    when the table has joined the stream or later. Some of their rows may never be streamed, because the table was not
    in the stream yet: a chunk of this table is valid only if its snapshot sees all of them.
    """

    schema: TableSchema
    must_see: tuple[int, ...] = ()
    why: str = ""  # of a table that is captured again: for the operator


class Watermark(Struct, frozen=True):
    writer: str
    chunk: int
    high: bool


class KeepAlive(Struct, frozen=True):
    """Everything up to here was streamed."""

    position: int


class ChunkRows(Struct, frozen=True):
    """Rows of a chunk, of kind READ. Its snapshot does not see ``running``, nor transactions from ``xid_next`` on."""

    chunk: int
    rows: TableRows
    cursor: bytes | None  # where the next chunk begins
    last: bool
    running: tuple[int, ...]
    xid_next: int


Unit = Changes | SchemaUnit | Watermark | KeepAlive | ChunkRows


class ChunkRequest(Struct, frozen=True):
    """Read rows of a table in key order after a cursor; a table without a key whole."""

    writer: str
    chunk: int
    table: int
    cursor: bytes | None


class Lag(Struct, frozen=True):
    """How far the source is ahead, and what it keeps for the capture, in bytes."""

    position: int  # of the source, now
    retained: int  # of WAL, kept for this capture
    files: tuple[tuple[int, int], ...] = ()  # of MariaDB's binlog: numbers and sizes; positions do not count bytes
    shift: int = 0  # of a lake: positions count snapshots, above this many bits

    def behind(self, position: int) -> int:
        """How many bytes the source is ahead of a position."""
        if position >= self.position:
            return 0
        if not self.files:
            return (self.position >> self.shift) - (position >> self.shift)
        kept = sum(size for number, size in self.files if number >= position >> OFFSET_BITS)
        return max(0, kept - (position & OFFSET_MAX))


class DatabaseSource(Protocol):
    """Raises ``Unreachable`` for what passes by itself, ``ConfigError`` for what an operator must change."""

    def reach(self) -> None:
        """Raise if a capture could not start. Called before each take-over; leaves nothing behind on the server."""
        ...

    def open(self, start: SourceStart) -> SourceOpened:
        """Start the stream, if the slot is present or was made. Nothing is streamed before this returns."""
        ...

    def receive(self, wait_ms: int, *, close: bool) -> Sequence[Unit]:
        """The next units, after waiting for at most this long, or until ``wake``.

        ``close``: end a group of transactions now, instead of waiting for more of them.
        """
        ...

    def wake(self) -> None:
        """End a ``receive`` that waits. Any thread may call it."""
        ...

    def read_chunk(self, request: ChunkRequest) -> None:
        """Begin to read; the watermarks and the rows come with the stream. One chunk at a time."""
        ...

    def recapture(self, table: int, why: str) -> None:
        """Begin a new generation of a table, at the next place in the stream. The request outlives a crash."""
        ...

    def confirm(self, position: int) -> None:
        """The source may forget everything up to here."""
        ...

    def lag(self) -> Lag: ...

    def close(self) -> None:
        """End the stream and whatever is read. ``open`` may follow."""
        ...
