"""One table of a captured database as a source: the version is an end in the log of the database.

Rules
 J1  A window holds whole transactions: it begins and ends at ends, and parts that a crash left open are in none. What
     the rows of the table in it come to is in ``changes.table_changes``.
 J2  The state at a version is that of the table's newest generation up to it: the chunks of its snapshot, and the
     changes beside and after them. It is known only if the log still has the generation's beginning.
 J3  A generation that begins in a window, or a truncation, empties every destination: ``NetChanges.emptied``.
 J4  Rows come under the newest columns at the end of their window. A survey names the steps to them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
from msgspec import Struct

from trunkline.delivery.changes.change_records import qualified
from trunkline.delivery.changes.column_steps import ColumnSteps, steps_of
from trunkline.delivery.changes.columns import Columns
from trunkline.delivery.changes.database_reader import DatabaseReader
from trunkline.delivery.changes.net import row_codes
from trunkline.delivery.changes.rows import BATCH_ROWS, ROUTE_COLUMN, NetChanges
from trunkline.delivery.changes.table_changes import TableChanges, TableHistory, check_identity
from trunkline.delivery.changes.versions import Lineage, Window, version_mark
from trunkline.delivery.config.addresses import LogAddress
from trunkline.delivery.sources.contract import Backlog, ReadRequest, RouteFilter, SourceState, Survey
from trunkline.delivery.sources.database_cursor import DatabaseCursor
from trunkline.delivery.sources.database_timeline import TableAt, TableTimeline
from trunkline.delivery.sources.log_reader import ChangeLogReader, LogBounds, with_reader
from trunkline.delivery.sources.route_filter import filtered_table
from trunkline.errors import ConfigError, DestinationHalted, SourceExpired, Trimmed, TrunklineError, Unreachable

T = TypeVar("T")
ENTRY_BYTES: Final = 10_000  # a guess, for entries that were not looked at


class _OpenLog:
    """What this process knows of a log."""

    def __init__(self, log: ChangeLogReader, name: str, bounds: LogBounds) -> None:
        self.bounds = bounds
        self.cursor = DatabaseCursor(log, name, bounds)
        self.timelines: dict[str, TableTimeline] = {}
        self.writers: dict[str, object] = {}  # of the position of each timeline


_open: WeakKeyDictionary[ChangeLogReader, _OpenLog] = WeakKeyDictionary()


class DatabaseTableSource(Struct, frozen=True):
    """One table. ``address.table`` is not ``None``."""

    address: LogAddress

    @property
    def table(self) -> str:
        return self.address.table or ""

    # --------------------------------------------------------------------------------------------------------- metadata

    def change_hint(self) -> object:
        return with_reader(self.address, ChangeLogReader.tail)

    def state(self, known: int) -> SourceState:
        def ask(opened: _OpenLog) -> SourceState:
            bounds, timeline = self._followed(opened)
            version = timeline.version()
            marks = (self._mark(timeline.number, version, bounds), self._mark(timeline.number, known, bounds))
            first = 0 if known else timeline.first()
            identity = self._identity(timeline.number, bounds)
            waiting = timeline.waiting()
            return SourceState(version, bounds.trimmed, timeline.stops(known), identity, first, *marks, waiting=waiting)

        return self._ask(ask)

    def lineage(self, versions: Collection[int]) -> Lineage:
        def ask(opened: _OpenLog) -> Lineage:
            bounds, timeline = self._followed(opened)
            marks = {version: self._mark(timeline.number, version, bounds) for version in versions}
            known = {version: mark for version, mark in marks.items() if mark}
            return Lineage(self._identity(timeline.number, bounds), bounds.tail - 1, known)

        return self._ask(ask)

    def columns(self, version: int) -> Columns:
        """Those of the newest version if there is none yet."""

        def ask(opened: _OpenLog) -> Columns:
            _, timeline = self._followed(opened)
            return (self._readable(timeline, version).schema if version > 0 else timeline.newest()).vocabulary()

        return self._ask(ask)

    def check_keys(self, key: tuple[str, ...], routing: str) -> None:
        """Raises ``ConfigError`` if removals do not state these columns."""

        def ask(opened: _OpenLog) -> None:
            newest = self._followed(opened)[1].newest()
            if key:
                check_identity(newest, newest, (*key, routing))

        try:
            self._ask(ask)
        except DestinationHalted as error:
            raise ConfigError(str(error)) from error

    def survey(self, window: Window) -> Survey:
        def ask(opened: _OpenLog) -> Survey:
            bounds, timeline = self._followed(opened)
            if 0 < window.after < bounds.trimmed:
                raise SourceExpired(f"the log was trimmed up to {bounds.trimmed}; the destination is seeded again")
            through = self._readable(timeline, window.through)
            after = timeline.at(window.after) if 0 < window.after < window.through else through
            steps = None if window.after <= 0 else self._steps(opened, window, after, through)
            columns = through.schema.vocabulary()
            altered = after is not None and after.schema.vocabulary() != columns
            number = timeline.number
            marks = (self._mark(number, window.after, bounds), self._mark(number, window.through, bounds))
            backlog = self._backlog(timeline, window, bounds)
            if after is None or after.schema.generation != through.schema.generation:
                backlog = Backlog(max(backlog.rows, 1), backlog.size_bytes, quiet=False)
            return Survey(backlog, columns, self._identity(number, bounds), altered, "", *marks, steps=steps)

        return self._ask(ask)

    def _readable(self, timeline: TableTimeline, version: int) -> TableAt:
        found = timeline.at(version)
        if found is None:
            raise timeline.halted()
        if not found.complete:
            raise Unreachable(f"the snapshot of {self.table} is not complete at {version}; waiting for it")
        return found

    def _steps(self, opened: _OpenLog, window: Window, after: TableAt | None, through: TableAt) -> ColumnSteps | None:
        """J4; ``None`` over a new generation."""
        if after is None or after.schema.generation != through.schema.generation:
            return None
        if after.schema.version == through.schema.version:
            return steps_of([through.schema])
        reader = opened.cursor.reader_at(window.after)
        for entry in opened.cursor.entries(reader.glsn + 1, window.through):
            reader.feed(entry, rows=False)
        versions = reader.versions(through.schema.number)
        return steps_of([each for each in versions if each.version >= after.schema.version])

    def _backlog(self, timeline: TableTimeline, window: Window, bounds: LogBounds) -> Backlog:
        count = max(window.through - max(window.after, bounds.trimmed), 0)
        touched = timeline.touched(window.after, window.through)
        if touched is None:
            return Backlog(count, count * ENTRY_BYTES, quiet=count == 0)
        return Backlog(*touched, quiet=touched[0] == 0)

    # ------------------------------------------------------------------------------------------------------------- rows

    def net_changes(self, window: Window, request: ReadRequest, routes: RouteFilter) -> NetChanges:
        if window.after <= 0:
            rows = self._state_at(window.through, request)
            return NetChanges(rows.slice(0, 0).select([ROUTE_COLUMN, *request.key]), filtered_table(rows, routes))
        net = self._ask(lambda opened: self._window(opened, window, request))
        return NetChanges(filtered_table(net.removed, routes), filtered_table(net.arrived, routes), net.emptied)

    def live(self, version: int, request: ReadRequest, keys: pa.Table) -> pa.Table:
        rows = self._state_at(version, request)
        names = [ROUTE_COLUMN, *request.key]
        codes = row_codes(pa.concat_tables([rows.select(names), keys.select(names).cast(rows.select(names).schema)]))
        mine, wanted = np.split(codes, [rows.num_rows])
        return rows.take(np.flatnonzero(np.isin(mine, wanted)))

    def scan(self, version: int, request: ReadRequest, routes: RouteFilter) -> Iterator[pa.RecordBatch]:
        yield from filtered_table(self._state_at(version, request), routes).to_batches(BATCH_ROWS)

    def large_reads(self) -> None:
        return None

    def native_reads(self) -> None:
        return None

    def _window(self, opened: _OpenLog, window: Window, request: ReadRequest) -> NetChanges:
        reader = opened.cursor.reader_at(window.after)
        number = self._number(reader)
        reader = reader.copy(lambda schema: schema.number == number)
        changes = TableChanges(number)
        self._check_mark(opened, number, window.through, request)
        for entry in opened.cursor.entries(reader.glsn + 1, window.through):
            changes.add(reader, reader.feed(entry))
        opened.cursor.keep(reader)
        history = self._history(reader, number, changes, request)
        net = history.net(request.columns, request.key, request.routing)
        return NetChanges(net.removed, net.arrived, changes.emptied or history.truncated)

    def _state_at(self, version: int, request: ReadRequest) -> pa.Table:
        return self._ask(lambda opened: self._state(opened, version, request))

    def _state(self, opened: _OpenLog, version: int, request: ReadRequest) -> pa.Table:
        number = self._number(opened.cursor.reader_at(version))
        self._check_mark(opened, number, version, request)
        reader = opened.cursor.generation_reader(version, number, lambda schema: schema.number == number)
        if reader is None:
            raise DestinationHalted(
                f"the log {self.address.log} was trimmed, so that it no longer has all rows of {self.table} at "
                f"{version}; run `trunkline capture resnapshot`: that captures the table again"
            )
        changes = TableChanges(number, compacts=True)
        for entry in opened.cursor.entries(reader.glsn + 1, version):
            changes.add(reader, reader.feed(entry))
        return self._history(reader, number, changes, request).whole_rows(request.columns, request.routing)

    def _number(self, reader: DatabaseReader) -> int:
        schema, _, name = self.table.partition(".")
        number = reader.number_of(schema, name)
        if number is None:
            raise DestinationHalted(f"the source table {self.table} is not at position {reader.glsn} of the log")
        return number

    def _history(
        self, reader: DatabaseReader, number: int, changes: TableChanges, request: ReadRequest
    ) -> TableHistory:
        table = reader.find(number)
        if table is None or not table.complete or qualified(table.newest) != self.table:
            raise DestinationHalted(f"the source table {self.table} cannot be read at position {reader.glsn}")
        names = {column.name for column in table.newest.columns}
        if not {request.routing, *request.key, *(column.name for column in request.columns)} <= names:
            raise Unreachable(f"the columns of {self.table} are others than when the window was planned; retrying")
        return changes.history(reader)

    # ---------------------------------------------------------------------------------------------- identity and marks

    def _check_mark(self, opened: _OpenLog, number: int, version: int, request: ReadRequest) -> None:
        if request.mark and request.mark != self._mark(number, version, opened.bounds):
            raise Unreachable(f"the log {self.address.log} was replaced during the read; retrying")

    def _identity(self, number: int, bounds: LogBounds) -> str:
        return f"log:{bounds.cluster}/{self.address.log}#{number}"

    def _mark(self, number: int, version: int, bounds: LogBounds) -> str:
        writer = bounds.writer_of(version)
        return "" if writer is None else version_mark(self._identity(number, bounds), version, *writer)

    def _followed(self, opened: _OpenLog) -> tuple[LogBounds, TableTimeline]:
        """The table along the log, up to the tail."""
        bounds = opened.bounds
        timeline = opened.timelines.get(self.table)
        if timeline is None or (
            timeline.position >= bounds.tail or bounds.writer_of(timeline.position) != opened.writers[self.table]
        ):  # it is new, or the log was replaced
            timeline = TableTimeline(opened.cursor, self.table, bounds.trimmed + 1)
        try:
            timeline.follow(bounds.tail - 1)
        except Trimmed as error:
            raise Unreachable(
                f"positions up to {error.point} were trimmed, and no catalog is left after them; wait for the next one "
                "of the capture, or restart it"
            ) from error
        opened.timelines[self.table] = timeline
        opened.writers[self.table] = bounds.writer_of(timeline.position)
        return bounds, timeline

    def _ask(self, ask: Callable[[_OpenLog], T]) -> T:
        def asked(log: ChangeLogReader) -> T:
            bounds = log.bounds()
            opened = _open.get(log)
            if opened is None:
                opened = _open[log] = _OpenLog(log, self.address.log, bounds)
            opened.bounds = bounds
            opened.cursor.refresh(bounds)
            try:
                return ask(opened)
            except TrunklineError:
                _open.pop(log, None)  # a reader that failed is not used again
                raise

        return with_reader(self.address, asked)
