"""One cluster and one proxy for all tests: each uses logs of its own."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

import trunkline
from local_cluster import RunningCluster, local_cluster
from proxy.proxy_process import Proxy, running
from trunkline.cli.connection import run_loop
from trunkline.client.cluster import log_settings

T = TypeVar("T")
Library = Callable[[Callable[[trunkline.Cluster], Awaitable[T]]], T]

NUMBERS = itertools.count(1)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with local_cluster(tmp_path_factory.mktemp("proxied") / "cluster") as found:
        yield found


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For what proxies say."""
    return tmp_path_factory.mktemp("proxies")


@pytest.fixture(scope="session")
def proxy(cluster: RunningCluster, directory: Path) -> Iterator[Proxy]:
    with running(cluster.connect, directory) as found:
        yield found


@pytest.fixture
def name() -> str:
    """A name of a log that no other test uses; there is no such log."""
    return f"log-{next(NUMBERS)}"


@pytest.fixture
def log(library: Library[int], name: str) -> str:
    """A chain log that no other test uses."""
    library(lambda handle: handle.create_log(name, log_settings()))
    return name


@pytest.fixture
def library(cluster: RunningCluster) -> Library[T]:
    """Does something with the library, beside the proxy."""

    def do(work: Callable[[trunkline.Cluster], Awaitable[T]]) -> T:
        async def connected() -> T:
            async with trunkline.connect(cluster.connect) as handle:
                return await work(handle)

        return run_loop(connected())

    return do
