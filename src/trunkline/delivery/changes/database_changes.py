"""The rows of several tables of a captured database, in one pass over its entries."""

from __future__ import annotations

from trunkline.delivery.changes.database_reader import DatabaseReader, Step
from trunkline.delivery.changes.table_changes import TableChanges
from trunkline.delivery.changes.table_versions import Commits


class DatabaseChanges:
    """An entry costs what its own rows cost, however many tables are followed."""

    def __init__(self) -> None:
        self.tables: dict[int, TableChanges] = {}  # by number
        self._open: set[int] = set()  # those with rows since the last end
        self._transaction = 0
        self.commits: Commits | None = None  # of a window whose versions are wanted

    def follow(self, number: int, *, compacts: bool = False) -> TableChanges:
        """A table whose rows come from here on. ``compacts``: only its state counts."""
        self.tables[number] = TableChanges(number, compacts=compacts)
        return self.tables[number]

    def begin_window(self, reader: DatabaseReader) -> None:
        """What came so far is the state before a window whose versions are wanted."""
        for table in self.tables.values():
            table.remember(reader)
        self._transaction, self.commits = 0, Commits()

    def add(self, reader: DatabaseReader, step: Step) -> None:
        """What the reader just made of an entry."""
        if step.forgets:
            for number in self._open:
                self.tables[number].forget()
            self._open.clear()
        for number in step.emptied:
            if number in self.tables:
                self.tables[number].empty()
                self._open.discard(number)
        for rows in step.rows:
            if (table := self.tables.get(rows.number)) is not None:
                table.take(reader, self._transaction, step.glsn, rows)
                self._open.add(rows.number)
        if step.end:
            for number in self._open:
                self.tables[number].end(reader)
            self._open.clear()
            self._transaction += max(len(step.transactions), 1)
            if self.commits is not None:
                self.commits.add(step)
