"""What the coordinator should do next, as a table: situation -> duty.

Every situation is about the log below, at some point of its life; nodes are a b c d, three replicas are wanted.

    segment 0   [1, 4)    a b c      segment 1   [4, ...)   b c d, sequencer b
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from core.driver import registered
from trunkline.check.scenarios.cluster import BROADCAST3, CHAIN3, broadcast_log, chain_log
from trunkline.core.duties import (
    AddMember,
    CopyToJoiner,
    Done,
    Duty,
    EndTheSegment,
    FinalizeMembers,
    ForgetTheSegment,
    RemoveDeadMember,
    RepairSegment,
    TrimMembers,
    next_duty,
)
from trunkline.core.messages import NodeInfo, NodeState
from trunkline.core.projection import (
    AddJoiner,
    AdmitJoiner,
    Change,
    EndSegment,
    MarkRepaired,
    Opening,
    Owner,
    Projection,
    RaiseTrim,
    RemoveMember,
    Seat,
    apply,
)

ALL = registered("a b c d")
FIRST = chain_log(CHAIN3, "a b c", sequencer="a")
SECOND = Opening((tuple(Seat(node, 1) for node in "bcd"),), Owner("b", 1))
ENDED = apply(FIRST, EndSegment(0, 4, FIRST.last.groups, SECOND))
A, B, C = FIRST.last.members()


def after(*changes: Change, view: Projection = ENDED) -> Projection:
    for change in changes:
        view = apply(view, change)
    return view


def done(finalized: str = "", trimmed: int = 0, damaged: str = "") -> Done:
    """What was seen done for the streams of segment 0."""
    seen = Done()
    seen.finalized |= set(finalized.split())
    seen.damaged |= set(damaged.split())
    if trimmed:
        seen.trimmed = dict.fromkeys(("1.0.0", "1.0.1", "1.0.2"), trimmed)
    return seen


def changed(node: str, **fields: object) -> tuple[NodeInfo, ...]:
    return tuple(replace(info, **fields) if info.node == node else info for info in ALL)


REPAIRED = after(MarkRepaired(0))
NARROW = after(RemoveMember(0, "1.0.0"), view=REPAIRED)
JOINING = after(AddJoiner(0, 0, Seat("d", 1)), view=NARROW)
JOINER = JOINING.segments[0].members()[-1]
FINAL = "1.0.0 1.0.1 1.0.2"

TABLE: list[tuple[str, Projection, tuple[NodeInfo, ...], Done, Duty | None]] = [
    ("an open segment on live nodes needs nothing", FIRST, ALL, done(), None),
    ("a dead member", FIRST, registered("a b c d", dead="c"), done(), EndTheSegment(0, ("c",))),
    ("an unknown member", FIRST, registered("a b d"), done(), EndTheSegment(0, ("c",))),
    ("a wiped member", FIRST, changed("c", incarnation=2), done(), EndTheSegment(0, ("c",))),
    ("a restarted sequencer", FIRST, changed("a", start=2), done(), EndTheSegment(0, ("a",))),
    ("a dead sequencer that is a member", FIRST, registered("a b c d", dead="a"), done(), EndTheSegment(0, ("a",))),
    ("a draining member", FIRST, changed("b", state=NodeState.DRAINING), done(), EndTheSegment(0, ("b",))),
    ("a member that is gone", FIRST, changed("b", state=NodeState.GONE), done(), EndTheSegment(0, ("b",))),
    ("a dead node that has no part in it", FIRST, registered("a b c d", dead="d"), done(), None),
    (
        "a segment that could be wider",
        chain_log(CHAIN3, "a b", sequencer="a"),
        ALL,
        done(),
        EndTheSegment(0, ()),
    ),
    (
        "a segment as wide as there are nodes",
        chain_log(CHAIN3, "a b", sequencer="a"),
        registered("a b"),
        done(),
        None,
    ),
    (
        "a broadcast segment is rolled by its owner",
        broadcast_log(BROADCAST3, "a b c", owner="w"),
        registered("a b c d", dead="c"),
        done(),
        None,
    ),
    (
        "the open segment comes first",
        ENDED,
        registered("a b c d", dead="a d"),
        done(),
        EndTheSegment(1, ("d",)),
    ),
    (
        "a dead member of an ended segment",
        ENDED,
        registered("b c d"),
        done(FINAL),
        RemoveDeadMember(0, "1.0.0", (B, C)),
    ),
    (
        "a dead member, the others not yet asked",
        ENDED,
        registered("b c d"),
        done(),
        FinalizeMembers(0, (B, C)),
    ),
    (
        "a damaged member of an ended segment",
        ENDED,
        ALL,
        done(FINAL, damaged="1.0.1"),
        RemoveDeadMember(0, "1.0.1", (A, C)),
    ),
    (
        "a dead member beside a damaged one",
        ENDED,
        registered("b c d"),
        done(FINAL, damaged="1.0.1"),
        RemoveDeadMember(0, "1.0.0", (C,)),
    ),
    (
        "a damaged member beside a joiner, who is no witness",
        JOINING,
        ALL,
        done(f"{FINAL} {JOINER.stream}", damaged="1.0.1"),
        RemoveDeadMember(0, "1.0.1", (C,)),
    ),
    ("members that do not know the end", ENDED, ALL, done("1.0.1"), FinalizeMembers(0, (A, C))),
    ("an ended segment that all know of", ENDED, ALL, done(FINAL), RepairSegment(0)),
    ("a repaired segment that is wide enough", REPAIRED, ALL, done(FINAL), None),
    ("a repaired segment that is not", NARROW, ALL, done(FINAL), AddMember(0, 0, Seat("a", 1))),
    ("a joiner that does not know the end", JOINING, ALL, done(FINAL), FinalizeMembers(0, (JOINER,))),
    ("a joiner", JOINING, ALL, done(f"{FINAL} {JOINER.stream}"), CopyToJoiner(0, JOINER)),
    (
        "a damaged joiner",
        JOINING,
        ALL,
        done(FINAL, damaged=JOINER.stream),
        RemoveDeadMember(0, JOINER.stream),
    ),
    (
        "a joiner that was admitted",
        after(AdmitJoiner(0, JOINER.stream), view=JOINING),
        ALL,
        done(f"{FINAL} {JOINER.stream}"),
        None,
    ),
    (
        "a trim that members do not know",
        after(RaiseTrim(2), view=REPAIRED),
        ALL,
        done(FINAL, 1),
        TrimMembers(0, (A, B, C)),
    ),
    ("a trim that members know", after(RaiseTrim(2), view=REPAIRED), ALL, done(FINAL, 2), None),
    ("a segment that is trimmed away", after(RaiseTrim(3), view=REPAIRED), ALL, done(FINAL), ForgetTheSegment(0)),
    (
        "a narrow segment that is trimmed away is not widened",
        after(RaiseTrim(3), view=NARROW),
        ALL,
        done(FINAL),
        ForgetTheSegment(0),
    ),
    (
        "a trim inside the open segment",
        after(RaiseTrim(2), view=FIRST),
        ALL,
        done(trimmed=1),
        TrimMembers(0, (A, B, C)),
    ),
]


@pytest.mark.parametrize(("view", "nodes", "seen", "duty"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_the_most_urgent_duty(view: Projection, nodes: tuple[NodeInfo, ...], seen: Done, duty: Duty | None) -> None:
    assert next_duty(view, nodes, seen) == duty


def _only(*streams: str, view: Projection = ENDED) -> Projection:
    gone = [m.stream for m in view.segments[0].members() if m.stream not in streams]
    return after(*(RemoveMember(0, stream) for stream in gone), view=view)


def test_p6_the_last_serving_member_is_waited_for_however_dead_it_is() -> None:
    alone = _only("1.0.0")
    assert next_duty(alone, registered("b c d"), done()) is None
    assert next_duty(alone, ALL, done(damaged="1.0.0")) is None


def test_e1_a_segment_is_not_repaired_while_one_of_its_members_is_away() -> None:
    alone = _only("1.0.0")
    assert next_duty(alone, registered("b c d"), done("1.0.0")) is None
    assert next_duty(alone, ALL, done("1.0.0")) == RepairSegment(0)


def test_j1_nobody_joins_a_segment_that_is_not_repaired() -> None:
    narrow = _only("1.0.1", "1.0.2")
    assert next_duty(narrow, ALL, done(FINAL)) == RepairSegment(0)


def test_a_segment_that_could_not_be_ended_does_not_keep_other_duties_waiting() -> None:
    seen = done(FINAL)
    seen.blocked = 1
    assert next_duty(ENDED, registered("a b c d", dead="d"), seen) == RepairSegment(0)


def test_a_group_without_a_living_source_takes_no_joiner() -> None:
    alone = _only("1.0.0", view=REPAIRED)
    assert next_duty(alone, registered("b c d"), done(FINAL)) is None


# "Keep the log writable" is the first urgency: nobody could take over, so ending the segment would only stop appends.
def test_a_draining_member_that_nobody_can_replace_keeps_its_segment() -> None:
    view = chain_log(CHAIN3, "a", sequencer="a")
    assert next_duty(view, (NodeInfo("a", 1, 1, NodeState.DRAINING),), done()) is None
