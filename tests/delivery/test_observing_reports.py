"""What a deliverer reports to the control store, and shows of itself."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from delivery.deliverer_rig import PIPELINE, Make, started
from observing.series import series_of
from trunkline.core.delivery_messages import (
    Life,
    LifeChanged,
    Outcome,
    Result,
    Shutdown,
    SourceAt,
)
from trunkline.core.planner import PlannerState
from trunkline.delivery.control.contract import Reported, UnroutedCounts
from trunkline.delivery.control.store import ControlStore
from trunkline.delivery.deliverer.metrics import TABLE
from trunkline.delivery.deliverer.statistics import VERSION_TIMES_MAX, VersionTimes
from trunkline.errors import Unreachable

# -------------------------------------------------------------------------------------------------------------- reports


def test_a_flush_is_reported_with_its_position_and_rows(rig: Make) -> None:
    one = started(rig, ["a", "b"])
    one.tell(SourceAt(11))
    one.work({"a": Result("a", Outcome.APPLIED, removed=2, written=3)})
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
    forward = one.leases.report

    def report(reports: list[Reported]) -> None:
        reported.extend(each.name for each in reports)
        forward(reports)

    monkeypatch.setattr(one.leases, "report", report)
    for version in range(11, 16):
        one.tell(SourceAt(version))
        one.tick()  # in flight
        one.work({"a": Result("a", Outcome.APPLIED, written=1)})
        one.tick()
    assert set(reported) == {"a"}
    assert one.seen("b").lag_versions == 0


def test_a_long_lag_is_reported_now_and_then_and_when_it_ends(rig: Make) -> None:
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
    one.leases.submit(go_on.wait)
    for version in (11, 12, 13):
        one.tell(SourceAt(version))
        one.work({"a": Result("a", Outcome.APPLIED, written=1)})
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


def test_v4_while_the_store_is_unreachable_nothing_is_sent(rig: Make) -> None:
    one = started(rig, ["a", "b"])
    one.observer.store_error("control store: gone")
    one.tell(SourceAt(11))
    one.work({"a": Result("a", Outcome.APPLIED, written=1)})
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


def test_v4_lost_reports_are_sent_again(rig: Make, store: ControlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    one = started(rig, ["a", "b"])

    def lost(pipeline: str, reports: object) -> None:
        raise Unreachable("control store: gone; start it")

    with monkeypatch.context() as broken:
        broken.setattr(store.statistics, "report", lost)
        one.tell(SourceAt(11))
        one.work({"a": Result("a", Outcome.APPLIED, written=1)})
        one.tick()
    one.observer.store_error("control store: gone; start it")
    one.observer.store_error("")
    one.tick()
    status = one.statuses()["a"]
    assert status is not None
    assert status.position == 11


def test_a_released_destination_is_reported_before_its_release(rig: Make) -> None:
    one = rig(["a"])
    one.tell(SourceAt(10))
    one.tell(Shutdown(1, drain=True))
    one.work({"a": Result("a", Outcome.APPLIED, written=4)})
    one.settle()
    assert one.planner.state is PlannerState.STOPPED
    one.observer.ended()
    (record,) = one.store.destinations(PIPELINE)
    assert record.owner is None
    assert record.status is not None
    assert (record.status.position, record.status.rows_total) == (10, 4)


def test_a_drained_destination_is_reported_as_such(rig: Make) -> None:
    one = started(rig, ["a", "b"])
    one.tell(SourceAt(11))
    one.tell(LifeChanged("a", Life.DRAINING))
    one.work({"a": Result("a", Outcome.APPLIED, written=1)})
    one.settle()
    status = one.statuses()["a"]
    assert status is not None
    assert (status.state, status.position) == ("drained", 11)


def test_totals_restart_with_each_grant(rig: Make, store: ControlStore) -> None:
    one = started(rig, ["a"])
    one.tell(SourceAt(11))
    one.work({"a": Result("a", Outcome.APPLIED, written=5)})
    one.tick()
    assert one.seen("a").written == 5
    store.ownerships.raise_tokens(PIPELINE, {"a": 7})
    one.leases.tick()
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


def test_a_pause_shows_although_no_event_announces_it(rig: Make) -> None:
    one = started(rig, ["a"])
    one.tell(LifeChanged("a", Life.PAUSED))
    one.tick(6.0)
    assert (one.seen("a").stage, one.seen("a").position) == ("paused", 10)
    status = one.statuses()["a"]
    assert status is not None
    assert (status.state, status.position) == ("paused", 10)


def test_a_broken_destination_shows_its_error_failures_and_breaker(rig: Make) -> None:
    one = started(rig, ["a", "b"])
    broken = Result("a", Outcome.TRANSIENT, error="a: the server is unreachable; start it")
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
    assert one.seen("a").error == "a: the server is unreachable; start it"
    assert one.seen("b").error == ""


def test_v1_any_thread_may_ask_while_the_loop_works(rig: Make) -> None:
    names = [f"d{number}" for number in range(50)]
    one = started(rig, names)
    wrong: list[object] = []
    ended = threading.Event()

    def ask() -> None:
        while not ended.is_set():
            view = one.observer.snapshot()
            asyncio.run(one.observer.metrics.values())
            if len(view.destinations) != 50 or any((each.lag_versions or 0) < 0 for each in view.destinations):
                wrong.append(view)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for version in range(11, 31):
        one.tell(SourceAt(version))
        one.work({name: Result(name, Outcome.APPLIED, written=1) for name in names[::3]})
        one.tick()
    ended.set()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_v2_a_slow_poll_is_not_repeated_soon(rig: Make) -> None:
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
    one.work(
        {
            "a": Result("a", Outcome.APPLIED, removed=1, written=2, duplicates=3, missing=4),
            "b": Result("b", Outcome.PERMANENT, error="b: mend it"),
        }
    )
    one.observer.source_error("the lake is unreachable")
    one.observer.source_error("")
    one.observer.store_error("the store is unreachable")
    one.observer.unrouted(11, UnroutedCounts({"x": 5}))
    one.tick()
    found = {}
    for (name, labels), value in series_of(TABLE, asyncio.run(one.observer.metrics.values()), ("orders",)).items():
        own = [label for label in labels if label != "orders"]
        found[" ".join([name.removeprefix(TABLE.prefix), *own])] = value
    expected = {
        "rows_removed_total": 1, "rows_written_total": 2, "duplicate_rows_total": 3, "missing_rows_total": 4,
        "flushes_total applied": 1, "flushes_total empty": 1, "flushes_total permanent": 1, "seeds_total applied": 3,
        "halts_total": 1, "halted_destinations": 1, "source_errors_total": 1, "control_errors_total": 1,
        "source_up": 1, "control_up": 0, "leases_held": 3, "unrouted_rows_total value x": 5,
        "job_duration_seconds_count flush small": 1, "window_rows_sum": 3, "destination_rows_written_total a": 2,
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected


def test_of_many_versions_older_times_are_coarse_and_never_too_late() -> None:
    times = VersionTimes()
    for version in range(1, 5 * VERSION_TIMES_MAX):
        times.note(version, float(version))
    for effective in range(0, 5 * VERSION_TIMES_MAX - 1, 97):
        since = times.lacking_since(effective)
        assert since is not None
        assert since <= effective + 1
    newest = 5 * VERSION_TIMES_MAX - 1
    assert times.lacking_since(newest - 100) == newest - 99
    assert times.lacking_since(newest) is None
    assert times.newest_before(newest - 10.5) == newest - 11
