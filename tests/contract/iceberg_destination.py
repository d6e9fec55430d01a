"""Iceberg tables for the contract suite: one real server for each process of tests, with a catalog and a bucket."""

from __future__ import annotations

import atexit
import itertools
import os
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import duckdb
from msgspec import Struct
from msgspec.structs import replace

from object_server import object_server
from trunkline.delivery.backends.duckdb_pool import new_duckdb
from trunkline.delivery.backends.sql import identifier, literal
from trunkline.delivery.config.addresses import IcebergAddress
from trunkline.delivery.destinations.contract import Standing
from trunkline.delivery.destinations.delta_record import MARK, MARKED, MEMBER, POSITION, TOKEN, UNKNOWN
from trunkline.delivery.destinations.iceberg import IcebergPlace
from trunkline.delivery.destinations.iceberg_table import SOURCE
from trunkline.demo.object_server import ObjectServer
from trunkline.destination_suite.place import Part, Watch

ACCESS_KEY_ENV: Final = "CONTRACT_ICEBERG_ACCESS_KEY"
SECRET_KEY_ENV: Final = "CONTRACT_ICEBERG_SECRET_KEY"
WAREHOUSE: Final = "warehouse"
_sites = itertools.count()


@cache
def server() -> ObjectServer:
    """It also ends when this process is killed."""
    made = object_server(buckets=(), tables=WAREHOUSE)
    made.start()
    atexit.register(made.close)
    return made


class Warehouse(Struct, frozen=True):
    """How a catalog is reached; it travels to child processes."""

    catalog: str
    endpoint: str
    access_key: str
    secret_key: str

    @classmethod
    def of(cls, running: ObjectServer) -> Warehouse:
        return cls(running.catalog, running.endpoint, running.access_key, running.secret_key)

    def log_in(self) -> None:
        """Set the variables that addresses name, in this process."""
        os.environ.update({ACCESS_KEY_ENV: self.access_key, SECRET_KEY_ENV: self.secret_key})

    def address(self, schema: str, table: str) -> IcebergAddress:
        self.log_in()
        return IcebergAddress(
            catalog=self.catalog,
            warehouse=WAREHOUSE,
            table=table,
            schema=schema,
            client_id_env=ACCESS_KEY_ENV,
            client_secret_env=SECRET_KEY_ENV,
            endpoint=self.endpoint,
            access_key_env=ACCESS_KEY_ENV,
            secret_key_env=SECRET_KEY_ENV,
        )


@cache
def independent(warehouse: Warehouse) -> duckdb.DuckDBPyConnection:
    """A connection that no class of the place has made."""
    connection = new_duckdb("httpfs", "avro", "iceberg")
    keys = f"KEY_ID '{warehouse.access_key}', SECRET '{warehouse.secret_key}', REGION 'us-east-1'"
    where = f"ENDPOINT '{warehouse.endpoint.removeprefix('http://')}', URL_STYLE 'path', USE_SSL false"
    connection.execute(f"CREATE SECRET s (TYPE s3, {keys}, {where})")
    login = f"CLIENT_ID '{warehouse.access_key}', CLIENT_SECRET '{warehouse.secret_key}'"
    connection.execute(
        f"CREATE SECRET o (TYPE iceberg, {login}, OAUTH2_SERVER_URI '{warehouse.catalog}/v1/oauth/tokens')"
    )
    options = f"TYPE iceberg, ENDPOINT '{warehouse.catalog}', SECRET o, ACCESS_DELEGATION_MODE 'none'"
    connection.execute(f"ATTACH '{WAREHOUSE}' AS w ({options})")
    return connection


class WatchedIceberg(IcebergPlace):
    """Reports each statement to the watcher."""

    def __init__(self, watch: Watch | None = None) -> None:
        super().__init__()
        self._watch = watch

    def _step(self, name: str) -> None:
        if self._watch is not None:
            self._watch(name)


class IcebergSite(Struct, frozen=True):
    """A namespace of its own."""

    warehouse: Warehouse
    schema: str
    home: str = ""

    def open(self, watch: Watch | None = None) -> WatchedIceberg:
        self.warehouse.log_in()  # a child has its addresses from its parent
        return WatchedIceberg(watch)

    def address(self, name: str) -> IcebergAddress:
        return self.warehouse.address(self.schema, name)

    def path(self, name: str) -> str:
        return f"w.{identifier(self.schema)}.{identifier(name)}"

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        return independent(self.warehouse).cursor().execute(statement).fetchall()

    def held(self, name: str) -> list[dict[str, Any]] | None:
        cursor = independent(self.warehouse).cursor()
        try:
            found = cursor.execute(f"FROM {self.path(name)}")
        except duckdb.CatalogException:
            independent.cache_clear()  # it would not find the namespace later, either
            return None
        names = [column[0] for column in found.description or ()]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]

    def held_together(self, names: Sequence[str]) -> dict[str, list[dict[str, Any]] | None]:
        return {name: self.held(name) for name in names}

    def trace(self) -> object:
        """The metadata of each table."""
        query = f"SELECT table_name FROM duckdb_tables() WHERE database_name = 'w' AND schema_name = '{self.schema}'"
        return {
            name: self.run(f"SELECT metadata_location FROM iceberg_load_table_response({self.path(name)})")
            for (name,) in self.run(query)
        }

    def make_foreign(self, name: str) -> None:
        self.run(f"CREATE SCHEMA IF NOT EXISTS w.{identifier(self.schema)}")
        self.run(f"CREATE TABLE {self.path(name)} (id BIGINT)")
        self.run(f"INSERT INTO {self.path(name)} VALUES (99)")

    def drop(self, name: str) -> None:
        self.run(f"DROP TABLE {self.path(name)}")

    def make_old_record(self, name: str, standing: Standing, *, marks: bool) -> None:
        """There is no older release with Iceberg tables: what is left are properties without a member, and a mark of
        no position without ``marks``: with this catalog a removal of properties had no effect."""
        marked = standing.position if marks and standing.mark else -1
        values: dict[str, object] = {POSITION: standing.position, TOKEN: standing.token, MEMBER: UNKNOWN}
        values |= {MARK: int(standing.mark or "0", 16), MARKED: marked, SOURCE: standing.source}
        pairs = ", ".join(f"{literal(key)}: {literal(str(value))}" for key, value in values.items())
        self.run(f"CALL set_iceberg_table_properties({self.path(name)}, {{{pairs}}})")

    def old_token(self, name: str) -> int | None:
        found = dict(self.run(f"FROM iceberg_table_properties({self.path(name)})"))
        return int(found[TOKEN]) if TOKEN in found else None

    def old_source(self, name: str) -> str:
        """Its records are those of every release."""
        return ""

    def lost(self) -> IcebergSite:
        return replace(self, warehouse=replace(self.warehouse, catalog="http://127.0.0.1:1"))


class IcebergKind(Struct, frozen=True):
    name: str = "iceberg"
    lacks: frozenset[Part] = frozenset()
    widens: bool = True
    adds_lists: bool = False
    server_fixture: str = ""
    commits_alone: bool = True

    def make(self, folder: Path, postgres: Callable[[], Any]) -> IcebergSite:
        return IcebergSite(Warehouse.of(server()), f"site_{next(_sites)}")


KINDS: Final = (IcebergKind(),)
