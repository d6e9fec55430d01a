"""Filters that Spark hands to the source, as bounds on positions and times.

glsn   cuts the range that is read: what lies outside is never asked for
time   is the same for all entries of a stored batch, so whole batches are left out; Spark looks again
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from msgspec import Struct
from msgspec.structs import replace
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

GLSN: Final = ("glsn",)
TIME: Final = ("time",)
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
LEAST: Final = -(2**63)
MOST: Final = 2**63 - 1


class Bounds(Struct, frozen=True):
    """What can be left out; all ends are included."""

    first: int = 1
    last: int = MOST
    time_first_us: int = LEAST
    time_last_us: int = MOST

    @property
    def has_times(self) -> bool:
        return self.time_first_us > LEAST or self.time_last_us < MOST

    def holds_time(self, time_ms: int) -> bool:
        return self.time_first_us <= time_ms * 1000 <= self.time_last_us


def narrowed(bounds: Bounds, filters: Sequence[Filter]) -> tuple[Bounds, list[Filter]]:
    """Bounds under which all filters may hold, and the filters that Spark has still to look at."""
    remaining = []
    for each in filters:
        if isinstance(each, IsNotNull) and len(each.attribute) == 1:
            continue  # no column is ever null
        interval = _interval(each)
        if interval is None:
            remaining.append(each)
            continue
        column, least, most = interval
        if column == GLSN:
            bounds = replace(bounds, first=max(bounds.first, least), last=min(bounds.last, most))
        else:
            first, last = max(bounds.time_first_us, least), min(bounds.time_last_us, most)
            bounds = replace(bounds, time_first_us=first, time_last_us=last)
        if column == TIME or isinstance(each, In):
            remaining.append(each)
    return bounds, remaining


def _interval(each: Filter) -> tuple[tuple[str, ...], int, int] | None:
    """A column with the least and the greatest value that the filter lets through; None if it says neither."""
    match each:
        case EqualTo(column, value) | EqualNullSafe(column, value):
            return _between(column, [value], [value])
        case In(column, values):
            return _between(column, values, values)
        case GreaterThanOrEqual(column, value):
            return _between(column, [value], None)
        case GreaterThan(column, value):
            return _between(column, [value], None, beyond=1)
        case LessThanOrEqual(column, value):
            return _between(column, None, [value])
        case LessThan(column, value):
            return _between(column, None, [value], beyond=-1)
    return None


def _between(
    column: tuple[str, ...], least: Sequence[object] | None, most: Sequence[object] | None, beyond: int = 0
) -> tuple[tuple[str, ...], int, int] | None:
    column = tuple(part.lower() for part in column)
    if column not in (GLSN, TIME):
        return None
    low, high = list(_numbers(column, least or ())), list(_numbers(column, most or ()))
    if len(low) != len(least or ()) or len(high) != len(most or ()) or not (low or high):
        return None  # a value that is no number or instant
    return column, min(low) + beyond if low else LEAST, max(high) + beyond if high else MOST


def _numbers(column: tuple[str, ...], values: Sequence[object]) -> Iterator[int]:
    for value in values:
        if column == GLSN and isinstance(value, int) and not isinstance(value, bool):
            yield value
        elif column == TIME and isinstance(value, datetime) and value.tzinfo is not None:
            yield (value - EPOCH) // timedelta(microseconds=1)
