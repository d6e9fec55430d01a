"""Tables and their definitions as a real PostgreSQL has them, and the shapes that its stream sends."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import psycopg
import pytest

from postgres_server import PostgresServer
from trunkline.delivery.capture.postgres.catalog import (
    TableDefinition,
    definition_of,
    definitions_of,
    listed_tables,
    relation_of,
    schema_of,
)
from trunkline.delivery.capture.postgres.pgoutput import Insert, Relation, parse
from trunkline.delivery.capture.postgres.replication import ReplicationConnection
from trunkline.delivery.capture.postgres.shape_changes import Changed, Recapture, Same, judged
from trunkline.delivery.capture.postgres.snapshots import SESSION
from trunkline.delivery.changes.schemas import Identity, SchemaChange, check_schema, defaults_in
from trunkline.delivery.config.table_patterns import TablePatterns

NUMBERS = itertools.count()


@pytest.fixture
def database(logical: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    dsn = logical.create_database(f"catalog{next(NUMBERS)}")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(SESSION)
        yield connection


def names(connection: psycopg.Connection[Any], *patterns: str, exclude: tuple[str, ...] = ()) -> list[str]:
    found = listed_tables(connection, TablePatterns(patterns, exclude))
    return sorted(f"{table.schema}.{table.name}" for table in found.values())


def defined(connection: psycopg.Connection[Any], table: str) -> TableDefinition:
    [(oid,)] = connection.execute("SELECT %s::regclass::oid::bigint", (table,)).fetchall()
    found = definition_of(connection, oid)
    assert found is not None
    return found


def test_ordinary_tables_and_partitions_are_listed_and_nothing_else(database: psycopg.Connection[Any]) -> None:
    database.execute(
        """CREATE SCHEMA sales; CREATE SCHEMA "Odd.Schema"; CREATE SCHEMA pgx;
        CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE "A" (id int); CREATE TABLE child () INHERITS (a);
        CREATE TABLE "Odd.Schema"."x ""y" (id int); CREATE TABLE pgx.t (id int);
        CREATE UNLOGGED TABLE unlogged (id int); CREATE TEMPORARY TABLE temporary (id int);
        CREATE VIEW viewed AS SELECT * FROM a; CREATE MATERIALIZED VIEW kept AS SELECT * FROM a;
        CREATE EXTENSION file_fdw; CREATE SERVER files FOREIGN DATA WRAPPER file_fdw;
        CREATE FOREIGN TABLE foreign_table (line text) SERVER files OPTIONS (filename '/dev/null');
        CREATE TABLE sales.orders (id int, at date) PARTITION BY RANGE (at);
        CREATE TABLE sales.orders_1 PARTITION OF sales.orders FOR VALUES FROM ('2020-01-01') TO ('2021-01-01');
        CREATE TABLE sales.orders_2 PARTITION OF sales.orders DEFAULT PARTITION BY LIST (id);
        CREATE TABLE public.orders_2_all PARTITION OF sales.orders_2 DEFAULT;"""
    )
    assert names(database, "*.*") == [
        'Odd.Schema.x "y', "pgx.t", "public.A", "public.a", "public.child", "public.orders_2_all", "sales.orders_1",
    ]  # fmt: skip
    assert names(database, "sales.orders") == ["public.orders_2_all", "sales.orders_1"]  # the partitions of a table
    assert names(database, "sales.orders", exclude=("*.orders_2",)) == ["sales.orders_1"]
    assert names(database, "public.*") == ["public.A", "public.a", "public.child", "public.orders_2_all"]
    assert names(database, '"Odd.Schema"."x ""y"', 'public."A"') == ['Odd.Schema.x "y', "public.A"]

    before = listed_tables(database, TablePatterns(["a"]))
    database.execute("ALTER TABLE a ADD b text")
    after = listed_tables(database, TablePatterns(["a"]))
    assert [each.stamp for each in before.values()] != [each.stamp for each in after.values()]


def test_a_definition_has_numbers_of_columns_defaults_of_older_rows_and_the_identity(
    database: psycopg.Connection[Any],
) -> None:
    database.execute(
        """CREATE TABLE t (gone text, b bigint, a varchar(20) NOT NULL, twice bigint GENERATED ALWAYS AS (b * 2) STORED,
           PRIMARY KEY (b, a) INCLUDE (twice));
        CREATE UNIQUE INDEX other ON t (a); ALTER TABLE t DROP gone;
        ALTER TABLE t ADD moment timestamptz DEFAULT '2020-02-02 02:02:02.5+02', ADD list int[] DEFAULT '{1,NULL}',
          ADD text text DEFAULT E'a "b", {c}\\\\', ADD amount numeric(10,2) DEFAULT 1.5, ADD none int,
          ADD ok boolean DEFAULT true, ADD raw bytea DEFAULT 'ab', ADD until timestamp DEFAULT 'infinity',
          ADD doc jsonb DEFAULT '{"a": [1]}'"""
    )
    found = defined(database, "t")
    assert [(each.number, each.name) for each in found.columns if not each.sent] == [
        (1, "........pg.dropped.1........"), (4, "twice"),
    ]  # fmt: skip
    assert {each.name: each.missing for each in found.live if each.has_missing} == {
        "moment": "2020-02-02 00:02:02.5+00", "list": "{1,NULL}", "text": 'a "b", {c}\\', "amount": "1.50", "ok": "t",
        "raw": "\\x6162", "until": "infinity", "doc": '{"a": [1]}',
    }  # fmt: skip
    assert (found.primary, found.key, found.identity, found.attributes) == ((2, 3), (2, 3), "d", 13)
    schema = schema_of(found, 3)
    check_schema(schema)
    assert (schema.key, schema.identity, schema.storage, schema.oid) == (
        ("b", "a"),
        Identity.KEY,
        found.storage,
        found.oid,
    )
    [(lsn,)] = database.execute("SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint").fetchall()
    assert 0 < found.lsn <= lsn

    database.execute("ALTER TABLE t REPLICA IDENTITY USING INDEX other")
    assert schema_of(defined(database, "t"), 3).key == ("a",)
    database.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    assert (schema_of(defined(database, "t"), 3).key, schema_of(defined(database, "t"), 3).identity) == (
        ("b", "a"), Identity.FULL,
    )  # fmt: skip
    database.execute("ALTER TABLE t DROP CONSTRAINT t_pkey, REPLICA IDENTITY DEFAULT")
    assert (schema_of(defined(database, "t"), 3).key, schema_of(defined(database, "t"), 3).identity) == (
        (), Identity.NOTHING,
    )  # fmt: skip
    database.execute("ALTER TABLE t ADD PRIMARY KEY (b) DEFERRABLE, REPLICA IDENTITY FULL")
    assert schema_of(defined(database, "t"), 3).key == ()  # rows may be equal in it for a while

    database.execute("CREATE TABLE bare ()")
    assert defined(database, "bare").columns == ()
    assert definition_of(database, 1) is None
    assert len(definitions_of(database, [found.oid, defined(database, "bare").oid, 1])) == 2


STEPS: list[tuple[str, SchemaChange | type[Same] | type[Recapture]]] = [  # an alteration, and what it is
    ("COMMENT ON TABLE t IS 'first'", Same),
    ("TRUNCATE t", Same),
    ("ALTER TABLE t ADD c int", SchemaChange.ADDED),
    ("ALTER TABLE t ADD d text DEFAULT 'x'", SchemaChange.ADDED),
    ("ALTER TABLE t ALTER d DROP DEFAULT", Same),
    ("VACUUM FULL t", Recapture),  # it forgets the default of older rows, as an alteration with USING does
    ("VACUUM FULL t", Same),
    ("ALTER TABLE t RENAME d TO e", SchemaChange.RENAMED),
    ("ALTER TABLE t ALTER name TYPE varchar(30)", SchemaChange.WIDENED),
    ("ALTER TABLE t ALTER name TYPE text", SchemaChange.WIDENED),
    ("ALTER TABLE t ALTER amount TYPE numeric(14,2)", SchemaChange.WIDENED),
    ("ALTER TABLE t DROP c", SchemaChange.DROPPED),
    ("ALTER TABLE t ADD f float DEFAULT random()", Recapture),
    ("ALTER TABLE t ALTER id TYPE bigint", Recapture),
    ("ALTER TABLE t ALTER id TYPE bigint USING id + 1", Recapture),  # to the same type
    ("ALTER TABLE t ALTER amount TYPE numeric", Recapture),  # no row is rewritten, but it is a text now
    ("ALTER TABLE t ADD g int GENERATED ALWAYS AS (length(name)) STORED", Same),
    ("ALTER TABLE t ALTER g DROP EXPRESSION", Recapture),
    ("ALTER TABLE t DROP g; ALTER TABLE t ADD g int", Recapture),  # it cannot be seen in the stream
    ("ALTER TABLE t SET (fillfactor = 50)", Same),
    ("CREATE INDEX ON t (name)", Same),
    ("ALTER TABLE t REPLICA IDENTITY FULL", SchemaChange.KEY),
    ("ALTER TABLE t REPLICA IDENTITY DEFAULT", SchemaChange.KEY),
    ("ALTER TABLE t RENAME TO u", SchemaChange.TABLE_RENAMED),
    ("ALTER TABLE u RENAME TO t", SchemaChange.TABLE_RENAMED),
    ("ALTER TABLE t ALTER name SET NOT NULL", Same),
]


def test_the_shapes_that_the_server_sends_are_judged_as_what_they_are(
    logical: PostgresServer, database: psycopg.Connection[Any]
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, name varchar(20), amount numeric(12,2))")
    database.execute("CREATE PUBLICATION shapes FOR TABLE t")
    stream = ReplicationConnection(logical.dsn(database.info.dbname))
    with stream:
        stream.create_slot("shapes")
        stream.start("shapes", 0, ["shapes"])
        known = schema_of(defined(database, "t"), 1)
        for step, (statement, what) in enumerate(STEPS):
            with nullcontext() if statement.startswith("VACUUM") else database.transaction():
                database.execute(statement.encode())
            table = "u" if statement.endswith("TO u") else "t"
            database.execute(f"INSERT INTO {table} (id, name) VALUES ({step * 10}, 'x')".encode())
            relation = relation_before_row(stream)
            found = defined(database, table)
            assert relation == relation_of(found)
            verdict = judged(known, relation, found)
            assert isinstance(verdict, Same | Changed | Recapture)
            if isinstance(what, SchemaChange):
                assert isinstance(verdict, Changed), (statement, verdict)
                assert verdict.schema.changes == (what,), statement
            else:
                assert isinstance(verdict, what), (statement, verdict)
            check_schema(verdict.schema)
            if "DEFAULT 'x'" in statement:
                defaults = defaults_in(verdict.schema)
                assert defaults is not None
                assert defaults.to_pylist()[0]["d"] == "x"
            known = verdict.schema
    wait_unread(database, "shapes")
    database.execute("SELECT pg_drop_replication_slot('shapes')")


def wait_unread(connection: psycopg.Connection[Any], slot: str) -> None:
    """The server has yet to see that a stream ended."""
    active = "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s AND active"
    while connection.execute(active, (slot,)).fetchall():
        time.sleep(0.02)


def relation_before_row(stream: ReplicationConnection) -> Relation:
    """The last one before the next row that is inserted."""
    found = list[Relation]()
    while True:
        for message in map(parse, stream.receive(1000).messages):
            if isinstance(message, Relation):
                found.append(message)
            elif isinstance(message, Insert):
                return found[-1]
