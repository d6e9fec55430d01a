"""What a storage node shows to readers and subscribers, and what damage leaves of it."""

from __future__ import annotations

import pytest

from core.driver import APPLICATION, DiskedNode, data, sent
from core.transcripts import BD, BT, ME, RESTARTS, D, S, T, play, rejected
from trunkline.check.scenarios.cluster import LOG
from trunkline.core.effects import Address, Announce, Message, Persist, Send
from trunkline.core.events import StreamDamaged
from trunkline.core.messages import (
    Append,
    Digest,
    Digested,
    Fetch,
    Fetched,
    Finalize,
    FindTail,
    Open,
    Opened,
    Read,
    ReadFrames,
    Reason,
    Release,
    Seal,
    Sealed,
    Stored,
    Subscribe,
    TailFound,
    Trim,
    Unwritten,
    Write,
)
from trunkline.core.storage import FramesDamaged, SubscriberGone
from trunkline.core.streams import StreamLosing

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
    assert node.ask(Write(T, data(2))) == [Stored(S, data(2))]  # no subscriber waits any more


def test_a_subscriber_gets_an_answer_for_a_hole_below_written_positions() -> None:
    node = DiskedNode()
    node.ask(Open(D))
    node.ask(Subscribe(T, 1, 9))
    assert node.ask(Write(T, data(2))) == [Stored(S, data(2)), Unwritten(S, 1, 3, sealed=False)]


@pytest.mark.parametrize("ending", [Seal(D), Finalize(D, 1)])
def test_a_subscriber_gets_an_answer_for_a_seal_and_for_an_end(ending: Message) -> None:
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


# --------------------------------------------------------------------------------------------- from the host


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


def test_s5_damage_is_durable_before_any_answer_and_wakes_subscribers() -> None:
    node = DiskedNode()
    for request in (Open(D), Write(T, data(1)), Subscribe(T, 2, 9)):
        node.ask(request)
    effects = node.role.on_message(APPLICATION, FramesDamaged((LOG, S), (data(1),)))
    losing, event, answer = effects
    assert losing == Persist(StreamLosing((LOG, S), (data(1),)))
    assert event == Announce(StreamDamaged("a", LOG, 0, S, (data(1),)))
    assert answer == Send(APPLICATION, rejected(2, Reason.CORRUPT))


def test_damage_of_removed_frames_changes_nothing() -> None:
    node = DiskedNode()
    assert node.role.on_message(APPLICATION, FramesDamaged((LOG, S), (data(1),))) == []
    for request in (Open(D), Write(T, data(1)), Write(T, data(2)), Trim(T, 1)):
        node.ask(request)
    assert node.role.on_message(APPLICATION, FramesDamaged((LOG, S), (data(1), data(2, seq=9)))) == []
    assert node.ask(Seal(D)) == [Sealed(S, 3, intact=True, uncertain=False)]


def test_a_subscriber_whose_connection_closed_is_forgotten() -> None:
    node = DiskedNode()
    staying, leaving = Address("r1", "reader"), Address("r2", "reader")
    node.ask(Open(D))
    for source in (staying, leaving):
        node.ask(Subscribe(T, 1, 9), source)
    node.ask(SubscriberGone("r2"))
    answers = sent(node.role.on_message(APPLICATION, Write(T, data(1))))
    assert [to for to, _ in answers] == ["client.application", "r1.reader"]
    node.ask(SubscriberGone("r1"))
    assert node.role.waiting == {}
