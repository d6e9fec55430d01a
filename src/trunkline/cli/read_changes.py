"""``trunkline read --changes``: the transactions of a captured database, from any position on.

1. Entries need the catalog before them. The first entry that names one says where it is; from there to the first
   position that was asked for, only heads are read.
2. A large transaction is several entries, and counts only if its last part is there. So the headers
   up to it are read first, and then the parts are shown one by one; nothing is held in memory.
3. A catalog that was trimmed away: entries up to the next one cannot be read, and a note says so.
"""

from __future__ import annotations

import fnmatch
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from itertools import groupby
from typing import NamedTuple

from trunkline.cli import WrongInput
from trunkline.cli.change_lines import Lines, source_of
from trunkline.cli.tables import plural
from trunkline.client.entries import Entry
from trunkline.client.log import Log
from trunkline.delivery.changes.change_records import one_table_changes, qualified, row_changes
from trunkline.delivery.changes.database_entries import (
    CatalogEntry,
    Chunk,
    DatabaseEntry,
    EntryKind,
    Group,
    Mark,
    OneTable,
    Part,
    SchemaEntry,
    entry_of,
    heading_of,
)
from trunkline.delivery.changes.database_reader import DatabaseReader
from trunkline.delivery.changes.schemas import TableSchema
from trunkline.errors import CorruptEntry


class Wanted(NamedTuple):
    """``start``: the first position, not below ``oldest``. ``tables``: patterns; all if there are none."""

    start: int
    oldest: int
    until: int | None = None
    follow: bool = False
    tables: Sequence[str] = ()


class Seen(NamedTuple):
    entries: int
    following: int  # the position after the last one


def chooses(patterns: Sequence[str]) -> Callable[[TableSchema], bool]:
    """Patterns of the shell, for the name with its schema or, without a dot, for the name alone."""

    def chosen(schema: TableSchema) -> bool:
        full = qualified(schema)
        return any(fnmatch.fnmatchcase(full if "." in each else schema.name, each) for each in patterns)

    return chosen if patterns else lambda _: True


class ChangesView:
    """Goes through the entries of a log. ``write`` takes whole lines, ``note`` a remark for people."""

    def __init__(
        self, log: Log, wanted: Wanted, lines: Lines, *, write: Callable[[str], None], note: Callable[[str], None]
    ) -> None:
        self._log = log
        self._wanted = wanted
        self._lines = lines
        self._write = write
        self._note = note
        self._chosen = chooses(wanted.tables)
        self._reader: DatabaseReader | None = None
        self._skipped = 0  # entries without a catalog (3)
        self._counts = False  # whether the parts that follow are of a transaction that is whole (2)
        self._open = False  # whether a transaction of a log of one table has begun

    async def show(self) -> Seen:
        wanted = self._wanted
        begin = await self._begin()
        seen, following = 0, wanted.start
        async for entry in _entries(self._log, begin, wanted.until, wanted.follow):
            await self._take(entry, entry_of(entry))
            if entry.glsn >= wanted.start:
                seen, following = seen + 1, entry.glsn + 1
        return Seen(seen, following)

    async def _begin(self) -> int:
        """Where to begin to read, so that a catalog comes first (1)."""
        wanted = self._wanted
        async with aclosing(_entries(self._log, wanted.start, wanted.until, wanted.follow)) as entries:
            async for entry in entries:
                heading = heading_of(entry)
                if heading is not None and heading.catalog is not None:
                    return min(heading.catalog, wanted.start) if heading.catalog >= wanted.oldest else wanted.start
                if heading is None or heading.kind is EntryKind.CATALOG:
                    break
        return wanted.start

    async def _take(self, stored: Entry, entry: DatabaseEntry | OneTable) -> None:
        shown = stored.glsn >= self._wanted.start
        if self._reader is None:
            if isinstance(entry, CatalogEntry):
                self._begin_at(entry)
            elif isinstance(entry, OneTable):
                self._one_table(entry)
                return
            elif not isinstance(entry, Mark):
                self._skipped += 1
                return
        elif not isinstance(entry, Mark | CatalogEntry | SchemaEntry):
            await self._rows(self._reader, entry, shown=shown)
            return
        else:
            self._reader.feed(entry)
        if shown:
            self._event(entry)

    def _begin_at(self, entry: CatalogEntry) -> None:
        self._reader = DatabaseReader(entry, self._chosen)
        if self._skipped:
            skipped = plural(self._skipped, "entry", "entries")
            self._note(f"the {skipped} before {entry.glsn} cannot be read: their catalog was trimmed")

    def _event(self, entry: DatabaseEntry | OneTable) -> None:
        match entry:
            case SchemaEntry() if self._chosen(entry.schema):
                self._write(self._lines.schema(entry.glsn, entry.schema))
            case CatalogEntry() if not self._wanted.tables:
                self._write(self._lines.catalog(entry.glsn, entry.catalog))
            case Mark() if not self._wanted.tables:
                self._write(self._lines.mark(entry.glsn, entry.heading.position))

    async def _rows(self, reader: DatabaseReader, entry: DatabaseEntry | OneTable, *, shown: bool) -> None:
        part = entry.index if isinstance(entry, Part) else None
        if isinstance(entry, Part) and shown and (not part or entry.glsn == self._wanted.start):
            self._counts = entry.heading.end or await self._is_whole(entry.glsn + 1)
        shown = shown and (part is None or self._counts)
        step = reader.feed(entry, rows=shown)
        if not shown:
            return
        changes = row_changes(reader, step)
        if isinstance(entry, Group):
            for index, found in groupby(changes, lambda change: change.tx):
                first = None if part is None else part if entry.glsn > self._wanted.start else 0
                transaction, source = entry.head.transactions[index], source_of(entry.heading.position)
                self._write(self._lines.transaction(entry.glsn, transaction, list(found), first, source))
        elif isinstance(entry, Chunk):
            [share] = entry.head.tables
            schema = reader.versions(share.number)[-1]
            if self._chosen(schema):
                self._write(self._lines.chunk(entry.glsn, schema, entry.head, changes))

    async def _is_whole(self, start: int) -> bool:
        """Whether the last part of the transaction whose parts go on here is in the log (2)."""
        async with aclosing(_entries(self._log, start, None, self._wanted.follow)) as entries:
            async for entry in entries:
                heading = heading_of(entry)
                if heading is not None and heading.kind is EntryKind.PART and heading.end:
                    return True
                if heading is None or (heading.kind is EntryKind.MARK and heading.position is None):
                    return False
        self._note(f"the transaction whose first entry is {start - 1} has no end yet")
        return False

    def _one_table(self, entry: OneTable) -> None:
        place = entry.place
        if self._wanted.tables:
            raise WrongInput("this log has one table, without a name: leave --table out")
        if self._open and not place.index:
            self._write(self._lines.interrupted(entry.glsn))
        self._open = not place.last
        if entry.payload:
            try:
                changes = one_table_changes(entry.payload)
            except CorruptEntry as error:
                raise CorruptEntry(f"entry {entry.glsn}: {error}", entry.glsn, entry.glsn + 1) from error
            self._write(self._lines.one_table(entry.glsn, place.position, changes, place.index))
        else:
            self._write(self._lines.mark(entry.glsn, place.position))


async def _entries(log: Log, start: int, until: int | None, follow: bool) -> AsyncGenerator[Entry, None]:
    batches = log.batches(start, until, to_tail=not follow)
    try:
        async for batch in batches:
            for entry in batch:
                yield entry
    finally:
        batches.close()
