"""What the proxy counts, and how it tells that to Prometheus."""

from __future__ import annotations

from collections import Counter
from typing import Final

from trunkline.runtime.observing_format import Described, Labelled, Value, page

PREFIX: Final = "trunkline_proxy_"
TABLE: Final = (
    Described("requests_total", "counter", "requests that were answered", ("operation", "status")),
    Described("requests_in_progress", "gauge", "requests under way, streams among them"),
    Described("streams", "gauge", "subscriptions that are open"),
    Described("entries_appended_total", "counter", "entries that were appended"),
    Described("entries_read_total", "counter", "entries that were sent to readers"),
    Described("keys_repeated_total", "counter", "appends that were found in the log by their key"),
    Described("key_conflicts_total", "counter", "appends with a key that lost their position"),
)


class Counters:
    """Plain numbers: whoever does something counts it here, on the event loop."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()  # by operation and status: both are few
        self.in_progress = 0
        self.streams = 0
        self.entries_appended = 0
        self.entries_read = 0
        self.keys_repeated = 0
        self.key_conflicts = 0

    def text(self) -> str:
        requests = [Labelled((of, str(status)), count) for (of, status), count in sorted(self.requests.items())]
        values: dict[str, Value] = {
            "requests_total": requests,
            "requests_in_progress": self.in_progress,
            "streams": self.streams,
            "entries_appended_total": self.entries_appended,
            "entries_read_total": self.entries_read,
            "keys_repeated_total": self.keys_repeated,
            "key_conflicts_total": self.key_conflicts,
        }
        return page(PREFIX, TABLE, values)
