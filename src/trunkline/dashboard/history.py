"""The events and rates that coordinators keep, as one list: also from before the page was opened.

Rules
 Y1  Each coordinator is read on its own, for what is new since the last read; one that is unreachable delays no other.
 Y2  The events of one coordinator stay in its order, whatever its clock does: no event comes before an earlier one of
     the same coordinator. Between coordinators the time decides.
 Y3  Events of several coordinators with the same words at about the same time are one event.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from trunkline.config import ConnectionConfig
from trunkline.core.status import ClusterEvent, ClusterEvents, MinuteCounts
from trunkline.dashboard.connection import ANSWER_S, NEVER_MS, ClusterConnection
from trunkline.dashboard.views import FeedItem
from trunkline.errors import TrunklineError

SAME_MS: Final = 60_000  # Y3; clocks of two machines differ by less
WORDS_MAX: Final = 5_000  # sentences that are kept to recognize duplicates
MINUTES_MAX: Final = 60


class CoordinatorEvents:
    """Reads the events of one coordinator, by its own address."""

    def __init__(self, config: ConnectionConfig, address: str) -> None:
        self._connection = ClusterConnection(replace(config, connect=(address,)), NEVER_MS)
        self._book = ""
        self._last = 0

    async def read(self) -> ClusterEvents | None:
        """What is new; None if it does not answer, or is too old to."""
        try:
            cluster = await self._connection.cluster()
            new = await cluster.events(book=self._book, after=self._last, timeout=ANSWER_S)
        except TrunklineError:
            return None
        self._last = max((each.number for each in new.events), default=self._last if new.book == self._book else 0)
        self._book = new.book
        return new

    async def close(self) -> None:
        await self._connection.close()


class EventHistory:
    """``minutes`` and ``lost`` are those of all coordinators, updated by each ``read``."""

    def __init__(self, config: ConnectionConfig) -> None:
        self.minutes: tuple[MinuteCounts, ...] = ()
        self.lost: dict[str, int] = {}
        self._coordinators = [CoordinatorEvents(config, address) for address in config.connect]
        self._merger = EventMerger()
        self._newest: dict[int, ClusterEvents] = {}

    async def read(self) -> list[FeedItem]:
        """New events, not numbered yet."""
        answers = await asyncio.gather(*(each.read() for each in self._coordinators))  # Y1
        found = {source: new for source, new in enumerate(answers) if new is not None}
        self._newest |= found
        self.minutes = merged_minutes(self._newest)
        self.lost = merged_lost(list(found.values())) if found else self.lost
        return [item for source, new in found.items() for item in self._merger.take(source, new.events)]

    async def close(self) -> None:
        for each in self._coordinators:
            await each.close()


class EventMerger:
    def __init__(self) -> None:
        self._order_ms: dict[int, int] = {}
        self._known: dict[str, list[tuple[int, set[int]]]] = {}  # by text: when, and by which coordinators

    def take(self, source: int, events: Sequence[ClusterEvent]) -> list[FeedItem]:
        found = []
        for event in events:
            order_ms = self._order_ms[source] = max(self._order_ms.get(source, 0), event.at_ms)  # Y2
            if not self._is_known(source, event):
                found.append(FeedItem(0, event.at_ms, event.level, event.text, order_ms, event.log))
        return found

    def _is_known(self, source: int, event: ClusterEvent) -> bool:
        """Y3."""
        times = self._known.setdefault(event.text, [])
        for at_ms, sources in times:
            if source not in sources and abs(at_ms - event.at_ms) <= SAME_MS:
                sources.add(source)
                return True
        times.append((event.at_ms, {source}))
        if len(self._known) > WORDS_MAX:
            del self._known[next(iter(self._known))]
        return False


def merged_minutes(events: Mapping[int, ClusterEvents]) -> tuple[MinuteCounts, ...]:
    """Only the active coordinator counts, so each minute occurs once."""
    found = sorted((minute for each in events.values() for minute in each.minutes), key=lambda minute: minute.at_ms)
    return tuple(found[-MINUTES_MAX:])


def merged_lost(events: Sequence[ClusterEvents]) -> dict[str, int]:
    """The earliest time of each node: a coordinator may have started later."""
    found: dict[str, int] = {}
    for each in events:
        for node, at_ms in each.lost.items():
            found[node] = min(at_ms, found.get(node, at_ms))
    return found
