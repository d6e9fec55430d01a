"""A connection to the cluster, and the logs that are open on it.

Rules
 N1  The first call connects; after a failure the next call tries again.
 N2  It never fills a hole: that is for clients that need the position settled.
 N3  Logs stay open, up to a limit; beyond it the connection closes, and the next call connects again.
"""

from __future__ import annotations

import asyncio
from typing import Final

from trunkline.client.cluster import ClientOptions, Cluster
from trunkline.client.log import Log
from trunkline.config import ConnectionConfig

ANSWER_S: Final = 2.0  # time-out of every request; too long: one silent node makes the page stale
NEVER_MS: Final = 86_400_000
LOGS_OPEN_MAX: Final = 500


class ClusterConnection:
    """``suspect_after_ms``: how long a node may be silent before this client suspects it."""

    def __init__(self, config: ConnectionConfig, suspect_after_ms: int) -> None:
        self._addresses = config.connect
        self._options = ClientOptions(
            timeout=ANSWER_S,
            connect_timeout=ANSWER_S,
            token=config.token,
            suspect_after_ms=suspect_after_ms,
            fill_after_ms=NEVER_MS,  # N2
            name="dashboard",
        )
        self._tls = config.tls()
        self._cluster: Cluster | None = None
        self._opening = asyncio.Lock()
        self._logs: dict[str, Log] = {}

    async def cluster(self) -> Cluster:
        """Raises ``Refused`` if no coordinator answers (N1)."""
        async with self._opening:
            if self._cluster is None:
                cluster = Cluster(self._addresses, self._options, tls=self._tls)
                await cluster.open()
                self._cluster = cluster
            return self._cluster

    async def log(self, name: str) -> Log:
        """Raises ``NoSuchLog``, or ``Refused``."""
        if name not in self._logs:
            if len(self._logs) >= LOGS_OPEN_MAX:
                await self.close()  # N3
            opened = await (await self.cluster()).log(name)
            self._logs.setdefault(name, opened)
        return self._logs[name]

    def forget(self, name: str) -> None:
        """The log was deleted."""
        self._logs.pop(name, None)

    async def close(self) -> None:
        cluster, self._cluster = self._cluster, None
        self._logs.clear()
        if cluster is not None:
            await cluster.close()
