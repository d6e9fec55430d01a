"""``trunkline version``."""

from __future__ import annotations

import argparse
from typing import Any

import trunkline
from trunkline.cli.tables import json_option, print_json


def add_commands(commands: argparse._SubParsersAction[Any]) -> None:
    version = commands.add_parser("version", help="print the version", parents=[json_option()])
    version.set_defaults(run=_version)


def _version(options: argparse.Namespace) -> int:
    if options.json:
        print_json({"version": trunkline.__version__})
    else:
        print(f"trunkline {trunkline.__version__}")
    return 0
