"""The planner of a delivery pipeline, by hand. Interleavings and crashes are the checker's business."""

from __future__ import annotations

import time

import pytest
from msgspec.structs import replace

from core.driver import announced, messages, results, sent, timers
from trunkline.core.delivery_events import (
    BackedOff,
    BreakerClosed,
    BreakerOpened,
    Drained,
    Halted,
    HistoryExpired,
    Retired,
    Seeded,
    Stopped,
)
from trunkline.core.delivery_messages import (
    NO_SPAN,
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
    Member,
    Outcome,
    Planned,
    ReadStandings,
    RecordEmpty,
    Released,
    ReleaseLeases,
    ReseedAsked,
    Reseeded,
    Result,
    SeedGroup,
    SeedMode,
    Shutdown,
    SourceAt,
    Span,
)
from trunkline.core.effects import Address, Effects, Message
from trunkline.core.planner import Planner
from trunkline.core.planner_tracks import PlannerConfig, Stage

HOST = Address("deliverer", "host")
NAMES = ("d1", "d2", "d3")


class Pipeline:
    """A planner, and the last thing that it asked of its worker."""

    def __init__(self, *names: str, **settings: int) -> None:
        self.planner = Planner(replace(PlannerConfig(interval_ms=0, record_ms=0), **settings))
        self.names = names or NAMES
        self.asked: list[Message] = []
        self.effects: Effects = []
        self.tell(Configured(tuple(Planned(name) for name in self.names)))

    def tell(self, message: Message) -> list[Message]:
        """What the planner sends when it is told this."""
        return self._carry_out(self.planner.on_message(HOST, message))

    def fire(self, key: str) -> list[Message]:
        return self._carry_out(self.planner.on_timer(key))

    def _carry_out(self, effects: Effects) -> list[Message]:
        self.effects = effects
        self.asked += [message for to, message in sent(effects) if to == "self.worker"]
        return messages(effects)

    def done(self, *results: Result, rest: Outcome | None = Outcome.UNKNOWN, job: int | None = None) -> list[Message]:
        """The last job (or another one) has ended."""
        last = self.asked[-1]
        assert isinstance(last, FlushGroup | SeedGroup | ReadStandings)
        return self.tell(JobDone(last.job if job is None else job, results, rest))

    def own(self, *positions: int, token: int = 1, settled: bool = True, empty: Span = NO_SPAN) -> list[Message]:
        """Every destination is granted, and stands at its position."""
        self.tell(LeasesGranted(tuple(Grant(name, token, empty, settled=settled) for name in self.names)))
        stands = [Result(name, Outcome.STANDS, at, 0) for name, at in zip(self.names, positions, strict=True)]
        return self.done(*stands)

    def stages(self) -> list[Stage]:
        return [self.planner.tracks[name].stage for name in self.names]

    def positions(self) -> list[int]:
        return [self.planner.tracks[name].effective for name in self.names]


def applied(name: str, position: int) -> Result:
    return Result(name, Outcome.APPLIED, position, 1)


def all_applied(names: tuple[str, ...], position: int) -> list[Result]:
    return [applied(name, position) for name in names]


def failed(name: str, outcome: Outcome = Outcome.TRANSIENT) -> Result:
    return Result(name, outcome, error="away")


def flush(job: int, after: int, through: int, *names: str, expected: int | None = None, stamp: bool = False) -> Message:
    at = after if expected is None else expected
    return FlushGroup(job, after, through, tuple(Member(name, at, 1) for name in names), stamp)


# ------------------------------------------------------------------------------------------------------------- groups


def test_nothing_is_planned_before_standings_and_source_are_known() -> None:
    pipeline = Pipeline()
    assert pipeline.tell(SourceAt(5)) == []
    asked = pipeline.tell(LeasesGranted((Grant("d1", 1), Grant("d2", 1))))
    assert asked == [ReadStandings(1, ("d1", "d2"))]
    assert pipeline.stages() == [Stage.READING, Stage.READING, Stage.UNOWNED]


def test_destinations_at_one_position_share_one_flush() -> None:
    pipeline = Pipeline()
    pipeline.own(5, 5, 5)
    assert pipeline.tell(SourceAt(7)) == [flush(2, 5, 7, *NAMES)]
    assert pipeline.done(*all_applied(NAMES, 7)) == []
    assert pipeline.tell(SourceAt(8)) == [flush(3, 7, 8, *NAMES)]


def test_destinations_that_lag_have_groups_of_their_own_and_meet_the_others() -> None:
    pipeline = Pipeline()
    pipeline.own(3, 5, 5)
    assert pipeline.tell(SourceAt(7)) == [flush(2, 3, 7, "d1"), flush(3, 5, 7, "d2", "d3")]
    pipeline.done(applied("d1", 7), job=2)
    pipeline.done(*all_applied(("d2", "d3"), 7), job=3)
    assert pipeline.tell(SourceAt(8)) == [flush(4, 7, 8, *NAMES)]


def test_a_window_ends_where_others_wait_for_a_slot() -> None:
    pipeline = Pipeline(groups_max=1)
    pipeline.own(3, 5, 6)
    assert pipeline.tell(SourceAt(9)) == [flush(2, 3, 5, "d1")]
    assert pipeline.done(applied("d1", 5)) == [flush(3, 5, 6, "d1", "d2")]
    assert pipeline.done(applied("d1", 6), applied("d2", 6)) == [flush(4, 6, 9, *NAMES)]


def test_a_window_ends_at_a_stop_and_the_next_one_begins_there() -> None:
    pipeline = Pipeline()
    pipeline.own(3, 3, 3)
    assert pipeline.tell(SourceAt(9, 1, (5, 7))) == [flush(2, 3, 5, *NAMES)]
    assert pipeline.tell(SourceAt(10, 1, (9,))) == []
    assert pipeline.done(*all_applied(NAMES, 5)) == [flush(3, 5, 7, *NAMES)]
    assert pipeline.done(*all_applied(NAMES, 7)) == [flush(4, 7, 9, *NAMES)]


def test_a_destination_past_the_known_version_waits_for_the_source() -> None:
    pipeline = Pipeline("d1")
    pipeline.tell(SourceAt(5))
    assert pipeline.own(7) == []
    assert pipeline.tell(SourceAt(7)) == []
    assert pipeline.tell(SourceAt(8)) == [flush(2, 7, 8, "d1")]


def test_there_is_one_job_per_destination_at_a_time() -> None:
    pipeline = Pipeline("d1")
    pipeline.own(5)
    pipeline.tell(SourceAt(6))
    assert pipeline.tell(SourceAt(7)) == []
    assert pipeline.tell(LeasesLost((Lost("d1", 1),))) == []
    assert pipeline.tell(LeasesGranted((Grant("d1", 2),))) == []
    assert pipeline.done(applied("d1", 6)) == [ReadStandings(3, ("d1",))]


def test_results_may_come_in_parts_and_those_that_have_theirs_go_on() -> None:
    pipeline = Pipeline("d1", "d2")
    pipeline.own(5, 5)
    pipeline.tell(SourceAt(6))
    assert pipeline.done(applied("d1", 6), rest=None) == []
    assert pipeline.tell(SourceAt(7)) == [flush(3, 6, 7, "d1")]
    assert pipeline.done(applied("d2", 6), job=2) == [flush(4, 6, 7, "d2")]


# ------------------------------------------------------------------------------------------------------- when to begin


def test_changes_wait_for_the_interval_but_not_at_the_start() -> None:
    pipeline = Pipeline("d1", interval_ms=1000)
    pipeline.own(5)
    assert pipeline.tell(SourceAt(6)) == [flush(2, 5, 6, "d1")]
    pipeline.done(applied("d1", 6))
    assert pipeline.tell(SourceAt(7)) == []
    assert timers(pipeline.effects) == ["interval"]
    assert pipeline.tell(SourceAt(8)) == []
    assert timers(pipeline.effects) == []
    assert pipeline.fire("interval") == [flush(3, 6, 8, "d1")]


@pytest.mark.parametrize(("rows", "size_bytes"), [(40, 0), (0, 400)])
def test_enough_rows_or_bytes_do_not_wait_for_the_interval(rows: int, size_bytes: int) -> None:
    pipeline = Pipeline("d1", interval_ms=1000, rows=100, size_bytes=1000)
    pipeline.own(5)
    pipeline.tell(SourceAt(5))
    assert pipeline.tell(SourceAt(6, rows=rows, size_bytes=size_bytes)) == []
    assert pipeline.tell(SourceAt(7, rows=rows, size_bytes=size_bytes)) == []
    assert pipeline.tell(SourceAt(8, rows=rows, size_bytes=size_bytes)) == [flush(2, 5, 8, "d1")]
    assert pipeline.tell(SourceAt(9, rows=rows, size_bytes=size_bytes)) == []


def test_a_late_word_of_the_source_changes_nothing() -> None:
    pipeline = Pipeline("d1")
    pipeline.own(5)
    pipeline.tell(SourceAt(7, 3))
    assert pipeline.planner.ignores(HOST, SourceAt(6, 2))
    assert pipeline.tell(SourceAt(6, 2)) == []
    assert pipeline.planner.schedule.source == SourceAt(7, 3)


def test_an_idle_pipeline_asks_for_nothing_and_runs_no_timer() -> None:
    pipeline = Pipeline(interval_ms=1000, record_ms=1000)
    pipeline.own(5, 5, 5)
    pipeline.tell(SourceAt(5))
    assert pipeline.effects == []
    assert pipeline.tell(SourceAt(5)) == []
    assert pipeline.effects == []


# ------------------------------------------------------------------------------------------------------- empty windows


def test_a_window_without_rows_is_noted_and_the_next_one_begins_behind_it() -> None:
    pipeline = Pipeline("d1", "d2")
    pipeline.own(5, 5)
    pipeline.tell(SourceAt(6))
    noted = pipeline.done(applied("d1", 6), rest=Outcome.EMPTY)
    assert noted == [RecordEmpty(6, (Emptied("d2", 1, 5),))]
    members = (Member("d1", 6, 1), Member("d2", 5, 1))
    assert pipeline.tell(SourceAt(7)) == [FlushGroup(3, 6, 7, members)]
    assert pipeline.done(rest=Outcome.EMPTY) == [RecordEmpty(7, (Emptied("d1", 1, 6), Emptied("d2", 1, 5)))]


def test_notes_are_written_together_after_a_while() -> None:
    pipeline = Pipeline("d1", "d2", record_ms=1000)
    pipeline.own(5, 5)
    pipeline.tell(SourceAt(6))
    assert pipeline.done(rest=Outcome.EMPTY) == []
    assert timers(pipeline.effects) == ["record"]
    pipeline.tell(SourceAt(7))
    assert pipeline.done(applied("d1", 7), rest=Outcome.EMPTY) == []
    assert timers(pipeline.effects) == []
    assert pipeline.fire("record") == [RecordEmpty(7, (Emptied("d2", 1, 5),))]


def test_a_note_of_the_control_store_tells_where_to_go_on() -> None:
    pipeline = Pipeline("d1")
    pipeline.own(5, empty=Span(5, 8))
    assert pipeline.tell(SourceAt(9)) == [flush(2, 8, 9, "d1", expected=5)]


@pytest.mark.parametrize("position", [4, 6])
def test_a_note_holds_for_the_very_position_that_it_was_measured_from(position: int) -> None:
    """A row may have come and gone inside of the window."""
    pipeline = Pipeline("d1")
    pipeline.own(position, empty=Span(5, 8))
    assert pipeline.tell(SourceAt(9)) == [flush(2, position, 9, "d1")]


def test_until_a_destination_is_settled_every_window_is_written() -> None:
    pipeline = Pipeline("d1")
    pipeline.own(5, settled=False)
    assert pipeline.tell(SourceAt(6)) == [flush(2, 5, 6, "d1", stamp=True)]
    pipeline.done(applied("d1", 6))
    assert pipeline.tell(SourceAt(7)) == [flush(3, 6, 7, "d1")]


def test_an_unsettled_destination_with_a_note_is_written_although_the_source_stands_still() -> None:
    pipeline = Pipeline("d1")
    pipeline.tell(SourceAt(8))
    assert pipeline.own(5, settled=False, empty=Span(5, 8)) == [flush(2, 8, 8, "d1", expected=5, stamp=True)]


@pytest.mark.parametrize("outcome", [Outcome.UNKNOWN, Outcome.MOVED, Outcome.ALREADY])
def test_an_outcome_that_leaves_something_on_its_way_unsettles(outcome: Outcome) -> None:
    pipeline = Pipeline("d1")
    pipeline.own(5)
    pipeline.tell(SourceAt(6))
    pipeline.done(Result("d1", outcome, 6))
    assert not pipeline.planner.tracks["d1"].settled


def test_a_seed_or_a_stamped_flush_cannot_be_empty() -> None:
    pipeline = Pipeline("d1")
    pipeline.own(5, settled=False)
    pipeline.tell(SourceAt(6))
    with pytest.raises(AssertionError, match="d1 cannot be empty"):
        pipeline.done(rest=Outcome.EMPTY)


# ------------------------------------------------------------------------------------------------------------ history


def test_a_position_that_the_source_forgets_is_written_once_if_a_note_covers_it() -> None:
    pipeline = Pipeline("d1")
    pipeline.own(5, empty=Span(5, 8))
    pipeline.tell(SourceAt(8, 5))
    assert pipeline.tell(SourceAt(8, 7)) == [flush(2, 8, 8, "d1", expected=5, stamp=True)]
    assert pipeline.done(applied("d1", 8)) == []


def test_a_destination_that_the_source_has_left_behind_is_seeded_again_loudly() -> None:
    pipeline = Pipeline("d1", "d2")
    pipeline.own(5, 8)
    pipeline.tell(SourceAt(8, 5))
    pipeline.done(failed("d1"))
    assert pipeline.tell(SourceAt(9, 7)) == [flush(3, 8, 9, "d2")]
    assert pipeline.fire("retry 500") == [SeedGroup(4, 9, SeedMode.SCAN, (Member("d1", 5, 1),))]
    assert announced(pipeline.effects)[0] == HistoryExpired("d1", 5, 7)


def test_a_window_that_the_source_cannot_tell_leads_to_a_new_seed() -> None:
    pipeline = Pipeline("d1", "d2")
    pipeline.own(5, 5)
    pipeline.tell(SourceAt(6))
    seed = SeedGroup(3, 6, SeedMode.SCAN, (Member("d1", 5, 1),))
    assert pipeline.done(Result("d1", Outcome.EXPIRED), applied("d2", 6)) == [seed]
    assert HistoryExpired("d1", 5, 1) in announced(pipeline.effects)
    pipeline.done(applied("d1", 6))
    assert pipeline.tell(SourceAt(7)) == [flush(4, 6, 7, "d1", "d2")]


def test_a_seed_whose_version_is_gone_backs_off() -> None:
    pipeline = Pipeline("d1")
    pipeline.own(0)
    pipeline.tell(SourceAt(6))
    assert pipeline.done(Result("d1", Outcome.EXPIRED)) == []
    assert pipeline.stages() == [Stage.BACKING_OFF]


def test_one_that_may_not_be_seeded_again_halts() -> None:
    pipeline = Pipeline("d1")
    pipeline.tell(Configured((Planned("d1", reseeds=False),)))
    pipeline.own(5)
    assert pipeline.tell(SourceAt(9, 7)) == []
    halted = announced(pipeline.effects)[-1]
    assert isinstance(halted, Halted)
    assert "no longer has the changes after 5; seed it again" in halted.error


# -------------------------------------------------------------------------------------------------------------- seeds


def test_new_destinations_share_one_seed_while_others_are_flushed() -> None:
    pipeline = Pipeline()
    pipeline.own(0, 5, 0)
    asked = pipeline.tell(SourceAt(7))
    seed = SeedGroup(2, 7, SeedMode.SCAN, (Member("d1", 0, 1), Member("d3", 0, 1)))
    assert asked == [seed, flush(3, 5, 7, "d2")]
    pipeline.done(*all_applied(("d1", "d3"), 7), job=2)
    assert announced(pipeline.effects) == [Seeded("d1", 7), Seeded("d3", 7)]
    pipeline.done(applied("d2", 7), job=3)
    assert pipeline.tell(SourceAt(8)) == [flush(4, 7, 8, *NAMES)]


@pytest.mark.parametrize(("mode", "through"), [(SeedMode.START, 3), (SeedMode.NOW, 7), (SeedMode.SCAN, 7)])
def test_the_mode_of_a_seed_says_which_version_it_takes(mode: SeedMode, through: int) -> None:
    pipeline = Pipeline("d1")
    pipeline.tell(Configured((Planned("d1", seed=mode),)))
    pipeline.own(0)
    assert pipeline.tell(SourceAt(7, 3)) == [SeedGroup(2, through, mode, (Member("d1", 0, 1),))]


def test_a_wish_for_a_new_seed_does_not_take_a_position_back_to_the_start_of_history() -> None:
    pipeline = Pipeline("d1")
    pipeline.tell(Configured((Planned("d1", seed=SeedMode.START),)))
    pipeline.own(5)
    pipeline.tell(SourceAt(5, 3))
    pipeline.tell(ReseedAsked("d1", 1))
    asked = pipeline.done(Result("d1", Outcome.STANDS, 5, 1))
    assert asked == [SeedGroup(3, 5, SeedMode.SCAN, (Member("d1", 5, 1),))]


def test_a_wish_for_a_new_seed_is_fulfilled_once() -> None:
    pipeline = Pipeline("d1")
    pipeline.own(5)
    pipeline.tell(SourceAt(5))
    assert pipeline.tell(ReseedAsked("d1", 1)) == [ReadStandings(2, ("d1",))]
    assert pipeline.done(Result("d1", Outcome.STANDS, 5, 1)) == [SeedGroup(3, 5, SeedMode.SCAN, (Member("d1", 5, 1),))]
    assert pipeline.done(applied("d1", 5)) == [Reseeded("d1", 1, 1)]
    assert pipeline.tell(ReseedAsked("d1", 1)) == []
    assert pipeline.tell(LeasesGranted((Grant("d1", 1, reseed=1),))) == []


def test_a_wish_that_comes_during_a_seed_asks_for_another_one() -> None:
    pipeline = Pipeline("d1")
    pipeline.own(0)
    pipeline.tell(SourceAt(5))
    assert pipeline.tell(ReseedAsked("d1", 1)) == []
    assert pipeline.done(applied("d1", 5)) == [ReadStandings(3, ("d1",))]
    assert pipeline.done(Result("d1", Outcome.STANDS, 5, 1)) == [SeedGroup(4, 5, SeedMode.SCAN, (Member("d1", 5, 1),))]


# ----------------------------------------------------------------------------------------------------------- failures


def test_a_failure_backs_off_twice_as_long_each_time_until_the_breaker_opens() -> None:
    pipeline = Pipeline("d1", retry_first_ms=500, retry_most_ms=60_000, breaker_after=3)
    pipeline.own(5)
    pipeline.tell(SourceAt(6))
    for failures, wait_ms in enumerate((500, 1000, 60_000), start=1):
        assert pipeline.done(failed("d1")) == []
        assert timers(pipeline.effects) == [f"retry {wait_ms}"]
        assert announced(pipeline.effects)[0] == BackedOff("d1", failures, "away")
        assert pipeline.stages() == [Stage.BACKING_OFF]
        assert pipeline.fire(f"retry {wait_ms}") == [flush(failures + 2, 5, 6, "d1")]
    pipeline.done(failed("d1"))
    assert announced(pipeline.effects) == [BackedOff("d1", 3, "away")]
    pipeline.fire("retry 60000")
    pipeline.done(applied("d1", 6))
    assert announced(pipeline.effects) == [BreakerClosed("d1")]


def test_the_breaker_is_told_once() -> None:
    pipeline = Pipeline("d1", breaker_after=1)
    pipeline.own(5)
    pipeline.tell(SourceAt(6))
    pipeline.done(failed("d1"))
    assert announced(pipeline.effects) == [BackedOff("d1", 1, "away"), BreakerOpened("d1", "away")]


def test_those_that_wait_equally_long_share_one_timer() -> None:
    pipeline = Pipeline("d1", "d2")
    pipeline.own(4, 5)
    pipeline.tell(SourceAt(6))
    pipeline.done(failed("d1"), job=2)
    assert timers(pipeline.effects) == ["retry 500"]
    pipeline.done(failed("d2"), job=3)
    assert timers(pipeline.effects) == []
    assert pipeline.fire("retry 500") == [flush(4, 4, 5, "d1")]


def test_a_failure_of_one_takes_nothing_from_the_others() -> None:
    pipeline = Pipeline()
    pipeline.own(5, 5, 5)
    pipeline.tell(SourceAt(6))
    pipeline.done(applied("d1", 6), failed("d2"), applied("d3", 6))
    assert pipeline.positions() == [6, 5, 6]
    assert pipeline.tell(SourceAt(7)) == [flush(3, 6, 7, "d1", "d3")]


def test_what_failed_flies_apart_and_leaves_a_slot_to_the_healthy_ones() -> None:
    pipeline = Pipeline(groups_max=2)
    pipeline.own(5, 5, 5)
    pipeline.tell(SourceAt(6))
    pipeline.done(failed("d1"), failed("d2"), rest=Outcome.EMPTY)
    assert pipeline.fire("retry 500") == [flush(3, 5, 6, "d1", "d2")]
    assert pipeline.tell(SourceAt(7)) == [flush(4, 6, 7, "d3", expected=5)]
    pipeline.done(failed("d1"), rest=None, job=3)
    assert pipeline.fire("retry 1000") == []  # d2 is still in flight, and has the one slot of those that failed


def test_one_that_kills_its_worker_is_alone_after_a_few_tries() -> None:
    """Who was in a job that broke off flies in ever smaller groups, until it has succeeded (P9)."""
    names = tuple(f"d{number}" for number in range(8))
    pipeline = Pipeline(*names, breaker_after=9)
    pipeline.own(*[5] * 8)
    pipeline.tell(SourceAt(6))
    killed: list[int] = []
    for job in range(2, 40):
        asked = next((each for each in pipeline.asked if getattr(each, "job", 0) == job), None)
        match asked:
            case ReadStandings(_, destinations):
                pipeline.tell(JobDone(job, tuple(Result(name, Outcome.STANDS, 5, 1) for name in destinations)))
            case FlushGroup(_, _, _, members) if "d6" in [member.destination for member in members]:
                killed.append(len(members))
                pipeline.tell(JobDone(job, ()))
                pipeline.fire(timers(pipeline.effects)[0])
            case FlushGroup(_, _, _, members):
                pipeline.tell(JobDone(job, tuple(applied(member.destination, 6) for member in members)))
    assert killed[:5] == [8, 4, 2, 1, 1]
    assert pipeline.positions() == [6, 6, 6, 6, 6, 6, 5, 6]


def test_a_permanent_failure_halts_until_somebody_resumes() -> None:
    pipeline = Pipeline("d1")
    pipeline.own(5)
    pipeline.tell(SourceAt(6))
    pipeline.done(failed("d1", Outcome.PERMANENT))
    assert announced(pipeline.effects) == [Halted("d1", "away")]
    assert pipeline.tell(SourceAt(7)) == []
    assert pipeline.stages() == [Stage.HALTED]
    assert pipeline.tell(LifeChanged("d1", Life.ACTIVE)) == [ReadStandings(3, ("d1",))]


@pytest.mark.parametrize("outcome", [Outcome.MOVED, Outcome.UNKNOWN])
def test_who_does_not_know_where_it_stands_reads_that_first(outcome: Outcome) -> None:
    pipeline = Pipeline("d1")
    pipeline.own(5)
    pipeline.tell(SourceAt(6))
    asked = pipeline.done(Result("d1", outcome))
    asked = asked or pipeline.fire("retry 500")
    assert asked == [ReadStandings(3, ("d1",))]
    assert pipeline.done(Result("d1", Outcome.STANDS, 6, 1)) == []


def test_a_position_that_keeps_moving_backs_off() -> None:
    pipeline = Pipeline("d1")
    pipeline.own(5)
    pipeline.tell(SourceAt(9))
    pipeline.done(Result("d1", Outcome.MOVED, 6))
    pipeline.done(Result("d1", Outcome.STANDS, 6, 1))
    assert pipeline.done(Result("d1", Outcome.MOVED, 7)) == []
    assert "let one pipeline alone write to it" in pipeline.planner.tracks["d1"].error
    assert pipeline.fire("retry 500") == [ReadStandings(5, ("d1",))]


def test_a_destination_that_is_past_a_flush_goes_on_from_there() -> None:
    pipeline = Pipeline("d1")
    pipeline.own(5)
    pipeline.tell(SourceAt(6))
    pipeline.tell(SourceAt(8))
    assert pipeline.done(Result("d1", Outcome.ALREADY, 7, 1)) == [flush(3, 7, 8, "d1", stamp=True)]


def test_a_standing_that_cannot_be_read_backs_off_too() -> None:
    pipeline = Pipeline("d1")
    pipeline.tell(LeasesGranted((Grant("d1", 1),)))
    pipeline.done(failed("d1"))
    assert pipeline.fire("retry 500") == [ReadStandings(2, ("d1",))]


# --------------------------------------------------------------------------------------------------------- ownership


@pytest.mark.parametrize("change", ["lost", "granted anew", "configured", "paused", "reseed"])
def test_an_answer_that_was_overtaken_by_events_is_not_believed(change: str) -> None:
    news: dict[str, Message] = {
        "lost": LeasesLost((Lost("d1", 1),)),
        "granted anew": LeasesGranted((Grant("d1", 2),)),
        "configured": Configured((Planned("d1", digest="other"),)),
        "paused": LifeChanged("d1", Life.PAUSED),
        "reseed": ReseedAsked("d1", 1),
    }
    pipeline = Pipeline("d1")
    pipeline.own(5)
    pipeline.tell(SourceAt(6))
    pipeline.tell(news[change])
    assert RecordEmpty not in [type(message) for message in pipeline.done(rest=Outcome.EMPTY)]
    assert not pipeline.planner.tracks["d1"].known
    assert pipeline.positions() == [5]


def test_a_fenced_destination_is_left_alone_until_it_is_granted_anew() -> None:
    pipeline = Pipeline("d1")
    pipeline.own(5)
    pipeline.tell(SourceAt(6))
    assert pipeline.done(Result("d1", Outcome.FENCED, token=4)) == [FencedOff("d1", 1, 4)]
    assert pipeline.tell(SourceAt(7)) == []
    assert pipeline.tell(LeasesGranted((Grant("d1", 3),))) == []
    assert pipeline.tell(LeasesGranted((Grant("d1", 5),))) == [ReadStandings(3, ("d1",))]


def test_a_standing_under_a_higher_token_fences_before_anything_is_written() -> None:
    pipeline = Pipeline("d1")
    pipeline.tell(SourceAt(6))
    pipeline.tell(LeasesGranted((Grant("d1", 1),)))
    assert pipeline.done(Result("d1", Outcome.STANDS, 5, 7)) == [FencedOff("d1", 1, 7)]


def test_a_lease_that_lapsed_may_be_granted_again_under_its_token() -> None:
    pipeline = Pipeline("d1")
    pipeline.own(5)
    pipeline.tell(LeasesLost((Lost("d1", 1),)))
    assert pipeline.tell(SourceAt(6)) == []
    assert pipeline.tell(LeasesGranted((Grant("d1", 1),))) == [ReadStandings(2, ("d1",))]
    assert pipeline.done(Result("d1", Outcome.STANDS, 5, 1)) == [flush(3, 5, 6, "d1")]


def test_what_nobody_configured_is_given_back() -> None:
    pipeline = Pipeline("d1")
    assert pipeline.tell(LeasesGranted((Grant("other", 3),))) == [ReleaseLeases((Released("other", 3, False),))]


# --------------------------------------------------------------------------------------------------------- life cycle


def test_a_paused_destination_keeps_its_lease_and_is_read_again_when_it_is_resumed() -> None:
    pipeline = Pipeline("d1", "d2")
    pipeline.own(5, 5)
    assert pipeline.tell(LifeChanged("d1", Life.PAUSED)) == []
    assert pipeline.tell(SourceAt(6)) == [flush(2, 5, 6, "d2")]
    assert pipeline.tell(LifeChanged("d1", Life.ACTIVE)) == [ReadStandings(3, ("d1",))]


def test_a_new_configuration_leaves_alone_what_operators_said() -> None:
    pipeline = Pipeline("d1")
    pipeline.own(5)
    pipeline.tell(LifeChanged("d1", Life.PAUSED))
    assert pipeline.tell(Configured((Planned("d1"), Planned("d2")))) == []
    assert pipeline.stages() == [Stage.PAUSED]
    assert pipeline.tell(Configured((Planned("d1", Life.RETIRED),))) == [ReleaseLeases((Released("d1", 1, True),))]


def test_a_draining_destination_is_brought_to_the_version_of_that_moment_and_released() -> None:
    pipeline = Pipeline("d1", interval_ms=1000)
    pipeline.own(5)
    pipeline.tell(SourceAt(5))
    pipeline.tell(SourceAt(6))
    assert pipeline.tell(LifeChanged("d1", Life.DRAINING)) == [flush(2, 5, 6, "d1")]
    assert pipeline.done(applied("d1", 6)) == [ReleaseLeases((Released("d1", 1, True),))]
    assert announced(pipeline.effects) == [Drained("d1", 6)]
    assert pipeline.tell(SourceAt(7)) == []


def test_a_drain_before_the_source_is_known_begins_with_it() -> None:
    pipeline = Pipeline("d1")
    pipeline.tell(LifeChanged("d1", Life.DRAINING))
    pipeline.own(5)
    assert pipeline.tell(SourceAt(6)) == [flush(2, 5, 6, "d1")]


def test_a_retired_destination_is_released_when_nothing_is_in_flight_to_it() -> None:
    pipeline = Pipeline("d1")
    pipeline.own(5)
    pipeline.tell(SourceAt(6))
    assert pipeline.tell(LifeChanged("d1", Life.RETIRED)) == []
    assert pipeline.done(applied("d1", 6)) == [ReleaseLeases((Released("d1", 1, True),))]
    assert announced(pipeline.effects) == [Retired("d1")]


def test_a_destination_that_leaves_the_configuration_is_released_and_forgotten() -> None:
    pipeline = Pipeline("d1", "d2")
    pipeline.own(5, 5)
    pipeline.tell(SourceAt(6))
    assert pipeline.tell(Configured((Planned("d2"),))) == []
    assert pipeline.done(*all_applied(("d1", "d2"), 6)) == [ReleaseLeases((Released("d1", 1, True),))]
    assert announced(pipeline.effects) == []
    assert list(pipeline.planner.tracks) == ["d2"]


def test_a_destination_that_comes_back_while_its_flush_is_in_flight_goes_on() -> None:
    pipeline = Pipeline("d1")
    pipeline.own(5)
    pipeline.tell(SourceAt(6))
    pipeline.tell(Configured(()))
    pipeline.tell(Configured((Planned("d1"),)))
    assert pipeline.done(applied("d1", 6)) == []
    assert pipeline.tell(SourceAt(7)) == [flush(3, 6, 7, "d1")]


def test_a_shutdown_waits_for_what_is_in_flight_and_releases_everything() -> None:
    pipeline = Pipeline("d1", "d2", record_ms=1000)
    pipeline.own(5, 5)
    pipeline.tell(SourceAt(6))
    assert pipeline.tell(Shutdown(1)) == []
    assert pipeline.tell(SourceAt(7)) == []
    ended = pipeline.done(applied("d1", 6), rest=Outcome.EMPTY)
    released = ReleaseLeases((Released("d1", 1, True), Released("d2", 1, True)))
    assert ended == [RecordEmpty(6, (Emptied("d2", 1, 5),)), released]
    assert results(pipeline.effects) == [(1, Stopped(()))]
    assert timers(pipeline.effects) == []
    late = pipeline.tell(LeasesGranted((Grant("d1", 2),)))
    assert late == [ReleaseLeases((Released("d1", 2, False),))]


def test_a_draining_shutdown_flushes_to_the_version_of_that_moment_and_waits_for_nobody_who_fails() -> None:
    pipeline = Pipeline("d1", "d2", interval_ms=1000)
    pipeline.own(5, 5)
    pipeline.tell(SourceAt(5))
    pipeline.tell(SourceAt(6))
    assert pipeline.tell(Shutdown(1, drain=True)) == [flush(2, 5, 6, "d1", "d2")]
    assert pipeline.tell(SourceAt(7)) == []
    pipeline.done(applied("d1", 6), failed("d2"))
    assert results(pipeline.effects) == [(1, Stopped(("d2",)))]


def test_a_second_shutdown_ends_the_draining_of_the_first() -> None:
    pipeline = Pipeline("d1", groups_max=1)
    pipeline.own(3)
    pipeline.tell(SourceAt(9, 1, (5,)))
    pipeline.tell(Shutdown(1, drain=True))
    pipeline.tell(Shutdown(2))
    pipeline.done(applied("d1", 5))
    assert results(pipeline.effects) == [(1, Stopped(("d1",))), (2, Stopped(("d1",)))]


# --------------------------------------------------------------------------------------------------------------- size


def test_ten_thousand_destinations_cost_little_more_than_their_number() -> None:
    names = tuple(f"tenant{number:05}" for number in range(10_000))
    pipeline = Pipeline(*names)
    pipeline.own(*[5] * len(names))
    begun = time.process_time()
    for version in range(6, 11):
        pipeline.tell(SourceAt(version))
        pipeline.done(*all_applied(names[:100], version), rest=Outcome.EMPTY)
    assert (time.process_time() - begun) / 5 < 0.5  # around 0.05 s a window on a quiet machine
    assert set(pipeline.positions()) == {10}
    begun = time.process_time()
    for _ in range(1000):
        pipeline.tell(SourceAt(10))
    assert time.process_time() - begun < 0.5  # news that is none does not look at destinations
