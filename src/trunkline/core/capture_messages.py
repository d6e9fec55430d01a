"""Messages of the capture of a database: between its role, the log that it writes and the source that it reads.

The role never sees a row. It knows transactions by their end in the WAL (``end``, from 1) and entries by their numbers;
the host keeps the bytes. A ``unit`` is the host's handle for them: each that it gives to the role comes back once, in
``AppendEntry`` or ``DropUnit``, or the session ends before. Every answer repeats the ``session`` of its request: the
role numbers its sessions, one for each take-over.
"""

from __future__ import annotations

import enum

from msgspec import Struct

from trunkline.core.effects import Event, Message


class EntryKind(enum.Enum):
    GROUP = "group"  # whole transactions, in commit order
    PART = "part"  # of one large transaction
    CHUNK = "chunk"  # rows of a table, read between two watermarks
    SCHEMA = "schema"  # a table begins, changes, is captured again or ends
    CATALOG = "catalog"  # all tables, with their cursors
    MARK = "mark"  # nothing but a position: the source has no changes up to it


class SlotState(enum.Enum):
    PRESENT = "present"
    ABSENT = "absent"
    LOST = "lost"  # the server removed WAL that it still needed


class ShapeChange(enum.Enum):
    """What a schema does to its table."""

    CREATED = "created"  # the log lacks it: it is read from its beginning
    CHANGED = "changed"  # what was read stays. Not if its key changes before all of it was read: that is a recapture
    RECAPTURED = "recaptured"  # it is read again, as a new generation
    DROPPED = "dropped"  # no longer captured


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
    """How far the snapshot of a table is in the log: every row with a key up to ``after``, or all of them.

    A table without a key has no ``after``: it is read whole, and the rows of a generation that was begun and not
    completed are worth nothing.
    """

    table: int
    generation: int = 1
    after: bytes = b""  # the source's; empty: nothing was read
    complete: bool = False
    keyed: bool = True
    chunks: int = 0  # entries of this generation with rows of its snapshot


class Touched(Struct, frozen=True, array_like=True):
    """Rows of a table that a piece changes: the host's token for their keys. An empty token: a truncation.

    An update that moves a key touches both.
    """

    table: int
    token: str


class ChunkBody(Struct, frozen=True, array_like=True):
    """The chunk of an entry: the rows of its unit, without those whose keys are among the tokens of ``touched``, in
    the order of the stream. With an empty token none of them is left.
    """

    chunk: int
    touched: tuple[str, ...]


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
    tables: tuple[TableCursor, ...]  # without those that were dropped
    epoch: int = 0  # of its catalog; 0: it is empty


class TakeOverFailed(Message, frozen=True):
    session: int
    fenced: bool  # another writer owns the log


class AppendEntry(Message, frozen=True):
    """Append an entry directly after the one before.

    The host keeps one append in flight; it may hold several entries, and then is atomic. After one that was not
    committed, everything else of the session is REFUSED: an entry never follows one that is not in the log.
    """

    session: int
    number: int  # from 1 in each session
    kind: EntryKind
    position: int  # after the last whole transaction that ends in or before this entry
    origin: Origin
    epoch: int
    unit: int = 0  # of a group, a part, a schema or a chunk
    index: int = 0  # of a part
    last: bool = True  # it ends a transaction, or stands alone
    tables: tuple[TableCursor, ...] = ()  # a catalog: all; a chunk or a schema: its table, after it
    chunk: ChunkBody | None = None
    shape: Shape | None = None


class AppendEnded(Message, frozen=True):
    session: int
    number: int
    outcome: AppendOutcome


# ----------------------------------------------------------------------------------------------------------- the source


class OpenSource(Message, frozen=True):
    """End the connection of any other capture to the slot, because the log has decided who captures, and start the
    stream where the slot stands. Then answer, before anything that is streamed.

    ``create``: if the slot is absent or lost, make a new one; one that is present stays, because another capture may
    have made it. ``epoch``: if it is higher than that of the log, every table in the catalog of the log begins a new
    generation; the next entry is a catalog that says so.

    A table that the log lacks, and one without a key of which the log has some rows and not all, come as a ``Shape``.
    """

    session: int
    epoch: int
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
    """One or more whole transactions (first and last), or the next piece of a large one: one entry.

    ``end``: the position after all of it; of a piece but the last, any position inside the transaction. What the log
    has is not in one piece with what it lacks. ``touched`` is complete for the table that the role watches.
    """

    session: int
    unit: int
    end: int
    xids: tuple[int, ...]
    size: int = 1
    first: bool = True
    last: bool = True
    touched: tuple[Touched, ...] = ()


class Shape(Message, frozen=True):
    """A table begins, changes, is captured again or ends, here in the stream; also between pieces of a transaction.

    Only what the log lacks: the source compares with the tables in it, and what it streams again changes nothing.

    ``must_see``, of a table that is to be read: every transaction that has begun and that a snapshot would not see,
    when the table has joined the stream or later. Some of their changes may never be streamed, because the table was
    not in the stream yet.
    """

    session: int
    unit: int
    table: int
    change: ShapeChange
    keyed: bool = True
    must_see: tuple[int, ...] = ()


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


class DropUnit(Message, frozen=True):
    """This unit does not become an entry: the log has it, or it is read again."""

    session: int
    unit: int


class ReadChunk(Message, frozen=True):
    """Emit a low watermark, take a snapshot, emit a high watermark; read the next rows in key order. The shape of the
    table must not change from before the snapshot until the rows are read. A request ends the one before.

    ``whole``, for a table without a key: wait for a lock that keeps writers out; then emit the low watermark, take the
    snapshot, emit the high watermark, release the lock. The rows come in any number of ``ChunkRead``.

    Watermarks name the writer, because the server streams them again after a crash.
    """

    session: int
    writer: str
    chunk: int
    table: int
    after: bytes
    whole: bool = False


class Watermark(Message, frozen=True):
    """A watermark in the stream, in the order of commits."""

    session: int
    writer: str
    chunk: int
    high: bool


class ChunkRead(Message, frozen=True):
    """The rows of a chunk. Its snapshot does not see ``running``, nor transactions from ``xid_next`` on."""

    session: int
    unit: int
    chunk: int
    after: bytes  # where the next chunk begins
    last: bool  # of the table
    running: tuple[int, ...]
    xid_next: int
    size: int = 1


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
    xid: int  # 0: a table without a key was changed although it was locked
