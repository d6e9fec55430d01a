"""Reads a YAML file into values with line numbers, and collects problems.

Rules
 F1  A plain scalar is a text, unless it is ``true``, ``false``, ``null``, ``~``, nothing, or a whole number in plain
     digits: a tenant called ``no``, ``007``, ``12:30`` or ``2026-01-01`` needs no quotes.
 F2  A key appears once in its mapping. Tags and aliases are rejected.
 F3  Problems are collected, each with file, line and path, so that one run reports them all.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import yaml
from msgspec import Struct

from trunkline.errors import ConfigError

FILE_BYTES_MAX: Final = 16 * 1024 * 1024  # a hundred thousand destinations
DEPTH_MAX: Final = 16
PROBLEMS_SHOWN_MAX: Final = 50
WHOLE_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]{0,17})", re.ASCII)
WORDS: Final[dict[str, bool | None]] = {"true": True, "false": False, "null": None, "~": None, "": None}


class YamlNode(Struct):
    """A value of the file, with its line and path."""

    path: str
    line: int
    value: str | int | bool | list[YamlNode] | dict[str, YamlNode] | None

    def items(self) -> dict[str, YamlNode]:
        """Of a mapping; empty for anything else."""
        return self.value if isinstance(self.value, dict) else {}

    def at(self, key: str) -> YamlNode:
        """The value of a key; if absent, an empty node with the line and path where it would be."""
        return self.items().get(key) or YamlNode(self._child(key), self.line, None)

    def _child(self, key: str | int) -> str:
        if isinstance(key, int):
            return f"{self.path}[{key}]"
        return f"{self.path}.{key}" if self.path else key


class Problems:
    """The problems of one file, by line."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._found: dict[
            tuple[int, str], None
        ] = {}  # a problem of a default occurs at every destination, and is reported once
        self._paths: set[str] = set()
        self.count = 0

    def add(self, node: YamlNode, message: str) -> None:
        self.count += 1
        self._paths.add(node.path)
        path = node.path if node.path.isprintable() else repr(node.path)
        where = f"{path}: " if path else ""
        self._found[node.line, f"{self._file}:{node.line}: {where}{message}"] = None

    def concern(self, path: str, *, below: bool = True) -> bool:
        """Whether there is a problem of a key; ``below``: or of what it holds."""
        return path in self._paths or (below and any(each.startswith((f"{path}.", f"{path}[")) for each in self._paths))

    @property
    def text(self) -> str:
        """One line for each problem."""
        lines = [text for _, text in sorted(self._found, key=lambda found: found[0])]
        hidden = len(lines) - PROBLEMS_SHOWN_MAX
        if hidden > 0:
            lines[PROBLEMS_SHOWN_MAX:] = [f"and {hidden} more; correct these first"]
        return "\n".join(lines)


def read_document(file: Path, problems: Problems) -> YamlNode:
    """The file's mapping. Raises ``ConfigError`` if the file cannot be read or is not valid YAML."""
    root = parse_document(_text(file), file, problems)
    if root is None or root.value is None:
        raise ConfigError(f"{file} is empty; `trunkline deliver init` writes an example")
    if not isinstance(root.value, dict):
        raise ConfigError(f"{file}:{root.line}: the file must be a mapping of keys, such as `pipeline: orders`")
    return root


def _text(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            content = opened.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}; name the pipeline's YAML file") from None
    except ValueError:
        raise ConfigError(f"{str(file)!r} is not a valid file name; name the pipeline's YAML file") from None
    if len(content) > FILE_BYTES_MAX:
        raise ConfigError(
            f"{file} is larger than {FILE_BYTES_MAX} bytes; use `discover` instead of listing destinations"
        )
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 at byte {error.start}; save it as UTF-8") from None


def parse_document(text: str, file: Path, problems: Problems) -> YamlNode | None:
    """The only document of a text, ``None`` if there is none; duplicate keys are added to ``problems``."""
    building = _Building(file, problems)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the first is ten times as fast, but needs libyaml
    try:
        for event in yaml.parse(text, Loader=loader):
            building.take(event)
    except yaml.YAMLError as error:
        line, why = _reason(error, text)
        raise ConfigError(f"{file}:{line}: not valid YAML: {why}; correct it") from None
    return building.root


def _reason(error: Any, text: str) -> tuple[int, str]:
    mark = getattr(error, "problem_mark", None)
    if mark is not None:
        return mark.line + 1, str(error.problem)
    position = getattr(error, "position", 0)
    return text.count("\n", 0, position) + 1, str(getattr(error, "reason", error))


class _Building:
    """Builds nodes from events, without recursion: the file controls the depth."""

    def __init__(self, file: Path, problems: Problems) -> None:
        self.root: YamlNode | None = None
        self._file = file
        self._problems = problems
        self._open: list[YamlNode] = []
        self._keys: list[YamlNode | None] = []  # of each open mapping: the key that waits for its value

    def take(self, event: Any) -> None:
        line = event.start_mark.line + 1
        if isinstance(event, yaml.DocumentStartEvent) and self.root is not None:
            raise self._refusal(line, "a second document starts here; a file holds one pipeline")
        if isinstance(event, yaml.AliasEvent):
            raise self._refusal(line, f"the alias *{event.anchor} is not supported; put shared keys under `defaults`")
        if getattr(event, "tag", None) is not None:
            raise self._refusal(line, f"the tag {event.tag} is not supported; quote the text")
        if isinstance(event, yaml.ScalarEvent):
            self._put_scalar(event, line)
        elif isinstance(event, yaml.MappingStartEvent):
            self._enter(line, {})
        elif isinstance(event, yaml.SequenceStartEvent):
            self._enter(line, [])
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            self._open.pop()
            self._keys.pop()

    def _put_scalar(self, event: Any, line: int) -> None:
        if self._open and isinstance(self._open[-1].value, dict) and self._keys[-1] is None:
            self._keys[-1] = YamlNode(self._open[-1]._child(event.value), line, event.value)
        else:
            self._put(line, scalar(event.value) if event.implicit[0] else event.value)

    def _enter(self, line: int, empty: list[YamlNode] | dict[str, YamlNode]) -> None:
        if self._open and isinstance(self._open[-1].value, dict) and self._keys[-1] is None:
            raise self._refusal(line, "a key must be a text")
        if len(self._open) >= DEPTH_MAX:
            raise self._refusal(line, f"nested deeper than {DEPTH_MAX}; no key of a pipeline is")
        self._open.append(self._put(line, empty))
        self._keys.append(None)

    def _put(self, line: int, value: str | int | bool | list[YamlNode] | dict[str, YamlNode] | None) -> YamlNode:
        if not self._open:
            self.root = YamlNode("", line, value)
            return self.root
        holder, key = self._open[-1], self._keys[-1]
        if isinstance(holder.value, list):
            node = YamlNode(holder._child(len(holder.value)), line, value)
            holder.value.append(node)
            return node
        assert isinstance(holder.value, dict)
        assert key is not None
        self._keys[-1] = None
        node = YamlNode(key.path, key.line, value)
        name = str(key.value)
        if name in holder.value:
            self._problems.add(node, f"the key is given twice, first in line {holder.value[name].line}; keep one")
        else:
            holder.value[name] = node
        return node

    def _refusal(self, line: int, message: str) -> ConfigError:
        return ConfigError(f"{self._file}:{line}: {message}")


def scalar(text: str) -> str | int | bool | None:
    """The value of a plain scalar (F1)."""
    if text in WORDS:
        return WORDS[text]
    return int(text) if WHOLE_NUMBER.fullmatch(text) else text
