"""The clock of the leases of nodes (M3): reports a node that was silent for ``lease_ms``, once.

    renewed ----- renewed ------------------- | lease_ms | expired(node, start)

One timer for all nodes, set to the earliest deadline. When it fires much too late, this process was stopped and could
not receive renewals, so every node gets a new period.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable


class LeaseClock:
    def __init__(self, lease_ms: int, expired: Callable[[str, int], None]) -> None:
        self._period_s = lease_ms / 1000
        self._expired = expired
        self._deadlines: dict[str, tuple[float, int]] = {}  # node: when, start; as many as are registered
        self._timer: asyncio.TimerHandle | None = None

    def renewed(self, node: str, start: int) -> None:
        loop = asyncio.get_running_loop()
        self._deadlines[node] = (loop.time() + self._period_s, start)
        if self._timer is None:
            self._timer = loop.call_at(self._deadlines[node][0], self._fire)

    def restart(self, nodes: Iterable[tuple[str, int]]) -> None:
        """Forget all nodes; these get a new period."""
        self.stop()
        for node, start in nodes:
            self.renewed(node, start)

    def stop(self) -> None:
        self._deadlines.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        """A renewal does not move the timer: if nothing has expired, it is set again."""
        loop = asyncio.get_running_loop()
        assert self._timer is not None
        late_s = loop.time() - self._timer.when()
        self._timer = None
        if late_s > self._period_s / 2:
            self.restart([(node, start) for node, (_, start) in self._deadlines.items()])
            return
        due = [(node, start) for node, (when, start) in self._deadlines.items() if when <= loop.time()]
        for node, _ in due:
            del self._deadlines[node]
        if self._deadlines:
            self._timer = loop.call_at(min(when for when, _ in self._deadlines.values()), self._fire)
        for node, start in due:
            self._expired(node, start)
