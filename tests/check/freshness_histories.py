"""Histories of reads to the tail."""

from __future__ import annotations

from check.histories import Case, History, append, by
from trunkline.check.monitors import FreshTail
from trunkline.check.scenario import Completed, Invoked, ProcessEnded
from trunkline.check.scenarios.cluster import LOG
from trunkline.core.calls import SubscribeRequested
from trunkline.core.events import Appended, AppendRefused, RequestRefused, SubscriptionEnded


def to_tail(operation: int, until: int | None = None) -> Invoked:
    return Invoked(operation, SubscribeRequested(operation, LOG, 1, until, to_tail=True))


def ended(operation: int, after: int) -> Completed:
    return Completed(operation, SubscriptionEnded(after))


AT_3: History = by("x", append(1, 7), Completed(1, Appended(3)))
BATCH_AT_3: History = by("x", append(1, 7, count=2), Completed(1, Appended(3)))

FRESH_TAIL = [
    Case("a read passes what was acknowledged", FreshTail(), AT_3 + by("r", to_tail(1), ended(1, 4))),
    Case("an empty log is read", FreshTail(), by("r", to_tail(1), ended(1, 1))),
    Case(
        "an append is acknowledged while the log is read",
        FreshTail(),
        by("r", to_tail(1)) + AT_3 + by("r", ended(1, 3)),
    ),
    Case("a read ends at its until", FreshTail(), AT_3 + by("r", to_tail(1, until=2), ended(1, 3))),
    Case("an append is refused", FreshTail(), by("x", append(1, 7, 2), Completed(1, AppendRefused("full")))),
    Case("a read is refused", FreshTail(), AT_3 + by("r", to_tail(1), Completed(1, RequestRefused("deleted")))),
    Case(
        "a subscription without a tail ends at its until",
        FreshTail(),
        AT_3 + by("r", Invoked(1, SubscribeRequested(1, LOG, 1, 1)), ended(1, 2)),
    ),
    Case(
        "a process crashes during a read and reads again",
        FreshTail(),
        AT_3 + by("r", to_tail(1), ProcessEnded("crash"), to_tail(1), ended(1, 4)),
    ),
    Case(
        "a read ends before an acknowledged entry",
        FreshTail(),
        AT_3 + by("r", to_tail(1), ended(1, 3)),
        "read up to 3 as the tail",
    ),
    Case("a read ends in a batch", FreshTail(), BATCH_AT_3 + by("r", to_tail(1), ended(1, 4)), "4 was acknowledged"),
    Case(
        "a read ends before its until",
        FreshTail(),
        AT_3 + by("r", to_tail(1, until=2), ended(1, 2)),
        "2 was acknowledged before it began",
    ),
]
