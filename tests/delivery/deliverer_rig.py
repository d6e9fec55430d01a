"""A deliverer without Spark, to see what it shows: a real planner and control store; the jobs are answered here."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping

import pytest
from msgspec.structs import replace

from trunkline.core.delivery_messages import (
    Configured,
    FlushGroup,
    Outcome,
    Planned,
    ReadStandings,
    Result,
    SeedGroup,
    SourceAt,
)
from trunkline.core.effects import SELF, Address, Announce, Effects, Message, Send
from trunkline.core.planner import Planner
from trunkline.core.planner_tracks import PlannerConfig
from trunkline.delivery.control.contract import Status
from trunkline.delivery.control.store import ControlStore
from trunkline.delivery.deliverer.leases import DelivererLeases
from trunkline.delivery.deliverer.observer import Observer
from trunkline.delivery.deliverer.views import DestinationView
from trunkline.delivery.job.results import JobReport
from trunkline.errors import TrunklineError

PIPELINE = "orders"
HOST = Address(SELF, "host")
WAIT_S = 20.0


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0
        self.step = 0.0  # as much passes between two looks at it

    def __call__(self) -> float:
        self.now += self.step
        return self.now


class Rig:
    """A host without Spark: jobs wait in ``jobs`` until a test answers them."""

    def __init__(self, store: ControlStore, names: list[str], positions: Mapping[str, int] | None = None) -> None:
        self.store = store
        self.clock = Clock()
        self.positions = dict.fromkeys(names, 0) | dict(positions or {})
        self.jobs: list[ReadStandings | FlushGroup | SeedGroup] = []
        self.planner = Planner(PlannerConfig(interval_ms=0))
        self.observer = Observer(PIPELINE, "one", clock=self.clock, wall=self.clock)
        self._sent: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.broken: list[TrunklineError] = []
        store.configurations.configure(PIPELINE, "digest", dict.fromkeys(names, "digest"))
        self.leases = DelivererLeases(
            store,
            PIPELINE,
            "one",
            "digest",
            600_000,
            send=self._sent.put,
            unreachable=lambda text: None,  # tests decide when the store is unreachable
            failed=self.broken.append,
        )
        self.observer.began(self.planner, self.leases)
        self.tell(Configured(tuple(Planned(name) for name in names)))
        self.leases.begin()
        self.take()

    def tell(self, message: Message) -> None:
        self._carry_out(self.planner.on_message(HOST, message))

    def take(self) -> None:
        """Pass on what the control store's thread has sent meanwhile."""
        while not self._sent.empty():
            self.tell(self._sent.get())

    def _carry_out(self, effects: Effects) -> None:
        for effect in effects:
            match effect:
                case Send(to, message) if to.role == "worker":
                    assert isinstance(message, ReadStandings | FlushGroup | SeedGroup)
                    self.observer.job_started(message)
                    self.jobs.append(message)
                case Send(_, message):
                    self.observer.releasing(message)
                    self.leases.carry_out(message)
                case Announce(event):
                    self.observer.event(event)

    def answer(self, job: ReadStandings | FlushGroup | SeedGroup, report: JobReport) -> None:
        self.jobs.remove(job)
        self.observer.job_ended(job, report)
        self.tell(report.done(job.job))

    def work(self, touched: Mapping[str, Result] | None = None) -> None:
        """Answer all jobs: a destination that is not named (and need not be written) has nothing in the window."""
        while self.jobs:
            job = self.jobs[0]
            if isinstance(job, ReadStandings):
                results = [Result(name, Outcome.STANDS, self.positions[name]) for name in job.destinations]
                self.answer(job, JobReport(tuple(results)))
            else:
                self.answer(job, self._report(job, touched or {}))

    def _report(self, job: FlushGroup | SeedGroup, touched: Mapping[str, Result]) -> JobReport:
        must = isinstance(job, SeedGroup) or job.stamp
        named = [member.destination for member in job.members if must or member.destination in touched]
        results = []
        for name in named:
            result = touched.get(name, Result(name, Outcome.APPLIED))
            if result.outcome is Outcome.APPLIED:
                self.positions[name] = job.through
                result = replace(result, position=job.through)
            results.append(result)
        return JobReport(tuple(results), path="small")

    def tick(self, seconds: float = 1.0) -> None:
        self.clock.now += seconds
        self.observer.tick()
        self.settle()

    def settle(self) -> None:
        """Wait until all calls to the control store are done."""
        reached = threading.Event()
        self.leases.submit(reached.set)
        assert reached.wait(WAIT_S)

    def statuses(self) -> dict[str, Status | None]:
        return {record.name: record.status for record in self.store.destinations(PIPELINE)}

    def seen(self, name: str) -> DestinationView:
        return next(each for each in self.observer.snapshot().destinations if each.name == name)


Make = Callable[..., Rig]


def lines(caplog: pytest.LogCaptureFixture, event: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if getattr(record, "event", None) == event]


def fields(record: logging.LogRecord) -> dict[str, object]:
    found = getattr(record, "fields", None)
    assert isinstance(found, dict)
    return found


def started(make: Make, names: list[str], version: int = 10) -> Rig:
    """All destinations seeded as of a version, and reported."""
    rig = make(names)
    rig.tell(SourceAt(version))
    rig.work()
    rig.tick()
    return rig


def wait_until(holds: Callable[[], bool]) -> None:
    ended = threading.Event()
    for _ in range(int(WAIT_S / 0.01)):
        if holds():
            return
        ended.wait(0.01)
    raise AssertionError("it did not come to hold")
