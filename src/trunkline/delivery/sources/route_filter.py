"""Routing values and route filters, in queries of DuckDB and in Arrow tables.

Values travel as data, never as SQL: a row may hold any text, and one with a meaning in SQL (DuckDB ends a statement at
a NUL) would make the rows of every destination unreadable.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from trunkline.delivery.backends.duckdb_pool import registered
from trunkline.delivery.backends.sql import identifier
from trunkline.delivery.changes.history import VersionedChanges
from trunkline.delivery.changes.rows import ROUTE_COLUMN
from trunkline.delivery.sources.contract import ALL_ROUTES, RouteFilter

VALUES: Final = "filter_values"


def route_item(value: str = "NULL") -> str:
    """The select item for ROUTE_COLUMN, from an expression for the routing column."""
    return f"CAST({value} AS VARCHAR) AS {identifier(ROUTE_COLUMN)}"


@contextmanager
def filtered_rows(
    connection: duckdb.DuckDBPyConnection, rows: str, routes: RouteFilter, *, of_files: bool = True
) -> Iterator[str]:
    """A query for the rows of another query, which has ROUTE_COLUMN, that pass a filter. Valid inside of ``with``.

    ``of_files``: DuckDB reads the rows from files, and can skip some by their statistics.
    """
    if routes == ALL_ROUTES:
        yield rows
        return
    # One of the two sets is enough: a value in both passes.
    left_out = None if routes.all_but is None else set(routes.all_but) - set(routes.values)
    values = routes.values if left_out is None else tuple(left_out)
    # DuckDB pushes "=" down to what provides the rows; Arrow does not support that for every type of text.
    equal = "=" if of_files and None not in values else "IS NOT DISTINCT FROM"
    join = f"{'SEMI' if left_out is None else 'ANTI'} JOIN {VALUES} v ON r.{identifier(ROUTE_COLUMN)} {equal} v.value"
    with registered(connection, **{VALUES: pa.table({"value": pa.array(values, pa.string())})}):
        yield f"SELECT r.* FROM ({rows}) r {join}"


def filtered_versions(changes: VersionedChanges, routes: RouteFilter) -> VersionedChanges:
    """The rows of versions that pass a filter."""
    removed, arrived = (filtered_table(rows, routes) for rows in (changes.removed, changes.arrived))
    return VersionedChanges(removed, arrived, changes.emptied)


def filtered_table(rows: pa.Table, routes: RouteFilter) -> pa.Table:
    """The rows that pass a filter."""
    if routes == ALL_ROUTES:
        return rows
    route = rows.column(ROUTE_COLUMN)
    mask = pc.is_in(route, value_set=pa.array(routes.values, pa.string()))
    if routes.all_but is not None:
        mask = pc.or_(mask, pc.invert(pc.is_in(route, value_set=pa.array(routes.all_but, pa.string()))))
    return rows.filter(mask)
