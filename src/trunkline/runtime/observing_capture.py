"""What a capture tells of itself: its metrics, and whether it is ready.

A position has no label of its own: it changes with every transaction, and each would be another series. Its number is
a value, and ``/readyz`` shows it, too.
"""

from __future__ import annotations

from typing import Final

import msgspec

from trunkline.runtime.observing_format import COMMON, Described, Value, common_values, page
from trunkline.runtime.observing_health import Readiness

PREFIX: Final = "trunkline_capture_"
NUMBERS: Final = ("version", "lsn")  # of a position: of a lake, and of PostgreSQL
TABLE: Final = (
    *COMMON,
    Described("ready", "gauge", "1 if `/readyz` answers 200"),
    Described("transactions_total", "counter", "transactions written to the log"),
    Described("rows_total", "counter", "changes of rows in them"),
    Described("failures_total", "counter", "how often it had to begin anew, because the table or the log was away"),
    Described("last_error", "gauge", "1 if the last try failed; `/readyz` and the log say why"),
    Described("last_transaction_seconds", "gauge", "since the last one was written; left out before the first"),
    Described("position", "gauge", "how far it is: the lake's version, or PostgreSQL's LSN as a number"),
)


class CaptureView(msgspec.Struct, frozen=True):
    """One look at a capture. ``running``: it has taken the log over."""

    transactions: int
    rows: int
    failures: int
    running: bool
    error: str
    position: str | None
    wrote_s_ago: float | None


def capture_metrics(log: str, uptime_s: float, view: CaptureView) -> str:
    values = common_values(log, uptime_s)
    known: dict[str, Value | None] = {
        "ready": capture_readiness(view).ready,
        "transactions_total": view.transactions,
        "rows_total": view.rows,
        "failures_total": view.failures,
        "last_error": bool(view.error),
        "last_transaction_seconds": view.wrote_s_ago,
        "position": position_number(view.position),
    }
    values |= {name: value for name, value in known.items() if value is not None}
    return page(PREFIX, TABLE, values)


def capture_readiness(view: CaptureView) -> Readiness:
    facts = {"position": position_number(view.position), "last_transaction_s": view.wrote_s_ago}
    if view.error:
        return Readiness((f"the last try failed, another one follows: {view.error}",), facts)
    if not view.running:
        return Readiness(("the capture is starting: it connects to the table and takes the log over",), facts)
    return Readiness((), facts)


def position_number(position: str | None) -> int | None:
    """The number in a position that grows; None where there is none."""
    try:
        found = msgspec.json.decode(position or "null")
    except msgspec.DecodeError:
        return None
    numbers = [found[key] for key in NUMBERS if key in found] if isinstance(found, dict) else []
    return next((each for each in numbers if isinstance(each, int)), None)
