"""`trunkline capture --tables`: a whole PostgreSQL database in one log, with real processes that are killed."""

from __future__ import annotations

import random
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import psycopg
import pytest

import trunkline.sync
from database_judge import census, differences, states
from local_cluster import COMMAND_S, RunningCluster, local_cluster, wait_until
from mariadb_server import MariadbServer
from postgres_server import PostgresServer
from trunkline.client.entries import Entry
from trunkline.errors import NoSuchLog

SEED = 7
ACCOUNTS = 40
TOTAL = 100 * ACCOUNTS


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with local_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


class Bank:
    """A database, the log that it is captured into, and the command that does it."""

    def __init__(self, cluster: RunningCluster, server: PostgresServer, name: str) -> None:
        self.cluster = cluster
        self.dsn = server.create_database(name)
        self.log = name.replace("_", "-")
        self.command = ("capture", self.log, "--postgres", self.dsn, "--tables", "public.*")

    def run(self, *statements: str) -> None:
        with psycopg.connect(self.dsn) as connection:  # one transaction
            for statement in statements:
                connection.execute(statement.encode())

    def open_accounts(self) -> None:
        self.run(
            "CREATE TABLE accounts (id int PRIMARY KEY, balance int NOT NULL, note text)",
            "ALTER TABLE accounts ALTER note SET STORAGE EXTERNAL",
            "CREATE TABLE transfers (id bigserial PRIMARY KEY, a int, b int, amount int)",
            "CREATE TABLE audit (what text, at int)",
            "ALTER TABLE audit REPLICA IDENTITY FULL",
            f"INSERT INTO accounts SELECT i, 100, repeat('x', 3000) || i FROM generate_series(1, {ACCOUNTS}) i",
            "INSERT INTO audit SELECT 'begin', i % 3 FROM generate_series(1, 10) i",
        )

    def transfer(self, chance: random.Random, connection: psycopg.Connection[Any]) -> None:
        a, b, amount = chance.randint(1, ACCOUNTS), chance.randint(1, ACCOUNTS), chance.randint(1, 50)
        with connection.transaction():
            connection.execute("UPDATE accounts SET balance = balance - %s WHERE id = %s", (amount, a))
            connection.execute("UPDATE accounts SET balance = balance + %s WHERE id = %s", (amount, b))
            connection.execute("INSERT INTO transfers (a, b, amount) VALUES (%s, %s, %s)", (a, b, amount))
            connection.execute("INSERT INTO audit VALUES ('transfer', %s)", (amount,))

    def once(self, *options: str) -> Any:
        return self.cluster.json(*self.command, "--once", *options)

    def entries(self) -> list[Entry]:
        with trunkline.sync.connect(self.cluster.connect) as cluster:
            log = cluster.log(self.log)
            return list(log.subscribe(1, log.tail() - 1, to_tail=True))

    def check(self, *, ends: int = 200) -> dict[str, Any]:
        """At every chosen end the accounts have one sum; at the last one the log has what the database has."""
        entries = self.entries()
        count = census(entries).transactions
        chosen = set(random.Random(SEED).sample(range(1, count + 1), min(ends, count)))
        tables: dict[str, Any] = {}
        for state in states(entries, chosen):
            tables = state.tables
            if (accounts := tables.get("public.accounts")) is not None:
                assert sum(accounts.column("balance").to_pylist()) == TOTAL, state.place
        assert differences(self.dsn, tables) == {}
        return tables


@pytest.fixture
def bank(cluster: RunningCluster, logical: PostgresServer, request: pytest.FixtureRequest) -> Bank:
    return Bank(cluster, logical, f"bank_{abs(hash(request.node.name)) % 10**9}")


class Working:
    """Transfers, until the block is left."""

    def __init__(self, bank: Bank) -> None:
        self._bank = bank
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self.transfers = 0

    def _work(self) -> None:
        chance = random.Random(SEED)
        with psycopg.connect(self._bank.dsn, autocommit=True) as connection:
            while not self._done.wait(0.002):
                self._bank.transfer(chance, connection)
                self.transfers += 1

    def __enter__(self) -> Working:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


def ended(process: subprocess.Popen[bytes], number: signal.Signals) -> str:
    process.send_signal(number)
    return process.communicate(timeout=COMMAND_S)[1].decode()


def test_a_capture_that_is_killed_again_and_again_has_every_transaction_once(bank: Bank) -> None:
    bank.open_accounts()
    chance = random.Random(SEED)
    with Working(bank) as work:
        for _ in range(6):
            until = _tail(bank) + chance.randint(1, 40)
            process = bank.cluster.begin(*bank.command)
            wait_until(partial(_longer, bank, until), COMMAND_S)
            ended(process, signal.SIGKILL)
    found = bank.once()
    assert found["incomplete"] == []
    tables = bank.check()
    assert tables["public.transfers"].num_rows == work.transfers
    assert bank.once()["transactions"] == 0


def _longer(bank: Bank, than: int) -> bool:
    return _tail(bank) > than


def _tail(bank: Bank) -> int:
    with trunkline.sync.connect(bank.cluster.connect) as cluster:
        try:
            return cluster.log(bank.log).tail()
        except NoSuchLog:
            return 0


def _complete(bank: Bank) -> set[str]:
    """Tables, as the status shows them."""
    if not _tail(bank):
        return set()
    status = bank.cluster.json("capture", "status", bank.log, "--postgres", bank.dsn)
    return {each["name"] for each in status["tables"] if each["state"] == "complete"}


def test_a_large_transaction_and_new_tables_while_a_capture_runs(bank: Bank) -> None:
    bank.open_accounts()
    process = bank.cluster.begin(*bank.command)
    try:
        wait_until(lambda: _complete(bank) == {"accounts", "transfers", "audit"}, COMMAND_S)
        bank.run("INSERT INTO transfers (a, b, amount) SELECT i, i, i FROM generate_series(1, 60000) i")
        bank.run("CREATE TABLE late (id int PRIMARY KEY, t text)", "INSERT INTO late VALUES (1, 'one')")
        bank.run("INSERT INTO late VALUES (2, 'two')", "ALTER TABLE late ADD COLUMN n int DEFAULT 5")
        bank.run("UPDATE late SET n = 6 WHERE id = 1", "DROP TABLE audit")
        wait_until(lambda: _complete(bank) == {"accounts", "transfers", "late"}, COMMAND_S)
    finally:
        errors = ended(process, signal.SIGTERM)
    assert process.returncode == 0, errors
    bank.once()
    tables = bank.check()
    assert tables["public.late"].num_rows == 2
    shown = bank.cluster.ok("capture", "status", bank.log).decode()
    assert ["public.late", "complete"] in [line.split()[1:3] for line in shown.splitlines()]


def test_a_table_is_captured_again_on_request_and_everything_after_a_loss(bank: Bank) -> None:
    bank.open_accounts()
    bank.once()
    bank.cluster.ok("capture", "resnapshot", bank.log, "accounts", "--postgres", bank.dsn)
    assert bank.once()["incomplete"] == []
    found = {each["name"]: each for each in bank.cluster.json("capture", "status", bank.log)["tables"]}
    assert [found[name]["generation"] for name in ("accounts", "transfers")] == [2, 1]
    slot = f"trunkline_{bank.log.replace('-', '_')}"
    bank.run(f"SELECT pg_drop_replication_slot('{slot}')", "UPDATE accounts SET note = 'unseen' WHERE id = 1")
    refused = bank.cluster.trunkline(*bank.command, "--once")
    assert refused.returncode == 2
    assert "the replication slot is absent: changes after" in refused.stderr.decode()
    bank.once("--recapture-on-loss")
    bank.check()
    found = {each["name"]: each for each in bank.cluster.json("capture", "status", bank.log)["tables"]}
    assert [found[name]["generation"] for name in ("accounts", "transfers")] == [3, 2]


def test_the_older_of_two_captures_stops_and_too_much_wal_stops_one_and_drops_its_slot(bank: Bank) -> None:
    bank.open_accounts()
    older = bank.cluster.begin(*bank.command)
    wait_until(lambda: _complete(bank) == {"accounts", "transfers", "audit"}, COMMAND_S)
    newer = bank.cluster.begin(*bank.command)
    try:
        errors = older.communicate(timeout=COMMAND_S)[1].decode()
        assert older.returncode == 1, errors
        assert "another capture has taken over the log" in errors.splitlines()[-1]
        bank.run("UPDATE accounts SET note = 'later' WHERE id = 5")
        wait_until(lambda: _lag(bank) == 0, COMMAND_S)
    finally:
        ended(newer, signal.SIGTERM)
    bank.check()
    limited = bank.cluster.trunkline(*bank.command, "--max-wal-bytes", "1", "--on-max-wal", "drop")
    assert limited.returncode == 2, limited.stderr
    assert b"over the limit" in limited.stderr
    with psycopg.connect(bank.dsn) as connection:
        query = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
        assert connection.execute(query).fetchall() == [(0,)]


def _lag(bank: Bank) -> int:
    """Of changes of accounts."""
    tables: dict[str, Any] = {}
    for state in states(bank.entries(), set()):
        tables = state.tables
    return len(differences(bank.dsn, tables))


def test_a_database_of_mariadb_is_captured_too(cluster: RunningCluster) -> None:
    with MariadbServer() as server:
        server.execute("CREATE DATABASE shop", "CREATE TABLE shop.orders (id INT PRIMARY KEY, note TEXT)")
        server.execute("CREATE TABLE shop.tmp_x (id INT PRIMARY KEY)", "INSERT INTO shop.orders VALUES (1, 'a')")
        command = ("capture", "maria", "--mariadb", server.dsn(), "--tables", "shop.*", "--exclude", "shop.tmp_*")
        assert cluster.json(*command, "--once")["snapshot_rows"] == 1
        server.execute("INSERT INTO shop.orders VALUES (2, 'b')")
        assert cluster.json(*command, "--once", "--resnapshot", "shop.orders")["transactions"] == 1
        status = cluster.json("capture", "status", "maria", "--mariadb", server.dsn())
    [orders] = status["tables"]
    assert (orders["schema"], orders["name"], orders["generation"], orders["state"]) == (
        "shop",
        "orders",
        2,
        "complete",
    )
    assert re.fullmatch(r"\d{6}:\d+", status["position_text"])
    assert status["lag_bytes"] is not None


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--postgres", "password=x", "--tables", "a"), "--postgres holds a password"),
        (("--postgres", "", "--tables", "a", "--table", "b"), "not allowed with argument"),
        (("--postgres", ""), "one of the arguments --tables --table is required"),
        (("--ducklake", "s3://x", "--tables", "a"), "--ducklake must be"),
        (("--mariadb", "mariadb://u@h", "--table", "a"), "--mariadb goes with --tables"),
        (("--mariadb", "mariadb://u:p@h", "--tables", "a.b"), "--mariadb holds a password"),
        (("--mariadb", "mariadb://u@h", "--tables", "a.b", "--slot", "s"), "are for --postgres"),
        (("--postgres", "", "--tables", "a", "--max-wal-bytes", "much"), "is not a size"),
        (("--postgres", "", "--tables", "a.b.c.d"), "a.b.c.d"),
    ],
)
def test_wrong_input_is_refused_with_one_line(cluster: RunningCluster, words: tuple[str, ...], why: str) -> None:
    done = cluster.trunkline("capture", "some-log", *words, "--once")
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1), done.stderr
    assert why in done.stderr.decode()
