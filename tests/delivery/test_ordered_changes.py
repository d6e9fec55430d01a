"""The rule for ordered sources, held to a plain replay of the events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from trunkline.delivery.changes.net import Routes, Settled, settle
from trunkline.delivery.changes.ordered import net_of_ordered
from trunkline.delivery.changes.rows import (
    DESTINATION_COLUMN,
    KIND_COLUMN,
    OP_COLUMN,
    ORDINAL_COLUMN,
    ROUTE_COLUMN,
    VERSION_COLUMN,
    ChangeKind,
    Op,
)

Event = tuple[ChangeKind, str | None, int | None, bytes | None, str]  # kind, route, key columns, note
Row = tuple[str | None, int | None, bytes | None]  # routing value and key
Place = tuple[int, tuple[int | None, bytes | None]]  # destination and key

ROUTES = Routes({"a": (0,), "b": (1, 2), None: (2,)})
KEY = ("k", "part")
REMOVALS = (ChangeKind.DELETE, ChangeKind.UPDATE_PREIMAGE)
events = st.lists(
    st.tuples(
        st.sampled_from([*ChangeKind, *list(ChangeKind)[:4] * 3]),  # a truncation is rare
        st.sampled_from(["a", "b", "unrouted", None]),
        st.sampled_from([1, 2, None]),
        st.sampled_from([b"\xff", None]),
        st.sampled_from("xyz"),
    ),
    max_size=12,
)


def settled(made: Sequence[Event], order: Sequence[int]) -> tuple[Settled, bool]:
    """What ``rule.settle`` makes of the events, given in some order of rows; two share a version."""
    shuffled = [made[place] for place in order]
    table = pa.table(
        {
            VERSION_COLUMN: pa.array([place // 2 for place in order], pa.int64()),
            ORDINAL_COLUMN: pa.array([place % 2 for place in order], pa.int64()),
            KIND_COLUMN: pa.array([event[0].value for event in shuffled], pa.string()),
            ROUTE_COLUMN: pa.array([event[1] for event in shuffled], pa.string()),
            "k": pa.array([event[2] for event in shuffled], pa.int64()),
            "part": pa.array([event[3] for event in shuffled], pa.binary()),
            "note": pa.array([event[4] for event in shuffled], pa.string()),
        }
    )
    net, truncated = net_of_ordered(table, KEY)
    return settle(net, ROUTES, KEY), truncated


def staged(found: Settled) -> dict[Place, tuple[Op, str | None]]:
    names = [DESTINATION_COLUMN, *KEY, OP_COLUMN, "note"]
    rows = list(zip(*(found.staged.column(name).to_pylist() for name in names), strict=True))
    made = {(row[0], row[1:3]): (Op(row[3]), row[4]) for row in rows}
    assert len(made) == len(rows), "there is more than one row for a key"
    return made


def since_truncation(made: Sequence[Event]) -> Sequence[Event]:
    truncations = [place for place, event in enumerate(made) if event[0] is ChangeKind.TRUNCATE]
    return made[truncations[-1] + 1 :] if truncations else made


def by_row(made: Sequence[Event]) -> dict[Row, list[Event]]:
    found: dict[Row, list[Event]] = {}
    for event in made:
        found.setdefault(event[1:4], []).append(event)
    return found


def places(row: Row) -> list[Place]:
    return [(destination, row[1:]) for destination in ROUTES.of(row[0])]


def expected_arrivals(made: Sequence[Event]) -> Counter[Row]:
    """How many times a row arrives: twice if the last event inserts it again."""
    found = Counter[Row]()
    for row, of_row in by_row(made).items():
        if of_row[-1][0] not in REMOVALS:
            again = len(of_row) > 1 and of_row[-1][0] is ChangeKind.INSERT and of_row[-2][0] not in REMOVALS
            found[row] = 2 if again else 1
    return found


@given(events, st.randoms(use_true_random=False))
def test_the_last_event_of_a_row_decides(made: list[Event], chance: Any) -> None:
    order = list(range(len(made)))
    chance.shuffle(order)
    found, truncated = settled(made, order)
    assert truncated == any(event[0] is ChangeKind.TRUNCATE for event in made)
    live: dict[Place, list[str]] = {}
    for row, of_row in by_row(since_truncation(made)).items():
        for place in places(row):
            live.setdefault(place, []).extend([of_row[-1][4]] if of_row[-1][0] not in REMOVALS else [])
    assert staged(found).keys() == live.keys()
    for place, (op, note) in staged(found).items():
        if place[0] not in found.duplicates:  # such a destination halts, or takes what is live
            assert ([] if op is Op.REMOVE else [note]) == live[place]


@given(events)
def test_a_destination_that_held_what_the_events_remove_ends_as_they_say(made: list[Event]) -> None:
    found, truncated = settled(made, range(len(made)))
    held = {row for row, of_row in by_row(made).items() if of_row[0][0] in REMOVALS}
    replayed = dict.fromkeys(held, "old")
    for event in made:
        if event[0] is ChangeKind.TRUNCATE:
            replayed.clear()
        elif event[0] in REMOVALS:
            replayed.pop(event[1:4], None)
        else:
            replayed[event[1:4]] = event[4]
    flushed = dict.fromkeys([place for row in held for place in places(row)] if not truncated else [], "old")
    for place, (op, note) in staged(found).items():
        if op is Op.INSERT:
            assert place not in flushed, "a second row of a key"
        flushed.pop(place, None)
        if op is not Op.REMOVE:
            assert note is not None
            flushed[place] = note
    wanted = {place: note for row, note in replayed.items() for place in places(row)}
    sound = [place for place in {**flushed, **wanted} if place[0] not in found.duplicates]
    assert {place: flushed.get(place) for place in sound} == {place: wanted.get(place) for place in sound}


@given(events)
def test_second_inserts_and_unrouted_rows_are_counted_exactly(made: list[Event]) -> None:
    found, _ = settled(made, range(len(made)))
    arrivals = expected_arrivals(since_truncation(made))
    extra = Counter[Place]()
    for row, count in arrivals.items():
        for place in places(row):
            extra[place] += count
    twice = Counter[int]()
    for (destination, _), count in extra.items():
        twice[destination] += count - 1
    assert found.duplicates == {destination: count for destination, count in twice.items() if count}
    lost = Counter[str | None]()
    for row, count in arrivals.items():
        lost[row[0]] += count if not ROUTES.of(row[0]) else 0
    assert found.unrouted == {route: count for route, count in lost.items() if count}


def test_an_update_that_moves_a_row_removes_it_where_it_was() -> None:
    made: list[Event] = [
        (ChangeKind.UPDATE_PREIMAGE, "a", 1, None, "x"),
        (ChangeKind.UPDATE_POSTIMAGE, "b", 1, None, "y"),
    ]
    assert staged(settled(made, [1, 0])[0]) == {
        (0, (1, None)): (Op.REMOVE, None),
        (1, (1, None)): (Op.INSERT, "y"),
        (2, (1, None)): (Op.INSERT, "y"),
    }
