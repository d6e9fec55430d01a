"""A PostgreSQL table captured by logical decoding into a real log, and delivered from there."""

from __future__ import annotations

import random
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import trunkline.sync
from delivery.captured_log import PATIENCE_S, CapturedLog
from delivery.captured_postgres import ROW, TABLE, Server, comparable
from local_cluster import PROGRAM, RunningCluster, local_cluster
from postgres_server import PostgresServer
from trunkline.delivery.capture.one_table.capture_log import CaptureLog
from trunkline.delivery.capture.one_table.postgres import PostgresCapture
from trunkline.delivery.capture.postgres.pgoutput import Begin, parse
from trunkline.delivery.capture.postgres.snapshots import Seen, seen_of
from trunkline.delivery.config.addresses import PostgresAddress
from trunkline.errors import ConfigError, ProtocolError, Unreachable


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with local_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def server(logical: PostgresServer, request: pytest.FixtureRequest) -> Server:
    return Server(logical, f"db_{abs(hash(request.node.name)) % 10**9}")


@pytest.fixture
def captured(cluster: RunningCluster, server: Server) -> Iterator[CapturedLog]:
    with closing(CapturedLog(cluster.connect, server.slot.replace("_", "-"))) as log:
        yield log


def test_rows_of_every_type_come_as_they_are_first_as_a_snapshot_then_as_changes(
    server: Server, captured: CapturedLog
) -> None:
    server.run(ROW.format(a=1, b=40), "INSERT INTO orders (id) VALUES (100)")
    assert captured.capture(server.capture()) == 1
    assert comparable(captured.rows()) == comparable(server.rows())
    server.run(ROW.format(a=41, b=60))
    server.run("UPDATE orders SET amount = amount + 1 WHERE id < 10")  # `big` is not sent again by the server
    server.run("UPDATE orders SET id = id + 1000 WHERE id % 7 = 0", "DELETE FROM orders WHERE id = 3")
    server.run("UPDATE orders SET tenant = 'bolt' WHERE id % 5 = 0")
    assert captured.capture(server.capture()) == 4
    assert comparable(captured.rows()) == comparable(server.rows())
    assert captured.capture(server.capture()) == 0
    server.run("TRUNCATE orders", ROW.format(a=5, b=9))
    assert captured.capture(server.capture()) == 1
    assert comparable(captured.rows()) == comparable(server.rows())


def test_what_an_append_lost_is_captured_again(
    server: Server, captured: CapturedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.run(ROW.format(a=1, b=5))
    assert captured.capture_with_a_lost_append(server.capture(), monkeypatch) == 1
    assert comparable(captured.rows()) == comparable(server.rows())
    server.run("DELETE FROM orders WHERE id = 2")
    server.run("UPDATE orders SET tenant = 'bolt' WHERE id = 3")
    assert captured.capture_with_a_lost_append(server.capture(), monkeypatch) == 2
    assert comparable(captured.rows()) == comparable(server.rows())


def test_transactions_that_run_while_the_snapshot_is_taken_come_once(server: Server, captured: CapturedLog) -> None:
    """One is open before the slot and the snapshot, and ends after them; others come all the time."""
    server.run(ROW.format(a=1, b=20))
    stop = threading.Event()

    def write() -> None:
        number = 1000
        while not stop.is_set():
            number += 1
            server.run(f"INSERT INTO orders (id, tenant) VALUES ({number}, 'acme')", "DELETE FROM orders WHERE id = 5")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(3):
            captured.capture(server.capture())
    finally:
        stop.set()
        writer.join()
    captured.capture(server.capture())
    assert comparable(captured.rows()) == comparable(server.rows())


def test_columns_that_change_and_a_slot_that_is_lost_capture_all_rows_again(
    server: Server, captured: CapturedLog, caplog: pytest.LogCaptureFixture
) -> None:
    server.run(ROW.format(a=1, b=5))
    captured.capture(server.capture())
    server.run("ALTER TABLE orders ADD COLUMN note text DEFAULT 'old'", "UPDATE orders SET tenant = 'x' WHERE id = 1")
    captured.capture(server.capture())
    assert {row["note"] for row in captured.rows()} == {"old"}
    assert "columns of the table changed" in caplog.text
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("SELECT pg_drop_replication_slot(%s)", [server.slot])
    server.run("DELETE FROM orders WHERE id = 2")
    captured.capture(server.capture())
    assert sorted(row["id"] for row in captured.rows()) == [1, 3, 4, 5]
    assert "does not exist any more" in caplog.text


def test_a_snapshot_that_fails_after_a_slot_was_created_again_is_repeated(
    server: Server, captured: CapturedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the new slot would be taken for the old one, and what came between them would be lost."""
    server.run(ROW.format(a=1, b=3))
    captured.capture(server.capture())
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("SELECT pg_drop_replication_slot(%s)", [server.slot])
    server.run(ROW.format(a=4, b=5))  # no slot keeps this
    broken = server.capture()
    broken.begin(next(reversed(captured.positions().values())))
    transactions = broken.transactions()
    with trunkline.sync.connect(captured.connect) as cluster:
        log = CaptureLog(cluster, captured.log)
        log.take_over()
        log.write(next(transactions))  # a snapshot is due
        next(transactions)  # it is read and not written
    broken.close()
    captured.capture(server.capture())
    assert comparable(captured.rows()) == comparable(server.rows())


def test_keys_that_are_swapped_in_one_transaction_change_places(server: Server, captured: CapturedLog) -> None:
    server.run("ALTER TABLE orders DROP CONSTRAINT orders_pkey", "ALTER TABLE orders ADD UNIQUE (id) DEFERRABLE")
    server.run(ROW.format(a=1, b=2))
    captured.capture(server.capture())
    server.run("UPDATE orders SET id = 3 - id")
    server.run("INSERT INTO orders (id) VALUES (9)", "UPDATE orders SET tenant = 'x' WHERE id = 9")
    server.run("INSERT INTO orders (id) VALUES (10)", "DELETE FROM orders WHERE id = 10")
    captured.capture(server.capture())
    assert comparable(captured.rows()) == comparable(server.rows())


def test_a_table_that_was_replaced_is_captured_again_and_followed(server: Server, captured: CapturedLog) -> None:
    server.run(ROW.format(a=1, b=3))
    captured.capture(server.capture())
    server.run("DROP TABLE orders", TABLE, "ALTER TABLE orders REPLICA IDENTITY FULL", ROW.format(a=7, b=8))
    captured.capture(server.capture())
    assert comparable(captured.rows()) == comparable(server.rows())
    server.run(ROW.format(a=9, b=9))
    captured.capture(server.capture())
    assert comparable(captured.rows()) == comparable(server.rows())


class Begun(PostgresCapture):
    """One that has checked the table and its publication before they changed."""

    def reach(self) -> None: ...


@pytest.mark.parametrize("kind", [PostgresCapture, Begun])
def test_what_changed_while_the_table_was_not_published_is_not_lost(
    server: Server, captured: CapturedLog, kind: type[PostgresCapture]
) -> None:
    server.run(ROW.format(a=1, b=2))
    captured.capture(server.capture())
    for number, statement in enumerate(("ALTER PUBLICATION {} DROP TABLE orders", "DROP PUBLICATION {}")):
        server.run(statement.format(server.slot))
        server.run(f"INSERT INTO orders (id) VALUES ({number + 10})", "DELETE FROM orders WHERE id = 2")
        for later in (20, 30):
            captured.capture(kind(PostgresAddress(server.dsn, "orders"), server.slot))
            assert comparable(captured.rows()) == comparable(server.rows())
            server.run(f"INSERT INTO orders (id) VALUES ({number + later})")


def test_values_are_the_same_texts_in_a_snapshot_and_in_the_stream(server: Server, captured: CapturedLog) -> None:
    server.run("ALTER TABLE orders ADD COLUMN code char(5)", "ALTER TABLE orders ADD COLUMN place inet")
    server.run("INSERT INTO orders (id, code, place) VALUES (1, 'ab', '10.0.0.1')")
    captured.capture(server.capture())
    server.run("INSERT INTO orders (id, code, place) VALUES (2, 'ab', '10.0.0.1')")
    captured.capture(server.capture())
    assert {(row["code"], row["place"]) for row in captured.rows()} == {("ab   ", "10.0.0.1")}


def test_tables_that_cannot_be_captured_exactly_are_rejected_at_the_start(
    server: Server, captured: CapturedLog
) -> None:
    server.run("ALTER TABLE orders REPLICA IDENTITY DEFAULT")
    with pytest.raises(ConfigError, match="REPLICA IDENTITY FULL"):
        captured.capture(server.capture())
    with pytest.raises(ConfigError, match="there is no table"):
        captured.capture(PostgresCapture(PostgresAddress(server.dsn, "nothing"), server.slot))
    with pytest.raises(ConfigError, match="is not valid in PostgreSQL"):
        PostgresCapture(PostgresAddress(server.dsn, "orders"), "Slot!")


def test_a_role_needs_few_privileges_and_a_missing_one_is_named(
    server: Server, captured: CapturedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    role = f"{server.slot}_role"
    server.run(f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'secret'", f"GRANT SELECT ON orders TO {role}")
    dsn = make_conninfo(server.dsn, user=role, host="127.0.0.1")
    monkeypatch.setenv("CAPTURE_PASSWORD", "wrong")

    def capture() -> PostgresCapture:
        return PostgresCapture(PostgresAddress(dsn, "orders", password_env="CAPTURE_PASSWORD"), server.slot)

    with pytest.raises(ConfigError, match="password authentication failed") as refused:
        captured.capture(capture())
    assert "wrong" not in str(refused.value)
    monkeypatch.setenv("CAPTURE_PASSWORD", "secret")
    with pytest.raises(ConfigError, match=f"CREATE PUBLICATION {server.slot} FOR TABLE"):
        captured.capture(capture())
    server.run(f"CREATE PUBLICATION {server.slot} FOR TABLE orders", ROW.format(a=1, b=3))
    captured.capture(capture())
    assert comparable(captured.rows()) == comparable(server.rows())


def test_a_server_without_logical_decoding_is_refused(postgres: PostgresServer, captured: CapturedLog) -> None:
    plain = Server(postgres, "plain")
    with pytest.raises(ConfigError, match="wal_level = logical"):
        captured.capture(plain.capture())


def test_a_capture_that_is_killed_again_and_again_loses_nothing_and_repeats_nothing(
    server: Server, captured: CapturedLog, tmp_path: Path
) -> None:
    server.run("CREATE TABLE others (n int)", ROW.format(a=1, b=30))
    command = [*PROGRAM, "capture", captured.log, "--connect", captured.connect, "--postgres", server.dsn]
    command += ["--table", "orders", "--slot", server.slot, "--poll-ms", "5"]
    chance = random.Random(1)
    at = 100
    captured.capture(server.capture())
    for _ in range(4):
        with (tmp_path / "errors").open("wb") as errors:
            running = subprocess.Popen(command, stderr=errors, stdout=subprocess.DEVNULL)
        try:
            until = captured.tail() + 20
            while captured.tail() < until:  # it is killed while it works
                assert running.poll() is None, (tmp_path / "errors").read_text()
                at += 1
                server.run(f"INSERT INTO orders (id, tenant) VALUES ({at}, 'acme')")
                server.run(f"INSERT INTO others VALUES ({at})")  # and while its slot moves on past this
                server.run(f"UPDATE orders SET amount = {at} WHERE id = {chance.randrange(1, 30)}")
        finally:
            running.send_signal(signal.SIGKILL)
            running.wait()
    done = subprocess.run([*command, "--once"], capture_output=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert comparable(captured.rows()) == comparable(server.rows())
    assert len(set(captured.positions().values())) == len(captured.positions())


def test_the_slot_moves_on_while_the_table_is_idle_and_others_are_written(
    server: Server, captured: CapturedLog
) -> None:
    server.run("CREATE TABLE others (n int, padding text)", ROW.format(a=1, b=2))
    captured.capture(server.capture())
    before = server.slot_position("restart_lsn")
    fill = "INSERT INTO others SELECT n, repeat(md5(n::text), 10) FROM generate_series(1, 2000) n"
    for _ in range(5):
        server.run(fill)
        written = server.written()
        assert captured.capture(server.capture()) == 0
        assert server.slot_position("confirmed_flush_lsn") >= written
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute("CHECKPOINT")  # it logs which transactions run, as servers do every 15 seconds
    assert server.slot_position("restart_lsn") > before + 1_000_000  # so the server may remove what was before
    server.run(ROW.format(a=3, b=4))
    assert captured.capture(server.capture()) == 1
    assert comparable(captured.rows()) == comparable(server.rows())


def test_changes_of_other_tables_are_decoded_once(server: Server, captured: CapturedLog) -> None:
    server.run("CREATE TABLE others (n int)", ROW.format(a=1, b=2))
    captured.capture(server.capture())
    source = server.capture()
    source.reach()
    source.begin(next(reversed(captured.positions().values())))
    decoded = []
    for number in range(3):
        server.run(f"INSERT INTO others VALUES ({number})")
        for _ in range(5):
            assert list(source.transactions()) == []
        decoded.append(server.decoded_transactions())
    source.close()
    assert decoded[2] - decoded[0] == 2


def test_a_transaction_that_is_open_while_the_slot_moves_on_is_captured_when_it_ends(
    server: Server, captured: CapturedLog
) -> None:
    server.run("CREATE TABLE others (n int)", ROW.format(a=1, b=2))
    captured.capture(server.capture())
    with psycopg.connect(server.dsn) as connection:
        connection.execute(b"INSERT INTO orders (id, tenant) VALUES (50, 'acme')")
        for number in range(3):
            begun = server.written()
            server.run(f"INSERT INTO others VALUES ({number})")
            assert captured.capture(server.capture()) == 0
            assert server.slot_position("confirmed_flush_lsn") > begun  # past what is open
    assert captured.capture(server.capture()) == 1
    assert comparable(captured.rows()) == comparable(server.rows())


def test_a_snapshot_knows_which_transactions_it_has_seen() -> None:
    seen = seen_of("10:20:12,15")
    assert [seen.has(xid) for xid in (9, 10, 12, 13, 15, 19, 20)] == [True, True, False, True, False, True, False]
    later = Seen(2**32 + 5, 2**32 + 5)
    assert later.has(4)  # of this epoch
    assert later.has(2**32 - 1)  # of the one before
    assert not later.has(5)
    assert not Seen(2**32 - 5, 2**32 - 5).has(3)  # of the next epoch


def test_a_message_that_is_none_is_refused() -> None:
    assert parse(b"B" + bytes(16) + (7).to_bytes(4, "big")) == Begin(7)
    assert parse(b"Y...") is None
    with pytest.raises(ProtocolError, match="invalid pgoutput message"):
        parse(b"I\x00")


def test_an_unreachable_server_is_reported(captured: CapturedLog) -> None:
    unreachable = PostgresCapture(PostgresAddress("host=127.0.0.1 port=1 dbname=x", "orders"), "unused")
    with pytest.raises(Unreachable, match="it is retried"):
        unreachable.begin(None)
