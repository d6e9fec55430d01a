"""``trunkline events``: the recent events of nodes and logs, as a coordinator recorded them."""

from __future__ import annotations

import argparse
import datetime as dt
from typing import Any, Final

from msgspec.structs import replace

from trunkline.cli.connection import cluster_command, cluster_options
from trunkline.cli.tables import print_json
from trunkline.client.cluster import Cluster

MARKS: Final = {"good": "+", "info": " ", "warn": "!", "bad": "X"}


def add_commands(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser(
        "events",
        help="show recent events of nodes and logs",
        description="Show recent events, the oldest first: + is good, ! is a warning, X is bad.",
        parents=[cluster_options()],
    )
    parser.add_argument("--hide-logs", action="store_true", help="only events of nodes and coordinators")
    parser.set_defaults(run=cluster_command(_events))


async def _events(options: argparse.Namespace, cluster: Cluster) -> None:
    found = await cluster.events()
    if options.hide_logs:
        found = replace(found, events=tuple(event for event in found.events if not event.log))
    if options.json:
        print_json(found)
        return
    for event in found.events:
        at = dt.datetime.fromtimestamp(event.at_ms / 1000).astimezone()
        print(f"{at:%Y-%m-%d %H:%M:%S}  {MARKS[event.level]} {event.text}")
