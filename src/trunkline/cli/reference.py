"""The command line as a page of documentation: ``docs/cli.md`` is what this prints.

    python -m trunkline.cli.reference > docs/cli.md

It is made from the parser itself and not from its help text, whose line breaks hang on the terminal and on the Python.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from trunkline.cli import main
from trunkline.cli.connection import GROUP, cluster_options

HEAD = """\
# The command line

Made from the commands themselves by `python -m trunkline.cli.reference > docs/cli.md`; a test fails when it is stale.
In a clone, `./run trunkline ...` runs the command from the project's own environment, and `./run check ...` is short
for `./run trunkline check ...`. Shells can [complete](#trunkline-completion) commands, options and file names."""

CLUSTER = """\
## The cluster

Every command that talks to a cluster takes these. What a flag says outweighs the environment, and that the file."""


def reference() -> str:
    """The whole page."""
    parser = main.whole_parser()
    parts = [
        HEAD,
        paragraph(main.__doc__, "Exit codes"),
        CLUSTER,
        _table("option", cluster_actions(cluster_options())),
    ]
    for name, command, summary in commands(parser):
        parts.append(f"## trunkline {name}")
        parts.append((command.description or "").strip() or f"{summary[:1].upper()}{summary[1:]}.")
        parts += _tables(command)
        if cluster_actions(command):
            parts.append("And [the options of a cluster](#the-cluster).")
        if command.epilog:
            parts.append(f"```\n{command.epilog.strip()}\n```")
    return "\n\n".join(parts) + "\n"


def commands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser, str]]:
    """Every command with its parser and its line of help, in the order of ``--help``; those of a family one by one."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            summaries = {each.dest: each.help or "" for each in action._choices_actions}
            for name, command in action.choices.items():
                family = list(commands(command))
                yield from ((f"{name} {each}", *rest) for each, *rest in family)  # type: ignore[misc]
                if not family:
                    yield name, command, summaries.get(name, "")


def cluster_actions(command: argparse.ArgumentParser) -> list[argparse.Action]:
    """The options that say where the cluster is: the same for many commands, so they are shown once."""
    return [action for group in command._action_groups if group.title == GROUP for action in group._group_actions]


def _tables(command: argparse.ArgumentParser) -> Iterator[str]:
    shared = cluster_actions(command)
    actions = [each for each in command._actions if each.help != argparse.SUPPRESS and each not in shared]
    exclusive = [group._group_actions for group in command._mutually_exclusive_groups]
    alone = [action for action in actions if not any(action in group for group in exclusive)]
    positional = [action for action in alone if not action.option_strings]
    options = [action for action in alone if action.option_strings and action.dest != "help"]
    if positional:
        yield _table("argument", positional)
    for group in exclusive:
        yield "At most one of these:"
        yield _table("option", group)
    if options:
        yield "Further options:" if exclusive else "Options:"
        yield _table("option", options)


def _table(heading: str, actions: list[argparse.Action]) -> str:
    rows = [f"| `{invocation(action)}` | {action.help or ''} |" for action in actions]
    return "\n".join([f"| {heading} | meaning |", "|---|---|", *rows])


def invocation(action: argparse.Action) -> str:
    """How the option is written, with what it takes."""
    value = str(action.metavar or "")
    if not value and action.option_strings and action.nargs is None:
        value = action.dest.upper()
    if action.choices is not None and not action.metavar:
        value = f"{{{','.join(str(choice) for choice in action.choices)}}}"
    if action.nargs == "?" and not action.option_strings:
        value = f"[{value}]"
    if action.nargs == "*":
        value = f"[{value} ...]"
    if action.nargs == "+":
        value = f"{value} ..."
    return " ".join(part for part in (", ".join(action.option_strings), value) if part)


def paragraph(text: str | None, beginning: str) -> str:
    """The paragraph of a docstring that begins with these words, on one line."""
    paragraphs = [" ".join(each.split()) for each in (text or "").split("\n\n")]
    return next(each for each in paragraphs if each.startswith(beginning))


if __name__ == "__main__":
    print(reference(), end="")
