"""Every store, as a place that tests may open, restart and harm."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from etcd_server import Etcd
from metadata.places import EtcdPlace, Place, SqlitePlace


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
