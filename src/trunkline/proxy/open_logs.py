"""The open logs of the proxy. It never creates one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from trunkline.client.cluster import Cluster
from trunkline.client.log import Log
from trunkline.core.projection import Policy, Settings
from trunkline.errors import NoSuchLog, TrunklineError
from trunkline.proxy.counters import ProxyCounters
from trunkline.proxy.keyed import KeyedAppends
from trunkline.proxy.limits import LOGS_MAX
from trunkline.proxy.problems import refusal


class OpenLog(msgspec.Struct, frozen=True):
    """A log, its settings, which never change, and its appends with keys."""

    log: Log
    settings: Settings
    keyed: KeyedAppends

    @property
    def is_chain(self) -> bool:
        return self.settings.policy is Policy.CHAIN


class OpenLogs:
    """Opens a log at its first use, once for all requests."""

    def __init__(self, cluster: Cluster, key_window: int, counters: ProxyCounters) -> None:
        self._cluster = cluster
        self._key_window = key_window
        self._counters = counters
        self._opening: dict[str, asyncio.Task[OpenLog]] = {}

    @asynccontextmanager
    async def use(self, name: str) -> AsyncIterator[OpenLog]:
        """Raises ``NoSuchLog``. A log that was deleted, or whose handle failed, is closed and opened again."""
        opened = await self._open(name)
        try:
            yield opened
        except TrunklineError as error:
            if isinstance(error, NoSuchLog) or type(error) is TrunklineError:
                await self._close(name)
            raise

    async def _open(self, name: str) -> OpenLog:
        task = self._opening.get(name)
        if task is None:
            if len(self._opening) >= LOGS_MAX:
                raise refusal("busy", f"the proxy has {LOGS_MAX} logs open, which is its limit; use another proxy")
            task = self._opening[name] = asyncio.create_task(self._opened(name))
        try:
            return await asyncio.shield(task)
        except TrunklineError:
            if self._opening.get(name) is task:
                del self._opening[name]
            raise

    async def _opened(self, name: str) -> OpenLog:
        log = await self._cluster.log(name)
        return OpenLog(log, log.settings, self._keyed(log))

    def _keyed(self, log: Log) -> KeyedAppends:
        return KeyedAppends(log, self._key_window, self._cluster.options.timeout, self._counters)

    async def _close(self, name: str) -> None:
        task = self._opening.pop(name, None)
        if task is not None and task.done() and not task.cancelled() and task.exception() is None:
            with contextlib.suppress(TrunklineError):
                await task.result().log.close()
