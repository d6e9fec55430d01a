"""The planner of a delivery pipeline: windows, groups and seeds. Interleavings are the checker's business."""

from __future__ import annotations

import pytest

from core.driver import announced, timers
from core.pipelines import HOST, NAMES, Pipeline, all_applied, applied, failed, flush
from trunkline.core.delivery_events import (
    Halted,
    HistoryExpired,
    Seeded,
)
from trunkline.core.delivery_messages import (
    Configured,
    Emptied,
    FlushGroup,
    Grant,
    JobMember,
    LeasesGranted,
    LeasesLost,
    Lost,
    Outcome,
    Planned,
    ReadStandings,
    RecordEmpty,
    ReseedAsked,
    Reseeded,
    Result,
    SeedGroup,
    SeedMode,
    SourceAt,
    Span,
)
from trunkline.core.planner_tracks import TrackStage

# ------------------------------------------------------------------------------------------------------------- groups


def test_nothing_is_planned_before_standings_and_source_are_known() -> None:
    pipeline = Pipeline()
    assert pipeline.deliver(SourceAt(5)) == []
    asked = pipeline.deliver(LeasesGranted((Grant("d1", 1), Grant("d2", 1))))
    assert asked == [ReadStandings(1, ("d1", "d2"))]
    assert pipeline.stages() == [TrackStage.READING, TrackStage.READING, TrackStage.UNOWNED]


def test_destinations_at_one_position_share_one_flush() -> None:
    pipeline = Pipeline()
    pipeline.own(5, 5, 5)
    assert pipeline.deliver(SourceAt(7)) == [flush(2, 5, 7, *NAMES)]
    assert pipeline.done(*all_applied(NAMES, 7)) == []
    assert pipeline.deliver(SourceAt(8)) == [flush(3, 7, 8, *NAMES)]


def test_destinations_that_lag_have_groups_of_their_own_and_meet_the_others() -> None:
    pipeline = Pipeline()
    pipeline.own(3, 5, 5)
    assert pipeline.deliver(SourceAt(7)) == [flush(2, 3, 7, "d1"), flush(3, 5, 7, "d2", "d3")]
    pipeline.done(applied("d1", 7), job=2)
    pipeline.done(*all_applied(("d2", "d3"), 7), job=3)
    assert pipeline.deliver(SourceAt(8)) == [flush(4, 7, 8, *NAMES)]


def test_a_window_ends_where_others_wait_for_a_slot() -> None:
    pipeline = Pipeline(groups_max=1)
    pipeline.own(3, 5, 6)
    assert pipeline.deliver(SourceAt(9)) == [flush(2, 3, 5, "d1")]
    assert pipeline.done(applied("d1", 5)) == [flush(3, 5, 6, "d1", "d2")]
    assert pipeline.done(applied("d1", 6), applied("d2", 6)) == [flush(4, 6, 9, *NAMES)]


def test_a_window_ends_at_a_stop_and_the_next_one_begins_there() -> None:
    pipeline = Pipeline()
    pipeline.own(3, 3, 3)
    assert pipeline.deliver(SourceAt(9, 1, (5, 7))) == [flush(2, 3, 5, *NAMES)]
    assert pipeline.deliver(SourceAt(10, 1, (9,))) == []
    assert pipeline.done(*all_applied(NAMES, 5)) == [flush(3, 5, 7, *NAMES)]
    assert pipeline.done(*all_applied(NAMES, 7)) == [flush(4, 7, 9, *NAMES)]


def test_a_destination_past_the_known_version_waits_for_the_source() -> None:
    pipeline = Pipeline("d1")
    pipeline.deliver(SourceAt(5))
    assert pipeline.own(7) == []
    assert pipeline.deliver(SourceAt(7)) == []
    assert pipeline.deliver(SourceAt(8)) == [flush(2, 7, 8, "d1")]


def test_there_is_one_job_per_destination_at_a_time() -> None:
    pipeline = Pipeline("d1")
    pipeline.own(5)
    pipeline.deliver(SourceAt(6))
    assert pipeline.deliver(SourceAt(7)) == []
    assert pipeline.deliver(LeasesLost((Lost("d1", 1),))) == []
    assert pipeline.deliver(LeasesGranted((Grant("d1", 2),))) == []
    assert pipeline.done(applied("d1", 6)) == [ReadStandings(3, ("d1",))]


def test_results_may_come_in_parts_and_those_that_have_theirs_go_on() -> None:
    pipeline = Pipeline("d1", "d2")
    pipeline.own(5, 5)
    pipeline.deliver(SourceAt(6))
    assert pipeline.done(applied("d1", 6), rest=None) == []
    assert pipeline.deliver(SourceAt(7)) == [flush(3, 6, 7, "d1")]
    assert pipeline.done(applied("d2", 6), job=2) == [flush(4, 6, 7, "d2")]


# ------------------------------------------------------------------------------------------------------- when to begin


def test_changes_wait_for_the_interval_but_not_at_the_start() -> None:
    pipeline = Pipeline("d1", interval_ms=1000)
    pipeline.own(5)
    assert pipeline.deliver(SourceAt(6)) == [flush(2, 5, 6, "d1")]
    pipeline.done(applied("d1", 6))
    assert pipeline.deliver(SourceAt(7)) == []
    assert timers(pipeline.effects) == ["interval"]
    assert pipeline.deliver(SourceAt(8)) == []
    assert timers(pipeline.effects) == []
    assert pipeline.fire("interval") == [flush(3, 6, 8, "d1")]


@pytest.mark.parametrize(("rows", "size_bytes"), [(40, 0), (0, 400)])
def test_enough_rows_or_bytes_do_not_wait_for_the_interval(rows: int, size_bytes: int) -> None:
    pipeline = Pipeline("d1", interval_ms=1000, rows=100, size_bytes=1000)
    pipeline.own(5)
    pipeline.deliver(SourceAt(5))
    assert pipeline.deliver(SourceAt(6, rows=rows, size_bytes=size_bytes)) == []
    assert pipeline.deliver(SourceAt(7, rows=rows, size_bytes=size_bytes)) == []
    assert pipeline.deliver(SourceAt(8, rows=rows, size_bytes=size_bytes)) == [flush(2, 5, 8, "d1")]
    assert pipeline.deliver(SourceAt(9, rows=rows, size_bytes=size_bytes)) == []


def test_a_late_report_of_the_source_changes_nothing() -> None:
    pipeline = Pipeline("d1")
    pipeline.own(5)
    pipeline.deliver(SourceAt(7, 3))
    assert pipeline.planner.ignores(HOST, SourceAt(6, 2))
    assert pipeline.deliver(SourceAt(6, 2)) == []
    assert pipeline.planner.schedule.source == SourceAt(7, 3)


def test_an_idle_pipeline_requests_nothing_and_runs_no_timer() -> None:
    pipeline = Pipeline(interval_ms=1000, record_ms=1000)
    pipeline.own(5, 5, 5)
    pipeline.deliver(SourceAt(5))
    assert pipeline.effects == []
    assert pipeline.deliver(SourceAt(5)) == []
    assert pipeline.effects == []


# ------------------------------------------------------------------------------------------------------- empty windows


def test_a_window_without_rows_is_noted_and_the_next_one_begins_behind_it() -> None:
    pipeline = Pipeline("d1", "d2")
    pipeline.own(5, 5)
    pipeline.deliver(SourceAt(6))
    noted = pipeline.done(applied("d1", 6), rest=Outcome.EMPTY)
    assert noted == [RecordEmpty(6, (Emptied("d2", 1, 5),))]
    members = (JobMember("d1", 6, 1), JobMember("d2", 5, 1))
    assert pipeline.deliver(SourceAt(7)) == [FlushGroup(3, 6, 7, members)]
    assert pipeline.done(rest=Outcome.EMPTY) == [RecordEmpty(7, (Emptied("d1", 1, 6), Emptied("d2", 1, 5)))]


def test_notes_are_written_together_after_a_while() -> None:
    pipeline = Pipeline("d1", "d2", record_ms=1000)
    pipeline.own(5, 5)
    pipeline.deliver(SourceAt(6))
    assert pipeline.done(rest=Outcome.EMPTY) == []
    assert timers(pipeline.effects) == ["record"]
    pipeline.deliver(SourceAt(7))
    assert pipeline.done(applied("d1", 7), rest=Outcome.EMPTY) == []
    assert timers(pipeline.effects) == []
    assert pipeline.fire("record") == [RecordEmpty(7, (Emptied("d2", 1, 5),))]


def test_a_note_of_the_control_store_sets_the_start_of_the_next_window() -> None:
    pipeline = Pipeline("d1")
    pipeline.own(5, empty=Span(5, 8))
    assert pipeline.deliver(SourceAt(9)) == [flush(2, 8, 9, "d1", expected=5)]


@pytest.mark.parametrize("position", [4, 6])
def test_a_note_holds_for_the_very_position_that_it_was_measured_from(position: int) -> None:
    """A row may have been inserted and deleted inside the window."""
    pipeline = Pipeline("d1")
    pipeline.own(position, empty=Span(5, 8))
    assert pipeline.deliver(SourceAt(9)) == [flush(2, position, 9, "d1")]


def test_until_a_destination_is_settled_every_window_is_written() -> None:
    pipeline = Pipeline("d1")
    pipeline.own(5, settled=False)
    assert pipeline.deliver(SourceAt(6)) == [flush(2, 5, 6, "d1", stamp=True)]
    pipeline.done(applied("d1", 6))
    assert pipeline.deliver(SourceAt(7)) == [flush(3, 6, 7, "d1")]


def test_an_unsettled_destination_with_a_note_is_written_although_the_source_stands_still() -> None:
    pipeline = Pipeline("d1")
    pipeline.deliver(SourceAt(8))
    assert pipeline.own(5, settled=False, empty=Span(5, 8)) == [flush(2, 8, 8, "d1", expected=5, stamp=True)]


@pytest.mark.parametrize("outcome", [Outcome.UNKNOWN, Outcome.MOVED, Outcome.ALREADY])
def test_an_outcome_that_leaves_something_on_its_way_unsettles(outcome: Outcome) -> None:
    pipeline = Pipeline("d1")
    pipeline.own(5)
    pipeline.deliver(SourceAt(6))
    pipeline.done(Result("d1", outcome, 6))
    assert not pipeline.planner.tracks["d1"].settled


def test_a_seed_or_a_stamped_flush_cannot_be_empty() -> None:
    pipeline = Pipeline("d1")
    pipeline.own(5, settled=False)
    pipeline.deliver(SourceAt(6))
    with pytest.raises(AssertionError, match="d1 cannot be empty"):
        pipeline.done(rest=Outcome.EMPTY)


# ------------------------------------------------------------------------------------------------------------ history


def test_a_position_that_the_source_forgets_is_written_once_if_a_note_covers_it() -> None:
    pipeline = Pipeline("d1")
    pipeline.own(5, empty=Span(5, 8))
    pipeline.deliver(SourceAt(8, 5))
    assert pipeline.deliver(SourceAt(8, 7)) == [flush(2, 8, 8, "d1", expected=5, stamp=True)]
    assert pipeline.done(applied("d1", 8)) == []


def test_a_destination_that_the_source_has_left_behind_is_seeded_again_loudly() -> None:
    pipeline = Pipeline("d1", "d2")
    pipeline.own(5, 8)
    pipeline.deliver(SourceAt(8, 5))
    pipeline.done(failed("d1"))
    assert pipeline.deliver(SourceAt(9, 7)) == [flush(3, 8, 9, "d2")]
    assert pipeline.fire("retry 500") == [SeedGroup(4, 9, SeedMode.SCAN, (JobMember("d1", 5, 1),))]
    assert announced(pipeline.effects)[0] == HistoryExpired("d1", 5, 7)


def test_a_window_that_the_source_cannot_tell_leads_to_a_new_seed() -> None:
    pipeline = Pipeline("d1", "d2")
    pipeline.own(5, 5)
    pipeline.deliver(SourceAt(6))
    seed = SeedGroup(3, 6, SeedMode.SCAN, (JobMember("d1", 5, 1),))
    assert pipeline.done(Result("d1", Outcome.EXPIRED), applied("d2", 6)) == [seed]
    assert HistoryExpired("d1", 5, 1) in announced(pipeline.effects)
    pipeline.done(applied("d1", 6))
    assert pipeline.deliver(SourceAt(7)) == [flush(4, 6, 7, "d1", "d2")]


def test_a_seed_of_an_expired_version_backs_off() -> None:
    pipeline = Pipeline("d1")
    pipeline.own(0)
    pipeline.deliver(SourceAt(6))
    assert pipeline.done(Result("d1", Outcome.EXPIRED)) == []
    assert pipeline.stages() == [TrackStage.BACKING_OFF]


def test_one_that_may_not_be_seeded_again_halts() -> None:
    pipeline = Pipeline("d1")
    pipeline.deliver(Configured((Planned("d1", reseeds=False),)))
    pipeline.own(5)
    assert pipeline.deliver(SourceAt(9, 7)) == []
    halted = announced(pipeline.effects)[-1]
    assert isinstance(halted, Halted)
    assert "no longer has the changes after 5; seed it again" in halted.error


# -------------------------------------------------------------------------------------------------------------- seeds


def test_new_destinations_share_one_seed_while_others_are_flushed() -> None:
    pipeline = Pipeline()
    pipeline.own(0, 5, 0)
    asked = pipeline.deliver(SourceAt(7))
    seed = SeedGroup(2, 7, SeedMode.SCAN, (JobMember("d1", 0, 1), JobMember("d3", 0, 1)))
    assert asked == [seed, flush(3, 5, 7, "d2")]
    pipeline.done(*all_applied(("d1", "d3"), 7), job=2)
    assert announced(pipeline.effects) == [Seeded("d1", 7), Seeded("d3", 7)]
    pipeline.done(applied("d2", 7), job=3)
    assert pipeline.deliver(SourceAt(8)) == [flush(4, 7, 8, *NAMES)]


def test_p14_destinations_of_one_place_are_never_in_two_jobs_at_once() -> None:
    pipeline = Pipeline()
    pipeline.deliver(Configured((Planned("d1", place="p"), Planned("d2", place="p"), Planned("d3"))))
    pipeline.own(4, 5, 5)
    assert pipeline.deliver(SourceAt(7)) == [flush(2, 4, 5, "d1"), flush(3, 5, 7, "d3")]  # d2 waits for its place
    assert pipeline.done(applied("d1", 5), job=2) == [flush(4, 5, 7, "d1", "d2")]
    assert pipeline.deliver(ReseedAsked("d3", 1)) == []
    assert pipeline.done(applied("d3", 7), job=3) == [ReadStandings(5, ("d3",))]  # it has no place, and waits for none


def test_p14_a_seed_and_a_flush_of_one_place_come_one_after_another() -> None:
    pipeline = Pipeline("d1", "d2")
    pipeline.deliver(Configured((Planned("d1", place="p"), Planned("d2", place="p"))))
    pipeline.own(0, 5)
    assert pipeline.deliver(SourceAt(7)) == [flush(2, 5, 7, "d2")]
    assert pipeline.done(applied("d2", 7), job=2) == [SeedGroup(3, 7, SeedMode.SCAN, (JobMember("d1", 0, 1),))]
    assert pipeline.deliver(SourceAt(8)) == []
    assert pipeline.done(applied("d1", 7), job=3) == [flush(4, 7, 8, "d1", "d2")]


@pytest.mark.parametrize(("mode", "through"), [(SeedMode.START, 3), (SeedMode.NOW, 7), (SeedMode.SCAN, 7)])
def test_the_mode_of_a_seed_selects_its_version(mode: SeedMode, through: int) -> None:
    pipeline = Pipeline("d1")
    pipeline.deliver(Configured((Planned("d1", seed=mode),)))
    pipeline.own(0)
    assert pipeline.deliver(SourceAt(7, 3)) == [SeedGroup(2, through, mode, (JobMember("d1", 0, 1),))]


def test_a_history_begins_where_there_is_something_to_seed_from() -> None:
    pipeline = Pipeline("d1")
    pipeline.deliver(Configured((Planned("d1", seed=SeedMode.START),)))
    pipeline.own(0)
    assert pipeline.deliver(SourceAt(7, 0, first=2)) == [SeedGroup(2, 2, SeedMode.START, (JobMember("d1", 0, 1),))]
    assert pipeline.done(applied("d1", 2), job=2) == [flush(3, 2, 7, "d1")]


def test_a_reseed_request_does_not_take_a_position_back_to_the_start_of_history() -> None:
    pipeline = Pipeline("d1")
    pipeline.deliver(Configured((Planned("d1", seed=SeedMode.START),)))
    pipeline.own(5)
    pipeline.deliver(SourceAt(5, 3))
    pipeline.deliver(ReseedAsked("d1", 1))
    asked = pipeline.done(Result("d1", Outcome.STANDS, 5, 1))
    assert asked == [SeedGroup(3, 5, SeedMode.SCAN, (JobMember("d1", 5, 1),))]


def test_a_reseed_request_is_fulfilled_once() -> None:
    pipeline = Pipeline("d1")
    pipeline.own(5)
    pipeline.deliver(SourceAt(5))
    assert pipeline.deliver(ReseedAsked("d1", 1)) == [ReadStandings(2, ("d1",))]
    assert pipeline.done(Result("d1", Outcome.STANDS, 5, 1)) == [
        SeedGroup(3, 5, SeedMode.SCAN, (JobMember("d1", 5, 1),))
    ]
    assert pipeline.done(applied("d1", 5)) == [Reseeded("d1", 1, 1)]
    assert pipeline.deliver(ReseedAsked("d1", 1)) == []
    assert pipeline.deliver(LeasesGranted((Grant("d1", 1, reseed=1),))) == []


def test_a_reseed_request_during_a_seed_asks_for_another_one() -> None:
    pipeline = Pipeline("d1")
    pipeline.own(0)
    pipeline.deliver(SourceAt(5))
    assert pipeline.deliver(ReseedAsked("d1", 1)) == []
    assert pipeline.done(applied("d1", 5)) == [ReadStandings(3, ("d1",))]
    assert pipeline.done(Result("d1", Outcome.STANDS, 5, 1)) == [
        SeedGroup(4, 5, SeedMode.SCAN, (JobMember("d1", 5, 1),))
    ]
