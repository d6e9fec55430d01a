"""``trunkline deliver ...``: delivers the changes of one table to many. A command loads its modules when it runs."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from trunkline.cli.tables import json_option

EXAMPLES: Final = """\
examples:
  trunkline deliver init --sample                an example, orders.yaml, and its source
  trunkline deliver run orders.yaml --once       deliver all present changes, then exit
  trunkline deliver run orders.yaml              deliver until Ctrl-C, which drains; press twice to stop sooner
  trunkline deliver verify orders.yaml           compare every destination with the source
"""
RUN: Final = """\
Deliver the changes of a pipeline until it is stopped. Ctrl-C or SIGTERM drains: all destinations are brought to the
present version. A second signal stops as soon as the jobs in flight have ended, a third one at once; a flush commits
completely or not at all. A terminal shows the progress in a few lines, anything else a line for each event."""
VERIFY: Final = """\
Compare destinations with their part of the source, each at its own position; the pipeline may run meanwhile. A mirror
must equal its part. With mode append it must hold every row of the source, as often; rows that were updated or deleted
later stay, and are only counted. Exit code 1: a destination differs; 3: none differs, but some were not compared."""

REPAIR: Final = """\
Compare destinations as verify does, and rewrite the keys that differ, as the source has them at the destination's
position, which stays: in one transaction for all its tables (Delta: one for each). The pipeline may run meanwhile; it
leaves a destination that is repaired alone for that time. Only mirrors are repaired. Exit code 1: a destination still
differs; 3: none does, but some were not compared."""


def add_commands(commands: argparse._SubParsersAction[Any]) -> None:
    deliver = commands.add_parser(
        "deliver",
        help="deliver the changes of tables to many others, on Spark",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = deliver.add_subparsers(required=True, metavar="ACTION")
    _add_init(actions)
    _add_run(actions)
    _add_status(actions)
    for name, text in (
        ("pause", "stop writing to destinations; they keep their position"),
        ("resume", "resume destinations that were paused, drained, retired or halted"),
        ("drain", "bring destinations to the present version of the source, then pause them"),
        ("retire", "remove destinations from the pipeline; their tables stay, and have no owner"),
        ("reseed", "seed destinations again from the present state of the source"),
    ):
        _add_operation(actions, name, text)
    _add_verify(actions)
    _add_repair(actions)
    _add_validate(actions)


def _add_init(actions: argparse._SubParsersAction[Any]) -> None:
    init = actions.add_parser(
        "init", help="write a commented example of a pipeline; overwrites nothing", parents=[json_option()]
    )
    init.add_argument(
        "file", type=Path, nargs="?", default=Path("orders.yaml"), metavar="FILE", help="default: orders.yaml"
    )
    init.add_argument(
        "--sample", action="store_true", help="also create its source: a lake with orders of 20 tenants, and a history"
    )
    init.set_defaults(run=_late("deliver_init", "init"))


def _add_run(actions: argparse._SubParsersAction[Any]) -> None:
    run = actions.add_parser(
        "run",
        help="deliver until stopped",
        description=RUN,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[json_option()],
    )
    _add_config(run)
    run.add_argument(
        "--once", action="store_true", help="exit when all destinations are at the present version of the source"
    )
    run.add_argument("--name", default="", help="of this deliverer (default: the host name)")
    run.add_argument("--master", metavar="URL", help="where tasks run (default: spark.master in the file)")
    run.add_argument(
        "--log-format", choices=("text", "json"), help="format of log lines; also prints them on a terminal"
    )
    run.add_argument("-v", "--verbose", action="store_true", help="more log lines")
    run.set_defaults(run=_late("deliver_run", "run"))


def _add_status(actions: argparse._SubParsersAction[Any]) -> None:
    status = actions.add_parser("status", help="show the state of every destination", parents=[json_option()])
    _add_config(status)
    status.add_argument("--watch", action="store_true", help="repeat every two seconds, until Ctrl-C")
    status.set_defaults(run=_late("deliver_operate", "status"))


def _add_operation(actions: argparse._SubParsersAction[Any], name: str, text: str) -> None:
    parser = actions.add_parser(name, help=text, parents=[json_option()])
    _add_config(parser)
    _add_destinations(parser)
    if name in ("retire", "reseed"):
        parser.add_argument("--yes", action="store_true", help="confirm --all")
    if name == "reseed":
        about = "erase the tables of mode history first; without it the seed ends and adds versions, and erases none"
        parser.add_argument("--discard-history", action="store_true", help=about)
    parser.set_defaults(run=_late("deliver_operate", "set_desired_state"), action=name)


def _add_verify(actions: argparse._SubParsersAction[Any]) -> None:
    verify = actions.add_parser(
        "verify", help="compare destinations with the source", description=VERIFY, parents=[json_option()]
    )
    _add_config(verify)
    verify.add_argument("destinations", nargs="*", metavar="DEST", help="names (default: all)")
    verify.set_defaults(run=_late("deliver_check", "verify"), all=False)


def _add_repair(actions: argparse._SubParsersAction[Any]) -> None:
    repair = actions.add_parser(
        "repair",
        help="compare destinations with the source, and rewrite what differs",
        description=REPAIR,
        parents=[json_option()],
    )
    _add_config(repair)
    repair.add_argument("destinations", nargs="+", metavar="DEST", help="names")
    repair.add_argument("--dry-run", action="store_true", help="only show what would be rewritten")
    repair.add_argument("--force", action="store_true", help="repair even if seeding again costs less")
    repair.set_defaults(run=_late("deliver_repair", "repair"))


def _add_validate(actions: argparse._SubParsersAction[Any]) -> None:
    validate = actions.add_parser(
        "validate",
        help="check a pipeline without running it or writing anything; exit code 1: it has problems",
        parents=[json_option()],
    )
    _add_config(validate)
    validate.set_defaults(run=_late("deliver_check", "validate"))


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, metavar="CONFIG", help="the pipeline's YAML file")


def _add_destinations(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("destinations", nargs="*", metavar="DEST", help="names")
    parser.add_argument("--all", action="store_true", help="every destination of the pipeline")


def _late(module: str, function: str) -> Callable[[argparse.Namespace], int]:
    """A command whose module is loaded when it runs: other commands work without its packages."""

    def run(options: argparse.Namespace) -> int:
        command: Callable[[argparse.Namespace], int] = getattr(
            importlib.import_module(f"trunkline.cli.{module}"), function
        )
        return command(options)

    return run
