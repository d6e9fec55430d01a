"""Messages of the capture of a database: between its role, the log that it writes and the source that it reads.

The role never sees a row. It knows transactions by their end in the WAL (``end``, from 1), rows by their keys, and
entries by their numbers; the host keeps the bytes. Every answer repeats the ``session`` of its request: the role
numbers its sessions, one for each take-over.
"""

from __future__ import annotations

import enum

from msgspec import Struct

from trunkline.core.effects import Event, Message


class EntryKind(enum.Enum):
    GROUP = "group"  # whole transactions, in commit order
    PART = "part"  # of one large transaction
    CHUNK = "chunk"  # rows of a table, read between two watermarks
    CATALOG = "catalog"  # all tables, with their cursors
    MARK = "mark"  # nothing but a position: the source has no changes up to it


class SlotState(enum.Enum):
    PRESENT = "present"
    ABSENT = "absent"
    LOST = "lost"  # the server removed WAL that it still needed


class AppendOutcome(enum.Enum):
    COMMITTED = "committed"
    REFUSED = "refused"  # it is not in the log, and never will be
    FENCED = "fenced"  # another writer has taken the log over
    UNKNOWN = "unknown"  # it may be in the log


class Origin(Struct, frozen=True, array_like=True):
    """Whose WAL a position counts: a system, and one of its timelines."""

    system: str
    timeline: int


class TableCursor(Struct, frozen=True, array_like=True):
    """How far the snapshot of a table is in the log: every row with a key up to ``after``, or all of them."""

    table: int
    generation: int = 1
    after: str = ""
    complete: bool = False


class Touched(Struct, frozen=True, array_like=True):
    """A row that a transaction changes; an update that moves a key touches both. An empty key: a truncation."""

    table: int
    key: str


class ChunkBody(Struct, frozen=True, array_like=True):
    """The chunk of an entry: the rows that were read as ``chunk``, without those of the keys in ``dropped``."""

    chunk: int
    dropped: tuple[str, ...]


# -------------------------------------------------------------------------------------------------------------- the log


class TakeOver(Message, frozen=True):
    """Write a mark; entries before it are then final. Without ``force`` only if no other writer owns the log.

    The host reaches the source first, so that a long outage leaves no marks in the log.
    """

    session: int
    force: bool


class TakenOver(Message, frozen=True):
    """The log before the mark: the position after its last whole transaction (0: it is empty), and its tables.

    Parts without a last part do not count.
    """

    session: int
    position: int
    origin: Origin | None  # None: it is empty
    tables: tuple[TableCursor, ...]


class TakeOverFailed(Message, frozen=True):
    session: int
    fenced: bool  # another writer owns the log


class AppendEntry(Message, frozen=True):
    """Append an entry directly after the one before: if number n - 1 is not in the log, the answer is REFUSED."""

    session: int
    number: int  # from 1 in each session
    kind: EntryKind
    position: int  # after the last whole transaction that ends in or before this entry
    origin: Origin
    ends: tuple[int, ...] = ()  # of the transactions in a group; of that of a part
    index: int = 0  # of a part
    last: bool = True  # it ends a transaction, or stands alone
    tables: tuple[TableCursor, ...] = ()  # a catalog: all tables; a chunk: its table, after it
    chunk: ChunkBody | None = None


class AppendEnded(Message, frozen=True):
    session: int
    number: int
    outcome: AppendOutcome


# ----------------------------------------------------------------------------------------------------------- the source


class OpenSource(Message, frozen=True):
    """End the connection of any other capture to the slot, because the log has decided who captures, and start the
    stream where the slot stands. Then answer, before anything that is streamed.

    ``create``: if the slot is absent or lost, make a new one; one that is present stays, because another capture may
    have made it.
    """

    session: int
    create: bool = False


class SourceOpened(Message, frozen=True):
    """The source, while this capture holds the slot: no other process can move it now.

    ``ends``: of each timeline in its history, and how far the WAL is on the present one, the last. ``running``: every
    transaction that has begun and that a snapshot taken now, after the rest, would not see.
    """

    session: int
    origin: Origin
    ends: tuple[tuple[int, int], ...]
    slot: SlotState  # PRESENT: the stream has started
    confirmed: int  # the stream begins at or before it
    running: tuple[int, ...]


class CloseSource(Message, frozen=True):
    """The session is over."""

    session: int


class Piece(Message, frozen=True):
    """A transaction, or the next piece of a large one. ``touched`` is complete while a chunk of the table is open."""

    session: int
    end: int
    xid: int
    size: int = 1
    first: bool = True
    last: bool = True
    touched: tuple[Touched, ...] = ()


class KeepAlive(Message, frozen=True):
    """Everything up to here was streamed, unless a transaction is open in the stream."""

    session: int
    wal_end: int


class StreamEnded(Message, frozen=True):
    """Also the answer to a request that the source could not fulfil."""

    session: int
    error: str


class ConfirmPosition(Message, frozen=True):
    """The server may remove the WAL up to here."""

    session: int
    position: int


class ReadChunk(Message, frozen=True):
    """Emit a low watermark, take a snapshot, emit a high watermark; read the next rows in key order.

    Watermarks name the writer, because the server streams them again after a crash.
    """

    session: int
    writer: str
    chunk: int
    table: int
    after: str


class Watermark(Message, frozen=True):
    """A watermark in the stream, in the order of commits."""

    session: int
    writer: str
    chunk: int
    high: bool


class ChunkRead(Message, frozen=True):
    """The rows of a chunk, by key. Its snapshot does not see ``running``, nor transactions from ``xid_next`` on."""

    session: int
    chunk: int
    keys: tuple[str, ...]
    after: str  # where the next chunk begins
    last: bool  # there is none
    running: tuple[int, ...]
    xid_next: int


# --------------------------------------------------------------------------------------------------------------- events


class CaptureHalted(Event, frozen=True):
    """Nothing more is captured until an operator decides."""

    error: str


class CaptureFenced(Event, frozen=True):
    """Another capture has taken the log over; this one has stopped."""


class Recaptured(Event, frozen=True):
    """Changes were lost: every table is read again, as a new generation."""

    error: str


class SessionEnded(Event, frozen=True):
    """The log will be taken over again, and everything that it lacks is streamed again."""

    error: str


class ChunkRefused(Event, frozen=True):
    """The chunk is read again: its snapshot does not see a transaction that is before it in the log, or may be."""

    table: int
    xid: int
