"""Histories that the monitors of order accept, and for each clause one that they reject."""

from __future__ import annotations

from msgspec.structs import replace

from check.histories import (
    FIRST,
    LOST,
    Case,
    announced,
    append,
    by,
    changed,
    committed,
    data,
    filled,
    projected,
    read,
    tail,
)
from trunkline.check.monitors import (
    Completeness,
    RealTimeOrder,
    TotalOrder,
)
from trunkline.check.scenario import Completed, Invoked, ProcessEnded
from trunkline.check.scenarios.cluster import LOG
from trunkline.core.calls import SubscribeRequested, TrimRequested
from trunkline.core.events import (
    Appended,
    AppendRefused,
    FollowedSegment,
    PositionsSkipped,
    TailIs,
    ValueCarried,
)
from trunkline.core.messages import Reason
from trunkline.core.projection import (
    Gap,
    RaiseTrim,
)

SETTLED = announced(read(data(1, 7)), committed(data(1, 7)), filled(2), ValueCarried(LOG, 0, data(3, 8)))

TOTAL_ORDER = [
    Case(
        "all agree, and only settled positions are trimmed",
        TotalOrder(),
        SETTLED + projected(changed(FIRST, RaiseTrim(3))),
    ),
    Case(
        "neighbouring positions are read in any order",
        TotalOrder(),
        announced(read(data(2, 7)), read(data(1, 8)), filled(3)),
    ),
    Case("another value is read", TotalOrder(), SETTLED + announced(read(data(1, 9))), "position 1 is DATA"),
    Case("another value is committed", TotalOrder(), SETTLED + announced(committed(data(1, 9))), "position 1 is DATA"),
    Case("a value is filled", TotalOrder(), SETTLED + announced(filled(3)), "position 3 is JUNK"),
    Case(
        "another value is carried",
        TotalOrder(),
        SETTLED + announced(ValueCarried(LOG, 0, data(2, 9))),
        "was JUNK[2..2]",
    ),
    Case("a batch overlaps a later frame", TotalOrder(), announced(filled(2), read(data(1, 7, 2))), "was JUNK[2..2]"),
    Case(
        "a frame overlaps an earlier batch",
        TotalOrder(),
        announced(read(data(1, 7, 2)), filled(2)),
        "position 2 is JUNK",
    ),
    Case(
        "an unsettled position is trimmed",
        TotalOrder(),
        announced(read(data(1, 7)), filled(3)) + projected(changed(FIRST, RaiseTrim(3))),
        "position 2 was trimmed before it was settled",
    ),
    Case(
        "positions trimmed before the beginning are not judged",
        TotalOrder(changed(FIRST, RaiseTrim(2))),
        announced(filled(3)) + projected(changed(FIRST, RaiseTrim(3))),
    ),
    Case(
        "only positions trimmed before the beginning are not judged",
        TotalOrder(changed(FIRST, RaiseTrim(2))),
        projected(changed(FIRST, RaiseTrim(3))),
        "position 3 was trimmed before it was settled",
    ),
]

SUBSCRIBED = by("r", Invoked(1, SubscribeRequested(1, LOG, 1)), read(data(1, 7)), read(data(1, 7, 3), 2))

COMPLETENESS = [
    Case(
        "every position is returned, also from inside a batch, and the next segment begins where this one ended",
        Completeness(),
        SUBSCRIBED + by("r", FollowedSegment(LOG, 1, 4), read(data(4, 8))),
    ),
    Case(
        "what is trimmed is skipped",
        Completeness(),
        projected(changed(FIRST, RaiseTrim(3)))
        + by("r", PositionsSkipped(LOG, 1, 4, Reason.TRIMMED), read(data(4, 8))),
    ),
    Case(
        "what is lost is skipped",
        Completeness(),
        projected(LOST) + by("r", PositionsSkipped(LOG, 1, 4, Reason.LOST), read(data(4, 8))),
    ),
    Case(
        "another subscription begins anywhere",
        Completeness(),
        SUBSCRIBED + by("r", Invoked(2, SubscribeRequested(2, LOG, 9)), read(data(9, 9))),
    ),
    Case(
        "a trim reads from the beginning",
        Completeness(),
        SUBSCRIBED + by("r", Invoked(2, TrimRequested(2, LOG, 1)), read(data(1, 7))),
    ),
    Case(
        "a restarted reader begins anywhere",
        Completeness(),
        SUBSCRIBED + by("r", ProcessEnded("crash"), read(data(1, 7))),
    ),
    Case("a position is left out", Completeness(), SUBSCRIBED + by("r", read(data(5, 8))), "had not read 4"),
    Case("a position is returned twice", Completeness(), SUBSCRIBED + by("r", read(data(3, 8))), "continued at 3"),
    Case(
        "a subscription does not begin at its start",
        Completeness(),
        by("r", Invoked(1, SubscribeRequested(1, LOG, 1)), read(data(2, 7))),
        "had not read 1",
    ),
    Case(
        "a position is left out while another reader ends",
        Completeness(),
        SUBSCRIBED + by("other", ProcessEnded("crash")) + by("r", read(data(5, 8))),
        "had not read 4",
    ),
    Case("a frame is for another position", Completeness(), by("r", read(data(2, 7), 1)), "for position 1"),
    Case("a frame ends before its position", Completeness(), by("r", read(data(1, 7, 2), 3)), "for position 3"),
    Case(
        "the end of a segment is left out",
        Completeness(),
        SUBSCRIBED + by("r", FollowedSegment(LOG, 1, 5)),
        "had not read 4",
    ),
    Case(
        "a skip leaves something out",
        Completeness(),
        projected(changed(FIRST, RaiseTrim(9))) + SUBSCRIBED + by("r", PositionsSkipped(LOG, 5, 7, Reason.TRIMMED)),
        "had not read 4",
    ),
    Case(
        "what is not trimmed is skipped",
        Completeness(),
        projected(changed(FIRST, RaiseTrim(2))) + by("r", PositionsSkipped(LOG, 1, 4, Reason.TRIMMED)),
        "1 to 3 were skipped as trimmed",
    ),
    Case(
        "what is trimmed is skipped as lost",
        Completeness(),
        projected(changed(FIRST, RaiseTrim(3))) + by("r", PositionsSkipped(LOG, 1, 4, Reason.LOST)),
        "skipped as lost",
    ),
    Case(
        "a skip goes past the gap",
        Completeness(),
        projected(LOST) + by("r", PositionsSkipped(LOG, 1, 5, Reason.LOST)),
        "skipped as lost",
    ),
    Case(
        "a skip begins before the gap",
        Completeness(),
        projected(replace(LOST, gaps=(Gap(2, 4),))) + by("r", PositionsSkipped(LOG, 1, 4, Reason.LOST)),
        "skipped as lost",
    ),
]


BATCH_AT_1 = by("x", append(1, 7, count=2), Completed(1, Appended(1)))

REAL_TIME_ORDER = [
    Case(
        "an operation that begins later gets a higher position",
        RealTimeOrder(),
        BATCH_AT_1 + by("y", append(1, 8), Completed(1, Appended(3)), tail(2), Completed(2, TailIs(4))),
    ),
    Case(
        "concurrent appends get positions in any order",
        RealTimeOrder(),
        by("x", append(1, 7)) + by("y", append(1, 8), Completed(1, Appended(5))) + by("x", Completed(1, Appended(4))),
    ),
    Case(
        "other results imply no order",
        RealTimeOrder(),
        BATCH_AT_1 + by("y", append(1, 8), Completed(1, AppendRefused("full"))),
    ),
    Case(
        "an append gets the position of an earlier one",
        RealTimeOrder(),
        BATCH_AT_1 + by("y", append(1, 8), Completed(1, Appended(1))),
        "y appended at 1",
    ),
    Case(
        "an append gets a position inside an earlier batch",
        RealTimeOrder(),
        BATCH_AT_1 + by("y", append(1, 8), Completed(1, Appended(2))),
        "y appended at 2",
    ),
    Case(
        "a tail is behind an append",
        RealTimeOrder(),
        BATCH_AT_1 + by("y", tail(1), Completed(1, TailIs(2))),
        "y got the tail 2",
    ),
    Case(
        "an append is behind a tail",
        RealTimeOrder(),
        by("x", tail(1), Completed(1, TailIs(4))) + by("y", append(1, 8), Completed(1, Appended(3))),
        "y appended at 3",
    ),
    Case(
        "a tail goes back",
        RealTimeOrder(),
        by("x", tail(1), Completed(1, TailIs(4)), tail(2), Completed(2, TailIs(3))),
        "x got the tail 3",
    ),
    Case(
        "two operations with one number are under way",
        RealTimeOrder(),
        by("x", tail(1), append(1, 7)),
        "operation 1 of x began, but one with that number is under way",
    ),
    Case(
        "an operation ends twice",
        RealTimeOrder(),
        BATCH_AT_1 + by("x", Completed(1, Appended(3))),
        "operation 1 of x ended, but is not under way",
    ),
    Case(
        "an operation of another process ends",
        RealTimeOrder(),
        by("x", append(1, 7)) + by("y", Completed(1, Appended(1))),
        "operation 1 of y ended",
    ),
    Case(
        "an operation ends after its process did",
        RealTimeOrder(),
        by("x", append(1, 7), ProcessEnded("crash"), Completed(1, Appended(1))),
        "operation 1 of x ended",
    ),
]
