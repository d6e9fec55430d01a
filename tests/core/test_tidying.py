"""The coordinator asks nodes for their streams, lets them drop those that have left the log (C3), and ends (C13)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from core.driver import DiskedNode, announced, messages, registered, seen, sent, storage, timers
from core.transcripts import D, S, T
from trunkline.check.scenarios.cluster import CHAIN2, LOG, chain_log
from trunkline.core.coordinator import Coordinator, DutiesConfig
from trunkline.core.effects import Address
from trunkline.core.events import DutiesOver
from trunkline.core.messages import (
    Drop,
    Dropped,
    Inventoried,
    Inventory,
    NodeState,
    Open,
    StreamTarget,
    Subscribe,
    descriptor_of,
    target_of,
)
from trunkline.core.projection import DeleteLog, EndSegment, Opening, Owner, Projection, Seat, apply
from trunkline.core.siblings import CheckNow

ME = Address("coordinator", "coordinator")
NODES = registered("a b c")
FIRST = chain_log(CHAIN2, "a b", sequencer="a")
WITHOUT_B = apply(
    FIRST, EndSegment(0, 4, (FIRST.last.groups[0][:1],), Opening(((Seat("a", 1), Seat("c", 1)),), Owner("a", 1)))
)
DELETED = apply(apply(FIRST, EndSegment(0, 4, FIRST.last.groups, None)), DeleteLog())
A, B = (target_of(FIRST, FIRST.last, member) for member in FIRST.last.members())


def tidying(view: Projection = FIRST, tidied: str = "a c") -> Coordinator:
    role = Coordinator(DutiesConfig(LOG))
    role.done.tidied |= set(tidied.split())
    role.done.finalized |= {"1.0.0", "1.0.1"}
    role.on_message(ME, seen(view, NODES))
    return role


def test_a_new_coordinator_asks_every_node_one_after_another() -> None:
    role = Coordinator(DutiesConfig(LOG))
    effects = role.on_message(ME, seen(FIRST, NODES))
    for node, following in (("a", "b.storage"), ("b", "c.storage")):
        assert sent(effects) == [(f"{node}.storage", Inventory(LOG))]
        effects = role.on_message(storage(node), Inventoried(LOG, (A,) if node == "a" else ()))
        assert sent(effects) == [(following, Inventory(LOG))]
    assert messages(role.on_message(storage("c"), Inventoried(LOG, ()))) == []


def test_c3_what_the_projection_does_not_name_any_more_is_dropped_and_then_the_node_is_tidy() -> None:
    role = tidying()
    other = replace(B, stream="1.0.9")
    drops = messages(role.on_message(storage("b"), Inventoried(LOG, (B, other))))
    assert drops == [Drop(other)]
    assert "b" not in role.done.tidied
    role.on_message(storage("b"), Dropped("1.0.9"))
    assert "b" in role.done.tidied


def test_c3_what_is_newer_than_the_view_is_left_alone() -> None:
    role = tidying()
    newer = StreamTarget("cluster", LOG, 1, 2, "2.0.0", 1)
    assert messages(role.on_message(storage("b"), Inventoried(LOG, (B, newer)))) == []
    assert "b" in role.done.tidied


@pytest.mark.parametrize(
    "stream", ["abc", "", "1", "1.0", "1.0.x", "1.0.0.0", "-1.0.0", "\u00b2.0.0", "9" * 5000 + ".0.0"]
)
def test_c3_a_stream_whose_id_no_projection_made_is_left_alone(stream: str) -> None:
    role = tidying()
    foreign = replace(B, stream=stream)
    assert messages(role.on_message(storage("b"), Inventoried(LOG, (B, foreign)))) == []
    assert "b" in role.done.tidied


def test_late_answers_of_another_node_do_not_make_a_node_tidy() -> None:
    role = tidying(tidied="c")
    assert role.on_message(storage("b"), Inventoried(LOG, ())) == []  # a is being asked
    role.on_message(storage("a"), Inventoried(LOG, (replace(A, stream="1.0.9"),)))
    assert role.on_message(storage("a"), Dropped("1.0.8")) == []
    assert role.done.tidied == {"c"}


def test_a_node_is_asked_again_when_one_of_its_streams_left_or_it_restarted() -> None:
    role = tidying(tidied="a b c")
    role.on_message(ME, seen(FIRST, (*NODES[:2], replace(NODES[2], start=2))))
    assert role.done.tidied == {"a", "b"}
    role.on_message(ME, seen(WITHOUT_B, (*NODES[:2], replace(NODES[2], start=2))))
    assert role.done.tidied == {"a"}


def test_c3_a_node_is_asked_again_when_its_stream_came_and_left_between_two_checks() -> None:
    role = tidying(tidied="a b c")
    closed = apply(WITHOUT_B, EndSegment(1, 4, WITHOUT_B.last.groups, None))
    role.on_message(ME, seen(apply(closed, DeleteLog()), NODES))
    assert role.done.tidied == set()


def test_nothing_of_a_deleted_log_is_kept() -> None:
    role = tidying(DELETED, tidied="a c")
    assert messages(role.on_message(storage("b"), Inventoried(LOG, (B,)))) == [Drop(B)]


def test_c13_the_duties_of_a_deleted_log_are_over_when_every_node_is_tidy() -> None:
    role = tidying(DELETED, tidied="a c")
    role.on_message(storage("b"), Inventoried(LOG, (B,)))
    effects = role.on_message(storage("b"), Dropped(B.stream))
    assert (announced(effects), timers(effects)) == ([DutiesOver(LOG)], [])
    assert role.on_message(ME, CheckNow()) == role.on_timer("tick") == []


@pytest.mark.parametrize(
    ("state", "live", "over"),
    [
        (NodeState.RW, False, False),
        (NodeState.DRAINING, False, False),
        (NodeState.GONE, False, True),
        (NodeState.CLIENT, True, True),
    ],
)
def test_c13_an_absent_node_that_may_come_back_keeps_the_duties(state: NodeState, live: bool, over: bool) -> None:
    role = Coordinator(DutiesConfig(LOG))
    role.done.tidied |= {"a", "c"}
    nodes = (NODES[0], replace(NODES[1], state=state, live=live), NODES[2])
    effects = role.on_message(ME, seen(DELETED, nodes))
    assert announced(effects) == ([DutiesOver(LOG)] if over else [])
    assert timers(effects) == ([] if over else ["tick"])


def test_a_node_lists_its_streams_of_the_requested_log() -> None:
    node = DiskedNode()
    other = chain_log(CHAIN2, "a b", sequencer="a")
    node.ask(Open(D))
    node.ask(Open(descriptor_of(replace(other, log="another"), other.last, other.last.members()[0])))
    assert node.ask(Inventory(LOG)) == [Inventoried(LOG, (T,))]
    assert node.ask(Inventory("nothing")) == [Inventoried("nothing", ())]


def test_no_subscriber_waits_for_a_dropped_stream() -> None:
    node = DiskedNode()
    for request in (Open(D), Subscribe(T, 1, 9), Drop(T)):
        node.ask(request)
    assert node.role.waiting == {}
    assert S not in [key[1] for key in node.role.streams]
