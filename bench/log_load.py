"""The load of `./run bench log`, the same for both systems: tasks that append in a loop, and their cost.

The client measures everything at the same two moments: records that were acknowledged, CPU time of every process that
takes part (servers, coordinator, supervisor and the client itself, with their children), and latencies in between.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from statistics import median

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
SAMPLES_MAX = 200_000  # latencies that are kept; a run of a few seconds has fewer

Append = Callable[[], Awaitable[object]]


@dataclass(frozen=True)
class Figures:
    """One measured window."""

    records: int
    seconds: float
    cpu_seconds: float  # of all processes
    client_cpu_seconds: float  # the client's part of it
    p50_ms: float
    p99_ms: float

    @property
    def records_per_second(self) -> float:
        return self.records / self.seconds

    @property
    def cpu_seconds_per_million(self) -> float:
        return self.cpu_seconds / self.records * 1e6

    @property
    def client_cpu_seconds_per_million(self) -> float:
        return self.client_cpu_seconds / self.records * 1e6


def middle(runs: Sequence[Figures]) -> Figures:
    """The median of each figure over the runs, normalized to one second of work."""
    rate = median(run.records_per_second for run in runs)
    return Figures(
        records=round(rate),
        seconds=1.0,
        cpu_seconds=median(run.cpu_seconds_per_million for run in runs) * rate / 1e6,
        client_cpu_seconds=median(run.client_cpu_seconds_per_million for run in runs) * rate / 1e6,
        p50_ms=median(run.p50_ms for run in runs),
        p99_ms=median(run.p99_ms for run in runs),
    )


def cpu_seconds(pids: Sequence[int]) -> float:
    """User and system time that these processes and their ended children have used so far."""
    return sum(sum(_times(pid)) for pid in pids) / TICKS_PER_SECOND


def _times(pid: int) -> tuple[int, ...]:
    with open(f"/proc/{pid}/stat") as file:
        return parse_times(file.read())


def parse_times(stat: str) -> tuple[int, ...]:
    """utime, stime, cutime and cstime of a line of /proc/PID/stat; the name of the program may contain anything."""
    fields = stat[stat.rindex(")") + 2 :].split()
    return tuple(int(field) for field in fields[11:15])


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


async def measure(
    append: Append, *, tasks: int, records: int, warm_up_s: float, seconds: float, servers: Sequence[int]
) -> Figures:
    """Let ``tasks`` tasks call ``append`` (which commits ``records`` records) in a loop, and measure a window."""
    done = 0
    latencies: list[float] = []
    measuring = stopping = False

    async def work() -> None:
        nonlocal done
        while not stopping:
            began = time.perf_counter()
            await append()
            done += records
            if measuring and len(latencies) < SAMPLES_MAX:
                latencies.append(time.perf_counter() - began)

    workers = [asyncio.create_task(work()) for _ in range(tasks)]
    everyone = [*servers, os.getpid()]
    try:
        await _pass(workers, warm_up_s)
        measuring = True
        began, done_before = time.perf_counter(), done
        cpu_before, own_before = cpu_seconds(everyone), time.process_time()
        await _pass(workers, seconds)
        elapsed, count = time.perf_counter() - began, done - done_before
        cpu, own = cpu_seconds(everyone) - cpu_before, time.process_time() - own_before
        measuring, stopping = False, True
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    if not latencies:
        raise SystemExit(f"nothing was acknowledged within {seconds} s: is the machine overloaded? Run it again")
    p50, p99 = (percentile(latencies, share) * 1000 for share in (0.5, 0.99))
    return Figures(count, elapsed, cpu, own, p50, p99)


async def _pass(workers: Sequence[asyncio.Task[None]], seconds: float) -> None:
    """Wait, unless a worker fails: its error is the error of the run."""
    ended, _ = await asyncio.wait(workers, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    for worker in ended:
        worker.result()
