"""The destinations of `./run bench delivery`: tables of one kind, none of which exists yet."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from delivery_source import tenant

from trunkline.delivery.config.addresses import Address, DeltaAddress, LakeAddress, PostgresAddress
from trunkline.delivery.job.work import TaskDestination

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))  # for the throw-away server of the tests

from postgres_server import PostgresServer

KINDS = ("ducklake", "ducklake-sqlite", "delta", "postgres")
NAMES = {
    "ducklake": "DuckLake, a lake each, catalogs in DuckDB files",
    "ducklake-sqlite": "DuckLake, a lake each, catalogs in SQLite",
    "delta": "Delta",
    "postgres": "PostgreSQL, one database",
}
CONNECTIONS_MAX = "200"


def catalog_of(kind: str) -> str:
    """The kind of catalog that the source has for destinations of a kind."""
    return "sqlite" if kind == "ducklake-sqlite" else "duckdb"


@contextmanager
def server_for(kind: str) -> Iterator[PostgresServer | None]:
    """A PostgreSQL server that syncs its commits, for the kind that needs one."""
    if kind != "postgres":
        yield None
        return
    with PostgresServer(fsync=True, settings={"max_connections": CONNECTIONS_MAX}) as server:
        yield server


class Places:
    """Creates addresses of one kind in a directory."""

    def __init__(self, kind: str, folder: Path, server: PostgresServer | None = None) -> None:
        self.kind = kind
        self.folder = folder
        self._dsn = server.create_database("bench") if server is not None else ""

    def targets(self, count: int) -> tuple[TaskDestination, ...]:
        return tuple(
            TaskDestination(tenant(number), self.address(tenant(number)), (tenant(number),)) for number in range(count)
        )

    def address(self, name: str) -> Address:
        place = self.folder / name
        match self.kind:
            case "delta":
                return DeltaAddress(str(place))
            case "postgres":
                return PostgresAddress(self._dsn, name)
            case "ducklake-sqlite":
                return LakeAddress(f"sqlite:{place}/catalog.sqlite", "orders", data_path=str(place / "data"))
            case _:
                return LakeAddress(f"{place}/catalog.ducklake", "orders", data_path=str(place / "data"))
