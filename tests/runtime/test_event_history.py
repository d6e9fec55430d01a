"""The recent events of a coordinator: bounds, order, and its file: rules I1 to I4."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from trunkline.core.status import MinuteCounts
from trunkline.runtime import event_history as module
from trunkline.runtime.event_history import FILE, LOG_EVENTS_MAX, MINUTES_MAX, OTHER_EVENTS_MAX, EventHistory
from trunkline.runtime.event_texts import EventText


def texts(history: EventHistory) -> list[str]:
    return [event.text for event in history.since().events]


def test_i1_events_of_many_logs_do_not_evict_an_event_of_a_node(tmp_path: Path) -> None:
    history = EventHistory(tmp_path)
    history.add([EventText("bad", "node b lost", node="b", live=False)], 1)
    for number in range(10_000):
        history.add([EventText("warn", f"segment of {number} sealed", log=str(number))], 2)
        history.add_minute(MinuteCounts(number, 60.0, 1, 1))
        history.save_now()
    assert texts(history)[:2] == ["node b lost", f"segment of {10_000 - LOG_EVENTS_MAX} sealed"]
    assert len(texts(history)) == LOG_EVENTS_MAX + 1
    assert len(history.since().minutes) == MINUTES_MAX
    for number in range(OTHER_EVENTS_MAX + 5):
        history.add([EventText("info", f"other {number}")], 3)
    assert len(texts(history)) == LOG_EVENTS_MAX + OTHER_EVENTS_MAX
    history.save_now()
    assert (tmp_path / FILE).stat().st_size < 2_000_000
    assert texts(EventHistory(tmp_path)) == texts(history)


def test_i1_a_text_is_bounded() -> None:
    history = EventHistory(None)
    history.add([EventText("info", "x" * 100_000)], 1)
    assert len(texts(history)[0]) < 500


def test_i2_events_keep_their_order_though_the_clock_goes_back(tmp_path: Path) -> None:
    history = EventHistory(tmp_path)
    for at_ms, text in ((9_000, "first"), (1_000, "second"), (5_000, "third")):
        history.add([EventText("info", text, log="orders" if text == "second" else "")], at_ms)
        history.save_now()
    assert texts(history) == texts(EventHistory(tmp_path)) == ["first", "second", "third"]


def test_i3_a_reader_gets_what_is_new_and_a_reader_of_another_book_gets_all(tmp_path: Path) -> None:
    history = EventHistory(tmp_path)
    history.add([EventText("info", each) for each in "abc"], 1)
    assert [event.text for event in history.since(history.book, 2).events] == ["c"]
    assert [event.text for event in history.since("another", 2).events] == ["a", "b", "c"]
    history.save_now()
    again = EventHistory(tmp_path)
    again.add([EventText("info", "d")], 1)
    assert again.book == history.book
    assert [event.text for event in again.since(history.book, 3).events] == ["d"]


def test_i4_a_torn_line_is_skipped_and_later_lines_are_kept(tmp_path: Path) -> None:
    history = EventHistory(tmp_path)
    history.add([EventText("info", each) for each in "ab"], 1)
    asyncio.run(history.save())
    path = tmp_path / FILE
    path.write_bytes(path.read_bytes()[:-9])
    torn = EventHistory(tmp_path)
    torn.add([EventText("info", "c")], 1)
    torn.save_now()
    assert texts(torn) == texts(EventHistory(tmp_path)) == ["a", "c"]


def test_i4_a_write_error_is_logged_once_and_events_are_written_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "place").touch()
    history = EventHistory(tmp_path / "place")
    with caplog.at_level(logging.WARNING):
        for each in "ab":
            history.add([EventText("info", each)], 1)
            history.save_now()
    assert [record.message[:32] for record in caplog.records] == ["events cannot be saved ([Errno 1"]
    (tmp_path / "place").unlink()
    history.add([EventText("info", "c")], 1)
    history.save_now()
    assert texts(history) == texts(EventHistory(tmp_path / "place")) == ["a", "b", "c"]


def test_i4_a_file_that_is_not_ours_is_left_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FILE_BYTES_MAX", 10)
    (tmp_path / FILE).write_bytes(b"x" * 11)
    assert texts(EventHistory(tmp_path)) == []


def test_since_when_nodes_are_lost_is_known_after_a_restart(tmp_path: Path) -> None:
    history = EventHistory(tmp_path)
    history.add([EventText("bad", "b lost", node="b", live=False), EventText("bad", "c lost", node="c", live=False)], 5)
    history.add([EventText("good", "c back", node="c")], 6)
    history.save_now()
    assert history.lost == EventHistory(tmp_path).lost == {"b": 5}
