"""One connection to a PostgreSQL server: made when it is needed, never waiting for ever, and telling what is known.

Rules
 S1  Every statement goes through ``run``, ``copy_in`` or ``copy_out``, with a limit on how long its answer may take. A
     server that says nothing for longer is given up: its connection is closed.
 S2  A connection that was lost while it was idle is made anew, once, before the first statement: nothing had been sent.
 S3  A connection that is lost before ``COMMIT`` was sent took the transaction with it (``Unreachable``). Once it was
     sent, only the server's own refusal, on a connection that goes on living, says that nothing changed; all else is
     ``OutcomeUnknown``.
 S4  No message holds a password.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Final, TypeVar

import psycopg
from psycopg import pq
from psycopg.abc import Buffer, PQGen
from psycopg.adapt import Dumper
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from trunkline.config import secret
from trunkline.delivery.config.addresses import PostgresAddress
from trunkline.errors import ConfigError, DestinationHalted, OutcomeUnknown, TrunklineError, Unreachable

CONNECT_S: Final = 10  # longer: a dead server holds up its worker; shorter: a busy one seems dead
LOCK_MS: Final = 5_000  # waiting for somebody else's lock; longer: one blocked table holds up the others of its worker
QUICK_MS: Final = 15_000  # an answer to a statement that touches a few rows, waiting for locks included
BULK_MS: Final = 180_000  # to one that moves a chunk of rows, or commits; a slow disk must fit
REBUILD_MS: Final = 4 * 3_600_000  # to one that reads or rewrites a whole table: an index, another type
IDLE_IN_TRANSACTION_MS: Final = 1_800_000  # the server ends a transaction whose client went silent, and frees its locks
KEEPALIVE: Final = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
OLDEST_SERVER: Final = 150_000  # PostgreSQL 15: unique indexes in which NULL equals NULL
SETTINGS: Final = (
    f"SET lock_timeout = {LOCK_MS}; SET statement_timeout = {BULK_MS}; "
    f"SET idle_in_transaction_session_timeout = {IDLE_IN_TRANSACTION_MS}; "
    "SET TimeZone = 'UTC'; SET DateStyle = 'ISO'; SET extra_float_digits = 1"
)
PERMANENT: Final = (  # what a server says, in English, to a client that it will refuse until a person helps
    "authentication failed",
    "no password supplied",
    "no pg_hba.conf entry",
    "does not exist",
    "not permitted to log in",
    "permission denied for database",
)
PASSING: Final = ("08", "25006", "40", "53", "55", "57", "58")  # beginnings of states that time or other clients mend

PostgresRow = tuple[Any, ...]
Answer = TypeVar("Answer")


class BinaryParameter(bytes):
    """A parameter in PostgreSQL's own binary form; a cast in the statement gives its type."""


class _PackedDumper(Dumper):
    format = pq.Format.BINARY

    def dump(self, obj: BinaryParameter) -> bytes:
        return bytes(obj)


class _NoAnswer(psycopg.OperationalError):
    """The server took too long."""


class _Connection(psycopg.Connection[PostgresRow]):
    """A connection that is given up when an answer takes too long (S1)."""

    patience_s: float = QUICK_MS / 1000

    def wait(self, gen: PQGen[Answer], interval: float = 0.1, timeout: float | None = None) -> Answer:
        try:
            return super().wait(gen, interval, self.patience_s if timeout is None else timeout)
        except psycopg.OperationalError as error:
            if self.pgconn.transaction_status != pq.TransactionStatus.ACTIVE:
                raise
            self.pgconn.finish()  # a late answer must not be taken for that of a later statement
            raise _NoAnswer(f"it said nothing for {self.patience_s:g} s") from error


class PostgresSession:
    """Any thread may use it; one transaction runs at a time.

    ``permanent`` is the error for what only a person can mend.
    """

    def __init__(
        self, dsn: str, password: str | None = None, *, permanent: type[TrunklineError] = DestinationHalted
    ) -> None:
        try:
            given = conninfo_to_dict(dsn)
        except psycopg.ProgrammingError as error:
            raise ConfigError(f"{error}: write the dsn as in 'host=db port=5432 dbname=shop user=trunkline'") from None
        secret = {"password": password} if password is not None else {}
        self._given = (dsn, password)
        self._conninfo = make_conninfo("", **{"connect_timeout": CONNECT_S, **KEEPALIVE, **given, **secret})
        shown = {name: value for name, value in given.items() if name in ("host", "hostaddr", "port", "dbname", "user")}
        self.place = " ".join(f"{name}={value}" for name, value in shown.items()) or "the local server"
        self._permanent = permanent
        self._lock = threading.Lock()
        self._connection: _Connection | None = None

    @contextmanager
    def transaction(self, what: str, *, reading: bool = False) -> Iterator[None]:
        """All or nothing; ``what`` is for messages. An error of the server comes out as one of ours.

        ``reading``: nothing is written, and all statements see one and the same moment.
        """
        with self._lock:
            try:
                self._begin("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY" if reading else "BEGIN")
                yield
            except psycopg.Error as error:
                self._roll_back()
                raise self.failure(error, what) from error
            except BaseException:
                self._roll_back()
                raise
            if reading:
                self._roll_back()
            else:
                self._commit(what)

    def run(
        self,
        statement: str,
        parameters: Sequence[object] | Mapping[str, object] | None = None,
        *,
        wait_ms: int = QUICK_MS,
        prepare: bool = False,
    ) -> psycopg.Cursor[PostgresRow]:
        """Run one statement. With parameters, a ``%`` in it is written twice.

        ``prepare``: the server keeps its plan, for a statement that comes again and again in these very words.
        """
        connection = self._connected(wait_ms)
        self._before(statement)
        return connection.execute(statement.encode(), parameters, prepare=prepare)

    def copy_in(self, statement: str, content: Buffer) -> int:
        """Run a ``COPY … FROM STDIN``; returns the number of rows."""
        connection = self._connected(BULK_MS)
        self._before(statement)
        with connection.cursor() as cursor:
            with cursor.copy(statement.encode()) as copy:
                copy.write(content)
            return cursor.rowcount

    def copy_out(self, statement: str) -> Iterator[Buffer]:
        """Run a ``COPY … TO STDOUT``, which is read block by block."""
        connection = self._connected(BULK_MS)
        self._before(statement)
        with connection.cursor() as cursor, cursor.copy(statement.encode()) as copy:
            yield from copy

    def failure(self, error: psycopg.Error, what: str) -> TrunklineError:
        """What an error means while nothing has been committed."""
        state, text = error.sqlstate, _told(error)
        if state is None and not isinstance(error, psycopg.OperationalError):
            return self._permanent(f"{what} at {self.place}: {text}")
        if state is None or state.startswith(PASSING):
            return Unreachable(f"{what} at {self.place}: {text}; it is tried again, look at the server if it stays so")
        if state == "42501":
            return self._permanent(f"{what} at {self.place}: {text}; grant the user what it needs, then resume")
        return self._permanent(f"{what} at {self.place}: {text}; mend the table or the row, then resume")

    def twin(self) -> PostgresSession:
        """Another session with the same server, for a long read beside this one."""
        return PostgresSession(*self._given, permanent=self._permanent)

    def close(self) -> None:
        """Let go of the connection; the next statement makes another one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _before(self, statement: str) -> None:
        """Called before each statement is sent: the place to stop a process in a test."""

    def _begin(self, how: str) -> None:
        kept = self._connection is not None
        try:
            self.run(how)
        except psycopg.OperationalError as error:
            if not kept or not self._lost() or isinstance(error, _NoAnswer):
                raise
            self.close()
            self.run(how)

    def _roll_back(self) -> None:
        """End the transaction in whatever state it is; a connection that cannot say so ends with it."""
        if self._lost():
            return self.close()
        try:
            self.run("ROLLBACK")
        except psycopg.Error:
            self.close()
        return None

    def _commit(self, what: str) -> None:
        try:
            self.run("COMMIT", wait_ms=BULK_MS)
        except psycopg.Error as error:
            assert self._connection is not None
            if self._connection.pgconn.transaction_status == pq.TransactionStatus.IDLE:
                raise self.failure(error, what) from error
            self.close()
            raise OutcomeUnknown(
                f"{what} at {self.place}: the answer to COMMIT was lost ({_told(error)}); read it again"
            ) from error

    def _lost(self) -> bool:
        return self._connection is None or self._connection.closed

    def _connected(self, wait_ms: int) -> _Connection:
        if self._connection is None:
            self._connection = self._connect()
        self._connection.patience_s = wait_ms / 1000
        return self._connection

    def _connect(self) -> _Connection:
        try:
            connection = _Connection.connect(self._conninfo, autocommit=True, client_encoding="UTF8")
        except psycopg.OperationalError as error:
            text = _told(error)
            if any(phrase in text for phrase in PERMANENT):
                raise self._permanent(f"{self.place} refuses us: {text}; mend the dsn or the password") from None
            raise Unreachable(f"{self.place} does not answer: {text}; it is tried again") from None
        if connection.info.server_version < OLDEST_SERVER:
            connection.close()
            raise self._permanent(f"{self.place} is older than PostgreSQL 15; upgrade the server")
        connection.adapters.register_dumper(BinaryParameter, _PackedDumper)
        connection.execute(SETTINGS)
        return connection


def _told(error: psycopg.Error) -> str:
    """The server's own words, on one line."""
    diagnosis = error.diag
    where = (diagnosis.context or "").rpartition("\n")[2]  # the last line is the statement's, with the column
    parts = [diagnosis.message_primary, diagnosis.message_detail, where]
    return ": ".join(part for part in parts if part) or " ".join(str(error).split()) or type(error).__name__


class _Shared:
    def __init__(self, session: PostgresSession) -> None:
        self.session = session
        self.users = 0


@cache
def _shared() -> dict[tuple[int, str, str | None], _Shared]:
    """The sessions of this process: a server takes a hundred connections, and may hold ten thousand destinations."""
    return {}


def borrow_session(dsn: str, password: str | None) -> PostgresSession:
    """The session of this process for a database, to be given back."""
    known = _shared().setdefault((os.getpid(), dsn, password), _Shared(PostgresSession(dsn, password)))
    known.users += 1
    return known.session


def return_session(session: PostgresSession) -> None:
    """The last one who gives a session back closes it."""
    [(name, known)] = [(name, known) for name, known in _shared().items() if known.session is session]
    known.users -= 1
    if known.users == 0:
        del _shared()[name]
        session.close()


def password_of(address: PostgresAddress) -> str | None:
    if address.password_env is None:
        return None
    return secret(address.password_env, f"the password for {address.dsn}")
