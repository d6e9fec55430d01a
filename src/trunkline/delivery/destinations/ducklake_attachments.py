"""The lakes that a process has attached, in one DuckDB instance: loading and attaching cost more than a small flush.

Rules
 L1  A catalog in a DuckDB file can be open in one process at a time, so it is attached for one call. Other lakes stay
     attached; beyond a limit, the least recently used idle one is detached, and so is one after an error.
 L2  DuckLake does not retry a commit: snapshots are numbered, and the catalog refuses one that is not the next after
     the one that was read. So a transaction that commits saw all earlier commits.
 L3  Only a writer creates a lake; a reader gets ``NoLake``.
 L4  A catalog in SQLite has a rollback journal. With a write-ahead log readers see mixed states: DuckDB scans a table
     of SQLite over several connections, which may begin before and after a commit. A writer converts a catalog that an
     older release made with a write-ahead log, and tries again at its next call while readers prevent that. The journal
     is emptied after a commit, not deleted: a plain reader that saw it, and then cannot open it, gives up.
 L5  With a rollback journal a commit and a reader exclude each other. SQLite would wait for whole seconds, so it
     does not wait at all; and a commit that it refused leaves its lock behind until the lake is detached. So after such
     an error the lake is attached again, and the transaction repeated; after a few times SQLite waits: then no new
     reader begins.
 L6  A commit to a catalog in PostgreSQL may be done though its answer is lost. New files of a transaction are kept
     until that is known (``ducklake_kept_files.py``; on object stores, ``ducklake_store.py``).
 L7  DuckLake keeps every version of a lake's tables in memory, also of one that was detached, until the instance is
     closed. So a process that grew too much gets a new instance when no session is open.
 L8  A catalog in SQLite is attached with a lease, and detached when a direct transaction wants it
     (``backends/catalog_owners.py``). So one that is attached saw every direct commit of this process.
"""

from __future__ import annotations

import random
import resource
import tempfile
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

import duckdb
import pyarrow as pa
from msgspec import Struct

from trunkline.delivery.backends.catalog_owners import FileId, Lease, catalog_owners
from trunkline.delivery.backends.duckdb_pool import extension_file, new_duckdb
from trunkline.delivery.backends.ducklake_attachment import catalog_location, catalog_scanners, lake_url
from trunkline.delivery.backends.object_store import access_of, create_secret
from trunkline.delivery.backends.sql import literal
from trunkline.delivery.config.addresses import LakeAddress
from trunkline.delivery.config.object_urls import store_url
from trunkline.delivery.destinations.ducklake_errors import (
    FATAL,
    NOT_A_LAKE,
    STILL_OPEN,
    CommitConflict,
    commit_error,
    is_locked,
    no_lake,
    translated_errors,
)
from trunkline.delivery.destinations.ducklake_journal import ROLLBACK, mend_journal
from trunkline.delivery.destinations.ducklake_kept_files import KeptFiles, forget
from trunkline.delivery.destinations.ducklake_store import objects_stay
from trunkline.errors import OutcomeUnknown, TrunklineError, Unreachable

# Catalogs that stay attached: attaching and reading the schema costs a third of a small flush. One in SQLite takes
# about 150 KiB of memory, one in PostgreSQL a connection, in every process that uses it.
ATTACHED_MAX: Final = {"duckdb": 0, "sqlite": 8192, "postgres": 16}
MEMORY_MB_MAX: Final = 1024  # of an instance; the rest spills to disk
GROWTH_MB_MAX: Final = (
    1024  # of the process since the instance was made; less: it is made more often, which takes 0.2 s
)
SESSIONS_MIN: Final = 64  # of an instance, whatever else makes the process grow
# Most of a small flush is the planning of DuckLake's own queries against its catalog: only these optimizers are worth
# their time. Some of the others also trust DuckLake's statistics, which can be wrong for older versions.
OPTIMIZERS: Final = ("filter_pushdown", "unused_columns", "join_filter_pushdown")
LOCKED_S_MAX: Final = 10.0  # of reads that are repeated; a writer that waits for readers lets none begin for seconds
PAUSE_S: Final = 0.01  # before a locked catalog is tried again; it doubles each time
PAUSE_S_MAX: Final = 0.2
SHORT_TRIES: Final = 3  # of a transaction, before SQLite waits at its commit
PATIENT_MS: Final = 2000  # that SQLite waits then, in steps of a second
WAIT_S_MAX: Final = 5.0  # for another session to end
CONNECT_S_MAX: Final = 10  # to a PostgreSQL server; it blocks other lakes of the process


Found = TypeVar("Found")


class CatalogKey(Struct, frozen=True):
    """The fields of an address that identify a lake."""

    location: str
    data_path: str | None
    password_env: str | None
    access: tuple[str, ...]  # to an object store


class _Attached(Struct):
    catalog: CatalogKey
    kind: str
    alias: str
    instance: duckdb.DuckDBPyConnection | None
    users: int = 0
    suspect: bool = False
    files: KeptFiles | None = None
    lease: Lease | None = None

    def released(self) -> None:
        """It is detached, or can no longer be used."""
        if self.lease is not None:
            self.lease.release()


class LakeSession:
    """One connection, for one call; without a lake until ``attach``."""

    def __init__(self, lakes: AttachedLakes, cursor: duckdb.DuckDBPyConnection, address: LakeAddress) -> None:
        self._lakes = lakes
        self._attached: _Attached | None = None
        self._tries = 0
        self._begun_s = 0.0
        self.address = address
        self.cursor = cursor
        self.suspect = False  # whether the lake is detached at the end, in whatever state it is

    @property
    def alias(self) -> str:
        assert self._attached is not None
        return self._attached.alias

    def attach(self, *, create: bool = False, writes: bool = False) -> None:
        """Raises ``NoLake`` if there is none, unless ``create``."""
        self._attached = self._lakes.attach(self.address, create=create, writes=writes)

    def attach_again(self) -> None:
        """After an error of a locked catalog (L5). The transaction is over; temporary tables stay."""
        self._tries += 1
        self.roll_back()
        self.detach(suspect=True)
        time.sleep(random.uniform(0.5, 1) * min(PAUSE_S_MAX, PAUSE_S * 2**self._tries))
        patient = self._tries >= SHORT_TRIES
        self._attached = self._lakes.when_free(lambda: self._lakes.attach(self.address, writes=True, patient=patient))
        self.suspect = self.suspect or patient  # for this call

    def detach(self, *, suspect: bool) -> None:
        if self._attached is not None:
            self._lakes.release(self._attached, suspect=suspect)
            self._attached = None

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        return self._lakes.run(self.cursor, statement).fetchall()

    def begin(self) -> None:
        self._begun_s = time.time()
        self.run("BEGIN")

    def roll_back(self) -> None:
        with suppress(duckdb.Error):  # there may be no transaction
            self.cursor.execute("ROLLBACK")

    def read(self, statement: str, batch_rows: int) -> pa.RecordBatchReader:
        return self._lakes.run(self.cursor, statement).to_arrow_reader(batch_rows)

    def commit(self) -> None:
        """Raises ``CommitConflict``, or ``OutcomeUnknown`` if the catalog does not report the outcome."""
        assert self._attached is not None
        files = self._attached.files
        kept = [] if files is None else files.keep(self._begun_s)
        try:
            with objects_stay(self._attached.instance, self.address):
                self.run("COMMIT")
        except duckdb.Error as error:
            found = commit_error(error, self.address)
            if isinstance(found, CommitConflict):
                forget(kept)
            raise found from error
        forget(kept)

    def settle(self) -> None:
        """After an unknown outcome: files that DuckLake removed come back, if the catalog can be asked (L6)."""
        self.roll_back()
        self.detach(suspect=True)
        with suppress(duckdb.Error, TrunklineError):
            self.attach()


class AttachedLakes:
    """One DuckDB instance with any number of lakes. Thread-safe."""

    def __init__(self, threads: int = 1) -> None:
        self._threads = threads
        self._instance: duckdb.DuckDBPyConnection | None = None
        self._attached: OrderedDict[CatalogKey, _Attached] = OrderedDict()  # by last use
        self._journals: set[str] = set()  # catalogs in SQLite whose journal is as it should be (L4)
        self._numbered = 0
        self._open = 0  # sessions
        self._sessions = 0  # of this instance
        self._memory_mb = 0  # of the process when the instance was made
        self._lock = threading.Lock()
        self._released = threading.Condition(self._lock)  # notified when a session ends
        catalog_owners().join(self)

    def run(self, cursor: duckdb.DuckDBPyConnection, statement: str) -> duckdb.DuckDBPyConnection:
        """All statements pass here."""
        return cursor.execute(statement)

    @contextmanager
    def session(self, address: LakeAddress) -> Iterator[LakeSession]:
        """A connection that is rolled back and closed at the end. After an error of DuckDB its lake is detached.

        Such errors become ``Unreachable`` or ``DestinationHalted``: before a commit nothing has changed.
        """
        with translated_errors(address):
            session = LakeSession(self, self._cursor(), address)
            try:
                yield session
            except (duckdb.Error, CommitConflict, OutcomeUnknown) as error:
                session.suspect = True
                if isinstance(error, FATAL):
                    self._abandon()
                raise
            finally:
                session.roll_back()
                session.cursor.close()
                session.detach(suspect=session.suspect)
                self._session_ended()

    def when_free(self, attempt: Callable[[], Found]) -> Found:
        """Repeat what writes nothing while others have the catalog locked (L5)."""
        begun, pause = time.monotonic(), PAUSE_S
        while True:
            try:
                return attempt()
            except (duckdb.Error, CommitConflict, Unreachable) as error:
                if not is_locked(error) or time.monotonic() - begun > LOCKED_S_MAX:
                    raise
            time.sleep(random.uniform(0.5, 1) * pause)
            pause = min(PAUSE_S_MAX, 2 * pause)

    def close(self) -> None:
        with self._lock:
            if self._instance is not None:
                self._instance.close()
            self._instance = None
            self._clear()

    def detach_idle(self, file: FileId) -> None:
        """L8."""
        with self._lock:
            idle = [each for each in self._attached.values() if each.lease is not None and each.users == 0]
            for each in idle:
                if each.lease is not None and each.lease.file == file:
                    self._detach(each)

    # ---------------------------------------------------------------------------------------------------- attaching

    def attach(
        self, address: LakeAddress, *, create: bool = False, writes: bool = False, patient: bool = False
    ) -> _Attached:
        """``patient``: SQLite waits for readers at a commit."""
        catalog = CatalogKey(address.catalog, address.data_path, address.password_env, access_of(address))
        with self._lock:
            if writes and self._mended_journal(address) and (stale := self._attached.get(catalog)) and not stale.users:
                self._detach(stale)  # its connections do not know yet
            kind, _ = catalog_location(address.catalog)
            attached = self._attached.get(catalog)
            if attached is None:
                attached = self._new(catalog, kind, address, create=create, patient=patient)
                self._attached[catalog] = attached
            if kind == "postgres":
                self._settle_files(attached)
            self._attached.move_to_end(catalog)
            attached.users += 1
            return attached

    def release(self, attached: _Attached, *, suspect: bool) -> None:
        """A suspect lake is detached after its last user."""
        with self._lock:
            attached.users -= 1
            attached.suspect = attached.suspect or suspect or attached.instance is not self._instance
            self._released.notify_all()
            if attached.suspect and (attached.users == 0 or attached.kind == "sqlite"):
                self._detach(attached)
            if len(self._attached) > ATTACHED_MAX[attached.kind]:
                idle = [each for each in self._attached.values() if each.users == 0 and each.kind == attached.kind]
                for each in idle[: max(0, len(idle) - ATTACHED_MAX[attached.kind])]:
                    self._detach(each)

    def _new(self, catalog: CatalogKey, kind: str, address: LakeAddress, *, create: bool, patient: bool) -> _Attached:
        lease = catalog_owners().attaching(catalog_location(address.catalog)[1]) if kind == "sqlite" else None
        try:
            alias = self._attach_when_free(address, create=create, patient=patient)
        except BaseException:
            if lease is not None:
                lease.release()
            raise
        return _Attached(catalog, kind, alias, self._instance, lease=lease)

    def _attach_when_free(self, address: LakeAddress, *, create: bool, patient: bool) -> str:
        """A detached file stays open until all queries that ran at that moment end."""
        while True:
            try:
                return self._attach(address, create=create, patient=patient)
            except duckdb.BinderException as error:
                others = any(each.users for each in self._attached.values())
                if STILL_OPEN not in str(error) or not others or not self._released.wait(WAIT_S_MAX):
                    raise

    def _attach(self, address: LakeAddress, *, create: bool, patient: bool) -> str:
        instance = self._running()
        kind, location = catalog_location(address.catalog)
        for extension in catalog_scanners(address):
            instance.execute(f"LOAD {literal(str(extension_file(extension)))}")
        self._grant(instance, address)
        options = ["DATA_INLINING_ROW_LIMIT 0", f"CREATE_IF_NOT_EXISTS {literal(create)}"]
        options += [f"DATA_PATH {literal(address.data_path)}"] if address.data_path else []
        if kind != "postgres" and _is_new(Path(location), address, create=create):
            self._journals.add(location)
        if kind == "sqlite":
            options.append(f"META_BUSY_TIMEOUT {PATIENT_MS if patient else 0}")
            options += [f"META_JOURNAL_MODE '{ROLLBACK}'"] if location in self._journals else []
        self._numbered += 1
        alias = f"lake{self._numbered}"
        waits = f" connect_timeout={CONNECT_S_MAX}" if kind == "postgres" and "connect_timeout" not in location else ""
        where = literal(lake_url(address, waits))
        try:
            self.run(instance, f"ATTACH {where} AS {alias} ({', '.join(options)})")
        except duckdb.Error as error:
            if NOT_A_LAKE in str(error):
                raise no_lake(address) from error
            raise
        return alias

    def _grant(self, instance: duckdb.DuckDBPyConnection, address: LakeAddress) -> None:
        """Access to an object store: one for each data path at a time."""
        if store_url(address) is None:
            return
        for each in [each for each in self._attached.values() if each.catalog.data_path == address.data_path]:
            if each.catalog.access != access_of(address) and each.users:
                raise Unreachable(
                    f"another lake of this process uses {address.data_path} with other access; retrying, give each "
                    "its own data_path if this persists"
                )
            if each.catalog.access != access_of(address):
                self._detach(each)
        create_secret(instance, address)

    def _detach(self, attached: _Attached) -> None:
        """It is given out no more, and detached if no session uses it."""
        if self._attached.get(attached.catalog) is attached:
            del self._attached[attached.catalog]
        if attached.users:
            return
        if self._instance is not None and attached.instance is self._instance:  # else it was closed with the instance
            try:
                self.run(self._instance, f"DETACH {attached.alias}")
            except duckdb.Error:
                self._forget_instance()
        attached.released()

    def _mended_journal(self, address: LakeAddress) -> bool:
        """Whether a catalog has a journal that it should have, and had not when it was attached (L4)."""
        kind, location = catalog_location(address.catalog)
        if kind != "sqlite" or location in self._journals or not Path(location).exists():
            return False
        lease = catalog_owners().attaching(location)
        try:
            if not mend_journal(self._running(), location):
                return False
        finally:
            lease.release()
        self._journals.add(location)
        return True

    def _settle_files(self, attached: _Attached) -> None:
        """L6."""
        instance, catalog = self._running(), f"__ducklake_metadata_{attached.alias}"
        if attached.files is None:
            query = f"SELECT value FROM {catalog}.ducklake_metadata WHERE key = 'data_path'"
            attached.files = KeptFiles(instance.execute(query).fetchall()[0][0])

        def named(names: Collection[str]) -> set[str]:
            every = " UNION ALL ".join(
                f"SELECT parse_filename(path) AS name FROM {catalog}.{table}"
                for table in ("ducklake_data_file", "ducklake_delete_file")
            )
            query = f"SELECT name FROM ({every}) WHERE name IN ({', '.join(map(literal, names))})"
            return {name for (name,) in instance.execute(query).fetchall()}

        if attached.files.undecided:
            attached.files.settle(named)

    # ----------------------------------------------------------------------------------------------------- instance

    def _cursor(self) -> duckdb.DuckDBPyConnection:
        with self._lock:
            cursor = self._running().cursor()
            self._open += 1
            self._sessions += 1
            return cursor

    def _session_ended(self) -> None:
        with self._lock:
            self._open -= 1
            if self._open or self._sessions < SESSIONS_MIN or self._instance is None:
                return
            if _memory_mb() - self._memory_mb > GROWTH_MB_MAX:  # L7
                self._instance.close()
                self._forget_instance()

    def _running(self) -> duckdb.DuckDBPyConnection:
        if self._instance is None:
            self._instance = self._new_instance()
            self._sessions, self._memory_mb = 0, _memory_mb()
        return self._instance

    def _abandon(self) -> None:
        with self._lock:
            self._forget_instance()

    def _forget_instance(self) -> None:
        """After a fatal error. The instance is closed with its last connection."""
        self._instance = None
        self._clear()

    def _clear(self) -> None:
        """Lakes of a former instance. One that is in use is released by its last session."""
        for each in self._attached.values():
            if each.users == 0:
                each.released()
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


def _memory_mb() -> int:
    """Of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() // 2**20


def _is_new(path: Path, address: LakeAddress, *, create: bool) -> bool:
    """Whether a catalog's file must be made; its directory is. Raises ``NoLake`` without ``create``."""
    try:
        if create:
            path.parent.mkdir(parents=True, exist_ok=True)
        path.stat()
    except FileNotFoundError as error:
        if not create:
            raise no_lake(address) from error
        return True
    except OSError as error:
        raise Unreachable(
            f"the catalog {address.catalog} cannot be opened ({error.strerror}); check the path and its permissions"
        ) from error
    return False
