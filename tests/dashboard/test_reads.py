"""How many entries nodes sent between two polls."""

from __future__ import annotations

from trunkline.dashboard.reads import entries_read
from trunkline.dashboard.views import ShownCluster, ShownDisk, ShownNode


def node(name: str, entries: int | None, *, start: int = 1, live: bool = True) -> ShownNode:
    disk = ShownDisk(10, 90, False, 1, "always", start=start, entries_read=entries)
    return ShownNode(name, f"{name}:1", "", "rw", live, start, damaged=0, disk=disk)


def silent(name: str, *, live: bool) -> ShownNode:
    return ShownNode(name, f"{name}:1", "", "rw", live, 1, damaged=0)


def look(*nodes: ShownNode) -> ShownCluster:
    return ShownCluster("id", "k", True, nodes, ())


def test_each_node_has_the_number_of_entries_that_it_sent_in_between() -> None:
    before = look(node("a", 100), node("b", 7))
    assert entries_read(before, look(node("a", 150), node("b", 7))) == {"a": 50, "b": 0}


def test_the_first_poll_has_no_counts() -> None:
    assert entries_read(None, look(node("a", 100))) == {}


def test_a_node_that_was_restarted_is_left_out_once() -> None:
    restarted = look(node("a", 900, start=2), node("b", 8))
    assert entries_read(look(node("a", 100), node("b", 7)), restarted) == {"b": 1}
    assert entries_read(restarted, look(node("a", 903, start=2), node("b", 8))) == {"a": 3, "b": 0}


def test_a_node_that_is_lost_silent_or_new_is_left_out() -> None:
    there = look(node("a", 100))
    for absent in (look(), look(silent("a", live=True)), look(silent("a", live=False)), look(node("a", 9, live=False))):
        assert entries_read(there, absent) == {}
        assert entries_read(absent, there) == {}


def test_a_node_that_is_too_old_to_count_is_left_out() -> None:
    assert entries_read(look(node("a", None)), look(node("a", None))) == {}
    assert entries_read(look(node("a", None)), look(node("a", 5))) == {}
