"""The monitor of progress: every reason that keeps it hot, and what ends it."""

from __future__ import annotations

import pytest

from check.histories import (
    ENDED,
    FIRST,
    JOINER,
    JOINING,
    NARROW,
    REPAIRED,
    A,
    B,
    C,
    Case,
    announced,
    append,
    by,
    committed,
    data,
    finalized,
    projected,
    read,
    recovered,
    watched,
)
from trunkline.check.monitors import (
    Progress,
)
from trunkline.check.scenario import Completed, Invoked, ProcessEnded
from trunkline.check.scenarios.cluster import LOG
from trunkline.core.calls import SubscribeRequested
from trunkline.core.events import (
    Appended,
    PositionsSkipped,
    StreamDropped,
    SubscriptionEnded,
    Trimmed,
)
from trunkline.core.messages import Reason

FOLLOWING = by("r", Invoked(1, SubscribeRequested(1, LOG, 1)))
TWO_COMMITTED = announced(committed(data(1, 7)), committed(data(2, 8)))
ALL_FINAL = announced(*map(finalized, (A, B, C)))

RESTING = [
    Case("nothing was begun", Progress(), []),
    Case("an operation ended", Progress(), by("x", append(1, 7), Completed(1, Appended(1)))),
    Case("the process of an operation ended", Progress(), by("x", append(1, 7), ProcessEnded("crash"))),
    Case(
        "a bounded subscription ended",
        Progress(),
        by("r", Invoked(1, SubscribeRequested(1, LOG, 1, until=2)), Completed(1, SubscriptionEnded(3))),
    ),
    Case("a reader is at the tail", Progress(), FOLLOWING + TWO_COMMITTED + by("r", read(data(1, 7, 2)))),
    Case(
        "a late commit does not move the tail back", Progress(), announced(committed(data(2, 8)), committed(data(1, 7)))
    ),
    Case(
        "a reader skipped to the tail",
        Progress(),
        FOLLOWING + TWO_COMMITTED + by("r", PositionsSkipped(LOG, 1, 3, Reason.TRIMMED)),
    ),
    Case("a reader behind the tail ended", Progress(), FOLLOWING + TWO_COMMITTED + by("r", ProcessEnded("crash"))),
    Case("there is no coordinator", Progress(), projected(ENDED)),
    Case("an ended segment is finished", Progress(finishing=True), projected(ENDED) + ALL_FINAL + projected(REPAIRED)),
    Case("an open segment needs no finishing", Progress(finishing=True), projected(FIRST)),
    Case(
        "a member that was removed needs no end",
        Progress(finishing=True),
        announced(*map(finalized, (A, B))) + projected(NARROW),
    ),
    Case(
        "a member knows its end after a restart",
        Progress(finishing=True),
        projected(REPAIRED) + announced(finalized(A), finalized(B), recovered(C, end=4)),
    ),
    Case("a stream that never existed left", Progress(tidy=True), projected(REPAIRED, NARROW)),
    Case(
        "a stream that left was dropped",
        Progress(tidy=True),
        projected(REPAIRED) + announced(recovered(C)) + projected(NARROW) + announced(StreamDropped("n", LOG, C)),
    ),
]

WAITING = [
    Case(
        "a stream that left is kept",
        Progress(tidy=True),
        projected(REPAIRED) + announced(recovered(C)) + projected(NARROW),
        f"not finished: drop of {C}",
    ),
    Case(
        "a stream is created after it left",
        Progress(tidy=True),
        projected(REPAIRED, NARROW) + announced(finalized(C)),
        f"not finished: drop of {C}",
    ),
    Case("an operation is under way", Progress(), by("x", append(1, 7)), "operation 1 of x"),
    Case(
        "another operation ended", Progress(), by("x", append(1, 7), append(2, 8), Completed(2, Trimmed(1))), "1 of x"
    ),
    Case("another's operation ended", Progress(), by("x", append(1, 7)) + by("y", Completed(1, Appended(1))), "1 of x"),
    Case("another process ended", Progress(), by("x", append(1, 7)) + by("y", ProcessEnded("crash")), "1 of x"),
    Case(
        "a bounded subscription continues",
        Progress(),
        by("r", Invoked(1, SubscribeRequested(1, LOG, 1, until=2))),
        "operation 1 of r",
    ),
    Case("a reader is behind", Progress(), FOLLOWING + TWO_COMMITTED + by("r", read(data(1, 7))), "r at 2 of 3"),
    Case("another reader is at the tail", Progress(), FOLLOWING + TWO_COMMITTED + by("s", read(data(2, 8))), "r at 1"),
    Case(
        "a skip ends before the tail",
        Progress(),
        FOLLOWING + TWO_COMMITTED + by("r", PositionsSkipped(LOG, 1, 2, Reason.TRIMMED)),
        "r at 2 of 3",
    ),
    Case(
        "a segment is not repaired", Progress(finishing=True), projected(ENDED) + ALL_FINAL, "not finished: segment 0"
    ),
    Case(
        "a stream is not finalized",
        Progress(finishing=True),
        projected(REPAIRED) + announced(finalized(A), finalized(B)),
        f"not finished: stream {C}",
    ),
    Case(
        "a restarted member knows no end",
        Progress(finishing=True),
        projected(REPAIRED) + announced(finalized(A), finalized(B), recovered(C)),
        f"not finished: stream {C}",
    ),
    Case(
        "a joiner is not finalized",
        Progress(finishing=True),
        projected(REPAIRED) + ALL_FINAL + projected(NARROW, JOINING),
        f"not finished: stream {JOINER}",
    ),
]


@pytest.mark.parametrize("case", RESTING, ids=[case.clause for case in RESTING])
def test_progress_may_rest_when(case: Case) -> None:
    assert case.monitor.hot(watched(case.monitor, case.history)) == ""


@pytest.mark.parametrize("case", WAITING, ids=[case.clause for case in WAITING])
def test_progress_may_not_rest_while(case: Case) -> None:
    assert case.verdict in case.monitor.hot(watched(case.monitor, case.history))
