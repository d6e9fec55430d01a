"""DuckDB instances for expressions of a pipeline's file: without files, extensions, settings or other tables.

What depends on a time zone, a locale or a collation is fixed here, and the configuration is locked.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import duckdb

from trunkline.delivery.backends.duckdb_pool import from_pool, new_duckdb
from trunkline.delivery.backends.sql import literal

PARSED_DEPTH_MAX: Final = 250  # of DuckDB's own parser; must be above the depth that a shape may have
SETTINGS: Final[dict[str, str | bool | int]] = {
    "threads": 1,  # tasks run side by side already
    "default_collation": "",
    "default_null_order": "nulls_last",
    "integer_division": False,
    "ieee_floating_point_ops": True,
    "max_expression_depth": PARSED_DEPTH_MAX,
    "python_enable_replacements": False,
    "enable_external_access": False,
    "lock_configuration": True,
}

_idle: Final[list[duckdb.DuckDBPyConnection]] = []  # global to the process


@contextmanager
def sealed_duckdb() -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection from this process's pool. After an error it is closed."""
    with from_pool(_idle, _new) as connection:
        yield connection


def _new() -> duckdb.DuckDBPyConnection:
    connection = new_duckdb()
    for name, value in SETTINGS.items():
        connection.execute(f"SET {name} = {literal(value)}")
    return connection
