"""Every store, as a place that tests may open, restart and harm."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from contract.control_place import Place as ControlPlace
from etcd_server import Etcd
from metadata.places import EtcdPlace, Place, SqlitePlace
from postgres_server import PostgresServer
from trunkline.delivery.control.store import ControlStore


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


@pytest.fixture(params=["sqlite", "postgres"])
def control_place(request: pytest.FixtureRequest, tmp_path: Path) -> ControlPlace:
    if request.param == "sqlite":
        return ControlPlace(f"sqlite:{tmp_path / 'control.db'}")
    server: PostgresServer = request.getfixturevalue("postgres")
    schema = f"control_{uuid.uuid4().hex}"
    with psycopg.connect(server.dsn()) as connection:
        connection.execute(f"CREATE SCHEMA {schema}".encode())
    return ControlPlace(f"postgres:{make_conninfo(server.dsn(), options=f'-c search_path={schema}')}")


@pytest.fixture
def store(control_place: ControlPlace) -> Iterator[ControlStore]:
    opened = control_place.open()
    yield opened
    opened.close()
