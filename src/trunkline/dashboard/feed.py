"""What the server remembers for pages that open later: the last events, and the last minutes of samples."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from trunkline.dashboard.views import FeedItem, Said, Sample

FEED_MAX: Final = 500
SAMPLES_MS: Final = 5 * 60_000
SAMPLES_MAX: Final = 600  # should looks ever come faster than one a second


class Memory:
    def __init__(self) -> None:
        self.feed: deque[FeedItem] = deque(maxlen=FEED_MAX)  # the oldest first
        self.samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)
        self._said = 0

    def tell(self, news: Iterable[Said], at_ms: int) -> tuple[FeedItem, ...]:
        """Number them and keep them."""
        items = []
        for said in news:
            self._said += 1
            items.append(FeedItem(self._said, at_ms, said.level, said.text))
        self.feed.extend(items)
        return tuple(items)

    def sample(self, sample: Sample) -> None:
        self.samples.append(sample)
        while self.samples[0].at_ms < sample.at_ms - SAMPLES_MS:
            self.samples.popleft()
