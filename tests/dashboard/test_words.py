"""How a cluster is, in words."""

from __future__ import annotations

from msgspec.structs import replace

from trunkline.dashboard.views import (
    ClusterHealth,
    FeedLine,
    ShownCluster,
    ShownDisk,
    ShownLog,
    ShownMember,
    ShownNode,
    ShownSegment,
)
from trunkline.dashboard.words import NEWS_MAX, duration, health, limited

DISK = ShownDisk(bytes_used=10, bytes_free=90, full=False, streams=1, sync="always")


def node(name: str, *, live: bool = True, start: int = 1) -> ShownNode:
    return ShownNode(name, f"{name}:1", "", "rw", live, start, damaged=0, disk=DISK if live else None)


def members(*names: str) -> tuple[tuple[ShownMember, ...], ...]:
    """``+c`` is being copied."""
    return (tuple(ShownMember(name.lstrip("+"), name.startswith("+")) for name in names),)


def segment(index: int, epoch: int, base: int, end: int | None, *names: str, repaired: bool = True) -> ShownSegment:
    return ShownSegment(index, epoch, base, end, repaired and end is not None, names[0].lstrip("+"), members(*names))


def log(*segments: ShownSegment, name: str = "orders", epoch: int = 1) -> ShownLog:
    return ShownLog(name, "chain", 3, epoch, 0, segments=segments, segments_total=len(segments))


OPEN = segment(0, 1, 1, None, "a", "b", "c")
BEFORE = ShownCluster("id", "k", True, (node("a"), node("b"), node("c")), (log(OPEN),))


def test_all_is_well() -> None:
    assert health(BEFORE, {}, 0) == ClusterHealth("good", "all 3 nodes live")
    assert health(replace(BEFORE, nodes=(node("a"),)), {}, 0) == ClusterHealth("good", "the only node is live")
    assert health(replace(BEFORE, nodes=()), {}, 0).words == "no nodes yet"


def test_the_worst_comes_first_and_says_since_when() -> None:
    thin = log(segment(0, 1, 1, 8, "a", "c", "+d"), segment(1, 2, 8, None, "a", "c", "d"))
    now = replace(BEFORE, nodes=(node("a"), node("b", live=False), node("c", live=False)), logs=(thin,))
    assert health(now, {"b": 96.0}, 100.0) == ClusterHealth(
        "bad", "node b lost 4 s ago", ("node c lost", "log orders has 2 of 3 copies")
    )
    assert health(replace(now, nodes=BEFORE.nodes), {}, 0) == ClusterHealth("warn", "log orders has 2 of 3 copies")


def test_a_removed_node_is_not_reported_as_missing() -> None:
    gone = replace(node("b", live=False), state="gone")
    assert health(replace(BEFORE, nodes=(node("a"), gone, node("c"))), {}, 0).words == "all 2 nodes live"


def test_a_silent_and_a_full_node_are_problems() -> None:
    silent, full = replace(node("a"), disk=None), replace(node("b"), disk=replace(DISK, full=True), damaged=2)
    found = health(replace(BEFORE, nodes=(silent, full)), {}, 0)
    assert (found.words, *found.more) == ("node a does not answer", "node b is full", "node b found damage on its disk")


def test_durations_have_a_suitable_unit() -> None:
    found = [duration(seconds) for seconds in (0, 4.4, 119, 120, 7_200, 200_000)]
    assert found == ["0 s", "4 s", "119 s", "2 min", "2 h", "2 d"]


def test_many_logs_in_the_same_trouble_are_one_sentence() -> None:
    thin = tuple(log(segment(0, 1, 1, None, "a", "b"), name=f"log{number}") for number in range(5_000))
    assert health(replace(BEFORE, logs=thin[:3]), {}, 0).more == (
        "log log1 has 2 of 3 copies",
        "log log2 has 2 of 3 copies",
    )
    found = health(replace(BEFORE, logs=thin), {}, 0)
    assert (found.words, found.more) == ("5,000 logs have 2 of 3 copies: log0, log1, log2 and 4,997 more", ())


def test_the_news_of_one_poll_are_limited() -> None:
    news = limited([FeedLine("info", str(number)) for number in range(NEWS_MAX + 5)])
    assert len(news) == NEWS_MAX + 1
    assert news[-1].text == "5 more changes at once; the page shows the result"
