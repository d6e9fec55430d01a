"""Who is looked at, when, and what pages are told: rules W1 to W4, with a real control store and no cluster."""

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
from trunkline.dashboard import watch as watching
from trunkline.dashboard.collector import Gatherer
from trunkline.dashboard.connection import NEVER_MS, Connection
from trunkline.dashboard.feed import FEED_MAX, SAMPLES_MS, Memory
from trunkline.dashboard.history import Histories
from trunkline.dashboard.stores import StoreWatch
from trunkline.dashboard.views import FeedItem, Said, Sample
from trunkline.dashboard.watch import PAGES_MAX, WAITING_MAX, Page, Watch
from trunkline.delivery.control.contract import Status
from trunkline.errors import Refused

WAIT_S = 20.0


def watched(
    test: Callable[[Watch], Awaitable[None]],
    *addresses: str,
    folder: Path | None = None,
    expected: list[str] | None = None,
) -> None:
    """``expected``: takes the failures; without it there must be none."""

    async def run() -> None:
        failures: list[str] = [] if expected is None else expected
        stores = tuple(StoreWatch(number, address) for number, address in enumerate(addresses))
        config = ConnectionConfig(connect=("127.0.0.1:1",))
        gatherer, histories = Gatherer(Connection(config, NEVER_MS)), Histories(config)
        watch = Watch(gatherer, histories, stores, folder, may_operate=True, on_failure=failures.append)
        try:
            await test(watch)
        finally:
            await watch.close()
            await histories.close()
            for store in stores:
                await store.close()
        assert failures == [] or expected is not None

    asyncio.run(run())


async def told(page: Page) -> dict[str, Any]:
    async with asyncio.timeout(WAIT_S):
        patch = await page.waiting.get()
    assert patch is not None
    return dict(msgspec.json.decode(patch))


async def until(page: Page, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    while not holds(patch := await told(page)):
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


def test_a_look_that_fails_as_none_should_ends_the_dashboard_and_says_why(
    store: FilledStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: StoreWatch) -> None:
        raise KeyError("planted")

    monkeypatch.setattr(StoreWatch, "_look", broken)  # in the thread of the store
    failures: list[str] = []

    async def test(watch: Watch) -> None:
        watch.open_page()
        await eventually(lambda: bool(failures))

    watched(test, store.address, expected=failures)
    assert failures == ["looking failed, which is a bug: KeyError('planted')"]


def test_w1_nothing_is_looked_at_unless_a_page_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "LINGER_S", 0.05)

    async def test(watch: Watch) -> None:
        assert not watch.looks
        page, other = watch.open_page(), watch.open_page()
        assert watch.looks
        watch.close_page(page)
        watch.close_page(other)
        assert watch.looks, "a page that is reloaded is back in a moment"
        again = watch.open_page()
        await asyncio.sleep(0.1)
        assert watch.looks
        watch.close_page(again)
        await eventually(lambda: not watch.looks)

    watched(test)


def test_w1_a_pause_in_which_nobody_looked_at_pipelines_is_told(
    monkeypatch: pytest.MonkeyPatch, store: FilledStore
) -> None:
    monkeypatch.setattr(watching, "LINGER_S", 0.0)
    monkeypatch.setattr(watching, "AWAY_S", 0.0)

    async def test(watch: Watch) -> None:
        watch.close_page(watch.open_page())
        await eventually(lambda: not watch.looks)
        page = watch.open_page()
        note = re.compile(r"nobody looked at pipelines for \d+ s; what changed meanwhile is told now")
        await until(page, lambda patch: any(note.fullmatch(item["text"]) for item in patch.get("feed", [])))

    watched(test, store.address)


def test_w2_a_page_is_told_everything_first_and_then_what_changed(store: FilledStore) -> None:
    async def test(watch: Watch) -> None:
        page = watch.open_page()
        assert (await told(page))["reset"] is True
        first = await until(page, lambda patch: "destinations" in patch)
        assert [row["name"] for row in first["destinations"]["rows"]] == ["acme", "globex"]
        assert "feed" not in first, "what was there before anybody looked is no news"
        await asyncio.to_thread(store.report, "acme", Status("halted", 7, error="acme: full"))
        changed = await until(page, lambda patch: "destinations" in patch)
        assert [row["name"] for row in changed["destinations"]["rows"]] == ["acme"]
        assert [item["text"] for item in changed["feed"]] == ["acme: halted: full"]
        late = await told(watch.open_page())
        assert [row["state"] for row in late["destinations"]["rows"]] == ["halted", "new"]
        assert [item["text"] for item in late["feed"]][-1:] == ["acme: halted: full"]

    watched(test, store.address)


def test_w2_a_page_that_does_not_keep_up_is_cut_off() -> None:
    async def run() -> None:
        page = Page()
        assert all(page.tell(b"{}") for _ in range(WAITING_MAX))
        assert not page.tell(b"{}")
        assert not page.tell(b"{}")
        waiting = [page.waiting.get_nowait() for _ in range(page.waiting.qsize())]
        assert waiting == [b"{}"] * WAITING_MAX + [None]

    asyncio.run(run())


def test_w3_a_cluster_that_is_away_makes_no_store_old(store: FilledStore) -> None:
    async def test(watch: Watch) -> None:
        page = watch.open_page()
        seen: dict[str, Any] = {}
        while not {"standing", "destinations", "feed"} <= {key for key, value in seen.items() if value}:
            patch = await told(page)
            seen |= {key: value for key, value in patch.items() if not patch.get("reset")}
        assert seen["standing"]["health"]["words"] == "no coordinator answers"
        assert seen["feed"][0]["text"] == "no coordinator answers"

    watched(test, store.address)


def test_w4_there_are_so_many_pages_and_no_more() -> None:
    async def test(watch: Watch) -> None:
        for _ in range(PAGES_MAX):
            watch.open_page()
        with pytest.raises(Refused, match="close one"):
            watch.open_page()

    watched(test)


def test_w4_feed_and_samples_are_bounded() -> None:
    memory = Memory()
    for number in range(FEED_MAX + 10):
        memory.tell([Said("info", str(number))], number)
        memory.sample(Sample(number * 1000, {}, {}))
    assert [item.number for item in memory.feed] == list(range(11, FEED_MAX + 11))
    memory.put([FeedItem(0, 5, "info", "late", FEED_MAX + 2)])
    assert memory.feed[-8].text == "late", "what is told late stands where it belongs"
    assert memory.samples[-1].at_ms - memory.samples[0].at_ms == SAMPLES_MS


def test_counterexamples_that_appear_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "FILES_LOOK_S", 0.05)
    folder = tmp_path / "check-out"

    async def test(watch: Watch) -> None:
        page = watch.open_page()
        folder.mkdir()
        (folder / "a.html").write_text("x")
        patch = await until(page, lambda patch: bool(patch.get("counterexamples")))
        assert [file["name"] for file in patch["counterexamples"]] == ["a.html"]

    watched(test, folder=folder)
