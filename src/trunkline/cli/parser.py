"""The parser of every command: an error is one line, with the most similar word."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from trunkline.cli import WrongInput

ALIKE = 0.7  # too low: unrelated words are suggested; too high: none for a typo in a short word
EXAMPLE = "example"  # an epilog that starts with it is printed unchanged


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """A hint for a message about an unknown word; empty if no word is similar."""
    close = difflib.get_close_matches(word, [each for each in words if each != word], n=1, cutoff=ALIKE)
    return f"; did you mean {close[0]}?" if close else ""


class Parser(argparse.ArgumentParser):
    """Reports an error in one line, without the usage."""

    usual_command = ""  # of its subcommands: the one that is meant if none is named

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **{"formatter_class": HelpFormatter, **keywords})

    def error(self, message: str) -> NoReturn:
        raise WrongInput(f"{message} (see `{self.prog} --help`)")

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """An unknown argument is an error of its command, not of ``trunkline``."""
        if self.usual_command and args and args[0] not in ("-h", "--help") and not self._names_command(args[0]):
            args = [self.usual_command, *args]
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(self._unknown(unknown))
        return found, unknown

    def _names_command(self, word: str) -> bool:
        families = [action for action in self._actions if isinstance(action, argparse._SubParsersAction)]
        return any(word in action.choices for action in families)

    def _unknown(self, unknown: Sequence[str]) -> str:
        option = next((each.partition("=")[0] for each in unknown if each.startswith("-")), None)
        if option is None:
            return f"unexpected argument {' '.join(unknown)}"
        if any(isinstance(action, argparse._SubParsersAction) for action in self._actions):
            return f"unknown option {option} before the command; put it after the command"
        return f"unknown option {option}{did_you_mean(option, self._option_string_actions)}"

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        names = [str(choice) for choice in action.choices]
        if isinstance(action, argparse._SubParsersAction):
            self.error(no_command(str(value), names))
        text = f"invalid choice: {value!r} (choose from {', '.join(names)}){did_you_mean(str(value), names)}"
        raise argparse.ArgumentError(action, text)


def no_command(name: str, names: Iterable[str]) -> str:
    return f"there is no command {name!r}{did_you_mean(name, names)}"


class HelpFormatter(argparse.HelpFormatter):
    """Wraps descriptions, but not examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith(EXAMPLE):
            return "".join(indent + line for line in text.splitlines(keepends=True))
        return super()._fill_text(text, width, indent)
