"""``trunkline deliver ...``: the changes of one table, delivered to many. Each command loads what it needs late."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from trunkline.cli.tables import json_option

EXAMPLES: Final = """\
examples:
  trunkline deliver init --sample                an example, orders.yaml, and the lake that it reads
  trunkline deliver run orders.yaml --once       deliver what there is, and end
  trunkline deliver run orders.yaml              deliver until Ctrl-C, which drains; a second one stops sooner
  trunkline deliver verify orders.yaml           compare every destination with the source
"""
RUN: Final = """\
Deliver the changes of a pipeline until it is stopped. Ctrl-C or SIGTERM drains: everything is brought to the version
of that moment. A second one ends as soon as what is in flight has ended, a third one at once; nothing is ever half
written. On a terminal a few lines tell how far it is, otherwise a line for each thing that happens."""
VERIFY: Final = """\
Compare destinations with their part of the source, each at its own position; the pipeline may run meanwhile. A mirror
must equal its part. With mode append every row of the source must be there, as often; rows that were changed or removed
later stay, and are only counted. Exit code 1: something differs; 3: nothing does, but some could not be compared."""


def add_commands(commands: argparse._SubParsersAction[Any]) -> None:
    deliver = commands.add_parser(
        "deliver",
        help="deliver the changes of one table to many, on Spark",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = deliver.add_subparsers(required=True, metavar="ACTION")
    _add_init(actions)
    _add_run(actions)
    _add_status(actions)
    for name, text in (
        ("pause", "stop writing destinations; they keep their place"),
        ("resume", "go on with destinations that were paused, drained, retired or halted"),
        ("drain", "bring destinations to the source's version of now, then leave them alone"),
        ("retire", "leave destinations alone for good: their tables stay, and belong to nobody"),
        ("reseed", "fill destinations anew from the source as it is"),
    ):
        _add_operation(actions, name, text)
    _add_verify(actions)
    _add_validate(actions)


def _add_init(actions: argparse._SubParsersAction[Any]) -> None:
    init = actions.add_parser(
        "init", help="write a commented example of a pipeline; nothing is overwritten", parents=[json_option()]
    )
    init.add_argument(
        "file", type=Path, nargs="?", default=Path("orders.yaml"), metavar="FILE", help="default: orders.yaml"
    )
    init.add_argument(
        "--sample", action="store_true", help="also make the lake that it reads: orders of 20 tenants, with a history"
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
    run.add_argument("--once", action="store_true", help="end when everything is at the source's version of now")
    run.add_argument("--name", default="", help="of this deliverer (default: the machine's)")
    run.add_argument("--master", metavar="URL", help="where tasks run (default: spark.master of the file)")
    run.add_argument("--log-format", choices=("text", "json"), help="of log lines, and print them on a terminal, too")
    run.add_argument("-v", "--verbose", action="store_true", help="more of them")
    run.set_defaults(run=_late("deliver_run", "run"))


def _add_status(actions: argparse._SubParsersAction[Any]) -> None:
    status = actions.add_parser("status", help="show where every destination is", parents=[json_option()])
    _add_config(status)
    status.add_argument("--watch", action="store_true", help="again every two seconds, until Ctrl-C")
    status.set_defaults(run=_late("deliver_operate", "status"))


def _add_operation(actions: argparse._SubParsersAction[Any], name: str, text: str) -> None:
    parser = actions.add_parser(name, help=text, parents=[json_option()])
    _add_config(parser)
    _add_destinations(parser)
    if name in ("retire", "reseed"):
        parser.add_argument("--yes", action="store_true", help="really, with --all")
    parser.set_defaults(run=_late("deliver_operate", "set_desired_state"), action=name)


def _add_verify(actions: argparse._SubParsersAction[Any]) -> None:
    verify = actions.add_parser(
        "verify", help="compare destinations with the source", description=VERIFY, parents=[json_option()]
    )
    _add_config(verify)
    verify.add_argument("destinations", nargs="*", metavar="DEST", help="names (default: all)")
    verify.set_defaults(run=_late("deliver_check", "verify"), all=False)


def _add_validate(actions: argparse._SubParsersAction[Any]) -> None:
    validate = actions.add_parser(
        "validate",
        help="check a pipeline without running it or writing anything; exit code 1: something is wrong",
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
    """A command whose module is loaded when it runs: the rest of the command line works without its packages."""

    def run(options: argparse.Namespace) -> int:
        command: Callable[[argparse.Namespace], int] = getattr(
            importlib.import_module(f"trunkline.cli.{module}"), function
        )
        return command(options)

    return run
