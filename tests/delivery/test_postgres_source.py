"""A whole PostgreSQL database as a source: what its stream, its chunks and its catalog say, rebuilt and compared."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from delivery.source_driver import WAIT_S, SourceDriver
from postgres_server import PostgresServer
from trunkline.delivery.capture.decoder import Limits
from trunkline.delivery.capture.postgres_source import PostgresDatabase, PostgresSource
from trunkline.delivery.capture.replication import ReplicationConnection
from trunkline.delivery.capture.server_session import ServerAddress

LOOK_S = 0.05


class Shop:
    """A database, and a capture of all its tables."""

    def __init__(self, server: PostgresServer, name: str) -> None:
        self.server = server
        self.dsn = server.create_database(name)
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
        self.sources.append(PostgresSource(database, limits=limits, look_s=LOOK_S))
        return self.sources[-1]

    def driver(self, *tables: str, limits: Limits | None = None) -> SourceDriver:
        driver = SourceDriver(self.source(*tables, limits=limits))
        driver.open()
        return driver

    def close(self) -> None:
        for source in self.sources:
            source.close()
        with ReplicationConnection(self.dsn) as connection, psycopg.connect(self.dsn, autocommit=True) as other:
            query = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s AND active"
            deadline = time.monotonic() + WAIT_S
            while other.execute(query, (self.slot,)).fetchall() != [(0,)]:
                assert time.monotonic() < deadline
            connection.drop_slot(self.slot)


@pytest.fixture
def shop(logical: PostgresServer, request: pytest.FixtureRequest) -> Iterator[Shop]:
    made = Shop(logical, f"shop{abs(hash(request.node.name)) % 10**9}")
    yield made
    made.close()


def same(shop: Shop, driver: SourceDriver, name: str) -> None:
    """The captured rows are those of the database."""
    columns = ", ".join(f'"{column.name}"' for column in driver.table(name).schema.columns)
    assert driver.table(name).values() == Counter(shop.rows(f'SELECT {columns} FROM "{name}"'))


def test_every_row_of_every_table_is_captured_then_every_change(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE orders (id int PRIMARY KEY, note text)",
        "CREATE TABLE items (sku text, number bigint, PRIMARY KEY (number, sku))",
        "INSERT INTO orders SELECT i, 'note ' || i FROM generate_series(1, 25000) i",
        "INSERT INTO items SELECT 'sku ' || i % 7, i FROM generate_series(1, 100) i",
    )
    driver = shop.driver()
    driver.until(lambda: driver.complete("orders", "items"))
    assert driver.table("orders").chunks > 1
    shop.run("UPDATE orders SET note = 'changed' WHERE id % 3 = 0", "DELETE FROM items WHERE number > 50")
    shop.run("UPDATE items SET number = -number", "INSERT INTO orders VALUES (0, NULL)")
    driver.until_streamed(shop.lsn())
    same(shop, driver, "orders")
    same(shop, driver, "items")


def test_tables_that_are_created_renamed_altered_and_dropped_are_followed(shop: Shop) -> None:
    shop.run("CREATE TABLE orders (id int PRIMARY KEY, note text)", "INSERT INTO orders VALUES (1, 'a')")
    shop.run("CREATE TABLE idle (id int PRIMARY KEY)", "INSERT INTO idle VALUES (1), (2)")
    driver = shop.driver()
    driver.until(lambda: driver.complete("orders", "idle"))
    shop.run("CREATE TABLE late (id int PRIMARY KEY, x text)", "INSERT INTO late VALUES (1, 'x')")
    driver.until(lambda: driver.complete("late"))
    shop.run(
        "INSERT INTO late VALUES (2, 'y')", "ALTER TABLE late RENAME TO later", "INSERT INTO later VALUES (3, 'z')"
    )
    driver.until_streamed(shop.lsn())
    same(shop, driver, "later")
    shop.run("ALTER TABLE idle ADD COLUMN n int DEFAULT 7", "ALTER TABLE idle RENAME TO quiet")  # without a change
    driver.until(lambda: driver.has("quiet") and len(driver.table("quiet").schema.columns) == 2)
    same(shop, driver, "quiet")
    assert driver.table("quiet").schema.generation == 1
    shop.run("DROP TABLE later")
    driver.until(lambda: not driver.has("later"))
    shop.run("CREATE TABLE later (id text PRIMARY KEY)", "INSERT INTO later VALUES ('new')")
    driver.until(lambda: driver.complete("later"))
    same(shop, driver, "later")


def test_a_table_without_a_key_is_read_whole(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE loose (n int, t text)",
        "ALTER TABLE loose REPLICA IDENTITY FULL",
        "INSERT INTO loose SELECT i % 10, repeat('x', 100) FROM generate_series(1, 60000) i",
    )
    driver = shop.driver()
    driver.until(lambda: driver.complete("loose"))
    assert driver.table("loose").chunks > 1
    shop.run(
        "DELETE FROM loose WHERE n = 3", "UPDATE loose SET n = -n WHERE n > 7", "INSERT INTO loose VALUES (1, 'y')"
    )
    driver.until_streamed(shop.lsn())
    same(shop, driver, "loose")
