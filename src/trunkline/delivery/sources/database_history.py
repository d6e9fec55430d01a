"""What the earlier catalogs of a log tell about the tables of a set: versions before the part that was followed.

A generation is complete once, and generations only rise. So two catalogs that agree on the generations of all tables
and on which are complete also agree with all catalogs between them, and few of them are read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from trunkline.delivery.changes.change_records import qualified
from trunkline.delivery.changes.database_entries import CatalogEntry, Chunk, DatabaseEntry, OneTable, SchemaEntry
from trunkline.delivery.changes.database_reader import Choice, DatabaseReader, Step
from trunkline.delivery.changes.schemas import CatalogTable, TableSchema
from trunkline.delivery.sources.database_cursor import DatabaseCursor, nothing_chosen

Signature = dict[int, tuple[int, bool]]  # of each chosen table: its generation, and whether it is complete


class TableAt(Struct, frozen=True):
    """A table at an end."""

    schema: TableSchema
    complete: bool

    @property
    def name(self) -> str:
        return qualified(self.schema)


class DatabaseHistory:
    def __init__(self, cursor: DatabaseCursor, chosen: Choice, oldest: int) -> None:
        self._cursor, self._chosen, self._oldest = cursor, chosen, oldest

    def tables_at(self, position: int) -> dict[int, TableAt]:
        return self._tables(self._cursor.reader_at(position).tables())

    def _tables(self, tables: Sequence[CatalogTable]) -> dict[int, TableAt]:
        return {each.newest.number: TableAt(each.newest, each.complete) for each in tables if self._chosen(each.newest)}

    # ---------------------------------------------------------------------------------------------------------- stops

    def stops(self, catalogs: Sequence[int]) -> list[int]:
        """The last ends before those of some catalogs, ascending, at which the set has a version."""
        found = ((self._cursor.end_at(glsn, self._oldest), glsn) for glsn in self._where(catalogs, _readable, {}))
        return [end for end, glsn in found if end == glsn - 1]  # else other tables may have been there

    def _where(
        self, catalogs: Sequence[int], holds: Callable[[Signature], bool], known: dict[int, Signature]
    ) -> Sequence[int]:
        """The catalogs, ascending, for which something holds."""
        if not catalogs:
            return ()
        first, last = (self._signature(glsn, known) for glsn in (catalogs[0], catalogs[-1]))
        if first == last:
            return catalogs if holds(first) else ()
        if len(catalogs) == 2:
            return [glsn for glsn in catalogs if holds(known[glsn])]
        half = len(catalogs) // 2
        return [*self._where(catalogs[:half], holds, known), *self._where(catalogs[half:], holds, known)]

    def _signature(self, glsn: int, known: dict[int, Signature]) -> Signature:
        if glsn not in known:
            tables = self._tables(self._cursor.catalog(glsn).catalog.tables)
            known[glsn] = {number: (each.schema.generation, each.complete) for number, each in tables.items()}
        return known[glsn]

    # ------------------------------------------------------------------------------------------------ the last version

    def last_version(self, catalog: CatalogEntry, end: int, *, alone: bool) -> tuple[int, set[int]]:
        """The last end up to ``end`` that is a version (L2 of ``database_timeline``), and the tables that are captured
        again at a catalog, before which ``end`` is the last end. 0: the log no longer has one."""
        reader = DatabaseReader(catalog, nothing_chosen)
        again = {number for number, each in self._tables(reader.tables()).items() if _again(each)}
        captured_again = set(self._last_complete(reader, again))
        if end and not (end == catalog.glsn - 1 and self._same_epoch(catalog)):
            reader = self._cursor.reader_at(end)
        while end:
            tables = self._tables(reader.tables())
            last = self._last_complete(reader, {number for number, each in tables.items() if _again(each)})
            if last:
                end = min(last.values())
            elif any(each.complete for each in tables.values()) or not (tables or alone):
                return end, captured_again
            else:
                end = 0 if alone else self._last_with_a_table(reader)
            reader = self._cursor.reader_at(end) if end else reader
        return 0, captured_again

    def _same_epoch(self, catalog: CatalogEntry) -> bool:
        """Whether the catalog before is of the same epoch; true if the log no longer has it."""
        before = next(self._cursor.earlier_catalogs(catalog), None)
        return before is None or before.catalog.epoch == catalog.catalog.epoch

    def _last_complete(self, reader: DatabaseReader, undecided: set[int]) -> dict[int, int]:
        """Of tables that are captured again: the last end at which each was in the set, without those that never were.
        0: the log no longer has it."""
        found: dict[int, int] = {}
        newer, generations = reader.glsn, {number: reader.table(number).newest.generation for number in undecided}
        for catalog in self._cursor.catalogs_at(reader.glsn) if undecided else ():
            tables = {each.newest.number: each for each in catalog.catalog.tables if each.newest.number in undecided}
            before = {number: each.newest.generation for number, each in tables.items() if not each.complete}
            moved = {number for number in undecided if before.get(number) != generations[number]}
            seen = self._completed_between(catalog.glsn, newer, moved) if moved else {}
            found |= {number: end for number, (end, chosen) in seen.items() if chosen}
            undecided = {each for each in undecided if each in tables and each not in seen}
            newer, generations = catalog.glsn, before
            if not undecided:
                break
        return found | dict.fromkeys(undecided, 0)

    def _completed_between(self, catalog: int, last: int, numbers: set[int]) -> dict[int, tuple[int, bool]]:
        """For tables that were complete after a catalog: the last end at which each was, and whether it was chosen."""
        reader = DatabaseReader(self._cursor.catalog(catalog), nothing_chosen)
        end = self._cursor.end_at(catalog, self._oldest)
        held: dict[int, bool] = {}  # those that are complete now
        found: dict[int, tuple[int, bool]] = {}
        for entry in (None, *self._cursor.entries(catalog + 1, last)):
            step = None if entry is None else reader.feed(entry, rows=False)
            touched = numbers if entry is None else _about(entry, step) & numbers
            for number in touched:
                table = reader.find(number)
                if table is not None and table.complete:
                    held[number] = self._chosen(table.newest)
                elif number in held:
                    found[number] = (end, held.pop(number))
            end = step.glsn if step is not None and step.end else end
        return found | {number: (end, chosen) for number, chosen in held.items()}

    def _last_with_a_table(self, reader: DatabaseReader) -> int:
        """The last end at which a chosen table was complete, as far as catalogs tell; 0 if there is none."""
        newest = self._cursor.catalog_at(reader.glsn)
        catalogs = [*self._cursor.catalog_positions(newest, 0), newest.glsn]
        known: dict[int, Signature] = {}
        found = self._where(catalogs, lambda signature: any(complete for _, complete in signature.values()), known)
        if not found:
            return 0
        numbers = {number for number, (_, complete) in self._signature(found[-1], known).items() if complete}
        following = next((glsn for glsn in catalogs if glsn > found[-1]), reader.glsn)
        ends = self._completed_between(found[-1], following, numbers)
        return max((end for end, chosen in ends.values() if chosen), default=0)


def _again(table: TableAt) -> bool:
    return not table.complete and table.schema.generation > 1


def _readable(signature: Signature) -> bool:
    """Not a version that may be one is only a window that is larger."""
    again = any(generation > 1 and not complete for generation, complete in signature.values())
    return not again and any(complete for _, complete in signature.values())


def _about(entry: DatabaseEntry | OneTable, step: Step | None) -> set[int]:
    """The tables that an entry may have completed or begun again."""
    if isinstance(entry, SchemaEntry):
        return {entry.schema.number}
    if isinstance(entry, Chunk):
        return {share.number for share in entry.head.tables}
    return set() if step is None else set(step.emptied)
