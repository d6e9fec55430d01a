"""``trunkline status``: the coordinators, nodes and logs of a cluster, and their problems."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from trunkline.cli.connection import cluster_options, configuration, connected, run_loop
from trunkline.cli.tables import plural, print_json, size, table
from trunkline.client.cluster import Cluster
from trunkline.config import ConnectionConfig
from trunkline.errors import Refused, Unreachable
from trunkline.runtime.local_files import ClusterRecord, LocalFiles

SEGMENTS_MANY = 10_000  # a log with more should be trimmed
NODE_S = 2.0  # timeout of a status request

Facts = dict[str, Any]


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

    async def ask() -> Facts:
        async with connected(config) as cluster:
            facts = await gather_status(cluster, record)
        facts["coordinators"] = await asyncio.gather(*(_coordinator(config, address) for address in config.connect))
        return facts

    facts = run_loop(ask())
    if options.json:
        print_json(facts)
    else:
        print(status_text(facts))
    return 0


async def _coordinator(config: ConnectionConfig, address: str) -> Facts:
    """The status of one coordinator."""
    try:
        async with connected(replace(config, connect=(address,), timeout_s=NODE_S)) as cluster:
            facts = await cluster.status(logs=False)
    except Refused as error:
        return {"address": address, "name": None, "reachable": False, "active": False, "why": str(error)}
    return {"address": address, "name": facts["name"], "reachable": True, "active": facts["active"], "why": ""}


async def gather_status(cluster: Cluster, record: ClusterRecord | None = None) -> Facts:
    """The coordinator's view; the status that each live node reports is under ``self``."""
    facts = await cluster.status()
    nodes: list[Facts] = facts["nodes"]
    reported = await asyncio.gather(*(_node(cluster, node) for node in nodes))
    for node, own in zip(nodes, reported, strict=True):
        node["self"] = own
        process = record.process(node["name"]) if record is not None else None
        node["pid"] = process.pid if process is not None else None
    coordinator = record.process("coordinator") if record is not None else None
    facts["pid"] = coordinator.pid if coordinator is not None else None
    return facts


async def _node(cluster: Cluster, node: Facts) -> Facts | None:
    if not node["live"]:
        return None
    try:
        return await cluster.node_status(node["name"], timeout=NODE_S)
    except Refused:
        return None  # live according to the coordinator, but it does not answer: shown without figures


def status_text(facts: Mapping[str, Any]) -> str:
    logs = [log for log in facts["logs"] if not log["deleted"]]
    parts = [_coordinator_line(facts)]
    if len(facts["coordinators"]) > 1:
        parts.append(coordinator_table(facts["coordinators"]))
    parts.append(node_table(facts["nodes"]))
    parts += [
        f"REFUSED: {each['name'] or 'an unknown client'} at {each['address']}: {each['why']}" for each in refused(facts)
    ]
    if logs:
        parts.append(log_table(logs))
        if facts.get("logs_left_out"):
            parts.append(
                f"{plural(facts['logs_left_out'], 'more log is', 'more logs are')} not shown; they have no problems"
            )
        parts += [text for log in logs for text in warnings(log)]
    else:
        parts.append("no logs yet; create one with `trunkline log create NAME`")
    return "\n\n".join(parts)


def refused(facts: Mapping[str, Any]) -> list[Facts]:
    """Clients and servers that could not connect within the last minute."""
    return list(facts.get("refused", []))


def _coordinator_line(facts: Mapping[str, Any]) -> str:
    pid = f", process {facts['pid']}" if facts.get("pid") else ""
    active = "active" if facts["active"] else f"standby; active is {facts.get('active_coordinator') or 'none'}"
    where = f" at {facts['address']}" if facts.get("address") else ""
    return f"cluster {facts['cluster']}, coordinator {facts['name']}{where} ({active}{pid})"


def coordinator_table(coordinators: list[Facts]) -> str:
    rows = [[each["address"], each["name"], each["reachable"], each["active"]] for each in coordinators]
    return table(["coordinator", "name", "reachable", "active"], rows)


def node_table(nodes: list[Facts]) -> str:
    headings = ["node", "address", "zone", "state", "live", "used", "free", "sync", "streams", "damaged"]
    shows_pid = any(node.get("pid") for node in nodes)
    rows: list[list[object]] = []
    for node in nodes:
        own = node.get("self") or {}
        state = node["state"] + (" FULL" if own.get("full") else " TIGHT" if own.get("tight") else "")
        disk = [size(own.get("bytes_used")), size(own.get("bytes_free"))]
        row = [node["name"], node["address"], node["zone"] or "-", state, "yes" if node["live"] else "NO", *disk]
        row += [own.get("sync", "-"), own.get("streams"), node["damaged"]]
        rows.append([*row, node["pid"]] if shows_pid else row)
    return table([*headings, "pid"] if shows_pid else headings, rows)


def log_table(logs: list[Facts]) -> str:
    rows = []
    for log in logs:
        total = log.get("segments_total", 0)
        if "segments" not in log:  # with too many logs, details are left out
            rows.append([log["name"], log["policy"], log["epoch"], log["trim"], total, "-", "-", "-", "-"])
            continue
        last = log["segments"][-1]
        state = "open" if last["end"] is None else f"sealed at {last['end']}"
        sizes = [log["epoch"], log["trim"], total]
        rows.append([log["name"], log["policy"], *sizes, state, last["base"], members(last), last["owner"] or "-"])
    headings = ["log", "policy", "epoch", "trim", "segments", "state", "base", "members", "owner"]
    return table(headings, rows)


def members(segment: Mapping[str, Any]) -> str:
    """The replica groups, each from head to tail."""
    return " / ".join(
        " > ".join(member["node"] + ("+joining" if member["joining"] else "") for member in group)
        for group in segment["groups"]
    )


def warnings(log: Mapping[str, Any]) -> list[str]:
    """The problems of a log, the worst first."""
    name, found = log["name"], []
    if log["blocked"]:
        found.append(
            f"BLOCKED: {name} waits for a replica of its open segment to return; "
            "`trunkline log declare-lost` gives the segment up"
        )
    if log.get("refused"):
        found.append(f"REFUSED: {log['refused']}")
    found += _missing_copies(log)
    found += [f"lost: {name}, positions {first} to {end - 1}" for first, end in log.get("gaps", [])]
    if (total := log.get("segments_total", 0)) >= SEGMENTS_MANY:
        found.append(f"long: {name} has {total:,} segments, which makes changes of its map slow; trim it")
    return found


def _missing_copies(log: Mapping[str, Any]) -> list[str]:
    found = []
    for segment in log.get("segments", []):
        serving = min(sum(not member["joining"] for member in group) for group in segment["groups"])
        which = f"{log['name']}, segment {segment['index']}"
        if serving == 1 and log["replicas"] > 1:
            found.append(f"NO REDUNDANCY: {which} has one copy; add a node, or restart the lost ones")
        elif 0 < serving < log["replicas"]:
            found.append(f"fewer copies: {which} has {serving} of {log['replicas']}")
    found.sort(key=lambda text: not text.startswith("NO"))
    if (more := log.get("problems_total", 0) - len(found)) > 0:
        found.append(f"fewer copies: {log['name']} has {plural(more, 'more segment')} with too few copies")
    return found
