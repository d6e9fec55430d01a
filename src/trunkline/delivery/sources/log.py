"""A Trunkline log of changes as a source: the version is the position in the log.

Rules
 G1  The changes of a log have one order, and the last one of a key decides (``changes.ordered``). The net changes of a
     window by (route, key) follow from its events alone, so only the window is read.
 G2  A version is a position at which a transaction ends (X2). Windows end there, and nowhere else.
 G3  The state at a version is the result of all changes up to it. It is known only if the log still has its beginning,
     or a truncation: a captured snapshot begins with one. Otherwise it cannot be seeded from.
 G4  A truncation empties every destination: ``NetChanges.emptied``. Those that mirror the source are seeded again, from
     the changes after it.
 G5  A malformed event halts every later window, with its position and the reason; or, if the pipeline is set to skip,
     it is written to the dead letters and skipped. It is never lost silently. A corrupt entry of a capture always
     halts, unless a truncation follows: then nothing before the truncation counts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from trunkline.client.entries import Entry
from trunkline.delivery.changes.captured import decoded
from trunkline.delivery.changes.columns import Columns, arrow_schema
from trunkline.delivery.changes.net import filled, row_codes
from trunkline.delivery.changes.ordered import arrivals_only, net_of_ordered
from trunkline.delivery.changes.rows import (
    BATCH_ROWS,
    KIND_COLUMN,
    ORDINAL_COLUMN,
    ROUTE_COLUMN,
    VERSION_COLUMN,
    ChangeKind,
    NetChanges,
)
from trunkline.delivery.changes.versions import Lineage, Window, version_mark
from trunkline.delivery.config.addresses import LogAddress
from trunkline.delivery.sources.contract import Backlog, ReadRequest, RouteFilter, SourceState, Survey
from trunkline.delivery.sources.dead_letters import DeadLetter, write_dead_letters
from trunkline.delivery.sources.debezium import check_schema_without_row, event_schema, parse_event
from trunkline.delivery.sources.debezium_batches import EventBatches
from trunkline.delivery.sources.debezium_values import declared_columns
from trunkline.delivery.sources.log_reader import ChangeLogReader, LogBounds, with_reader
from trunkline.delivery.sources.route_filter import filtered_table
from trunkline.errors import CorruptEntry, DestinationHalted, ProtocolError, Unreachable

STEP: Final = {"changes": 1024, "debezium": 65_536}  # entries of a window at most; more: a task holds more in memory
LOOK_BACK_MAX: Final = 65_536  # entries without columns, such as heartbeats, to search; more: it takes seconds
LOOK_BACK_STEP_MAX: Final = 64  # entries that are held in memory at once
ENTRY_BYTES: Final = 1000  # a guess: a log has no size of a range


class LogSource(Struct, frozen=True):
    """A log of changes."""

    address: LogAddress

    def change_hint(self) -> object:
        return with_reader(self.address, ChangeLogReader.tail)

    def state(self, known: int) -> SourceState:
        return with_reader(self.address, partial(self._state, known))

    def _state(self, known: int, log: ChangeLogReader) -> SourceState:
        bounds = log.bounds()
        version = max(log.complete_at(bounds.tail - 1, bounds.trimmed + 1), 0)
        first = max(known, bounds.trimmed) + STEP[self.address.format]
        stops = (log.complete_at(at, bounds.trimmed + 1) for at in range(first, version, STEP[self.address.format]))
        later = tuple(sorted({at for at in stops if at > known}))
        begin = 0 if known else log.first_complete(bounds.trimmed + 1, version)  # needed once
        marks = (self._mark_of(version, bounds), self._mark_of(known, bounds))
        return SourceState(version, bounds.trimmed, later, self._identity(bounds), begin, *marks)

    def lineage(self, versions: Collection[int]) -> Lineage:
        bounds = with_reader(self.address, ChangeLogReader.bounds)
        marks = {version: self._mark_of(version, bounds) for version in versions}
        return Lineage(
            self._identity(bounds), bounds.tail - 1, {version: mark for version, mark in marks.items() if mark}
        )

    def _mark_of(self, version: int, bounds: LogBounds) -> str:
        """Empty if it was trimmed."""
        writer = bounds.writer_of(version)
        return "" if writer is None else version_mark(self._identity(bounds), version, *writer)

    def columns(self, version: int) -> Columns:
        return with_reader(self.address, partial(self._columns, version))

    def check_keys(self, key: tuple[str, ...], routing: str) -> None:
        """Removed rows are whole: a capture of one table, and an event, is refused otherwise."""

    def survey(self, window: Window) -> Survey:
        return with_reader(self.address, partial(self._survey, window))

    def _survey(self, window: Window, log: ChangeLogReader) -> Survey:
        bounds = log.bounds()
        columns = self._columns(window.through, log)
        altered = window.after > 0 and not window.empty and self._columns_differ(window.after, columns, bounds, log)
        count = window.through - max(window.after, bounds.trimmed)
        backlog = Backlog(count, count * ENTRY_BYTES, quiet=count <= 0)
        marks = (self._mark_of(window.after, bounds), self._mark_of(window.through, bounds))
        return Survey(backlog, columns, self._identity(bounds), altered, "", *marks)

    def _columns_differ(self, after: int, columns: Columns, bounds: LogBounds, log: ChangeLogReader) -> bool:
        """True if `after` was trimmed: then destinations compare columns themselves."""
        return after <= bounds.trimmed or self._columns(after, log) != columns

    def _identity(self, bounds: LogBounds) -> str:
        return f"log:{bounds.cluster}/{self.address.log}"

    def _columns(self, version: int, log: ChangeLogReader) -> Columns:
        """Those of the newest entry up to a version."""
        if self.address.columns:
            return declared_columns(self.address.columns)
        oldest = max(log.bounds().trimmed + 1, version - LOOK_BACK_MAX)
        malformed: DeadLetter | None = None  # the newest one
        last, size = version, 1
        while last >= oldest:
            first = max(oldest, last - size + 1)
            for entry in reversed(list(log.entries(first, last))):
                try:
                    if entry.payload and (found := self._entry_columns(entry)) is not None:
                        return found
                except ProtocolError as error:
                    if isinstance(error, CorruptEntry):
                        raise
                    malformed = malformed or DeadLetter(entry.glsn, str(error), b"")
            last, size = first - 1, min(2 * size, LOOK_BACK_STEP_MAX)
        if malformed is not None:
            raise self._halted(malformed)
        raise Unreachable(
            f"the log {self.address.log} has no changes with columns up to {version}; start its capture, or list the "
            "columns in `columns` of the source"
        )

    def _entry_columns(self, entry: Entry) -> Columns | None:
        if self.address.format == "changes":
            return _decoded(entry)[0]
        event = parse_event(entry.payload)
        schema = event_schema(event)
        if schema is None:
            check_schema_without_row(event)
        return None if schema is None else schema.columns

    def _halted(self, letter: DeadLetter) -> DestinationHalted:
        return DestinationHalted(
            f"entry {letter.glsn} of the log {self.address.log} is malformed: {letter.reason}; "
            "fix its producer and reseed, or set malformed: skip and dead_letters"
        )

    # --- rows ---

    def net_changes(self, window: Window, request: ReadRequest, routes: RouteFilter) -> NetChanges:
        changes = self._valid_changes(window, request, put_aside=True)
        net, emptied = net_of_ordered(changes, request.key) if request.key else arrivals_only(changes)
        removed, arrived = filtered_table(net.removed, routes), filtered_table(net.arrived, routes)
        return NetChanges(removed, arrived, emptied and window.after > 0)

    def live(self, version: int, request: ReadRequest, keys: pa.Table) -> pa.Table:
        rows = self._state_at(version, request)
        names = [ROUTE_COLUMN, *request.key]
        codes = row_codes(pa.concat_tables([rows.select(names), keys.select(names).cast(rows.select(names).schema)]))
        mine, wanted = np.split(codes, [rows.num_rows])
        return rows.take(np.flatnonzero(np.isin(mine, wanted)))

    def scan(self, version: int, request: ReadRequest, routes: RouteFilter) -> Iterator[pa.RecordBatch]:
        rows = self._state_at(version, request)
        yield from filtered_table(rows, routes).to_batches(BATCH_ROWS)

    def large_reads(self) -> None:
        return None

    def native_reads(self) -> None:
        return None

    def _state_at(self, version: int, request: ReadRequest) -> pa.Table:
        """Only a read: the task that delivers these changes has written the dead letters."""
        changes = self._valid_changes(Window(0, version), request, put_aside=False)
        return (net_of_ordered(changes, request.key) if request.key else arrivals_only(changes))[0].arrived

    def _valid_changes(self, window: Window, request: ReadRequest, *, put_aside: bool) -> pa.Table:
        """The window's changes in order. Malformed events become dead letters first, or halt (G5)."""
        changes, malformed = with_reader(self.address, partial(self._changes, window, request))
        if malformed and self.address.malformed == "halt":
            raise self._halted(malformed[0])
        if malformed and put_aside and self.address.dead_letters is not None:
            write_dead_letters(self.address, malformed)
        return changes

    def _changes(self, window: Window, request: ReadRequest, log: ChangeLogReader) -> tuple[pa.Table, list[DeadLetter]]:
        """The window's changes in order, and the malformed events."""
        bounds = log.bounds()
        if request.mark and request.mark != self._mark_of(window.through, bounds):
            raise Unreachable(f"the log {self.address.log} was replaced during the read; retrying")
        first = max(window.after, 0) + 1
        begins = first > 1 or bounds.trimmed == 0
        if not begins:
            first = bounds.trimmed + 1
        malformed: list[DeadLetter] = []
        if self.address.format == "debezium":
            tables, malformed = self._events(first, window.through, request, log)
        else:
            transactions = log.transactions(first, window.through, cut=0 < bounds.trimmed == first - 1)
            tables = [self._fitted(*each, request) for each in _captured(transactions)]
        empty = _marked_schema(request).empty_table()
        changes = pa.concat_tables([empty, *tables]) if tables else empty
        if not begins and not pc.any(pc.equal(changes.column(KIND_COLUMN), ChangeKind.TRUNCATE)).as_py():
            raise DestinationHalted(
                f"the log {self.address.log} was trimmed up to {bounds.trimmed}, so it no longer has all rows at "
                f"{window.through}; capture a new snapshot into it, then reseed"
            )
        return changes, malformed

    def _events(
        self, first: int, last: int, request: ReadRequest, log: ChangeLogReader
    ) -> tuple[list[pa.Table], list[DeadLetter]]:
        events = EventBatches(self.address, request)
        for transaction in log.transactions(first, last):
            if isinstance(transaction, CorruptEntry):
                raise transaction
            for entry in transaction:
                events.add(entry)
        return events.finished()

    def _fitted(self, glsn: int, changes: pa.Table, request: ReadRequest) -> pa.Table:
        try:
            return _with_places(glsn, changes, request)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise DestinationHalted(
                f"entry {glsn} of the log {self.address.log} has values that do not fit the present columns ({error}); "
                "capture a new snapshot into it, then reseed"
            ) from error


def _captured(transactions: Iterable[list[Entry] | CorruptEntry]) -> list[tuple[int, pa.Table]]:
    """The changes of each entry since the last truncation: earlier ones may have other types, or be corrupt. Raises for
    a corrupt entry after it."""
    found: list[tuple[int, pa.Table]] = []
    corrupt: CorruptEntry | None = None
    for transaction in transactions:
        try:
            if isinstance(transaction, CorruptEntry):
                raise transaction
            for entry in transaction:
                if not entry.payload:
                    continue
                changes = _decoded(entry)[1]
                if pc.any(pc.equal(changes.column(KIND_COLUMN), ChangeKind.TRUNCATE)).as_py():
                    found, corrupt = [], None
                found.append((entry.glsn, changes))
        except CorruptEntry as error:
            corrupt = corrupt or error
    if corrupt is not None:
        raise corrupt
    return found


def _decoded(entry: Entry) -> tuple[Columns, pa.Table]:
    try:
        return decoded(entry.payload)
    except MemoryError:
        raise  # not the fault of the entry
    except Exception as error:  # whatever an entry holds, the error names its position
        raise CorruptEntry(f"entry {entry.glsn}: {error}", entry.glsn, entry.glsn + 1) from error


def _marked_schema(request: ReadRequest) -> pa.Schema:
    marks = [pa.field(VERSION_COLUMN, pa.int64()), pa.field(ORDINAL_COLUMN, pa.int64())]
    kinds = [pa.field(KIND_COLUMN, pa.string()), pa.field(ROUTE_COLUMN, pa.string())]
    return pa.schema([*marks, *kinds, *arrow_schema(request.columns)])


def _with_places(glsn: int, changes: pa.Table, request: ReadRequest) -> pa.Table:
    """Changes of one entry with their version and ordinal, in the requested columns."""
    count = changes.num_rows
    routes = changes.column(request.routing).cast(pa.string()) if request.routing in changes.column_names else None
    marked: dict[str, Any] = {
        VERSION_COLUMN: pa.array(np.full(count, glsn, np.int64)),
        ORDINAL_COLUMN: pa.array(np.arange(count, dtype=np.int64)),
        KIND_COLUMN: changes.column(KIND_COLUMN),
        ROUTE_COLUMN: pa.nulls(count, pa.string()) if routes is None else routes,
    }
    wanted = [column.name for column in request.columns if column.name in changes.column_names]
    return filled(pa.table({**marked, **{name: changes.column(name) for name in wanted}}), _marked_schema(request))
