"""Polls the cluster and the control stores while a page is open, and sends changes to every page.

Rules
 W1  It polls only while a page is open, and for a moment longer (a page that is reloaded). Coordinators keep the events
     of the time between; events of pipelines are not kept.
 W2  A page first receives everything, then only changes, in order. A page that does not keep up is disconnected; it
     reconnects, and receives everything again.
 W3  Cluster, history and each store are polled in tasks of their own: one that is slow or unreachable delays no other.
     After a long poll comes a pause of the same length: a large cluster is polled less often.
 W4  Pages, patches that wait for a page, samples and the feed have limits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from trunkline.core.status import MinuteCounts
from trunkline.dashboard import delivery_words
from trunkline.dashboard.collector import ClusterCollector
from trunkline.dashboard.counterexamples import found_in
from trunkline.dashboard.feed import FeedMemory
from trunkline.dashboard.history import EventHistory
from trunkline.dashboard.reads import entries_read
from trunkline.dashboard.stores import StoreContent, StoreWatch
from trunkline.dashboard.views import (
    ChangedDestinations,
    ChangedLogs,
    ClusterHealth,
    CounterexampleFile,
    FeedLine,
    PageHead,
    Patch,
    Sample,
    ShownCluster,
    ShownDestination,
    ShownLog,
    ShownStore,
)
from trunkline.dashboard.words import duration, health
from trunkline.errors import Refused, TrunklineError

POLL_S: Final = 1.0
STORE_POLL_S: Final = 1.0
FILES_POLL_S: Final = 3.0
HISTORY_POLL_S: Final = 1.0
PAUSE_S: Final = 0.2  # between polls, at least
PAUSE_SHARE: Final = 1.0  # of the time that the poll took, at least
LINGER_S: Final = 5.0
GAP_S: Final = 5.0  # without polls; after a longer gap, changes of pipelines cannot be dated
PAGES_MAX: Final = 32
WAITING_MAX: Final = 60  # patches that wait for one page


class OpenPage:
    """An open page, and the patches that wait for it. ``None`` ends it."""

    def __init__(self) -> None:
        self.waiting: asyncio.Queue[bytes | None] = asyncio.Queue(WAITING_MAX + 1)

    def send(self, patch: bytes) -> bool:
        if self.waiting.qsize() >= WAITING_MAX:  # W2
            self.end()
            return False
        self.waiting.put_nowait(patch)
        return True

    def end(self) -> None:
        if not self.waiting.full():
            self.waiting.put_nowait(None)


class ClusterWatch:
    """Calls ``on_failure`` if a poll fails because of a bug."""

    def __init__(
        self,
        collector: ClusterCollector,
        history: EventHistory,
        stores: tuple[StoreWatch, ...],
        directory: Path | None,
        *,
        may_operate: bool,
        on_failure: Callable[[str], None],
    ) -> None:
        self._collector = collector
        self._history = history
        self._stores = stores
        self._directory = directory
        self._may_operate = may_operate
        self._on_failure = on_failure
        self._pages: set[OpenPage] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping: asyncio.TimerHandle | None = None
        self._memory = FeedMemory()
        self._cluster: ShownCluster | None = None
        self._head: PageHead | None = None
        self._unreachable = False
        self._stopped_at_s: float | None = None
        self._tails: dict[str, int] = {}  # the last one known of each log
        self._minutes: tuple[MinuteCounts, ...] = ()
        self._shown_stores: tuple[ShownStore, ...] = tuple(ShownStore(each.address, "", ()) for each in stores)
        self._stores_read: set[int] = set()  # the first content of a store is not news
        self._destinations: dict[str, ShownDestination] = {}
        self._files: tuple[CounterexampleFile, ...] = ()

    # ------------------------------------------------------------------------------------------------------------ pages

    def open_page(self) -> OpenPage:
        """Raises ``Refused`` if there are too many (W4)."""
        if len(self._pages) >= PAGES_MAX:
            raise Refused(f"{PAGES_MAX} pages are open; close one")
        page = OpenPage()
        page.send(_encoded(self._everything()))
        self._pages.add(page)
        if self._stopping is not None:
            self._stopping.cancel()
            self._stopping = None
        if not self._tasks:
            self._start()
        return page

    def close_page(self, page: OpenPage) -> None:
        self._pages.discard(page)
        if not self._pages and self._stopping is None and self._tasks:
            self._stopping = asyncio.get_running_loop().call_later(LINGER_S, self._stop)  # W1

    async def close(self) -> None:
        if self._stopping is not None:
            self._stopping.cancel()
        tasks = self._stop()
        await asyncio.gather(*tasks, return_exceptions=True)
        for page in tuple(self._pages):
            page.end()

    @property
    def polls(self) -> bool:
        return bool(self._tasks)

    def _everything(self) -> Patch:
        cluster = self._cluster
        return Patch(
            reset=True,
            head=self._head,
            nodes=cluster.nodes if cluster is not None else None,
            logs=ChangedLogs(cluster.logs) if cluster is not None else None,
            stores=self._shown_stores,
            destinations=ChangedDestinations(tuple(self._destinations.values())),
            counterexamples=self._files,
            samples=tuple(self._memory.samples),
            feed=tuple(self._memory.feed),
            minutes=self._minutes,
            may_operate=self._may_operate,
        )

    def _send(self, patch: Patch) -> None:
        if patch == Patch():
            return
        encoded = _encoded(patch)
        for page in tuple(self._pages):
            if not page.send(encoded):
                self.close_page(page)

    # ------------------------------------------------------------------------------------------------------------ polls

    def _start(self) -> None:
        polls = [
            self._repeat(self._poll_cluster, POLL_S),
            self._repeat(self._poll_history, HISTORY_POLL_S),
            self._repeat(self._poll_files, FILES_POLL_S),
        ]
        polls += [self._repeat(partial(self._poll_store, store), STORE_POLL_S) for store in self._stores]
        self._tasks = [asyncio.create_task(poll) for poll in polls]
        for task in self._tasks:
            task.add_done_callback(self._ended)
        gap_s = time.monotonic() - self._stopped_at_s if self._stopped_at_s is not None else 0.0
        if gap_s > GAP_S and self._stores:
            note = f"no page was open for {duration(gap_s)}; changes of pipelines in this time follow now"
            self._send(Patch(feed=self._memory.add([FeedLine("info", note)], _now_ms())))

    def _stop(self) -> list[asyncio.Task[None]]:
        tasks, self._tasks, self._stopping = self._tasks, [], None
        self._stopped_at_s = time.monotonic()
        for task in tasks:
            task.cancel()
        return tasks

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_failure(f"a poll failed, which is a bug: {error!r}")

    async def _repeat(self, poll: Callable[[], Coroutine[None, None, None]], every_s: float) -> None:
        while True:
            started = time.monotonic()
            await poll()
            took_s = time.monotonic() - started
            await asyncio.sleep(max(PAUSE_S, PAUSE_SHARE * took_s, every_s - took_s))

    async def _poll_cluster(self) -> None:
        try:
            seen = await self._collector.collect()
        except TrunklineError as error:
            self._show_unreachable(str(error))
            return
        self._show_cluster(seen, await self._collector.tails(seen.logs))

    def _show_cluster(self, seen: ShownCluster, tails: dict[str, int]) -> None:
        before, self._cluster = self._cluster, seen
        news = [FeedLine("good", "the coordinator answers again")] if self._unreachable else []
        lost_at_s = {node: at_ms / 1000 for node, at_ms in self._history.lost.items()}
        self._unreachable = False
        known, self._head = self._head, PageHead(
            seen.cluster, seen.name, seen.address, seen.active,
            health(seen, lost_at_s, time.time()), seen.logs_total,
        )  # fmt: skip
        lags_ms = delivery_words.worst_lags_ms(self._destinations)
        appends = self._growth(seen, tails)
        sample = Sample(_now_ms(), tails, lags_ms, entries_read(before, seen), appends)
        self._memory.sample(sample)
        logs = changed_logs(before.logs if before is not None else (), seen.logs)
        self._send(
            Patch(
                head=self._head if self._head != known else None,
                nodes=seen.nodes if before is None or seen.nodes != before.nodes else None,
                logs=logs if logs != ChangedLogs() else None,
                samples=(sample,),
                feed=self._memory.add(news, sample.at_ms),
            )
        )

    def _growth(self, seen: ShownCluster, tails: dict[str, int]) -> int | None:
        """How much tails have grown since they were last known; None if none was."""
        known = [name for name in tails if name in self._tails]
        growth = sum(max(0, tails[name] - self._tails[name]) for name in known)
        there = {log.name for log in seen.logs}
        self._tails = {name: tail for name, tail in (self._tails | tails).items() if name in there}
        return growth if known else None

    async def _poll_history(self) -> None:
        feed = self._memory.put(await self._history.read())
        minutes, self._minutes = self._minutes, self._history.minutes
        self._send(Patch(feed=feed, minutes=self._minutes if self._minutes != minutes else None))

    def _show_unreachable(self, why: str) -> None:
        """No coordinator answers; the last status stays on the page."""
        known = self._head
        head = PageHead(
            known.cluster if known is not None else "",
            known.coordinator if known is not None else "",
            known.address if known is not None else "",
            False,
            ClusterHealth("bad", "no coordinator answers", (why,)),
            known.logs_total if known is not None else 0,
        )
        news = [] if self._unreachable else [FeedLine("bad", "no coordinator answers")]
        self._unreachable = True
        feed = self._memory.add(news, _now_ms())
        self._send(Patch(head=head if head != known else None, feed=feed))
        self._head = head

    async def _poll_store(self, watched: StoreWatch) -> None:
        content = await watched.read()
        number, before = watched.number, self._shown_stores
        own = {key: each for key, each in self._destinations.items() if each.store == number}
        if content.store.error:  # the last content stays on the page
            content = StoreContent(replace(before[number], error=content.store.error), own)
        stores = tuple(content.store if at == number else store for at, store in enumerate(before))
        news: list[FeedLine] = []
        if number in self._stores_read:
            news = delivery_words.store_news(before, stores)
            news += delivery_words.destination_news(own, content.destinations)
        elif not content.store.error:
            self._stores_read.add(number)
        changed = delivery_words.changes(own, content.destinations)
        others = {key: each for key, each in self._destinations.items() if each.store != number}
        self._shown_stores, self._destinations = stores, others | content.destinations
        self._send(
            Patch(
                stores=stores if stores != before else None,
                destinations=changed if changed != ChangedDestinations() else None,
                feed=self._memory.add(news, _now_ms()),
            )
        )

    async def _poll_files(self) -> None:
        files = await asyncio.to_thread(found_in, self._directory)
        if files != self._files:
            self._files = files
            self._send(Patch(counterexamples=files))


def changed_logs(before: tuple[ShownLog, ...], now: tuple[ShownLog, ...]) -> ChangedLogs:
    known = {log.name: log for log in before}
    rows = tuple(log for log in now if known.get(log.name) != log)
    there = {log.name for log in now}
    return ChangedLogs(rows, tuple(name for name in known if name not in there))


def _encoded(patch: Patch) -> bytes:
    return msgspec.json.encode(patch)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
