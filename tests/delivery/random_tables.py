"""A database whose tables come, go, are renamed, captured again, altered and truncated at random; and its log.

``at`` has every table at every end, and ``versions`` says, by the rule alone, which ends are versions of a set.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

from delivery.group_log import GroupLog, Work, changed, schema_of
from trunkline.delivery.changes.groups import RowKind
from trunkline.delivery.changes.schemas import Catalog, CatalogTable, Identity, SchemaChange, SourceColumn, TableSchema

INSERT, DELETE, OLD, NEW, TRUNCATE, READ = RowKind
KEYS = 12
NAMES = [f"{letter}{number}" for letter in "ab" for number in range(4)]

Row = tuple[Any, ...]


class Held(NamedTuple):
    """A table at an end."""

    number: int
    generation: int
    complete: bool
    rows: list[Row]


class RandomTable:
    def __init__(self, schema: TableSchema) -> None:
        self.schema = schema
        self.rows: dict[int, list[Any]] = {}
        self.cursor: int | None = 0  # the key at which the next chunk begins; None: complete
        self.chunks = 0

    @property
    def whole(self) -> bool:
        """Whether removals have whole rows."""
        return self.schema.identity is Identity.FULL

    def held(self) -> Held:
        rows = sorted((tuple(row) for row in self.rows.values()), key=repr)
        return Held(self.schema.number, self.schema.generation, self.cursor is None, rows)

    def begin_again(self) -> None:
        self.cursor, self.chunks = 0, 0


class RandomTables:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.log = GroupLog()
        self.tables: dict[str, RandomTable] = {}
        self.next_number = 1
        self.epoch = 1
        self.at: dict[int, dict[str, Held]] = {}
        for _ in range(3):
            self.create()
        self.log.mark()
        self.remember()

    # ---------------------------------------------------------------------------------------------------- the rule

    def versions(self, chosen: Callable[[str], bool]) -> list[int]:
        """The ends at which a set can be read."""
        in_set: dict[int, bool] = {}  # number -> whether it had a name of the set when it was complete last
        found = []
        for end, tables in self.at.items():
            mine = {name: each for name, each in tables.items() if chosen(name)}
            blocked = any(not each.complete and in_set.get(each.number) for each in mine.values())
            for name, each in tables.items():
                if each.complete:
                    in_set[each.number] = chosen(name)
            if not blocked and (not mine or any(each.complete for each in mine.values())):
                found.append(end)
        return found

    def set_at(self, end: int, chosen: Callable[[str], bool]) -> dict[str, Held]:
        return {name: each for name, each in self.at[end].items() if chosen(name) and each.complete}

    # --------------------------------------------------------------------------------------------------------- steps

    def step(self) -> None:
        match self.chance.randrange(16):
            case 0:
                self.log.mark()
                self.remember()
            case 1 | 2:
                self.log.catalog()
            case 3:
                self.create()
            case 4 if self.tables:
                self.lose()
            case 5 if self.tables and self.chance.random() < 0.6:
                table = self.some()
                table.schema = self.log.schema(changed(table.schema, SchemaChange.RECAPTURED))
                table.begin_again()
            case 6 if self.tables:
                self.alter(self.some())
            case 7 if self.chance.random() < 0.15:
                self.replace_source()
            case 8 | 9 | 10 | 11 if any(each.cursor is not None for each in self.tables.values()):
                self.chunk(self.chance.choice([each for each in self.tables.values() if each.cursor is not None]))
            case 12:
                self.large()
            case _:
                self.log.group(*(self.transaction() for _ in range(self.chance.randrange(1, 4))))
                self.remember()

    def remember(self) -> None:
        self.at[self.log.last] = {name: each.held() for name, each in self.tables.items()}

    def some(self) -> RandomTable:
        return self.chance.choice(list(self.tables.values()))

    def create(self) -> None:
        free = [name for name in NAMES if name not in self.tables]
        if not free:
            return
        name = self.chance.choice(free)
        keyed = self.chance.random() < 0.7
        full = not keyed or self.chance.random() < 0.3
        made = schema_of(
            self.next_number,
            "id BIGINT, tenant VARCHAR, note VARCHAR",
            key=("id",) if keyed else (),
            name=name,
            identity=Identity.FULL if full else Identity.KEY,
        )
        self.next_number += 1
        self.tables[name] = RandomTable(self.log.schema(made))

    def lose(self) -> None:
        name = self.chance.choice(list(self.tables))
        table = self.tables.pop(name)
        free = [each for each in NAMES if each not in self.tables and each != name]
        if self.chance.random() < 0.5 and free:
            other = self.chance.choice(free)
            table.schema = self.log.schema(changed(table.schema, SchemaChange.TABLE_RENAMED, name=other))
            self.tables[other] = table
        else:
            self.log.schema(changed(table.schema, SchemaChange.TABLE_DROPPED))

    def alter(self, table: RandomTable) -> None:
        number = len(table.schema.columns) + 1
        if number > 7:
            return
        column = SourceColumn(f"c{number}", "BIGINT", number)
        defaults = {} if number % 2 else {column.name: number}
        columns = (*table.schema.columns, column)
        table.schema = self.log.schema(changed(table.schema, SchemaChange.ADDED, columns=columns, defaults=defaults))
        for row in table.rows.values():
            row.append(defaults.get(column.name))

    def replace_source(self) -> None:
        """Another server: all tables are captured again, and some are not there."""
        self.epoch += 1
        for name in [name for name in self.tables if self.chance.random() < 0.2]:
            del self.tables[name]
        for table in self.tables.values():
            table.schema = changed(table.schema, SchemaChange.RECAPTURED)
            table.begin_again()
        schemas = sorted((each.schema for each in self.tables.values()), key=lambda each: each.number)
        listed = tuple(CatalogTable((each,)) for each in schemas)
        self.log.catalog(Catalog(self.epoch, self.log.lsn, self.next_number, listed))

    def transaction(self) -> Work:
        work: Work = []
        for _ in range(self.chance.randrange(6) if self.tables else 0):
            work += self.change(self.some())
        return work

    def change(self, table: RandomTable) -> Work:
        schema, chance = table.schema, self.chance
        key, to = chance.randrange(KEYS), chance.randrange(KEYS)
        row = [key, chance.choice("xyz"), f"{chance.random():.2f}", *[7] * (len(schema.columns) - 3)]
        held = table.rows.get(key)
        gone = held if table.whole else [key, *[None] * (len(row) - 1)]
        old: Work = [(schema, OLD, list(held or ()))] if table.whole else []
        if chance.random() < 0.02:
            table.rows = {}
            return [(schema, TRUNCATE, ())]
        if held is None:
            table.rows[key] = row
            return [(schema, INSERT, list(row))]
        match chance.randrange(4):
            case 0:
                del table.rows[key]
                return [(schema, DELETE, list(gone or ()))]
            case 1 if schema.key and to not in table.rows:
                del table.rows[key]
                table.rows[to] = [to, *row[1:]]
                before = old or [(schema, OLD, [key, *[None] * (len(row) - 1)])]
                return [*before, (schema, NEW, [to, *row[1:]])]
            case 2 if schema.key:
                table.rows[key] = [key, row[1], held[2], *row[3:]]
                return [*old, (schema, NEW, [key, row[1], None, *row[3:]], b"\x04")]
            case _:
                table.rows[key] = row
                return [*old, (schema, NEW, list(row))]

    def large(self) -> None:
        before = {name: each.held() for name, each in self.tables.items()}
        work = [*self.transaction(), *self.transaction()]
        cut = next((at for at in range(len(work) // 2, len(work)) if work[at][1] is not NEW), 0)
        if self.chance.random() < 0.4:  # a crash: it is captured again
            self.log.part(0, work[:cut])
            self.log.mark()
            self.at[self.log.last] = before
        self.log.part(0, work[:cut])
        self.log.part(1, work[cut:], last=True)
        self.remember()

    def chunk(self, table: RandomTable) -> None:
        assert table.cursor is not None
        until = KEYS if not table.schema.key else table.cursor + self.chance.randrange(3, KEYS)
        rows = [list(row) for key, row in sorted(table.rows.items()) if table.cursor <= key < until]
        table.cursor = until if until < KEYS else None
        self.log.chunk(table.schema, table.chunks, rows, complete=table.cursor is None)
        table.chunks += 1
        self.remember()
