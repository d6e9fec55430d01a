"""What the server keeps for pages that open later: the last events, and the samples of the last minutes."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from trunkline.dashboard.views import FeedItem, FeedLine, Sample

FEED_MAX: Final = 2_500  # as many as a coordinator keeps, and some more
SAMPLES_MS: Final = 5 * 60_000
SAMPLES_MAX: Final = 600  # if polls are faster than one per second


class FeedMemory:
    def __init__(self) -> None:
        self.feed: list[FeedItem] = []  # the oldest first
        self.samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)
        self._numbered = 0

    def add(self, news: Iterable[FeedLine], at_ms: int) -> tuple[FeedItem, ...]:
        """News of this server."""
        return self.put([FeedItem(0, at_ms, line.level, line.text, at_ms) for line in news])

    def put(self, items: Iterable[FeedItem]) -> tuple[FeedItem, ...]:
        """Number them and keep them in order."""
        numbered = []
        for item in items:
            self._numbered += 1
            numbered.append(replace(item, number=self._numbered))
            insort(self.feed, numbered[-1], key=_order)
        del self.feed[: max(0, len(self.feed) - FEED_MAX)]
        return tuple(numbered)

    def sample(self, sample: Sample) -> None:
        self.samples.append(sample)
        while self.samples[0].at_ms < sample.at_ms - SAMPLES_MS:
            self.samples.popleft()


def _order(item: FeedItem) -> tuple[int, int]:
    return item.order_ms, item.number
