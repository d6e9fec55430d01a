"""Frames in columns behave as a list of frames does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.core.entries import Frame, FrameKind, Frames, junk
from trunkline.storage import PackedFrames

FRAMES = st.builds(
    Frame,
    first=st.integers(1, 1 << 61),
    count=st.integers(1, (1 << 32) - 1),
    kind=st.sampled_from(FrameKind),
    writer=st.text(max_size=5),
    seq=st.integers(0, (1 << 63) - 1),
    checksum=st.integers(0, (1 << 32) - 1),
)
LISTS = st.lists(FRAMES, max_size=12)


@given(LISTS)
def test_it_holds_what_it_was_given(frames: list[Frame]) -> None:
    packed = PackedFrames(frames)
    assert (list(packed), len(packed)) == (frames, len(frames))
    assert [packed[index] for index in range(-len(frames), len(frames))] == frames * 2
    assert packed == frames
    with pytest.raises(IndexError):
        packed[len(frames)]


@given(LISTS, st.slices(12))
def test_slices_are_those_of_a_list(frames: list[Frame], part: slice) -> None:
    packed = PackedFrames(frames)
    assert list(packed[part]) == frames[part]
    del packed[part]
    del frames[part]
    assert list(packed) == frames


@given(LISTS, FRAMES, st.integers(-12, 12))
def test_insert_is_that_of_a_list(frames: list[Frame], frame: Frame, at: int) -> None:
    packed = PackedFrames(frames)
    packed.insert(at, frame)
    frames.insert(at, frame)
    assert list(packed) == frames


@given(LISTS, FRAMES)
def test_a_slice_may_grow_and_leaves_the_whole_alone(frames: list[Frame], frame: Frame) -> None:
    packed = PackedFrames(frames)
    packed[:3].append(frame)
    assert list(packed) == frames


RUNS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3)), max_size=12)


def frames_of(gaps: list[tuple[int, int]]) -> list[Frame]:
    """Frames that follow each other with gaps."""
    made, first = [], 1
    for gap, count in gaps:
        first += gap
        made.append(Frame(first, count, FrameKind.DATA, f"w{first % 3}", first, first))
        first += count
    return made


@given(RUNS, st.randoms())
def test_frames_added_in_any_order_are_sorted(gaps: list[tuple[int, int]], order: object) -> None:
    frames = frames_of(gaps)
    shuffled = sorted(frames, key=lambda frame: hash((frame.first, id(order))))
    packed = PackedFrames()
    for frame in shuffled:
        packed.add(frame)
    assert list(packed) == frames


@given(RUNS, st.integers(0, 12))
def test_lists_are_merged_in_order(gaps: list[tuple[int, int]], cut: int) -> None:
    frames = frames_of(gaps)
    one, two = PackedFrames(frames[:cut]), PackedFrames(frames[cut:])
    one.merge(two)
    assert list(one) == frames
    odd, even = PackedFrames(frames[1::2]), PackedFrames(frames[::2])
    odd.merge(even)
    assert list(odd) == frames


@given(RUNS, st.integers(0, 40))
def test_ends_and_trims_cut_as_a_stream_does(gaps: list[tuple[int, int]], point: int) -> None:
    frames = tuple(frames_of(gaps))
    for name in ("cut_from", "drop_through"):
        packed, stream = PackedFrames(frames), Frames(frames)
        getattr(packed, name)(point)
        getattr(stream, name)(point)
        assert tuple(packed) == tuple(stream.all())


def test_a_frame_is_never_replaced() -> None:
    with pytest.raises(TypeError, match="never changes"):
        PackedFrames([junk(1)])[0] = junk(2)
