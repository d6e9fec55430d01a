"""The reader, driven by hand: where it reads, which answers count, and when it leaves a segment."""

from __future__ import annotations

import pytest

from core.driver import announced, data, messages, results, seen, sent, target, timers
from core.reading import (
    ADMINISTRATOR,
    ENDED,
    HEAD,
    LAST,
    LIMIT,
    MIDDLE,
    NEXT,
    OPEN,
    OWNED,
    REPAIRED,
    Client,
    frames,
    nothing,
    peeked,
    read,
)
from trunkline.check.scenarios.cluster import LOG
from trunkline.core.effects import SetTimer
from trunkline.core.entries import junk
from trunkline.core.events import EntriesRead, FollowedSegment, PositionsSkipped, SubscriptionEnded
from trunkline.core.messages import (
    NotGranted,
    Peek,
    Peeked,
    Read,
    ReadFrames,
    Reason,
    Rejected,
    Subscribe,
)
from trunkline.core.projection import (
    AddJoiner,
    EndSegment,
    ForgetSegment,
    Gap,
    Projection,
    RaiseTrim,
    RemoveMember,
    Seat,
    apply,
)
from trunkline.core.reader import ReadThrough
from trunkline.core.siblings import EndOpenSegment, Fill, FillDone, Refresh

# ---------------------------------------------------------------------------------------------------- where it reads


@pytest.mark.parametrize(
    ("view", "node", "stream"),
    [(OPEN, "c", LAST), (ENDED, "c", LAST), (REPAIRED, "a", HEAD), (OWNED, "a", HEAD)],
    ids=["open chain", "ended", "repaired", "open broadcast"],
)
def test_d2_d3_the_last_member_of_a_chain_until_it_is_repaired_and_otherwise_any(
    view: Projection, node: str, stream: str
) -> None:
    assert sent(Client(view).begun) == [(f"{node}.storage", read(view, stream, 1))]


@pytest.mark.parametrize(
    ("view", "nodes"),
    [(OPEN, "ccc"), (ENDED, "ccc"), (REPAIRED, "bca"), (OWNED, "bca")],
    ids=["open chain", "ended", "repaired", "open broadcast"],
)
def test_d3_readers_that_begin_with_different_members_share_the_load_where_any_may_be_read(
    view: Projection, nodes: str
) -> None:
    for replica, node in enumerate(nodes, 1):
        ((place, _),) = sent(Client(view, replica=replica).begun)
        assert place == f"{node}.storage"


def test_d2_an_answer_of_another_member_does_not_count() -> None:
    client = Client(OPEN)
    assert client.deliver(frames(HEAD, data(1))) == []


def test_d3_a_joining_member_is_never_read() -> None:
    view = apply(REPAIRED, RemoveMember(0, HEAD))
    view = apply(apply(view, RemoveMember(0, MIDDLE)), AddJoiner(0, 0, Seat("e", 1)))
    client = Client(view)
    for _ in range(3):
        assert sent(client.begun) == [("c.storage", read(view, LAST, 1))]
        client.wait()
        client.begun = client.deliver(seen(view))


@pytest.mark.parametrize("view", [REPAIRED, OWNED], ids=["repaired", "broadcast"])
def test_d3_a_silent_member_is_left_for_another(view: Projection) -> None:
    client = Client(view)
    assert messages(client.wait()) == [Refresh(LOG)]
    assert sent(client.deliver(seen(view))) == [("b.storage", read(view, MIDDLE, 1))]


@pytest.mark.parametrize("reason", [Reason.CORRUPT, Reason.MISMATCH, Reason.GONE])
@pytest.mark.parametrize("view", [REPAIRED, OWNED], ids=["repaired", "broadcast"])
def test_d3_a_damaged_member_is_left_for_another(view: Projection, reason: Reason) -> None:
    client = Client(view)
    client.deliver(Rejected(HEAD, 1, reason))
    client.wait()
    assert sent(client.deliver(seen(view))) == [("b.storage", read(view, MIDDLE, 1))]


def test_a_reader_without_a_projection_reads_it_first() -> None:
    client = Client(None)
    assert sent(client.begun) == [("self.reconfigurer", Refresh(LOG))]
    assert timers(client.deliver(seen(None))) == ["wait"]  # no such log yet: check again later
    assert messages(client.wait()) == [Refresh(LOG)]
    assert messages(client.deliver(seen(OPEN))) == [read(OPEN, LAST, 1)]


# ------------------------------------------------------------------------------------------------ entries, in order


def test_entries_are_announced_in_order_and_the_next_position_is_requested() -> None:
    client = Client(OPEN)
    effects = client.deliver(frames(LAST, data(1), junk(2), data(3, 2)))
    assert announced(effects) == [
        EntriesRead(LOG, 1, data(1)),
        EntriesRead(LOG, 2, junk(2)),
        EntriesRead(LOG, 3, data(3, 2)),
    ]
    assert messages(effects) == [read(OPEN, LAST, 5)]
    assert client.deliver(frames(LAST, data(1))) == []  # doubled


def test_a_subscription_ends_after_its_last_position() -> None:
    client = Client(OPEN, until=2)
    effects = client.deliver(frames(LAST, data(1), data(2)))
    assert results(effects) == [(1, SubscriptionEnded(3))]
    assert timers(effects) == []


def test_the_requesting_role_learns_that_everything_was_read() -> None:
    client = Client(OPEN, until=1, requester=ADMINISTRATOR)
    assert sent(client.deliver(frames(LAST, data(1)))) == [("self.administrator", ReadThrough(1, 1))]


def test_b2_the_requesting_role_gets_the_last_position_that_cuts_no_batch() -> None:
    client = Client(OPEN, until=4, requester=ADMINISTRATOR)
    effects = client.deliver(frames(LAST, data(1, 2), data(3, 3)))
    assert sent(effects) == [("self.administrator", ReadThrough(2, 5))]


def test_d1_trimmed_positions_are_skipped_without_a_request() -> None:
    client = Client(apply(OPEN, RaiseTrim(4)))
    assert announced(client.begun) == [PositionsSkipped(LOG, 1, 5, Reason.TRIMMED)]
    assert messages(client.begun) == [read(OPEN, LAST, 5)]


def test_d1_lost_positions_are_skipped_and_announced() -> None:
    view = apply(OPEN, EndSegment(0, 3, ((),), NEXT, Gap(1, 3)))
    client = Client(view)
    assert announced(client.begun) == [PositionsSkipped(LOG, 1, 3, Reason.LOST)]
    assert sent(client.begun)[0][0] == "d.storage"


def test_d12_a_node_that_does_not_know_the_end_does_not_count_past_it() -> None:
    client = Client(ENDED)
    effects = client.deliver(frames(LAST, data(1), data(2), data(3)))
    assert [event.position for event in announced(effects) if isinstance(event, EntriesRead)] == [1, 2]


def test_d5_at_the_end_of_a_segment_the_next_one_is_followed() -> None:
    client = Client(ENDED)
    effects = client.deliver(frames(LAST, data(1), data(2)))
    assert announced(effects)[-1] == FollowedSegment(LOG, 1, 3)
    assert sent(effects) == [("d.storage", read(ENDED, ENDED.last.members()[0].stream, 3))]


def test_a_log_that_is_sealed_has_nothing_more_until_it_is_reopened() -> None:
    sealed = apply(OPEN, EndSegment(0, 2, OPEN.last.groups, None))
    client = Client(sealed)
    effects = client.deliver(frames(LAST, data(1)))
    assert (messages(effects), timers(effects)) == ([], ["wait"])
    assert messages(client.wait()) == [Refresh(LOG)]


# ------------------------------------------------------------------------------------------------- "nothing there"


def test_d4_a_position_above_peek_is_the_tail_and_is_waited_for() -> None:
    client = Client(OPEN)
    assert sent(client.deliver(nothing(LAST))) == [("a.sequencer", Peek(LOG, OPEN.last, 1))]
    effects = client.deliver(peeked(1))
    assert messages(effects) == [Subscribe(target(OPEN, LAST), 1, LIMIT)]
    assert client.role.phase == "idle"
    assert announced(client.deliver(frames(LAST, data(1)))) == [EntriesRead(LOG, 1, data(1))]  # pushed


def test_d4_a_granted_position_is_a_hole_and_is_filled_after_a_while() -> None:
    client = Client(OPEN)
    client.deliver(nothing(LAST))
    effects = client.deliver(peeked(2))
    assert (messages(effects), timers(effects), client.role.phase) == ([], ["wait"], "hole")
    assert sent(client.wait()) == [("self.filler", Fill(OPEN, 0, 1, 2))]
    assert announced(client.deliver(FillDone(0, 1, (junk(1),)))) == [EntriesRead(LOG, 1, junk(1))]


def test_d4_below_the_end_nothing_means_settle_it_now() -> None:
    client = Client(ENDED)
    assert messages(client.deliver(nothing(LAST, sealed=True))) == [Fill(ENDED, 0, 1, 3)]


def test_d4_a_quiet_reader_reads_the_projection() -> None:
    client = Client(OPEN)
    client.deliver(nothing(LAST))
    client.deliver(peeked(1))
    assert messages(client.wait()) == [Refresh(LOG)]


def test_d4_one_wait_serves_every_hole_that_was_granted_before_it() -> None:
    client = Client(OPEN)
    client.deliver(nothing(LAST))
    client.deliver(peeked(9))
    assert messages(client.wait()) == [Fill(OPEN, 0, 1, 9)]
    client.deliver(FillDone(0, 1, tuple(map(junk, range(1, 5)))))
    client.deliver(nothing(LAST, 5, 5))
    assert messages(client.deliver(peeked(20))) == [Fill(OPEN, 0, 5, 9)]  # at once: it has been waited for
    client.deliver(FillDone(0, 5, tuple(map(junk, range(5, 9)))))
    client.deliver(nothing(LAST, 9, 9))
    assert messages(client.deliver(peeked(20))) == []
    assert client.role.phase == "hole"


def test_d4_a_new_segment_needs_a_new_wait() -> None:
    client = Client(OPEN)
    client.deliver(nothing(LAST))
    client.deliver(peeked(9))
    client.wait()
    client.deliver(FillDone(0, 1, (), Reason.SEALED))
    view = apply(OPEN, EndSegment(0, 1, OPEN.last.groups, NEXT))
    client.deliver(seen(view))
    client.deliver(nothing(view.last.members()[0].stream))
    assert messages(client.deliver(Peeked(LOG, 1, 5, 5, 0))) == []
    assert client.role.phase == "hole"


@pytest.mark.parametrize(("beaten", "wait_ms"), [(0, 200), (1, 400), (3, 1600), (6, 12_800), (99, 12_800)])
def test_d4_a_reader_waits_longer_for_a_beaten_writer(beaten: int, wait_ms: int) -> None:
    client = Client(OPEN)
    client.deliver(nothing(LAST))
    effects = client.deliver(peeked(9, alike=4, beaten=beaten))
    assert effects == [SetTimer("wait", wait_ms)]
    assert messages(client.wait()) == [Fill(OPEN, 0, 1, 4)]


def test_d10_entries_count_while_the_metadata_store_is_asked() -> None:
    client = Client(OPEN)
    client.deliver(nothing(LAST))
    client.deliver(peeked(1))
    client.wait()
    assert client.role.phase == "viewing"
    assert announced(client.deliver(frames(LAST, data(1)))) == [EntriesRead(LOG, 1, data(1))]


def test_d11_a_late_projection_that_forgot_the_segment_is_followed_at_once() -> None:
    client = Client(OPEN)
    client.deliver(nothing(LAST))
    client.deliver(peeked(1))
    client.wait()  # it asks for the projection ...
    client.deliver(frames(LAST, data(1)))  # ... and is pushed a batch before that comes
    trimmed = apply(apply(ENDED, RaiseTrim(2)), ForgetSegment(0))
    effects = client.deliver(seen(trimmed))
    assert announced(effects) == [PositionsSkipped(LOG, 2, 3, Reason.TRIMMED), FollowedSegment(LOG, 1, 3)]
    assert client.deliver(ReadFrames(LAST, 2, (data(2),))) == []  # of a forgotten stream


def test_n4_an_open_broadcast_segment_is_waited_for_and_never_peeked_at() -> None:
    client = Client(OWNED)
    assert messages(client.deliver(nothing(HEAD))) == [Subscribe(target(OWNED, HEAD), 1, LIMIT)]


def test_d7_entries_that_no_member_has_as_released_end_the_segment() -> None:
    client = Client(OWNED)
    asked: list[str] = []
    effects = client.begun
    for _ in range(8):
        if client.role.phase == "ending":
            break
        (where, request), *_ = sent(effects)
        assert isinstance(request, Read | Subscribe)
        asked.append(where)
        stream = request.target.stream
        client.deliver(nothing(stream, written=2))
        if client.role.phase == "ending":
            break
        client.wait()
        effects = client.deliver(seen(OWNED))
    assert client.role.phase == "ending"
    assert {"a.storage", "b.storage", "c.storage"} <= set(asked)  # only after everybody was asked


# ------------------------------------------------------------------------------------------------------- failures


def test_a_silent_last_member_of_an_open_chain_ends_the_segment() -> None:
    client = Client(OPEN)
    assert sent(client.wait()) == [("self.reconfigurer", EndOpenSegment(LOG, 0, ("c",)))]
    assert messages(client.deliver(seen(ENDED))) == [read(ENDED, LAST, 1)]


@pytest.mark.parametrize("reason", [Reason.CORRUPT, Reason.MISMATCH, Reason.GONE])
def test_a_damaged_last_member_of_an_open_chain_ends_the_segment(reason: Reason) -> None:
    assert messages(Client(OPEN).deliver(Rejected(LAST, 1, reason))) == [EndOpenSegment(LOG, 0, ("c",))]


def test_a_sealed_answer_in_an_open_segment_ends_it() -> None:
    assert messages(Client(OPEN).deliver(nothing(LAST, sealed=True))) == [EndOpenSegment(LOG, 0, ())]


def test_d9_a_seal_is_met_twice_before_the_reader_ends_the_segment_itself() -> None:
    client = Client(OPEN, seal_checks=1)
    assert timers(client.deliver(nothing(LAST, sealed=True))) == ["wait"]
    client.wait()
    client.deliver(seen(OPEN))
    assert messages(client.deliver(nothing(LAST, sealed=True))) == [EndOpenSegment(LOG, 0, ())]


def test_d8_a_batch_after_the_last_requested_position_is_not_returned() -> None:
    client = Client(OPEN, 1, until=2, requester=ADMINISTRATOR)
    effects = client.deliver(ReadFrames(LAST, 1, (data(1), data(2), data(3))))
    assert client.role.next == 3
    assert ReadThrough(2, 2) in messages(effects)


def test_r8_a_segment_that_cannot_be_ended_is_checked_again_later() -> None:
    client = Client(OPEN)
    client.wait()
    effects = client.deliver(seen(OPEN))
    assert (messages(effects), timers(effects)) == ([], ["wait"])
    assert messages(client.wait()) == [Refresh(LOG)]


def test_d7_a_sealed_broadcast_member_is_left_for_another_first() -> None:
    client = Client(OWNED)
    assert messages(client.deliver(nothing(HEAD, sealed=True))) == []
    client.wait()
    assert sent(client.deliver(seen(OWNED))) == [("b.storage", read(OWNED, MIDDLE, 1))]


@pytest.mark.parametrize("how", ["silent", "not the owner"])
def test_a_sequencer_that_does_not_serve_ends_the_segment(how: str) -> None:
    client = Client(OPEN)
    client.deliver(nothing(LAST))
    refused = NotGranted(LOG, 0, "", 0, Reason.NOT_OWNER)
    effects = client.wait() if how == "silent" else client.deliver(refused)
    assert messages(effects) == [EndOpenSegment(LOG, 0, ("a",))]


@pytest.mark.parametrize("reason", [Reason.SEALED, Reason.SILENT])
def test_a_hole_that_cannot_be_filled_in_an_open_segment_ends_it(reason: Reason) -> None:
    client = Client(OPEN)
    client.deliver(nothing(LAST))
    client.deliver(peeked(2))
    client.wait()
    assert messages(client.deliver(FillDone(0, 1, (), reason))) == [EndOpenSegment(LOG, 0, ())]


def test_d13_a_full_member_is_left_only_for_others_that_there_are() -> None:
    client = Client(OPEN)
    client.deliver(nothing(LAST))
    client.deliver(peeked(2))
    client.wait()
    effects = client.deliver(FillDone(0, 1, (), Reason.NO_SPACE, "b"))
    assert messages(effects) == [EndOpenSegment(LOG, 0, ("b",), only_to_spares=True)]
    assert timers(client.deliver(seen(OPEN))) == ["wait"]  # there are none: it checks again later


def test_f2_another_value_while_filling_means_that_the_projection_is_stale() -> None:
    client = Client(ENDED)
    client.deliver(nothing(LAST, sealed=True))
    assert messages(client.deliver(FillDone(0, 1, (), Reason.STALE))) == [Refresh(LOG)]


def test_a_stream_that_was_never_opened_holds_nothing_yet() -> None:
    assert messages(Client(OPEN).deliver(Rejected(LAST, 1, Reason.UNKNOWN))) == [Peek(LOG, OPEN.last, 1)]
    assert messages(Client(ENDED).deliver(Rejected(LAST, 1, Reason.UNKNOWN))) == [Fill(ENDED, 0, 1, 3)]


def test_a_trimmed_answer_means_that_the_projection_is_stale() -> None:
    client = Client(OPEN)
    assert messages(client.deliver(Rejected(LAST, 1, Reason.TRIMMED, 2))) == [Refresh(LOG)]
    assert messages(client.deliver(seen(apply(OPEN, RaiseTrim(2))))) == [read(OPEN, LAST, 3)]
