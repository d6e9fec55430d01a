"""What happened, in words: a pure function of what was seen before and what is seen now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from trunkline.dashboard.views import Cluster, Health, Level, Log, Node, Said, Segment
from trunkline.plural import plural

LISTED_MAX = 8  # names in one sentence
NEWS_MAX = 50  # sentences from one look; beyond them, a number


def listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:LISTED_MAX])
    return f"{shown} and {len(names) - LISTED_MAX} more" if len(names) > LISTED_MAX else shown


def named(node: str) -> str:
    return node if node.lower().startswith("node") else f"node {node}"


def duration(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def limited(news: list[Said]) -> list[Said]:
    if len(news) <= NEWS_MAX:
        return news
    return [
        *news[:NEWS_MAX],
        Said("info", f"{plural(len(news) - NEWS_MAX, 'more change')} at once; the page shows what is now"),
    ]


# ------------------------------------------------------------------------------------------------------------- cluster


def cluster_news(before: Cluster, now: Cluster) -> list[Said]:
    """The differences between two looks, in the order of cause and effect: coordinator, nodes, logs."""
    news: list[Said] = []
    if before.active_coordinator != now.active_coordinator and now.active_coordinator:
        news.append(Said("info", f"coordinator {now.active_coordinator} is active"))
    old_nodes = {node.name: node for node in before.nodes}
    for node in now.nodes:
        news += _node_news(old_nodes.get(node.name), node)
    old_logs, logs = {log.name: log for log in before.logs}, {log.name: log for log in now.logs}
    for log in now.logs:
        news += _log_news(old_logs.get(log.name), log)
    news += [Said("warn", f"log {name} deleted") for name in old_logs if name not in logs]
    return limited(news)


def _node_news(before: Node | None, now: Node) -> Iterator[Said]:
    if before is None:
        yield Said("good", f"{named(now.name)} joined at {now.address}")
        return
    if before.live and not now.live:
        yield Said("bad", f"{named(now.name)} lost")
    elif now.live and not before.live:
        yield Said("good", f"{named(now.name)} is back")
    elif before.start != now.start:
        yield Said("warn", f"{named(now.name)} was restarted")
    if before.state != now.state:
        states = {"rw": "is used again", "draining": "is being drained", "gone": "is gone for ever"}
        yield Said("warn" if now.state != "rw" else "good", f"{named(now.name)} {states.get(now.state, now.state)}")
    if before.start == now.start and now.damaged > before.damaged:
        yield Said("bad", f"{named(now.name)} cannot read some of what it stored; it is read from other copies")
    if before.disk is not None and now.disk is not None and before.disk.full != now.disk.full:
        is_full = now.disk.full
        words = "the disk is full" if is_full else "has room again"
        yield Said("bad" if is_full else "good", f"{named(now.name)}: {words}")


# ---------------------------------------------------------------------------------------------------------------- logs


def _log_news(before: Log | None, now: Log) -> Iterator[Said]:
    if before is None:
        copies = f"{now.replicas} {'copy' if now.replicas == 1 else 'copies'}"
        where = f", on {nodes_of(now.segments[-1])}" if now.segments else ""
        yield Said("good", f"log {now.name} created: {now.policy}, {copies}{where}")
        return
    old = {segment.index: segment for segment in before.segments}
    newer = {segment.index: segment for segment in now.segments}
    for segment in now.segments:
        known = old.get(segment.index)
        if known is not None:
            yield from _segment_news(now, known, segment, newer.get(segment.index + 1))
        elif old and segment.index > max(old):
            yield from _new_segment_news(now, segment, newer.get(segment.index - 1), old)
    if now.trim > before.trim:
        yield Said("info", f"{now.name} trimmed up to {now.trim:,}")
    for first, end in now.gaps[len(before.gaps) :]:
        yield Said("bad", f"{now.name}: positions {first:,} to {end - 1:,} declared lost")
    if now.blocked and not before.blocked:
        yield Said("bad", f"{now.name} is blocked: it waits for a member of its open segment to come back")
    elif before.blocked and not now.blocked:
        yield Said("good", f"{now.name} goes on")


def _segment_news(log: Log, before: Segment, now: Segment, following: Segment | None) -> Iterator[Said]:
    which = f"segment {now.index} of {log.name}"
    if before.end is None and now.end is not None:
        sealed = f"{which} sealed at {now.end:,}"
        if following is None:
            yield Said("info", f"{sealed}; the log is read-only")
        else:
            yield Said("warn", f"{sealed}; {_opening(following)}")
    elif now.repaired and not before.repaired:
        yield Said("good", f"{which} repaired")
    moves = list(_moves(before, now))
    if moves:
        level: Level = "good" if any("has its copy" in move for move in moves) else "info"
        yield Said(level, f"{which}: {'; '.join(moves)}")


def _moves(before: Segment, now: Segment) -> Iterator[str]:
    """Copies that come and go."""
    old = {member.node: member for group in before.groups for member in group}
    members = {member.node: member for group in now.groups for member in group}
    for node, member in members.items():
        if member.joining and node not in old:
            yield f"copying to {node}"
        elif not member.joining and (node not in old or old[node].joining):
            yield f"{node} has its copy"
    gone = [node for node in old if node not in members]
    if gone and before.end is not None:  # with a seal, that is what it was for
        yield f"no longer on {listed(gone)}"


def _new_segment_news(log: Log, now: Segment, previous: Segment | None, old: Mapping[int, Segment]) -> Iterator[Said]:
    """One that nobody has seen before; the seal of the one before it names it already if that was open."""
    was_open = previous is not None and previous.index in old and old[previous.index].end is None
    if was_open:
        return
    if previous is not None and previous.index in old:
        yield Said("good", f"{log.name} reopened: {_opening(now)}")
    else:  # several came between two looks
        boundary = f"segment {now.index - 1} of {log.name} sealed at {now.base:,}; "
        yield Said("warn", boundary + _opening(now))


def _opening(segment: Segment) -> str:
    return f"segment {segment.index} on {nodes_of(segment)} (epoch {segment.epoch})"


def nodes_of(segment: Segment) -> str:
    """Groups with their nodes from head to tail."""
    return " / ".join(listed([member.node for member in group]) for group in segment.groups)


# -------------------------------------------------------------------------------------------------------------- health


def health(cluster: Cluster, lost_at_s: Mapping[str, float], now_s: float) -> Health:
    """``lost_at_s``: when a node was seen to be lost; one that was lost before anybody looked is not in it."""
    bad = [*_node_problems(cluster, lost_at_s, now_s), *_log_problems(cluster)]
    warnings = list(_thin_logs(cluster))
    if bad:
        return Health("bad", bad[0], (*bad[1:], *warnings))
    if warnings:
        return Health("warn", warnings[0], tuple(warnings[1:]))
    count = sum(node.state != "gone" for node in cluster.nodes)
    if count == 0:
        return Health("warn", "no nodes yet")
    return Health("good", "the only node is live" if count == 1 else f"all {count} nodes live")


def _node_problems(cluster: Cluster, lost_at_s: Mapping[str, float], now_s: float) -> Iterator[str]:
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


def _log_problems(cluster: Cluster) -> Iterator[str]:
    for log in cluster.logs:
        if log.blocked:
            yield f"log {log.name} is blocked"
        if log.gaps:
            yield f"log {log.name} has lost positions"


def _thin_logs(cluster: Cluster) -> Iterator[str]:
    """Logs with fewer copies somewhere than they are meant to have."""
    for log in cluster.logs:
        fewest = min((copies(segment) for segment in log.segments), default=log.replicas)
        if fewest < log.replicas:
            yield f"log {log.name} has {fewest} of {log.replicas} copies"


def copies(segment: Segment) -> int:
    """Of the group that has the fewest; those that are still being made do not count."""
    return min((sum(not member.joining for member in group) for group in segment.groups), default=0)
