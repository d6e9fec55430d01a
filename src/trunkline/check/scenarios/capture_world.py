"""The world around a capture: a database with a WAL, a slot and snapshots, and a log with one writer.

Neither crashes as a process: they stand for systems that keep their state. A restart of the database is an operation.
"""

from __future__ import annotations

import enum

from msgspec.structs import replace

from trunkline.check.monitors.capture import (
    LSN_STEP,
    CaptureScript,
    ChunkServed,
    EntryLogged,
    LogTakenOver,
    SlotConfirmed,
    SlotMoved,
    SourceCommitted,
    SourceDiverged,
    piece_unit,
)
from trunkline.check.scenarios.capture_host import CatalogTaken, OpenWithCatalog
from trunkline.check.scenarios.hosts import PassiveRole
from trunkline.core.capture_messages import (
    AppendEnded,
    AppendEntry,
    AppendOutcome,
    ChunkRead,
    CloseSource,
    ConfirmPosition,
    KeepAlive,
    Origin,
    Piece,
    ReadChunk,
    Shape,
    ShapeChange,
    SlotState,
    SourceOpened,
    StreamEnded,
    TableCursor,
    TakeOver,
    TakeOverFailed,
    Touched,
    Watermark,
)
from trunkline.core.effects import Address, Announce, Choose, Complete, Effects, Event, Message, Send

DATABASE = Address("db", "source")
COMMITS = Address("commits", "backend")  # backends of the database: what takes time there passes through one of them
READS = Address("reads", "backend")
LOG = Address("log", "log")


class OperationDone(Event, frozen=True):
    """The result of an operation on the database."""


class Commit(Message, frozen=True):
    """The next transaction of the script commits: its commit is in the WAL."""

    operation: int


class Restart(Message, frozen=True):
    """The server restarts. Its slot has forgotten what was confirmed since it was created."""

    operation: int


class LoseSlot(Message, frozen=True):
    """The slot falls behind and is invalidated; or (``moved``) another program moves it to the end of the WAL."""

    operation: int
    moved: bool = False


class Promote(Message, frozen=True):
    """A standby takes over that has the WAL up to this position; it has the slot, too."""

    operation: int
    position: int


class Later(Message, frozen=True):
    """To a backend and back: this happens at some later moment. The answer goes to ``to``."""

    to: Address
    message: Message


class Visible(Message, frozen=True):
    xid: int


class Snap(Message, frozen=True):
    """The snapshot of this chunk is taken."""

    capture: Address
    request: ReadChunk


class Backend(PassiveRole):
    def on_message(self, source: Address, message: Message) -> Effects:
        assert isinstance(message, Later)
        return [Send(message.to, message.message)]


class Database(PassiveRole):
    """``chunk_rows``: rows of a chunk. Transaction ``n`` has the xid ``n``; watermarks take one byte of WAL each."""

    def __init__(self, script: CaptureScript, slot: SlotState, *, chunk_rows: int) -> None:
        self.script = script
        self.chunk_rows = chunk_rows
        self.committed = 0
        self.unseen: tuple[int, ...] = ()  # committed, but not visible to others yet
        self.wal_end = 0
        self.watermarks: tuple[tuple[int, Watermark], ...] = ()  # with their positions
        self.ends: tuple[tuple[int, int], ...] = ()  # of earlier timelines
        self.slot = slot
        self.confirmed = 0
        self.created = 0  # the slot begins here
        self.stream: tuple[Address, int] | None = None  # to whom, and the session

    def on_message(self, source: Address, message: Message) -> Effects:
        match message:
            case Commit(operation):
                return [*self._commit(), Complete(operation, OperationDone())]
            case Restart(operation):
                self.confirmed = self.created
                ended = self._end_stream("the server restarts")
                return [Announce(SlotMoved(self.confirmed, lost=False)), *ended, Complete(operation, OperationDone())]
            case LoseSlot(operation, moved):
                return [*self._lose(moved=moved), Complete(operation, OperationDone())]
            case Promote(operation, position):
                return [*self._promote(position), Complete(operation, OperationDone())]
            case Visible(xid):
                self.unseen = tuple(each for each in self.unseen if each != xid)
                return []
            case Snap(capture, request):
                return self._snap(capture, request)
            case OpenWithCatalog():
                return self._open(source, message)
            case ReadChunk():
                snap = Later(DATABASE, Snap(source, message))
                return [*self._emit(message, high=False), Send(READS, snap)]
            case ConfirmPosition(session, position) if self.stream == (source, session):
                self.confirmed = max(self.confirmed, position)
                return [Announce(SlotConfirmed(position))]
            case CloseSource(session) if self.stream == (source, session):
                self.stream = None
                return []
        return []

    # ---------------------------------------------------------------------------------------------------------- the WAL

    def _commit(self) -> Effects:
        self.committed += 1
        number = self.committed
        self.wal_end = number * LSN_STEP
        effects: Effects = [Announce(SourceCommitted(number)), *self._streamed(number)]
        if self.script.transactions[number - 1].late:
            self.unseen += (number,)
            effects.append(Send(COMMITS, Later(DATABASE, Visible(number))))
        return effects

    def _streamed(self, number: int) -> Effects:
        if self.stream is None:
            return []
        (to, session), transaction = self.stream, self.script.transactions[number - 1]
        if not transaction.changes:
            return [Send(to, KeepAlive(session, number * LSN_STEP))]
        touched = tuple(Touched(table, key) for table, key, _ in transaction.changes)
        touched = (Touched(transaction.truncates, ""),) if transaction.truncates else touched
        parts = [
            Piece(
                *(session, piece_unit(number, number), number * LSN_STEP, (number,), 1),
                *(part == 0, part == transaction.parts - 1, touched),
            )
            for part in range(transaction.parts)
        ]
        # Keep-alives may come between the pieces of a transaction.
        between = [KeepAlive(session, number * LSN_STEP)] if transaction.parts > 1 else []
        return [Send(to, message) for message in (*parts[:1], *between, *parts[1:])]

    def _emit(self, request: ReadChunk, *, high: bool) -> Effects:
        self.wal_end += 1
        watermark = Watermark(0, request.writer, request.chunk, high)
        self.watermarks += ((self.wal_end, watermark),)
        return [] if self.stream is None else [self._marked(self.stream, watermark)]

    def _marked(self, stream: tuple[Address, int], watermark: Watermark) -> Send:
        to, session = stream
        return Send(to, replace(watermark, session=session))

    def _promote(self, position: int) -> Effects:
        self.ends += ((len(self.ends) + 1, min(position, self.wal_end)),)
        diverged = position < self.wal_end
        self.wal_end, self.confirmed = min(position, self.wal_end), min(position, self.confirmed)
        self.committed = self.wal_end // LSN_STEP
        self.watermarks = tuple(each for each in self.watermarks if each[0] <= self.wal_end)
        noted: Effects = [Announce(SlotMoved(self.confirmed, lost=False))]
        noted += [Announce(SourceDiverged(self.wal_end))] if diverged else []
        return [*noted, Announce(SourceCommitted(self.committed)), *self._end_stream("the server failed over")]

    # --------------------------------------------------------------------------------------------------------- the slot

    def _open(self, source: Address, asked: OpenWithCatalog) -> Effects:
        session = asked.session
        again = self.stream == (source, session)
        ended = [] if again else self._end_stream("another capture uses the slot")
        if asked.create and self.slot is not SlotState.PRESENT:
            self.slot = SlotState.PRESENT
            self.confirmed = self.created = self.wal_end
            ended.append(Announce(SlotMoved(self.confirmed, lost=False)))
        timeline = len(self.ends) + 1
        opened = SourceOpened(
            session,
            Origin("system", timeline),
            (*self.ends, (timeline, self.wal_end)),
            self.slot,
            self.confirmed,
            self._running(len(self.script.transactions) + 1),
        )
        if self.slot is not SlotState.PRESENT:
            return [*ended, Send(source, opened)]
        known = dict(asked.schemas)
        created = [
            Send(source, Shape(session, table, table, ShapeChange.CREATED, True, opened.running))
            for table in self.script.tables
            if table not in known
        ]
        return [*ended, Send(source, opened), *created, *self._start(source, session)]

    def _start(self, source: Address, session: int) -> Effects:
        self.stream = (source, session)
        numbers = range(self.confirmed // LSN_STEP + 1, self.committed + 1)
        items: list[tuple[int, int | Watermark]] = [(number * LSN_STEP, number) for number in numbers]
        items += [each for each in self.watermarks if each[0] > self.confirmed]
        effects: Effects = []
        for _, item in sorted(items, key=lambda each: each[0]):
            effects += self._streamed(item) if isinstance(item, int) else [self._marked(self.stream, item)]
        return [*effects, Send(source, KeepAlive(session, self.wal_end))]

    def _lose(self, *, moved: bool) -> Effects:
        if moved:
            self.confirmed = self.created = self.wal_end
        else:
            self.slot = SlotState.LOST
        return [Announce(SlotMoved(self.confirmed, lost=True)), *self._end_stream("the slot is lost")]

    def _end_stream(self, error: str) -> Effects:
        ended, self.stream = self.stream, None
        return [] if ended is None else [Send(ended[0], StreamEnded(ended[1], error))]

    # -------------------------------------------------------------------------------------------------------- snapshots

    def _running(self, limit: int) -> tuple[int, ...]:
        """The transactions below ``limit`` that have begun, and that a snapshot does not see."""
        long = [number for number, each in enumerate(self.script.transactions, start=1) if each.long]
        return tuple(sorted({*self.unseen, *(number for number in long if number > self.committed)} & {*range(limit)}))

    def _snap(self, capture: Address, request: ReadChunk) -> Effects:
        seen = [number for number in range(1, self.committed + 1) if number not in self.unseen]
        xid_next = max(seen, default=0) + 1
        state = self.script.state(self.committed, self.unseen)
        left = [row for row in state if row[0] == request.table and row[1].encode() > request.after]
        rows, last = tuple(left[: self.chunk_rows]), len(left) <= self.chunk_rows
        after = rows[-1][1].encode() if rows else request.after
        read = ChunkRead(
            *(request.session, request.chunk, request.chunk, after, last),
            *(self._running(xid_next), xid_next),
        )
        served = Announce(ChunkServed(request.chunk, rows))
        return [served, *self._emit(request, high=True), Send(READS, Later(capture, read))]


# -------------------------------------------------------------------------------------------------------------- the log


class Fate(enum.Enum):
    """What becomes of an append."""

    COMMITTED = "committed"
    LANDED = "landed"  # it is committed, but the answer is lost
    VANISHED = "vanished"  # its outcome is unknown, and it never lands
    REFUSED = "refused"


class OneWriterLog(PassiveRole):
    """``troubles``: how often an append may end in another way than committed."""

    def __init__(self, troubles: int) -> None:
        self.troubles = troubles
        self.owner = ""
        self.session = 0
        self.number = 0  # of the last entry of the session
        self.position = 0
        self.origin: Origin | None = None
        self.epoch = 0
        self.tables: tuple[TableCursor, ...] = ()
        self.schemas: tuple[tuple[int, int], ...] = ()
        self.asked: tuple[Address, AppendEntry] | None = None

    def on_message(self, source: Address, message: Message) -> Effects:
        match message:
            case TakeOver(session, force):
                if not force and self.owner != source.process:
                    return [Send(source, TakeOverFailed(session, True))]
                self.owner, self.session, self.number = source.process, session, 0
                taken = CatalogTaken(session, self.position, self.origin, self.tables, self.epoch, self.schemas)
                return [Announce(LogTakenOver(source.process)), Send(source, taken)]
            case AppendEntry():
                return self._on_append(source, message)
        return super().on_message(source, message)

    def on_choice(self, key: str, option: object) -> Effects:
        assert self.asked is not None
        (source, entry), self.asked = self.asked, None
        self.troubles -= option is not Fate.COMMITTED
        match option:
            case Fate.COMMITTED:
                return self._commit(source, entry, AppendOutcome.COMMITTED)
            case Fate.LANDED:
                return self._commit(source, entry, AppendOutcome.UNKNOWN)
            case Fate.VANISHED:
                return [self._answer(source, entry, AppendOutcome.UNKNOWN)]
        return [self._answer(source, entry, AppendOutcome.REFUSED)]

    def _on_append(self, source: Address, entry: AppendEntry) -> Effects:
        if (self.owner, self.session) != (source.process, entry.session):
            return [self._answer(source, entry, AppendOutcome.FENCED)]
        if not self._follows(entry):
            return [self._answer(source, entry, AppendOutcome.REFUSED)]
        if self.troubles:
            self.asked = (source, entry)
            return [Choose("fate", tuple(Fate))]
        return self._commit(source, entry, AppendOutcome.COMMITTED)

    def _follows(self, entry: AppendEntry) -> bool:
        """An entry lands only directly after the one before it, so that a refusal leaves no gap."""
        return entry.number == self.number + 1

    def _commit(self, source: Address, entry: AppendEntry, outcome: AppendOutcome) -> Effects:
        self.number = entry.number
        if entry.last:
            self.position, self.origin, self.epoch = entry.position, entry.origin, entry.epoch
        tables = {cursor.table: cursor for cursor in (*self.tables, *entry.tables)}
        self.tables = tuple(cursor for _, cursor in sorted(tables.items()))
        if entry.shape is not None:
            schemas = {**dict(self.schemas), entry.shape.table: entry.unit}
            self.schemas = tuple(sorted(schemas.items()))
        return [Announce(EntryLogged(entry)), self._answer(source, entry, outcome)]

    def _answer(self, source: Address, entry: AppendEntry, outcome: AppendOutcome) -> Send:
        return Send(source, AppendEnded(entry.session, entry.number, outcome))
