"""A storage node that is asked to fill a run of holes at once."""

from __future__ import annotations

from core.driver import DiskedNode, data
from core.transcripts import BD, BT, RESTARTS, D, S, T, play, rejected
from trunkline.core.entries import junk
from trunkline.core.messages import (
    FillRun,
    Finalize,
    Finalized,
    FindTail,
    Open,
    Opened,
    Read,
    ReadFrames,
    Reason,
    RunFilled,
    Seal,
    Sealed,
    Space,
    Stored,
    Subscribe,
    TailFound,
    Trim,
    TrimDone,
    Write,
    Written,
)
from trunkline.core.storage import SpaceChanged


@RESTARTS
def test_s1_a_run_of_holes_is_filled_up_to_the_first_entry(restarts: bool) -> None:
    six = data(6, 2)
    play(
        [
            (Open(D), Opened(S)),
            (Write(T, junk(3)), Stored(S, junk(3))),
            (Write(T, six), Stored(S, six)),
            (FillRun(T, 1, 9), RunFilled(S, 1, 9, 6)),
            (FillRun(T, 1, 9), RunFilled(S, 1, 9, 6)),  # again: nothing changes
            (FillRun(T, 2, 5), RunFilled(S, 2, 5, 5)),
            (FillRun(T, 7, 9), RunFilled(S, 7, 9, 7)),  # inside an entry's batch
            (FillRun(T, 8, 10), RunFilled(S, 8, 10, 10)),
            (Read(T, 1, 99), ReadFrames(S, 1, (*map(junk, range(1, 6)), six, junk(8), junk(9)))),
            (Write(T, data(4)), Written(S, data(4), junk(4))),
            (FindTail(T, 1), TailFound(S, 1, 10, 0)),
        ],
        restarts=restarts,
    )


@RESTARTS
def test_s3_a_run_of_holes_passes_a_seal_only_below_a_known_end(restarts: bool) -> None:
    play(
        [
            (FillRun(T, 1, 9), rejected(1, Reason.UNKNOWN)),
            (Seal(D), Sealed(S, 1, intact=True, uncertain=False)),
            (FillRun(T, 1, 9), rejected(1, Reason.SEALED)),
            (FillRun(T, 1, 9, repair=True), rejected(1, Reason.END_UNKNOWN)),
            (Finalize(D, 5), Finalized(S)),
            (FillRun(T, 1, 9, repair=True), rejected(1, Reason.SEALED)),
            (FillRun(T, 1, 5, repair=True), RunFilled(S, 1, 5, 5)),
            (Trim(T, 2), TrimDone(S, 2)),
            (FillRun(T, 2, 5, repair=True), rejected(2, Reason.TRIMMED, 2)),
        ],
        restarts=restarts,
    )


def test_a_broadcast_stream_has_no_holes_to_fill() -> None:
    node = DiskedNode()
    node.ask(Open(BD))
    assert node.ask(FillRun(BT, 1, 3)) == [rejected(1, Reason.MISMATCH, 1)]


def test_a_full_disk_takes_a_run_of_holes() -> None:
    node = DiskedNode()
    node.ask(Open(D))
    node.ask(SpaceChanged(Space.FULL))
    assert node.ask(FillRun(T, 1, 3)) == [RunFilled(S, 1, 3, 3)]
    node.ask(SpaceChanged(Space.EXHAUSTED))
    assert node.ask(FillRun(T, 1, 3)) == [RunFilled(S, 1, 3, 3)]  # it is there
    assert node.ask(FillRun(T, 1, 4)) == [rejected(1, Reason.NO_SPACE)]


def test_a_subscriber_is_woken_by_a_run_of_holes() -> None:
    node = DiskedNode()
    node.ask(Open(D))
    assert node.ask(Subscribe(T, 1, 9)) == []
    assert node.ask(FillRun(T, 1, 3)) == [RunFilled(S, 1, 3, 3), ReadFrames(S, 1, (junk(1), junk(2)))]
