"""Captured changes as a person reads them: a line for each, its kind and its row as JSON.

Arrow is loaded when the first such entry is looked at. Where it is not installed, entries are shown as other bytes are.
"""

from __future__ import annotations

import datetime as dt
from typing import Any, Final

import msgspec

from trunkline.plural import plural

ARROW_STREAM: Final = b"\xff\xff\xff\xff"  # how one begins
CHANGES_SHOWN: Final = 100
DECOMPRESSED_SHOWN_BYTES: Final = 4 * 1024 * 1024  # of an entry that was compressed; too big: a page takes seconds
LINE_LETTERS: Final = 1000


def changes_text(payload: bytes) -> str | None:
    """None where it holds no changes that a capture wrote, or where there is no Arrow to read them with."""
    if not payload.startswith(ARROW_STREAM):
        return None
    try:
        from trunkline.delivery.changes.captured import decoded
        from trunkline.delivery.changes.rows import KIND_COLUMN
    except ImportError:
        return None
    try:
        _, changes = decoded(payload, max(len(payload), DECOMPRESSED_SHOWN_BYTES))
        rows = changes.slice(0, CHANGES_SHOWN).to_pylist()
        lines = [_line(row.pop(KIND_COLUMN), row) for row in rows]
    except Exception:  # bytes of whoever may append: nothing in them is believed, and anything may be wrong with them
        return None
    more = changes.num_rows - len(rows)
    head = f"{plural(changes.num_rows, 'change')}:"
    return "\n".join([head, *lines, *([f"and {more:,} more"] if more else [])])


def _line(kind: str, row: dict[str, Any]) -> str:
    if kind == "truncate":
        return kind
    told = f"{kind} {msgspec.json.encode(_plain(row)).decode()}"
    return told if len(told) <= LINE_LETTERS else f"{told[:LINE_LETTERS]}…"


def _plain(value: Any) -> Any:
    """What JSON has; the rest as text."""
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, bytes):
        return value.hex(" ")
    if isinstance(value, dt.datetime):
        return value.isoformat(" ")
    return value if isinstance(value, str | int | float | None) else str(value)
