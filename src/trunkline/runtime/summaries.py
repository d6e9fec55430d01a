"""What is told of a log: worked out once for each projection, however often somebody asks.

A status of thousands of logs, or of a log with thousands of segments, then costs no more than putting texts together.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from trunkline.core.projection import Projection, Segment

SEGMENTS_SHOWN: Final = 20  # the last ones of a log
SEGMENTS_BYTES_MAX: Final = 3 << 20  # of a status that is told with segments; beyond it they are left out
STATUS_BYTES_MAX: Final = 12 << 20  # a larger one does not fit into the head of a packet
PROBLEMS_SHOWN: Final = 20  # those with fewer copies than they should have, the oldest first; the others are counted


class Summary(Struct, frozen=True):
    """Of one log. ``text`` is an object in JSON without its closing brace, ``brief`` the same without segments."""

    projection: Projection
    named: Mapping[str, int]  # how many streams it has on each node
    fewer_copies: int  # segments that have fewer copies than they should
    no_redundancy: int  # segments of which there is one copy left
    text: bytes
    brief: bytes


class Summaries:
    """One for each log that somebody asked for; as many as there are logs."""

    def __init__(self) -> None:
        self._known: dict[str, Summary] = {}

    def of(self, projection: Projection) -> Summary:
        known = self._known.get(projection.log)
        if known is None or known.projection is not projection:
            known = self._known[projection.log] = summary_of(projection)
        return known

    def of_all(self, projections: Iterable[Projection]) -> list[Summary]:
        """And forget the logs that are not among them."""
        found = [self.of(projection) for projection in projections]
        if len(found) < len(self._known):
            self._known = {each.projection.log: each for each in found}
        return found


def summary_of(view: Projection) -> Summary:
    wanted = view.settings.replicas
    problems = [segment for segment in view.segments if 0 < copies_of(segment) < wanted]
    totals = {"segments_total": len(view.segments), "problems_total": len(problems)}
    facts = {**log_facts(replace(view, segments=shown_segments(view, problems))), **totals}
    return Summary(
        projection=view,
        named=Counter(member.node for segment in view.segments for member in segment.members()),
        fewer_copies=len(problems),
        no_redundancy=sum(copies_of(segment) == 1 for segment in problems),  # one copy that was asked for is no problem
        text=_opened(facts),
        brief=_opened({key: value for key, value in facts.items() if key != "segments"}),
    )


def _opened(facts: dict[str, Any]) -> bytes:
    return json.dumps(facts).encode()[:-1]


def copies_of(segment: Segment) -> int:
    """How many copies there are, of the part that has the fewest."""
    return min(len(segment.serving(group)) for group in segment.groups)


def shown_segments(view: Projection, problems: list[Segment]) -> tuple[Segment, ...]:
    """The last ones, the first of those with problems, and one for each node that would not be named otherwise.

    Whether a node may be removed is told from the nodes that are named, so none that keeps something may be missing.
    """
    shown = {segment.index: segment for segment in (*problems[:PROBLEMS_SHOWN], *view.segments[-SEGMENTS_SHOWN:])}
    named = {member.node for segment in shown.values() for member in segment.members()}
    for segment in reversed(view.segments):
        nodes = {member.node for member in segment.members()}
        if not nodes <= named:
            shown[segment.index] = segment
            named |= nodes
    return tuple(shown[index] for index in sorted(shown))


def log_facts(view: Projection) -> dict[str, Any]:
    """A projection in plain values, for status and descriptions."""
    return {
        "name": view.log,
        "policy": view.settings.policy.value,
        "replicas": view.settings.replicas,
        "min_replicas": view.settings.min_replicas,
        "epoch": view.epoch,
        "trim": view.trim,
        "deleted": view.deleted,
        "gaps": [[gap.first, gap.end] for gap in view.gaps],
        "segments": [
            {
                "index": segment.index,
                "epoch": segment.epoch,
                "base": segment.base,
                "end": segment.end,
                "repaired": segment.repaired,
                "owner": segment.owner.process,
                "groups": [
                    [{"node": m.node, "stream": m.stream, "joining": m.joining} for m in group]
                    for group in segment.groups
                ],
            }
            for segment in view.segments
        ],
    }


class LogState(Struct, frozen=True):
    """A log with what its duties say of it now."""

    summary: Summary
    blocked: bool
    duty: str
    refused: str = ""  # why its last change could not be stored

    @property
    def troubled(self) -> bool:
        return self.blocked or bool(self.refused) or self.summary.fewer_copies > 0 or bool(self.summary.projection.gaps)

    def told(self, *, segments: bool) -> bytes:
        text = self.summary.text if segments else self.summary.brief
        now = {"blocked": self.blocked, "duty": self.duty, "refused": self.refused}
        return b"%b, %b" % (text, json.dumps(now).encode()[1:])


def status_json(facts: dict[str, Any], logs: list[LogState]) -> bytes:
    """``facts`` with the ``logs``. Where there are too many, those in trouble come first: the others are told without
    segments (left out, not empty: nobody shall take that for no segments), and at last only counted.
    """
    texts: dict[str, bytes] = {}
    told_bytes = 0
    for log in sorted(logs, key=lambda log: not log.troubled):
        text = log.told(segments=told_bytes + len(log.summary.text) <= SEGMENTS_BYTES_MAX)
        told_bytes += len(text)
        if told_bytes > STATUS_BYTES_MAX:
            break
        texts[log.summary.projection.log] = text
    facts = {**facts, "logs_left_out": len(logs) - len(texts)}
    return b'%b, "logs": [%b]}' % (_opened(facts), b", ".join(texts[name] for name in sorted(texts)))
