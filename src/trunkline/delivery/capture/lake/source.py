"""Captures several tables of a DuckLake: each snapshot of the lake is a transaction over all of them.

Rules
 L1  A snapshot's changes are read like delivery reads them: rows that were live before and not after it, and vice
     versa. Removed rows come first, and are whole.
 L2  The position after a snapshot holds its number and a part of its mark: a lake that was restored from a backup is
     recognised, and so is one that has expired the snapshot. Then the changes between are lost.
 L3  A table is read whole, at the snapshot that the stream has reached: a lake can be read at any of its snapshots, so
     the stream does not wait.
 L4  A table whose changes in a snapshot cannot be read (see ``sources.lake_tables``, U2) is captured again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec import Struct

from trunkline.core.capture_messages import Origin, SlotState
from trunkline.delivery.capture.lake.tables import CapturedLakeTables
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
from trunkline.delivery.changes.groups import (
    GROUP_BYTES_MAX,
    GROUP_ROWS_MAX,
    Layout,
    RowKind,
    TableRows,
    Transaction,
    table_rows,
)
from trunkline.delivery.changes.rows import ROUTE_COLUMN
from trunkline.delivery.changes.schemas import Catalog, TableSchema
from trunkline.delivery.changes.versions import Window
from trunkline.delivery.config.addresses import LakeAddress
from trunkline.delivery.config.table_patterns import Selection
from trunkline.delivery.sources.contract import ALL_ROUTES, ReadRequest
from trunkline.delivery.sources.lake_tables import LakeTables, SnapshotOfLake
from trunkline.errors import ConfigError, SourceExpired, Unreachable

TIMELINE: Final = 1
MARK_BITS: Final = 20  # of the mark of a snapshot in its position (L2)
SHIFT: Final = MARK_BITS + 1
POLL_MS: Final = 200
UNITS_MAX: Final = 256  # that wait; more: more memory, fewer: smaller turns


class _Rows(Struct, frozen=True):
    """Rows of one kind of one table, in the order of the stream."""

    schema: TableSchema
    kind: RowKind
    rows: pa.Table


class LakeSource:
    """One capture of the chosen tables of a lake."""

    def __init__(self, address: LakeAddress, tables: Sequence[str], *, poll_ms: int = POLL_MS) -> None:
        self._address, self._selection = address, Selection(tuple(tables), "main")
        self._lake = LakeTables(address, self._selection)
        self._poll_s = poll_ms / 1000
        self._tables = CapturedLakeTables(None)
        self._units: deque[Unit] = deque()
        self._at = -1  # the snapshot that the stream has reached
        self._newest = -1
        self._hint: object = None
        self._opened = False
        self._request: ChunkRequest | None = None
        self._pieces: Iterator[ChunkRows] | None = None  # of the table that is read
        self._woken = threading.Event()

    # ----------------------------------------------------------------------------------------------------- beginning

    def reach(self) -> None:
        if not self._lake.tables(0):
            raise ConfigError(
                f"no table of {self._address.catalog} matches {', '.join(self._selection.patterns)}; create one, or "
                "choose others with --tables"
            )

    def open(self, start: SourceStart) -> SourceOpened:
        self.close()
        wanted = (start.position >> SHIFT) - 1
        newest = self._lake.snapshot(None)
        origin, ends = Origin(newest.lake, TIMELINE), ((TIMELINE, newest_end(newest)),)
        if start.position == 0 and not start.create:
            return SourceOpened(origin, ends, SlotState.ABSENT, 0, ())
        here = newest if start.position == 0 else self._lake.snapshot(wanted)
        if start.position and (here.number != wanted or newest_end(here) != start.position):
            return SourceOpened(origin, ends, SlotState.LOST, start.position, ())
        self._begin(start, here)
        return SourceOpened(origin, ends, SlotState.PRESENT, newest_end(here), ())

    def _begin(self, start: SourceStart, here: SnapshotOfLake) -> None:
        tables = self._tables = CapturedLakeTables(start.catalog)
        self._at, self._newest, self._hint, self._opened = here.number, here.number, None, True
        self._units.extend(tables.step(here.tables))
        if start.position == 0:
            again = [schema for schema in tables if start.catalog is not None and _holds(start.catalog, schema)]
            self._units.extend(tables.recapture(schema, "changes of the lake were lost") for schema in again)
        broken = [] if start.catalog is None or not start.position else _broken_off(start.catalog)
        for number in broken:
            if (schema := tables.get(number)) is not None:
                self._units.append(tables.recapture(schema, "it was not read to its end"))
        self._units.append(KeepAlive(newest_end(here)))

    # ---------------------------------------------------------------------------------------------------- the stream

    def receive(self, wait_ms: int, *, close: bool) -> Sequence[Unit]:
        if not self._opened:
            raise Unreachable("the stream of the lake has not begun")
        if self._pieces is not None:
            return [self._piece()]
        if not self._units:
            self._begin_reading()
        if not self._units:
            self._look(wait_ms / 1000)
        units = list(self._units)
        self._units.clear()
        return units

    def _look(self, wait_s: float) -> None:
        """The next snapshots, if there are any."""
        if self._at >= self._newest:
            hint = self._lake.change_hint()
            if hint is None or hint != self._hint:
                self._newest, self._hint = self._lake.state(max(self._at, 0)).version, hint
        while self._at < self._newest and len(self._units) < UNITS_MAX:
            self._take(self._at + 1)
        if not self._units:
            self._woken.wait(min(wait_s, self._poll_s))
            self._woken.clear()

    def _take(self, number: int) -> None:
        """One snapshot as units."""
        here = self._lake.snapshot(number)
        if here.number != number:
            raise SourceExpired(f"the lake has expired its snapshot {number}, which was not captured; retrying")
        window = Window(number - 1, number)
        survey = self._lake.survey(window)
        self._units.extend(self._tables.step(here.tables))
        changed: list[_Rows] = []
        for each in survey.tables:
            schema = self._tables.numbered(each.table.name)
            if each.survey.backlog.quiet or self._begins_here(schema):
                continue
            if each.whole:
                self._units.append(self._tables.recapture(schema, "its changes cannot be read"))
                continue
            changed += self._changes(window, schema, each.table.name, survey.mark)
        end = newest_end(here)
        self._at = number
        if changed:
            self._units.extend(_units_of(changed, Transaction(end & ~1, here.time_us, number + 1, 0), end))
        else:
            self._units.append(KeepAlive(end))

    def _begins_here(self, schema: TableSchema) -> bool:
        """Its generation begins with this snapshot: its rows come in chunks."""
        return any(isinstance(unit, SchemaUnit) and unit.schema is schema for unit in self._units)

    def _changes(self, window: Window, schema: TableSchema, name: str, mark: str) -> list[_Rows]:
        columns = schema.vocabulary()
        request = ReadRequest(columns, tuple(column.name for column in columns), "", mark)
        net = self._lake.net_changes(window, {name: request}, ALL_ROUTES)[name]
        parts = ((RowKind.DELETE, net.removed), (RowKind.INSERT, net.arrived))
        return [
            _Rows(schema, kind, rows.drop_columns([ROUTE_COLUMN]).select([column.name for column in columns]))
            for kind, rows in parts
            if rows.num_rows
        ]

    def wake(self) -> None:
        self._woken.set()

    def confirm(self, position: int) -> None:
        """A lake keeps its snapshots as long as it is configured to, and not for this capture."""

    def lag(self) -> Lag:
        """A lake has no bytes of changes: its snapshots are counted."""
        return Lag(newest_end(self._lake.snapshot(None)), 0, shift=SHIFT)

    def recapture(self, table: int, why: str) -> None:
        if (schema := self._tables.get(table)) is not None:
            self._units.append(self._tables.recapture(schema, why))

    def close(self) -> None:
        self._units.clear()
        self._request = self._pieces = None
        self._opened = False

    # -------------------------------------------------------------------------------------------------------- tables

    def read_chunk(self, request: ChunkRequest) -> None:
        self._request, self._pieces = request, None

    def _begin_reading(self) -> None:
        """L3: both watermarks are here."""
        request, schema = self._request, None
        if request is None or (schema := self._tables.get(request.table)) is None:
            self._request = None
            return
        self._units.append(Watermark(request.writer, request.chunk, high=False))
        self._units.append(Watermark(request.writer, request.chunk, high=True))
        self._pieces = self._read(request, schema)
        self._request = None

    def _read(self, request: ChunkRequest, schema: TableSchema) -> Iterator[ChunkRows]:
        layout, columns = Layout(schema), schema.vocabulary()
        read = ReadRequest(columns, (), "")
        [(_, batches)] = self._lake.scan(self._at, {f"{schema.schema}.{schema.name}": read}, ALL_ROUTES)
        for batch in batches:
            rows = pa.Table.from_batches([batch]).drop_columns([ROUTE_COLUMN])
            for piece in _slices(rows):
                yield ChunkRows(request.chunk, _read_rows(layout, piece), None, False, (), self._at + 2)
        nothing = layout.arrow.empty_table().select(layout.arrow.names[-len(columns) :])
        yield ChunkRows(request.chunk, _read_rows(layout, nothing), None, True, (), self._at + 2)

    def _piece(self) -> ChunkRows:
        assert self._pieces is not None
        piece = next(self._pieces)
        if piece.last:
            self._pieces = None
        return piece


def newest_end(snapshot: SnapshotOfLake) -> int:
    """The position after a snapshot (L2)."""
    mark = int(snapshot.mark or "0", 16) & ((1 << MARK_BITS) - 1)
    return (snapshot.number + 1) << SHIFT | mark << 1 | 1


def _units_of(changed: Sequence[_Rows], transaction: Transaction, end: int) -> Iterator[Changes]:
    """One unit, or the pieces of a large one."""
    pieces = list(_pieces_of(changed))
    for number, piece in enumerate(pieces):
        tables, count, size = _encoded(piece)
        last = number == len(pieces) - 1
        mine = Transaction(transaction.lsn, transaction.commit_us, transaction.xid, count)
        part = None if len(pieces) == 1 else number
        yield Changes((mine,), tables, size, part, last, end if last else 0)


def _pieces_of(changed: Sequence[_Rows]) -> Iterator[list[_Rows]]:
    """As much as an entry holds at a time."""
    piece: list[_Rows] = []
    rows = size = 0
    for each in changed:
        for part in _slices(each.rows):
            if piece and (rows + part.num_rows > GROUP_ROWS_MAX or size + part.nbytes > GROUP_BYTES_MAX):
                yield piece
                piece, rows, size = [], 0, 0
            piece.append(_Rows(each.schema, each.kind, part))
            rows, size = rows + part.num_rows, size + part.nbytes
    yield piece


def _slices(rows: pa.Table) -> Iterator[pa.Table]:
    if not rows.num_rows:
        return
    each = max(1, min(GROUP_ROWS_MAX, GROUP_BYTES_MAX * rows.num_rows // max(rows.nbytes, 1)))
    for begin in range(0, rows.num_rows, each):
        part = rows.slice(begin, each)
        yield pa.Table.from_batches(part.combine_chunks().to_batches(), part.schema)


def _encoded(piece: Sequence[_Rows]) -> tuple[tuple[TableRows, ...], int, int]:
    """The rows of each table, numbered over all of them; how many; about how large."""
    tables, count, size = [], 0, 0
    for number in dict.fromkeys(each.schema.number for each in piece):
        mine = [each for each in piece if each.schema.number == number]
        rows = pa.concat_tables([each.rows for each in mine])
        kinds = np.concatenate([np.full(each.rows.num_rows, int(each.kind), np.int8) for each in mine])
        layout = Layout(mine[0].schema)
        numbers = np.arange(count, count + rows.num_rows)
        tables.append(table_rows(layout, _columns(layout, rows), tx=np.zeros(len(numbers)), seq=numbers, kind=kinds))
        count, size = count + rows.num_rows, size + rows.nbytes
    return tuple(tables), count, size


def _read_rows(layout: Layout, rows: pa.Table) -> TableRows:
    count = rows.num_rows
    return table_rows(
        layout,
        _columns(layout, rows),
        tx=np.zeros(count),
        seq=np.arange(count),
        kind=np.full(count, int(RowKind.READ), np.int8),
    )


def _columns(layout: Layout, rows: pa.Table) -> list[pa.Array]:
    found = []
    for column in layout.schema.columns:
        field = layout.arrow.field(column.name)
        values = rows.column(column.name).cast(field.type)
        found.append(values.combine_chunks() if values.num_chunks != 1 else values.chunk(0))
    return found


def _holds(catalog: Catalog, schema: TableSchema) -> bool:
    """Whether the log has rows of the table that no change since accounts for."""
    return any(table.newest.number == schema.number and table.newest is schema for table in catalog.tables)


def _broken_off(catalog: Catalog) -> list[int]:
    """Tables of which the log has some rows, and not all."""
    return [table.newest.number for table in catalog.tables if table.chunks and not table.complete]
