"""The control store in a SQLite file: for deliverers on one machine. The clock is the machine's."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from trunkline.delivery.control.contract import NoControlStore
from trunkline.delivery.control.database import ADDED, ADDED_TABLES, FORMAT_VERSION, TABLES, Row, Values
from trunkline.errors import ConfigError, OutcomeUnknown, StorageError, TrunklineError, Unreachable

BUSY_MS: Final = 5_000  # how long to wait for another process that writes; longer: renewals come too late
APPLICATION_ID: Final = 0x54524B43  # "TRKC", in the file's header, so that another program's file is rejected
PASSING: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)


class SqliteDatabase:
    def __init__(self, path: Path, *, create: bool) -> None:
        self._path = path
        self._create_missing = create
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    @property
    def elements(self) -> Callable[[str], str]:
        return "json_each(:{}) AS j".format

    @contextmanager
    def transaction(self, *, writing: bool) -> Iterator[None]:
        with self._lock:
            try:
                connection = self._connected()
                connection.execute("BEGIN IMMEDIATE" if writing else "BEGIN")
                yield
            except BaseException as error:
                self._roll_back()
                if isinstance(error, sqlite3.Error):
                    raise self._failure(error) from error
                raise
            self._commit(connection)

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def run(self, statement: str, values: Values) -> list[Row]:
        assert self._connection is not None, "a statement outside of a transaction"
        return self._connection.execute(statement, values).fetchall()

    def close(self) -> None:
        with self._lock:
            self._disconnect()

    def _commit(self, connection: sqlite3.Connection) -> None:
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back()
            if _primary(error) == sqlite3.SQLITE_BUSY:
                raise self._failure(error) from error
            self._disconnect()
            raise OutcomeUnknown(f"control store {self._path}: {error}; check its disk, and retry") from error

    def _roll_back(self) -> None:
        if self._connection is not None and self._connection.in_transaction:
            try:
                self._connection.execute("ROLLBACK")
            except sqlite3.Error:
                self._disconnect()

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            self._check_path()
            connection = sqlite3.connect(
                self._path, timeout=BUSY_MS / 1000, isolation_level=None, check_same_thread=False
            )
            self._connection = connection  # first, so that a failure below still closes it
            try:
                self._prepare(connection)
            except BaseException:
                self._disconnect()
                raise
        return self._connection

    def _check_path(self) -> None:
        if not self._path.parent.is_dir():
            raise ConfigError(
                f"control store {self._path}: the directory {self._path.parent} does not exist; create it"
            )
        if not self._create_missing and (not self._path.is_file() or self._path.stat().st_size == 0):
            raise NoControlStore(f"there is no control store {self._path} yet; `trunkline deliver run` creates it")

    def _prepare(self, connection: sqlite3.Connection) -> None:
        [(application,)] = connection.execute("PRAGMA application_id")
        if _tables(connection) == 0:
            self._create(connection)
        elif application != APPLICATION_ID:
            raise ConfigError(f"control store {self._path} is another program's file; choose another name")
        connection.execute("PRAGMA synchronous = FULL")  # a token that was granted must not be granted again
        [(version,)] = connection.execute("SELECT version FROM _trunkline_format")
        if version != FORMAT_VERSION:
            raise ConfigError(
                f"control store {self._path} has format {version}, and this program reads {FORMAT_VERSION}; upgrade it"
            )
        if not (ADDED.keys() <= _columns(connection) and ADDED_TABLES.keys() <= _table_names(connection)):
            connection.execute("BEGIN IMMEDIATE")
            for statement in ADDED_TABLES.values():
                connection.execute(statement)
            for name in ADDED.keys() - _columns(connection):  # that no other process has added
                connection.execute(ADDED[name])
            connection.execute("COMMIT")

    def _create(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA journal_mode = WAL")  # the file remembers it
        connection.execute("BEGIN IMMEDIATE")
        if _tables(connection) == 0:  # no other process was faster
            for statement in (*TABLES, f"PRAGMA application_id = {APPLICATION_ID}"):
                connection.execute(statement)
        connection.execute("COMMIT")

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _failure(self, error: sqlite3.Error) -> TrunklineError:
        code, text = _primary(error), f"control store {self._path}: {error}"
        if code in PASSING:
            return Unreachable(f"{text}; free its disk or stop the program that locks it; it is retried")
        if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
            return ConfigError(f"{text}; let this user write the file and its directory, or choose another file")
        if code == sqlite3.SQLITE_NOTADB:
            return ConfigError(f"{text}; choose another file")
        return StorageError(f"{text}; restore a backup, or start with a new one: no rows depend on it")


def _tables(connection: sqlite3.Connection) -> int:
    [(count,)] = connection.execute("SELECT count(*) FROM sqlite_master")
    return int(count)


def _table_names(connection: sqlite3.Connection) -> set[str]:
    return {str(name) for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def _columns(connection: sqlite3.Connection) -> set[str]:
    return {str(row[1]) for row in connection.execute("PRAGMA table_info(_trunkline_destinations)")}


def _primary(error: sqlite3.Error) -> int:
    """The primary error code, without its extension."""
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF
