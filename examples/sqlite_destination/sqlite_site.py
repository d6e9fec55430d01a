"""SQLite files for the contract suite: it makes them, reads them without the code that it tests, and harms them."""

from __future__ import annotations

import datetime
import json
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from sqlite_destination import SqliteAddress, SqliteStore
from trunkline.destination_suite import Kind, Part, Watch
from trunkline.destinations import StorePlace

READERS: Final[dict[str, Callable[[Any], object]]] = {  # of values that are text, by the beginning of their type
    "DECIMAL": Decimal,
    "UBIGINT": int,
    "DATE": datetime.date.fromisoformat,
    "TIMESTAMP": datetime.datetime.fromisoformat,
    "BOOLEAN": bool,
    "FLOAT": float,
    "DOUBLE": float,
}


class SqliteSite(Struct, frozen=True):
    """A file in a folder of its own."""

    path: str
    home: str = ""

    def open(self, watch: Watch | None = None) -> StorePlace:
        return StorePlace(SqliteStore(self.path, watch))

    def address(self, name: str) -> SqliteAddress:
        return SqliteAddress(self.path, f"{name} 50%")

    def held(self, name: str) -> list[dict[str, Any]] | None:
        return self.held_together([name])[name]

    def held_together(self, names: Sequence[str]) -> dict[str, list[dict[str, Any]] | None]:
        if not Path(self.path).exists():
            return dict.fromkeys(names)
        with closing(sqlite3.connect(self.path, isolation_level=None)) as sql:
            sql.execute("BEGIN")
            return {name: self._held(sql, self.address(name).table) for name in names}

    def _held(self, sql: sqlite3.Connection, table: str) -> list[dict[str, Any]] | None:
        there = [name for (name,) in sql.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        if table not in there:
            return None
        records = sql.execute("SELECT record FROM _trunkline_members") if "_trunkline_members" in there else ()
        listed = [json.loads(record)["tables"].get(table, ()) for (record,) in records]
        types = {column["name"]: column["type"] for columns in listed for column in columns}
        rows = sql.execute(f'SELECT * FROM "{table}"')
        names = [name for name, *_ in rows.description]
        return [
            {name: _read(types.get(name, ""), value) for name, value in zip(names, row, strict=True)} for row in rows
        ]

    def trace(self) -> object:
        """Everything that the file holds."""
        if not Path(self.path).exists():
            return None
        with closing(sqlite3.connect(self.path)) as sql:
            return list(sql.iterdump())

    def make_foreign(self, name: str) -> None:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as sql:
            sql.execute(f'CREATE TABLE "{self.address(name).table}" (id INTEGER)')
            sql.execute(f'INSERT INTO "{self.address(name).table}" VALUES (99)')

    def drop(self, name: str) -> None:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as sql:
            sql.execute(f'DROP TABLE "{self.address(name).table}"')

    def lost(self) -> SqliteSite:
        """A directory is where the file should be."""
        Path(f"{self.path}.lost").mkdir()
        return SqliteSite(f"{self.path}.lost")


def _read(type_name: str, value: Any) -> object:
    if value is None:
        return None
    if type_name.endswith("[]"):
        return [_read(type_name[:-2], each) for each in json.loads(value)]
    if type_name.endswith("INT") or type_name == "INTEGER":
        return int(value)
    return next((reader(value) for name, reader in READERS.items() if type_name.startswith(name)), value)


class SqliteKind(Struct, frozen=True):
    name: str = "sqlite"
    lacks: frozenset[Part] = frozenset({"history", "older_records"})
    widens: bool = True
    adds_lists: bool = True
    commits_alone: bool = False
    server_fixture: str = ""

    def make(self, folder: Path, server: Callable[[], Any], /) -> SqliteSite:
        return SqliteSite(str(folder / "tables.db"))


KINDS: Final[tuple[Kind, ...]] = (SqliteKind(),)
