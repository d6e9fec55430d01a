"""Captures a PostgreSQL table by logical decoding (`pgoutput`): a snapshot, then each transaction in commit order.

Rules
 Q1  A slot and a publication keep what was not captured yet. Changes are peeked at without consuming them; the slot
     advances only after they are in the log. After a crash the log is ahead of the slot: transactions that it has are
     skipped. If a peek up to an LSN finds nothing, the slot advances to it: what ends before it does not concern the
     table, and a transaction that is open then ends after it.
 Q2  A snapshot is one transaction of the log: a truncation, then every row that one snapshot of the server sees. It is
     taken after the slot exists, so nothing is missed; transactions that the snapshot has seen are skipped by their
     number, so nothing is captured twice. Before a slot is created again, the log records that a snapshot is due: else,
     after a crash, the new slot would count as the old one.
 Q3  The table needs REPLICA IDENTITY FULL: only then does the server send deleted rows, and large values that an update
     did not touch, in full. It is checked at the start.
 Q4  The changes of a transaction are the difference of the rows that it removed and those that it wrote, as multisets:
     deletes come first, so that keys may also be swapped inside of it.
 Q5  If the slot was removed, the table was replaced or was not published, or its columns changed, a new snapshot is
     captured, with a warning.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgspec
import psycopg
import pyarrow as pa
from msgspec import Struct
from psycopg import sql

from trunkline.delivery.backends.postgres_session import CONNECT_S, PERMANENT, password_of
from trunkline.delivery.capture.one_table.capture_log import Transaction
from trunkline.delivery.capture.one_table.postgres_table import (
    ask,
    captured_columns,
    check_table,
    ensure_publication,
    generated_columns,
    key_of,
)
from trunkline.delivery.capture.postgres.pgoutput import (
    UNCHANGED,
    Begin,
    Commit,
    Delete,
    Insert,
    Message,
    Relation,
    RelationColumn,
    Row,
    Truncate,
    Update,
    parse,
)
from trunkline.delivery.capture.postgres.snapshots import SESSION, Seen, lsn_text, seen_of
from trunkline.delivery.capture.postgres.values import TableValues, UnfitValue, shown, table_values
from trunkline.delivery.changes.captured import change_rows, truncation
from trunkline.delivery.changes.rows import ChangeKind
from trunkline.delivery.config.addresses import PostgresAddress
from trunkline.errors import ConfigError, ProtocolError, TrunklineError, Unreachable

logger = logging.getLogger(__name__)

CHANGES_MAX: Final = 10_000  # of one peek; its last transaction is always complete
SNAPSHOT_ROWS: Final = 10_000  # of one fetch


class PostgresPosition(Struct, frozen=True, tag="postgres", tag_field="kind"):
    database: str  # the identity of the server and its database
    table: int  # the table's own number
    lsn: int  # transactions that end here or before are in the log
    seen: Seen
    seen_lsn: int  # what ends after this was not seen: numbers repeat after 2^32 transactions
    columns: tuple[RelationColumn, ...]
    due: bool = False  # a snapshot must follow


class PostgresCapture:
    """The changes of one table after a position."""

    def __init__(self, address: PostgresAddress, slot: str) -> None:
        if re.fullmatch(r"[a-z0-9_]{1,63}", slot) is None:
            raise ConfigError(f"the slot name {slot!r} is not valid in PostgreSQL; use a-z, 0-9 and _")
        self._address = address
        self._slot = slot
        self._name = sql.Identifier(address.schema, address.table)
        self._position: PostgresPosition | None = None
        self._connection: psycopg.Connection[Any] | None = None
        self._reading: psycopg.Connection[Any] | None = None  # of the snapshot that is being read
        self._due_recorded = False  # the log must record that a snapshot is due before a slot is created
        self._empty_through = 0  # up to which LSN a peek found nothing
        self._generated_reported = False

    def reach(self) -> None:
        """Raise ``Unreachable`` or ``ConfigError`` if a capture could not start."""
        with self._asking() as connection:
            check_table(connection, self._text)
            ensure_publication(connection, self._slot, self._name)
            generated = generated_columns(connection, self._text)
        if generated and not self._generated_reported:
            self._generated_reported = True
            logger.warning("generated columns of %s are not captured: %s", self._text, ", ".join(generated))

    def begin(self, position: str | None) -> None:
        """Continue after a position that was read from a log; ``None``: with a snapshot."""
        self._position, self._due_recorded, self._empty_through = None, position is None, 0
        if position is not None:
            try:
                stored = msgspec.json.decode(position, type=PostgresPosition)
            except (msgspec.MsgspecError, RecursionError) as error:
                raise ProtocolError("the log holds the capture of another source; use another log") from error
            self._position, self._due_recorded = (None, True) if stored.due else (stored, False)
        with self._asking() as connection:
            if self._position is not None and not self._has_slot(connection):
                logger.warning("the slot %s does not exist any more: all rows are captured again", self._slot)
                self._position = None

    def close(self) -> None:
        for connection in (self._connection, self._reading):
            if connection is not None:
                connection.close()
        self._connection = self._reading = None

    def transactions(self) -> Iterator[Transaction]:
        """All new transactions; each must be written before the next is requested (Q1)."""
        with self._asking() as connection:
            if self._position is not None and not self._same_table(connection):
                logger.warning("the table, the server or the publication was replaced: all rows are captured again")
                ensure_publication(connection, self._slot, self._name)
                self._position = None
            if self._position is None:
                if not self._due_recorded:
                    yield self._snapshot_due(connection)
                    self._due_recorded = True
                if not self._has_slot(connection):
                    ask(connection, "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", self._slot)
                yield self._snapshot(connection)
            while True:
                assert self._position is not None
                self._advance(connection, self._position.lsn)
                [(through,)] = ask(connection, "SELECT (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint")
                if through == self._empty_through:
                    return  # otherwise every poll would decode all that the slot keeps
                found = self._peek(connection, through)
                if not found:
                    self._advance(connection, through)
                    self._empty_through = through
                    return
                yield from self._decoded(connection, found)
                if len(found) < CHANGES_MAX:
                    assert self._position is not None
                    self._advance(connection, self._position.lsn)
                    return

    # --- the stream ---

    def _peek(self, connection: psycopg.Connection[Any], through: int) -> list[Message]:
        """Messages of every transaction that ends by then; later ones may be among them."""
        rows = ask(
            connection,
            "SELECT data FROM pg_logical_slot_peek_binary_changes(%s, %s::pg_lsn, %s, 'proto_version', '1', "
            "'publication_names', %s)",
            self._slot,
            lsn_text(through),
            CHANGES_MAX,
            self._slot,
        )
        return [message for (data,) in rows if (message := parse(bytes(data))) is not None]

    def _decoded(self, connection: psycopg.Connection[Any], messages: Sequence[Message]) -> Iterator[Transaction]:
        shapes: dict[int, Relation] = {}
        passing, changes = False, list[Message]()
        for message in messages:
            match message:
                case Relation():
                    shapes[message.oid] = message
                case Begin(xid=xid):
                    assert self._position is not None
                    passing, changes = self._position.seen.has(xid), []
                case Commit(end_lsn=end):
                    assert self._position is not None
                    known = (passing and end <= self._position.seen_lsn) or end <= self._position.lsn
                    ours = [each for each in changes if self._concerns(each)]
                    shape = shapes.get(self._position.table)
                    if ours and not known and shape is not None and shape.identity != "f":
                        raise ConfigError(
                            f"{self._text} did not record deleted rows in full (Q3) in changes that are still to be "
                            f"captured; run: ALTER TABLE {self._text} REPLICA IDENTITY FULL, drop the slot "
                            f"{self._slot}, and restart the capture: it then captures all rows again"
                        )
                    if not known and shape is not None and shape.columns != self._position.columns:
                        logger.warning("the columns of the table changed: all rows are captured again")
                        yield self._snapshot(connection)
                        return  # the rest is read again, without what the snapshot has seen
                    self._position = msgspec.structs.replace(self._position, lsn=max(end, self._position.lsn))
                    if ours and not known:
                        yield self._transaction(self._tables(ours, connection))
                case _:
                    changes.append(message)

    def _concerns(self, message: Message) -> bool:
        assert self._position is not None
        match message:
            case Truncate(relations=relations):
                return self._position.table in relations
            case Insert() | Update() | Delete():
                return message.relation == self._position.table
        return False

    def _tables(self, changes: Sequence[Message], connection: psycopg.Connection[Any]) -> Iterator[pa.Table]:
        """The net effect of the changes since the last truncation among them (Q4)."""
        assert self._position is not None
        values = table_values(self._position.columns)
        gone, came = Counter[Row](), Counter[Row]()
        for kind, row in _steps(changes):
            if row is None:
                gone, came = Counter[Row](), Counter[Row]()
                yield truncation(values.columns)
            elif kind is ChangeKind.DELETE:
                gone[row] += 1
            else:
                came[row] += 1
        for kind, rows in ((ChangeKind.DELETE, gone - came), (ChangeKind.INSERT, came - gone)):
            whole = list(rows.elements())
            for first in range(0, len(whole), SNAPSHOT_ROWS):
                remedy = f"change it in the table, drop the slot {self._slot}, and restart the capture"
                yield change_rows(kind, self._arrow(values, whole[first : first + SNAPSHOT_ROWS], connection, remedy))

    def _arrow(
        self, values: TableValues, rows: Sequence[Row], connection: psycopg.Connection[Any], remedy: str
    ) -> pa.Table:
        try:
            return values.arrow(rows, connection)
        except UnfitValue as unfit:
            names = [each.name for each in values.columns]
            key = key_of(connection, self._text) or names[:1]
            row = ", ".join(f"{name} = {shown(unfit.row[names.index(name)])}" for name in key if name in names)
            column, value = values.columns[unfit.index], shown(unfit.row[unfit.index])
            raise ProtocolError(
                f"column {column.name!r} of {self._text} has the value {value} where {row}, which "
                f"cannot be captured as {column.type} ({unfit}); {remedy}: all rows are then captured again"
            ) from unfit

    def _transaction(self, changes: Iterator[pa.Table]) -> Transaction:
        assert self._position is not None
        columns = table_values(self._position.columns).columns
        return Transaction(msgspec.json.encode(self._position).decode(), columns, changes)

    def _advance(self, connection: psycopg.Connection[Any], lsn: int) -> None:
        """What is in the log need not be kept. The slot never moves back."""
        if lsn:
            ask(
                connection,
                "SELECT pg_replication_slot_advance(slot_name, %s::pg_lsn) FROM pg_replication_slots "
                "WHERE slot_name = %s AND confirmed_flush_lsn < %s::pg_lsn",
                lsn_text(lsn),
                self._slot,
                lsn_text(lsn),
            )

    # --- the snapshot ---

    def _snapshot(self, connection: psycopg.Connection[Any]) -> Transaction:
        """The rows are read while they are written to the log, in one transaction of the server (Q2)."""
        reading = self._reading = self._connect()
        reading.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        self._position = self._present(reading, self._position.lsn if self._position is not None else 0)
        return self._transaction(self._rows(reading, table_values(self._position.columns)))

    def _snapshot_due(self, connection: psycopg.Connection[Any]) -> Transaction:
        """A transaction without changes: it records that a snapshot follows (Q2)."""
        due = msgspec.structs.replace(self._present(connection, 0), due=True)
        return Transaction(msgspec.json.encode(due).decode(), table_values(due.columns).columns, ())

    def _present(self, connection: psycopg.Connection[Any], lsn: int) -> PostgresPosition:
        """The position of the server's present snapshot."""
        [(seen,)] = ask(connection, "SELECT pg_current_snapshot()::text")
        [(seen_lsn,)] = ask(connection, "SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint")
        [(database, table)] = ask(connection, IDENTITY, self._text)
        columns = captured_columns(connection, self._text)
        return PostgresPosition(database, table, lsn, seen_of(seen), seen_lsn, columns)

    def _rows(self, reading: psycopg.Connection[Any], values: TableValues) -> Iterator[pa.Table]:
        connection = self._connection  # the other one is busy with the copy
        assert connection is not None
        try:
            yield truncation(values.columns)
            names = sql.SQL(", ").join(sql.Identifier(each.name) for each in values.columns)
            query = sql.SQL("COPY (SELECT {} FROM ONLY {}) TO STDOUT").format(names, self._name)  # texts as in a stream
            with reading.cursor() as cursor, cursor.copy(query) as copy:
                texts = (tuple(None if each is None else each.encode() for each in row) for row in copy.rows())
                while rows := list(itertools.islice(texts, SNAPSHOT_ROWS)):
                    found = self._arrow(values, rows, connection, "change it in the table, then restart the capture")
                    yield change_rows(ChangeKind.INSERT, found)
        except psycopg.Error as error:
            raise self._failure(error) from error
        finally:
            reading.close()

    # --- the server ---

    def _has_slot(self, connection: psycopg.Connection[Any]) -> bool:
        rows = ask(connection, "SELECT wal_status FROM pg_replication_slots WHERE slot_name = %s", self._slot)
        if rows and rows[0][0] == "lost":
            ask(connection, "SELECT pg_drop_replication_slot(%s)", self._slot)
            return False
        return bool(rows)

    def _same_table(self, connection: psycopg.Connection[Any]) -> bool:
        assert self._position is not None
        [identity] = ask(connection, IDENTITY, self._text)
        [(published,)] = ask(connection, PUBLISHED, self._text, self._slot)
        return bool(published) and identity == (self._position.database, self._position.table)

    @property
    def _text(self) -> str:
        return self._name.as_string(None)

    @contextmanager
    def _asking(self) -> Iterator[psycopg.Connection[Any]]:
        try:
            if self._connection is None or self._connection.closed:
                self._connection = self._connect()
            yield self._connection
        except psycopg.Error as error:
            raise self._failure(error) from error

    def _connect(self) -> psycopg.Connection[Any]:
        try:
            connection = psycopg.connect(
                self._address.dsn,
                password=password_of(self._address),
                connect_timeout=CONNECT_S,
                client_encoding="UTF8",
                autocommit=True,
            )
            connection.execute(SESSION)
        except psycopg.OperationalError as error:
            raise self._failure(error) from error
        return connection

    def _failure(self, error: psycopg.Error) -> TrunklineError:
        """A transient error is retried; for another, an operator has to act."""
        self.close()
        text = (str(error).strip().splitlines() or [type(error).__name__])[0]
        if isinstance(error, psycopg.OperationalError) and not any(each in text for each in PERMANENT):
            return Unreachable(f"PostgreSQL is unreachable ({text}); it is retried")
        return ConfigError(
            f"PostgreSQL rejects the capture ({text}); check the password, and that the role may replicate, read the "
            f"table, and create the publication {self._slot} (or create it: CREATE PUBLICATION {self._slot} FOR TABLE "
            f"{self._text})"
        )


PUBLISHED: Final = (
    "SELECT EXISTS (SELECT FROM pg_publication_rel AS r JOIN pg_publication AS p ON p.oid = r.prpubid "
    "WHERE r.prrelid = to_regclass(%s) AND p.pubname = %s)"
)
IDENTITY: Final = (
    "SELECT (SELECT system_identifier FROM pg_control_system())::text || '/' || current_database(), "
    "to_regclass(%s)::oid::bigint"
)


def _steps(changes: Sequence[Message]) -> Iterator[tuple[ChangeKind, Row | None]]:
    for change in changes:
        match change:
            case Insert(new=new):
                yield ChangeKind.INSERT, new
            case Update(old=old, new=new):
                if old is None:
                    raise ProtocolError("an update has no old row; give the table REPLICA IDENTITY FULL again")
                yield ChangeKind.DELETE, old
                whole = (before if after == UNCHANGED else after for before, after in zip(old, new, strict=True))
                yield ChangeKind.INSERT, tuple(whole)
            case Delete(old=old):
                yield ChangeKind.DELETE, old
            case Truncate():
                yield ChangeKind.TRUNCATE, None
