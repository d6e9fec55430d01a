"""One stream: what it may store, what it answers to Seal, and how far it can be read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.driver import data
from trunkline.check.scenarios.cluster import BROADCAST3, CHAIN3, broadcast_log, chain_log
from trunkline.core.entries import Frame, junk
from trunkline.core.messages import Reason, descriptor_of
from trunkline.core.projection import EndSegment, Opening, Owner, Policy, Projection, Seat, apply
from trunkline.core.streams import Stream, StreamImage


def stream(
    policy: Policy = Policy.CHAIN,
    frames: tuple[Frame, ...] = (),
    *,
    base: int = 1,
    sealed: bool = False,
    end: int | None = None,
    trim: int = 0,
    data_loss: bool = False,
) -> Stream:
    if policy is Policy.CHAIN:
        log = chain_log(CHAIN3, "a b c", sequencer="a")
    else:
        log = broadcast_log(BROADCAST3, "a b c", owner="w")
    log = _begun_at(log, base)
    descriptor = descriptor_of(log, log.last, log.last.members()[0])
    return Stream(StreamImage(descriptor, frames, sealed or end is not None, end, trim, data_loss))


def _begun_at(log: Projection, base: int) -> Projection:
    if base == 1:
        return log
    following = Opening((tuple(Seat(node, 1) for node in "abc"),), Owner("a", 1))
    return apply(log, EndSegment(0, base, log.last.groups, following))


def test_s2_a_sealed_stream_refuses_writes() -> None:
    assert stream().write_refusal(data(1), repair=False) is None
    assert stream(sealed=True).write_refusal(data(1), repair=False) is Reason.SEALED
    assert stream(end=5).write_refusal(data(1), repair=False) is Reason.SEALED


@pytest.mark.parametrize(
    ("first", "count", "end", "refusal"),
    [
        (1, 1, None, Reason.END_UNKNOWN),
        (4, 1, 5, None),
        (3, 2, 5, None),
        (5, 1, 5, Reason.SEALED),
        (4, 2, 5, Reason.SEALED),  # a batch is stored whole or not at all
    ],
)
def test_s3_a_repair_passes_the_seal_only_below_a_known_end(
    first: int, count: int, end: int | None, refusal: Reason | None
) -> None:
    assert stream(sealed=True, end=end).write_refusal(data(first, count), repair=True) is refusal


def test_s4_a_chain_stream_answers_seal_with_the_position_after_its_highest() -> None:
    assert stream(base=4).seal_answer() == 4
    assert stream(frames=(data(1), data(5, 2))).seal_answer() == 7


def test_s4_a_broadcast_stream_answers_seal_with_its_contiguous_end() -> None:
    assert stream(Policy.BROADCAST).seal_answer() == 1
    assert stream(Policy.BROADCAST, (data(1), data(2, 3))).seal_answer() == 5


@pytest.mark.parametrize("policy", Policy)
def test_s4_trimmed_positions_count_in_the_answer_to_seal(policy: Policy) -> None:
    assert stream(policy, trim=6).seal_answer() == 7
    assert stream(policy, (data(6, 3),), trim=6).seal_answer() == 9  # a batch that straddles the trim point


@given(st.lists(st.integers(1, 3), max_size=5), st.integers(0, 20), st.sampled_from(Policy))
def test_s4_no_trim_makes_the_answer_to_seal_smaller(counts: list[int], point: int, policy: Policy) -> None:
    frames: list[Frame] = []
    for seq, count in enumerate(counts):
        frames.append(data(frames[-1].next if frames else 1, count, seq=seq))
    whole = stream(policy, tuple(frames))
    trimmed = stream(policy, tuple(f for f in frames if f.next > point + 1), trim=point)
    assert trimmed.seal_answer() == max(whole.seal_answer(), point + 1)


def test_s5_a_stream_that_lost_data_is_sealed_and_stores_nothing() -> None:
    lossy = stream(data_loss=True)
    assert lossy.sealed
    for repair in (False, True):
        assert lossy.write_refusal(junk(1), repair=repair) is Reason.CORRUPT


def test_an_open_chain_is_readable_up_to_its_first_hole() -> None:
    frames = (data(1), data(2, 2), data(5))
    assert stream(frames=frames).readable_from(1, 9) == frames[:2]
    assert stream(frames=frames).readable_from(1, 1) == frames[:1]
    assert stream(frames=frames).readable_from(4, 9) == ()


def test_n4_an_open_broadcast_stream_is_readable_up_to_its_lac() -> None:
    frames = (data(1), data(2, 2), data(4))
    owned = stream(Policy.BROADCAST, frames)
    assert owned.readable_from(1, 9) == ()
    owned.lac = 3
    assert owned.readable_from(1, 9) == frames[:2]
    owned.lac = 2  # inside a batch: no part of it is shown
    assert owned.readable_from(1, 9) == frames[:1]


@pytest.mark.parametrize("policy", Policy)
def test_an_ended_stream_is_readable_up_to_its_end_whatever_was_released(policy: Policy) -> None:
    frames = (data(1), data(2, 2), data(4))
    assert stream(policy, frames, end=4).readable_from(1, 9) == frames[:2]
