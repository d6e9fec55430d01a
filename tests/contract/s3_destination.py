"""Lakes and Delta tables in a bucket, for the contract suite: one real S3 server for each process of tests."""

from __future__ import annotations

import atexit
import itertools
import os
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import duckdb
import msgspec
import obstore
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import TableNotFoundError
from msgspec import Struct

from contract.delta_destination import WatchedDelta
from contract.ducklake_destination import LAKE, SITES_EACH, LakeKind, LakeSite, _answer
from object_server import object_server
from postgres_server import PostgresServer
from trunkline.delivery.backends.duckdb_pool import new_duckdb
from trunkline.delivery.backends.ducklake_attachment import catalog_location
from trunkline.delivery.backends.object_folder import object_store
from trunkline.delivery.backends.object_store import store_options
from trunkline.delivery.backends.sql import literal
from trunkline.delivery.config.addresses import DeltaAddress, LakeAddress
from trunkline.delivery.destinations.contract import Standing
from trunkline.delivery.destinations.delta_record import MARK, MARKED, POSITION, TOKEN
from trunkline.delivery.destinations.ducklake import DuckLakePlace
from trunkline.demo.object_server import ObjectServer
from trunkline.destination_suite.place import Kind, Part, Watch

ACCESS_KEY_ENV: Final = "CONTRACT_ACCESS_KEY"
SECRET_KEY_ENV: Final = "CONTRACT_SECRET_KEY"
_sites = itertools.count()


@cache
def server() -> ObjectServer:
    """It also ends when this process is killed."""
    made = object_server()
    made.start()
    atexit.register(made.close)
    return made


class Bucket(Struct, frozen=True):
    """How a store is reached; it travels to child processes."""

    endpoint: str
    access_key: str
    secret_key: str

    @classmethod
    def of(cls, running: ObjectServer) -> Bucket:
        return cls(running.endpoint, running.access_key, running.secret_key)

    def keys(self) -> dict[str, str]:
        """The keys of an address; the variables that they name are set in this process."""
        os.environ.update({ACCESS_KEY_ENV: self.access_key, SECRET_KEY_ENV: self.secret_key})
        return {"endpoint": self.endpoint, "access_key_env": ACCESS_KEY_ENV, "secret_key_env": SECRET_KEY_ENV}

    def secret(self) -> str:
        """For DuckDB, of the whole bucket."""
        keys = f"KEY_ID '{self.access_key}', SECRET '{self.secret_key}', REGION 'us-east-1'"
        where = f"ENDPOINT '{self.endpoint.removeprefix('http://')}', URL_STYLE 'path', USE_SSL false"
        return f"CREATE SECRET independent (TYPE s3, {keys}, {where})"


NO_BUCKET: Final = Bucket("", "", "")


@cache
def independent(bucket: Bucket) -> duckdb.DuckDBPyConnection:
    """A connection of its own, which reads lakes without the code under test."""
    made = new_duckdb("ducklake", "sqlite_scanner", "postgres_scanner", "httpfs")
    made.execute(bucket.secret())
    return made


@dataclass(frozen=True)
class S3LakeSite(LakeSite):
    bucket: Bucket = NO_BUCKET

    def open(self, watch: Watch | None = None) -> DuckLakePlace:
        self.bucket.keys()
        return super().open(watch)

    def address(self, name: str) -> LakeAddress:
        return msgspec.structs.replace(super().address(name), **self.bucket.keys())

    def _answers(self, statements: Sequence[str], *, create: bool = False) -> list[list[dict[str, Any]] | None]:
        kind, place = catalog_location(self.catalog)
        where = f"ducklake:{kind}:{place}"
        options = f"DATA_PATH {literal(self.data_path)}, CREATE_IF_NOT_EXISTS {literal(create)}"
        connection = independent(self.bucket)
        try:
            connection.execute(f"ATTACH {literal(where)} AS {LAKE} ({options})")
        except duckdb.InvalidInputException:
            return [None] * len(statements)
        try:
            return [_answer(connection, statement) for statement in statements]
        finally:
            connection.execute(f"DETACH {LAKE}")


@dataclass(frozen=True)
class S3LakeKind(LakeKind):
    @property
    def name(self) -> str:
        return f"ducklake-{self.catalog}-s3"

    def make(self, folder: Path, postgres: Callable[[], PostgresServer]) -> S3LakeSite:
        bucket = Bucket.of(server())
        if self.catalog == "postgres":
            catalog, data_path = _shared_lake(postgres(), next(_sites) // SITES_EACH)
            return S3LakeSite(catalog, data_path, f"Site {uuid.uuid4().hex}", directly=False, bucket=bucket)
        return S3LakeSite(
            f"sqlite:{folder / 'catalog.sqlite'}", f"s3://lake/{uuid.uuid4()}", directly=False, bucket=bucket
        )


@cache
def _shared_lake(running: PostgresServer, number: int) -> tuple[str, str]:
    """Catalog and data path of one lake for several tests; each test has a schema of its own."""
    return f"postgres:{running.create_database(f's3_lake_{number}')}", f"s3://lake/{uuid.uuid4()}"


class S3DeltaSite(Struct, frozen=True):
    """A prefix with Delta tables."""

    prefix: str
    bucket: Bucket
    home: str = ""

    def open(self, watch: Watch | None = None) -> WatchedDelta:
        self.bucket.keys()
        return WatchedDelta(watch)

    def address(self, name: str) -> DeltaAddress:
        return DeltaAddress(self.path(name), **self.bucket.keys())

    def path(self, name: str) -> str:
        return f"s3://lake/{self.prefix}/{name}"

    def held(self, name: str) -> list[dict[str, Any]] | None:
        try:
            found = self._table(name)
        except TableNotFoundError:
            return None
        rows: list[dict[str, Any]] = pa.table(found.scan()).to_pylist()
        return rows

    def held_together(self, names: Sequence[str]) -> dict[str, list[dict[str, Any]] | None]:
        return {name: self.held(name) for name in names}

    def trace(self) -> object:
        """Every object of every log."""
        found = obstore.list(object_store(self.address("any")), f"{self.prefix}/").collect()
        return sorted(each["path"] for each in found if "/_delta_log/" in each["path"])

    def make_foreign(self, name: str) -> None:
        rows = pa.table({"id": pa.array([99], pa.int64())})
        write_deltalake(self.path(name), rows, storage_options=store_options(self.address(name)))

    def drop(self, name: str) -> None:
        store = object_store(self.address(name))
        found = obstore.list(store, f"{self.prefix}/{name}/").collect()
        obstore.delete(store, [each["path"] for each in found])

    def make_old_record(self, name: str, standing: Standing, *, marks: bool) -> None:
        table = self._table(name)
        rows, schema = pa.table(table.scan()), pa.schema(table.schema())
        self.drop(name)
        numbers = {POSITION: standing.position, TOKEN: standing.token}
        if marks:
            numbers |= {MARK: int(standing.mark or "0", 16), MARKED: standing.position if standing.mark else -1}
        write_deltalake(
            self.path(name),
            rows.cast(schema),
            storage_options=store_options(self.address(name)),
            commit_properties=CommitProperties(app_transactions=[Transaction(*each) for each in numbers.items()]),
        )

    def old_token(self, name: str) -> int | None:
        return self._table(name).transaction_version(TOKEN)

    def old_source(self, name: str) -> str:
        """Its records are those of every release."""
        return ""

    def lost(self) -> S3DeltaSite:
        return S3DeltaSite(self.prefix, Bucket("http://127.0.0.1:1", "none", "none"))

    def _table(self, name: str) -> DeltaTable:
        return DeltaTable(self.path(name), storage_options=store_options(self.address(name)))


class S3DeltaKind(Struct, frozen=True):
    name: str = "delta-s3"
    lacks: frozenset[Part] = frozenset()
    widens: bool = True
    adds_lists: bool = True
    server_fixture: str = "postgres"
    commits_alone: bool = True

    def make(self, folder: Path, postgres: Callable[[], Any]) -> S3DeltaSite:
        return S3DeltaSite(str(uuid.uuid4()), Bucket.of(server()))


KINDS: tuple[Kind, ...] = (S3LakeKind("sqlite", directly=False), S3LakeKind("postgres", directly=False), S3DeltaKind())
