"""Chunks of PostgreSQL's tables beside their stream: the same values, in key order, whatever happens meanwhile."""

from __future__ import annotations

import gc
import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from delivery.captured_shop import Shop, assert_same
from delivery.source_driver import WAIT_S, SourceDriver
from trunkline.delivery.capture.postgres import chunk_reader
from trunkline.delivery.capture.postgres.chunk_reader import ChunkReader
from trunkline.delivery.capture.postgres.copied_output import CopiedOutput
from trunkline.delivery.capture.source import Changes, ChunkRows, SchemaUnit
from trunkline.errors import ConfigError, Unreachable

LARGE = "(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 400) i)"  # stored apart, and not sent again

TYPES = {  # every type in docs/capture.md, and its values
    "boolean": ["true", "false"],
    "smallint": ["-32768", "7"],
    "integer": ["2147483647"],
    "bigint": ["-9223372036854775808"],
    "real": ["0.1", "'NaN'", "'-Infinity'", "1e38"],
    "double precision": ["0.1::float8 + 0.2", "'Infinity'", "1e-300"],
    "numeric(12,3)": ["-123456789.125", "0"],
    "numeric(38,0)": ["99999999999999999999999999999999999999"],
    "numeric": ["1e50", "'NaN'", "0.00000000000000000001"],
    "text": ["''", "E'tab\\t newline\\n quote '' backslash \\\\ ü 漢'", LARGE],
    "varchar(20)": ["'short'"],
    "char(8)": ["'pad'", "''"],
    '"char"': ["'x'"],
    "name": ["'a name'"],
    "bytea": ["'\\x00ff10'::bytea", "''::bytea"],
    "uuid": ["'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'"],
    "json": ["'{\"a\" :  [1, null]}'"],
    "jsonb": ['\'{"b": 1.50, "a": "ü"}\''],
    "date": ["'2026-02-28'", "'infinity'", "'-infinity'", "'0044-03-15 BC'", "'10000-01-01'"],
    "time": ["'23:59:59.123456'", "'24:00:00'"],
    "timestamp": ["'2026-02-28 12:00:00.5'", "'infinity'", "'0001-01-01 00:00:00 BC'"],
    "timestamptz": ["'2026-02-28 12:00:00+05:30'", "'-infinity'", "'12026-01-01 00:00:00+00'"],
    "timetz": ["'12:00:00+02'"],
    "interval": ["'1 year 2 days 03:04:05.6'"],
    "money": ["12.34"],
    "inet": ["'192.168.0.1'", "'192.168.0.0/24'", "'::1'"],
    "cidr": ["'10.0.0.0/8'"],
    "macaddr": ["'08:00:2b:01:02:03'"],
    "bit(3)": ["B'101'"],
    "bit varying": ["B'10'"],
    "int4range": ["'[1,5)'", "'empty'"],
    "point": ["'(1.5,2)'"],
    "tsvector": ["'fat cat'::tsvector"],
    "oid": ["4294967295"],
    "regclass": ["'pg_class'::regclass", "'public.types'::regclass"],
    "pg_lsn": ["'16/B374D848'"],
    "xml": ["'<a>b</a>'"],
    "mood": ["'happy'"],
    "positive": ["5"],
    "pair": ["ROW(1, 'a b')"],
    "boolean[]": ["'{t,f,NULL}'"],
    "integer[]": ["'{1,NULL,3}'", "'{}'"],
    "bigint[]": ["'{1}'"],
    "real[]": ["'{0.5,NaN}'"],
    "double precision[]": ["'{0.1}'"],
    "text[]": ['\'{"a, b",NULL,"NULL",ü}\''],
    "date[]": ["'{2026-01-01}'"],
    "timestamp[]": ["'{2026-01-01 00:00:00.5}'"],
    "timestamptz[]": ["'{2026-01-01 00:00:00+05:30}'"],
    "uuid[]": ["'{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}'"],
    "numeric[]": ["'{1.50}'"],
    "inet[]": ["'{10.0.0.1}'"],
}


def test_every_type_has_the_same_values_in_chunks_and_in_the_stream(shop: Shop) -> None:
    columns = ", ".join(f"c{number} {kind}" for number, kind in enumerate(TYPES))
    shop.run(
        "CREATE TYPE mood AS ENUM ('sad', 'happy')",
        "CREATE DOMAIN positive AS int CHECK (VALUE > 0)",
        "CREATE TYPE pair AS (n int, t text)",
        f"CREATE TABLE types (id int PRIMARY KEY, {columns}, made int GENERATED ALWAYS AS (id + 1) STORED)",
        "INSERT INTO types (id) VALUES (0)",  # all NULL
    )
    for number, (kind, values) in enumerate(TYPES.items()):
        for place, value in enumerate(values):
            shop.run(f"INSERT INTO types (id, c{number}) VALUES ({1 + number * 10 + place}, ({value})::{kind})")
    driver = shop.driver()
    driver.until(lambda: driver.complete("types"))
    names = ", ".join(f"c{number}" for number in range(len(TYPES)))
    shop.run(f"INSERT INTO types (id, {names}) SELECT id + 10000, {names} FROM types")
    driver.until_streamed(shop.lsn())
    found = {row[0]: row[1:] for row in driver.table("types").values()}
    count = 1 + sum(map(len, TYPES.values()))
    assert len(found) == 2 * count
    assert {key: row for key, row in found.items() if key < 10_000} == {
        key - 10_000: row for key, row in found.items() if key >= 10_000
    }
    assert all(value is None for value in found[0])
    filled = [[value for value in row if value is not None] for key, row in found.items() if key]
    assert sum(map(len, filled)) == 2 * count - 2


KEYS = {
    "bigint": "(i * 7919 % 1009 - 500)",
    "text": "(CASE i % 3 WHEN 0 THEN 'Z' WHEN 1 THEN 'ä' ELSE 'a''\\' END || i)",
    'text COLLATE "C"': "('x' || i)",
    "text COLLATE folded": "('Name' || i)",
    "char(6)": "('k' || i)",
    "varchar(9)": "('v' || i)",
    "uuid": "md5(i::text)::uuid",
    "numeric": "(i / 7.0)",
    "numeric(20,5)": "(-i / 3.0)",
    "double precision": "(1.0 / i)",
    "timestamptz": "('2026-01-01'::timestamptz + i * interval '1 hour 1 microsecond')",
    "date": "('2026-01-01'::date - i)",
    "interval": "(i * interval '1 minute')",
    "bytea": "decode(md5(i::text), 'hex')",
    "bit(10)": "i::bit(10)",
    "inet": "('10.0.0.0'::inet + i)",
    "int[]": "ARRAY[i % 10, i]",
}


def test_chunks_follow_keys_of_every_kind(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_reader, "FIRST_ROWS", 37)
    monkeypatch.setattr(chunk_reader, "CHUNK_ROWS_MAX", 37)
    shop.run(
        "CREATE COLLATION folded (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
        "CREATE TABLE two (a int, b text, c int, PRIMARY KEY (c, b))",
        "INSERT INTO two SELECT i, (i % 20)::text, i / 20 FROM generate_series(1, 150) i",
        "CREATE TABLE indexed (a int, b text NOT NULL, c timestamp NOT NULL)",
        "CREATE UNIQUE INDEX odd ON indexed (c DESC, b)",
        "ALTER TABLE indexed REPLICA IDENTITY USING INDEX odd",
        "INSERT INTO indexed SELECT i, i::text, '2026-01-01'::timestamp + (i % 5) * interval '1 day' "
        "FROM generate_series(1, 150) i",
        'CREATE TABLE "Odd ""Name"" %s" ("The Key" int PRIMARY KEY, "select" text)',
        'INSERT INTO "Odd ""Name"" %s" SELECT i, \'x\' FROM generate_series(1, 150) i',
    )
    for number, (kind, value) in enumerate(KEYS.items()):
        shop.run(
            f"CREATE TABLE key{number} (k {kind} PRIMARY KEY, n int)",
            f"INSERT INTO key{number} SELECT {value}, i FROM generate_series(1, 150) i",
        )
    driver = shop.driver("public.*")
    names = [f"key{number}" for number in range(len(KEYS))] + ["two", "indexed"]
    driver.until(lambda: driver.complete(*names))
    assert driver.read_rows == 150 * len(driver.tables)
    for table in driver.tables.values():
        assert sum(table.values().values()) == 150
        assert table.chunks == 5


def test_a_chunk_is_cut_by_its_size_and_large_rows_come_alone(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_reader, "CHUNK_BYTES", 100_000)
    monkeypatch.setattr(chunk_reader, "CHUNK_BYTES_MAX", 200_000)
    monkeypatch.setattr(chunk_reader, "CHUNK_TEXT_MAX", 500_000)
    shop.run(
        "CREATE TABLE wide (id int PRIMARY KEY, t text)",
        "INSERT INTO wide SELECT i, repeat('x', i % 50) FROM generate_series(1, 2000) i",
        "INSERT INTO wide SELECT i, repeat('y', 40000) FROM generate_series(2001, 2100) i",
        "INSERT INTO wide SELECT i, repeat('z', 1000000) FROM generate_series(2101, 2103) i",
        "INSERT INTO wide SELECT i, 'w' FROM generate_series(2104, 3000) i",
    )
    driver = shop.driver()
    driver.until(lambda: driver.complete("wide"))
    assert_same(shop, driver, "wide")
    assert driver.read_rows == 3000
    sizes = [(each.rows.batch.num_rows, each.rows.batch.nbytes) for each in driver.units if isinstance(each, ChunkRows)]
    assert all(rows == 1 or size <= 200_000 for rows, size in sizes)
    assert sum(rows == 1 for rows, _ in sizes) >= 3


def test_an_empty_table_is_complete_at_once(shop: Shop) -> None:
    shop.run("CREATE TABLE none (id int PRIMARY KEY)", "CREATE TABLE bare (id int)")
    shop.run("ALTER TABLE bare REPLICA IDENTITY FULL")
    driver = shop.driver()
    driver.until(lambda: driver.complete("none", "bare"))
    assert driver.read_rows == 0


# --- beside writers ---

WRITES = [
    "INSERT INTO accounts VALUES ({any}, {any}, 'new') ON CONFLICT (id) DO UPDATE SET amount = {any}",
    "INSERT INTO accounts VALUES ({any}, {any}, {large}) ON CONFLICT DO NOTHING",
    "UPDATE accounts SET amount = amount + 1 WHERE id BETWEEN {any} AND {any} + 20",
    "UPDATE accounts SET note = 'moved', id = {any} WHERE id = {any}",
    "DELETE FROM accounts WHERE id BETWEEN {any} AND {any} + 5",
    "INSERT INTO loose VALUES ({any}, 'x')",
    "UPDATE loose SET n = n + 1 WHERE n % 50 = {any} % 50",
    "DELETE FROM loose WHERE n = {any}",
]


@contextmanager
def writers(shop: Shop, count: int, seed: int, *, truncates: bool) -> Iterator[None]:
    """Writers that change tables at random until the block ends."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def write(number: int) -> None:
        chance = random.Random(seed * 100 + number)
        try:
            with psycopg.connect(shop.dsn) as connection:
                while not stop.is_set():
                    try:
                        for _ in range(chance.choice([1, 1, 3])):
                            statement = chance.choice(WRITES).replace("{large}", LARGE)
                            while "{any}" in statement:
                                statement = statement.replace("{any}", str(chance.randrange(3000)), 1)
                            connection.execute(statement.encode())
                        if truncates and chance.random() < 0.01:
                            connection.execute("TRUNCATE accounts")
                        connection.rollback() if chance.random() < 0.1 else connection.commit()
                    except (psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected):
                        connection.rollback()
                    time.sleep(0.001)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == []


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_chunks_beside_writers_give_the_state_of_the_database(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(chunk_reader, "FIRST_ROWS", 150)
    monkeypatch.setattr(chunk_reader, "CHUNK_ROWS_MAX", 150)
    shop.run(
        "CREATE TABLE accounts (id int PRIMARY KEY, amount int, note text)",
        "CREATE TABLE loose (n int, t text)",
        "ALTER TABLE accounts REPLICA IDENTITY FULL" if seed == 2 else "SELECT 1",
        "ALTER TABLE loose REPLICA IDENTITY FULL",
        f"INSERT INTO accounts SELECT i, 0, {LARGE} FROM generate_series(1, 3000, 2) i",
        "INSERT INTO loose SELECT i % 50, 'a' FROM generate_series(1, 500) i",
    )
    moving = WRITES[3]
    if seed != 2:  # a row that moves without its large value needs a new generation, which the host requests
        monkeypatch.setattr("delivery.test_postgres_chunks.WRITES", [each for each in WRITES if each != moving])
    with writers(shop, 3, seed, truncates=seed == 3):
        driver = shop.driver()
        driver.until(lambda: driver.complete("accounts", "loose"))
        for _ in range(20):
            driver.step()
    driver.until_streamed(shop.lsn())
    assert_same(shop, driver, "accounts")
    assert_same(shop, driver, "loose")
    assert any(isinstance(each, Changes) for each in driver.units)


def test_a_table_that_joins_while_a_transaction_runs_waits_for_it(shop: Shop) -> None:
    """What the transaction changed before the table was published is never streamed."""
    shop.run("CREATE TABLE early (id int PRIMARY KEY)")
    driver = shop.driver()
    driver.until(lambda: driver.complete("early"))
    shop.run("CREATE TABLE late (id int PRIMARY KEY, n int)", "INSERT INTO late VALUES (1, 1)")
    with psycopg.connect(shop.dsn) as other:
        other.execute("INSERT INTO late VALUES (2, 2)")
        driver.until(lambda: driver.refused > 0)
        [created] = [each for each in driver.units if isinstance(each, SchemaUnit) and each.schema.name == "late"]
        assert created.must_see
        assert not driver.complete("late")
        other.execute("INSERT INTO late VALUES (3, 3)")
    driver.until(lambda: driver.complete("late"))
    driver.until_streamed(shop.lsn())
    assert_same(shop, driver, "late")


# --- when something fails ---


def chunk_backends(shop: Shop) -> list[int]:
    query = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'COPY (SELECT%'"
    return [pid for (pid,) in shop.rows(query)]


@pytest.mark.parametrize("end", ["pg_cancel_backend", "pg_terminate_backend"])
def test_a_chunk_whose_query_is_ended_is_read_again(shop: Shop, end: str) -> None:
    shop.run(
        "CREATE TABLE big (id int PRIMARY KEY, t text)",
        "INSERT INTO big SELECT i, repeat('x', 200) FROM generate_series(1, 100000) i",
    )
    driver = shop.driver()
    ended = 0
    deadline = time.monotonic() + WAIT_S
    while not driver.complete("big"):
        assert time.monotonic() < deadline
        if ended < 3:
            ended += sum(shop.rows(f"SELECT {end}({pid})")[0][0] for pid in chunk_backends(shop))
        driver.step()
    assert_same(shop, driver, "big")


def test_h4_a_table_without_a_key_whose_query_ends_after_its_watermarks_ends_the_stream(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.run("CREATE TABLE log (t text)", "ALTER TABLE log REPLICA IDENTITY FULL")
    shop.run("INSERT INTO log VALUES ('a'), ('a')")
    copy, ended = ChunkReader._copy, list[int]()

    def copied(self: ChunkReader, reading: psycopg.Connection[Any], *more: Any) -> CopiedOutput:
        if not ended:
            ended.append(reading.info.backend_pid)
            shop.rows(f"SELECT pg_terminate_backend({ended[0]})")
        return copy(self, reading, *more)

    monkeypatch.setattr(ChunkReader, "_copy", copied)
    driver = shop.driver()
    with pytest.raises(Unreachable, match="without a key"):
        driver.until(lambda: driver.complete("log"))
    driver.open()
    driver.until(lambda: driver.complete("log"))
    assert_same(shop, driver, "log")


def test_a_lock_delays_a_chunk_and_nothing_else(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trunkline.delivery.capture.postgres.session.LOCK_MS", 100)
    shop.run("CREATE TABLE held (id int PRIMARY KEY)", "INSERT INTO held VALUES (1)")
    shop.run("CREATE TABLE free (id int PRIMARY KEY)")
    driver = SourceDriver(shop.source(), reads=False)
    driver.open()
    driver.until(lambda: driver.has("held"))
    with psycopg.connect(shop.dsn) as other:
        other.execute("LOCK TABLE held IN ACCESS EXCLUSIVE MODE")
        driver.reads = True
        shop.run("INSERT INTO free VALUES (7)")
        driver.until_streamed(shop.lsn())
        assert not driver.complete("held")
    driver.until(lambda: driver.complete("held", "free"))
    assert_same(shop, driver, "held")
    assert_same(shop, driver, "free")


def test_a_table_that_is_altered_while_it_is_read_is_read_under_its_new_shape(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk_reader, "FIRST_ROWS", 10)
    monkeypatch.setattr(chunk_reader, "CHUNK_ROWS_MAX", 10)
    shop.run(
        "CREATE TABLE t (id int PRIMARY KEY, a text)", "INSERT INTO t SELECT i, 'a' FROM generate_series(1, 200) i"
    )
    driver = shop.driver()
    driver.until(lambda: driver.has("t") and driver.table("t").chunks > 2)
    shop.run("ALTER TABLE t RENAME COLUMN a TO b")  # no client writes to the table
    driver.until(lambda: driver.table("t").chunks > 6)
    shop.run("ALTER TABLE t ADD COLUMN c int DEFAULT 5")
    driver.until(lambda: driver.complete("t"))
    driver.until(lambda: [column.name for column in driver.table("t").schema.columns] == ["id", "b", "c"])
    driver.until(lambda: driver.complete("t"))
    assert_same(shop, driver, "t")


def test_a_key_that_gets_another_collation_while_it_is_read_loses_no_rows(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk_reader, "FIRST_ROWS", 10)
    monkeypatch.setattr(chunk_reader, "CHUNK_ROWS_MAX", 10)
    shop.run(
        'CREATE TABLE t (k text COLLATE "C" PRIMARY KEY)',
        "INSERT INTO t SELECT chr(i) || j FROM generate_series(65, 90) i, generate_series(1, 5) j",
        "INSERT INTO t SELECT chr(i) || j FROM generate_series(97, 122) i, generate_series(1, 5) j",
    )
    driver = shop.driver()
    driver.until(lambda: driver.has("t") and driver.table("t").chunks > 10)  # capitals come first, then they are mixed
    shop.run('ALTER TABLE t ALTER k TYPE text COLLATE "en-x-icu"')
    driver.until(lambda: driver.complete("t"))
    assert_same(shop, driver, "t")


def test_a_value_that_no_log_can_hold_is_named(shop: Shop) -> None:
    shop.run("CREATE TABLE bad (id int PRIMARY KEY, n numeric(5,2))", "INSERT INTO bad VALUES (1, 1), (2, 'NaN')")
    driver = shop.driver()
    with pytest.raises(ConfigError, match=r"column 'n' of public.bad has the value NaN where id = 2.*DECIMAL"):
        driver.until(lambda: driver.complete("bad"))


def test_a_source_that_is_closed_leaves_nothing_behind(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE big (id int PRIMARY KEY, t text)",
        "INSERT INTO big SELECT i, repeat('x', 200) FROM generate_series(1, 50000) i",
    )
    driver = shop.driver()
    driver.source.close()
    gc.collect()
    before, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    for _ in range(5):
        driver.open()
        driver.until(lambda: driver.has("big") and driver.table("big").chunks > 0)
        driver.source.close()
        assert len(os.listdir("/proc/self/fd")) == before
        assert threading.active_count() == threads
    count = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    deadline = time.monotonic() + WAIT_S
    while shop.rows(count) != [(0,)]:
        assert time.monotonic() < deadline
