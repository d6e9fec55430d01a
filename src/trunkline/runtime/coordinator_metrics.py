"""The metrics of a coordinator, and whether it is ready.

Only the active coordinator shows metrics of logs, from the projections that its duties have read anyway: they cost no
read, and no log is counted twice where there are several coordinators.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from trunkline.core.duties import CopyToJoiner, RepairSegment
from trunkline.core.messages import NodeInfo, NodeState
from trunkline.core.projection import Projection
from trunkline.metadata.service import ServiceCounts
from trunkline.observing.metrics import (
    COMMON,
    Labelled,
    MetricSpec,
    MetricTable,
    Value,
    Values,
    by_label,
    common_values,
)
from trunkline.observing.readiness import Readiness
from trunkline.runtime.duties import LogDuties
from trunkline.runtime.summaries import Summaries, Summary

LOGS_NAMED_MAX: Final = 100  # logs in trouble with series of their own; the sums count all
REPAIRS: Final = {each.__name__ for each in (RepairSegment, CopyToJoiner)}
TROUBLES: Final = ("fewer_copies", "no_redundancy", "blocked", "lost", "broken")
METRICS: Final = (
    *COMMON,
    MetricSpec("ready", "gauge", "1 if `/readyz` answers 200"),
    MetricSpec("active", "gauge", "1 for the coordinator that performs the duties"),
    MetricSpec("store_up", "gauge", "1 if the metadata store answers"),
    MetricSpec("nodes", "gauge", "registered nodes, by state: rw, draining, gone", ("state",)),
    MetricSpec("live_nodes", "gauge", "nodes whose lease holds"),
    MetricSpec("logs", "gauge", "logs, without deleted ones; only the active coordinator has metrics of logs"),
    MetricSpec("segments", "gauge", "segments of all logs"),
    MetricSpec("open_segments", "gauge", "logs that accept appends; the others are read-only"),
    MetricSpec("repairs", "gauge", "logs that are being repaired"),
    MetricSpec("logs_in_trouble", "gauge", "logs that `status` warns of, by what is wrong", ("trouble",)),
    MetricSpec(
        "log_trouble", "gauge", f"1 for each log in trouble, of the first {LOGS_NAMED_MAX} by name", ("log", "trouble")
    ),
    MetricSpec("reconfigurations_total", "counter", "reconfigurations through this coordinator"),
    MetricSpec("requests_total", "counter", "requests received over connections, by kind", ("kind",)),
    MetricSpec(
        "register_total",
        "counter",
        "requests to the metadata, its own included: answered, unanswered, dropped, malformed, delayed",
        ("outcome",),
    ),
    MetricSpec("connections", "gauge", "open connections"),
    MetricSpec("connections_refused_total", "counter", "handshakes that failed: version, cluster, token, or too many"),
)
TABLE: Final = MetricTable("trunkline_coordinator_", METRICS)


class LogView(Struct, frozen=True):
    """One log, as its duties last read it."""

    summary: Summary
    duty: str
    blocked: bool
    broken: bool

    @property
    def projection(self) -> Projection:
        return self.summary.projection

    def troubles(self) -> list[str]:
        """What ``trunkline status`` warns about; ``broken``: a bug stopped the duties of this log."""
        narrow, single = self.summary.fewer_copies, self.summary.no_redundancy
        found = {"no_redundancy"} if single else set()
        found |= {"fewer_copies"} if narrow > single else set()
        found |= {"blocked"} if self.blocked else set()
        found |= {"lost"} if self.projection.gaps else set()
        found |= {"broken"} if self.broken else set()
        return [each for each in TROUBLES if each in found]


class CoordinatorView(Struct, frozen=True):
    """The state of a coordinator at one moment. ``nodes`` is None if the store did not answer; ``store_error``: why."""

    active: bool
    active_coordinator: str
    nodes: tuple[NodeInfo, ...] | None
    store_error: str
    logs: tuple[LogView, ...]
    register: ServiceCounts
    requests: Mapping[str, int]
    reconfigurations: int
    connections: int
    connections_refused: int


def log_views(duties: Mapping[str, LogDuties], summaries: Summaries) -> tuple[LogView, ...]:
    """Of the logs that duties have read, without deleted ones."""
    found = [
        LogView(summaries.of(each.view), each.duty, each.blocked, each.failed)
        for each in duties.values()
        if each.view is not None and not each.view.deleted
    ]
    return tuple(sorted(found, key=lambda log: log.projection.log))


def coordinator_values(name: str, uptime_s: float, view: CoordinatorView | None) -> Values:
    """``view`` is None while the coordinator starts."""
    values = common_values(name, uptime_s)
    values["ready"] = coordinator_readiness(view).ready
    if view is not None:
        values |= _requests(view)
        values |= _nodes(view)
        values |= _logs(view.logs) if view.active else {}
    return values


def coordinator_readiness(view: CoordinatorView | None) -> Readiness:
    if view is None:
        return Readiness(("the coordinator is starting: it waits for its metadata store",))
    state = "active" if view.active else "standby"
    if view.store_error:
        return Readiness((f"the metadata store does not answer: {view.store_error}",), {"state": state})
    return Readiness((), {"state": state, "active_coordinator": view.active_coordinator})


def _requests(view: CoordinatorView) -> dict[str, Value]:
    outcomes = {name: float(getattr(view.register, name)) for name in view.register.__struct_fields__}
    return {
        "active": view.active,
        "store_up": not view.store_error,
        "reconfigurations_total": view.reconfigurations,
        "requests_total": by_label(view.requests),
        "register_total": by_label(outcomes),
        "connections": view.connections,
        "connections_refused_total": view.connections_refused,
    }


def _nodes(view: CoordinatorView) -> dict[str, Value]:
    if view.nodes is None:
        return {}
    nodes = [each for each in view.nodes if each.state is not NodeState.CLIENT]
    states = Counter(each.state for each in nodes)
    shown = {state.value: float(states[state]) for state in NodeState if state is not NodeState.CLIENT}
    return {"nodes": by_label(shown), "live_nodes": sum(each.live for each in nodes)}


def _logs(logs: tuple[LogView, ...]) -> dict[str, Value]:
    troubled = [(log.projection.log, log.troubles()) for log in logs]
    troubled = [(name, found) for name, found in troubled if found]
    sums = Counter(trouble for _, found in troubled for trouble in found)
    named = [Labelled((name, trouble), 1) for name, found in troubled[:LOGS_NAMED_MAX] for trouble in found]
    return {
        "logs": len(logs),
        "segments": sum(len(log.projection.segments) for log in logs),
        "open_segments": sum(log.projection.last.is_open for log in logs),
        "repairs": sum(log.duty in REPAIRS for log in logs),
        "logs_in_trouble": [Labelled((trouble,), sums[trouble]) for trouble in TROUBLES],
        "log_trouble": named,
    }
