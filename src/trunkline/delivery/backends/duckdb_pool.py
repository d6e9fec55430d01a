"""DuckDB with the extensions that were installed with this package: nothing is ever downloaded at run time."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Final, Literal

import duckdb

from trunkline.config import ENVIRONMENT, secret
from trunkline.delivery.config.addresses import LakeAddress
from trunkline.errors import Unreachable

Extension = Literal["ducklake", "postgres_scanner", "sqlite_scanner"]
# After a rewrite of files DuckLake hands the newest version's statistics to reads of earlier versions: these optimizers
# would believe them, and lose or change rows.
MISLED_OPTIMIZERS: Final = "compressed_materialization,statistics_propagation"
IDLE_INSTANCES_MOST: Final = 4
SETTINGS: Final[dict[str, str | bool | int]] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "TimeZone": "UTC",
}


def extension_file(name: Extension) -> Path:
    """Where the wheel of an extension put it."""
    module = importlib.import_module(f"duckdb_extension_{name}")
    assert module.__file__ is not None
    folder = Path(module.__file__).parent / "extensions" / f"v{duckdb.__version__}"
    return folder / f"{name}.duckdb_extension"


def connect(*extensions: Extension) -> duckdb.DuckDBPyConnection:
    """A new in-memory instance with these extensions loaded."""
    connection = duckdb.connect()
    for name, value in SETTINGS.items():
        connection.execute(f"SET {name} = {literal(value)}")
    for extension in extensions:
        connection.execute(f"LOAD {literal(str(extension_file(extension)))}")
    if "ducklake" in extensions:
        connection.execute(f"SET disabled_optimizers = {literal(MISLED_OPTIMIZERS)}")
    return connection


@contextmanager
def borrowed(*extensions: Extension) -> Iterator[duckdb.DuckDBPyConnection]:
    """An instance of this process with nothing attached: making one costs more than most queries.

    It is thrown away if anything goes wrong with it.
    """
    idle = _idle_instances(extensions)
    try:
        connection = idle.pop()
    except IndexError:  # none waits, or another thread was quicker
        connection = connect(*extensions)
    try:
        yield connection
    except BaseException:
        connection.close()
        raise
    if len(idle) < IDLE_INSTANCES_MOST:
        idle.append(connection)
    else:
        connection.close()


@cache
def _idle_instances(extensions: tuple[Extension, ...]) -> list[duckdb.DuckDBPyConnection]:
    """The one thing that outlives a call: instances that wait in this process for their next borrower."""
    return []


def attach_catalog(connection: duckdb.DuckDBPyConnection, address: LakeAddress, name: str) -> None:
    """Attach the database that holds a lake's catalog, to read it as plain tables."""
    kind, place = catalog_place(address.catalog)
    options = {"duckdb": "", "sqlite": "TYPE sqlite, ", "postgres": "TYPE postgres, "}[kind]
    try:
        connection.execute(f"ATTACH {literal(place + password_part(address))} AS {name} ({options}READ_ONLY)")
    except duckdb.Error as error:
        raise Unreachable(
            f"the catalog {address.catalog} cannot be opened: {without_password(error, address)}"
        ) from None


def attach_lake(connection: duckdb.DuckDBPyConnection, address: LakeAddress, name: str, *, read_only: bool) -> None:
    """Attach a lake itself, through DuckLake's extension."""
    kind, place = catalog_place(address.catalog)
    prefix = {"duckdb": "", "sqlite": "sqlite:", "postgres": "postgres:"}[kind]
    options = [f"DATA_PATH {literal(address.data_path)}"] if address.data_path else []
    options += ["READ_ONLY"] if read_only else []
    suffix = f" ({', '.join(options)})" if options else ""
    try:
        connection.execute(f"ATTACH {literal(f'ducklake:{prefix}{place}{password_part(address)}')} AS {name}{suffix}")
    except duckdb.Error as error:
        raise Unreachable(f"the lake {address.catalog} cannot be opened: {without_password(error, address)}") from None


def catalog_place(catalog: str) -> tuple[Literal["duckdb", "sqlite", "postgres"], str]:
    """The kind of database that holds a catalog, and where it is."""
    for kind in ("sqlite", "postgres"):
        if catalog.startswith(f"{kind}:"):
            return kind, catalog.removeprefix(f"{kind}:")
    return "duckdb", catalog


def password_part(address: LakeAddress) -> str:
    """What a connection string lacks: the password, taken from the environment at the moment of use."""
    if address.password_env is None:
        return ""
    password = secret(address.password_env, f"the password for {address.catalog}")
    quoted = password.replace("\\", "\\\\").replace("'", "\\'")
    return f" password='{quoted}'"


def without_password(error: BaseException, address: LakeAddress) -> str:
    """What DuckDB says; it repeats the whole connection string, which nobody may read."""
    password = ENVIRONMENT.get(address.password_env or "")
    if not password:
        return first_line(error)
    return first_line(error).replace(password_part(address), "").replace(password, "***")


def first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0]


def literal(value: str | bool | int) -> str:
    """A SQL literal: prepared parameters made some queries many times slower."""
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return str(value).lower()


def identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
