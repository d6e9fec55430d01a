"""Looks at everything while somebody watches, and tells every page what changed.

Rules
 W1  Nothing is asked of anybody unless a page is open, or was until a moment ago (a page that is reloaded). What
     happened meanwhile is remembered by the coordinators; what happened to pipelines, by nobody.
 W2  A page is first told everything, then changes only, in order. One that does not keep up is cut off; it comes back
     by itself, and is told everything again.
 W3  Cluster, history and stores are looked at in tasks of their own: one that is slow or away makes nothing else old.
     A look that takes long is followed by a rest as long: a large cluster is looked at less often.
 W4  Pages, what waits for a page, samples and the feed have limits.
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
from trunkline.dashboard.collector import Gatherer
from trunkline.dashboard.counterexamples import found_in
from trunkline.dashboard.feed import Memory
from trunkline.dashboard.history import Histories
from trunkline.dashboard.reads import entries_read
from trunkline.dashboard.stores import Looked, StoreWatch
from trunkline.dashboard.views import (
    Changed,
    ChangedLogs,
    Cluster,
    Counterexample,
    Destination,
    Health,
    Log,
    Patch,
    Said,
    Sample,
    Standing,
    Store,
)
from trunkline.dashboard.words import duration, health
from trunkline.errors import Refused, TrunklineError

LOOK_S: Final = 1.0
STORE_LOOK_S: Final = 1.0
FILES_LOOK_S: Final = 3.0
HISTORY_LOOK_S: Final = 1.0
REST_S: Final = 0.2  # between looks, at least
REST_SHARE: Final = 1.0  # and so many times as long as the look took
LINGER_S: Final = 5.0
AWAY_S: Final = 5.0  # without a look; longer: what happened meanwhile cannot be dated
PAGES_MAX: Final = 32
WAITING_MAX: Final = 60  # patches that wait for one page


class Page:
    """One open page: what it is to be told. ``None`` ends it."""

    def __init__(self) -> None:
        self.waiting: asyncio.Queue[bytes | None] = asyncio.Queue(WAITING_MAX + 1)

    def tell(self, patch: bytes) -> bool:
        if self.waiting.qsize() >= WAITING_MAX:  # W2
            self.end()
            return False
        self.waiting.put_nowait(patch)
        return True

    def end(self) -> None:
        if not self.waiting.full():
            self.waiting.put_nowait(None)


class Watch:
    """``on_failure`` is told of a look that failed as none should: a bug."""

    def __init__(
        self,
        gatherer: Gatherer,
        histories: Histories,
        stores: tuple[StoreWatch, ...],
        folder: Path | None,
        *,
        may_operate: bool,
        on_failure: Callable[[str], None],
    ) -> None:
        self._gatherer = gatherer
        self._histories = histories
        self._stores = stores
        self._folder = folder
        self._may_operate = may_operate
        self._on_failure = on_failure
        self._pages: set[Page] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping: asyncio.TimerHandle | None = None
        self._memory = Memory()
        self._cluster: Cluster | None = None
        self._standing: Standing | None = None
        self._unreachable = False
        self._stopped_at_s: float | None = None
        self._tails: dict[str, int] = {}  # the last that was told of each log
        self._minutes: tuple[MinuteCounts, ...] = ()
        self._shown_stores: tuple[Store, ...] = tuple(Store(each.address, "", ()) for each in stores)
        self._looked: set[int] = set()  # stores that were read before: what they say first is no news
        self._destinations: dict[str, Destination] = {}
        self._files: tuple[Counterexample, ...] = ()

    # ------------------------------------------------------------------------------------------------------------ pages

    def open_page(self) -> Page:
        """Raises ``Refused`` where there are too many (W4)."""
        if len(self._pages) >= PAGES_MAX:
            raise Refused(f"{PAGES_MAX} pages watch already; close one")
        page = Page()
        page.tell(_encoded(self._everything()))
        self._pages.add(page)
        if self._stopping is not None:
            self._stopping.cancel()
            self._stopping = None
        if not self._tasks:
            self._start()
        return page

    def close_page(self, page: Page) -> None:
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
    def looks(self) -> bool:
        return bool(self._tasks)

    def _everything(self) -> Patch:
        cluster = self._cluster
        return Patch(
            reset=True,
            standing=self._standing,
            nodes=cluster.nodes if cluster is not None else None,
            logs=ChangedLogs(cluster.logs) if cluster is not None else None,
            stores=self._shown_stores,
            destinations=Changed(tuple(self._destinations.values())),
            counterexamples=self._files,
            samples=tuple(self._memory.samples),
            feed=tuple(self._memory.feed),
            minutes=self._minutes,
            may_operate=self._may_operate,
        )

    def _tell(self, patch: Patch) -> None:
        if patch == Patch():
            return
        encoded = _encoded(patch)
        for page in tuple(self._pages):
            if not page.tell(encoded):
                self.close_page(page)

    # ------------------------------------------------------------------------------------------------------------ looks

    def _start(self) -> None:
        looks = [
            self._again(self._look_at_cluster, LOOK_S),
            self._again(self._look_at_history, HISTORY_LOOK_S),
            self._again(self._look_at_files, FILES_LOOK_S),
        ]
        looks += [self._again(partial(self._look_at_store, store), STORE_LOOK_S) for store in self._stores]
        self._tasks = [asyncio.create_task(look) for look in looks]
        for task in self._tasks:
            task.add_done_callback(self._ended)
        away_s = time.monotonic() - self._stopped_at_s if self._stopped_at_s is not None else 0.0
        if away_s > AWAY_S and self._stores:
            note = f"nobody looked at pipelines for {duration(away_s)}; what changed meanwhile is told now"
            self._tell(Patch(feed=self._memory.tell([Said("info", note)], _now_ms())))

    def _stop(self) -> list[asyncio.Task[None]]:
        tasks, self._tasks, self._stopping = self._tasks, [], None
        self._stopped_at_s = time.monotonic()
        for task in tasks:
            task.cancel()
        return tasks

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_failure(f"looking failed, which is a bug: {error!r}")

    async def _again(self, look: Callable[[], Coroutine[None, None, None]], every_s: float) -> None:
        while True:
            began = time.monotonic()
            await look()
            took_s = time.monotonic() - began
            await asyncio.sleep(max(REST_S, REST_SHARE * took_s, every_s - took_s))

    async def _look_at_cluster(self) -> None:
        try:
            seen = await self._gatherer.look()
        except TrunklineError as error:
            self._lost_sight(str(error))
            return
        self._show_cluster(seen, await self._gatherer.tails(seen.logs))

    def _show_cluster(self, seen: Cluster, tails: dict[str, int]) -> None:
        before, self._cluster = self._cluster, seen
        news = [Said("good", "the coordinator answers again")] if self._unreachable else []
        lost_at_s = {node: at_ms / 1000 for node, at_ms in self._histories.lost.items()}
        self._unreachable = False
        known, self._standing = self._standing, Standing(
            seen.cluster, seen.name, seen.address, seen.active,
            health(seen, lost_at_s, time.time()), seen.logs_total,
        )  # fmt: skip
        lags_ms = delivery_words.worst_lags_ms(self._destinations)
        appends = self._growth(seen, tails)
        sample = Sample(_now_ms(), tails, lags_ms, entries_read(before, seen), appends)
        self._memory.sample(sample)
        logs = changed_logs(before.logs if before is not None else (), seen.logs)
        self._tell(
            Patch(
                standing=self._standing if self._standing != known else None,
                nodes=seen.nodes if before is None or seen.nodes != before.nodes else None,
                logs=logs if logs != ChangedLogs() else None,
                samples=(sample,),
                feed=self._memory.tell(news, sample.at_ms),
            )
        )

    def _growth(self, seen: Cluster, tails: dict[str, int]) -> int | None:
        """By how much tails have grown since each was known before; None where none was."""
        known = [name for name in tails if name in self._tails]
        growth = sum(max(0, tails[name] - self._tails[name]) for name in known)
        there = {log.name for log in seen.logs}
        self._tails = {name: tail for name, tail in (self._tails | tails).items() if name in there}
        return growth if known else None

    async def _look_at_history(self) -> None:
        feed = self._memory.put(await self._histories.look())
        minutes, self._minutes = self._minutes, self._histories.minutes
        self._tell(Patch(feed=feed, minutes=self._minutes if self._minutes != minutes else None))

    def _lost_sight(self, why: str) -> None:
        """Nobody tells how the cluster is; what was seen last stays on the page."""
        known = self._standing
        standing = Standing(
            known.cluster if known is not None else "",
            known.coordinator if known is not None else "",
            known.address if known is not None else "",
            False,
            Health("bad", "no coordinator answers", (why,)),
            known.logs_total if known is not None else 0,
        )
        news = [] if self._unreachable else [Said("bad", "no coordinator answers")]
        self._unreachable = True
        feed = self._memory.tell(news, _now_ms())
        self._tell(Patch(standing=standing if standing != known else None, feed=feed))
        self._standing = standing

    async def _look_at_store(self, watched: StoreWatch) -> None:
        looked = await watched.look()
        number, before = watched.number, self._shown_stores
        own = {key: each for key, each in self._destinations.items() if each.store == number}
        if looked.store.error:  # what was seen last stays on the page
            looked = Looked(replace(before[number], error=looked.store.error), own)
        stores = tuple(looked.store if at == number else store for at, store in enumerate(before))
        news: list[Said] = []
        if number in self._looked:
            news = delivery_words.store_news(before, stores)
            news += delivery_words.destination_news(own, looked.destinations)
        elif not looked.store.error:
            self._looked.add(number)
        changed = delivery_words.changes(own, looked.destinations)
        others = {key: each for key, each in self._destinations.items() if each.store != number}
        self._shown_stores, self._destinations = stores, others | looked.destinations
        self._tell(
            Patch(
                stores=stores if stores != before else None,
                destinations=changed if changed != Changed() else None,
                feed=self._memory.tell(news, _now_ms()),
            )
        )

    async def _look_at_files(self) -> None:
        files = await asyncio.to_thread(found_in, self._folder)
        if files != self._files:
            self._files = files
            self._tell(Patch(counterexamples=files))


def changed_logs(before: tuple[Log, ...], now: tuple[Log, ...]) -> ChangedLogs:
    known = {log.name: log for log in before}
    rows = tuple(log for log in now if known.get(log.name) != log)
    there = {log.name for log in now}
    return ChangedLogs(rows, tuple(name for name in known if name not in there))


def _encoded(patch: Patch) -> bytes:
    return msgspec.json.encode(patch)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
