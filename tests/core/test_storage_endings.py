"""What a storage node answers when a stream is sealed, ended, dropped or trimmed, as transcripts."""

from __future__ import annotations

from core.driver import APPLICATION, DiskedNode, announced, data
from core.transcripts import RESTARTS, D, S, T, play, rejected
from trunkline.check.scenarios.cluster import LOG
from trunkline.core.effects import Announce, Persist, Send
from trunkline.core.entries import junk
from trunkline.core.events import StreamDropped
from trunkline.core.messages import (
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
    Seal,
    Sealed,
    Stored,
    TailFound,
    Trim,
    TrimDone,
    Unwritten,
    Write,
)
from trunkline.core.streams import StreamDropping


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
def test_n3_a_dropped_stream_is_never_created_again(restarts: bool) -> None:
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
