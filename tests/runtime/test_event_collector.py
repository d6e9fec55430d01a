"""The events that a coordinator records, from a real metadata store: rules J1 to J4."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from metadata.projections import creation
from trunkline.core.messages import NodeInfo, Register, Swapped
from trunkline.core.status import ClusterEvents, NodeStatus
from trunkline.metadata.sqlite_store import SqliteStore
from trunkline.runtime import event_collector as module
from trunkline.runtime.event_collector import LOG_NEWS_MAX, EventCollector, limited
from trunkline.runtime.event_history import EventHistory
from trunkline.runtime.event_texts import EventText

LEASE_MS = 300
WAIT_S = 20.0


def node(name: str, start: int = 1) -> NodeInfo:
    return NodeInfo(name, 1, start, address=f"{name}:1")


async def no_counts(info: NodeInfo) -> NodeStatus:
    return NodeStatus()


class Scene:
    """A store in a directory, and a coordinator's collector on it."""

    def __init__(self, directory: Path) -> None:
        self.blocked: set[str] | None = set()
        self.ask: Callable[[NodeInfo], Awaitable[NodeStatus]] = no_counts
        self.minute_s = 60.0
        self.history = EventHistory(directory)
        self.store = SqliteStore(directory / "metadata.sqlite", lease_ms=LEASE_MS)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        await self.store.start()
        await self.store.campaign("k")
        active = self.texts().count("coordinator k is active")
        self.collector = EventCollector(
            "k", self.store, self.history, self._blocked, lambda info: self.ask(info),
            lease_ms=LEASE_MS, minute_s=self.minute_s,
        )  # fmt: skip
        task = asyncio.create_task(self.collector.run())
        try:
            await self.until(lambda: self.texts().count("coordinator k is active") > active)
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await self.store.close()

    def _blocked(self) -> Collection[str] | None:
        return self.blocked

    def recorded(self) -> ClusterEvents:
        return self.history.since()

    def texts(self) -> list[str]:
        return [event.text for event in self.recorded().events]

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not holds():
                await asyncio.sleep(0.01)

    async def keep_alive(self, *names: NodeInfo) -> None:
        while True:
            for each in names:
                await self.store.handle(Register(each))
            await asyncio.sleep(LEASE_MS / 3000)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GATHER_S", 0.01)
    monkeypatch.setattr(module, "POLL_S", 0.02)


@asynccontextmanager
async def beside(work: Awaitable[None]) -> AsyncIterator[None]:
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_events_of_nodes_and_logs_are_recorded_in_order(tmp_path: Path) -> None:
    async def run() -> None:
        scene = Scene(tmp_path)
        async with scene.running():
            await scene.store.handle(Register(node("a")))
            await scene.until(lambda: "node a joined at a:1" in scene.texts())
            assert isinstance(await scene.store.handle(creation()), Swapped)
            await scene.until(lambda: "node a lost" in scene.texts())
            assert scene.recorded().lost.keys() == {"a"}
            scene.blocked = {"orders"}
            await scene.until(lambda: any("orders is blocked" in each for each in scene.texts()))
            scene.blocked = set()
            await scene.until(lambda: "orders continues" in scene.texts())
            async with beside(scene.keep_alive(node("a", 2))):
                await scene.until(lambda: "node a is back" in scene.texts())
        assert any(each.startswith("log orders created: chain") for each in scene.texts())
        numbers = [event.number for event in scene.recorded().events]
        assert numbers == sorted(numbers)

    asyncio.run(run())


def test_j3_a_node_that_was_lost_before_a_restart_stays_lost_until_it_registers(tmp_path: Path) -> None:
    async def run() -> None:
        first = Scene(tmp_path)
        async with first.running():
            await first.store.handle(Register(node("a")))
            await first.until(lambda: "node a lost" in first.texts())
        second = Scene(tmp_path)
        async with second.running():
            await second.until(lambda: second.collector.trusts_registry)
            said = [each for each in second.texts() if each.startswith("node a")]
            assert said == ["node a joined at a:1", "node a lost"]
            async with beside(second.keep_alive(node("a"))):
                await second.until(lambda: second.texts()[-1] == "node a is back")
        third = Scene(tmp_path)
        async with third.running(), beside(third.keep_alive(node("a"))):
            assert "node a is back" in third.texts()
            assert third.texts().count("node a lost") == 1
            assert third.texts().count("coordinator k started") == 3

    asyncio.run(run())


def test_j4_rates_are_differences_of_the_counters_of_nodes(tmp_path: Path) -> None:
    counts = {"a": [1, 100, 10], "b": [1, 50, 5]}

    async def ask(info: NodeInfo) -> NodeStatus:
        start, written, read = counts[info.node]
        counts[info.node][1] += 7
        return NodeStatus(start=start, entries_appended=written, entries_read=read)

    async def run() -> None:
        scene = Scene(tmp_path)
        scene.ask, scene.minute_s = ask, 0.05
        async with scene.running(), beside(scene.keep_alive(node("a"), node("b"))):
            await scene.until(lambda: len(scene.recorded().minutes) >= 2)
            assert {minute.written for minute in scene.recorded().minutes} <= {7, 14}, (
                "what was there before counts not"
            )
            counts["b"] = [2, 3, 1]  # restarted: its counters begin again
            known = len(scene.recorded().minutes)
            await scene.until(lambda: len(scene.recorded().minutes) > known + 2)
            assert 10 in {minute.written for minute in scene.recorded().minutes}
            assert 1 in {minute.read for minute in scene.recorded().minutes}
            counts["a"][1] = -5  # invalid
            known = len(scene.recorded().minutes)
            await scene.until(lambda: len(scene.recorded().minutes) > known)
            scene.blocked = None  # another coordinator is active, and counts
            await scene.until(lambda: scene.texts()[-1] == "coordinator k is no longer active")

    asyncio.run(run())


def test_j2_of_very_many_changes_at_once_the_rest_is_counted() -> None:
    news = [
        EventText("warn" if number else "bad", f"{number}", log=f"log{number}") for number in range(LOG_NEWS_MAX + 900)
    ]
    kept = limited(news)
    assert len(kept) == LOG_NEWS_MAX + 1
    assert (kept[-1].level, kept[-1].text) == ("warn", "900 more changes at the same moment, of 900 logs")
    assert limited(news[:LOG_NEWS_MAX]) == news[:LOG_NEWS_MAX]
