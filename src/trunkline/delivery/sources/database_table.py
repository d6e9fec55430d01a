"""One table along the log of its database, for a pipeline that names it alone.

Rules, beside those of ``database_timeline``
 N1  It is found by its name, and identified by its number. A table that is created again, or takes over the name, has
     another number: it is another source, and no destination goes on from one to the other.
 N2  A table that was dropped or renamed has one more version, which cannot be read: destinations reach the version
     before it, then halt with the reason.
"""

from __future__ import annotations

from msgspec import Struct

from trunkline.delivery.changes.change_records import qualified
from trunkline.delivery.changes.database_entries import CatalogEntry
from trunkline.delivery.changes.database_reader import DatabaseReader
from trunkline.delivery.sources.database_cursor import DatabaseCursor
from trunkline.delivery.sources.database_history import TableAt
from trunkline.delivery.sources.database_timeline import NAMES_SHOWN, DatabaseTimeline
from trunkline.errors import ConfigError, DestinationHalted, Unreachable
from trunkline.plural import plural


class Gone(Struct, frozen=True):
    """``at``: the first end without the table."""

    at: int
    why: str


class TableTimeline(DatabaseTimeline):
    """``table``: its schema and name."""

    def __init__(self, cursor: DatabaseCursor, table: str, oldest: int) -> None:
        super().__init__(cursor, lambda schema: qualified(schema) == table, oldest, alone=True)
        self.number = 0
        self.gone: Gone | None = None
        self._table = table
        self._lost = ""  # why the table was lost
        self._born = 0  # the end at which it took the name, if that was seen

    # ------------------------------------------------------------------------------------------------------ following

    def follow(self, last: int) -> None:
        """Raises ``ConfigError`` if there never was such a table."""
        super().follow(last)
        if not self.number:
            self._find_lost()

    def _begin(self, catalog: CatalogEntry) -> DatabaseReader:
        tip = super()._begin(catalog)
        self.number = next(iter(self._now), 0)
        return tip

    def _note(self, tip: DatabaseReader, number: int) -> None:
        super()._note(tip, number)
        found = self.number if self.number in self._now else next(iter(self._now), 0)
        if found:
            self._born = self._born if found == self.number else self._end + 1
            self.number, self.gone, self._lost = found, None, ""
        elif self.number and not self._lost:
            table = tip.find(self.number)
            self._lost = "was dropped" if table is None else f"is {qualified(table.newest)} now"

    def _ended(self, end: int) -> None:
        super()._ended(end)
        if self._lost and self.gone is None:
            self.gone = Gone(end, self._lost)

    def _find_lost(self) -> None:
        """The table is not there now: look for it in earlier catalogs."""
        assert self._reach is not None
        for catalog in self._cursor.earlier_catalogs(self._reach):
            named = [each.newest.number for each in catalog.catalog.tables if qualified(each.newest) == self._table]
            if named:
                self._replay(catalog)
                return
        names = sorted(qualified(table.newest) for table in self.tip.tables())
        some = ", ".join(names[:NAMES_SHOWN]) + (", ..." if len(names) > NAMES_SHOWN else "")
        raise ConfigError(
            f"the log has no table {self._table}; name one of its {plural(len(names), 'table')} in `table` of the "
            f"source: {some or 'there is none yet'}"
        )

    def _replay(self, catalog: CatalogEntry) -> None:
        """From a catalog with the table to the end at which it was lost."""
        end = self._end
        reader = self._begin(catalog)
        for entry in self._cursor.entries(catalog.glsn + 1, self.position):
            self._take(reader, entry)
            if self.gone is not None:
                break
        self._end = end

    # ------------------------------------------------------------------------------------------------------- versions

    def version(self) -> int:
        if self.gone is not None:
            return self.gone.at
        return self._good if self._good >= self._born else 0

    def waiting(self) -> str:
        now = self._now.get(self.number)
        if now is None or now.complete:
            return ""
        table = self.tip.find(self.number)
        done = plural(0 if table is None else table.chunks, "chunk")
        if not self.version():
            return f"the snapshot of {self._table} is not complete yet ({done} so far): destinations wait for it"
        return (
            f"{self._table} is captured again ({done} so far): destinations stay at version {self._good} until that "
            "is complete, then their rows are replaced"
        )

    def awaited(self) -> tuple[str, ...]:
        return ()

    def stops(self, after: int) -> tuple[int, ...]:
        self._look_back(after)
        last = {self._good} if self.gone is not None and self._good else set()
        return tuple(
            sorted(each for each in {*self._stops, *last} if max(after, self._born - 1) < each < self.version())
        )

    def first(self) -> int:
        self._look_back(0)
        complete = (end for end, found in self._points.get(self.number, ()) if found is not None and found.complete)
        return min([*(stop for stop in self._stops if stop >= self._born), *complete], default=0)

    def _look_back(self, after: int) -> None:
        if not self._born:
            super()._look_back(after)

    # ---------------------------------------------------------------------------------------------------------- tables

    def set_at(self, version: int) -> dict[str, TableAt]:
        """The table at a version. Raises ``DestinationHalted`` if it is not there, ``Unreachable`` if it is not
        complete."""
        found = self.at(version).get(self.number)
        if found is None:
            raise self.halted()
        if not found.complete:
            raise Unreachable(f"the snapshot of {self._table} is not complete at {version}; waiting for it")
        return {self._table: found}

    def halted(self) -> DestinationHalted:
        """Of a table that was dropped or renamed."""
        why = self._lost or "is not there"
        where = f" since position {self.gone.at} of the log" if self.gone is not None else ""
        return DestinationHalted(
            f"the source table {self._table} {why}{where}; its destinations keep their rows: retire them, or name "
            "another table in `table` of the source and reseed"
        )
