"""The format of DuckLake's catalog: names of types, and lists of changes."""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

CATALOG_FORMATS: Final = ("1.0",)
REWRITE: Final = "rewrite_delete"
NO_ROWS: Final = frozenset({REWRITE, "merge_adjacent", "inline_flush", "altered_table"})  # kinds that change no state
REWRITES_HISTORY: Final = frozenset({"inline_flush", "inlined_delete"})  # in one version: older ones also lose the rows
TYPES: Final = {
    "boolean": "BOOLEAN",
    "int8": "TINYINT",
    "int16": "SMALLINT",
    "int32": "INTEGER",
    "int64": "BIGINT",
    "uint8": "UTINYINT",
    "uint16": "USMALLINT",
    "uint32": "UINTEGER",
    "uint64": "UBIGINT",
    "float32": "FLOAT",
    "float64": "DOUBLE",
    "varchar": "VARCHAR",
    "json": "JSON",
    "uuid": "UUID",
    "blob": "BLOB",
    "date": "DATE",
    "time": "TIME",
    "timestamp": "TIMESTAMP",
    "timestamp_us": "TIMESTAMP",
    "timestamp_s": "TIMESTAMP_S",
    "timestamp_ms": "TIMESTAMP_MS",
    "timestamp_ns": "TIMESTAMP_NS",
    "timestamptz": "TIMESTAMP WITH TIME ZONE",
}
# kind:subject, where the subject is an id, or names in quotes with any characters
_CHANGE: Final = re.compile(r'(\w+):((?:"(?:[^"]|"")*"|[^,"])*)')


class WindowSummary(Struct, frozen=True):
    """The changes to a table in a window, by the change lists of its versions."""

    kinds: frozenset[str]
    complete: bool  # every version of the window still exists, with its change list
    new_files: int  # files with this id or a higher one were written after `after`

    @property
    def changes_rows(self) -> bool:
        return not (self.complete and self.kinds <= NO_ROWS)

    @property
    def may_move_rows(self) -> bool:
        return REWRITE in self.kinds or not self.complete


def changes(made: str) -> list[tuple[str, str]]:
    """A change list of the catalog as (kind, subject) pairs."""
    return [(found[1], found[2]) for found in _CHANGE.finditer(made)]


def kinds_by_subject(made: str) -> dict[str, frozenset[str]]:
    """The kinds of changes in a change list, by what they are about: for a table, its id."""
    found: dict[str, set[str]] = {}
    for kind, subject in changes(made):
        found.setdefault(subject, set()).add(kind)
    return {subject: frozenset(kinds) for subject, kinds in found.items()}


def duckdb_type(kind: str, child: tuple[str, str] | None) -> str:
    """A column's type as DuckDB spells it; ``child`` is a list's own column: (name, type)."""
    if kind == "list" and child is not None:
        return f"{duckdb_type(child[1], None)}[]"
    if kind.startswith("decimal"):
        return kind.upper().replace(" ", "")
    return TYPES.get(kind, kind.upper())
