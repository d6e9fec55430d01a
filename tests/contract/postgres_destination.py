"""PostgreSQL as a kind of place, for the contract suite."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import psycopg
from msgspec import Struct
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row

from postgres_server import PostgresServer
from trunkline.delivery.backends.postgres_session import PostgresSession
from trunkline.delivery.config.addresses import PostgresAddress
from trunkline.delivery.destinations.contract import MEMBERS, Standing
from trunkline.delivery.destinations.postgres_place import PostgresPlace
from trunkline.destination_suite.place import Kind, Part, Watch

NO_SERVER: Final = "host=127.0.0.1 port=1 dbname=none user=none"
POSITIONS: Final = "_trunkline_positions"  # as releases without members had it; the last column came later
OLD_COLUMNS: Final = (
    '[{"name":"id","type":"BIGINT","nullable":true},{"name":"tenant","type":"VARCHAR","nullable":true},'
    '{"name":"amount","type":"INTEGER","nullable":true}]'
)
OLD_TABLE: Final = """
    CREATE TABLE IF NOT EXISTS {} (table_name text PRIMARY KEY, position bigint NOT NULL, token bigint NOT NULL,
                                   source text NOT NULL, columns text NOT NULL)"""


class WatchedSession(PostgresSession):
    """Reports every statement before it is sent."""

    def __init__(self, dsn: str, watch: Watch) -> None:
        super().__init__(dsn)
        self._watch = watch

    def _before(self, statement: str) -> None:
        self._watch(statement)


class WatchedPlace(PostgresPlace):
    def __init__(self, address: PostgresAddress, watch: Watch) -> None:
        self._own = WatchedSession(address.dsn, watch)
        super().__init__(address, self._own)

    def close(self) -> None:
        super().close()
        self._own.close()


class PostgresSite(Struct, frozen=True):
    """A schema of a database."""

    dsn: str
    home: str

    def open(self, watch: Watch | None = None) -> PostgresPlace:
        address = self.address("orders")
        return PostgresPlace(address) if watch is None else WatchedPlace(address, watch)

    def address(self, name: str) -> PostgresAddress:
        return PostgresAddress(self.dsn, f"{name} 50%", self.home)

    def run(self, statement: str, *names: str, given: tuple[object, ...] = ()) -> list[dict[str, Any]]:
        """A statement of another client; each ``{}`` is a table of this schema."""
        with psycopg.connect(self.dsn, row_factory=dict_row) as connection:
            places = [sql.Identifier(self.home, name) for name in names]
            composed = sql.SQL(statement).format(*places)
            cursor = connection.execute(composed, given or None)
            return cursor.fetchall() if cursor.description else []

    def named(self, name: str) -> str:
        """The table in a statement."""
        return f'"{self.home}"."{self.address(name).table}"'

    def exists(self, table: str) -> bool:
        found = "SELECT 1 AS found FROM pg_tables WHERE schemaname = %s AND tablename = %s"
        return bool(self.run(found, given=(self.home, table)))

    def held(self, name: str) -> list[dict[str, Any]] | None:
        return self.held_together([name])[name]

    def held_together(self, names: Sequence[str]) -> dict[str, list[dict[str, Any]] | None]:
        with psycopg.connect(self.dsn, row_factory=dict_row, autocommit=True) as connection:
            return {name: self._held(connection, name) for name in names}

    def _held(self, connection: psycopg.Connection[dict[str, Any]], name: str) -> list[dict[str, Any]] | None:
        table = sql.Identifier(self.home, self.address(name).table)
        try:
            rows = connection.execute(sql.SQL("SELECT * FROM {}").format(table)).fetchall()
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
            return None
        return [{name: _plain(value) for name, value in row.items()} for row in rows]

    def trace(self) -> object:
        """Every table with who wrote each row that there is, and where it lies."""
        names = self.run("SELECT tablename FROM pg_tables WHERE schemaname = %s ORDER BY 1", given=(self.home,))
        tables = [name["tablename"] for name in names]
        return [(name, self.run("SELECT xmin::text, ctid::text FROM {}", name)) for name in tables]

    def make_foreign(self, name: str) -> None:
        table = self.address(name).table
        self.run("CREATE TABLE {} (id bigint)", table)
        self.run("INSERT INTO {} VALUES (99)", table)

    def drop(self, name: str) -> None:
        self.run("DROP TABLE {}", self.address(name).table)

    def make_old_record(self, name: str, standing: Standing, *, marks: bool) -> None:
        self.run("DROP TABLE {}", MEMBERS)
        self.run(OLD_TABLE, POSITIONS)
        row = (self.address(name).table, standing.position, standing.token, standing.source, OLD_COLUMNS)
        self.run("INSERT INTO {} VALUES (%s, %s, %s, %s, %s)", POSITIONS, given=row)
        if marks:
            self.run("ALTER TABLE {} ADD COLUMN IF NOT EXISTS mark text NOT NULL DEFAULT ''", POSITIONS)
            mark = f"{standing.position}:{standing.mark}" if standing.mark else ""
            self.run("UPDATE {} SET mark = %s WHERE table_name = %s", POSITIONS, given=(mark, row[0]))

    def old_token(self, name: str) -> int | None:
        table = self.address(name).table
        if not self.exists(POSITIONS):
            return None
        found = self.run("SELECT token FROM {} WHERE table_name = %s", POSITIONS, given=(table,))
        return found[0]["token"] if found else None

    def old_source(self, name: str) -> str:
        table = self.address(name).table
        return str(self.run("SELECT source FROM {} WHERE table_name = %s", POSITIONS, given=(table,))[0]["source"])

    def lost(self) -> PostgresSite:
        return PostgresSite(NO_SERVER, self.home)


class PostgresKind(Struct, frozen=True):
    name: str = "postgres"
    lacks: frozenset[Part] = frozenset()
    widens: bool = True
    adds_lists: bool = True
    server_fixture: str = "postgres"
    commits_alone: bool = False

    def make(self, folder: Path, postgres: Callable[[], PostgresServer]) -> PostgresSite:
        dsn = make_conninfo(postgres().dsn(), options="-c timezone=UTC")
        schema = f"s{uuid.uuid4().hex}"
        with psycopg.connect(dsn) as connection:
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        return PostgresSite(dsn, schema)


def _plain(value: object) -> object:
    return value.astimezone(datetime.UTC) if isinstance(value, datetime.datetime) and value.tzinfo else value


KINDS: Final[tuple[Kind, ...]] = (PostgresKind(),)
