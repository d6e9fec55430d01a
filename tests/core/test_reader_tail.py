"""The reader, led by hand: where a read ends that goes up to the tail."""

from __future__ import annotations

import pytest

from core.driver import data, messages, results, sent, timers
from core.reading import (
    ADMINISTRATOR,
    HEAD,
    LAST,
    NEXT,
    OPEN,
    OWNED,
    Client,
    frames,
    nothing,
    peeked,
    read,
)
from trunkline.check.scenarios.cluster import LOG
from trunkline.core.effects import Effects
from trunkline.core.entries import Frame, junk
from trunkline.core.events import SubscriptionEnded
from trunkline.core.messages import (
    FindTail,
    Get,
    Got,
    Peek,
    TailFound,
)
from trunkline.core.projection import (
    DeleteLog,
    EndSegment,
    Projection,
    apply,
)
from trunkline.core.reader import ReadThrough
from trunkline.core.refusals import DELETED
from trunkline.core.siblings import Fill, FillDone


def measured(client: Client, view: Projection, *, written: int, lac: int = 0) -> Effects:
    """What the reader does when it has asked the metadata and the members where the tail is."""
    effects = client.deliver(Got(LOG, 1, view, ()))
    for message in messages(effects):
        assert isinstance(message, FindTail)
        effects = client.deliver(TailFound(message.target.stream, 1, written, lac))
    return effects


def test_d6_a_read_to_the_tail_completes_at_the_measured_tail_of_a_chain() -> None:
    client = Client(OPEN, to_tail=True)
    client.deliver(frames(LAST, data(1, 2)))
    assert messages(client.deliver(nothing(LAST, 3, 3))) == [Peek(LOG, OPEN.last, 3)]
    assert sent(client.deliver(peeked(3))) == [("meta.register", Get(LOG, 1))]
    effects = measured(client, OPEN, written=3)
    assert results(effects) == [(1, SubscriptionEnded(3))]
    assert (messages(effects), timers(effects)) == ([], [])


def test_d6_a_read_to_the_tail_completes_at_the_measured_tail_of_a_broadcast_log() -> None:
    client = Client(OWNED, to_tail=True)
    assert messages(client.deliver(nothing(HEAD))) == [Get(LOG, 1)]
    effects = measured(client, OWNED, written=1)
    assert results(effects) == [(1, SubscriptionEnded(1))]
    assert messages(effects) == []


def test_d6_a_read_to_the_tail_completes_at_the_end_of_a_closed_log() -> None:
    closed = apply(OPEN, EndSegment(0, 2, OPEN.last.groups, None))
    client = Client(closed, to_tail=True)
    assert messages(client.deliver(frames(LAST, data(1)))) == [Get(LOG, 1)]
    assert results(measured(client, closed, written=0)) == [(1, SubscriptionEnded(2))]


@pytest.mark.parametrize("policy", ["chain", "broadcast"])
def test_d6_an_old_member_that_has_nothing_does_not_end_a_log_that_went_on(policy: str) -> None:
    old = OPEN if policy == "chain" else OWNED
    client = Client(old, to_tail=True)
    client.deliver(nothing(LAST if policy == "chain" else HEAD))
    if policy == "chain":
        client.deliver(peeked(1))  # by a sequencer that does not know it either
    now = apply(old, EndSegment(0, 1, old.last.groups, NEXT))
    effects = measured(client, now, written=3, lac=2)
    assert results(effects) == []
    assert sent(effects) == [("d.storage", read(now, now.last.members()[0].stream, 1))]
    found = frames(now.last.members()[0].stream, data(1), data(2), data(3))
    assert results(client.deliver(found)) == [(1, SubscriptionEnded(4))]


def test_d6_below_the_measured_tail_a_reader_waits_for_what_is_not_there_yet() -> None:
    client = Client(OPEN, to_tail=True)
    client.deliver(nothing(LAST))
    client.deliver(peeked(1))
    assert messages(measured(client, OPEN, written=3)) == [read(OPEN, LAST, 1)]
    client.deliver(nothing(LAST))
    assert (results(client.deliver(peeked(1))), client.role.phase) == ([], "idle")


def test_d6_a_read_of_a_log_that_was_deleted_in_the_meantime_is_refused() -> None:
    client = Client(OWNED, to_tail=True)
    client.deliver(nothing(HEAD))
    deleted = apply(apply(OWNED, EndSegment(0, 1, OWNED.last.groups, None)), DeleteLog())
    assert results(client.deliver(Got(LOG, 1, deleted, ()))) == [(1, DELETED)]


def test_d6_without_the_metadata_a_reader_does_not_say_where_the_log_ends() -> None:
    client = Client(OWNED, to_tail=True)
    client.deliver(nothing(HEAD))
    for _ in range(3):
        effects = client.wait()
        assert (messages(effects), results(effects)) == ([Get(LOG, 1)], [])


@pytest.mark.parametrize(("found", "reached"), [((), 0), ((data(1), data(2, 2)), 3)], ids=["nothing", "less"])
def test_b2_the_requesting_role_gets_a_tail_below_the_requested_position(
    found: tuple[Frame, ...], reached: int
) -> None:
    client = Client(OPEN, until=9, to_tail=True, requester=ADMINISTRATOR)
    if found:
        client.deliver(frames(LAST, *found))
    client.deliver(nothing(LAST, reached + 1, reached + 1))
    client.deliver(peeked(reached + 1))
    effects = measured(client, OPEN, written=reached + 1)
    assert sent(effects) == [("self.administrator", ReadThrough(reached, reached))]


def test_d4_a_hole_is_not_the_tail_and_is_filled_first() -> None:
    client = Client(OPEN, to_tail=True)
    client.deliver(nothing(LAST))
    assert results(client.deliver(peeked(2))) == []
    assert messages(client.wait()) == [Fill(OPEN, 0, 1, 2)]
    client.deliver(FillDone(0, 1, (junk(1),)))
    client.deliver(nothing(LAST, 2, 2))
    client.deliver(peeked(2))
    assert results(measured(client, OPEN, written=2)) == [(1, SubscriptionEnded(2))]


def test_n4_entries_that_are_not_released_are_not_beyond_the_tail() -> None:
    assert results(Client(OWNED, to_tail=True).deliver(nothing(HEAD, written=2))) == []
