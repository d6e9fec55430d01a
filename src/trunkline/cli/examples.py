"""Examples for ``--help``. A test parses each of them."""

from __future__ import annotations

import argparse
from typing import Final

EXAMPLES: Final[dict[str, str]] = {
    "down": "trunkline down --dir ./cluster",
    "status": """\
trunkline status
trunkline status --dir ./cluster                   with process ids; the address is found there
trunkline status --connect 10.0.0.1:7400 --json""",
    "events": """\
trunkline events
trunkline events --hide-logs                       only events of nodes and coordinators""",
    "log create": """\
trunkline log create orders                            three copies, many writers
trunkline log create events --policy broadcast         one writer at a time, fewer round trips
trunkline log create wide --groups 2 --replicas 2      needs four nodes""",
    "log list": "trunkline log list",
    "log describe": "trunkline log describe orders",
    "log seal": "trunkline log seal orders",
    "log reopen": "trunkline log reopen orders",
    "log trim": "trunkline log trim orders 1000                     deletes positions 1 to 1000",
    "log delete": "trunkline log delete orders --yes",
    "log declare-lost": "trunkline log declare-lost orders --end 1001 --yes",
    "append": """\
echo hello | trunkline append orders               each line is an entry
trunkline append orders --file photo.jpg           a whole file is one entry
trunkline append orders --expect 7 < line.txt      only if it gets position 7""",
    "read": """\
trunkline read orders                              from the oldest to the newest
trunkline read orders --from 5 --to 9              both ends included
trunkline read orders --from 5 --json              with positions, headers and times""",
    "tail": """\
trunkline tail orders -n 20
trunkline tail orders --follow                     until Ctrl-C""",
    "subscribe": "trunkline subscribe orders --from 100              until Ctrl-C",
    "peek": "trunkline peek orders",
    "fill": "trunkline fill orders 17",
    "reconfigure": "trunkline reconfigure orders",
    "node add": "trunkline node add --dir ./cluster",
    "node list": "trunkline node list",
    "node drain": "trunkline node drain node3 --wait",
    "node undrain": "trunkline node undrain node3",
    "node remove": "trunkline node remove node3 --dir ./cluster",
    "node forget": "trunkline node forget node3",
    "bench": "trunkline bench --records 100000 --size 100",
    "deliver init": "trunkline deliver init --sample",
    "deliver status": "trunkline deliver status orders.yaml --watch",
    "deliver pause": "trunkline deliver pause orders.yaml acme",
    "deliver resume": "trunkline deliver resume orders.yaml acme",
    "deliver drain": "trunkline deliver drain orders.yaml acme",
    "deliver retire": "trunkline deliver retire orders.yaml acme",
    "deliver reseed": "trunkline deliver reseed orders.yaml acme",
    "deliver verify": "trunkline deliver verify orders.yaml",
    "deliver repair": "trunkline deliver repair orders.yaml acme",
    "deliver validate": "trunkline deliver validate orders.yaml",
    "serve node": "trunkline serve node --dir /var/lib/trunkline/a --name a --coordinators 10.0.0.1:7400",
    "serve coordinator": "trunkline serve coordinator --dir /var/lib/trunkline/c --listen 10.0.0.1:7400",
    "version": "trunkline version --json",
}


def add_examples(parser: argparse.ArgumentParser, path: tuple[str, ...] = ()) -> None:
    """Add the examples to every command without an epilog."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                add_examples(command, (*path, name))
    text = EXAMPLES.get(" ".join(path))
    if text is not None and parser.epilog is None:
        lines = text.splitlines()
        heading = "examples:" if len(lines) > 1 else "example:"
        parser.epilog = "\n".join([heading, *(f"  {line}" for line in lines)])
