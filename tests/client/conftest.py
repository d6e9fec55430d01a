"""One real cluster for all tests of the library."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from system.processes import Processes

NUMBERS = itertools.count(1)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    with Processes(tmp_path_factory.mktemp("cluster")) as processes:
        processes.start_cluster(nodes=3)
        yield processes


@pytest.fixture
def name() -> str:
    """A log name that no other test uses."""
    return f"log-{next(NUMBERS)}"
