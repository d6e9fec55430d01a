"""The rounds of `./run bench log`: what is measured, how often, and in which order.

The two systems take turns, so that noise of the machine affects both. Every round has a new cluster, and the other
system is stopped.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from log_big_node import BigNode, measure_big_node
from log_load import Figures
from log_machine import machine_facts
from log_nats import NatsCluster, nats_cluster, server_package
from log_trunkline import TrunklineCluster, trunkline_cluster

RECORD_BYTES, RECORDS_PER_APPEND = 1024, 100
SINGLE_TASKS = 64
APPEND_TASKS = (16, 32, 64)  # candidates for the load of Trunkline
SMALL_BYTES = 100
SUBSCRIBE_PER_BATCH = 100
IDLE_S = 20.0
# Candidates for the load of the baseline: way, connections, batches in flight. The fastest one is measured.
NATS_BATCHES = (("pipelined", 1, 8), ("pipelined", 1, 32), ("atomic", 1, 8), ("atomic", 1, 16), ("fast", 1, 16))
NATS_SINGLES = (("pipelined", 1, SINGLE_TASKS), ("pipelined", SINGLE_TASKS, SINGLE_TASKS))


@dataclass(frozen=True)
class Plan:
    rounds: int = 3
    seconds: float = 5.0
    warm_up_s: float = 1.5
    trial_s: float = 2.0
    subscribe_records: int = 2_000_000
    idle_s: float = IDLE_S
    big_entries: int = 10_000_000
    big_batches: tuple[int, ...] = (100, 1)


QUICK = Plan(1, 2.0, 0.5, 1.0, 200_000, 5.0, 1_000_000, (100,))


@dataclass
class Results:
    """All measurements; ``None`` if skipped."""

    machine: dict[str, Any]
    nats_version: str = ""
    nats_batch_load: tuple[str, int, int] = NATS_BATCHES[0]
    nats_single_load: tuple[str, int, int] = NATS_SINGLES[0]
    append_tasks: int = APPEND_TASKS[0]
    nats_batches: list[Figures] = field(default_factory=list)
    nats_singles: list[Figures] = field(default_factory=list)
    batches: list[Figures] = field(default_factory=list)
    singles: list[Figures] = field(default_factory=list)
    subscribe: dict[str, Any] = field(default_factory=dict)
    idle_percent: float | None = None
    big_nodes: list[BigNode] = field(default_factory=list)


class Bench:
    def __init__(self, plan: Plan, directory: Path, say: Callable[[str], None]) -> None:
        self._plan = plan
        self._directory = directory
        self._say = say
        self.results = Results(machine_facts(directory))

    def run(self, *, nats: bool, big_node: bool) -> Results:
        if nats:
            self._choose_nats_load()
        self._choose_append_tasks()
        for number in range(1, self._plan.rounds + 1):
            if nats:
                self._nats_round(number)
            self._trunkline_round(number)
        self._subscribe_and_idle()
        if big_node:
            self._big_nodes()
        return self.results

    # ------------------------------------------------------------------------------------------------------- baseline

    def _choose_nats_load(self) -> None:
        self.results.nats_version = server_package().version
        self._say("NATS JetStream: looking for the load that suits it best")
        with self._emptied() as directory, nats_cluster(directory) as cluster:
            self.results.nats_batch_load = self._fastest(cluster, NATS_BATCHES, RECORDS_PER_APPEND)
            self.results.nats_single_load = self._fastest(cluster, NATS_SINGLES, 1)

    def _fastest(
        self, cluster: NatsCluster, loads: tuple[tuple[str, int, int], ...], count: int
    ) -> tuple[str, int, int]:
        rates = {load: self._nats(cluster, load, count, self._plan.trial_s).records_per_second for load in loads}
        for (way, connections, tasks), rate in rates.items():
            self._say(f"  {way}, {connections} connections, {tasks} in flight, {count} a batch: {rate:,.0f} records/s")
        return max(rates, key=lambda load: rates[load])

    def _nats_round(self, number: int) -> None:
        results, seconds = self.results, self._plan.seconds
        with self._emptied() as directory, nats_cluster(directory) as cluster:
            found = self._nats(cluster, results.nats_batch_load, RECORDS_PER_APPEND, seconds)
            results.nats_batches.append(found)
            self._say_figures(f"round {number}: NATS, 100 x 1 KiB", found)
            found = self._nats(cluster, results.nats_single_load, 1, seconds)
            results.nats_singles.append(found)
            self._say_figures(f"round {number}: NATS, single records", found)

    def _nats(self, cluster: NatsCluster, load: tuple[str, int, int], count: int, seconds: float) -> Figures:
        way, connections, tasks = load
        return cluster.publish(
            way=way,
            connections=connections,
            tasks=tasks,
            count=count,
            payload_bytes=RECORD_BYTES,
            warm_up_s=self._plan.warm_up_s,
            seconds=seconds,
        )

    # ------------------------------------------------------------------------------------------------------ Trunkline

    def _choose_append_tasks(self) -> None:
        self._say("Trunkline: looking for the load that suits it best")
        rates = {}
        with self._emptied() as directory, trunkline_cluster(directory) as cluster:
            for tasks in APPEND_TASKS:
                found = self._append(cluster, tasks, RECORDS_PER_APPEND, self._plan.trial_s)
                rates[tasks] = found.records_per_second
                self._say(f"  {tasks} tasks, {RECORDS_PER_APPEND} an append: {rates[tasks]:,.0f} records/s")
        self.results.append_tasks = max(rates, key=lambda tasks: rates[tasks])

    def _trunkline_round(self, number: int) -> None:
        results, seconds = self.results, self._plan.seconds
        with self._emptied() as directory, trunkline_cluster(directory) as cluster:
            found = self._append(cluster, results.append_tasks, RECORDS_PER_APPEND, seconds)
            results.batches.append(found)
            self._say_figures(f"round {number}: Trunkline, 100 x 1 KiB", found)
            found = self._append(cluster, SINGLE_TASKS, 1, seconds)
            results.singles.append(found)
            self._say_figures(f"round {number}: Trunkline, single records", found)

    def _append(self, cluster: TrunklineCluster, tasks: int, count: int, seconds: float) -> Figures:
        return cluster.append(
            tasks=tasks,
            count=count,
            payload_bytes=RECORD_BYTES,
            warm_up_s=self._plan.warm_up_s,
            seconds=seconds,
        )

    def _subscribe_and_idle(self) -> None:
        plan, results = self._plan, self.results
        with self._emptied() as directory, trunkline_cluster(directory) as cluster:
            self._say(f"subscribing to {plan.subscribe_records:,} records of {SMALL_BYTES} B")
            found = cluster.subscribe(
                records=plan.subscribe_records,
                count=SUBSCRIBE_PER_BATCH,
                payload_bytes=SMALL_BYTES,
                repeats=plan.rounds,
            )
            results.subscribe = {name: median(values) for name, values in found.items()}
            self._say(f"idle for {plan.idle_s:.0f} s")
            results.idle_percent = cluster.idle_percent(plan.idle_s)

    def _big_nodes(self) -> None:
        for per_batch in self._plan.big_batches:
            self._say(f"a node with {self._plan.big_entries:,} entries in batches of {per_batch}")
            with self._emptied() as directory:
                self.results.big_nodes.append(measure_big_node(directory, self._plan.big_entries, per_batch))

    # --------------------------------------------------------------------------------------------------------- inside

    @contextmanager
    def _emptied(self) -> Iterator[Path]:
        """A temporary directory for one part: the disk has the data of one part at a time."""
        with tempfile.TemporaryDirectory(prefix="part-", dir=self._directory) as directory:
            yield Path(directory)

    def _say_figures(self, what: str, found: Figures) -> None:
        self._say(
            f"{what}: {found.records_per_second:,.0f} records/s, {found.cpu_seconds_per_million:.1f} CPU-s per million,"
            f" p50 {found.p50_ms:.1f} ms, p99 {found.p99_ms:.1f} ms"
        )
