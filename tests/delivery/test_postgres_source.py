"""A whole PostgreSQL database as a source: what its stream, its chunks and its catalog say, rebuilt and compared."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from delivery.captured_shop import Shop, assert_same
from delivery.source_driver import WAIT_S, SourceDriver
from local_cluster import wait_until
from postgres_server import PostgresServer
from trunkline.core.capture_messages import SlotState
from trunkline.delivery.capture.postgres import chunk_reader
from trunkline.delivery.capture.postgres.decoder import Limits
from trunkline.delivery.capture.postgres.opened_slot import opened_slot
from trunkline.delivery.capture.postgres.replication import ReplicationConnection
from trunkline.delivery.capture.postgres.session import ServerAddress, ServerSession
from trunkline.delivery.capture.postgres.source import request_snapshot
from trunkline.delivery.capture.source import Changes, SchemaUnit, SourceStart
from trunkline.errors import ConfigError, Unreachable


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
    assert_same(shop, driver, "orders")
    assert_same(shop, driver, "items")


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
    assert_same(shop, driver, "later")
    shop.run("ALTER TABLE idle ADD COLUMN n int DEFAULT 7", "ALTER TABLE idle RENAME TO quiet")  # without a change
    driver.until(lambda: driver.has("quiet") and len(driver.table("quiet").schema.columns) == 2)
    assert_same(shop, driver, "quiet")
    assert driver.table("quiet").schema.generation == 1
    shop.run("DROP TABLE later")
    driver.until(lambda: not driver.has("later"))
    shop.run("CREATE TABLE later (id text PRIMARY KEY)", "INSERT INTO later VALUES ('new')")
    driver.until(lambda: driver.complete("later"))
    assert_same(shop, driver, "later")


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
    assert_same(shop, driver, "loose")


def test_a_large_transaction_comes_in_pieces_with_nothing_of_others_between(shop: Shop) -> None:
    shop.run("CREATE TABLE orders (id int PRIMARY KEY, note text)", "CREATE TABLE other (id int PRIMARY KEY)")
    driver = shop.driver(limits=Limits(rows=100))
    driver.until(lambda: driver.complete("orders", "other"))
    driver.units.clear()
    with psycopg.connect(shop.dsn) as large:
        large.execute("INSERT INTO orders SELECT i FROM generate_series(1, 450) i")
        shop.run("INSERT INTO other VALUES (1)")
        large.execute("ALTER TABLE orders ADD COLUMN n int DEFAULT 4")  # inside of it
        large.execute("INSERT INTO orders SELECT i FROM generate_series(451, 700) i")
        large.execute("SELECT pg_logical_emit_message(true, 'outbox', 'of another program')")
    shop.run("INSERT INTO other VALUES (2)")
    driver.until_streamed(shop.lsn())
    pieces = [each for each in driver.units if isinstance(each, Changes) and each.part is not None]
    assert [each.part for each in pieces] == list(range(len(pieces)))
    assert [each.last for each in pieces] == [False] * (len(pieces) - 1) + [True]
    assert len({each.transactions[0].lsn for each in pieces}) == 1
    first, last = driver.units.index(pieces[0]), driver.units.index(pieces[-1])
    between = [each for each in driver.units[first:last] if each not in pieces]
    assert [type(each) for each in between] == [SchemaUnit]
    assert [each.end > 0 for each in pieces] == [each.last for each in pieces]
    assert_same(shop, driver, "orders")
    assert_same(shop, driver, "other")


def test_changes_of_other_tables_let_the_slot_advance(shop: Shop) -> None:
    shop.run("CREATE TABLE orders (id int PRIMARY KEY)", "CREATE TABLE noise (id int)")
    driver = shop.driver("orders")
    driver.until(lambda: driver.complete("orders"))
    shop.run("INSERT INTO noise SELECT i FROM generate_series(1, 1000) i")
    wanted = shop.lsn()
    driver.until_streamed(wanted)
    assert shop.confirmed() < wanted
    driver.source.confirm(driver.position)
    driver.until(lambda: shop.confirmed() >= wanted)
    lag = driver.source.lag()
    assert lag.position >= wanted
    assert lag.retained >= 0
    with psycopg.connect(shop.dsn) as large:  # while a transaction is half streamed, nothing is confirmed
        large.execute("INSERT INTO orders VALUES (1)")
    driver.until_streamed(shop.lsn())
    assert_same(shop, driver, "orders")


def test_a_capture_goes_on_after_what_the_log_has(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_reader, "FIRST_ROWS", 100)
    monkeypatch.setattr(chunk_reader, "CHUNK_ROWS_MAX", 100)
    shop.run("CREATE TABLE orders (id int PRIMARY KEY, n int)", "CREATE TABLE bare (n int)")
    shop.run("ALTER TABLE bare REPLICA IDENTITY FULL", "INSERT INTO bare VALUES (1), (1), (2)")
    shop.run("INSERT INTO orders SELECT i, 0 FROM generate_series(1, 1000) i")
    driver = shop.driver("orders")
    for step in range(6):  # nothing is confirmed: the server would send everything again
        shop.run(f"UPDATE orders SET n = {step} WHERE id % 7 = {step}")
        chunks = driver.table("orders").chunks if driver.has("orders") else 0
        driver.until(lambda chunks=chunks: driver.has("orders") and driver.table("orders").chunks > chunks)  # type: ignore[misc]
        driver.open()
    numbers = {each.schema.number for each in driver.tables.values()}
    driver.source.close()
    driver.source = shop.source()  # another process, with more tables
    shop.run("ALTER TABLE orders RENAME TO purchases", "ALTER TABLE purchases RENAME COLUMN n TO m")
    shop.run("INSERT INTO purchases VALUES (0, 0)")
    driver.open()
    driver.until(lambda: driver.complete("purchases", "bare"))
    driver.until_streamed(shop.lsn())
    assert_same(shop, driver, "purchases")
    assert_same(shop, driver, "bare")
    assert driver.table("purchases").schema.generation == 1
    assert driver.table("purchases").schema.number in numbers
    assert driver.read_rows <= 1004 + 7 * 100


def test_a_table_without_a_key_that_was_not_read_to_its_end_begins_again(shop: Shop) -> None:
    shop.run("CREATE TABLE loose (n int)", "ALTER TABLE loose REPLICA IDENTITY FULL")
    shop.run("INSERT INTO loose SELECT i FROM generate_series(1, 1000) i")
    driver = shop.driver()
    driver.until(lambda: driver.complete("loose"))
    driver.table("loose").complete = False  # as if the rest of its rows had been lost
    driver.open()
    driver.until(lambda: driver.complete("loose"))
    assert driver.table("loose").schema.generation == 2
    assert_same(shop, driver, "loose")


def test_a_table_is_captured_again_on_request(shop: Shop) -> None:
    shop.run("CREATE TABLE orders (id int PRIMARY KEY)", "INSERT INTO orders VALUES (1)")
    driver = shop.driver()
    driver.until(lambda: driver.complete("orders"))
    with psycopg.connect(shop.dsn) as session:
        request_snapshot(session, shop.slot, "public", "orders")
        request_snapshot(session, shop.slot, "public", "absent")
        request_snapshot(session, "other_slot", "public", "orders")
    driver.until(lambda: driver.table("orders").schema.generation == 2 and driver.complete("orders"))
    driver.source.recapture(driver.table("orders").schema.number, "for a test")
    driver.until(lambda: driver.table("orders").schema.generation == 3 and driver.complete("orders"))
    assert [each.why for each in driver.units if isinstance(each, SchemaUnit)][-1] == "for a test"
    assert_same(shop, driver, "orders")


def test_a_table_that_is_renamed_meanwhile_is_captured_again(shop: Shop) -> None:
    shop.run("CREATE TABLE orders (id int PRIMARY KEY)", "INSERT INTO orders VALUES (1)")
    driver = shop.driver()
    driver.until(lambda: driver.complete("orders"))
    shop.run("ALTER TABLE orders RENAME TO sales", "INSERT INTO sales VALUES (2)")
    driver.source.recapture(driver.table("orders").schema.number, "for a test")  # it has not heard of the new name
    driver.until(lambda: driver.has("sales") and driver.table("sales").schema.generation == 2)
    driver.until(lambda: driver.complete("sales"))
    assert_same(shop, driver, "sales")


# --- tables that come, go and change ---


def test_a_column_that_was_dropped_and_added_again_is_another_one(shop: Shop) -> None:
    """The server describes the table exactly as before."""
    shop.run("CREATE TABLE t (id int PRIMARY KEY, n int)", "INSERT INTO t VALUES (1, 1), (2, 2)")
    driver = shop.driver()
    driver.until(lambda: driver.complete("t"))
    shop.run("INSERT INTO t VALUES (3, 3)")
    driver.until_streamed(shop.lsn())
    shop.run("ALTER TABLE t DROP COLUMN n", "ALTER TABLE t ADD COLUMN n int")
    shop.run("UPDATE t SET n = 5 WHERE id = 1")
    driver.until_streamed(shop.lsn())
    driver.until(lambda: driver.complete("t"))
    driver.until_streamed(shop.lsn())
    assert_same(shop, driver, "t")
    assert len([each for each in driver.units if isinstance(each, SchemaUnit)]) > 1


def test_j5_a_shape_is_judged_when_others_see_its_transaction(shop: Shop) -> None:
    """Before, the catalog still has the column that was dropped: the new one of its type would pass for it."""
    shop.run("CREATE TABLE t (id int PRIMARY KEY, n int)", "INSERT INTO t VALUES (1, 1), (2, 2)")
    driver = shop.driver()
    driver.until(lambda: driver.complete("t"))
    driver.source.close()
    change = ("ALTER TABLE t DROP COLUMN n", "ALTER TABLE t ADD COLUMN m int", "INSERT INTO t VALUES (3, 3)")
    writer = threading.Thread(target=shop.run, args=change)
    with psycopg.connect(shop.dsn, autocommit=True) as admin:
        _set_standby(admin, "absent")
        try:
            writer.start()
            waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
            while admin.execute(waiting).fetchall() != [(1,)]:
                assert writer.is_alive()
            timer = threading.Timer(0.5, lambda: _set_standby(admin, ""))
            driver.source = shop.source()
            driver.open()
            timer.start()
            driver.until_streamed(shop.lsn())
            timer.join()
        finally:
            _set_standby(admin, "")
            writer.join()
    driver.until(lambda: driver.complete("t"))
    driver.until_streamed(shop.lsn())
    assert_same(shop, driver, "t")


def _set_standby(admin: psycopg.Connection[Any], name: str) -> None:
    """A commit waits for a standby of this name; empty: for none."""
    admin.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'".encode())
    admin.execute("SELECT pg_reload_conf()")


def test_a_table_without_an_identity_is_left_out_until_it_has_one(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    shop.run("CREATE TABLE plain (id int, n int)", "INSERT INTO plain VALUES (1, 1)")
    shop.run("CREATE TABLE keyed (id int PRIMARY KEY)")
    driver = shop.driver()
    driver.until(lambda: driver.complete("keyed"))
    shop.run("UPDATE plain SET n = 2")  # the server would refuse it if the table were published
    for _ in range(30):
        driver.step(10)
    assert not driver.has("plain")
    found = [each.message for each in caplog.records if "plain" in each.message]
    assert len(found) == 1
    assert "REPLICA IDENTITY FULL" in found[0]
    shop.run("ALTER TABLE plain ADD PRIMARY KEY (id)")
    driver.until(lambda: driver.complete("plain"))
    assert_same(shop, driver, "plain")
    shop.run("ALTER TABLE plain REPLICA IDENTITY NOTHING")
    driver.until(lambda: not driver.has("plain"))
    assert shop.rows("SELECT count(*) FROM pg_publication_rel") == [(1,)]
    shop.run("UPDATE plain SET n = 3", "ALTER TABLE plain REPLICA IDENTITY DEFAULT")
    driver.until(lambda: driver.complete("plain"))
    assert_same(shop, driver, "plain")


def test_tables_swap_their_names(shop: Shop) -> None:
    shop.run("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)", "INSERT INTO a VALUES (1)")
    driver = shop.driver()
    driver.until(lambda: driver.complete("a", "b"))
    numbers = {each.schema.name: number for number, each in driver.tables.items()}
    shop.run("ALTER TABLE a RENAME TO c", "ALTER TABLE b RENAME TO a", "ALTER TABLE c RENAME TO b")
    driver.until(lambda: driver.tables[numbers["a"]].schema.name == "b")
    driver.until(lambda: driver.tables[numbers["b"]].schema.name == "a")
    shop.run("INSERT INTO a VALUES (7)")
    driver.until_streamed(shop.lsn())
    assert_same(shop, driver, "a")
    assert_same(shop, driver, "b")
    assert driver.table("b").schema.generation == 1


def test_a_table_that_is_replaced_under_its_name_is_another_table(shop: Shop) -> None:
    shop.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    driver = shop.driver()
    driver.until(lambda: driver.complete("t"))
    shop.run("INSERT INTO t VALUES (2)")
    shop.run("DROP TABLE t", "CREATE TABLE t (id int PRIMARY KEY, x text)", "INSERT INTO t VALUES (9, 'x')")
    shop.run("INSERT INTO t VALUES (10, 'y')")
    driver.until(lambda: driver.has("t") and driver.table("t").schema.number == 2 and driver.complete("t"))
    driver.until_streamed(shop.lsn())
    assert_same(shop, driver, "t")


def test_a_table_that_begins_to_match_is_captured_with_all_its_rows(shop: Shop) -> None:
    """Its changes were in the stream before, because the publication had it, and were left out."""
    shop.run("CREATE TABLE other (id int PRIMARY KEY, n int)", "CREATE TABLE order_1 (id int PRIMARY KEY)")
    driver = shop.driver("order_*")
    driver.until(lambda: driver.complete("order_1"))
    shop.run(f"ALTER PUBLICATION {shop.slot} ADD TABLE other", "INSERT INTO other VALUES (1, 1)")
    shop.run("INSERT INTO other VALUES (2, 2)", "TRUNCATE order_1")
    driver.until_streamed(shop.lsn())
    assert not driver.has("other")
    shop.run("ALTER TABLE other RENAME TO order_2")
    shop.run("INSERT INTO order_2 VALUES (3, 3)")
    driver.until(lambda: driver.complete("order_2"))
    shop.run("UPDATE order_2 SET n = -1 WHERE id = 1")
    driver.until_streamed(shop.lsn())
    assert_same(shop, driver, "order_2")
    shop.run("ALTER TABLE order_2 RENAME TO nothing")
    driver.until(lambda: not driver.has("order_2"))


# --- slots ---


def test_a_slot_is_taken_from_another_reader(shop: Shop) -> None:
    shop.run("CREATE TABLE t (id int PRIMARY KEY)")
    first = shop.driver()
    first.until(lambda: first.complete("t"))
    second = SourceDriver(shop.source())
    second.tables, second.position, second._next_number = first.tables, first.position, 2
    opened = second.open()
    assert opened.confirmed <= first.position
    shop.run("INSERT INTO t VALUES (1)")
    second.until_streamed(shop.lsn())
    assert_same(shop, second, "t")
    with pytest.raises(Unreachable):
        first.until(lambda: False)


def test_a_slot_that_another_start_is_making_is_not_taken_for_one(shop: Shop) -> None:
    """A start that is ended before the slot is ready takes the slot away."""
    shop.run("CREATE TABLE t (id int PRIMARY KEY)")
    address = ServerAddress(shop.dsn)
    session, maker, stream = ServerSession(address), ReplicationConnection(shop.dsn), ReplicationConnection(shop.dsn)
    ended: list[Exception] = []

    def make() -> None:
        try:
            maker.create_slot(shop.slot)
        except Unreachable as error:
            ended.append(error)

    with psycopg.connect(shop.dsn) as writer:
        session.connection.execute(f"CREATE PUBLICATION {shop.slot} FOR TABLE public.t".encode())
        writer.execute("INSERT INTO t VALUES (1)")  # a slot is not ready before it ends
        thread = threading.Thread(target=make)
        thread.start()
        try:
            wait_until(lambda: session.ask("SELECT FROM pg_replication_slots WHERE slot_name = %s", shop.slot), WAIT_S)
            with pytest.raises(Unreachable, match="was ended while it made it"):
                opened_slot(session, stream, shop.slot, 0, make=None, release_s=WAIT_S)
        finally:
            thread.join()
            for each in (session, maker, stream):
                each.close()
    assert ended


def test_without_the_right_to_end_a_reader_the_capture_waits_for_it(shop: Shop) -> None:
    shop.run("CREATE TABLE t (id int PRIMARY KEY)")
    driver = shop.driver()
    with psycopg.connect(shop.dsn, autocommit=True) as admin:
        admin.execute("DROP ROLE IF EXISTS humble")
        admin.execute("CREATE ROLE humble LOGIN REPLICATION")
    address = ServerAddress(make_conninfo(shop.unix_dsn, user="humble"))
    session, stream = ServerSession(address), ReplicationConnection(address.dsn)
    try:
        with pytest.raises(Unreachable, match=r"still in use by process \d+"):
            opened_slot(session, stream, shop.slot, 0, make=None, release_s=0.3)
        timer = threading.Timer(0.3, driver.source.close)
        timer.start()
        opened = opened_slot(session, stream, shop.slot, 0, make=None, release_s=WAIT_S)
        assert opened.slot is SlotState.PRESENT
        timer.join()
    finally:
        session.close()
        stream.close()


def test_what_became_of_a_slot_is_reported_and_only_a_lost_one_is_replaced(shop: Shop) -> None:
    shop.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    source = shop.source()
    source.reach()
    start = SourceStart(0, None)
    assert source.open(start).slot is SlotState.ABSENT
    with pytest.raises(Unreachable, match="was closed"):
        source.receive(0, close=True)
    assert shop.rows("SELECT count(*) FROM pg_publication") == [(0,)]
    made = source.open(SourceStart(0, None, create=True))
    assert made.slot is SlotState.PRESENT
    assert source.open(SourceStart(0, None, create=True)).confirmed == made.confirmed  # it stays
    source.close()
    shop.run(f"DROP PUBLICATION {shop.slot}")
    assert source.open(start).slot is SlotState.LOST
    assert source.open(SourceStart(0, None, create=True)).confirmed > made.confirmed
    source.close()
    shop.run(f"ALTER PUBLICATION {shop.slot} SET (publish = 'insert')")
    with pytest.raises(ConfigError, match="leaves out kinds of changes"):
        source.reach()


def test_the_server_is_not_left_to_refuse_updates_of_a_table_whose_key_was_dropped(shop: Shop) -> None:
    shop.run("CREATE TABLE t (id int PRIMARY KEY, n int)", "INSERT INTO t VALUES (1)")
    driver = shop.driver()
    driver.until(lambda: driver.complete("t"))
    shop.run("ALTER TABLE t DROP CONSTRAINT t_pkey")
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
        shop.run("UPDATE t SET n = 2")
    driver.until(lambda: not driver.has("t"))
    shop.run("UPDATE t SET n = 2")


def test_a_table_that_is_busy_joins_later_and_delays_no_other(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trunkline.delivery.capture.postgres.published_tables.LOCK_MS", 50)
    shop.run("CREATE TABLE busy (id int PRIMARY KEY)", "CREATE TABLE free (id int PRIMARY KEY)")
    with psycopg.connect(shop.dsn) as other:
        other.execute("LOCK TABLE busy IN SHARE UPDATE EXCLUSIVE MODE")  # as CREATE INDEX CONCURRENTLY does
        driver = shop.driver()
        driver.until(lambda: driver.complete("free"))
        assert not driver.has("busy")
    driver.until(lambda: driver.complete("busy"))


def test_a_table_that_was_unpublished_meanwhile_is_captured_again(shop: Shop) -> None:
    shop.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    driver = shop.driver()
    driver.until(lambda: driver.complete("t"))
    driver.source.close()
    shop.run(f"ALTER PUBLICATION {shop.slot} DROP TABLE t", "INSERT INTO t VALUES (2)")
    shop.run("INSERT INTO t VALUES (3)")
    driver.open()
    driver.until(lambda: driver.has("t") and driver.table("t").schema.generation == 2 and driver.complete("t"))
    shop.run("DELETE FROM t WHERE id = 1")
    driver.until_streamed(shop.lsn())
    shop.run("INSERT INTO t VALUES (6)")  # still to be streamed
    shop.run(f"ALTER PUBLICATION {shop.slot} DROP TABLE t", "INSERT INTO t VALUES (4)")
    shop.run("INSERT INTO t VALUES (5)")
    driver.until(lambda: driver.table("t").schema.generation == 3 and driver.complete("t"))
    shop.run("INSERT INTO t VALUES (7)")  # under the new version
    driver.until_streamed(shop.lsn())
    assert_same(shop, driver, "t")


def test_receive_ends_when_it_is_woken(shop: Shop) -> None:
    shop.run("CREATE TABLE t (id int PRIMARY KEY)")
    driver = shop.driver()
    driver.until(lambda: driver.complete("t"))
    for _ in range(3):
        began = time.monotonic()
        timer = threading.Timer(0.05, driver.source.wake)
        timer.start()
        while timer.is_alive():
            driver.step(int(WAIT_S * 1000))
        assert time.monotonic() - began < WAIT_S / 2


def test_a_start_that_waits_for_a_transaction_ends_when_it_is_woken(shop: Shop) -> None:
    """A new slot waits for all transactions that are open."""
    shop.run("CREATE TABLE t (id int PRIMARY KEY)")
    source = shop.source()
    with psycopg.connect(shop.dsn) as other:
        other.execute("SELECT pg_current_xact_id()")
        timer = threading.Timer(0.5, source.wake)
        timer.start()
        with pytest.raises(Unreachable, match="a new slot waits for all open transactions"):
            source.open(SourceStart(0, None, create=True))
        timer.join()
        deadline = time.monotonic() + WAIT_S
        while shop.rows(f"SELECT FROM pg_replication_slots WHERE slot_name = '{shop.slot}'"):
            assert time.monotonic() < deadline
    assert source.open(SourceStart(0, None, create=True)).slot is SlotState.PRESENT


# --- servers that end ---


@pytest.fixture(scope="module")
def mortal() -> Iterator[PostgresServer]:
    with PostgresServer(settings={"wal_level": "logical", "wal_sender_timeout": "5s"}) as server:
        yield server


def follow(driver: SourceDriver) -> None:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        driver.step()
        driver.source.confirm(driver.position)  # a server that shuts down waits for it


def test_a_capture_goes_on_after_its_server_was_killed_and_after_a_promotion(
    mortal: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk_reader, "FIRST_ROWS", 500)
    monkeypatch.setattr(chunk_reader, "CHUNK_ROWS_MAX", 500)
    shop = Shop(mortal, "mortal")
    shop.run("CREATE TABLE t (id int PRIMARY KEY, n int)", "INSERT INTO t SELECT i, 0 FROM generate_series(1, 20000) i")
    driver = shop.driver()
    before = driver.open()
    for end, begin in ((mortal.kill, mortal.restart), (mortal.stop, mortal.restart), (mortal.stop, mortal.promote)):
        chunks = driver.table("t").chunks if driver.has("t") else 0
        driver.until(lambda chunks=chunks: driver.has("t") and driver.table("t").chunks > chunks + 3)  # type: ignore[misc]
        shop.run("UPDATE t SET n = n + 1 WHERE id % 100 = 0")
        ending = threading.Thread(target=end)
        ending.start()
        try:
            with pytest.raises(Unreachable):
                follow(driver)
        finally:
            ending.join()
        driver.source.close()
        with pytest.raises(Unreachable):
            driver.source.reach()
        begin()
        opened = driver.open()
        shop.run("UPDATE t SET n = n + 1 WHERE id % 200 = 0")
    assert opened.origin.system == before.origin.system
    assert opened.origin.timeline == 2
    assert [timeline for timeline, _ in opened.ends] == [1, 2]
    assert before.ends[0][1] <= opened.ends[0][1] <= opened.ends[1][1]
    driver.until(lambda: driver.complete("t"))
    driver.until_streamed(shop.lsn())
    assert_same(shop, driver, "t")
    shop.close()


def test_a_server_that_hangs_is_unreachable(mortal: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trunkline.delivery.capture.postgres.session.ANSWER_S", 1.0)
    shop = Shop(mortal, "hanging")
    shop.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    driver = shop.driver()
    mortal.pause()
    try:
        with pytest.raises(Unreachable, match=r"no answer|sent nothing"):
            driver.until(lambda: False)
        driver.source.close()
    finally:
        mortal.resume()
    driver.open()
    driver.until(lambda: driver.complete("t"))
    assert_same(shop, driver, "t")
    shop.close()
