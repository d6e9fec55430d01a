"""Reads one table of a captured database in ranges of the log, and in parts by its key: for windows and states that are
too large for one task.

Rules
 V1  A range begins at a catalog, so that a task needs nothing before it, and no transaction crosses one: parts of one
     follow each other without a catalog between them. A window begins in its first range.
 V2  Rows come under the newest columns of the window. If a version in between is not known from catalogs, or the key
     changed on the way, the table is not split.
 V3  A task holds some PIECE_BYTES of rows, and a part is about PART_BYTES, however large the table is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

import pyarrow as pa
from msgspec import Struct

from trunkline.delivery.changes.change_records import qualified
from trunkline.delivery.changes.database_entries import CatalogEntry, Chunk, Group, Part
from trunkline.delivery.changes.database_reader import DatabaseReader, presented
from trunkline.delivery.changes.groups import TableRows
from trunkline.delivery.changes.rows import NetChanges
from trunkline.delivery.changes.schemas import CatalogTable, TableSchema
from trunkline.delivery.changes.table_changes import key_numbers
from trunkline.delivery.changes.versions import Window
from trunkline.delivery.config.addresses import LogAddress
from trunkline.delivery.sources.contract import ReadRequest
from trunkline.delivery.sources.database_cursor import DatabaseCursor
from trunkline.delivery.sources.key_split import KeySplit, emptied, forgotten, history_of, placed, travel_schema
from trunkline.delivery.sources.log_reader import ChangeLogReader, with_reader
from trunkline.delivery.sources.shuffled_reads import AllFacts, Facts
from trunkline.delivery.sources.sizes import row_bytes
from trunkline.errors import DestinationHalted, Unreachable

PIECE_BYTES: Final = 48 * 1024 * 1024  # of rows that a task splits at once
PART_BYTES: Final = 32 * 1024 * 1024
PARTS_MAX: Final = 1024
SAMPLED_RANGES: Final = 6  # to know the size of a row
SAMPLED_ENTRIES: Final = 24


class LogRange(Struct, frozen=True):
    """Positions ``first`` to ``last``, readable from a catalog on."""

    catalog: int
    first: int
    last: int


class TableSplit(Struct, frozen=True):
    """A window of one table, or a state, in ranges and parts; a value for tasks."""

    address: LogAddress
    number: int
    versions: tuple[TableSchema, ...]  # of its generation, oldest first
    whole: bool
    log_ranges: tuple[LogRange, ...]
    parts: int
    request: ReadRequest
    since: int = 0  # rows of earlier entries do not count
    joined: dict[int, int] = {}  # see KeySplit

    @property
    def travel(self) -> pa.Schema:
        return travel_schema(self.versions[-1])

    def settled(self, rows: pa.Table, facts: Facts) -> NetChanges:
        """What the rows of a part come to."""
        history, request = history_of(self.versions, rows), self.request
        facts.truncated |= history.truncated
        facts.lacking += history.lacking(request.columns)
        if facts.lacking:
            nothing = request.empty_rows()
            return NetChanges(nothing.select([nothing.column_names[0], *request.key]), nothing)
        given = (request.columns, request.key, request.routing)
        return history.whole(*given) if self.whole else history.net(*given, request.also)

    def state(self, rows: pa.Table) -> pa.Table:
        """The state of a part. Raises ``DestinationHalted`` if a row was never stated whole."""
        return history_of(self.versions, rows).whole_rows(self.request.columns, self.request.routing)


class TableSplits(Struct, frozen=True):
    """Some tables over the same ranges; a value for tasks."""

    tables: tuple[TableSplit, ...]

    @property
    def ranges(self) -> int:
        return len(self.tables[0].log_ranges)

    def split(self, number: int, facts: AllFacts) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        """The rows of a range, by table and part."""
        splitters = {each.number: KeySplit(each.versions, each.parts, each.joined) for each in self.tables}
        reading = RangeReading(self.tables[0].log_ranges[number], self.tables)
        for pieces in reading.pieces():
            for table, batches in pieces.items():
                yield from ((table, part, rows) for part, rows in splitters[table].split(batches))
        for table, splitter in splitters.items():
            noticed = facts.setdefault(table, Facts())
            noticed.unsplit |= table in reading.unknown
            noticed.parted |= splitter.parted
            noticed.add_links(splitter.links)


class RangeReading:
    """The rows of some tables in a range of the log, under their newest versions."""

    def __init__(self, positions: LogRange, splits: Sequence[TableSplit]) -> None:
        self._address, self._range = splits[0].address, positions
        self._since = {each.number: each.since for each in splits}
        self._tables = {each.number: each.versions for each in splits}
        self._known = {each.number: {known.version for known in each.versions} for each in splits}
        self._reader: DatabaseReader | None = None
        self._begin = 0  # the first part of a transaction whose last is to come
        self._parts: set[int] = set()  # tables with rows in its parts so far
        self._pieces: dict[int, list[pa.RecordBatch]] = {}
        self._size = 0
        self.unknown: set[int] = set()  # tables with rows of versions that are not known

    def pieces(self) -> Iterator[dict[int, list[pa.RecordBatch]]]:
        """Batches of each table, in order; some PIECE_BYTES at a time."""
        while (reader := self._reader) is None or reader.glsn < self._range.last:
            with_reader(self._address, self._read_some)
            if self._pieces:
                found, self._pieces, self._size = self._pieces, {}, 0
                yield found

    def _read_some(self, log: ChangeLogReader) -> None:
        cursor = DatabaseCursor(log, self._address.log, log.bounds())
        if self._reader is None:
            self._reader = DatabaseReader(cursor.catalog(self._range.catalog), lambda each: each.number in self._tables)
        reader = self._reader
        for entry in cursor.entries(reader.glsn + 1, self._range.last):
            wanted = entry.glsn >= self._range.first
            step = reader.feed(entry, rows=wanted)
            if isinstance(entry, Part) and not self._begin:
                self._begin = entry.glsn
            if step.forgets and wanted:
                for number in self._tables.keys() & self._parts:
                    self._keep(number, forgotten(self._tables[number][-1], self._begin, entry.glsn))
            for number in step.emptied if isinstance(entry, Chunk) and wanted else ():
                if (
                    number in self._tables and entry.glsn >= self._since[number]
                ):  # else a generation begins, and rows of earlier ones are left out
                    self._keep(number, emptied(self._tables[number][-1], entry.glsn))
            for rows in step.rows:
                self._take(reader, rows, entry.glsn)
            if isinstance(entry, Part):
                self._parts |= {rows.number for rows in step.rows}
            if step.end:
                self._begin = 0
                self._parts.clear()
            if self._size >= PIECE_BYTES:
                return

    def _take(self, reader: DatabaseReader, rows: TableRows, glsn: int) -> None:
        versions = self._tables[rows.number]
        if glsn < self._since[rows.number]:
            return
        if reader.table(rows.number).newest.generation != versions[-1].generation:
            return
        if rows.version not in self._known[rows.number]:
            self.unknown.add(rows.number)
        elif rows.batch.num_rows:
            batch = presented(versions, rows).batch
            self._keep(rows.number, placed(batch, self._begin or glsn, glsn, rows.version))

    def _keep(self, number: int, batch: pa.RecordBatch) -> None:
        self._pieces.setdefault(number, []).append(batch)
        self._size += batch.nbytes


# ------------------------------------------------------------------------------------------------------------- plans


def plan_splits(
    cursor: DatabaseCursor, address: LogAddress, window: Window, requests: Mapping[str, ReadRequest]
) -> dict[str, TableSplit]:
    """Some tables, by name, over the same ranges; without those that cannot be split (V2). Raises ``Unreachable``,
    ``DestinationHalted``."""
    through = cursor.reader_at(window.through)
    now = {qualified(each.newest): each for each in through.tables() if each.complete}
    now = {name: now[name] for name in requests if name in now}
    for name, request in requests.items():
        _check_there(name, now.get(name), window.through, request)
    held = {} if window.after <= 0 else {each.newest.number: each for each in cursor.reader_at(window.after).tables()}
    before = {name: held.get(each.newest.number) for name, each in now.items()}
    whole = {name for name, each in now.items() if not _continues(before[name], each)}
    first = window.after + 1 if whole != now.keys() else window.through
    if whole:
        start, trimmed = cursor.generations_reader(
            window.through, [now[name].newest.number for name in whole], lambda _: False
        )
        if trimmed:
            lacking = sorted(name for name in whole if now[name].newest.number in trimmed)
            raise trimmed_rows(", ".join(lacking), window.through)
        first = min(first, start.glsn + 1)
    catalogs = cursor.catalogs_between(first, window.through)
    versions = _versions(through, catalogs, {each.newest.number for each in now.values()})
    ranges = ranges_of([catalog.glsn for catalog in catalogs], first, window.through)
    sizes = sampled_row_bytes(cursor, ranges)
    found: dict[str, TableSplit] = {}
    for name, each in now.items():
        number, schema, earlier = each.newest.number, each.newest, before[name]
        mine = tuple(known for known in versions[number] if known.generation == schema.generation)
        rows = each.rows if name in whole or earlier is None else max(each.rows - earlier.rows, 0)
        size = rows * max(row_bytes(schema.vocabulary()), sizes.get(number, 0))
        if is_splittable(mine):
            parts = min(PARTS_MAX, 1 + size // PART_BYTES)
            since = 0 if name in whole else window.after + 1
            found[name] = TableSplit(address, number, mine, name in whole, ranges, parts, requests[name], since)
    return found


def _check_there(name: str, table: CatalogTable | None, version: int, request: ReadRequest) -> None:
    if table is None:
        raise Unreachable(f"{name} cannot be read at position {version} of the log; retrying")
    check_columns(table.newest, request)


def check_columns(schema: TableSchema, request: ReadRequest) -> None:
    known = {each.name for each in schema.columns}
    if not {*request.named, *(column.name for column in request.columns)} <= known:
        raise Unreachable(f"the columns of {qualified(schema)} are others than when the window was planned; retrying")


def _continues(before: CatalogTable | None, now: CatalogTable) -> bool:
    """Whether the changes of a window lead from one to the other; else the table is read whole."""
    if before is None or not before.complete or qualified(before.newest) != qualified(now.newest):
        return False
    return before.newest.generation == now.newest.generation


def _versions(
    reader: DatabaseReader, catalogs: Sequence[CatalogEntry], numbers: Collection[int]
) -> dict[int, list[TableSchema]]:
    """All versions of some tables that are known, oldest first."""
    known = {number: {each.version: each for each in reader.versions(number)} for number in numbers}
    for catalog in catalogs:
        for table in catalog.catalog.tables:
            if table.newest.number in known:
                known[table.newest.number] |= {each.version: each for each in table.schemas}
    return {number: [found[version] for version in sorted(found)] for number, found in known.items()}


def is_splittable(versions: Sequence[TableSchema]) -> bool:
    """V2."""
    gaps = any(newer.version != older.version + 1 for older, newer in pairwise(versions))
    return not gaps and all(key_numbers(each) == key_numbers(versions[-1]) for each in versions)


def ranges_of(catalogs: Sequence[int], first: int, last: int) -> tuple[LogRange, ...]:
    """V1. ``catalogs``: ascending; the first one is before ``first``."""
    ends = [*(glsn - 1 for glsn in catalogs[1:]), last]
    found = (LogRange(glsn, max(glsn + 1, first), end) for glsn, end in zip(catalogs, ends, strict=True))
    return tuple(each for each in found if each.first <= each.last)


def sampled_row_bytes(cursor: DatabaseCursor, ranges: Sequence[LogRange]) -> dict[int, int]:
    """The size of a row of each table in the log, by the heads of some entries; without tables that these lack."""
    found: dict[int, tuple[int, int]] = {}
    for each in ranges[:: max(1, len(ranges) // SAMPLED_RANGES)]:
        for entry in cursor.entries(each.first, min(each.last, each.first + SAMPLED_ENTRIES)):
            for share in entry.head.tables if isinstance(entry, Group | Chunk) else ():
                rows, size = found.get(share.number, (0, 0))
                found[share.number] = (rows + share.rows, size + share.size)
    return {number: size // rows for number, (rows, size) in found.items() if rows}


def trimmed_rows(names: str, version: int) -> DestinationHalted:
    return DestinationHalted(
        f"the log was trimmed, so that it no longer has all rows of {names} at {version}; run `trunkline capture "
        "resnapshot`: that captures the table again"
    )
