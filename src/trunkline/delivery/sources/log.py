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
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace

from trunkline.client.entries import Entry
from trunkline.delivery.changes.columns import Columns
from trunkline.delivery.changes.history import TIME, TIME_COLUMN, VersionedChanges
from trunkline.delivery.changes.ordered import ORDER, arrivals_only, net_of_ordered
from trunkline.delivery.changes.row_versions import versions_of_ordered
from trunkline.delivery.changes.rows import (
    BATCH_ROWS,
    KIND_COLUMN,
    ORDINAL_COLUMN,
    VERSION_COLUMN,
    ChangeKind,
    NetChanges,
)
from trunkline.delivery.changes.versions import BEFORE_ALL, Lineage, Window, version_mark
from trunkline.delivery.config.addresses import LogAddress
from trunkline.delivery.sources.contract import Backlog, ReadRequest, RouteFilter, SourceState, TableSurvey
from trunkline.delivery.sources.dead_letters import DeadLetter, write_dead_letters
from trunkline.delivery.sources.debezium import check_schema_without_row, event_schema, parse_event
from trunkline.delivery.sources.debezium_batches import EventBatches
from trunkline.delivery.sources.debezium_values import declared_columns
from trunkline.delivery.sources.log_reader import ChangeLogReader, LogBounds, with_reader
from trunkline.delivery.sources.log_split import (
    ONE,
    PART_BYTES,
    PARTS_MAX,
    LogSplit,
    decoded_entry,
    interrupted,
    marked_schema,
    ranges_of,
    with_places,
)
from trunkline.delivery.sources.part_spool import PartSpool, rows_among
from trunkline.delivery.sources.route_filter import filtered_table, filtered_versions
from trunkline.delivery.sources.shuffled_reads import AllFacts, Facts, SettledFrames, SplitBlobs
from trunkline.errors import CorruptEntry, DestinationHalted, ProtocolError, Unreachable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STEP: Final = {"changes": 1024, "debezium": 65_536}  # entries of a window at most; more: a task holds more in memory
LOOK_BACK_MAX: Final = 65_536  # entries without columns, such as heartbeats, to search; more: it takes seconds
LOOK_BACK_STEP_MAX: Final = 64  # entries that are held in memory at once
ENTRY_BYTES: Final = 1000  # at least, in guesses: a log has no size of a range
SAMPLED_ENTRIES: Final = 12  # to guess the size of all

Ends = dict[int, tuple[int, int | None]]  # of entries: the end of their transaction, and its time in microseconds


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

    def survey(self, window: Window) -> TableSurvey:
        return with_reader(self.address, partial(self._survey, window))

    def _survey(self, window: Window, log: ChangeLogReader) -> TableSurvey:
        bounds = log.bounds()
        columns = self._columns(window.through, log)
        altered = window.after > 0 and not window.empty and self._columns_differ(window.after, columns, bounds, log)
        count = window.through - max(window.after, bounds.trimmed)
        size = self._entry_bytes(log, window.through - count + 1, window.through)
        backlog = Backlog(count, count * size, quiet=count <= 0)
        marks = (self._mark_of(window.after, bounds), self._mark_of(window.through, bounds))
        return TableSurvey(backlog, columns, self._identity(bounds), altered, "", *marks)

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
            return decoded_entry(entry)[0]
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
        # Old rows are whole, so rows that differ in `also` may be distinguished: each is removed with its own values.
        net, emptied = net_of_ordered(changes, request.stated) if request.key else arrivals_only(changes)
        gone = net.removed.slice(0, 0) if emptied else net.removed
        return NetChanges(
            filtered_table(gone, routes), filtered_table(net.arrived, routes), emptied and window.after > 0
        )

    def versions(self, window: Window, request: ReadRequest, routes: RouteFilter) -> VersionedChanges:
        """A truncation removes the rows that were there; if the log no longer has these, destinations compare."""
        ends: Ends = {}
        try:
            changes = self._valid_changes(window, request, put_aside=True, ends=ends)
            truncated = pc.any(pc.equal(changes.column(KIND_COLUMN), ChangeKind.TRUNCATE)).as_py()
            before = self._state_at(window.after, request) if truncated else None
        except (CorruptEntry, DestinationHalted):  # perhaps before a truncation, where it does not matter
            changes, before = self._valid_changes(window, request, put_aside=True), None
        found = versions_of_ordered(_by_transaction(changes, ends), request.columns, request.key, before)
        return filtered_versions(found, routes)

    def live(self, version: int, request: ReadRequest, keys: pa.Table) -> pa.Table:
        return rows_among(self._rows(version, request), request, keys)

    def scan(self, version: int, request: ReadRequest, routes: RouteFilter) -> Iterator[pa.RecordBatch]:
        for batch in self._rows(version, request):
            yield from filtered_table(pa.Table.from_batches([batch]), routes).to_batches()

    def _rows(self, version: int, request: ReadRequest) -> Iterator[pa.RecordBatch]:
        """All rows at a version, by way of a file if they are many."""
        split = self.split(Window(BEFORE_ALL, version), request)
        found = None if split is None or split.parts == 1 else self._spooled(split)
        yield from self._state_at(version, request).to_batches(BATCH_ROWS) if found is None else found

    def _spooled(self, split: LogSplit) -> Iterator[pa.RecordBatch] | None:
        noticed: AllFacts = {}
        spool = PartSpool()
        for number in range(split.ranges):
            for table, part, rows in split.split(number, noticed):
                spool.add(table, part, rows)
        facts = noticed.get(ONE, Facts())
        following = self.checked(split, facts)
        if following is not None and following != split:
            return self._spooled(following)
        parts = (pa.Table.from_batches(batches, split.travel) for batches in spool.parts(ONE, split.travel))
        settled = (split.settled(rows, facts).arrived for rows in parts)
        return None if following is None else (batch for rows in settled for batch in rows.to_batches(BATCH_ROWS))

    def large_reads(self) -> LogLargeReads | None:
        return None if self.address.format == "debezium" else LogLargeReads(self)

    def split(self, window: Window, request: ReadRequest) -> LogSplit | None:
        """A window in ranges and parts; ``None``: it can only be read in one piece."""
        if self.address.format == "debezium":
            return None

        def plan(log: ChangeLogReader) -> LogSplit:
            bounds = log.bounds()
            self._check_mark(window.through, request, bounds)
            first = max(window.after, bounds.trimmed, 0) + 1
            size = (window.through - first + 1) * self._entry_bytes(log, first, window.through)
            parts = min(PARTS_MAX, 1 + size // PART_BYTES)
            ranges, cut = ranges_of(first, window.through), 0 < bounds.trimmed == first - 1
            return LogSplit(self.address, request, ranges, parts, cut=cut, whole=window.after <= 0)

        return with_reader(self.address, plan)

    def checked(self, split: LogSplit, facts: Facts) -> LogSplit | None:
        """The split itself, if what it found counts; another one that leaves out interrupted transactions; or ``None``:
        it can only be read in one piece, which reports why. Raises ``DestinationHalted`` if rows are missing."""
        lost = interrupted(facts.notes, cut=split.cut)
        if lost is None or facts.misfit > facts.truncation or facts.unsplit or facts.halted:
            return None
        if not set(lost) <= set(split.lost):
            return replace(split, lost=lost)
        if split.cut and split.whole and not facts.truncation:
            raise self._trimmed(split.log_ranges[0][0] - 1, split.log_ranges[-1][1])
        return split

    def _entry_bytes(self, log: ChangeLogReader, first: int, last: int) -> int:
        """The average size of an entry in a range, by some of them."""
        found: list[int] = []
        for at in range(first, last + 1, max(1, (last - first + 1) // SAMPLED_ENTRIES)):
            with suppress(CorruptEntry):  # the read reports it, if it matters
                entry = log.at(at)
                found += [] if entry is None else [len(entry.payload)]
        return max(ENTRY_BYTES, sum(found) // len(found)) if found else ENTRY_BYTES

    def native_reads(self) -> None:
        return None

    def _state_at(self, version: int, request: ReadRequest) -> pa.Table:
        """Only a read: the task that delivers these changes has written the dead letters."""
        changes = self._valid_changes(Window(0, version), request, put_aside=False)
        return (net_of_ordered(changes, request.key) if request.key else arrivals_only(changes))[0].arrived

    def _valid_changes(
        self, window: Window, request: ReadRequest, *, put_aside: bool, ends: Ends | None = None
    ) -> pa.Table:
        """The window's changes in order. Malformed events become dead letters first, or halt (G5). ``ends``: filled
        with those of its entries; then changes before a truncation are kept, too."""
        changes, malformed = with_reader(self.address, partial(self._changes, window, request, ends))
        if malformed and self.address.malformed == "halt":
            raise self._halted(malformed[0])
        if malformed and put_aside and self.address.dead_letters is not None:
            write_dead_letters(self.address, malformed)
        return changes

    def _changes(
        self, window: Window, request: ReadRequest, ends: Ends | None, log: ChangeLogReader
    ) -> tuple[pa.Table, list[DeadLetter]]:
        """The window's changes in order, and the malformed events."""
        bounds = log.bounds()
        self._check_mark(window.through, request, bounds)
        first = max(window.after, 0) + 1
        begins = first > 1 or bounds.trimmed == 0
        if not begins:
            first = bounds.trimmed + 1
        malformed: list[DeadLetter] = []
        if self.address.format == "debezium":
            transactions = _noted(log.transactions(first, window.through), ends)
            tables, malformed = self._events(transactions, request)
        else:
            cut = 0 < bounds.trimmed == first - 1
            transactions = _noted(log.transactions(first, window.through, cut=cut), ends)
            tables = [self._fitted(*each, request) for each in _captured(transactions, all_of_them=ends is not None)]
        empty = marked_schema(request).empty_table()
        changes = pa.concat_tables([empty, *tables]) if tables else empty
        if not begins and not pc.any(pc.equal(changes.column(KIND_COLUMN), ChangeKind.TRUNCATE)).as_py():
            raise self._trimmed(bounds.trimmed, window.through)
        return changes, malformed

    def _check_mark(self, version: int, request: ReadRequest, bounds: LogBounds) -> None:
        if request.mark and request.mark != self._mark_of(version, bounds):
            raise Unreachable(f"the log {self.address.log} was replaced during the read; retrying")

    def _trimmed(self, point: int, version: int) -> DestinationHalted:
        return DestinationHalted(
            f"the log {self.address.log} was trimmed up to {point}, so it no longer has all rows at "
            f"{version}; capture a new snapshot into it, then reseed"
        )

    def _events(
        self, transactions: Iterable[list[Entry] | CorruptEntry], request: ReadRequest
    ) -> tuple[list[pa.Table], list[DeadLetter]]:
        events = EventBatches(self.address, request)
        for transaction in transactions:
            if isinstance(transaction, CorruptEntry):
                raise transaction
            for entry in transaction:
                events.add(entry)
        return events.finished()

    def _fitted(self, glsn: int, changes: pa.Table, request: ReadRequest) -> pa.Table:
        try:
            return with_places(glsn, changes, request)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise DestinationHalted(
                f"entry {glsn} of the log {self.address.log} has values that do not fit the present columns ({error}); "
                "capture a new snapshot into it, then reseed"
            ) from error


class LogLargeReads(Struct, frozen=True):
    """Windows and states of a log, read by Spark."""

    source: LogSource

    def frames(self, spark: SparkSession, window: Window, request: ReadRequest) -> SettledFrames | None:
        split = self.source.split(window, request)
        while split is not None:
            frame, facts = SplitBlobs(spark, split, keep=False).settled(split)
            following = self.source.checked(split, facts)
            if following == split:
                emptied = facts.truncated and window.after > 0
                return SettledFrames(frame, request, emptied, exact=not facts.inexact)
            split = following
        return None


def _noted(
    transactions: Iterable[list[Entry] | CorruptEntry], ends: Ends | None
) -> Iterator[list[Entry] | CorruptEntry]:
    """Fill in the ends of the entries on their way."""
    for transaction in transactions:
        if ends is not None and not isinstance(transaction, CorruptEntry):
            last = transaction[-1]
            ends |= {entry.glsn: (last.glsn, 1000 * last.time_ms or None) for entry in transaction}
        yield transaction


def _by_transaction(changes: pa.Table, ends: Ends) -> pa.Table:
    """Changes whose version is the end of their transaction, with its time."""
    ordered = changes.sort_by(ORDER)
    found = [ends.get(glsn, (glsn, None)) for glsn in ordered.column(VERSION_COLUMN).to_pylist()]
    facts = {
        VERSION_COLUMN: pa.array([end for end, _ in found], pa.int64()),
        ORDINAL_COLUMN: pa.array(np.arange(len(found))),
        TIME_COLUMN: pa.array([time_us for _, time_us in found], pa.int64()).cast(TIME),
    }
    kept = ordered.drop_columns([VERSION_COLUMN, ORDINAL_COLUMN])
    for name, values in facts.items():
        kept = kept.append_column(name, values)
    return kept


def _captured(
    transactions: Iterable[list[Entry] | CorruptEntry], *, all_of_them: bool = False
) -> list[tuple[int, pa.Table]]:
    """The changes of each entry since the last truncation: earlier ones may have other types, or be corrupt. Raises for
    a corrupt entry after it. ``all_of_them``: from the beginning."""
    found: list[tuple[int, pa.Table]] = []
    corrupt: CorruptEntry | None = None
    for transaction in transactions:
        try:
            if isinstance(transaction, CorruptEntry):
                raise transaction
            for entry in transaction:
                if not entry.payload:
                    continue
                changes = decoded_entry(entry)[1]
                truncates = pc.any(pc.equal(changes.column(KIND_COLUMN), ChangeKind.TRUNCATE)).as_py()
                if truncates and not all_of_them:
                    found, corrupt = [], None
                found.append((entry.glsn, changes))
        except CorruptEntry as error:
            corrupt = corrupt or error
    if corrupt is not None:
        raise corrupt
    return found
