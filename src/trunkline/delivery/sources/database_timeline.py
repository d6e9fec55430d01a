"""One table along the log of its database: which versions it has, where it can be read, and whether it is there.

Rules
 L1  A table is found by its name, and identified by its number. A table that is created again, or takes over the name,
     has another number: it is another source, and no destination goes on from one to the other.
 L2  Versions are ends at which the table is complete. While it is captured again, the newest one is the last end before
     that; the rows of the new generation replace all others.
 L3  A table that was dropped or renamed has one more version, which cannot be read: destinations reach the version
     before it, then halt with the reason.
 L4  No window crosses the last end before a catalog: these lie some 64 MiB of log apart.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from trunkline.delivery.changes.change_records import qualified
from trunkline.delivery.changes.database_entries import CatalogEntry, Chunk, DatabaseEntry, Group, OneTable, SchemaEntry
from trunkline.delivery.changes.database_reader import DatabaseReader
from trunkline.delivery.changes.schemas import TableSchema
from trunkline.delivery.sources.database_cursor import DatabaseCursor, nothing_chosen, table_in
from trunkline.errors import ConfigError, DestinationHalted
from trunkline.plural import plural

NAMES_SHOWN: Final = 5
TOUCHES_MAX: Final = 100_000  # entries with rows of the table that are remembered; of older ones sizes are guessed


class TableAt(Struct, frozen=True):
    """The table at an end."""

    schema: TableSchema
    complete: bool
    chunks: int


class Gone(Struct, frozen=True):
    """``at``: the first end without the table."""

    at: int
    why: str


class TableTimeline:
    """Used by one thread at a time, and not after it raised an error. ``table``: its schema and name."""

    def __init__(self, cursor: DatabaseCursor, table: str, oldest: int) -> None:
        self.number = 0
        self.gone: Gone | None = None
        self._cursor, self._table, self._oldest = cursor, table, oldest
        self._tip: DatabaseReader | None = None
        self._lost = ""  # why the table was lost, until the next end
        self._end = self._good = 0  # the last end; the last one at which the table is complete
        self._points: list[tuple[int, TableAt | None]] = []  # from an end on
        self._older: dict[int, TableAt | None] = {}  # at earlier ends
        self._stops: list[int] = []  # L4; of catalogs since the one that is named next
        self._reach: CatalogEntry | None = None
        self._searched = False  # for the last end of the generation before
        self._touches: list[tuple[int, int, int]] = []  # an entry, and the table's rows and bytes up to it
        self._touched_after = 0  # every later entry with rows of the table is among them

    # ------------------------------------------------------------------------------------------------------ following

    @property
    def position(self) -> int:
        """Of the last entry that it has seen."""
        return 0 if self._tip is None else self._tip.glsn

    def follow(self, last: int) -> None:
        """Read all entries up to a position. Raises ``ConfigError`` if there never was such a table."""
        tip = self._tip or self._begin(last)
        for entry in self._cursor.entries(tip.glsn + 1, last):
            self._take(tip, entry)
        self._tip = tip
        if not self.number:
            self._find_lost(tip)

    def _begin(self, last: int) -> DatabaseReader:
        self._reach = self._cursor.catalog_at(last)
        tip = DatabaseReader(self._reach, nothing_chosen)
        self._locate(tip)
        self._ended(tip, self._cursor.end_at(tip.glsn, self._oldest))
        self._points = [(tip.glsn, self._points[-1][1])]  # between the end and the catalog its columns may have changed
        self._touched_after = self._end
        self._stop()
        return tip

    def _take(self, tip: DatabaseReader, entry: DatabaseEntry | OneTable) -> None:
        step = tip.feed(entry, rows=False)
        if isinstance(entry, CatalogEntry) or (isinstance(entry, SchemaEntry) and self._concerns(entry.schema)):
            self._locate(tip)
        if isinstance(entry, CatalogEntry):
            self._stop()
        if isinstance(entry, Group | Chunk):
            self._touch(entry)
        if step.end:
            self._ended(tip, step.glsn)

    def _concerns(self, schema: TableSchema) -> bool:
        return schema.number == self.number or qualified(schema) == self._table

    def _locate(self, tip: DatabaseReader) -> None:
        """L1, after an entry that may have changed names."""
        schema, _, name = self._table.partition(".")
        found = tip.number_of(schema, name)
        if found is not None and found != self.number:
            self.number, self.gone, self._lost, self._good = found, None, "", 0
            self._points = [(self._end, _table_at(tip, found))]
            self._older, self._stops, self._touches, self._touched_after = {}, [], [], tip.glsn
        elif found is None and self.number and not self._lost:
            table = tip.find(self.number)
            self._lost = "was dropped" if table is None else f"is {qualified(table.newest)} now"

    def _ended(self, tip: DatabaseReader, end: int) -> None:
        self._end = end
        if self._lost and self.gone is None:
            self.gone = Gone(end, self._lost)
        now = None if self._lost else _table_at(tip, self.number)
        if not self._points or self._points[-1][1] != now:
            self._points.append((end, now))
        if now is not None and now.complete:
            self._good = end

    def _stop(self) -> None:
        if self._good and self._good == self._end:
            self._stops.append(self._end)

    def _touch(self, entry: Group | Chunk) -> None:
        shares = [share for share in entry.head.tables if share.number == self.number]
        if shares:
            _, rows, size = self._touches[-1] if self._touches else (0, 0, 0)
            rows, size = rows + sum(each.rows for each in shares), size + sum(each.size for each in shares)
            self._touches.append((entry.glsn, rows, size))
            if len(self._touches) > TOUCHES_MAX:
                self._touched_after = self._touches[TOUCHES_MAX // 2][0]
                del self._touches[: TOUCHES_MAX // 2]

    # ------------------------------------------------------------------------------------------------------- versions

    def version(self) -> int:
        """The newest version (L2, L3); 0 if there is none yet."""
        if self.gone is not None:
            return self.gone.at
        now = self._points[-1][1]
        if not self._good and now is not None and now.schema.generation > 1 and not self._searched:
            self._good, self._searched = self._last_of_earlier_generation(now.schema), True
        return self._good

    def waiting(self) -> str:
        """Why the newest end cannot be read; empty if it can."""
        now = self._points[-1][1]
        if self.gone is not None or now is None or now.complete:
            return ""
        if not self._good:
            done = plural(now.chunks, "chunk")
            return f"the snapshot of {self._table} is not complete yet ({done} so far): destinations wait for it"
        return (
            f"{self._table} is captured again ({plural(now.chunks, 'chunk')} so far): destinations stay at version "
            f"{self._good} until that is complete, then their rows are replaced"
        )

    def stops(self, after: int) -> tuple[int, ...]:
        """Those between a version and the newest one, ascending (L4)."""
        self._look_back(after)
        last = {self._good} if self.gone is not None and self._good else set()
        return tuple(sorted(stop for stop in {*self._stops, *last} if after < stop < self.version()))

    def _look_back(self, after: int) -> None:
        """Know the stops since a position. Few of the catalogs are read: generations only rise, and each is complete
        once, so that all between two equal ones are like them."""
        if self._reach is None or self._reach.glsn <= after:
            return
        found = self._cursor.catalog_positions(self._reach, after)
        for glsn in self._complete(found):
            self._stops.append(self._cursor.end_at(glsn, self._oldest))
        self._reach = self._cursor.catalog(found[0]) if found else None

    def _complete(self, catalogs: Sequence[int]) -> Sequence[int]:
        """Those at which the table is complete."""
        if not catalogs:
            return ()
        first, last = (table_in(self._cursor.catalog(glsn), self.number) for glsn in (catalogs[0], catalogs[-1]))
        states = [(each.newest.generation, each.complete) if each is not None else (0, False) for each in (first, last)]
        if states[0] == states[1]:
            return catalogs if states[0][1] else ()
        if len(catalogs) == 2:
            return [glsn for glsn, (_, complete) in zip(catalogs, states, strict=True) if complete]
        half = len(catalogs) // 2
        return [*self._complete(catalogs[:half]), *self._complete(catalogs[half:])]

    def first(self) -> int:
        """The first version that is known to be readable, but for some 64 MiB; 0 if there is none."""
        self._look_back(0)
        complete = (end for end, found in self._points if found is not None and found.complete)
        return min([*self._stops, *complete], default=0)

    def at(self, version: int) -> TableAt | None:
        """``None``: it is not there."""
        if self._points and version >= self._points[0][0]:
            return self._points[bisect_right(self._points, version, key=lambda point: point[0]) - 1][1]
        if version not in self._older:
            self._older[version] = _table_at(self._cursor.reader_at(version), self.number)
        return self._older[version]

    def newest(self) -> TableSchema:
        """Also of a table that is not complete. Raises ``DestinationHalted`` if it was lost."""
        now = self._points[-1][1]
        if now is None:
            raise self.halted()
        return now.schema

    def touched(self, after: int, through: int) -> tuple[int, int] | None:
        """Rows and bytes of the table between two ends; ``None`` if that is not known."""
        if after < self._touched_after:
            return None
        (rows, size), (more, bigger) = (self._touched_upto(position) for position in (after, through))
        return more - rows, bigger - size

    def _touched_upto(self, position: int) -> tuple[int, int]:
        found = bisect_right(self._touches, position, key=lambda touch: touch[0])
        return self._touches[found - 1][1:] if found else (0, 0)

    def halted(self) -> DestinationHalted:
        """Of a table that was dropped or renamed."""
        why = self._lost or "is not there"
        where = f" since position {self.gone.at} of the log" if self.gone is not None else ""
        return DestinationHalted(
            f"the source table {self._table} {why}{where}; its destinations keep their rows: retire them, or name "
            "another table in `table` of the source and reseed"
        )

    # ----------------------------------------------------------------------------------------------------- looking back

    def _last_of_earlier_generation(self, now: TableSchema) -> int:
        """The last end before a generation at which the table was complete; 0 if the log no longer has it."""
        for catalog in self._cursor.catalogs_at(self._points[0][0]):
            found = table_in(catalog, self.number)
            if found is None or found.newest.generation < now.generation:
                return self._last_complete(catalog, now.generation)
        return 0

    def _last_complete(self, catalog: CatalogEntry, before: int) -> int:
        """The last end at which the table was complete, since a catalog and before a generation."""
        reader = DatabaseReader(catalog, nothing_chosen)
        now, last = _table_at(reader, self.number), 0
        if now is not None and now.complete:
            last = self._cursor.end_at(catalog.glsn, self._oldest)
        for entry in self._cursor.entries(catalog.glsn + 1, self._end):
            step = reader.feed(entry, rows=False)
            now = _table_at(reader, self.number)
            if now is not None and now.schema.generation >= before:
                break
            last = step.glsn if step.end and now is not None and now.complete else last
        return last

    def _find_lost(self, tip: DatabaseReader) -> None:
        """The table is not there now: look for it in earlier catalogs."""
        assert self._reach is not None
        schema, _, name = self._table.partition(".")
        for catalog in self._cursor.earlier_catalogs(self._reach):
            named = [each for each in catalog.catalog.tables if qualified(each.newest) == f"{schema}.{name}"]
            if named:
                self.number = named[0].newest.number
                self._replay(catalog)
                return
        names = sorted(qualified(table.newest) for table in tip.tables())
        some = ", ".join(names[:NAMES_SHOWN]) + (", ..." if len(names) > NAMES_SHOWN else "")
        raise ConfigError(
            f"the log has no table {self._table}; name one of its {plural(len(names), 'table')} in `table` of the "
            f"source: {some or 'there is none yet'}"
        )

    def _replay(self, catalog: CatalogEntry) -> None:
        """From a catalog with the table to the end at which it was lost."""
        reader = DatabaseReader(catalog, nothing_chosen)
        self._points = []
        self._ended(reader, self._cursor.end_at(catalog.glsn, self._oldest))
        for entry in self._cursor.entries(catalog.glsn + 1, self.position):
            self._take(reader, entry)
            if self.gone is not None:
                return


def _table_at(reader: DatabaseReader, number: int) -> TableAt | None:
    table = reader.find(number)
    return None if table is None else TableAt(table.newest, table.complete, table.chunks)
