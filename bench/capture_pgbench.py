"""pgbench at full speed while all of its tables are captured; with kills, too. The judge has the last word.

The script draws the teller and the account inside of the branch, so that sums agree across tables for each branch, and
not only over all of them: a transaction that is torn, lost or repeated shows at any transaction end.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import threading
import time
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from statistics import median

import psycopg
from capture_rig import Bench, CaptureProcess, LogReader, group_cpu, wait_complete
from log_load import cpu_seconds, percentile
from log_processes import Failed

from database_judge import Judged, Wrong, differences, judge_pgbench
from trunkline import sync

SCRIPT = """
\\set bid random(1, :scale)
\\set tid (:bid - 1) * 10 + random(1, 10)
\\set aid (:bid - 1) * 100000 + random(1, 100000)
\\set delta random(-5000, 5000)
BEGIN;
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :aid;
SELECT abalance FROM pgbench_accounts WHERE aid = :aid;
UPDATE pgbench_tellers SET tbalance = tbalance + :delta WHERE tid = :tid;
UPDATE pgbench_branches SET bbalance = bbalance + :delta WHERE bid = :bid;
INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) VALUES (:tid, :bid, :aid, :delta, CURRENT_TIMESTAMP);
END;
"""
MARKER = "UPDATE pgbench_branches SET bbalance = bbalance WHERE bid = 1"
LOG = "pgbench"
TABLES = 4
CLIENTS = 4
SAMPLE_EVERY_S = 0.2
ENDS = 50
KILL_EVERY_S = 10.0
JUDGED_S_MAX = 600.0


@dataclass
class Lag:
    """Samples of what the server has and the capture has not confirmed."""

    at_s: list[float] = field(default_factory=list)
    position: list[int] = field(default_factory=list)
    confirmed: list[int] = field(default_factory=list)
    retained: list[int] = field(default_factory=list)

    @property
    def mib(self) -> list[float]:
        return [(end - done) / 2**20 for end, done in zip(self.position, self.confirmed, strict=True)]

    @property
    def seconds(self) -> list[float]:
        """How long ago the server was where the capture is. A server that was killed may have forgotten the newest."""
        befores = [max(bisect_right(self.position, done) - 1, 0) for done in self.confirmed]
        return [max(now - self.at_s[before], 0.0) for now, before in zip(self.at_s, befores, strict=True)]

    def growth_mib(self) -> float:
        """From the second quarter of the samples to the last: what is left when a beginning is over."""
        lags, quarter = self.mib, max(len(self.mib) // 4, 1)
        return median(lags[-quarter:]) - median(lags[quarter : 2 * quarter] or lags)


@dataclass
class PgbenchResult:
    seconds: float
    rate_alone: float  # transactions a second, without a capture
    rate: float
    latency_alone_ms: float
    latency_ms: float
    lag_mib: tuple[float, float]  # p50, p99
    lag_s: tuple[float, float]
    lag_growth_mib: float
    delay_ms: tuple[float, float]  # from commit to append
    cpu: dict[str, float]  # seconds of each group of processes
    cpu_alone: dict[str, float]
    peak_mib: float
    transactions: int
    entries: int
    log_mib: float
    kills: int
    judged_ends: int
    verdict: str  # empty: everything agrees


@contextmanager
def sampled(bench: Bench, capture: CaptureProcess) -> Iterator[Lag]:
    """In a thread; a server that is down is not sampled."""
    lag, over = Lag(), threading.Event()

    def work() -> None:
        while not over.is_set():
            with suppress(psycopg.Error), psycopg.connect(bench.dsn, autocommit=True, connect_timeout=2) as connection:
                while not over.wait(SAMPLE_EVERY_S):
                    _sample(connection, capture.slot, lag)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield lag
    finally:
        over.set()
        thread.join()


def _sample(connection: psycopg.Connection[tuple[int, ...]], slot: str, lag: Lag) -> None:
    query = "SELECT pg_current_wal_lsn() - '0/0', confirmed_flush_lsn - '0/0', restart_lsn - '0/0' "
    row = connection.execute(f"{query} FROM pg_replication_slots WHERE slot_name = '{slot}'").fetchone()
    if row is not None and row[1] is not None:
        lag.at_s.append(time.monotonic())
        lag.position.append(int(row[0]))
        lag.confirmed.append(int(row[1]))
        lag.retained.append(int(row[0] - row[2]))


def measure_pgbench(bench: Bench, *, scale: int, seconds: float, kills: bool, seed: int = 1) -> PgbenchResult:
    bench.initialize(scale)
    script = bench.directory / "pgbench.sql"
    script.write_text(SCRIPT)
    load = bench.pgbench("-n", "-f", str(script), "-c", str(CLIENTS), "-j", "2", "-s", str(scale))
    bench.say(f"pgbench alone, {seconds:.0f} s")
    before = _cpu(bench, None)
    rate_alone, latency_alone = _run(bench, [*load[:-1], "-T", f"{seconds:.0f}", load[-1]])
    cpu_alone = _difference(_cpu(bench, None), before)
    capture, reader = bench.capture(LOG, "--tables", "public.pgbench_*"), LogReader(bench, LOG)
    capture.start()
    wait_complete(capture, reader, TABLES)
    capture.settle(MARKER)
    bench.say(f"pgbench with the capture, {seconds:.0f} s{', with kills' if kills else ''}")
    before = _cpu(bench, capture)
    with sampled(bench, capture) as lag:
        if kills:
            count, (rate, latency) = _with_kills(bench, capture, load, seconds)
        else:
            count, (rate, latency) = 0, _run(bench, [*load[:-1], "-T", f"{seconds:.0f}", load[-1]])
    cpu = _difference(_cpu(bench, capture), before)
    capture.settle(MARKER)
    capture.stop()
    begin = len(reader.delays_ms)
    reader.advance()
    bench.say(f"judging {reader.transactions:,} transactions")
    judged, verdict = _judged(bench, seed)
    delays = reader.delays_ms[begin:] or [0.0]
    return PgbenchResult(
        seconds, rate_alone, rate, latency_alone, latency,
        (median(lag.mib), percentile(lag.mib, 0.99)), (median(lag.seconds), percentile(lag.seconds, 0.99)),
        lag.growth_mib(), (median(delays), percentile(delays, 0.99)), cpu, cpu_alone, capture.peak_mib,
        reader.transactions, reader.entries, reader.size / 2**20, count, judged, verdict,
    )  # fmt: skip


def _run(bench: Bench, command: list[str]) -> tuple[float, float]:
    """Transactions a second and the mean latency in ms."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    rate = re.search(r"tps = ([\d.]+)", done.stdout)
    latency = re.search(r"latency average = ([\d.]+) ms", done.stdout)
    if done.returncode != 0 or rate is None or latency is None:
        raise Failed(f"pgbench ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return float(rate[1]), float(latency[1])


def _judged(bench: Bench, seed: int) -> tuple[int, str]:
    """At how many transactions the sums were compared, and what is wrong."""
    with sync.connect(bench.cluster.address) as handle:
        log = handle.log(LOG)
        try:
            judged: Judged = judge_pgbench(lambda: log.subscribe(start=1, to_tail=True), ends=ENDS, seed=seed)
        except Wrong as wrong:
            return 0, str(wrong)
    differs = differences(bench.dsn, judged.last.tables)
    missing = TABLES - len(judged.last.tables)
    texts = [
        f"{name}: {only[0]:,} rows only in the server, {only[1]:,} only in the log" for name, only in differs.items()
    ]
    return len(judged.places), "; ".join([*texts, *([f"{missing} tables are missing"] if missing else [])])


# ---------------------------------------------------------------------------------------------------------------- kills


def _with_kills(
    bench: Bench, capture: CaptureProcess, load: list[str], seconds: float
) -> tuple[int, tuple[float, float]]:
    """The capture, a node of the log and PostgreSQL are killed in turn, every ten seconds; how often, and the rate."""
    [rows_before] = bench.query("SELECT count(*) FROM pgbench_history")
    began, killed = time.monotonic(), 0
    ends, kill_at = began + seconds, began + KILL_EVERY_S
    victims = itertools.cycle(("capture", "node", "server"))
    running = _begin(load, seconds)
    try:
        while time.monotonic() < ends:
            if running.poll() is not None:  # it gives up when the server dies
                running = _begin(load, max(ends - time.monotonic(), 1.0))
            if not capture.runs or _gone(capture):
                raise Failed(f"the capture ended by itself:\n{capture.output.read_text(errors='replace')[-2000:]}")
            if time.monotonic() >= kill_at:
                _kill(bench, capture, next(victims), killed)
                killed, kill_at = killed + 1, kill_at + KILL_EVERY_S
            time.sleep(0.1)
    finally:
        running.kill()
        running.wait()
    [rows] = bench.query("SELECT count(*) FROM pgbench_history")
    rate = (rows - rows_before) / (time.monotonic() - began)
    return killed, (rate, CLIENTS / rate * 1000 if rate else 0.0)


def _begin(load: list[str], seconds: float) -> subprocess.Popen[bytes]:
    command = [*load[:-1], "-T", f"{max(seconds, 1):.0f}", load[-1]]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _gone(capture: CaptureProcess) -> bool:
    try:
        capture.until("", lambda: True)
    except Failed:
        return True
    return False


def _kill(bench: Bench, capture: CaptureProcess, victim: str, number: int) -> None:
    bench.say(f"  kill -9 of the {victim}")
    match victim:
        case "capture":
            capture.kill()
            capture.start()
        case "node":
            names = sorted(name for name in bench.nodes() if name != "coordinator")
            os.kill(bench.nodes()[names[number % len(names)]], signal.SIGKILL)  # `trunkline up` restarts it
        case _:
            bench.server_cpu_before += group_cpu(bench.server.pid)
            bench.server.kill()
            bench.server.restart()


# ------------------------------------------------------------------------------------------------------------- CPU time


def _cpu(bench: Bench, capture: CaptureProcess | None) -> dict[str, float]:
    supervisor = bench.cluster.pids[:1]
    server = bench.server_cpu_before + group_cpu(bench.server.pid)
    found = {"PostgreSQL": server, "log": _alive(supervisor + list(bench.nodes().values()))}
    return found | ({} if capture is None else {"capture": capture.cpu_seconds})


def _alive(pids: list[int]) -> float:
    total = 0.0
    for pid in pids:
        with suppress(OSError):
            total += cpu_seconds([pid])
    return total


def _difference(after: dict[str, float], before: dict[str, float]) -> dict[str, float]:
    return {name: max(value - before.get(name, 0.0), 0.0) for name, value in after.items()}
