"""Every clause of the monitors of upkeep: histories that they accept, that they reject, and that keep them hot."""

from __future__ import annotations

import pytest

from check.histories import (
    ENDED,
    FIRST,
    JOINING,
    LOST,
    NARROW,
    REPAIRED,
    A,
    B,
    C,
    Case,
    History,
    announced,
    by,
    changed,
    data,
    projected,
    stored,
    watched,
)
from trunkline.check.monitors.upkeep import LastCopy, PatienceKept, RepairedAlike, Upkeep
from trunkline.check.scenario import ProcessEnded, Violation
from trunkline.check.scenarios.cluster import LOG
from trunkline.core.entries import junk
from trunkline.core.events import NodeGivenUp, StreamDamaged, StreamRecovered, StreamTrimmed
from trunkline.core.projection import ForgetSegment, MarkRepaired, RaiseTrim, RemoveMember


def crashed(*nodes: str) -> History:
    return [observed for node in nodes for observed in by(node, ProcessEnded("crash"))]


def back(node: str, stream: str) -> History:
    return by(node, StreamRecovered(node, 1, LOG, 0, stream, (), 4))


def damaged(*streams: str) -> History:
    return announced(*(StreamDamaged("n", LOG, 0, stream, ()) for stream in streams))


def everywhere(*streams: str) -> History:
    return [each for glsn in (1, 2, 3) for each in stored(data(glsn, glsn), *streams)]


LAST = changed(NARROW, RemoveMember(0, B))
GONE = changed(ENDED, RaiseTrim(3))

CASES = [
    Case("another member is up", LastCopy(REPAIRED), crashed("c", "b") + projected(NARROW)),
    Case("it was up when it was asked", LastCopy(REPAIRED), crashed("a", "b") + projected(NARROW)),
    Case("a joiner leaves", LastCopy(JOINING, ("a", "b")), projected(NARROW)),
    Case(
        "the other one has restarted",
        LastCopy(REPAIRED, ("a", "b")),
        back("a", A) + projected(NARROW),
    ),
    Case(
        "no other copy is up",
        LastCopy(REPAIRED, ("a", "b")),
        projected(NARROW),
        "1.0.2 was removed while no other copy",
    ),
    Case(
        "the other one crashed before the previous projection",
        LastCopy(ENDED),
        crashed("a", "b") + projected(REPAIRED, NARROW),
        "1.0.2 was removed",
    ),
    Case(
        "the other ones are damaged or dead",
        LastCopy(ENDED, ("a",)),
        damaged(B) + projected(REPAIRED, NARROW),
        "1.0.2 was removed",
    ),
    Case("all have the same", RepairedAlike(ENDED), everywhere(A, B, C) + projected(REPAIRED)),
    Case(
        "trimmed positions are not judged",
        RepairedAlike(ENDED),
        projected(changed(ENDED, RaiseTrim(3), MarkRepaired(0))),
    ),
    Case("a segment that was repaired before is not judged", RepairedAlike(REPAIRED), projected(NARROW)),
    Case("nothing is left of it", RepairedAlike(FIRST), projected(LOST)),
    Case("one lacks a position", RepairedAlike(ENDED), everywhere(A, B) + projected(REPAIRED), "at position 1"),
    Case(
        "one has another value",
        RepairedAlike(ENDED),
        everywhere(A, B) + stored(data(1, 1), C) + stored(junk(2), C) + stored(data(3, 3), C) + projected(REPAIRED),
        "segment 0 is marked repaired, but its members differ at position 2",
    ),
    Case("a node was given up", PatienceKept(REPAIRED), announced(NodeGivenUp(LOG, "c")) + projected(NARROW)),
    Case("a stream was damaged", PatienceKept(REPAIRED), damaged(C) + projected(NARROW)),
    Case("a node is being drained", PatienceKept(REPAIRED, ("c",)), projected(NARROW)),
    Case("a joiner leaves without having served", PatienceKept(JOINING), projected(NARROW)),
    Case("the segment was not repaired", PatienceKept(ENDED), projected(changed(ENDED, RemoveMember(0, C)))),
    Case(
        "another node was given up",
        PatienceKept(REPAIRED),
        announced(NodeGivenUp(LOG, "b")) + projected(NARROW),
        "although c was not given up",
    ),
]
TRIMMED = changed(REPAIRED, RaiseTrim(2))


def trimmed(point: int, *streams: str) -> History:
    return announced(*(StreamTrimmed("n", LOG, 0, stream, point) for stream in streams))


RESTS = [
    Case("enough copies", Upkeep(REPAIRED, width=3), []),
    Case("too few copies", Upkeep(REPAIRED, width=3), projected(NARROW), "segment 0 has too few copies"),
    Case("a joiner does not count", Upkeep(JOINING, width=3), [], "segment 0 has too few copies"),
    Case("too few copies of nothing", Upkeep(changed(NARROW, RaiseTrim(3)), width=3), []),
    Case("repaired", Upkeep(REPAIRED, repaired=(0,)), []),
    Case("not repaired", Upkeep(ENDED, repaired=(0,)), [], "segment 0 is not repaired"),
    Case("trimmed on all", Upkeep(TRIMMED, freed=True), trimmed(2, A, B, C)),
    Case("not trimmed on one", Upkeep(TRIMMED, freed=True), trimmed(2, A, B) + trimmed(1, C), "1.0.2 is not trimmed"),
    Case("not forgotten", Upkeep(GONE, freed=True), [], "segment 0 is not forgotten"),
    Case("forgotten", Upkeep(GONE, freed=True), projected(changed(GONE, ForgetSegment(0)))),
    Case("a projection that is too long", Upkeep(REPAIRED, segments_max=1), [], "the projection has 2 segments"),
    Case("a projection that is not", Upkeep(REPAIRED, segments_max=2), []),
]
ACCEPTED = [case for case in CASES if not case.verdict]
REJECTED = [case for case in CASES if case.verdict]


@pytest.mark.parametrize("case", ACCEPTED, ids=lambda case: f"{case.monitor.name}: {case.clause}")
def test_a_history_is_accepted_in_which(case: Case) -> None:
    assert case.monitor.hot(watched(case.monitor, case.history)) == ""


@pytest.mark.parametrize("case", REJECTED, ids=lambda case: f"{case.monitor.name}: {case.clause}")
def test_a_history_is_rejected_at_its_last_event_in_which(case: Case) -> None:
    state = watched(case.monitor, case.history[:-1])
    with pytest.raises(Violation) as caught:
        case.monitor.observe(state, case.history[-1])
    assert case.verdict in str(caught.value)


@pytest.mark.parametrize("case", RESTS, ids=lambda case: case.clause)
def test_upkeep_is_hot_until_it_is_done(case: Case) -> None:
    hot = case.monitor.hot(watched(case.monitor, case.history))
    assert case.verdict in hot if case.verdict else hot == ""


def test_a_removal_is_judged_by_the_remaining_members() -> None:
    assert watched(LastCopy(NARROW), crashed("b") + projected(LAST))
