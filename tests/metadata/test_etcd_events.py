"""Several coordinators over one etcd: each records events, active or not, and a page merges them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from etcd_server import Etcd
from metadata.places import EtcdPlace, opened
from metadata.projections import creation, first_of, rolled
from trunkline.core.messages import NodeInfo, Register, Swap, Swapped
from trunkline.core.status import NodeStatus
from trunkline.dashboard.feed import FeedMemory
from trunkline.dashboard.history import EventMerger
from trunkline.metadata.store import MetadataStore
from trunkline.runtime.event_collector import EventCollector
from trunkline.runtime.event_history import EventHistory

WAIT_S = 30.0


async def no_counts(_: NodeInfo) -> NodeStatus:
    return NodeStatus()


def texts(history: EventHistory) -> list[str]:
    return [event.text for event in history.since().events]


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not holds():
            await asyncio.sleep(0.05)


def recorded_by_all(histories: Iterable[EventHistory], words: str) -> bool:
    return all(any(words in each for each in texts(history)) for history in histories)


@asynccontextmanager
async def writing(name: str, store: MetadataStore, history: EventHistory, lease_ms: int) -> AsyncIterator[None]:
    def blocked() -> tuple[str, ...] | None:
        return () if store.active() else None

    task = asyncio.create_task(EventCollector(name, store, history, blocked, no_counts, lease_ms=lease_ms).run())
    try:
        await until(lambda: f"coordinator {name} started" in texts(history))
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_a_standby_records_changes_by_others_and_the_page_shows_them_once(tmp_path: Path) -> None:
    async def run(place: EtcdPlace) -> None:
        histories = {name: EventHistory(None) for name in ("one", "two")}
        async with AsyncExitStack() as stack:
            stores = {name: await stack.enter_async_context(opened(place, place.lease_ms)) for name in histories}
            await stores["one"].campaign("one")
            for name, history in histories.items():
                await stack.enter_async_context(writing(name, stores[name], history, place.lease_ms))
            await stores["two"].handle(Register(NodeInfo("a", 1, 1, address="a:1")))
            await stores["two"].handle(creation())
            await until(lambda: recorded_by_all(histories.values(), "log orders created"))
            assert isinstance(await stores["one"].handle(Swap("orders", 1, rolled(first_of()))), Swapped)
            await until(lambda: recorded_by_all(histories.values(), "segment 0 of orders sealed"))
            await until(lambda: recorded_by_all(histories.values(), "node a lost"))
        memory, merging = FeedMemory(), EventMerger()
        for source, history in enumerate(histories.values()):
            memory.put(merging.take(source, history.since().events))
        shown = [item.text for item in memory.feed]
        assert shown.count("node a lost") == shown.count("node a joined at a:1") == 1
        assert sum("sealed" in each for each in shown) == 1
        assert {f"coordinator {name} started" for name in histories} <= set(shown)
        assert "coordinator two is active" not in shown

    with Etcd(tmp_path / "etcd") as etcd:
        asyncio.run(run(EtcdPlace(etcd, f"/{uuid.uuid4()}/")))
