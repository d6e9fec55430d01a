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
    Duty,
    DutyMemory,
    EndTheSegment,
    FinalizeMembers,
    ForgetTheSegments,
    RemoveJoiner,
    RemoveServingMember,
    RepairSegment,
    TidyNode,
    TrimMembers,
    left_streams,
    names_node,
    next_duty,
)
from trunkline.core.messages import NodeInfo, NodeState, Space, StreamTarget
from trunkline.core.projection import (
    AddJoiner,
    AdmitJoiner,
    Change,
    DeleteLog,
    EndSegment,
    MarkRepaired,
    Member,
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


def done(finalized: str = "", trimmed: int = 0, damaged: str = "", tidied: str = "a b c d") -> DutyMemory:
    """What was seen done for the streams of segment 0."""
    seen = DutyMemory()
    seen.tidied |= set(tidied.split())
    seen.finalized |= set(finalized.split())
    seen.damaged |= set(damaged.split())
    if trimmed:
        seen.trimmed = dict.fromkeys(("1.0.0", "1.0.1", "1.0.2"), trimmed)
    return seen


def changed(node: str, **fields: object) -> tuple[NodeInfo, ...]:
    return tuple(replace(info, **fields) if info.node == node else info for info in ALL)


def harmed(segment: int, node: str) -> DutyMemory:
    seen = done(FINAL)
    seen.harmed = (segment, node)
    return seen


def blocked(finalized: str) -> DutyMemory:
    """The open segment cannot be ended."""
    seen = done(finalized)
    seen.blocked = 1
    return seen


FINAL = "1.0.0 1.0.1 1.0.2"
DELETED = after(EndSegment(1, 4, ENDED.last.groups, None), DeleteLog())
REPAIRED = after(MarkRepaired(0))
NARROW = after(RemoveMember(0, "1.0.0"), view=REPAIRED)
JOINING = after(AddJoiner(0, 0, Seat("d", 1)), view=NARROW)
JOINER = JOINING.segments[0].members()[-1]

TABLE: list[tuple[str, Projection, tuple[NodeInfo, ...], DutyMemory, Duty | None]] = [
    ("an open segment on live nodes needs nothing", FIRST, ALL, done(), None),
    ("a dead member", FIRST, registered("a b c d", dead="c"), done(), EndTheSegment(0, ("c",))),
    ("an unknown member", FIRST, registered("a b d"), done(), EndTheSegment(0, ("c",))),
    ("a wiped member", FIRST, changed("c", incarnation=2), done(), EndTheSegment(0, ("c",))),
    ("a restarted sequencer", FIRST, changed("a", start=2), done(), EndTheSegment(0, ("a",))),
    ("a dead sequencer that is a member", FIRST, registered("a b c d", dead="a"), done(), EndTheSegment(0, ("a",))),
    ("a draining member", FIRST, changed("b", state=NodeState.DRAINING), done(), EndTheSegment(0, ("b",))),
    ("a member that is removed", FIRST, changed("b", state=NodeState.GONE), done(), EndTheSegment(0, ("b",))),
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
        "a dead member of a broadcast segment",
        broadcast_log(BROADCAST3, "a b c", owner="w"),
        registered("a b c d", dead="c"),
        done(),
        EndTheSegment(0, ("c",)),
    ),
    (
        "a broadcast segment with an unknown owner",
        broadcast_log(BROADCAST3, "a b c", owner="w"),
        ALL,
        done(),
        None,
    ),
    (
        "a client is not a node",
        chain_log(CHAIN3, "a b", sequencer="a"),
        (*registered("a b"), NodeInfo("w", 0, 1, NodeState.CLIENT)),
        done(),
        None,
    ),
    (
        "a sequencer that is being drained",
        chain_log(CHAIN3, "b c d", sequencer="a"),
        changed("a", state=NodeState.DRAINING),
        done(),
        EndTheSegment(0, ("a",)),
    ),
    ("a member of the open segment found damage", FIRST, ALL, harmed(0, "b"), EndTheSegment(0, ("b",))),
    ("a member of a segment that is over found damage", REPAIRED, ALL, harmed(0, "b"), None),
    (
        "a place that a node that is being drained has to leave",
        REPAIRED,
        changed("a", state=NodeState.DRAINING),
        done(FINAL),
        AddMember(0, 0, Seat("d", 1)),
    ),
    (
        "a place that has been taken by another",
        after(AddJoiner(0, 0, Seat("d", 1)), AdmitJoiner(0, "4.0.0"), view=REPAIRED),
        changed("a", state=NodeState.DRAINING),
        done(f"{FINAL} 4.0.0"),
        RemoveServingMember(0, "1.0.0", (B, C, Member("d", 1, "4.0.0"))),
    ),
    (
        "a place without a node to take it",
        REPAIRED,
        (*changed("a", state=NodeState.DRAINING)[:3], replace(ALL[3], live=False)),
        blocked(FINAL),
        None,
    ),
    (
        "a joiner on a node that is being drained",
        after(AddJoiner(0, 0, Seat("a", 1)), view=NARROW),
        changed("a", state=NodeState.DRAINING),
        done(f"{FINAL} 5.0.0"),
        RemoveJoiner(0, "5.0.0"),
    ),
    (
        "a joiner on a node that has no room for a copy",
        JOINING,
        changed(JOINER.node, space=Space.TIGHT),
        done(FINAL),
        RemoveJoiner(0, JOINER.stream),
    ),
    (
        "a place for which one node has room, and another does not",
        NARROW,
        changed("a", space=Space.TIGHT),
        done(FINAL),
        AddMember(0, 0, Seat("d", 1)),
    ),
    (
        "a place without a node with space",
        NARROW,
        tuple(replace(info, space=Space.TIGHT) for info in ALL),
        done(FINAL),
        None,
    ),
    (
        "an open segment that only a full node could make wider",
        chain_log(CHAIN3, "a b", sequencer="a"),
        changed("c", space=Space.FULL)[:3],
        done(),
        None,
    ),
    ("a node that was not asked what it keeps", REPAIRED, ALL, done(FINAL, tidied="a c d"), TidyNode("b")),
    (
        "a dead node that was not asked",
        REPAIRED,
        registered("b c d"),
        done(FINAL, tidied="b c d"),
        RemoveServingMember(0, "1.0.0", (B, C)),
    ),
    ("nothing is due for a deleted log", DELETED, registered("a b c d", dead="d"), done(), None),
    ("but that its streams are dropped", DELETED, ALL, done(tidied=""), TidyNode("a")),
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
        RemoveServingMember(0, "1.0.0", (B, C)),
    ),
    (
        "a dead member, the others not yet asked",
        ENDED,
        registered("b c d"),
        done(),
        FinalizeMembers(((0, (B, C)),)),
    ),
    (
        "a damaged member of an ended segment",
        ENDED,
        ALL,
        done(FINAL, damaged="1.0.1"),
        RemoveServingMember(0, "1.0.1", (A, C)),
    ),
    (
        "a dead member beside a damaged one",
        ENDED,
        registered("b c d"),
        done(FINAL, damaged="1.0.1"),
        RemoveServingMember(0, "1.0.0", (C,)),
    ),
    (
        "a damaged member beside a joiner, which is not a witness",
        JOINING,
        ALL,
        done(f"{FINAL} {JOINER.stream}", damaged="1.0.1"),
        RemoveServingMember(0, "1.0.1", (C,)),
    ),
    ("members that do not know the end", ENDED, ALL, done("1.0.1"), FinalizeMembers(((0, (A, C)),))),
    ("an ended segment that all know of", ENDED, ALL, done(FINAL), RepairSegment(0)),
    ("a repaired segment that is wide enough", REPAIRED, ALL, done(FINAL), None),
    ("a repaired segment that is not", NARROW, ALL, done(FINAL), AddMember(0, 0, Seat("a", 1))),
    ("a joiner that does not know the end", JOINING, ALL, done(FINAL), FinalizeMembers(((0, (JOINER,)),))),
    ("a joiner", JOINING, ALL, done(f"{FINAL} {JOINER.stream}"), CopyToJoiner(0, JOINER, B)),
    (
        "a damaged joiner",
        JOINING,
        ALL,
        done(FINAL, damaged=JOINER.stream),
        RemoveJoiner(0, JOINER.stream),
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
    ("a trimmed segment", after(RaiseTrim(3), view=REPAIRED), ALL, done(FINAL), ForgetTheSegments((0,))),
    (
        "a narrow trimmed segment is not widened",
        after(RaiseTrim(3), view=NARROW),
        ALL,
        done(FINAL),
        ForgetTheSegments((0,)),
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
def test_the_most_urgent_duty(
    view: Projection, nodes: tuple[NodeInfo, ...], seen: DutyMemory, duty: Duty | None
) -> None:
    assert next_duty(view, nodes, seen) == duty


def _only(*streams: str, view: Projection = ENDED) -> Projection:
    removed = [m.stream for m in view.segments[0].members() if m.stream not in streams]
    return after(*(RemoveMember(0, stream) for stream in removed), view=view)


def test_p6_the_last_serving_member_is_waited_for_however_dead_it_is() -> None:
    alone = _only("1.0.0")
    assert next_duty(alone, registered("b c d"), done()) is None
    assert next_duty(alone, ALL, done(damaged="1.0.0")) is None


def test_e1_a_segment_is_not_repaired_while_a_member_is_unreachable() -> None:
    alone = _only("1.0.0")
    assert next_duty(alone, registered("b c d"), done("1.0.0")) is None
    assert next_duty(alone, ALL, done("1.0.0")) == RepairSegment(0)


def test_j1_no_member_joins_a_segment_that_is_not_repaired() -> None:
    narrow = _only("1.0.1", "1.0.2")
    assert next_duty(narrow, ALL, done(FINAL)) == RepairSegment(0)


def test_a_segment_that_could_not_be_ended_does_not_keep_other_duties_waiting() -> None:
    seen = done(FINAL)
    seen.blocked = 1
    assert next_duty(ENDED, registered("a b c d", dead="d"), seen) == RepairSegment(0)


def test_a_group_without_a_live_source_gets_no_joiner() -> None:
    alone = _only("1.0.0", view=REPAIRED)
    assert next_duty(alone, registered("b c d"), done(FINAL)) is None


# "Keep the log writable" comes first: no node could take over, so ending the segment would only stop appends.
def test_a_draining_member_without_a_replacement_keeps_its_segment() -> None:
    view = chain_log(CHAIN3, "a", sequencer="a")
    assert next_duty(view, (NodeInfo("a", 1, 1, NodeState.DRAINING),), done()) is None


def test_a_node_is_needed_as_long_as_a_member_or_the_sequencer_of_the_open_segment_is_on_it() -> None:
    view = chain_log(CHAIN3, "b c", sequencer="a")
    assert [node for node in "abcd" if names_node(view, node)] == ["a", "b", "c"]
    closed = after(EndSegment(0, 4, view.last.groups, None), view=view)
    assert [node for node in "abcd" if names_node(closed, node)] == ["b", "c"]
    deleted = after(DeleteLog(), view=closed)
    assert not any(names_node(deleted, node) for node in "abcd")
    assert not names_node(broadcast_log(BROADCAST3, "a b", owner="w"), "w")


def test_c3_a_stream_has_left_if_the_view_is_not_older_than_it_and_does_not_name_it() -> None:
    kept = tuple(StreamTarget("cluster", "log", 0, 1, stream, 1) for stream in ("1.0.0", "1.0.1", "3.0.0", "4.0.0"))
    assert left_streams(NARROW, kept) == (kept[0], kept[2], kept[3])  # epoch 4
    assert left_streams(REPAIRED, kept) == (kept[2],)  # epoch 3
    assert left_streams(DELETED, kept) == kept
