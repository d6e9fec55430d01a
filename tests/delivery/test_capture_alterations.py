"""Tables of a captured PostgreSQL database are altered while rows are written: the log rebuilds the database.

The capture and the log are the real ones. What is certain is followed; what is not is captured again, that table alone.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg
import pytest

import trunkline.sync
from database_judge import differences, states
from delivery.test_postgres_catalog import wait_unread
from local_cluster import RunningCluster, local_cluster
from postgres_server import PostgresServer
from trunkline.client.entries import Entry
from trunkline.delivery.capture.database_capture import CaptureOptions, DatabaseCapture
from trunkline.delivery.capture.postgres.session import ServerAddress
from trunkline.delivery.capture.postgres.source import PostgresDatabase, PostgresSource
from trunkline.delivery.changes.database_entries import SchemaEntry, entry_of

NUMBERS = itertools.count()
INSERT: Final = "INSERT INTO {} (id, name) VALUES (0, 'in the same transaction')"
FOLLOWED: Final = {  # a table for each: the transaction that alters it
    "added": ["ALTER TABLE added ADD c int"],
    "added_default": [
        "ALTER TABLE added_default ADD c text NOT NULL DEFAULT 'x, \"y\"', ADD d timestamptz DEFAULT now()"
    ],
    "dropped": ["ALTER TABLE dropped DROP extra"],
    "renamed": ["ALTER TABLE renamed RENAME extra TO other"],
    "swapped": [
        "ALTER TABLE swapped RENAME extra TO c",
        "ALTER TABLE swapped RENAME more TO extra",
        "ALTER TABLE swapped RENAME c TO more",
    ],
    "widened": [
        "ALTER TABLE widened ALTER name TYPE varchar(80)",
        "ALTER TABLE widened ALTER amount TYPE numeric(12,2)",
    ],
    "several": [
        "ALTER TABLE several RENAME extra TO other",
        INSERT.format("several"),
        "ALTER TABLE several ADD c int DEFAULT 7",
        "UPDATE several SET c = 8 WHERE id = 0",
        "ALTER TABLE several ALTER name TYPE text",
    ],
    "whole": ["ALTER TABLE whole REPLICA IDENTITY FULL"],
    "moved": ["ALTER TABLE moved RENAME TO moved_away"],
    "emptied": ["TRUNCATE emptied", INSERT.format("emptied")],
    "unlisted": ["ALTER TABLE unlisted ADD c inet DEFAULT '10.0.0.1', ADD d int4range[]"],  # types that become texts
}
AGAIN: Final = {
    "rekeyed": [
        "LOCK TABLE rekeyed",  # else it would wait for a writer that waits for the update
        "UPDATE rekeyed SET more = id",
        "ALTER TABLE rekeyed DROP CONSTRAINT rekeyed_pkey, ALTER more SET NOT NULL, ADD PRIMARY KEY (more)",
    ],
    "readded": ["ALTER TABLE readded DROP extra", "ALTER TABLE readded ADD extra int", INSERT.format("readded")],
    "volatile": ["ALTER TABLE volatile ADD c float DEFAULT random()"],
    "retyped": ["ALTER TABLE retyped ALTER extra TYPE bigint USING extra * 2"],
    "recomputed": ["ALTER TABLE recomputed ALTER extra TYPE int USING extra + 1"],  # the stream shows no difference
    "retyped_between": [  # its rows are in the transaction before and after
        INSERT.format("retyped_between"),
        "ALTER TABLE retyped_between ALTER extra TYPE bigint USING extra * 2",
        "UPDATE retyped_between SET extra = 5 WHERE id = 0",
    ],
    "generated": [
        "ALTER TABLE generated ADD c int GENERATED ALWAYS AS (extra * 2) STORED",
        "ALTER TABLE generated ALTER c DROP EXPRESSION",
    ],
}
LEFT_OUT: Final = {"reserved": ["ALTER TABLE reserved ADD _trunkline_c int"]}
ALTERATIONS: Final = {**FOLLOWED, **AGAIN, **LEFT_OUT}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with local_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


class Shop:
    """A table for each alteration, one capture of all of them, and one writer."""

    def __init__(self, server: PostgresServer, cluster: RunningCluster) -> None:
        self.name = f"altered{next(NUMBERS)}"
        self.dsn = server.create_database(self.name)
        self.database = PostgresDatabase(ServerAddress(self.dsn), f"slot_{self.name}", ("public.*",))
        self.connect = cluster.connect
        self.written = 0
        columns = "id int PRIMARY KEY, name varchar(40), extra int, more int, amount numeric(9,2)"
        for table in ALTERATIONS:
            self.run(
                f"CREATE TABLE {table} ({columns})",
                f"INSERT INTO {table} SELECT n, 'old', n, -n, n FROM generate_series(1, 40) n",
            )

    def run(self, *statements: str) -> None:
        with psycopg.connect(self.dsn) as connection:  # one transaction
            for statement in statements:
                connection.execute(statement.encode())

    def capture(self) -> DatabaseCapture:
        source = PostgresSource(self.database, check_s=0.1)
        return DatabaseCapture(source, [self.connect], self.name, CaptureOptions("postgres"))

    @contextmanager
    def capturing(self) -> Iterator[DatabaseCapture]:
        capture = self.capture()
        thread = threading.Thread(target=capture.run, name="capture")
        thread.start()
        try:
            yield capture
        finally:
            capture.stop()
            thread.join()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Rows come, change and go in all tables, whatever their columns and names are."""
        ending, failures = threading.Event(), list[BaseException]()

        def write() -> None:
            try:
                with psycopg.connect(self.dsn, autocommit=True) as connection:
                    for number in itertools.count(1000):
                        for table in ALTERATIONS:
                            try:
                                self._write(connection, table, number)
                            except psycopg.errors.UndefinedTable:
                                self._write(connection, f"{table}_away", number)
                        self.written += 1
                        if ending.is_set():
                            return
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

    @staticmethod
    def _write(connection: psycopg.Connection[Any], table: str, number: int) -> None:
        more = ", more" if table == "rekeyed" else ""
        with connection.transaction():
            values = f"{number}, 'new'" + (f", {number}" if more else "")
            connection.execute(f"INSERT INTO {table} (id, name{more}) VALUES ({values})".encode())
            connection.execute(f"UPDATE {table} SET name = 'changed' WHERE id % 10 = {number % 10}".encode())
            connection.execute(f"DELETE FROM {table} WHERE id = {number - 5}".encode())

    def alter(self) -> None:
        for table, statements in ALTERATIONS.items():
            self.run(*statements)
            self.wait_written(2, table)

    def wait_written(self, rounds: int, what: str) -> None:
        """Until the writer has been at every table so often."""
        target = self.written + rounds
        while self.written < target:
            assert any(thread.name == "writer" for thread in threading.enumerate()), what
            threading.Event().wait(0.01)

    def entries(self) -> list[Entry]:
        with trunkline.sync.connect(self.connect) as cluster:
            log = cluster.log(self.name)
            return list(log.subscribe(1, log.tail() - 1, to_tail=True))

    def check(self) -> dict[str, int]:
        """The log has what the database has, under the same names; returns the generation of each table."""
        entries = self.entries()
        [state] = states(entries, ())
        wanted = {f"public.{table}" for table in ALTERATIONS if table not in LEFT_OUT} - {"public.moved"}
        assert set(state.tables) == wanted | {"public.moved_away"}
        assert differences(self.dsn, state.tables) == {}
        for table, rows in state.tables.items():
            assert rows.schema.names == self.columns(table), table
        found = [entry.schema for entry in map(entry_of, entries) if isinstance(entry, SchemaEntry)]
        return {schema.name: schema.generation for schema in found if not schema.dropped}

    def columns(self, table: str) -> list[str]:
        query = (
            "SELECT attname::text FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped "
            "ORDER BY attnum"
        )
        with psycopg.connect(self.dsn) as connection:
            return [name for (name,) in connection.execute(query, (table,)).fetchall()]


@pytest.fixture
def shop(logical: PostgresServer, cluster: RunningCluster) -> Iterator[Shop]:
    made = Shop(logical, cluster)
    yield made
    with psycopg.connect(made.dsn, autocommit=True) as connection:
        wait_unread(connection, made.database.slot)
        connection.execute("SELECT pg_drop_replication_slot(%s)", (made.database.slot,))


def test_alterations_are_followed_or_the_table_alone_is_captured_again_with_a_warning(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    shop.capture().run(once=True)
    with shop.capturing(), shop.writing():
        shop.alter()
    shop.capture().run(once=True)
    generations = shop.check()
    followed = {name.removesuffix("_away"): each for name, each in generations.items()}
    assert {name for name, each in followed.items() if each > 1} == set(AGAIN)
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    for table in AGAIN:
        assert any(f'all rows of "public"."{table}" are captured again: ' in text for text in warned), table
    assert any('"public"."reserved" is captured no more: ' in text and "reserved" in text for text in warned)


def test_a_capture_that_was_stopped_meanwhile_comes_to_the_same_state(shop: Shop) -> None:
    shop.capture().run(once=True)
    with shop.writing():
        shop.alter()  # the catalog is ahead of all that the stream still has to bring
    shop.capture().run(once=True)
    with shop.writing():
        shop.wait_written(2, "the end")
    shop.capture().run(once=True)
    shop.check()
