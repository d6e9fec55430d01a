"""The report of `./run bench spark`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from log_machine import is_busy
from spark_rounds import CORES, PER_BATCH, RECORD_BYTES, Results

READ_GOAL = 2_000_000  # records per second
STREAM_GOAL_MS = 500.0


@dataclass(frozen=True)
class Verdict:
    goal: str
    measured: str
    met: bool


def verdicts(results: Results) -> list[Verdict]:
    rate, delay = results.spark_rate, results.p50_ms
    return [
        Verdict(f"Spark reads at least {READ_GOAL:,} records/s", f"{rate:,.0f} records/s", rate >= READ_GOAL),
        Verdict(
            f"half of a stream's entries within {STREAM_GOAL_MS:.0f} ms", f"{delay:.0f} ms", delay < STREAM_GOAL_MS
        ),
    ]


def report_lines(results: Results) -> Iterator[str]:
    facts = results.machine
    yield (
        f"machine: {facts['cores']} cores ({facts['processor']}), {facts['memory_gib']} GiB, Linux {facts['kernel']}; "
        f"Python {facts['python']}"
    )
    if is_busy(facts):
        yield f"the machine was busy before this began (load {facts['load_before']}): expect lower figures and noise"
    yield ""
    yield f"{results.records:,} records of {RECORD_BYTES} B in batches of {PER_BATCH}, median of the rounds:"
    yield f"  plain client, batches(), one process       {results.client_rate:>12,.0f} records/s"
    yield f"  Spark, {CORES} partitions: glsn and payload        {results.spark_rate:>12,.0f} records/s"
    yield f"  Spark, {CORES} partitions: all columns             {median(results.all_columns_rates):>12,.0f} records/s"
    yield f"stream, from append to foreachBatch: p50 {results.p50_ms:.0f} ms, p99 {results.p99_ms:.0f} ms"
    yield ""
    for verdict in verdicts(results):
        yield f"{'PASS' if verdict.met else 'FAIL'}  {verdict.goal}: {verdict.measured}"


def report_values(results: Results) -> dict[str, Any]:
    values = asdict(results) | {"p50_ms": results.p50_ms, "p99_ms": results.p99_ms}
    del values["latencies_ms"]
    return values | {"verdicts": [asdict(verdict) for verdict in verdicts(results)]}
