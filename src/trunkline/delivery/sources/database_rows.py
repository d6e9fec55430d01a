"""Reads rows of some tables of a captured database: the changes of a window, or states; one pass for all tables.

Rules
 J1  A window holds whole transactions: it begins and ends at ends, and parts that a crash left open are in none. What
     the rows of a table in it come to is in ``changes.table_changes``.
 J2  The state at a version is that of a table's newest generation up to it: the chunks of its snapshot, and the
     changes beside and after them. It is known only if the log still has the generation's beginning.
 J3  A table that was not in the set at the beginning of a window, under its name and number, is read whole; and so is
     one that a truncation or a new generation empties.
"""

from __future__ import annotations

from collections.abc import Collection

from trunkline.delivery.changes.change_records import qualified
from trunkline.delivery.changes.database_changes import DatabaseChanges
from trunkline.delivery.changes.database_entries import SchemaEntry
from trunkline.delivery.changes.database_reader import DatabaseReader
from trunkline.delivery.changes.schemas import SchemaChange
from trunkline.delivery.changes.table_changes import Spans, TableHistory
from trunkline.delivery.changes.table_versions import Commits
from trunkline.delivery.changes.versions import Window
from trunkline.delivery.sources.database_cursor import DatabaseCursor
from trunkline.delivery.sources.database_split import trimmed_rows
from trunkline.errors import Unreachable


class TablesRead:
    """What one pass found, by name; nothing of tables without changes. ``emptied``: those that were read whole.
    ``spans``: if versions were wanted, the changes of tables that were not read whole, or only because they were
    truncated; ``commits``: of these."""

    def __init__(
        self,
        histories: dict[str, TableHistory],
        emptied: Collection[str],
        spans: dict[str, Spans] | None = None,
        commits: Commits | None = None,
    ) -> None:
        self.histories = histories
        self.emptied = frozenset(emptied)
        self.spans = spans or {}
        self.commits = commits or Commits()


def read_window(
    cursor: DatabaseCursor, window: Window, names: Collection[str], *, versions: bool = False
) -> TablesRead:
    """The changes of some tables. Raises as ``read_states``."""
    reader = cursor.reader_at(window.after)
    changes = DatabaseChanges()
    held = {qualified(each.newest): each for each in reader.tables() if qualified(each.newest) in names}
    same = {each.newest.number for each in held.values() if each.complete}
    for number in same:
        changes.follow(number)
    reader = reader.copy(lambda schema: schema.number in changes.tables)
    if versions:
        changes.begin_window(reader)
    begun: set[int] = set()  # tables all of whose rows are in the window
    for entry in cursor.entries(reader.glsn + 1, window.through):
        step = reader.feed(entry)
        if isinstance(entry, SchemaEntry) and qualified(entry.schema) in names and _begins(entry):
            begun.add(entry.schema.number)
            if entry.schema.number not in changes.tables:
                changes.follow(entry.schema.number, compacts=True)
        changes.add(reader, step)
    cursor.keep(reader)
    numbers = _numbers(reader, names)
    before = {number: name for name, each in held.items() if (number := each.newest.number) in same}
    rest = {name for name, number in numbers.items() if before.get(number) != name and number not in begun}
    whole = read_states(cursor, window.through, rest) if rest else TablesRead({}, ())
    found = {name: changes.tables[number] for name, number in numbers.items() if name not in rest}
    joined = {name for name in found if before.get(numbers[name]) != name}
    touched = {name: each for name, each in found.items() if name in joined or not each.untouched}
    histories = {name: each.history(reader) for name, each in touched.items()}
    emptied = {name for name, each in histories.items() if each.truncated or touched[name].emptied or name in joined}
    following = {name: each for name, each in touched.items() if versions and not each.emptied and name not in joined}
    spans = {name: each.spans(reader) for name, each in following.items()}
    return TablesRead({**histories, **whole.histories}, {*emptied, *rest}, spans, changes.commits)


def read_window_after_states(cursor: DatabaseCursor, window: Window, names: Collection[str]) -> TablesRead | None:
    """The versions of some tables that the window neither begins nor captures again, with the states before it.
    ``None`` if the log was trimmed, so that it does not have these."""
    numbers = _numbers(cursor.reader_at(window.after), names)
    changes = DatabaseChanges()
    for number in numbers.values():
        changes.follow(number, compacts=True)
    reader, trimmed = cursor.generations_reader(
        window.after, changes.tables, lambda schema: schema.number in changes.tables
    )
    if trimmed:
        return None
    for entry in cursor.entries(reader.glsn + 1, window.after):
        changes.add(reader, reader.feed(entry))
    changes.begin_window(reader)
    for entry in cursor.entries(reader.glsn + 1, window.through):
        changes.add(reader, reader.feed(entry))
    spans = {name: changes.tables[number].spans(reader) for name, number in numbers.items()}
    return TablesRead({}, (), spans, changes.commits)


def read_states(cursor: DatabaseCursor, version: int, names: Collection[str]) -> TablesRead:
    """Whole tables. Raises ``DestinationHalted`` if the log lacks rows, ``Unreachable`` if a table is not there."""
    numbers = _numbers(cursor.reader_at(version), names)
    changes = DatabaseChanges()
    for number in numbers.values():
        changes.follow(number, compacts=True)
    reader, trimmed = cursor.generations_reader(version, changes.tables, lambda schema: schema.number in changes.tables)
    if trimmed:
        lacking = ", ".join(sorted(name for name, number in numbers.items() if number in trimmed))
        raise trimmed_rows(lacking, version)
    for entry in cursor.entries(reader.glsn + 1, version):
        changes.add(reader, reader.feed(entry))
    return TablesRead({name: changes.tables[number].history(reader) for name, number in numbers.items()}, names)


def _begins(entry: SchemaEntry) -> bool:
    return SchemaChange.CREATED in entry.schema.changes or SchemaChange.RECAPTURED in entry.schema.changes


def _numbers(reader: DatabaseReader, names: Collection[str]) -> dict[str, int]:
    """The numbers of tables that can be read here, by name."""
    tables = (each for each in reader.tables() if each.complete)
    found = {qualified(each.newest): each.newest.number for each in tables if qualified(each.newest) in names}
    if lacking := sorted(set(names) - found.keys()):
        raise Unreachable(f"{', '.join(lacking)} cannot be read at position {reader.glsn} of the log; retrying")
    return found
