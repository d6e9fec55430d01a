"""The rule for ordered sources, held to a plain replay of the events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from trunkline.delivery.rule import Routes
from trunkline.delivery.rule_ordered import (
    KIND_COLUMN,
    ORDINAL_COLUMN,
    VERSION_COLUMN,
    Kind,
    SettledOrdered,
    settle_ordered,
)
from trunkline.delivery.sources.contract import ROUTE_COLUMN
from trunkline.delivery.windows import DESTINATION_COLUMN, OP_COLUMN, Op

Event = tuple[Kind, str | None, int | None, bytes | None, str]  # kind, route, key columns, note
Place = tuple[int, tuple[Any, ...]]  # destination and key

ROUTES: Routes = {"a": (0,), "b": (1, 2), None: (2,)}
KEY = ("k", "part")
REMOVALS = (Kind.DELETE, Kind.UPDATE_PREIMAGE)
events = st.lists(
    st.tuples(
        st.sampled_from([*Kind, *list(Kind)[:4] * 3]),  # a truncation is rare
        st.sampled_from(["a", "b", "nobody's", None]),
        st.sampled_from([1, 2, None]),
        st.sampled_from([b"\xff", None]),
        st.sampled_from("xyz"),
    ),
    max_size=12,
)


def settled(made: Sequence[Event], order: Sequence[int]) -> SettledOrdered:
    """The events, given in some order of rows; two share a version."""
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
    return settle_ordered(table, ROUTES, KEY)


def staged(found: SettledOrdered) -> dict[Place, tuple[Op, str | None]]:
    names = [DESTINATION_COLUMN, *KEY, OP_COLUMN, "note"]
    rows = list(zip(*(found.staged.column(name).to_pylist() for name in names), strict=True))
    made = {(row[0], row[1:3]): (Op(row[3]), row[4]) for row in rows}
    assert len(made) == len(rows), "there is more than one row for a key"
    return made


def by_place(made: Sequence[Event]) -> dict[Place, list[Event]]:
    found: dict[Place, list[Event]] = {}
    for event in made:
        for destination in ROUTES.get(event[1], ()):
            found.setdefault((destination, event[2:4]), []).append(event)
    return found


@given(events, st.randoms(use_true_random=False))
def test_the_last_event_of_a_key_wins(made: list[Event], chance: Any) -> None:
    order = list(range(len(made)))
    chance.shuffle(order)
    found = settled(made, order)
    truncations = [place for place, event in enumerate(made) if event[0] is Kind.TRUNCATE]
    rest = made[truncations[-1] + 1 :] if truncations else made
    wanted: dict[Place, tuple[Op, str | None]] = {}
    for place, of_key in by_place(rest).items():
        if of_key[-1][0] not in REMOVALS:
            old = of_key[0][0] in REMOVALS and not truncations
            wanted[place] = (Op.REPLACE if old else Op.INSERT, of_key[-1][4])
        elif not truncations:
            wanted[place] = (Op.REMOVE, None)
    assert staged(found) == wanted
    assert found.truncated == bool(truncations)


@given(events)
def test_whatever_a_destination_held_it_ends_as_the_events_say(made: list[Event]) -> None:
    found = settled(made, range(len(made)))
    for held in ({}, dict.fromkeys(by_place(made), "old")):
        replayed: dict[Place, str | None] = dict(held)
        for event in made:
            if event[0] is Kind.TRUNCATE:
                replayed.clear()
            for place in by_place([event]):
                replayed.pop(place, None)
                if event[0] not in (*REMOVALS, Kind.TRUNCATE):
                    replayed[place] = event[4]
        flushed: dict[Place, str | None] = {} if found.truncated else dict(held)
        for place, (op, note) in staged(found).items():
            flushed.pop(place, None)
            if op is not Op.REMOVE:
                flushed[place] = note
        assert flushed == replayed


@given(events)
def test_second_inserts_and_unrouted_rows_are_counted_exactly(made: list[Event]) -> None:
    found = settled(made, range(len(made)))
    truncations = [place for place, event in enumerate(made) if event[0] is Kind.TRUNCATE]
    rest = made[truncations[-1] + 1 :] if truncations else made
    twice = Counter[int]()
    for (destination, _), of_key in by_place(rest).items():
        for before, event in pairwise(of_key):
            twice[destination] += before[0] not in REMOVALS and event[0] is Kind.INSERT
    assert found.duplicates == {destination: count for destination, count in twice.items() if count}
    last = {event[1:4]: event for event in rest if event[1] not in ROUTES}
    assert found.unrouted == Counter(event[1] for event in last.values() if event[0] not in REMOVALS)


def test_an_update_that_moves_a_row_removes_it_where_it_was() -> None:
    made: list[Event] = [
        (Kind.UPDATE_PREIMAGE, "a", 1, None, "x"),
        (Kind.UPDATE_POSTIMAGE, "b", 1, None, "y"),
    ]
    assert staged(settled(made, [1, 0])) == {
        (0, (1, None)): (Op.REMOVE, None),
        (1, (1, None)): (Op.INSERT, "y"),
        (2, (1, None)): (Op.INSERT, "y"),
    }
