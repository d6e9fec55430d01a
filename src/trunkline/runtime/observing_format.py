"""Metrics as Prometheus reads them: tables that describe them, and the text format (version 0.0.4).

Each process has one table. What a page shows and what the documents say are both made from it.
"""

from __future__ import annotations

import platform
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from trunkline.version import version

MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})

Kind = Literal["counter", "gauge", "histogram"]


class Described(NamedTuple):
    """One metric. ``name`` is without the process's prefix."""

    name: str
    kind: Kind
    meaning: str
    labels: tuple[str, ...] = ()


class Labelled(NamedTuple):
    """A value of a metric that has labels, with theirs in order."""

    labels: tuple[str, ...]
    value: float


class Distribution:
    """Values counted in a few buckets. One addition each, whatever the value."""

    def __init__(self, buckets: tuple[float, ...]) -> None:
        self.buckets = buckets
        self.counts = [0] * (len(buckets) + 1)  # the last: larger than all
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.buckets, value)] += 1
        self.sum += value


Value = float | Sequence[Labelled] | Distribution
Values = Mapping[str, Value]

COMMON: Final = (
    Described("build_info", "gauge", "1; the labels say what runs", ("name", "version", "python")),
    Described("uptime_seconds", "gauge", "since the process began to start"),
)


def common_values(name: str, uptime_s: float) -> dict[str, Value]:
    """Of the metrics that every process has."""
    build = (name, version(), platform.python_version())
    return {"build_info": [Labelled(build, 1)], "uptime_seconds": uptime_s}


def by_label(counts: Mapping[str, float]) -> list[Labelled]:
    """Values of a metric with one label, in an order that does not change."""
    return [Labelled((label,), value) for label, value in sorted(counts.items())]


def page(prefix: str, table: Iterable[Described], values: Values) -> str:
    """The text. A metric without a value, which is not known now, is left out."""
    lines = (line for each in table if each.name in values for line in _family(prefix, each, values[each.name]))
    return "".join(f"{line}\n" for line in lines)


def reference(prefix: str, table: Iterable[Described]) -> str:
    """The table, for the documents."""
    lines = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    for each in table:
        labels = ", ".join(f"`{label}`" for label in each.labels) or "-"
        lines.append(f"| `{prefix}{each.name}` | {each.kind} | {labels} | {each.meaning} |")
    return "\n".join(lines) + "\n"


def _family(prefix: str, each: Described, value: Value) -> Iterator[str]:
    name = prefix + each.name
    yield f"# HELP {name} {each.meaning}"
    yield f"# TYPE {name} {each.kind}"
    if isinstance(value, Distribution):
        yield from _histogram(name, value)
    elif isinstance(value, Sequence):
        for labels, number in value:
            told = ",".join(
                f'{label}="{text.translate(_ESCAPES)}"' for label, text in zip(each.labels, labels, strict=True)
            )
            yield f"{name}{{{told}}} {_number(number)}"
    else:
        yield f"{name} {_number(value)}"


def _histogram(name: str, found: Distribution) -> Iterator[str]:
    so_far = 0
    for bucket, count in zip((*found.buckets, "+Inf"), found.counts, strict=True):
        so_far += count
        yield f'{name}_bucket{{le="{bucket}"}} {so_far}'
    yield f"{name}_sum {_number(found.sum)}"
    yield f"{name}_count {so_far}"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))
