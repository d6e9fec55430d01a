"""A PostgreSQL database as the source of a capture: its stream, checks of its catalog, and chunks of its tables.

The rules are in the modules that it joins: ``replication`` (the stream), ``decoder`` (transactions), ``known_tables``
(versions of tables), ``opened_slot`` (the slot) and ``chunk_reader`` (chunks).
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import time
import weakref
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, Final

import psycopg
from msgspec import Struct
from psycopg.conninfo import make_conninfo

from trunkline.core.capture_messages import SlotState
from trunkline.delivery.capture.postgres.change_batches import UnfitChange
from trunkline.delivery.capture.postgres.chunk_reader import ChunkReader
from trunkline.delivery.capture.postgres.decoder import Cut, Decoder, Limits, Mark
from trunkline.delivery.capture.postgres.known_tables import KnownTables
from trunkline.delivery.capture.postgres.opened_slot import opened_slot, slot_state
from trunkline.delivery.capture.postgres.pgoutput import Relation
from trunkline.delivery.capture.postgres.replication import SILENT_S, Received, ReplicationConnection, Status
from trunkline.delivery.capture.postgres.server import Wanted, check_server
from trunkline.delivery.capture.postgres.session import ServerAddress, ServerSession
from trunkline.delivery.capture.postgres.setup import Made
from trunkline.delivery.capture.postgres.source_messages import (
    EMIT_FLUSHED,
    EMIT_IN_TRANSACTION,
    CheckMessage,
    ChunkMessage,
    ResnapshotMessage,
    message_in,
    message_text,
    prefix_of,
)
from trunkline.delivery.capture.postgres.values import shown
from trunkline.delivery.capture.source import (
    ChunkRequest,
    KeepAlive,
    Lag,
    SourceOpened,
    SourceStart,
    Unit,
    Watermark,
)
from trunkline.delivery.config.table_patterns import TablePatterns
from trunkline.errors import ConfigError, TrunklineError, Unreachable

logger = logging.getLogger(__name__)

APPLICATION_LETTERS_MAX: Final = 63  # of a name that a server keeps
CHECK_S: Final = 1.0  # between checks of the catalog; longer: new tables wait; shorter: more queries
CHECK_S_MAX: Final = 10.0
CHECK_SHARE_MAX: Final = 20  # a check takes one part of so many of the time, at most
LAG: Final = (
    "SELECT (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint, coalesce((SELECT pg_current_wal_flush_lsn() - "
    "restart_lsn FROM pg_replication_slots WHERE slot_name = %s), 0)::bigint"
)
XID: Final = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text"


class PostgresDatabase(Struct, frozen=True):
    """What is captured. The slot and the publication have one name."""

    address: ServerAddress
    slot: str
    tables: tuple[str, ...]  # patterns
    exclude: tuple[str, ...] = ()
    set_identity: bool = False  # give tables the replica identity that they lack
    failover: bool = True  # standbys follow the slot, from PostgreSQL 17 on
    reader: str = ""  # a name of this capture, for the server; empty: any reader of the slot is ended


class _Stream:
    """What one ``open`` began."""

    def __init__(
        self, connection: ReplicationConnection, decoder: Decoder, tables: KnownTables, chunks: ChunkReader
    ) -> None:
        self.connection = connection
        self.decoder = decoder
        self.tables = tables
        self.chunks = chunks
        self.reader = secrets.token_hex(8)
        self.request: ChunkRequest | None = None
        self.high: int | None = None  # the attempt whose high watermark was streamed
        self.paused = False  # a table without a key is being read, at this place of the stream
        self.check_at = 0.0
        self.heard = 0  # how far the server says that it has sent everything
        self.alive = 0  # how far that was passed on
        self.confirmed = 0


class PostgresSource:
    """For one thread, except for ``wake``."""

    def __init__(
        self,
        database: PostgresDatabase,
        *,
        limits: Limits | None = None,
        check_s: float = CHECK_S,
        silent_s: float = SILENT_S,
    ) -> None:
        if re.fullmatch(r"[a-z0-9_]{1,63}", database.slot) is None:
            raise ConfigError(f"the slot name {database.slot!r} is not valid in PostgreSQL; use a-z, 0-9 and _")
        self._database = database
        self._patterns = TablePatterns(database.tables, database.exclude)
        self._limits = limits
        self._check_s = check_s
        self._silent_s = silent_s
        self._prefix = prefix_of(database.slot)
        self._waker = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        weakref.finalize(self, os.close, self._waker)
        self._session: ServerSession | None = None
        self._stream: _Stream | None = None

    # --- the beginning and the end ---

    def reach(self) -> None:
        session = ServerSession(self._database.address)
        try:
            with session.reporting() as connection:
                check_server(connection, self._wanted)
            slot_state(session, self._database.slot)
        finally:
            session.close()

    def open(self, start: SourceStart) -> SourceOpened:
        self.close()
        address, made = self._database.address, Made()
        self._take_wakes()
        try:
            self._session = ServerSession(address)
            stream = ReplicationConnection(
                self._stream_dsn(), address.password_env, silent_s=self._silent_s, waker=self._waker
            )
            try:
                opened = self._opened_slot(stream, start, made)
                if opened.slot is not SlotState.PRESENT:
                    stream.close()
                    return opened
                self._begin(stream, start)
            except BaseException:
                stream.close()
                raise
        except BaseException:
            self.close()
            self._undo(made)
            raise
        return opened

    def _opened_slot(self, stream: ReplicationConnection, start: SourceStart, made: Made) -> SourceOpened:
        assert self._session is not None
        database = self._database
        if database.set_identity:
            with self._session.reporting() as connection:
                made.identities(connection, check_server(connection, self._wanted).identities)
        make = made if start.create else None
        return opened_slot(self._session, stream, database.slot, start.position, make=make, failover=database.failover)

    def _undo(self, made: Made) -> None:
        """Nothing stays behind on the server if a start fails."""
        if not made.something:
            return
        try:
            session = ServerSession(self._database.address)
            try:
                with session.reporting() as connection:
                    made.undo(connection)
            finally:
                session.close()
        except TrunklineError as error:
            logger.warning("the start failed, and what it made on the server stays there: %s", error)

    @property
    def _wanted(self) -> Wanted:
        database = self._database
        return Wanted(database.slot, self._patterns, database.set_identity, _application(database.reader))

    def _stream_dsn(self) -> str:
        """With a name by which a later start recognizes the reader of the slot."""
        name = _application(self._database.reader)
        return make_conninfo(self._database.address.dsn, **({"application_name": name} if name else {}))

    def _begin(self, connection: ReplicationConnection, start: SourceStart) -> None:
        tables = KnownTables(self._connection, self._patterns, self._database.slot, start.catalog)
        decoder = Decoder(self, self._limits, prefix=self._prefix, position=start.position)
        with self._asking():
            decoder.place(tables.begin())
        chunks = ChunkReader(self._database.address, self._prefix, tables.newest, tables.check_again, self.wake)
        self._stream = _Stream(connection, decoder, tables, chunks)

    def close(self) -> None:
        stream, self._stream = self._stream, None
        session, self._session = self._session, None
        if stream is not None:
            stream.chunks.close()
            stream.connection.close()
        if session is not None:
            session.close()

    def wake(self) -> None:
        with suppress(OSError):
            os.eventfd_write(self._waker, 1)

    def _take_wakes(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._waker)

    # --- the stream ---

    def receive(self, wait_ms: int, *, close: bool) -> Sequence[Unit]:
        stream = self._opened()
        if time.monotonic() >= stream.check_at:
            self._check(stream)
        units = self._rows(stream)
        wait_ms = 0 if units or stream.decoder.ready(close=close) else wait_ms
        received = Received([], 0)
        if stream.paused:
            stream.connection.stay(wait_ms)
        else:
            received = stream.connection.receive(wait_ms)
        self._take_wakes()
        with self._asking():
            stream.decoder.feed(received.messages)
        try:
            units += stream.decoder.units(close=close)
        except UnfitChange as unfit:
            raise _unfit(unfit) from unfit
        units += self._rows(stream)
        stream.heard = max(stream.heard, received.wal_end)
        if stream.heard > stream.alive and not stream.decoder.pending and not stream.paused:
            stream.alive = stream.heard
            units.append(KeepAlive(stream.heard))
        return units

    def confirm(self, position: int) -> None:
        stream = self._opened()
        stream.confirmed = max(stream.confirmed, position)
        stream.connection.confirm(Status(stream.confirmed, stream.confirmed, stream.confirmed))

    def lag(self) -> Lag:
        """Also while the stream is closed: the server keeps WAL for the slot."""
        session = self._session or ServerSession(self._database.address)
        try:
            [(position, retained)] = session.ask(LAG, self._database.slot)
        finally:
            if session is not self._session:
                session.close()
        return Lag(position, retained)

    # --- chunks ---

    def read_chunk(self, request: ChunkRequest) -> None:
        stream = self._opened()
        stream.request, stream.high, stream.paused = request, None, False
        stream.tables.reading(request.table, complete=False)
        stream.chunks.read(request)

    def _rows(self, stream: _Stream) -> list[Unit]:
        """Those whose high watermark was streamed."""
        units = list[Unit]()
        try:
            while (piece := stream.chunks.next()) is not None and piece.attempt == stream.high:
                stream.chunks.take()
                units.append(piece.rows)
                if piece.rows.last:
                    stream.tables.reading(piece.rows.rows.number, complete=True)
                    stream.paused = False
        except UnfitChange as unfit:
            raise _unfit(unfit) from unfit
        return units

    def recapture(self, table: int, why: str) -> None:
        """Begin a new generation of a table, at the next place in the stream. The request outlives a crash."""
        known = self._opened().tables.newest(table)
        if known is not None:
            schema = known.schema
            with self._asking() as session:
                request_snapshot(session, self._database.slot, schema.schema, schema.name, why, oid=schema.oid)

    # --- what the stream says about tables, and checks ---

    def expect(self, oids: Collection[int], xids: Collection[int]) -> None:
        self._opened().tables.expect(oids, xids)

    def relation(self, relation: Relation, lsn: int) -> Cut | None:
        return self._opened().tables.relation(relation, lsn)

    def mark(self, mark: Mark) -> Cut | None:
        stream = self._opened()
        match message_in(mark.content):
            case ChunkMessage(writer, chunk, attempt, high, whole):
                request = stream.request
                if high and request is not None and (writer, chunk) == (request.writer, request.chunk):
                    stream.high, stream.paused = attempt, whole
                return Cut((Watermark(writer, chunk, high),))
            case CheckMessage(reader, number) if reader == stream.reader:
                return stream.tables.marked(number)
            case ResnapshotMessage(schema, name, why, oid):
                return stream.tables.resnapshot(schema, name, why, oid)
        return None

    def _check(self, stream: _Stream) -> None:
        began = time.monotonic()
        with self._asking() as session:
            [(xid,)] = session.execute(XID).fetchall()
            stream.decoder.near = int(xid)
            cut, number = stream.tables.check()
            stream.decoder.place(cut)
            if number is not None:
                message = message_text(CheckMessage(stream.reader, number))
                session.execute(EMIT_FLUSHED, (self._prefix, message))
        stream.connection.ask()
        now = time.monotonic()
        idle = not cut.units and number is None
        stream.check_at = now + max(self._check_s, min(CHECK_S_MAX, CHECK_SHARE_MAX * (now - began)) if idle else 0)

    # --- sessions ---

    def _opened(self) -> _Stream:
        if self._stream is None:
            raise Unreachable("the stream was closed; the capture connects again")
        return self._stream

    def _connection(self) -> psycopg.Connection[Any]:
        assert self._session is not None
        return self._session.connection

    def _asking(self) -> AbstractContextManager[psycopg.Connection[Any]]:
        if self._session is None:
            raise Unreachable("the stream was closed; the capture connects again")
        return self._session.reporting()


def _application(reader: str) -> str:
    """As the server keeps it: it shortens names, and replaces letters that are not ASCII."""
    return re.sub(r"[^ -~]", "?", reader)[:APPLICATION_LETTERS_MAX]


def request_snapshot(
    session: psycopg.Connection[Any],
    slot: str,
    schema: str,
    name: str,
    why: str = "an operator requested it",
    oid: int = 0,
) -> None:
    """Let the capture of this slot, now or later, capture all rows of a table again."""
    message = message_text(ResnapshotMessage(schema, name, why, oid))
    session.execute(EMIT_IN_TRANSACTION, (prefix_of(slot), message))


def _unfit(unfit: UnfitChange) -> ConfigError:
    schema = unfit.schema
    names = [column.name for column in schema.columns]
    row = ", ".join(f"{name} = {shown(unfit.row[names.index(name)])}" for name in schema.key or names[:1])
    column, value = schema.columns[unfit.index], shown(unfit.row[unfit.index])
    return ConfigError(
        f"column {column.name!r} of {schema.schema}.{schema.name} has the value {value} where {row}, which cannot be "
        f"captured as {column.type} ({unfit}); change it in the table, or exclude the table; then drop the slot, and "
        "restart the capture: all rows are captured again"
    )
