"""Detects the events of a cluster: compares the metadata with its earlier state.

Every coordinator, active or not, watches the store and records events. Only the active one knows whether logs are
blocked, and the rates of nodes.

Rules
 J1  Changes are collected for a moment and read together: the store is read a few times a second at most, and less
     often if reading it takes long.
 J2  The number of events of logs at one moment is limited; the rest is counted.
 J3  A coordinator that starts takes every node for live until leases expire. Until then a node that the history
     recorded as lost stays lost, unless it has registered again.
 J4  Rates are differences of the counters of nodes. A restarted node counts from zero; the first answer of a node adds
     nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from typing import Final

import msgspec
from msgspec.structs import replace

from trunkline.core.messages import Get, Got, NodeInfo, NodeState
from trunkline.core.projection import Projection
from trunkline.core.status import MinuteCounts, NodeStatus
from trunkline.errors import Refused, StorageError
from trunkline.metadata.store import NODES_CHANGED, MetadataStore, StoreUnavailable
from trunkline.runtime.event_history import EventHistory
from trunkline.runtime.event_texts import EventText, blocked_news, forgotten, log_news, named, node_news

GATHER_S: Final = 0.25
REST_SHARE: Final = 4.0  # times as long as the last read took
POLL_S: Final = 1.0  # of the duties
RETRY_S: Final = 2.0
MINUTE_S: Final = 60.0
LOGS_READ_ONE_BY_ONE_MAX: Final = 16  # with more changes, all are read
LOG_NEWS_MAX: Final = 50  # J2
NODES_POLLED_MAX: Final = 1_000
POLLED_AT_ONCE: Final = 16
ANSWER_S: Final = 5.0
WORST_FIRST: Final = ("bad", "warn", "info", "good")


class EventCollector:
    """``blocked``: the logs that wait for a node, None while this coordinator is not active.
    ``ask``: requests a node's status.
    """

    def __init__(
        self,
        name: str,
        store: MetadataStore,
        history: EventHistory,
        blocked: Callable[[], Collection[str] | None],
        ask: Callable[[NodeInfo], Awaitable[NodeStatus]],
        *,
        lease_ms: int,
        minute_s: float = MINUTE_S,
    ) -> None:
        self.history = history
        self._name = named(name, "coordinator")
        self._store = store
        self._blocked = blocked
        self._ask = ask
        self._trusted_at = time.monotonic() + 2 * lease_ms / 1000  # J3
        self._minute_s = minute_s
        self._nodes: dict[str, NodeInfo] = {}
        self._logs: dict[str, Projection] = {}
        self._known_blocked: set[str] = set()
        self._changed: set[str] = set()
        self._woken = asyncio.Event()
        self._unsaved = asyncio.Event()
        self._silent = False
        self._was_active = False
        self._took_s = 0.0

    @property
    def trusts_registry(self) -> bool:
        """Whether the registry is trusted (J3), and was read since."""
        return self._trusted_at == 0.0 and not self._changed

    async def run(self) -> None:
        """Until the store closes, or until cancelled."""
        changes = self._store.watch()
        self._add([EventText("info", f"{self._name} started")])
        following = asyncio.create_task(self._follow(changes))
        others = (asyncio.create_task(self._count()), asyncio.create_task(self._save()))
        try:
            await self._begin()
            while not following.done():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(POLL_S):
                        await self._woken.wait()
                await self._compare()
                for task in others:
                    if task.done():
                        task.result()  # a bug: raise it
        finally:
            for task in (following, *others):
                task.cancel()
            await asyncio.gather(following, *others, return_exceptions=True)
            self.history.save_now()

    async def _follow(self, changes: AsyncIterator[str]) -> None:
        async for name in changes:
            self._changed.add(name)
            self._woken.set()
        self._woken.set()

    async def _save(self) -> None:
        while True:
            await self._unsaved.wait()
            self._unsaved.clear()
            await self.history.save()

    async def _begin(self) -> None:
        """The present state is not an event."""
        while True:
            try:
                self._logs = {each.log: each for each in await self._store.projections()}
                self._nodes = {each.node: self._corrected(each) for each in await self._registered()}
            except (StoreUnavailable, StorageError):
                await asyncio.sleep(RETRY_S)
            else:
                return

    # ------------------------------------------------------------------------------------------------------- compare

    async def _compare(self) -> None:
        if self._changed:
            await asyncio.sleep(max(GATHER_S, REST_SHARE * self._took_s))  # J1
        self._woken.clear()
        names, self._changed = self._changed, set()
        if self._trusted_at and time.monotonic() >= self._trusted_at:
            self._trusted_at = 0.0
            names.add(NODES_CHANGED)
        began = time.monotonic()
        try:
            nodes = await self._registered() if NODES_CHANGED in names else None
            logs = await self._projections(names - {NODES_CHANGED})
        except (StoreUnavailable, StorageError):
            self._changed |= names
            self._on_store(silent=True)
            await asyncio.sleep(RETRY_S)
            return
        self._took_s = time.monotonic() - began
        self._on_store(silent=False)
        if nodes is not None:
            self._compare_nodes([self._corrected(each) for each in nodes])
        self._compare_logs(logs)
        self._compare_duties()

    async def _registered(self) -> list[NodeInfo]:
        return [each for each in await self._store.nodes() if each.state is not NodeState.CLIENT]

    async def _projections(self, names: Collection[str]) -> list[Projection]:
        if len(names) > LOGS_READ_ONE_BY_ONE_MAX:
            return [each for each in await self._store.projections() if each.log in names]
        answers = [await self._store.handle(Get(name)) for name in sorted(names)]
        return [each.projection for each in answers if isinstance(each, Got) and each.projection is not None]

    def _corrected(self, info: NodeInfo) -> NodeInfo:
        """J3."""
        known = self._nodes.get(info.node)
        is_new = known is not None and known.start != info.start
        doubted = self._trusted_at > 0 and info.node in self.history.lost and not is_new
        return replace(info, live=False) if doubted else info

    def _compare_nodes(self, now: list[NodeInfo]) -> None:
        news = [each for info in now for each in node_news(self._nodes.get(info.node), info)]
        present = {info.node for info in now}
        news += [forgotten(node) for node in self._nodes if node not in present]
        self._nodes = {info.node: info for info in now}
        self._add(news)

    def _compare_logs(self, now: list[Projection]) -> None:
        news = []
        for projection in now:
            news += log_news(self._logs.get(projection.log), projection)
            self._logs[projection.log] = projection
        self._add(limited(news))

    def _compare_duties(self) -> None:
        found = self._blocked()
        if (found is not None) != self._was_active:
            self._was_active = found is not None
            state = "is active" if self._was_active else "is no longer active"
            self._add([EventText("info", f"{self._name} {state}")])
        if found is None:
            self._known_blocked = set()
            return
        blocked = set(found)
        news = [blocked_news(log, blocked=True) for log in sorted(blocked - self._known_blocked)]
        news += [blocked_news(log, blocked=False) for log in sorted(self._known_blocked - blocked)]
        self._known_blocked = blocked
        self._add(limited(news))

    def _on_store(self, *, silent: bool) -> None:
        if silent != self._silent:
            words = "the metadata store does not answer" if silent else "the metadata store answers again"
            self._add([EventText("bad" if silent else "good", words)])
        self._silent = silent

    def _add(self, news: Iterable[EventText]) -> None:
        self.history.add(news, _now_ms())
        self._unsaved.set()

    # ------------------------------------------------------------------------------------------------------- counting

    async def _count(self) -> None:
        """J4"""
        known: dict[str, NodeStatus] = {}
        since = 0.0
        while True:
            began = time.monotonic()
            counted = await self._counts() if self._blocked() is not None else {}
            both = known.keys() & counted.keys()
            if both:
                differences = [_difference(known[node], counted[node]) for node in both]
                written, read = (sum(each) for each in zip(*differences, strict=True))
                self.history.add_minute(MinuteCounts(_now_ms(), round(began - since, 3), written, read))
                self._unsaved.set()
            known = {node: each for node, each in (known | counted).items() if node in self._nodes} if counted else {}
            since = began
            await asyncio.sleep(began + self._minute_s - time.monotonic() if known else POLL_S)

    async def _counts(self) -> dict[str, NodeStatus]:
        turn = asyncio.Semaphore(POLLED_AT_ONCE)

        async def one(info: NodeInfo) -> tuple[str, NodeStatus] | None:
            try:
                async with turn, asyncio.timeout(ANSWER_S):
                    status = await self._ask(info)
                return (info.node, status) if status.entries_appended is not None else None
            except (TimeoutError, Refused, msgspec.DecodeError):
                return None  # its work is counted with the next answer

        live = [info for info in self._nodes.values() if info.live][:NODES_POLLED_MAX]
        return dict(each for each in await asyncio.gather(*map(one, live)) if each is not None)


def _difference(before: NodeStatus, now: NodeStatus) -> tuple[int, int]:
    written, read = now.entries_appended or 0, now.entries_read or 0
    if before.start != now.start:
        return written, read
    return max(0, written - (before.entries_appended or 0)), max(0, read - (before.entries_read or 0))


def limited(news: list[EventText]) -> list[EventText]:
    """J2. One event stands for the rest, with the level of the worst of them."""
    if len(news) <= LOG_NEWS_MAX:
        return news
    rest = news[LOG_NEWS_MAX:]
    logs = len({each.log for each in rest})
    worst = min((each.level for each in rest), key=WORST_FIRST.index)
    more = f"{len(rest):,} more changes at the same moment, of {logs:,} log{'' if logs == 1 else 's'}"
    return [*news[:LOG_NEWS_MAX], EventText(worst, more, log="*")]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
