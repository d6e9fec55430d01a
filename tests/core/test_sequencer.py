"""The sequencer: which process it serves, from where, and what a grant skips."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from core.driver import APPLICATION, messages, records
from trunkline.check.scenarios.cluster import CHAIN2, LOG, chain_log
from trunkline.core.effects import Message
from trunkline.core.messages import Granted, Next, NotGranted, Peek, Peeked, Reason
from trunkline.core.projection import EndSegment, Opening, Owner, Projection, Seat, Segment, apply
from trunkline.core.sequencer import SLOW_MAX, Sequencer, unit_start

ME = Owner("a", 1)


def log(*groups: str, stripe_unit: int = 4) -> Projection:
    return chain_log(replace(CHAIN2, stripe_unit=stripe_unit), *groups, sequencer="a")


def ask(sequencer: Sequencer, message: Message) -> Message:
    effects = sequencer.on_message(APPLICATION, message)
    assert records(effects) == []  # Q4
    [answer] = messages(effects)
    return answer


def next_(segment: Segment, seq: int, count: int = 1, expect: int | None = None) -> Next:
    return Next(LOG, segment, "w", seq, count, expect)


def granted(seq: int, first: int, skipped: int | None = None, segment: int = 0) -> Granted:
    return Granted(LOG, segment, "w", seq, first, first if skipped is None else skipped)


def test_q2_grants_follow_each_other_from_the_base_on() -> None:
    segment = log("a b").last
    sequencer = Sequencer(ME)
    assert ask(sequencer, next_(segment, 1)) == granted(1, 1)
    assert ask(sequencer, next_(segment, 2, count=3)) == granted(2, 2)
    assert ask(sequencer, next_(segment, 3)) == granted(3, 5)
    assert ask(sequencer, Peek(LOG, segment)) == Peeked(LOG, 0, 6, 6, 0)


@pytest.mark.parametrize("me", [Owner("a", 2), Owner("b", 1)], ids=["restarted", "another"])
def test_q1_only_the_process_start_that_the_segment_names_serves_it(me: Owner) -> None:
    segment = log("a b").last
    sequencer = Sequencer(me)
    assert ask(sequencer, next_(segment, 1)) == NotGranted(LOG, 0, "w", 1, Reason.NOT_OWNER)
    assert ask(sequencer, Peek(LOG, segment)) == NotGranted(LOG, 0, "", 0, Reason.NOT_OWNER)
    assert sequencer.phase == "idle"


def test_q2_a_later_segment_begins_at_its_base_and_the_older_one_is_over() -> None:
    view = log("a b")
    sequencer = Sequencer(ME)
    ask(sequencer, next_(view.last, 1, count=5))
    following = Opening(((Seat("a", 1),),), ME)
    later = apply(view, EndSegment(0, 3, view.last.groups, following))
    assert ask(sequencer, next_(later.last, 2)) == granted(2, 3, segment=1)
    assert ask(sequencer, next_(view.last, 3)) == NotGranted(LOG, 0, "w", 3, Reason.SEALED)
    assert ask(sequencer, next_(later.last, 4)) == granted(4, 4, segment=1)


def test_q2_logs_are_served_apart() -> None:
    segment = log("a b").last
    sequencer = Sequencer(ME)
    ask(sequencer, next_(segment, 1, count=3))
    assert ask(sequencer, Next("other", segment, "w", 1, 1)) == Granted("other", 0, "w", 1, 1, 1)


def test_q3_a_grant_that_would_cross_a_stripe_unit_skips_to_the_next() -> None:
    segment = log("a b", "b a").last  # units [1, 4], [5, 8], ...
    sequencer = Sequencer(ME)
    assert ask(sequencer, next_(segment, 1, count=3)) == granted(1, 1)
    assert ask(sequencer, next_(segment, 2, count=2)) == granted(2, 5, skipped=4)
    assert ask(sequencer, next_(segment, 3, count=2)) == granted(3, 7)


def test_q3_with_one_group_there_is_no_unit_to_cross() -> None:
    segment = log("a b").last
    sequencer = Sequencer(ME)
    ask(sequencer, next_(segment, 1, count=3))
    assert ask(sequencer, next_(segment, 2, count=9)) == granted(2, 4)


@given(st.integers(1, 3), st.integers(1, 5), st.integers(0, 30), st.data())
def test_q3_a_grant_stays_in_one_group_and_skips_no_more_than_it_must(
    groups: int, unit: int, offset: int, more: st.DataObject
) -> None:
    segment = log(*["a b", "b c", "c d"][:groups], stripe_unit=unit).last
    position = segment.base + offset
    count = more.draw(st.integers(1, unit))

    def fits(first: int) -> bool:
        return len({segment.group_of(first + i) for i in range(count)}) == 1

    expected = next(first for first in range(position, position + 2 * unit) if fits(first))
    assert unit_start(segment, position, count) == expected


def test_a_condition_that_does_not_hold_grants_nothing() -> None:
    segment = log("a b").last
    sequencer = Sequencer(ME)
    assert ask(sequencer, next_(segment, 1, expect=2)) == NotGranted(LOG, 0, "w", 1, Reason.GAP, 1)
    assert ask(sequencer, next_(segment, 2, expect=1)) == granted(2, 1)


def test_a_condition_is_held_against_the_position_after_the_skip() -> None:
    segment = log("a b", "b a").last
    sequencer = Sequencer(ME)
    ask(sequencer, next_(segment, 1, count=3))
    assert ask(sequencer, next_(segment, 2, count=2, expect=4)) == NotGranted(LOG, 0, "w", 2, Reason.GAP, 5)
    assert ask(sequencer, next_(segment, 3, count=2, expect=5)) == granted(3, 5, skipped=4)


def test_q5_readers_learn_which_writer_was_beaten() -> None:
    segment = log("a b").last
    sequencer = Sequencer(ME)
    ask(sequencer, next_(segment, 1, count=2))
    ask(sequencer, replace(next_(segment, 2, count=3), beaten=2))
    ask(sequencer, next_(segment, 3))
    answers = [ask(sequencer, Peek(LOG, segment, glsn)) for glsn in range(1, 8)]
    assert answers == [Peeked(LOG, 0, 7, alike, beaten) for alike, beaten in [(3, 0)] * 2 + [(6, 2)] * 3 + [(7, 0)] * 2]


def test_q5_only_so_many_slow_appends_are_remembered() -> None:
    segment = log("a b").last
    sequencer = Sequencer(ME)
    for seq in range(1, 2 * SLOW_MAX):
        ask(sequencer, replace(next_(segment, seq), beaten=seq))
    assert len(sequencer.serving[LOG].slow) == SLOW_MAX
    newest = ask(sequencer, Peek(LOG, segment, 2 * SLOW_MAX - 1))
    assert newest == Peeked(LOG, 0, 2 * SLOW_MAX, 2 * SLOW_MAX, 2 * SLOW_MAX - 1)


def test_q3_a_batch_larger_than_a_stripe_unit_is_not_granted() -> None:
    segment = log("a b", "b a", stripe_unit=4).last
    sequencer = Sequencer(ME)
    assert ask(sequencer, next_(segment, 1, count=5)) == NotGranted(LOG, 0, "w", 1, Reason.TOO_LARGE)
    assert ask(sequencer, next_(segment, 2, count=4)) == granted(2, 1)
