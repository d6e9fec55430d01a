"""The part of an invalid file that can be compared with the source all the same: one run reports every problem.

Rules
 I1  An entry of ``tables`` with a problem counts for its tables, so that no other entry is taken for theirs; nothing
     else is reported about them.
 I2  Without what decides about every table (the source, keys, routing, columns) nothing is compared: the problems would
     not be those of the corrected file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from trunkline.delivery.changes.rows import RESERVED_PREFIX
from trunkline.delivery.changes.shape import Mask
from trunkline.delivery.config.addresses import Address
from trunkline.delivery.config.table_entries import read_table
from trunkline.delivery.config.table_patterns import LEFT_OUT, exact_name
from trunkline.delivery.config.tree import DestinationConfig, Pipeline, TableConfig
from trunkline.delivery.config.yaml_file import Problems, YamlNode
from trunkline.errors import ConfigError

DECISIVE: Final = ("source", "routing", "key", "mode", "columns", "computed", "tables", "pipeline")
NO_TABLE: Final = f"{LEFT_OUT}{RESERVED_PREFIX}"  # in the place of a pattern that cannot be read


class InvalidFile(ConfigError):
    """A file with problems. ``part``: what of it can be compared with the source, without the entries ``unread``."""

    def __init__(self, text: str, part: Pipeline | None, unread: frozenset[int]) -> None:
        super().__init__(text)
        self.part = part
        self.unread = unread


def invalid_file(
    root: YamlNode,
    found: Mapping[str, Any],
    source: Address | None,
    destinations: Sequence[DestinationConfig],
    problems: Problems,
) -> InvalidFile:
    """``found``: the keys of the pipeline that could be read."""
    nodes = root.at("tables").value
    entries = nodes if isinstance(nodes, list) else []
    unread = frozenset(number for number, each in enumerate(entries) if problems.concern(each.path))
    decided = not any(problems.concern(name, below=name != "tables") for name in DECISIVE)
    part = None
    if source is not None and decided and ("tables" in root.items()) == bool(entries):
        tables = tuple(_entry(each, read=number not in unread) for number, each in enumerate(entries))
        part = Pipeline(**{**found, "tables": tables}, source=source, destinations=tuple(destinations))
    if part is not None and problems.concern("mask_secret_env"):
        part = replace(part, mask={name: _unkeyed(mask) for name, mask in part.mask.items()})
    return InvalidFile(problems.text, part, unread)


def _entry(node: YamlNode, *, read: bool) -> TableConfig:
    if read and (entry := read_table(node, Problems(Path()))) is not None:
        return entry
    given = node.at("table").value if isinstance(node.value, dict) else node.value
    pattern = given if isinstance(given, str) else ""
    try:
        exact_name(pattern.removeprefix(LEFT_OUT))
    except ConfigError:
        pattern = NO_TABLE
    return TableConfig(table=pattern, line=node.line)


def _unkeyed(mask: Mask) -> Mask:
    """Without the key of hashes, which is a problem of its own."""
    return Mask("null") if mask.kind == "hash" else mask
