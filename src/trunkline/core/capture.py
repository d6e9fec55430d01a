"""The capture of a database: decides what becomes an entry of the log, in which order, and what the source may forget.

It writes one log as its only writer, and reads one logical stream: transactions whole, in commit order, each only after
its commit. Nothing but the log is durable here: the log itself says where a capture goes on.

States
    taking over --taken--> opening --history fits--> streaming --append failed, stream ended--> waiting --> taking over
                              |--no slot--> opening (a new one)    |--changes are lost--> halted, or a recapture
    any --another writer owns the log--> fenced

Rules
 K1  Entries are appended in the order of the stream, which is that of commits, each directly after the one before; one
     piece of the stream is one entry. The parts of a transaction follow each other; only schemas are between them.
 K2  A position is confirmed to the source when the committed log has it in an entry, and not before. Without changes a
     mark brings it there, after ``mark_after`` bytes of WAL: so a slot that is ahead of the log was moved by another
     program (K6). Inside a transaction a keep-alive says nothing.
 K3  After a take-over the capture goes on after the last whole transaction in the log. Parts without a last part do not
     count. What the log has is skipped by its position in the WAL: the server may send any of it again.
 K4  After an append that failed, or whose outcome is unknown, nothing more is appended in this session. The log is
     taken over again, which settles it.
 K5  A chunk lies between two watermarks of the stream. It is valid only if its snapshot sees every transaction that
     comes before the low one in the log: a commit is in the WAL before others can see it. It must also see those that
     were running when this session began (the log may have them) or when its table joined the stream (what they changed
     before is never streamed).
 K6  The log and the source must share a history: the same system, the position of the log on a timeline that the source
     has, the slot present and not ahead of the log while this capture holds it. Otherwise changes are lost, or the log
     has some that the source lacks: the capture halts or, if so configured, begins a new epoch, in whose first catalog
     every table is a new generation. Both are announced.
 K7  A chunk is appended when its rows are there and the high watermark has passed, without the rows whose keys were
     touched since the low watermark. A truncation drops all of them.
 K8  The cursor of a table is in the entry of the chunk. No entry has a cursor beyond the chunks before it.
 K9  Once another writer has taken the log over, the capture stops. Only its first take-over is by force: two captures
     would otherwise take it from each other for ever.
 K10 At most ``appends_max`` appends are in flight, and the host delivers no more while the capture is ``full``. At most
     ``xids_max`` transactions are remembered; beyond them a chunk must see all up to the last. So memory is bounded.
 K11 A table is captured from the schema that creates it to the one that drops it. A schema stands in the log where it
     is in the stream. It ends an open chunk of its table, whose rows are read again under it. A recapture begins a
     generation from its first row.
 K12 A table without a key is read whole, at one place of the stream: from its watermarks until its last row is there,
     the capture takes nothing else of the stream. After an interruption only a new generation can read it again.
"""

from __future__ import annotations

import enum
from collections import deque

from msgspec import Struct
from msgspec.structs import replace

from trunkline.core.capture_chunks import ChunkReader
from trunkline.core.capture_messages import (
    AppendEnded,
    AppendEntry,
    AppendOutcome,
    CaptureFenced,
    CaptureHalted,
    ChunkBody,
    ChunkRead,
    CloseSource,
    ConfirmPosition,
    DropUnit,
    EntryKind,
    KeepAlive,
    OpenSource,
    Origin,
    Piece,
    Recaptured,
    SessionEnded,
    Shape,
    ShapeChange,
    SlotState,
    SourceOpened,
    StreamEnded,
    TableCursor,
    TakenOver,
    TakeOver,
    TakeOverFailed,
    Watermark,
)
from trunkline.core.effects import Address, Announce, CancelTimer, Effects, Message, Send, SetTimer

TAKE_OVER_AGAIN = "the log is taken over again"


class CaptureState(enum.Enum):
    TAKING_OVER = "taking over"
    OPENING = "opening"
    STREAMING = "streaming"
    WAITING = "waiting"
    HALTED = "halted"
    FENCED = "fenced"


class CaptureConfig(Struct, frozen=True):
    writer: str  # unique for each start of a process
    log: Address
    source: Address
    recaptures: bool = False  # False: halt when changes are lost
    appends_max: int = 8  # handed to the host, which sends those that wait together (``AppendEntry``)
    catalog_after: int = 64 * 1024 * 1024  # of the sizes of pieces and chunks
    xids_max: int = 100_000  # that are remembered while a table is read; beyond them older ones hold its snapshot up
    mark_after: int = 4 * 1024 * 1024  # bytes of WAL; a smaller value fills an idle log, a larger one keeps more WAL
    retry_ms: int = 1000  # doubles with each session that commits nothing, because each leaves a mark in the log
    retry_max_ms: int = 60_000


class Capture:
    def __init__(self, config: CaptureConfig) -> None:
        self.config = config
        self.state = CaptureState.TAKING_OVER
        self.session = 0
        self.forces = True  # K9
        self.origin: Origin | None = None  # of the log, then of the source
        self.position = 0  # after the last whole transaction that was made an entry, or that the log has
        self.confirmed = 0
        self.wait_ms = config.retry_ms
        self.chunk_wait_ms = config.retry_ms
        self.epoch = 1
        self.cursors: dict[int, TableCursor] = {}  # of the tables that are captured
        self.chunks = ChunkReader(config.writer, config.source, config.xids_max)
        self._clear()

    def _clear(self) -> None:
        self.number = 0
        self.queue: deque[AppendEntry] = deque()  # not appended yet
        self.in_flight: deque[tuple[int, int]] = deque()  # numbers and positions
        self.parts: int | None = None  # of the open transaction that were made entries
        self.since_catalog = 0

    @property
    def phase(self) -> str:
        return self.state.value

    @property
    def crowded(self) -> bool:
        """Whether the host should deliver nothing of the source until an append has ended (K10)."""
        return len(self.in_flight) >= self.config.appends_max and bool(self.queue)

    @property
    def full(self) -> bool:
        """Whether the host should deliver nothing of the stream: pieces, shapes, watermarks, keep-alives. Unless it is
        crowded, rows of chunks are welcome: they may be what it waits for (K12).
        """
        return self.crowded or (self.chunks.pauses and self.parts is None)

    @property
    def watched(self) -> int | None:
        """The table whose touched keys the host must name; of other tables it may leave them out."""
        return self.chunks.watched

    def on_start(self) -> Effects:
        return self._take_over()

    def on_choice(self, key: str, option: object) -> Effects:
        raise AssertionError(f"a capture makes no choice, but {key} was chosen")

    def on_timer(self, key: str) -> Effects:
        if key == "retry" and self.state is CaptureState.WAITING:
            return self._take_over()
        if self.state is not CaptureState.STREAMING:
            return []
        return self._read_next()

    def ignores(self, source: Address, message: Message) -> bool:
        """Answers of earlier sessions."""
        return getattr(message, "session", self.session) < self.session

    def on_message(self, source: Address, message: Message) -> Effects:
        if self.ignores(source, message) or self.state in (CaptureState.HALTED, CaptureState.FENCED):
            return []
        match message:
            case TakenOver() if self.state is CaptureState.TAKING_OVER:
                return self._on_taken(message)
            case TakeOverFailed(_, fenced) if self.state is CaptureState.TAKING_OVER:
                return self._stop() if fenced else self._start_over("the log could not be taken over")
            case SourceOpened() if self.state is CaptureState.OPENING:
                return self._on_opened(message)
            case AppendEnded(_, number, outcome) if self.state is CaptureState.STREAMING:
                return self._on_ended(number, outcome)
            case StreamEnded(_, error) if self.state in (CaptureState.OPENING, CaptureState.STREAMING):
                return self._start_over(error)
        if self.state is not CaptureState.STREAMING:
            return []
        return self._on_streamed(message) + self._dispatch()

    # --------------------------------------------------------------------------------------------------------- sessions

    def _take_over(self) -> Effects:
        self.session += 1
        self.state = CaptureState.TAKING_OVER
        self._clear()
        return [Send(self.config.log, TakeOver(self.session, self.forces))]

    def _start_over(self, error: str) -> Effects:
        """Whatever was not appended is streamed again, and the take-over settles the rest (K4)."""
        self.state = CaptureState.WAITING
        timers: Effects = [CancelTimer("chunk"), SetTimer("retry", self.wait_ms)]
        self.wait_ms = min(2 * self.wait_ms, self.config.retry_max_ms)
        return [Announce(SessionEnded(error)), Send(self.config.source, CloseSource(self.session)), *timers]

    def _stop(self) -> Effects:
        self.state = CaptureState.FENCED  # K9
        closed = Send(self.config.source, CloseSource(self.session))
        return [Announce(CaptureFenced()), CancelTimer("chunk"), closed]

    def _on_taken(self, log: TakenOver) -> Effects:
        self.forces = False
        self.state = CaptureState.OPENING
        self.position, self.origin, self.epoch = log.position, log.origin, log.epoch or 1  # K3
        self.cursors = {cursor.table: cursor for cursor in log.tables}
        self.confirmed = 0
        return [Send(self.config.source, OpenSource(self.session, self.epoch))]

    def _on_opened(self, source: SourceOpened) -> Effects:
        lost = "" if self.origin is None else _lost(self.position, self.origin, source)
        if lost and not self.config.recaptures:
            self.state = CaptureState.HALTED
            return [
                Announce(CaptureHalted(f"{lost}; capture every table again")),
                Send(self.config.source, CloseSource(self.session)),
            ]
        effects: Effects = []
        if lost:
            again = [TableCursor(each.table, each.generation + 1, keyed=each.keyed) for each in self.cursors.values()]
            self.cursors = {cursor.table: cursor for cursor in again}
            self.epoch, self.origin = self.epoch + 1, None  # what comes next is compared with nothing
            effects.append(Announce(Recaptured(lost)))
        if lost or source.slot is not SlotState.PRESENT:
            return [*effects, Send(self.config.source, OpenSource(self.session, self.epoch, create=True))]
        return self._begin(source, source.confirmed if self.origin is None else self.position)

    def _begin(self, source: SourceOpened, position: int) -> Effects:
        """The stream has started. The log gets a catalog if it lacks the origin."""
        self.state = CaptureState.STREAMING
        self.chunk_wait_ms = self.config.retry_ms
        fresh, outdated = self.origin is None, self.origin != source.origin
        self.origin, self.position = source.origin, position
        self.chunks.begin(source.running)
        effects: Effects = []
        if not fresh:  # what the log has before the mark is final, and may not be confirmed yet
            self.confirmed = position
            effects.append(Send(self.config.source, ConfirmPosition(self.session, position)))
        if outdated:
            self._make_catalog()
        return [*effects, *self._read_next(), *self._dispatch()]

    # ------------------------------------------------------------------------------------------------------- the stream

    def _on_streamed(self, message: Message) -> Effects:
        effects: Effects = []
        match message:
            case Piece():
                effects = self._on_piece(message)
            case Shape():
                effects = self._on_shape(message)
            case KeepAlive(_, wal_end):
                self._on_keep_alive(wal_end)
            case Watermark(_, writer, chunk, high):
                self.chunks.on_watermark(writer, chunk, high=high)
            case ChunkRead():
                effects = [] if self.chunks.on_read(message) else self._drop((message.unit,))
        effects += self._write_chunk()
        if self.parts is None and self.since_catalog >= self.config.catalog_after:
            self._make_catalog()
        return effects

    def _on_piece(self, piece: Piece) -> Effects:
        if piece.end <= self.position:
            return self._drop((piece.unit,))  # K3
        assert piece.first == (self.parts is None), "the pieces of a transaction follow each other"
        self.chunks.on_piece(piece)
        self.since_catalog += piece.size
        kind = EntryKind.GROUP if piece.first and piece.last else EntryKind.PART
        index, position = self.parts or 0, piece.end if piece.last else self.position
        self._make(kind, position, unit=piece.unit, index=index, last=piece.last)
        self.parts = None if piece.last else index + 1
        return []

    def _on_shape(self, shape: Shape) -> Effects:
        """A schema, in its place (K11)."""
        before = self.cursors.pop(shape.table, None)
        match shape.change:
            case ShapeChange.CREATED:
                self.cursors[shape.table] = TableCursor(shape.table, keyed=shape.keyed)
            case ShapeChange.CHANGED if before is not None:
                self.cursors[shape.table] = replace(before, keyed=shape.keyed)
            case ShapeChange.RECAPTURED if before is not None:
                self.cursors[shape.table] = TableCursor(shape.table, before.generation + 1, keyed=shape.keyed)
        tables = tuple(self.cursors[table] for table in (shape.table,) if table in self.cursors)
        assert bool(tables) == (shape.change is not ShapeChange.DROPPED), f"table {shape.table} is not captured"
        self._make(EntryKind.SCHEMA, self.position, unit=shape.unit, tables=tables, shape=shape)
        return [*self._drop(self.chunks.on_shape(shape)), *self._read_next()]

    def _make_catalog(self) -> None:
        self._make(EntryKind.CATALOG, self.position, tables=tuple(self.cursors.values()))
        self.since_catalog = 0

    def _on_keep_alive(self, wal_end: int) -> None:
        if self.parts is None and wal_end - self.position >= self.config.mark_after:
            self._make(EntryKind.MARK, wal_end)  # K2

    # ----------------------------------------------------------------------------------------------------------- chunks

    def _read_next(self) -> Effects:
        return self.chunks.read_next(self.session, self.cursors.values())

    def _write_chunk(self) -> Effects:
        """Append what was read of the open chunk if its place has come, and read the next one."""
        chunk = self.chunks.chunk
        if chunk is None or not (chunk.high and chunk.reads) or self.parts is not None:
            return []
        read, refused = chunk.reads[-1], self.chunks.refusal(chunk)
        if refused is not None and chunk.whole and self.cursors[chunk.table].chunks:
            return self._start_over(f"table {chunk.table} changed among its rows; it is captured again")  # K12
        if refused is not None:
            units, wait_ms = self.chunks.close(), self.chunk_wait_ms
            self.chunks.forget(read)
            self.chunk_wait_ms = min(2 * wait_ms, self.config.retry_max_ms)
            return [*self._drop(units), Announce(refused), SetTimer("chunk", wait_ms)]
        self.chunk_wait_ms = self.config.retry_ms
        for each in chunk.reads:
            self._make_chunk(chunk.table, each, ChunkBody(chunk.number, chunk.touched))
        chunk.reads = ()
        if chunk.whole and not read.last:
            return []
        self.chunks.close()
        self.chunks.forget(read)
        return self._read_next()

    def _make_chunk(self, table: int, read: ChunkRead, body: ChunkBody) -> None:
        before = self.cursors[table]
        moved = replace(before, after=read.after, complete=read.last, chunks=before.chunks + 1)
        self.cursors[table] = moved
        self.since_catalog += read.size
        self._make(EntryKind.CHUNK, self.position, unit=read.unit, tables=(moved,), chunk=body)  # K8

    def _drop(self, units: tuple[int, ...]) -> Effects:
        return [Send(self.config.source, DropUnit(self.session, unit)) for unit in units]

    # ---------------------------------------------------------------------------------------------------------- appends

    def _make(
        self,
        kind: EntryKind,
        position: int,
        *,
        unit: int = 0,
        index: int = 0,
        last: bool = True,
        tables: tuple[TableCursor, ...] = (),
        chunk: ChunkBody | None = None,
        shape: Shape | None = None,
    ) -> None:
        assert self.origin is not None
        self.number += 1
        self.position = position
        heading = (self.session, self.number, kind, position, self.origin, self.epoch)
        self.queue.append(AppendEntry(*heading, unit, index, last, tables, chunk, shape))

    def _dispatch(self) -> Effects:
        effects: Effects = []
        while self.queue and len(self.in_flight) < self.config.appends_max:  # K10
            entry = self.queue.popleft()
            self.in_flight.append((entry.number, entry.position))
            effects.append(Send(self.config.log, entry))
        return effects

    def _on_ended(self, number: int, outcome: AppendOutcome) -> Effects:
        if outcome is AppendOutcome.FENCED:
            return self._stop()
        if outcome is not AppendOutcome.COMMITTED:
            return self._start_over(f"the outcome of an append is {outcome.value}; {TAKE_OVER_AGAIN}")  # K4
        before, self.wait_ms = self.confirmed, self.config.retry_ms
        while self.in_flight and self.in_flight[0][0] <= number:  # K1: the log has all entries before it, too
            self.confirmed = max(self.confirmed, self.in_flight.popleft()[1])
        confirm: Effects = [Send(self.config.source, ConfirmPosition(self.session, self.confirmed))]
        return [*(confirm if self.confirmed > before else []), *self._dispatch()]


def _lost(position: int, origin: Origin, source: SourceOpened) -> str:
    """Why the log cannot be continued from this source, or an empty string (K6)."""
    if origin.system != source.origin.system:
        return "the source is another database system than the one in the log"
    shared = dict(source.ends).get(origin.timeline)
    if shared is None or position > shared:
        return f"the log has changes up to {position} that the source does not have: it was restored, or failed over"
    if source.slot is not SlotState.PRESENT:
        return f"the replication slot is {source.slot.value}: changes after {position} can no longer be read"
    if source.confirmed > position:
        return (
            f"the replication slot is at {source.confirmed}, the log at {position}: another program has moved the slot"
        )
    return ""
