"""What a storage node answers to writes, as transcripts."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from core.driver import APPLICATION, DiskedNode, data
from core.transcripts import BD, BT, ME, RESTARTS, D, S, T, play, rejected
from trunkline.core.effects import Send
from trunkline.core.entries import junk
from trunkline.core.messages import (
    Append,
    Digest,
    Digested,
    Drop,
    Dropped,
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
    TailFound,
    Trim,
    TrimDone,
    Unwritten,
    Write,
    Written,
)
from trunkline.core.projection import Owner
from trunkline.core.storage import SpaceChanged

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
def test_n6_a_tight_disk_accepts_no_copies(space: Space) -> None:
    node = DiskedNode()
    node.ask(Finalize(JOINER, 3))
    assert node.ask(Write(T, data(1), repair=True)) == [Stored(S, data(1))]
    node.ask(SpaceChanged(space))
    assert node.ask(Write(T, data(2), repair=True)) == [rejected(2, Reason.NO_SPACE)]
    assert node.ask(Write(T, data(1), repair=True)) == [Stored(S, data(1))]  # it has that
    assert node.ask(Digest(T, 1, 3)) == [Digested(S, 1, 3, (data(1),))]


def test_n6_an_exhausted_disk_stores_nothing_and_creates_no_stream() -> None:
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
    assert node.ask(Release(BT, Owner("x", 1), 2)) == []  # not from the owner
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


# -------------------------------------------------------------------------------------------- invalid requests


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
