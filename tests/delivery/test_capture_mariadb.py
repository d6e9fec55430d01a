"""The capture of a MariaDB database into a real log, while writers write and everything else is killed."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import pymysql
import pytest

import trunkline.sync
from local_cluster import RunningCluster, local_cluster, wait_until
from mariadb_server import MariadbServer
from trunkline.client.entries import Entry
from trunkline.delivery.capture.database_capture import CaptureOptions, DatabaseCapture
from trunkline.delivery.capture.database_progress import DatabaseProgress
from trunkline.delivery.capture.mariadb.events import CRC, HEADER, Kind
from trunkline.delivery.capture.mariadb.rows import Limits
from trunkline.delivery.capture.mariadb.source import MariaSource
from trunkline.delivery.changes.database_entries import CatalogEntry, entry_of
from trunkline.delivery.changes.database_reader import DatabaseReader, ends
from trunkline.delivery.changes.rebuilt import rebuild
from trunkline.errors import ConfigError

ACCOUNTS, TOTAL = 2_000, 200_000
KIND = "mariadb-database"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with local_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def server() -> Iterator[MariadbServer]:
    with MariadbServer() as running:
        running.execute(
            "CREATE DATABASE bank",
            "USE bank",
            "CREATE TABLE accounts (id INT PRIMARY KEY, balance BIGINT NOT NULL)",
            "CREATE TABLE transfers (source INT, target INT, amount INT)",
            f"INSERT INTO accounts SELECT seq, {TOTAL // ACCOUNTS} FROM seq_1_to_{ACCOUNTS}",
            "INSERT INTO transfers SELECT seq, seq, 0 FROM seq_1_to_3000",
        )
        yield running


def transfer(cursor: Any, generator: random.Random) -> None:
    source, target, amount = generator.randint(1, ACCOUNTS), generator.randint(1, ACCOUNTS), generator.randint(1, 9)
    cursor.execute("BEGIN")
    for account, change in sorted([(source, -amount), (target, amount)]):
        cursor.execute("UPDATE accounts SET balance = balance + %s WHERE id = %s", (change, account))
    cursor.execute("INSERT INTO transfers (source, target, amount) VALUES (%s, %s, %s)", (source, target, amount))
    cursor.execute("COMMIT")


class Writers:
    """Transfers between accounts: their sum stays the same."""

    def __init__(self, server: MariadbServer, count: int = 2) -> None:
        self._server, self._stop = server, threading.Event()
        self.done = 0
        self._threads = [threading.Thread(target=self._write, args=(seed,)) for seed in range(count)]

    def __enter__(self) -> Writers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _write(self, seed: int) -> None:
        generator = random.Random(seed)
        while not self._stop.is_set():
            with suppress(pymysql.err.MySQLError, OSError), closing(self._server.connect("bank")) as connection:
                cursor = connection.cursor()
                while not self._stop.wait(0.001):
                    transfer(cursor, generator)
                    self.done += 1
            self._stop.wait(0.05)  # the server is down, or a deadlock


def once(server: MariadbServer, cluster: RunningCluster, log: str, options: CaptureOptions) -> DatabaseProgress:
    return DatabaseCapture(MariaSource(server.dsn(), ["bank.*"]), [cluster.connect], log, options).run(once=True)


def entries_in(cluster: RunningCluster, name: str) -> list[Entry]:
    with trunkline.sync.connect(cluster.connect) as client:
        log = client.log(name)
        return list(log.subscribe(1, log.tail() - 1, to_tail=True))


def states(entries: list[Entry], count: int) -> Iterator[dict[str, Counter[tuple[Any, ...]]]]:
    """The tables that can be read at some ends, by name; the last end among them."""
    decoded = (entry_of(entry) for entry in entries)
    start = next(entry for entry in decoded if isinstance(entry, CatalogEntry))
    reader = DatabaseReader(start)
    found = [
        (end.glsn, {table.newest.number: table.newest.name for table in reader.tables()})
        for end in ends(reader, decoded)
    ]
    for glsn, names in [*found[:: max(1, len(found) // count)], found[-1]]:
        tables = rebuild(entries, glsn)
        yield {
            names[number]: Counter(tuple(row.values()) for row in table.to_pylist()) for number, table in tables.items()
        }


def test_every_end_is_a_state_of_the_database_whatever_is_killed(
    cluster: RunningCluster, server: MariadbServer
) -> None:
    generator = random.Random(3)
    source = ["--mariadb", server.dsn(), "--tables", "bank.*"]
    command = [sys.executable, "-m", "trunkline.cli.main", "capture", "killed", *source, "--connect", cluster.connect]
    with Writers(server) as writers:
        for number in range(6):
            enough = writers.done + 100 + generator.randint(0, 300)
            child = subprocess.Popen(command, stderr=subprocess.DEVNULL)
            try:
                wait_until(lambda enough=enough: writers.done > enough)  # type: ignore[misc]
                if number == 2:
                    server.kill()
                    server.restart()
                elif number == 3:
                    server.execute(
                        "ALTER TABLE bank.accounts ADD COLUMN note VARCHAR(10) DEFAULT 'n', ADD KEY (balance)"
                    )
                elif number == 4:
                    server.execute("CREATE TABLE bank.late AS SELECT * FROM bank.accounts", "FLUSH BINARY LOGS")
                assert child.poll() is None, "the capture has ended by itself"
            finally:
                child.kill()
                child.wait()
    options = CaptureOptions(KIND, retry_ms=50, retry_max_ms=500)
    once(server, cluster, "killed", options)
    complete = 0
    for tables in states(entries_in(cluster, "killed"), 12):
        if "accounts" in tables:
            complete += 1
            assert sum(count * row[1] for row, count in tables["accounts"].items()) == TOTAL
    assert complete >= 3
    assert sorted(tables) == ["accounts", "late", "transfers"]
    for name, rows in tables.items():
        assert rows == Counter(server.execute(f"SELECT * FROM bank.{name}"))
    assert once(server, cluster, "killed", options).transactions == 0


def test_a_transaction_that_a_crash_of_the_server_cut_off_is_not_in_the_log(
    cluster: RunningCluster, server: MariadbServer
) -> None:
    options = CaptureOptions(KIND, retry_ms=50, retry_max_ms=500)
    source = MariaSource(server.dsn(), ["bank.*"], limits=Limits(rows=100))
    server.execute("FLUSH BINARY LOGS", "UPDATE bank.accounts SET balance = balance + 1")
    capture = DatabaseCapture(source, [cluster.connect], "cut", options)
    thread = threading.Thread(target=capture.run)
    thread.start()
    try:
        for number in range(2):
            position = server.position()
            wait_until(lambda position=position: capture.captured.reached >= position)  # type: ignore[misc]
            server.execute(f"INSERT INTO bank.transfers VALUES ({number}, 0, 0)")
            server.execute("USE bank", f"INSERT INTO transfers SELECT {number}, seq, 1 FROM seq_1_to_2000")
            server.kill()
            append_cut_off(server)
            server.restart()
        server.execute("INSERT INTO bank.transfers VALUES (9, 9, 9)")
        position = server.position()
        wait_until(lambda: capture.captured.reached >= position)
    finally:
        capture.stop()
        thread.join()
    assert capture.captured.recaptures == 0
    *_, tables = states(entries_in(cluster, "cut"), 1)
    assert sorted(tables) == ["accounts", "transfers"]
    for name, rows in tables.items():
        assert rows == Counter(server.execute(f"SELECT * FROM bank.{name}"))


def append_cut_off(server: MariadbServer) -> None:
    """Write the largest transaction of the newest binlog file again, but not to its end, as a server that is killed."""
    path = server.newest_binlog()
    content = path.read_bytes()
    at, groups = 4, list[list[bytes]]()
    while at < len(content):
        _, kind, _, size, _, _ = HEADER.unpack_from(content, at)
        if kind == Kind.GTID:
            groups.append([])
        if groups:
            groups[-1].append(content[at : at + size])
        at += size
    again, end = b"", len(content)
    for event in max(groups, key=lambda group: sum(map(len, group))):
        time, kind, number, size, _, flags = HEADER.unpack_from(event)
        end += size
        moved = HEADER.pack(time, kind, number, size, end, flags) + event[HEADER.size : -CRC.size]
        again += moved + CRC.pack(zlib.crc32(moved))
    with path.open("ab") as file:
        file.write(again[: len(again) * 3 // 4])


def test_a_capture_stops_or_begins_again_when_the_server_has_lost_changes(
    cluster: RunningCluster, server: MariadbServer
) -> None:
    options = CaptureOptions(KIND, retry_ms=50, retry_max_ms=500)
    once(server, cluster, "lost", options)
    server.execute("INSERT INTO bank.accounts VALUES (-1, 0)", "FLUSH BINARY LOGS")
    wait_until(
        lambda: server.execute("PURGE BINARY LOGS TO 'binlog.000002'", "SHOW BINARY LOGS")[0][0] == "binlog.000002"
    )
    with pytest.raises(ConfigError, match="lost"):
        once(server, cluster, "lost", options)
    progress = once(server, cluster, "lost", CaptureOptions(KIND, recaptures=True, retry_ms=50, retry_max_ms=500))
    assert progress.recaptures >= 2
    server.execute("ALTER TABLE bank.accounts ADD COLUMN n INT", "INSERT INTO bank.accounts VALUES (-2, 0, 2)")
    once(server, cluster, "lost", options)
    *_, tables = states(entries_in(cluster, "lost"), 1)
    for name, rows in tables.items():
        assert rows == Counter(server.execute(f"SELECT * FROM bank.{name}"))
    assert sorted(tables) == ["accounts", "transfers"]
