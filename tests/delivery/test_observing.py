"""What a deliverer shows of itself: a real planner and a real control store; the jobs are answered here."""

from __future__ import annotations

import json
import logging
import queue
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from trunkline.core.delivery_events import BackedOff
from trunkline.core.delivery_messages import (
    Configured,
    FlushGroup,
    JobDone,
    Life,
    LifeChanged,
    Outcome,
    Planned,
    ReadStandings,
    Result,
    SeedGroup,
    Shutdown,
    SourceAt,
)
from trunkline.core.effects import SELF, Address, Announce, Effects, Message, Send
from trunkline.core.planner import Planner
from trunkline.core.planner_tracks import PlannerConfig
from trunkline.delivery.control.contract import ControlStore, Reported, Status, Unrouted
from trunkline.delivery.control.opening import open_control_store
from trunkline.delivery.deliverer.counting import WINDOWS_MAX, UnroutedCounter
from trunkline.delivery.deliverer.observing import LINES_MAX, JsonLines, KeyValueLines, Observer
from trunkline.delivery.deliverer.ownership import Ownership
from trunkline.delivery.deliverer.progress import SIGHTINGS_MAX, DestinationView, Progress, Sightings
from trunkline.delivery.job.runner import JobReport
from trunkline.delivery.job.work import Counted
from trunkline.delivery.windows import BEFORE_ALL, Window
from trunkline.errors import SourceExpired, TrunklineError, Unreachable

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
        self._told: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.broken: list[TrunklineError] = []
        store.configure(PIPELINE, "digest", dict.fromkeys(names, "digest"))
        self.ownership = Ownership(
            store,
            PIPELINE,
            "one",
            "digest",
            600_000,
            tell=self._told.put,
            away=lambda text: None,  # tests say when the store is away
            broken=self.broken.append,
        )
        self.observer.began(self.planner, self.ownership)
        self.tell(Configured(tuple(Planned(name) for name in names)))
        self.ownership.begin()
        self.take()

    def tell(self, message: Message) -> None:
        self._carry_out(self.planner.on_message(HOST, message))

    def take(self) -> None:
        """What the control store's thread has told meanwhile."""
        while not self._told.empty():
            self.tell(self._told.get())

    def _carry_out(self, effects: Effects) -> None:
        for effect in effects:
            match effect:
                case Send(to, message) if to.role == "worker":
                    assert isinstance(message, ReadStandings | FlushGroup | SeedGroup)
                    self.observer.job_started(message)
                    self.jobs.append(message)
                case Send(_, message):
                    self.observer.releasing(message)
                    self.ownership.carry_out(message)
                case Announce(event):
                    self.observer.event(event)

    def answer(self, job: ReadStandings | FlushGroup | SeedGroup, report: JobReport) -> None:
        self.jobs.remove(job)
        self.observer.job_ended(job, report)
        self.tell(report.done)

    def work(self, touched: Mapping[str, Counted | Result] | None = None) -> None:
        """Answer all jobs: whoever is not named (or has to be written) has nothing in the window."""
        while self.jobs:
            job = self.jobs[0]
            if isinstance(job, ReadStandings):
                results = [Result(name, Outcome.STANDS, self.positions[name]) for name in job.destinations]
                self.answer(job, JobReport(JobDone(job.job, tuple(results))))
            else:
                self.answer(job, self._report(job, touched or {}))

    def _report(self, job: FlushGroup | SeedGroup, touched: Mapping[str, Counted | Result]) -> JobReport:
        must = isinstance(job, SeedGroup) or job.stamp
        named = [member.destination for member in job.members if must or member.destination in touched]
        results, counted = [], []
        for name in named:
            given = touched.get(name, Counted(name))
            if isinstance(given, Counted):
                counted.append(given)
                self.positions[name] = job.through
                given = Result(name, Outcome.APPLIED, job.through)
            results.append(given)
        return JobReport(JobDone(job.job, tuple(results), Outcome.EMPTY), tuple(counted), path="small")

    def tick(self, seconds: float = 1.0) -> None:
        self.clock.now += seconds
        self.observer.tick()
        self.settle()

    def settle(self) -> None:
        """Until the control store has been told all that it is told."""
        reached = threading.Event()
        self.ownership.submit(reached.set)
        assert reached.wait(WAIT_S)

    def statuses(self) -> dict[str, Status | None]:
        return {record.name: record.status for record in self.store.destinations(PIPELINE)}

    def seen(self, name: str) -> DestinationView:
        return next(each for each in self.observer.snapshot().destinations if each.name == name)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ControlStore]:
    opened = open_control_store(f"sqlite:{tmp_path / 'control.db'}")
    try:
        yield opened
    finally:
        opened.close()


Make = Callable[..., Rig]


@pytest.fixture
def rig(store: ControlStore) -> Iterator[Make]:
    made: list[Rig] = []

    def make(names: list[str], positions: Mapping[str, int] | None = None) -> Rig:
        made.append(Rig(store, names, positions))
        return made[-1]

    yield make
    for each in made:
        each.ownership.end()


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


# -------------------------------------------------------------------------------------------------------------- reports


def test_a_flush_is_reported_with_its_position_and_rows(rig: Make) -> None:
    one = started(rig, ["a", "b"])
    one.tell(SourceAt(11))
    one.work({"a": Counted("a", removed=2, written=3)})
    one.tick()
    status = one.statuses()["a"]
    assert status is not None
    assert (status.state, status.position, status.lag_versions, status.rows, status.rows_total) == (
        "ready",
        11,
        0,
        5,
        5,
    )
    assert status.flushed_at_ms == 1_001_000


def test_v3_idle_reports_nothing(rig: Make, store: ControlStore, tmp_path: Path) -> None:
    one = started(rig, ["a", "b"])
    before = [path.read_bytes() for path in sorted(tmp_path.iterdir())]
    for _ in range(50):
        one.tick(7.0)
    assert [path.read_bytes() for path in sorted(tmp_path.iterdir())] == before


def test_v3_a_destination_that_a_window_does_not_touch_is_not_reported(
    rig: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = started(rig, ["a", "b", "c"])
    reported: list[str] = []
    forward = one.ownership.report

    def report(reports: list[Reported]) -> None:
        reported.extend(each.name for each in reports)
        forward(reports)

    monkeypatch.setattr(one.ownership, "report", report)
    for version in range(11, 16):
        one.tell(SourceAt(version))
        one.tick()  # in flight
        one.work({"a": Counted("a", written=1)})
        one.tick()
    assert set(reported) == {"a"}
    assert one.seen("b").lag_versions == 0


def test_what_lags_for_long_is_reported_now_and_then_and_when_it_is_over(rig: Make) -> None:
    one = started(rig, ["a"])
    one.tell(SourceAt(12))
    one.tick()
    status = one.statuses()["a"]
    assert status is not None
    assert status.lag_versions == 0
    one.tick(40.0)
    status = one.statuses()["a"]
    assert status is not None
    assert (status.state, status.lag_versions, status.lag_ms) == ("flushing", 2, 40_000)
    one.work()
    one.tick()
    status = one.statuses()["a"]
    assert status is not None
    assert (status.state, status.lag_versions, status.position) == ("ready", 0, 10)


def test_v3_a_report_waits_for_the_one_before_it(rig: Make) -> None:
    one = started(rig, ["a"])
    go_on = threading.Event()
    one.ownership.submit(go_on.wait)
    for version in (11, 12, 13):
        one.tell(SourceAt(version))
        one.work({"a": Counted("a", written=1)})
        one.clock.now += 1
        one.observer.tick()
    go_on.set()
    one.settle()
    first = one.statuses()["a"]
    one.tick()
    last = one.statuses()["a"]
    assert first is not None
    assert last is not None
    assert (first.position, last.position) == (11, 13)


def test_v4_while_the_store_is_away_nothing_is_sent(rig: Make) -> None:
    one = started(rig, ["a", "b"])
    one.observer.store_error("control store: gone")
    one.tell(SourceAt(11))
    one.work({"a": Counted("a", written=1)})
    one.tick()
    status = one.statuses()["a"]
    assert status is not None
    assert status.position == 10
    assert one.observer.snapshot().store_error == "control store: gone"
    one.observer.store_error("")
    one.tick()
    status = one.statuses()["a"]
    assert status is not None
    assert status.position == 11


def test_v4_what_got_lost_is_sent_again(rig: Make, store: ControlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    one = started(rig, ["a", "b"])

    def lost(pipeline: str, reports: object) -> None:
        raise Unreachable("control store: gone; start it")

    with monkeypatch.context() as broken:
        broken.setattr(store, "report", lost)
        one.tell(SourceAt(11))
        one.work({"a": Counted("a", written=1)})
        one.tick()
    one.observer.store_error("control store: gone; start it")
    one.observer.store_error("")
    one.tick()
    status = one.statuses()["a"]
    assert status is not None
    assert status.position == 11


def test_what_is_given_back_is_reported_before_that(rig: Make) -> None:
    one = rig(["a"])
    one.tell(SourceAt(10))
    one.tell(Shutdown(1, drain=True))
    one.work({"a": Counted("a", written=4)})
    one.settle()
    assert one.planner.state == "stopped"
    one.observer.ended()
    (record,) = one.store.destinations(PIPELINE)
    assert record.owner is None
    assert record.status is not None
    assert (record.status.position, record.status.rows_total) == (10, 4)


def test_a_drained_destination_is_reported_as_such(rig: Make) -> None:
    one = started(rig, ["a", "b"])
    one.tell(SourceAt(11))
    one.tell(LifeChanged("a", Life.DRAINING))
    one.work({"a": Counted("a", written=1)})
    one.settle()
    status = one.statuses()["a"]
    assert status is not None
    assert (status.state, status.position) == ("drained", 11)


def test_totals_begin_anew_with_each_grant(rig: Make, store: ControlStore) -> None:
    one = started(rig, ["a"])
    one.tell(SourceAt(11))
    one.work({"a": Counted("a", written=5)})
    one.tick()
    assert one.seen("a").written == 5
    store.raise_tokens(PIPELINE, {"a": 7})
    one.ownership.tick()
    one.settle()
    one.take()
    one.work()
    one.tick()
    assert (one.seen("a").written, one.seen("a").owned, one.seen("a").position) == (0, True, 11)


# --------------------------------------------------------------------------------------------------------- the snapshot


def test_the_lag_counts_from_when_the_first_missing_version_was_seen(rig: Make) -> None:
    one = started(rig, ["a", "b"])
    one.tell(SourceAt(11))
    one.tick()
    one.tell(SourceAt(15))
    one.tick(20.0)
    seen = one.seen("a")
    assert (seen.stage, seen.position, seen.lag_versions, seen.lag_ms) == ("flushing", 10, 5, 20_000)
    one.clock.now += 3
    assert one.seen("a").lag_ms == 23_000
    one.work()
    one.tick()
    seen = one.seen("a")
    assert (seen.position, seen.effective, seen.lag_versions, seen.lag_ms) == (10, 15, 0, 0)


def test_a_pause_shows_although_nobody_announces_it(rig: Make) -> None:
    one = started(rig, ["a"])
    one.tell(LifeChanged("a", Life.PAUSED))
    one.tick(6.0)
    assert (one.seen("a").stage, one.seen("a").position) == ("paused", 10)
    status = one.statuses()["a"]
    assert status is not None
    assert (status.state, status.position) == ("paused", 10)


def test_a_broken_destination_shows_its_error_failures_and_breaker(rig: Make) -> None:
    one = started(rig, ["a", "b"])
    broken = Result("a", Outcome.TRANSIENT, error="a: the server is away; start it")
    one.tell(SourceAt(11))
    one.work({"a": broken})
    one.tick()
    assert (one.seen("a").stage, one.seen("a").failures, one.seen("a").breaker) == ("backing off", 1, False)
    for _ in range(4):
        one.tell(SourceAt(one.planner.schedule.source.version + 1))
        one._carry_out(one.planner.on_timer(f"retry {one.planner.tracks['a'].retry_ms}"))
        one.work({"a": broken})
    one.tick()
    assert (one.seen("a").failures, one.seen("a").breaker) == (5, True)
    assert one.seen("a").error == "a: the server is away; start it"
    assert one.seen("b").error == ""


def test_v1_any_thread_may_ask_while_the_loop_works(rig: Make) -> None:
    names = [f"d{number}" for number in range(50)]
    one = started(rig, names)
    wrong: list[object] = []
    ended = threading.Event()

    def ask() -> None:
        while not ended.is_set():
            view = one.observer.snapshot()
            one.observer.metrics.text()
            if len(view.destinations) != 50 or any((each.lag_versions or 0) < 0 for each in view.destinations):
                wrong.append(view)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for version in range(11, 31):
        one.tell(SourceAt(version))
        one.work({name: Counted(name, written=1) for name in names[::3]})
        one.tick()
    ended.set()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_v2_a_look_that_takes_long_is_not_taken_again_soon(rig: Make) -> None:
    one = started(rig, ["a"])
    one.clock.step = 0.1
    one.tell(SourceAt(11))
    one.tick()
    one.tell(SourceAt(12))
    one.tick()
    assert one.observer.snapshot().source_version == 11
    one.tick(60.0)
    assert one.observer.snapshot().source_version == 12


def test_what_happens_is_counted_for_prometheus(rig: Make) -> None:
    one = started(rig, ["a", "b", "c"])
    one.tell(SourceAt(11))
    one.work({"a": Counted("a", 1, 2, 3, 4), "b": Result("b", Outcome.PERMANENT, error="b: mend it")})
    one.observer.source_error("the lake is away")
    one.observer.source_error("")
    one.observer.store_error("the store is away")
    one.observer.unrouted(11, Unrouted({"x": 5}))
    one.tick()
    found = {}
    for family in text_string_to_metric_families(one.observer.metrics.text()[0].decode()):
        for sample in family.samples:
            labels = [value for name, value in sample.labels.items() if name != "pipeline"]
            found[" ".join([sample.name.removeprefix("trunkline_delivery_"), *labels])] = sample.value
    expected = {
        "rows_removed_total": 1, "rows_written_total": 2, "duplicate_rows_total": 3, "missing_rows_total": 4,
        "flushes_total applied": 1, "flushes_total empty": 1, "flushes_total permanent": 1, "seeds_total applied": 3,
        "halts_total": 1, "halted_destinations": 1, "source_errors_total": 1, "control_errors_total": 1,
        "source_up": 1, "control_up": 0, "leases_held": 3, "unrouted_rows_total value x": 5,
        "job_duration_seconds_count flush small": 1, "window_rows_sum": 3, "destination_rows_written_total a": 2,
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected


def test_of_many_versions_the_older_are_told_apart_less_finely_and_never_too_young() -> None:
    sightings = Sightings()
    for version in range(1, 5 * SIGHTINGS_MAX):
        sightings.note(version, float(version))
    for effective in range(0, 5 * SIGHTINGS_MAX - 1, 97):
        since = sightings.lacking_since(effective)
        assert since is not None
        assert since <= effective + 1
    newest = 5 * SIGHTINGS_MAX - 1
    assert sightings.lacking_since(newest - 100) == newest - 99
    assert sightings.lacking_since(newest) is None
    assert sightings.newest_before(newest - 10.5) == newest - 11


# ---------------------------------------------------------------------------------------------------------------- lines


def test_a_flush_is_one_line_with_window_rows_and_path(rig: Make, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    one = started(rig, ["a", "b"])
    one.tell(SourceAt(12))
    one.clock.now += 0.25
    one.work({"a": Counted("a", removed=1, written=2)})
    (line,) = lines(caplog, "flushed")
    assert line.levelno == logging.INFO
    found = fields(line)
    window = {
        "after": 10,
        "through": 12,
        "members": 2,
        "touched": 1,
        "failed": 0,
        "rows": 3,
        "ms": 250,
        "path": "small",
    }
    assert {name: found[name] for name in window} == window
    assert found["pipeline"] == PIPELINE
    assert "rows=3 ms=250 path=small" in line.getMessage()


def test_a_halt_is_an_error_that_names_the_destination_and_what_to_do(
    rig: Make, caplog: pytest.LogCaptureFixture
) -> None:
    one = started(rig, ["a", "b"])
    one.tell(SourceAt(11))
    one.work({"a": Result("a", Outcome.PERMANENT, error="a: column x is gone; add it and resume")})
    one.tick()
    (line,) = lines(caplog, "halted")
    assert line.levelno == logging.ERROR
    assert fields(line)["error"] == "a: column x is gone; add it and resume"
    status = one.statuses()["a"]
    assert status is not None
    assert (status.state, status.error, status.position) == ("halted", "a: column x is gone; add it and resume", 10)


def test_duplicates_and_missing_rows_are_warned_of(rig: Make, caplog: pytest.LogCaptureFixture) -> None:
    one = started(rig, ["a", "b"])
    one.tell(SourceAt(11))
    one.work({"a": Counted("a", written=1, duplicates=2), "b": Counted("b", written=1, missing=3)})
    one.tick()
    (duplicates,) = lines(caplog, "duplicates")
    (missing,) = lines(caplog, "missing_rows")
    assert (duplicates.levelno, fields(duplicates)["rows"]) == (logging.WARNING, 2)
    assert (missing.levelno, fields(missing)["destination"]) == (logging.WARNING, "b")
    assert (one.seen("a").duplicates, one.seen("b").missing) == (2, 3)


@pytest.mark.parametrize(
    ("outcome", "event"),
    [(Outcome.FENCED, "fenced"), (Outcome.TRANSIENT, "backed_off"), (Outcome.UNKNOWN, "backed_off")],
)
def test_fenced_and_failing_destinations_are_warned_of(
    rig: Make, caplog: pytest.LogCaptureFixture, outcome: Outcome, event: str
) -> None:
    one = started(rig, ["a"])
    one.tell(SourceAt(11))
    one.work({"a": Result("a", outcome, token=9, error="a: look")})
    (line,) = lines(caplog, event)
    assert (line.levelno, fields(line)["destination"]) == (logging.WARNING, "a")


def test_expired_history_is_warned_of(rig: Make, caplog: pytest.LogCaptureFixture) -> None:
    one = started(rig, ["a"])
    one.tell(SourceAt(20, oldest=15))
    (line,) = lines(caplog, "history_expired")
    assert (line.levelno, fields(line)["position"], fields(line)["oldest"]) == (logging.WARNING, 10, 15)


def test_v5_of_one_kind_there_are_only_so_many_lines(rig: Make, caplog: pytest.LogCaptureFixture) -> None:
    one = started(rig, ["a"])
    for number in range(LINES_MAX + 7):
        one.observer.event(BackedOff(f"d{number}", 1, "away"))
    assert len(lines(caplog, "backed_off")) == LINES_MAX
    one.tick()
    (more,) = lines(caplog, "more_lines")
    assert (fields(more)["of"], fields(more)["count"]) == ("backed_off", 7)
    one.observer.event(BackedOff("a", 1, "away"))
    assert len(lines(caplog, "backed_off")) == LINES_MAX + 1


def test_lines_are_one_line_each_as_json_and_as_key_values(rig: Make, caplog: pytest.LogCaptureFixture) -> None:
    one = started(rig, ["a"])
    one.observer.event(BackedOff("a", 1, 'two\nlines, "quoted"'))
    (record,) = lines(caplog, "backed_off")
    found = json.loads(JsonLines().format(record))
    assert (found["event"], found["level"], found["error"], found["failures"]) == (
        "backed_off",
        "warning",
        'two\nlines, "quoted"',
        1,
    )
    text = KeyValueLines().format(record)
    assert "\n" not in text
    assert 'event=backed_off pipeline=orders destination=a failures=1 error="two\\nlines, \\"quoted\\""' in text
    other = logging.LogRecord("elsewhere", logging.INFO, "", 0, "it is %s", ("so",), None)
    assert json.loads(JsonLines().format(other))["message"] == "it is so"
    assert KeyValueLines().format(other).endswith('level=info logger=elsewhere message="it is so"')


# ------------------------------------------------------------------------------------------------------------- progress


def test_a_long_job_tells_its_progress_and_idle_tells_nothing(rig: Make, caplog: pytest.LogCaptureFixture) -> None:
    one = started(rig, ["a", "b"])
    caplog.set_level(logging.INFO)
    for _ in range(20):
        one.tick()
    assert caplog.records == []
    one.tell(SourceAt(20))
    (job,) = one.jobs
    for _ in range(12):
        one.tick()
    assert len(lines(caplog, "job_progress")) == 2
    assert "percent" not in fields(lines(caplog, "job_progress")[0])
    one.observer.job_known(job.job, rows=500, size_bytes=1_000, share=0.25)
    (seen,) = one.observer.snapshot().jobs
    assert (seen.kind, seen.rows, seen.elapsed_ms, seen.percent, seen.left_ms) == ("flush", 500, 12_000, 25.0, 36_000)
    one.work()
    assert one.observer.snapshot().jobs == ()


def test_the_speed_of_earlier_jobs_estimates_later_ones() -> None:
    clock = Clock()
    progress = Progress(clock)
    progress.begin(1, "seed", 0, 10, 4)
    progress.know(1, rows=None, size_bytes=1_000, share=None)
    clock.now += 10
    assert progress.jobs()[0].percent is None
    assert progress.end(1) == 10
    progress.begin(2, "seed", 0, 20, 4)
    progress.know(2, rows=None, size_bytes=4_000, share=None)
    clock.now += 10
    assert (progress.jobs()[0].percent, progress.jobs()[0].left_ms) == (25.0, 30_000)
    clock.now += 100
    assert progress.jobs()[0].percent == 99.0


def test_seeds_tell_how_many_are_done(rig: Make, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    one = rig(["a", "b", "c", "d"])
    one.tell(SourceAt(10))
    reading = one.jobs[0]
    assert isinstance(reading, ReadStandings)
    one.answer(reading, JobReport(JobDone(reading.job, tuple(Result(name, Outcome.STANDS) for name in "abcd"))))
    (seed,) = one.jobs
    one.tick()
    one.tick(8.0)
    seeding = one.observer.snapshot().seeding
    assert seeding is not None
    assert (seeding.done, seeding.total, seeding.percent, seeding.left_ms) == (0, 4, 0.0, None)
    done = tuple(Result(name, Outcome.APPLIED, 10) for name in "abc")
    late = Result("d", Outcome.UNKNOWN, error="d: broke off")
    one.answer(seed, JobReport(JobDone(seed.job, (*done, late), Outcome.EMPTY), path="large"))
    one._carry_out(one.planner.on_timer(f"retry {one.planner.tracks['d'].retry_ms}"))
    reading = one.jobs[0]
    assert isinstance(reading, ReadStandings)
    one.answer(reading, JobReport(JobDone(reading.job, (Result("d", Outcome.STANDS),))))
    one.tick()
    seeding = one.observer.snapshot().seeding
    assert seeding is not None
    assert (seeding.done, seeding.total, seeding.percent, seeding.left_ms) == (3, 4, 75.0, 3_000)
    assert lines(caplog, "seeding")
    one.work()
    one.tick()
    assert one.observer.snapshot().seeding is None


def test_catching_up_tells_how_far_the_slowest_is(rig: Make, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    one = started(rig, ["a"], version=100)
    one.tell(SourceAt(200, stops=(150,)))
    one.tick()
    (first,) = one.jobs
    assert isinstance(first, FlushGroup)
    one.answer(first, JobReport(JobDone(first.job, (Result("a", Outcome.APPLIED, 150),), Outcome.EMPTY)))
    one.tick(9.0)
    catching_up = one.observer.snapshot().catching_up
    assert catching_up is not None
    assert (catching_up.done, catching_up.total, catching_up.percent, catching_up.left_ms) == (50, 100, 50.0, 9_000)
    assert lines(caplog, "catching_up")
    one.work()
    one.tick()
    assert one.observer.snapshot().catching_up is None


# ------------------------------------------------------------------------------------------------------- unrouted rows

ROWS = {version: {"x": version % 3, None: version % 2, f"v{version % 5}": 1} for version in range(1, 200)}


class Lake:
    """A source whose rows arrive and stay: a window holds what its versions brought."""

    def __init__(self, *, stops: tuple[int, ...] = (), oldest: int = 1) -> None:
        self.at = SourceAt(199, oldest, stops)
        self.reads: list[Window] = []
        self.fails: list[Exception] = []

    def count(self, window: Window) -> dict[str | None, int]:
        self.reads.append(window)
        if self.fails:
            raise self.fails.pop()
        if 0 <= window.after < self.at.oldest:
            raise SourceExpired(f"{window.after} is gone; seed again")
        return truth(window)


def truth(window: Window) -> dict[str | None, int]:
    found: dict[str | None, int] = {}
    for version in range(max(window.after, 0) + 1, window.through + 1):
        for value, rows in ROWS[version].items():
            found[value] = found.get(value, 0) + rows
    return {value: rows for value, rows in found.items() if rows}


def unrouted(through: int) -> Unrouted:
    found = truth(Window(0, through))
    return Unrouted({value: rows for value, rows in found.items() if value is not None}, found.get(None, 0))


class Counting:
    """A counter, and what it showed."""

    def __init__(self, store: ControlStore, lake: Lake, *, patience_s: float = 0.0) -> None:
        self.shown: list[tuple[int, Unrouted]] = []
        self.counter = UnroutedCounter(
            store,
            PIPELINE,
            lake.count,
            lambda: lake.at,
            lambda through, counts: self.shown.append((through, counts)),
            patience_s=patience_s,
            retry_first_s=0.01,
        )
        self.counter.begin()

    def told(self, *windows: tuple[int, int], counted: bool = True) -> None:
        for after, through in windows:
            window = Window(after, through)
            self.counter.job_ended(window, truth(window) if counted else None)


@pytest.fixture
def counted(store: ControlStore) -> ControlStore:
    store.configure(PIPELINE, "digest", {"a": "digest"})
    return store


def test_n1_windows_that_follow_each_other_are_added_without_a_read(counted: ControlStore) -> None:
    lake = Lake()
    one = Counting(counted, lake, patience_s=60)
    one.told((0, 10), (10, 12), (12, 30), (10, 12))
    one.counter.close()
    assert counted.unrouted(PIPELINE) == (30, unrouted(30))
    assert lake.reads == []
    assert one.shown[-1] == (30, unrouted(30))


def test_n2_a_gap_is_read_for_itself(counted: ControlStore) -> None:
    lake = Lake()
    one = Counting(counted, lake)
    one.told((0, 10), (20, 30))
    one.counter.close()
    assert counted.unrouted(PIPELINE) == (30, unrouted(30))
    assert lake.reads == [Window(10, 20)]


def test_n2_of_an_overlapping_window_only_the_rest_is_read(counted: ControlStore) -> None:
    lake = Lake()
    one = Counting(counted, lake, patience_s=60)
    one.told((0, 10), (5, 30))
    one.counter.close()
    assert counted.unrouted(PIPELINE) == (30, unrouted(30))
    assert lake.reads == [Window(10, 30)]


def test_n2_a_window_whose_job_did_not_count_is_read(counted: ControlStore) -> None:
    lake = Lake()
    one = Counting(counted, lake)
    one.told((0, 10))
    one.told((10, 20), counted=False)
    one.counter.close()
    assert counted.unrouted(PIPELINE) == (20, unrouted(20))
    assert lake.reads == [Window(10, 20)]


def test_n3_a_read_crosses_no_stop(counted: ControlStore) -> None:
    lake = Lake(stops=(5, 15, 18, 25))
    one = Counting(counted, lake)
    one.told((0, 10), (20, 30))
    one.counter.close()
    assert counted.unrouted(PIPELINE) == (30, unrouted(30))
    assert lake.reads == [Window(10, 15), Window(15, 18), Window(18, 20)]


def test_n3_where_nothing_was_counted_the_state_is(counted: ControlStore) -> None:
    lake = Lake(stops=(5,), oldest=8)
    one = Counting(counted, lake)
    one.told((20, 30))
    one.counter.close()
    assert counted.unrouted(PIPELINE) == (30, unrouted(30))
    assert lake.reads == [Window(BEFORE_ALL, 20)]


def test_n3_a_seed_counts_as_the_window_from_nothing_when_nothing_was_counted(counted: ControlStore) -> None:
    lake = Lake()
    one = Counting(counted, lake)
    one.counter.job_ended(Window(BEFORE_ALL, 40), truth(Window(0, 40)))
    one.counter.job_ended(Window(0, 50), truth(Window(0, 50)))  # a second seed: only what is new counts
    one.counter.close()
    assert counted.unrouted(PIPELINE) == (50, unrouted(50))
    assert lake.reads == [Window(40, 50)]


def test_n4_a_gap_that_others_close_is_not_read(counted: ControlStore) -> None:
    lake = Lake()
    one, other = Counting(counted, lake, patience_s=60), Counting(counted, lake, patience_s=60)
    one.told((0, 10), (20, 30))
    wait_until(lambda: counted.unrouted(PIPELINE)[0] == 10)
    other.told((10, 20))
    other.counter.close()
    one.told((30, 31))
    one.counter.close()
    assert counted.unrouted(PIPELINE) == (31, unrouted(31))
    assert lake.reads == []


def test_n5_what_the_source_has_forgotten_is_passed_over_loudly(
    counted: ControlStore, caplog: pytest.LogCaptureFixture
) -> None:
    lake = Lake(oldest=15)
    one = Counting(counted, lake)
    one.told((0, 10), (20, 30))
    one.counter.close()
    through, counts = counted.unrouted(PIPELINE)
    lost = sum(truth(Window(10, 15)).values())
    assert (through, counts.rows) == (30, unrouted(30).rows - lost)
    assert lake.reads == [Window(15, 20)]
    assert "versions 11 to 15" in caplog.text


def test_n6_a_read_that_fails_is_tried_again(counted: ControlStore) -> None:
    lake = Lake()
    lake.fails = [Unreachable("the lake is away"), Unreachable("the lake is away")]
    one = Counting(counted, lake)
    one.told((0, 10), (20, 30))
    wait_until(lambda: counted.unrouted(PIPELINE)[0] == 30)
    one.counter.close()
    assert counted.unrouted(PIPELINE) == (30, unrouted(30))
    assert len(lake.reads) == 3


def test_n6_after_too_many_failures_the_next_job_tries_again(
    counted: ControlStore, caplog: pytest.LogCaptureFixture
) -> None:
    lake = Lake()
    lake.fails = [Unreachable("the lake is away") for _ in range(5)]
    one = Counting(counted, lake)
    one.told((0, 10), (20, 30))
    wait_until(lambda: "not counted for now" in caplog.text)
    assert counted.unrouted(PIPELINE)[0] == 10
    one.told((30, 31))
    wait_until(lambda: counted.unrouted(PIPELINE)[0] == 31)
    one.counter.close()
    assert counted.unrouted(PIPELINE) == (31, unrouted(31))


def test_without_finishing_a_gap_stays_and_the_next_deliverer_closes_it(counted: ControlStore) -> None:
    lake = Lake()
    one = Counting(counted, lake, patience_s=60)
    one.told((0, 10), (20, 30))
    one.counter.close(finish=False)
    assert counted.unrouted(PIPELINE) == (10, unrouted(10))
    assert lake.reads == []
    later = Counting(counted, lake)
    later.told((30, 31))
    later.counter.close()
    assert counted.unrouted(PIPELINE) == (31, unrouted(31))


def test_more_windows_than_can_wait_are_counted_all_the_same(counted: ControlStore) -> None:
    lake = Lake()
    one = Counting(counted, lake, patience_s=60)
    one.told(*((at, at + 1) for at in range(50, 50 + WINDOWS_MAX + 20)))
    one.counter.close()
    last = 50 + WINDOWS_MAX + 20
    assert counted.unrouted(PIPELINE) == (last, unrouted(last))


@pytest.mark.parametrize("seed", range(8))
def test_windows_in_any_order_from_several_deliverers_are_counted_once(counted: ControlStore, seed: int) -> None:
    chance = random.Random(seed)
    lake = Lake(stops=tuple(sorted(chance.sample(range(1, 199), 6))))
    several = [Counting(counted, lake, patience_s=chance.choice([0.0, 0.02])) for _ in range(2)]
    ends = []
    for _ in range(30):
        after = chance.choice([0, chance.randrange(190), chance.randrange(190)])
        through = min(199, after + chance.randrange(1, 30))
        chance.choice(several).told((after, through), counted=chance.random() < 0.8)
        ends.append(through)
    for each in several:
        each.counter.close()
    reach, counts = counted.unrouted(PIPELINE)
    assert reach == max(ends)
    assert counts == unrouted(reach)


def wait_until(holds: Callable[[], bool]) -> None:
    ended = threading.Event()
    for _ in range(int(WAIT_S / 0.01)):
        if holds():
            return
        ended.wait(0.01)
    raise AssertionError("it did not come to hold")
