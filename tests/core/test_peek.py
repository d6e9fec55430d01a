"""The peeker: the next position that would be granted."""

from __future__ import annotations

import pytest

from core.driver import APPLICATION, RECONFIGURER, messages, results, seen, sent, storage, timers
from trunkline.check.scenarios.cluster import BROADCAST2, CHAIN2, LOG, broadcast_log, chain_log
from trunkline.core.calls import PeekRequested
from trunkline.core.effects import Address, Effects, Message
from trunkline.core.events import PeekIs, RequestRefused
from trunkline.core.messages import (
    FindTail,
    NotGranted,
    Peek,
    Peeked,
    Reason,
    Rejected,
    TailFound,
)
from trunkline.core.peek import Peeker, PeekerConfig
from trunkline.core.projection import DeleteLog, EndSegment, Opening, Owner, Projection, Seat, apply
from trunkline.core.refusals import DELETED, NO_SUCH_LOG
from trunkline.core.siblings import EndOpenSegment, Refresh

CHAIN = chain_log(CHAIN2, "a b", sequencer="c")
BROADCAST = broadcast_log(BROADCAST2, "a b", owner="w")
NEXT = Opening(((Seat("a", 1), Seat("b", 1)),), Owner("b", 1))
SEQUENCER = Address("c", "sequencer")


class Asking:
    def __init__(self, view: Projection | None) -> None:
        self.role = Peeker(PeekerConfig(LOG))
        assert messages(self.role.on_message(APPLICATION, PeekRequested(7, LOG))) == [Refresh(LOG)]
        self.effects = self.view(view)

    def view(self, view: Projection | None) -> Effects:
        return self.role.on_message(RECONFIGURER, seen(view))

    def deliver(self, source: Address, message: Message) -> Effects:
        return self.role.on_message(source, message)


CLOSED = apply(CHAIN, EndSegment(0, 5, CHAIN.last.groups, None))


@pytest.mark.parametrize(
    ("view", "result"),
    [
        (CLOSED, PeekIs(5)),
        (apply(CLOSED, DeleteLog()), DELETED),
        (None, NO_SUCH_LOG),
    ],
    ids=["closed", "deleted", "none"],
)
def test_x1_no_node_is_asked_about_a_closed_log(view: Projection | None, result: PeekIs | RequestRefused) -> None:
    asking = Asking(view)
    assert messages(asking.effects) == []
    assert results(asking.effects) == [(7, result)]


def test_x2_the_owner_of_the_open_segment_answers() -> None:
    asking = Asking(CHAIN)
    assert sent(asking.effects) == [("c.sequencer", Peek(LOG, CHAIN.last))]
    assert timers(asking.effects) == ["wait"]
    assert results(asking.deliver(SEQUENCER, Peeked(LOG, 0, 9, 9, 0))) == [(7, PeekIs(9))]
    assert asking.deliver(SEQUENCER, Peeked(LOG, 0, 10, 10, 0)) == []  # a late answer


@pytest.mark.parametrize("answer", [None, NotGranted(LOG, 0, "", 0, Reason.NOT_OWNER)], ids=["silent", "restarted"])
def test_x2_the_segment_of_an_owner_that_does_not_serve_is_ended(answer: NotGranted | None) -> None:
    asking = Asking(CHAIN)
    effects = asking.role.on_timer("wait") if answer is None else asking.deliver(SEQUENCER, answer)
    assert messages(effects) == [EndOpenSegment(LOG, 0, ("c",))]
    following = apply(CHAIN, EndSegment(0, 5, CHAIN.last.groups, NEXT))
    assert sent(asking.view(following)) == [("b.sequencer", Peek(LOG, following.last))]


def test_x2_a_segment_that_cannot_be_ended_is_checked_again_later() -> None:
    asking = Asking(CHAIN)
    asking.role.on_timer("wait")
    effects = asking.view(CHAIN)
    assert (messages(effects), timers(effects)) == ([], ["wait"])
    assert messages(asking.role.on_timer("wait")) == [Refresh(LOG)]


def test_x3_a_member_of_a_broadcast_segment_answers_and_an_unreachable_one_is_left_for_another() -> None:
    asking = Asking(BROADCAST)
    [(to, asked)] = sent(asking.effects)
    assert to == "a.storage"
    assert isinstance(asked, FindTail)
    assert asked.operation == 7
    assert messages(asking.role.on_timer("wait")) == [Refresh(LOG)]
    assert [to for to, _ in sent(asking.view(BROADCAST))] == ["b.storage"]
    assert results(asking.deliver(storage("b"), TailFound("1.0.1", 7, 4, 2))) == [(7, PeekIs(4))]


def test_x3_a_broadcast_segment_without_a_member_that_answers_is_ended() -> None:
    asking = Asking(BROADCAST)
    asking.deliver(storage("a"), Rejected("1.0.0", 7, Reason.CORRUPT))
    asking.view(BROADCAST)
    assert messages(asking.deliver(storage("b"), Rejected("1.0.1", 7, Reason.CORRUPT))) == [EndOpenSegment(LOG, 0, ())]


def test_x3_a_stream_that_was_never_made_is_empty() -> None:
    asking = Asking(BROADCAST)
    assert results(asking.deliver(storage("a"), Rejected("1.0.0", 7, Reason.UNKNOWN))) == [(7, PeekIs(1))]
