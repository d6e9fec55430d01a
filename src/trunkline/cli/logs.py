"""``trunkline log ...`` and ``trunkline reconfigure``: create, describe and change logs."""

from __future__ import annotations

import argparse
from typing import Any, cast

from msgspec import to_builtins

from trunkline.cli import WrongInput
from trunkline.cli.connection import cluster_command, cluster_options, position, positive
from trunkline.cli.serve import POLICIES
from trunkline.cli.status import log_table, members, warnings
from trunkline.cli.tables import print_json, table
from trunkline.client.arguments import PolicyName
from trunkline.client.cluster import Cluster, log_settings
from trunkline.core.status import SegmentStatus, log_status, segment_status
from trunkline.errors import NoSuchLog, Refused


def add_commands(commands: argparse._SubParsersAction[Any]) -> None:
    log = commands.add_parser("log", help="create, list, describe, seal, reopen, trim or delete logs")
    actions = log.add_subparsers(required=True, metavar="ACTION")
    create = actions.add_parser("create", help="create a log", parents=[cluster_options()])
    create.add_argument("name", metavar="NAME", help="up to 128 letters, digits, '.', '_', '-'")
    create.add_argument(
        "--policy", choices=POLICIES, help="chain: many writers; broadcast: one (default: the cluster's)"
    )
    create.add_argument("--replicas", type=positive, default=3, metavar="N", help="copies of each entry (default: 3)")
    create.add_argument(
        "--min-replicas",
        type=positive,
        default=1,
        metavar="N",
        help="copies that suffice to accept appends (default: 1)",
    )
    create.add_argument("--groups", type=positive, default=1, metavar="N", help="replica groups (default: 1)")
    create.add_argument(
        "--stripe-unit",
        type=positive,
        default=1024,
        metavar="N",
        help="consecutive positions in one group (1024)",
    )
    create.set_defaults(run=cluster_command(_create))
    listing = actions.add_parser("list", help="list the logs", parents=[cluster_options()])
    listing.set_defaults(run=cluster_command(_list))
    describe = _of_one(actions, "describe", "show a log's segments, epochs and members")
    describe.set_defaults(run=cluster_command(_describe))
    seal = _of_one(actions, "seal", "make a log read-only")
    seal.set_defaults(run=cluster_command(_seal))
    reopen = _of_one(actions, "reopen", "accept appends to a sealed log again")
    reopen.set_defaults(run=cluster_command(_reopen))
    trim = _of_one(actions, "trim", "delete the entries up to a position")
    trim.add_argument("glsn", type=position, metavar="GLSN", help="the last position to delete")
    trim.set_defaults(run=cluster_command(_trim))
    delete = _of_one(actions, "delete", "delete a log permanently; its name cannot be reused")
    delete.add_argument("--yes", action="store_true", help="confirm")
    delete.set_defaults(run=cluster_command(_delete))
    lost = _of_one(actions, "declare-lost", "give up an open segment that has no intact replica left")
    lost.add_argument("--end", type=position, required=True, metavar="GLSN", help="the first position after the gap")
    lost.add_argument("--yes", action="store_true", help="confirm")
    lost.set_defaults(run=cluster_command(_declare_lost))
    reconfigure = _of_one(commands, "reconfigure", "end a log's open segment and open another")
    reconfigure.set_defaults(run=cluster_command(_reconfigure))


def _of_one(actions: argparse._SubParsersAction[Any], name: str, text: str) -> argparse.ArgumentParser:
    parser = actions.add_parser(name, help=text, parents=[cluster_options()])
    parser.add_argument("name", metavar="LOG", help="the name of the log")
    assert isinstance(parser, argparse.ArgumentParser)
    return parser


async def _create(options: argparse.Namespace, cluster: Cluster) -> None:
    policy = cast("PolicyName", options.policy or (await cluster.status(logs=False)).default_policy)
    settings = log_settings(policy, options.replicas, options.min_replicas, options.groups, options.stripe_unit)
    existed = await _exists(options.name, cluster)
    epoch = await cluster.create_log(options.name, settings)
    view = await cluster.describe(options.name)
    last = segment_status(view.last)
    if options.json:
        print_json({"log": options.name, "epoch": epoch, "policy": policy, "existed": existed, "groups": last.groups})
        return
    exists = " already exists, with the same settings" if existed else ""
    print(f"log {options.name}{exists}: {policy}, {members(last)}")
    for text in warnings(log_status(view)):
        print(text)


async def _exists(name: str, cluster: Cluster) -> bool:
    try:
        await cluster.describe(name)
    except NoSuchLog:
        return False
    return True


async def _list(options: argparse.Namespace, cluster: Cluster) -> None:
    logs = [log for log in (await cluster.status()).logs if not log.deleted]
    if options.json:
        print_json({"logs": logs})
    elif logs:
        print(log_table(logs))
    else:
        print("no logs yet; create one with `trunkline log create NAME`")


async def _describe(options: argparse.Namespace, cluster: Cluster) -> None:
    view = await cluster.describe(options.name)
    status = log_status(view)
    tail = await (await cluster.log(options.name)).tail()
    if options.json:
        print_json({**to_builtins(status), "tail": tail})
        return
    settings = view.settings
    print(
        f"log {view.log}: {settings.policy.value}, epoch {view.epoch}, trimmed to {view.trim}, tail {tail}, "
        f"{settings.groups} x {settings.replicas} replicas (at least {settings.min_replicas})"
    )
    rows = [
        [part.index, part.epoch, part.base, part.end, _state(part), members(part), part.owner or "-"]
        for part in map(segment_status, view.segments)
    ]
    print(table(["segment", "epoch", "base", "end", "state", "members", "owner"], rows))
    for text in warnings(status):
        print(text)


def _state(segment: SegmentStatus) -> str:
    if segment.end is None:
        return "open"
    return "repaired" if segment.repaired else "ended"


async def _seal(options: argparse.Namespace, cluster: Cluster) -> None:
    view = await cluster.describe(options.name)
    end = view.last.end
    if end is None:
        end = (await (await cluster.log(options.name)).seal()).end
    _print_sealed(options, end)


def _print_sealed(options: argparse.Namespace, end: int) -> None:
    if options.json:
        print_json({"log": options.name, "end": end})
    else:
        print(f"log {options.name} is sealed; its last position is {end - 1}")


async def _reopen(options: argparse.Namespace, cluster: Cluster) -> None:
    view = await cluster.describe(options.name)
    if view.last.is_open:
        raise Refused(f"log {options.name} is open; `trunkline reconfigure {options.name}` opens a new segment")
    await (await cluster.log(options.name)).reopen()
    await _print_opened(options, cluster)


async def _reconfigure(options: argparse.Namespace, cluster: Cluster) -> None:
    view = await cluster.describe(options.name)
    if not view.last.is_open:
        raise Refused(f"log {options.name} is sealed; `trunkline log reopen {options.name}` opens it")
    await (await cluster.log(options.name)).reopen()
    await _print_opened(options, cluster)


async def _print_opened(options: argparse.Namespace, cluster: Cluster) -> None:
    last = segment_status((await cluster.describe(options.name)).last)
    if options.json:
        print_json({"log": options.name, "segment": last})
    else:
        print(f"log {options.name}: segment {last.index}, epoch {last.epoch}, from {last.base}, {members(last)}")


async def _trim(options: argparse.Namespace, cluster: Cluster) -> None:
    point = await (await cluster.log(options.name)).trim(options.glsn)
    if options.json:
        print_json({"log": options.name, "trim": point})
    else:
        lowered = " (batches are not split)" if point < options.glsn else ""
        print(f"log {options.name} is trimmed to {point}{lowered}")


async def _delete(options: argparse.Namespace, cluster: Cluster) -> None:
    if not options.yes:
        raise WrongInput(f"this deletes every entry of {options.name} permanently; add --yes to confirm")
    await (await cluster.log(options.name)).delete()
    if options.json:
        print_json({"log": options.name, "deleted": True})
    else:
        print(f"log {options.name} is deleted")


async def _declare_lost(options: argparse.Namespace, cluster: Cluster) -> None:
    if not options.yes:
        raise WrongInput(
            f"this may lose entries of {options.name} before {options.end} permanently; add --yes to confirm"
        )
    await (await cluster.log(options.name)).declare_lost(options.end)
    await _print_opened(options, cluster)
