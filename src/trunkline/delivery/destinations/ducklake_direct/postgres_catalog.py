"""A catalog in PostgreSQL, on a connection of its own.

Rules
 G1  The transaction sees one snapshot of the database (REPEATABLE READ). The row of the lake's next snapshot is
     inserted before any other: a primary key, on which the second of two writers waits, and then fails.
 G2  An error of that kind, or of serialization, is a conflict: nothing was written. If the answer to COMMIT is lost,
     the outcome is unknown.
 G3  The extension keeps its tables in the schema ``public``, whatever the search path of the user.
 G4  A process keeps a few connections; beyond that the least recently used one is closed.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

import psycopg

from trunkline.config import secret
from trunkline.delivery.backends.ducklake_attachment import catalog_location
from trunkline.delivery.backends.postgres_session import BULK_MS, PostgresSession
from trunkline.delivery.config.addresses import LakeAddress
from trunkline.delivery.destinations.ducklake_direct.bounds import Unusual
from trunkline.delivery.destinations.ducklake_direct.catalog import Watch
from trunkline.delivery.destinations.ducklake_errors import CommitConflict
from trunkline.errors import Unreachable

OPEN_MAX: Final = 16  # connections of one process; more: a server runs out of them, fewer: each flush connects
CONFLICTS: Final = ("23505", "40001", "40P01", "55P03")  # a number that is taken, serialization, deadlock, a lock
UNDEFINED: Final = ("42P01", "42703", "3F000")  # a table, a column, a schema


class _Session(PostgresSession):
    """With a transaction that writes under one snapshot (G1)."""

    def begin(self) -> None:
        self._begin("BEGIN ISOLATION LEVEL REPEATABLE READ")
        self.run("SET LOCAL search_path = public")

    def roll_back(self) -> None:
        self._roll_back()

    def commit(self, what: str) -> None:
        self._commit(what)


class PostgresCatalog:
    def __init__(self, address: LakeAddress, watch: Watch | None = None) -> None:
        self._address = address
        self._watch = watch
        self._session: _Session | None = None
        self._what = f"the catalog of the lake, table {address.schema}.{address.table}"

    @contextmanager
    def transaction(self) -> Iterator[bool]:
        self._what = f"the catalog of {self._address.data_path or 'a lake'}"
        with _borrowed(self._address) as session:
            self._session = session
            try:
                session.begin()
                yield True
            except psycopg.Error as error:
                if error.sqlstate in UNDEFINED:
                    raise Unusual(f"a catalog that is not as expected ({error.sqlstate})") from error
                if error.sqlstate in CONFLICTS:
                    raise CommitConflict(
                        f"another process wrote to {session.place} at the same time; retrying"
                    ) from error
                raise session.failure(error, self._what) from error
            finally:
                self._session = None
                session.roll_back()

    def rows(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        answer = self._sent(statement, parameters)
        return answer.fetchall()

    def run(self, statement: str, parameters: Sequence[Any] = ()) -> None:
        self._sent(statement, parameters)

    def _sent(self, statement: str, parameters: Sequence[Any]) -> psycopg.Cursor[tuple[Any, ...]]:
        assert self._session is not None
        if self._watch is not None:
            self._watch(statement)
        return self._session.run(statement.replace("?", "%s"), list(parameters) or None, wait_ms=BULK_MS)

    def commit(self) -> None:
        assert self._session is not None
        if self._watch is not None:
            self._watch("COMMIT")
        try:
            self._session.commit(self._what)
        except Unreachable as error:  # the server refused it
            raise CommitConflict(str(error)) from error

    def tables(self, names: Collection[str]) -> set[str]:
        found = self.rows(
            "SELECT tablename FROM pg_catalog.pg_tables WHERE schemaname = 'public' AND tablename = ANY(?)",
            [list(names)],
        )
        return {name for (name,) in found}

    def text(self, stored: Any) -> str:
        return bytes(stored).decode()

    def stored(self, text: str) -> Any:
        return text.encode()


class _Sessions:
    """Idle ones, by address (G4)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: OrderedDict[tuple[int, str, str | None], _Session] = OrderedDict()

    def take(self, address: LakeAddress) -> _Session:
        with self._lock:
            known = self._idle.pop(_key(address), None)
        return known if known is not None else _new_session(address)

    def give_back(self, address: LakeAddress, session: _Session) -> None:
        with self._lock:
            spare = [self._idle.pop(_key(address), None)]
            self._idle[_key(address)] = session
            while len(self._idle) > OPEN_MAX:
                (made_by, *_), oldest = self._idle.popitem(last=False)
                spare += [oldest] if made_by == os.getpid() else []  # another process uses that of a fork's parent
        for each in spare:
            if each is not None:
                each.close()


def _key(address: LakeAddress) -> tuple[int, str, str | None]:
    return os.getpid(), address.catalog, address.password_env


def _new_session(address: LakeAddress) -> _Session:
    location = catalog_location(address.catalog)[1]
    password = address.password_env
    return _Session(location, None if password is None else secret(password, f"the password for {address.catalog}"))


@cache
def _sessions() -> _Sessions:
    """Global to the process."""
    return _Sessions()


@contextmanager
def _borrowed(address: LakeAddress) -> Iterator[_Session]:
    session = _sessions().take(address)
    try:
        yield session
    finally:
        _sessions().give_back(address, session)
