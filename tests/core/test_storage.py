"""What a storage node answers: writes, seals and ends, reads and subscriptions, as transcripts."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from core.driver import APPLICATION, DiskedNode, announced, data, sent
from core.transcripts import BD, BT, ME, RESTARTS, D, S, T, play, rejected
from trunkline.check.scenarios.cluster import LOG
from trunkline.core.effects import Address, Announce, Message, Persist, Send
from trunkline.core.entries import junk
from trunkline.core.events import StreamDamaged, StreamDropped
from trunkline.core.messages import (
    Append,
    Digest,
    Digested,
    Drop,
    Dropped,
    Fetch,
    Fetched,
    Finalize,
    Finalized,
    FindTail,
    Open,
    Opened,
    Read,
    ReadFrames,
    Reason,
    Rejected,
    Release,
    Seal,
    Sealed,
    Space,
    Stored,
    Subscribe,
    TailFound,
    Trim,
    TrimDone,
    Unwritten,
    Write,
    Written,
)
from trunkline.core.projection import Owner
from trunkline.core.storage import FramesDamaged, SpaceChanged, SubscriberGone
from trunkline.core.streams import StreamDropping, StreamLosing

# ------------------------------------------------------------------------------------------- the checks of a write


@RESTARTS
def test_s1_an_identical_frame_is_stored_again_and_any_other_overlap_is_written(restarts: bool) -> None:
    frame = data(3, 2)
    play(
        [
            (Open(D), Opened(S)),
            (Write(T, frame), Stored(S, frame)),
            (Write(T, frame), Stored(S, frame)),
            (Write(T, replace(frame, checksum=8)), Written(S, replace(frame, checksum=8), frame)),
            (Write(T, replace(frame, seq=2)), Written(S, replace(frame, seq=2), frame)),
            (Write(T, replace(frame, writer="v")), Written(S, replace(frame, writer="v"), frame)),
            (Write(T, data(2, 2)), Written(S, data(2, 2), frame)),
            (Write(T, junk(4)), Written(S, junk(4), frame)),
            (Write(T, data(5)), Stored(S, data(5))),
            (Digest(T, 1, 9), Digested(S, 1, 9, (frame, data(5)))),
        ],
        restarts=restarts,
    )


@RESTARTS
def test_a_write_is_checked_for_trim_then_identity_of_frames_then_overlap_then_seal(restarts: bool) -> None:
    old, kept = data(1), data(2)
    play(
        [
            (Open(D), Opened(S)),
            (Write(T, old), Stored(S, old)),
            (Write(T, kept), Stored(S, kept)),
            (Trim(T, 1), TrimDone(S, 1)),
            (Seal(D), Sealed(S, 3, intact=True, uncertain=False)),
            (Write(T, old), rejected(1, Reason.TRIMMED, 1)),  # trimmed comes before identical
            (Write(T, kept), Stored(S, kept)),  # identical comes before sealed
            (Write(T, data(2, seq=5)), Written(S, data(2, seq=5), kept)),  # overlap comes before sealed
            (Write(T, data(3)), rejected(3, Reason.SEALED)),
            (Write(replace(T, epoch=9), old), rejected(1, Reason.MISMATCH, 1)),  # identity comes before all
        ],
        restarts=restarts,
    )


@RESTARTS
def test_s3_a_repair_needs_a_known_end_above_it(restarts: bool) -> None:
    play(
        [
            (Open(D), Opened(S)),
            (Seal(D), Sealed(S, 1, intact=True, uncertain=False)),
            (Write(T, junk(2), repair=True), rejected(2, Reason.END_UNKNOWN)),
            (Finalize(D, 3), Finalized(S)),
            (Write(T, junk(2), repair=True), Stored(S, junk(2))),
            (Write(T, junk(3), repair=True), rejected(3, Reason.SEALED)),
            (Write(T, junk(1)), rejected(1, Reason.SEALED)),
        ],
        restarts=restarts,
    )


JOINER = replace(D, members=tuple(replace(m, joining=m.stream == S) for m in D.members))


def test_n6_a_full_disk_refuses_data_and_goes_on_with_fills_repairs_and_seals() -> None:
    node = DiskedNode()
    node.ask(Open(D))
    assert node.ask(SpaceChanged(Space.FULL)) == []
    assert node.ask(Write(T, data(1))) == [rejected(1, Reason.NO_SPACE)]
    assert node.ask(Write(T, junk(2))) == [Stored(S, junk(2))]
    assert node.ask(Seal(D)) == [Sealed(S, 3, intact=True, uncertain=False)]
    node.ask(Finalize(D, 3))
    assert node.ask(Write(T, data(1), repair=True)) == [Stored(S, data(1))]


def test_n6_a_disk_with_space_again_takes_data_again() -> None:
    node = DiskedNode()
    node.ask(Open(D))
    node.ask(SpaceChanged(Space.FULL))
    node.ask(SpaceChanged(Space.TIGHT))
    assert node.ask(Write(T, data(1))) == [Stored(S, data(1))]


@pytest.mark.parametrize("space", [Space.TIGHT, Space.FULL, Space.EXHAUSTED])
def test_n6_a_tight_disk_takes_no_copies(space: Space) -> None:
    node = DiskedNode()
    node.ask(Finalize(JOINER, 3))
    assert node.ask(Write(T, data(1), repair=True)) == [Stored(S, data(1))]
    node.ask(SpaceChanged(space))
    assert node.ask(Write(T, data(2), repair=True)) == [rejected(2, Reason.NO_SPACE)]
    assert node.ask(Write(T, data(1), repair=True)) == [Stored(S, data(1))]  # it has that
    assert node.ask(Digest(T, 1, 3)) == [Digested(S, 1, 3, (data(1),))]


def test_n6_an_exhausted_disk_stores_nothing_and_makes_no_stream() -> None:
    node = DiskedNode()
    node.ask(SpaceChanged(Space.EXHAUSTED))
    for request in (Open(D), Seal(D), Finalize(D, 3)):
        assert node.role.on_message(APPLICATION, request) == [Send(APPLICATION, rejected(0, Reason.NO_SPACE))]
    node.ask(SpaceChanged(Space.ROOMY))
    node.ask(Open(D))
    node.ask(SpaceChanged(Space.EXHAUSTED))
    assert node.ask(Open(D)) == [Opened(S)]
    for frame, repair in ((data(1), False), (junk(1), False)):
        assert node.ask(Write(T, frame, repair)) == [rejected(1, Reason.NO_SPACE)]
    assert node.ask(Seal(D)) == [Sealed(S, 1, intact=True, uncertain=False)]
    assert node.ask(Finalize(D, 3)) == [Finalized(S)]
    assert node.ask(Write(T, data(1), repair=True)) == [rejected(1, Reason.NO_SPACE)]
    assert node.ask(Trim(T, 1)) == [TrimDone(S, 1)]
    assert node.ask(Drop(T)) == [Dropped(S)]


# ------------------------------------------------------------------------------------------------------- broadcast


@RESTARTS
def test_a_broadcast_stream_takes_contiguous_frames_of_its_owner_only(restarts: bool) -> None:
    one, two, four = data(1), data(2, 2), data(4)
    stranger = Owner("w", 2)  # another start of the same process
    play(
        [
            (Open(BD), Opened(S)),
            (Append(BT, ME, two, 0), rejected(2, Reason.GAP, 1)),
            (Append(BT, stranger, one, 0), rejected(1, Reason.NOT_OWNER)),
            (Append(BT, ME, one, 0), Stored(S, one)),
            (Append(BT, ME, two, 1), Stored(S, two)),
            (Append(BT, ME, one, 1), Stored(S, one)),
            (Append(BT, ME, data(5), 1), rejected(5, Reason.GAP, 4)),
            (Seal(BD), Sealed(S, 4, intact=True, uncertain=False)),
            (Append(BT, ME, two, 1), Stored(S, two)),
            (Append(BT, ME, four, 3), rejected(4, Reason.SEALED, 4)),
        ],
        restarts=restarts,
    )


def test_n6_a_full_disk_refuses_the_next_broadcast_frame_but_not_one_that_it_has() -> None:
    node = DiskedNode()
    play([(Open(BD), Opened(S)), (Append(BT, ME, data(1), 0), Stored(S, data(1)))], restarts=False, node=node)
    node.ask(SpaceChanged(Space.FULL))
    assert node.ask(Append(BT, ME, data(1), 0)) == [Stored(S, data(1))]
    assert node.ask(Append(BT, ME, data(2), 0)) == [rejected(2, Reason.NO_SPACE, 2)]


def test_n4_reads_of_an_open_broadcast_stream_stop_at_the_lac() -> None:
    node = DiskedNode()
    one, two = data(1), data(2)
    play([(Open(BD), Opened(S)), (Append(BT, ME, one, 0), Stored(S, one))], restarts=False, node=node)
    nothing = Unwritten(S, 1, 2, sealed=False)
    assert node.ask(Read(BT, 1, 9)) == [nothing]
    assert node.ask(Append(BT, ME, two, 1)) == [Stored(S, two)]  # the LAC rides on the next batch
    assert node.ask(Read(BT, 1, 9)) == [ReadFrames(S, 1, (one,))]
    assert node.ask(Release(BT, Owner("x", 1), 2)) == []  # not the owner's word
    assert node.ask(Read(BT, 2, 9)) == [Unwritten(S, 2, 3, sealed=False)]
    assert node.ask(Release(BT, ME, 2)) == []
    assert node.ask(Release(BT, ME, 1)) == []  # late: the LAC does not go back
    assert node.ask(Read(BT, 1, 9)) == [ReadFrames(S, 1, (one, two))]
    assert node.ask(FindTail(BT, 5)) == [TailFound(S, 5, 3, 2)]


def test_n4_a_restarted_node_shows_less_until_the_owner_speaks_again() -> None:
    node = DiskedNode()
    play([(Open(BD), Opened(S)), (Append(BT, ME, data(1), 0), Stored(S, data(1)))], restarts=False, node=node)
    node.ask(Release(BT, ME, 1))
    node.restart()
    assert node.ask(Read(BT, 1, 9)) == [Unwritten(S, 1, 2, sealed=False)]
    assert node.ask(Finalize(BD, 2)) == [Finalized(S)]  # below a decided end everything is committed
    assert node.ask(Read(BT, 1, 9)) == [ReadFrames(S, 1, (data(1),))]


# -------------------------------------------------------------------------------------- seal, finalize, drop, trim


@RESTARTS
def test_s2_seal_and_finalize_make_an_unknown_stream_and_are_final(restarts: bool) -> None:
    play(
        [
            (Write(T, data(1)), rejected(1, Reason.UNKNOWN)),
            (Seal(D), Sealed(S, 1, intact=True, uncertain=False)),
            (Write(T, data(1)), rejected(1, Reason.SEALED)),
            (Open(D), Opened(S)),
            (Write(T, data(1)), rejected(1, Reason.SEALED)),  # opening it again changes nothing
            (Finalize(D, 2), Finalized(S)),
            (Finalize(D, 2), Finalized(S)),
            (Seal(D), Sealed(S, 1, intact=True, uncertain=False)),
            (Write(T, junk(1), repair=True), Stored(S, junk(1))),  # a late Seal does not take the end back
            (Write(T, junk(2), repair=True), rejected(2, Reason.SEALED)),
        ],
        restarts=restarts,
    )


@RESTARTS
def test_s2_finalize_implies_sealed_and_cuts_what_lies_at_or_past_the_end(restarts: bool) -> None:
    play(
        [
            (Open(D), Opened(S)),
            (Write(T, data(1)), Stored(S, data(1))),
            (Write(T, data(3)), Stored(S, data(3))),
            (Finalize(D, 3), Finalized(S)),
            (Digest(T, 1, 9), Digested(S, 1, 9, (data(1),))),
            (Write(T, data(3)), rejected(3, Reason.SEALED)),
            (Read(T, 2, 9), Unwritten(S, 2, 2, sealed=True)),
        ],
        restarts=restarts,
    )


@RESTARTS
def test_n3_a_dropped_stream_is_gone_and_is_never_made_again(restarts: bool) -> None:
    play(
        [
            (Open(D), Opened(S)),
            (Write(T, data(1)), Stored(S, data(1))),
            (Drop(T), Dropped(S)),
            (Drop(T), Dropped(S)),
            (Open(D), rejected(0, Reason.GONE)),
            (Seal(D), rejected(0, Reason.GONE)),
            (Finalize(D, 2), rejected(0, Reason.GONE)),
            (Read(T, 1, 9), rejected(1, Reason.GONE)),
        ],
        restarts=restarts,
    )


@RESTARTS
def test_n3_a_stream_that_was_never_here_can_be_dropped_before_it_comes(restarts: bool) -> None:
    play([(Drop(T), Dropped(S)), (Open(D), rejected(0, Reason.GONE))], restarts=restarts)


def test_n3_a_drop_is_announced_once_when_it_is_durable() -> None:
    node = DiskedNode()
    node.ask(Open(D))
    dropped = StreamDropped("a", LOG, S)
    assert node.role.on_message(APPLICATION, Drop(T)) == [
        Persist(StreamDropping((LOG, S))),
        Announce(dropped),
        Send(APPLICATION, Dropped(S)),
    ]
    assert announced(node.role.on_message(APPLICATION, Drop(T))) == []


@RESTARTS
def test_s4_the_answer_to_seal_counts_trimmed_positions(restarts: bool) -> None:
    play(
        [
            (Open(D), Opened(S)),
            (Write(T, data(1, 3)), Stored(S, data(1, 3))),
            (Trim(T, 3), TrimDone(S, 3)),
            (Trim(T, 2), TrimDone(S, 3)),  # the point does not go back
            (Digest(T, 1, 9), Digested(S, 1, 9, ())),
            (Read(T, 3, 9), rejected(3, Reason.TRIMMED, 3)),
            (Read(T, 4, 9), Unwritten(S, 4, 4, sealed=False)),
            (FindTail(T, 2), TailFound(S, 2, 4, 0)),
            (Seal(D), Sealed(S, 4, intact=True, uncertain=False)),
        ],
        restarts=restarts,
    )


@RESTARTS
def test_a_batch_that_straddles_the_trim_point_stays_readable_above_it(restarts: bool) -> None:
    batch = data(1, 3)
    play(
        [
            (Open(D), Opened(S)),
            (Write(T, batch), Stored(S, batch)),
            (Trim(T, 2), TrimDone(S, 2)),
            (Read(T, 2, 9), rejected(2, Reason.TRIMMED, 2)),
            (Read(T, 3, 9), ReadFrames(S, 3, (batch,))),
        ],
        restarts=restarts,
    )


# ------------------------------------------------------------------------------------------------------- reading


@RESTARTS
def test_reads_digests_and_fetches_show_what_is_stored(restarts: bool) -> None:
    one, batch, six = data(1), data(2, 2), data(6)
    play(
        [
            (Open(D), Opened(S)),
            (Write(T, six), Stored(S, six)),
            (Write(T, batch), Stored(S, batch)),
            (Write(T, one), Stored(S, one)),
            (Read(T, 1, 9), ReadFrames(S, 1, (one, batch))),
            (Read(T, 1, 1), ReadFrames(S, 1, (one,))),
            (Read(T, 3, 9), ReadFrames(S, 3, (batch,))),
            (Read(T, 4, 9), Unwritten(S, 4, 7, sealed=False)),  # a hole: 6 is written
            (Read(T, 7, 9), Unwritten(S, 7, 7, sealed=False)),
            (FindTail(T, 3), TailFound(S, 3, 7, 0)),
            (Digest(T, 2, 6), Digested(S, 2, 6, (batch,))),
            (Fetch(T, 1, 7), Fetched(S, 1, 7, (one, batch, six))),
        ],
        restarts=restarts,
    )


# ---------------------------------------------------------------------------------------------------- subscribing


def test_a_subscriber_waits_until_there_is_a_frame() -> None:
    node = DiskedNode()
    node.ask(Open(D))
    reader = Address("r", "reader")
    assert node.ask(Subscribe(T, 1, 9), reader) == []
    assert node.ask(Subscribe(T, 1, 9), reader) == []  # asked twice, answered once
    effects = node.role.on_message(APPLICATION, Write(T, data(1)))
    assert sent(effects) == [
        ("client.application", Stored(S, data(1))),
        ("r.reader", ReadFrames(S, 1, (data(1),))),
    ]
    assert node.ask(Write(T, data(2))) == [Stored(S, data(2))]  # nobody waits any more


def test_a_subscriber_is_told_of_a_hole_below_what_is_written() -> None:
    node = DiskedNode()
    node.ask(Open(D))
    node.ask(Subscribe(T, 1, 9))
    assert node.ask(Write(T, data(2))) == [Stored(S, data(2)), Unwritten(S, 1, 3, sealed=False)]


@pytest.mark.parametrize("ending", [Seal(D), Finalize(D, 1)])
def test_a_subscriber_is_told_of_a_seal_and_of_an_end(ending: Message) -> None:
    node = DiskedNode()
    node.ask(Open(D))
    node.ask(Subscribe(T, 1, 9))
    assert node.ask(ending)[1:] == [Unwritten(S, 1, 1, sealed=True)]


def test_a_subscriber_of_a_broadcast_stream_waits_for_the_lac() -> None:
    node = DiskedNode()
    node.ask(Open(BD))
    node.ask(Append(BT, ME, data(1), 0))
    assert node.ask(Subscribe(BT, 1, 9)) == []  # stored, but not released
    assert node.ask(Append(BT, ME, data(2), 1)) == [Stored(S, data(2)), ReadFrames(S, 1, (data(1),))]
    assert node.ask(Subscribe(BT, 2, 9)) == []
    assert node.ask(Release(BT, ME, 2)) == [ReadFrames(S, 2, (data(2),))]


def test_a_subscriber_of_what_is_there_is_answered_at_once() -> None:
    node = DiskedNode()
    play([(Open(D), Opened(S)), (Write(T, data(1)), Stored(S, data(1)))], restarts=False, node=node)
    assert node.ask(Subscribe(T, 1, 9)) == [ReadFrames(S, 1, (data(1),))]


# --------------------------------------------------------------------------------------------- what the host tells


def test_s5_frames_that_cannot_be_read_any_more_leave_the_stream_as_a_restart_would() -> None:
    first, second = data(1), data(2, seq=2)
    running, restarted = DiskedNode(), DiskedNode()
    for node in (running, restarted):
        for request in (Open(D), Write(T, first), Write(T, second), Write(T, data(3, seq=3)), Seal(D)):
            node.ask(request)
    running.ask(FramesDamaged((LOG, S), (second,)))
    restarted.rot(1)
    asked = (Read(T, 1, 9), Read(T, 2, 9), Read(T, 3, 9), Fetch(T, 1, 4), Finalize(D, 4), Write(T, second), Seal(D))
    assert [running.ask(each) for each in asked] == [restarted.ask(each) for each in asked]
    running.restart()
    assert [running.ask(each) for each in asked] == [restarted.ask(each) for each in asked]


def test_s5_damage_is_durable_before_anybody_hears_of_it_and_wakes_subscribers() -> None:
    node = DiskedNode()
    for request in (Open(D), Write(T, data(1)), Subscribe(T, 2, 9)):
        node.ask(request)
    effects = node.role.on_message(APPLICATION, FramesDamaged((LOG, S), (data(1),)))
    losing, event, answer = effects
    assert losing == Persist(StreamLosing((LOG, S), (data(1),)))
    assert event == Announce(StreamDamaged("a", LOG, 0, S, (data(1),)))
    assert answer == Send(APPLICATION, rejected(2, Reason.CORRUPT))


def test_damage_of_frames_that_are_gone_changes_nothing() -> None:
    node = DiskedNode()
    assert node.role.on_message(APPLICATION, FramesDamaged((LOG, S), (data(1),))) == []
    for request in (Open(D), Write(T, data(1)), Write(T, data(2)), Trim(T, 1)):
        node.ask(request)
    assert node.role.on_message(APPLICATION, FramesDamaged((LOG, S), (data(1), data(2, seq=9)))) == []
    assert node.ask(Seal(D)) == [Sealed(S, 3, intact=True, uncertain=False)]


def test_a_subscriber_whose_connection_closed_is_forgotten() -> None:
    node = DiskedNode()
    staying, gone = Address("r1", "reader"), Address("r2", "reader")
    node.ask(Open(D))
    for source in (staying, gone):
        node.ask(Subscribe(T, 1, 9), source)
    node.ask(SubscriberGone("r2"))
    answers = sent(node.role.on_message(APPLICATION, Write(T, data(1))))
    assert [to for to, _ in answers] == ["client.application", "r1.reader"]
    node.ask(SubscriberGone("r1"))
    assert node.role.waiting == {}


# -------------------------------------------------------------------------------------------- what nobody should send


def mismatch(stream: str, glsn: int) -> Rejected:
    return Rejected(stream, glsn, Reason.MISMATCH, T.incarnation)


@RESTARTS
def test_s2_an_end_is_written_once_and_another_one_is_rejected_and_changes_nothing(restarts: bool) -> None:
    node = play(
        [
            (Open(D), Opened(S)),
            (Write(T, data(1)), Stored(S, data(1))),
            (Finalize(D, 3), Finalized(S)),
            (Finalize(D, 2), mismatch(S, 0)),
            (Finalize(D, 4), mismatch(S, 0)),
            (Finalize(D, 3), Finalized(S)),
            (Write(T, data(2), repair=True), Stored(S, data(2))),
            (Write(T, data(3), repair=True), rejected(3, Reason.SEALED)),
        ],
        restarts=restarts,
    )
    effects = node.role.on_message(APPLICATION, Finalize(D, 4))
    assert effects == [Send(APPLICATION, mismatch(S, 0))]


def test_only_appends_go_to_an_open_broadcast_stream_and_only_writes_to_a_chain_stream() -> None:
    frame = data(1)
    play(
        [
            (Open(BD), Opened(BT.stream)),
            (Write(BT, frame), mismatch(BT.stream, 1)),
            (Append(BT, ME, frame, 0), Stored(BT.stream, frame)),
            (Finalize(BD, 3), Finalized(BT.stream)),
            (Write(BT, data(2), repair=True), Stored(BT.stream, data(2))),
        ],
        restarts=False,
    )
    play(
        [
            (Open(D), Opened(S)),
            (Append(T, D.owner, frame, 1 << 61), mismatch(S, 1)),
            (Write(T, frame), Stored(S, frame)),
        ],
        restarts=False,
    )


def test_nothing_is_written_below_the_base_of_a_stream() -> None:
    later = replace(D, base=10)
    play(
        [
            (Open(later), Opened(S)),
            (Write(T, data(9)), mismatch(S, 9)),
            (Write(T, data(10)), Stored(S, data(10))),
        ],
        restarts=False,
    )
