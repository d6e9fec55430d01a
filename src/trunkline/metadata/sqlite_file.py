"""The SQLite file that holds the metadata of one cluster. Blocking code: one worker thread calls it.

Write-ahead journal with ``synchronous=FULL``: a commit is one write and one fsync of the journal, and SQLite syncs the
directory when it makes the journal. (NORMAL would leave the last commits to a power cut; a rollback journal takes three
syncs.) Other programs such as ``sqlite3`` may read the file at any time. One coordinator writes: it holds the lock file
beside it while it runs.

Segments have their own rows: a change concerns one or two of them, however many the log has, and writes only these.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Iterable
from pathlib import Path

from msgspec.structs import replace

from trunkline.core.effects import Record
from trunkline.core.messages import NodeInfo
from trunkline.core.projection import Projection, Segment
from trunkline.core.register import ProjectionAccepted, RegisterImage, fold
from trunkline.errors import StorageError
from trunkline.metadata.store import StoreUnavailable
from trunkline.metadata.stored_json import decode, encode

FORMAT_VERSION = 2  # 1: the segments of a log are part of its projection
APPLICATION_ID = 0x54524B4C  # "TRKL", in the file's header: identifies our files
PRIVATE_FILE = 0o600  # a writer controls the cluster, a reader knows all addresses
PRIVATE_DIRECTORY = 0o700
BUSY_MS = 1000  # how long a commit waits for a program that locks the file; longer: callers time out

SEGMENTS = """CREATE TABLE segments
    (log TEXT NOT NULL, number INTEGER NOT NULL, segment TEXT NOT NULL, PRIMARY KEY (log, number)) WITHOUT ROWID"""

SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE cluster (one INTEGER PRIMARY KEY CHECK (one = 1), id TEXT NOT NULL);
CREATE TABLE nodes (node TEXT PRIMARY KEY, info TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE logs (log TEXT PRIMARY KEY, epoch INTEGER NOT NULL, projection TEXT NOT NULL);
{SEGMENTS};
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FORMAT_VERSION};
COMMIT;
"""


class SqliteFile:
    """An open and locked file. After ``StoreUnavailable`` from ``commit``, call ``load`` to learn what is stored."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._lock: int | None = None
        self._segments: dict[str, tuple[Segment, ...]] = {}  # as they are stored, by log

    def open(self) -> None:
        """Lock the file, create it if needed, check it. Raises ``StorageError``."""
        try:
            self._path.parent.mkdir(PRIVATE_DIRECTORY, parents=True, exist_ok=True)
            self._lock_file()
            self._make_private()
            self._prepare(self._connect())
        except (OSError, sqlite3.Error) as error:
            self.close()
            raise StorageError(f"{self._path} cannot be opened: {error}; check the disk, or restore it") from error
        except StorageError:
            self.close()
            raise

    def load(self) -> RegisterImage:
        """Read everything through a new connection: one whose commit failed may hold half of it.

        The journal may hold a commit whose sync failed or was interrupted by a kill. SQLite shows it, yet a power cut
        could still lose it. A checkpoint syncs it: what is read afterwards is durable.
        """
        self._disconnect()
        try:
            connection = self._connect()
            [busy, frames, moved] = connection.execute("PRAGMA wal_checkpoint(FULL)").fetchone()
            if busy or moved < frames:
                raise sqlite3.OperationalError("another program reads or writes it")
            projections = self._projections(connection)
            self._segments = {projection.log: projection.segments for projection in projections}
            nodes = self._nodes(connection)
        except sqlite3.Error as error:
            raise self._unavailable(error) from error
        except ValueError as error:
            raise StorageError(f"{self._path}: {error}") from error
        return RegisterImage(projections, nodes)

    def commit(self, records: Iterable[Record]) -> None:
        """Make the records durable, all or none."""
        try:
            connection = self._connect()
            with connection:
                connection.execute("BEGIN IMMEDIATE")
                for record in records:
                    self._write(connection, record)
        except sqlite3.Error as error:
            self._disconnect()
            raise self._unavailable(error) from error
        except ValueError as error:
            raise StorageError(f"{self._path}: {error}") from error

    def cluster(self) -> str:
        try:
            row = self._connect().execute("SELECT id FROM cluster").fetchone()
        except sqlite3.Error as error:
            raise self._unavailable(error) from error
        return "" if row is None else str(row[0])

    def create_cluster(self, proposed: str) -> str:
        try:
            with self._connect() as connection:
                connection.execute("INSERT OR IGNORE INTO cluster VALUES (1, ?)", (proposed,))
        except sqlite3.Error as error:
            self._disconnect()
            raise self._unavailable(error) from error
        return self.cluster()

    def close(self) -> None:
        self._disconnect()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _write(self, connection: sqlite3.Connection, record: Record) -> None:
        match record:
            case ProjectionAccepted(projection):
                self._write_projection(connection, projection)
            case _:
                self._write_nodes(connection, record)

    def _projections(self, connection: sqlite3.Connection) -> tuple[Projection, ...]:
        segments: dict[str, list[Segment]] = {}
        for name, text in connection.execute("SELECT log, segment FROM segments ORDER BY log, number"):
            segments.setdefault(name, []).append(decode(Segment, text))
        rows = connection.execute("SELECT log, projection FROM logs ORDER BY log")
        return tuple(replace(decode(Projection, text), segments=tuple(segments.get(name, ()))) for name, text in rows)

    def _nodes(self, connection: sqlite3.Connection) -> tuple[NodeInfo, ...]:
        rows = connection.execute("SELECT info FROM nodes ORDER BY node")
        return tuple(decode(NodeInfo, text) for (text,) in rows)

    def _write_nodes(self, connection: sqlite3.Connection, record: Record) -> None:
        """The register decides what a record does to the registry (``fold``)."""
        before = self._nodes(connection)
        after = fold(RegisterImage((), before), record).nodes
        for info in before:
            if info not in after:
                connection.execute("DELETE FROM nodes WHERE node = ?", (info.node,))
        for info in after:
            if info not in before:
                connection.execute("INSERT INTO nodes VALUES (?, ?)", (info.node, encode(info).decode()))

    def _write_projection(self, connection: sqlite3.Connection, projection: Projection) -> None:
        """The register compared the epoch in memory; the file compares it again, in case another program edited it."""
        text = encode(replace(projection, segments=())).decode()
        if projection.epoch == 1:
            done = connection.execute("INSERT OR IGNORE INTO logs VALUES (?, 1, ?)", (projection.log, text))
        else:
            done = connection.execute(
                "UPDATE logs SET epoch = epoch + 1, projection = ? WHERE log = ? AND epoch = ?",
                (text, projection.log, projection.epoch - 1),
            )
        if done.rowcount != 1:
            raise sqlite3.IntegrityError(f"log {projection.log} was changed by another program")
        self._write_segments(connection, projection)

    def _write_segments(self, connection: sqlite3.Connection, projection: Projection) -> None:
        """Only those that differ from the stored ones. If the transaction fails, ``load`` reads them again."""
        log, segments = projection.log, projection.segments
        stored = {segment.index: segment for segment in self._segments.get(log, ())}
        rows = [(log, s.index, encode(s).decode()) for s in segments if stored.get(s.index) != s]
        connection.executemany("INSERT OR REPLACE INTO segments VALUES (?, ?, ?)", rows)
        old = stored.keys() - {segment.index for segment in segments}
        connection.executemany("DELETE FROM segments WHERE log = ? AND number = ?", [(log, number) for number in old])
        self._segments[log] = segments

    def _lock_file(self) -> None:
        lock = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise StorageError(
                f"{self._path}: another coordinator uses it; stop that one, or give this one another file"
            ) from None
        self._lock = lock

    def _make_private(self) -> None:
        """SQLite gives its other files the mode of this one. Files of an older version are restricted."""
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE))
        for suffix in ("", "-wal", "-shm", ".lock"):
            with contextlib.suppress(OSError):  # it does not exist, or belongs to another user
                os.chmod(f"{self._path}{suffix}", PRIVATE_FILE)

    def _connect(self) -> sqlite3.Connection:
        """The connection, a new one if the last one failed."""
        if self._lock is None:
            raise StoreUnavailable(f"{self._path} is closed; open the store again")
        if self._connection is None:
            connection = sqlite3.connect(
                self._path, timeout=BUSY_MS / 1000, isolation_level=None, check_same_thread=False
            )
            self._connection = connection  # first, so that a failure below still closes it
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _prepare(self, connection: sqlite3.Connection) -> None:
        [version] = connection.execute("PRAGMA user_version").fetchone()
        [application] = connection.execute("PRAGMA application_id").fetchone()
        [tables] = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if tables == 0:
            connection.executescript(SCHEMA)
            self._sync_directory()
        elif application != APPLICATION_ID:
            raise StorageError(f"{self._path} is not a metadata file of Trunkline; give another file")
        elif version == 1:
            self._upgrade(connection)
        elif version != FORMAT_VERSION:
            raise StorageError(f"{self._path} has format {version}, this program reads {FORMAT_VERSION}; upgrade it")
        [found] = connection.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise StorageError(f"{self._path} is damaged ({found}); restore it from a copy")

    def _upgrade(self, connection: sqlite3.Connection) -> None:
        """From format 1, atomically."""
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(SEGMENTS)
            for name, text in connection.execute("SELECT log, projection FROM logs").fetchall():
                projection = decode(Projection, text)
                self._write_segments(connection, projection)
                without = encode(replace(projection, segments=())).decode()
                connection.execute("UPDATE logs SET projection = ? WHERE log = ?", (without, name))
            connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")

    def _sync_directory(self) -> None:
        directory = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _unavailable(self, error: sqlite3.Error) -> StoreUnavailable:
        return StoreUnavailable(
            f"{self._path}: {error}; free its disk or stop the program that locks it, then try again"
        )
