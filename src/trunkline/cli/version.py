"""``trunkline version``."""

from __future__ import annotations

import argparse
from typing import Any

from trunkline.cli.tables import json_option, print_json
from trunkline.version import version


def add_commands(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser("version", help="print the version", parents=[json_option()])
    parser.set_defaults(run=_version)


def _version(options: argparse.Namespace) -> int:
    if options.json:
        print_json({"version": version()})
    else:
        print(f"trunkline {version()}")
    return 0
