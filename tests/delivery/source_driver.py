"""Drives a source as a capture does, and keeps the state that its log would have: a small host for tests.

It follows the rules of the role for chunks (K5, K7, K12 of ``core/capture.py``) in the plainest way: each unit is
applied to the rows in memory as soon as it comes. ``restart`` begins again from what was confirmed last.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from trunkline.core.capture_messages import SlotState
from trunkline.delivery.capture.source import (
    Changes,
    ChunkRequest,
    ChunkRows,
    DatabaseSource,
    KeepAlive,
    SchemaUnit,
    SourceOpened,
    SourceStart,
    Unit,
    Watermark,
)
from trunkline.delivery.changes.groups import KIND, PLACE_FIELDS, SEQ, UNCHANGED, RowKind, TableRows
from trunkline.delivery.changes.rebuilt import plain
from trunkline.delivery.changes.schemas import Catalog, CatalogTable, SchemaChange, TableSchema, check_step, defaults_in

WAIT_S = 60.0
WAIT_MS = 50

Row = dict[int, Any]  # by the number of the column
Key = tuple[Any, ...]


class DrivenTable:
    def __init__(self, schema: TableSchema) -> None:
        self.schemas = [schema]
        self.rows: dict[Key, list[Row]] = {}
        self.complete = False
        self.chunks = 0
        self.cursor: bytes | None = None

    @property
    def schema(self) -> TableSchema:
        return self.schemas[-1]

    def key_of(self, row: Row) -> Key:
        names = self.schema.key or [column.name for column in self.schema.columns]
        return tuple(_hashable(row[column.number]) for column in self.schema.columns if column.name in names)

    def follow(self, schema: TableSchema) -> None:
        check_step(self.schema, schema)
        if SchemaChange.RECAPTURED in schema.changes:
            self.rows, self.complete, self.chunks, self.cursor = {}, False, 0, None
            self.schemas = [schema]
            return
        before, defaults = {column.number for column in self.schema.columns}, defaults_in(schema)
        every = [row for same in self.rows.values() for row in same]
        for row in every:
            for place, column in enumerate(schema.columns):
                if column.number not in before:
                    row[column.number] = None if defaults is None else plain(defaults.column(place))[0]
            for gone in before - {column.number for column in schema.columns}:
                del row[gone]
        self.schemas.append(schema)
        self.rows = {}
        for row in every:
            self.rows.setdefault(self.key_of(row), []).append(row)

    def change(self, kind: RowKind, row: Row, old: Row | None) -> None:
        match kind:
            case RowKind.TRUNCATE:
                self.rows.clear()
            case RowKind.DELETE | RowKind.UPDATE_OLD:
                self._remove(self.key_of(row))
            case RowKind.UPDATE_NEW | RowKind.READ if self.schema.key:
                key = self.key_of(row if old is None else {**old, **row})
                [before] = self.rows.get(key, [{}])
                self.rows[key] = [{**before, **(old or {}), **row}]
            case _:
                self.rows.setdefault(self.key_of(row), []).append(row)

    def _remove(self, key: Key) -> None:
        found = self.rows.get(key, [])
        if found:
            found.pop()
        if not found:
            self.rows.pop(key, None)

    def values(self) -> Counter[tuple[Any, ...]]:
        """The rows, as tuples in the order of columns."""
        order = [column.number for column in self.schema.columns]
        every = (row for same in self.rows.values() for row in same)
        return Counter(tuple(_hashable(row.get(number)) for number in order) for row in every)


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else repr(value) if isinstance(value, float) else value


class SourceDriver:
    def __init__(self, source: DatabaseSource, *, reads: bool = True) -> None:
        self.source = source
        self.reads = reads  # chunks
        self.tables: dict[int, DrivenTable] = {}
        self.units: list[Unit] = []
        self.position = 0
        self.confirmed = 0
        self.writer = secrets.token_hex(4)
        self.refused = 0
        self.read_rows = 0
        self._next_number = 1
        self._chunk = 0
        self._request: ChunkRequest | None = None
        self._low = self._high = False
        self._touched: set[Key] = set()
        self._truncated = False
        self._streamed: set[int] = set()
        self._window: set[int] = set()
        self._must_see: dict[int, set[int]] = {}
        self._held: list[Unit] = []

    # --- sessions ---

    def open(self) -> SourceOpened:
        opened = self.source.open(SourceStart(self.position, self.catalog()))
        if opened.slot is not SlotState.PRESENT:
            opened = self.source.open(SourceStart(0, self.catalog(), create=True))
        assert opened.slot is SlotState.PRESENT
        self.position = self.position or opened.confirmed
        self._request, self._low, self._high, self._held = None, False, False, []
        self._streamed, self._window, self._must_see = set(opened.running), set(), {}
        self._read_next()
        return opened

    def catalog(self) -> Catalog | None:
        if not self.tables:
            return None
        tables = [
            CatalogTable(tuple(each.schemas), each.complete, each.chunks, each.cursor) for each in self.tables.values()
        ]
        return Catalog(1, 0, self._next_number, tuple(tables))

    def step(self, wait_ms: int = WAIT_MS) -> list[Unit]:
        units = list(self.source.receive(wait_ms, close=True))
        self.units += units
        for unit in units:
            if self._pauses() and not isinstance(unit, ChunkRows):
                self._held.append(unit)
                continue
            self._take(unit)
            while self._held and not self._pauses():
                self._take(self._held.pop(0))
        if self._request is None:
            self._read_next()
        return units

    def _pauses(self) -> bool:
        """K12: a table without a key is read at one place of the stream."""
        return self._high and self._request is not None and not self.tables[self._request.table].schema.key

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, f"it has not happened; the last units are {self.units[-5:]}"
            self.step()

    def until_streamed(self, lsn: int) -> None:
        self.until(lambda: self.position >= lsn)

    def table(self, name: str) -> DrivenTable:
        [found] = [each for each in self.tables.values() if each.schema.name == name]
        return found

    def has(self, name: str) -> bool:
        return any(each.schema.name == name for each in self.tables.values())

    def complete(self, *names: str) -> bool:
        return all(self.has(name) and self.table(name).complete for name in names)

    # --- units ---

    def _take(self, unit: Unit) -> None:
        match unit:
            case Changes():
                self._on_changes(unit)
            case KeepAlive(position):
                self.position = max(self.position, position)
            case SchemaUnit():
                self._on_schema(unit)
            case Watermark(writer, chunk, high):
                if self._request is not None and (writer, chunk) == (self.writer, self._request.chunk):
                    self._low, self._high = True, high
            case ChunkRows():
                self._on_rows(unit)

    def _on_changes(self, unit: Changes) -> None:
        xids = {each.xid for each in unit.transactions}
        (self._window if self._low else self._streamed).update(xids)
        assert unit.transactions
        if unit.last:
            assert unit.end > self.position, "a transaction was streamed again"
            self.position = unit.end
        for rows in unit.tables:
            self._apply(rows)

    def _apply(self, rows: TableRows) -> None:
        table = self.tables[rows.number]
        schema = table.schema
        assert rows.version == schema.version, "rows come under the newest version"
        columns = [plain(column) for column in rows.batch.columns[len(PLACE_FIELDS) :]]
        places = [rows.batch.column(name).to_pylist() for name in (SEQ, KIND, UNCHANGED)]
        old: Row | None = None
        watched = self._request is not None and self._request.table == rows.number and self._low
        for index, (_, kind, unchanged) in enumerate(zip(*places, strict=True)):
            bits = int.from_bytes(unchanged or b"", "little")
            row = {
                column.number: columns[place][index]
                for place, column in enumerate(schema.columns)
                if not bits >> place & 1
            }
            if kind == RowKind.UPDATE_OLD:
                [before] = table.rows.get(table.key_of(row), [{}])[:1]
                old = dict(before)
            if watched and kind != RowKind.READ:
                self._truncated |= kind == RowKind.TRUNCATE
                self._touched.add(table.key_of(row))
            table.change(RowKind(kind), row, old if kind == RowKind.UPDATE_NEW else None)
            old = old if kind == RowKind.UPDATE_OLD else None

    def _on_schema(self, unit: SchemaUnit) -> None:
        schema = unit.schema
        if self._request is not None and self._request.table == schema.number:
            self._end_chunk()
        if schema.dropped:
            check_step(self.tables.pop(schema.number).schema, schema)
        elif SchemaChange.CREATED in schema.changes:
            assert schema.number >= self._next_number
            self._next_number = schema.number + 1
            self.tables[schema.number] = DrivenTable(schema)
        else:
            self.tables[schema.number].follow(schema)
        if unit.must_see:
            self._must_see[schema.number] = set(unit.must_see)

    # --- chunks ---

    def _read_next(self) -> None:
        waiting = [each for each in self.tables.values() if not each.complete and (each.schema.key or not each.chunks)]
        if not waiting or not self.reads:
            return
        self._chunk += 1
        table = waiting[0]
        self._request = ChunkRequest(self.writer, self._chunk, table.schema.number, table.cursor)
        self._low = self._high = self._truncated = False
        self._touched, self._window = set(), set()
        self.source.read_chunk(self._request)

    def _on_rows(self, unit: ChunkRows) -> None:
        request = self._request
        if request is None or unit.chunk != request.chunk:
            return
        assert self._high, "rows come after the high watermark"
        table = self.tables[request.table]
        whole = not table.schema.key
        before = self._streamed | self._must_see.get(request.table, set())
        if not whole and any(xid in unit.running or xid >= unit.xid_next for xid in before):
            self.refused += 1
            self._end_chunk()
            return
        batch = unit.rows.batch
        assert not (whole and self._touched), "a table without a key was changed while it was locked"
        if whole and not table.chunks:
            table.rows.clear()
        if not self._truncated:
            self._apply_rows(table, unit.rows)
        assert batch.schema.names[len(PLACE_FIELDS) :] == [column.name for column in table.schema.columns]
        table.chunks += 1
        table.cursor, table.complete = unit.cursor, unit.last
        if not whole or unit.last:
            self._end_chunk()

    def _apply_rows(self, table: DrivenTable, rows: TableRows) -> None:
        """Those of keys that were not touched; of others, only what the changes did not state."""
        columns = [plain(column) for column in rows.batch.columns[len(PLACE_FIELDS) :]]
        numbers = [column.number for column in table.schema.columns]
        for values in zip(*columns, strict=True):
            row = dict(zip(numbers, values, strict=True))
            key = table.key_of(row)
            self.read_rows += 1
            if key not in self._touched:
                table.change(RowKind.READ, row, None)
            elif key in table.rows:
                table.rows[key] = [{**row, **table.rows[key][0]}]

    def _end_chunk(self) -> None:
        self._streamed |= self._window
        self._request, self._low, self._high, self._window = None, False, False, set()
