"""SQLite files as destinations of Trunkline: ``type: sqlite``.

Rules
 S1  A file is a place. It has one writer at a time (``BEGIN IMMEDIATE``); readers have snapshots (write-ahead log).
 S2  A commit is on disk before it is reported (``synchronous = FULL``). If it fails, its outcome is unknown.
 S3  Reading creates nothing: where there is no file, an empty one in memory is read.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import msgspec
import pyarrow as pa

from trunkline import destinations as d
from trunkline.errors import ConfigError, DestinationHalted, OutcomeUnknown, Unreachable

BUSY_S = 5.0  # waiting for another writer; shorter: more retries, longer: a task is held up
PASSING = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN}
TYPES = {"integer": "INTEGER", "float": "", "text": "TEXT", "bytes": "BLOB"}  # "": a value stays as it is given
NATIVE = {"INTEGER": "BIGINT", "REAL": "DOUBLE", "BLOB": "BLOB"}
RECORDS = f"CREATE TABLE IF NOT EXISTS {d.MEMBERS} (member TEXT PRIMARY KEY, record TEXT NOT NULL)"
STAGE = "_trunkline_stage"
OP = d.Column(d.OP_COLUMN, "TINYINT")


class SqliteAddress(d.DestinationAddress, frozen=True, tag="sqlite"):
    """A table of an SQLite file."""

    path: Annotated[str, d.about("the file; it is created, with its directory, if it does not exist")]
    table: Annotated[str, d.about("of the file; with `tables`: `{table}`, if it is left out")]

    column_steps = repairs = one_writer = True
    paths = ("path",)

    @property
    def place(self) -> str:
        return os.path.realpath(self.path)

    def open_place(self) -> d.StorePlace:
        return d.StorePlace(SqliteStore(self.path))


class SqliteStore:
    """A file. ``trace`` is called with each statement before it runs."""

    def __init__(self, path: str, trace: Callable[[str], None] | None = None) -> None:
        self._path, self._trace = Path(path), trace

    def name(self, address: d.Address) -> str:
        assert isinstance(address, SqliteAddress)
        return address.table.encode().lower().decode()  # SQLite ignores the case of ASCII

    @contextmanager
    def transaction(self, *, writes: bool) -> Iterator[SqliteTransaction]:
        sql = None
        try:
            if writes:
                self._path.parent.mkdir(parents=True, exist_ok=True)
            path = self._path if writes or self._path.exists() else ":memory:"
            sql = sqlite3.connect(path, BUSY_S, isolation_level=None, check_same_thread=False)
            sql.set_trace_callback(self._trace)
            if writes:
                sql.execute("PRAGMA journal_mode = WAL")
                sql.execute("PRAGMA synchronous = FULL")
            sql.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
            yield SqliteTransaction(sql)
        except (sqlite3.Error, OSError) as error:
            if isinstance(error, OSError) or getattr(error, "sqlite_errorcode", 0) & 255 in PASSING:
                raise Unreachable(f"{self._path}: {error}; retrying") from error
            raise DestinationHalted(f"{self._path}: {error}; repair the file, or choose another") from error
        finally:
            if sql is not None:
                sql.close()  # what was not committed is undone

    def close(self) -> None:
        """No connection outlives its transaction."""


class SqliteTransaction:
    """The statements between BEGIN and COMMIT."""

    def __init__(self, sql: sqlite3.Connection) -> None:
        self._sql = sql

    def savepoint(self) -> None:
        self._sql.execute("SAVEPOINT member")

    def undo(self) -> None:
        self._sql.execute("ROLLBACK TO member")

    def commit(self) -> None:
        try:
            self._sql.execute("COMMIT")
        except sqlite3.Error as error:
            raise OutcomeUnknown(f"SQLite: {error}, while committing; the position shows what happened") from error

    def records(self, members: Iterable[str] | None) -> dict[str, d.MemberRecord]:
        if self.columns(d.MEMBERS, ()) is None:
            return {}
        which = "" if members is None else "WHERE member IN (SELECT value FROM json_each(?))"
        given = [] if members is None else [msgspec.json.encode(list(members)).decode()]
        rows = self._sql.execute(f"SELECT member, record FROM {d.MEMBERS} {which}", given)
        return {member: msgspec.json.decode(record, type=d.MemberRecord) for member, record in rows}

    def put_record(self, member: str, record: d.MemberRecord | None) -> None:
        self._sql.execute(RECORDS)
        self._sql.execute(f"DELETE FROM {d.MEMBERS} WHERE member = ?", [member])
        if record is not None:
            self._sql.execute(f"INSERT INTO {d.MEMBERS} VALUES (?, ?)", [member, msgspec.json.encode(record).decode()])

    def columns(self, table: str, remembered: d.Columns) -> d.Columns | None:
        known = {(column.name, TYPES[d.plain_type(column)]): column for column in remembered}
        held = self._sql.execute("SELECT name, type FROM pragma_table_info(?)", [table]).fetchall()
        return tuple(known.get(each) or d.Column(each[0], NATIVE.get(each[1], "VARCHAR")) for each in held) or None

    def create(self, table: str, columns: d.Columns, key: Sequence[str], temporary: str = "") -> None:
        if any(column.name.lower() == "_rowid_" for column in columns):
            raise ConfigError(f"table {table}: SQLite has a column _rowid_ of its own; leave that of the source out")
        listed = ", ".join(f"{_quoted(column.name)} {TYPES[d.plain_type(column)]}" for column in columns)
        self._sql.execute(f"CREATE {temporary} TABLE {_quoted(table)} ({listed})")
        if key:  # a random name: an index keeps it when its table is renamed
            self._sql.execute(f"CREATE INDEX _trunkline_{os.urandom(8).hex()} ON {_quoted(table)} ({_listed(key)})")

    def drop(self, table: str) -> int:
        rows = self._count(f"FROM {_quoted(table)}")
        self._sql.execute(f"DROP TABLE {_quoted(table)}")
        return rows

    def rename(self, table: str, to: str) -> None:
        self._sql.execute(f"ALTER TABLE {_quoted(table)} RENAME TO {_quoted(to)}")

    def insert(self, table: str, columns: d.Columns, rows: Iterable[pa.RecordBatch]) -> int:
        count, marks = 0, ", ".join("?" * len(columns))
        for batch in rows:
            values = zip(*(d.to_plain(column, batch.column(column.name)) for column in columns), strict=True)
            self._sql.executemany(f"INSERT INTO {_quoted(table)} ({_listed(columns)}) VALUES ({marks})", values)
            count += batch.num_rows
        return count

    def read(self, table: str, columns: d.Columns) -> Iterator[pa.RecordBatch]:
        return _batches(self._sql.execute(f"SELECT {_listed(columns)} FROM {_quoted(table)}"), columns)

    def merge(self, table: str, columns: d.Columns, key: Sequence[str], rows: Iterable[pa.RecordBatch]) -> d.Merged:
        self._stage((OP, *columns), rows)
        held = f"FROM {STAGE} s CROSS JOIN {_quoted(table)} t ON {_same(key)}"  # in this order, by the index of the key
        lost = f"NOT EXISTS (SELECT 1 FROM {_quoted(table)} t WHERE {_same(key)})"
        known = self._sql.execute(f"SELECT {_listed(key, 's.')} {held} WHERE {OP.name} = {d.Op.INSERT:d}").fetchall()
        missing = self._count(f"FROM {STAGE} s WHERE {OP.name} <> {d.Op.INSERT:d} AND {lost}")
        gone = self._sql.execute(f"DELETE FROM {_quoted(table)} WHERE _rowid_ IN (SELECT t._rowid_ {held})").rowcount
        arrived = f"SELECT {_listed(columns)} FROM {STAGE} WHERE {OP.name} <> {d.Op.REMOVE:d}"
        written = self._sql.execute(f"INSERT INTO {_quoted(table)} ({_listed(columns)}) {arrived}").rowcount
        self._sql.execute(f"DROP TABLE {STAGE}")
        return d.Merged(gone, written, len(known), missing, f"{known[:1]}")

    def lookup(self, table: str, keys: pa.Table, key: d.Columns, also: d.Columns) -> pa.Table:
        self._stage(key, keys.to_batches())
        columns = (*key, *(each for each in also if each not in key))
        join = f"FROM {STAGE} s CROSS JOIN {_quoted(table)} t ON {_same(each.name for each in key)}"
        found = list(_batches(self._sql.execute(f"SELECT {_listed(columns, 't.')} {join}"), columns))
        self._sql.execute(f"DROP TABLE {STAGE}")
        return pa.Table.from_batches(found, d.arrow_schema(columns))

    def shared_key(self, table: str, key: Sequence[str]) -> str | None:
        groups = f"SELECT {_listed(key)} FROM {_quoted(table)} GROUP BY {_listed(key)} HAVING count(*) > 1"
        return next((f"{row}" for row in self._sql.execute(groups)), None)

    def _stage(self, columns: d.Columns, rows: Iterable[pa.RecordBatch]) -> None:
        self.create(STAGE, columns, (), "TEMP")
        self.insert(STAGE, columns, rows)

    def _count(self, what: str) -> int:
        return int(self._sql.execute(f"SELECT count(*) {what}").fetchone()[0])


def _batches(rows: sqlite3.Cursor, columns: d.Columns) -> Iterator[pa.RecordBatch]:
    while some := rows.fetchmany(d.BATCH_ROWS):
        arrays = [d.from_plain(column, values) for column, values in zip(columns, zip(*some, strict=True), strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=d.arrow_schema(columns))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _listed(names: Iterable[str | d.Column], of: str = "") -> str:
    return ", ".join(f"{of}{_quoted(each if isinstance(each, str) else each.name)}" for each in names)


def _same(key: Iterable[str]) -> str:
    return " AND ".join(f"t.{_quoted(name)} IS s.{_quoted(name)}" for name in key)
