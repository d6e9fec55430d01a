"""A destination whose tables commit alone and are at two positions: level first, then on (P16)."""

from __future__ import annotations

import pytest

from core.driver import announced
from core.pipelines import Pipeline, applied
from trunkline.core.delivery_events import HistoryExpired, Stopped
from trunkline.core.delivery_messages import (
    NO_SPAN,
    FlushGroup,
    Grant,
    JobMember,
    LeasesGranted,
    Life,
    LifeChanged,
    Outcome,
    ReadStandings,
    ReseedAsked,
    Result,
    SeedGroup,
    SeedMode,
    Shutdown,
    SourceAt,
    Span,
)
from trunkline.core.effects import Complete
from trunkline.core.planner_tracks import TrackStage


def torn(position: int, ahead: int, *others: int, empty: Span = NO_SPAN) -> Pipeline:
    """d1 has tables at two positions, the others one each."""
    pipeline = Pipeline("d1", *(f"d{2 + n}" for n in range(len(others))))
    pipeline.deliver(LeasesGranted(tuple(Grant(name, 1, empty, settled=True) for name in pipeline.names)))
    rest = [Result(name, Outcome.STANDS, at) for name, at in zip(pipeline.names[1:], others, strict=True)]
    pipeline.done(Result("d1", Outcome.STANDS, position, ahead=ahead), *rest)
    return pipeline


def level(job: int, after: int, ahead: int, expected: int | None = None) -> FlushGroup:
    """Of d1 alone."""
    member = JobMember("d1", after if expected is None else expected, 1, ahead=ahead)
    return FlushGroup(job, after, ahead, (member,), stamp=True)


def test_p16_it_is_flushed_exactly_to_the_later_version_apart_from_those_at_its_position() -> None:
    pipeline = torn(3, 5, 3)
    assert pipeline.deliver(SourceAt(9)) == [FlushGroup(2, 3, 9, (JobMember("d2", 3, 1),)), level(3, 3, 5)]


def test_p16_level_again_it_goes_on_with_the_others() -> None:
    pipeline = torn(3, 5)
    assert pipeline.deliver(SourceAt(9)) == [level(2, 3, 5)]
    assert pipeline.done(Result("d1", Outcome.ALREADY, 5)) == [
        FlushGroup(3, 5, 9, (JobMember("d1", 5, 1),), stamp=True)  # a table was not written: it is not settled
    ]


def test_p16_it_is_level_although_nothing_new_is_due_and_not_before_the_source_is_known_to_be_there() -> None:
    pipeline = torn(3, 5)
    assert pipeline.deliver(SourceAt(4)) == []
    assert pipeline.deliver(SourceAt(5)) == [level(2, 3, 5)]


def test_p16_a_note_shortens_the_window_unless_it_ends_later() -> None:
    assert torn(3, 6, empty=Span(3, 5)).deliver(SourceAt(9)) == [level(2, 5, 6, expected=3)]
    assert torn(3, 5, empty=Span(3, 5)).deliver(SourceAt(9)) == [level(2, 5, 5, expected=3)]
    assert torn(3, 5, empty=Span(3, 6)).deliver(SourceAt(9)) == [level(2, 3, 5)]


@pytest.mark.parametrize("source", [SourceAt(9, 4), SourceAt(9, stops=(4,))], ids=["expired", "a stop in between"])
def test_p16_if_no_window_makes_it_level_it_is_seeded(source: SourceAt) -> None:
    pipeline = torn(3, 5)
    assert pipeline.deliver(source) == [SeedGroup(2, 9, SeedMode.SCAN, (JobMember("d1", 3, 1, ahead=5),))]
    assert isinstance(announced(pipeline.effects)[0], HistoryExpired)


def test_p16_stops_at_its_ends_are_not_in_between() -> None:
    assert torn(3, 5).deliver(SourceAt(9, stops=(3, 5))) == [level(2, 3, 5)]


def test_p16_a_window_that_the_source_cannot_tell_leads_to_a_seed_that_knows_of_both_positions() -> None:
    pipeline = torn(3, 5)
    pipeline.deliver(SourceAt(9))
    seed = SeedGroup(3, 9, SeedMode.SCAN, (JobMember("d1", 3, 1, ahead=5),))
    assert pipeline.done(Result("d1", Outcome.EXPIRED)) == [seed]
    assert pipeline.done(applied("d1", 9)) == []
    assert pipeline.deliver(SourceAt(10)) == [FlushGroup(4, 9, 10, (JobMember("d1", 9, 1),))]


@pytest.mark.parametrize("outcome", [Outcome.MOVED, Outcome.UNKNOWN])
def test_p16_what_was_ahead_does_not_count_once_the_position_is_unknown(outcome: Outcome) -> None:
    pipeline = torn(3, 5)
    pipeline.deliver(SourceAt(9))
    pipeline.done(Result("d1", outcome))
    if outcome is Outcome.UNKNOWN:
        pipeline.fire("retry 500")
    assert isinstance(pipeline.asked[-1], ReadStandings)
    [flush] = pipeline.done(Result("d1", Outcome.STANDS, 5))
    assert isinstance(flush, FlushGroup)
    assert (flush.after, flush.through, flush.members) == (5, 9, (JobMember("d1", 5, 1),))


def test_p16_a_request_for_a_seed_comes_first() -> None:
    pipeline = torn(3, 5)
    pipeline.deliver(ReseedAsked("d1", 1))
    pipeline.done(Result("d1", Outcome.STANDS, 3, ahead=5))
    assert pipeline.deliver(SourceAt(9)) == [SeedGroup(3, 9, SeedMode.SCAN, (JobMember("d1", 3, 1, ahead=5),))]


def test_p16_it_is_neither_drained_nor_stopped_before_it_is_level() -> None:
    pipeline = torn(3, 5)
    pipeline.deliver(SourceAt(3))
    pipeline.deliver(LifeChanged("d1", Life.DRAINING))
    assert pipeline.stages() == [TrackStage.READY]
    pipeline.deliver(Shutdown(1, drain=True))
    assert Complete(1, Stopped(("d1",))) in pipeline.effects
