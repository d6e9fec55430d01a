"""Random histories of a PostgreSQL database that is captured whole, while everything around it fails.

    .venv/bin/python -m tests.delivery.fuzz_capture --seconds 30 --histories 100

Writers change tables in every way (``random_writers``). The capture is killed, paused and taken over from, its sessions
are terminated, the server and the nodes of the log restart. In the end, and at each state of the database that was kept
on the way, the log must have just what the database had (``state_judge``). A seed decides what is attempted, not how it
interleaves. The suite runs one short history (``test_capture_fuzz.py``).
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

import psycopg
from msgspec import structs

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # as the tests are run

import trunkline.sync
from delivery.random_writers import SETUP, Writers
from delivery.state_judge import LEDGER, Held, Judged, held_in, judged
from local_cluster import RunningCluster, local_cluster, wait_until
from postgres_server import PostgresServer
from trunkline.client.entries import Entry
from trunkline.delivery.capture.database_capture import CaptureOptions, DatabaseCapture
from trunkline.delivery.capture.log_survey import survey
from trunkline.delivery.capture.postgres import chunk_reader
from trunkline.delivery.capture.postgres.decoder import Limits
from trunkline.delivery.capture.postgres.session import ServerAddress
from trunkline.delivery.capture.postgres.source import PostgresDatabase, PostgresSource, request_snapshot
from trunkline.errors import NoSuchLog, TrunklineError

SETTINGS: Final = {
    "wal_level": "logical",
    "max_replication_slots": "100",
    "max_prepared_transactions": "50",
    "deadlock_timeout": "200ms",
    "wal_sender_timeout": "4s",  # shorter than some pauses
}
END_S: Final = 180.0
AGAIN: Final = re.compile(r'all rows of "public"\."(\w+)" are captured again')
SLOT: Final = "SELECT (confirmed_flush_lsn - '0/0'::pg_lsn)::bigint FROM pg_replication_slots WHERE slot_name = %s"
ACTIVE: Final = "SELECT FROM pg_replication_slots WHERE slot_name = %s AND active"
DROP: Final = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s"
READERS: Final = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE pid <> pg_backend_pid() AND datname = current_database() AND (backend_type = 'walsender' OR query ~ %s)
"""


def captures(connect: str, log: str, dsn: str, *, tiny: bool) -> DatabaseCapture:
    """``tiny``: entries, chunks, and everything else as small as can be, where most races are."""
    if tiny:
        chunk_reader.FIRST_ROWS = chunk_reader.CHUNK_ROWS_MAX = 5  # type: ignore[misc]
    database = PostgresDatabase(ServerAddress(dsn), f"slot_{log}", ("public.*",), reader=f"capture {log}")
    source = PostgresSource(database, limits=Limits(3, 300) if tiny else None, check_s=0.1 if tiny else 1.0)
    options = CaptureOptions("postgres", recaptures=True, retry_ms=100, retry_max_ms=500)
    if tiny:
        options = structs.replace(options, appends_max=2, catalog_after=3_000, mark_after=2_000)
    return DatabaseCapture(source, [connect], log, options)


class History:
    """One database, its log, and what happens to them."""

    def __init__(
        self, cluster: RunningCluster, server: PostgresServer, seed: int, directory: Path, *, tiny: bool, alters: bool
    ) -> None:
        self.seed = seed
        self.faults: Counter[str] = Counter()
        self.held: list[Held] = []
        self.problems: list[str] = []
        self._cluster, self._server, self._tiny = cluster, server, tiny
        self._chance = random.Random(seed)
        self._log = f"history{seed}"
        self._dsn = server.create_database(self._log)
        self._said = directory / f"{self._log}.err"
        self._losses = 0
        self._processes: list[subprocess.Popen[bytes]] = []
        with psycopg.connect(self._dsn) as connection:
            connection.execute(SETUP)
        self.writers = Writers(self._dsn, seed, large=300 if tiny else 50_000, alters=alters)

    def run(self, seconds: float, faults: str) -> Judged:
        self._start()
        self._wait_ledger()
        self.writers.begin(4, 0.1 if self._tiny else 0.05)
        done = threading.Event()
        keeping = threading.Thread(target=self._keep, args=(done,), daemon=True)
        keeping.start()
        chosen: list[Callable[[], None]] = [getattr(self, f"_{name}") for name in faults.split()]
        until = time.monotonic() + seconds
        try:
            while time.monotonic() < until:
                time.sleep(self._chance.random() * 3)
                fault = self._chance.choice(chosen)
                self.faults[fault.__name__.strip("_")] += 1
                with contextlib.suppress(psycopg.Error):
                    fault()
                self._revive()
                self._check_confirmed()
        finally:
            done.set()
            keeping.join()
            self.writers.end()
            for process in self._processes:
                process.kill()
                process.wait()
        return self._judge()

    def _wait_ledger(self) -> None:
        """From then on, a state of the log says which transactions it has."""

        def is_complete() -> bool:
            with contextlib.suppress(NoSuchLog), trunkline.sync.connect(self._cluster.connect) as cluster:
                log = cluster.log(self._log)
                reader = survey(log, log.tail() - 1, None).reader
                tables = () if reader is None else reader.tables()
                return any(each.newest.name == LEDGER and each.complete for each in tables)
            return False

        wait_until(is_complete, END_S)

    # --- faults ---

    def _kill(self) -> None:
        self._processes[-1].kill()

    def _pause(self) -> None:
        self._processes[-1].send_signal(signal.SIGSTOP)
        time.sleep(self._chance.choice((0.2, 1.0, 6.0)))
        self._processes[-1].send_signal(signal.SIGCONT)

    def _rival(self) -> None:
        """Another capture takes over, sometimes from one that is paused."""
        before = self._processes[-1]
        paused = self._chance.random() < 0.5
        if paused:
            before.send_signal(signal.SIGSTOP)
        self._start()
        time.sleep(self._chance.random() * 2)
        if paused:
            before.send_signal(signal.SIGCONT)

    def _terminate(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True, connect_timeout=5) as connection:
            connection.execute(READERS, ("^(COPY|BEGIN ISOLATION|SELECT pg_logical_emit)",))

    def _restart(self) -> None:
        with self.writers.quiet:
            self._server.stop()
            self._server.restart()

    def _crash(self) -> None:
        with self.writers.quiet:
            self._server.kill()
            self._server.restart()

    def _node(self) -> None:
        self._cluster.signal(f"node{self._chance.randint(1, 3)}", signal.SIGKILL)

    def _resnapshot(self) -> None:
        name = self._chance.choice(("ints", "texts", "pairs", "uuids", "plain", "bigs", "parted_0"))
        with psycopg.connect(self._dsn, autocommit=True, connect_timeout=5) as connection:
            request_snapshot(connection, f"slot_{self._log}", "public", name)

    def _lose(self) -> None:
        """Another program drops the slot while no capture runs."""
        for process in self._processes:
            process.kill()
            process.wait()
        self._terminate()
        with psycopg.connect(self._dsn, autocommit=True, connect_timeout=5) as connection:
            wait_until(lambda: not connection.execute(ACTIVE, (f"slot_{self._log}",)).fetchall(), END_S)
            connection.execute(DROP, (f"slot_{self._log}",))
        self._losses += 1

    def _nothing(self) -> None:
        pass

    # --- the capture ---

    def _start(self, *, once: bool = False) -> None:
        arguments = [self._cluster.connect, self._log, self._dsn, "tiny" if self._tiny else "", "once" if once else ""]
        with self._said.open("ab") as said:
            self._processes.append(
                subprocess.Popen(
                    [sys.executable, __file__, "--capture", *arguments],
                    stdout=said,
                    stderr=said,
                    stdin=subprocess.DEVNULL,
                )
            )

    def _revive(self) -> None:
        if self._processes[-1].poll() is not None:
            self._start()

    def _check_confirmed(self) -> None:
        """The server knows of nothing that the log lacks."""
        try:
            with psycopg.connect(self._dsn, autocommit=True, connect_timeout=5) as connection:
                row = connection.execute(SLOT, (f"slot_{self._log}",)).fetchone()
            with trunkline.sync.connect(self._cluster.connect) as cluster:
                log = cluster.log(self._log)
                state = survey(log, log.tail() - 1, None)
        except (psycopg.Error, NoSuchLog):
            return
        if row is None or state.position is None:
            return
        if row[0] > state.position.lsn:
            self.problems.append(f"the slot is at {row[0]}, the log at {state.position.lsn}")

    def _keep(self, done: threading.Event) -> None:
        while not done.wait(0.3 if self._tiny else 1.0):
            with self.writers.quiet, contextlib.suppress(psycopg.Error):
                self.held.append(held_in(self._dsn))

    def _judge(self) -> Judged:
        self.held.append(held_in(self._dsn))
        self._start(once=True)
        try:
            if (code := self._processes[-1].wait(END_S)) != 0:
                self.problems.append(f"the last capture ended with {code}")
        except subprocess.TimeoutExpired:
            self._processes[-1].send_signal(signal.SIGABRT)  # it says where it is
            self._processes[-1].wait()
            self.problems.append("the last capture does not end")
        found = judged(self._entries(), self.held)
        said = self._said.read_text(errors="replace")
        self.problems += found.wrong
        self.problems += [f"{name} is incomplete" for name in found.incomplete]
        warned = Counter(AGAIN.findall(said))
        self.problems += [
            f"{name} was captured again {count} times, and announced {warned[name]} times"
            for name, count in found.recaptured.items()
            if count > warned[name]
        ]
        if found.epochs > self._losses + 1:
            self.problems.append(f"the log has {found.epochs} epochs, after {self._losses} losses")
        self.problems += [line for line in said.splitlines() if re.match(r"ended:|\w*Error|.*is a bug", line)][:5]
        return found

    def _entries(self) -> list[Entry]:
        with trunkline.sync.connect(self._cluster.connect) as cluster:
            log = cluster.log(self._log)
            return list(log.subscribe(1, log.tail() - 1, to_tail=True))

    def close(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute(DROP, (f"slot_{self._log}",))


FAULTS: Final = "kill kill pause rival terminate restart crash node resnapshot lose nothing nothing"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--histories", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each history")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--large", action="store_true", help="entries and chunks of the usual size")
    parser.add_argument("--no-alterations", action="store_true")
    parser.add_argument("--faults", default=FAULTS)
    parser.add_argument("--keep", type=Path, help="what captures say goes here")
    options = parser.parse_args(arguments)
    failed, total = 0, Counter[str]()
    directory = Path(tempfile.mkdtemp(prefix="fuzz-capture-", dir=options.keep))
    directory.mkdir(parents=True, exist_ok=True)
    with PostgresServer(settings=SETTINGS) as server, local_cluster(directory / "cluster") as cluster:
        for seed in range(options.seed, options.seed + options.histories):
            history = History(
                cluster, server, seed, directory, tiny=not options.large, alters=not options.no_alterations
            )
            found = history.run(options.seconds, options.faults)
            history.close()
            total += history.faults
            written = history.writers.written
            print(
                f"seed {seed}: {found.transactions:,} transactions ({written.failures} failed, {written.alterations} "
                f"alterations, {written.prepared} prepared), {dict(history.faults)}, {len(found.compared)} of "
                f"{len(history.held)} states compared, {found.tables} tables, "
                f"{found.recaptured.total()} captured again",
                flush=True,
            )
            for problem in history.problems[:8]:
                print(f"  WRONG: {problem}", flush=True)
            failed += bool(history.problems)
    print(f"{failed} histories failed; {dict(total)}")
    return 1 if failed else 0


def capture(connect: str, log: str, dsn: str, tiny: str, once: str) -> int:
    """The process that is killed."""
    import faulthandler

    faulthandler.enable()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(levelname)s %(name)s %(message)s")
    running = captures(connect, log, dsn, tiny=bool(tiny))
    try:
        running.run(once=bool(once))
    except TrunklineError as error:
        fenced = type(error).__name__ == "OwnedByAnother"
        print(f"{'fenced' if fenced else 'ended'}: {type(error).__name__}: {error}", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--capture"]:
        os._exit(capture(*sys.argv[2:]))
    sys.exit(main())
