"""Entry point of ``trunkline``: parses the command line and turns outcomes into exit codes.

Exit codes: 0 success, 1 rejected or failed (`check`: a violation was found, `deliver verify`: a difference), 2 invalid
input or configuration, 3 the cluster, source or store is unreachable (`check`: the checker itself failed), 4 the
outcome is unknown, 130 interrupted. One line on standard error describes the error, with `--json` as an object.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

from trunkline.cli import INTERRUPTED, WrongInput
from trunkline.cli.examples import add_examples
from trunkline.cli.extras import missing_extra
from trunkline.cli.parser import Parser, no_command
from trunkline.errors import ConfigError, OutcomeUnknown, TrunklineError, Unreachable
from trunkline.version import version

if TYPE_CHECKING:
    from trunkline.check.catalogue import Catalogue

REFUSED = 1
WRONG_INPUT = 2
UNREACHABLE = 3
CHECKER_FAILED = 3
UNKNOWN = 4

# The module of each command, in the order of --help. A command loads only its own: an append does not wait until the
# checker is loaded, nor a check for the network.
MODULES = {
    "up": "up",
    "down": "up",
    "status": "status",
    "events": "events",
    "log": "logs",
    "append": "append",
    "read": "read",
    "tail": "read",
    "subscribe": "read",
    "peek": "read",
    "fill": "read",
    "reconfigure": "logs",
    "node": "nodes",
    "bench": "bench",
    "capture": "capture",
    "deliver": "deliver",
    "proxy": "proxy",
    "dashboard": "dashboard",
    "serve": "serve",
    "check": "check",
    "completion": "completion",
    "version": "version",
}


class CheckerFailed(Exception):
    """The checker itself failed."""


def main(arguments: Sequence[str] | None = None, catalogue: Callable[[], Catalogue] | None = None) -> int:
    """Run one command and return its exit code. ``catalogue`` is what ``check`` explores."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    as_json = "--json" in given
    try:
        options = _parser(given[0] if given else "").parse_args(given, argparse.Namespace(arguments=given))
        code: int = _check(options, catalogue) if given[0] == "check" else options.run(options)
        sys.stdout.flush()
    except WrongInput as error:
        _print_error("WrongInput", str(error), as_json)
        return WRONG_INPUT
    except TrunklineError as error:
        _print_error(type(error).__name__, str(error), as_json)
        return _exit_code(error)
    except ModuleNotFoundError as error:
        missing = missing_extra(error, f"trunkline {given[0]}")
        if missing is None:
            raise
        _print_error("ConfigError", missing, as_json)
        return WRONG_INPUT
    except CheckerFailed as error:
        print(f"trunkline: the checker itself failed\n{error}", file=sys.stderr)
        return CHECKER_FAILED
    except KeyboardInterrupt:
        _print_error("Interrupted", "interrupted", as_json)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of the output closed it; prevent a second error at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return REFUSED
    except OSError as error:  # of this machine, such as no space; the client handles errors of the network
        if error.strerror is None:
            raise
        what = f"{error.filename}: " if error.filename is not None else ""
        _print_error(type(error).__name__, f"{what}{error.strerror}", as_json)
        return REFUSED
    return code


def _print_error(kind: str, message: str, as_json: bool) -> None:
    text = json.dumps({"error": kind, "message": message}) if as_json else f"trunkline: {message}"
    print(text, file=sys.stderr)


def _exit_code(error: TrunklineError) -> int:
    match error:
        case ConfigError():
            return WRONG_INPUT
        case Unreachable():
            return UNREACHABLE
        case OutcomeUnknown():
            return UNKNOWN
    return REFUSED


def whole_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    return _parser()


def _parser(command: str = "") -> argparse.ArgumentParser:
    """The parser of one command, or of all commands if none is named."""
    parser = Parser(prog="trunkline", description="A replicated log of changes, and its delivery to many tables.")
    if command and command not in MODULES and not command.startswith("-"):
        parser.error(no_command(command, MODULES))
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name in dict.fromkeys([MODULES[command]] if command in MODULES else MODULES.values()):
        module = importlib.import_module(f"trunkline.cli.{name}")
        add = module.add_command if name == "check" else module.add_commands
        add(commands)
    add_examples(parser)
    return parser


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        print(f"trunkline {version()}")
        parser.exit()


def _check(options: argparse.Namespace, catalogue: Callable[[], Catalogue] | None) -> int:
    from trunkline.check.catalogue import shipped
    from trunkline.check.runner import WorkerFailed

    try:
        return int(options.run(options, catalogue or shipped))
    except WorkerFailed as error:
        raise CheckerFailed(str(error)) from None


if __name__ == "__main__":
    sys.exit(main())
