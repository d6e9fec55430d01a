"""Ranges of a captured database's log: its catalog at a position, the changes of one table, and where transactions end.

1. A task reads the catalog before its range, and heads from there on; batches of other tables are never decoded.
2. Parts of a transaction count only if its last part is in the log. A task that meets parts reads ahead for it, beyond
   its range if need be, so ranges may be cut anywhere.
3. The end of a micro-batch is the end of a transaction, so that no batch has a part of one. A transaction that is
   larger than the limit of a batch is a batch of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import StructType

from trunkline import sync
from trunkline.client.entries import Entry
from trunkline.delivery.changes.database_entries import (
    CatalogEntry,
    EntryKind,
    Heading,
    Mark,
    OneTable,
    Part,
    entry_of,
    heading_of,
)
from trunkline.delivery.changes.database_reader import DatabaseReader
from trunkline.delivery.changes.schemas import TableSchema
from trunkline.errors import ConfigError, Refused, Trimmed
from trunkline.spark.change_columns import change_batch
from trunkline.spark.columns import arrow_schema
from trunkline.spark.connections import CONNECTIONS
from trunkline.spark.options import ReadOptions
from trunkline.spark.ranges import LogExtent, PositionRange, untrimmed

LOOK_BACK: Final = 16  # entries at first; marks and holes name no catalog, so more if need be
ROWS_MAX: Final = 16_384  # of an Arrow batch that joins small ones


def captured_table(log: sync.Log, found: LogExtent, ending: int | None, name: str) -> TableSchema:
    """The table of this name as of the end of a read. Raises ``ConfigError``."""
    end = found.tail if ending is None else min(ending + 1, found.tail)
    reader = reader_before(log, end, found.oldest)
    tables = () if reader is None else reader.tables()
    names = {f"{table.newest.schema}.{table.newest.name}": table.newest for table in tables}
    wanted = name if "." in name else f"public.{name}"
    if wanted not in names:
        known = ", ".join(sorted(names)[:20]) or "none: is a capture of a database running?"
        raise ConfigError(f"option changes: log {log.name} has no table {wanted} at position {end - 1}; it has {known}")
    return names[wanted]


def reader_before(log: sync.Log, position: int, oldest: int, number: int | None = None) -> DatabaseReader | None:
    """A reader that was fed with everything before a position; None if there is no catalog before it."""
    catalog = _catalog_before(log, position, oldest)
    if catalog is None or catalog < oldest:
        return None
    reader: DatabaseReader | None = None
    for entry in _entries(log, catalog, position - 1):
        if reader is None:
            reader = _begun(entry, number)
        else:
            reader.feed(entry_of(entry), rows=False)
    return reader


def _begun(stored: Entry, number: int | None) -> DatabaseReader | None:
    entry = entry_of(stored)
    if isinstance(entry, OneTable):
        raise ConfigError(
            f"option changes: entry {entry.glsn} is not of a captured database; the log of a single table, or of other "
            "entries, is read without this option"
        )
    if not isinstance(entry, CatalogEntry):
        return None
    return DatabaseReader(entry, lambda schema: number is None or schema.number == number)


def _catalog_before(log: sync.Log, position: int, oldest: int) -> int | None:
    reach = LOOK_BACK
    while position > oldest:
        first = max(oldest, position - reach)
        for entry in reversed(list(_entries(log, first, position - 1))):
            heading = heading_of(entry)
            if heading is None:
                _begun(entry, None)
            elif heading.kind is EntryKind.CATALOG:
                return entry.glsn
            elif heading.catalog is not None:
                return heading.catalog
        if first == oldest:
            return None
        reach *= 2
    return None


def _entries(log: sync.Log, start: int, until: int) -> Iterator[Entry]:
    if start <= until:
        with log.batches(start, until, to_tail=True) as batches:
            for batch in batches:
                yield from batch


# -------------------------------------------------------------------------------------------------------------- reading


def read_changes(options: ReadOptions, table: TableSchema, schema: StructType, part: PositionRange) -> Iterator[Any]:
    """Record batches of the table's changes in a range, in order. Raises ``TrunklineError``."""
    wanted = arrow_schema(schema)
    with CONNECTIONS.using(options.connection) as (cluster, log):
        first, held, rows = part.first, [], 0
        while first < part.end:
            oldest = cluster.describe(log.name).trim + 1
            walk = _Walk(options, log, table, wanted, oldest)
            try:
                for batch in walk.batches(first, part.end):
                    held.append(batch)
                    rows += batch.num_rows
                    if rows >= ROWS_MAX:
                        yield from _joined(held, wanted)
                        held, rows = [], 0
            except Trimmed as trimmed:
                first = untrimmed(options, walk.position, trimmed.point + 1)
            else:
                break
        yield from _joined(held, wanted)


def _joined(held: list[Any], wanted: Any) -> Iterator[Any]:
    if held:
        yield from pa.Table.from_batches(held, wanted).combine_chunks().to_batches()


class _Walk:
    """Through a range. ``position``: of the next entry."""

    def __init__(self, options: ReadOptions, log: sync.Log, table: TableSchema, wanted: Any, oldest: int) -> None:
        self._options = options
        self._log = log
        self._table = table
        self._wanted = wanted
        self._oldest = oldest
        self._counts = False  # whether the parts that follow are of a transaction that is whole (2)
        self.position = 0

    def batches(self, first: int, end: int) -> Iterator[Any]:
        self.position = first
        reader = reader_before(self._log, first, self._oldest, self._table.number)
        for stored in _entries(self._log, first, end - 1):
            self.position = stored.glsn + 1
            if reader is None:
                reader = _begun(stored, self._table.number)
                if reader is None:
                    self._check_skipped(stored)
                continue
            yield from self._changes(reader, stored, first=stored.glsn == first)

    def _changes(self, reader: DatabaseReader, stored: Entry, *, first: bool) -> Iterator[Any]:
        entry = entry_of(stored)
        counts = True
        if isinstance(entry, Part):
            if first or not entry.index:
                self._counts = entry.heading.end or _is_whole(self._log, entry.glsn + 1)
            counts = self._counts
        step = reader.feed(entry, rows=counts)
        for rows in step.rows:
            [version] = [each for each in reader.versions(rows.number) if each.version == rows.version]
            yield change_batch(step, rows, version, self._table, self._wanted)

    def _check_skipped(self, stored: Entry) -> None:
        """An entry without a catalog before it: a mark at the beginning, or the catalog was trimmed."""
        if isinstance(entry_of(stored), Mark) or not self._options.fail_on_trim:
            return
        raise Refused(
            f"entry {stored.glsn} needs a catalog that was trimmed away; set the option failOnTrim to false to begin "
            "at the next one"
        )


def _is_whole(log: sync.Log, start: int) -> bool:
    """Whether the last part of the transaction whose parts go on here is in the log."""
    for entry in _entries(log, start, log.tail() - 1):
        heading = heading_of(entry)
        if heading is None or _takes_over(heading):
            return False
        if heading.kind is EntryKind.PART and heading.end:
            return True
    return False


def _takes_over(heading: Heading) -> bool:
    return heading.kind is EntryKind.MARK and heading.position is None


# ----------------------------------------------------------------------------------------------------- ends of batches


def transaction_end(log: sync.Log, first: int, end: int, tail: int) -> int:
    """The last position up to ``end``, exclusive, that splits no transaction; else the first behind ``end`` (3)."""
    position = _end_before(log, first, end)
    if position > first or end <= first:
        return position
    for entry in _entries(log, end, tail - 1):
        if _ends(heading_of(entry)):
            return entry.glsn + 1
    return first


def _ends(heading: Heading | None) -> bool:
    """Only parts and schemas lie inside of a transaction."""
    return heading is None or heading.end or heading.kind is EntryKind.CATALOG


def _end_before(log: sync.Log, first: int, end: int) -> int:
    """``first`` if there is no end between them."""
    position = end
    while position > first:
        begin = max(first, position - LOOK_BACK)
        found = [(entry.glsn, heading_of(entry)) for entry in _entries(log, begin, position - 1)]
        position = begin
        for glsn, heading in reversed(found):
            if _ends(heading):
                return glsn + 1
            if heading is not None and heading.index:
                position = max(first, glsn - heading.index + 1)  # behind its first part, or a part before it
                break
    return first
