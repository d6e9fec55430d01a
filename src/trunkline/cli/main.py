"""Entry point of ``trunkline``: parses the command line and turns outcomes into exit codes.

Exit codes: 0 all is well, 1 a violation was found, 2 the input was wrong (one line on standard error says how), 3 the
checker itself failed, 130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from trunkline.check.catalogue import Catalogue, shipped
from trunkline.check.runner import WorkerFailed
from trunkline.cli import WrongInput, check

INTERRUPTED = 130


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line; ``--help`` is there for the rest."""

    def error(self, message: str) -> NoReturn:
        raise WrongInput(f"{message} (see `{self.prog} --help`)")


def main(arguments: Sequence[str] | None = None, catalogue: Callable[[], Catalogue] = shipped) -> int:
    """Run one command; the return value is the process's exit code."""
    try:
        options = _parser().parse_args(arguments)
        code: int = options.run(options, catalogue)
        sys.stdout.flush()
    except WrongInput as error:
        print(f"trunkline: {error}", file=sys.stderr)
        return 2
    except WorkerFailed as error:
        print(f"trunkline: the checker itself failed\n{error}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        print("trunkline: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output left; keep the interpreter from complaining about it once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="trunkline", description="A replicated log. The protocol code that ships is what is checked.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    check.add_command(commands)
    version = commands.add_parser("version", help="print the version")
    version.set_defaults(run=_version)
    return parser


def _version(_options: argparse.Namespace, _catalogue: Callable[[], Catalogue]) -> int:
    try:
        print(f"trunkline {importlib.metadata.version('trunkline')}")
    except importlib.metadata.PackageNotFoundError:
        print("trunkline (run from a source tree that is not installed)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
