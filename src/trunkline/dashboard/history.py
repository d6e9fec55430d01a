"""What coordinators remember, as one list: events from before the page was opened, rates of the last hour.

Rules
 Y1  Each coordinator is asked by itself, for what is new since it was asked last; one that is away delays no other.
 Y2  The events of one coordinator stay in its own order, whatever its clock did: an event never stands before one that
     the same coordinator told earlier. Between coordinators the time decides.
 Y3  What several coordinators tell at about the same time in the same words happened once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from trunkline.config import ConnectionConfig
from trunkline.core.status import ClusterEvent, ClusterEvents, MinuteCounts
from trunkline.dashboard.connection import ANSWER_S, NEVER_MS, Connection
from trunkline.dashboard.views import FeedItem
from trunkline.errors import TrunklineError

SAME_MS: Final = 60_000  # Y3; clocks of two machines differ by less
WORDS_MAX: Final = 5_000  # sentences that are remembered to tell those that were told by another
MINUTES_MAX: Final = 60


class Coordinator:
    """One that is asked, by its own address."""

    def __init__(self, config: ConnectionConfig, address: str) -> None:
        self._connection = Connection(replace(config, connect=(address,)), NEVER_MS)
        self._book = ""
        self._last = 0

    async def ask(self) -> ClusterEvents | None:
        """What is new; None where it does not answer, or is too old to."""
        try:
            cluster = await self._connection.cluster()
            told = await cluster.events(book=self._book, after=self._last, timeout=ANSWER_S)
        except TrunklineError:
            return None
        self._last = max((each.number for each in told.events), default=self._last if told.book == self._book else 0)
        self._book = told.book
        return told

    async def close(self) -> None:
        await self._connection.close()


class Histories:
    """``minutes`` and ``lost`` are those of all coordinators together, after each ``look``."""

    def __init__(self, config: ConnectionConfig) -> None:
        self.minutes: tuple[MinuteCounts, ...] = ()
        self.lost: dict[str, int] = {}
        self._coordinators = [Coordinator(config, address) for address in config.connect]
        self._merging = Merging()
        self._told: dict[int, ClusterEvents] = {}

    async def look(self) -> list[FeedItem]:
        """What is new, not numbered yet."""
        answers = await asyncio.gather(*(each.ask() for each in self._coordinators))  # Y1
        found = {source: told for source, told in enumerate(answers) if told is not None}
        self._told |= found
        self.minutes = merged_minutes(self._told)
        self.lost = merged_lost(list(found.values())) if found else self.lost
        return [item for source, told in found.items() for item in self._merging.take(source, told.events)]

    async def close(self) -> None:
        for each in self._coordinators:
            await each.close()


class Merging:
    def __init__(self) -> None:
        self._order_ms: dict[int, int] = {}
        self._known: dict[str, list[tuple[int, set[int]]]] = {}  # by words: when, and who told it

    def take(self, source: int, events: Sequence[ClusterEvent]) -> list[FeedItem]:
        found = []
        for event in events:
            order_ms = self._order_ms[source] = max(self._order_ms.get(source, 0), event.at_ms)  # Y2
            if not self._is_told(source, event):
                found.append(FeedItem(0, event.at_ms, event.level, event.text, order_ms, event.log))
        return found

    def _is_told(self, source: int, event: ClusterEvent) -> bool:
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


def merged_minutes(told: Mapping[int, ClusterEvents]) -> tuple[MinuteCounts, ...]:
    """Only the active coordinator counts, so each minute is in one of them."""
    found = sorted((minute for each in told.values() for minute in each.minutes), key=lambda minute: minute.at_ms)
    return tuple(found[-MINUTES_MAX:])


def merged_lost(told: Sequence[ClusterEvents]) -> dict[str, int]:
    """Of several words the earliest: another coordinator may have come later."""
    found: dict[str, int] = {}
    for each in told:
        for node, at_ms in each.lost.items():
            found[node] = min(at_ms, found.get(node, at_ms))
    return found
