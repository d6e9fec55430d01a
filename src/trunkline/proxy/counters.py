"""What the proxy counts: its metrics."""

from __future__ import annotations

from collections import Counter
from typing import Final

from trunkline.observing.metrics import Labelled, MetricSpec, MetricTable, Values

METRICS: Final = (
    MetricSpec("requests_total", "counter", "requests that were answered", ("operation", "status")),
    MetricSpec("requests_in_progress", "gauge", "requests under way, streams among them"),
    MetricSpec("streams", "gauge", "subscriptions that are open"),
    MetricSpec("entries_appended_total", "counter", "entries that were appended"),
    MetricSpec("entries_read_total", "counter", "entries that were sent to readers"),
    MetricSpec("keys_repeated_total", "counter", "appends that were found in the log by their key"),
    MetricSpec("key_conflicts_total", "counter", "appends with a key that lost their position"),
)
TABLE: Final = MetricTable("trunkline_proxy_", METRICS)


class ProxyCounters:
    """Plain numbers, changed on the event loop alone."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()  # by operation and status: both are few
        self.in_progress = 0
        self.streams = 0
        self.entries_appended = 0
        self.entries_read = 0
        self.keys_repeated = 0
        self.key_conflicts = 0

    async def values(self) -> Values:
        requests = [Labelled((of, str(status)), count) for (of, status), count in sorted(self.requests.items())]
        return {
            "requests_total": requests,
            "requests_in_progress": self.in_progress,
            "streams": self.streams,
            "entries_appended_total": self.entries_appended,
            "entries_read_total": self.entries_read,
            "keys_repeated_total": self.keys_repeated,
            "key_conflicts_total": self.key_conflicts,
        }
