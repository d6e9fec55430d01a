"""``trunkline status``: the coordinators, nodes and logs of a cluster, and their problems."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import asdict, replace

from trunkline.cli.connection import cluster_options, configuration, connected, run_loop
from trunkline.cli.tables import plural, print_json, size, table
from trunkline.client.cluster import Cluster
from trunkline.config import ConnectionConfig
from trunkline.core.status import ClusterStatus, LogStatus, NodeStatus, RegisteredNode, SegmentStatus
from trunkline.errors import ProtocolError, Refused, Unreachable
from trunkline.runtime.local_files import ClusterRecord, LocalFiles

SEGMENTS_MANY = 10_000  # a log with more should be trimmed
NODE_S = 2.0  # timeout of a status request


class ShownNode(RegisteredNode, frozen=True):
    """With what the node reports about itself, and its process if it is on this machine."""

    own: NodeStatus | None = field(name="self", default=None)
    pid: int | None = None


class ShownCoordinator(Struct, frozen=True):
    address: str
    name: str | None = None
    reachable: bool = False
    active: bool = False
    why: str = ""  # it is not reachable


class ShownCluster(ClusterStatus, frozen=True):
    nodes: tuple[ShownNode, ...] = ()
    pid: int | None = None  # of the coordinator
    coordinators: tuple[ShownCoordinator, ...] = ()


def add_commands(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser("status", help="show the cluster, its nodes and its logs", parents=[cluster_options()])
    parser.add_argument("--dir", type=Path, help="directory of a local cluster: connect to it, and show process ids")
    parser.set_defaults(run=_status)


def _status(options: argparse.Namespace) -> int:
    config = configuration(options)
    record = None
    if options.dir is not None:
        record = LocalFiles(options.dir).running()
        if record is None:
            raise Unreachable(f"no cluster runs in {options.dir}; start it with `trunkline up --dir {options.dir}`")
        config = replace(config, connect=(record.connect,))

    async def ask() -> ShownCluster:
        async with connected(config) as cluster:
            status = await gather_status(cluster, record)
        coordinators = await asyncio.gather(*(_coordinator(config, address) for address in config.connect))
        return replace(status, coordinators=tuple(coordinators))

    status = run_loop(ask())
    if options.json:
        print_json(status)
    else:
        print(status_text(status))
    return 0


async def _coordinator(config: ConnectionConfig, address: str) -> ShownCoordinator:
    try:
        async with connected(replace(config, connect=(address,), timeout_s=NODE_S)) as cluster:
            status = await cluster.status(logs=False)
    except Refused as error:
        return ShownCoordinator(address, why=str(error))
    return ShownCoordinator(address, status.name, reachable=True, active=status.active)


async def gather_status(cluster: Cluster, record: ClusterRecord | None = None) -> ShownCluster:
    """The coordinator's view, with what each live node reports about itself."""
    status = await cluster.status()
    own = await asyncio.gather(*(_node(cluster, node) for node in status.nodes))
    nodes = tuple(
        ShownNode(**asdict(node), own=each, pid=_pid(record, node.name))
        for node, each in zip(status.nodes, own, strict=True)
    )
    return ShownCluster(**{**asdict(status), "nodes": nodes}, pid=_pid(record, "coordinator"))


def _pid(record: ClusterRecord | None, name: str) -> int | None:
    process = record.process(name) if record is not None else None
    return process.pid if process is not None else None


async def _node(cluster: Cluster, node: RegisteredNode) -> NodeStatus | None:
    if not node.live:
        return None
    try:
        return await cluster.node_status(node.name, timeout=NODE_S)
    except (Refused, ProtocolError):
        return None  # live according to the coordinator, but it does not answer: shown without figures


def status_text(status: ShownCluster) -> str:
    logs = [log for log in status.logs if not log.deleted]
    parts = [_coordinator_line(status)]
    if len(status.coordinators) > 1:
        parts.append(coordinator_table(status.coordinators))
    parts.append(node_table(status.nodes))
    parts += [f"REFUSED: {each.name or 'an unknown client'} at {each.address}: {each.why}" for each in status.refused]
    if logs:
        parts.append(log_table(logs))
        if status.logs_left_out:
            left_out = plural(status.logs_left_out, "more log is", "more logs are")
            parts.append(f"{left_out} not shown; they have no problems")
        parts += [text for log in logs for text in warnings(log)]
    else:
        parts.append("no logs yet; create one with `trunkline log create NAME`")
    return "\n\n".join(parts)


def _coordinator_line(status: ShownCluster) -> str:
    pid = f", process {status.pid}" if status.pid else ""
    active = "active" if status.active else f"standby; active is {status.active_coordinator or 'none'}"
    where = f" at {status.address}" if status.address else ""
    return f"cluster {status.cluster}, coordinator {status.name}{where} ({active}{pid})"


def coordinator_table(coordinators: Iterable[ShownCoordinator]) -> str:
    rows = [[each.address, each.name, each.reachable, each.active] for each in coordinators]
    return table(["coordinator", "name", "reachable", "active"], rows)


def node_table(nodes: Sequence[ShownNode]) -> str:
    headings = ["node", "address", "zone", "state", "live", "used", "free", "sync", "streams", "damaged"]
    shows_pid = any(node.pid for node in nodes)
    rows: list[list[object]] = []
    for node in nodes:
        state = node.state
        figures: list[object] = [None, None, None, None]
        if (own := node.own) is not None:
            state += " FULL" if own.full else " TIGHT" if own.tight else ""
            figures = [size(own.bytes_used), size(own.bytes_free), own.sync, own.streams]
        live = "yes" if node.live else "NO"
        row = [node.name, node.address, node.zone or "-", state, live, *figures, node.damaged]
        rows.append([*row, node.pid] if shows_pid else row)
    return table([*headings, "pid"] if shows_pid else headings, rows)


def log_table(logs: Iterable[LogStatus]) -> str:
    rows: list[list[object]] = []
    for log in logs:
        row = [log.name, log.policy, log.epoch, log.trim, log.segments_total]
        if listed := log.listed():
            last = listed[-1]
            state = "open" if last.end is None else f"sealed at {last.end}"
            rows.append([*row, state, last.base, members(last), last.owner or "-"])
        else:  # there are too many logs to list their segments
            rows.append([*row, "-", "-", "-", "-"])
    headings = ["log", "policy", "epoch", "trim", "segments", "state", "base", "members", "owner"]
    return table(headings, rows)


def members(segment: SegmentStatus) -> str:
    """The replica groups, each from head to tail."""
    return " / ".join(
        " > ".join(member.node + ("+joining" if member.joining else "") for member in group) for group in segment.groups
    )


def warnings(log: LogStatus) -> list[str]:
    """What an operator should know about a log: the worst first."""
    found = []
    if log.blocked:
        found.append(
            f"BLOCKED: {log.name} waits for a replica of its open segment to return; "
            "`trunkline log declare-lost` gives the segment up"
        )
    if log.refused:
        found.append(f"REFUSED: {log.refused}")
    found += _missing_copies(log)
    found += [f"lost: {log.name}, positions {first} to {end - 1}" for first, end in log.gaps]
    if log.segments_total >= SEGMENTS_MANY:
        found.append(
            f"long: {log.name} has {log.segments_total:,} segments, which makes changes of its map slow; trim it"
        )
    return found


def _missing_copies(log: LogStatus) -> list[str]:
    found = []
    for segment in log.listed():
        copies = segment.copies()
        which = f"{log.name}, segment {segment.index}"
        if copies == 1 and log.replicas > 1:
            found.append(f"NO REDUNDANCY: {which} has one copy; add a node, or restart the lost ones")
        elif 0 < copies < log.replicas:
            found.append(f"fewer copies: {which} has {copies} of {log.replicas}")
    found.sort(key=lambda text: not text.startswith("NO"))
    if (more := log.problems_total - len(found)) > 0:
        found.append(f"fewer copies: {log.name} has {plural(more, 'more segment')} with too few copies")
    return found
