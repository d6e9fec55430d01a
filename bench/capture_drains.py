"""How fast a capture copies what is there: small transactions, one large one, and a snapshot that is interrupted."""

from __future__ import annotations

import time
from dataclasses import dataclass

from capture_rig import Bench, CaptureProcess, LogReader, wait_complete

from database_judge import census, differences, states
from trunkline import sync

SINGLE = "CREATE TABLE bench_single (id bigint PRIMARY KEY, note text, at timestamptz DEFAULT now())"
SINGLE_ROWS = """
DO $$ BEGIN
  FOR number IN {first}..{last} LOOP
    INSERT INTO bench_single VALUES (number, 'a row of a transaction of its own');
    COMMIT;
  END LOOP;
END $$
"""
WIDE = """
CREATE TABLE {name} (
  id bigint PRIMARY KEY, note text DEFAULT 'a row of many', amount numeric(12,2) DEFAULT 12.34,
  at timestamptz DEFAULT now()
)
"""
FILL = "COPY {name} (id) FROM PROGRAM 'seq {first} {last}'"
MARKER = "INSERT INTO {name} (id) SELECT coalesce(min(id), 0) - 1 FROM {name}"
BASELINE_S = 30.0
NOT_SYNCED = "SET synchronous_commit = off"


@dataclass
class Drained:
    """``rate``: a second, from the first entry of the log to the last."""

    what: str
    count: int
    rate: float
    cpu_seconds: float
    peak_mib: float
    entries: int
    verdict: str = ""


@dataclass
class Snapshot:
    rows: int
    rate: float
    cpu_seconds: float
    peak_mib: float
    chunks: int
    kills: int
    restarted: bool  # whether an interrupted snapshot began again
    verdict: str = ""


def measure_backlog(bench: Bench, transactions: int) -> list[Drained]:
    """One row each. The baseline: the capture of one table, with another slot over the same transactions."""
    bench.execute(SINGLE, "ALTER TABLE bench_single REPLICA IDENTITY FULL")  # the capture of one table needs it
    whole = bench.capture("backlog", "--tables", "public.bench_single")
    whole.start()
    wait_complete(whole, LogReader(bench, whole.log), 1)
    single = bench.capture("baseline", "--table", "public.bench_single")
    single.start()
    single.until("a slot", lambda: single.slot_state() is not None)
    for capture in (whole, single):
        capture.settle(MARKER.format(name="bench_single"))
        capture.stop()
    bench.say(f"{transactions:,} transactions of one row, while nothing is captured")
    bench.execute(NOT_SYNCED, SINGLE_ROWS.format(first=1, last=transactions))
    return [_drained(bench, whole, "whole database"), _baseline(bench, single, transactions)]


def _drained(bench: Bench, capture: CaptureProcess, what: str) -> Drained:
    reader = LogReader(bench, capture.log).advance()
    begin, cpu = len(reader.times), capture.cpu_seconds
    bench.say(f"draining: {what}")
    capture.start()
    capture.settle(MARKER.format(name="bench_single"))
    used, peak = capture.cpu_seconds - cpu, capture.peak_mib
    capture.stop()
    times = reader.advance().times[begin:]
    count = sum(done for _, done, _ in times)
    return Drained(
        what, count, _rate([(at, done) for at, done, _ in times]), used, peak, len(times), compared(bench, capture.log)
    )


def _baseline(bench: Bench, capture: CaptureProcess, transactions: int) -> Drained:
    """Its log has the format of one table: entries are transactions. The first of the backlog are enough for a rate."""
    bench.say("draining: one table, as before")
    with sync.connect(bench.cluster.address) as handle:
        log = handle.log(capture.log)
        begin, cpu = log.tail(), capture.cpu_seconds
        ends = time.monotonic() + BASELINE_S
        capture.start()
        capture.until("a part of the backlog", lambda: log.tail() > begin + transactions or time.monotonic() > ends)
        used, peak = capture.cpu_seconds - cpu, capture.peak_mib
        capture.stop()
        times = [(entry.time_ms, 1) for entry in log.subscribe(start=begin, to_tail=True)]
    return Drained("one table, as before", len(times), _rate(times), used, peak, len(times))


def _rate(times: list[tuple[int, int]]) -> float:
    """What comes with the first entry was there when the time began."""
    if len(times) < 2 or times[-1][0] == times[0][0]:
        return 0.0
    return sum(count for _, count in times[1:]) / (times[-1][0] - times[0][0]) * 1000


def measure_copy(bench: Bench, rows: int) -> Drained:
    """One transaction of many rows, larger than memory should hold."""
    bench.execute(WIDE.format(name="bench_copied"))
    capture = bench.capture("copied", "--tables", "public.bench_copied")
    capture.start()
    reader = LogReader(bench, capture.log)
    wait_complete(capture, reader, 1)
    capture.settle(MARKER.format(name="bench_copied"))
    begin, cpu = len(reader.advance().times), capture.cpu_seconds
    bench.say(f"one COPY of {rows:,} rows")
    bench.execute(FILL.format(name="bench_copied", first=1, last=rows))
    capture.settle(MARKER.format(name="bench_copied"))
    used, peak = capture.cpu_seconds - cpu, capture.peak_mib
    capture.stop()
    times = reader.advance().times[begin:]
    copied = [(at, count) for at, _, count in times]
    count = sum(each for _, each in copied)
    return Drained("one COPY", count, _rate(copied), used, peak, len(times), compared(bench, capture.log))


def measure_snapshot(bench: Bench, rows: int, kills: int) -> list[Snapshot]:
    """A table that is there before the capture: undisturbed, then killed in the middle."""
    bench.execute(WIDE.format(name="bench_present"))
    bench.say(f"a table of {rows:,} rows")
    bench.execute(
        NOT_SYNCED, FILL.format(name="bench_present", first=1, last=rows), "ANALYZE bench_present", "CHECKPOINT"
    )
    return [_snapshot(bench, "present", rows, 0), _snapshot(bench, "present_killed", rows, kills)]


def _snapshot(bench: Bench, log: str, rows: int, kills: int) -> Snapshot:
    bench.say(f"its snapshot{f', killed {kills} times' if kills else ''}")
    capture, reader = bench.capture(log, "--tables", "public.bench_present"), LogReader(bench, log)
    capture.start()
    for number in range(1, kills + 1):
        target = rows * number // (kills + 1)
        capture.until(
            "a part of the snapshot",
            lambda target=target: reader.advance().chunk_rows >= target or bool(reader.complete),
        )
        capture.kill()
        capture.start()
    wait_complete(capture, reader, 1)
    used, peak = capture.cpu_seconds, capture.peak_mib
    capture.stop()
    reader.advance()
    numbers = [(generation, chunk) for generation, chunk, _, _ in reader.chunks]
    restarted = numbers != [(1, number) for number in range(len(numbers))]
    rate = _rate([(at, count) for *_, at, count in reader.chunks])
    verdict = "" if reader.chunk_rows == rows else f"{reader.chunk_rows:,} rows of {rows:,} were read"
    return Snapshot(reader.chunk_rows, rate, used, peak, len(numbers), kills, restarted, verdict)


def compared(bench: Bench, log: str) -> str:
    """What differs between the tables of the server and those of the log."""
    bench.say("comparing the log with the server")
    with sync.connect(bench.cluster.address) as handle:
        opened = handle.log(log)
        assert census(opened.subscribe(start=1, to_tail=True)).entries
        [last] = states(opened.subscribe(start=1, to_tail=True), ())
    if not last.tables:
        return "no table is complete"
    differs = differences(bench.dsn, last.tables)
    return "; ".join(
        f"{name}: {only[0]:,} rows only in the server, {only[1]:,} only in the log" for name, only in differs.items()
    )
