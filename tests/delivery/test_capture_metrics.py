"""What a capture shows of itself: metrics, and whether it is ready."""

from __future__ import annotations

import time

from observing.series import Series, series_of
from trunkline.cli.capture_database import progress_line
from trunkline.delivery.capture.database_progress import DatabaseProgress, TableProgress
from trunkline.delivery.capture.metrics import (
    TABLE,
    capture_readiness,
    capture_values,
    database_readiness,
    database_values,
    position_number,
)
from trunkline.delivery.capture.one_table.runner import CaptureProgress
from trunkline.delivery.capture.source import Lag


def series(captured: CaptureProgress) -> Series:
    return series_of(TABLE, capture_values("orders", 1.0, captured))


def test_a_capture_is_ready_when_it_has_the_log_and_nothing_failed_since() -> None:
    captured = CaptureProgress()
    assert not capture_readiness(captured).ready
    assert ("trunkline_capture_position", ()) not in series(captured)

    captured.transactions, captured.rows, captured.position = 2, 9, '{"version":7}'
    captured.running, captured.wrote_at = True, time.monotonic() - 1.5
    assert capture_readiness(captured).ready
    found = series(captured)
    assert found["trunkline_capture_position", ()] == 7
    assert found["trunkline_capture_last_transaction_seconds", ()] >= 1.5
    assert found["trunkline_capture_last_error", ()] == 0

    captured.running, captured.error, captured.failures = False, "the table is unreachable", 1
    (why,) = capture_readiness(captured).why
    assert "the table is unreachable" in why
    assert series(captured)["trunkline_capture_last_error", ()] == 1


def test_a_position_has_one_number_at_most() -> None:
    assert [position_number(each) for each in (None, "x", "[1]", '{"lsn":8}')] == [None, None, None, 8]


def test_a_capture_of_a_database_reports_its_lag_and_its_snapshots() -> None:
    captured = DatabaseProgress()
    assert not database_readiness(captured).ready
    assert captured.lag_bytes() is None
    assert captured.lag_seconds() is None
    captured.running, captured.position, captured.reached = True, 700, 700
    captured.sampled(Lag(700, 50))
    captured.tables = (TableProgress(1, "public.a", True, 1, 1, 9), TableProgress(2, "public.b", False, 1, 0, 0))
    found = series_of(TABLE, database_values("shop", 1.0, captured))
    assert database_readiness(captured).ready
    expected = {"lag_bytes": 0, "lag_seconds": 0, "retained_bytes": 50, "tables_complete": 1, "tables_incomplete": 1}
    assert {name: found[f"trunkline_capture_{name}", ()] for name in expected} == expected
    captured.sampled(Lag(900, 50))  # the source goes on, and the log does not
    assert captured.lag_bytes() == 200
    assert 0 <= (captured.lag_seconds() or -1) < 60  # since it was at 700
    captured.reached = 600
    assert captured.lag_seconds() is None
    captured.commit_us = int((time.time() - 3600) * 1e6)
    assert 3600 <= (captured.lag_seconds() or 0) < 3700
    captured.error = "the database is down"
    assert "the database is down" in database_readiness(captured).why[0]


def test_a_line_of_progress_names_the_snapshot_and_what_is_left() -> None:
    captured = DatabaseProgress()
    captured.tables = (TableProgress(1, "public.a", True, 1, 1, 9), TableProgress(2, "public.b", False, 1, 3, 4500))
    captured.reached = 700
    captured.sampled(Lag(700, 0))
    line = progress_line(captured, (12.0, 1234.6, 500.0), {"public.b": 90_000})
    assert line == (
        "12 transactions/s, 1,235 changes/s; 0 B behind (0.0 s); snapshot 500 rows/s: public.b 3 chunks, 4,500 "
        "of about 90,000 rows; 1 table of 2 to go"
    )
