"""A process with a Spark session of its own that carries out jobs: those of a file, a pickled ``Jobs``.

It prints a line of JSON when it begins a job and when the job has ended, and at the end what it took.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from trunkline.core.delivery_messages import FlushGroup, JobMember, Outcome, SeedGroup
from trunkline.delivery.engine.session import SHORT_LIVED, spark_session, stop_session
from trunkline.delivery.job.results import JobReport
from trunkline.delivery.job.runner import JobRunner
from trunkline.delivery.job.work import TaskPipeline

TRIES_MAX = 5


class Jobs(Struct, frozen=True):
    master: str
    conf: dict[str, str]
    work: TaskPipeline
    small_bytes: int
    steps: tuple[FlushGroup | SeedGroup, ...]


class Line(Struct, frozen=True, omit_defaults=True):
    """A line of the process's output."""

    began: int = 0
    ended: int = 0
    path: str | None = None
    outcomes: dict[str, str] = {}  # of destinations
    written: dict[str, int] = {}
    tries: int = 0
    took_s: float = 0
    memory_mb: int = 0  # that the process had at most, without Java and workers


@contextmanager
def started(folder: Path, jobs: Jobs) -> Iterator[tuple[subprocess.Popen[str], Iterator[Line]]]:
    """The process, and the lines that it prints; it is ended afterwards."""
    file = folder / "jobs"
    file.write_bytes(pickle.dumps(jobs))
    command = [sys.executable, "-m", "delivery.job_driver", str(file)]
    tests = {"PYTHONPATH": str(Path(__file__).parent.parent)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **tests}) as process:
        assert process.stdout is not None
        try:
            yield process, (msgspec.json.decode(line, type=Line) for line in process.stdout)
        finally:
            process.kill()


def say(line: Line) -> None:
    print(msgspec.json.encode(line).decode(), flush=True)


def carry_out(runner: JobRunner, step: FlushGroup | SeedGroup) -> tuple[JobReport, int]:
    """Do a job; again where its outcome is not known, from where the destinations stand."""
    for tries in range(1, TRIES_MAX + 1):
        report = runner.flush(step) if isinstance(step, FlushGroup) else runner.seed(step)
        if report.rest is not Outcome.UNKNOWN:
            return report, tries
        standing = {each.destination: each for each in runner.standings(names(step)).results}
        found = [(each, standing[each.destination]) for each in step.members]
        stand = [JobMember(each.destination, at.position, each.token, at.mark) for each, at in found]
        step = replace(step, members=tuple(stand))
    raise AssertionError(report.error)


def names(step: FlushGroup | SeedGroup) -> list[str]:
    return [member.destination for member in step.members]


def memory_mb() -> int:
    """What this process had in memory at most; unlike ``getrusage``, without what its parent had before."""
    facts = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(facts["VmHWM"].split()[0]) // 1024


def main(file: str) -> None:
    jobs: Any = pickle.loads(Path(file).read_bytes())
    spark = spark_session(jobs.master, conf={**SHORT_LIVED, **jobs.conf})
    try:
        runner = JobRunner(spark, jobs.work, jobs.small_bytes)
        for step in jobs.steps:
            say(Line(began=step.job))
            begun = monotonic()
            report, tries = carry_out(runner, step)
            outcomes = {each.destination: each.error or each.outcome.value for each in report.results}
            written = {each.destination: each.written for each in report.results}
            took_s = round(monotonic() - begun, 1)
            say(Line(step.job, step.job, report.path, outcomes, written, tries, took_s))
        say(Line(memory_mb=memory_mb()))
    finally:
        stop_session(spark)


if __name__ == "__main__":
    main(sys.argv[1])
