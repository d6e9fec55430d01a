"""Four tables of a bank, delivered to a tenant for each branch, under faults; readers look all the while.

    .venv/bin/python tests/system/tenants_soak.py --minutes 10 --seed 7 --dir D [--accounts N] [--kinds KIND,KIND]

pgbench transfers money inside of branches: one transaction changes an account, its teller and its branch, and adds a
row to the history, so that four sums of a branch agree in every state that the database ever had. The database is
captured into one log, and a pipeline delivers the four tables to ten tenants: DuckLake, PostgreSQL and Delta. Readers
look at each DuckLake and PostgreSQL tenant again and again, inside one transaction each time: the sums must agree at
*every* look. Meanwhile the deliverer, its Python workers, nodes of the log and the capture are killed. At the end every
table, also those of Delta, must be equal to the database. Exit codes: 0 nothing is wrong, 1 something is.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # pytest has put the tests on the path already
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import duckdb
import psycopg
from deltalake import DeltaTable

from local_cluster import PROGRAM, RunningCluster, local_cluster, wait_until
from outside import program
from postgres_server import PostgresServer
from system.delivery_soak import command_line, descendants
from trunkline.delivery.backends.duckdb_pool import new_duckdb
from trunkline.delivery.backends.ducklake_attachment import attach_lake
from trunkline.delivery.config.addresses import LakeAddress
from trunkline.errors import Unreachable

BRANCHES = 10
TELLERS = 10  # of each branch
LOG = "bank"
PATIENCE_S = 300.0
REST_S = (4.0, 10.0)  # between two faults
ABSENT = ("does not exist", "disabled", "open database file")  # words of errors about a table that is not there
FAULTS = ("kill deliverer", "kill worker", "kill node", "kill capture")
TABLES = {
    "branches": ("bid", "bbalance"),
    "tellers": ("tid", "tbalance"),
    "accounts": ("aid", "abalance"),
    "history": ("hid", "delta"),
}
SCHEMA = """
CREATE TABLE branches (bid int PRIMARY KEY, bbalance bigint NOT NULL);
CREATE TABLE tellers (tid int PRIMARY KEY, bid int NOT NULL, tbalance bigint NOT NULL);
CREATE TABLE accounts (aid int PRIMARY KEY, bid int NOT NULL, abalance bigint NOT NULL, filler text);
CREATE TABLE history (hid bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, tid int, bid int, aid int, delta bigint,
                      mtime timestamp);
ALTER TABLE tellers REPLICA IDENTITY FULL;
ALTER TABLE accounts REPLICA IDENTITY FULL;
ALTER TABLE history REPLICA IDENTITY FULL;
INSERT INTO branches SELECT b, 0 FROM generate_series(1, {branches}) b;
INSERT INTO tellers SELECT t, (t - 1) / {tellers} + 1, 0 FROM generate_series(1, {branches} * {tellers}) t;
INSERT INTO accounts SELECT a, (a - 1) / {accounts} + 1, 0, 'x' FROM generate_series(1, {branches} * {accounts}) a;
"""
SCRIPT = """
\\set bid random(1, {branches})
\\set tid (:bid - 1) * {tellers} + random(1, {tellers})
\\set aid (:bid - 1) * {accounts} + random(1, {accounts})
\\set delta random(-5000, 5000)
BEGIN;
UPDATE accounts SET abalance = abalance + :delta WHERE aid = :aid;
UPDATE tellers SET tbalance = tbalance + :delta WHERE tid = :tid;
UPDATE branches SET bbalance = bbalance + :delta WHERE bid = :bid;
INSERT INTO history (tid, bid, aid, delta, mtime) VALUES (:tid, :bid, :aid, :delta, CURRENT_TIMESTAMP);
END;
"""
PIPELINE = """
pipeline: bank
source: {{type: log, log: {log}, connect: "{connect}"}}
routing: {{column: bid}}
tables: [public.*]
destinations:
{destinations}
flush: {{interval_ms: 300}}
retry: {{first_ms: 100, most_ms: 1000}}
reading: {{poll_ms: 100}}
control: {{store: sqlite:control.db, lease_ms: 3000}}
spark: {{master: "local[2]"}}
listen: none
"""


@dataclass(frozen=True)
class Plan:
    seconds: float
    seed: int
    accounts: int = 1_000  # of each branch
    rate: int = 100  # transactions a second
    kinds: tuple[str, ...] = ("ducklake", "postgres", "delta")
    pauses_s: tuple[float, float] = REST_S

    def kind(self, branch: int) -> str:
        return self.kinds[(branch - 1) % len(self.kinds)]


class Wrong(AssertionError):
    """A tenant shows a state that the database never had."""


@dataclass
class Looks:
    """What readers saw."""

    taken: Counter[str] = field(default_factory=Counter)  # by kind
    states: Counter[str] = field(default_factory=Counter)  # different states, by kind
    busy: Counter[str] = field(default_factory=Counter)  # looks that met a lock, and were not answered
    wrong: list[str] = field(default_factory=list)


# ------------------------------------------------------------------------------------------------------------ readers

State = tuple[Any, ...]  # the sums of the four tables, and the number of rows in the history


def sums(tables: Callable[[str], str]) -> str:
    columns = [f"(SELECT coalesce(sum({value}), 0) FROM {tables(name)})" for name, (_, value) in TABLES.items()]
    return f"SELECT {', '.join(columns)}, (SELECT count(*) FROM {tables('history')})"


class LakeReader:
    """Looks at one tenant by DuckLake's own extension, in a transaction for each look."""

    def __init__(self, directory: Path, branch: int) -> None:
        self._address = LakeAddress(f"sqlite:{directory / f'lake{branch}.sqlite'}", "branches")
        self._connection: duckdb.DuckDBPyConnection | None = None

    def look(self) -> State:
        if self._connection is None:
            self._connection = new_duckdb("ducklake", "sqlite_scanner")
            attach_lake(self._connection, self._address, "lake", read_only=True)
        self._connection.execute("BEGIN")
        try:
            (found,) = self._connection.execute(sums(lambda name: f"lake.main.{name}")).fetchall()
            return tuple(found)
        finally:
            with suppress(duckdb.Error):
                self._connection.execute("ROLLBACK")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class PostgresReader:
    """Looks at one tenant with four statements of one transaction."""

    def __init__(self, dsn: str, branch: int) -> None:
        self._dsn, self._schema = dsn, f"branch{branch}"
        self._connection: psycopg.Connection[Any] | None = None

    def look(self) -> State:
        if self._connection is None:
            self._connection = psycopg.connect(self._dsn)
            self._connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with self._connection.transaction():
            found: list[Any] = []
            for name, (_, value) in TABLES.items():
                row = self._connection.execute(
                    f"SELECT coalesce(sum({value}), 0), count(*) FROM {self._schema}.{name}".encode()
                ).fetchone()
                assert row is not None
                found.append(row)
        return (*(total for total, _ in found), found[-1][1])

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def watch(kind: str, readers: dict[int, LakeReader | PostgresReader], looks: Looks, ending: threading.Event) -> None:
    """Look at each tenant in turn, until the end."""
    seen: dict[int, State] = {}
    while not ending.is_set():
        for branch, reader in readers.items():
            try:
                state = reader.look()
            except (duckdb.Error, psycopg.Error, Unreachable) as error:
                absent = (
                    "does not exist" in str(error) or "disabled" in str(error) or "cannot open" in str(error).lower()
                )
                looks.busy["not there yet" if absent and branch not in seen else kind] += 1
                if absent and branch in seen:
                    looks.wrong.append(f"branch {branch} ({kind}): a table was removed: {error}")
                reader.close()
                ending.wait(0.05)
                continue
            looks.taken[kind] += 1
            if len(set(state[:4])) != 1:
                looks.wrong.append(f"branch {branch} ({kind}): {dict(zip(TABLES, state, strict=False))}")
            if seen.get(branch, (0,) * 5)[4] > state[4]:
                looks.wrong.append(
                    f"branch {branch} ({kind}): its history went back from {seen[branch][4]} to {state[4]}"
                )
            if state != seen.get(branch):
                looks.states[kind] += 1
            seen[branch] = state
            ending.wait(0.01)
    for reader in readers.values():
        reader.close()


# ------------------------------------------------------------------------------------------------------------ the soak


class Soak:
    def __init__(self, directory: Path, cluster: RunningCluster, server: PostgresServer, plan: Plan) -> None:
        self._directory, self._cluster, self._server, self._plan = directory, cluster, server, plan
        self._chance = random.Random(plan.seed)
        self._dsn = server.create_database("bank")
        self._delivered = server.create_database("delivered")
        self._file = directory / "bank.yaml"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._commands = {
            "capture": ["capture", LOG, "--connect", cluster.connect, "--postgres", self._dsn, "--tables", "public.*"],
            "deliver": ["deliver", "run", str(self._file)],
        }
        self.faults: Counter[str] = Counter()
        self.looks = Looks()

    def run(self) -> None:
        plan = self._plan
        numbers = {"branches": BRANCHES, "tellers": TELLERS, "accounts": plan.accounts}
        with psycopg.connect(self._dsn) as connection:
            connection.execute(SCHEMA.format(**numbers).encode())
        (self._directory / "transfer.sql").write_text(SCRIPT.format(**numbers))
        self._file.write_text(
            PIPELINE.format(log=LOG, connect=self._cluster.connect, destinations="\n".join(self._destinations()))
        )
        with ExitStack() as stack:
            stack.callback(self._end_processes)
            self._start("capture")
            wait_until(self._complete, PATIENCE_S)
            load = self._load(plan.seconds)
            stack.callback(load.wait)
            stack.callback(load.terminate)
            self._start("deliver")
            ending = threading.Event()
            threads = self._watchers(ending)
            for thread in threads:
                stack.callback(thread.join)
            stack.callback(ending.set)
            self._faults_until(time.monotonic() + plan.seconds)
            load.wait(PATIENCE_S)
            self._stop_deliverer()
            self._finish()
        self._judge()

    def _destinations(self) -> Iterator[str]:
        with psycopg.connect(self._delivered, autocommit=True) as connection:
            for branch in range(1, BRANCHES + 1):
                match self._plan.kind(branch):
                    case "ducklake":
                        place = f"type: ducklake, catalog: 'sqlite:lake{branch}.sqlite', data_path: 'lake{branch}'"
                    case "postgres":
                        connection.execute(f"CREATE SCHEMA branch{branch}".encode())
                        place = f'type: postgres, dsn: "{self._delivered}", schema: branch{branch}'
                    case _:
                        place = f"type: delta, path: 'delta{branch}/{{table}}'"
                yield f"  - {{name: branch{branch}, values: [{branch}], {place}}}"

    def _watchers(self, ending: threading.Event) -> list[threading.Thread]:
        threads = []
        for kind in {self._plan.kind(branch) for branch in range(1, BRANCHES + 1)} - {"delta"}:
            mine = [branch for branch in range(1, BRANCHES + 1) if self._plan.kind(branch) == kind]
            readers: dict[int, LakeReader | PostgresReader] = {
                branch: LakeReader(self._directory, branch)
                if kind == "ducklake"
                else PostgresReader(self._delivered, branch)
                for branch in mine
            }
            threads.append(threading.Thread(target=watch, args=(kind, readers, self.looks, ending), name=kind))
            threads[-1].start()
        return threads

    def _load(self, seconds: float) -> subprocess.Popen[bytes]:
        place = ["-h", "127.0.0.1", "-p", str(self._server.port), "-U", "postgres"]
        how = ["-n", "-f", str(self._directory / "transfer.sql"), "-c", "4", "-R", str(self._plan.rate)]
        with (self._directory / "pgbench.log").open("wb") as log:
            return subprocess.Popen(
                [program("pgbench"), *place, *how, "-T", str(int(seconds)), "bank"], stdout=log, stderr=log
            )

    # --- processes ---

    def _start(self, name: str) -> None:
        with (self._directory / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [*PROGRAM, *self._commands[name]], stdout=log, stderr=log, start_new_session=True
            )

    def _complete(self) -> bool:
        done = self._cluster.trunkline("capture", "status", LOG, "--json")
        text = done.stdout.decode()
        return done.returncode == 0 and text.count('"complete"') >= 0 and '"complete": false' not in text and text != ""

    def _faults_until(self, end: float) -> None:
        while time.monotonic() < end:
            time.sleep(min(self._chance.uniform(*self._plan.pauses_s), max(end - time.monotonic(), 0)))
            if time.monotonic() < end:
                self._fault(FAULTS[sum(self.faults.values()) % len(FAULTS)])
            for name, process in self._processes.items():
                if process.poll() is not None:
                    raise Wrong(f"{name} ended: {(self._directory / f'{name}.log').read_text()[-3000:]}")
            if self.looks.wrong:
                raise Wrong("; ".join(self.looks.wrong[:5]))

    def _fault(self, kind: str) -> None:
        match kind:
            case "kill deliverer" | "kill capture":
                name = "deliver" if kind == "kill deliverer" else "capture"
                self._processes[name].kill()
                self._processes[name].wait()
                self._start(name)
            case "kill worker":
                below = [*descendants(self._processes["deliver"].pid)]
                workers = [pid for pid in below if "-m trunkline.delivery.engine.worker_daemon" in command_line(pid)]
                for pid in self._chance.sample(workers, min(1, len(workers))):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            case "kill node":
                self._cluster.signal(f"node{self._chance.randrange(1, 4)}", signal.SIGKILL)
        self.faults[kind] += 1

    def _end_processes(self) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()

    def _stop_deliverer(self) -> None:
        process = self._processes.pop("deliver")
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)

    # --- the end ---

    def _finish(self) -> None:
        """The capture writes what is left, and one more run delivers it."""
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            row = connection.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
            assert row is not None
            connection.execute("UPDATE branches SET bbalance = bbalance WHERE bid = 1")  # an idle slot moves late
            query = (
                "SELECT bool_and(confirmed_flush_lsn >= %s::pg_lsn) FROM pg_replication_slots WHERE database = 'bank'"
            )
            wait_until(lambda: bool((connection.execute(query, [row[0]]).fetchone() or (False,))[0]), PATIENCE_S)
        for step in (["run", str(self._file), "--once"], ["verify", str(self._file)]):
            done = subprocess.run([*PROGRAM, "deliver", *step], capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise Wrong(
                    f"`deliver {step[0]}` ended with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
                )

    def _judge(self) -> None:
        if self.looks.wrong:
            raise Wrong("; ".join(self.looks.wrong[:5]))
        for branch in range(1, BRANCHES + 1):
            for table, (key, value) in TABLES.items():
                held, wanted = self._held(branch, table, key, value), self._wanted(branch, table, key, value)
                if held != wanted:
                    off = sorted(set(held.items()) ^ set(wanted.items()))[:5]
                    raise Wrong(f"branch {branch} ({self._plan.kind(branch)}), {table}: {off}")

    def _wanted(self, branch: int, table: str, key: str, value: str) -> dict[int, int]:
        with psycopg.connect(self._dsn) as connection:
            query = f"SELECT {key}, {value} FROM {table} WHERE bid = {branch}"
            return dict(connection.execute(query.encode()).fetchall())

    def _held(self, branch: int, table: str, key: str, value: str) -> dict[int, int]:
        match self._plan.kind(branch):
            case "ducklake":
                address = LakeAddress(f"sqlite:{self._directory / f'lake{branch}.sqlite'}", table)
                with new_duckdb("ducklake", "sqlite_scanner") as lake:
                    attach_lake(lake, address, "lake", read_only=True)
                    rows = lake.execute(f"SELECT {key}, {value} FROM lake.main.{table}").fetchall()
            case "postgres":
                with psycopg.connect(self._delivered) as connection:
                    rows = connection.execute(f"SELECT {key}, {value} FROM branch{branch}.{table}".encode()).fetchall()
            case _:
                found = DeltaTable(self._directory / f"delta{branch}" / table).to_pyarrow_table(columns=[key, value])
                rows = list(zip(found.column(key).to_pylist(), found.column(value).to_pylist(), strict=True))
        if len({row[0] for row in rows}) < len(rows):
            raise Wrong(f"branch {branch} ({self._plan.kind(branch)}), {table}: a key is there twice")
        return dict(rows)


def soak(directory: Path, plan: Plan) -> tuple[Counter[str], Looks]:
    directory.mkdir(parents=True, exist_ok=True)
    with (
        local_cluster(directory / "cluster") as cluster,
        PostgresServer(settings={"wal_level": "logical", "max_connections": "60"}) as server,
    ):
        run = Soak(directory, cluster, server, plan)
        run.run()
        return run.faults, run.looks


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--accounts", type=int, default=100_000, help="of each branch")
    parser.add_argument("--rate", type=int, default=200, help="transactions a second")
    parser.add_argument("--kinds", default="ducklake,postgres,delta", help="of the tenants, in turn")
    parser.add_argument("--dir", type=Path, help="where everything is kept; without it nothing is")
    asked = parser.parse_args()
    plan = Plan(asked.minutes * 60, asked.seed, asked.accounts, asked.rate, tuple(asked.kinds.split(",")))
    try:
        with tempfile.TemporaryDirectory() as temporary:
            faults, looks = soak(asked.dir or Path(temporary), plan)
    except AssertionError as wrong:
        print(f"WRONG: {wrong}", file=sys.stderr)
        return 1
    print(f"faults: {dict(faults)}", flush=True)
    print(f"looks: {dict(looks.taken)}, different states: {dict(looks.states)}, not answered: {dict(looks.busy)}")
    print("every look saw one state of the database, and every table is equal to it at the end", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
