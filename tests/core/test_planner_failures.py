"""The planner of a delivery pipeline: failures, ownership, life cycle and size."""

from __future__ import annotations

import time

import pytest

from core.driver import announced, results, timers
from core.pipelines import Pipeline, all_applied, applied, failed, flush
from trunkline.core.delivery_events import (
    BackedOff,
    BreakerClosed,
    BreakerOpened,
    Drained,
    Halted,
    Retired,
    Stopped,
)
from trunkline.core.delivery_messages import (
    Configured,
    Emptied,
    FencedOff,
    FlushGroup,
    Grant,
    JobDone,
    LeasesGranted,
    LeasesLost,
    Life,
    LifeChanged,
    Lost,
    Outcome,
    Planned,
    ReadStandings,
    RecordEmpty,
    Released,
    ReleaseLeases,
    ReseedAsked,
    Result,
    Shutdown,
    SourceAt,
)
from trunkline.core.effects import Message
from trunkline.core.planner_tracks import TrackStage

# ----------------------------------------------------------------------------------------------------------- failures


def test_a_failure_backs_off_twice_as_long_each_time_until_the_breaker_opens() -> None:
    pipeline = Pipeline("d1", retry_first_ms=500, retry_max_ms=60_000, breaker_after=3)
    pipeline.own(5)
    pipeline.deliver(SourceAt(6))
    for failures, wait_ms in enumerate((500, 1000, 60_000), start=1):
        assert pipeline.done(failed("d1")) == []
        assert timers(pipeline.effects) == [f"retry {wait_ms}"]
        assert announced(pipeline.effects)[0] == BackedOff("d1", failures, "unreachable")
        assert pipeline.stages() == [TrackStage.BACKING_OFF]
        assert pipeline.fire(f"retry {wait_ms}") == [flush(failures + 2, 5, 6, "d1")]
    pipeline.done(failed("d1"))
    assert announced(pipeline.effects) == [BackedOff("d1", 3, "unreachable")]
    pipeline.fire("retry 60000")
    pipeline.done(applied("d1", 6))
    assert announced(pipeline.effects) == [BreakerClosed("d1")]


def test_the_breaker_is_announced_once() -> None:
    pipeline = Pipeline("d1", breaker_after=1)
    pipeline.own(5)
    pipeline.deliver(SourceAt(6))
    pipeline.done(failed("d1"))
    assert announced(pipeline.effects) == [BackedOff("d1", 1, "unreachable"), BreakerOpened("d1", "unreachable")]


def test_those_that_wait_equally_long_share_one_timer() -> None:
    pipeline = Pipeline("d1", "d2")
    pipeline.own(4, 5)
    pipeline.deliver(SourceAt(6))
    pipeline.done(failed("d1"), job=2)
    assert timers(pipeline.effects) == ["retry 500"]
    pipeline.done(failed("d2"), job=3)
    assert timers(pipeline.effects) == []
    assert pipeline.fire("retry 500") == [flush(4, 4, 5, "d1")]


def test_a_failure_of_one_takes_nothing_from_the_others() -> None:
    pipeline = Pipeline()
    pipeline.own(5, 5, 5)
    pipeline.deliver(SourceAt(6))
    pipeline.done(applied("d1", 6), failed("d2"), applied("d3", 6))
    assert pipeline.positions() == [6, 5, 6]
    assert pipeline.deliver(SourceAt(7)) == [flush(3, 6, 7, "d1", "d3")]


def test_what_failed_flies_apart_and_leaves_a_slot_to_the_healthy_ones() -> None:
    pipeline = Pipeline(groups_max=2)
    pipeline.own(5, 5, 5)
    pipeline.deliver(SourceAt(6))
    pipeline.done(failed("d1"), failed("d2"), rest=Outcome.EMPTY)
    assert pipeline.fire("retry 500") == [flush(3, 5, 6, "d1", "d2")]
    assert pipeline.deliver(SourceAt(7)) == [flush(4, 6, 7, "d3", expected=5)]
    pipeline.done(failed("d1"), rest=None, job=3)
    assert pipeline.fire("retry 1000") == []  # d2 is still in flight, and has the one slot of those that failed


def test_one_that_kills_its_worker_is_alone_after_a_few_tries() -> None:
    """Who was in a job that broke off flies in ever smaller groups, until it has succeeded (P9)."""
    names = tuple(f"d{number}" for number in range(8))
    pipeline = Pipeline(*names, breaker_after=9)
    pipeline.own(*[5] * 8)
    pipeline.deliver(SourceAt(6))
    killed: list[int] = []
    for job in range(2, 40):
        asked = next((each for each in pipeline.asked if getattr(each, "job", 0) == job), None)
        match asked:
            case ReadStandings(_, destinations):
                pipeline.deliver(JobDone(job, tuple(Result(name, Outcome.STANDS, 5, 1) for name in destinations)))
            case FlushGroup(_, _, _, members) if "d6" in [member.destination for member in members]:
                killed.append(len(members))
                pipeline.deliver(JobDone(job, ()))
                pipeline.fire(timers(pipeline.effects)[0])
            case FlushGroup(_, _, _, members):
                pipeline.deliver(JobDone(job, tuple(applied(member.destination, 6) for member in members)))
    assert killed[:5] == [8, 4, 2, 1, 1]
    assert pipeline.positions() == [6, 6, 6, 6, 6, 6, 5, 6]


def test_a_permanent_failure_halts_until_an_operator_resumes() -> None:
    pipeline = Pipeline("d1")
    pipeline.own(5)
    pipeline.deliver(SourceAt(6))
    pipeline.done(failed("d1", Outcome.PERMANENT))
    assert announced(pipeline.effects) == [Halted("d1", "unreachable")]
    assert pipeline.deliver(SourceAt(7)) == []
    assert pipeline.stages() == [TrackStage.HALTED]
    assert pipeline.deliver(LifeChanged("d1", Life.ACTIVE)) == [ReadStandings(3, ("d1",))]


@pytest.mark.parametrize("outcome", [Outcome.MOVED, Outcome.UNKNOWN])
def test_an_unknown_position_is_read_first(outcome: Outcome) -> None:
    pipeline = Pipeline("d1")
    pipeline.own(5)
    pipeline.deliver(SourceAt(6))
    asked = pipeline.done(Result("d1", outcome))
    asked = asked or pipeline.fire("retry 500")
    assert asked == [ReadStandings(3, ("d1",))]
    assert pipeline.done(Result("d1", Outcome.STANDS, 6, 1)) == []


def test_a_position_that_keeps_moving_backs_off() -> None:
    pipeline = Pipeline("d1")
    pipeline.own(5)
    pipeline.deliver(SourceAt(9))
    pipeline.done(Result("d1", Outcome.MOVED, 6))
    pipeline.done(Result("d1", Outcome.STANDS, 6, 1))
    assert pipeline.done(Result("d1", Outcome.MOVED, 7)) == []
    assert "let one pipeline alone write to it" in pipeline.planner.tracks["d1"].error
    assert pipeline.fire("retry 500") == [ReadStandings(5, ("d1",))]


def test_a_destination_that_is_past_a_flush_goes_on_from_there() -> None:
    pipeline = Pipeline("d1")
    pipeline.own(5)
    pipeline.deliver(SourceAt(6))
    pipeline.deliver(SourceAt(8))
    assert pipeline.done(Result("d1", Outcome.ALREADY, 7, 1)) == [flush(3, 7, 8, "d1", stamp=True)]


def test_a_standing_that_cannot_be_read_backs_off_too() -> None:
    pipeline = Pipeline("d1")
    pipeline.deliver(LeasesGranted((Grant("d1", 1),)))
    pipeline.done(failed("d1"))
    assert pipeline.fire("retry 500") == [ReadStandings(2, ("d1",))]


# --------------------------------------------------------------------------------------------------------- ownership


@pytest.mark.parametrize("change", ["lost", "granted again", "configured", "paused", "reseed"])
def test_an_outdated_answer_does_not_count(change: str) -> None:
    news: dict[str, Message] = {
        "lost": LeasesLost((Lost("d1", 1),)),
        "granted again": LeasesGranted((Grant("d1", 2),)),
        "configured": Configured((Planned("d1", digest="other"),)),
        "paused": LifeChanged("d1", Life.PAUSED),
        "reseed": ReseedAsked("d1", 1),
    }
    pipeline = Pipeline("d1")
    pipeline.own(5)
    pipeline.deliver(SourceAt(6))
    pipeline.deliver(news[change])
    assert RecordEmpty not in [type(message) for message in pipeline.done(rest=Outcome.EMPTY)]
    assert not pipeline.planner.tracks["d1"].known
    assert pipeline.positions() == [5]


def test_a_fenced_destination_is_left_alone_until_the_next_grant() -> None:
    pipeline = Pipeline("d1")
    pipeline.own(5)
    pipeline.deliver(SourceAt(6))
    assert pipeline.done(Result("d1", Outcome.FENCED, token=4)) == [FencedOff("d1", 1, 4)]
    assert pipeline.deliver(SourceAt(7)) == []
    assert pipeline.deliver(LeasesGranted((Grant("d1", 3),))) == []
    assert pipeline.deliver(LeasesGranted((Grant("d1", 5),))) == [ReadStandings(3, ("d1",))]


def test_a_standing_under_a_higher_token_fences_before_anything_is_written() -> None:
    pipeline = Pipeline("d1")
    pipeline.deliver(SourceAt(6))
    pipeline.deliver(LeasesGranted((Grant("d1", 1),)))
    assert pipeline.done(Result("d1", Outcome.STANDS, 5, 7)) == [FencedOff("d1", 1, 7)]


def test_a_lease_that_lapsed_may_be_granted_again_under_its_token() -> None:
    pipeline = Pipeline("d1")
    pipeline.own(5)
    pipeline.deliver(LeasesLost((Lost("d1", 1),)))
    assert pipeline.deliver(SourceAt(6)) == []
    assert pipeline.deliver(LeasesGranted((Grant("d1", 1),))) == [ReadStandings(2, ("d1",))]
    assert pipeline.done(Result("d1", Outcome.STANDS, 5, 1)) == [flush(3, 5, 6, "d1")]


def test_a_grant_of_an_unknown_destination_is_given_back() -> None:
    pipeline = Pipeline("d1")
    assert pipeline.deliver(LeasesGranted((Grant("other", 3),))) == [ReleaseLeases((Released("other", 3, False),))]


# --------------------------------------------------------------------------------------------------------- life cycle


def test_a_paused_destination_keeps_its_lease_and_is_read_again_when_it_is_resumed() -> None:
    pipeline = Pipeline("d1", "d2")
    pipeline.own(5, 5)
    assert pipeline.deliver(LifeChanged("d1", Life.PAUSED)) == []
    assert pipeline.deliver(SourceAt(6)) == [flush(2, 5, 6, "d2")]
    assert pipeline.deliver(LifeChanged("d1", Life.ACTIVE)) == [ReadStandings(3, ("d1",))]


def test_a_new_configuration_keeps_the_desired_state_of_operators() -> None:
    pipeline = Pipeline("d1")
    pipeline.own(5)
    pipeline.deliver(LifeChanged("d1", Life.PAUSED))
    assert pipeline.deliver(Configured((Planned("d1"), Planned("d2")))) == []
    assert pipeline.stages() == [TrackStage.PAUSED]
    assert pipeline.deliver(Configured((Planned("d1", Life.RETIRED),))) == [ReleaseLeases((Released("d1", 1, True),))]


def test_a_draining_destination_is_brought_to_the_version_of_that_moment_and_released() -> None:
    pipeline = Pipeline("d1", interval_ms=1000)
    pipeline.own(5)
    pipeline.deliver(SourceAt(5))
    pipeline.deliver(SourceAt(6))
    assert pipeline.deliver(LifeChanged("d1", Life.DRAINING)) == [flush(2, 5, 6, "d1")]
    assert pipeline.done(applied("d1", 6)) == [ReleaseLeases((Released("d1", 1, True),))]
    assert announced(pipeline.effects) == [Drained("d1", 6)]
    assert pipeline.deliver(SourceAt(7)) == []


def test_a_drain_before_the_source_is_known_begins_with_it() -> None:
    pipeline = Pipeline("d1")
    pipeline.deliver(LifeChanged("d1", Life.DRAINING))
    pipeline.own(5)
    assert pipeline.deliver(SourceAt(6)) == [flush(2, 5, 6, "d1")]


def test_a_retired_destination_is_released_when_nothing_is_in_flight_to_it() -> None:
    pipeline = Pipeline("d1")
    pipeline.own(5)
    pipeline.deliver(SourceAt(6))
    assert pipeline.deliver(LifeChanged("d1", Life.RETIRED)) == []
    assert pipeline.done(applied("d1", 6)) == [ReleaseLeases((Released("d1", 1, True),))]
    assert announced(pipeline.effects) == [Retired("d1")]


def test_a_destination_that_leaves_the_configuration_is_released_and_forgotten() -> None:
    pipeline = Pipeline("d1", "d2")
    pipeline.own(5, 5)
    pipeline.deliver(SourceAt(6))
    assert pipeline.deliver(Configured((Planned("d2"),))) == []
    assert pipeline.done(*all_applied(("d1", "d2"), 6)) == [ReleaseLeases((Released("d1", 1, True),))]
    assert announced(pipeline.effects) == []
    assert list(pipeline.planner.tracks) == ["d2"]


def test_a_destination_that_comes_back_while_its_flush_is_in_flight_goes_on() -> None:
    pipeline = Pipeline("d1")
    pipeline.own(5)
    pipeline.deliver(SourceAt(6))
    pipeline.deliver(Configured(()))
    pipeline.deliver(Configured((Planned("d1"),)))
    assert pipeline.done(applied("d1", 6)) == []
    assert pipeline.deliver(SourceAt(7)) == [flush(3, 6, 7, "d1")]


def test_a_shutdown_waits_for_what_is_in_flight_and_releases_everything() -> None:
    pipeline = Pipeline("d1", "d2", record_ms=1000)
    pipeline.own(5, 5)
    pipeline.deliver(SourceAt(6))
    assert pipeline.deliver(Shutdown(1)) == []
    assert pipeline.deliver(SourceAt(7)) == []
    ended = pipeline.done(applied("d1", 6), rest=Outcome.EMPTY)
    released = ReleaseLeases((Released("d1", 1, True), Released("d2", 1, True)))
    assert ended == [RecordEmpty(6, (Emptied("d2", 1, 5),)), released]
    assert results(pipeline.effects) == [(1, Stopped(()))]
    assert timers(pipeline.effects) == []
    late = pipeline.deliver(LeasesGranted((Grant("d1", 2),)))
    assert late == [ReleaseLeases((Released("d1", 2, False),))]


def test_a_draining_shutdown_flushes_to_the_present_version_and_does_not_wait_for_failing_destinations() -> None:
    pipeline = Pipeline("d1", "d2", interval_ms=1000)
    pipeline.own(5, 5)
    pipeline.deliver(SourceAt(5))
    pipeline.deliver(SourceAt(6))
    assert pipeline.deliver(Shutdown(1, drain=True)) == [flush(2, 5, 6, "d1", "d2")]
    assert pipeline.deliver(SourceAt(7)) == []
    pipeline.done(applied("d1", 6), failed("d2"))
    assert results(pipeline.effects) == [(1, Stopped(("d2",)))]


def test_a_second_shutdown_ends_the_draining_of_the_first() -> None:
    pipeline = Pipeline("d1", groups_max=1)
    pipeline.own(3)
    pipeline.deliver(SourceAt(9, 1, (5,)))
    pipeline.deliver(Shutdown(1, drain=True))
    pipeline.deliver(Shutdown(2))
    pipeline.done(applied("d1", 5))
    assert results(pipeline.effects) == [(1, Stopped(("d1",))), (2, Stopped(("d1",)))]


# --------------------------------------------------------------------------------------------------------------- size


def test_ten_thousand_destinations_cost_little_more_than_their_number() -> None:
    names = tuple(f"tenant{number:05}" for number in range(10_000))
    pipeline = Pipeline(*names)
    pipeline.own(*[5] * len(names))
    begun = time.process_time()
    for version in range(6, 11):
        pipeline.deliver(SourceAt(version))
        pipeline.done(*all_applied(names[:100], version), rest=Outcome.EMPTY)
    assert (time.process_time() - begun) / 5 < 0.5  # around 0.05 s a window on a quiet machine
    assert set(pipeline.positions()) == {10}
    begun = time.process_time()
    for _ in range(1000):
        pipeline.deliver(SourceAt(10))
    assert time.process_time() - begun < 0.5  # a repeated report does not visit the destinations
