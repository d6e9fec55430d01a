"""Reads chunks of tables beside the stream, in a thread with its own two sessions.

Rules
 H1  The low watermark is in the WAL before the snapshot is taken, the high one after it. The table is locked against
     truncations, rewrites and alterations (`ACCESS SHARE`, which readers take anyway) before the snapshot is taken and
     until its rows are read: none of them obeys snapshots.
 H2  The rows have the newest version of the table that the stream has brought. If the table is different when its
     snapshot is taken, the chunk is read again later: the stream, or a check, brings the new version.
 H3  A table without a key is read whole. Its watermarks are written while a lock (`SHARE`) keeps writers away, so that
     they are one place in the stream. The lock ends before the rows are read.
 H4  What passes by itself is tried again, with new watermarks. Not a table without a key whose high watermark may be in
     the stream: nothing is received after it until all rows are there. That ends the stream; if some rows have left,
     the next one begins a new generation.
 H5  Nothing is unbounded: a chunk has a limit of rows and of bytes, and at most ``PIECES_MAX`` wait to be taken.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import psycopg
import pyarrow as pa
from msgspec import Struct
from psycopg import sql

from trunkline.delivery.capture.postgres.catalog import TableDefinition, definition_of
from trunkline.delivery.capture.postgres.change_batches import Table, UnfitChange
from trunkline.delivery.capture.postgres.chunk_query import (
    CopiedRows,
    Cursor,
    chunk_query,
    collations_of,
    cursor_of,
    type_names,
)
from trunkline.delivery.capture.postgres.copied_output import CopiedOutput
from trunkline.delivery.capture.postgres.session import ServerAddress, ServerSession, failure_of
from trunkline.delivery.capture.postgres.shape_changes import fits
from trunkline.delivery.capture.postgres.snapshots import seen_of
from trunkline.delivery.capture.postgres.source_messages import EMIT, EMIT_FLUSHED, ChunkMessage, message_text
from trunkline.delivery.capture.postgres.values import UnfitValue
from trunkline.delivery.capture.source import ChunkRequest, ChunkRows
from trunkline.delivery.changes.groups import SEQ
from trunkline.delivery.changes.schemas import TableSchema
from trunkline.errors import ConfigError, Unreachable

logger = logging.getLogger(__name__)

CHUNK_BYTES: Final = 4 * 1024 * 1024  # about; larger: a reader holds more at once; smaller: more snapshots and locks
CHUNK_BYTES_MAX: Final = 8 * 1024 * 1024  # in Arrow, unless one row has more
CHUNK_TEXT_MAX: Final = 16 * 1024 * 1024  # as texts: the rest of a chunk is not read
CHUNK_ROWS_MAX: Final = 200_000
FIRST_ROWS: Final = 10_000  # of a table whose rows have an unknown size
GROWTH_MAX: Final = 8  # of a chunk, against the one before
PIECES_MAX: Final = 2  # read and not taken; more: more memory; fewer: the server waits for the log
AGAIN_S: Final = 0.2
AGAIN_S_MAX: Final = 5.0
END_S: Final = 15.0
WHOLE_LOCK_MS: Final = 1_000  # writers wait as long; shorter: a table with long transactions is never locked
IN_KEY_ORDER: Final = (  # a sort of the whole table for each chunk would cost more than any index
    "SET enable_seqscan = off; SET enable_sort = off; SET enable_bitmapscan = off; "
    "SET max_parallel_workers_per_gather = 0"
)
BEGIN: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


_Snapshot = tuple[tuple[int, ...], int, TableDefinition]  # running, the next transaction, the table


class ChunkPiece(Struct, frozen=True):
    """Rows of a chunk. They may be used once the high watermark of this attempt was streamed."""

    attempt: int
    rows: ChunkRows


class _Superseded(Exception):
    """Another chunk is wanted, or none."""


class _Moved(Exception):
    """The table is not as the stream has it (H2)."""


class ChunkReader:
    """``newest``: the version of a table, by its number, that the stream has brought; ``None``: it was dropped.

    ``moved`` receives the number of a table that is not as the stream has it. ``wake`` is called after each step.
    """

    def __init__(
        self,
        address: ServerAddress,
        prefix: str,
        newest: Callable[[int], Table | None],
        moved: Callable[[int], None],
        wake: Callable[[], None],
    ) -> None:
        self._address = address
        self._prefix = prefix
        self._newest = newest
        self._moved = moved
        self._wake = wake
        self._changed = threading.Condition()
        self._wanted: ChunkRequest | None = None
        self._closed = False
        self._pieces: deque[ChunkPiece] = deque()
        self._failure: Exception | None = None
        self._attempt = 0
        self._rows_of: dict[int, int] = {}  # of the next chunk of each table, so that it has about CHUNK_BYTES
        self._reading: ServerSession | None = None
        self._control: ServerSession | None = None
        self._thread = threading.Thread(target=self._run, name="capture-chunks", daemon=True)
        self._thread.start()

    # --- for the thread of the stream ---

    def read(self, request: ChunkRequest) -> None:
        """Replaces what is being read."""
        with self._changed:
            self._wanted = request
            self._pieces.clear()
            self._changed.notify_all()

    def next(self) -> ChunkPiece | None:
        """The first piece that was read and not taken. Raises what the thread met."""
        with self._changed:
            if self._failure is not None:
                raise self._failure
            return self._pieces[0] if self._pieces else None

    def take(self) -> None:
        with self._changed:
            self._pieces.popleft()
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed, self._wanted = True, None
            self._changed.notify_all()
            for session in (self._reading, self._control):
                if session is not None:
                    session.interrupt()
        self._thread.join(END_S)  # while it connects, it cannot be interrupted; it then ends by itself

    # --- the thread ---

    def _run(self) -> None:
        try:
            while (request := self._next_request()) is not None:
                self._read(request)
        except Exception as error:  # the stream's thread raises it
            with self._changed:
                self._failure = error
        finally:
            self._disconnect()
            self._wake()

    def _next_request(self) -> ChunkRequest | None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._wanted is not None)
            return self._wanted

    def _read(self, request: ChunkRequest) -> None:
        """Try until it is read, or another one is wanted."""
        wait_s, since, attempts = AGAIN_S, time.monotonic(), 0
        while True:
            attempts += 1
            try:
                self._try(request)
            except _Superseded:
                return
            except _Moved as moved:
                wait_s = AGAIN_S
                self._moved(request.table)
                logger.info("a chunk is read again: %s", moved)
            except BrokenChunk:
                raise
            except Unreachable as error:
                self._disconnect()
                if self._closed:
                    return
                if attempts & (attempts - 1) == 0:  # less and less often
                    logger.warning("a chunk is read again, after %.0f s: %s", time.monotonic() - since, error)
                wait_s = min(2 * wait_s, AGAIN_S_MAX)
            else:
                with self._changed:
                    if self._wanted is request:
                        self._wanted = None
                return
            with self._changed:
                if self._changed.wait_for(lambda: self._wanted is not request, wait_s):
                    return

    def _try(self, request: ChunkRequest) -> None:
        table = self._newest(request.table)
        if table is None:
            raise _Moved(f"table {request.table} was dropped")
        self._attempt += 1
        self._connect()
        assert self._reading is not None
        assert self._control is not None
        try:
            try:
                if table.schema.key:
                    self._read_keyed(request, table, self._reading.connection, self._control)
                else:
                    self._read_whole(request, table, self._reading.connection, self._control)
            except (_Moved, _Superseded):
                self._disconnect()  # ends their transactions
                raise
        except psycopg.Error as error:
            raise failure_of(error) from error
        except UnfitValue as unfit:
            raise UnfitChange(table.schema, unfit.index, unfit.row, str(unfit)) from unfit

    # --- a table with a key ---

    def _read_keyed(
        self, request: ChunkRequest, table: Table, reading: psycopg.Connection[Any], control: ServerSession
    ) -> None:
        schema = table.schema
        if not _fits(definition_of(control.connection, schema.oid), schema):
            raise _Moved(f"{schema.schema}.{schema.name} was altered")
        self._emit(control, EMIT, request, high=False)
        running, xid_next, seen = self._begin(reading, schema)
        self._emit(control, EMIT_FLUSHED, request, high=True)
        after = cursor_of(request.cursor, schema)
        order = after.order if after is not None else _key_order(seen)
        collations = collations_of(reading, schema.oid, order)
        if after is not None and after.collations != collations:
            after = None  # rows that were read may be read again, which does no harm
        limit = self._rows_of.get(schema.number, FIRST_ROWS)
        output = self._copy(reading, schema, order, after, limit)
        copied = CopiedRows(table, output.take(CHUNK_TEXT_MAX))
        if output.ended:
            reading.execute("COMMIT")
        else:
            self._disconnect()  # the rest is not read
        batch = copied.batch()
        kept = _within(batch, CHUNK_BYTES_MAX)
        self._rows_of[schema.number] = _next_rows(kept, limit)
        last = output.ended and kept.num_rows == batch.num_rows < limit
        cursor = request.cursor if not kept.num_rows else copied.cursor(kept.num_rows - 1, order, collations)
        self._put(request, ChunkRows(request.chunk, copied.rows(kept), cursor, last, running, xid_next))

    def _begin(
        self, reading: psycopg.Connection[Any], schema: TableSchema
    ) -> tuple[tuple[int, ...], int, TableDefinition]:
        """Lock the table, then take the snapshot (H1)."""
        lock = sql.SQL("LOCK TABLE ONLY {} IN ACCESS SHARE MODE").format(sql.Identifier(schema.schema, schema.name))
        reading.execute(BEGIN)
        reading.execute(lock)
        return self._snapshot(reading, schema)

    def _snapshot(self, reading: psycopg.Connection[Any], schema: TableSchema) -> _Snapshot:
        [(text,)] = reading.execute("SELECT pg_current_snapshot()::text").fetchall()
        snapshot, found = seen_of(text), definition_of(reading, schema.oid)
        if found is None or not _fits(found, schema):
            raise _Moved(f"{schema.schema}.{schema.name} was altered")
        return snapshot.running, snapshot.xmax, found

    def _copy(
        self,
        reading: psycopg.Connection[Any],
        schema: TableSchema,
        order: Sequence[int],
        after: Cursor | None,
        limit: int | None,
    ) -> CopiedOutput:
        types = type_names(reading, [column.type_oid for column in schema.columns])
        return CopiedOutput(reading, chunk_query(schema, types, order, after, limit))

    # --- a table without one ---

    def _read_whole(
        self, request: ChunkRequest, table: Table, reading: psycopg.Connection[Any], control: ServerSession
    ) -> None:
        """H3."""
        schema = table.schema
        name = sql.Identifier(schema.schema, schema.name)
        reading.execute(BEGIN)
        reading.execute(sql.SQL("LOCK TABLE ONLY {} IN ACCESS SHARE MODE").format(name))
        with control.reporting() as writer:
            writer.execute("BEGIN")
            writer.execute(f"SET LOCAL lock_timeout = {WHOLE_LOCK_MS}".encode())
            self._lock_out(writer, name)
            running, xid_next, _ = self._snapshot(reading, schema)
            self._emit(control, EMIT, request, high=False, whole=True)
        try:
            self._emit(control, EMIT_FLUSHED, request, high=True, whole=True)
            control.run("COMMIT")
            self._read_all(request, table, reading, running, xid_next)
        except (psycopg.Error, Unreachable) as error:
            raise BrokenChunk(f"a table without a key was not read to its end ({error})") from error

    def _read_all(
        self,
        request: ChunkRequest,
        table: Table,
        reading: psycopg.Connection[Any],
        running: tuple[int, ...],
        xid_next: int,
    ) -> None:
        output, waiting = self._copy(reading, table.schema, (), None, None), None
        while not output.ended:
            copied = CopiedRows(table, output.take(CHUNK_BYTES))
            for batch in _pieces(copied.batch(), CHUNK_BYTES_MAX):
                if waiting is not None:
                    self._put(request, waiting)
                waiting = ChunkRows(request.chunk, copied.rows(batch), None, False, running, xid_next)
        reading.execute("COMMIT")
        if waiting is None:
            empty = CopiedRows(table, [])
            waiting = ChunkRows(request.chunk, empty.rows(empty.batch()), None, False, running, xid_next)
        final = ChunkRows(request.chunk, waiting.rows, None, True, running, xid_next)
        self._put(request, final)

    def _lock_out(self, writer: psycopg.Connection[Any], name: sql.Identifier) -> None:
        try:
            writer.execute(sql.SQL("LOCK TABLE ONLY {} IN SHARE MODE").format(name))
        except psycopg.errors.InsufficientPrivilege:
            table = name.as_string(None)
            raise ConfigError(
                f"{table} has no key, so that it must be locked while its snapshot is taken, and the role may not do "
                f"that; run: GRANT UPDATE ON {table} TO the role, or give the table a primary key, or exclude it"
            ) from None

    # --- sessions and pieces ---

    def _emit(
        self, control: ServerSession, statement: str, request: ChunkRequest, *, high: bool, whole: bool = False
    ) -> None:
        message = ChunkMessage(request.writer, request.chunk, self._attempt, high, whole)
        control.ask(statement, self._prefix, message_text(message))

    def _put(self, request: ChunkRequest, rows: ChunkRows) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._wanted is not request or len(self._pieces) < PIECES_MAX)
            if self._wanted is not request:
                raise _Superseded
            self._pieces.append(ChunkPiece(self._attempt, rows))
        self._wake()

    def _connect(self) -> None:
        for name in ("_reading", "_control"):
            if (session := getattr(self, name)) is None or session.connection.closed:
                session = ServerSession(self._address)
                with self._changed:
                    setattr(self, name, session)
                    if self._closed:
                        raise _Superseded
                if name == "_reading":
                    session.run(IN_KEY_ORDER)

    def _disconnect(self) -> None:
        with self._changed:
            sessions, self._reading, self._control = (self._reading, self._control), None, None
        for session in sessions:
            if session is not None:
                session.close()


class BrokenChunk(Unreachable):
    """A table without a key cannot be read on (H4)."""


def _fits(found: TableDefinition | None, schema: TableSchema) -> bool:
    """Whether rows that are read now are of this version."""
    if found is None or (found.schema, found.name) != (schema.schema, schema.name) or not fits(schema, found):
        return False
    key = {each.number for each in schema.columns if each.name in schema.key}
    return key == set(found.key)


def _key_order(found: TableDefinition) -> tuple[int, ...]:
    """As the index has them, so that it serves the query."""
    return next(each for each in (found.primary, found.index) if each and set(each) == set(found.key))


def _within(batch: pa.RecordBatch, size: int) -> pa.RecordBatch:
    """The first rows that are not larger than this, or one."""
    kept = batch
    while kept.nbytes > size and kept.num_rows > 1:
        kept = kept.slice(0, max(1, min(kept.num_rows - 1, kept.num_rows * size // (2 * kept.nbytes))))
    return kept


def _pieces(batch: pa.RecordBatch, size: int) -> list[pa.RecordBatch]:
    """Each with rows that are numbered from 0."""
    found = list[pa.RecordBatch]()
    while batch.num_rows:
        piece = _within(batch, size)
        batch = batch.slice(piece.num_rows)
        numbers = pa.array(np.arange(piece.num_rows, dtype=np.uint32))
        found.append(piece.set_column(piece.schema.get_field_index(SEQ), SEQ, numbers))
    return found


def _next_rows(kept: pa.RecordBatch, limit: int) -> int:
    if not kept.num_rows:
        return limit
    fitting: int = kept.num_rows * CHUNK_BYTES // max(1, kept.nbytes)
    return max(1, min(fitting, limit * GROWTH_MAX, CHUNK_ROWS_MAX))
