"""A database that changes at random, and its log: with crashes, chunks, large transactions and new columns."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa

from delivery.group_log import GroupLog, Work, changed, schema_of
from trunkline.delivery.changes.groups import RowKind
from trunkline.delivery.changes.schemas import SchemaChange, SourceColumn, TableSchema

KEYED = schema_of(1, "id BIGINT, note VARCHAR, size INTEGER")
PLAIN = schema_of(2, "a INTEGER, b DOUBLE", key=())
INSERT, DELETE, OLD, NEW, TRUNCATE, READ = RowKind


class Database:
    """A database of two tables that changes at random, and its log with crashes, chunks and new columns."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.log = GroupLog()
        self.schema: TableSchema = self.log.schema(KEYED)
        self.log.schema(PLAIN)
        self.log.chunk(PLAIN, 0, [])
        self.rows: dict[int, list[Any]] = {number: [number, f"note {number}", number] for number in range(20)}
        self.plain: list[tuple[Any, ...]] = []
        self.cursor: int | None = 0  # the key at which the next chunk begins; None: complete
        self.chunks = 0
        self.expected: dict[int, tuple[list[Any] | None, list[Any]]] = {}

    def transaction(self, touched: dict[int, bool]) -> Work:
        """``touched``: the keys that it changes, and whether all columns were stated."""
        work: Work = []
        for _ in range(self.chance.randrange(5)):
            key, to = (self.chance.randrange(30) for _ in range(2))
            more = [7] * (len(self.schema.columns) - 3)
            row = [key, f"{self.chance.random():.3f}", self.chance.randrange(9), *more]
            held = self.rows.get(key)
            match self.chance.randrange(6):
                case 0 | 1 if held is None:
                    work.append((self.schema, INSERT, row))
                    self.rows[key], touched[key] = row, True
                case 2 if held is not None:
                    work.append((self.schema, DELETE, [key, *[None] * (len(row) - 1)]))
                    del self.rows[key]
                    touched[key] = True
                case 3 if held is not None:
                    work.append((self.schema, NEW, [key, None, *row[2:]], b"\x02"))
                    self.rows[key] = [key, held[1], *row[2:]]
                    touched.setdefault(key, False)
                case 4 if held is not None and to not in self.rows:
                    work += [(self.schema, OLD, held), (self.schema, NEW, [to, *row[1:]])]
                    del self.rows[key]
                    self.rows[to] = [to, *row[1:]]
                    touched |= {key: True, to: True}
                case 5 if self.plain:
                    gone = self.plain.pop(self.chance.randrange(len(self.plain)))
                    work.append((PLAIN, DELETE, gone))
                case _:
                    self.plain.append((key % 3, 0.5))
                    work.append((PLAIN, INSERT, self.plain[-1]))
        if self.chance.random() < 0.02:
            self.rows = {}
            touched |= dict.fromkeys(range(30), True)
            work.append((self.schema, TRUNCATE, ()))
        return work

    def step(self) -> None:
        match self.chance.randrange(12):
            case 0:
                self.log.mark()
            case 1:
                self.log.catalog()
                return
            case 2 if len(self.schema.columns) < 8:
                self.add_column()
                return
            case 3 if self.chance.random() < 0.3:
                self.schema = self.log.schema(changed(self.schema, SchemaChange.RECAPTURED))
                self.cursor, self.chunks = 0, 0
                return
            case 4 | 5 | 6 if self.cursor is not None:
                self.chunk()
            case 7 | 8:
                self.large()
            case _:
                self.log.group(*(self.transaction({}) for _ in range(self.chance.randrange(1, 4))))
        self.remember()

    def remember(self) -> None:
        rows = None if self.cursor is not None else sorted(map(tuple, self.rows.values()), key=repr)
        self.expected[self.log.last] = (rows, sorted(self.plain, key=repr))

    def add_column(self) -> None:
        number = len(self.schema.columns) + 1
        column = SourceColumn(f"c{number}", "BIGINT", number)
        value = {} if number % 2 else {column.name: number}
        columns = (*self.schema.columns, column)
        self.schema = self.log.schema(changed(self.schema, SchemaChange.ADDED, columns=columns, defaults=value))
        for row in self.rows.values():
            row.append(value.get(column.name))

    def large(self) -> None:
        work = self.transaction({}) + self.transaction({})
        cut = next((at for at in range(len(work) // 2, len(work)) if work[at][1] is not NEW), 0)
        if self.chance.random() < 0.4:  # a crash: it is captured again
            self.log.part(0, work[:cut])
            self.log.mark()
        self.log.part(0, work[:cut])
        self.log.part(1, work[cut:], last=True)

    def chunk(self) -> None:
        """Between low and high, transactions happen before and after the read."""
        assert self.cursor is not None
        until = self.cursor + self.chance.randrange(3, 12)
        touched: dict[int, bool] = {}
        changes = [self.transaction(touched)]
        read = [list(row) for key, row in sorted(self.rows.items()) if self.cursor <= key < until]
        changes.append(self.transaction(touched))
        self.log.group(*changes)
        self.remember()
        stated = len(self.schema.columns)
        others = ((1 << stated) - 4).to_bytes(1, "little")  # all but the key and the one that updates do not state
        kept: list[Any] = [(row, None) for row in read if row[0] not in touched]
        kept += [([*row[:2], *[None] * (stated - 2)], others) for row in read if touched.get(row[0]) is False]
        self.cursor = until if until < 30 else None
        rows, unchanged = [row for row, _ in kept], [bits for _, bits in kept]
        self.log.chunk(self.schema, self.chunks, rows, complete=self.cursor is None, unchanged=unchanged)
        self.chunks += 1


def rows(table: pa.Table) -> list[Any]:
    return sorted((tuple(row.values()) for row in table.to_pylist()), key=repr)
