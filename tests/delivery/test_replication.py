"""A replication connection to a real server: its stream, its slots, and what it says when something is wrong."""

from __future__ import annotations

import datetime as dt
import gc
import os
import socket
import threading
import time
from collections.abc import Iterator

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from delivery.numbered_tables import NumberedTables
from postgres_server import PostgresServer
from trunkline.delivery.capture.postgres.decoder import Decoder, Limits
from trunkline.delivery.capture.postgres.replication import ReplicationConnection, Status, lsn_number
from trunkline.delivery.capture.source import Changes, KeepAlive, SchemaUnit, Unit, Watermark
from trunkline.delivery.changes.groups import RowKind
from trunkline.errors import ConfigError, ProtocolError, Unreachable

WAIT_S = 60.0
WAIT_MS = 200


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """One of its own: a test makes it lose a slot, and others stop it."""
    with PostgresServer(settings={"wal_level": "logical", "max_prepared_transactions": "2"}) as running:
        yield running


class Database:
    def __init__(self, server: PostgresServer, name: str) -> None:
        self.dsn = server.create_database(name)
        self.slot = f"slot_{name}"

    def run(self, *statements: str) -> None:
        with psycopg.connect(self.dsn) as connection:  # one transaction
            for statement in statements:
                connection.execute(statement.encode())

    def number(self, query: str) -> int:
        with psycopg.connect(self.dsn) as connection:
            [(found,)] = connection.execute(query.encode()).fetchall()
            return int(found)

    def confirmed(self) -> int:
        slots = f"FROM pg_replication_slots WHERE slot_name = '{self.slot}'"
        return self.number(f"SELECT confirmed_flush_lsn - '0/0'::pg_lsn {slots}")

    def mark(self, text: str) -> None:
        self.run(f"SELECT pg_logical_emit_message(true, 'mark', '{text}')")


@pytest.fixture
def database(server: PostgresServer, request: pytest.FixtureRequest) -> Iterator[Database]:
    made = Database(server, f"db{abs(hash(request.node.name)) % 10**9}")
    made.run("CREATE TABLE orders (id int PRIMARY KEY, note text)", "CREATE PUBLICATION every FOR ALL TABLES")
    yield made
    with ReplicationConnection(made.dsn) as connection:  # a slot that remains would keep the WAL
        connection.drop_slot(made.slot)


def units_until(connection: ReplicationConnection, decoder: Decoder, mark: str) -> list[Unit]:
    units: list[Unit] = []
    deadline = time.monotonic() + WAIT_S
    while not any(isinstance(each, Watermark) and each.writer == mark for each in units):
        assert time.monotonic() < deadline, f"the mark {mark} has not arrived"
        decoder.feed(connection.receive(WAIT_MS).messages)
        units += decoder.units(close=True)
    return units


def rows_of(units: list[Unit]) -> list[tuple[object, ...]]:
    tables = [table for each in units if isinstance(each, Changes) for table in each.tables]
    return [(*row.values(),)[2:] for table in tables for row in table.batch.to_pylist()]


def test_a_slot_begins_where_its_snapshot_ends(database: Database) -> None:
    database.run("INSERT INTO orders VALUES (1, 'before')")
    with ReplicationConnection(database.dsn) as connection:
        identity = connection.identify()
        assert identity.system.isdigit()
        assert identity.timeline == 1
        assert identity.database in database.dsn
        slot = connection.create_slot(database.slot, snapshot=True, failover=True)
        assert slot.lsn >= identity.lsn
        database.run("INSERT INTO orders VALUES (2, 'after')")
        with psycopg.connect(database.dsn) as other:
            other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            other.execute(f"SET TRANSACTION SNAPSHOT '{slot.snapshot}'".encode())
            assert other.execute("SELECT id FROM orders").fetchall() == [(1,)]
        database.mark("end")
        connection.start(database.slot, slot.lsn, ["every"])
        units = units_until(connection, Decoder(NumberedTables(), prefix="mark"), "end")
    assert rows_of(units) == [(RowKind.INSERT, None, 2, "after")]


def test_the_stream_has_every_kind_of_change_in_order(database: Database) -> None:
    with ReplicationConnection(database.dsn) as connection:
        lsn = connection.create_slot(database.slot).lsn
        large = "(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 400) i)"
        database.run(f"INSERT INTO orders VALUES (1, {large})", "INSERT INTO orders VALUES (2, NULL)")
        database.run("UPDATE orders SET id = 3 WHERE id = 1")  # the large value is not sent again
        database.run("ALTER TABLE orders REPLICA IDENTITY FULL", "UPDATE orders SET id = 4 WHERE id = 3")
        database.run("ALTER TABLE orders ADD COLUMN at timestamptz DEFAULT '2026-01-01'", "DELETE FROM orders")
        database.run("CREATE TABLE more (id int)", "TRUNCATE orders, more")
        database.mark("end")
        connection.start(database.slot, lsn, ["every"])
        units = units_until(connection, Decoder(NumberedTables(), prefix="mark"), "end")
    first, text = rows_of(units), database.number(f"SELECT length({large})")
    kinds = [RowKind(int(str(row[0]))).name for row in first]
    assert kinds == [
        *("INSERT", "INSERT", "UPDATE_OLD", "UPDATE_NEW", "UPDATE_OLD", "UPDATE_NEW", "DELETE", "DELETE"),
        *("TRUNCATE", "TRUNCATE"),
    ]
    assert first[2:4] == [(RowKind.UPDATE_OLD, None, 1, None), (RowKind.UPDATE_NEW, b"\2", 3, None)]
    assert [(row[1], row[2], len(str(row[3]))) for row in first[4:6]] == [(None, 3, text), (None, 4, text)]
    shapes = [each.schema for each in units if isinstance(each, SchemaUnit)]
    assert [(each.name, len(each.columns), each.identity) for each in shapes if each.name == "orders"] == [
        ("orders", 2, "key"),
        ("orders", 2, "full"),
        ("orders", 3, "full"),
    ]


def test_a_large_transaction_comes_in_parts_and_an_aborted_one_not_at_all(database: Database) -> None:
    with ReplicationConnection(database.dsn) as connection:
        lsn = connection.create_slot(database.slot).lsn
        with psycopg.connect(database.dsn) as other:
            other.execute("INSERT INTO orders SELECT i FROM generate_series(1, 30000) i")
            other.rollback()
        database.run("INSERT INTO orders VALUES (0)", "PREPARE TRANSACTION 'two'")
        database.run("INSERT INTO orders SELECT i FROM generate_series(1, 30000) i")
        with psycopg.connect(database.dsn, autocommit=True) as other:
            other.execute("COMMIT PREPARED 'two'")
        database.mark("end")
        connection.start(database.slot, lsn, ["every"])
        units = units_until(connection, Decoder(NumberedTables(), Limits(rows=7000), prefix="mark"), "end")
    parts = [each for each in units if isinstance(each, Changes) and each.part is not None]
    assert [(each.part, each.last) for each in parts] == [(at, at == 4) for at in range(5)]
    assert [row[2] for row in rows_of(units)] == [*range(1, 30_001), 0]


def test_only_what_is_confirmed_is_forgotten(database: Database) -> None:
    with ReplicationConnection(database.dsn) as connection:
        lsn = connection.create_slot(database.slot).lsn
    database.run("INSERT INTO orders VALUES (1, 'a')")
    database.mark("one")
    for _ in range(2):  # what was not confirmed comes again
        with ReplicationConnection(database.dsn) as connection:
            connection.start(database.slot, lsn, ["every"])
            units = units_until(connection, Decoder(NumberedTables(), prefix="mark"), "one")
            assert len(rows_of(units)) == 1
            assert database.confirmed() == lsn
    with ReplicationConnection(database.dsn) as connection:
        connection.start(database.slot, lsn, ["every"])
        units = units_until(connection, decoder := Decoder(NumberedTables(), prefix="mark"), "one")
        while decoder.pending:  # the commit of the mark
            decoder.feed(connection.receive(WAIT_MS).messages)
            units += decoder.units(close=True)
        assert isinstance(units[-1], KeepAlive)
        end = units[-1].position
        connection.confirm(Status(end, end, end))
        deadline = time.monotonic() + WAIT_S
        while database.confirmed() < end:
            assert time.monotonic() < deadline
            assert connection.receive(WAIT_MS).messages == []
        with pytest.raises(ValueError, match="behind"):
            connection.confirm(Status(lsn, lsn, lsn))
    with ReplicationConnection(database.dsn) as connection:
        connection.start(database.slot, lsn, ["every"])
        database.mark("two")
        assert rows_of(units_until(connection, Decoder(NumberedTables(), prefix="mark"), "two")) == []


def test_keep_alives_report_how_far_the_server_is(database: Database) -> None:
    with ReplicationConnection(database.dsn, silent_s=6) as connection:
        lsn = connection.create_slot(database.slot).lsn
        database.run("SET LOCAL synchronous_commit = off", "DROP PUBLICATION every", "CREATE PUBLICATION every")
        connection.start(database.slot, lsn, ["every"])
        database.run("INSERT INTO orders VALUES (1, 'not published')")
        wanted = database.number("SELECT pg_current_wal_flush_lsn() - '0/0'::pg_lsn")
        found, deadline = 0, time.monotonic() + WAIT_S
        while found < wanted:  # the server is asked after a third of the time that it may be silent
            assert time.monotonic() < deadline
            found = max(found, connection.receive(WAIT_MS).wal_end)


def test_values_do_not_depend_on_the_settings_of_the_database(database: Database) -> None:
    name = str(conninfo_to_dict(database.dsn)["dbname"])
    odd = {
        "datestyle": "'German'",
        "timezone": "'Asia/Kolkata'",
        "bytea_output": "'escape'",
        "extra_float_digits": "-5",
    }
    database.run(*(f"ALTER DATABASE {name} SET {setting} TO {value}" for setting, value in odd.items()))
    database.run("CREATE TABLE odd (day date, at timestamptz, raw bytea, x double precision)")
    with ReplicationConnection(database.dsn) as connection:
        lsn = connection.create_slot(database.slot).lsn
        database.run(
            "INSERT INTO odd VALUES ('06.05.2026', '2026-01-01 00:00:00+00', '\\x00ff', 0.1::float8 + 0.2::float8)"
        )
        database.mark("end")
        connection.start(database.slot, lsn, ["every"])
        [row] = rows_of(units_until(connection, Decoder(NumberedTables(), prefix="mark"), "end"))
    moment = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    assert row[2:] == (dt.date(2026, 5, 6), moment, b"\0\xff", 0.1 + 0.2)


def test_an_address_that_accepts_and_says_nothing_is_unreachable() -> None:
    before = descriptors()
    with socket.create_server(("127.0.0.1", 0)) as mute:
        dsn = make_conninfo("", host="127.0.0.1", port=mute.getsockname()[1], user="x", connect_timeout=2)
        with pytest.raises(Unreachable, match="it is retried"):
            ReplicationConnection(dsn)
    assert descriptors() == before


def descriptors() -> int:
    gc.collect()  # those that earlier tests left do not count
    return len(os.listdir("/proc/self/fd"))


def test_what_an_operator_must_change_is_said_in_one_line(
    server: PostgresServer, postgres: PostgresServer, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = descriptors()
    database.run("CREATE TABLE IF NOT EXISTS more (id int)")
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        admin.execute("DROP ROLE IF EXISTS plain")
        admin.execute("CREATE ROLE plain LOGIN PASSWORD 'right'")
    monkeypatch.setenv("RIGHT", "right")
    monkeypatch.setenv("WRONG", "wrong")
    plain = make_conninfo(database.dsn, user="plain")
    with pytest.raises(ConfigError, match=r"may not replicate.*ALTER ROLE"):
        ReplicationConnection(plain, "RIGHT")
    with pytest.raises(ConfigError, match="refuses the login"):
        ReplicationConnection(plain, "WRONG")
    with pytest.raises(ConfigError, match="ABSENT is not set"):
        ReplicationConnection(plain, "ABSENT")
    with pytest.raises(ConfigError, match="write the dsn like"):
        ReplicationConnection("no such dsn")
    with ReplicationConnection(postgres.dsn()) as connection, pytest.raises(ConfigError, match="wal_level = logical"):
        connection.create_slot("s")
    with ReplicationConnection(database.dsn) as connection:
        with pytest.raises(ConfigError, match="does not exist; create it"):
            connection.start(database.slot, 0, ["every"])
        connection.create_slot(database.slot)
        with pytest.raises(ConfigError, match=r"publication absent does not exist.*CREATE PUBLICATION"):
            connection.start(database.slot, 0, ["every", "absent"])
        connection.start(database.slot, 0, ["every"])
        with ReplicationConnection(database.dsn) as other:
            with pytest.raises(ConfigError, match=r"is in use .process \d+ of the server.*another slot"):
                other.start(database.slot, 0, ["every"], wait_s=0)
            with pytest.raises(ConfigError, match="is in use"):
                other.drop_slot(database.slot)
    with ReplicationConnection(database.dsn) as connection, pytest.raises(ConfigError, match="exists already"):
        connection.create_slot(database.slot)
    assert descriptors() == before


def test_a_lost_slot_is_reported(database: Database) -> None:
    with ReplicationConnection(database.dsn) as connection:
        connection.create_slot(database.slot)
    for number in range(3):
        database.run(f"INSERT INTO orders VALUES ({number}, '')", "SELECT pg_switch_wal()")
    with psycopg.connect(database.dsn, autocommit=True) as admin:
        admin.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
        admin.execute("SELECT pg_reload_conf()")
        deadline = time.monotonic() + WAIT_S
        lost = f"SELECT wal_status = 'lost' FROM pg_replication_slots WHERE slot_name = '{database.slot}'"
        while admin.execute(lost.encode()).fetchall() != [(True,)]:  # the checkpointer reads its settings on the way
            assert time.monotonic() < deadline
            admin.execute("CHECKPOINT")
        admin.execute("ALTER SYSTEM RESET max_slot_wal_keep_size")
        admin.execute("SELECT pg_reload_conf()")
    with ReplicationConnection(database.dsn) as connection, pytest.raises(ConfigError, match=r"is lost.*drop it"):
        connection.start(database.slot, 0, ["every"])


def test_a_removed_publication_ends_the_stream_with_the_remedy(database: Database) -> None:
    with ReplicationConnection(database.dsn) as connection:
        lsn = connection.create_slot(database.slot).lsn
        database.run("DROP PUBLICATION every", "INSERT INTO orders VALUES (1, 'a')")
        database.run("CREATE PUBLICATION every FOR ALL TABLES")
        connection.start(database.slot, lsn, ["every"])
        with pytest.raises(ConfigError, match=r"publication was removed.*drop the slot"):
            receive_until_it_fails(connection)


def receive_until_it_fails(connection: ReplicationConnection) -> None:
    """All is confirmed: a server that shuts down waits for that."""
    deadline, end = time.monotonic() + WAIT_S, 0
    while time.monotonic() < deadline:
        if (found := connection.receive(WAIT_MS).wal_end) > end:
            end = found
            connection.confirm(Status(end, end, end))


def test_a_server_that_dies_ends_or_is_silent_is_unreachable(server: PostgresServer) -> None:
    database = Database(server, "stopping")
    database.run("CREATE PUBLICATION every FOR ALL TABLES")
    before = descriptors()
    with ReplicationConnection(database.dsn) as connection:
        connection.create_slot(database.slot)
    for end in (server.stop, server.kill):
        with ReplicationConnection(database.dsn) as connection:
            connection.start(database.slot, 0, ["every"])
            stopping = threading.Thread(target=end)
            stopping.start()
            try:
                with pytest.raises(Unreachable):
                    receive_until_it_fails(connection)
            finally:
                stopping.join()
        with pytest.raises(Unreachable, match="it is retried"):
            ReplicationConnection(database.dsn)
        server.restart()
    with ReplicationConnection(database.dsn, silent_s=0.5) as connection:
        connection.start(database.slot, 0, ["every"])
        server.pause()
        try:
            with pytest.raises(Unreachable, match=r"sent nothing for 0\.5 s"):
                receive_until_it_fails(connection)
        finally:
            server.resume()
    assert descriptors() == before
    with ReplicationConnection(database.dsn) as connection, psycopg.connect(database.dsn) as other:
        other.execute("SELECT txid_current()")  # an open transaction
        with pytest.raises(Unreachable, match="end those that pg_stat_activity shows"):
            connection.create_slot("late", wait_s=0.3)
    with ReplicationConnection(database.dsn) as connection:
        connection.drop_slot(database.slot)
        connection.drop_slot(database.slot)  # a slot that does not exist is fine


def test_texts_of_lsns_are_checked() -> None:
    assert lsn_number("16/B374D848") == 0x16_B374_D848
    with pytest.raises(ProtocolError):
        lsn_number("none")
