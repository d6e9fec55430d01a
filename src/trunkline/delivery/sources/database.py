"""Tables of a captured database as a source: the version is an end in the log of the database.

Which versions there are is in ``database_timeline``, for a set, and ``database_table``, for the one table that an
address names. How rows are read is in ``database_rows``. Rows come under the newest columns at the end of their window,
and a survey names the steps to them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TypeVar
from weakref import WeakKeyDictionary

import pyarrow as pa
from msgspec import Struct

from trunkline.delivery.changes.change_records import qualified
from trunkline.delivery.changes.column_steps import ColumnSteps, steps_of
from trunkline.delivery.changes.history import VersionedChanges
from trunkline.delivery.changes.rows import BATCH_ROWS, ROUTE_COLUMN, NetChanges
from trunkline.delivery.changes.schemas import TableSchema
from trunkline.delivery.changes.table_changes import TableHistory, check_identity
from trunkline.delivery.changes.versions import BEFORE_ALL, Lineage, Window, version_mark
from trunkline.delivery.config.addresses import LogAddress
from trunkline.delivery.config.table_patterns import Selection
from trunkline.delivery.sources.contract import (
    ALL_ROUTES,
    Backlog,
    LargeReads,
    ReadRequest,
    Requests,
    RouteFilter,
    SourceState,
    SourceTable,
    Survey,
    SurveyedTable,
    TableSurvey,
)
from trunkline.delivery.sources.database_cursor import DatabaseCursor
from trunkline.delivery.sources.database_history import TableAt
from trunkline.delivery.sources.database_large import DatabaseLargeReads, SharedReads
from trunkline.delivery.sources.database_rows import read_states, read_window
from trunkline.delivery.sources.database_split import TableSplit, plan_splits
from trunkline.delivery.sources.database_table import TableTimeline
from trunkline.delivery.sources.database_timeline import DatabaseTimeline
from trunkline.delivery.sources.database_versions import read_versions
from trunkline.delivery.sources.log_reader import ChangeLogReader, LogBounds, with_reader
from trunkline.delivery.sources.part_spool import rows_among
from trunkline.delivery.sources.route_filter import filtered_table, filtered_versions
from trunkline.delivery.sources.sizes import ENTRY_BYTES
from trunkline.delivery.sources.table_set import ONE
from trunkline.delivery.sources.table_spool import TableSpool
from trunkline.errors import ConfigError, DestinationHalted, SourceExpired, Trimmed, TrunklineError, Unreachable

T = TypeVar("T")


class _OpenLog:
    """What this process knows of a log."""

    def __init__(self, log: ChangeLogReader, name: str, bounds: LogBounds) -> None:
        self.bounds = bounds
        self.cursor = DatabaseCursor(log, name, bounds)
        self.timelines: dict[tuple[str | None, Selection | None], DatabaseTimeline] = {}
        self.writers: dict[tuple[str | None, Selection | None], object] = {}  # of the position of each timeline


_open: WeakKeyDictionary[ChangeLogReader, _OpenLog] = WeakKeyDictionary()


class DatabaseSource(Struct, frozen=True):
    """The tables of a selection; without one, the table that ``address.table`` names."""

    address: LogAddress
    selection: Selection | None = None

    # --------------------------------------------------------------------------------------------------------- metadata

    def change_hint(self) -> object:
        return with_reader(self.address, ChangeLogReader.tail)

    def state(self, known: int) -> SourceState:
        def ask(opened: _OpenLog) -> SourceState:
            bounds, timeline = self._followed(opened)
            version, identity = timeline.version(), self._identity(timeline, bounds)
            return SourceState(
                version,
                bounds.trimmed,
                timeline.stops(known),
                identity,
                first=0 if known else timeline.first(),
                mark=_mark(identity, version, bounds),
                known_mark=_mark(identity, known, bounds),
                waiting=timeline.waiting(),
                awaited=timeline.awaited(),
            )

        return self._ask(ask)

    def lineage(self, versions: Collection[int]) -> Lineage:
        def ask(opened: _OpenLog) -> Lineage:
            bounds, timeline = self._followed(opened)
            identity = self._identity(timeline, bounds)
            marks = {version: _mark(identity, version, bounds) for version in versions}
            return Lineage(identity, bounds.tail - 1, {version: mark for version, mark in marks.items() if mark})

        return self._ask(ask)

    def tables(self, version: int) -> tuple[SourceTable, ...]:
        def ask(opened: _OpenLog) -> tuple[SourceTable, ...]:
            bounds, timeline = self._followed(opened)
            if version > 0:
                found = timeline.set_at(version)
            else:
                found = {each.name: each for each in self._newest(timeline).values()}
            return tuple(self._table(timeline, each, bounds) for _, each in sorted(found.items()))

        return self._ask(ask)

    def _newest(self, timeline: DatabaseTimeline) -> dict[int, TableAt]:
        found = timeline.newest()
        if isinstance(timeline, TableTimeline) and not found:
            raise timeline.halted()
        names = {(each.schema.schema, each.schema.name) for each in found.values()}
        named = () if self.selection is None else self.selection.named()
        if lacking := [f"{schema}.{name}" for schema, name in named if (schema, name) not in names]:
            raise ConfigError(
                f"the log {self.address.log} has no table {', '.join(lacking)}; name others in `tables`, or capture it"
            )
        return found

    def _table(self, timeline: DatabaseTimeline, found: TableAt, bounds: LogBounds) -> SourceTable:
        schema = found.schema
        columns, numbers = timeline.columns(schema), {column.name: column.number for column in schema.columns}
        return SourceTable(
            self._outer(found.name),
            columns,
            schema.key,
            self._table_identity(schema.number, bounds),
            tuple(numbers[column.name] for column in columns),
        )

    def check_keys(self, table: str, key: tuple[str, ...], routing: str) -> None:
        """Raises ``ConfigError`` if removals do not state these columns."""

        def ask(opened: _OpenLog) -> None:
            newest = {each.name: each for each in self._newest(self._followed(opened)[1]).values()}
            found = newest.get(self._inner(table))
            if key and found is not None:
                check_identity(found.schema, found.schema, (*key, routing))

        try:
            self._ask(ask)
        except DestinationHalted as error:
            raise ConfigError(str(error)) from error

    # --------------------------------------------------------------------------------------------------------- surveys

    def survey(self, window: Window) -> Survey:
        def ask(opened: _OpenLog) -> Survey:
            bounds, timeline = self._followed(opened)
            if 0 < window.after < bounds.trimmed:
                raise SourceExpired(f"the log was trimmed up to {bounds.trimmed}; the destination is seeded again")
            now = timeline.set_at(window.through)
            before = self._before(timeline, window, now)
            identity = self._identity(timeline, bounds)
            marks = (_mark(identity, window.after, bounds), _mark(identity, window.through, bounds))
            steps = self._steps(opened, window, before, now)
            sizes = timeline.touched(window.after, window.through) if window.after > 0 else None
            tables = tuple(
                self._surveyed(timeline, window, before.get(name), found, bounds, marks, steps.get(name), sizes)
                for name, found in sorted(now.items())
            )
            left = tuple(self._outer(name) for name in sorted(before.keys() - now.keys()))
            return Survey(tables, identity, left, *marks)

        return self._ask(ask)

    def _before(self, timeline: DatabaseTimeline, window: Window, now: dict[str, TableAt]) -> dict[str, TableAt]:
        """The set at the beginning of a window. The table of a pipeline with one table is never absent there: a
        destination has rows of it."""
        if window.after <= 0:
            return {}
        if window.empty:
            return now
        if isinstance(timeline, TableTimeline):
            found = timeline.at(window.after).get(timeline.number)
            return {} if found is None else {self._inner(ONE): found}
        return timeline.set_at(window.after)

    def _surveyed(
        self,
        timeline: DatabaseTimeline,
        window: Window,
        before: TableAt | None,
        now: TableAt,
        bounds: LogBounds,
        marks: tuple[str, str],
        steps: ColumnSteps | None,
        sizes: Mapping[int, tuple[int, int]] | None,
    ) -> SurveyedTable:
        table = self._table(timeline, now, bounds)
        whole = not _continues(before, now) and window.after > 0
        altered = before is not None and timeline.columns(before.schema) != table.columns
        rows = timeline.rows(now.schema.number)
        if whole or window.after <= 0:
            size = rows * timeline.row_bytes(now.schema)
            backlog = Backlog(max(rows, int(whole)), size, quiet=not (rows or whole))
        elif sizes is not None:
            touched = sizes.get(now.schema.number, (0, 0))
            backlog = Backlog(*touched, quiet=not touched[0])
        else:
            count = max(window.through - max(window.after, bounds.trimmed), 0)
            size = min(count * ENTRY_BYTES, rows * timeline.row_bytes(now.schema))
            backlog = Backlog(count, size, quiet=count == 0)
        return SurveyedTable(
            table, TableSurvey(backlog, table.columns, table.identity, altered, "", *marks, steps=steps), whole
        )

    def _steps(
        self, opened: _OpenLog, window: Window, before: dict[str, TableAt], now: dict[str, TableAt]
    ) -> dict[str, ColumnSteps | None]:
        """Those of tables that are not read whole."""
        kept = {name: (before[name], found) for name, found in now.items() if _continues(before.get(name), found)}
        altered = {name for name, (old, new) in kept.items() if old.schema.version != new.schema.version}
        found = {name: steps_of([new.schema]) for name, (_, new) in kept.items() if name not in altered}
        if altered:
            reader = opened.cursor.reader_at(window.after)
            for entry in opened.cursor.entries(reader.glsn + 1, window.through):
                reader.feed(entry, rows=False)
            for name in altered:
                old, new = kept[name]
                versions = reader.versions(new.schema.number)
                found[name] = steps_of([each for each in versions if each.version >= old.schema.version])
        return found

    # ------------------------------------------------------------------------------------------------------------- rows

    def net_changes(self, window: Window, requests: Requests, routes: RouteFilter) -> dict[str, NetChanges]:
        names = {self._inner(name): request for name, request in requests.items()}

        def ask(opened: _OpenLog) -> dict[str, NetChanges]:
            self._check_marks(opened, window, requests)
            if window.after <= 0:
                found = read_states(opened.cursor, window.through, names)
            else:
                found = read_window(opened.cursor, window, names)
            made: dict[str, NetChanges] = {}
            for name, request in names.items():
                whole = name in found.emptied
                if name in found.histories:
                    history = self._fitting(found.histories.pop(name), request)
                    given = (request.columns, request.key, request.routing)
                    net = history.whole(*given) if whole else history.net(*given, request.also)
                else:
                    nothing = request.empty_rows()
                    net = NetChanges(nothing.select([ROUTE_COLUMN, *request.key]), nothing)
                removed, arrived = filtered_table(net.removed, routes), filtered_table(net.arrived, routes)
                made[self._outer(name)] = NetChanges(removed, arrived, whole and window.after > 0)
            return made

        return self._ask(ask)

    def versions(self, window: Window, requests: Requests, routes: RouteFilter) -> dict[str, VersionedChanges]:
        names = {self._inner(name): request for name, request in requests.items()}

        def ask(opened: _OpenLog) -> dict[str, VersionedChanges]:
            self._check_marks(opened, window, requests)
            found = read_versions(opened.cursor, window, names, self._fitting)
            return {self._outer(name): filtered_versions(each, routes) for name, each in found.items()}

        return self._ask(ask)

    def live(self, table: str, version: int, request: ReadRequest, keys: pa.Table) -> pa.Table:
        [(_, rows)] = self.scan(version, {table: request}, ALL_ROUTES)
        return rows_among(rows, request, keys)

    def scan(
        self, version: int, requests: Requests, routes: RouteFilter
    ) -> Iterator[tuple[str, Iterator[pa.RecordBatch]]]:
        """The log is read once for all tables; their rows wait in a file."""
        spool = TableSpool(self.splits(Window(BEFORE_ALL, version), requests))
        for name, request in requests.items():
            rows = spool.rows(name)
            if rows is None:
                rows = iter(self._state(version, name, request).to_batches(BATCH_ROWS))
            yield name, (batch for each in rows for batch in _filtered(each, routes))

    def large_reads(self, tables: Collection[str]) -> Mapping[str, LargeReads]:
        shared = SharedReads(self, tuple(tables))
        return {table: DatabaseLargeReads(shared, table) for table in tables}

    def splits(self, window: Window, requests: Requests) -> dict[str, TableSplit]:
        """A window of some tables in ranges and parts; without those that can only be read in one piece."""
        names = {self._inner(name): request for name, request in requests.items()}

        def ask(opened: _OpenLog) -> dict[str, TableSplit]:
            self._check_marks(opened, window, requests)
            return plan_splits(opened.cursor, self.address, window, names)

        return {self._outer(name): split for name, split in self._ask(ask).items()}

    def native_reads(self, table: str) -> None:
        return None

    def _state(self, version: int, table: str, request: ReadRequest) -> pa.Table:
        """A whole table in memory."""

        def ask(opened: _OpenLog) -> pa.Table:
            found = read_states(opened.cursor, version, [self._inner(table)])
            history = self._fitting(found.histories[self._inner(table)], request)
            return history.whole_rows(request.columns, request.routing)

        return self._ask(ask)

    def _fitting(self, history: TableHistory, request: ReadRequest) -> TableHistory:
        names = {"", *(column.name for column in history.schema.columns)}
        if not {request.routing, *request.key, *(column.name for column in request.columns)} <= names:
            raise Unreachable(
                f"the columns of {qualified(history.schema)} are others than when the window was planned; retrying"
            )
        return history

    # ---------------------------------------------------------------------------------------------- identity and marks

    def _check_marks(self, opened: _OpenLog, window: Window, requests: Requests) -> None:
        bounds = opened.bounds
        identity = self._identity(None, bounds)
        if self.selection is None:
            at = window.after if window.after > 0 else window.through
            schema, _, name = self._inner(ONE).partition(".")
            number = opened.cursor.reader_at(at).number_of(schema, name)
            if number is None:
                raise DestinationHalted(f"the source table {self._inner(ONE)} is not at position {at} of the log")
            identity = self._table_identity(number, bounds)
        mark = _mark(identity, window.through, bounds)
        if any(request.mark not in ("", mark) for request in requests.values()):
            raise Unreachable(f"the log {self.address.log} was replaced during the read; retrying")

    def _identity(self, timeline: DatabaseTimeline | None, bounds: LogBounds) -> str:
        if isinstance(timeline, TableTimeline):
            return self._table_identity(timeline.number, bounds)
        return f"log:{bounds.cluster}/{self.address.log}"

    def _table_identity(self, number: int, bounds: LogBounds) -> str:
        return f"log:{bounds.cluster}/{self.address.log}#{number}"

    def _inner(self, name: str) -> str:
        return name if self.selection is not None else self.address.table or ""

    def _outer(self, name: str) -> str:
        return name if self.selection is not None else ONE

    def _chosen(self, schema: TableSchema) -> bool:
        assert self.selection is not None
        return self.selection.matches(schema.schema, schema.name)

    def _followed(self, opened: _OpenLog) -> tuple[LogBounds, DatabaseTimeline]:
        """The tables along the log, up to the tail."""
        bounds, key = opened.bounds, (self.address.table, self.selection)
        timeline = opened.timelines.get(key)
        if (
            timeline is None
            or not bounds.trimmed <= timeline.position < bounds.tail
            or bounds.writer_of(timeline.position) != opened.writers[key]
        ):  # it is new, or the log was replaced, or trimmed past what it has seen
            oldest = bounds.trimmed + 1
            if self.selection is None:
                timeline = TableTimeline(opened.cursor, self._inner(ONE), oldest)
            else:
                timeline = DatabaseTimeline(opened.cursor, self._chosen, oldest)
        try:
            timeline.follow(bounds.tail - 1)
        except Trimmed as error:
            raise Unreachable(
                f"positions up to {error.point} were trimmed, and no catalog is left after them; wait for the next one "
                "of the capture, or restart it"
            ) from error
        opened.timelines[key] = timeline
        opened.writers[key] = bounds.writer_of(timeline.position)
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


def _filtered(batch: pa.RecordBatch, routes: RouteFilter) -> list[pa.RecordBatch]:
    return list(filtered_table(pa.Table.from_batches([batch]), routes).to_batches())


def _continues(before: TableAt | None, now: TableAt) -> bool:
    """Whether the changes of a window lead from one to the other; else the table is read whole."""
    if before is None or before.schema.number != now.schema.number:
        return False
    return before.schema.generation == now.schema.generation and before.name == now.name


def _mark(identity: str, version: int, bounds: LogBounds) -> str:
    writer = bounds.writer_of(version)
    return "" if writer is None else version_mark(identity, version, *writer)
