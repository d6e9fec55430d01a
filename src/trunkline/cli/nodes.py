"""``trunkline node ...``: the nodes of a cluster."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from trunkline.cli.connection import cluster_command, cluster_options, configuration, connected, run_loop
from trunkline.cli.paths import local_path
from trunkline.cli.status import gather_status, node_table
from trunkline.cli.tables import Bar, plural, print_json
from trunkline.client.cluster import Cluster
from trunkline.core.status import ClusterStatus, RegisteredNode
from trunkline.errors import Refused, Unreachable
from trunkline.runtime.local_files import RELOAD, ClusterRecord, LocalFiles, send_signal

LIVE_S = 30.0  # until a new node must be live
POLL_S = 0.1
DRAIN_POLL_S = 0.5


def add_commands(commands: argparse._SubParsersAction[Any]) -> None:
    node = commands.add_parser("node", help="add, list, drain, remove or forget nodes")
    actions = node.add_subparsers(required=True, metavar="ACTION")
    add = actions.add_parser("add", help="start a node in a local cluster", parents=[cluster_options()])
    add.add_argument(
        "--dir", type=local_path, default=Path("cluster"), help="directory of the cluster (default: ./cluster)"
    )
    add.add_argument("--name", help="default: the next number")
    add.set_defaults(run=_add)
    listing = actions.add_parser("list", help="list the nodes", parents=[cluster_options()])
    listing.set_defaults(run=cluster_command(_list))
    drain = _of_one(actions, "drain", "move all segments off a node; it gets no new ones")
    drain.add_argument("--wait", action="store_true", help="return when the node is empty")
    drain.set_defaults(run=cluster_command(_drain))
    undrain = _of_one(actions, "undrain", "use a drained node again")
    undrain.set_defaults(run=cluster_command(_undrain))
    remove = _of_one(actions, "remove", "remove a node permanently")
    remove.add_argument("--force", action="store_true", help="even if logs still have data on it")
    remove.add_argument("--dir", type=local_path, help="directory of a local cluster: stop the process, too")
    remove.set_defaults(run=cluster_command(_remove))
    forget = _of_one(actions, "forget", "delete a removed node from the list, if it is neither live nor needed")
    forget.set_defaults(run=cluster_command(_forget))


def _of_one(actions: argparse._SubParsersAction[Any], name: str, text: str) -> argparse.ArgumentParser:
    parser = actions.add_parser(name, help=text, parents=[cluster_options()])
    parser.add_argument("name", metavar="NODE", help="the name of the node")
    assert isinstance(parser, argparse.ArgumentParser)
    return parser


def _running(directory: Path) -> tuple[LocalFiles, ClusterRecord]:
    files = LocalFiles(directory)
    record = files.running()
    if record is None:
        raise Unreachable(f"no cluster runs in {files.root}; start it with `trunkline up --dir {directory}`")
    return files, record


def _add(options: argparse.Namespace) -> int:
    files, record = _running(options.dir)
    config = replace(configuration(options), connect=(record.connect,))
    name = files.add_node(options.name)
    send_signal(record.pid, record.started, RELOAD)

    async def wait() -> RegisteredNode:
        async with connected(config) as cluster:
            return await _until_live(cluster, name)

    node = run_loop(wait())
    if options.json:
        print_json(node)
    else:
        print(f"node {name} is live at {node.address}")
    return 0


async def _until_live(cluster: Cluster, name: str) -> RegisteredNode:
    try:
        async with asyncio.timeout(LIVE_S):
            while True:
                for node in (await cluster.status(logs=False)).nodes:
                    if node.name == name and node.live:
                        return node
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise Unreachable(f"node {name} is not live after {LIVE_S:.0f} s; read its log") from None


async def _list(options: argparse.Namespace, cluster: Cluster) -> None:
    nodes = (await gather_status(cluster)).nodes
    if options.json:
        print_json({"nodes": nodes})
    else:
        print(node_table(nodes))


async def _drain(options: argparse.Namespace, cluster: Cluster) -> None:
    await cluster.set_node_state(options.name, "draining")
    left = streams_on(await cluster.status(logs=False), options.name)
    if options.wait:
        with Bar(f"streams moved from {options.name}", left) as bar:
            total = left
            while left:
                bar.update(max(total - left, 0))
                await asyncio.sleep(DRAIN_POLL_S)
                left = streams_on(await cluster.status(logs=False), options.name)
    if options.json:
        print_json({"node": options.name, "state": "draining", "streams": left})
    elif left:
        print(f"node {options.name} is draining: {plural(left, 'stream')} left (`trunkline node drain --wait` waits)")
    else:
        print(f"node {options.name} is drained; it can be stopped and removed")


async def _undrain(options: argparse.Namespace, cluster: Cluster) -> None:
    await cluster.set_node_state(options.name, "rw")
    _print_state(options, "rw", f"node {options.name} is used again")


async def _remove(options: argparse.Namespace, cluster: Cluster) -> None:
    local = _running(options.dir) if options.dir is not None else None
    left = streams_on(await cluster.status(logs=False), options.name)
    if left and not options.force:
        raise Refused(
            f"logs still have {plural(left, 'stream')} on {options.name}; `trunkline node drain {options.name} --wait` "
            "moves them, --force drops these copies"
        )
    await cluster.set_node_state(options.name, "gone")
    if local is not None:
        files, record = local
        files.remove_node(options.name)
        send_signal(record.pid, record.started, RELOAD)
    _print_state(options, "gone", f"node {options.name} is removed permanently")


async def _forget(options: argparse.Namespace, cluster: Cluster) -> None:
    await cluster.forget_node(options.name)
    _print_state(options, "forgotten", f"node {options.name} is forgotten")


def streams_on(status: ClusterStatus, node: str) -> int:
    """How many streams the logs have on a node, according to the metadata."""
    for each in status.nodes:
        if each.name == node:
            return each.streams_named
    raise Refused(f"there is no node {node}; `trunkline node list` lists them")


def _print_state(options: argparse.Namespace, state: str, text: str) -> None:
    if options.json:
        print_json({"node": options.name, "state": state})
    else:
        print(text)
