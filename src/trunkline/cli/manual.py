"""The command line as a manual page: ``docs/trunkline.1`` is what this prints.

    python -m trunkline.cli.manual > docs/trunkline.1

A wheel installs it, so that ``man trunkline`` works where Python's prefix is on man's path.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from trunkline.cli import main
from trunkline.cli.connection import cluster_options
from trunkline.cli.reference import cluster_actions, commands, invocation, paragraph

HEAD = """\
.\\" Made by python -m trunkline.cli.manual; a test fails when it is stale.
.TH TRUNKLINE 1 "" "Trunkline" "User Commands"
.SH NAME
trunkline \\- a totally ordered, replicated log of changes, and its delivery to many tables
.SH SYNOPSIS
.B trunkline
.I command
.RI [ options ]
.br
.B trunkline
.I command
.B \\-\\-help"""


def manual() -> str:
    """The whole page, in the macros of man(7)."""
    lines = [HEAD, ".SH COMMANDS"]
    for name, command, summary in commands(main.whole_parser()):
        lines.append(f".SS trunkline {_text(name)}")
        lines.append(_text(command.description or f"{summary[:1].upper()}{summary[1:]}."))
        shared = cluster_actions(command)
        lines += _options(each for each in command._actions if each not in shared and each.dest != "help")
        if shared:
            lines += [".PP", "And the options of a cluster, below."]
        if command.epilog:
            lines += [".PP", ".nf", _text(command.epilog.strip()), ".fi"]
    lines += [".SH THE CLUSTER", "What a flag says outweighs the environment, and that the file."]
    lines += _options(cluster_actions(cluster_options()))
    lines += [".SH EXIT STATUS", _text(paragraph(main.__doc__, "Exit codes"))]
    return "\n".join(lines) + "\n"


def _options(actions: Iterator[argparse.Action] | list[argparse.Action]) -> Iterator[str]:
    for action in actions:
        if action.help != argparse.SUPPRESS:
            yield ".TP"
            yield f".B {_text(invocation(action))}"
            yield _text(action.help or "")


def _text(text: str) -> str:
    """As it is: a backslash and a dash stand for themselves, and no line is taken for a macro."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "")
    return "\n".join(f"\\&{line}" if line.startswith((".", "'")) else line for line in escaped.split("\n"))


if __name__ == "__main__":
    print(manual(), end="")
