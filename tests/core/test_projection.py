"""The fold of changes into projections: each rule, and random changes against a plain reading of all of them."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from trunkline.check.scenarios.cluster import CHAIN3, CLUSTER, LOG, chain_log
from trunkline.core.projection import (
    AddJoiner,
    AdmitJoiner,
    Change,
    DeleteLog,
    EndSegment,
    ForgetSegment,
    Group,
    IllegalChange,
    MarkRepaired,
    Opening,
    Owner,
    Policy,
    Projection,
    RaiseTrim,
    RemoveMember,
    Reopen,
    Seat,
    Segment,
    Settings,
    apply,
    create,
)
from trunkline.core.transitions import transition_fault

OWNER = Owner("a", 1)


def opening(*groups: str, owner: Owner = OWNER) -> Opening:
    return Opening(tuple(tuple(Seat(node, 1) for node in group.split()) for group in groups), owner)


def ended(view: Projection, end: int, next_group: str | None = "d e") -> Projection:
    """The projection after its last segment ended at ``end`` with all its members."""
    following = opening(next_group, owner=Owner("d", 1)) if next_group is not None else None
    return apply(view, EndSegment(view.last.index, end, view.last.groups, following))


def three() -> Projection:
    return chain_log(CHAIN3, "a b c", sequencer="a")


# ------------------------------------------------------------------------------------------------------- rule by rule


def test_p1_a_change_makes_the_next_projection_and_leaves_the_old_one() -> None:
    before = three()
    copy = msgspec.json.encode(before)
    after = apply(before, RaiseTrim(1))
    assert after.epoch == before.epoch + 1
    assert msgspec.json.encode(before) == copy


@pytest.mark.parametrize("change", [RemoveMember(0, "1.0.2"), AddJoiner(0, 0, Seat("d", 1)), MarkRepaired(0)])
def test_p2_an_open_segment_keeps_its_members_and_is_not_repaired(change: Change) -> None:
    with pytest.raises(IllegalChange, match="has not ended"):
        apply(three(), change)


def test_p2_only_the_last_segment_is_open() -> None:
    with pytest.raises(IllegalChange, match="already open"):
        apply(three(), Reopen(opening("d")))
    view = ended(three(), 4)
    assert [segment.is_open for segment in view.segments] == [False, True]
    assert (view.segments[0].end, view.last.base) == (4, 4)


def test_p3_an_end_is_written_once() -> None:
    view = ended(three(), 4)
    with pytest.raises(IllegalChange, match="only the open segment"):
        apply(view, EndSegment(0, 5, view.segments[0].groups, None))


def test_p3_a_segment_without_a_following_one_ends_the_log_until_it_is_reopened() -> None:
    read_only = ended(three(), 4, None)
    assert not read_only.last.is_open
    again = apply(read_only, Reopen(opening("b c")))
    assert (again.last.index, again.last.base, again.last.epoch) == (1, 4, 3)


def test_p3_survivors_are_members_in_their_old_order() -> None:
    view = three()
    a, b, c = view.last.members()
    kept = apply(view, EndSegment(0, 4, ((a, c),), None))
    assert kept.last.groups == ((a, c),)
    stranger = replace(b, stream="9.0.0")
    for wrong in ((c, a), (a, a), (a, stranger), ()):
        with pytest.raises(IllegalChange):
            apply(view, EndSegment(0, 4, (wrong,), None))


def test_p3_a_segment_does_not_end_before_its_base() -> None:
    view = ended(three(), 4)
    with pytest.raises(IllegalChange, match="before its base"):
        apply(view, EndSegment(1, 3, view.last.groups, None))


def test_p4_what_a_segment_is_does_not_change_with_its_end_and_its_members() -> None:
    before = three()
    after = apply(apply(ended(before, 4), MarkRepaired(0)), RemoveMember(0, "1.0.1"))
    assert _character(after.segments[0]) == _character(before.segments[0])
    assert after.segments[0].epoch == 1


def test_p5_a_member_joins_only_a_repaired_segment_and_under_a_new_stream_id() -> None:
    view = ended(three(), 4)
    with pytest.raises(IllegalChange, match="repaired"):
        apply(view, AddJoiner(0, 0, Seat("f", 1)))
    joined = apply(apply(view, MarkRepaired(0)), AddJoiner(0, 0, Seat("f", 1)))
    joiner = joined.segments[0].groups[0][-1]
    assert joiner.joining
    assert joiner.stream not in {m.stream for s in view.segments for m in s.members()}
    admitted = apply(joined, AdmitJoiner(0, joiner.stream))
    assert admitted.segments[0].groups[0][-1] == replace(joiner, joining=False)


def test_p5_a_member_that_left_comes_back_under_another_stream_id() -> None:
    view = apply(ended(three(), 4), MarkRepaired(0))
    once = apply(view, AddJoiner(0, 0, Seat("f", 1)))
    first = once.segments[0].groups[0][-1]
    twice = apply(apply(once, RemoveMember(0, first.stream)), AddJoiner(0, 0, Seat("f", 1)))
    assert twice.segments[0].groups[0][-1].stream != first.stream


def test_p5_a_node_is_in_a_group_once_and_only_a_joiner_is_admitted() -> None:
    view = apply(ended(three(), 4), MarkRepaired(0))
    with pytest.raises(IllegalChange, match="already a member"):
        apply(view, AddJoiner(0, 0, Seat("b", 1)))
    with pytest.raises(IllegalChange, match="no such joiner"):
        apply(view, AdmitJoiner(0, "1.0.0"))


def test_p6_the_last_member_that_is_not_joining_stays() -> None:
    view = apply(ended(three(), 4), MarkRepaired(0))
    view = apply(apply(view, RemoveMember(0, "1.0.0")), RemoveMember(0, "1.0.1"))
    view = apply(view, AddJoiner(0, 0, Seat("f", 1)))
    with pytest.raises(IllegalChange, match="last serving member"):
        apply(view, RemoveMember(0, "1.0.2"))
    joiner = view.segments[0].groups[0][-1]
    assert apply(view, RemoveMember(0, joiner.stream)).segments[0].groups[0] == (three().last.members()[2],)


def test_p7_the_trim_point_only_grows() -> None:
    view = apply(three(), RaiseTrim(5))
    assert view.trim == 5
    for point in (5, 4):
        with pytest.raises(IllegalChange, match="only grows"):
            apply(view, RaiseTrim(point))


def test_p9_a_segment_is_forgotten_only_when_all_of_it_is_trimmed() -> None:
    view = ended(ended(three(), 4), 7)
    with pytest.raises(IllegalChange, match="neither trimmed"):
        apply(apply(view, RaiseTrim(2)), ForgetSegment(0))
    trimmed = apply(view, RaiseTrim(6))
    with pytest.raises(IllegalChange, match="first"):
        apply(trimmed, ForgetSegment(1))
    short = apply(trimmed, ForgetSegment(0, (1,)))
    assert short == replace(apply(apply(trimmed, ForgetSegment(0)), ForgetSegment(1)), epoch=trimmed.epoch + 1)
    assert [segment.index for segment in short.segments] == [2]
    assert short.segment(2) == short.last
    assert short.segment(1) is None


def test_p9_an_empty_segment_between_others_is_forgotten_and_the_rest_is_found_as_before() -> None:
    view = ended(ended(ended(ended(three(), 4), 4), 4), 7)
    assert [(s.base, s.end) for s in view.segments] == [(1, 4), (4, 4), (4, 4), (4, 7), (7, None)]
    short = apply(view, ForgetSegment(2, (1,)))
    assert [segment.index for segment in short.segments] == [0, 3, 4]
    assert [short.segment(index) is None for index in range(6)] == [False, True, True, False, False, True]
    assert [short.segment_of(glsn) for glsn in range(10)] == [view.segment_of(glsn) for glsn in range(10)]
    for index in (1, 9):
        with pytest.raises(IllegalChange, match="no such segment"):
            apply(short, ForgetSegment(index))


def test_a_log_keeps_its_last_segment() -> None:
    view = apply(ended(three(), 4, None), RaiseTrim(3))
    with pytest.raises(IllegalChange, match="last segment"):
        apply(view, ForgetSegment(0))


def test_a_broadcast_segment_and_one_with_nothing_to_repair_are_repaired_at_once() -> None:
    broadcast = create(CLUSTER, LOG, Settings(Policy.BROADCAST), opening("a b"))
    assert ended(broadcast, 4).segments[0].repaired
    assert ended(three(), 1).segments[0].repaired
    assert ended(apply(three(), RaiseTrim(3)), 4).segments[0].repaired
    assert not ended(three(), 4).segments[0].repaired


@pytest.mark.parametrize(
    ("policy", "shape"),
    [
        (Policy.CHAIN, opening()),
        (Policy.CHAIN, opening("a b", "")),
        (Policy.CHAIN, opening("a b a")),
        (Policy.BROADCAST, opening("a b", "c d")),
    ],
)
def test_a_segment_has_groups_of_different_nodes_and_a_broadcast_one_has_one_group(
    policy: Policy, shape: Opening
) -> None:
    with pytest.raises(IllegalChange):
        create(CLUSTER, LOG, Settings(policy), shape)


def test_survivors_of_too_few_groups_are_an_illegal_change() -> None:
    view = chain_log(CHAIN3, "a b c", "b c a", sequencer="a")
    with pytest.raises(IllegalChange):
        apply(view, EndSegment(0, 4, view.last.groups[:1], None))


@pytest.mark.parametrize("group", [1, -1])
def test_joining_a_group_that_does_not_exist_is_an_illegal_change(group: int) -> None:
    view = apply(ended(three(), 4), MarkRepaired(0))
    with pytest.raises(IllegalChange):
        apply(view, AddJoiner(0, group, Seat("f", 1)))


# ------------------------------------------------------------------------------------------------- random histories


def _character(segment: Segment) -> tuple[object, ...]:
    return (
        segment.index,
        segment.epoch,
        segment.base,
        segment.policy,
        segment.stripe_unit,
        segment.owner,
    )


def _well_shaped(shape: Opening, policy: Policy) -> bool:
    groups = [[seat.node for seat in group] for group in shape.groups]
    one_group = policy is Policy.CHAIN or len(groups) == 1
    return bool(groups) and one_group and all(group and len(set(group)) == len(group) for group in groups)


def _in_order(before: Group, after: Group) -> bool:
    places = [before.index(member) if member in before else -1 for member in after]
    return -1 not in places and places == sorted(set(places)) and len(places) > 0


def allowed(view: Projection, change: Change) -> bool:
    """P1 to P8, written down independently."""
    if view.deleted:
        return False
    last, policy = view.last, view.settings.policy
    by_index = {segment.index: segment for segment in view.segments}
    match change:
        case EndSegment(index, end, survivors, following):
            return (
                (last.index, last.end) == (index, None)
                and end >= last.base
                and all(map(_in_order, last.groups, survivors))
                and (following is None or _well_shaped(following, policy))
            )
        case Reopen(following):
            return last.end is not None and _well_shaped(following, policy)
        case RaiseTrim(point):
            return point > view.trim
        case ForgetSegment(index, others):
            forgotten = [by_index.get(each) for each in {index, *others}]
            held = [
                s for s in forgotten if s is None or s.end is None or any(g > view.trim for g in range(s.base, s.end))
            ]
            kept = [s for s in view.segments if s not in forgotten]
            return not held and last not in forgotten and all(s.end == t.base for s, t in pairwise(kept))
        case DeleteLog():
            return last.end is not None
    segment = by_index.get(change.index)
    if segment is None or segment.end is None:
        return False
    match change:
        case MarkRepaired():
            return True
        case AddJoiner(_, group, seat):
            return segment.repaired and seat.node not in [member.node for member in segment.groups[group]]
        case AdmitJoiner(_, stream):
            return stream in [member.stream for member in segment.members() if member.joining]
        case RemoveMember(_, stream):
            left = [[m for m in group if m.stream != stream and not m.joining] for group in segment.groups]
            return stream in [member.stream for member in segment.members()] and all(left)


@st.composite
def openings(draw: st.DrawFn) -> Opening:
    seats = st.lists(st.sampled_from("abcde"), max_size=3).map(lambda nodes: tuple(Seat(node, 1) for node in nodes))
    groups = draw(st.lists(seats, max_size=2))
    return Opening(tuple(groups), Owner(draw(st.sampled_from("abc")), draw(st.integers(1, 2))))


@st.composite
def changes(draw: st.DrawFn, view: Projection) -> Change:
    """A change that may or may not be allowed now."""
    index = draw(st.sampled_from([*(segment.index for segment in view.segments), view.last.index, -1, 99]))
    segment = view.segment(index) or view.last
    stream = draw(st.sampled_from([*(member.stream for member in segment.members()), "none"]))
    following = draw(st.none() | openings())
    drawn = [draw(st.lists(st.sampled_from(group), max_size=3, unique=draw(st.booleans()))) for group in segment.groups]
    survivors = segment.groups if draw(st.booleans()) else tuple(tuple(group) for group in drawn)
    options: list[Change] = [
        EndSegment(index, view.last.base + draw(st.integers(-1, 5)), survivors, following)
        if len(survivors) == len(view.last.groups)
        else MarkRepaired(index),
        Reopen(following) if following is not None else MarkRepaired(index),
        MarkRepaired(index),
        RemoveMember(index, stream),
        AddJoiner(index, draw(st.integers(0, len(segment.groups) - 1)), Seat(draw(st.sampled_from("abcdef")), 1)),
        AdmitJoiner(index, stream),
        RaiseTrim(view.trim + draw(st.integers(-1, 3))),
        ForgetSegment(index, tuple(draw(st.lists(st.sampled_from([s.index for s in view.segments]), max_size=2)))),
        DeleteLog(),
    ]
    return draw(st.sampled_from(options))


def check_projection(view: Projection) -> None:
    """What holds of every projection."""
    for before, after in zip(view.segments, view.segments[1:], strict=False):
        assert before.end == after.base  # P2: only the last may be open
        assert (after.index > before.index, after.epoch > before.epoch) == (True, True)
    for segment in view.segments:
        assert segment.end is None or segment.end >= segment.base
        assert all(segment.serving(group) for group in segment.groups)  # P6
        assert segment.repaired or not any(member.joining for member in segment.members())  # P5
        assert not (segment.is_open and segment.repaired)


def check_step(before: Projection, after: Projection, used: set[str]) -> None:
    """What holds of every change; ``used`` are the stream ids of all projections so far."""
    assert transition_fault(before, after) == ""
    assert after.epoch == before.epoch + 1  # P1
    assert after.trim >= before.trim  # P7
    for old in before.segments:
        new = after.segment(old.index)
        if new is None:
            continue
        assert _character(new) == _character(old)  # P4
        assert old.end is None or new.end == old.end  # P3
        assert not new.is_open or new.groups == old.groups  # P2
    streams = [member.stream for segment in after.segments for member in segment.members()]
    assert len(set(streams)) == len(streams)
    named_before = {member.stream for segment in before.segments for member in segment.members()}
    assert not (set(streams) - named_before) & used  # P5


@settings(max_examples=150)
@given(st.sampled_from(Policy), st.integers(1, 2), st.data())
def test_random_changes_are_taken_exactly_when_the_rules_allow_them(
    policy: Policy, groups: int, more: st.DataObject
) -> None:
    shape = opening(*("a b c", "b c a")[: groups if policy is Policy.CHAIN else 1])
    view = create(CLUSTER, LOG, Settings(policy, stripe_unit=2), shape)
    assert transition_fault(None, view) == ""
    used = {member.stream for member in view.last.members()}
    for _ in range(12):
        change = more.draw(changes(view))
        text = msgspec.json.encode(view)
        try:
            following = apply(view, change)
        except IllegalChange:
            assert not allowed(view, change)
            assert msgspec.json.encode(view) == text
            continue
        assert allowed(view, change)
        assert msgspec.json.encode(view) == text  # P1
        check_projection(following)
        check_step(view, following, used)
        used |= {member.stream for segment in following.segments for member in segment.members()}
        view = following


# --------------------------------------------------------------------------------------------------- where things are


@given(st.lists(st.integers(0, 4), max_size=4), st.booleans(), st.integers(0, 20))
def test_a_position_is_found_in_the_one_segment_that_spans_it(lengths: list[int], is_open: bool, glsn: int) -> None:
    view = three()
    spans: dict[int, int] = {}
    for index, length in enumerate(lengths):
        spans |= dict.fromkeys(range(view.last.base, view.last.base + length), index)
        view = ended(view, view.last.base + length)
    if is_open:
        spans |= dict.fromkeys(range(view.last.base, 40), view.last.index)
    else:
        view = ended(view, view.last.base, None)
    found = view.segment_of(glsn)
    assert (found.index if found is not None else None) == spans.get(glsn)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 10), st.integers(0, 60))
def test_groups_take_turns_stripe_by_stripe_from_the_base(groups: int, unit: int, start: int, offset: int) -> None:
    shape = opening(*("a b", "b c", "c d", "d e")[:groups])
    view = create(CLUSTER, LOG, Settings(Policy.CHAIN, stripe_unit=unit), shape)
    if start:
        view = apply(view, EndSegment(0, 1 + start, view.last.groups, shape))
    dealt = [group for _ in range(61) for group in view.last.groups for _ in range(unit)]
    assert view.last.group_of(view.last.base + offset) == dealt[offset]
