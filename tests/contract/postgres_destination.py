"""PostgreSQL as a kind of destination, for the contract suite."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row

from contract.destination_place import Kind, Watch
from postgres_server import PostgresServer
from trunkline.delivery.backends.postgres_session import PostgresSession
from trunkline.delivery.config.addresses import PostgresAddress
from trunkline.delivery.destinations.postgres import PostgresDestination
from trunkline.delivery.destinations.postgres_table import POSITIONS

NO_SERVER: Final = "host=127.0.0.1 port=1 dbname=none user=none"


class WatchedSession(PostgresSession):
    """Reports every statement before it is sent."""

    def __init__(self, dsn: str, watch: Watch) -> None:
        super().__init__(dsn)
        self._watch = watch

    def _before(self, statement: str) -> None:
        self._watch(statement)


class WatchedDestination(PostgresDestination):
    def __init__(self, address: PostgresAddress, watch: Watch) -> None:
        self._own = WatchedSession(address.dsn, watch)
        super().__init__(address, self._own)

    def close(self) -> None:
        super().close()
        self._own.close()


@dataclass(frozen=True)
class PostgresTable:
    address: PostgresAddress

    def open(self, watch: Watch | None = None) -> PostgresDestination:
        return PostgresDestination(self.address) if watch is None else WatchedDestination(self.address, watch)

    def held(self) -> list[dict[str, Any]] | None:
        with psycopg.connect(self.address.dsn, row_factory=dict_row) as connection:
            if not self._exists(connection, self.address.table):
                return None
            rows = connection.execute(f'SELECT * FROM {self.address.schema}."{self.address.table}"'.encode()).fetchall()
            return [{name: _plain(value) for name, value in row.items()} for row in rows]

    def trace(self) -> object:
        """Who wrote each row that there is, and where it lies."""
        with psycopg.connect(self.address.dsn) as connection:
            return [
                connection.execute(f'SELECT xmin, ctid FROM {self.address.schema}."{name}"'.encode()).fetchall()
                for name in (POSITIONS, self.address.table)
                if self._exists(connection, name)
            ]

    def make_foreign(self) -> None:
        with psycopg.connect(self.address.dsn) as connection:
            name = f'{self.address.schema}."{self.address.table}"'
            connection.execute(f"CREATE TABLE {name} (id bigint); INSERT INTO {name} VALUES (99)".encode())

    def forget_marks(self) -> None:
        with psycopg.connect(self.address.dsn) as connection:
            connection.execute(f"ALTER TABLE {self.address.schema}.{POSITIONS} DROP COLUMN mark".encode())

    def lost(self) -> PostgresTable:
        return replace(self, address=PostgresAddress(NO_SERVER, self.address.table, self.address.schema))

    def _exists(self, connection: psycopg.Connection[Any], name: str) -> bool:
        found = connection.execute(
            "SELECT 1 FROM pg_tables WHERE schemaname = %s AND tablename = %s", (self.address.schema, name)
        )
        return found.fetchone() is not None


@dataclass(frozen=True)
class PostgresKind:
    name: str = "postgres"
    widens: bool = True

    def make(self, folder: Path, postgres: Callable[[], PostgresServer]) -> PostgresTable:
        dsn = make_conninfo(postgres().dsn(), options="-c timezone=UTC")
        schema = f"s{uuid.uuid4().hex}"
        with psycopg.connect(dsn) as connection:
            connection.execute(f"CREATE SCHEMA {schema}".encode())
        return PostgresTable(PostgresAddress(dsn, "orders 50%", schema))


def _plain(value: object) -> object:
    return value.astimezone(datetime.UTC) if isinstance(value, datetime.datetime) and value.tzinfo else value


KINDS: tuple[Kind, ...] = (PostgresKind(),)
