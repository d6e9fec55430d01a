"""A PostgreSQL database for tests, with a capture of its tables that is driven by hand."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import psycopg

from delivery.source_driver import WAIT_S, SourceDriver
from postgres_server import PostgresServer
from trunkline.delivery.capture.postgres.decoder import Limits
from trunkline.delivery.capture.postgres.replication import ReplicationConnection
from trunkline.delivery.capture.postgres.session import ServerAddress
from trunkline.delivery.capture.postgres.source import PostgresDatabase, PostgresSource

CHECK_S = 0.05


class Shop:
    """A database, and a capture of all its tables."""

    def __init__(self, server: PostgresServer, name: str) -> None:
        self.server = server
        self.dsn = server.create_database(name)
        self.unix_dsn = server.dsn(name, unix_socket=True)  # every role is trusted there
        self.slot = f"slot_{name}"
        self.sources: list[PostgresSource] = []

    def run(self, *statements: str) -> None:
        with psycopg.connect(self.dsn) as connection:  # one transaction
            for statement in statements:
                connection.execute(statement.encode())

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn) as connection:
            return connection.execute(query.encode()).fetchall()

    def lsn(self) -> int:
        return int(self.rows("SELECT (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint")[0][0])

    def source(self, *tables: str, limits: Limits | None = None) -> PostgresSource:
        database = PostgresDatabase(ServerAddress(self.dsn), self.slot, tables or ("public.*",))
        self.sources.append(PostgresSource(database, limits=limits, check_s=CHECK_S))
        return self.sources[-1]

    def driver(self, *tables: str, limits: Limits | None = None, reads: bool = True) -> SourceDriver:
        driver = SourceDriver(self.source(*tables, limits=limits), reads=reads)
        driver.open()
        return driver

    def confirmed(self) -> int:
        query = f"SELECT confirmed_flush_lsn - '0/0'::pg_lsn FROM pg_replication_slots WHERE slot_name = '{self.slot}'"
        return int(self.rows(query)[0][0])

    def close(self) -> None:
        for source in self.sources:
            source.close()
        with ReplicationConnection(self.dsn) as connection, psycopg.connect(self.dsn, autocommit=True) as other:
            query = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s AND active"
            deadline = time.monotonic() + WAIT_S
            while other.execute(query, (self.slot,)).fetchall() != [(0,)]:
                assert time.monotonic() < deadline
            connection.drop_slot(self.slot)


def assert_same(shop: Shop, driver: SourceDriver, name: str) -> None:
    """The captured rows are those of the database."""
    columns = ", ".join(f'"{column.name}"' for column in driver.table(name).schema.columns)
    assert driver.table(name).values() == Counter(shop.rows(f'SELECT {columns} FROM "{name}"'))
