"""The source of a capture in the checked world: a database with a WAL, a slot, tables that change, and snapshots.

It does not crash as a process: it stands for a system that keeps its state. A restart of it is an operation.
"""

from __future__ import annotations

from msgspec.structs import replace

from trunkline.check.monitors.capture import (
    LSN_STEP,
    UNIT_STEP,
    CaptureScript,
    ChunkServed,
    SlotConfirmed,
    SlotMoved,
    SourceCommitted,
    SourceDiverged,
    piece_unit,
    shape_unit,
)
from trunkline.check.scenarios.capture_host import OpenWithCatalog
from trunkline.check.scenarios.hosts import PassiveRole
from trunkline.core.capture_messages import (
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
    Touched,
    Watermark,
)
from trunkline.core.effects import Address, Announce, Complete, Effects, Event, Message, Send

DATABASE = Address("db", "source")
COMMITS = Address("commits", "backend")  # backends of the database: what takes time there passes through one of them
READS = Address("reads", "backend")


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
        self.start = 0  # what the log had when the stream began
        self.known: tuple[tuple[int, int], ...] = ()  # the tables that the log has or gets, and units of their schemas
        self.reading: ReadChunk | None = None  # the last one: it ends the one before
        self.locking: tuple[Address, ReadChunk] | None = None  # a table without a key that it waits for

    def on_message(self, source: Address, message: Message) -> Effects:
        match message:
            case Commit(operation):
                return [*self._commit(), *self._lock(), Complete(operation, OperationDone())]
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
                return self._lock()
            case Snap(capture, request):
                return self._snap(capture, request)
            case OpenWithCatalog():
                return self._open(source, message)
            case ReadChunk() if message.whole:
                self.reading, self.locking = message, (source, message)
                return self._lock()
            case ReadChunk():
                self.reading = message
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

    def _streamed(self, first: int, last: int = 0) -> Effects:
        """A transaction with its schemas; or several small ones, as one piece."""
        if self.stream is None:
            return []
        (to, session), numbers = self.stream, range(first, max(first, last) + 1)
        transactions = [self.script.transactions[number - 1] for number in numbers]
        large, end = transactions[0], numbers[-1] * LSN_STEP
        touched = [Touched(table, key) for each in transactions for table, key, _ in each.changes if not each.truncates]
        touched += [Touched(each.truncates, "") for each in transactions if each.truncates]
        news: list[Message] = []
        for part in range(large.parts):
            news += self._reshaped(session, first, part)
            if large.changes:
                begins, ends = part == 0, part == large.parts - 1
                place = end if ends else end - 1
                unit = piece_unit(first, numbers[-1])
                news.append(Piece(session, unit, place, tuple(numbers), 1, begins, ends, tuple(touched)))
            if part == 0 and (large.parts > 1 or not large.changes):
                news.append(KeepAlive(session, end))  # also between the pieces of a transaction
        return [Send(to, message) for message in news]

    def _reshaped(self, session: int, number: int, part: int) -> list[Message]:
        """The schemas that this part of a transaction needs, and that the log lacks, or has no longer."""
        found, transaction = list[Message](), self.script.transactions[number - 1]
        if number * LSN_STEP <= self.start:
            return found
        for place, shape in enumerate(transaction.shapes):
            if shape.part == part:
                found += self._reshape(session, shape.table, shape.change, shape_unit(number, place))
        for table in sorted({table for table, _, _ in transaction.changes}):
            unit = self.script.schema_at(table, number, part)
            found += self._reshape(session, table, ShapeChange.CHANGED, unit) if unit else []
        return found

    def _reshape(self, session: int, table: int, change: ShapeChange, unit: int) -> list[Message]:
        known, dropped = dict(self.known), change is ShapeChange.DROPPED
        if known.get(table) == (unit if not dropped else None):
            return []  # the log has it
        known[table] = unit
        if dropped:
            del known[table]
        self.known = tuple(sorted(known.items()))
        begins = change in (ShapeChange.CREATED, ShapeChange.RECAPTURED)
        return [Shape(session, unit, table, change, self.script.schema(unit).keyed, self._running() if begins else ())]

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
        ends = (*self.ends, (timeline, self.wal_end))
        origin, running = Origin("system", timeline), self._running()
        opened = Send(source, SourceOpened(session, origin, ends, self.slot, self.confirmed, running))
        if self.slot is not SlotState.PRESENT:
            return [*ended, opened]
        self.stream, self.known = (source, session), asked.schemas
        self.start = max(asked.position, self.confirmed)
        shapes = [Send(source, shape) for shape in (*self._compared(session), *self._begun(session, asked.begun))]
        return [*ended, opened, *shapes, *self._start(), Send(source, KeepAlive(session, self.wal_end))]

    def _compared(self, session: int) -> list[Message]:
        """The tables that are not, where the stream begins, as the log has them."""
        number, known, found = self.start // LSN_STEP, dict(self.known), list[Message]()
        for table in self.script.captured(number):
            unit = self.script.schema_at(table, number)
            if table not in known:
                found += self._reshape(session, table, ShapeChange.CREATED, unit)
            elif known[table] < unit:
                found += self._reshape(session, table, ShapeChange.CHANGED, unit)
        return found

    def _begun(self, session: int, tables: tuple[int, ...]) -> list[Message]:
        """Tables without a key of which the log has some rows are captured again."""
        known, running = dict(self.known), self._running()
        return [Shape(session, known[each], each, ShapeChange.RECAPTURED, False, running) for each in tables]

    def _start(self) -> Effects:
        """Everything after the slot. Two small transactions that follow each other come in one piece."""
        assert self.stream is not None
        numbers = range(self.confirmed // LSN_STEP + 1, self.committed + 1)
        items: list[tuple[int, int | Watermark]] = [(number * LSN_STEP, number) for number in numbers]
        items += [each for each in self.watermarks if each[0] > self.confirmed]
        items.sort(key=lambda each: each[0])
        effects: Effects = []
        while items:
            (_, item), *items = items
            if isinstance(item, Watermark):
                effects.append(self._marked(self.stream, item))
            elif items and items[0][1] == item + 1 and self._is_small(item) and self._is_small(item + 1):
                effects += self._streamed(item, item + 1)
                del items[0]
            else:
                effects += self._streamed(item)
        return effects

    def _is_small(self, number: int) -> bool:
        transaction = self.script.transactions[number - 1]
        whole = transaction.parts == 1 and transaction.changes and not transaction.shapes
        return bool(whole) and number * LSN_STEP > self.start

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

    def _running(self, limit: int = 1 << 60) -> tuple[int, ...]:
        """The transactions below ``limit`` that have begun, and that a snapshot does not see."""
        found, later = {*self.unseen}, enumerate(self.script.transactions[self.committed :], start=self.committed + 1)
        found |= {number for number, each in later if each.begins is not None and each.begins <= self.committed}
        return tuple(sorted(number for number in found if number < limit))

    def _lock(self) -> Effects:
        """Read a table without a key, whole, when no one else writes to it."""
        if self.locking is None or self._is_written(self.locking[1].table):
            return []
        (capture, request), self.locking = self.locking, None
        return [*self._emit(request, high=False), *self._snap(capture, request)]

    def _is_written(self, table: int) -> bool:
        writers = [self.script.transactions[number - 1] for number in self._running()]
        return any(row[0] == table for each in writers for row in each.changes + each.silent)

    def _snap(self, capture: Address, request: ReadChunk) -> Effects:
        schema = self.script.schema_at(request.table, self.committed)
        if not schema or request != self.reading:
            return []  # the table was dropped, and the stream has that; or another chunk is read
        seen = [number for number in range(1, self.committed + 1) if number not in self.unseen]
        xid_next = max(seen, default=0) + 1
        state = self.script.state(self.committed, self.unseen)
        left = tuple(row for row in state if row[0] == request.table and row[1].encode() > request.after)
        effects = self._emit(request, high=True)
        for place in range(max(1, len(left))) if request.whole else range(1):
            rows, last = left[place * self.chunk_rows :][: self.chunk_rows], len(left) <= (place + 1) * self.chunk_rows
            after = rows[-1][1].encode() if rows and not request.whole else request.after
            unit = request.chunk * UNIT_STEP + place
            head = (request.session, unit, request.chunk, after, last)
            read = ChunkRead(*head, self._running(xid_next), xid_next)
            effects += [Announce(ChunkServed(unit, rows, schema)), Send(READS, Later(capture, read))]
            if last:
                break
        return effects
