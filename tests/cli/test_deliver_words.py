"""The output of ``deliver run`` and ``deliver status``, from values that need no pipeline."""

from __future__ import annotations

from typing import Any

import pytest

from trunkline.cli.deliver_operate import status_text
from trunkline.cli.deliver_run import progress
from trunkline.delivery.deliverer.views import DelivererView, DestinationView, ProgressView


def destination(name: str, stage: str, **options: Any) -> DestinationView:
    return DestinationView(**{"name": name, "stage": stage, "life": "active", "owned": True, **options})


@pytest.mark.parametrize(
    ("destinations", "words"),
    [
        ([], None),
        ([destination("a", "reading"), destination("b", "reading")], None),
        ([destination("a", "seeding"), destination("b", "ready", lag_versions=0)], "seeding 1 destination"),
        (
            [destination("a", "flushing", lag_versions=3), destination("b", "halted"), destination("c", "ready")],
            "catching up: 1 of 2, at most 3 versions, about 2 s left, 1 halted",
        ),
        (
            [destination("a", "ready", lag_versions=0), destination("b", "paused", life="paused", lag_versions=7)],
            "up to date with version 9: 1 destination",
        ),
        ([destination("a", "unowned", owned=False, lag_versions=1)], None),
    ],
)
def test_progress_is_one_short_line(destinations: list[DestinationView], words: str | None) -> None:
    late = ProgressView(done=1, total=8, elapsed_ms=9000, percent=10.0, left_ms=1500)
    view = DelivererView(
        pipeline="orders",
        deliverer="d",
        state="running",
        at_ms=0,
        turned_ms_ago=0,
        source_version=9,
        catching_up=late,
        destinations=tuple(destinations),
    )
    said = progress(view)
    assert (None if said is None else said[1]) == words


def test_status_shows_errors_unrouted_rows_and_retired_destinations() -> None:
    record = {"configured": True, "retired": False, "desired_state": "active", "owner": "d-1", "empty": {"through": 8}}
    halted = {"state": "halted", "position": 3, "error": "a: its table was removed", "rows_total": 7}
    facts = {
        "pipeline": "orders",
        "source": {"version": 9, "error": ""},
        "deliverers": [{"name": "d-1", "live": True}, {"name": "d-0", "live": False}],
        "destinations": [
            {**record, "name": "a", "status": halted},
            {**record, "name": "b", "status": {"state": "ready"}, "desired_state": "paused", "owner": None},
            {**record, "name": "c", "status": None, "retired": True},
        ],
        "unrouted": {"through": 9, "rows": 12, "values": {"x": 9}, "nulls": 2, "others": 1},
    }
    lines = status_text(facts).splitlines()
    assert lines[0] == "pipeline orders, source at version 9, delivered by d-1"
    assert lines[4].split() == ["a", "halted", "3", "1", "7", "-", "d-1"]
    assert lines[5].split() == ["b", "was", "ready,", "to", "be", "paused", "-", "-", "-", "-", "-"]
    assert lines[2].split("  ")[-3:] == ["rows changed", "last written", "deliverer"]
    assert lines[7].startswith("rows changed: removed and written since ")
    assert lines[9] == "a: its table was removed"
    assert lines[11] == "12 rows have no destination, up to version 9: 'x' 9, NULL 2, others 1"
    facts["unrouted"] = {"through": 9, "rows": 1, "values": {"x": 1}, "nulls": 0, "others": 0}
    assert "\n1 row has no destination, up to version 9: 'x' 1\n" in status_text(facts)
    assert lines[13] == "1 destination retired or no longer configured (--json shows them)"
