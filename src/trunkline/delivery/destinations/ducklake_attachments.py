"""The lakes that a process has attached, in one DuckDB instance: loading and attaching cost more than a small flush.

Rules
 L1  A catalog in a DuckDB file can be open in one process at a time, so it is attached for one call. Other lakes stay
     attached; beyond a limit, the least recently used idle one is detached, and so is one after an error.
 L2  DuckLake does not retry a commit: snapshots are numbered, and the catalog refuses one that is not the next after
     the one that was read. So a transaction that commits saw all earlier commits.
 L3  Only a writer creates a lake; a reader gets ``NoLake``.
"""

from __future__ import annotations

import tempfile
import threading
import uuid
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
from msgspec import Struct

from trunkline.delivery.backends.duckdb_pool import extension_file, new_duckdb
from trunkline.delivery.backends.ducklake_attachment import catalog_location, catalog_scanners, lake_url, password_part
from trunkline.delivery.backends.sql import first_line, literal
from trunkline.delivery.config.addresses import LakeAddress
from trunkline.errors import DestinationHalted, OutcomeUnknown, Refused, Unreachable

# Catalogs that stay attached: attaching and reading the schema costs a third of a small flush. One in SQLite takes
# about 150 KiB of memory, one in PostgreSQL a connection, in every process that uses it.
ATTACHED_MAX: Final = {"duckdb": 0, "sqlite": 8192, "postgres": 16}
MEMORY_MB_MAX: Final = 1024  # of an instance; the rest spills to disk
REASON_CHARACTERS_MAX: Final = 400  # of an error message of DuckDB
# Most of a small flush is the planning of DuckLake's own queries against its catalog: only these optimizers are worth
# their time. Some of the others also trust DuckLake's statistics, which can be wrong for older versions.
OPTIMIZERS: Final = ("filter_pushdown", "unused_columns", "join_filter_pushdown")
CONFLICTS: Final = ("Exceeded the maximum retry count", "Transaction conflict")
NOT_A_LAKE: Final = "creating a new DuckLake is explicitly disabled"
STILL_OPEN: Final = "Unique file handle conflict"  # in this process
BUSY: Final = ("database is locked", STILL_OPEN)
WAIT_S_MAX: Final = 5.0  # for another session to end
CONNECT_S_MAX: Final = 10  # to a PostgreSQL server; it blocks other lakes of the process
PERMANENT: Final = (  # parts of messages about what only an operator can resolve
    "password authentication failed",
    "no password supplied",
    "pg_hba.conf",
    "FATAL:  database",
    "FATAL:  role",
    "not a valid DuckDB database",
)
TRANSIENT: Final = (
    duckdb.ConnectionException,
    duckdb.HTTPException,
    duckdb.InterruptException,
    duckdb.IOException,
    duckdb.OutOfMemoryException,
    duckdb.TransactionException,
)


class NoLake(DestinationHalted):
    """There is no lake at this address."""


class CommitConflict(Refused):
    """Another process committed to the catalog since this transaction began; nothing was written."""


class CatalogKey(Struct, frozen=True):
    """The fields of an address that identify a lake."""

    location: str
    data_path: str | None
    password_env: str | None


class _Attached(Struct):
    catalog: CatalogKey
    kind: str
    alias: str
    users: int = 0
    suspect: bool = False


class LakeSession:
    """One connection, for one call; without a lake until ``attach``."""

    def __init__(self, lakes: AttachedLakes, cursor: duckdb.DuckDBPyConnection, address: LakeAddress) -> None:
        self._lakes = lakes
        self._address = address
        self._attached: _Attached | None = None
        self.cursor = cursor

    @property
    def alias(self) -> str:
        assert self._attached is not None
        return self._attached.alias

    def attach(self, *, create: bool = False) -> None:
        """Raises ``NoLake`` if there is none, unless ``create``."""
        self._attached = self._lakes.attach(self._address, create=create)

    def detach(self, *, suspect: bool) -> None:
        if self._attached is not None:
            self._lakes.release(self._attached, suspect=suspect)
            self._attached = None

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        return self._lakes.run(self.cursor, statement).fetchall()

    def roll_back(self) -> None:
        with suppress(duckdb.Error):  # there may be no transaction
            self.cursor.execute("ROLLBACK")

    def read(self, statement: str, batch_rows: int) -> pa.RecordBatchReader:
        return self._lakes.run(self.cursor, statement).to_arrow_reader(batch_rows)

    def commit(self) -> None:
        """Raises ``CommitConflict``, or ``OutcomeUnknown`` if the catalog does not report the outcome."""
        try:
            self.run("COMMIT")
        except duckdb.Error as error:
            if any(text in str(error) for text in CONFLICTS):
                raise CommitConflict(
                    f"another process wrote to {self._address.catalog} at the same time; retrying"
                ) from error
            raise OutcomeUnknown(
                f"the outcome of a commit to {self._address.catalog} is unknown ({_reason(error, self._address)}); "
                "the position is read again before the next write"
            ) from error


class AttachedLakes:
    """One DuckDB instance with any number of lakes. Thread-safe."""

    def __init__(self, threads: int = 1) -> None:
        self._threads = threads
        self._instance: duckdb.DuckDBPyConnection | None = None
        self._attached: OrderedDict[CatalogKey, _Attached] = OrderedDict()  # by last use
        self.flushed: Counter[LakeAddress] = Counter()  # flushes of each table, in this process
        self._numbered = 0
        self._lock = threading.Lock()
        self._released = threading.Condition(self._lock)  # notified when a session ends

    def run(self, cursor: duckdb.DuckDBPyConnection, statement: str) -> duckdb.DuckDBPyConnection:
        """All statements pass here."""
        return cursor.execute(statement)

    @contextmanager
    def session(self, address: LakeAddress) -> Iterator[LakeSession]:
        """A connection that is rolled back and closed at the end. After an error of DuckDB its lake is detached.

        Such errors become ``Unreachable`` or ``DestinationHalted``: before a commit nothing has changed.
        """
        with _translated_errors(address):
            session = LakeSession(self, self._cursor(), address)
            suspect = False
            try:
                yield session
            except (duckdb.Error, OutcomeUnknown) as error:
                suspect = True
                if isinstance(error, duckdb.FatalException | duckdb.InternalException):
                    self._abandon()
                raise
            finally:
                session.roll_back()
                session.cursor.close()
                session.detach(suspect=suspect)

    def close(self) -> None:
        with self._lock:
            if self._instance is not None:
                self._instance.close()
            self._instance = None
            self._attached.clear()

    # ---------------------------------------------------------------------------------------------------- attaching

    def attach(self, address: LakeAddress, *, create: bool) -> _Attached:
        catalog = CatalogKey(address.catalog, address.data_path, address.password_env)
        with self._lock:
            attached = self._attached.get(catalog)
            if attached is None:
                kind, _ = catalog_location(address.catalog)
                attached = _Attached(catalog, kind, self._attach_when_free(address, create=create))
                self._attached[catalog] = attached
            self._attached.move_to_end(catalog)
            attached.users += 1
            return attached

    def release(self, attached: _Attached, *, suspect: bool) -> None:
        with self._lock:
            attached.users -= 1
            attached.suspect = attached.suspect or suspect
            self._released.notify_all()
            if attached.users == 0 and attached.suspect:
                self._detach(attached)
            if len(self._attached) > ATTACHED_MAX[attached.kind]:
                idle = [each for each in self._attached.values() if each.users == 0 and each.kind == attached.kind]
                for each in idle[: max(0, len(idle) - ATTACHED_MAX[attached.kind])]:
                    self._detach(each)

    def _attach_when_free(self, address: LakeAddress, *, create: bool) -> str:
        """A detached file stays open until all queries that ran at that moment end."""
        while True:
            try:
                return self._attach(address, create=create)
            except duckdb.BinderException as error:
                others = any(each.users for each in self._attached.values())
                if STILL_OPEN not in str(error) or not others or not self._released.wait(WAIT_S_MAX):
                    raise

    def _attach(self, address: LakeAddress, *, create: bool) -> str:
        instance = self._running()
        kind, location = catalog_location(address.catalog)
        for extension in catalog_scanners(address):
            instance.execute(f"LOAD {literal(str(extension_file(extension)))}")
        options = ["DATA_INLINING_ROW_LIMIT 0", f"CREATE_IF_NOT_EXISTS {literal(create)}"]
        options += [f"DATA_PATH {literal(address.data_path)}"] if address.data_path else []
        if kind != "postgres" and not _catalog_exists(Path(location), address, create=create) and kind == "sqlite":
            options.append("META_JOURNAL_MODE 'WAL'")  # readers do not block writers; the file keeps this setting
        self._numbered += 1
        alias = f"lake{self._numbered}"
        waits = f" connect_timeout={CONNECT_S_MAX}" if kind == "postgres" and "connect_timeout" not in location else ""
        where = literal(lake_url(address, waits))
        try:
            self.run(instance, f"ATTACH {where} AS {alias} ({', '.join(options)})")
        except duckdb.Error as error:
            if NOT_A_LAKE in str(error):
                raise _no_lake(address) from error
            raise
        return alias

    def _detach(self, attached: _Attached) -> None:
        if self._attached.get(attached.catalog) is not attached or self._instance is None:
            return  # it was closed with the instance
        del self._attached[attached.catalog]
        try:
            self.run(self._instance, f"DETACH {attached.alias}")
        except duckdb.Error:
            self._forget_instance()

    # ----------------------------------------------------------------------------------------------------- instance

    def _cursor(self) -> duckdb.DuckDBPyConnection:
        with self._lock:
            return self._running().cursor()

    def _running(self) -> duckdb.DuckDBPyConnection:
        if self._instance is None:
            self._instance = self._new_instance()
        return self._instance

    def _abandon(self) -> None:
        with self._lock:
            self._forget_instance()

    def _forget_instance(self) -> None:
        """After a fatal error. The instance is closed with its last connection."""
        self._instance = None
        self._attached.clear()

    def _new_instance(self) -> duckdb.DuckDBPyConnection:
        instance = new_duckdb("ducklake")
        names = [name for (name,) in instance.execute("SELECT name FROM duckdb_optimizers()").fetchall()]
        for setting, value in (
            ("threads", self._threads),
            ("memory_limit", f"{MEMORY_MB_MAX}MB"),
            ("temp_directory", str(Path(tempfile.gettempdir()) / f"trunkline-{uuid.uuid4()}")),
            ("ducklake_max_retry_count", 0),
            ("catalog_error_max_schemas", 0),  # otherwise a missing table is searched in every other lake
            ("disabled_optimizers", ",".join(name for name in names if name not in OPTIMIZERS)),
        ):
            instance.execute(f"SET {setting} = {literal(value)}")
        return instance


@cache
def process_lakes() -> AttachedLakes:
    """Global to the process."""
    return AttachedLakes()


def _catalog_exists(path: Path, address: LakeAddress, *, create: bool) -> bool:
    """Whether a catalog's file exists; with ``create``, creates its directory."""
    try:
        if create:
            path.parent.mkdir(parents=True, exist_ok=True)
        path.stat()
    except FileNotFoundError as error:
        if not create:
            raise _no_lake(address) from error
        return False
    except OSError as error:
        raise Unreachable(
            f"the catalog {address.catalog} cannot be opened ({error.strerror}); check the path and its permissions"
        ) from error
    return True


def _no_lake(address: LakeAddress) -> NoLake:
    return NoLake(f"there is no lake at {address.catalog}; seed the destination")


@contextmanager
def _translated_errors(address: LakeAddress) -> Iterator[None]:
    try:
        yield
    except duckdb.Error as error:
        what = f"table {address.schema}.{address.table} of {address.catalog}"
        reason = _reason(error, address)
        transient = isinstance(error, TRANSIENT) and not any(text in reason for text in PERMANENT)
        if transient or any(text in reason for text in BUSY):
            raise Unreachable(f"{what} cannot be reached ({reason}); retrying") from error
        raise DestinationHalted(f"{what} cannot be used ({reason}); fix it, then resume the destination") from error


def _reason(error: duckdb.Error, address: LakeAddress) -> str:
    """The message of DuckDB, without the password that it repeats."""
    return first_line(error).replace(password_part(address) or "\0", "")[:REASON_CHARACTERS_MAX]
