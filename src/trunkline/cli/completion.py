"""``trunkline completion``: a completion script for a shell."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

SHELLS: Final = ("bash", "zsh", "tcsh")
DESCRIPTION: Final = """\
Print a script that completes commands, options and file names in a shell. Load it at the start of the
shell, and create it again after an update."""
EXAMPLES: Final = """\
examples:
  trunkline completion bash > ~/.local/share/bash-completion/completions/trunkline
  trunkline completion zsh > ~/.zfunc/_trunkline     with `fpath=(~/.zfunc $fpath)` before `compinit` in ~/.zshrc
  trunkline completion tcsh > ~/.trunkline.tcsh      with `source ~/.trunkline.tcsh` in ~/.tcshrc
"""


def add_commands(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser(
        "completion",
        help="print a script that completes commands in a shell",
        description=DESCRIPTION,
        epilog=EXAMPLES,
    )
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))
    parser.set_defaults(run=_completion)


def _completion(options: argparse.Namespace) -> int:
    import shtab  # only this command needs it

    from trunkline.cli.main import whole_parser

    parser = whole_parser()
    for action in _actions(parser):
        if action.type is Path or (action.metavar and "FILE" in str(action.metavar)):
            kind = shtab.DIRECTORY if action.dest == "dir" or action.metavar == "DIR" else shtab.FILE
            action.complete = kind  # type: ignore[attr-defined]
    print(shtab.complete(parser, options.shell))
    return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)
        else:
            yield action
