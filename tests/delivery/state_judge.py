"""Compares states of a log with states that the database had: those with the same numbers in the table ``ledger``."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final

import psycopg
from msgspec import Struct
from psycopg import sql

from trunkline.client.entries import Entry
from trunkline.delivery.capture.postgres.shape_changes import MADE_UP
from trunkline.delivery.changes.database_entries import CatalogEntry, SchemaEntry, entry_of
from trunkline.delivery.changes.database_reader import DatabaseReader, Step, ends
from trunkline.delivery.changes.groups import TX, RowKind, TableRows
from trunkline.delivery.changes.rebuilt import _changes, _Table
from trunkline.delivery.changes.schemas import SchemaChange

LEDGER: Final = "ledger"
SHOWN: Final = 200
COLUMNS: Final = """
SELECT c.oid::bigint, n.nspname::text, c.relname::text, a.attnum, a.attname::text, a.atttypid::bigint
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE n.nspname = 'public' AND c.relkind = 'r' ORDER BY 1, 4
"""


class HeldTable(Struct, frozen=True):
    name: str
    columns: tuple[tuple[int, str, int], ...]  # numbers, names, types
    rows: list[tuple[Any, ...]]


class Held(Struct, frozen=True):
    """What the database has at a snapshot, by the oids of tables."""

    ledger: frozenset[int]
    tables: dict[int, HeldTable]


class Judged(Struct):
    transactions: int
    compared: set[int]  # which states of the database
    tables: int  # that were compared
    wrong: list[str]
    recaptured: Counter[str]  # by the names of tables
    incomplete: list[str]
    epochs: int = 1


def held_in(dsn: str) -> Held:
    """Nothing may be altered or truncated meanwhile."""
    tables: dict[int, HeldTable] = {}
    ledger: frozenset[int] = frozenset()
    with psycopg.connect(dsn, connect_timeout=5) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        found: dict[int, list[tuple[Any, ...]]] = {}
        for row in connection.execute(COLUMNS.encode()).fetchall():
            found.setdefault(row[0], []).append(row)
        for oid, rows in found.items():
            _, schema, name, *_ = rows[0]
            columns = tuple((number, title, kind) for _, _, _, number, title, kind in rows)
            select = sql.SQL("SELECT {} FROM ONLY {}").format(
                sql.SQL(", ").join(sql.Identifier(title) for _, title, _ in columns), sql.Identifier(schema, name)
            )
            tables[oid] = HeldTable(name, columns, connection.execute(select).fetchall())
            if name == LEDGER:
                ledger = frozenset(row[0] for row in tables[oid].rows)
    return Held(ledger, tables)


def judged(entries: Iterable[Entry], held: list[Held]) -> Judged:
    """``held``: in any order; the last one is what the database has at the end of the log."""
    return _Judge(held).run(entries)


class _Judge:
    def __init__(self, held: list[Held]) -> None:
        self._held = held
        self._by_sum: dict[int, list[int]] = {}
        for number, each in enumerate(held):
            self._by_sum.setdefault(_sum(each.ledger), []).append(number)
        self._states: dict[int, _Table] = {}
        self._complete: set[int] = set()
        self._ledger: set[int] = set()
        self._found = 0  # the sum of the ledger
        self.result = Judged(0, set(), 0, [], Counter(), [])

    def run(self, entries: Iterable[Entry]) -> Judged:
        found = (self._noted(entry_of(entry)) for entry in entries)
        start = next(entry for entry in found if isinstance(entry, CatalogEntry))
        self._reader = reader = DatabaseReader(start)
        for end in ends(reader, found):
            for step in end.steps:
                for number in step.emptied:
                    self._states[number] = _Table()
                    self._complete.discard(number)
                for _ in self._apply(step):
                    if len(end.transactions) > 1:
                        self._compare(end.glsn)
            self.result.transactions += len(end.transactions)
            self._complete = {table.newest.number for table in reader.tables() if table.complete}
            self._compare(end.glsn)
        self._finish()
        return self.result

    def _noted(self, entry: Any) -> Any:
        if isinstance(entry, SchemaEntry) and SchemaChange.RECAPTURED in entry.schema.changes:
            self.result.recaptured[entry.schema.name] += 1
        return entry

    def _apply(self, step: Step) -> Iterator[int]:
        """Yields after each transaction."""
        changes = [change for rows in step.rows for change in self._placed(rows)]
        changes.sort(key=lambda each: each[:2])
        before = 0
        for tx, _, number, version, kind, found in changes:
            if tx != before:
                yield before
                before = tx
            versions = self._reader.versions(number)
            if not versions:
                continue
            table = self._states.setdefault(number, _Table())
            table.advance(versions, version)
            row = table.advanced(versions, version, found)
            table.change(RowKind(kind), row, strict=number in self._complete)
            if versions[-1].name == LEDGER and row[1] not in self._ledger:
                self._ledger.add(row[1])
                self._found += hash((row[1], 1))
        yield before

    def _placed(self, rows: TableRows) -> Iterator[tuple[int, int, int, int, Any, Any]]:
        places = rows.batch.column(TX).to_pylist()
        for tx, (seq, version, kind, row) in zip(places, _changes(self._reader, rows), strict=True):
            yield tx, seq, rows.number, version, kind, row

    def _compare(self, glsn: int) -> None:
        for number in self._by_sum.get(self._found, []):
            if self._held[number].ledger == self._ledger:
                self.result.compared.add(number)
                self._compare_with(self._held[number], f"entry {glsn}")

    def _compare_with(self, held: Held, where: str) -> None:
        for table in self._reader.tables():
            newest = table.newest
            if newest.number not in self._complete or (server := held.tables.get(newest.oid)) is None:
                continue
            there = {(number, kind): place for place, (number, _, kind) in enumerate(server.columns)}
            if newest.columns[0].number >= MADE_UP:
                named = {(title, kind): number for number, title, kind in server.columns}
                pairs = [
                    (named[column.name, column.type_oid], column.type_oid, at)
                    for at, column in enumerate(newest.columns)
                    if (column.name, column.type_oid) in named
                ]
            else:
                pairs = [(column.number, column.type_oid, at) for at, column in enumerate(newest.columns)]
            shared = [(there[number, kind], at) for number, kind, at in pairs if (number, kind) in there]
            rows = self._states.setdefault(newest.number, _Table()).rows(self._reader.versions(newest.number))
            values = [rows.column(at).to_pylist() for _, at in shared]
            in_log = Counter(zip(*values, strict=True)) if shared and len(rows) else Counter()
            in_server = Counter(tuple(_plain(row[place]) for place, _ in shared) for row in server.rows)
            self.result.tables += 1
            if in_log != in_server and shared:
                self.result.wrong.append(
                    f"{where}, {newest.name} {newest.generation}.{newest.version}: only in the server "
                    f"{_shown(in_server - in_log)}, only in the log {_shown(in_log - in_server)}"
                )

    def _finish(self) -> None:
        self.result.epochs = self._reader.epoch
        last = self._held[-1]
        self.result.incomplete = [
            table.newest.name for table in self._reader.tables() if table.newest.number not in self._complete
        ]
        if self._ledger != last.ledger:
            self.result.wrong.append(f"the end: transactions {sorted(self._ledger ^ last.ledger)[:20]} differ")
        self._compare_with(last, "the end")
        there = {each.name: tuple(title for _, title, _ in each.columns) for each in last.tables.values()}
        here = {
            table.newest.name: tuple(column.name for column in table.newest.columns) for table in self._reader.tables()
        }
        if there != here:
            self.result.wrong.append(f"the end: tables {sorted(set(there.items()) ^ set(here.items()))} differ")


def _sum(ledger: Iterable[int]) -> int:
    return sum(hash((number, 1)) for number in ledger)


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, uuid.UUID) else value


def _shown(rows: Counter[tuple[Any, ...]]) -> str:
    return f"{rows.total()}: {[tuple(str(each)[:12] for each in row) for row in list(rows)[:3]]}"[:SHOWN]
