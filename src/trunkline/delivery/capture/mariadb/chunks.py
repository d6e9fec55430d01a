"""Reads tables of a MariaDB server in pieces, each in a snapshot whose place in the binlog is known.

Rules
 Q1  ``START TRANSACTION WITH CONSISTENT SNAPSHOT`` and the position that the server states for it (``seen``) belong
     together: the snapshot sees the transactions that begin before ``seen`` in the binlog, and no others.
 Q2  A chunk ends at the position that the server has after its rows were read (``high``): a change of the table's shape
     that its rows may show is in the stream before that, because the server writes it there before others see it.
 Q3  A table without a key is read whole, in a snapshot that is taken while the table is locked against writes: nothing
     of the table lies between the snapshot and ``high``, which is taken under the lock, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pymysql
from msgspec import Struct

from trunkline.delivery.capture.mariadb.catalog import Server, position_now
from trunkline.delivery.capture.mariadb.connection import LOCK_WAIT, Dsn, ServerRefused, Session, quoted, texts
from trunkline.delivery.capture.mariadb.types import Family
from trunkline.delivery.capture.mariadb.values import expression, from_texts
from trunkline.delivery.changes.groups import Layout, RowKind, TableRows, table_rows
from trunkline.delivery.changes.schemas import SourceColumn, TableSchema
from trunkline.errors import ConfigError, ProtocolError

CHUNK_ROWS_MAX: Final = 10_000
CHUNK_BYTES_MAX: Final = 4 * 1024 * 1024
READ_AT_ONCE: Final = 500
SNAPSHOT: Final = "START TRANSACTION WITH CONSISTENT SNAPSHOT"
PLACE: Final = "SHOW STATUS WHERE Variable_name IN ('binlog_snapshot_file', 'binlog_snapshot_position')"
PATIENT: Final = "SET net_write_timeout = 3600, lock_wait_timeout = 1"  # rows wait for the stream
COUNTED: Final = frozenset(
    map(int, (Family.INTEGER, Family.DECIMAL, Family.BIT, Family.YEAR, Family.ENUM, Family.SET))
)  # compared as numbers: labels have the order of their numbers
_NUMBER: Final = re.compile(r"-?\d+(\.\d+)?")


class ShapeChanged(Exception):
    """The table has not the shape under which it was to be read: the stream will tell."""


class Locked(Exception):
    """Another transaction keeps the table locked."""


class Chunk(Struct, frozen=True):
    """``seen``: transactions that begin here or later are not in it. ``high``: where it ends in the stream."""

    rows: TableRows
    cursor: bytes | None
    last: bool
    seen: int
    high: int


class WholeTable(Struct, frozen=True):
    """A table without a key, read as it is needed."""

    pieces: Iterator[tuple[TableRows, bool]]  # with whether it is the last
    seen: int
    high: int


class ChunkReader:
    """One connection, kept between chunks; ``close`` ends it and whatever it reads."""

    def __init__(self, dsn: Dsn, server: Server) -> None:
        self._dsn, self._server = dsn, server
        self._session: Session | None = None
        self._rows_max = CHUNK_ROWS_MAX

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def read(self, layout: Layout, cursor: bytes | None) -> Chunk:
        """The next rows in the order of the key. Raises ``ShapeChanged`` and ``Unreachable``."""
        session, schema = self._opened(), layout.schema
        try:
            seen = self._snapshot(session)
            rows, last = self._fetched(session, page(schema, cursor, self._rows_max))
            high = position_now(session, self._server) if self._session is not None else self._now()
        except ServerRefused as error:
            self.close()
            raise Locked if error.code == LOCK_WAIT else ShapeChanged(str(error)) from None
        except BaseException:
            self.close()
            raise
        if self._session is not None:
            session.ask("COMMIT")
        found = converted(layout, rows)
        after = encoded_cursor(schema, rows[-1]) if rows else cursor
        self._rows_max = max(1, min(CHUNK_ROWS_MAX, CHUNK_BYTES_MAX * len(rows) // (found.batch.nbytes + 1)))
        return Chunk(found, None if last else after, last, seen, high)

    def read_whole(self, layout: Layout) -> WholeTable:
        """Raises ``ShapeChanged``, ``Locked`` and ``Unreachable``."""
        session, name = self._opened(), quoted(layout.schema.schema, layout.schema.name)
        locking = Session(self._dsn)
        try:
            locking.ask(PATIENT)
            locking.ask(f"LOCK TABLES {name} READ")
            self._snapshot(session)
            cursor = session.stream(page(layout.schema, None, None))
            high = position_now(locking, self._server)
        except ServerRefused as error:
            self.close()
            raise Locked if error.code == LOCK_WAIT else ShapeChanged(str(error)) from None
        except BaseException:
            self.close()
            raise
        finally:
            locking.close()
        return WholeTable(self._pieces(session, cursor, layout), high, high)

    def _opened(self) -> Session:
        if self._session is None:
            self._session = Session(self._dsn)
            self._session.ask(PATIENT)
        return self._session

    def _snapshot(self, session: Session) -> int:
        """Q1."""
        session.ask(SNAPSHOT)
        found = {name.lower(): value for name, value in session.ask(PLACE)}
        if not found.get("binlog_snapshot_file"):
            raise ConfigError(
                "the server does not tell the binlog position of a snapshot; capture MariaDB 10.5 or newer"
            )
        return self._server.position(found["binlog_snapshot_file"], int(found["binlog_snapshot_position"]))

    def _now(self) -> int:
        session = Session(self._dsn)
        try:
            return position_now(session, self._server)
        finally:
            session.close()

    def _fetched(self, session: Session, statement: str) -> tuple[list[tuple[Any, ...]], bool]:
        """Rows up to the limits, and whether there are no more. A connection with more rows is given up."""
        rows: list[tuple[Any, ...]] = []
        size = 0
        for some in _some(session, session.stream(statement)):
            rows += some
            size += sum(len(value) for row in some for value in row if value is not None)
            if size > CHUNK_BYTES_MAX:
                break
        else:
            return rows, len(rows) < self._rows_max
        self.close()
        return rows, False

    def _pieces(self, session: Session, cursor: Any, layout: Layout) -> Iterator[tuple[TableRows, bool]]:
        rows: list[tuple[Any, ...]] = []
        size = 0
        for some in _some(session, cursor):
            if len(rows) >= CHUNK_ROWS_MAX or size > CHUNK_BYTES_MAX:
                yield converted(layout, rows), False
                rows, size = [], 0
            rows += some
            size += sum(len(value) for row in some for value in row if value is not None)
        session.ask("COMMIT")
        yield converted(layout, rows), True


def _some(session: Session, cursor: Any) -> Iterator[Sequence[tuple[Any, ...]]]:
    """Rows as they come."""
    try:
        while rows := cursor.fetchmany(READ_AT_ONCE):
            yield rows
    except pymysql.err.MySQLError as error:
        raise session.explained(error) from None


def page(schema: TableSchema, cursor: bytes | None, limit: int | None) -> str:
    """The query of a chunk: its columns, and then what its cursor is made of."""
    columns = {column.name: column for column in schema.columns}
    chosen = [expression(column, quoted(column.name)) for column in schema.columns]
    chosen += [_cursor_expression(columns[name]) for name in schema.key]
    query = f"SELECT {', '.join(chosen)} FROM {quoted(schema.schema, schema.name)}"
    if limit is None:
        return query
    if cursor is not None:
        query += f" WHERE {_after([columns[name] for name in schema.key], _literals(schema, cursor))}"
    return f"{query} ORDER BY {', '.join(quoted(name) for name in schema.key)} LIMIT {limit}"


def _cursor_expression(column: SourceColumn) -> str:
    return f"{quoted(column.name)} + 0" if column.type_oid in COUNTED else quoted(column.name)


def _after(key: Sequence[SourceColumn], literals: Sequence[str]) -> str:
    """Rows after a key, so that the server can use the index: (a >= x AND (a > x OR (b > y)))."""
    name, literal = quoted(key[0].name), literals[0]
    if len(key) == 1:
        return f"{name} > {literal}"
    return f"({name} >= {literal} AND ({name} > {literal} OR {_after(key[1:], literals[1:])}))"


def encoded_cursor(schema: TableSchema, row: Sequence[Any]) -> bytes:
    return msgspec.msgpack.encode(row[len(schema.columns) :])


def _literals(schema: TableSchema, cursor: bytes) -> list[str]:
    """Raises ``ProtocolError`` for a cursor that no chunk of this table wrote."""
    columns = {column.name: column for column in schema.columns}
    try:
        values = msgspec.msgpack.decode(cursor, type=list[Any])
        if not all(isinstance(value, str | bytes) for value in values):
            raise ValueError("it is not of texts")
        return [_literal(columns[name], value) for name, value in zip(schema.key, values, strict=True)]
    except (msgspec.MsgspecError, ValueError) as error:
        raise ProtocolError(f"the log has an invalid cursor for {schema.schema}.{schema.name}: {error}") from None


def _literal(column: SourceColumn, value: str | bytes) -> str:
    if column.type_oid in COUNTED:
        if not isinstance(value, str) or not _NUMBER.fullmatch(value):
            raise ValueError(f"{value!r:.80} is not a number")
        return value
    if column.type == "BLOB":
        return f"X'{value.hex() if isinstance(value, bytes) else value.encode().hex()}'"
    return texts([value if isinstance(value, str) else value.decode()])


def converted(layout: Layout, rows: Sequence[tuple[Any, ...]]) -> TableRows:
    """Raises ``ShapeChanged`` for values that the columns cannot have."""
    schema, count = layout.schema, len(rows)
    by_column = list(zip(*rows, strict=True)) if rows else [()] * len(schema.columns)
    text = f"{schema.schema}.{schema.name}"
    arrays = []
    for column, values in zip(schema.columns, by_column, strict=False):
        try:
            arrays.append(from_texts(column, values, text))
        except (pa.ArrowException, ValueError) as error:
            raise ShapeChanged(f"column {column.name!r} of {text}: {str(error)[:200]}") from None
        if column.name in schema.key and arrays[-1].null_count:
            raise ConfigError(f"a key of {text} is a date with a zero month or day; correct it, or leave the table out")
    return table_rows(layout, arrays, tx=[0] * count, seq=range(count), kind=[int(RowKind.READ)] * count)
