"""What a node tells of itself: its metrics, and whether it is ready."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from trunkline.runtime.observing_counts import NodeCounts
from trunkline.runtime.observing_format import COMMON, Described, Value, by_label, common_values, page
from trunkline.runtime.observing_health import Readiness
from trunkline.storage.engine import EngineStatus

PREFIX: Final = "trunkline_node_"
TABLE: Final = (
    *COMMON,
    Described("ready", "gauge", "1 if `/readyz` answers 200"),
    Described("registered", "gauge", "1 while its lease with a coordinator holds"),
    Described("entries_appended_total", "counter", "entries written to its disk, copies made by repairs among them"),
    Described("bytes_appended_total", "counter", "their bytes, without headers"),
    Described("batches_appended_total", "counter", "batches that they came in"),
    Described("entries_read_total", "counter", "entries sent to readers, and to members that copy"),
    Described("bytes_read_total", "counter", "their bytes"),
    Described("batches_read_total", "counter", "batches that they left in"),
    Described("fills_total", "counter", "holes filled with JUNK"),
    Described("seals_total", "counter", "streams sealed: a segment ended, by a failure or by an operator"),
    Described("sync_seconds", "histogram", "group commits, from the request to the answer of the disk"),
    Described("unsynced_bytes", "gauge", "written, and not yet in a group commit"),
    Described("requests_total", "counter", "requests that came, by kind", ("kind",)),
    Described("answers_total", "counter", "answers that left, refusals among them"),
    Described(
        "refused_total", "counter", "requests that were refused, by reason; most are part of a fail-over", ("reason",)
    ),
    Described("connections", "gauge", "connections that are open"),
    Described("connections_refused_total", "counter", "handshakes that failed: version, cluster, token, or too many"),
    Described(
        "violations_total", "counter", "requests and connections refused because a peer sent what no peer may send"
    ),
    Described("disk_used_bytes", "gauge", "what it stores"),
    Described("disk_free_bytes", "gauge", "what its file system has left, without the reserve"),
    Described("disk_full", "gauge", "1 while it refuses appends because only the reserve is left"),
    Described("streams", "gauge", "streams that it keeps: one for each segment of a log that it is a member of"),
    Described("extents", "gauge", "files that they are kept in"),
    Described("damaged_streams", "gauge", "streams that have lost data and wait to be replaced"),
    Described("damage_found_total", "counter", "how often reading or scrubbing found damage since the start"),
    Described("scrubbed_bytes_total", "counter", "read by the scrubber"),
)


class NodeView(Struct, frozen=True):
    """One look at a node. ``counts`` is the node's own, not a copy."""

    engine: EngineStatus
    counts: NodeCounts
    registered: bool
    disk_silent: bool
    connections: int
    connections_refused: int
    violations: int
    damaged_streams: int
    damage_found: int


def node_metrics(name: str, uptime_s: float, view: NodeView | None) -> str:
    """``view`` is None while the node starts."""
    values = common_values(name, uptime_s)
    values["ready"] = node_readiness(view).ready
    if view is not None:
        values |= _counters(view.counts)
        values |= _gauges(view)
    return page(PREFIX, TABLE, values)


def node_readiness(view: NodeView | None) -> Readiness:
    if view is None:
        return Readiness(("the node is starting: it reads its disk, or waits for a coordinator",))
    why = []
    if not view.registered:
        why.append("its lease is not renewed; look whether a coordinator runs and can be reached")
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
