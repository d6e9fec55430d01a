"""What the parts of `./run bench capture` share: a PostgreSQL server, a log of three nodes, captures as processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from log_load import cpu_seconds
from log_processes import Failed, Processes, memory_mib
from log_trunkline import TrunklineCluster, trunkline_cluster

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))  # for the server and the judge of the tests

from outside import program
from postgres_server import PostgresServer
from trunkline import sync
from trunkline.client.entries import Entry
from trunkline.delivery.changes.database_entries import CatalogEntry, Chunk, Group, entry_of
from trunkline.delivery.changes.database_reader import DatabaseReader
from trunkline.runtime.local_files import LocalFiles

DATABASE = "bench"
SETTINGS = {
    "wal_level": "logical",
    "max_wal_senders": "10",
    "max_replication_slots": "10",
    "max_wal_size": "4GB",
    "shared_buffers": "256MB",
}
LOOK_EVERY_S = 0.05
CATCH_UP_S_MAX = 900.0
STOP_S_MAX = 30.0
SLOT = "SELECT confirmed_flush_lsn - '0/0', pg_current_wal_lsn() - '0/0', restart_lsn - '0/0' "
SLOT += "FROM pg_replication_slots WHERE slot_name = %s"


@dataclass
class Bench:
    """One server and one log cluster, and a directory for everything else."""

    directory: Path
    server: PostgresServer
    cluster: TrunklineCluster
    say: Callable[[str], None]
    captures: list[CaptureProcess] = field(default_factory=list)
    server_cpu_before: float = 0.0  # of servers that were killed

    @property
    def dsn(self) -> str:
        return self.server.dsn(DATABASE)

    def execute(self, *statements: str) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    def query(self, statement: str, values: Sequence[Any] = ()) -> tuple[Any, ...]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            row = connection.execute(statement, values).fetchone()
            return () if row is None else tuple(row)

    def capture(self, log: str, *options: str) -> CaptureProcess:
        """Not started yet."""
        made = CaptureProcess(self, log, options)
        self.captures.append(made)
        return made

    def pgbench(self, *options: str) -> list[str]:
        """The command."""
        return [
            program("pgbench"),
            "-h",
            "127.0.0.1",
            "-p",
            str(self.server.port),
            "-U",
            "postgres",
            *options,
            DATABASE,
        ]

    def initialize(self, scale: int) -> None:
        self.say(f"pgbench, scale {scale}: {scale * 100_000:,} accounts")
        run(self.pgbench("-i", "-q", "-s", str(scale)))
        self.execute("ALTER TABLE pgbench_history REPLICA IDENTITY FULL")  # it has no key

    def nodes(self) -> dict[str, int]:
        """The processes of the log, now: the supervisor restarts those that die."""
        record = LocalFiles(self.directory / "trunkline" / "cluster").record()
        return {} if record is None else {each.name: each.pid for each in record.processes if each.pid}


@contextmanager
def bench_in(directory: Path, say: Callable[[str], None]) -> Iterator[Bench]:
    """The server syncs its commits, the log its appends."""
    with PostgresServer(fsync=True, settings=SETTINGS) as server, trunkline_cluster(directory) as cluster:
        server.create_database(DATABASE)
        bench = Bench(directory, server, cluster, say)
        try:
            yield bench
        finally:
            for capture in bench.captures:
                capture.kill()


def run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failed(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


class CaptureProcess:
    """`trunkline capture LOG --postgres DSN ...`, started and killed as often as one likes."""

    def __init__(self, bench: Bench, log: str, options: Sequence[str]) -> None:
        self.log = log
        self.slot = f"trunkline_{log}"
        self.output = bench.directory / f"capture-{log}.log"
        self._bench = bench
        self._options = options
        self._processes = Processes()
        self._cpu_before = 0.0  # of lives that are over
        self._peak_before = 0.0

    @property
    def runs(self) -> bool:
        return bool(self._processes.pids)

    @property
    def cpu_seconds(self) -> float:
        with suppress(OSError):
            return self._cpu_before + cpu_seconds(self._processes.pids)
        return self._cpu_before

    @property
    def peak_mib(self) -> float:
        with suppress(OSError, IndexError):
            return max(self._peak_before, memory_mib(self._processes.pids[0])[1])
        return self._peak_before

    def start(self) -> None:
        command: list[str | Path] = [Path(sys.executable).parent / "trunkline", "capture", self.log]
        command += ["--connect", self._bench.cluster.address, "--postgres", self._bench.dsn, *self._options]
        self._processes.start("capture", command, self.output)

    def kill(self) -> None:
        if self.runs:
            self._remember()
            self._processes.kill("capture")

    def stop(self) -> None:
        """In order: what is in flight is finished."""
        if self.runs:
            self._remember()
            os.kill(self._processes.pid("capture"), signal.SIGTERM)
            self._processes.wait("capture")

    def until(self, what: str, ready: Callable[[], bool], within_s: float = CATCH_UP_S_MAX) -> float:
        """Wait for a condition, as long as the capture runs."""
        return self._processes.until(what, ready, within_s)

    def slot_state(self) -> tuple[int, int, int] | None:
        """Confirmed, current and oldest needed positions; None before there is a slot."""
        found = self._bench.query(SLOT, [self.slot])
        return (int(found[0]), int(found[1]), int(found[2])) if found and found[0] is not None else None

    def settle(self, *marker: str) -> None:
        """Wait until everything up to now is in the log; ``marker`` is a captured transaction behind it."""
        [target] = self._bench.query("SELECT pg_current_wal_lsn() - '0/0'")
        self._bench.execute(*marker)

        def confirmed() -> bool:
            state = self.slot_state()
            return state is not None and state[0] > target

        self.until(f"the capture into {self.log}", confirmed)

    def _remember(self) -> None:
        self._cpu_before, self._peak_before = self.cpu_seconds, self.peak_mib


class LogReader:
    """Reads a captured log as it grows, by heads alone: counts, times and snapshots."""

    def __init__(self, bench: Bench, log: str) -> None:
        self._bench = bench
        self._name = log
        self.reader: DatabaseReader | None = None
        self.position = 0
        self.transactions = self.rows = self.entries = self.size = 0
        self.chunk_rows = 0
        self.chunks: list[tuple[int, int, int, int]] = []  # generation, number, time in ms, and rows
        self.times: list[tuple[int, int, int]] = []  # time in ms, transactions and rows of each entry with changes
        self.delays_ms: list[float] = []  # from commit to append, of each transaction

    def advance(self) -> LogReader:
        with sync.connect(self._bench.cluster.address) as handle, suppress_absent():
            for entry in handle.log(self._name).subscribe(start=self.position + 1, to_tail=True):
                self._take(entry)
        return self

    def _take(self, stored: Entry) -> None:
        entry = entry_of(stored)
        self.position, self.entries, self.size = stored.glsn, self.entries + 1, self.size + len(stored.payload)
        if self.reader is None:
            self.reader = DatabaseReader(entry) if isinstance(entry, CatalogEntry) else None
            return
        step = self.reader.feed(entry, rows=False)
        if isinstance(entry, Chunk):
            [share] = entry.head.tables
            self.chunk_rows += share.rows
            self.chunks.append((entry.head.generation, entry.head.chunk, stored.time_ms, share.rows))
        elif isinstance(entry, Group):
            done = len(step.transactions) if step.end else 0
            rows = sum(each.rows for each in step.transactions)
            self.transactions, self.rows = self.transactions + done, self.rows + rows
            self.times.append((stored.time_ms, done, rows))
            self.delays_ms += [stored.time_ms - each.commit_us / 1000 for each in step.transactions[:done]]

    @property
    def complete(self) -> int:
        """How many tables can be read."""
        tables = () if self.reader is None else self.reader.tables()
        return sum(table.complete for table in tables)


@contextmanager
def suppress_absent() -> Iterator[None]:
    """A log that is not there yet is empty."""
    from trunkline.errors import NoSuchLog

    with suppress(NoSuchLog):
        yield


def wait_complete(capture: CaptureProcess, reader: LogReader, tables: int, every_s: float = 0.5) -> None:
    """Until the snapshots of so many tables are in the log."""
    ready_at = 0.0

    def ready() -> bool:
        nonlocal ready_at
        if time.monotonic() < ready_at:
            return False
        ready_at = time.monotonic() + every_s
        return reader.advance().complete >= tables

    capture.until("the snapshot", ready)


def group_cpu(pid: int) -> float:
    """CPU time of a process, of its children, and of those that ended."""
    with suppress(OSError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return cpu_seconds([pid]) + sum(_own(int(child)) for child in children)
    return 0.0


def _own(pid: int) -> float:
    with suppress(OSError):
        return cpu_seconds([pid])
    return 0.0
