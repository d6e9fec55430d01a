"""A session with a captured PostgreSQL server beside its stream: for looks at the catalog, for chunks, for messages.

What passes by itself is raised as ``Unreachable``; what an operator must change as ``ConfigError``.
"""

from __future__ import annotations

import os
import socket
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

import psycopg
from msgspec import Struct
from psycopg import pq
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from trunkline.config import secret
from trunkline.delivery.backends.postgres_session import CONNECT_S, KEEPALIVE, LOCK_MS, PERMANENT, TRANSIENT
from trunkline.delivery.capture.postgres.snapshots import SESSION
from trunkline.errors import ConfigError, TrunklineError, Unreachable

STEADY: Final = (  # names are complete, no default ends a session, no standby delays a commit, no query is compiled
    "SET search_path = ''; SET jit = off; SET statement_timeout = 0; SET idle_session_timeout = 0; "
    "SET idle_in_transaction_session_timeout = 0; SET synchronous_commit = local; "
    f"SET lock_timeout = {LOCK_MS}; SET standard_conforming_strings = on"
)
ANSWER_S: Final = 30.0  # of a query that reads or writes a few records, with the wait for a lock
UNDEFINED_TABLE: Final = "42P01"

Answer = TypeVar("Answer")


class ServerAddress(Struct, frozen=True):
    """``password_env`` names the environment variable that holds the password."""

    dsn: str
    password_env: str | None = None

    def password(self) -> str | None:
        return None if self.password_env is None else secret(self.password_env, f"the password for {self.dsn}")


class _Connection(psycopg.Connection[tuple[Any, ...]]):
    """Closed when an answer takes too long: a server that hangs must not stop the capture for ever."""

    def wait(self, gen: PQGen[Answer], interval: float = 0.1, timeout: float | None = None) -> Answer:
        try:
            return super().wait(gen, interval, ANSWER_S if timeout is None else timeout)
        except psycopg.OperationalError as error:
            if self.pgconn.transaction_status != pq.TransactionStatus.ACTIVE:
                raise
            self.pgconn.finish()  # a late answer must not pass for that of a later query
            raise psycopg.OperationalError(f"no answer for {ANSWER_S:g} s") from error


class ServerSession:
    """Of one thread, except for ``interrupt``. Connects at once; a session that failed is closed."""

    def __init__(self, address: ServerAddress) -> None:
        self._address = address
        try:
            given = conninfo_to_dict(address.dsn)
        except psycopg.ProgrammingError as error:
            raise ConfigError(f"{_line(error)}: write the dsn like 'host=db dbname=shop user=capture'") from None
        own = {"client_encoding": "UTF8"} | ({"password": password} if (password := address.password()) else {})
        conninfo = make_conninfo("", **{"connect_timeout": CONNECT_S, **KEEPALIVE, **given, **own})
        try:
            self.connection = _Connection.connect(conninfo, autocommit=True)
        except psycopg.OperationalError as error:
            traceback.clear_frames(error.__traceback__)  # after a time-out they keep the socket open, in a cycle
            raise failure_of(error) from None
        self.run(f"{SESSION}; {STEADY}")

    @contextmanager
    def reporting(self) -> Iterator[psycopg.Connection[Any]]:
        """The connection, for functions that use it; its errors become those of the capture."""
        try:
            yield self.connection
        except psycopg.Error as error:
            self.close()
            raise failure_of(error) from error

    def ask(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with self.reporting():
            return self.connection.execute(query.encode(), values or None).fetchall()

    def run(self, statements: str) -> None:
        with self.reporting():
            self.connection.execute(statements.encode())

    def close(self) -> None:
        self.connection.close()

    def interrupt(self) -> None:
        """From another thread: whatever waits for the server fails now."""
        with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(self.connection.fileno())) as end:
            end.shutdown(socket.SHUT_RDWR)


def failure_of(error: psycopg.Error) -> TrunklineError:
    text, state = _line(error), error.sqlstate or ""
    if state.startswith(TRANSIENT) or state == UNDEFINED_TABLE:
        return Unreachable(f"PostgreSQL ended a query of the capture ({text}); it is repeated")
    lost = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    if lost and not state and not any(each in text for each in PERMANENT):
        return Unreachable(f"PostgreSQL is unreachable ({text}); it is retried")
    return ConfigError(f"PostgreSQL rejects the capture ({text}); change what it names, then restart the capture")


def _line(error: psycopg.Error) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
