"""The health of a cluster, in words. All of it is pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trunkline.dashboard.views import ClusterHealth, FeedLine, ShownCluster, ShownSegment
from trunkline.plural import plural

NEWS_MAX = 50  # sentences of one poll; beyond them, a number
NAMED_MAX = 3  # logs in one sentence


def named(node: str) -> str:
    return node if node.lower().startswith("node") else f"node {node}"


def duration(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def limited(news: list[FeedLine]) -> list[FeedLine]:
    if len(news) <= NEWS_MAX:
        return news
    return [
        *news[:NEWS_MAX],
        FeedLine("info", f"{plural(len(news) - NEWS_MAX, 'more change')} at once; the page shows the result"),
    ]


def health(cluster: ShownCluster, lost_at_s: Mapping[str, float], now_s: float) -> ClusterHealth:
    """``lost_at_s``: when nodes were lost, if that is known."""
    bad = [*_node_problems(cluster, lost_at_s, now_s), *_log_problems(cluster)]
    warnings = list(_thin_logs(cluster))
    if bad:
        return ClusterHealth("bad", bad[0], (*bad[1:], *warnings))
    if warnings:
        return ClusterHealth("warn", warnings[0], tuple(warnings[1:]))
    count = sum(node.state != "gone" for node in cluster.nodes)
    if count == 0:
        return ClusterHealth("warn", "no nodes yet")
    return ClusterHealth("good", "the only node is live" if count == 1 else f"all {count} nodes live")


def _node_problems(cluster: ShownCluster, lost_at_s: Mapping[str, float], now_s: float) -> Iterator[str]:
    for node in cluster.nodes:
        if node.state == "gone":
            continue
        if not node.live:
            seen = lost_at_s.get(node.name)
            yield f"{named(node.name)} lost" + (f" {duration(now_s - seen)} ago" if seen is not None else "")
        elif node.disk is None:
            yield f"{named(node.name)} does not answer"
        elif node.disk.full:
            yield f"{named(node.name)} is full"
        if node.live and node.damaged:
            yield f"{named(node.name)} found damage on its disk"


def _log_problems(cluster: ShownCluster) -> Iterator[str]:
    yield from _of_logs([log.name for log in cluster.logs if log.blocked], "is blocked", "are blocked")
    lost = [log.name for log in cluster.logs if log.gaps]
    yield from _of_logs(lost, "has lost positions", "have lost positions")


def _thin_logs(cluster: ShownCluster) -> Iterator[str]:
    """Logs with a segment that has too few copies."""
    thin: dict[str, list[str]] = {}
    for log in cluster.logs:
        fewest = min((copies(segment) for segment in log.segments), default=log.replicas)
        if fewest < log.replicas:
            thin.setdefault(f"{fewest} of {log.replicas} copies", []).append(log.name)
    for words, names in sorted(thin.items()):
        yield from _of_logs(names, f"has {words}", f"have {words}")


def _of_logs(names: list[str], of_one: str, of_many: str) -> Iterator[str]:
    """A sentence for each of a few logs, or one for many."""
    if len(names) <= NAMED_MAX:
        yield from (f"log {name} {of_one}" for name in names)
    else:
        yield f"{len(names):,} logs {of_many}: {', '.join(names[:NAMED_MAX])} and {len(names) - NAMED_MAX:,} more"


def copies(segment: ShownSegment) -> int:
    """Complete replicas of the group that has the fewest."""
    return min((sum(not member.joining for member in group) for group in segment.groups), default=0)
