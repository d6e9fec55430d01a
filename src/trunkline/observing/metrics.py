"""Metrics of a process: the table that describes them, and their values.

Each process has one table. The page for Prometheus and the reference in the documents are both generated from it.
"""

from __future__ import annotations

import platform
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple

from trunkline.version import version

MetricKind = Literal["counter", "gauge", "histogram"]


class MetricSpec(NamedTuple):
    """One metric. ``name`` is without the prefix of the process."""

    name: str
    kind: MetricKind
    meaning: str
    labels: tuple[str, ...] = ()


class MetricTable(NamedTuple):
    """All metrics of one kind of process. ``labels``: every metric has them, before its own."""

    prefix: str
    metrics: tuple[MetricSpec, ...]
    labels: tuple[str, ...] = ()

    def reference(self) -> str:
        """The table, for the documents."""
        lines = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
        for each in self.metrics:
            labels = ", ".join(f"`{label}`" for label in (*self.labels, *each.labels)) or "-"
            lines.append(f"| `{self.prefix}{each.name}` | {each.kind} | {labels} | {each.meaning} |")
        return "\n".join(lines) + "\n"


class Histogram:
    """Counts values in a few buckets: one addition for each value. The caller provides the lock, if it needs one."""

    def __init__(self, buckets: tuple[float, ...]) -> None:
        self.buckets = buckets
        self.counts = [0] * (len(buckets) + 1)  # the last one: larger than all
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.buckets, value)] += 1
        self.sum += value


class Labelled(NamedTuple):
    """One series of a metric that has labels, with their values in order."""

    labels: tuple[str, ...]
    value: float | Histogram


Value = float | Histogram | Sequence[Labelled]
Values = Mapping[str, Value]  # by the name of the metric; one without a value is left out

COMMON: Final = (
    MetricSpec("build_info", "gauge", "1; the labels say what runs", ("name", "version", "python")),
    MetricSpec("uptime_seconds", "gauge", "since the process began to start"),
)


def common_values(name: str, uptime_s: float) -> dict[str, Value]:
    """The values of ``COMMON``."""
    build = (name, version(), platform.python_version())
    return {"build_info": [Labelled(build, 1)], "uptime_seconds": uptime_s}


def by_label(counts: Mapping[str, float]) -> list[Labelled]:
    """The values of a metric with one label, in a fixed order."""
    return [Labelled((label,), value) for label, value in sorted(counts.items())]
