"""Every clause of every monitor: histories that it accepts, and for each clause one that it rejects."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from check.freshness_histories import FRESH_TAIL
from check.histories import (
    ADMITTED,
    CLOSED,
    ENDED,
    FIRST,
    JOINER,
    JOINING,
    LOST,
    TRIMMED,
    A,
    B,
    C,
    Case,
    announced,
    append,
    by,
    changed,
    committed,
    data,
    projected,
    read,
    recovered,
    stored,
    watched,
)
from check.metadata_histories import BOUNDARY, SINGLE_OWNER
from check.order_histories import COMPLETENESS, REAL_TIME_ORDER, TOTAL_ORDER
from trunkline.check import monitors
from trunkline.check.monitors import (
    CommitDurability,
    NoLostAck,
    ReadCommitted,
    TrimAsked,
)
from trunkline.check.scenario import Completed, Invoked, Violation
from trunkline.core.calls import TrimRequested
from trunkline.core.entries import junk
from trunkline.core.events import (
    Appended,
    AppendRefused,
    OutcomeUnknown,
)
from trunkline.core.projection import (
    AdmitJoiner,
    Gap,
    RaiseTrim,
)

# ---------------------------------------------------------------------------------------------------------- durability

ONE = data(1, 7)
OLD = stored(ONE, A, B) + stored(data(2, 8), A, B)  # the two that served before the joiner

DURABILITY = [
    Case("all have it", CommitDurability(FIRST), stored(ONE, A, B, C) + announced(committed(ONE))),
    Case(
        "a recovered member counts",
        CommitDurability(),
        projected(FIRST) + stored(ONE, A, B) + announced(recovered(C, ONE), committed(ONE)),
    ),
    Case("trimmed positions are not judged", CommitDurability(FIRST), projected(TRIMMED) + announced(committed(ONE))),
    Case("positions of no segment are not judged", CommitDurability(CLOSED), announced(committed(data(9, 7)))),
    Case("the first projection admits no member", CommitDurability(), OLD + projected(ADMITTED)),
    Case("a joiner need not have it", CommitDurability(JOINING), stored(ONE, A, B) + announced(committed(ONE))),
    Case(
        "a joiner is admitted that has everything",
        CommitDurability(JOINING),
        OLD + stored(ONE, JOINER) + stored(data(2, 8), JOINER) + projected(ADMITTED),
    ),
    Case(
        "a joiner is admitted that lacks what is trimmed",
        CommitDurability(changed(JOINING, RaiseTrim(1))),
        OLD + stored(data(2, 8), JOINER) + projected(changed(JOINING, RaiseTrim(1), AdmitJoiner(0, JOINER))),
    ),
    Case(
        "a joiner is admitted that lacks what was written past the end and cut",
        CommitDurability(JOINING),
        stored(data(4, 9), A, B) + projected(ADMITTED),
    ),
    Case(
        "a joiner is admitted that lacks what one member only has",
        CommitDurability(JOINING),
        stored(ONE, A) + projected(ADMITTED),
    ),
    Case(
        "one member lacks what is acknowledged",
        CommitDurability(FIRST),
        stored(ONE, A, B) + announced(committed(ONE)),
        "acknowledged, but c never stored it",
    ),
    Case(
        "no member of the first projection has what is acknowledged",
        CommitDurability(),
        projected(FIRST) + announced(committed(ONE)),
        "but a, b, c never stored it",
    ),
    Case(
        "one member recovered without it",
        CommitDurability(FIRST),
        stored(ONE, A, B) + announced(recovered(C), committed(ONE)),
        "but c never stored it",
    ),
    Case(
        "one member has another value",
        CommitDurability(FIRST),
        stored(ONE, A, B) + stored(data(1, 9), C) + announced(committed(ONE)),
        "but c never stored it",
    ),
    Case(
        "positions above the trim point are judged",
        CommitDurability(TRIMMED),
        announced(committed(data(2, 8))),
        "position 2 was acknowledged",
    ),
    Case(
        "a joiner is admitted that lacks something",
        CommitDurability(JOINING),
        OLD + stored(ONE, JOINER) + projected(ADMITTED),
        "d serves segment 0, but lacks position 2",
    ),
    Case("all have what is read", ReadCommitted(FIRST), stored(ONE, A, B, C) + announced(read(ONE))),
    Case("what is trimmed may still be read", ReadCommitted(), projected(TRIMMED) + announced(read(ONE))),
    Case(
        "one member lacks what is read",
        ReadCommitted(FIRST),
        stored(ONE, A, C) + by("r", read(ONE)),
        "r read position 1, which b never stored",
    ),
    Case(
        "an admitted joiner lacks what is read",
        ReadCommitted(JOINING),
        stored(ONE, A, B) + projected(ADMITTED) + announced(read(ONE)),
        "which d never stored",
    ),
]

# ------------------------------------------------------------------------------------------------------------ outcomes

ASKED_7 = by("x", append(1, 7))
ACKNOWLEDGED = ASKED_7 + by("x", committed(data(1, 7)), Completed(1, Appended(1)))
REFUSED = ASKED_7 + by("x", Completed(1, AppendRefused("full")))
UNKNOWN = by("x", append(1, 7), Completed(1, OutcomeUnknown(2)))

NO_LOST_ACK = [
    Case(
        "what was acknowledged stays and is read, what was refused is not, and JUNK has no writer",
        NoLostAck(FIRST),
        ACKNOWLEDGED
        + by("x", append(2, 8), Completed(2, AppendRefused("full")))
        + announced(read(data(1, 7)), read(junk(2)), read(junk(3)))
        + projected(ENDED),
    ),
    Case(
        "an acknowledgement reaches exactly the end",
        NoLostAck(ENDED),
        by("x", append(1, 7), committed(data(3, 7)), Completed(1, Appended(3))),
    ),
    Case("the outcome of what was trimmed is unknown", NoLostAck(), projected(changed(FIRST, RaiseTrim(2))) + UNKNOWN),
    Case("the outcome of what is lost is unknown", NoLostAck(LOST), UNKNOWN),
    Case("a gap begins with its first position", NoLostAck(replace(LOST, gaps=(Gap(2, 4),))), UNKNOWN),
    Case(
        "no more is trimmed than was asked for",
        TrimAsked(FIRST),
        by("x", Invoked(1, TrimRequested(1, "log", 2))) + projected(changed(FIRST, RaiseTrim(2))),
    ),
    Case("the trim point of the first projection needs no request", TrimAsked(TRIMMED), projected(TRIMMED)),
    Case(
        "more is trimmed than was asked for",
        TrimAsked(FIRST),
        by("x", Invoked(1, TrimRequested(1, "log", 1))) + projected(changed(FIRST, RaiseTrim(2))),
        "clients asked for 1 at most",
    ),
    Case(
        "nothing was appended there",
        NoLostAck(),
        ASKED_7 + by("x", Completed(1, Appended(1))),
        "its value was not committed",
    ),
    Case(
        "an unknown outcome is above the trim point", NoLostAck(TRIMMED), UNKNOWN, "which is neither trimmed nor lost"
    ),
    Case(
        "an unknown outcome is past the gap",
        NoLostAck(LOST),
        by("x", append(1, 7), Completed(1, OutcomeUnknown(4))),
        "x got an unknown outcome at 4",
    ),
    Case(
        "an unknown outcome is before the gap",
        NoLostAck(replace(LOST, gaps=(Gap(3, 4),))),
        UNKNOWN,
        "x got an unknown outcome at 2",
    ),
    Case(
        "a commit is past the end", NoLostAck(ENDED), announced(committed(data(4, 7))), "but 4 was acknowledged in it"
    ),
    Case(
        "a commit reaches past the end", NoLostAck(ENDED), announced(committed(data(3, 7, 2))), "but 4 was acknowledged"
    ),
    Case(
        "an end cuts a commit off",
        NoLostAck(FIRST),
        announced(committed(data(4, 7))) + projected(ENDED),
        "segment 0 ended at 4, but 4 was acknowledged in it",
    ),
    Case(
        "what was committed is refused",
        NoLostAck(),
        ASKED_7 + by("x", committed(data(1, 7)), Completed(1, AppendRefused("full"))),
        "value 7 was refused, but is at 1",
    ),
    Case(
        "what was read is refused",
        NoLostAck(),
        ASKED_7 + by("r", read(data(1, 7))) + by("x", Completed(1, AppendRefused("full"))),
        "value 7 was refused, but is at 1",
    ),
    Case("what was refused is read", NoLostAck(), REFUSED + by("r", read(data(1, 7))), "was refused and then read"),
    Case(
        "what was refused is committed",
        NoLostAck(),
        REFUSED + announced(committed(data(1, 7))),
        "refused and then read",
    ),
    Case("a value is read twice", NoLostAck(), ACKNOWLEDGED + by("r", read(data(2, 7))), "is at 1 and at 2"),
    Case(
        "a value is committed twice", NoLostAck(), ACKNOWLEDGED + announced(committed(data(2, 7))), "is at 1 and at 2"
    ),
]

SAFETY = [
    *TOTAL_ORDER,
    *COMPLETENESS,
    *REAL_TIME_ORDER,
    *FRESH_TAIL,
    *DURABILITY,
    *SINGLE_OWNER,
    *BOUNDARY,
    *NO_LOST_ACK,
]


def named(cases: list[Case]) -> list[str]:
    return [f"{case.monitor.name}: {case.clause}" for case in cases]


ACCEPTED = [case for case in SAFETY if not case.verdict]
REJECTED = [case for case in SAFETY if case.verdict]


@pytest.mark.parametrize("case", ACCEPTED, ids=named(ACCEPTED))
def test_a_history_is_accepted_in_which(case: Case) -> None:
    assert case.monitor.hot(watched(case.monitor, case.history)) == ""


@pytest.mark.parametrize("case", REJECTED, ids=named(REJECTED))
def test_a_history_is_rejected_at_its_last_event_in_which(case: Case) -> None:
    state = watched(case.monitor, case.history[:-1])
    with pytest.raises(Violation) as caught:
        case.monitor.observe(state, case.history[-1])
    assert case.verdict in str(caught.value)


def test_every_monitor_accepts_something_and_rejects_something() -> None:
    names = sorted(monitor.name for monitor in monitors.safety())
    for cases in (ACCEPTED, REJECTED):
        assert sorted({case.monitor.name for case in cases}) == names
