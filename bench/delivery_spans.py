"""Where the time of a window goes: spans, written by the processes and read by the benchmark.

Run as a program it is the daemon of Spark's Python workers: the same as in production, with timers around a few calls.
A span is (name, begin, end) by the system's monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import cProfile
import functools
import json
import os
import pstats
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DIRECTORY = "TRUNKLINE_BENCH_SPANS"  # the environment variable: where spans are written
PROFILE = "TRUNKLINE_BENCH_PROFILE"  # if set: tasks are profiled, and statements are timed by their kind
TASK, SURVEY, READ, SETTLE, APPLY, ATTACH, COMMIT = "task", "survey", "read", "settle", "apply", "attach", "commit"
STATEMENT = "sql "
CONFLICT = "conflict"  # a commit that lost a race against another one


@dataclass
class Recorder:
    """Spans of one process; they are written when no timer is running."""

    open: int = 0
    spans: list[tuple[str, float, float]] = field(default_factory=list)

    def timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def wrapper(*arguments: Any, **options: Any) -> Any:
            self.open += 1
            begun = time.monotonic()
            try:
                return call(*arguments, **options)
            finally:
                self.open -= 1
                self.spans.append((name, begun, time.monotonic()))
                if not self.open:
                    self._write()

        return wrapper

    def counted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Notes each call as a span without a length; those inside a timed call are written with it."""

        @functools.wraps(call)
        def wrapper(*arguments: Any, **options: Any) -> Any:
            self.spans.append((name, time.monotonic(), time.monotonic()))
            return call(*arguments, **options)

        return wrapper

    def statement(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """A timer for each kind of statement."""
        kinds: dict[str, Callable[..., Any]] = {}

        def wrapper(catalogs: object, cursor: object, text: str) -> Any:
            kind = STATEMENT + _kind(text)
            return kinds.setdefault(kind, self.timed(kind, run))(catalogs, cursor, text)

        return wrapper

    def _write(self) -> None:
        with open(Path(os.environ[DIRECTORY]) / f"spans-{os.getpid()}", "a") as file:
            file.write("".join(json.dumps(span) + "\n" for span in self.spans))
        self.spans.clear()


def _kind(statement: str) -> str:
    """``UPDATE position``, ``INSERT rows``: the verb and its object."""
    verb = statement.split(None, 1)[0].upper()
    about = "position" if "_trunkline_members" in statement else "stage" if "TEMP TABLE" in statement else ""
    return f"{verb} {about}".strip()


def time_driver() -> None:
    from trunkline.delivery.sources.database import DatabaseSource
    from trunkline.delivery.sources.ducklake import DuckLakeSource

    for kind in (DuckLakeSource, DatabaseSource):
        if not hasattr(kind.survey, "__wrapped__"):  # a benchmark has several sessions, one after the other
            kind.survey = Recorder().timed(SURVEY, kind.survey)  # type: ignore[method-assign]


def time_worker() -> None:
    from trunkline.delivery.backends.postgres_session import PostgresSession
    from trunkline.delivery.destinations import ducklake_attachments
    from trunkline.delivery.destinations.delta_log import DeltaLog
    from trunkline.delivery.destinations.ducklake_attachments import AttachedLakes, LakeSession
    from trunkline.delivery.destinations.postgres_member_step import LostRace
    from trunkline.delivery.job import apply, settlement, small
    from trunkline.delivery.sources.database import DatabaseSource
    from trunkline.delivery.sources.ducklake import DuckLakeSource

    recorder = Recorder()
    places: Sequence[tuple[Any, str, str]] = (
        (DuckLakeSource, "net_changes", READ),
        (DatabaseSource, "net_changes", READ),
        (settlement, "settle", SETTLE),
        (apply, "_applied", APPLY),
        (AttachedLakes, "_attach", ATTACH),
        (AttachedLakes, "_detach", ATTACH),
        (LakeSession, "commit", COMMIT),
        (DeltaLog, "commit", COMMIT),
        (PostgresSession, "_commit", COMMIT),
    )
    if os.environ.get(PROFILE):
        AttachedLakes.run = recorder.statement(AttachedLakes.run)  # type: ignore[method-assign]
        small.flush_portion = profiled(small.flush_portion)
    for owner, attribute, name in places:
        setattr(owner, attribute, recorder.timed(name, getattr(owner, attribute)))
    for owner, attribute in ((ducklake_attachments, "commit_error"), (LostRace, "__init__")):
        setattr(owner, attribute, recorder.counted(CONFLICT, getattr(owner, attribute)))
    small.flush_portion = recorder.timed(TASK, small.flush_portion)


def profiled(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def wrapper(*arguments: Any) -> Any:
        profile = cProfile.Profile()
        try:
            return profile.runcall(call, *arguments)
        finally:
            profile.dump_stats(str(Path(os.environ[DIRECTORY]) / f"profile-{os.getpid()}-{time.monotonic_ns()}"))

    return wrapper


# --------------------------------------------------------------------------------------------------------- reading them


@dataclass(frozen=True)
class Split:
    """One window's wall time, in milliseconds; what happens in tasks is the mean over them, so that it adds up."""

    survey: float
    spark: float  # everything between the call and the tasks; of a large window also Spark's reading and sorting
    read: float
    settle: float
    attach: float
    apply: float
    commit: float
    waiting: float  # in tasks: for slower tasks, and unattributed time

    @property
    def as_text(self) -> str:
        return "  ".join(f"{name} {value:.0f}" for name, value in vars(self).items())


class Spans:
    """The directory in which spans are collected."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.statements: Counter[str] = Counter()  # microseconds
        self.statement_calls: Counter[str] = Counter()
        self.conflicts = 0

    def clear_spans(self) -> None:
        """Discard spans outside of a measurement."""
        for file in self._directory.glob("spans-*"):
            file.unlink()

    def take(self, begun: float, ended: float) -> Split:
        """The split of a window that was measured between these moments; its spans are deleted."""
        by_process: dict[str, list[tuple[str, float, float]]] = {}
        for file in self._directory.glob("spans-*"):
            by_process[file.name] = [tuple(json.loads(line)) for line in file.read_text().splitlines()]
            file.unlink()
        sums: defaultdict[str, float] = defaultdict(float)
        working: list[tuple[float, float]] = []
        tasks = 0
        for spans in by_process.values():
            for name, begin, end in spans:
                sums[name] += (end - begin) * 1000
                self.conflicts += name == CONFLICT
                if name.startswith(STATEMENT):
                    self.statements[name.removeprefix(STATEMENT)] += round((end - begin) * 1e6)
                    self.statement_calls[name.removeprefix(STATEMENT)] += 1
            working += [(begin, end) for name, begin, end in spans if name in (TASK, APPLY)]
            tasks += any(name in (TASK, APPLY) for name, *_ in spans)
        busy = (max(end for _, end in working) - min(begin for begin, _ in working)) * 1000 if working else 0.0
        each = {name: sums[name] / max(1, tasks) for name in (READ, SETTLE, ATTACH, APPLY, COMMIT)}
        inside = each[READ] + each[SETTLE] + each[APPLY]
        return Split(
            survey=sums[SURVEY],
            spark=(ended - begun) * 1000 - sums[SURVEY] - busy,
            read=each[READ],
            settle=each[SETTLE],
            attach=each[ATTACH],
            apply=each[APPLY] - each[ATTACH] - each[COMMIT],
            commit=each[COMMIT],
            waiting=busy - inside,
        )

    def hot_functions(self, most: int) -> list[tuple[str, int, float]]:
        """(function, calls, seconds in itself) of all profiled tasks, the costliest first."""
        files = [str(file) for file in self._directory.glob("profile-*")]
        if not files:
            return []
        found: dict[Any, Any] = vars(pstats.Stats(*files))["stats"]
        costs = [(f"{Path(key[0]).name}:{key[2]}", int(row[1]), float(row[2])) for key, row in found.items()]
        return sorted(costs, key=lambda cost: -cost[2])[:most]


if __name__ == "__main__":
    from pyspark import daemon

    from trunkline.delivery.engine import worker_daemon

    time_worker()
    daemon.worker = worker_daemon.worker
    daemon.manager()
