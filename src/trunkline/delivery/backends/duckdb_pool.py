"""A pool of DuckDB connections, with the extensions that were installed with this package.

Nothing is ever downloaded at run time. Each connection has an in-memory instance of its own.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Final, Literal

import duckdb
import pyarrow as pa

from trunkline.delivery.backends.sql import literal

Extension = Literal["avro", "ducklake", "httpfs", "iceberg", "postgres_scanner", "sqlite_scanner"]
# After a rewrite of files DuckLake applies the newest version's statistics to reads of earlier versions: with these
# optimizers, such reads lose or change rows.
MISLED_OPTIMIZERS: Final = "compressed_materialization,statistics_propagation"
IDLE_CONNECTIONS_MAX: Final = 4
SETTINGS: Final[dict[str, str | bool | int]] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "TimeZone": "UTC",
}


def extension_file(name: Extension) -> Path:
    """The file that an extension's wheel installed."""
    module = importlib.import_module(f"duckdb_extension_{name}")
    assert module.__file__ is not None
    folder = Path(module.__file__).parent / "extensions" / f"v{duckdb.__version__}"
    return folder / f"{name}.duckdb_extension"


def new_duckdb(*extensions: Extension) -> duckdb.DuckDBPyConnection:
    """A connection to a new in-memory instance with these extensions loaded."""
    connection = duckdb.connect()
    for name, value in SETTINGS.items():
        connection.execute(f"SET {name} = {literal(value)}")
    for extension in extensions:
        connection.execute(f"LOAD {literal(str(extension_file(extension)))}")
    if "ducklake" in extensions:
        connection.execute(f"SET disabled_optimizers = {literal(MISLED_OPTIMIZERS)}")
    return connection


@contextmanager
def pooled_duckdb(*extensions: Extension) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection with nothing attached, from this process's pool: a new one costs more than most queries."""
    with from_pool(_idle_connections(extensions), lambda: new_duckdb(*extensions)) as connection:
        yield connection


@cache
def _idle_connections(extensions: tuple[Extension, ...]) -> list[duckdb.DuckDBPyConnection]:
    """Global to the process."""
    return []


@contextmanager
def from_pool(
    idle: list[duckdb.DuckDBPyConnection], new: Callable[[], duckdb.DuckDBPyConnection]
) -> Iterator[duckdb.DuckDBPyConnection]:
    """An idle connection or a new one. After an error it is closed instead of returned to the pool."""
    try:
        connection = idle.pop()
    except IndexError:  # none is idle, or another thread took it
        connection = new()
    try:
        yield connection
    except BaseException:
        connection.close()
        raise
    if len(idle) < IDLE_CONNECTIONS_MAX:
        idle.append(connection)
    else:
        connection.close()


@contextmanager
def registered(connection: duckdb.DuckDBPyConnection, **tables: pa.Table | pa.RecordBatchReader) -> Iterator[None]:
    """Arrow data under names for SQL. After an error the names stay; the pool closes such a connection."""
    for name, table in tables.items():
        connection.register(name, table)
    yield
    for name in tables:
        connection.unregister(name)
