"""What the tests of delivery share: a PostgreSQL server, a control store, deliverers without Spark."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from delivery import set_addresses
from delivery.captured_shop import Shop
from delivery.deliverer_rig import Make, Rig
from postgres_server import PostgresServer
from trunkline.delivery.control.store import ControlStore, open_control_store


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A server for all tests, because it takes a while to start; each makes a database of its own."""
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def logical() -> Iterator[PostgresServer]:
    """A server whose tables can be captured."""
    with PostgresServer(settings={"wal_level": "logical", "max_replication_slots": "100"}) as server:
        yield server


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ControlStore]:
    opened = open_control_store(f"sqlite:{tmp_path / 'control.db'}")
    try:
        yield opened
    finally:
        opened.close()


@pytest.fixture(params=set_addresses.KINDS)
def make(request: pytest.FixtureRequest, tmp_path: Path, postgres: PostgresServer) -> set_addresses.Make:
    """Addresses of destinations of one kind; the test runs for each kind."""
    return set_addresses.addresses(request.param, tmp_path, postgres)


@pytest.fixture
def rig(store: ControlStore) -> Iterator[Make]:
    made: list[Rig] = []

    def make(names: list[str], positions: Mapping[str, int] | None = None) -> Rig:
        made.append(Rig(store, names, positions))
        return made[-1]

    yield make
    for each in made:
        each.leases.end()


@pytest.fixture
def shop(logical: PostgresServer, request: pytest.FixtureRequest) -> Iterator[Shop]:
    made = Shop(logical, f"shop{zlib.crc32(request.node.nodeid.encode())}")
    yield made
    made.close()
