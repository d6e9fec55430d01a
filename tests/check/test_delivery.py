"""Delivery in the checked world: cases of its monitors, and every short script of the source with a crash anywhere."""

from __future__ import annotations

from itertools import product

import pytest

from check.histories import Case, by, watched
from trunkline.check.campaign import SearchBounds, check_exhaustively
from trunkline.check.delivery_rows import Change, Edit, Row, Rows, source_script
from trunkline.check.monitors.delivery import (
    BufferBound,
    CursorMonotone,
    EventualConsistency,
    ExactlyOnce,
    FlushState,
    NoLoss,
    NoPhantom,
    PartitionCorrectness,
    Parts,
    ReadOnce,
    SingleDeliverer,
    SourceMoved,
    TableWritten,
    delivery_safety,
)
from trunkline.check.monitors.places import (
    AppliedCommitted,
    FailsAlone,
    GroupEnded,
    LeftOut,
    MemberEnd,
    NotTorn,
    place_safety,
)
from trunkline.check.scenario import Faults, Monitor, ProcessEnded, Violation
from trunkline.check.scenarios.delivery import PLANNED, scenario
from trunkline.core.delivery_events import GroupStarted, JobEnded, PlanDropped
from trunkline.core.delivery_messages import JobMember, Outcome, Result, Span

# ----------------------------------------------------------------------------------------------------- what is judged

SCRIPT = source_script((Change("k", 1),), (Change("l", 1),), (Change("k", 2),), (Change("l"),))
K1, L2, K3 = Row("k", 1, 1), Row("l", 1, 2), Row("k", 2, 3)
MIRROR = Parts(SCRIPT, {"d1": (1,), "d2": (2,)})
APPEND = Parts(SCRIPT, {"d1": (1,), "d2": (2,)}, append=True)
TWO_INCARNATIONS = Parts(
    SCRIPT._replace(another=source_script((Change("m", 1),), (Change("n", 1),)).versions), MIRROR.tenants
)
M1 = Row("m", 1, 1)


def written(
    *rows: Row, at: int, of: str = "d1", token: int = 1, seeded: int = 1, back: bool = False, mark: str = ""
) -> TableWritten:
    return TableWritten(of, rows, at, token, seeded, back, mark)


def begun(job: int, after: int, through: int, *names: str, expected: int | None = None) -> GroupStarted:
    at = after if expected is None else expected
    return GroupStarted(job, after, through, tuple(JobMember(name, at, 1) for name in names))


def ended(job: int, **outcomes: Outcome) -> JobEnded:
    return JobEnded(job, tuple(Result(name, outcome) for name, outcome in outcomes.items()))


def accept(clause: str, monitor: object, *events: object) -> Case:
    return Case(clause, monitor, by("a", *events))  # type: ignore[arg-type]


def reject(clause: str, monitor: object, verdict: str, *events: object) -> Case:
    return Case(clause, monitor, by("a", *events), verdict)  # type: ignore[arg-type]


def transaction(*members: MemberEnd, strangers: tuple[str, ...] = ()) -> GroupEnded:
    return GroupEnded(members, strangers)


def report(name: str, outcome: Outcome, *, written: bool = False, failed: bool = False) -> MemberEnd:
    return MemberEnd(name, outcome, written, failed)


FIVE = SourceMoved(5, 1)
REPLACED = SourceMoved(1, 1, 1)
BOTH = begun(1, 1, 2, "d1", "d2")

CASES = [
    accept("a mirror holds what the source has", NoPhantom(MIRROR), written(K1, L2, at=2), written(L2, at=3)),
    accept("append holds what the source once had", NoPhantom(APPEND), written(K1, L2, at=4)),
    accept("rows before the first seed are not judged", NoPhantom(MIRROR), written(Row("x", 1, 0), at=2, seeded=0)),
    reject("a row is left that the source deleted", NoPhantom(MIRROR), "holds k=1@1", written(K1, L2, at=3)),
    reject("a row of a later version is there", NoPhantom(APPEND), "holds l=2@1", written(K1, L2, at=1)),
    accept("nothing is missing", NoLoss(MIRROR), written(K1, L2, at=2)),
    reject("a row is missing", NoLoss(MIRROR), "d1 at 2 lacks l=2@1", written(K1, at=2)),
    accept("rows belong to their destination", PartitionCorrectness(MIRROR), written(K3, at=3, of="d2")),
    reject(
        "a row belongs to another destination",
        PartitionCorrectness(MIRROR),
        "belongs to another destination",
        written(K3, at=3),
    ),
    accept("each row occurs once", ExactlyOnce(APPEND), written(K1, L2, at=2)),
    reject("a row was appended twice", ExactlyOnce(APPEND), "2 times", written(K1, K1, at=2)),
    reject("a key occurs twice", ExactlyOnce(MIRROR), "holds k 2 times", written(K1, K3, at=3)),
    accept("a position stays or grows", CursorMonotone(MIRROR), written(at=2), written(at=2), written(at=3)),
    accept(
        "a restore from a backup moves it back",
        CursorMonotone(MIRROR),
        written(at=2),
        written(at=1, back=True),
        written(at=2),
    ),
    accept(
        "the source was recreated",
        CursorMonotone(TWO_INCARNATIONS),
        written(at=2, mark="2"),
        REPLACED,
        written(at=1, mark="1'"),
    ),
    reject(
        "a position goes back in the new incarnation of the source",
        CursorMonotone(TWO_INCARNATIONS),
        "went back from 2 to 1",
        *(REPLACED, written(at=2, mark="2'"), written(at=1, mark="1'")),
    ),
    accept(
        "rows are of the incarnation of the position",
        NoPhantom(TWO_INCARNATIONS),
        REPLACED,
        written(M1, at=1, mark="1'"),
    ),
    reject(
        "rows are of another incarnation",
        NoPhantom(TWO_INCARNATIONS),
        "holds k=1@1",
        REPLACED,
        written(K1, at=1, mark="1'"),
    ),
    reject("a position goes back", CursorMonotone(MIRROR), "went back from 2 to 1", written(at=2), written(at=1)),
    accept("tokens grow", SingleDeliverer(), written(at=1, token=1), written(at=2, token=3)),
    reject("an older token writes", SingleDeliverer(), "token 1 after 2", written(at=1, token=2), written(at=2)),
    accept("one job ends before the next", FlushState(), BOTH, ended(1), begun(2, 2, 3, "d1"), begun(3, 2, 3, "d2")),
    accept("a crash ends all jobs", FlushState(), BOTH, ProcessEnded("crash"), begun(1, 1, 2, "d1")),
    reject("two jobs of one destination", FlushState(), "two jobs for d2", BOTH, begun(2, 2, 3, "d2")),
    accept("a window lies in the source", BufferBound(), FIVE, written(at=2), begun(1, 4, 5, "d1", expected=2)),
    reject("a window ends past the source", BufferBound(), "the source is at 5", FIVE, begun(1, 1, 6, "d1")),
    reject(
        "a window begins before the position", BufferBound(), "to get (1, 5]", FIVE, begun(1, 1, 5, "d1", expected=2)
    ),
    reject(
        "a position is expected too early", BufferBound(), "not at 2 yet", FIVE, written(at=1), begun(1, 2, 5, "d1")
    ),
    accept("windows follow each other", ReadOnce(), BOTH, ended(1, d1=Outcome.EMPTY), begun(2, 2, 3, "d1", "d2")),
    accept("after a failure it is read again", ReadOnce(), BOTH, ended(1, d1=Outcome.TRANSIENT), begun(2, 1, 3, "d1")),
    accept("after a dropped plan it is read again", ReadOnce(), BOTH, PlanDropped("d1"), begun(2, 1, 3, "d1")),
    accept("after a crash it is read again", ReadOnce(), BOTH, ProcessEnded("crash"), begun(1, 1, 3, "d1", "d2")),
    reject("a window is read twice", ReadOnce(), "up to 2, and now from 1", BOTH, begun(2, 1, 3, "d1")),
    reject("a version is skipped", ReadOnce(), "up to 2, and now from 3", BOTH, begun(2, 3, 4, "d1")),
    reject(
        "the failure of another destination drops no plan",
        ReadOnce(),
        "d2",
        BOTH,
        ended(1, d1=Outcome.UNKNOWN),
        begun(2, 1, 3, "d2"),
    ),
    accept(
        "all members of a transaction are written",
        NotTorn(),
        transaction(report("d1", Outcome.APPLIED, written=True), report("d2", Outcome.FENCED)),
    ),
    accept("or none is", NotTorn(), transaction(report("d1", Outcome.UNKNOWN), report("d2", Outcome.UNKNOWN))),
    reject(
        "a member is missing from a transaction",
        NotTorn(),
        "without its member d2",
        transaction(report("d1", Outcome.UNKNOWN, written=True), report("d2", Outcome.UNKNOWN)),
    ),
    accept("who is refused is not written", LeftOut(), transaction(report("d1", Outcome.FENCED))),
    accept("who is in doubt may be written", LeftOut(), transaction(report("d1", Outcome.UNKNOWN, written=True))),
    reject(
        "a fenced member is written",
        LeftOut(),
        "d1 was written, and is reported as fenced",
        transaction(report("d1", Outcome.FENCED, written=True)),
    ),
    reject(
        "another member is written",
        LeftOut(),
        "d2 was written, and is not in the transaction",
        transaction(report("d1", Outcome.APPLIED, written=True), strangers=("d2",)),
    ),
    accept("what is reported was done", AppliedCommitted(), transaction(report("d1", Outcome.APPLIED, written=True))),
    reject(
        "a member is reported as written", AppliedCommitted(), "d1 was not", transaction(report("d1", Outcome.APPLIED))
    ),
    accept(
        "one member fails",
        FailsAlone(),
        transaction(report("d1", Outcome.PERMANENT, failed=True), report("d2", Outcome.APPLIED, written=True)),
    ),
    reject(
        "a member fails with another one",
        FailsAlone(),
        "d2 is reported as transient",
        transaction(report("d1", Outcome.PERMANENT, failed=True), report("d2", Outcome.TRANSIENT)),
    ),
]


def named(cases: list[Case]) -> list[str]:
    return [f"{case.monitor.name}: {case.clause}" for case in cases]


ACCEPTED = [case for case in CASES if not case.verdict]
REJECTED = [case for case in CASES if case.verdict]


@pytest.mark.parametrize("case", ACCEPTED, ids=named(ACCEPTED))
def test_a_delivery_is_accepted_in_which(case: Case) -> None:
    assert case.monitor.hot(watched(case.monitor, case.history)) == ""


@pytest.mark.parametrize("case", REJECTED, ids=named(REJECTED))
def test_a_delivery_is_rejected_at_its_last_event_in_which(case: Case) -> None:
    state = watched(case.monitor, case.history[:-1])
    with pytest.raises(Violation) as caught:
        case.monitor.observe(state, case.history[-1])
    assert case.verdict in str(caught.value)


def test_every_monitor_accepts_something_and_rejects_something() -> None:
    names = sorted(monitor.name for monitor in (*delivery_safety(MIRROR), *place_safety()))
    for cases in (ACCEPTED, REJECTED):
        assert sorted({case.monitor.name for case in cases}) == names


@pytest.mark.parametrize(
    ("rows", "version", "resting"),
    [((K1,), 1, True), ((K1,), 2, False), ((K1, L2), 2, True), ((K1, L2), 3, False), ((L2,), 3, True)],
)
def test_a_mirror_rests_when_it_holds_its_part_of_the_newest_version(rows: Rows, version: int, resting: bool) -> None:
    monitor: Monitor = EventualConsistency(MIRROR, {"d1": ()})
    state = watched(monitor, by("a", SourceMoved(version, 1), written(*rows, at=1)))
    assert (monitor.hot(state) == "") is resting


def test_append_mode_rests_with_rows_that_the_source_deleted() -> None:
    monitor: Monitor = EventualConsistency(APPEND, {"d1": ()})
    assert monitor.hot(watched(monitor, by("a", SourceMoved(4, 1), written(K1, L2, at=4)))) == ""
    assert monitor.hot(watched(monitor, by("a", SourceMoved(2, 1), written(K1, at=2)))) != ""


# ------------------------------------------------------------------------------------------------------------- scripts


def test_the_edits_of_a_window_are_the_net_difference_of_its_ends() -> None:
    assert SCRIPT.edits((1,), Span(1, 2)) == (Edit("l", L2),)
    assert SCRIPT.edits((1,), Span(1, 3)) == (Edit("k", None), Edit("l", L2))
    assert SCRIPT.edits((2,), Span(1, 3)) == (Edit("k", K3),)
    assert SCRIPT.edits((1,), Span(1, 4)) == (Edit("k", None),)
    updated = source_script((Change("k", 1),), (Change("k", 1),))
    assert updated.edits((1,), Span(1, 2)) == (Edit("k", Row("k", 1, 2), replaces=True),)


def test_a_window_misses_removals_if_it_crosses_a_stop_but_not_if_it_ends_there() -> None:
    script = SCRIPT._replace(stops=(3,))
    assert script.edits((1,), Span(1, 4)) == ()
    assert script.edits((1,), Span(1, 3)) == (Edit("k", None), Edit("l", L2))
    assert script.edits((1,), Span(3, 4)) == (Edit("l", None),)


CHANGES = [Change(key, tenant) for key in "kl" for tenant in (0, 1, 2)]


@pytest.mark.parametrize("append", [False, True], ids=["mirror", "append"])
def test_every_short_script_is_delivered_whatever_the_moment_of_a_crash(append: bool) -> None:
    """Two versions after the first, with one change each; one destination with one of the tenants."""
    states = 0
    for one, other in product(CHANGES, CHANGES):
        script = source_script((Change("k", 1),), (one,), (other,))
        faults = Faults(crash=1, restart=1)
        checked = scenario("short", "", script, planned=PLANNED[:1], append=append, faults=faults, crashable="a")
        report = check_exhaustively(checked, SearchBounds(), lambda text: None)
        assert report.violations == (), script.versions
        assert report.complete
        states += report.states
    assert states > 10_000
