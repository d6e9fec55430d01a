"""The texts of events, from two states of the metadata."""

from __future__ import annotations

from msgspec.structs import replace

from trunkline.core.messages import NodeInfo, NodeState
from trunkline.core.projection import Gap, Member, Owner, Policy, Projection, Segment, Settings
from trunkline.core.space import Space
from trunkline.runtime.event_texts import EventText, blocked_news, log_news, node_news


def node(name: str, *, live: bool = True, start: int = 1) -> NodeInfo:
    return NodeInfo(name, 1, start, live=live, address=f"{name}:1")


def segment(index: int, epoch: int, base: int, end: int | None, *names: str, repaired: bool = True) -> Segment:
    """``+c`` is being copied."""
    group = tuple(Member(name.lstrip("+"), 1, f"{name}{index}", name.startswith("+")) for name in names)
    done = repaired and end is not None
    return Segment(index, epoch, base, end, done, Policy.CHAIN, 1024, (group,), Owner(names[0], 1))


def log(*segments: Segment, name: str = "orders", epoch: int = 1) -> Projection:
    return Projection("id", name, epoch, 0, segments, Settings())


OPEN = log(segment(0, 1, 1, None, "a", "b", "c"))


def nodes_said(before: NodeInfo | None, now: NodeInfo) -> list[str]:
    return [said.text for said in node_news(before, now)]


def said(before: Projection | None, now: Projection) -> list[str]:
    return [each.text for each in log_news(before, now)]


def test_equal_states_cause_no_event() -> None:
    assert nodes_said(node("a"), node("a")) == said(OPEN, OPEN) == []


def test_a_node_is_lost_and_comes_back() -> None:
    assert list(node_news(node("b"), node("b", live=False))) == [EventText("bad", "node b lost", node="b", live=False)]
    assert list(node_news(node("b", live=False), node("b", start=2))) == [EventText("good", "node b is back", node="b")]


def test_a_node_restarts_joins_and_is_drained() -> None:
    assert nodes_said(node("a"), node("a", start=2)) == ["node a was restarted"]
    assert nodes_said(None, node("d")) == ["node d joined at d:1"]
    drained = replace(node("b"), state=NodeState.DRAINING)
    assert nodes_said(node("b"), drained) == ["node b is being drained"]
    assert nodes_said(drained, node("b")) == ["node b is used again"]


def test_a_name_that_begins_with_node_gets_no_prefix() -> None:
    assert nodes_said(node("node7"), node("node7", live=False)) == ["node7 lost"]


def test_a_full_disk_and_damage_are_reported_once() -> None:
    full = replace(node("a"), space=Space.FULL, damaged=1)
    assert nodes_said(node("a"), full) == [
        "node a cannot read some of its data; other replicas serve it",
        "node a: the disk is full",
    ]
    assert nodes_said(full, replace(full, space=Space.EXHAUSTED)) == []
    assert nodes_said(full, replace(full, space=Space.TIGHT)) == ["node a: has room again"]


def test_what_happened_before_a_new_log_was_first_read_is_said_too() -> None:
    reopened = log(segment(0, 1, 1, 5, "a", "b", "c"), segment(1, 2, 5, None, "b", "c", "d"))
    created = "log orders created: chain, 3 copies, on a, b, c"
    assert said(None, reopened) == [created, "segment 0 of orders sealed at 5; segment 1 on b, c, d (epoch 2)"]
    ended = log(segment(0, 1, 1, 5, "a", "b", "c"))
    assert said(None, ended) == [created, "segment 0 of orders sealed at 5; the log is read-only"]


def test_logs_come_and_go() -> None:
    assert said(None, OPEN) == ["log orders created: chain, 3 copies, on a, b, c"]
    gone = replace(OPEN, deleted=True)
    assert log_news(OPEN, gone) == [EventText("warn", "log orders deleted", log="orders")]
    assert said(gone, gone) == said(None, gone) == []


def test_a_seal_names_the_segment_that_follows() -> None:
    before = log(segment(4, 3, 1, None, "a", "b", "c"))
    now = log(segment(4, 3, 1, 10_231, "a", "c"), segment(5, 7, 10_231, None, "a", "c", "d"))
    assert log_news(before, now) == [
        EventText("warn", "segment 4 of orders sealed at 10,231; segment 5 on a, c, d (epoch 7)", log="orders")
    ]


def test_a_sealed_log_is_read_only_until_it_is_reopened() -> None:
    closed = log(segment(0, 1, 1, 8, "a", "b", "c"))
    assert said(OPEN, closed) == ["segment 0 of orders sealed at 8; the log is read-only"]
    opened = log(segment(0, 1, 1, 8, "a", "b", "c"), segment(1, 3, 8, None, "b", "c"))
    assert said(closed, opened) == ["orders reopened: segment 1 on b, c (epoch 3)"]


def test_several_seals_between_two_reads_are_all_reported() -> None:
    ended = (segment(0, 1, 1, 5, "a"), segment(1, 2, 5, 9, "b"), segment(2, 3, 9, None, "c"))
    assert said(OPEN, log(*ended)) == [
        "segment 0 of orders sealed at 5; segment 1 on b (epoch 2)",
        "segment 1 of orders sealed at 9; segment 2 on c (epoch 3)",
    ]


def test_a_repair_is_reported_step_by_step() -> None:
    def seen(*names: str, repaired: bool = True) -> Projection:
        return log(segment(0, 1, 1, 8, *names, repaired=repaired), segment(1, 2, 8, None, "a", "c"))

    unrepaired, repaired = seen("a", "c", repaired=False), seen("a", "c")
    copying, copied, without = seen("a", "c", "+d"), seen("a", "c", "d"), seen("c", "d")
    assert said(unrepaired, repaired) == ["segment 0 of orders repaired"]
    assert said(repaired, copying) == ["segment 0 of orders: copying to d"]
    assert said(copying, copied) == ["segment 0 of orders: d has its copy"]
    assert said(copied, without) == ["segment 0 of orders: no longer on a"]
    assert said(repaired, without) == ["segment 0 of orders: d has its copy; no longer on a"]


def test_trims_losses_and_blocks_are_reported() -> None:
    assert log_news(OPEN, replace(OPEN, trim=1_500, gaps=(Gap(1_600, 1_700),))) == [
        EventText("info", "orders trimmed up to 1,500", log="orders"),
        EventText("bad", "orders: positions 1,600 to 1,699 declared lost", log="orders"),
    ]
    assert blocked_news("orders", blocked=True).level == "bad"
    assert blocked_news("orders", blocked=False).text == "orders continues"
