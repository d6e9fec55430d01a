"""Tables of lakes, with catalogs of every kind, for the contract suite."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import duckdb
from msgspec.structs import replace as replaced

from contract.destination_place import Kind, Watch
from postgres_server import PostgresServer
from trunkline.delivery.backends.duckdb_pool import extension_file, pooled_duckdb
from trunkline.delivery.backends.ducklake_attachment import SCANNERS, catalog_location
from trunkline.delivery.backends.sql import identifier, literal
from trunkline.delivery.config.addresses import LakeAddress
from trunkline.delivery.destinations.ducklake import DuckLakeDestination
from trunkline.delivery.destinations.ducklake_attachments import AttachedLakes

TABLE: Final = "orders 50%"
LAKE: Final = "independent"
NAMES_EACH: Final = 100_000  # of attached lakes, which share an instance
_numbers = itertools.count()


@cache
def instance() -> duckdb.DuckDBPyConnection:
    """What the children of a process inherit: loading extensions takes longer than anything they do with them."""
    made = AttachedLakes()._new_instance()
    for scanners in SCANNERS.values():
        for scanner in scanners:
            made.execute(f"LOAD {literal(str(extension_file(scanner)))}")
    return made


class WatchedCatalogs(AttachedLakes):
    """Reports every statement before it runs."""

    def __init__(self, watch: Watch | None) -> None:
        super().__init__()
        self._watch = watch
        self._numbered = next(_numbers) * NAMES_EACH

    def run(self, cursor: duckdb.DuckDBPyConnection, statement: str) -> duckdb.DuckDBPyConnection:
        if self._watch is not None:
            self._watch(statement)
        return super().run(cursor, statement)

    def _new_instance(self) -> duckdb.DuckDBPyConnection:
        return instance().cursor()


@cache
def unwatched() -> AttachedLakes:
    return WatchedCatalogs(None)


@dataclass(frozen=True)
class LakeTable:
    address: LakeAddress

    def open(self, watch: Watch | None = None) -> DuckLakeDestination:
        return DuckLakeDestination(self.address, unwatched() if watch is None else WatchedCatalogs(watch))

    def held(self) -> list[dict[str, Any]] | None:
        if catalog_location(self.address.catalog)[0] != "postgres" and not Path(self._place).exists():
            return None
        return self._ask(f"SELECT * FROM {LAKE}.{self.address.schema}.{identifier(self.address.table)}")

    def trace(self) -> object:
        return self._ask(f"SELECT max(snapshot_id) AS newest FROM {LAKE}.snapshots()")

    def make_foreign(self) -> None:
        name = f"{LAKE}.{identifier(self.address.table)}"
        self._ask(f"CREATE TABLE {name} AS SELECT 99::BIGINT AS id", create=True)

    def forget_marks(self) -> None:
        record = identifier(f"_trunkline_{self.address.table}")
        self._ask(f"ALTER TABLE {LAKE}.{self.address.schema}.{record} DROP COLUMN mark")

    def lost(self) -> LakeTable:
        kind, place = catalog_location(self.address.catalog)
        if kind == "postgres":
            return replace(self, address=replaced(self.address, catalog="postgres:host=127.0.0.1 port=1 dbname=none"))
        in_a_file = Path(place).parent / "file"
        in_a_file.write_text("no directory")
        prefix = "" if kind == "duckdb" else f"{kind}:"
        return replace(self, address=replaced(self.address, catalog=f"{prefix}{in_a_file}/catalog"))

    @property
    def _place(self) -> str:
        return catalog_location(self.address.catalog)[1]

    def _ask(self, statement: str, *, create: bool = False) -> list[dict[str, Any]] | None:
        """The answer, or ``None`` if there is no such lake or table."""
        kind, place = catalog_location(self.address.catalog)
        where = f"ducklake:{place}" if kind == "duckdb" else f"ducklake:{kind}:{place}"
        options = f"DATA_PATH {literal(self.address.data_path or '')}, CREATE_IF_NOT_EXISTS {literal(create)}"
        with pooled_duckdb("ducklake", "sqlite_scanner", "postgres_scanner") as connection:
            try:
                connection.execute(f"ATTACH {literal(where)} AS {LAKE} ({options})")
            except duckdb.InvalidInputException:
                return None
            try:
                result = connection.execute(statement)
                names = [name for name, *_ in result.description or ()]
                return [dict(zip(names, row, strict=True)) for row in result.fetchall()]
            except duckdb.CatalogException:
                return None
            finally:
                connection.execute(f"DETACH {LAKE}")


@dataclass(frozen=True)
class LakeKind:
    catalog: str
    widens: bool = True

    @property
    def name(self) -> str:
        return f"ducklake-{self.catalog}"

    def make(self, folder: Path, postgres: Callable[[], PostgresServer]) -> LakeTable:
        if self.catalog == "postgres":
            return LakeTable(replaced(_shared_lake(postgres()), table=f"{TABLE} {uuid.uuid4().hex}"))
        place = {"sqlite": f"sqlite:{folder / 'catalog.sqlite'}", "duckdb": str(folder / "catalog.ducklake")}
        return LakeTable(LakeAddress(place[self.catalog], TABLE, data_path=str(folder / "data")))


@cache
def _shared_lake(server: PostgresServer) -> LakeAddress:
    """One lake for all tests of a server, as such catalogs are used; each test has a table of its own."""
    return LakeAddress(f"postgres:{server.create_database('lake')}", TABLE, data_path=str(server.directory / "lake"))


KINDS: tuple[Kind, ...] = tuple(LakeKind(catalog) for catalog in ("duckdb", "sqlite", "postgres"))
