"""The report of `./run bench log`: figures of both systems, their ratios, and whether each goal is met."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from log_big_node import BigNode
from log_load import Figures, middle
from log_machine import is_busy
from log_rounds import RECORDS_PER_APPEND, SINGLE_TASKS, SMALL_BYTES, SUBSCRIBE_PER_BATCH, Results

RATE_GOAL = 2.5  # times the baseline
CPU_GOAL = 1 / 3  # of the baseline
SUBSCRIBE_GOAL = 500_000  # records per second
IDLE_GOAL_PERCENT = 2.0
BIG_ENTRIES = 10_000_000
BIG_MEMORY_GOAL_MIB = 300.0
BIG_RESTART_GOAL_S = 3.0


@dataclass(frozen=True)
class Verdict:
    goal: str
    measured: str
    met: bool


def verdicts(results: Results) -> list[Verdict]:
    return [*_against_baseline(results), *_alone(results), *_big_nodes(results.big_nodes)]


def _against_baseline(results: Results) -> Iterator[Verdict]:
    if not results.nats_batches:
        return
    nats, ours = middle(results.nats_batches), middle(results.batches)
    rate = ours.records_per_second / nats.records_per_second
    yield Verdict(f"records/s at least {RATE_GOAL} x NATS", f"{rate:.2f} x", rate >= RATE_GOAL)
    cpu = ours.cpu_seconds_per_million / nats.cpu_seconds_per_million
    yield Verdict("CPU-seconds per million at most 1/3 of NATS", f"{cpu:.2f} of it", cpu <= CPU_GOAL)
    nats, ours = middle(results.nats_singles), middle(results.singles)
    rate = ours.records_per_second / nats.records_per_second
    yield Verdict(f"single appends from {SINGLE_TASKS} tasks at least as many", f"{rate:.2f} x", rate >= 1)


def _alone(results: Results) -> Iterator[Verdict]:
    size = f"{SMALL_BYTES} B in batches of {SUBSCRIBE_PER_BATCH}"
    for name, what in (("batches", "batches()"), ("entries", "subscribe(), entry by entry,")):
        rate = results.subscribe.get(name)
        if rate is not None:
            goal = f"{what} at least {SUBSCRIBE_GOAL:,} records/s at {size}"
            yield Verdict(goal, f"{rate:,.0f} records/s", rate >= SUBSCRIBE_GOAL)
    idle = results.idle_percent
    if idle is not None:
        yield Verdict(
            f"idle cluster below {IDLE_GOAL_PERCENT:.0f} % of a core", f"{idle:.2f} %", idle < IDLE_GOAL_PERCENT
        )


def _big_nodes(nodes: list[BigNode]) -> Iterator[Verdict]:
    """Goals are set for ten million entries in batches of 100; other sizes have no goals."""
    for node in nodes:
        if node.entries < BIG_ENTRIES or node.per_batch != 100:
            continue
        size = f"{node.entries:,} entries in batches of {node.per_batch}"
        memory = max(node.rss_mib, node.peak_mib)
        goal = f"a node with {size} below {BIG_MEMORY_GOAL_MIB:.0f} MiB"
        yield Verdict(goal, f"{memory:.0f} MiB", memory < BIG_MEMORY_GOAL_MIB)
        goal = f"... and restarts within {BIG_RESTART_GOAL_S:.0f} s"
        yield Verdict(goal, f"{node.restart_s:.2f} s", node.restart_s < BIG_RESTART_GOAL_S)


# ------------------------------------------------------------------------------------------------------------ as text


def report_lines(results: Results) -> Iterator[str]:
    yield from _machine_lines(results.machine, results.nats_version or "left out")
    yield ""
    yield from _table(results)
    yield ""
    yield from _alone_lines(results)
    yield ""
    for verdict in verdicts(results):
        yield f"{'PASS' if verdict.met else 'FAIL'}  {verdict.goal}: {verdict.measured}"


def _machine_lines(facts: dict[str, Any], nats_version: str) -> Iterator[str]:
    yield (
        f"machine: {facts['cores']} cores ({facts['processor']}), {facts['memory_gib']} GiB, Linux {facts['kernel']},"
        f" {facts['file_system']}; 100 KiB written and synced: p50 {facts['sync_p50_ms']} ms,"
        f" p99 {facts['sync_p99_ms']} ms"
    )
    yield f"programs: Python {facts['python']}, uvloop {facts['uvloop']}, nats-server {nats_version}"
    if is_busy(facts):
        yield f"the machine was busy before this began (load {facts['load_before']}): expect lower figures and noise"


def _table(results: Results) -> Iterator[str]:
    yield f"{'median of the rounds':44}{'records/s':>12}{'CPU-s/M':>10}{'client':>8}{'p50 ms':>9}{'p99 ms':>9}"
    way, connections, tasks = results.nats_batch_load
    batch = f"{RECORDS_PER_APPEND} x 1 KiB"
    if results.nats_batches:
        yield _row(f"NATS {batch} ({way}, {tasks} in flight)", middle(results.nats_batches))
    yield _row(f"Trunkline {batch} ({results.append_tasks} tasks)", middle(results.batches))
    way, connections, tasks = results.nats_single_load
    if results.nats_singles:
        yield _row(f"NATS 1 x 1 KiB ({tasks} tasks, {connections} connections)", middle(results.nats_singles))
    yield _row(f"Trunkline 1 x 1 KiB ({SINGLE_TASKS} tasks)", middle(results.singles))


def _row(name: str, found: Figures) -> str:
    return (
        f"{name:44}{found.records_per_second:>12,.0f}{found.cpu_seconds_per_million:>10.1f}"
        f"{found.client_cpu_seconds_per_million:>8.1f}{found.p50_ms:>9.1f}{found.p99_ms:>9.1f}"
    )


def _alone_lines(results: Results) -> Iterator[str]:
    found = results.subscribe
    if found:
        yield (
            f"subscribe, {SMALL_BYTES} B in batches of {SUBSCRIBE_PER_BATCH}:"
            f" batches() {found['batches']:,.0f} records/s"
            f" ({found['cpu_seconds_per_million']:.2f} CPU-s per million),"
            f" entry by entry {found['entries']:,.0f} records/s"
        )
    if results.idle_percent is not None:
        yield f"idle cluster: {results.idle_percent:.2f} % of a core, all processes"
    for node in results.big_nodes:
        yield (
            f"node with {node.entries:,} entries in batches of {node.per_batch}: {node.rss_mib:.0f} MiB"
            f" (peak {node.peak_mib:.0f}), answers {node.restart_s:.2f} s after kill -9 and start,"
            f" served the last entry after {node.read_s:.2f} s"
        )


# ------------------------------------------------------------------------------------------------------------ as JSON


def report_values(results: Results) -> dict[str, Any]:
    values = asdict(results)
    for name in ("nats_batches", "nats_singles", "batches", "singles"):
        runs: list[Figures] = getattr(results, name)
        values[name] = [_run_values(run) for run in runs]
    values["verdicts"] = [asdict(verdict) for verdict in verdicts(results)]
    return values


def _run_values(run: Figures) -> dict[str, float]:
    return {
        "records_per_second": round(run.records_per_second, 1),
        "cpu_seconds_per_million": round(run.cpu_seconds_per_million, 3),
        "client_cpu_seconds_per_million": round(run.client_cpu_seconds_per_million, 3),
        "p50_ms": round(run.p50_ms, 3),
        "p99_ms": round(run.p99_ms, 3),
    }
