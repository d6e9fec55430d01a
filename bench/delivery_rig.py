"""Drives the real job runner of a deliverer over windows, and measures each of them.

A window is measured from the call until everything is committed: wall time, CPU time of the driver, Java, the Python
workers and the database server, and the split of the wall time (``delivery_spans``). The first windows do not count.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from itertools import count
from pathlib import Path
from statistics import median

from delivery_source import Made
from delivery_spans import DIRECTORY, PROFILE, Spans, Split, time_driver
from log_load import cpu_seconds
from log_processes import BENCH, Failed
from msgspec.structs import replace
from pyspark.sql import SparkSession

from trunkline.core.delivery_messages import FlushGroup, JobMember, Outcome, SeedGroup, SeedMode
from trunkline.delivery.config.tree import ReadingConfig
from trunkline.delivery.engine.session import spark_session, stop_session
from trunkline.delivery.job.results import JobReport
from trunkline.delivery.job.runner import JobRunner
from trunkline.delivery.job.work import TaskPipeline

WELL = (Outcome.APPLIED, Outcome.ALREADY)


@dataclass(frozen=True)
class Figures:
    """One window, or the median of several."""

    operations: int
    seconds: float
    cpu_seconds: float
    split: Split | None = None

    @property
    def rate(self) -> float:
        return self.operations / self.seconds

    @property
    def cpu_seconds_per_million(self) -> float:
        return self.cpu_seconds / self.operations * 1e6


def middle(windows: Sequence[Figures]) -> Figures:
    """Each figure's median."""
    splits = [window.split for window in windows if window.split is not None]
    split = None
    if splits:
        split = Split(*(median(getattr(each, part.name) for each in splits) for part in fields(Split)))
    return Figures(
        windows[0].operations,
        median(window.seconds for window in windows),
        median(window.cpu_seconds for window in windows),
        split,
    )


class Engine:
    """A Spark session with timers in its workers."""

    def __init__(self, spark: SparkSession, spans: Spans) -> None:
        self.spark = spark
        self.spans = spans


@contextmanager
def engine(directory: Path, *, slots: int, heap_mib: int | None = None, profile: bool = False) -> Iterator[Engine]:
    place = directory / "spans"
    place.mkdir(exist_ok=True)
    os.environ[DIRECTORY] = str(place)
    os.environ["PYTHONPATH"] = str(BENCH)  # the workers' daemon is found there
    if profile:
        os.environ[PROFILE] = "1"
    conf = {"spark.python.daemon.module": "delivery_spans"}
    conf |= {"spark.driver.memory": f"{heap_mib}m"} if heap_mib else {}
    time_driver()
    spark = spark_session(f"local[{slots}]", conf=conf, name="bench")
    try:
        yield Engine(spark, Spans(place))
    finally:
        stop_session(spark)


class Rig:
    """One pipeline: a source, its destinations, and their positions."""

    def __init__(self, engine: Engine, pipeline: TaskPipeline, *, without: Sequence[int] = ()):
        """``without``: processes that do not count."""
        self._spans = engine.spans
        self._runner = JobRunner(engine.spark, pipeline, ReadingConfig().small_bytes)
        self._members = {target.name: JobMember(target.name, 0, 1) for target in pipeline.targets}
        self._without = set(without)
        self._jobs = count(1)

    def close(self) -> None:
        self._runner.close()

    def seed(self, through: int, names: Sequence[str] | None = None) -> None:
        """Seed destinations; the others stay as if their part of the source were empty."""
        chosen = tuple(self._members.values()) if names is None else tuple(self._members[name] for name in names)
        self._learn(self._runner.seed(SeedGroup(next(self._jobs), through, SeedMode.SCAN, chosen)))

    def adopt(self) -> None:
        """Go on where a deliverer left the destinations."""
        report = self._runner.standings(list(self._members))
        for found in report.results:
            if found.outcome is not Outcome.STANDS:
                raise Failed(f"{found.destination} has no position: {found.error or report.error}")
            self._members[found.destination] = JobMember(found.destination, found.position, found.token, found.mark)

    def deliver(self, made: Made) -> tuple[Figures, JobReport]:
        members = tuple(self._members.values())
        self._spans.clear_spans()
        cpu, begun = cpu_seconds(self._processes()), time.monotonic()
        window = made.window
        report = self._runner.flush(FlushGroup(next(self._jobs), window.after, window.through, members))
        ended = time.monotonic()
        used = cpu_seconds(self._processes()) - cpu
        self._learn(report)
        done = sum(each.removed for each in report.results), sum(each.written for each in report.results)
        if done != (made.removed, made.written):
            raise Failed(f"{done} rows were removed and written where {made} was expected")
        return Figures(made.operations, ended - begun, used, self._spans.take(begun, ended)), report

    def _learn(self, report: JobReport) -> None:
        failed = [result.error for result in report.results if result.outcome not in WELL]
        if failed or report.rest is not Outcome.EMPTY:
            raise Failed(f"a job failed: {report.error or failed[0]}")
        for result in report.results:
            known = self._members[result.destination]
            self._members[result.destination] = replace(known, expected=result.position, mark=report.mark)

    def _processes(self) -> list[int]:
        return [process for process in descendants(os.getpid()) if process not in self._without]


def descendants(root: int) -> list[int]:
    """A process with all of its descendants."""
    parents: dict[int, int] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                stat = Path(entry.path, "stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has just ended
            parents[int(entry.name)] = int(stat[stat.rindex(")") + 2 :].split()[1])
    found = [root]
    for process in found:
        found += [child for child, parent in parents.items() if parent == process]
    return found
