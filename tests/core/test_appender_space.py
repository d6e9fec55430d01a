"""The appender where nodes have no space: settled first, and only then refused."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from core.appending import END, HEAD, MIDDLE, ONE, VIEW, Client, ask, ended, frame, grant
from core.driver import (
    messages,
    results,
    seen,
    sent,
    timers,
)
from trunkline.check.scenarios.cluster import LOG
from trunkline.core.entries import junk
from trunkline.core.events import Appended, AppendRefused
from trunkline.core.messages import (
    NotGranted,
    Reason,
    Rejected,
)
from trunkline.core.projection import (
    EndSegment,
    Opening,
    Owner,
    Seat,
    apply,
)
from trunkline.core.refusals import no_space
from trunkline.core.siblings import EndOpenSegment, Fill, FillDone, Refresh


def test_a9_a_full_member_ends_the_segment_only_if_there_are_others_to_go_to() -> None:
    client = Client()
    client.begin()
    effects = client.deliver(Rejected(HEAD, 1, Reason.NO_SPACE))
    assert messages(effects) == [EndOpenSegment(LOG, 0, ("a",), only_to_spares=True)]
    assert messages(client.deliver(seen(ended(1)))) == [ask(ended(1), 2)]


def test_a9_without_others_the_position_is_given_up_for_certain_before_the_append_is_refused() -> None:
    client = Client()
    client.begin()
    client.deliver(Rejected(HEAD, 1, Reason.NO_SPACE))
    assert messages(client.deliver(seen(VIEW))) == [Fill(VIEW, 0, 1, 2)]
    assert results(client.deliver(FillDone(0, 1, (junk(1),)))) == [(1, no_space(["a"]))]


def no_space_anywhere() -> Client:
    """An append whose head is full without any other node: it gives its position up."""
    client = Client()
    client.begin()
    client.deliver(Rejected(HEAD, 1, Reason.NO_SPACE))
    client.deliver(seen(VIEW))
    return client


@pytest.mark.parametrize("why", [Reason.SILENT, Reason.STALE])
def test_a9_an_append_is_not_refused_before_its_position_is_settled(why: Reason) -> None:
    client = no_space_anywhere()
    effects = client.deliver(FillDone(0, 1, (), why))
    assert results(effects) == []
    effects = client.role.on_timer("append:1") if why is Reason.SILENT else effects
    assert messages(effects) == [Refresh(LOG)]
    assert messages(client.deliver(seen(VIEW))) == [Fill(VIEW, 0, 1, 2)]
    [(_, result)] = results(client.deliver(FillDone(0, 1, (junk(1),))))
    assert isinstance(result, AppendRefused)


@pytest.mark.parametrize("end", [1, 2], ids=["past the end", "below the end"])
def test_a9_an_append_that_was_giving_up_goes_on_where_another_segment_came(end: int) -> None:
    client = no_space_anywhere()
    client.deliver(FillDone(0, 1, (), Reason.STALE))
    effects = client.deliver(seen(ended(end)))
    if end == 2:
        assert messages(effects) == [Fill(ended(end), 0, 1, 2)]
        effects = client.deliver(FillDone(0, 1, (junk(1),)))
    assert results(effects) == []
    assert sent(effects) == [("d.sequencer", ask(ended(end), 2))]


def test_a9_if_the_position_holds_the_frame_after_all_it_is_committed() -> None:
    client = no_space_anywhere()
    assert results(client.deliver(FillDone(0, 1, (frame(),)))) == [(1, Appended(1))]


def tail_without_space() -> Client:
    """An append that the head has while the member behind it is full, and no other node is there."""
    client = Client()
    client.begin(stored=1)
    effects = client.deliver(Rejected(MIDDLE, 1, Reason.NO_SPACE))
    assert messages(effects) == [EndOpenSegment(LOG, 0, ("b",), only_to_spares=True)]
    effects = client.deliver(seen(VIEW))
    assert messages(effects) == [EndOpenSegment(LOG, 0, ("b",))]
    return client


def test_a9_an_entry_that_the_head_has_is_cut_by_an_end_before_the_append_is_refused() -> None:
    client = tail_without_space()
    again = Opening(((Seat("a", 1), Seat("b", 1)),), Owner("a", 1))
    view = apply(VIEW, EndSegment(0, 1, VIEW.last.groups, again))
    effects = client.deliver(seen(view))
    assert (results(effects), messages(effects)) == ([(1, no_space(["b"]))], [])


def test_a9_an_entry_below_that_end_is_committed_after_all() -> None:
    client = tail_without_space()
    again = Opening(((Seat("a", 1), Seat("b", 1)),), Owner("a", 1))
    view = apply(VIEW, EndSegment(0, 2, VIEW.last.groups, again))
    assert messages(client.deliver(seen(view))) == [Fill(view, 0, 1, 2)]
    assert results(client.deliver(FillDone(0, 1, (frame(),)))) == [(1, Appended(1))]


def test_a9_a_position_that_cannot_be_filled_for_want_of_space_further_down_is_cut_by_an_end() -> None:
    client = no_space_anywhere()
    effects = client.deliver(FillDone(0, 1, (), Reason.NO_SPACE, "b"))
    assert messages(effects) == [EndOpenSegment(LOG, 0, ("a", "b"), only_to_spares=True)]
    assert messages(client.deliver(seen(VIEW))) == [EndOpenSegment(LOG, 0, ("a", "b"))]


def test_a9_where_the_next_segment_leaves_the_full_node_out_the_append_goes_on() -> None:
    client = tail_without_space()
    assert messages(client.deliver(seen(ended(1)))) == [ask(ended(1), 2)]


def test_a9_an_end_that_is_blocked_is_tried_again_later() -> None:
    client = tail_without_space()
    effects = client.deliver(seen(VIEW))
    assert (results(effects), messages(effects), timers(effects)) == ([], [], ["append:1"])
    assert messages(client.role.on_timer("append:1")) == [Refresh(LOG)]
    assert messages(client.deliver(seen(VIEW))) == [END]


def test_a6_a_grant_to_an_earlier_start_of_the_process_is_not_taken() -> None:
    client = Client()
    client.deliver(ONE)
    assert client.deliver(replace(grant(1, 1), writer="v")) == []


def test_a_batch_that_is_too_large_is_refused() -> None:
    client = Client()
    client.deliver(ONE)
    [(_, result)] = results(client.deliver(NotGranted(LOG, 0, "w", 1, Reason.TOO_LARGE)))
    assert isinstance(result, AppendRefused)
