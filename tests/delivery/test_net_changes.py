"""The rule of delivery as a pure function, held to plain dictionaries."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.delivery.changes.net import (
    Routes,
    Settled,
    less,
    settle,
    settle_append,
    settle_live,
    touched_keys,
    without_routes,
)
from trunkline.delivery.changes.rows import DESTINATION_COLUMN, OP_COLUMN, ROUTE_COLUMN, NetChanges, Op

Row = tuple[Any, ...]  # route, key columns, note
Held = dict[tuple[int, Row], Row]  # (destination, key) -> row without its route

VALUES: dict[pa.DataType, list[Any]] = {
    pa.int64(): [None, 0, 1, -(2**63)],
    pa.string(): [None, "", "a", "6b4bcff5-1878-4523-993c-490a5ef910bf"],
    pa.decimal128(10, 2): [None, Decimal("1.00"), Decimal("-0.50"), Decimal("99999999.99")],
    pa.binary(): [None, b"", b"\x00\xff", b"\x00"],
    pa.bool_(): [None, True, False],
    pa.timestamp("us"): [None, datetime(1969, 12, 31), datetime(2024, 5, 5, 1, 2, 3, 4)],  # noqa: DTZ001
}
ROUTE_VALUES = ["a", "b", "c", "unrouted", None]
ROUTINGS: list[Routes] = [
    Routes({"a": (0,), "b": (1,), "c": (2,)}),
    Routes({"a": (0, 1), "b": (1,), None: (2,)}),  # one value for two destinations, one destination for two values
    Routes({}),
]


class Case:
    """Tables of one key, and what the destinations of some routes hold."""

    def __init__(self, types: Sequence[pa.DataType], routes: Routes) -> None:
        self.types = types
        self.routes = routes
        self.key = tuple(f"k{place}" for place in range(len(types)))

    def table(self, rows: Sequence[Row]) -> pa.Table:
        names = [ROUTE_COLUMN, *self.key, "note"]
        kinds = [pa.string(), *self.types, pa.string()]
        columns = [pa.array([row[place] for row in rows], kind) for place, kind in enumerate(kinds)]
        return pa.table(columns, names)

    def net(self, removed: Sequence[Row], arrived: Sequence[Row]) -> NetChanges:
        return NetChanges(self.table(removed).drop_columns(["note"]), self.table(arrived))

    def places(self, row: Row) -> list[tuple[int, Row]]:
        """Where a row belongs: (destination, key)."""
        return [(destination, row[1:-1]) for destination in self.routes.of(row[0])]

    def held(self, rows: Sequence[Row]) -> Held:
        """Of rows that share a key, the one that sorts last; NULL sorts behind everything."""
        ordered = sorted(rows, key=lambda row: tuple((value is None, value) for value in row[1:]))
        return {place: row[1:] for row in ordered for place in self.places(row)}

    def staged(self, settled: Settled) -> list[tuple[int, Op, Row, str | None]]:
        names = [DESTINATION_COLUMN, OP_COLUMN, *self.key, "note"]
        rows = zip(*(settled.staged.column(name).to_pylist() for name in names), strict=True)
        return [(destination, Op(op), tuple(rest[:-1]), rest[-1]) for destination, op, *rest in rows]


def rows_of(types: Sequence[pa.DataType], most: int = 8) -> st.SearchStrategy[list[Row]]:
    values = [st.sampled_from(ROUTE_VALUES), *(st.sampled_from(VALUES[kind]) for kind in types), st.sampled_from("xyz")]
    return st.lists(st.tuples(*values), max_size=most)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Case, list[Row], list[Row]]:
    types = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=3))
    return Case(types, draw(st.sampled_from(ROUTINGS))), draw(rows_of(types)), draw(rows_of(types))


@given(cases())
def test_a_key_is_removed_replaced_or_inserted_as_the_two_sides_say(made: tuple[Case, list[Row], list[Row]]) -> None:
    case, removed, arrived = made
    settled = settle(case.net(removed, arrived), case.routes, case.key)
    gone = {place for row in removed for place in case.places(row)}
    came = case.held(arrived)
    wanted = [(destination, Op.REMOVE, key, None) for destination, key in gone - came.keys()]
    wanted += [
        (destination, Op.REPLACE if (destination, key) in gone else Op.INSERT, key, row[-1])
        for (destination, key), row in came.items()
    ]
    assert Counter(case.staged(settled)) == Counter(wanted)
    destinations = settled.staged.column(DESTINATION_COLUMN).to_pylist()
    assert destinations == sorted(destinations)


@given(cases())
def test_duplicates_and_unrouted_arrivals_are_counted_exactly(made: tuple[Case, list[Row], list[Row]]) -> None:
    case, removed, arrived = made
    settled = settle(case.net(removed, arrived), case.routes, case.key)
    all_places = Counter(place for row in arrived for place in case.places(row))
    extra = Counter[int]()
    for (destination, _), count in all_places.items():
        extra[destination] += count - 1
    assert settled.duplicates == {destination: count for destination, count in extra.items() if count}
    assert settled.unrouted == Counter(row[0] for row in arrived if not case.routes.of(row[0]))


@given(cases())
def test_a_settled_window_leads_from_one_state_to_the_next(made: tuple[Case, list[Row], list[Row]]) -> None:
    case, *states = made
    before, after = (unshared(case, rows) for rows in states)
    net = case.net([row for row in before if row not in after], [row for row in after if row not in before])
    held = case.held(before)
    for destination, op, key, note in case.staged(settle(net, case.routes, case.key)):
        assert ((destination, key) in held) == (op is not Op.INSERT)
        held.pop((destination, key), None)
        if op is not Op.REMOVE:
            held[destination, key] = (*key, note)
    assert held == case.held(after)


def unshared(case: Case, rows: Sequence[Row]) -> list[Row]:
    """The rows, without those whose key an earlier one has already at some destination."""
    taken: set[tuple[int, Row]] = set()
    kept = []
    for row in rows:
        if taken.isdisjoint(case.places(row)):
            kept.append(row)
            taken.update(case.places(row))
    return list(dict.fromkeys(kept))


@given(cases(), st.data())
def test_with_policy_warn_each_touched_key_ends_with_the_last_live_row(
    made: tuple[Case, list[Row], list[Row]], data: st.DataObject
) -> None:
    case, before, arrived = made
    removed = [row for row in before if data.draw(st.booleans())]
    left = Counter(before) - Counter(removed)
    after = [*left.elements(), *arrived]
    net = case.net(removed, arrived)
    touched = set(_plain(touched_keys(net, case.key, case.routes)))
    live = [row for row in after if row[:-1] in touched]
    held = case.held(before)
    for destination, op, key, note in case.staged(settle_live(net, case.table(live), case.routes, case.key)):
        held.pop((destination, key), None)
        if op is not Op.REMOVE:
            held[destination, key] = (*key, note)
    assert held == case.held(after)


def test_with_policy_warn_an_untouched_key_stays() -> None:
    case = Case([pa.int64()], Routes({"a": (0, 1), "b": (1,)}))
    net = case.net([("a", 1, "x")], [])
    live = case.table([("b", 1, "y")])  # looked up, because destination 1 takes both values
    assert set(_plain(touched_keys(net, case.key, case.routes))) == {("a", 1), ("b", 1)}
    assert case.staged(settle_live(net, live, case.routes, case.key)) == [
        (0, Op.REMOVE, (1,), None),
        (1, Op.REPLACE, (1,), "y"),
    ]
    net = case.net([("a", 2, "x")], [])
    assert case.staged(settle_live(net, live, case.routes, case.key)) == [
        (0, Op.REMOVE, (2,), None),
        (1, Op.REMOVE, (2,), None),
    ]


@given(cases())
def test_mode_append_inserts_every_arrival_once(made: tuple[Case, list[Row], list[Row]]) -> None:
    case, removed, arrived = made
    settled = settle_append(case.net(removed, arrived), case.routes)
    wanted = Counter(
        (destination, Op.INSERT, row[1:-1], row[-1]) for row in arrived for destination in case.routes.of(row[0])
    )
    assert Counter(case.staged(settled)) == wanted
    assert settled.unrouted == Counter(row[0] for row in arrived if not case.routes.of(row[0]))


def test_a_destination_may_take_every_row_beside_others() -> None:
    case = Case([pa.int64()], Routes({"a": (0,)}, (1,)))
    net = case.net([("a", 1, "x"), (None, 2, "x")], [("b", 1, "y")])  # 1 moves away from a
    settled = settle(net, case.routes, case.key)
    assert case.staged(settled) == [
        (0, Op.REMOVE, (1,), None),
        (1, Op.REMOVE, (2,), None),
        (1, Op.REPLACE, (1,), "y"),
    ]
    assert settled.unrouted == {}
    assert case.routes.only({0}) == Routes({"a": (0,)})
    assert case.routes.only({1}) == Routes({}, (1,))
    plain = without_routes(net)
    assert set(_plain(touched_keys(plain, case.key, case.routes))) == {(None, 1), (None, 2)}
    live = without_routes(NetChanges(plain.removed, case.table([("a", 2, "z")]))).arrived
    assert case.staged(settle_live(plain, live, Routes({}, (1,)), case.key)) == [
        (1, Op.REMOVE, (1,), None),
        (1, Op.REPLACE, (2,), "z"),
    ]


@given(cases())
def test_less_is_the_difference_of_multisets(made: tuple[Case, list[Row], list[Row]]) -> None:
    case, rows, others = made
    assert Counter(_plain(less(case.table(rows), case.table(others)))) == Counter(rows) - Counter(others)


def test_less_distinguishes_values_that_compare_as_equal() -> None:
    numbers = [0.0, -0.0, math.nan, math.inf, None]
    rows = pa.table({"x": pa.array(numbers, pa.float64()), "y": pa.array([[1], [1, None], [], None, [2]])})
    assert less(rows, rows).num_rows == 0
    assert less(rows, rows.slice(1)).column("x").to_pylist() == [0.0]
    assert math.copysign(1, less(rows, rows.slice(2)).column("x")[1].as_py()) == -1


@pytest.mark.parametrize("times", ["infinity", "-infinity"])
def test_times_without_an_end_are_values_like_others(times: str) -> None:
    end = 2**63 - 1 if times == "infinity" else -(2**63) + 1
    ends = pa.array([end, end, 0], pa.timestamp("us"))
    rows = pa.table({ROUTE_COLUMN: ["a", "a", "a"], "k": ends, "note": ["x", "y", "z"]})
    settled = settle(NetChanges(rows.select([ROUTE_COLUMN, "k"]).slice(2), rows), Routes({"a": (0,)}), ("k",))
    assert settled.staged.column("note").to_pylist() == ["y", "z"] or settled.staged.column("note").to_pylist() == [
        "z",
        "y",
    ]
    assert settled.duplicates == {0: 1}


def _plain(table: pa.Table) -> list[Row]:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))
