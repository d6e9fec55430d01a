"""What several coordinators remember becomes one list: rules Y1 to Y3."""

from __future__ import annotations

from trunkline.core.status import ClusterEvent, ClusterEvents, MinuteCounts
from trunkline.dashboard.feed import FeedMemory
from trunkline.dashboard.history import MINUTES_MAX, SAME_MS, EventMerger, merged_lost, merged_minutes


def event(number: int, at_ms: int, text: str) -> ClusterEvent:
    return ClusterEvent(number, at_ms, "info", text)


def shown(*read: tuple[int, list[ClusterEvent]]) -> list[str]:
    merger, memory = EventMerger(), FeedMemory()
    for source, events in read:
        memory.put(merger.take(source, events))
    return [item.text for item in memory.feed]


def test_y2_a_clock_that_was_set_back_changes_no_order() -> None:
    set_back = [event(1, 9_000, "lost"), event(2, 2_000, "sealed"), event(3, 3_000, "back")]
    assert shown((0, set_back)) == ["lost", "sealed", "back"]


def test_y2_between_coordinators_the_time_decides() -> None:
    assert shown((0, [event(1, 1_000, "a"), event(2, 5_000, "c")]), (1, [event(9, 3_000, "b")])) == ["a", "b", "c"]


def test_y3_what_two_coordinators_tell_happened_once() -> None:
    first = [event(1, 1_000, "b lost"), event(2, 4_000, "b is back"), event(3, 5_000, "b lost")]
    second = [event(7, 1_200, "b lost"), event(8, 4_100, "b is back"), event(9, 5_100, "b lost")]
    assert shown((0, first), (1, second)) == ["b lost", "b is back", "b lost"]


def test_y3_the_same_words_much_later_happened_again() -> None:
    again = [event(7, 1_000 + SAME_MS + 1, "b lost")]
    assert shown((0, [event(1, 1_000, "b lost")]), (1, again)) == ["b lost", "b lost"]


def test_minutes_of_all_coordinators_are_one_hour() -> None:
    first = ClusterEvents("x", minutes=tuple(MinuteCounts(number, 60.0, 1, 1) for number in range(0, 100, 2)))
    second = ClusterEvents("y", minutes=tuple(MinuteCounts(number, 60.0, 2, 2) for number in range(1, 100, 2)))
    merged = merged_minutes({0: first, 1: second})
    assert [minute.at_ms for minute in merged] == list(range(100 - MINUTES_MAX, 100))


def test_a_node_is_lost_since_the_earliest_report() -> None:
    assert merged_lost([ClusterEvents("x", lost={"b": 9, "c": 4}), ClusterEvents("y", lost={"b": 7})]) == {
        "b": 7,
        "c": 4,
    }
