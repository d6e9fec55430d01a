"""The report of `./run bench capture`: figures with units, and a table of goals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from capture_debezium import Comparison, Side
from capture_drains import Drained, Snapshot
from capture_pgbench import PgbenchResult
from capture_tables import ManyTables, Retained
from log_machine import is_busy

BACKLOG_GOAL = 15_000  # transactions a second
COPY_GOAL = 100_000  # rows a second
COPY_MIB = 500
SNAPSHOT_GOAL = 200_000  # rows a second
LAG_GROWTH_MIB = 16.0  # more from the second quarter to the last: it falls behind
CREATED_S = 10.0
DISTANCE_MIB = 16.0  # a position is written every 4 MiB
RETAINED_MIB = 64.0  # the server moves what it keeps every 15 s
RATE_GOAL = 2 / 3  # of pgbench alone
LAG_GOAL_S = 2.0  # 99 of 100 samples


@dataclass
class Results:
    machine: dict[str, Any]
    parts: dict[str, Any] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)  # parts that cannot run here
    failed: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    goal: str
    measured: str
    met: bool


def verdicts(results: Results) -> list[Verdict]:
    return [verdict for name, part in results.parts.items() for verdict in GOALS[name](part)]


def _pgbench(part: PgbenchResult) -> Iterator[Verdict]:
    kills = f" with {part.kills} kills" if part.kills else ""
    agreed = part.verdict or f"they do, at {part.judged_ends} transactions and at the end"
    yield Verdict(f"pgbench{kills}: sums of all tables agree, rows are the server's", agreed, not part.verdict)
    if part.kills:
        return
    share = part.rate / part.rate_alone
    yield Verdict("pgbench loses at most a third of its rate", f"{share:.0%} are left", share >= RATE_GOAL)
    lag_s = part.lag_s[1]
    yield Verdict(
        f"pgbench at full speed: a lag of less than {LAG_GOAL_S:g} s (p99)", f"{lag_s:.1f} s", lag_s < LAG_GOAL_S
    )
    growth = f"{part.lag_growth_mib:+.1f} MiB from the second quarter to the last"
    yield Verdict("pgbench at full speed: the lag does not grow", growth, part.lag_growth_mib < LAG_GROWTH_MIB)


def _backlog(part: list[Drained]) -> Iterator[Verdict]:
    ours, before = part
    yield Verdict(f"a backlog: {BACKLOG_GOAL:,} transactions/s", f"{ours.rate:,.0f}", ours.rate >= BACKLOG_GOAL)
    yield Verdict("a backlog: faster than the capture of one table", f"{before.rate:,.0f}", ours.rate > before.rate)
    yield Verdict("a backlog: rows are the server's", ours.verdict or "they are", not ours.verdict)


def _copy(part: Drained) -> Iterator[Verdict]:
    yield Verdict(f"one COPY: {COPY_GOAL:,} rows/s", f"{part.rate:,.0f}", part.rate >= COPY_GOAL)
    yield Verdict(f"one COPY: less than {COPY_MIB} MiB", f"{part.peak_mib:,.0f} MiB", part.peak_mib < COPY_MIB)
    yield Verdict("one COPY: rows are the server's", part.verdict or "they are", not part.verdict)


def _snapshot(part: list[Snapshot]) -> Iterator[Verdict]:
    whole, killed = part
    yield Verdict(f"a snapshot: {SNAPSHOT_GOAL:,} rows/s", f"{whole.rate:,.0f}", whole.rate >= SNAPSHOT_GOAL)
    order = "it began again" if killed.restarted else f"chunks 0 to {killed.chunks - 1}, each once"
    yield Verdict(f"a snapshot, killed {killed.kills} times, goes on", order, not killed.restarted)
    for each in part:
        yield Verdict("a snapshot: every row once", each.verdict or f"{each.rows:,} rows", not each.verdict)


def _tables(part: ManyTables) -> Iterator[Verdict]:
    yield Verdict(
        f"a new table is captured within {CREATED_S:.0f} s", f"{part.created_s:.1f} s", part.created_s < CREATED_S
    )
    yield Verdict(f"{part.tables + 1} tables: rows are the server's", part.verdict or "they are", not part.verdict)


def _retained(part: Retained) -> Iterator[Verdict]:
    distance = max(part.distance_mib)
    goal = f"only other tables change: less than {DISTANCE_MIB:.0f} MiB not confirmed"
    yield Verdict(goal, f"{distance:.0f} MiB of {part.written_mib:,.0f}", distance < DISTANCE_MIB)
    half = len(part.retained_mib) // 2
    before, after = max(part.retained_mib[:half]), max(part.retained_mib[half:])
    kept = f"at most {before:.0f} MiB in the first half, {after:.0f} in the second"
    goal = f"only other tables change: the server keeps less than {RETAINED_MIB:.0f} MiB"
    yield Verdict(goal, kept, max(before, after) < RETAINED_MIB)


def _debezium(part: Comparison) -> Iterator[Verdict]:
    yield Verdict("as fast as Debezium", f"{part.rate_ratio:.2f} times as fast", part.rate_ratio >= 1)
    yield Verdict("half of Debezium's CPU time", f"1/{part.cpu_ratio:.2f} of it", part.cpu_ratio >= 2)
    yield Verdict("both, replayed, are the server's tables", part.verdict or "they are", not part.verdict)


def _tenth(samples: list[float]) -> str:
    """About ten of them."""
    step = max(len(samples) // 10, 1)
    return " ".join(f"{each:.0f}" for each in samples[step - 1 :: step])


GOALS: dict[str, Callable[[Any], Iterator[Verdict]]] = {
    "pgbench": _pgbench,
    "kills": _pgbench,
    "backlog": _backlog,
    "copy": _copy,
    "snapshot": _snapshot,
    "tables": _tables,
    "retained": _retained,
    "debezium": _debezium,
}


# -------------------------------------------------------------------------------------------------------------- figures


def report_lines(results: Results) -> Iterator[str]:
    facts = results.machine
    yield (
        f"machine: {facts['cores']} cores ({facts['processor']}), {facts['memory_gib']} GiB, Linux {facts['kernel']}, "
        f"{facts['file_system']}; Python {facts['python']}"
    )
    if is_busy(facts):
        yield f"the machine was busy before this began (load {facts['load_before']}): expect lower figures and noise"
    for name, part in results.parts.items():
        yield ""
        yield f"{name}:"
        yield from (f"  {line}" for each in (part if isinstance(part, list) else [part]) for line in _lines(each))
    yield ""
    for name, why in (results.missing | results.failed).items():
        yield f"{name} was not measured: {why}"
    for verdict in verdicts(results):
        yield f"{'PASS' if verdict.met else 'FAIL'}  {verdict.goal}: {verdict.measured}"


def _lines(part: Any) -> Iterator[str]:
    match part:
        case PgbenchResult():
            yield from _pgbench_lines(part)
        case Drained():
            yield f"{part.what}: {part.count:,} in {part.entries:,} entries, {part.rate:,.0f}/s"
            yield f"  {part.cpu_seconds:.1f} CPU-s of the capture, peak {part.peak_mib:,.0f} MiB"
        case Snapshot():
            yield f"{part.rows:,} rows in {part.chunks:,} chunks, {part.kills} kills: {part.rate:,.0f} rows/s"
            yield f"  {part.cpu_seconds:.1f} CPU-s of the capture, peak {part.peak_mib:,.0f} MiB"
        case ManyTables():
            yield f"{part.tables} empty tables: complete in {part.complete_s:.1f} s; one more: {part.created_s:.1f} s"
            yield f"{part.busy} busy: {part.rate:,.0f} transactions/s, commit to append p50 {part.delay_ms:.0f} ms"
            yield f"  {part.cpu_seconds:.1f} CPU-s of the capture, peak {part.peak_mib:,.0f} MiB"
        case Retained():
            yield f"{part.written_mib:,.0f} MiB of WAL in {part.minutes:g} minutes; {part.entries} entries written"
            yield f"  not confirmed, MiB: {_tenth(part.distance_mib)}"
            yield f"  kept by the server, MiB: {_tenth(part.retained_mib)}"
        case Comparison():
            yield f"a backlog of {part.transactions:,} transactions, {part.changes:,} changes"
            yield _side("capture and log", part.ours)
            yield _side("Debezium", part.debezium)
            yield f"capture to Debezium: {part.rate_ratio:.2f} times the rate, 1/{part.cpu_ratio:.2f} of the CPU time"


def _pgbench_lines(part: PgbenchResult) -> Iterator[str]:
    share = part.rate / part.rate_alone if part.rate_alone else 0.0
    alone = f"{part.rate_alone:,.0f} transactions/s, latency {part.latency_alone_ms:.2f} ms"
    yield f"alone: {alone}; {_cpu(part.cpu_alone)}"
    yield f"captured: {part.rate:,.0f} transactions/s ({share:.0%}), latency {part.latency_ms:.2f} ms; {_cpu(part.cpu)}"
    (mib, mib_high), (seconds, seconds_high) = part.lag_mib, part.lag_s
    yield f"lag: p50 {mib:.2f} MiB, p99 {mib_high:.2f} MiB; p50 {seconds:.1f} s, p99 {seconds_high:.1f} s"
    yield f"commit to append: p50 {part.delay_ms[0]:.0f} ms, p99 {part.delay_ms[1]:.0f} ms"
    yield f"log: {part.transactions:,} transactions in {part.entries:,} entries, {part.log_mib:,.0f} MiB"
    yield f"capture: peak {part.peak_mib:,.0f} MiB; {part.kills} kills"


def _cpu(groups: dict[str, float]) -> str:
    return "CPU-s: " + ", ".join(f"{name} {seconds:.1f}" for name, seconds in groups.items())


def _side(name: str, side: Side) -> str:
    return f"{name}: {side.rate:,.0f} changes/s, {side.cpu_seconds:.1f} CPU-s, peak {side.peak_mib:,.0f} MiB"


def report_values(results: Results) -> dict[str, Any]:
    return asdict(results) | {"verdicts": [asdict(verdict) for verdict in verdicts(results)]}
