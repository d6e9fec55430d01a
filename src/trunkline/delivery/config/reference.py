"""The documentation of a pipeline's file: a table of every key, and an example."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files
from typing import Any, Final

from msgspec import Struct

from trunkline.delivery.config.address_rules import KINDS, NOTES
from trunkline.delivery.config.tree import (
    ColumnsConfig,
    ControlConfig,
    DestinationConfig,
    DiscoverConfig,
    FlushConfig,
    Pipeline,
    ReadingConfig,
    RetryConfig,
    RoutingConfig,
    SparkConfig,
    TableConfig,
)
from trunkline.delivery.config.values import Key, keys_of

EXAMPLE_FILE: Final = "example.yaml"
SECTIONS: Final[dict[str, tuple[str, type[Struct]]]] = {
    "routing": ("routing.", RoutingConfig),
    "tables": ("tables[].", TableConfig),
    "columns": ("columns.", ColumnsConfig),
    "destinations": ("destinations[].", DestinationConfig),
    "discover": ("discover.", DiscoverConfig),
    "flush": ("flush.", FlushConfig),
    "retry": ("retry.", RetryConfig),
    "reading": ("reading.", ReadingConfig),
    "control": ("control.", ControlConfig),
    "spark": ("spark.", SparkConfig),
}
INHERITED: Final = {  # optional in the file, though the tree always has them
    "values": "its name; every row without `routing`",
    "mode": "`mode` of the pipeline",
    "duplicates": "`duplicates` of the pipeline",
    "seed": "`seed` of the pipeline",
    "template": "`defaults`",
}
UNWRITTEN: Final = ("address", "seed_from", "line")  # of the tree, not of the file
DEFAULTS_ROW: Final = (
    "| `defaults` | a mapping with the keys of a destination except `name` and `values` | none | merged into every "
    "destination and the template, whose own keys win; `{name}` and `{value}` in an address are the "
    "destination's, `{table}` and `{schema}` those of each table of `tables` |"
)
DESTINATION_ROW: Final = (
    "| `destinations[]` | an address (below) and the keys that follow | required, or `discover` | "
    "one table, or one set of tables, that follows its part of the source |"
)


def example() -> str:
    """A commented file with an embedded source and 20 tenants, valid as written."""
    return files("trunkline.delivery.config").joinpath(EXAMPLE_FILE).read_text("utf-8")


def reference() -> str:
    """Every key of the file, as two Markdown tables: of the file itself, and of an address in it."""
    lines = _head("key")
    for name, key in keys_of(Pipeline).items():
        if name == "destinations":
            lines += [DEFAULTS_ROW, DESTINATION_ROW]
        if name not in SECTIONS:
            lines.append(_row(name, key))
            continue
        prefix, struct = SECTIONS[name]
        lines += _rows((prefix + inner, each) for inner, each in keys_of(struct).items() if inner not in UNWRITTEN)
    lines += ["", *_head("key of an address"), *_address_rows()]
    return "\n".join(lines) + "\n"


def _address_rows() -> list[str]:
    note = "selects the other keys; a source cannot be `iceberg` or `postgres`"
    rows = [f"| `type` | {', '.join(KINDS)} | required | {note} |"]
    for kind, address in KINDS.items():
        for name, key in keys_of(address).items():
            note = NOTES.get(f"{kind}.{name}") or NOTES[name]
            rows.append(_line(f"`{name}` ({kind})", key.allowed, _default(key.required, key.default), note))
    return rows


def _rows(keys: Iterable[tuple[str, Key]]) -> list[str]:
    return [_row(name, key) for name, key in keys]


def _row(name: str, key: Key) -> str:
    inherited = INHERITED.get(key.attribute) if key.required else None
    return _line(f"`{name}`", key.allowed, inherited or _default(key.required, key.default), key.note)


def _head(first: str) -> list[str]:
    return [f"| {first} | allowed | default | |", "|---|---|---|---|"]


def _line(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default(required: bool, value: Any) -> str:
    if required:
        return "required"
    if value is None or value in ((), {}):
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value}`"
