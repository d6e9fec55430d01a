"""Finds where to begin in the log of a database, and reads on from there.

Rules
 B1  A reader begins at a catalog. Each entry names one before it, and each catalog the one before: so no more than the
     entries since the last catalog are read to know all schemas at a position.
 B2  Readers of a few positions are kept: the next window begins where the last one ended. One is used only while the
     log has the same writer at its position.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from trunkline.delivery.changes.database_entries import (
    CatalogEntry,
    DatabaseEntry,
    EntryKind,
    Heading,
    OneTable,
    entry_of,
    heading_of,
)
from trunkline.delivery.changes.database_reader import Choice, DatabaseReader
from trunkline.delivery.sources.log_reader import ChangeLogReader, LogBounds
from trunkline.errors import ConfigError, CorruptEntry, Trimmed, Unreachable

READERS_MAX: Final = 4  # positions of destinations that are apart; more: more memory, fewer: entries are read again


def nothing_chosen(_: object) -> bool:
    return False


class DatabaseCursor:
    """Used by one thread at a time. ``name``: of the log, for messages."""

    def __init__(self, log: ChangeLogReader, name: str, bounds: LogBounds) -> None:
        self._log = log
        self._name = name
        self._readers: list[tuple[DatabaseReader, object]] = []  # and who wrote their positions; the newest is the last
        self.refresh(bounds)

    def entries(self, first: int, last: int) -> Iterator[DatabaseEntry | OneTable]:
        if first <= last:
            yield from map(entry_of, self._log.entries(first, last))

    def heading(self, glsn: int) -> Heading | None:
        """``None`` for a hole. Raises ``ConfigError`` for a log of one table."""
        entry = self._log.at(glsn)
        if entry is None:
            return None
        found = heading_of(entry)
        if found is None:
            raise ConfigError(
                f"the log {self._name} has the changes of one table, not of a database; leave out `table` of the source"
            )
        return found

    def end_at(self, glsn: int, oldest: int) -> int:
        """The last end at or before a position; if there is none, the position before ``oldest``, or the last one that
        was trimmed. A corrupt entry counts as an end: the read up to there reports it."""
        while glsn >= oldest:
            try:
                heading = self.heading(glsn)
            except CorruptEntry:
                return glsn
            except Trimmed as error:
                return error.point
            if heading is not None and heading.end:
                return glsn
            glsn -= 1 if heading is None or not heading.index else heading.index
        return oldest - 1

    # ------------------------------------------------------------------------------------------------------- catalogs

    def catalog_at(self, position: int) -> CatalogEntry:
        """A catalog from which on all entries after a position can be read. Raises ``Trimmed``."""
        return self.catalog(self._catalog_position(position))

    def _catalog_position(self, position: int) -> int:
        for glsn in range(position, 0, -1):
            try:
                heading = self.heading(glsn)
            except Trimmed:
                if position < self._last and self._catalog(position + 1) is not None:
                    return position + 1
                raise
            if heading is not None and heading.kind is EntryKind.CATALOG:
                return glsn
            if heading is not None and heading.catalog is not None:
                return heading.catalog
        raise Unreachable(f"the log {self._name} has no tables yet; start its capture")

    def catalogs_at(self, position: int) -> Iterator[CatalogEntry]:
        """All from a position on back, as far as the log has them."""
        catalog = self.catalog_at(position)
        yield catalog
        yield from self.earlier_catalogs(catalog)

    def earlier_catalogs(self, catalog: CatalogEntry) -> Iterator[CatalogEntry]:
        """Those before it, the newest first, as far as the log has them."""
        named = catalog.heading.catalog
        while named is not None:
            try:
                found = self.catalog(named)
            except Trimmed:
                return
            yield found
            named = found.heading.catalog

    def catalog_positions(self, catalog: CatalogEntry, after: int) -> list[int]:
        """Of those before it, back to one that is not after a position; ascending. They are not decoded."""
        found: list[int] = []
        named = catalog.heading.catalog
        while named is not None:
            try:
                heading = self.heading(named)
            except Trimmed:
                break
            found.append(named)
            named = None if heading is None or named <= after else heading.catalog
        return found[::-1]

    def catalogs_between(self, first: int, last: int) -> list[CatalogEntry]:
        """The one from which on a position can be read, and all later ones up to another position; ascending."""
        newest = self.catalog_at(last)
        earlier = self.catalog_positions(newest, first - 1) if newest.glsn >= first else []
        return [*map(self.catalog, earlier), newest]

    def catalog(self, glsn: int) -> CatalogEntry:
        found = self._catalog(glsn)
        if found is None:
            raise CorruptEntry(f"entry {glsn} is named as a catalog, and is none", glsn, glsn + 1)
        return found

    def _catalog(self, glsn: int) -> CatalogEntry | None:
        entry = self._log.at(glsn)
        found = None if entry is None else entry_of(entry)
        return found if isinstance(found, CatalogEntry) else None

    # -------------------------------------------------------------------------------------------------------- readers

    def reader_at(self, position: int, chosen: Choice = nothing_chosen) -> DatabaseReader:
        """A reader that has taken all entries up to a position; the caller's own."""
        catalog = self._catalog_position(position)
        known = [each for each, _ in self._readers if catalog <= each.glsn <= position]
        nearest = max(known, key=lambda each: each.glsn, default=None)
        reader = DatabaseReader(self.catalog(catalog), chosen) if nearest is None else nearest.copy(chosen)
        for entry in self.entries(reader.glsn + 1, position):
            reader.feed(entry, rows=False)
        self.keep(reader)
        return reader

    def generations_reader(
        self, version: int, numbers: Collection[int], chosen: Choice
    ) -> tuple[DatabaseReader, set[int]]:
        """A reader after which all rows of some tables at a version come; and those of which some were trimmed."""
        tables = {each.newest.number: each.newest.generation for each in self.reader_at(version).tables()}
        late = {number: tables.get(number, 0) for number in numbers}
        for catalog in self.catalogs_at(version):
            found = {each.newest.number: each for each in catalog.catalog.tables if each.newest.number in late}
            late = {
                number: generation
                for number, generation in late.items()
                if number in found and found[number].chunks and found[number].newest.generation >= generation
            }
            if not late:
                break
        return DatabaseReader(catalog, chosen), set(late)

    def keep(self, reader: DatabaseReader) -> None:
        """Remember the state of a reader (B2)."""
        others = [each for each in self._readers if each[0].glsn != reader.glsn]
        kept = (reader.copy(nothing_chosen), self._bounds.writer_of(reader.glsn))
        self._readers = [*others, kept][-READERS_MAX:]

    def refresh(self, bounds: LogBounds) -> None:
        """The log as it is now; readers of a log that was replaced are forgotten."""
        self._bounds, self._last = bounds, bounds.tail - 1
        self._readers = [each for each in self._readers if each[1] == bounds.writer_of(each[0].glsn)]
