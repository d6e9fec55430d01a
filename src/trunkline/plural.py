"""Counts with a singular or plural noun."""

from __future__ import annotations


def plural(count: int, one: str, many: str | None = None) -> str:
    """``1 row`` and ``2 rows``. Give ``many`` where an s is not enough: ``plural(count, "row has", "rows have")``."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
