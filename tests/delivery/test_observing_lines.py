"""What a deliverer writes as lines of its log: events, and progress of long work."""

from __future__ import annotations

import json
import logging

import pytest

from delivery.deliverer_rig import PIPELINE, Make, fields, lines, started
from trunkline.core.delivery_events import BackedOff
from trunkline.core.delivery_messages import (
    FlushGroup,
    Outcome,
    ReadStandings,
    Result,
    SourceAt,
)
from trunkline.delivery.deliverer.observer import LINES_MAX
from trunkline.delivery.job.results import JobReport
from trunkline.observing.log_lines import JsonLines, KeyValueLines

# ---------------------------------------------------------------------------------------------------------------- lines


def test_a_flush_is_one_line_with_window_rows_and_path(rig: Make, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    one = started(rig, ["a", "b"])
    one.tell(SourceAt(12))
    one.clock.now += 0.25
    one.work({"a": Result("a", Outcome.APPLIED, removed=1, written=2)})
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
    one.work({"a": Result("a", Outcome.PERMANENT, error="a: column x is missing; add it and resume")})
    one.tick()
    (line,) = lines(caplog, "halted")
    assert line.levelno == logging.ERROR
    assert fields(line)["error"] == "a: column x is missing; add it and resume"
    status = one.statuses()["a"]
    assert status is not None
    assert (status.state, status.error, status.position) == ("halted", "a: column x is missing; add it and resume", 10)


def test_duplicates_and_missing_rows_are_warned_of(rig: Make, caplog: pytest.LogCaptureFixture) -> None:
    one = started(rig, ["a", "b"])
    one.tell(SourceAt(11))
    one.work(
        {
            "a": Result("a", Outcome.APPLIED, written=1, duplicates=2),
            "b": Result("b", Outcome.APPLIED, written=1, missing=3),
        }
    )
    one.tick()
    (duplicates,) = lines(caplog, "duplicates")
    (missing,) = lines(caplog, "missing_rows")
    assert (duplicates.levelno, fields(duplicates)["rows"]) == (logging.WARNING, 2)
    assert (missing.levelno, fields(missing)["destination"]) == (logging.WARNING, "b")
    assert (one.seen("a").duplicates, one.seen("b").missing) == (2, 3)


def test_columns_that_a_destination_followed_are_warned_of_with_what_it_cost(
    rig: Make, caplog: pytest.LogCaptureFixture
) -> None:
    one = started(rig, ["a", "b"])
    one.tell(SourceAt(11))
    done = "renamed 'x' to 'y'; rewrote 7 rows in 1 file, 900 bytes"
    one.work({"a": Result("a", Outcome.APPLIED, reshaped=done), "b": Result("b", Outcome.APPLIED)})
    (line,) = lines(caplog, "columns_changed")
    assert (line.levelno, fields(line)["destination"], fields(line)["done"]) == (logging.WARNING, "a", done)


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


def test_a_long_job_logs_its_progress_and_idle_logs_nothing(rig: Make, caplog: pytest.LogCaptureFixture) -> None:
    one = started(rig, ["a", "b"])
    caplog.set_level(logging.INFO)
    for _ in range(20):
        one.tick()
    assert caplog.records == []
    one.tell(SourceAt(20))
    for _ in range(12):
        one.tick()
    assert len(lines(caplog, "job_progress")) == 2
    (seen,) = one.observer.snapshot().jobs
    assert (seen.kind, seen.elapsed_ms) == ("flush", 12_000)
    one.work()
    assert one.observer.snapshot().jobs == ()


def test_seeds_show_how_many_are_done(rig: Make, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    one = rig(["a", "b", "c", "d"])
    one.tell(SourceAt(10))
    reading = one.jobs[0]
    assert isinstance(reading, ReadStandings)
    one.answer(reading, JobReport(tuple(Result(name, Outcome.STANDS) for name in "abcd")))
    (seed,) = one.jobs
    one.tick()
    one.tick(8.0)
    seeding = one.observer.snapshot().seeding
    assert seeding is not None
    assert (seeding.done, seeding.total, seeding.percent, seeding.left_ms) == (0, 4, 0.0, None)
    done = tuple(Result(name, Outcome.APPLIED, 10) for name in "abc")
    late = Result("d", Outcome.UNKNOWN, error="d: broke off")
    one.answer(seed, JobReport((*done, late), path="large"))
    one._carry_out(one.planner.on_timer(f"retry {one.planner.tracks['d'].retry_ms}"))
    reading = one.jobs[0]
    assert isinstance(reading, ReadStandings)
    one.answer(reading, JobReport((Result("d", Outcome.STANDS),)))
    one.tick()
    seeding = one.observer.snapshot().seeding
    assert seeding is not None
    assert (seeding.done, seeding.total, seeding.percent, seeding.left_ms) == (3, 4, 75.0, 3_000)
    assert lines(caplog, "seeding")
    one.work()
    one.tick()
    assert one.observer.snapshot().seeding is None


def test_catching_up_shows_the_position_of_the_slowest(rig: Make, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    one = started(rig, ["a"], version=100)
    one.tell(SourceAt(200, stops=(150,)))
    one.tick()
    (first,) = one.jobs
    assert isinstance(first, FlushGroup)
    one.answer(first, JobReport((Result("a", Outcome.APPLIED, 150),)))
    one.tick(9.0)
    catching_up = one.observer.snapshot().catching_up
    assert catching_up is not None
    assert (catching_up.done, catching_up.total, catching_up.percent, catching_up.left_ms) == (50, 100, 50.0, 9_000)
    assert lines(caplog, "catching_up")
    one.work()
    one.tick()
    assert one.observer.snapshot().catching_up is None
