"""What may follow a projection: every change of the core, and nothing that breaks a rule of projections.

That all changes pass is tried with random ones in ``test_projection.py``; here are the offences.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from trunkline.core.projection import (
    AddJoiner,
    Change,
    DeleteLog,
    EndSegment,
    Gap,
    MarkRepaired,
    Member,
    Opening,
    Owner,
    Projection,
    RaiseTrim,
    Seat,
    Segment,
    Settings,
    apply,
    create,
)
from trunkline.core.transitions import transition_fault

OPENING = Opening(((Seat("a", 1), Seat("b", 1), Seat("c", 1)),), Owner("a", 1))
FIRST = create("cluster", "log", Settings(), OPENING)


def after(view: Projection, *changes: Change) -> Projection:
    for change in changes:
        view = apply(view, change)
    return view


def with_segment(view: Projection, index: int, **changes: object) -> Projection:
    """What a liar would send next: one segment of the stored map is another."""
    segments = tuple(replace(each, **changes) if each.index == index else each for each in view.segments)
    return replace(view, epoch=view.epoch + 1, segments=segments)


def next_of(view: Projection, **changes: object) -> Projection:
    return replace(view, **{"epoch": view.epoch + 1, **changes})


ENDED = after(FIRST, EndSegment(0, 10, FIRST.last.groups, OPENING), MarkRepaired(0))
CLOSED = after(FIRST, EndSegment(0, 10, FIRST.last.groups, None))
DELETED = after(CLOSED, DeleteLog())
LOST = next_of(CLOSED, gaps=(Gap(1, 2),))
OLD, OPEN = ENDED.segments
[GROUP] = OLD.groups
STRANGER = Member("x", 1, f"{ENDED.epoch + 1}.0.0", joining=True)


def opened(**changes: object) -> Segment:
    """A segment that could follow the closed log's last one, but for the changes."""
    group = tuple(replace(member, stream=f"{CLOSED.epoch + 1}.0.{at}") for at, member in enumerate(GROUP))
    right = replace(OPEN, epoch=CLOSED.epoch + 1, groups=(group,))
    assert transition_fault(CLOSED, next_of(CLOSED, segments=(*CLOSED.segments, right))) == ""
    return replace(right, **changes)


def reopened(**changes: object) -> Projection:
    return next_of(CLOSED, segments=(*CLOSED.segments, opened(**changes)))


BEGINNINGS: dict[str, Projection] = {
    "trimmed": replace(FIRST, trim=5),
    "deleted": replace(FIRST, deleted=True),
    "lost": replace(FIRST, gaps=(Gap(1, 5),)),
    "later epoch": replace(FIRST, epoch=7),
    "another base": replace(FIRST, segments=(replace(FIRST.last, base=100),)),
    "another index": replace(FIRST, segments=(replace(FIRST.last, index=3),)),
    "ended": replace(FIRST, segments=(replace(FIRST.last, end=1),)),
    "two segments": ENDED,
    "another policy than the log's": replace(FIRST, settings=replace(FIRST.settings, stripe_unit=7)),
    "one node twice": replace(FIRST, segments=(replace(FIRST.last, groups=((GROUP[0], replace(GROUP[0])),)),)),
    "streams of another epoch": replace(FIRST, segments=(replace(FIRST.last, groups=((Member("a", 1, "9.0.0"),),)),)),
    "streams that are none": replace(FIRST, segments=(replace(FIRST.last, groups=((Member("a", 1, "x"),),)),)),
}

OFFENCES: dict[str, tuple[Projection, Callable[[], Projection]]] = {
    "P1 the same epoch": (ENDED, lambda: ENDED),
    "P1 an epoch left out": (ENDED, lambda: replace(ENDED, epoch=ENDED.epoch + 2)),
    "P1 another cluster": (ENDED, lambda: next_of(ENDED, cluster="other")),
    "P1 other settings": (ENDED, lambda: next_of(ENDED, settings=replace(ENDED.settings, replicas=1))),
    "P2 an open segment gains a member": (ENDED, lambda: with_segment(ENDED, 1, groups=((*OPEN.groups[0], STRANGER),))),
    "P2 an open segment loses a member": (ENDED, lambda: with_segment(ENDED, 1, groups=(OPEN.groups[0][1:],))),
    "P3 another end": (ENDED, lambda: with_segment(ENDED, 0, end=9)),
    "P3 an end taken back": (ENDED, lambda: with_segment(ENDED, 0, end=None)),
    "P3 an end before the base": (ENDED, lambda: with_segment(ENDED, 1, end=5)),
    "P3 survivors in another order": (ENDED, lambda: with_segment(ENDED, 1, end=12, groups=(OPEN.groups[0][::-1],))),
    "P3 no member survives": (ENDED, lambda: with_segment(ENDED, 1, end=12, groups=((),))),
    "P4 another base": (ENDED, lambda: with_segment(ENDED, 0, base=2)),
    "P4 another epoch": (ENDED, lambda: with_segment(ENDED, 0, epoch=2)),
    "P4 another owner": (ENDED, lambda: with_segment(ENDED, 1, owner=Owner("x", 1))),
    "P4 another stripe": (ENDED, lambda: with_segment(ENDED, 1, stripe_unit=1)),
    "P5 a member that does not join first": (
        ENDED,
        lambda: with_segment(ENDED, 0, groups=((*GROUP, replace(STRANGER, joining=False)),)),
    ),
    "P5 a joiner under an old stream id": (
        ENDED,
        lambda: with_segment(ENDED, 0, groups=((*GROUP, replace(STRANGER, stream="1.0.9")),)),
    ),
    "P5 a joiner of a segment that is not repaired": (
        CLOSED,
        lambda: with_segment(CLOSED, 0, groups=((*GROUP, replace(STRANGER, stream=f"{CLOSED.epoch + 1}.0.0")),)),
    ),
    "P5 a member on another node": (ENDED, lambda: with_segment(ENDED, 0, groups=((replace(GROUP[0], node="x"),),))),
    "P6 only a joiner is left": (ENDED, lambda: with_segment(ENDED, 0, groups=((STRANGER,),))),
    "P6 no member is left": (ENDED, lambda: with_segment(ENDED, 0, groups=((),))),
    "P7 a trim point that shrinks": (after(ENDED, RaiseTrim(5)), lambda: next_of(after(ENDED, RaiseTrim(5)), trim=4)),
    "P7 a segment goes untrimmed": (ENDED, lambda: next_of(ENDED, segments=(OPEN,))),
    "P7 all segments are others": (ENDED, lambda: next_of(ENDED, segments=(replace(OPEN, index=9),))),
    "P8 a deleted log comes back": (DELETED, lambda: next_of(DELETED, deleted=False)),
    "P8 an open log is deleted": (ENDED, lambda: next_of(ENDED, deleted=True)),
    "P8 deleted with a change": (CLOSED, lambda: next_of(CLOSED, deleted=True, trim=3)),
    "a repaired segment is not": (ENDED, lambda: with_segment(ENDED, 0, repaired=False)),
    "a gap forgotten": (LOST, lambda: next_of(LOST, gaps=())),
    "a segment behind a gap in the numbers": (CLOSED, lambda: reopened(index=5)),
    "a segment at another base": (CLOSED, lambda: reopened(base=11)),
    "a segment of another epoch": (CLOSED, lambda: reopened(epoch=1)),
    "a segment that is ended already": (CLOSED, lambda: reopened(end=20)),
    "a segment with the streams of another": (CLOSED, lambda: reopened(groups=OLD.groups)),
    "a segment behind an open one": (ENDED, lambda: next_of(ENDED, segments=(*ENDED.segments, opened(index=2)))),
}  # fmt: skip


@pytest.mark.parametrize("name", BEGINNINGS)
def test_a_log_begins_in_one_way_only(name: str) -> None:
    assert transition_fault(None, FIRST) == ""
    assert transition_fault(None, BEGINNINGS[name])


@pytest.mark.parametrize("name", OFFENCES)
def test_a_projection_that_breaks_a_rule_cannot_follow(name: str) -> None:
    before, offence = OFFENCES[name]
    assert transition_fault(before, offence())


def test_p5_a_joiner_and_its_admission_may_follow() -> None:
    joined = after(ENDED, AddJoiner(0, 0, Seat("x", 1)))
    assert transition_fault(ENDED, joined) == ""
    [group] = joined.segments[0].groups
    admitted = with_segment(joined, 0, groups=((*group[:-1], replace(group[-1], joining=False)),))
    assert transition_fault(joined, admitted) == ""


def test_a_segment_that_is_given_up_may_lose_all_its_members() -> None:
    lost = after(FIRST, EndSegment(0, 10, ((),), OPENING, Gap(1, 10)))
    assert transition_fault(FIRST, lost) == ""
