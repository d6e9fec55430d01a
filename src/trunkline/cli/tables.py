"""Output of commands: tables, sizes, JSON, and a progress bar."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from types import TracebackType

import msgspec

from trunkline.plural import plural as plural

REFRESH_S = 0.2
BAR_AFTER_S = 1.0  # shorter work shows no bar
BAR_CHARACTERS = 30


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns fit their contents; numbers are right-aligned."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(text) for text in column) for column in zip(headings, *cells, strict=True)]
    numeric = [bool(rows) and all(_is_number(row[at]) for row in rows) for at in range(len(headings))]

    def line(texts: Sequence[str]) -> str:
        padded = (
            text.rjust(width) if number else text.ljust(width)
            for text, width, number in zip(texts, widths, numeric, strict=True)
        )
        return "  ".join(padded).rstrip()

    return "\n".join([line(headings), line(["-" * width for width in widths]), *(line(row) for row in cells)])


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool))


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def size(count_bytes: int | None) -> str:
    """A number of bytes in a suitable unit."""
    if count_bytes is None:
        return "-"
    amount = float(count_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def json_option() -> argparse.ArgumentParser:
    """A parent parser with ``--json``."""
    parent = argparse.ArgumentParser(add_help=False)
    parent.add_argument("--json", action="store_true", help="print JSON, also for errors")
    return parent


def print_json(value: object) -> None:
    print(json.dumps(msgspec.to_builtins(value), indent=2))


class Bar:
    """Shows the progress of long work on standard error, if that is a terminal."""

    def __init__(self, what: str, total: int | None = None) -> None:
        self._what = what
        self._total = total
        self._began = time.monotonic()
        self._shown_at = 0.0
        self._shows = sys.stderr.isatty()

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._shown_at:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()

    def update(self, done: int) -> None:
        now = time.monotonic()
        if self._shows and now - self._began >= BAR_AFTER_S and now - self._shown_at >= REFRESH_S:
            self._shown_at = now
            sys.stderr.write(f"\r\x1b[2K{self.text(done, now - self._began)}")
            sys.stderr.flush()

    def text(self, done: int, seconds: float) -> str:
        rate = f"{done / seconds:,.0f}/s" if seconds > 0 else ""
        if not self._total:
            return f"{self._what}: {done:,} ({rate})"
        share = min(done / self._total, 1.0)
        bar = "#" * int(share * BAR_CHARACTERS)
        return f"{self._what}: [{bar:<{BAR_CHARACTERS}}] {share:4.0%} {done:,} of {self._total:,} ({rate})"
