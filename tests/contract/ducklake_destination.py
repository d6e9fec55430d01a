"""Lakes with catalogs of every kind, for the contract suite."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import duckdb

from postgres_server import PostgresServer
from trunkline.delivery.backends.duckdb_pool import extension_file, pooled_duckdb
from trunkline.delivery.backends.ducklake_attachment import SCANNERS, catalog_location
from trunkline.delivery.backends.sql import identifier, literal
from trunkline.delivery.config.addresses import LakeAddress
from trunkline.delivery.destinations.contract import MEMBERS, Standing, stored_mark
from trunkline.delivery.destinations.ducklake import DuckLakePlace
from trunkline.delivery.destinations.ducklake_attachments import AttachedLakes
from trunkline.delivery.destinations.ducklake_direct.direct_lake import DirectLake, is_direct
from trunkline.destination_suite.place import Kind, Part, Watch
from trunkline.destination_suite.processes import PRELOADED

LAKE: Final = "independent"
NAMES_EACH: Final = 100_000  # of attached lakes, which share an instance
SITES_EACH: Final = 16  # of one lake; more: DuckLake keeps all their tables in memory, for each change of any
_numbers = itertools.count()
_sites = itertools.count()


@cache
def instance() -> duckdb.DuckDBPyConnection:
    """What the children of a process inherit: loading extensions takes longer than anything they do with them."""
    made = AttachedLakes()._new_instance()
    for scanners in SCANNERS.values():
        for scanner in scanners:
            made.execute(f"LOAD {literal(str(extension_file(scanner)))}")
    made.execute(f"LOAD {literal(str(extension_file('httpfs')))}")
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
class LakeSite:
    """One lake; its tables are in one schema, which is also the home of its members."""

    catalog: str
    data_path: str
    home: str = "main"
    directly: bool = True  # ordinary flushes, where the kind of catalog allows it

    def open(self, watch: Watch | None = None) -> DuckLakePlace:
        address = self.address("any")
        direct = DirectLake(address, watch) if self.directly and is_direct(address) else None
        return DuckLakePlace(address, unwatched() if watch is None else WatchedCatalogs(watch), direct=direct)

    def address(self, name: str) -> LakeAddress:
        return LakeAddress(self.catalog, f"{name} 50%", self.home, data_path=self.data_path)

    def held(self, name: str) -> list[dict[str, Any]] | None:
        return self.held_together([name])[name]

    def held_together(self, names: Sequence[str]) -> dict[str, list[dict[str, Any]] | None]:
        kind, place = catalog_location(self.catalog)
        if kind != "postgres" and not Path(place).exists():
            return dict.fromkeys(names)
        answers = self._answers([f"SELECT * FROM {self._path(name)}" for name in names])
        return dict(zip(names, answers, strict=True))

    def trace(self) -> object:
        return self._ask(f"SELECT max(snapshot_id) AS newest FROM {LAKE}.snapshots()")

    def make_foreign(self, name: str) -> None:
        schema = f"CREATE SCHEMA IF NOT EXISTS {LAKE}.{identifier(self.home)}"
        self._ask(schema, f"CREATE TABLE {self._path(name)} AS SELECT 99::BIGINT AS id", create=True)

    def drop(self, name: str) -> None:
        self._ask(f"DROP TABLE {self._path(name)}")

    def make_old_record(self, name: str, standing: Standing, *, marks: bool) -> None:
        record, source = self._old_record(name), literal(standing.source)
        fields, values = (
            "position BIGINT, token BIGINT, source VARCHAR",
            f"{standing.position}, {standing.token}, {source}",
        )
        if marks:
            fields, values = f"{fields}, mark VARCHAR", f"{values}, {literal(stored_mark(standing))}"
        self._ask(
            f"DROP TABLE IF EXISTS {LAKE}.{identifier(self.home)}.{MEMBERS}",
            f"CREATE OR REPLACE TABLE {record} ({fields})",
            f"INSERT INTO {record} VALUES ({values})",
        )

    def old_token(self, name: str) -> int | None:
        found = self._ask(f"SELECT token FROM {self._old_record(name)}")
        return found[0]["token"] if found else None

    def old_source(self, name: str) -> str:
        found = self._ask(f"SELECT source FROM {self._old_record(name)}")
        return str(found[0]["source"]) if found else ""

    def lost(self) -> LakeSite:
        kind, place = catalog_location(self.catalog)
        if kind == "postgres":
            return replace(self, catalog="postgres:host=127.0.0.1 port=1 dbname=none")
        in_a_file = Path(place).parent / "file"
        in_a_file.write_text("no directory")
        prefix = "" if kind == "duckdb" else f"{kind}:"
        return replace(self, catalog=f"{prefix}{in_a_file}/catalog")

    def _path(self, name: str) -> str:
        return f"{LAKE}.{identifier(self.home)}.{identifier(self.address(name).table)}"

    def _old_record(self, name: str) -> str:
        return f"{LAKE}.{identifier(self.home)}.{identifier(f'_trunkline_{self.address(name).table}')}"

    def _ask(self, *statements: str, create: bool = False) -> list[dict[str, Any]] | None:
        """The answer to the last statement, or ``None`` if there is no such lake or table."""
        answers = self._answers(statements, create=create)
        return None if None in answers else answers[-1]

    def _answers(self, statements: Sequence[str], *, create: bool = False) -> list[list[dict[str, Any]] | None]:
        """``None`` for each if there is no such lake, and for one if there is no such table."""
        kind, place = catalog_location(self.catalog)
        where = f"ducklake:{place}" if kind == "duckdb" else f"ducklake:{kind}:{place}"
        options = f"DATA_PATH {literal(self.data_path)}, CREATE_IF_NOT_EXISTS {literal(create)}"
        with pooled_duckdb("ducklake", "sqlite_scanner", "postgres_scanner") as connection:
            try:
                connection.execute(f"ATTACH {literal(where)} AS {LAKE} ({options})")
            except duckdb.InvalidInputException:
                return [None] * len(statements)
            try:
                return [_answer(connection, statement) for statement in statements]
            finally:
                connection.execute(f"DETACH {LAKE}")


def _answer(connection: duckdb.DuckDBPyConnection, statement: str) -> list[dict[str, Any]] | None:
    try:
        result = connection.execute(statement)
    except duckdb.CatalogException:
        return None
    names = [name for name, *_ in result.description or ()]
    return [dict(zip(names, row, strict=True)) for row in result.fetchall()]


@dataclass(frozen=True)
class LakeKind:
    catalog: str
    directly: bool = True
    lacks: frozenset[Part] = frozenset()
    widens: bool = True
    adds_lists: bool = True
    server_fixture: str = "postgres"
    commits_alone: bool = False

    @property
    def name(self) -> str:
        alone = self.catalog == "duckdb"  # it is never written directly
        return f"ducklake-{self.catalog}{'' if self.directly or alone else '-extension'}"

    def make(self, folder: Path, postgres: Callable[[], PostgresServer]) -> LakeSite:
        if self.catalog == "postgres":
            shared = _shared_lake(postgres(), next(_sites) // SITES_EACH)
            return replace(shared, home=f"Site {uuid.uuid4().hex}", directly=self.directly)
        place = {"sqlite": f"sqlite:{folder / 'catalog.sqlite'}", "duckdb": str(folder / "catalog.ducklake")}
        return LakeSite(place[self.catalog], str(folder / "data"), directly=self.directly)


@cache
def _shared_lake(server: PostgresServer, number: int) -> LakeSite:
    """One lake for several tests, as such catalogs are used; each test has a schema of its own."""
    name = f"lake_{number}"
    return LakeSite(f"postgres:{server.create_database(name)}", str(server.directory / name))


PRELOADED.append("contract.warm_process")  # so that children need not load DuckDB
KINDS: tuple[Kind, ...] = (
    LakeKind("duckdb", directly=False),
    *(LakeKind(catalog, directly) for catalog in ("sqlite", "postgres") for directly in (True, False)),
)
