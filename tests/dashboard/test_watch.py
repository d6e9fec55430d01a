"""What is polled, when, and what pages receive: rules W1 to W4, with a real control store and no cluster."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dashboard.running_dashboard import FilledStore
from trunkline.config import ConnectionConfig
from trunkline.dashboard import watch as watch_module
from trunkline.dashboard.collector import ClusterCollector
from trunkline.dashboard.connection import NEVER_MS, ClusterConnection
from trunkline.dashboard.feed import FEED_MAX, SAMPLES_MS, FeedMemory
from trunkline.dashboard.history import EventHistory
from trunkline.dashboard.stores import StoreWatch
from trunkline.dashboard.views import FeedItem, FeedLine, Sample
from trunkline.dashboard.watch import PAGES_MAX, WAITING_MAX, ClusterWatch, OpenPage
from trunkline.delivery.control.contract import Status
from trunkline.errors import Refused

WAIT_S = 20.0


def watched(
    test: Callable[[ClusterWatch], Awaitable[None]],
    *addresses: str,
    directory: Path | None = None,
    expected: list[str] | None = None,
) -> None:
    """``expected``: takes the failures; without it there must be none."""

    async def run() -> None:
        failures: list[str] = [] if expected is None else expected
        stores = tuple(StoreWatch(number, address) for number, address in enumerate(addresses))
        config = ConnectionConfig(connect=("127.0.0.1:1",))
        collector, history = ClusterCollector(ClusterConnection(config, NEVER_MS)), EventHistory(config)
        watch = ClusterWatch(collector, history, stores, directory, may_operate=True, on_failure=failures.append)
        try:
            await test(watch)
        finally:
            await watch.close()
            await history.close()
            for store in stores:
                await store.close()
        assert failures == [] or expected is not None

    asyncio.run(run())


async def received(page: OpenPage) -> dict[str, Any]:
    async with asyncio.timeout(WAIT_S):
        patch = await page.waiting.get()
    assert patch is not None
    return dict(msgspec.json.decode(patch))


async def until(page: OpenPage, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    while not holds(patch := await received(page)):
        pass
    return patch


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not holds():
            await asyncio.sleep(0.01)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FilledStore]:
    filled = FilledStore(tmp_path / "control.db", ("acme", "globex"))
    yield filled
    filled.close()


def test_a_poll_that_fails_by_a_bug_stops_the_dashboard(store: FilledStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: StoreWatch) -> None:
        raise KeyError("planted")

    monkeypatch.setattr(StoreWatch, "_read", broken)  # in the thread of the store
    failures: list[str] = []

    async def test(watch: ClusterWatch) -> None:
        watch.open_page()
        await eventually(lambda: bool(failures))

    watched(test, store.address, expected=failures)
    assert failures == ["a poll failed, which is a bug: KeyError('planted')"]


def test_w1_nothing_is_polled_unless_a_page_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_module, "LINGER_S", 0.05)

    async def test(watch: ClusterWatch) -> None:
        assert not watch.polls
        page, other = watch.open_page(), watch.open_page()
        assert watch.polls
        watch.close_page(page)
        watch.close_page(other)
        assert watch.polls, "a page that is reloaded is back in a moment"
        again = watch.open_page()
        await asyncio.sleep(0.1)
        assert watch.polls
        watch.close_page(again)
        await eventually(lambda: not watch.polls)

    watched(test)


def test_w1_a_time_without_an_open_page_is_noted(monkeypatch: pytest.MonkeyPatch, store: FilledStore) -> None:
    monkeypatch.setattr(watch_module, "LINGER_S", 0.0)
    monkeypatch.setattr(watch_module, "GAP_S", 0.0)

    async def test(watch: ClusterWatch) -> None:
        watch.close_page(watch.open_page())
        await eventually(lambda: not watch.polls)
        page = watch.open_page()
        note = re.compile(r"no page was open for \d+ s; changes of pipelines in this time follow now")
        await until(page, lambda patch: any(note.fullmatch(item["text"]) for item in patch.get("feed", [])))

    watched(test, store.address)


def test_w2_a_page_receives_everything_first_and_then_changes(store: FilledStore) -> None:
    async def test(watch: ClusterWatch) -> None:
        page = watch.open_page()
        assert (await received(page))["reset"] is True
        first = await until(page, lambda patch: "destinations" in patch)
        assert [row["name"] for row in first["destinations"]["rows"]] == ["acme", "globex"]
        assert "feed" not in first, "events from before the first poll are not reported"
        await asyncio.to_thread(store.report, "acme", Status("halted", 7, error="acme: full"))
        changed = await until(page, lambda patch: "destinations" in patch)
        assert [row["name"] for row in changed["destinations"]["rows"]] == ["acme"]
        assert [item["text"] for item in changed["feed"]] == ["acme: halted: full"]
        late = await received(watch.open_page())
        assert [row["state"] for row in late["destinations"]["rows"]] == ["halted", "new"]
        assert [item["text"] for item in late["feed"]][-1:] == ["acme: halted: full"]

    watched(test, store.address)


def test_w2_a_page_that_does_not_keep_up_is_cut_off() -> None:
    async def run() -> None:
        page = OpenPage()
        assert all(page.send(b"{}") for _ in range(WAITING_MAX))
        assert not page.send(b"{}")
        assert not page.send(b"{}")
        waiting = [page.waiting.get_nowait() for _ in range(page.waiting.qsize())]
        assert waiting == [b"{}"] * WAITING_MAX + [None]

    asyncio.run(run())


def test_w3_an_unreachable_cluster_delays_no_store(store: FilledStore) -> None:
    async def test(watch: ClusterWatch) -> None:
        page = watch.open_page()
        seen: dict[str, Any] = {}
        while not {"head", "destinations", "feed"} <= {key for key, value in seen.items() if value}:
            patch = await received(page)
            seen |= {key: value for key, value in patch.items() if not patch.get("reset")}
        assert seen["head"]["health"]["words"] == "no coordinator answers"
        assert seen["feed"][0]["text"] == "no coordinator answers"

    watched(test, store.address)


def test_w4_there_are_so_many_pages_and_no_more() -> None:
    async def test(watch: ClusterWatch) -> None:
        for _ in range(PAGES_MAX):
            watch.open_page()
        with pytest.raises(Refused, match="close one"):
            watch.open_page()

    watched(test)


def test_w4_feed_and_samples_are_bounded() -> None:
    memory = FeedMemory()
    for number in range(FEED_MAX + 10):
        memory.add([FeedLine("info", str(number))], number)
        memory.sample(Sample(number * 1000, {}, {}))
    assert [item.number for item in memory.feed] == list(range(11, FEED_MAX + 11))
    memory.put([FeedItem(0, 5, "info", "late", FEED_MAX + 2)])
    assert memory.feed[-8].text == "late", "a late event is put in its place"
    assert memory.samples[-1].at_ms - memory.samples[0].at_ms == SAMPLES_MS


def test_new_counterexamples_are_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_module, "FILES_POLL_S", 0.05)
    directory = tmp_path / "check-out"

    async def test(watch: ClusterWatch) -> None:
        page = watch.open_page()
        directory.mkdir()
        (directory / "a.html").write_text("x")
        patch = await until(page, lambda patch: bool(patch.get("counterexamples")))
        assert [file["name"] for file in patch["counterexamples"]] == ["a.html"]

    watched(test, directory=directory)
