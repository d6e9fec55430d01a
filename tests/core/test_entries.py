"""Frames of a stream, against a model that knows one thing only: which frame holds which position."""

from __future__ import annotations

from collections import UserList

from hypothesis import given
from hypothesis import strategies as st

from core.driver import data
from trunkline.core.entries import Frame, FrameKind, Frames, junk

Model = dict[int, Frame]

POSITIONS = st.integers(0, 40)


@st.composite
def layouts(draw: st.DrawFn) -> list[Frame]:
    """Frames that never overlap, in the order in which they happened to arrive."""
    frames: list[Frame] = []
    at = 1
    for hole, count in draw(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=8)):
        at += hole
        frames.append(data(at, count, seq=at) if draw(st.booleans()) else junk(at))
        at = frames[-1].next
    return draw(st.permutations(frames))


def model_of(frames: list[Frame]) -> Model:
    return {glsn: frame for frame in frames for glsn in range(frame.first, frame.next)}


def in_order(model: Model) -> tuple[Frame, ...]:
    return tuple(dict.fromkeys(model[glsn] for glsn in sorted(model)))


def test_junk_has_one_form_of_one_position() -> None:
    assert junk(5) == junk(5) == Frame(5, 1, FrameKind.JUNK, "", 0, 0)
    assert junk(5).next == 6


def test_frames_are_the_same_only_if_every_field_is() -> None:
    frame = Frame(1, 2, FrameKind.DATA, "w", 3, 4)
    others = [
        Frame(2, 2, FrameKind.DATA, "w", 3, 4),
        Frame(1, 1, FrameKind.DATA, "w", 3, 4),
        Frame(1, 2, FrameKind.JUNK, "w", 3, 4),
        Frame(1, 2, FrameKind.DATA, "v", 3, 4),
        Frame(1, 2, FrameKind.DATA, "w", 2, 4),
        Frame(1, 2, FrameKind.DATA, "w", 3, 5),
    ]
    assert all(frame != other for other in others)


@given(layouts())
def test_frames_added_one_by_one_equal_frames_given_at_once(frames: list[Frame]) -> None:
    added = Frames()
    for frame in frames:
        added.add(frame)
    assert added.all() == Frames(tuple(frames)).all() == in_order(model_of(frames))
    assert len(added) == len(frames)


@given(layouts(), POSITIONS)
def test_a_position_holds_the_frame_that_covers_it(frames: list[Frame], glsn: int) -> None:
    assert Frames(tuple(frames)).at(glsn) == model_of(frames).get(glsn)


@given(layouts(), POSITIONS, st.integers(1, 6))
def test_the_first_overlapping_frame_is_found(frames: list[Frame], first: int, count: int) -> None:
    model = model_of(frames)
    expected = next((model[glsn] for glsn in range(first, first + count) if glsn in model), None)
    assert Frames(tuple(frames)).overlapping(first, count) == expected


@given(layouts())
def test_the_highest_position_is_that_of_the_last_entry(frames: list[Frame]) -> None:
    assert Frames(tuple(frames)).highest() == max(model_of(frames), default=0)


@given(layouts(), POSITIONS, st.integers(1, 4))
def test_a_run_stops_at_the_first_hole_or_at_its_limit(frames: list[Frame], glsn: int, limit: int) -> None:
    model = model_of(frames)
    expected: dict[Frame, None] = {}
    at = glsn
    while at in model and len(expected | {model[at]: None}) <= limit:
        expected[model[at]] = None
        at += 1
    assert Frames(tuple(frames)).run_from(glsn, limit) == tuple(expected)


@given(layouts(), POSITIONS)
def test_the_contiguous_end_is_the_first_unwritten_position(frames: list[Frame], start: int) -> None:
    model = model_of(frames)
    expected = next(glsn for glsn in range(start, 100) if glsn not in model)
    assert Frames(tuple(frames)).contiguous_end(start) == expected


@given(layouts(), POSITIONS, POSITIONS)
def test_frames_between_two_positions_are_those_that_share_one_with_them(
    frames: list[Frame], first: int, end: int
) -> None:
    inside = {glsn: frame for glsn, frame in model_of(frames).items() if first <= glsn < end}
    assert Frames(tuple(frames)).between(first, end) == in_order(inside)


@given(layouts(), POSITIONS)
def test_a_cut_forgets_what_begins_at_or_past_the_end(frames: list[Frame], end: int) -> None:
    kept = Frames(tuple(frames))
    kept.cut_from(end)
    assert kept.all() == tuple(frame for frame in in_order(model_of(frames)) if frame.first < end)


@given(layouts(), POSITIONS)
def test_a_trim_keeps_every_frame_with_an_entry_above_the_point(frames: list[Frame], point: int) -> None:
    kept = Frames(tuple(frames))
    kept.drop_through(point)
    model = model_of(frames)
    above = {glsn: frame for glsn, frame in model.items() if glsn > point}
    assert kept.all() == in_order(above)


class Counted(UserList[Frame]):
    """A host's own container: sorted, and never asked for a copy of itself."""

    def copy(self) -> Counted:
        raise AssertionError("it must not be copied")


@given(layouts(), layouts(), POSITIONS, POSITIONS)
def test_a_hosts_own_container_is_used_in_place_and_behaves_as_a_copy_does(
    frames: list[Frame], more: list[Frame], start: int, end: int
) -> None:
    container = Counted(sorted(frames, key=lambda frame: frame.first))
    own, copied = Frames(container), Frames(tuple(frames))
    for frame in more:
        if copied.overlapping(frame.first, frame.count) is None:
            own.add(frame)
            copied.add(frame)
    assert own.all() is container
    assert own.contiguous_end(start) == copied.contiguous_end(start)
    for kept in (own, copied):
        kept.drop_through(start)
        kept.cut_from(end)
        if (found := kept.at(start + 1)) is not None:
            kept.remove(found)
    assert tuple(own.all()) == tuple(copied.all()) == tuple(container)
    assert (own.highest(), own.contiguous_end(start)) == (copied.highest(), copied.contiguous_end(start))
    assert own.run_from(start, 3) == copied.run_from(start, 3)


@given(layouts(), POSITIONS)
def test_the_contiguous_end_is_right_however_the_frames_came(frames: list[Frame], start: int) -> None:
    grown = Frames()
    for frame in frames:
        grown.add(frame)
    assert grown.contiguous_end(start) == Frames(tuple(frames)).contiguous_end(start)
