"""What the proxy counts, in the text format of Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PREFIX: Final = "trunkline_proxy_"


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
        return "".join(line + "\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        yield from _head("requests_total", "counter", "Requests that were answered.")
        for (operation, status), count in sorted(self.requests.items()):
            yield f'{PREFIX}requests_total{{operation="{operation}",status="{status}"}} {count}'
        yield from _one("requests_in_progress", "gauge", "Requests under way, streams among them.", self.in_progress)
        yield from _one("streams", "gauge", "Subscriptions that are open.", self.streams)
        yield from _one("entries_appended_total", "counter", "Entries that were appended.", self.entries_appended)
        yield from _one("entries_read_total", "counter", "Entries that were sent to readers.", self.entries_read)
        yield from _one(
            "keys_repeated_total", "counter", "Appends that were found in the log by their key.", self.keys_repeated
        )
        yield from _one(
            "key_conflicts_total", "counter", "Appends with a key that lost their position.", self.key_conflicts
        )


def _one(name: str, kind: str, meaning: str, value: int) -> Iterator[str]:
    yield from _head(name, kind, meaning)
    yield f"{PREFIX}{name} {value}"


def _head(name: str, kind: str, meaning: str) -> Iterator[str]:
    yield f"# HELP {PREFIX}{name} {meaning}"
    yield f"# TYPE {PREFIX}{name} {kind}"
