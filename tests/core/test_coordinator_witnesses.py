"""The coordinator: the witness for the removal of a member, and the effect of damage."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from core.coordinating import FIRST, FULL, ME, REPAIRED, A, B, C, Cluster, finalize, joining_member
from core.driver import (
    announced,
    messages,
    registered,
    seen,
    sent,
    storage,
)
from trunkline.check.scenarios.cluster import LOG, chain_log
from trunkline.core.coordinator import Coordinator, DutiesConfig
from trunkline.core.effects import Effects
from trunkline.core.events import MemberRemoved
from trunkline.core.messages import (
    Digested,
    Finalize,
    Finalized,
    Register,
    descriptor_of,
)
from trunkline.core.projection import (
    EndSegment,
    Member,
    Opening,
    Owner,
    Policy,
    Projection,
    RemoveMember,
    Seat,
    Settings,
    apply,
)
from trunkline.core.rebuild import MemberCopy
from trunkline.core.siblings import ChangeProjection, Refresh
from trunkline.core.storage import FramesDamaged

# Segment 1 lives on d alone, so that the death of a concerns segment 0 only.
ELSEWHERE = Opening(((Seat("d", 1),),), Owner("d", 1))
ABC = apply(
    chain_log(Settings(Policy.CHAIN, replicas=1), "a b c", sequencer="a"),
    EndSegment(0, 4, FIRST.last.groups, ELSEWHERE),
)
AC = apply(ABC, RemoveMember(0, B.stream))
WITHOUT_A = registered("a b c d", dead="a")


class Removing:
    """A coordinator that found a dead; the members that stay have been finalized, and are asked once more."""

    def __init__(self, view: Projection) -> None:
        self.view = view
        self.role = Coordinator(DutiesConfig(LOG))
        self.role.done.tidied |= {"b", "c", "d"}
        self.check()
        for member in view.segments[0].members():
            if member != A:
                self.answer(member)
        self.asked = self.check()

    def check(self) -> Effects:
        return self.role.on_message(ME, seen(self.view, WITHOUT_A))

    def answer(self, member: Member, *, intact: bool = True) -> Effects:
        return self.role.on_message(storage(member.node), Finalized(member.stream, intact, self.role.question))


def test_c5_a_member_is_removed_when_a_witness_is_intact() -> None:
    removing = Removing(ABC)
    assert sent(removing.asked) == [(f"{m.node}.storage", finalize(removing.view, m)) for m in (B, C)]
    assert announced(removing.asked) == []
    effects = removing.answer(C)
    assert messages(effects) == [ChangeProjection(2, apply(removing.view, RemoveMember(0, A.stream)))]
    assert announced(effects) == [MemberRemoved(LOG, 0, A.stream)]


def test_c5_a_witness_that_lost_data_keeps_the_member() -> None:
    removing = Removing(AC)
    assert messages(removing.asked) == [finalize(removing.view, C)]
    effects = removing.answer(C, intact=False)
    assert (messages(effects), announced(effects)) == ([Refresh(LOG)], [])
    effects = removing.check()  # no witness is left
    assert (messages(effects), announced(effects)) == ([], [])


def test_c5_after_a_witness_that_lost_data_another_one_is_asked() -> None:
    removing = Removing(ABC)
    assert messages(removing.answer(B, intact=False)) == [Refresh(LOG)]
    assert removing.answer(C) == []  # from before this check, so not for this removal
    assert messages(removing.check()) == [finalize(removing.view, C)]
    [change] = messages(removing.answer(C))
    assert change == ChangeProjection(2, apply(removing.view, RemoveMember(0, A.stream)))


def test_c5_no_member_is_removed_while_the_witnesses_are_silent() -> None:
    removing = Removing(ABC)
    assert messages(removing.role.on_timer("tick")) == [Refresh(LOG)]
    assert messages(removing.check()) == []
    removing.role.on_timer("silent c")
    assert messages(removing.check()) == [finalize(removing.view, C)]


def test_c5_an_answer_to_an_earlier_question_does_not_count() -> None:
    removing = Removing(ABC)
    assert removing.role.on_message(storage("c"), Finalized(C.stream, nonce=0)) == []
    assert announced(removing.answer(C)) == [MemberRemoved(LOG, 0, A.stream)]


# ---------------------------------------------------------------------------------------------------------- damage


@pytest.mark.parametrize("change", [{"damaged": 1}, {"start": 2}], ids=["damage", "restart"])
def test_c6_a_node_that_restarted_or_found_damage_is_asked_again(change: dict[str, int]) -> None:
    role = Coordinator(DutiesConfig(LOG))
    role.done.tidied |= {"a", "b", "c"}
    nodes = registered("a b c")
    view = apply(REPAIRED, EndSegment(1, 4, REPAIRED.last.groups, None))
    role.done.finalized |= {member.stream for member in view.last.members()}
    role.on_message(ME, seen(view, nodes))
    for member in (A, B, C):
        role.on_message(storage(member.node), Finalized(member.stream))
    assert messages(role.on_message(ME, seen(view, nodes))) == []
    doubted = (nodes[0], replace(nodes[1], **change), nodes[2])
    asked = messages(role.on_message(ME, seen(view, doubted)))
    assert asked == [finalize(view, B), Finalize(descriptor_of(view, view.last, view.last.members()[1]), 4, 1)]
    assert role.on_message(storage("b"), Finalized(B.stream, nonce=0)) == []  # from before the damage was found
    assert role.on_message(storage("b"), Finalized(B.stream, nonce=1)) == []
    assert messages(role.on_message(storage("b"), Finalized("2.0.1", nonce=1))) == [Refresh(LOG)]


def test_c6_damage_that_a_scrub_finds_in_a_repaired_segment_is_replaced_by_a_good_copy() -> None:
    cluster = Cluster(REPAIRED, registered("a b c"), {A: FULL, B: FULL, C: FULL})
    cluster.work()
    cluster.storage["b"].on_message(ME, FramesDamaged((LOG, B.stream), FULL[1:2]))
    damaged = replace(cluster.nodes[1], damaged=1)
    cluster.register.on_message(storage("b"), Register(damaged))
    after = cluster.work()
    members = after.segments[0].members()
    assert [member.node for member in members] == ["a", "c", "b"]
    assert [member.joining for member in members] == [False] * 3
    assert all(cluster.frames(member) == FULL for member in members)


def test_c5_the_answer_of_another_stream_does_not_count() -> None:
    removing = Removing(ABC)
    assert removing.answer(A) == []
    assert removing.role.on_message(storage("d"), Finalized("3.0.0")) == []


def test_c5_a_joiner_is_removed_without_a_witness() -> None:
    view, joiner = joining_member()
    role = Coordinator(DutiesConfig(LOG))
    role.done.finalized |= {A.stream, B.stream}
    role.done.damaged.add(joiner.stream)
    effects = role.on_message(ME, seen(view, registered("a b c")))
    assert messages(effects) == [ChangeProjection(view.epoch, apply(view, RemoveMember(0, joiner.stream)))]


def test_j2_a_late_digest_of_a_third_member_proves_nothing() -> None:
    joining, joiner = joining_member()
    copy = MemberCopy(joining, joining.segments[0], A, joiner, 4096)
    copy.prepared, copy.cursor = True, copy.end  # everything is copied
    copy.start()
    copy.on_message(Digested(B.stream, 1, 4, FULL))
    copy.on_message(Digested(A.stream, 1, 4, FULL))
    assert not copy.finished
    copy.on_message(Digested(joiner.stream, 1, 4, FULL))
    assert copy.finished
