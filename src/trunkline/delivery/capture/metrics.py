"""The metrics of a capture, and whether it is ready.

A position is a value, not a label: it changes with every transaction, and each would be another series.
"""

from __future__ import annotations

import time
from typing import Final

import msgspec

from trunkline.delivery.capture.runner import CaptureProgress
from trunkline.observing.metrics import COMMON, MetricSpec, MetricTable, Value, Values, common_values
from trunkline.observing.pages import ObservedProcess
from trunkline.observing.readiness import Readiness

NUMBERS: Final = ("version", "lsn")  # of a position: of a lake, and of PostgreSQL
METRICS: Final = (
    *COMMON,
    MetricSpec("ready", "gauge", "1 if `/readyz` answers 200"),
    MetricSpec("transactions_total", "counter", "transactions written to the log"),
    MetricSpec("rows_total", "counter", "changes of rows in them"),
    MetricSpec(
        "failures_total", "counter", "how often it had to restart, because the table or the log was unreachable"
    ),
    MetricSpec("last_error", "gauge", "1 if the last try failed; `/readyz` and the log say why"),
    MetricSpec("last_transaction_seconds", "gauge", "since the last one was written; left out before the first"),
    MetricSpec("position", "gauge", "how far it is: the lake's version, or PostgreSQL's LSN as a number"),
)
TABLE: Final = MetricTable("trunkline_capture_", METRICS)


def observed_capture(log: str, captured: CaptureProgress) -> ObservedProcess:
    """``captured`` is read from another thread."""
    started = time.monotonic()

    async def values() -> Values:
        return capture_values(log, time.monotonic() - started, captured)

    async def readiness() -> Readiness:
        return capture_readiness(captured)

    return ObservedProcess("capture", log, TABLE, values, readiness)


def capture_values(log: str, uptime_s: float, captured: CaptureProgress) -> Values:
    known: dict[str, Value | None] = {
        "ready": capture_readiness(captured).ready,
        "transactions_total": captured.transactions,
        "rows_total": captured.rows,
        "failures_total": captured.failures,
        "last_error": bool(captured.error),
        "last_transaction_seconds": _wrote_s_ago(captured),
        "position": position_number(captured.position),
    }
    return common_values(log, uptime_s) | {name: value for name, value in known.items() if value is not None}


def capture_readiness(captured: CaptureProgress) -> Readiness:
    facts = {"position": position_number(captured.position), "last_transaction_s": _wrote_s_ago(captured)}
    if error := captured.error:
        return Readiness((f"the last try failed, another one follows: {error}",), facts)
    if not captured.running:
        return Readiness(("the capture is starting: it connects to the table and takes over the log",), facts)
    return Readiness((), facts)


def _wrote_s_ago(captured: CaptureProgress) -> float | None:
    wrote_at = captured.wrote_at
    return None if wrote_at is None else time.monotonic() - wrote_at


def position_number(position: str | None) -> int | None:
    """The number in a position that grows; None if it has none."""
    try:
        found = msgspec.json.decode(position or "null")
    except msgspec.DecodeError:
        return None
    numbers = [found[key] for key in NUMBERS if key in found] if isinstance(found, dict) else []
    return next((each for each in numbers if isinstance(each, int)), None)
