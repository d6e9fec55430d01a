"""The status of logs: every problem, however long the log is and however many logs there are."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from metadata.projections import OPENING, first_of, node, rolled
from trunkline.cli.status import SEGMENTS_MANY, warnings
from trunkline.core.messages import Register, Swap
from trunkline.core.projection import EndSegment, Projection, Seat, apply
from trunkline.core.status import ClusterStatus, LogStatus
from trunkline.runtime import summaries
from trunkline.runtime.coordinator import CoordinatorServer, CoordinatorServerConfig
from trunkline.runtime.summaries import (
    PROBLEMS_SHOWN,
    SEGMENTS_SHOWN,
    Summaries,
    shown_segments,
    summary_of,
    with_logs,
)


def many_segments(count: int, log: str = "orders") -> Projection:
    view = first_of(log)
    for _ in range(count - 1):
        view = rolled(view)
    return view


def narrow(view: Projection, *indexes: int) -> Projection:
    """The same with one copy of these segments."""
    segments = (replace(s, groups=(s.groups[0][:1],)) if s.index in indexes else s for s in view.segments)
    return replace(view, segments=tuple(segments))


def status_of(view: Projection, *, blocked: bool = False, refused: str = "") -> LogStatus:
    [log] = with_logs(ClusterStatus(), [replace(summary_of(view).status, blocked=blocked, refused=refused)]).logs
    return log


def test_the_last_segments_of_a_log_are_shown_and_all_are_counted() -> None:
    log = status_of(many_segments(30))
    assert [segment.index for segment in log.listed()] == list(range(30 - SEGMENTS_SHOWN, 30))
    assert (log.segments_total, log.problems_total) == (30, 0)


def test_an_old_segment_with_fewer_copies_is_shown_behind_many_newer_ones() -> None:
    log = status_of(narrow(many_segments(60), 3))
    assert log.listed()[0].index == 3
    assert log.problems_total == 1
    assert warnings(log) == ["NO REDUNDANCY: orders, segment 3 has one copy; add a node, or restart the lost ones"]


def test_of_many_problems_the_first_are_shown_and_the_others_are_counted() -> None:
    log = status_of(narrow(many_segments(100), *range(70)))
    assert [segment.index for segment in log.listed()][:PROBLEMS_SHOWN] == list(range(PROBLEMS_SHOWN))
    *shown, rest = warnings(log)
    assert len(shown) == PROBLEMS_SHOWN
    assert rest == "fewer copies: orders has 50 more segments with too few copies"


def test_problems_come_first_the_worst_before_others() -> None:
    view = replace(narrow(many_segments(3), 1), settings=replace(first_of().settings, replicas=3))
    found = warnings(status_of(view, blocked=True, refused="too long; trim the log"))
    assert [text.partition(":")[0] for text in found] == [
        "BLOCKED",
        "REFUSED",
        "NO REDUNDANCY",
        "fewer copies",
        "fewer copies",
    ]


def test_a_log_with_very_many_segments_should_be_trimmed() -> None:
    long = LogStatus("orders", replicas=2, segments_total=SEGMENTS_MANY)
    [text] = warnings(long)
    assert text.startswith("long: orders has 10,000 segments")
    assert warnings(replace(long, segments_total=SEGMENTS_MANY - 1)) == []


def test_every_node_with_data_of_a_log_is_named() -> None:
    opening = replace(OPENING, groups=((Seat("x", 1), Seat("y", 1)),))
    first = first_of()
    view = apply(first, EndSegment(0, 1, first.last.groups, opening))
    for _ in range(30):
        view = rolled(view)
    assert [segment.index for segment in shown_segments(view, [])][:2] == [1, 32 - SEGMENTS_SHOWN]
    assert shown_segments(first, []) == first.segments
    assert summary_of(view).named == {"a": 31, "b": 31, "x": 1, "y": 1}


def test_a_summary_is_computed_once_for_each_projection() -> None:
    known = Summaries()
    first = known.of(view := first_of())
    assert known.of(view) is first
    assert known.of(rolled(view)).projection.epoch == 2
    known.of_all([other := first_of("other")])
    assert known.of(other) is known.of(other)
    assert known.of(view) is not first  # it was evicted


def test_with_too_many_logs_those_in_trouble_are_shown_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = status_of(narrow(many_segments(2, "zzz"), 0))
    logs = [*(status_of(first_of(f"log{n}")) for n in range(10)), bad]
    bad_bytes = len(msgspec.json.encode(bad))
    monkeypatch.setattr(summaries, "SEGMENTS_BYTES_MAX", bad_bytes + 10)
    found = {log.name: bool(log.listed()) for log in with_logs(ClusterStatus(), logs).logs}
    assert found == {**{f"log{n}": False for n in range(10)}, "zzz": True}
    monkeypatch.setattr(summaries, "STATUS_BYTES_MAX", 2 * bad_bytes)
    status = with_logs(ClusterStatus(), logs)
    assert status.logs[-1].name == "zzz"
    assert len(status.logs) + status.logs_left_out == 11
    assert status.logs_left_out > 0


def test_a_coordinator_reports_nodes_and_logs_or_only_nodes(tmp_path: Path) -> None:
    async def scenario() -> None:
        server = CoordinatorServer(CoordinatorServerConfig(listen="127.0.0.1:0", directory=tmp_path))
        try:
            await server.start()
            await server._store.handle(Register(node("a")))
            await server._store.handle(Swap("orders", 0, replace(many_segments(30), epoch=1)))
            status = await server._status()
            assert ([log.name for log in status.logs], status.logs_total) == (["orders"], 1)
            assert [each.streams_named for each in status.nodes] == [30]
            assert (await server._status(logs=False)).logs == ()
        finally:
            await server.close()

    asyncio.run(scenario())
