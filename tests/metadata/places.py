"""The places of metadata stores, for tests of every store: opened, broken and repaired through one interface."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Protocol

from etcd_server import Etcd
from trunkline.core.effects import Event
from trunkline.core.timing import DEFAULT_TIMING
from trunkline.metadata.etcd_gateway import EtcdOptions
from trunkline.metadata.etcd_store import EtcdStore
from trunkline.metadata.sqlite_store import SqliteStore
from trunkline.metadata.store import MetadataStore

LONG_MS = 60_000  # a lease that does not expire during a test
PATIENCE_S = 20.0  # for what takes a second or two; a loaded machine is not a failure
LOOK_AGAIN_S = 0.05


class Place(Protocol):
    lease_ms: int  # the shortest that the store can keep

    def store(self, lease_ms: int = DEFAULT_TIMING.lease_ms) -> MetadataStore:
        """A store that is not started yet; several of one place hold the same, one after another."""

    def arguments(self) -> list[str]:
        """The argument of ``swapping_process``."""

    def break_down(self) -> None: ...

    def mend(self) -> None: ...


class SqlitePlace:
    lease_ms = 1000  # it could be shorter, but not than a pause of a loaded machine

    def __init__(self, directory: Path) -> None:
        self._path = directory / "metadata.sqlite"
        self._intruder: sqlite3.Connection | None = None

    def store(self, lease_ms: int = DEFAULT_TIMING.lease_ms) -> MetadataStore:
        return SqliteStore(self._path, lease_ms=lease_ms)

    def arguments(self) -> list[str]:
        return ["sqlite", str(self._path)]

    def break_down(self) -> None:
        """Another program locks the file."""
        self._intruder = sqlite3.connect(self._path, isolation_level=None)
        self._intruder.execute("BEGIN IMMEDIATE")

    def mend(self) -> None:
        assert self._intruder is not None
        self._intruder.close()


class EtcdPlace:
    lease_ms = 2000

    def __init__(self, etcd: Etcd, prefix: str) -> None:
        self._etcd = etcd
        # A long time limit: a loaded machine is not an outage. A broken one refuses connections at once.
        self.options = EtcdOptions(etcd.endpoints, prefix=prefix, request_ms=10_000, retry_ms=50)

    def store(self, lease_ms: int = DEFAULT_TIMING.lease_ms) -> MetadataStore:
        return EtcdStore(self.options, lease_ms=lease_ms)

    def arguments(self) -> list[str]:
        return ["etcd", ",".join(self.options.endpoints), self.options.prefix]

    def break_down(self) -> None:
        self._etcd.kill(0)

    def mend(self) -> None:
        self._etcd.restart(0)


@contextlib.asynccontextmanager
async def opened(
    place: Place, lease_ms: int = DEFAULT_TIMING.lease_ms, listener: Callable[[Event], None] | None = None
) -> AsyncIterator[MetadataStore]:
    store = place.store(lease_ms)
    if listener is not None:
        store.events(listener)
    await store.start()
    try:
        yield store
    finally:
        await store.close()


async def until(store: MetadataStore, condition: Callable[[], Awaitable[bool]]) -> None:
    """Return when the condition holds; it is checked with every change that the store reports."""
    watcher = store.watch()
    async with asyncio.timeout(PATIENCE_S):
        while not await condition():
            await anext(watcher)


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Return when a condition holds; it is polled."""
    async with asyncio.timeout(PATIENCE_S):
        while not await condition():
            await asyncio.sleep(LOOK_AGAIN_S)


async def heard(watcher: AsyncIterator[str], name: str) -> None:
    while await anext(watcher) != name:
        pass
