"""Captures a MariaDB database: its binlog as units of one stream, and its tables in chunks.

A position is the number of a binlog file and an offset in it: ``number << 40 | offset``. A transaction is named by
where it begins in the binlog: a chunk's snapshot sees it if that is before the position of the snapshot.

Rules
 M1  The binlog has a transaction only after its commit was decided, so its parts leave at once. There are
     exceptions. One that also changed tables without transactions may end with ROLLBACK, and one may be cut off by a
     crash of the server (M6): it is forgotten. If parts of it have left, the session ends without its end, so that they
     do not count, and the next one leaves it out. If it rolled back to a savepoint, its tables are captured again. And
     an XA transaction is there from its PREPARE on: its rows are left out, and its tables captured again when it
     commits.
 M2  The stream goes on after a whole transaction, as the log states it. The first event must lie exactly there, and
     every other one directly after the one before.
 M3  Whatever may have changed rows without saying which (a statement in the binlog, an incomplete row, an unclear
     ALTER) has its tables captured again.
 M4  The server keeps binlogs as long as it is configured to, and not for this capture.
 M5  A chunk begins between two transactions of the stream, and ends when the stream has passed the place where the
     server was after its rows were read.
 M6  A file that ends in the middle of an event, and is not the last one, was cut off by a crash of the server. What is
     open in it was rolled back when the server recovered: the stream goes on in the next file.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from trunkline.core.capture_messages import Origin, SlotState
from trunkline.delivery.capture.mariadb.catalog import (
    FIRST_OFFSET,
    Name,
    Patterns,
    SeenTable,
    Server,
    binlog_files,
    look,
    look_at,
    position_now,
    server_of,
)
from trunkline.delivery.capture.mariadb.chunks import Chunk, ChunkReader, Locked, ShapeChanged, WholeTable
from trunkline.delivery.capture.mariadb.connection import (
    BinlogConnection,
    FileCutOff,
    NotContinued,
    Session,
    parse_dsn,
    quoted,
)
from trunkline.delivery.capture.mariadb.rows import Limits
from trunkline.delivery.capture.mariadb.stream import Stream
from trunkline.delivery.capture.mariadb.tables import Tables
from trunkline.delivery.capture.source import (
    OFFSET_BITS,
    OFFSET_MAX,
    ChunkRequest,
    ChunkRows,
    KeepAlive,
    Lag,
    SourceOpened,
    SourceStart,
    Unit,
    Watermark,
)
from trunkline.delivery.changes.groups import Layout
from trunkline.delivery.changes.schemas import Catalog
from trunkline.errors import ConfigError, Unreachable

logger = logging.getLogger(__name__)

TIMELINE: Final = 1  # MariaDB has none: another server, or one that was reset, is another system
REPLICA_IDS: Final = 1 << 31  # server ids of captures are in the upper half
REQUESTED_MAX: Final = 0xFFFFFFFF  # offsets that can be requested from the server
LOCK_AGAIN_S: Final = 2.0
LOOKS_MAX: Final = 5
FIRST_EVENT_S_MAX: Final = 30.0
LOOK_MS: Final = 500


class MariaSource:
    """One capture of the chosen tables. ``replica``: its server id; by default one that no replica has."""

    def __init__(
        self, dsn: str, tables: Sequence[str], *, replica: int | None = None, limits: Limits | None = None
    ) -> None:
        self._dsn, self._patterns = parse_dsn(dsn), Patterns(tables)
        self._replica = replica or new_replica()
        self._limits = limits or Limits()
        self._control: Session | None = None
        self._server: Server | None = None
        self._binlog: BinlogConnection | None = None
        self._stream: Stream | None = None
        self._tables = Tables(None)
        self._chunks: ChunkReader | None = None
        self._request: ChunkRequest | None = None
        self._chunk: Chunk | WholeTable | None = None  # read, and not at its end in the stream yet
        self._whole: WholeTable | None = None  # at its place: its rows come now
        self._begun = False  # the low watermark of the request was put
        self._again: tuple[int, float] = (0, 0.0)  # not to be read before the stream, or the clock, is there
        self._reported = 0
        self._undone: set[int] = set()  # where transactions begin that were rolled back (M1)
        self._packets: deque[bytes] = deque()  # received, and not taken by the stream yet

    # ----------------------------------------------------------------------------------------------------- beginning

    def reach(self) -> None:
        session = Session(self._dsn)
        try:
            server = server_of(session, self._replica)
            now = position_now(session, server)
            binlog_files(session)
            found = look(session, self._patterns)
            if not found:
                raise ConfigError(
                    f"no table matches {', '.join(self._patterns.chosen)}; create one, or let the user of the capture "
                    "SELECT from it"
                )
            for name in found:
                session.ask(f"SELECT 1 FROM {quoted(*name)} LIMIT 0")
        finally:
            session.close()
        self._try_stream(server, now)

    def _try_stream(self, server: Server, now: int) -> None:
        """A stream that sends something can be had."""
        passing = BinlogConnection(self._dsn, new_replica(), server.file(now), now & OFFSET_MAX)
        try:
            passing.receive(int(LOCK_AGAIN_S * 1000))
        finally:
            passing.close()

    def open(self, start: SourceStart) -> SourceOpened:
        self.close()
        self._control = Session(self._dsn)
        self._server = server = server_of(self._control, self._replica)
        files, now = binlog_files(self._control), position_now(self._control, server)
        origin, ends = Origin(server.system, TIMELINE), ((TIMELINE, now),)
        if start.position == 0 and not start.create:
            return SourceOpened(origin, ends, SlotState.ABSENT, 0, ())
        lost = SourceOpened(origin, ends, SlotState.LOST, start.position, ())
        size = dict(files).get(start.position >> OFFSET_BITS, 0)
        if start.position > now or start.position & OFFSET_MAX > size > 0 or (start.position and not size):
            return lost
        position = self._begin(start, now)
        offset = position & OFFSET_MAX
        self._binlog = BinlogConnection(
            self._dsn, self._replica, server.file(position), offset if offset <= REQUESTED_MAX else FIRST_OFFSET
        )
        try:
            self._check_continued(position, now)
        except NotContinued as error:
            logger.warning("%s", error)
            self.close()
            return lost
        return SourceOpened(origin, ends, SlotState.PRESENT, position, ())

    def _check_continued(self, position: int, now: int) -> None:
        """M2: if there are events after the position, the first of them is read."""
        stream, binlog, deadline = self._stream, self._binlog, time.monotonic() + FIRST_EVENT_S_MAX
        assert stream is not None
        assert binlog is not None
        with contextlib.suppress(FileCutOff):  # it comes again
            while position < now and not stream.checked:
                stream.feed(deque(binlog.receive(LOOK_MS)), None)
                if time.monotonic() > deadline:
                    raise Unreachable("the server does not send its binlog")

    def _begin(self, start: SourceStart, now: int) -> int:
        """The tables that the log lacks, or has under another shape, come first."""
        session, server = self._control_session(), self._opened_server()
        found, position = look(session, self._patterns), start.position
        for _ in range(LOOKS_MAX if position == 0 else 0):  # so that the tables are as they were at the position
            position, now = now, position_now(session, server)
            if position == now:
                break
            found = look(session, self._patterns)
        tables = self._tables = Tables(start.catalog, replaced=start.position == 0)
        stream = self._stream = Stream(server, self._patterns, tables, self._look, position, self._limits, self._undone)
        for schema in list(tables):
            name = (schema.schema, schema.name)
            if not self._patterns.match(name) or (start.position == 0 and name not in found):
                stream.put(tables.drop(schema, position))
            elif start.position == 0:
                stream.put(tables.recapture(schema, found[name], position, "changes of the source were lost"))
        for name, seen in found.items():
            if tables.find(name) is None:
                unit = tables.create(seen, position)
                stream.found(unit.schema.number)
                stream.put(unit)
        for number in _broken_off(start.catalog):
            if start.position and (partial := tables.get(number)) is not None:
                stream.put(tables.recapture(partial, None, position, "it has no key, and was not read to its end"))
        self._reported = 0
        return position

    def _look(self, name: Name) -> SeenTable | None:
        return look_at(self._control_session(), name)

    def _control_session(self) -> Session:
        if self._control is None:
            self._control = Session(self._dsn)
        return self._control

    def _opened_server(self) -> Server:
        assert self._server is not None, "the source was not opened"
        return self._server

    # ---------------------------------------------------------------------------------------------------- the stream

    def receive(self, wait_ms: int, *, close: bool) -> Sequence[Unit]:
        if self._whole is not None:
            return [self._piece()]
        stream, binlog = self._stream, self._binlog
        if stream is None or binlog is None:
            raise Unreachable("the stream of the server has not begun")
        self._begin_chunk()
        if not self._packets:
            try:
                self._packets.extend(binlog.receive(0 if stream.units else wait_ms))
            except FileCutOff as error:
                self._skip_file(stream, error)
        while stream.feed(self._packets, None if self._chunk is None else self._chunk.high):
            self._end_chunk()
            if self._whole is not None:
                break  # nothing may come before its rows
        if close:
            stream.close_group()
        if stream.idle and stream.whole > self._reported:
            stream.units.append(KeepAlive(stream.whole))
            self._reported = stream.whole
        units = list(stream.units)
        stream.units.clear()
        return units

    def _skip_file(self, stream: Stream, error: FileCutOff) -> None:
        """M6."""
        server, now = self._opened_server(), position_now(self._control_session(), self._opened_server())
        if stream.position >> OFFSET_BITS >= now >> OFFSET_BITS:
            raise error
        logger.warning(
            "the binlog file %s ends in the middle of an event: the server crashed", server.file(stream.position)
        )
        position = stream.skip_file()
        if self._binlog is not None:
            self._binlog.close()
        self._binlog = BinlogConnection(self._dsn, self._replica, server.file(position), position & OFFSET_MAX)

    def wake(self) -> None:
        if (binlog := self._binlog) is not None:
            binlog.wake()

    def confirm(self, position: int) -> None:
        """M4: the server does not ask."""

    def lag(self) -> Lag:
        session, server = self._control_session(), self._opened_server()
        try:
            now, files = position_now(session, server), binlog_files(session)
        except Unreachable:
            self._close_control()
            raise
        return Lag(now, 0, tuple(files))

    def recapture(self, table: int, why: str) -> None:
        """At the next place in the stream; a crash before that forgets the request."""
        stream, schema = self._stream, self._tables.get(table)
        if stream is not None and schema is not None:
            stream.put(self._tables.recapture(schema, None, stream.whole, why))

    def close(self) -> None:
        if self._binlog is not None:
            self._binlog.close()
        if self._chunks is not None:
            self._chunks.close()
        self._close_control()
        self._binlog = self._stream = self._chunks = self._request = self._chunk = self._whole = None
        self._again = (0, 0.0)
        self._packets.clear()

    def _close_control(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None

    # ------------------------------------------------------------------------------------------------------- chunks

    def read_chunk(self, request: ChunkRequest) -> None:
        if self._chunks is not None and (self._whole is not None or isinstance(self._chunk, WholeTable)):
            self._chunks.close()  # with the rows that were not read
        self._request, self._chunk, self._whole = request, None, None
        self._again, self._begun = (0, 0.0), False

    def _begin_chunk(self) -> None:
        """M5."""
        stream, request = self._stream, self._request
        if stream is None or request is None or self._chunk is not None or not stream.between:
            return
        if stream.whole < self._again[0] or time.monotonic() < self._again[1]:
            return
        schema = self._tables.get(request.table)
        if schema is None:
            self._request = None
            return
        if self._chunks is None:
            self._chunks = ChunkReader(self._dsn, self._opened_server())
        try:
            if schema.key:
                if not self._begun:
                    stream.put(Watermark(request.writer, request.chunk, False))
                    self._begun = True
                self._chunk = self._chunks.read(Layout(schema), request.cursor)
            else:
                self._chunk = self._chunks.read_whole(Layout(schema))
        except Locked:
            self._again = (0, time.monotonic() + LOCK_AGAIN_S)
        except ShapeChanged as error:
            self._on_shape_changed(error)

    def _on_shape_changed(self, error: ShapeChanged) -> None:
        """The stream says later what happened to the table, and the capture then asks again."""
        stream = self._stream
        assert stream is not None
        now = position_now(self._control_session(), self._opened_server())
        if stream.whole >= now and self._again[0]:
            raise ConfigError(f"a table cannot be read: {error}")
        self._again = (now, 0.0)

    def _end_chunk(self) -> None:
        stream, request, chunk = self._stream, self._request, self._chunk
        assert stream is not None
        assert request is not None
        self._chunk = None
        if isinstance(chunk, WholeTable):
            stream.put(Watermark(request.writer, request.chunk, False))
            self._whole = chunk
        else:
            self._request = None
        stream.put(Watermark(request.writer, request.chunk, True))
        if isinstance(chunk, Chunk):
            if chunk.last:
                self._end_reading()
            rows = ChunkRows(request.chunk, chunk.rows, chunk.cursor, chunk.last, (), chunk.seen)
            stream.put(rows)

    def _end_reading(self) -> None:
        """Of a table; the next one may come days later."""
        if self._chunks is not None:
            self._chunks.close()

    def _piece(self) -> ChunkRows:
        whole, request = self._whole, self._request
        assert whole is not None
        assert request is not None
        try:
            rows, last = next(whole.pieces)
        except ShapeChanged as error:  # before the table was locked; the next session reads it from its first row
            raise Unreachable(f"a table changed while its reading began: {error}; retrying") from None
        if last:
            self._whole = self._request = None
            self._end_reading()
        return ChunkRows(request.chunk, rows, None, last, (), whole.seen)


def new_replica() -> int:
    """Two replicas with one id would end each other's streams."""
    return REPLICA_IDS | secrets.randbits(31)


def _broken_off(catalog: Catalog | None) -> list[int]:
    """Tables without a key of which the log has some rows, and not all."""
    if catalog is None:
        return []
    return [
        table.newest.number for table in catalog.tables if not table.newest.key and table.chunks and not table.complete
    ]
