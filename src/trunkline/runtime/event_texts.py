"""The texts of events: pure functions of the metadata before and after a change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct

from trunkline.core.messages import NodeInfo, NodeState
from trunkline.core.projection import Projection, Segment
from trunkline.core.space import Space
from trunkline.core.status import Level

LISTED_MAX: Final = 8  # names in one sentence
STATES: Final = {
    NodeState.RW: "is used again",
    NodeState.DRAINING: "is being drained",
    NodeState.GONE: "was removed",
}


class EventText(Struct, frozen=True):
    """``node``: the event reports whether that node is ``live``; ``log``: the event is about that log."""

    level: Level
    text: str
    log: str = ""
    node: str = ""
    live: bool = True


def listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:LISTED_MAX])
    return f"{shown} and {len(names) - LISTED_MAX} more" if len(names) > LISTED_MAX else shown


def named(name: str, kind: str = "node") -> str:
    return name if name.lower().startswith(kind) else f"{kind} {name}"


# --------------------------------------------------------------------------------------------------------------- nodes


def node_news(before: NodeInfo | None, now: NodeInfo) -> Iterator[EventText]:
    name = now.node
    if before is None:
        yield EventText("good", f"{named(name)} joined at {now.address}", node=name)
        return
    if before.live and not now.live:
        yield EventText("bad", f"{named(name)} lost", node=name, live=False)
    elif now.live and not before.live:
        yield EventText("good", f"{named(name)} is back", node=name)
    elif before.start != now.start:
        yield EventText("warn", f"{named(name)} was restarted", node=name, live=now.live)
    if before.state != now.state:
        yield EventText("good" if now.state is NodeState.RW else "warn", f"{named(name)} {STATES[now.state]}")
    if before.start == now.start and now.damaged > before.damaged:
        yield EventText("bad", f"{named(name)} cannot read some of its data; other replicas serve it")
    was_full, is_full = before.space >= Space.FULL, now.space >= Space.FULL
    if was_full != is_full and now.live:
        words = "the disk is full" if is_full else "has room again"
        yield EventText("bad" if is_full else "good", f"{named(name)}: {words}")


def forgotten(node: str) -> EventText:
    return EventText("info", f"{named(node)} was deleted from the registry", node=node)


# ---------------------------------------------------------------------------------------------------------------- logs


def log_news(before: Projection | None, now: Projection) -> list[EventText]:
    return [EventText(level, text, log=now.log) for level, text in _log_news(before, now)]


def blocked_news(log: str, *, blocked: bool) -> EventText:
    if blocked:
        words = f"{log} is blocked: it waits for a replica of its open segment to come back"
        return EventText("bad", words, log=log)
    return EventText("good", f"{log} continues", log=log)


Sentence = tuple[Level, str]


def _log_news(before: Projection | None, now: Projection) -> Iterator[Sentence]:
    if now.deleted:
        if before is not None and not before.deleted:
            yield "warn", f"log {now.log} deleted"
        return
    if before is None or before.deleted:
        replicas = now.settings.replicas
        copies = f"{replicas} {'copy' if replicas == 1 else 'copies'}"
        first = now.segments[0]
        yield "good", f"log {now.log} created: {now.settings.policy.value}, {copies}, on {nodes_of(first)}"
        yield from _later_segments_news(now)
        return
    yield from _segments_news(before, now)
    if now.trim > before.trim:
        yield "info", f"{now.log} trimmed up to {now.trim:,}"
    for gap in now.gaps[len(before.gaps) :]:
        yield "bad", f"{now.log}: positions {gap.first:,} to {gap.end - 1:,} declared lost"


def _later_segments_news(now: Projection) -> Iterator[Sentence]:
    """What happened to a log between its creation and the first read of it."""
    for segment in now.segments[1:]:
        yield from _new_segment_news(now.log, segment, None, {})
    if now.last.end is not None:
        yield "info", f"segment {now.last.index} of {now.log} sealed at {now.last.end:,}; the log is read-only"


def _segments_news(before: Projection, now: Projection) -> Iterator[Sentence]:
    old = {segment.index: segment for segment in before.segments}
    newer = {segment.index: segment for segment in now.segments}
    for segment in now.segments:
        known = old.get(segment.index)
        if known == segment:
            continue
        if known is not None:
            yield from _segment_news(now.log, known, segment, newer.get(segment.index + 1))
        elif segment.index > before.last.index:
            yield from _new_segment_news(now.log, segment, newer.get(segment.index - 1), old)


def _segment_news(log: str, before: Segment, now: Segment, following: Segment | None) -> Iterator[Sentence]:
    which = f"segment {now.index} of {log}"
    if before.end is None and now.end is not None:
        sealed = f"{which} sealed at {now.end:,}"
        if following is None:
            yield "info", f"{sealed}; the log is read-only"
        else:
            yield "warn", f"{sealed}; {_opening(following)}"
    elif now.repaired and not before.repaired:
        yield "good", f"{which} repaired"
    moves = list(_moves(before, now))
    if moves:
        yield "good" if any("has its copy" in move for move in moves) else "info", f"{which}: {'; '.join(moves)}"


def _moves(before: Segment, now: Segment) -> Iterator[str]:
    """Copies that were added or removed."""
    old = {member.node: member for member in before.members()}
    members = {member.node: member for member in now.members()}
    for node, member in members.items():
        if member.joining and node not in old:
            yield f"copying to {node}"
        elif not member.joining and (node not in old or old[node].joining):
            yield f"{node} has its copy"
    removed = [node for node in old if node not in members]
    if removed and before.end is not None:  # a seal removes them on purpose
        yield f"no longer on {listed(removed)}"


def _new_segment_news(
    log: str, now: Segment, previous: Segment | None, old: Mapping[int, Segment]
) -> Iterator[Sentence]:
    """A new segment; the seal of an open segment before it has already named it."""
    known = old.get(previous.index) if previous is not None else None
    if known is not None and known.end is None:
        return
    if known is not None:
        yield "good", f"{log} reopened: {_opening(now)}"
    else:  # several were added since the last read
        yield "warn", f"segment {now.index - 1} of {log} sealed at {now.base:,}; {_opening(now)}"


def _opening(segment: Segment) -> str:
    return f"segment {segment.index} on {nodes_of(segment)} (epoch {segment.epoch})"


def nodes_of(segment: Segment) -> str:
    """Groups with their nodes from head to tail."""
    return " / ".join(listed([member.node for member in group]) for group in segment.groups[:LISTED_MAX])
