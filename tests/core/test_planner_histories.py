"""The planner of a delivery pipeline when its source is not what it was (P15)."""

from __future__ import annotations

from msgspec.structs import replace

from core.driver import announced, results
from core.pipelines import Pipeline, applied
from trunkline.core.delivery_events import Halted, Seeded, Stopped
from trunkline.core.delivery_messages import (
    FlushGroup,
    Grant,
    JobDone,
    JobMember,
    LeasesGranted,
    Life,
    LifeChanged,
    Note,
    Outcome,
    ReadStandings,
    ReseedAsked,
    Reseeded,
    Result,
    SeedGroup,
    SeedMode,
    Shutdown,
    SourceAt,
    Span,
)
from trunkline.core.planner_tracks import TrackStage


def stands(name: str, position: int, mark: str, outcome: Outcome = Outcome.STANDS) -> Result:
    return Result(name, outcome, position, 0, "d1: replaced" if outcome is Outcome.STRAYED else "", mark)


def owned(*names: str, at: int = 5, version: int = 5) -> Pipeline:
    """All stand at a version of the source's first history."""
    pipeline = Pipeline(*names)
    pipeline.deliver(SourceAt(version))
    pipeline.deliver(LeasesGranted(tuple(Grant(name, 1, settled=True) for name in names)))
    pipeline.done(*(stands(name, at, f"m{at}") for name in names))
    return pipeline


def test_marks_go_from_the_destination_into_its_jobs_and_from_the_job_into_what_is_known() -> None:
    pipeline = owned("d1")
    assert pipeline.deliver(SourceAt(6)) == [FlushGroup(2, 5, 6, (JobMember("d1", 5, 1, "m5"),), mark="m5")]
    pipeline.deliver(JobDone(2, (), Outcome.EMPTY, mark="m6"))
    assert pipeline.deliver(SourceAt(7)) == [FlushGroup(3, 6, 7, (JobMember("d1", 5, 1, "m5"),), mark="m6")]
    pipeline.deliver(JobDone(3, (applied("d1", 7),), Outcome.EMPTY, mark="m7"))
    assert pipeline.deliver(SourceAt(8)) == [FlushGroup(4, 7, 8, (JobMember("d1", 7, 1, "m7"),), mark="m7")]


def test_a_seed_may_be_of_another_version_than_its_job_and_its_own_mark_counts() -> None:
    """As that of a destination which copies another one."""
    for outcome in (Outcome.APPLIED, Outcome.ALREADY):
        pipeline = owned("d1", "d2", at=0, version=9)
        assert isinstance(pipeline.asked[-1], SeedGroup)
        seeded = (Result("d1", outcome, 7, 1, mark="m7"), Result("d2", Outcome.APPLIED, 9, 1))
        pipeline.deliver(JobDone(2, seeded, Outcome.EMPTY, mark="m9"))
        assert Seeded("d1", 7) in announced(pipeline.effects)
        flushes = {each.members[0].destination: each for each in pipeline.asked if isinstance(each, FlushGroup)}
        after = flushes["d1"]
        assert (after.after, after.through, after.mark, after.members[0].mark) == (7, 9, "m7", "m7")
        pipeline.deliver(JobDone(after.job, (applied("d1", 9),), Outcome.EMPTY, mark="m9"))
        [later] = pipeline.deliver(SourceAt(10))
        assert isinstance(later, FlushGroup)
        assert (later.after, later.mark) == (9, "m9")
        assert [member.destination for member in later.members] == ["d1", "d2"]


def test_another_history_has_every_destination_read_again_and_only_what_strayed_halts() -> None:
    pipeline = owned("d1", "d2")
    assert pipeline.deliver(SourceAt(3, history=1)) == [ReadStandings(2, ("d1", "d2"))]
    pipeline.done(stands("d1", 5, "m5", Outcome.STRAYED), stands("d2", 2, "m2"))
    assert announced(pipeline.effects)[0] == Halted("d1", "d1: replaced")
    assert pipeline.asked[-1] == FlushGroup(3, 2, 3, (JobMember("d2", 2, 1, "m2"),), mark="m2")
    assert pipeline.deliver(SourceAt(9, history=0)) == []  # late
    assert pipeline.planner.ignores(pipeline.planner.config.worker, SourceAt(9, history=0))
    pipeline.deliver(Shutdown(1))
    pipeline.deliver(JobDone(3, (applied("d2", 3),), Outcome.EMPTY, mark="m3"))
    assert results(pipeline.effects) == [(1, Stopped(("d1",)))]


def test_an_answer_from_before_the_source_was_replaced_does_not_count() -> None:
    pipeline = owned("d1")
    pipeline.deliver(SourceAt(6))
    assert pipeline.deliver(SourceAt(2, history=1)) == []
    assert pipeline.done(applied("d1", 6)) == [ReadStandings(3, ("d1",))]


def test_an_operator_who_insists_gets_a_seed_over_any_contents_at_any_version() -> None:
    pipeline = owned("d1")
    pipeline.deliver(SourceAt(3, history=1))
    pipeline.done(stands("d1", 5, "m5", Outcome.STRAYED))
    assert pipeline.deliver(ReseedAsked("d1", 1)) == [ReadStandings(3, ("d1",))]
    asked = pipeline.done(stands("d1", 5, "m5", Outcome.STRAYED))
    assert asked == [SeedGroup(4, 3, SeedMode.SCAN, (JobMember("d1", 5, 1, "m5"),))]
    done = pipeline.deliver(JobDone(4, (applied("d1", 3),), Outcome.EMPTY, mark="n3"))
    assert done == [Reseeded("d1", 1, 1)]
    assert pipeline.deliver(SourceAt(4, history=1)) == [FlushGroup(5, 3, 4, (JobMember("d1", 3, 1, "n3"),), mark="n3")]


def test_a_request_to_discard_a_history_reaches_the_seed_and_nothing_later() -> None:
    pipeline = owned("d1", "d2")
    pipeline.deliver(ReseedAsked("d1", 1, True, True))
    pipeline.deliver(ReseedAsked("d1", 2))
    for _ in range(2):  # the second request has it read again
        pipeline.done(stands("d1", 5, "m5"))
    seed = pipeline.asked[-1]
    assert isinstance(seed, SeedGroup)
    assert seed.members == (JobMember("d1", 5, 1, "m5", discards=True),)
    pipeline.deliver(JobDone(seed.job, (applied("d1", 5),), Outcome.EMPTY, mark="m5"))
    pipeline.deliver(SourceAt(6))
    flush = pipeline.asked[-1]
    assert isinstance(flush, FlushGroup)
    assert [member.discards for member in flush.members] == [False, False]


def test_a_reseed_request_without_insists_does_not_replace_what_strayed() -> None:
    pipeline = owned("d1")
    for insists in (False, True):
        pipeline.deliver(ReseedAsked("d1", 1 + insists, insists))
        pipeline.done(stands("d1", 5, "m5", Outcome.STRAYED))
        assert pipeline.stages() == [TrackStage.SEEDING if insists else TrackStage.HALTED]


def test_a_seed_does_not_take_back_a_position_of_the_same_history() -> None:
    """Another deliverer knows a version that this one does not."""
    pipeline = owned("d1")
    pipeline.deliver(ReseedAsked("d1", 1))
    assert pipeline.done(stands("d1", 6, "m6")) == []
    assert pipeline.deliver(SourceAt(6)) == [SeedGroup(3, 6, SeedMode.SCAN, (JobMember("d1", 6, 1, "m6"),))]


def test_a_window_that_begins_in_another_history_is_read_again_from_the_destination() -> None:
    pipeline = owned("d1")
    pipeline.deliver(SourceAt(6))
    pipeline.deliver(JobDone(2, (), Outcome.EMPTY, mark="m6"))
    pipeline.deliver(SourceAt(7))
    assert pipeline.done(Result("d1", Outcome.STRAYED)) == [ReadStandings(4, ("d1",))]  # the note is forgotten
    assert pipeline.done(stands("d1", 5, "m5")) == [FlushGroup(5, 5, 7, (JobMember("d1", 5, 1, "m5"),), mark="m5")]
    assert pipeline.done(Result("d1", Outcome.STRAYED)) == []  # twice in a row: not at once again
    assert pipeline.stages() == [TrackStage.BACKING_OFF]


def test_a_note_counts_only_if_the_source_still_has_its_end() -> None:
    for holds, after in ((True, 8), (False, 5)):
        pipeline = Pipeline("d1")
        pipeline.deliver(SourceAt(9))
        grant = Grant("d1", 1, Span(5, 8), settled=True, empty_mark="m8")
        assert pipeline.deliver(LeasesGranted((grant,))) == [ReadStandings(1, ("d1",), (Note("d1", 8, "m8"),))]
        pipeline.done(replace(stands("d1", 5, "m5"), note_holds=holds))
        mark = "m8" if holds else "m5"
        assert pipeline.asked[-1] == FlushGroup(2, after, 9, (JobMember("d1", 5, 1, "m5"),), mark=mark)


def test_a_halted_destination_is_compared_again_when_it_is_resumed() -> None:
    pipeline = owned("d1")
    pipeline.deliver(SourceAt(3, history=1))
    pipeline.done(stands("d1", 5, "m5", Outcome.STRAYED))
    pipeline.deliver(SourceAt(6, history=2))  # the right backup
    assert pipeline.stages() == [TrackStage.HALTED]
    assert pipeline.deliver(LifeChanged("d1", Life.ACTIVE)) == [ReadStandings(3, ("d1",))]
    assert pipeline.done(stands("d1", 5, "m5")) == [FlushGroup(4, 5, 6, (JobMember("d1", 5, 1, "m5"),), mark="m5")]
