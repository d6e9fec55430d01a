"""Runs the capture of a database: hosts its role (``core/capture.py``) between a source and a log.

One thread has the role, the source and the encoding; appends are made by another (``append_chain``).

Rules
 N1  What the role does not want yet stays with the source: while it is crowded nothing is received, and the source's
     session is kept alive by repeating what was confirmed. So memory is bounded.
 N2  A lone transaction is written at once. After few changes the stream rests for a moment, so that under load an entry
     holds many transactions: each entry costs the capture and the log far more than a transaction in it. The stream
     does not rest while much arrives, or while tables are read.
 N3  The source is reached before each take-over, so that a long outage leaves no marks in the log.
 N4  What passes by itself ends the session, and the role begins another one. What an operator must change, another
     writer, and a bug end the capture.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import secrets
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from trunkline.core import capture_messages as messages
from trunkline.core.capture import Capture, CaptureConfig, CaptureState
from trunkline.core.effects import Address, Announce, CancelTimer, Effects, Event, Message, Send, SetTimer
from trunkline.delivery.capture.append_chain import Ended
from trunkline.delivery.capture.chunk_rows import moves_unstated
from trunkline.delivery.capture.database_log import DatabaseLog, cursors_in
from trunkline.delivery.capture.database_progress import DatabaseProgress, table_progress, written
from trunkline.delivery.capture.entry_writer import replaced
from trunkline.delivery.capture.held_units import HeldUnits
from trunkline.delivery.capture.postgres.wal_guard import WalAction, WalLevel, judged_wal
from trunkline.delivery.capture.source import (
    Changes,
    ChunkRequest,
    ChunkRows,
    DatabaseSource,
    SchemaUnit,
    SourceStart,
    Unit,
)
from trunkline.delivery.changes.schemas import Catalog
from trunkline.errors import (
    ConfigError,
    OutcomeUnknown,
    OwnedByAnother,
    Refused,
    StorageError,
    TrunklineError,
)
from trunkline.threads import Threads

logger = logging.getLogger(__name__)

WAIT_S: Final = 0.5  # for the stream, if nothing else is due
GATHER_S: Final = 0.03  # N2; longer: transactions wait; shorter: small entries take CPU time from the database
GATHER_BYTES: Final = 256 * 1024  # more than this in one turn: the stream is behind, and entries are large
KEEP_ALIVE_S: Final = 5.0  # N1; a server ends a silent session after a minute
LOOK_EVERY_S: Final = 5.0  # at the lag
REPORT_EVERY_S: Final = 0.5
ONCE_WAIT_MAX_MS: Final = 8_000  # a capture that runs once gives up when it would wait longer
SOURCE: Final = Address("source", "source")
LOG: Final = Address("log", "log")
PASSING: Final = (Refused, OutcomeUnknown, StorageError)  # N4


class CaptureOptions(Struct, frozen=True):
    """``kind`` is that of the source's positions. ``recaptures``: read all tables again when changes were lost."""

    kind: str
    recaptures: bool = False
    appends_max: int = 16
    catalog_after: int = 64 * 1024 * 1024
    mark_after: int = 4 * 1024 * 1024
    retry_ms: int = 1_000
    retry_max_ms: int = 60_000
    kept_max: int | None = None  # bytes that the source keeps for this capture
    on_kept_max: WalAction = WalAction.WARN  # DROP ends the capture as STOP does; the slot is dropped by the caller
    slot: str = ""  # for messages
    again: tuple[str, ...] = ()  # tables that are captured again, as schema.name


class TooMuchKept(ConfigError):
    """The source keeps more changes for the capture than allowed."""


class DatabaseCapture:
    """One capture. Any thread may call ``stop``."""

    def __init__(
        self,
        source: DatabaseSource,
        connect: Sequence[str],
        log: str,
        options: CaptureOptions,
        *,
        token: str = "",
        tls: ssl.SSLContext | None = None,
        report: Callable[[DatabaseProgress], None] = lambda _: None,
        threads: Threads | None = None,
    ) -> None:
        writer = secrets.token_hex(6)
        self._options = options
        self._source = source
        self._threads = threads or Threads()
        self._log = DatabaseLog(connect, log, options.kind, writer=writer, threads=self._threads, token=token, tls=tls)
        self._role = Capture(
            CaptureConfig(
                writer,
                LOG,
                SOURCE,
                recaptures=options.recaptures,
                appends_max=options.appends_max,
                catalog_after=options.catalog_after,
                mark_after=options.mark_after,
                retry_ms=options.retry_ms,
                retry_max_ms=options.retry_max_ms,
            )
        )
        self._report = report
        self.captured = DatabaseProgress()
        self._units = HeldUnits()
        self._waiting: deque[Unit] = deque()  # received, and not delivered to the role yet
        self._results: queue.SimpleQueue[tuple[int, Ended] | None] = queue.SimpleQueue()  # None: look at ``_stopping``
        self._timers: dict[str, float] = {}
        self._stopping = threading.Event()
        self._error: TrunklineError | None = None  # of the last failure
        self._fatal: TrunklineError | None = None  # ends the capture
        self._catalog: Catalog | None = None  # of the log when it was taken over
        self._streamed = 0  # everything up to here was received in this session
        self._spoiled: set[int] = set()  # tables that are read again, and whose schema does not say so yet
        self._again = list(options.again)
        self._target: int | None = None  # of a capture that runs once
        self._wal_level = WalLevel.FINE
        self._gather_until = self._keep_alive_at = self._look_at = self._report_at = 0.0

    def stop(self) -> None:
        """Stop after what is in flight."""
        self._stopping.set()
        self._results.put(None)
        self._source.wake()

    def run(self, *, once: bool = False) -> DatabaseProgress:
        """Capture until stopped, or (``once``) until the log has all that the source has now, with every table."""
        try:
            self._perform(self._role.on_start())
            while not self._ended(once=once):
                self._turn()
                self._tell()
        finally:
            self._note_tables()
            self.captured.running = False
            self._log.close()
            self._source.close()
            self._report(self.captured)
        return self.captured

    def _ended(self, *, once: bool) -> bool:
        if self._fatal is not None:
            raise self._fatal
        if self._threads.died:
            raise TrunklineError(f"{self._threads.died[0]}; restart the capture, and report what it logged")
        if once and self._role.state is CaptureState.WAITING and self._role.wait_ms > ONCE_WAIT_MAX_MS:
            raise self._error or TrunklineError("the capture could not begin")
        if self._role.state is not CaptureState.STREAMING:
            return self._stopping.is_set()
        settled = not self._role.queue and not self._role.in_flight
        if self._stopping.is_set():
            return settled
        complete = all(cursor.complete for cursor in self._role.cursors.values())
        reached = self._target is not None and self._streamed >= self._target and self._role.parts is None
        return once and settled and complete and reached and not self._waiting and not self._spoiled

    # ------------------------------------------------------------------------------------------------------ the turns

    def _turn(self) -> None:
        """Wait for the next thing that happens, and let the role decide."""
        streaming = self._role.state is CaptureState.STREAMING and not self._stopping.is_set()
        if not streaming or self._role.crowded:
            self._rest(WAIT_S)
        elif not self._deliver():
            gather_s = self._gather_until - time.monotonic()
            if gather_s > 0:
                self._rest(gather_s)
            else:
                self._receive()
        self._take_results()
        self._fire_timers()

    def _receive(self) -> None:
        """From the source, until something arrives or is due."""
        try:
            units = self._source.receive(int(self._due_s(WAIT_S) * 1000), close=True)
        except PASSING as error:
            self._stream_ended(error)
            return
        if units:
            self.captured.heard_at = time.monotonic()
        size = sum(unit.size for unit in units if isinstance(unit, Changes))
        if 0 < size < GATHER_BYTES and self._role.chunks.chunk is None:  # N2
            self._gather_until = time.monotonic() + GATHER_S
        self._waiting.extend(units)
        self._deliver()

    def _deliver(self) -> bool:
        """What the role takes of the units that wait. False: nothing."""
        delivered = False
        while (unit := self._next_unit()) is not None:
            delivered = True
            self._hand_over(unit)
        return delivered

    def _next_unit(self) -> Unit | None:
        """The role that is full takes rows of chunks still, and waits for them."""
        if not self._waiting or self._role.crowded:
            return None
        if not self._role.full:
            return self._waiting.popleft()
        place = next((at for at, unit in enumerate(self._waiting) if isinstance(unit, ChunkRows)), None)
        if place is None:
            return None
        unit = self._waiting[place]
        del self._waiting[place]
        return unit

    def _hand_over(self, unit: Unit) -> None:
        if isinstance(unit, Changes) and not self._checked_moves(unit):
            return
        message = self._units.message(self._role.session, unit, self._role.watched)
        if isinstance(message, messages.KeepAlive):
            self._streamed = max(self._streamed, message.wal_end)
        elif isinstance(message, messages.Piece) and message.last:
            self._streamed = max(self._streamed, message.end)
        self._perform(self._role.on_message(SOURCE, message))

    def _checked_moves(self, unit: Changes) -> bool:
        """T3 of ``chunk_rows``. The request comes before the change is in the log: a crash forgets neither, or both.

        False: the source has failed.
        """
        for rows in unit.tables:
            cursor = self._role.cursors.get(rows.number)
            if cursor is None or cursor.complete or not cursor.keyed:
                continue
            if moves_unstated(rows, self._units.schemas[rows.number]):
                why = "an update moved a row to another key, without its large values, while the table was read"
                self._spoiled.add(rows.number)
                try:
                    self._source.recapture(rows.number, why)
                except PASSING as error:
                    self._stream_ended(error)
                    return False
        return True

    def _rest(self, wait_s: float) -> None:
        """While changes gather, and while the role is crowded, waits, or ends."""
        now = time.monotonic()
        if self._role.state is CaptureState.STREAMING and now >= self._keep_alive_at:  # N1
            self._keep_alive_at = now + KEEP_ALIVE_S
            failure = self._from_source(lambda: self._source.confirm(self._role.confirmed))
            if failure is not None:
                self._perform(self._role.on_message(SOURCE, failure))
        try:
            result = self._results.get(timeout=self._due_s(wait_s))
        except queue.Empty:
            return
        if result is not None:
            self._on_appended(*result)

    def _due_s(self, wait_s: float) -> float:
        now = time.monotonic()
        return max(0.0, min([wait_s, *(at - now for at in self._timers.values())]))

    def _take_results(self) -> None:
        while True:
            try:
                result = self._results.get_nowait()
            except queue.Empty:
                return
            if result is not None:
                self._on_appended(*result)

    def _on_appended(self, session: int, ended: Ended) -> None:
        if session != self._role.session:
            return
        if ended.outcome is messages.AppendOutcome.COMMITTED:
            self.captured.committed(ended.number)
            self._error = None
        elif ended.error is not None:
            self._error = ended.error
            logger.warning("an append to %s failed: %s", self._log.name, ended.error)
        self._perform(self._role.on_message(LOG, messages.AppendEnded(session, ended.number, ended.outcome)))

    def _fire_timers(self) -> None:
        now = time.monotonic()
        for key in [key for key, at in self._timers.items() if at <= now]:
            self._timers.pop(key, None)
            self._perform(self._role.on_timer(key))

    # ----------------------------------------------------------------------------------------------------- the effects

    def _perform(self, effects: Effects) -> None:
        """Carry out what the role decided, and what it decides about the answers."""
        pending = deque(effects)
        while pending and self._fatal is None:
            match pending.popleft():
                case Send(_, message):
                    answer = self._answer(message)
                    if answer is not None:
                        pending.extend(self._role.on_message(SOURCE, answer))
                case Announce(event):
                    self._announced(event)
                case SetTimer(key, after_ms):
                    self._timers[key] = time.monotonic() + after_ms / 1000
                case CancelTimer(key):
                    self._timers.pop(key, None)
                case other:
                    raise AssertionError(f"a capture does not ask for {other}")

    def _answer(self, message: Message) -> Message | None:
        match message:
            case messages.TakeOver(session, force):
                return self._take_over(session, force)
            case messages.AppendEntry():
                self._append(message)
            case messages.OpenSource():
                return self._open(message)
            case messages.ConfirmPosition(_, position):
                self._keep_alive_at = time.monotonic() + KEEP_ALIVE_S
                return self._from_source(lambda: self._source.confirm(position))
            case messages.ReadChunk(_, writer, chunk, table, after):
                self._units.chunk = chunk
                request = ChunkRequest(writer, chunk, table, after or None)
                return self._from_source(lambda: self._source.read_chunk(request))
            case messages.DropUnit(_, unit):
                self._units.drop(unit)
            case messages.CloseSource():
                self._source.close()
                self._log.end_session()
                self._waiting.clear()
            case _:
                raise AssertionError(f"no one answers {message}")
        return None

    def _take_over(self, session: int, force: bool) -> Message:
        """Errors of N4 end the capture; ``_fatal`` is raised by the loop, so that everything is closed."""
        self._units.clear()
        self._waiting.clear()
        self._spoiled.clear()
        self._streamed = 0
        self.captured.begin()
        try:
            self._source.reach()  # N3
            state = self._log.take_over(force=force, ended=lambda ended: self._on_ended(session, ended))
        except OwnedByAnother as error:
            self._error = error
            return messages.TakeOverFailed(session, fenced=True)
        except PASSING as error:
            self._error = error
            return messages.TakeOverFailed(session, fenced=False)
        except TrunklineError as error:
            self._fatal = error
            return messages.TakeOverFailed(session, fenced=False)
        reader, position = state.reader, state.position
        self._catalog = None if reader is None else reader.catalog()
        self.captured.commit_us = 0 if position is None else position.commit_us
        at, origin = (0, None) if position is None else (position.lsn, position.origin)
        epoch = 0 if reader is None else reader.epoch
        return messages.TakenOver(session, at, origin, cursors_in(state), epoch)

    def _on_ended(self, session: int, ended: Ended) -> None:
        """In the thread of the appends."""
        self._results.put((session, ended))
        self._source.wake()

    def _open(self, request: messages.OpenSource) -> Message | None:
        catalog, position = self._catalog, self._role.position
        if catalog is not None and request.epoch > catalog.epoch:
            catalog, position = replaced(catalog), 0
        if catalog is not None:
            self._units.schemas = {table.newest.number: table.newest for table in catalog.tables}
        try:
            opened = self._source.open(SourceStart(position, catalog, request.create))
            if self._target is None:
                self._target = self._source.lag().position
            if opened.slot is messages.SlotState.PRESENT:
                self._capture_again()
        except PASSING as error:
            self._error = error
            return messages.StreamEnded(request.session, str(error))
        except TrunklineError as error:
            self._fatal = error
            return None
        return messages.SourceOpened(
            request.session, opened.origin, opened.ends, opened.slot, opened.confirmed, opened.running
        )

    def _capture_again(self) -> None:
        """What an operator wants to be captured again, once."""
        names = {f"{schema.schema}.{schema.name}": number for number, schema in self._units.schemas.items()}
        if unknown := [name for name in self._again if name not in names]:
            raise ConfigError(f"the log has no table {unknown[0]}, so it cannot be captured again")
        while self._again:
            self._source.recapture(names[self._again[-1]], "an operator requested it")
            self._again.pop()

    def _append(self, request: messages.AppendEntry) -> None:
        unit, touched = self._units.take(request)
        if isinstance(unit, ChunkRows) and unit.rows.number in self._spoiled:
            unit = replace(unit, last=False)  # T3 of ``chunk_rows``
        elif isinstance(unit, SchemaUnit):
            self._spoiled.discard(unit.schema.number)
        try:
            size = self._log.append(request, unit, touched)
        except TrunklineError as error:  # it cannot be written, now or later
            self._fatal = error
            return
        assert self._log.writer is not None
        self.captured.appended(written(request, unit, size, self._log.writer.commit_us))

    def _from_source(self, work: Callable[[], None]) -> Message | None:
        try:
            work()
        except PASSING as error:
            self._error = error
            return messages.StreamEnded(self._role.session, str(error))
        except TrunklineError as error:
            self._fatal = error
        return None

    def _stream_ended(self, error: TrunklineError) -> None:
        self._error = error
        self._perform(self._role.on_message(SOURCE, messages.StreamEnded(self._role.session, str(error))))

    # ------------------------------------------------------------------------------------------------- what is reported

    def _announced(self, event: Event) -> None:
        match event:
            case messages.SessionEnded(error):
                why = str(self._error or error)
                if why != self.captured.error:
                    logger.warning("the capture restarts: %s", why)
                self.captured.error, self.captured.running = why, False
                self.captured.failures += 1
            case messages.CaptureHalted(error):
                self._fatal = ConfigError(f"{error}: restart with --recapture-on-loss, or capture into another log")
            case messages.CaptureFenced():
                self._fatal = OwnedByAnother(f"another capture has taken over the log {self._log.name}; this one stops")
            case messages.Recaptured(error):
                logger.warning("every table is captured again: %s", error)
                self.captured.recaptures += len(self._role.cursors)
            case messages.ChunkRefused(table, xid):
                logger.info("a chunk of table %d is read again: it does not see transaction %d", table, xid)

    def _tell(self) -> None:
        """Progress, and the lag, now and then."""
        now, role, progress = time.monotonic(), self._role, self.captured
        if role.state is CaptureState.STREAMING:
            progress.running, progress.error = True, ""
            progress.position, progress.confirmed = role.position, role.confirmed
            settled = not (role.queue or role.in_flight or self._waiting) and role.parts is None
            progress.reached = max(role.confirmed, self._streamed) if settled else role.confirmed
        guarded = self._options.kept_max is not None  # also while the log is unreachable: most of all then
        if now >= self._look_at and (guarded or role.state is CaptureState.STREAMING):
            self._look_at = now + LOOK_EVERY_S
            with contextlib.suppress(*PASSING):  # the stream will fail, too
                progress.sampled(self._source.lag())
                self._check_kept()
        if now >= self._report_at:
            self._report_at = now + REPORT_EVERY_S
            self._note_tables()
            self._report(progress)

    def _check_kept(self) -> None:
        lag, most = self.captured.lag, self._options.kept_max
        if lag is None or most is None:
            return
        verdict = judged_wal(lag.retained, most, self._options.on_kept_max, self._wal_level, self._options.slot)
        self._wal_level = verdict.level
        if verdict.action is not WalAction.WARN:
            self._fatal = TooMuchKept(verdict.warning)
        elif verdict.warning:
            logger.warning("%s", verdict.warning)

    def _note_tables(self) -> None:
        if self._log.writer is not None and self._log.writer.catalog is not None:
            self.captured.tables = tuple(table_progress(each) for each in self._log.writer.catalog.tables)
