"""The metrics of a capture, and whether it is ready.

A position is a value, not a label: it changes with every transaction, and each would be another series.
"""

from __future__ import annotations

import time
from typing import Final

import msgspec

from trunkline.delivery.capture.database_progress import DatabaseProgress
from trunkline.delivery.capture.one_table.runner import CaptureProgress
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
    MetricSpec("entries_total", "counter", "of a database: entries written to the log"),
    MetricSpec("bytes_total", "counter", "of a database: the bytes of these entries"),
    MetricSpec("confirmed_position", "gauge", "of a database: what the source may forget"),
    MetricSpec("lag_bytes", "gauge", "of a database: how far the source is ahead of the log"),
    MetricSpec("lag_seconds", "gauge", "of a database: how old the newest state in the log is; 0: it has everything"),
    MetricSpec("retained_bytes", "gauge", "of a database: what the source keeps for the capture, such as WAL"),
    MetricSpec("last_message_seconds", "gauge", "of a database: since the source sent something"),
    MetricSpec("tables_complete", "gauge", "of a database: tables with all their rows in the log"),
    MetricSpec("tables_incomplete", "gauge", "of a database: tables whose snapshot is being read"),
    MetricSpec("chunks_total", "counter", "of a database: chunks of snapshots written to the log"),
    MetricSpec("snapshot_rows_total", "counter", "of a database: rows read for snapshots"),
    MetricSpec("recaptures_total", "counter", "of a database: tables that were captured again"),
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


def observed_database_capture(log: str, captured: DatabaseProgress) -> ObservedProcess:
    """``captured`` is read from another thread."""
    started = time.monotonic()

    async def values() -> Values:
        return database_values(log, time.monotonic() - started, captured)

    async def readiness() -> Readiness:
        return database_readiness(captured)

    return ObservedProcess("capture", log, TABLE, values, readiness)


def database_values(log: str, uptime_s: float, captured: DatabaseProgress) -> Values:
    incomplete = len(captured.incomplete)
    known: dict[str, Value | None] = {
        "ready": database_readiness(captured).ready,
        "transactions_total": captured.transactions,
        "rows_total": captured.rows,
        "failures_total": captured.failures,
        "last_error": bool(captured.error),
        "last_transaction_seconds": _wrote_s_ago(captured),
        "position": captured.position,
        "entries_total": captured.entries,
        "bytes_total": captured.bytes,
        "confirmed_position": captured.confirmed,
        "lag_bytes": captured.lag_bytes(),
        "lag_seconds": captured.lag_seconds(),
        "retained_bytes": None if captured.lag is None else captured.lag.retained,
        "last_message_seconds": None if captured.heard_at is None else time.monotonic() - captured.heard_at,
        "tables_complete": len(captured.tables) - incomplete,
        "tables_incomplete": incomplete,
        "chunks_total": captured.chunks,
        "snapshot_rows_total": captured.chunk_rows,
        "recaptures_total": captured.recaptures,
    }
    return common_values(log, uptime_s) | {name: value for name, value in known.items() if value is not None}


def database_readiness(captured: DatabaseProgress) -> Readiness:
    facts = {
        "position": captured.position,
        "lag_bytes": captured.lag_bytes(),
        "lag_seconds": captured.lag_seconds(),
        "tables_incomplete": len(captured.incomplete),
    }
    if error := captured.error:
        return Readiness((f"the last try failed, another one follows: {error}",), facts)
    if not captured.running:
        return Readiness(("the capture is starting: it connects to the database and takes over the log",), facts)
    return Readiness((), facts)


def _wrote_s_ago(captured: CaptureProgress | DatabaseProgress) -> float | None:
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
