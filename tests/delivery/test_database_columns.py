"""Columns of a captured table that change: from the log of its database to every kind of destination, in any window."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from delivery.direct_delivery import Direct
from delivery.group_log import GroupLog, Work, changed, schema_of
from delivery.memory_log import MemoryLog
from delivery.pipe import KINDS, address_of
from postgres_server import PostgresServer
from trunkline.delivery.changes.groups import RowKind
from trunkline.delivery.changes.schemas import Identity, SchemaChange, SourceColumn
from trunkline.delivery.changes.versions import Window
from trunkline.delivery.config.addresses import LogAddress
from trunkline.delivery.job.work import TaskDestination
from trunkline.delivery.sources.database import DatabaseSource
from trunkline.delivery.sources.log_reader import forget_reader
from trunkline.destination_suite.place import Table, content

INSERT, DELETE, OLD, NEW, TRUNCATE, READ = RowKind
ADDED: Final = SchemaChange.ADDED
WIDER: Final = {"SMALLINT": "INTEGER", "INTEGER": "BIGINT"}
LOGS: Final = count(1)
STEPS: Final = 40


class ChangingTable:
    """A table that changes its rows and columns at random, and its log. Rows are by the numbers of their columns."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.log = GroupLog()
        self.schema = self.log.schema(
            schema_of(1, "id BIGINT, tenant VARCHAR, a VARCHAR, b INTEGER", name="orders", identity=Identity.FULL)
        )
        self.rows: dict[int, dict[int, Any]] = {n: {1: n, 2: "acme", 3: f"a{n}", 4: n} for n in range(8)}
        self.log.chunk(self.schema, 0, [self.listed(row) for row in self.rows.values()])
        self.other = self.log.schema(schema_of(2, "id BIGINT"))
        self.log.chunk(self.other, 0, [])
        self.number = 5  # of the next column

    def listed(self, row: dict[int, Any]) -> list[Any]:
        return [row[column.number] for column in self.schema.columns]

    def named(self) -> list[dict[str, Any]]:
        return [{column.name: row[column.number] for column in self.schema.columns} for row in self.rows.values()]

    def value(self, column: SourceColumn) -> Any:
        number = self.chance.randrange(100)
        return f"t{number}" if column.type == "VARCHAR" else None if number < 20 else number

    def step(self) -> None:
        self.alter() if self.chance.random() < 0.3 else self.transaction()

    def end(self) -> None:
        """A transaction that does not touch the table: windows end at transactions."""
        self.log.group([(self.other, INSERT, [len(self.log.entries)])])

    def transaction(self) -> None:
        work: Work = []
        for _ in range(self.chance.randrange(1, 4)):
            key = self.chance.randrange(14)
            held = self.rows.get(key)
            row = {column.number: self.value(column) for column in self.schema.columns} | {1: key, 2: "acme"}
            if held is None:
                work.append((self.schema, INSERT, self.listed(row)))
                self.rows[key] = row
            elif self.chance.random() < 0.4:
                work.append((self.schema, DELETE, self.listed(held)))
                del self.rows[key]
            else:
                work += [(self.schema, OLD, self.listed(held)), (self.schema, NEW, self.listed(row))]
                self.rows[key] = row
        self.log.group(work)

    def alter(self) -> None:
        """Drop, rename, widen and add: the key and the routing column stay."""
        kept = [column for column in self.schema.columns[2:] if self.chance.random() < 0.8]
        names = [column.name for column in kept]
        if self.chance.random() < 0.6:
            self.chance.shuffle(names)
        kept = [msgspec.structs.replace(column, name=name) for column, name in zip(kept, names, strict=True)]
        if self.chance.random() < 0.3:
            kept = [msgspec.structs.replace(column, type=WIDER.get(column.type, column.type)) for column in kept]
        defaults = {}
        for name in self.chance.sample("abcde", 2):
            if name not in names and self.chance.random() < 0.6:
                column = SourceColumn(name, self.chance.choice(["VARCHAR", "SMALLINT"]), self.number, 20)
                defaults[name] = self.value(column) if self.chance.random() < 0.6 else None
                for row in self.rows.values():
                    row[self.number] = defaults[name]
                kept.append(column)
                self.number += 1
        columns = (*self.schema.columns[:2], *kept)
        stated = {name: value for name, value in defaults.items() if value is not None}
        self.schema = self.log.schema(changed(self.schema, ADDED, defaults=stated, columns=columns))


@pytest.fixture
def tables(tmp_path: Path, postgres: PostgresServer) -> dict[str, Table]:
    """A destination of each kind."""
    found = {}
    for name, kind in KINDS.items():
        (tmp_path / name).mkdir()
        found[name] = Table(kind.make(tmp_path / name, lambda: postgres))
    return found


@pytest.fixture
def name() -> Iterator[str]:
    made = f"columns{next(LOGS)}"
    yield made
    forget_reader(LogAddress(made, "nowhere:1", table="public.orders"))


@pytest.mark.parametrize("seed", range(2))
def test_any_history_of_columns_and_rows_is_followed_without_a_seed(
    tables: dict[str, Table], name: str, seed: int
) -> None:
    changing = ChangingTable(seed)
    log = MemoryLog(name, changing.log.entries)
    source = DatabaseSource(LogAddress(log.address.log, "nowhere:1", table="public.orders"))
    targets = [TaskDestination(kind, address_of(table), ("acme",)) for kind, table in tables.items()]
    direct = Direct(source, *targets)
    direct.seed()
    for _ in range(STEPS):
        changing.step()
        if changing.chance.random() < 0.6:
            continue  # several steps in one window
        changing.end()
        direct.flush()
        for kind, table in tables.items():
            assert content(table.held()) == content(changing.named()), (kind, seed, len(changing.log.entries))
    assert changing.schema.version > 5


def test_a_table_that_is_captured_again_replaces_rows_and_columns_whatever_they_were(
    tables: dict[str, Table], name: str
) -> None:
    """Another key, as after the old one was dropped: there are no steps to another generation."""
    changing = ChangingTable(0)
    log = MemoryLog(name, changing.log.entries)
    source = DatabaseSource(LogAddress(log.address.log, "nowhere:1", table="public.orders"))
    targets = [TaskDestination(kind, address_of(table), ("acme",)) for kind, table in tables.items()]
    direct = Direct(source, *targets)
    direct.seed()
    before = source.state(0).version
    columns = tuple(SourceColumn(*each) for each in (("number", "BIGINT", 9), ("tenant", "VARCHAR", 2)))
    again = changed(changing.schema, SchemaChange.RECAPTURED, columns=columns, key=("number",))
    changing.log.schema(again)
    changing.log.chunk(again, 0, [[7, "acme"], [8, "acme"]])
    [found] = source.survey(Window(before, source.state(0).version)).tables
    assert (found.whole, found.survey.steps) == (True, None)
    direct = Direct(source, *targets, key=("number",))
    direct.flush()
    for table in tables.values():
        assert content(table.held()) == content([{"number": n, "tenant": "acme"} for n in (7, 8)])
