"""What happened between two looks, in words."""

from __future__ import annotations

from msgspec.structs import replace

from trunkline.dashboard.views import Cluster, Disk, Health, Log, Member, Node, Said, Segment
from trunkline.dashboard.words import NEWS_MAX, cluster_news, duration, health

DISK = Disk(bytes_used=10, bytes_free=90, full=False, streams=1, sync="always")


def node(name: str, *, live: bool = True, start: int = 1) -> Node:
    return Node(name, f"{name}:1", "", "rw", live, start, damaged=0, disk=DISK if live else None)


def members(*names: str) -> tuple[tuple[Member, ...], ...]:
    """``+c`` is being copied."""
    return (tuple(Member(name.lstrip("+"), name.startswith("+")) for name in names),)


def segment(index: int, epoch: int, base: int, end: int | None, *names: str, repaired: bool = True) -> Segment:
    return Segment(index, epoch, base, end, repaired and end is not None, names[0].lstrip("+"), members(*names))


def log(*segments: Segment, name: str = "orders", epoch: int = 1) -> Log:
    return Log(name, "chain", 3, epoch, 0, segments=segments, segments_total=len(segments))


OPEN = segment(0, 1, 1, None, "a", "b", "c")
BEFORE = Cluster("id", "k", True, (node("a"), node("b"), node("c")), (log(OPEN),))


def texts(before: Cluster, now: Cluster) -> list[str]:
    return [said.text for said in cluster_news(before, now)]


def test_nothing_happened_between_equal_looks() -> None:
    assert cluster_news(BEFORE, BEFORE) == []


def test_a_lost_node_is_told_before_the_seal_that_follows_from_it() -> None:
    sealed = log(segment(4, 3, 1, 10_231, "a", "c"), segment(5, 7, 10_231, None, "a", "c", "d"))
    before = replace(BEFORE, logs=(log(segment(4, 3, 1, None, "a", "b", "c")),))
    now = replace(BEFORE, nodes=(node("a"), node("b", live=False), node("c")), logs=(sealed,))
    assert cluster_news(before, now) == [
        Said("bad", "node b lost"),
        Said("warn", "segment 4 of orders sealed at 10,231; segment 5 on a, c, d (epoch 7)"),
    ]


def test_a_node_comes_back_restarts_joins_and_is_drained() -> None:
    lost = replace(BEFORE, nodes=(node("a", live=False), node("b")))
    now = replace(BEFORE, nodes=(node("a", start=2), replace(node("b"), state="draining"), node("d")))
    assert texts(lost, now) == ["node a is back", "node b is being drained", "node d joined at d:1"]
    assert texts(BEFORE, replace(BEFORE, nodes=(node("a", start=2), node("b"), node("c")))) == ["node a was restarted"]


def test_a_name_that_says_node_already_is_not_told_twice() -> None:
    before = replace(BEFORE, nodes=(node("node7"),))
    assert texts(before, replace(before, nodes=(node("node7", live=False),))) == ["node7 lost"]


def test_a_full_disk_and_damage_are_told_once() -> None:
    full = replace(node("a"), disk=replace(DISK, full=True), damaged=1)
    now = replace(BEFORE, nodes=(full, node("b"), node("c")))
    assert texts(BEFORE, now) == [
        "node a cannot read some of what it stored; it is read from other copies",
        "node a: the disk is full",
    ]
    assert texts(now, now) == []
    assert texts(now, replace(now, nodes=(replace(full, disk=DISK), node("b"), node("c")))) == [
        "node a: has room again"
    ]


def test_logs_come_and_go() -> None:
    now = replace(BEFORE, logs=(log(OPEN, name="events"),))
    assert texts(BEFORE, now) == ["log events created: chain, 3 copies, on a, b, c", "log orders deleted"]


def test_a_sealed_log_is_read_only_until_it_is_reopened() -> None:
    closed = replace(BEFORE, logs=(log(segment(0, 1, 1, 8, "a", "b", "c")),))
    assert texts(BEFORE, closed) == ["segment 0 of orders sealed at 8; the log is read-only"]
    opened = replace(BEFORE, logs=(log(segment(0, 1, 1, 8, "a", "b", "c"), segment(1, 3, 8, None, "b", "c")),))
    assert texts(closed, opened) == ["orders reopened: segment 1 on b, c (epoch 3)"]


def test_several_seals_between_two_looks_are_all_told() -> None:
    ended = (segment(0, 1, 1, 5, "a"), segment(1, 2, 5, 9, "b"), segment(2, 3, 9, None, "c"))
    assert texts(BEFORE, replace(BEFORE, logs=(log(*ended),))) == [
        "segment 0 of orders sealed at 5; segment 1 on b (epoch 2)",
        "segment 1 of orders sealed at 9; segment 2 on c (epoch 3)",
    ]


def test_a_repair_is_told_step_by_step() -> None:
    last = segment(1, 2, 8, None, "a", "c")

    def seen(first: Segment) -> Cluster:
        return replace(BEFORE, logs=(log(first, last),))

    unrepaired = seen(segment(0, 1, 1, 8, "a", "c", repaired=False))
    repaired = seen(segment(0, 1, 1, 8, "a", "c"))
    copying = seen(segment(0, 1, 1, 8, "a", "c", "+d"))
    copied = seen(segment(0, 1, 1, 8, "a", "c", "d"))
    without = seen(segment(0, 1, 1, 8, "c", "d"))
    assert texts(unrepaired, repaired) == ["segment 0 of orders repaired"]
    assert texts(repaired, copying) == ["segment 0 of orders: copying to d"]
    assert texts(copying, copied) == ["segment 0 of orders: d has its copy"]
    assert texts(copied, without) == ["segment 0 of orders: no longer on a"]
    assert texts(repaired, without) == ["segment 0 of orders: d has its copy; no longer on a"]


def test_trims_losses_and_blocks_are_told() -> None:
    now = replace(BEFORE, logs=(replace(log(OPEN), trim=1_500, gaps=((1_600, 1_700),), blocked=True),))
    assert cluster_news(BEFORE, now) == [
        Said("info", "orders trimmed up to 1,500"),
        Said("bad", "orders: positions 1,600 to 1,699 declared lost"),
        Said("bad", "orders is blocked: it waits for a member of its open segment to come back"),
    ]
    assert texts(now, replace(now, logs=(replace(now.logs[0], blocked=False),))) == ["orders goes on"]


def test_another_coordinator_is_told() -> None:
    before = replace(BEFORE, active_coordinator="k")
    assert texts(before, replace(BEFORE, active_coordinator="l")) == ["coordinator l is active"]


def test_a_cluster_with_more_logs_than_can_be_told_makes_no_news_of_segments() -> None:
    bare = replace(BEFORE, logs=(log(),))
    assert texts(BEFORE, bare) == []
    assert texts(bare, BEFORE) == []


# -------------------------------------------------------------------------------------------------------------- health


def test_all_is_well() -> None:
    assert health(BEFORE, {}, 0) == Health("good", "all 3 nodes live")
    assert health(replace(BEFORE, nodes=(node("a"),)), {}, 0) == Health("good", "the only node is live")
    assert health(replace(BEFORE, nodes=()), {}, 0).words == "no nodes yet"


def test_the_worst_comes_first_and_says_since_when() -> None:
    thin = log(segment(0, 1, 1, 8, "a", "c", "+d"), segment(1, 2, 8, None, "a", "c", "d"))
    now = replace(BEFORE, nodes=(node("a"), node("b", live=False), node("c", live=False)), logs=(thin,))
    assert health(now, {"b": 96.0}, 100.0) == Health(
        "bad", "node b lost 4 s ago", ("node c lost", "log orders has 2 of 3 copies")
    )
    assert health(replace(now, nodes=BEFORE.nodes), {}, 0) == Health("warn", "log orders has 2 of 3 copies")


def test_a_node_that_is_gone_for_ever_is_not_missed() -> None:
    gone = replace(node("b", live=False), state="gone")
    assert health(replace(BEFORE, nodes=(node("a"), gone, node("c"))), {}, 0).words == "all 2 nodes live"


def test_a_silent_and_a_full_node_are_problems() -> None:
    silent, full = replace(node("a"), disk=None), replace(node("b"), disk=replace(DISK, full=True), damaged=2)
    told = health(replace(BEFORE, nodes=(silent, full)), {}, 0)
    assert (told.words, *told.more) == ("node a does not answer", "node b is full", "node b found damage on its disk")


def test_times_are_told_in_the_unit_that_suits_them() -> None:
    told = [duration(seconds) for seconds in (0, 4.4, 119, 120, 7_200, 200_000)]
    assert told == ["0 s", "4 s", "119 s", "2 min", "2 h", "2 d"]


def test_a_look_at_which_everything_changed_is_cut() -> None:
    many = tuple(log(OPEN, name=f"log{number}") for number in range(NEWS_MAX + 5))
    news = texts(replace(BEFORE, logs=()), replace(BEFORE, logs=many))
    assert len(news) == NEWS_MAX + 1
    assert news[-1] == "5 more changes at once; the page shows what is now"
