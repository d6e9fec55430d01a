"""Runs the duties of all logs while this coordinator is active."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from trunkline.core.messages import NodeInfo, NodeState
from trunkline.metadata.store import NODES_CHANGED, MetadataStore, StoreUnavailable
from trunkline.runtime.duties import TURN_S, TURNS_MAX, LogDuties
from trunkline.runtime.turns import Turns

log = logging.getLogger("trunkline.coordinator")

RETRY_S = 2.0  # after the store was unavailable, or a watch ended

MakeDuties = Callable[[str, Turns, Callable[[str], None]], LogDuties]  # of a log; the last reports its end


class DutyRunner:
    """``logs`` has the duties of each log; it is empty while another coordinator is active."""

    def __init__(self, name: str, store: MetadataStore, make: MakeDuties) -> None:
        self.logs: dict[str, LogDuties] = {}
        self._name = name
        self._store = store
        self._make = make
        self._turns = Turns(TURNS_MAX, TURN_S)

    async def run(self) -> None:
        """Campaign, run the duties while active, and campaign again, until cancelled."""
        while True:
            try:
                await self._store.campaign(self._name)
                log.info("coordinator %s is active", self._name)
                await self._run_while_active()
            except StoreUnavailable as error:
                log.warning("the metadata store is not available: %s", error)
                await asyncio.sleep(RETRY_S)

    def blocked(self) -> list[str] | None:
        """The logs that wait for a node; None while another coordinator is active."""
        return [name for name, duties in self.logs.items() if duties.blocked] if self._store.active() else None

    def close(self) -> None:
        for duties in self.logs.values():
            duties.close()
        self.logs.clear()

    async def _run_while_active(self) -> None:
        """Until deposed, or until the watch ends. Raises what ended it otherwise."""
        following, deposed = asyncio.create_task(self._follow_logs()), asyncio.create_task(self._store.deposed())
        tasks = (following, deposed)
        try:
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.close()
        for task in ended:
            task.result()
        if following in ended:  # a store that ends its watches at once must not be polled without a pause
            log.warning("the metadata store ended its watch; watching again")
            await asyncio.sleep(RETRY_S)

    async def _follow_logs(self) -> None:
        changes = self._store.watch()
        for name in await self._store.logs():
            self.wake(name)
        nodes = await self._nodes()
        async for name in changes:
            if name != NODES_CHANGED:
                self.wake(name)
            elif (found := await self._nodes()) is None or found != nodes:
                nodes = found
                for duties in self.logs.values():
                    duties.wake()

    async def _nodes(self) -> tuple[NodeInfo, ...] | None:
        """Without clients, on which no duty depends. None: the store did not answer."""
        try:
            return tuple(info for info in await self._store.nodes() if info.state is not NodeState.CLIENT)
        except StoreUnavailable:
            return None

    def wake(self, name: str) -> None:
        """A log is new or has changed."""
        if name in self.logs:
            self.logs[name].wake()
        else:
            self.logs[name] = self._make(name, self._turns, self._finished)

    def _finished(self, name: str) -> None:
        """Nothing is left of a deleted log. It gets duties again if the watch reports it."""
        self.logs.pop(name).close()
