"""Columns that change in a captured PostgreSQL database, while rows are written: destinations of every kind follow.

The capture, the log, the deliverer and its Spark tasks are the real ones. Nothing is read again: neither the table by
the capture, nor a destination by a seed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final

import duckdb
import psycopg
import pytest
from msgspec.structs import replace
from psycopg.rows import dict_row
from pyspark.sql import SparkSession

from contract.ducklake_destination import LakeKind
from delivery.running_pipeline import TENANTS, Business, Running, wait_until
from local_cluster import RunningCluster, local_cluster
from postgres_server import PostgresServer
from trunkline.delivery.capture.database_capture import CaptureOptions, DatabaseCapture
from trunkline.delivery.capture.postgres.session import ServerAddress
from trunkline.delivery.capture.postgres.source import PostgresDatabase, PostgresSource
from trunkline.delivery.config import Pipeline
from trunkline.delivery.config.addresses import LogAddress
from trunkline.delivery.deliverer.assembly import task_pipeline
from trunkline.delivery.sources.database import DatabaseSource
from trunkline.delivery.sources.log_reader import forget_reader
from trunkline.delivery.verification.verify import verify_all
from trunkline.destination_suite.place import Table, content

LOOK_S: Final = 0.1  # at the catalog of the server
TABLE: Final = (
    "CREATE TABLE orders (id bigint PRIMARY KEY, tenant text NOT NULL, item text, a text, b text, price numeric(9,2))",
    "ALTER TABLE orders REPLICA IDENTITY FULL",
    """INSERT INTO orders SELECT n, (ARRAY['acme', 'bolt', 'cargo'])[1 + n % 3], 'item', 'a' || n, 'b' || n, n
    FROM generate_series(1, 60) n""",
)
ALTERATIONS: Final = {  # each is followed before the next one
    "renamed, added": ("ALTER TABLE orders RENAME item TO thing", "ALTER TABLE orders ADD extra integer[]"),
    "swapped, widened, added with a default": (
        "ALTER TABLE orders RENAME a TO c",
        "ALTER TABLE orders RENAME b TO a",
        "ALTER TABLE orders RENAME c TO b",
        "ALTER TABLE orders ALTER price TYPE numeric(12,2)",
        "ALTER TABLE orders ADD note text NOT NULL DEFAULT 'it''s 50%'",
    ),
    "dropped": ("ALTER TABLE orders DROP b",),
    "added again, renamed": (
        "ALTER TABLE orders ADD b integer DEFAULT 7",
        "ALTER TABLE orders RENAME note TO remark",
    ),
}


class Shop:
    """A database with one table, its capture, and a pipeline with a destination of each kind."""

    def __init__(self, spark: SparkSession, folder: Path, server: PostgresServer, cluster: RunningCluster) -> None:
        self.dsn = server.create_database("shop")
        self.run(*TABLE)
        database = PostgresDatabase(ServerAddress(self.dsn), "slot_shop", ("public.orders",))
        source = PostgresSource(database, check_s=LOOK_S)
        self.capture = DatabaseCapture(source, [cluster.connect], "shop", CaptureOptions("postgres"))
        self.address = LogAddress("shop", cluster.connect, table="public.orders")
        self.numbers = count(1000)  # of new rows
        self.business = Business(spark, folder, server)
        (folder / "lake").mkdir()
        site = LakeKind("sqlite").make(folder / "lake", lambda: server)  # read meanwhile
        self.business.tables["acme"] = Table(site, member="orders/acme")

    def run(self, *statements: str) -> None:
        with psycopg.connect(self.dsn) as connection:  # one transaction
            for statement in statements:
                connection.execute(statement.encode())

    def rows(self) -> list[dict[str, Any]]:
        with psycopg.connect(self.dsn, row_factory=dict_row) as connection:
            return connection.execute("SELECT * FROM orders").fetchall()

    def pipeline(self, key: str = "id") -> Pipeline:
        return replace(self.business.pipeline(), source=self.address, key=(key,))

    def held(self, name: str) -> list[dict[str, Any]] | None:
        """``None`` also while a flush keeps its catalog locked."""
        try:
            return self.business.tables[name].held()
        except duckdb.Error:
            return None

    def differing(self) -> list[str]:
        """The destinations that are not equal to their part of the table."""
        rows = self.rows()
        wanted = {name: content([row for row in rows if row["tenant"] == name]) for name in TENANTS}
        return [name for name in TENANTS if content(self.held(name)) != wanted[name]]

    def wait_for_columns(self, running: Running) -> None:
        """Until all have those of the table, whatever their rows."""
        columns = set(self.rows()[0])
        wait_until(
            lambda: all(set((self.held(name) or [{}])[0]) == columns for name in TENANTS),
            lambda: f"{columns} {running.observer.snapshot()}",
        )

    def wait_until_equal(self, running: Running) -> None:
        wait_until(lambda: not self.differing(), lambda: f"{self.differing()} {running.observer.snapshot()}")

    def verify(self) -> dict[str, str]:
        """As ``deliver verify``."""
        pipeline = self.pipeline()
        work = task_pipeline(pipeline, DatabaseSource(self.address), pipeline.destinations)
        found = verify_all(work, tuple(TENANTS), dict.fromkeys(TENANTS, "scan"))
        return {each.destination: each.outcome for each in found}

    @contextmanager
    def capturing(self) -> Iterator[None]:
        thread = threading.Thread(target=self.capture.run, name="capture")
        thread.start()
        try:
            wait_until(lambda: self.capture.captured.running)  # a pipeline needs the log
            yield
        finally:
            self.capture.stop()
            thread.join()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Rows come, change and go all the time, whatever the columns are."""
        ending, failures = threading.Event(), list[BaseException]()

        def write() -> None:
            try:
                with psycopg.connect(self.dsn, autocommit=True) as connection:
                    while not ending.wait(0.01):
                        number = next(self.numbers)
                        tenant = tuple(TENANTS)[number % 3]
                        insert = "INSERT INTO orders (id, tenant, price) VALUES (%s, %s, %s)"
                        connection.execute(insert, (number, tenant, number))
                        connection.execute("UPDATE orders SET price = price + 1 WHERE id %% 7 = %s", (number % 7,))
                        connection.execute("DELETE FROM orders WHERE id = %s", (number - 20,))
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=write, name="writer")
        thread.start()
        try:
            yield
        finally:
            ending.set()
            thread.join()
        assert failures == []


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with local_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path, logical: PostgresServer, cluster: RunningCluster) -> Iterator[Shop]:
    made = Shop(spark, tmp_path, logical, cluster)
    with made.capturing():
        yield made
    forget_reader(made.address)


def test_columns_that_change_while_rows_are_written_are_followed_and_nothing_is_read_again(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with shop.business.running(shop.pipeline()) as running:
        shop.wait_until_equal(running)
        read = shop.capture.captured.chunk_rows
        for statements in ALTERATIONS.values():
            with shop.writing():
                shop.run(*statements)
                shop.wait_for_columns(running)
            shop.wait_until_equal(running)
        shop.run("ALTER TABLE orders RENAME thing TO item")
        shop.run("INSERT INTO orders (id, tenant) VALUES (0, 'unrouted')")  # no destination has a row of this window
        shop.wait_until_equal(running)
        views = {name: running.destination(name) for name in TENANTS}
        assert {name: view.seeds for name, view in views.items() if view is not None} == dict.fromkeys(TENANTS, 1)
        assert shop.verify() == dict.fromkeys(TENANTS, "equal")
        captured = shop.capture.captured
        assert (captured.recaptures, captured.chunk_rows, captured.failures) == (0, read, 0)
        followed = [record for record in caplog.records if "event=columns_changed" in record.getMessage()]
        assert {record.levelno for record in followed} == {logging.WARNING}
        assert any("rewrote" in record.getMessage() for record in followed)

        shop.run("ALTER TABLE orders RENAME id TO number")
        shop.run("UPDATE orders SET price = 0 WHERE number = 0")

        def halted() -> bool:
            found = [running.destination(name) for name in TENANTS]
            return all(view is not None and "column 'id' is 'number' in the source now" in view.error for view in found)

        wait_until(halted, lambda: str(running.observer.snapshot()))
    shop.business.run_once(shop.pipeline("number"))
    assert shop.differing() == []
