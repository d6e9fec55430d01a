"""The filler: positions and runs of them, from the head down."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from core.driver import announced, data, messages, sent, storage, target, timers
from trunkline.check.scenarios.cluster import CHAIN3, chain_log
from trunkline.core.effects import Address, Effects, Message
from trunkline.core.entries import Frame, junk
from trunkline.core.events import HoleFilled, ValueCarried
from trunkline.core.filler import Filler
from trunkline.core.messages import (
    FillRun,
    Finalize,
    Finalized,
    Open,
    Opened,
    Read,
    ReadFrames,
    Reason,
    Rejected,
    RunFilled,
    Stored,
    Unwritten,
    Write,
    Written,
    descriptor_of,
)
from trunkline.core.projection import EndSegment, MarkRepaired, Projection, apply
from trunkline.core.siblings import Fill, FillDone

OPEN = chain_log(CHAIN3, "a b c", sequencer="a")
ENDED = apply(OPEN, EndSegment(0, 4, OPEN.last.groups, None))
REPAIRED = apply(ENDED, MarkRepaired(0))
READER = Address("client", "reader")
HEAD, MIDDLE, LAST = (member.stream for member in OPEN.last.members())


class Filled:
    """A filler that was asked to settle position 2."""

    def __init__(self, view: Projection) -> None:
        self.role = Filler()
        self.begun = self.role.on_message(READER, Fill(view, 0, 2, 3))

    def deliver(self, message: Message) -> Effects:
        return self.role.on_message(storage("x"), message)


def write(view: Projection, stream: str, frame: Frame) -> Write:
    return Write(target(view, stream), frame, repair=not view.last.is_open)


@pytest.mark.parametrize("view", [OPEN, ENDED], ids=["open", "ended"])
def test_f1_f3_a_hole_becomes_junk_from_the_head_down_and_counts_when_all_have_it(view: Projection) -> None:
    filler = Filled(view)
    assert sent(filler.begun) == [("a.storage", write(view, HEAD, junk(2)))]
    assert sent(filler.deliver(Stored(HEAD, junk(2)))) == [("b.storage", write(view, MIDDLE, junk(2)))]
    assert sent(filler.deliver(Stored(MIDDLE, junk(2)))) == [("c.storage", write(view, LAST, junk(2)))]
    effects = filler.deliver(Stored(LAST, junk(2)))
    assert sent(effects) == [("self.reader", FillDone(0, 2, (junk(2),)))]
    assert announced(effects) == [HoleFilled(view.log, 0, junk(2))]
    assert filler.role.phase == "idle"


def test_f1_the_value_of_the_head_is_carried_on_unchanged() -> None:
    filler = Filled(OPEN)
    assert messages(filler.deliver(Written(HEAD, junk(2), data(2)))) == [write(OPEN, MIDDLE, data(2))]
    assert messages(filler.deliver(Stored(MIDDLE, data(2)))) == [write(OPEN, LAST, data(2))]
    effects = filler.deliver(Stored(LAST, data(2)))
    assert messages(effects) == [FillDone(0, 2, (data(2),))]
    assert announced(effects) == [ValueCarried(OPEN.log, 0, data(2))]


def test_f2_another_value_further_down_returns_nothing() -> None:
    filler = Filled(OPEN)
    filler.deliver(Stored(HEAD, junk(2)))
    assert messages(filler.deliver(Written(MIDDLE, junk(2), data(2)))) == [FillDone(0, 2, (), Reason.STALE, "b")]


def test_f4_a_member_receives_the_end_before_it_is_written() -> None:
    filler = Filled(ENDED)
    head = ENDED.last.members()[0]
    asked = filler.deliver(Rejected(HEAD, 2, Reason.END_UNKNOWN))
    assert messages(asked) == [Finalize(descriptor_of(ENDED, ENDED.last, head), 4)]
    assert filler.role.phase == "preparing"
    assert messages(filler.deliver(Finalized(HEAD))) == [write(ENDED, HEAD, junk(2))]


def test_f4_a_member_that_lacks_an_open_stream_opens_it_first() -> None:
    filler = Filled(OPEN)
    head = OPEN.last.members()[0]
    assert messages(filler.deliver(Rejected(HEAD, 2, Reason.UNKNOWN))) == [Open(descriptor_of(OPEN, OPEN.last, head))]
    assert messages(filler.deliver(Opened(HEAD))) == [write(OPEN, HEAD, junk(2))]


# ------------------------------------------------------------------------------------------------ repaired segments


def read(stream: str) -> Read:
    return Read(target(REPAIRED, stream), 2, 1)


def unwritten(stream: str) -> Unwritten:
    return Unwritten(stream, 2, 4, sealed=True)


def end_notice(stream: str) -> Finalize:
    member = next(m for m in REPAIRED.last.members() if m.stream == stream)
    return Finalize(descriptor_of(REPAIRED, REPAIRED.last, member), 4)


@pytest.mark.parametrize("value", [data(2), data(1, 3), junk(2)], ids=["entry", "batch", "junk"])
def test_f5_in_a_repaired_segment_the_first_member_that_has_the_value_is_enough(value: Frame) -> None:
    filler = Filled(REPAIRED)
    assert sent(filler.begun) == [("a.storage", read(HEAD))]
    effects = filler.deliver(ReadFrames(HEAD, 2, (value,)))
    assert messages(effects) == [FillDone(0, 2, (value,))]
    assert announced(effects) == []  # it was settled when the segment was repaired
    assert filler.role.phase == "idle"


@pytest.mark.parametrize("why", ["silent", "corrupt"])
def test_f5_a_repaired_segment_is_read_around_a_bad_member(why: str) -> None:
    filler = Filled(REPAIRED)
    corrupt = Rejected(HEAD, 2, Reason.CORRUPT)
    effects = filler.role.on_timer("0.2") if why == "silent" else filler.deliver(corrupt)
    assert sent(effects) == [("b.storage", read(MIDDLE))]


def test_f5_a_member_without_the_value_receives_the_end_once_and_is_read_again() -> None:
    filler = Filled(REPAIRED)
    assert sent(filler.deliver(unwritten(HEAD))) == [("a.storage", end_notice(HEAD))]
    assert filler.role.phase == "preparing"
    assert filler.deliver(unwritten(HEAD)) == []  # doubled
    assert sent(filler.deliver(Finalized(HEAD))) == [("a.storage", read(HEAD))]
    assert messages(filler.deliver(ReadFrames(HEAD, 2, (data(2),)))) == [FillDone(0, 2, (data(2),))]


def test_f5_a_member_that_knows_the_end_and_has_nothing_is_passed_over() -> None:
    filler = Filled(REPAIRED)
    for stream, following in ((HEAD, MIDDLE), (MIDDLE, LAST)):
        assert messages(filler.deliver(unwritten(stream))) == [end_notice(stream)]
        filler.deliver(Finalized(stream))
        assert messages(filler.deliver(unwritten(stream))) == [read(following)]
    filler.deliver(unwritten(LAST))
    filler.deliver(Finalized(LAST))
    assert messages(filler.deliver(unwritten(LAST))) == [FillDone(0, 2, (), Reason.CORRUPT, "c")]


def test_f5_what_is_read_of_another_position_or_member_is_late() -> None:
    filler = Filled(REPAIRED)
    assert filler.deliver(ReadFrames(HEAD, 3, (data(3),))) == []
    assert filler.deliver(ReadFrames(MIDDLE, 2, (data(2),))) == []
    assert filler.deliver(unwritten(MIDDLE)) == []


def test_f3_what_was_read_does_not_settle_a_segment_that_is_not_repaired() -> None:
    filler = Filled(ENDED)
    assert filler.deliver(ReadFrames(HEAD, 2, (data(2),))) == []
    assert filler.deliver(unwritten(HEAD)) == []


@pytest.mark.parametrize("reason", [Reason.SEALED, Reason.TRIMMED, Reason.CORRUPT, Reason.GONE])
def test_a_refusal_is_passed_on(reason: Reason) -> None:
    filler = Filled(OPEN)
    assert messages(filler.deliver(Rejected(HEAD, 2, reason))) == [FillDone(0, 2, (), reason, "a")]


def test_silence_is_passed_on_too() -> None:
    filler = Filled(OPEN)
    assert timers(filler.begun) == ["0.2"]
    assert messages(filler.role.on_timer("0.2")) == [FillDone(0, 2, (), Reason.SILENT, "a")]


def test_two_roles_that_ask_for_one_position_share_the_answer() -> None:
    filler = Filled(REPAIRED)
    assert filler.role.on_message(Address("client", "appender"), Fill(REPAIRED, 0, 2, 3)) == []
    answer = FillDone(0, 2, (data(2),))
    effects = filler.deliver(ReadFrames(HEAD, 2, (data(2),)))
    assert sent(effects) == [("self.reader", answer), ("self.appender", answer)]


def test_an_answer_of_another_member_or_to_another_offer_is_late() -> None:
    filler = Filled(OPEN)
    assert filler.deliver(Stored(LAST, junk(2))) == []
    assert filler.deliver(Stored(HEAD, junk(3))) == []
    assert filler.deliver(Written(HEAD, data(2), data(2, seq=9))) == []


# ---------------------------------------------------------------------------------------------------------- runs


class FilledRun(Filled):
    """A filler that was asked to settle positions from 2 on."""

    def __init__(self, view: Projection, end: int, *, whole: bool = False) -> None:
        self.role = Filler()
        self.begun = self.role.on_message(READER, Fill(view, view.last.index, 2, end, whole))

    def reach(self, view: Projection, asked: Effects, reached: int) -> Effects:
        """The member that was asked for a run has filled it so far."""
        [fill] = messages(asked)
        assert isinstance(fill, FillRun)
        assert fill.repair is not view.last.is_open
        return self.deliver(RunFilled(fill.target.stream, fill.first, fill.end, reached))


def holes(first: int, end: int) -> tuple[Frame, ...]:
    return tuple(map(junk, range(first, end)))


def test_f1_f3_a_run_of_holes_becomes_junk_from_the_head_down_by_one_request_each() -> None:
    filler = FilledRun(OPEN, 1000)
    assert sent(filler.begun) == [("a.storage", FillRun(target(OPEN, HEAD), 2, 1000))]
    asked = filler.reach(OPEN, filler.begun, 1000)
    assert sent(asked) == [("b.storage", FillRun(target(OPEN, MIDDLE), 2, 1000))]
    asked = filler.reach(OPEN, asked, 1000)
    effects = filler.reach(OPEN, asked, 1000)
    assert sent(effects) == [("self.reader", FillDone(0, 2, holes(2, 1000)))]
    assert announced(effects) == [HoleFilled(OPEN.log, 0, hole) for hole in holes(2, 1000)]


@pytest.mark.parametrize("reached", [3, 700])
def test_f1_a_run_ends_where_the_head_has_an_entry(reached: int) -> None:
    filler = FilledRun(OPEN, 1000)
    effects = filler.reach(OPEN, filler.begun, reached)
    for stream in (MIDDLE, LAST):
        if reached == 3:
            assert messages(effects) == [write(OPEN, stream, junk(2))]
            effects = filler.deliver(Stored(stream, junk(2)))
        else:
            assert messages(effects) == [FillRun(target(OPEN, stream), 2, reached)]
            effects = filler.reach(OPEN, effects, reached)
    assert messages(effects) == [FillDone(0, 2, holes(2, reached))]


def test_f1_an_entry_at_the_beginning_of_a_run_is_carried_on_alone() -> None:
    filler = FilledRun(OPEN, 1000)
    assert messages(filler.reach(OPEN, filler.begun, 2)) == [write(OPEN, HEAD, junk(2))]
    assert messages(filler.deliver(Written(HEAD, junk(2), data(2, 3)))) == [write(OPEN, MIDDLE, data(2, 3))]
    filler.deliver(Stored(MIDDLE, data(2, 3)))
    assert messages(filler.deliver(Stored(LAST, data(2, 3)))) == [FillDone(0, 2, (data(2, 3),))]


@pytest.mark.parametrize("reached", [3, 700])
def test_f2_an_entry_further_down_where_the_head_has_junk_returns_nothing(reached: int) -> None:
    filler = FilledRun(OPEN, 1000)
    asked = filler.reach(OPEN, filler.begun, reached)
    other = Written(MIDDLE, junk(2), data(2))
    effects = filler.deliver(other) if reached == 3 else filler.reach(OPEN, asked, reached - 1)
    assert messages(effects) == [FillDone(0, 2, (), Reason.STALE, "b")]


def test_f4_a_member_receives_the_end_before_a_run_is_written() -> None:
    filler = FilledRun(ENDED, 4)
    assert messages(filler.deliver(Rejected(HEAD, 2, Reason.END_UNKNOWN))) == [end_notice(HEAD)]
    assert messages(filler.deliver(Finalized(HEAD))) == [FillRun(target(ENDED, HEAD), 2, 4, repair=True)]


def test_f5_of_a_repaired_segment_a_run_is_read_and_not_written() -> None:
    assert messages(FilledRun(REPAIRED, 4).begun) == [read(HEAD)]


def test_f6_a_run_ends_with_its_stripe_unit() -> None:
    view = chain_log(replace(CHAIN3, stripe_unit=4), "a b", "b c", sequencer="a")
    [asked] = messages(FilledRun(view, 1000).begun)
    assert asked == FillRun(target(view, view.last.groups[0][0].stream), 2, 5)


def test_an_insisting_requester_gets_the_whole_run_filled_unit_by_unit() -> None:
    view = chain_log(replace(CHAIN3, stripe_unit=4), "a", "b", sequencer="a")
    filler = FilledRun(view, 11, whole=True)
    filled, effects = [], filler.begun
    while asked := [message for message in messages(effects) if isinstance(message, FillRun)]:
        [fill] = asked
        filled.append((fill.first, fill.end))
        effects = filler.deliver(RunFilled(fill.target.stream, fill.first, fill.end, fill.end))
    assert filled == [(2, 5), (5, 9), (9, 11)]


def test_a_late_answer_to_another_run_is_not_taken() -> None:
    filler = FilledRun(OPEN, 1000)
    assert filler.deliver(RunFilled(HEAD, 2, 999, 999)) == []
    assert filler.deliver(RunFilled(HEAD, 3, 1000, 1000)) == []
    assert filler.deliver(RunFilled(MIDDLE, 2, 1000, 1000)) == []
    assert filler.deliver(Stored(HEAD, junk(2))) == []


def test_the_head_goes_on_with_the_next_run_while_the_others_have_this_one() -> None:
    view = chain_log(replace(CHAIN3, stripe_unit=4), "a b", "b a", sequencer="a")
    filler = FilledRun(view, 9)
    [first] = messages(filler.begun)
    assert isinstance(first, FillRun)
    effects = filler.deliver(RunFilled(first.target.stream, 2, 5, 5))
    assert [(to, m.first, m.end) for to, m in sent(effects) if isinstance(m, FillRun)] == [
        ("b.storage", 2, 5),
        ("b.storage", 5, 9),
    ]
    assert filler.role.on_message(READER, Fill(view, 0, 5, 9)) == []  # it is already in progress
