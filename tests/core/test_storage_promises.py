"""What a storage node promises whatever happens: it is the one that was asked, it keeps what it answered, and it admits
a loss.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from core.driver import APPLICATION, DiskedNode, data
from core.transcripts import BD, BT, ME, RESTARTS, D, S, T, play, rejected
from trunkline.check.scenarios.cluster import CLUSTER
from trunkline.core.effects import Announce, Effects, Message, Persist, Send
from trunkline.core.entries import junk
from trunkline.core.events import FrameStored, StreamFinalized, StreamRecovered, StreamSealed
from trunkline.core.messages import (
    Append,
    Digest,
    Digested,
    Drop,
    Fetch,
    Finalize,
    Finalized,
    FindTail,
    Open,
    Opened,
    Read,
    ReadFrames,
    Reason,
    Rejected,
    Seal,
    Sealed,
    Stored,
    StreamTarget,
    Subscribe,
    Trim,
    Write,
)
from trunkline.core.storage import NodeImage, StorageNode
from trunkline.core.streams import StreamImage

# -------------------------------------------------------------------------------------------------------- identity

REQUESTS: list[tuple[str, Callable[[StreamTarget], Message], int]] = [
    ("open", lambda t: Open(replace(D, target=t)), 0),
    ("seal", lambda t: Seal(replace(D, target=t)), 0),
    ("finalize", lambda t: Finalize(replace(D, target=t), 5), 0),
    ("drop", Drop, 0),
    ("write", lambda t: Write(t, data(4)), 4),
    ("append", lambda t: Append(t, ME, data(4), 0), 4),
    ("read", lambda t: Read(t, 4, 9), 4),
    ("subscribe", lambda t: Subscribe(t, 4, 9), 4),
    ("find tail", lambda t: FindTail(t, 8), 8),
    ("trim", lambda t: Trim(t, 2), 0),
    ("digest", lambda t: Digest(t, 4, 9), 4),
    ("fetch", lambda t: Fetch(t, 4, 9), 4),
]


@pytest.mark.parametrize(("make", "position"), [row[1:] for row in REQUESTS], ids=[row[0] for row in REQUESTS])
@pytest.mark.parametrize(
    "wrong",
    [replace(T, cluster="other"), replace(T, segment=7), replace(T, epoch=7), replace(T, incarnation=7)],
    ids=["cluster", "segment", "epoch", "incarnation"],
)
def test_n1_a_request_for_another_identity_is_a_mismatch_and_changes_nothing(
    make: Callable[[StreamTarget], Message], position: int, wrong: StreamTarget
) -> None:
    node = DiskedNode(incarnation=1)
    play([(Open(D), Opened(S)), (Write(T, data(1)), Stored(S, data(1)))], restarts=False, node=node)
    effects = node.role.on_message(APPLICATION, make(wrong))
    assert effects == [Send(APPLICATION, Rejected(S, position, Reason.MISMATCH, 1))]
    assert node.ask(Digest(T, 1, 9)) == [Digested(S, 1, 9, (data(1),))]
    assert node.ask(Write(T, data(9))) == [Stored(S, data(9))]


@pytest.mark.parametrize(("make", "position"), [row[1:] for row in REQUESTS[4:]], ids=[row[0] for row in REQUESTS[4:]])
@pytest.mark.parametrize("wrong", [replace(T, log="other"), replace(T, stream="9.0.0")], ids=["log", "stream"])
def test_n1_a_data_request_for_another_log_or_stream_finds_nothing(
    make: Callable[[StreamTarget], Message], position: int, wrong: StreamTarget
) -> None:
    node = DiskedNode()
    node.ask(Open(D))
    assert node.ask(make(wrong)) == [Rejected(wrong.stream, position, Reason.UNKNOWN)]


@pytest.mark.parametrize("wrong", [replace(T, cluster="other"), replace(T, incarnation=7)], ids=["cluster", "disk"])
def test_n1_a_drop_for_another_identity_is_a_mismatch_even_after_a_drop(wrong: StreamTarget) -> None:
    node = DiskedNode()
    node.ask(Drop(T))
    assert node.ask(Drop(wrong)) == [Rejected(S, 0, Reason.MISMATCH, 1)]


# --------------------------------------------------------------------------------------------- durability and loss


@pytest.mark.parametrize(
    ("before", "request_"),
    [
        ([], Open(D)),
        ([Open(D)], Write(T, data(1))),
        ([Open(BD)], Append(BT, ME, data(1), 0)),
        ([Open(D)], Seal(D)),
        ([], Seal(D)),
        ([], Finalize(D, 3)),
        ([Open(D)], Trim(T, 1)),
        ([Open(D)], Drop(T)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_n2_what_an_answer_rests_on_is_persisted_before_it(before: list[Message], request_: Message) -> None:
    node = StorageNode(CLUSTER, "a", 1, NodeImage())
    for message in before:
        node.on_message(APPLICATION, message)
    first = node.on_message(APPLICATION, request_)
    assert _kinds(first)[0] is Persist
    assert _kinds(first)[-1] is Send
    again = node.on_message(APPLICATION, request_)
    assert _kinds(again) == [Send]  # nothing new to persist
    assert again[-1] == first[-1]


def _kinds(effects: Effects) -> list[type]:
    return [type(effect) for effect in effects]


def test_frames_seals_and_ends_are_announced_only_after_they_are_durable() -> None:
    node = StorageNode(CLUSTER, "a", 1, NodeImage())
    node.on_message(APPLICATION, Open(D))
    announcements = [
        node.on_message(APPLICATION, message)[1:2] for message in (Write(T, data(1)), Seal(D), Finalize(D, 2))
    ]
    assert announcements == [
        [Announce(FrameStored("a", 1, T.log, 0, S, data(1)))],
        [Announce(StreamSealed("a", T.log, 0, S, 2))],
        [Announce(StreamFinalized("a", T.log, 0, S, 2))],
    ]


def test_a_restarted_node_announces_what_it_recovered() -> None:
    node = DiskedNode()
    play([(Open(D), Opened(S)), (Write(T, data(1)), Stored(S, data(1)))], restarts=False, node=node)
    assert node.restart() == [StreamRecovered("a", 1, T.log, 0, S, (data(1),), None)]
    node.ask(Finalize(D, 2))
    assert node.restart() == [StreamRecovered("a", 1, T.log, 0, S, (data(1),), 2)]


def test_s5_n5_a_stream_that_lost_data_answers_corrupt_for_what_it_lacks_and_is_not_an_authority() -> None:
    node = DiskedNode()
    frames = [data(1), data(2), data(3)]
    play([(Open(D), Opened(S)), *((Write(T, f), Stored(S, f)) for f in frames)], restarts=False, node=node)
    node.rot(1)  # below the mark that slot 2 carries
    assert node.ask(Read(T, 1, 1)) == [ReadFrames(S, 1, (data(1),))]
    assert node.ask(Read(T, 2, 9)) == [rejected(2, Reason.CORRUPT)]
    assert node.ask(Read(T, 4, 9)) == [rejected(4, Reason.CORRUPT)]
    assert node.ask(Write(T, data(4))) == [rejected(4, Reason.CORRUPT)]
    assert node.ask(Write(T, junk(2), repair=True)) == [rejected(2, Reason.CORRUPT)]
    assert node.ask(Digest(T, 1, 4)) == [rejected(1, Reason.CORRUPT)]
    assert node.ask(Fetch(T, 1, 4)) == [rejected(1, Reason.CORRUPT)]
    assert node.ask(Seal(D)) == [Sealed(S, 4, intact=False, uncertain=False)]


def test_v3_a_stream_that_may_have_lost_its_last_frame_reports_it_when_sealed() -> None:
    node = DiskedNode()
    play([(Open(D), Opened(S)), (Write(T, data(1)), Stored(S, data(1)))], restarts=False, node=node)
    node.rot(0)
    assert node.ask(Seal(D)) == [Sealed(S, 1, intact=True, uncertain=True)]


def test_s5_a_stream_image_that_lost_data_is_sealed_from_the_start() -> None:
    image = NodeImage((StreamImage(D, (data(1),), data_loss=True),))
    node = StorageNode(CLUSTER, "a", 1, image)
    assert node.phase == "lossy"
    assert node.on_message(APPLICATION, Seal(D)) == [Send(APPLICATION, Sealed(S, 2, intact=False, uncertain=False))]


@pytest.mark.parametrize("ending", [Seal(D), Finalize(D, 2)])
def test_v4_n5_rot_in_a_sealed_stream_is_lost_data_and_accepts_no_junk(ending: Message) -> None:
    node = DiskedNode()
    play([(Open(D), Opened(S)), (Write(T, data(1)), Stored(S, data(1)))], restarts=False, node=node)
    node.ask(ending)
    node.rot(0)
    assert node.ask(Read(T, 1, 9)) == [rejected(1, Reason.CORRUPT)]
    assert node.ask(Write(T, junk(1), repair=True)) == [rejected(1, Reason.CORRUPT)]


def test_s5_s6_a_stream_that_lost_or_may_have_lost_data_reports_no_tail() -> None:
    for rotten in (0, 1):  # slot 0 lies below the mark of slot 1: lost; slot 1 above every mark: uncertain
        node = DiskedNode()
        frames = [data(1), data(2)]
        play([(Open(D), Opened(S)), *((Write(T, f), Stored(S, f)) for f in frames)], restarts=False, node=node)
        node.rot(rotten)
        assert node.ask(FindTail(T, 8)) == [rejected(8, Reason.CORRUPT)]


def test_s6_a_stream_that_may_have_lost_data_is_sealed() -> None:
    node = DiskedNode()
    play([(Open(D), Opened(S)), (Write(T, data(1)), Stored(S, data(1)))], restarts=False, node=node)
    node.rot(0)
    assert node.ask(Write(T, data(1, seq=2))) == [rejected(1, Reason.SEALED)]


@RESTARTS
def test_s6_an_end_above_what_an_uncertain_stream_has_proves_the_loss(restarts: bool) -> None:
    node = DiskedNode()
    play([(Open(BD), Opened(S)), (Append(BT, ME, data(1), 0), Stored(S, data(1)))], restarts=False, node=node)
    node.rot(0)
    play(
        [
            (Finalize(BD, 2), Finalized(S, intact=False)),
            (Read(BT, 1, 9), rejected(1, Reason.CORRUPT)),
            (Write(BT, junk(1), repair=True), rejected(1, Reason.CORRUPT)),
            (Seal(BD), Sealed(S, 1, intact=False, uncertain=True)),
        ],
        restarts=restarts,
        node=node,
    )


def test_s6_an_end_below_what_an_uncertain_stream_has_proves_nothing() -> None:
    node = DiskedNode()
    frames = [data(1), data(2)]
    play([(Open(BD), Opened(S)), *((Append(BT, ME, f, 0), Stored(S, f)) for f in frames)], restarts=False, node=node)
    node.rot(1)
    assert node.ask(Finalize(BD, 2)) == [Finalized(S)]
    assert node.ask(Read(BT, 1, 9)) == [ReadFrames(S, 1, (data(1),))]


def test_s6_an_end_above_what_an_uncertain_member_of_a_chain_has_proves_nothing() -> None:
    """The end is the largest over all groups, and other groups may be further."""
    node = DiskedNode()
    play([(Open(D), Opened(S)), (Write(T, data(1)), Stored(S, data(1)))], restarts=False, node=node)
    node.rot(0)
    assert node.ask(Seal(D)) == [Sealed(S, 1, intact=True, uncertain=True)]
    assert node.ask(Finalize(D, 9)) == [Finalized(S, intact=True)]
