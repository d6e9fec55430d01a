"""Shapes on random windows, judged by SQL over the source's states at both ends."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from delivery.random_shapes import SECRET, VARIABLE, RandomTable, State, plain
from trunkline.config import changed_environment
from trunkline.delivery.changes.net import Routes, settle
from trunkline.delivery.changes.ordered import net_of_ordered
from trunkline.delivery.changes.rows import DESTINATION_COLUMN, OP_COLUMN, ROUTE_COLUMN, NetChanges, Op
from trunkline.delivery.shapes.shaped_table import ShapedTable, check_shape, shaped_table

SEEDS = 1_000
PIECES = 10
Held = dict[int, dict[tuple[Any, ...], tuple[Any, ...]]]  # of each destination: its rows by key


def routes_of(table: RandomTable, states: list[State]) -> dict[str | None, tuple[int, ...]]:
    """Some values have a destination, some share one, some have two, some have none."""
    values = sorted({route or "" for state in states for route, _ in table.judged(state)})
    chosen = {value: table.chance.choice([(0,), (1,), (0, 1), ()]) for value in values}
    return {value or None: targets for value, targets in chosen.items() if targets}


def judged(table: RandomTable, state: State, routes: dict[str | None, tuple[int, ...]], shaped: ShapedTable) -> Held:
    held: Held = {0: {}, 1: {}}
    names = [column.name for column in shaped.columns]
    for route, row in table.judged(state):
        for target in routes.get(route, ()):
            key = tuple(row[name] for name in table.key)
            assert key not in held[target]
            held[target][key] = tuple(row[name] for name in names)
    return held


def applied(held: Held, staged: pa.Table, shaped: ShapedTable) -> Held:
    """What destinations hold after a flush, as a mirror writes it."""
    found = {target: dict(rows) for target, rows in held.items()}
    for row in staged.to_pylist():
        key = tuple(plain(row[name]) for name in shaped.key)
        here = found[row[DESTINATION_COLUMN]]
        if row[OP_COLUMN] == Op.INSERT:
            assert key not in here, "an INSERT whose key is there"
        here.pop(key, None)
        if row[OP_COLUMN] != Op.REMOVE:
            here[key] = tuple(plain(row[column.name]) for column in shaped.columns)
    return found


def net_of(table: RandomTable, shaped: ShapedTable, before: State) -> tuple[NetChanges, State]:
    """A window, as one of three kinds of sources reads it."""
    request = shaped.request()
    after, changes = table.changed(before)
    match table.chance.randrange(3):
        case 0:
            return table.difference(request, before, after, whole=True), after
        case 1:
            return table.difference(request, before, after, whole=False), after
        case _:
            return net_of_ordered(table.ordered(request, changes), request.stated)[0], after


def check_window(seed: int) -> str:
    table = RandomTable(seed)
    shaped = shaped_table(table.shape, table.columns, table.key, table.routing)
    before = table.state()
    if not table.key:  # mode append: what arrives
        after = table.state()
        names = tuple(column.name for column in shaped.request().columns)
        rows = table.rows(shaped.request(), list(after.values()), names)
        made = [
            tuple(map(plain, row.values())) for batch in shaped.rows(rows.to_batches()) for row in batch.to_pylist()
        ]
        expected = [(route, *row.values()) for route, row in table.judged(after)]
        assert Counter(map(repr, made)) == Counter(map(repr, expected))
        return "append"
    net, after = net_of(table, shaped, before)
    routes = routes_of(table, [before, after])
    made_net = shaped.net(net)
    assert made_net.removed.column_names == [ROUTE_COLUMN, *shaped.key]
    assert made_net.arrived.column_names == [ROUTE_COLUMN, *(column.name for column in shaped.columns)]
    settled = settle(made_net, Routes(routes), shaped.key)
    held, expected_held = (judged(table, state, routes, shaped) for state in (before, after))
    assert applied(held, settled.staged, shaped) == expected_held
    return "exact" if shaped.exact(net) else "not exact"


@pytest.mark.parametrize("piece", range(PIECES))
def test_masks_and_filters_on_1000_random_windows_equal_sql_on_the_source(piece: int) -> None:
    kinds: Counter[str] = Counter()
    with changed_environment({VARIABLE: SECRET}):
        for seed in range(piece, SEEDS, PIECES):
            kinds[check_window(seed)] += 1
    assert set(kinds) == {"append", "exact", "not exact"}


def test_random_shapes_have_no_problems() -> None:
    with changed_environment({VARIABLE: SECRET}):
        for seed in range(50):
            table = RandomTable(seed)
            assert check_shape(table.shape, table.columns, table.key, table.routing) == []
