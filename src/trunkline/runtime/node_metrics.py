"""The metrics of a node, and whether it is ready."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from trunkline.observing.metrics import COMMON, MetricSpec, MetricTable, Value, Values, by_label, common_values
from trunkline.observing.readiness import Readiness
from trunkline.runtime.node_counts import NodeCounts
from trunkline.storage.engine import EngineStatus

METRICS: Final = (
    *COMMON,
    MetricSpec("ready", "gauge", "1 if `/readyz` answers 200"),
    MetricSpec("registered", "gauge", "1 while its lease with a coordinator holds"),
    MetricSpec("entries_appended_total", "counter", "entries written to its disk, copies made by repairs included"),
    MetricSpec("bytes_appended_total", "counter", "their bytes, without headers"),
    MetricSpec("batches_appended_total", "counter", "their batches"),
    MetricSpec("entries_read_total", "counter", "entries sent to readers, and to nodes that copy them"),
    MetricSpec("bytes_read_total", "counter", "their bytes"),
    MetricSpec("batches_read_total", "counter", "their batches"),
    MetricSpec("fills_total", "counter", "holes that were filled"),
    MetricSpec("seals_total", "counter", "streams sealed: a segment ended, by a failure or by an operator"),
    MetricSpec("sync_seconds", "histogram", "group commits, from the request to the answer of the disk"),
    MetricSpec("unsynced_bytes", "gauge", "written, and not yet in a group commit"),
    MetricSpec("requests_total", "counter", "requests received, by kind", ("kind",)),
    MetricSpec("answers_total", "counter", "answers sent, refusals included"),
    MetricSpec("refused_total", "counter", "refused requests, by reason; most are part of a fail-over", ("reason",)),
    MetricSpec("connections", "gauge", "open connections"),
    MetricSpec("connections_refused_total", "counter", "handshakes that failed: version, cluster, token, or too many"),
    MetricSpec("violations_total", "counter", "requests and connections refused because a peer violated the protocol"),
    MetricSpec("disk_used_bytes", "gauge", "stored data"),
    MetricSpec("disk_free_bytes", "gauge", "free space of its file system, without the reserve"),
    MetricSpec("disk_full", "gauge", "1 while it refuses appends because only the reserve is left"),
    MetricSpec("streams", "gauge", "stored streams: one for each replica of a segment"),
    MetricSpec("extents", "gauge", "their files"),
    MetricSpec("damaged_streams", "gauge", "streams that have lost data and wait to be replaced"),
    MetricSpec("damage_found_total", "counter", "how often reading or scrubbing found damage since the start"),
    MetricSpec("scrubbed_bytes_total", "counter", "bytes that the scrubber has read"),
)
TABLE: Final = MetricTable("trunkline_node_", METRICS)


class NodeView(Struct, frozen=True):
    """The state of a node at one moment. ``counts`` is the node's own, not a copy."""

    engine: EngineStatus
    counts: NodeCounts
    registered: bool
    disk_silent: bool
    connections: int
    connections_refused: int
    violations: int
    damaged_streams: int
    damage_found: int


def node_values(name: str, uptime_s: float, view: NodeView | None) -> Values:
    """``view`` is None while the node starts."""
    values = common_values(name, uptime_s)
    values["ready"] = node_readiness(view).ready
    if view is not None:
        values |= _counters(view.counts)
        values |= _gauges(view)
    return values


def node_readiness(view: NodeView | None) -> Readiness:
    if view is None:
        return Readiness(("the node is starting: it reads its disk, or waits for a coordinator",))
    why = []
    if not view.registered:
        why.append("its lease is not renewed; check that a coordinator is up and reachable")
    if view.engine.full:
        why.append("the disk is full, appends are refused; free space, trim logs or add nodes")
    if view.disk_silent:
        why.append("the disk has not answered a sync for seconds; check the disk")
    return Readiness(tuple(why))


def _counters(counts: NodeCounts) -> dict[str, Value]:
    return {
        "entries_appended_total": counts.entries_stored,
        "bytes_appended_total": counts.bytes_stored,
        "batches_appended_total": counts.batches_stored,
        "entries_read_total": counts.entries_read,
        "bytes_read_total": counts.bytes_read,
        "batches_read_total": counts.batches_read,
        "fills_total": counts.fills,
        "seals_total": counts.seals,
        "sync_seconds": counts.sync_seconds,
        "requests_total": by_label({kind.__name__: count for kind, count in counts.requests.items()}),
        "answers_total": counts.answers,
        "refused_total": by_label({reason.value: count for reason, count in counts.refused.items()}),
        "scrubbed_bytes_total": counts.scrubbed_bytes,
    }


def _gauges(view: NodeView) -> dict[str, Value]:
    engine = view.engine
    return {
        "registered": view.registered,
        "unsynced_bytes": engine.unsynced_bytes,
        "connections": view.connections,
        "connections_refused_total": view.connections_refused,
        "violations_total": view.violations,
        "disk_used_bytes": engine.stored_bytes,
        "disk_free_bytes": engine.free_bytes,
        "disk_full": engine.full,
        "streams": engine.streams,
        "extents": engine.extents,
        "damaged_streams": view.damaged_streams,
        "damage_found_total": view.damage_found,
    }
