"""A database in memory with a write-ahead log, and a source that streams it: every place of the stream is chosen.

Positions: each record takes 10; a transaction commits at ``lsn`` and ends at ``lsn + 5``.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from delivery.group_log import Work, changed, rows_of_work
from trunkline.core.capture_messages import Origin, SlotState
from trunkline.delivery.capture.source import (
    Changes,
    ChunkRequest,
    ChunkRows,
    KeepAlive,
    Lag,
    SchemaUnit,
    SourceOpened,
    SourceStart,
    Unit,
    Watermark,
)
from trunkline.delivery.changes.columns import arrow_schema
from trunkline.delivery.changes.groups import Layout, RowKind, TableRows, Transaction, table_rows
from trunkline.delivery.changes.schemas import CatalogTable, SchemaChange, SourceColumn, TableSchema
from trunkline.errors import Unreachable

COMMIT_US = 1_790_000_000_000_000

Row = tuple[Any, ...]
Change = tuple[str, RowKind, Row] | tuple[str, RowKind, Row, bytes | None]
State = dict[str, list[Row]]


class Record(Struct, frozen=True):
    """Of the WAL. ``schemas``: of the tables, as the transaction saw them."""

    lsn: int
    xid: int = 0
    changes: tuple[Change, ...] = ()
    schemas: dict[str, TableSchema] = {}
    watermark: Watermark | None = None
    recapture: str = ""  # a table
    altered: str = ""  # a table
    dropped: str = ""

    @property
    def end(self) -> int:
        return self.lsn + 5


class ScriptedDatabase:
    """``tables``: their schemas as a log without tables would have them. It outlives captures."""

    def __init__(self, *tables: TableSchema, system: str = "s1") -> None:
        self.system = system
        self.timeline = 1
        self.wal: list[Record] = []
        self.lsn = 100
        self.xid = 10
        self.slot: int | None = None  # what was confirmed
        self.schemas = {table.name: table for table in tables}
        self.rows: dict[str, list[Row]] = {table.name: [] for table in tables}
        self.history: list[tuple[int, State]] = [(0, self._state())]
        self.lock = threading.RLock()
        self.defaults: dict[tuple[str, str], Any] = {}  # of added columns
        self._moved: Row | None = None  # by an update that goes on

    def _state(self) -> State:
        return {name: sorted(rows, key=repr) for name, rows in self.rows.items()}

    def state_at(self, position: int) -> State:
        return next(state for end, state in reversed(self.history) if end <= position)

    def _record(self, **content: Any) -> Record:
        self.lsn += 10
        self.wal.append(Record(self.lsn, **content))
        self.history.append((self.wal[-1].end, self._state()))
        return self.wal[-1]

    def commit(self, *changes: Change) -> int:
        """Returns its transaction id."""
        with self.lock:
            self.xid += 1
            self.try_out(changes)
            self._record(xid=self.xid, changes=changes, schemas=dict(self.schemas))
            return self.xid

    def try_out(self, changes: Sequence[Change]) -> None:
        """Changes of a transaction that is not committed yet."""
        for change in changes:
            self._apply(change)

    def commit_tried(self, changes: Sequence[Change]) -> None:
        self.xid += 1
        self._record(xid=self.xid, changes=tuple(changes), schemas=dict(self.schemas))

    def _apply(self, change: Change) -> None:
        name, kind, row = change[:3]
        old: Row | None
        rows, schema = self.rows[name], self.schemas[name]
        place = [column.name for column in schema.columns].index(schema.key[0]) if schema.key else None
        match kind:
            case RowKind.INSERT:
                rows.append(row)
            case RowKind.TRUNCATE:
                rows.clear()
            case RowKind.DELETE | RowKind.UPDATE_OLD:
                old = next(each for each in rows if (each == row if place is None else each[place] == row[place]))
                rows.remove(old)
                self._moved = old if kind is RowKind.UPDATE_OLD else None
            case RowKind.UPDATE_NEW:
                old = self._moved
                if old is None:
                    old = next(each for each in rows if place is not None and each[place] == row[place])
                    rows.remove(old)
                self._moved = None
                bits = int.from_bytes((change[3] if len(change) == 4 else None) or b"", "little")
                rows.append(tuple(old[at] if bits >> at & 1 else value for at, value in enumerate(row)))

    def add_column(self, name: str, column: str, kind: str, default: Any) -> None:
        with self.lock:
            schema = self.schemas[name]
            added = SourceColumn(column, kind, len(schema.columns) + 1, 20)
            self.schemas[name] = changed(
                schema, SchemaChange.ADDED, defaults={column: default}, columns=(*schema.columns, added)
            )
            self.rows[name] = [(*row, default) for row in self.rows[name]]
            self.defaults[name, column] = default
            self._record(altered=name, schemas=dict(self.schemas))

    def create(self, schema: TableSchema) -> None:
        with self.lock:
            self.schemas[schema.name] = schema
            self.rows[schema.name] = []
            self._record(altered=schema.name, schemas=dict(self.schemas))

    def drop(self, name: str) -> None:
        with self.lock:
            del self.schemas[name], self.rows[name]
            self._record(dropped=name)

    def lose_slot(self) -> None:
        self.slot = None


class ScriptedSource:
    """``during_chunk`` is called between the low watermark and the snapshot, ``after_snapshot`` before the high one."""

    def __init__(self, database: ScriptedDatabase, *, chunk_rows: int = 3, part_rows: int = 4) -> None:
        self.database = database
        self.chunk_rows = chunk_rows
        self.part_rows = part_rows
        self.during_chunk: Callable[[], object] = lambda: None
        self.after_snapshot: Callable[[], object] = lambda: None
        self.before_receive: Callable[[], object] = lambda: None
        self.down = False
        self.keyless_rows = 2  # in one unit
        self.group_max = 5  # transactions
        self._woken = threading.Event()
        self._units: deque[Unit] = deque()
        self._known: dict[str, CatalogTable] = {}
        self._numbers: dict[str, TableSchema] = {}  # as the log has them
        self._at = 0  # records that were streamed
        self._next_number = 1
        self._position = 0  # of the log, when the stream began
        self._chunks: dict[int, list[ChunkRows]] = {}
        self.confirmed: list[int] = []

    def reach(self) -> None:
        if self.down:
            raise Unreachable("the database is down")

    def open(self, start: SourceStart) -> SourceOpened:
        self.reach()
        self.close()
        database = self.database
        with database.lock:
            if database.slot is None and start.create:
                database.slot = database.lsn + 5
            slot = SlotState.ABSENT if database.slot is None else SlotState.PRESENT
            confirmed = database.slot or 0
            self._at = sum(1 for record in database.wal if record.end <= confirmed)
            self._position, catalog = start.position, start.catalog
            tables = () if catalog is None else catalog.tables
            self._next_number = 1 if catalog is None else catalog.next_number
            self._numbers = {table.newest.name: table.newest for table in tables}
            if slot is SlotState.PRESENT:
                self._first_units(tables)
            ends = ((database.timeline, database.lsn + 5),)
            return SourceOpened(Origin(database.system, database.timeline), ends, slot, confirmed, ())

    def _first_units(self, tables: Sequence[CatalogTable]) -> None:
        """Tables that the log lacks, and tables without a key that it has in part."""
        begun = self.database.wal[self._at].schemas if self._at < len(self.database.wal) else None
        for name, schema in (begun or self.database.schemas).items():
            if name not in self._numbers:
                self._create(schema)
        for table in tables:
            if not table.newest.key and table.chunks and not table.complete:
                self._recapture(table.newest.name)

    def _create(self, schema: TableSchema) -> None:
        made = replace(
            schema, number=self._next_number, version=1, generation=1, changes=(SchemaChange.CREATED,), defaults=b""
        )
        self._next_number += 1
        self._numbers[schema.name] = made
        self._units.append(SchemaUnit(made))

    def _recapture(self, name: str) -> None:
        again = replace(
            changed(self._numbers[name], SchemaChange.RECAPTURED), columns=self.database.schemas[name].columns
        )
        self._numbers[name] = again
        self._units.append(SchemaUnit(again))

    # ------------------------------------------------------------------------------------------------------ the stream

    def receive(self, wait_ms: int, *, close: bool) -> Sequence[Unit]:
        self.before_receive()
        if self.down:
            raise Unreachable("the database is down")
        if not self._units and self._at == len(self.database.wal):
            self._woken.wait(min(wait_ms, 20) / 1000)
        self._woken.clear()
        with self.database.lock:
            if close or self._at < len(self.database.wal):
                self._stream()
            found = [self._units.popleft() for _ in range(min(4, len(self._units)))]
            if not found and self._at == len(self.database.wal):
                found.append(KeepAlive(self.database.lsn + 5))
            return found

    def _stream(self) -> None:
        """The next record, or some transactions."""
        group: list[Record] = []
        while self._at < len(self.database.wal):
            record = self.database.wal[self._at]
            small = record.xid and len(record.changes) <= self.part_rows
            begins = bool(group) and group[-1].end <= self._position < record.end  # what the log lacks (U4)
            if group and (not small or len(group) == self.group_max or begins):
                break
            self._at += 1
            if small:
                group.append(record)
            else:
                self._units.extend(self._others(record))
                return
        if group:
            self._units.append(self._changes(group))

    def _others(self, record: Record) -> list[Unit]:
        if record.watermark is not None:
            rows = self._chunks.pop(record.watermark.chunk, []) if record.watermark.high else []
            return [record.watermark, *rows]
        if record.recapture:
            self._recapture(record.recapture)
            return []
        if record.dropped:
            gone = self._numbers.pop(record.dropped, None)
            return [] if gone is None else [SchemaUnit(changed(gone, SchemaChange.TABLE_DROPPED))]
        if record.altered:
            return self._altered(record)
        return self._parts(record)

    def _altered(self, record: Record) -> list[Unit]:
        schema = record.schemas[record.altered]
        known = self._numbers.get(schema.name)
        if known is None:
            self._create(schema)
            return []
        if known.columns == schema.columns[: len(known.columns)] and known.columns != schema.columns:
            newer = changed(known, SchemaChange.ADDED, columns=schema.columns, defaults={})
            self._numbers[schema.name] = replace(newer, defaults=schema.defaults)
            return [SchemaUnit(self._numbers[schema.name])]
        return []

    def _work(self, record: Record) -> Work:
        """Under the versions that the log has, which may be later ones."""
        found: Work = []
        for change in record.changes:
            name, kind, row = change[:3]
            schema = self._numbers[name]
            added = schema.columns[len(record.schemas[name].columns) :]
            stated = kind in (RowKind.INSERT, RowKind.UPDATE_NEW)
            more = tuple(self.database.defaults[name, column.name] if stated else None for column in added)
            unsent = change[3] if len(change) == 4 else None
            found.append((schema, kind, (*row, *more) if row else row, unsent))
        return found

    def _changes(self, group: Sequence[Record]) -> Changes:
        tables = rows_of_work([self._work(record) for record in group])
        made = tuple(Transaction(each.lsn, COMMIT_US + each.lsn, each.xid, len(each.changes)) for each in group)
        return Changes(made, tables, sum(rows.batch.nbytes for rows in tables), end=group[-1].end)

    def _parts(self, record: Record) -> list[Unit]:
        pieces: list[Work] = [[]]
        for change in self._work(record):
            if len(pieces[-1]) >= self.part_rows and change[1] is not RowKind.UPDATE_NEW:
                pieces.append([])
            pieces[-1].append(change)
        return [
            Changes(
                (Transaction(record.lsn, COMMIT_US + record.lsn, record.xid, len(piece)),),
                rows_of_work([piece]),
                100,
                part=part,
                last=piece is pieces[-1],
                end=record.end if piece is pieces[-1] else 0,
            )
            for part, piece in enumerate(pieces)
        ]

    # ------------------------------------------------------------------------------------------------------ the chunks

    def read_chunk(self, request: ChunkRequest) -> None:
        name = next(each.name for each in self._numbers.values() if each.number == request.table)
        schema, database = self._numbers[name], self.database
        with database.lock:
            database._record(watermark=Watermark(request.writer, request.chunk, False))
            if schema.key:
                self.during_chunk()
            rows = sorted(database.rows[name], key=repr)
            xid_next = database.xid + 1
            if schema.key:
                self.after_snapshot()
            database._record(watermark=Watermark(request.writer, request.chunk, True))
        if not schema.key:
            held = [rows[at : at + self.keyless_rows] for at in range(0, max(1, len(rows)), self.keyless_rows)]
            self._chunks[request.chunk] = [
                ChunkRows(request.chunk, read_rows(schema, part), None, part is held[-1], (), xid_next) for part in held
            ]
            return
        place = [column.name for column in schema.columns].index(schema.key[0])
        after = None if request.cursor is None else int(request.cursor)
        left = sorted((row for row in rows if after is None or row[place] > after), key=lambda row: row[place])
        taken = left[: self.chunk_rows]
        cursor = str(taken[-1][place]).encode() if taken else request.cursor
        last = len(left) <= self.chunk_rows
        self._chunks[request.chunk] = [ChunkRows(request.chunk, read_rows(schema, taken), cursor, last, (), xid_next)]

    def recapture(self, table: int, why: str) -> None:
        name = next(each.name for each in self._numbers.values() if each.number == table)
        with self.database.lock:
            self.database._record(recapture=name)

    def confirm(self, position: int) -> None:
        self.confirmed.append(position)
        if self.database.slot is not None:
            self.database.slot = max(self.database.slot, position)

    def lag(self) -> Lag:
        self.reach()
        return Lag(self.database.lsn + 5, 0)

    def wake(self) -> None:
        self._woken.set()

    def close(self) -> None:
        self._units.clear()
        self._chunks.clear()


def read_rows(schema: TableSchema, rows: Sequence[Row]) -> TableRows:
    if not rows:
        columns = [pa.array([], kind) for kind in arrow_schema(schema.vocabulary()).types]
        return table_rows(Layout(schema), columns, tx=[], seq=[], kind=[])
    [found] = rows_of_work([[(schema, RowKind.READ, row) for row in rows]])
    return found
