"""The state of a captured database at an end, rebuilt from the entries of its log; for tests and verification.

It goes through all changes one by one, with every live row in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa

from trunkline.client.entries import Entry
from trunkline.delivery.changes.columns import arrow_schema
from trunkline.delivery.changes.database_entries import CatalogEntry, entry_of
from trunkline.delivery.changes.database_reader import PLACES, DatabaseReader, Step, ends
from trunkline.delivery.changes.groups import KIND, SEQ, UNCHANGED, RowKind, TableRows
from trunkline.delivery.changes.schemas import TableSchema, defaults_in

NAN: Final = math.nan  # one object: it equals itself only as such

Row = dict[int, Any]  # by the numbers of columns in the source


def rebuild(entries: Iterable[Entry], upto: int) -> dict[int, pa.Table]:
    """The rows of every table that can be read at ``upto``, by number; in no order.

    The entries begin before the first chunk of any table. Raises ``CorruptEntry``, and ``ValueError`` if ``upto`` is
    not an end, if there is no catalog before it, or if a change does not fit a complete table.
    """
    last, found = None, dict[int, pa.Table]()
    for last, _, tables in _rebuilt(entry for entry in entries if entry.glsn <= upto):
        if last == upto:
            found = tables()
    if last != upto:
        raise ValueError(f"position {upto} is not an end; the one before it is {last}")
    return found


def rebuilt_states(entries: Iterable[Entry]) -> Iterator[tuple[int, DatabaseReader, dict[int, pa.Table]]]:
    """At each end: its position, the reader there, and what ``rebuild`` returns."""
    for glsn, reader, tables in _rebuilt(entries):
        yield glsn, reader, tables()


def _rebuilt(entries: Iterable[Entry]) -> Iterator[tuple[int, DatabaseReader, Callable[[], dict[int, pa.Table]]]]:
    found = (entry_of(entry) for entry in entries)
    start = next((entry for entry in found if isinstance(entry, CatalogEntry)), None)
    if start is None or any(table.chunks for table in start.catalog.tables):
        raise ValueError("the entries do not begin with a catalog of tables without rows")
    reader = DatabaseReader(start)
    states: dict[int, _Table] = {}
    complete: set[int] = set()

    def tables() -> dict[int, pa.Table]:
        chosen = sorted(complete)
        return {number: states.setdefault(number, _Table()).rows(reader.versions(number)) for number in chosen}

    for end in ends(reader, found):
        for step in end.steps:
            _apply(reader, states, complete, step)
        complete = {table.newest.number for table in reader.tables() if table.complete}
        yield end.glsn, reader, tables


def _apply(reader: DatabaseReader, states: dict[int, _Table], complete: set[int], step: Step) -> None:
    for number in step.emptied:
        states[number] = _Table()
        complete.discard(number)
    for number in {rows.number for rows in step.rows}:
        if not reader.versions(number):
            continue  # dropped before the next end
        table = states.setdefault(number, _Table())
        mixed = [rows for rows in step.rows if rows.number == number]
        changes = [change for rows in mixed for change in _changes(reader, rows)]
        for _, version, kind, found in sorted(changes, key=lambda change: change[0]):
            table.advance(reader.versions(number), version)
            row = table.advanced(reader.versions(number), version, found)
            table.change(RowKind(kind), row, strict=number in complete)


def _changes(reader: DatabaseReader, rows: TableRows) -> Iterator[tuple[int, int, int, Row]]:
    """Number, version, kind and row of each change. Columns that the source did not send are absent."""
    [schema] = [each for each in reader.versions(rows.number) if each.version == rows.version]
    columns = [plain(column) for column in rows.batch.columns[PLACES:]]
    places = [rows.batch.column(name).to_pylist() for name in (SEQ, KIND, UNCHANGED)]
    for index, (seq, kind, unchanged) in enumerate(zip(*places, strict=True)):
        unsent = int.from_bytes(unchanged or b"", "little")
        row = {
            column.number: columns[place][index]
            for place, column in enumerate(schema.columns)
            if not unsent >> place & 1
        }
        yield seq, rows.version, kind, row


class _Table:
    """The live rows of a table, under one version."""

    def __init__(self) -> None:
        self._schema: TableSchema | None = None
        self._key: tuple[int, ...] = ()
        self._live: dict[tuple[Any, ...], list[Row]] = {}
        self._old: Row | None = None  # of an update whose new row comes next

    def advance(self, versions: tuple[TableSchema, ...], version: int) -> None:
        """Put the rows under a version; an earlier one stays."""
        begin = versions[0].version if self._schema is None else self._schema.version
        if self._schema is None:
            self._schema = versions[0]
            self._rekey()
        for older, newer in pairwise(each for each in versions if begin <= each.version <= version):
            added = _defaults(older, newer)
            for rows in self._live.values():
                for row in rows:
                    row.update(added)
            self._schema = newer
            self._rekey()

    def advanced(self, versions: tuple[TableSchema, ...], version: int, row: Row) -> Row:
        """A row of an earlier version under the table's."""
        assert self._schema is not None
        for older, newer in pairwise(each for each in versions if version <= each.version <= self._schema.version):
            row = {**row, **_defaults(older, newer)}
        return row

    def _rekey(self) -> None:
        assert self._schema is not None
        names = set(self._schema.key) or {column.name for column in self._schema.columns}
        self._key = tuple(column.number for column in self._schema.columns if column.name in names)
        held = [row for rows in self._live.values() for row in rows]
        self._live = {}
        for row in held:
            self._put(row)

    def change(self, kind: RowKind, row: Row, *, strict: bool) -> None:
        match kind:
            case RowKind.TRUNCATE:
                self._live = {}
            case RowKind.DELETE:
                self._take(row, strict)
            case RowKind.UPDATE_OLD:
                self._old = row
            case RowKind.UPDATE_NEW:
                before = self._take(self._old or row, strict)
                self._old = None
                self._put({**(before or {}), **row})
            case RowKind.INSERT | RowKind.READ:
                held = self._live.get(self._of(row)) if self._schema is not None and self._schema.key else None
                if held and strict:
                    raise ValueError(f"a row that is there is inserted again: {row!r:.200}")
                self._put({**held.pop(), **row} if held else row)

    def _take(self, row: Row, strict: bool) -> Row | None:
        held = self._live.get(self._of(row))
        if not held:
            if strict:
                raise ValueError(f"a row that is not there is changed: {row!r:.200}")
            return None
        return held.pop()

    def _put(self, row: Row) -> None:
        self._live.setdefault(self._of(row), []).append(row)

    def _of(self, row: Row) -> tuple[Any, ...]:
        return tuple(row.get(number) for number in self._key)

    def rows(self, versions: tuple[TableSchema, ...]) -> pa.Table:
        """All rows, under the newest version."""
        self.advance(versions, versions[-1].version)
        held = [row for rows in self._live.values() for row in rows]
        schema = arrow_schema(versions[-1].vocabulary())
        numbers = {column.number for column in versions[-1].columns}
        if partial := next((row for row in held if not numbers <= row.keys()), None):
            raise ValueError(f"a row was never stated whole: {partial!r:.200}")
        arrays = [
            pa.array([row[column.number] for row in held], field.type)
            for column, field in zip(versions[-1].columns, schema, strict=True)
        ]
        return pa.table(arrays, schema=schema)


def _defaults(older: TableSchema, newer: TableSchema) -> Row:
    """The values that rows of the older version have in the columns that only the newer one has."""
    before = {column.number for column in older.columns}
    values = defaults_in(newer)
    return {
        column.number: None if values is None else plain(values.column(place))[0]
        for place, column in enumerate(newer.columns)
        if column.number not in before
    }


def plain(array: pa.Array) -> list[Any]:
    """Values that equal those of equal rows, and of which Arrow makes the same array again."""
    kind = array.type
    if pa.types.is_list(kind):
        inner, offsets = plain(array.values), array.offsets.to_pylist()
        valid = array.is_valid().to_pylist()
        return [tuple(inner[a:b]) if held else None for held, (a, b) in zip(valid, pairwise(offsets), strict=True)]
    if pa.types.is_temporal(kind):
        return list(array.view(pa.int32() if kind == pa.date32() else pa.int64()).to_pylist())
    if pa.types.is_floating(kind):
        return [NAN if value is not None and math.isnan(value) else value for value in array.to_pylist()]
    return list(array.to_pylist())
