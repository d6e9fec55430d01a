"""The coordinator with real nodes, a real register, and its own reconfigurer and filler: duties from end to end.

Each test sets up a log whose first segment has ended, and lets the coordinator tick until nothing is due.

    segment 0   [1, 4)   a b c   batches of one entry at 1, 2, 3        segment 1   [4, ...)   a b c, sequencer a
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from core.coordinating import (
    ENDED,
    FIRST,
    FULL,
    ME,
    NARROW,
    NEXT,
    REPAIRED,
    A,
    B,
    C,
    Cluster,
    finalize,
    joining_member,
    singles,
)
from core.driver import (
    announced,
    data,
    messages,
    registered,
    seen,
    sent,
    storage,
    target,
    timers,
)
from trunkline.check.scenarios.cluster import CHAIN3, LOG, chain_log
from trunkline.core.coordinator import Coordinator, DutiesConfig
from trunkline.core.duties import RemoveServingMember
from trunkline.core.effects import Address, CancelTimer, Effects, Message, Send, SetTimer
from trunkline.core.entries import junk
from trunkline.core.events import LogBlocked, LogUnblocked, MemberRebuilt, MemberRemoved
from trunkline.core.messages import (
    Digest,
    Digested,
    Finalize,
    Finalized,
    Inventoried,
    Inventory,
    NodeInfo,
    NodeState,
    Reason,
    Rejected,
    Write,
    descriptor_of,
)
from trunkline.core.projection import (
    EndSegment,
    MarkRepaired,
    Opening,
    Owner,
    Policy,
    RaiseTrim,
    RemoveMember,
    Seat,
    Settings,
    apply,
)
from trunkline.core.rebuild import MemberCopy
from trunkline.core.repair import SegmentRepair
from trunkline.core.siblings import ChangeProjection, CheckNow, EndOpenSegment, Refresh
from trunkline.core.storage import NodeImage, StorageNode

# ----------------------------------------------------------------------------------------------------------- repair


def test_e2_every_position_gets_the_value_of_the_head_or_junk_on_all_members() -> None:
    cluster = Cluster(ENDED, registered("a b c"), {A: singles(1, 3), B: singles(1), C: singles(1)})
    after = cluster.work()
    assert after.segments[0].repaired
    expected = (data(1, seq=1), junk(2), data(3, seq=3))
    assert [cluster.frames(member) for member in (A, B, C)] == [expected] * 3


def test_e2_what_lies_at_or_past_the_end_is_cut_and_not_carried_on() -> None:
    cluster = Cluster(ENDED, registered("a b c"), {A: singles(1, 2, 3, 4), B: FULL, C: FULL})
    assert cluster.work().segments[0].repaired
    assert cluster.frames(A) == FULL


def test_e1_a_dead_member_is_removed_first_and_the_rest_is_repaired() -> None:
    dead_b = Cluster(ENDED, registered("a b c", dead="b"), {A: FULL, B: FULL, C: singles(1, 2)})
    after = dead_b.work()
    ended = after.segments[0]
    assert (ended.repaired, [member.node for member in ended.members()]) == (True, ["a", "c"])
    assert MemberRemoved(LOG, 0, B.stream) in dead_b.company.events


def test_e1_the_last_member_of_a_group_is_waited_for() -> None:
    alone = apply(apply(ENDED, RemoveMember(0, B.stream)), RemoveMember(0, C.stream))
    cluster = Cluster(alone, registered("a b c", dead="a"), {A: FULL})
    assert not cluster.work().segments[0].repaired


def test_e2_a_repair_compares_digests_span_by_span_and_fails_on_any_refusal() -> None:
    repair = SegmentRepair(ENDED, ENDED.segments[0], 4096)
    assert messages(repair.start()) == [Digest(target(ENDED, m.stream), 1, 4) for m in (A, B, C)]
    for member in (A, B):
        assert repair.on_message(Digested(member.stream, 1, 4, FULL)) == []
    assert not repair.finished
    repair.on_message(Digested(C.stream, 1, 4, FULL))
    assert repair.finished
    refused = SegmentRepair(ENDED, ENDED.segments[0], 4096)
    refused.start()
    refused.on_message(Rejected(B.stream, 1, Reason.CORRUPT))
    assert refused.failed


# ---------------------------------------------------------------------------------------------------------- rebuild


def test_j1_j2_a_narrow_segment_is_copied_to_a_new_member_under_a_new_stream_id() -> None:
    cluster = Cluster(NARROW, registered("a b c"), {A: FULL, B: FULL})
    rebuilt = cluster.work().segments[0].members()[-1]
    assert (rebuilt.node, rebuilt.joining) == ("c", False)
    assert rebuilt.stream != C.stream
    assert cluster.frames(rebuilt) == FULL
    assert MemberRebuilt(LOG, 0, rebuilt.stream) in cluster.company.events


def test_j2_only_what_lies_above_the_trim_is_copied() -> None:
    cluster = Cluster(apply(NARROW, RaiseTrim(1)), registered("a b c"), {A: FULL, B: FULL})
    assert cluster.frames(cluster.work().segments[0].members()[-1]) == singles(2, 3)


def test_j2_a_joiner_whose_digest_differs_does_not_count() -> None:
    joining, joiner = joining_member()
    copy = MemberCopy(joining, joining.segments[0], A, joiner, 4096)
    copy.prepared, copy.cursor = True, copy.end  # everything is copied
    copy.start()
    copy.on_message(Digested(A.stream, 1, 4, FULL))
    copy.on_message(Digested(joiner.stream, 1, 4, singles(1, 2)))
    assert (copy.finished, copy.failed) == (False, True)


def test_j1_a_segment_that_is_not_repaired_is_not_copied() -> None:
    with pytest.raises(AssertionError):
        MemberCopy(ENDED, ENDED.segments[0], A, B, 4096)


def test_c2_a_joiner_that_did_not_answer_is_tried_again() -> None:
    cluster = Cluster(NARROW, registered("a b c"), {A: FULL, B: FULL})
    cluster.company.down.add("c")
    assert cluster.work(3).segments[0].members()[-1].joining
    cluster.company.down.clear()
    assert not cluster.work().segments[0].members()[-1].joining


def test_a_source_that_lost_data_is_left_for_another() -> None:
    cluster = Cluster(NARROW, registered("a b c"), {A: FULL, B: FULL})
    lossy = cluster.storage["a"].streams[LOG, A.stream]
    lossy.data_loss = True
    after = cluster.work(20).segments[0].members()
    assert A not in after
    assert all(cluster.frames(member) == FULL for member in after)
    assert not any(member.joining for member in after)


# ---------------------------------------------------------------------------------------------------------- tidying up


def test_a_trim_reaches_the_nodes_and_a_trimmed_segment_is_forgotten_and_dropped() -> None:
    cluster = Cluster(apply(REPAIRED, RaiseTrim(3)), registered("a b c"), {A: FULL, B: FULL, C: FULL})
    after = cluster.work()
    assert [segment.index for segment in after.segments] == [1]
    assert all((LOG, member.stream) in cluster.storage[member.node].tombstones for member in (A, B, C))


def test_c3_a_stream_is_dropped_only_after_its_id_has_left_the_projection() -> None:
    view = apply(REPAIRED, RaiseTrim(3))
    cluster = Cluster(view, registered("a b c"), {A: FULL, B: FULL, C: FULL})
    cluster.company.down.add("meta")
    cluster.company.deliver(ME, seen(view, cluster.nodes))  # it wants to forget the segment, and its message is lost
    assert not any(node.tombstones for node in cluster.storage.values())


def test_c3_the_stream_of_a_removed_member_is_dropped_when_its_node_is_back() -> None:
    cluster = Cluster(REPAIRED, registered("a b c d", dead="c"), {A: FULL, B: FULL, C: FULL})
    cluster.work()
    assert not cluster.storage["c"].tombstones
    cluster.company.down.clear()
    cluster.register.nodes["c"] = replace(cluster.register.nodes["c"], live=True)
    cluster.work()
    assert (LOG, C.stream) in cluster.storage["c"].tombstones


# ----------------------------------------------------------------------------------------------- patience and rest


def test_c9_an_absent_node_has_some_time_to_come_back() -> None:
    cluster = Cluster(REPAIRED, registered("a b c d", dead="c"), {A: FULL, B: FULL, C: FULL}, absent_ms=5)
    assert C in cluster.work(12, but="absent").segments[0].members()
    assert C not in cluster.work(12).segments[0].members()


def patient(nodes: tuple[NodeInfo, ...]) -> tuple[Coordinator, Effects]:
    """A coordinator that checks a finished segment for the first time."""
    role = Coordinator(DutiesConfig(LOG))
    role.done.tidied |= {"a", "b", "c", "d"}
    role.done.finalized |= {m.stream for s in CLOSED.segments for m in s.members()}
    role.on_start()
    role.on_timer("tick")
    return role, role.on_message(ME, seen(CLOSED, nodes))


CLOSED = apply(REPAIRED, EndSegment(1, 4, REPAIRED.last.groups, None))
WITHOUT_C = registered("a b c d", dead="c")


def test_c9_a_node_is_awaited_from_the_first_check_that_shows_it_absent() -> None:
    role, effects = patient(WITHOUT_C)
    assert (messages(effects), timers(effects)) == ([], ["absent c", "tick"])
    for _ in range(3):  # checks without passing time
        role.on_message(ME, CheckNow())
        assert messages(role.on_message(ME, seen(CLOSED, WITHOUT_C))) == []
    role.on_timer("absent c")
    [question] = messages(role.on_message(ME, seen(CLOSED, WITHOUT_C)))[:1]
    assert isinstance(question, Finalize)  # of a witness, for the removal


def test_c9_a_node_that_is_back_is_not_awaited_and_its_next_absence_has_its_own_time() -> None:
    role, _ = patient(WITHOUT_C)
    back = registered("a b c d")
    effects = role.on_message(ME, seen(CLOSED, (*back[:2], replace(back[2], start=2), back[3])))
    assert CancelTimer("absent c") in effects
    assert [m for m in messages(effects) if isinstance(m, Finalize)]  # it is asked again: it restarted
    role.on_message(storage("c"), Finalized(C.stream, nonce=role.question))
    assert "absent c" in timers(role.on_message(ME, seen(CLOSED, WITHOUT_C)))


def test_c9_a_node_that_comes_back_empty_is_not_awaited() -> None:
    role, _ = patient(WITHOUT_C)
    back = registered("a b c d")
    role.on_message(ME, seen(CLOSED, (*back[:2], replace(back[2], start=2, incarnation=2), back[3])))
    assert isinstance(role.duty, RemoveServingMember)


def test_c7_a_narrow_segment_is_made_wider_when_it_has_been_so_for_some_time() -> None:
    narrow = chain_log(CHAIN3, "a b", sequencer="a")
    role = Coordinator(DutiesConfig(LOG))
    role.done.tidied |= {"a", "b", "c"}
    effects = role.on_message(ME, seen(narrow, registered("a b c")))
    assert (messages(effects), timers(effects)) == ([], ["widen", "tick"])
    role.on_timer("widen")
    assert messages(role.on_message(ME, seen(narrow, registered("a b c")))) == [EndOpenSegment(LOG, 0, ())]


def rest_of(effects: Effects) -> int:
    return next(e.after_ms for e in reversed(effects) if isinstance(e, SetTimer) and e.key == "tick")


def test_without_duties_it_waits_until_the_next_check() -> None:
    role, effects = patient(registered("a b c"))
    assert rest_of(effects) == role.config.rest_ms
    assert messages(role.on_message(ME, CheckNow())) == [Refresh(LOG)]
    assert role.on_message(ME, CheckNow()) == []  # a check is in progress: its answer may be older than this
    assert messages(role.on_message(ME, seen(CLOSED, registered("a b c")))) == [Refresh(LOG)]
    assert messages(role.on_message(ME, seen(CLOSED, registered("a b c")))) == []


# ----------------------------------------------------------------------------------------------------------- draining

# Replicas wanted: one. The segment was copied from a, which is being drained, to b; now b is unreachable.
DRAINED = replace(REPAIRED, settings=Settings(Policy.CHAIN, replicas=1))
AB = apply(DRAINED, RemoveMember(0, C.stream))


def test_c5_a_draining_node_keeps_its_copy_while_there_is_no_other_witness() -> None:
    nodes = (NodeInfo("a", 1, 1, NodeState.DRAINING), *registered("b c", dead="b"))
    cluster = Cluster(AB, nodes, {A: FULL, B: FULL}, absent_ms=1)
    assert A in cluster.work(but="absent").segments[0].members()
    cluster.company.down.clear()
    cluster.register.nodes["b"] = replace(cluster.register.nodes["b"], live=True)
    assert [member.node for member in cluster.work(but="absent").segments[0].members()] == ["b"]


# --------------------------------------------------------------------------------------------------------- by hand


def test_c1_it_decides_from_what_it_has_just_read() -> None:
    role = Coordinator(DutiesConfig(LOG))
    role.on_start()
    role.on_timer("tick")
    [ending] = messages(role.on_message(ME, seen(FIRST, registered("a b c", dead="b"))))
    assert ending == EndOpenSegment(LOG, 0, ("b",))
    finalizing = messages(role.on_message(ME, seen(ENDED, registered("a b c"))))
    assert finalizing == [Finalize(descriptor_of(ENDED, ENDED.segments[0], m), 4) for m in (A, B, C)]


def test_c2_a_duty_towards_several_members_is_over_when_all_have_answered() -> None:
    role = Coordinator(DutiesConfig(LOG))
    role.on_message(ME, seen(ENDED, registered("a b c")))
    assert role.on_message(storage("a"), Finalized(A.stream)) == []
    assert role.on_message(storage("b"), Finalized(B.stream)) == []
    role.on_timer("tick")  # c did not answer in time
    assert role.done.finalized == {A.stream, B.stream}  # the answers of the others are kept
    role.on_message(ME, seen(ENDED, registered("a b c")))
    role.on_timer("silent c")
    role.on_timer("tick")
    again = messages(role.on_message(ME, seen(ENDED, registered("a b c"))))
    assert again == [Finalize(descriptor_of(ENDED, ENDED.segments[0], C), 4)]


def test_c10_a_node_that_does_not_answer_is_passed_over_longer_each_time_until_it_answers() -> None:
    role = Coordinator(DutiesConfig(LOG))
    role.done.tidied |= {"a", "b", "c"}
    nodes = registered("a b c")
    role.on_message(ME, seen(ENDED, nodes))
    for member in (A, B):
        role.on_message(storage(member.node), Finalized(member.stream))
    waits: list[int] = []
    for _ in range(6):
        effects = role.on_timer("tick")
        waits += [e.after_ms for e in effects if isinstance(e, SetTimer) and e.key == "silent c"]
        assert messages(role.on_message(ME, seen(ENDED, nodes))) == []  # nothing else is due: it rests
        role.on_timer("silent c")
        assert len(messages(role.on_message(ME, seen(ENDED, nodes)))) == 1  # it is asked once more
    assert waits == [10_000, 20_000, 40_000, 80_000, 80_000, 80_000]
    role.on_timer("tick")
    role.on_message(ME, seen(ENDED, nodes))
    effects = role.on_message(storage("c"), Finalized(C.stream))  # late, but it answers
    assert (messages(effects), timers(effects)) == ([Refresh(LOG)], [])
    assert role.done.silent == set()
    assert isinstance(messages(role.on_message(ME, seen(ENDED, nodes)))[0], Digest)


def test_c10_a_duty_of_another_segment_goes_on_beside_a_silent_node() -> None:
    """Segment 0 is on a b c, segment 1 on a b: the silence of c concerns the first alone."""
    narrower = Opening((tuple(Seat(node, 1) for node in "ab"),), Owner("a", 1))
    second = apply(FIRST, EndSegment(0, 4, FIRST.last.groups, narrower))
    view = apply(second, EndSegment(1, 6, second.last.groups, NEXT))
    cluster = Cluster(view, registered("a b c"), {A: FULL, B: FULL, C: FULL})
    cluster.company.down.add("c")
    after = cluster.work(but="silent")
    assert [segment.repaired for segment in after.segments[:2]] == [False, True]
    cluster.company.down.clear()
    assert cluster.work().segments[0].repaired


def test_c10_a_repair_that_fails_comes_after_all_other_duties() -> None:
    role, nodes = Coordinator(DutiesConfig(LOG)), registered("a b c")
    view = apply(apply(ENDED, EndSegment(1, 6, ENDED.last.groups, NEXT)), MarkRepaired(1))
    role.done.tidied |= {"a", "b"}
    role.done.finalized |= set(view.streams())
    role.on_message(ME, seen(view, nodes))
    effects = role.on_message(storage("a"), Rejected(A.stream, 1, Reason.NO_SPACE))
    assert messages(effects) == [Refresh(LOG)]
    assert messages(role.on_message(ME, seen(view, nodes))) == [Inventory(LOG)]  # what else there is to do
    effects = role.on_message(storage("c"), Inventoried(LOG, ()))
    assert rest_of(effects) == role.config.tick_ms
    role.on_timer("tick")
    assert isinstance(messages(role.on_message(ME, seen(view, nodes)))[0], Digest)


def test_c8_each_answer_extends_the_time_of_a_procedure_and_only_silence_restarts_it() -> None:
    role, nodes = Coordinator(DutiesConfig(LOG)), registered("a b c")
    role.done.tidied |= {"a", "b", "c"}
    role.done.finalized |= set(ENDED.streams())
    role.on_message(ME, seen(ENDED, nodes))
    procedure = role.procedure
    effects = role.on_message(storage("a"), Digested(A.stream, 1, 4, FULL))
    assert effects == [SetTimer("tick", role.config.duty_ms)]
    assert role.on_message(ME, CheckNow()) == []
    assert role.procedure is procedure
    effects = role.on_timer("tick")  # b and c have not answered for so long
    assert (messages(effects), role.procedure) == ([Refresh(LOG)], None)
    assert role.done.silent == {"b", "c"}


def test_c11_a_joiner_without_space_gives_its_place_to_another_node() -> None:
    cluster = Cluster(NARROW, registered("a b c d"), {A: FULL, B: FULL})
    cluster.company.roles[storage("c")] = FullNode(cluster.storage["c"])
    members = cluster.work(but="full").segments[0].members()
    assert [(m.node, m.joining) for m in members] == [("a", False), ("b", False), ("d", False)]


def test_c11_without_another_node_a_joiner_waits_for_space() -> None:
    cluster = Cluster(NARROW, registered("a b c"), {A: FULL, B: FULL})
    cluster.company.roles[storage("c")] = FullNode(cluster.storage["c"])
    joiner = cluster.work(but="full").segments[0].members()[-1]
    assert (joiner.node, joiner.joining) == ("c", True)
    epoch = cluster.work(but="full").epoch
    assert cluster.work(20, but="full").epoch == epoch  # it does not go round in circles
    cluster.company.roles[storage("c")] = cluster.storage["c"]
    assert not cluster.work().segments[0].members()[-1].joining


class FullNode(StorageNode):
    """Takes no copies."""

    def __init__(self, node: StorageNode) -> None:
        super().__init__(node.cluster, node.node, node.incarnation, NodeImage())
        self.streams = node.streams

    def on_message(self, source: Address, message: Message) -> Effects:
        if isinstance(message, Write) and message.repair:
            return [Send(source, Rejected(message.target.stream, message.frame.first, Reason.NO_SPACE))]
        return super().on_message(source, message)


def test_c4_a_healthy_log_gets_no_message_once_its_nodes_are_tidy() -> None:
    role = Coordinator(DutiesConfig(LOG))
    role.done.tidied |= {"a", "b", "c"}
    assert messages(role.on_message(ME, seen(FIRST, registered("a b c")))) == []
    assert messages(role.on_message(ME, seen(None))) == []


def test_c1_a_change_is_tried_against_the_epoch_that_was_read() -> None:
    role = Coordinator(DutiesConfig(LOG))
    following = Opening((tuple(Seat(node, 1) for node in "ac"),), Owner("a", 1))
    view = apply(FIRST, EndSegment(0, 4, FIRST.last.groups, following))
    nodes = registered("a b c", dead="b")
    role.on_message(ME, seen(view, nodes))
    for member in (A, C):
        role.on_message(storage(member.node), Finalized(member.stream))
    role.on_message(ME, seen(view, nodes))
    [change] = messages(role.on_message(storage("a"), Finalized(A.stream, nonce=role.question)))
    assert change == ChangeProjection(2, apply(view, RemoveMember(0, B.stream)))


def test_a_stream_that_proves_damaged_when_it_is_finalized_is_removed() -> None:
    role = Coordinator(DutiesConfig(LOG))
    nodes = registered("a b c")
    role.on_message(ME, seen(ENDED, nodes))
    for member in (A, B, C):
        role.on_message(storage(member.node), Finalized(member.stream, intact=member is not B))
    asked = role.on_message(ME, seen(ENDED, nodes))
    assert sent(asked) == [(f"{m.node}.storage", finalize(ENDED, m)) for m in (A, C)]
    [change] = messages(role.on_message(storage("c"), Finalized(C.stream, nonce=role.question)))
    assert change == ChangeProjection(2, apply(ENDED, RemoveMember(0, B.stream)))


def test_c14_a_log_is_announced_as_blocked_until_a_decision_finds_that_it_is_not() -> None:
    role, nodes = Coordinator(DutiesConfig(LOG)), registered("a b c")
    dead = (nodes[0], replace(nodes[1], live=False), nodes[2])
    assert announced(role.on_message(ME, seen(FIRST, dead))) == []  # it ends the segment ...
    assert announced(role.on_message(ME, seen(FIRST, dead))) == [LogBlocked(LOG, 0)]  # ... which is not possible
    assert announced(role.on_timer("tick")) == []
    assert announced(role.on_message(ME, seen(FIRST, nodes))) == [LogUnblocked(LOG)]
