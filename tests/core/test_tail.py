"""Finding the tail, led by hand."""

from __future__ import annotations

import pytest

from core.driver import APPLICATION, META, messages, results, seen, sent, target, timers
from trunkline.check.scenarios.cluster import BROADCAST3, CHAIN2, LOG, broadcast_log, chain_log
from trunkline.core.calls import TailRequested
from trunkline.core.effects import Effects, Message
from trunkline.core.events import TailIs
from trunkline.core.messages import (
    FindTail,
    Get,
    Got,
    Reason,
    Rejected,
    TailFound,
)
from trunkline.core.projection import EndSegment, Opening, Owner, Projection, Seat, apply
from trunkline.core.siblings import EndOpenSegment
from trunkline.core.tail import TailConfig, TailFinder

CHAIN = chain_log(CHAIN2, "a b", "b c", sequencer="a")
LASTS = ("1.0.1", "1.1.1")  # on b and on c
OWNED = broadcast_log(BROADCAST3, "a b c", owner="w")
ASKED, OTHER, THIRD = (member.stream for member in OWNED.last.members())
NEXT = Opening(((Seat("d", 1),),), Owner("d", 1))


class Client:
    """A tail finder that was called as operation 5."""

    def __init__(self, view: Projection | None) -> None:
        self.role = TailFinder(TailConfig(META, LOG))
        self.begun = self.role.on_message(APPLICATION, TailRequested(5, LOG))
        self.asked = self.got(view)

    def deliver(self, message: Message) -> Effects:
        return self.role.on_message(APPLICATION, message)

    def got(self, view: Projection | None, nonce: int = 5) -> Effects:
        return self.deliver(Got(LOG, nonce, view, ()))


def test_t1_the_projection_is_read_after_the_call_began() -> None:
    finder = TailFinder(TailConfig(META, LOG))
    finder.on_message(APPLICATION, TailRequested(4, LOG))
    late = Got(LOG, 4, None, ())
    assert sent(finder.on_message(APPLICATION, TailRequested(5, LOG))) == [("meta.register", Get(LOG, 5))]
    assert finder.on_message(META, late) == []  # an answer to the call before


def test_t1_that_the_known_projection_is_unchanged_is_as_good_as_reading_it() -> None:
    finder = TailFinder(TailConfig(META, LOG), CHAIN)
    assert messages(finder.on_message(APPLICATION, TailRequested(5, LOG))) == [Get(LOG, 5, known=1)]
    assert finder.on_message(META, Got(LOG, 5, None, (), unchanged=2)) == []  # of another epoch
    asked = messages(finder.on_message(META, Got(LOG, 5, None, (), unchanged=1)))
    assert asked == [FindTail(target(CHAIN, stream), 5) for stream in LASTS]


def test_t2_the_largest_answer_of_the_last_members_of_all_groups() -> None:
    client = Client(CHAIN)
    assert sent(client.asked) == [
        ("b.storage", FindTail(target(CHAIN, LASTS[0]), 5)),
        ("c.storage", FindTail(target(CHAIN, LASTS[1]), 5)),
    ]
    assert client.deliver(TailFound(LASTS[0], 5, 3, 0)) == []
    assert client.deliver(TailFound(LASTS[0], 5, 3, 0)) == []  # doubled
    assert client.deliver(TailFound("1.0.0", 5, 9, 0)) == []  # a head may be ahead of what is committed
    assert results(client.deliver(TailFound(LASTS[1], 5, 7, 0))) == [(5, TailIs(7))]


def test_t2_at_least_the_base() -> None:
    client = Client(apply(CHAIN, EndSegment(0, 4, CHAIN.last.groups, NEXT)))
    stream = client.role.view.last.members()[0].stream if client.role.view else ""
    assert results(client.deliver(Rejected(stream, 5, Reason.UNKNOWN))) == [(5, TailIs(4))]


@pytest.mark.parametrize(("written", "lac", "tail"), [(1, 0, 1), (4, 3, 4)], ids=["empty", "released"])
def test_t3_a_contiguous_end_that_is_released_is_the_tail(written: int, lac: int, tail: int) -> None:
    assert results(Client(OWNED).deliver(TailFound(ASKED, 5, written, lac))) == [(5, TailIs(tail))]


def test_t3_entries_that_are_not_released_are_waited_for() -> None:
    client = Client(OWNED)
    effects = client.deliver(TailFound(ASKED, 5, 4, 2))
    assert (results(effects), timers(effects)) == ([], ["wait"])
    assert messages(client.role.on_timer("wait")) == [Get(LOG, 5, known=1)]
    assert messages(client.got(OWNED)) == [FindTail(target(OWNED, OTHER), 5)]  # T4: it may have the LAC
    assert results(client.deliver(TailFound(OTHER, 5, 4, 3))) == [(5, TailIs(4))]


@pytest.mark.parametrize(("end", "tail"), [(3, 3), (9, 4)])
def test_t3_if_the_segment_ends_first_the_smaller_of_both(end: int, tail: int) -> None:
    client = Client(OWNED)
    client.deliver(TailFound(ASKED, 5, 4, 2))
    client.role.on_timer("wait")
    assert results(client.got(apply(OWNED, EndSegment(0, end, OWNED.last.groups, NEXT)))) == [(5, TailIs(tail))]


def test_a_sealed_log_ends_at_its_end_and_no_log_at_its_beginning() -> None:
    sealed = apply(CHAIN, EndSegment(0, 4, CHAIN.last.groups, None))
    assert results(Client(sealed).asked) == [(5, TailIs(4))]
    assert results(Client(None).asked) == [(5, TailIs(1))]


@pytest.mark.parametrize("how", ["silent", "corrupt"])
def test_a_last_member_that_cannot_answer_ends_the_segment(how: str) -> None:
    client = Client(CHAIN)
    corrupt = Rejected(LASTS[0], 5, Reason.CORRUPT)
    effects = client.role.on_timer("wait") if how == "silent" else client.deliver(corrupt)
    assert messages(effects) == [EndOpenSegment(LOG, 0)]
    moved = apply(CHAIN, EndSegment(0, 4, CHAIN.last.groups, NEXT))
    assert messages(client.deliver(seen(moved))) == [Get(LOG, 5, known=1)]


def test_r8_a_segment_that_cannot_be_ended_is_checked_again_later() -> None:
    client = Client(CHAIN)
    client.role.on_timer("wait")
    effects = client.deliver(seen(CHAIN))
    assert (messages(effects), timers(effects)) == ([], ["wait"])


def test_t4_a_silent_member_is_left_for_another_and_then_the_segment_is_ended() -> None:
    client = Client(OWNED)
    asked = messages(client.asked)
    while client.role.phase != "ending":
        client.role.on_timer("wait")
        if client.role.phase == "waiting":
            client.role.on_timer("wait")
            asked += messages(client.got(OWNED))
    assert asked == [FindTail(target(OWNED, stream), 5) for stream in (ASKED, OTHER, THIRD, ASKED)]
