"""Every store and every kind of destination, as a place that tests may open, restart and harm."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.destination_place import Kind, Table, kinds
from etcd_server import Etcd
from metadata.places import EtcdPlace, Place, SqlitePlace
from postgres_server import PostgresServer


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with Etcd(tmp_path_factory.mktemp("etcd")) as running:
        yield running


@pytest.fixture(params=["sqlite", "etcd"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A place of its own for each test."""
    if request.param == "sqlite":
        return SqlitePlace(tmp_path)
    return EtcdPlace(request.getfixturevalue("etcd"), f"/{uuid.uuid4()}/")


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A server for all tests; each makes a database of its own."""
    with PostgresServer() as server:
        yield server


@pytest.fixture(params=kinds(), ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Every kind of destination."""
    found: Kind = request.param
    return found


@pytest.fixture
def table(kind: Kind, tmp_path: Path, request: pytest.FixtureRequest) -> Table:
    """A destination of its own for each test."""
    return kind.make(tmp_path, lambda: request.getfixturevalue("postgres"))
