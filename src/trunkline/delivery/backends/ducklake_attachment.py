"""Attaching a DuckLake to DuckDB: the lake itself, or its catalog as plain tables.

A catalog in SQLite is attached with a lease (``catalog_owners.py``). It ends with ``detach``, or with the connection.
"""

from __future__ import annotations

import weakref
from functools import cache
from typing import Final, Literal

import duckdb

from trunkline.config import ENVIRONMENT, secret
from trunkline.delivery.backends.catalog_owners import Lease, catalog_owners
from trunkline.delivery.backends.duckdb_pool import Extension
from trunkline.delivery.backends.object_store import create_secret, without_keys
from trunkline.delivery.backends.sql import first_line, literal
from trunkline.delivery.config.addresses import LakeAddress
from trunkline.delivery.config.object_urls import is_url
from trunkline.errors import Unreachable

CatalogKind = Literal["duckdb", "sqlite", "postgres"]
SCANNERS: Final[dict[CatalogKind, tuple[Extension, ...]]] = {  # what reads a catalog of that kind
    "duckdb": (),
    "sqlite": ("sqlite_scanner",),
    "postgres": ("postgres_scanner",),
}
NEEDS_DATA_PATH: Final = "it needs data_path, the directory of its files; add that key"


def catalog_location(catalog: str) -> tuple[CatalogKind, str]:
    """The kind of database that holds a catalog, and its path or connection string."""
    if catalog.startswith("sqlite:"):
        return "sqlite", catalog.removeprefix("sqlite:")
    if catalog.startswith("postgres:"):
        return "postgres", catalog.removeprefix("postgres:")
    return "duckdb", catalog


def needs_data_path(catalog: str) -> bool:
    """Whether a new lake needs a directory for its files; with a catalog in a DuckDB file they are beside it."""
    return catalog_location(catalog)[0] != "duckdb"


def catalog_scanners(address: LakeAddress) -> tuple[Extension, ...]:
    """The extensions that read a lake's catalog, and its files where they are not in a directory."""
    kind, _ = catalog_location(address.catalog)
    return (*SCANNERS[kind], "httpfs") if is_url(address.data_path) else SCANNERS[kind]


def attach_catalog(connection: duckdb.DuckDBPyConnection, address: LakeAddress, name: str) -> None:
    """Attach the database that holds a lake's catalog, to read it as plain tables."""
    kind, location = catalog_location(address.catalog)
    options = "" if kind == "duckdb" else f"TYPE {kind}, "
    _take_lease(connection, address, name)
    try:
        connection.execute(f"ATTACH {literal(location + password_part(address))} AS {name} ({options}READ_ONLY)")
    except duckdb.Error as error:
        _end_lease(connection, name)
        raise Unreachable(
            f"the catalog {address.catalog} cannot be opened: {without_password(error, address)}"
        ) from None


def attach_lake(connection: duckdb.DuckDBPyConnection, address: LakeAddress, name: str, *, read_only: bool) -> None:
    """Attach a lake itself, through DuckLake's extension."""
    options = [f"DATA_PATH {literal(address.data_path)}"] if address.data_path else []
    options += ["READ_ONLY"] if read_only else []
    suffix = f" ({', '.join(options)})" if options else ""
    create_secret(connection, address)
    _take_lease(connection, address, name)
    try:
        connection.execute(f"ATTACH {literal(lake_url(address))} AS {name}{suffix}")
    except duckdb.Error as error:
        _end_lease(connection, name)
        raise Unreachable(f"the lake {address.catalog} cannot be opened: {without_password(error, address)}") from None


def detach(connection: duckdb.DuckDBPyConnection, name: str) -> None:
    """What ``attach_catalog`` or ``attach_lake`` attached, if it is still there."""
    connection.execute(f"DETACH DATABASE IF EXISTS {name}")
    _end_lease(connection, name)


@cache
def _leases() -> dict[tuple[int, str], Lease]:
    """Global to the process: by connection and name."""
    return {}


def _take_lease(connection: duckdb.DuckDBPyConnection, address: LakeAddress, name: str) -> None:
    kind, location = catalog_location(address.catalog)
    if kind == "sqlite":
        lease = catalog_owners().attaching(location)
        _leases()[id(connection), name] = lease
        weakref.finalize(connection, _forget_lease, id(connection), name, lease)


def _end_lease(connection: duckdb.DuckDBPyConnection, name: str) -> None:
    if (lease := _leases().pop((id(connection), name), None)) is not None:
        lease.release()


def _forget_lease(number: int, name: str, lease: Lease) -> None:
    """The connection was closed; another one may have its number."""
    if _leases().get((number, name)) is lease:
        del _leases()[number, name]
    lease.release()


def lake_url(address: LakeAddress, parameters: str = "") -> str:
    """What ATTACH takes for a lake, with the password. ``parameters`` extends a PostgreSQL connection string."""
    kind, location = catalog_location(address.catalog)
    prefix = "" if kind == "duckdb" else f"{kind}:"
    return f"ducklake:{prefix}{location}{parameters}{password_part(address)}"


def password_part(address: LakeAddress) -> str:
    """The password as a part of a connection string, read from the environment at each use."""
    if address.password_env is None:
        return ""
    password = secret(address.password_env, f"the password for {address.catalog}")
    quoted = password.replace("\\", "\\\\").replace("'", "\\'")
    return f" password='{quoted}'"


def without_password(error: BaseException, address: LakeAddress) -> str:
    """The first line of an error of DuckDB, which repeats the whole connection string, without the password."""
    said = without_keys(first_line(error), address)
    password = ENVIRONMENT.get(address.password_env or "")
    if not password:
        return said
    return said.replace(password_part(address), "").replace(password, "***")
