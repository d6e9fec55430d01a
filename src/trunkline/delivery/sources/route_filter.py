"""Which rows belong to a share of the routing values, for DuckDB.

Values travel as data, never as SQL: a row may hold any text, and one that means something to SQL (DuckDB takes a NUL
for the end of its text) would keep everybody's rows from being read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import duckdb
import pyarrow as pa

from trunkline.delivery.backends.sql import identifier
from trunkline.delivery.changes.rows import ROUTE_COLUMN
from trunkline.delivery.sources.contract import ALL_ROUTES, RouteFilter

VALUES: Final = "share_values"


@contextmanager
def filtered_rows(
    connection: duckdb.DuckDBPyConnection, rows: str, routes: RouteFilter, *, of_files: bool = True
) -> Iterator[str]:
    """A query for the rows of another one, which has ROUTE_COLUMN, that belong to a share. It holds inside ``with``.

    ``of_files``: DuckDB reads them from files, and can leave some out by their statistics. An instance on which
    anything failed is thrown away, with what is registered there.
    """
    if routes == ALL_ROUTES:
        yield rows
        return
    # Of two sets one is enough: a value of both is in the share.
    left_out = None if routes.all_but is None else set(routes.all_but) - set(routes.values)
    values = routes.values if left_out is None else tuple(left_out)
    connection.register(VALUES, pa.table({"value": pa.array(values, pa.string())}))
    # With "=" DuckDB hands the values on to whoever gives it the rows; Arrow does not take them for every type of text.
    equal = "=" if of_files and None not in values else "IS NOT DISTINCT FROM"
    join = f"{'SEMI' if left_out is None else 'ANTI'} JOIN {VALUES} v ON r.{identifier(ROUTE_COLUMN)} {equal} v.value"
    yield f"SELECT r.* FROM ({rows}) r {join}"
    connection.unregister(VALUES)
