"""A catalog in SQLite, opened by Python's own library for one transaction.

Rules
 Y1  It is opened only while no part of this process has it open through DuckDB (``backends/catalog_owners.py``).
 Y2  The transaction takes SQLite's write lock at its beginning, so another writer cannot commit before its end.
     Readers go on until the commit, which waits for them; meanwhile no new one begins. If it waits in vain, nothing was
     written.
 Y3  The journal is a rollback journal that is emptied (L4), and everything is synced before COMMIT returns. A catalog
     with a write-ahead log is left to the extension, which converts it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from trunkline.delivery.backends.catalog_owners import catalog_owners
from trunkline.delivery.backends.ducklake_attachment import catalog_location
from trunkline.delivery.config.addresses import LakeAddress
from trunkline.delivery.destinations.ducklake_direct.bounds import Unusual
from trunkline.delivery.destinations.ducklake_direct.catalog import Watch
from trunkline.delivery.destinations.ducklake_errors import CatalogLocked
from trunkline.delivery.destinations.ducklake_journal import ROLLBACK
from trunkline.errors import DestinationHalted, OutcomeUnknown, TrunklineError, Unreachable

LOCK_S: Final = 10.0  # that a lock is waited for; shorter: busy catalogs fail, longer: a stuck reader delays a worker
LOCKED: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
UNKNOWN: Final = (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_NOTADB)  # no such table or column; no database
PASSING: Final = (*LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOMEM)


class SqliteCatalog:
    def __init__(self, address: LakeAddress, watch: Watch | None = None) -> None:
        self._address = address
        self._location = catalog_location(address.catalog)[1]
        self._watch = watch
        self._open: sqlite3.Connection | None = None

    @contextmanager
    def transaction(self) -> Iterator[bool]:
        with catalog_owners().direct(self._location) as mine:
            if not mine:
                yield False
                return
            try:
                self._open = self._connected()
                try:
                    usable = self._prepared()
                    if usable:
                        self.run("BEGIN IMMEDIATE")
                    yield usable
                finally:
                    connection, self._open = self._open, None
                    with suppress(sqlite3.Error):
                        if connection.in_transaction:
                            connection.rollback()
                    connection.close()
            except sqlite3.Error as error:
                if _primary(error) in UNKNOWN:
                    raise Unusual(f"a catalog that is not as expected ({error})") from error
                raise self._failure(error) from error

    def _connected(self) -> sqlite3.Connection:
        return sqlite3.connect(
            f"{Path(self._location).absolute().as_uri()}?mode=rw",
            uri=True,
            timeout=LOCK_S,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=0,
        )

    def _prepared(self) -> bool:
        """Y3."""
        assert self._open is not None
        if self._open.execute("PRAGMA journal_mode").fetchall() == [("wal",)]:
            return False
        self._open.execute(f"PRAGMA journal_mode = {ROLLBACK}").fetchall()
        self._open.execute("PRAGMA synchronous = FULL").fetchall()
        return True

    def rows(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        assert self._open is not None
        if self._watch is not None:
            self._watch(statement)
        return self._open.execute(statement, parameters).fetchall()

    def run(self, statement: str, parameters: Sequence[Any] = ()) -> None:
        self.rows(statement, parameters)

    def commit(self) -> None:
        try:
            self.run("COMMIT")
        except sqlite3.Error as error:
            assert self._open is not None
            if _primary(error) in LOCKED and self._open.in_transaction:  # it is rolled back
                raise CatalogLocked(f"others read {self._address.catalog} all the time; retrying") from error
            raise OutcomeUnknown(
                f"the outcome of a commit to {self._address.catalog} is unknown ({error}); the position is read again "
                "before the next write"
            ) from error

    def tables(self, names: Collection[str]) -> set[str]:
        marks = ", ".join("?" * len(names))
        found = self.rows(f"SELECT name FROM sqlite_master WHERE type = 'table' AND name IN ({marks})", list(names))
        return {name for (name,) in found}

    def text(self, stored: Any) -> str:
        return stored.decode() if isinstance(stored, bytes) else str(stored)

    def stored(self, text: str) -> Any:
        return text

    def _failure(self, error: sqlite3.Error) -> TrunklineError:
        """Of anything but a commit: nothing was written."""
        what = f"the catalog {self._address.catalog}"
        if _primary(error) in PASSING:
            return Unreachable(f"{what} cannot be written now ({error}); retrying")
        return DestinationHalted(f"{what} cannot be used ({error}); check the file, then resume the destination")


def _primary(error: sqlite3.Error) -> int:
    code: int = getattr(error, "sqlite_errorcode", 0) or 0
    return code & 0xFF
