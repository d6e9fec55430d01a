"""What a capture shows of itself: metrics, and whether it is ready."""

from __future__ import annotations

import time

from observing.series import Series, series_of
from trunkline.delivery.capture.metrics import TABLE, capture_readiness, capture_values, position_number
from trunkline.delivery.capture.runner import CaptureProgress


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
