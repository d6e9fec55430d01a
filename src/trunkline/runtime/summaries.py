"""Summaries of logs for status and metrics: computed once for each projection, however often they are read.

The status of thousands of logs, or of a log with thousands of segments, then costs no more than encoding it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from trunkline.core.projection import Projection, Segment
from trunkline.core.status import ClusterStatus, LogStatus, copies_of, log_status, short_segments

SEGMENTS_SHOWN: Final = 20  # the last ones of a log
SEGMENTS_BYTES_MAX: Final = 3 << 20  # of logs that are listed with segments; beyond it segments are left out
STATUS_BYTES_MAX: Final = 12 << 20  # a larger status does not fit into the head of a packet
PROBLEMS_SHOWN: Final = 20  # segments with missing copies, oldest first; the others are counted


class Summary(Struct, frozen=True):
    projection: Projection
    named: Mapping[str, int]  # how many streams the log has on each node
    fewer_copies: int  # segments that have fewer copies than they should
    no_redundancy: int  # segments with a single copy left
    status: LogStatus  # without what only the duties know


class Summaries:
    """A cache with one entry for each log."""

    def __init__(self) -> None:
        self._known: dict[str, Summary] = {}

    def of(self, projection: Projection) -> Summary:
        known = self._known.get(projection.log)
        if known is None or known.projection is not projection:
            known = self._known[projection.log] = summary_of(projection)
        return known

    def of_all(self, projections: Iterable[Projection]) -> list[Summary]:
        """Also evicts all other logs."""
        found = [self.of(projection) for projection in projections]
        if len(found) < len(self._known):
            self._known = {each.projection.log: each for each in found}
        return found


def summary_of(view: Projection) -> Summary:
    problems = short_segments(view)
    return Summary(
        projection=view,
        named=Counter(member.node for segment in view.segments for member in segment.members()),
        fewer_copies=len(problems),
        no_redundancy=sum(copies_of(segment) == 1 for segment in problems),  # not where one copy is all that is wanted
        status=log_status(view, shown_segments(view, problems)),
    )


def shown_segments(view: Projection, problems: list[Segment]) -> tuple[Segment, ...]:
    """The last ones, the first of those with problems, and one for each node that would not be named otherwise.

    An operator decides by the named nodes which one may be removed, so none that holds data may be missing.
    """
    shown = {segment.index: segment for segment in (*problems[:PROBLEMS_SHOWN], *view.segments[-SEGMENTS_SHOWN:])}
    named = {member.node for segment in shown.values() for member in segment.members()}
    for segment in reversed(view.segments):
        nodes = {member.node for member in segment.members()}
        if not nodes <= named:
            shown[segment.index] = segment
            named |= nodes
    return tuple(shown[index] for index in sorted(shown))


def with_logs(status: ClusterStatus, logs: list[LogStatus]) -> ClusterStatus:
    """The status with as many logs as fit, those with problems first.

    Beyond one limit logs lose their segments (unset, not empty: no reader may take that for a log without segments),
    beyond another they are only counted.
    """
    fitting: list[LogStatus] = []
    total_bytes = 0
    for log in sorted(logs, key=lambda log: not _has_problems(log)):
        size = _encoded_bytes(log)
        if total_bytes + size > SEGMENTS_BYTES_MAX:
            log = replace(log, segments=UNSET)
            size = _encoded_bytes(log)
        total_bytes += size
        if total_bytes > STATUS_BYTES_MAX:
            break
        fitting.append(log)
    fitting.sort(key=lambda log: log.name)
    return replace(status, logs=tuple(fitting), logs_left_out=len(logs) - len(fitting))


def _has_problems(log: LogStatus) -> bool:
    return bool(log.blocked or log.refused or log.problems_total or log.gaps)


def _encoded_bytes(log: LogStatus) -> int:
    return len(msgspec.json.encode(log))
