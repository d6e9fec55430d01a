"""Rows on which an expression of a shape fails harm the destinations that take them, and no others.

A shape is applied to the rows of all members of a task at once. If that fails, the routing values whose rows cause it
are looked for by halves: the rows of the others are shaped without them. Routes that are computed are not known before;
there, every member fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from trunkline.delivery.changes.history import VersionedChanges
from trunkline.delivery.changes.net import Routes
from trunkline.delivery.changes.rows import ROUTE_COLUMN, NetChanges
from trunkline.errors import DestinationHalted

Changes = TypeVar("Changes", NetChanges, VersionedChanges)
Failures = dict[str | None, DestinationHalted]  # by routing value


def shaped_apart(
    shape: Callable[[Changes], Changes], raw: Changes, *, computes_route: bool
) -> tuple[Changes, Changes, Failures]:
    """What a shape makes of the rows that it can be applied to, these rows, and the errors of the others. Raises the
    error itself if the routes of rows are not known before."""
    try:
        return shape(raw), raw, {}
    except DestinationHalted:
        if computes_route:
            raise
    values = pc.unique(pa.chunked_array([*_routes(raw.removed), *_routes(raw.arrived)], pa.string())).to_pylist()
    failures: Failures = {}
    _search(shape, raw, values, failures)
    sound = _of(raw, [value for value in values if value not in failures])
    return shape(sound), sound, failures


def failed_members(failures: Failures, routes: Routes) -> dict[int, DestinationHalted]:
    """The members that take rows of routes that failed."""
    return {place: error for value, error in failures.items() for place in routes.of(value)}


def _search(
    shape: Callable[[Changes], Changes], raw: Changes, values: Sequence[str | None], failures: Failures
) -> None:
    try:
        shape(_of(raw, values))
    except DestinationHalted as error:
        if len(values) == 1:
            failures[values[0]] = error
            return
        middle = len(values) // 2
        for half in (values[:middle], values[middle:]):
            _search(shape, raw, half, failures)


def _of(raw: Changes, values: Sequence[str | None]) -> Changes:
    """The rows of some routes."""
    known = pa.array(values, pa.string())

    def chosen(rows: pa.Table) -> pa.Table:
        return rows.filter(pc.is_in(rows.column(ROUTE_COLUMN), value_set=known))

    return raw._replace(removed=chosen(raw.removed), arrived=chosen(raw.arrived))


def _routes(rows: pa.Table) -> list[pa.Array]:
    found: list[pa.Array] = rows.column(ROUTE_COLUMN).chunks
    return found
