"""The tables of a set along the log of their database: which versions there are, and what each table is at them.

Rules
 L1  A table is chosen by its name and identified by its number. It is in the set at an end at which it has a name of
     the set and is complete. A table that is created again, or takes over a name, is another one.
 L2  Versions are the ends, except those at which a table that was in the set is captured again, and those at which all
     chosen tables are still to be completed. So a first snapshot delays no other table, and while a table is captured
     again the newest version is the last one before that.
 L3  Following costs what the entries cost, not what the set does: a table is looked at when an entry is about it.
 L4  No window crosses the last end before a catalog: these lie some 64 MiB of log apart.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

from trunkline.delivery.changes.columns import Columns
from trunkline.delivery.changes.database_entries import CatalogEntry, Chunk, DatabaseEntry, Group, OneTable, SchemaEntry
from trunkline.delivery.changes.database_reader import Choice, DatabaseReader
from trunkline.delivery.changes.schemas import TableSchema
from trunkline.delivery.sources.database_cursor import DatabaseCursor, nothing_chosen
from trunkline.delivery.sources.database_history import DatabaseHistory, TableAt
from trunkline.delivery.sources.database_split import LogRange, sampled_row_bytes
from trunkline.delivery.sources.sizes import row_bytes
from trunkline.errors import Unreachable
from trunkline.plural import plural

NAMES_SHOWN: Final = 5
TOUCHES_MAX: Final = 200_000  # tables in entries that are remembered; of older ones sizes are guessed
SAMPLED_FROM: Final = 4 * 1024 * 1024  # bytes of a table, by a guess: its rows are looked at
OLDER_MAX: Final = 4  # earlier versions whose tables are remembered


class DatabaseTimeline:
    """Used by one thread at a time, and not after it raised an error. ``alone``: without a table there is no version,
    as for a pipeline with one table."""

    def __init__(self, cursor: DatabaseCursor, chosen: Choice, oldest: int, *, alone: bool = False) -> None:
        self._cursor, self._chosen, self._oldest, self._alone = cursor, chosen, oldest, alone
        self._past = DatabaseHistory(cursor, chosen, oldest)
        self._tip: DatabaseReader | None = None
        self._now: dict[int, TableAt] = {}  # the chosen tables after the last entry, by number
        self._complete: set[int] = set()
        self._blocked: set[int] = set()  # those that are captured again
        self._moved: set[int] = set()  # those that an entry was about since the last end
        self._points: dict[int, list[tuple[int, TableAt | None]]] = {}  # from an end on; None: not chosen, or dropped
        self._begun = 0  # the position at which the points begin
        self._older: dict[int, dict[int, TableAt]] = {}  # all tables at earlier ends
        self._end = self._good = self._first = 0  # the last end; the newest version; the first one that was seen
        self._stops: list[int] = []  # L4; of catalogs since the one that is named next
        self._reach: CatalogEntry | None = None
        self._touches: list[tuple[int, int, int, int]] = []  # an entry, a table, and its rows and bytes there
        self._touched_after = 0  # every later entry with rows of a chosen table is among them
        self._sizes: dict[int, tuple[int, int]] = {}  # rows and bytes of each table in all entries that were followed
        self._sampled: dict[tuple[int, int], int] = {}  # by table and generation: bytes of a row
        self._vocabularies: dict[int, tuple[TableSchema, Columns]] = {}

    # ------------------------------------------------------------------------------------------------------ following

    @property
    def position(self) -> int:
        """Of the last entry that it has seen."""
        return 0 if self._tip is None else self._tip.glsn

    @property
    def tip(self) -> DatabaseReader:
        assert self._tip is not None, "it was never followed"
        return self._tip

    def follow(self, last: int) -> None:
        """Take all entries up to a position."""
        tip = self._tip or self._begin(self._cursor.catalog_at(last))
        for entry in self._cursor.entries(tip.glsn + 1, last):
            self._take(tip, entry)
        self._tip = tip

    def _begin(self, catalog: CatalogEntry) -> DatabaseReader:
        tip = DatabaseReader(catalog, nothing_chosen)
        self._reach, self._begun = catalog, catalog.glsn
        for table in tip.tables():
            if self._chosen(table.newest):
                number, at = table.newest.number, TableAt(table.newest, table.complete)
                self._now[number], self._points[number] = at, [(catalog.glsn, at)]
        self._complete = {number for number, each in self._now.items() if each.complete}
        first = catalog.heading.catalog is None  # nothing before it can be read
        self._end = self._touched_after = 0 if first else self._cursor.end_at(catalog.glsn, self._oldest)
        self._good, self._blocked = self._past.last_version(catalog, self._end, alone=self._alone)
        self._first = self._good
        self._stop()
        return tip

    def _take(self, tip: DatabaseReader, entry: DatabaseEntry | OneTable) -> None:
        step = tip.feed(entry, rows=False)
        if isinstance(entry, SchemaEntry):
            self._note(tip, entry.schema.number)
        elif isinstance(entry, CatalogEntry):
            for number in {*self._now, *step.emptied} if step.emptied else ():
                self._note(tip, number)
            for table in tip.tables() if step.emptied else ():
                self._note(tip, table.newest.number)
            self._stop()
        elif isinstance(entry, Group | Chunk):
            self._touch(entry)
            if isinstance(entry, Chunk):
                self._note(tip, entry.head.tables[0].number)
        if step.end:
            self._ended(step.glsn)

    def _note(self, tip: DatabaseReader, number: int) -> None:
        """An entry was about a table."""
        table, before = tip.find(number), self._now.get(number)
        if table is None or not self._chosen(table.newest):
            if before is not None:
                del self._now[number]
                self._complete.discard(number)
                self._blocked.discard(number)
                self._moved.add(number)
            return
        now = self._now[number] = TableAt(table.newest, table.complete)
        if now == before:
            return
        self._moved.add(number)
        if now.complete:
            self._complete.add(number)
            self._blocked.discard(number)
        elif number in self._complete:
            self._complete.discard(number)
            self._blocked.add(number)

    def _ended(self, end: int) -> None:
        self._end = end
        for number in self._moved:
            self._points.setdefault(number, []).append((end, self._now.get(number)))
        self._moved.clear()
        if not self._blocked and (self._complete or not (self._now or self._alone)):
            self._good = end
            self._first = self._first or end

    def _stop(self) -> None:
        if self._good and self._good == self._end:
            self._stops.append(self._end)

    def _touch(self, entry: Group | Chunk) -> None:
        found = [(entry.glsn, each.number, each.rows, each.size) for each in entry.head.tables]
        self._touches += [each for each in found if each[1] in self._now]
        for _, number, rows, size in found:
            before = self._sizes.get(number, (0, 0))
            self._sizes[number] = (before[0] + rows, before[1] + size)
        if len(self._touches) > TOUCHES_MAX:
            self._touched_after = self._touches[TOUCHES_MAX // 2][0]
            self._touches = [each for each in self._touches if each[0] > self._touched_after]

    # ------------------------------------------------------------------------------------------------------- versions

    def version(self) -> int:
        """The newest one (L2); 0 if there is none yet."""
        return self._good

    def waiting(self) -> str:
        """Why the newest end is not a version; empty if it is."""
        if self._good == self._end:
            return ""
        if self._blocked:
            named = _named(self._now[number] for number in self._blocked)
            is_captured = "is captured" if len(self._blocked) == 1 else "are captured"
            return (
                f"{named} {is_captured} again: destinations stay at version {self._good} until that is complete, then "
                "their rows are replaced"
            )
        snapshots = "snapshot" if len(self._now) == 1 else "snapshots"
        return f"the {snapshots} of {_named(self._now.values())} {_is(len(self._now))} not complete yet"

    def awaited(self) -> tuple[str, ...]:
        """Tables that come into the set when their first snapshot is complete."""
        return tuple(sorted(each.name for number, each in self._now.items() if number not in self._complete))

    def stops(self, after: int) -> tuple[int, ...]:
        """Those between a version and the newest one, ascending (L4)."""
        self._look_back(after)
        return tuple(sorted({stop for stop in self._stops if after < stop < self.version()}))

    def _look_back(self, after: int) -> None:
        """Know the stops since a position."""
        if self._reach is None or self._reach.glsn <= after:
            return
        found = self._cursor.catalog_positions(self._reach, after)
        self._stops += self._past.stops(found)
        self._reach = self._cursor.catalog(found[0]) if found else None

    def first(self) -> int:
        """The first version that is known, but for some 64 MiB; 0 if there is none."""
        self._look_back(0)
        return min([*self._stops, self._first] if self._first else self._stops, default=0)

    # --------------------------------------------------------------------------------------------------------- tables

    def newest(self) -> dict[int, TableAt]:
        """The chosen tables now, by number; also those that are not complete."""
        return self._now

    def at(self, version: int) -> dict[int, TableAt]:
        """The chosen tables at an end, by number; also those that are not complete."""
        if version >= self._begun:
            every = ((number, _point(points, version)) for number, points in self._points.items())
            return {number: found for number, found in every if found is not None}
        if version not in self._older:
            while len(self._older) >= OLDER_MAX:
                del self._older[next(iter(self._older))]
            self._older[version] = self._past.tables_at(version)
        return self._older[version]

    def set_at(self, version: int) -> dict[str, TableAt]:
        """The set at a version, by name. Raises ``Unreachable`` if two tables have names that are spelled alike."""
        found: dict[str, TableAt] = {}
        for each in self.at(version).values():
            if each.complete and found.setdefault(each.name, each) is not each:
                raise Unreachable(f"two tables of the log are spelled {each.name}; leave one of them out of `tables`")
        return found

    def columns(self, schema: TableSchema) -> Columns:
        """Of a version of a table, spelled once: there may be thousands of tables."""
        known = self._vocabularies.get(schema.number)
        if known is None or known[0] != schema:
            known = self._vocabularies[schema.number] = (schema, schema.vocabulary())
        return known[1]

    def rows(self, number: int) -> int:
        """Changes and read rows of the table's present generation."""
        found = self.tip.find(number)
        return 0 if found is None else found.rows

    def row_bytes(self, schema: TableSchema) -> int:
        """The size of a row in the log, by entries that were followed, or else by some of the table's first ones."""
        rows, size = self._sizes.get(schema.number, (0, 0))
        guess = row_bytes(self.columns(schema))
        if rows:
            return max(guess, size // rows)
        if self.rows(schema.number) * guess < SAMPLED_FROM:
            return guess
        known = (schema.number, schema.generation)
        if known not in self._sampled:
            start, _ = self._cursor.generations_reader(self.position, [schema.number], nothing_chosen)
            ranges = [LogRange(start.glsn, start.glsn + 1, self.position)]
            self._sampled[known] = sampled_row_bytes(self._cursor, ranges).get(schema.number, guess)
        return max(guess, self._sampled[known])

    def touched(self, after: int, through: int) -> dict[int, tuple[int, int]] | None:
        """Rows and bytes of each table between two ends; ``None`` if that is not known."""
        if after < self._touched_after:
            return None
        first, last = (bisect_right(self._touches, each, key=lambda touch: touch[0]) for each in (after, through))
        found: dict[int, tuple[int, int]] = {}
        for _, number, rows, size in self._touches[first:last]:
            before = found.get(number, (0, 0))
            found[number] = (before[0] + rows, before[1] + size)
        return found


def _point(points: list[tuple[int, TableAt | None]], version: int) -> TableAt | None:
    place = bisect_right(points, version, key=lambda point: point[0])
    return points[place - 1][1] if place else None


def _named(tables: Iterable[TableAt]) -> str:
    names = sorted(each.name for each in tables)
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {plural(more, 'more table')}" if more > 0 else "")


def _is(count: int) -> str:
    return "is" if count == 1 else "are"
