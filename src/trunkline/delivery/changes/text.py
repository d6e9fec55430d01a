"""Captured changes as text for people: a line for each, with its kind and its row as JSON."""

from __future__ import annotations

import datetime as dt
from typing import Any, Final

import msgspec

from trunkline.delivery.changes.captured import decoded
from trunkline.delivery.changes.rows import KIND_COLUMN
from trunkline.plural import plural

ARROW_STREAM: Final = b"\xff\xff\xff\xff"  # its first bytes
CHANGES_SHOWN: Final = 100
DECODED_BYTES_MAX: Final = 4 * 1024 * 1024  # of an entry that was compressed; too big: a page takes seconds
LINE_CHARACTERS_MAX: Final = 1000


def changes_text(payload: bytes) -> str | None:
    """None if these are not changes that a capture wrote."""
    if not payload.startswith(ARROW_STREAM):
        return None
    try:
        _, changes = decoded(payload, max(len(payload), DECODED_BYTES_MAX))
        rows = changes.slice(0, CHANGES_SHOWN).to_pylist()
        lines = [_line(row.pop(KIND_COLUMN), row) for row in rows]
    except Exception:  # bytes of any client that may append: nothing in them is trusted, and anything may be wrong
        return None
    more = changes.num_rows - len(rows)
    head = f"{plural(changes.num_rows, 'change')}:"
    return "\n".join([head, *lines, *([f"and {more:,} more"] if more else [])])


def _line(kind: str, row: dict[str, Any]) -> str:
    if kind == "truncate":
        return kind
    line = f"{kind} {msgspec.json.encode(_plain(row)).decode()}"
    return line if len(line) <= LINE_CHARACTERS_MAX else f"{line[:LINE_CHARACTERS_MAX]}…"


def _plain(value: Any) -> Any:
    """Values of JSON; others as text."""
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, bytes):
        return value.hex(" ")
    if isinstance(value, dt.datetime):
        return value.isoformat(" ")
    return value if isinstance(value, str | int | float | None) else str(value)
