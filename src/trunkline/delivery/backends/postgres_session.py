"""A session with a PostgreSQL server: connects on demand, has a time-out for every statement, reports what is known.

Rules
 S1  Every statement goes through ``run``, ``send``, ``copy_in`` or ``copy_out``, with a time-out. A connection whose
     server does not respond in time is closed.
 S2  A connection that was lost while idle is reopened, once, before the first statement: nothing had been sent.
 S3  If a connection is lost before ``COMMIT`` was sent, the transaction is rolled back (``Unreachable``). Afterwards,
     only an error of the server on a connection that stays open proves that nothing changed; all else is
     ``OutcomeUnknown``.
 S4  No message contains a password.
 S5  Inside ``pipeline``, statements are sent without waiting for the responses of those before. The first error ends
     it; the server skips the statements after that one.
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

CONNECT_S: Final = 10  # longer: a dead server delays its worker; shorter: a busy one seems dead
LOCK_MS: Final = 5_000  # waiting for a lock; longer: one blocked table delays the others of its worker
QUICK_MS: Final = 15_000  # a statement that touches a few rows, including the wait for locks
BULK_MS: Final = 180_000  # a statement that moves a chunk of rows, or a commit; a slow disk must fit
REBUILD_MS: Final = 4 * 3_600_000  # a statement that reads or rewrites a whole table: an index, another type
IDLE_IN_TRANSACTION_MS: Final = 1_800_000  # then the server ends a silent client's transaction, and frees its locks
PLANS_MAX: Final = 1_024  # that the server keeps for a connection; more: 10 KB of its memory each, fewer: plans again
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
PERMANENT: Final = (  # parts of a server's messages, in English, for what only an operator can resolve
    "authentication failed",
    "no password supplied",
    "no pg_hba.conf entry",
    "does not exist",
    "not permitted to log in",
    "permission denied for database",
)
TRANSIENT: Final = ("08", "25006", "40", "53", "55", "57", "58")  # prefixes of SQLSTATEs that may go away by themselves

PostgresRow = tuple[Any, ...]
Answer = TypeVar("Answer")


class BinaryParameter(bytes):
    """A parameter in PostgreSQL's binary format; a cast in the statement gives its type."""


class _BinaryDumper(Dumper):
    format = pq.Format.BINARY

    def dump(self, obj: BinaryParameter) -> bytes:
        return bytes(obj)


class _TimedOut(psycopg.OperationalError):
    """The server took too long."""


class _Connection(psycopg.Connection[PostgresRow]):
    """A connection that is closed when a response takes too long (S1)."""

    timeout_s: float = QUICK_MS / 1000

    def wait(self, gen: PQGen[Answer], interval: float = 0.1, timeout: float | None = None) -> Answer:
        try:
            return super().wait(gen, interval, self.timeout_s if timeout is None else timeout)
        except psycopg.OperationalError as error:
            if self.pgconn.transaction_status != pq.TransactionStatus.ACTIVE:
                raise
            self.pgconn.finish()  # a late response must not pass for that of a later statement
            raise _TimedOut(f"no response for {self.timeout_s:g} s") from error


class PostgresSession:
    """Any thread may use it; one transaction runs at a time.

    ``permanent`` is the error for what only an operator can resolve.
    """

    def __init__(
        self, dsn: str, password: str | None = None, *, permanent: type[TrunklineError] = DestinationHalted
    ) -> None:
        try:
            given = conninfo_to_dict(dsn)
        except psycopg.ProgrammingError as error:
            raise ConfigError(f"{error}: write the dsn like 'host=db port=5432 dbname=shop user=trunkline'") from None
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
        """``what`` is for messages. Errors of the server become Trunkline's.

        ``reading``: nothing is written, and all statements see one snapshot.
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

        ``prepare``: the server keeps the plan, for a statement that is repeated literally.
        """
        connection = self._connected(wait_ms)
        self._before(statement)
        return connection.execute(statement.encode(), parameters, prepare=prepare)

    @contextmanager
    def pipeline(self) -> Iterator[None]:
        """Statements of ``send`` go out together (S5); all have their results when it ends."""
        first: psycopg.Error | None = None
        try:
            with self._connected(BULK_MS).pipeline():
                try:
                    yield
                except psycopg.Error as error:  # psycopg ends the pipeline first, else it logs that it cannot
                    first = error
        except psycopg.Error as error:
            raise first or error from None
        if first is not None:
            raise first

    def send(self, statement: str, parameters: Sequence[object] = ()) -> psycopg.Cursor[PostgresRow]:
        """One statement of a pipeline, with parameters ``$1``, …; the server keeps its plan if it comes often."""
        connection = self._connected(BULK_MS)
        self._before(statement)
        return psycopg.RawCursor(connection).execute(statement.encode(), parameters)

    def copy_in(self, statement: str, content: Buffer) -> int:
        """Run a ``COPY … FROM STDIN``; returns the number of rows."""
        connection = self._connected(BULK_MS)
        self._before(statement)
        with connection.cursor() as cursor:
            with cursor.copy(statement.encode()) as copy:
                copy.write(content)
            return cursor.rowcount

    def copy_out(self, statement: str) -> Iterator[Buffer]:
        """Run a ``COPY … TO STDOUT``, and read it block by block."""
        connection = self._connected(BULK_MS)
        self._before(statement)
        with connection.cursor() as cursor, cursor.copy(statement.encode()) as copy:
            yield from copy

    def failure(self, error: psycopg.Error, what: str) -> TrunklineError:
        """What an error means while nothing has been committed."""
        state, text = error.sqlstate, _message(error)
        if state is None and not isinstance(error, psycopg.OperationalError):
            return self._permanent(f"{what} at {self.place}: {text}")
        if state == "53200":  # in most cases the table of locks is full
            return Unreachable(
                f"{what} at {self.place}: {text}; raise the server's max_locks_per_transaction, or memory"
            )
        if state is None or state.startswith(TRANSIENT):
            return Unreachable(f"{what} at {self.place}: {text}; retrying, check the server if this persists")
        if state == "42501":
            return self._permanent(f"{what} at {self.place}: {text}; grant the user what it needs, then resume")
        return self._permanent(f"{what} at {self.place}: {text}; fix the table or the row, then resume")

    @property
    def connected(self) -> bool:
        """Whether the connection has outlived the last error."""
        return not self._lost()

    def new_session(self) -> PostgresSession:
        """Another session with the same server, for a long read beside this one."""
        return PostgresSession(*self._given, permanent=self._permanent)

    def close(self) -> None:
        """The next statement connects again."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _before(self, statement: str) -> None:
        """Called before each statement is sent; tests stop the process here."""

    def _begin(self, how: str) -> None:
        kept = self._connection is not None
        try:
            self.run(how)
        except psycopg.OperationalError as error:
            if not kept or not self._lost() or isinstance(error, _TimedOut):
                raise
            self.close()
            self.run(how)

    def _roll_back(self) -> None:
        """End the transaction; if that fails, close the connection."""
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
                f"{what} at {self.place}: the response to COMMIT was lost ({_message(error)}); read the position again"
            ) from error

    def _lost(self) -> bool:
        return self._connection is None or self._connection.closed

    def _connected(self, wait_ms: int) -> _Connection:
        if self._connection is None:
            self._connection = self._connect()
        self._connection.timeout_s = wait_ms / 1000
        return self._connection

    def _connect(self) -> _Connection:
        try:
            connection = _Connection.connect(self._conninfo, autocommit=True, client_encoding="UTF8")
        except psycopg.OperationalError as error:
            text = _message(error)
            if any(phrase in text for phrase in PERMANENT):
                raise self._permanent(f"{self.place} refuses the login: {text}; fix the dsn or the password") from None
            raise Unreachable(f"{self.place} does not answer: {text}; retrying") from None
        if connection.info.server_version < OLDEST_SERVER:
            connection.close()
            raise self._permanent(f"{self.place} is older than PostgreSQL 15; upgrade the server")
        connection.adapters.register_dumper(BinaryParameter, _BinaryDumper)
        connection.prepared_max = PLANS_MAX
        connection.execute(SETTINGS)
        return connection


def _message(error: psycopg.Error) -> str:
    """The server's message, on one line."""
    diagnosis = error.diag
    where = (diagnosis.context or "").rpartition("\n")[2]  # the last line is the statement's, with the column
    parts = [diagnosis.message_primary, diagnosis.message_detail, where]
    return ": ".join(part for part in parts if part) or " ".join(str(error).split()) or type(error).__name__


class _SharedSession:
    def __init__(self, session: PostgresSession) -> None:
        self.session = session
        self.users = 0


@cache
def _shared_sessions() -> dict[tuple[int, str, str | None], _SharedSession]:
    """Global to the process: a server accepts a hundred connections, and may hold ten thousand destinations."""
    return {}


def borrow_session(dsn: str, password: str | None) -> PostgresSession:
    """The shared session of this process for a database; return it with ``return_session``."""
    key = (os.getpid(), dsn, password)
    known = _shared_sessions().setdefault(key, _SharedSession(PostgresSession(dsn, password)))
    known.users += 1
    return known.session


def return_session(session: PostgresSession) -> None:
    """The last user closes the session."""
    [(key, known)] = [(key, known) for key, known in _shared_sessions().items() if known.session is session]
    known.users -= 1
    if known.users == 0:
        del _shared_sessions()[key]
        session.close()


def password_of(address: PostgresAddress) -> str | None:
    if address.password_env is None:
        return None
    return secret(address.password_env, f"the password for {address.dsn}")
