"""Columns of sources and destinations: one vocabulary of types, compared by name and never by position.

Types are spelled as in DuckDB (``BIGINT``, ``DECIMAL(18,3)``, ``TIMESTAMP WITH TIME ZONE``, ``INTEGER[]``); each kind
of destination translates them. Values travel as Arrow, UUID and JSON values as text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from msgspec import Struct

from trunkline.delivery.changes.rows import RESERVED_PREFIX
from trunkline.errors import ConfigError


class Column(Struct, frozen=True):
    name: str
    type: str
    nullable: bool = True


Columns = tuple[Column, ...]

ARROW_TYPES: Final[dict[str, pa.DataType]] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "UTINYINT": pa.uint8(),
    "USMALLINT": pa.uint16(),
    "UINTEGER": pa.uint32(),
    "UBIGINT": pa.uint64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "VARCHAR": pa.string(),
    "JSON": pa.string(),
    "UUID": pa.string(),
    "BLOB": pa.binary(),
    "DATE": pa.date32(),
    "TIME": pa.time64("us"),
    "TIMESTAMP": pa.timestamp("us"),
    "TIMESTAMP_S": pa.timestamp("s"),
    "TIMESTAMP_MS": pa.timestamp("ms"),
    "TIMESTAMP_NS": pa.timestamp("ns"),
    "TIMESTAMP WITH TIME ZONE": pa.timestamp("us", tz="UTC"),
}
ROUTABLE: Final = frozenset(
    {"VARCHAR", "BOOLEAN", "UUID", "DATE"}
    | {f"{sign}{size}" for sign in ("", "U") for size in ("TINYINT", "SMALLINT", "INTEGER", "BIGINT")}
)  # types whose text form is the same in every engine
NEVER_KEYS: Final = ("FLOAT", "DOUBLE", "JSON")  # equal values of these may have several representations
WIDER: Final[dict[str, tuple[str, ...]]] = {
    "TINYINT": ("SMALLINT", "INTEGER", "BIGINT"),
    "SMALLINT": ("INTEGER", "BIGINT"),
    "INTEGER": ("BIGINT",),
    "UTINYINT": ("USMALLINT", "UINTEGER", "UBIGINT"),
    "USMALLINT": ("UINTEGER", "UBIGINT"),
    "UINTEGER": ("UBIGINT",),
    "FLOAT": ("DOUBLE",),
}
PRECISION_MAX: Final = 38
LISTS_DEEP_MAX: Final = 16  # nested lists; a type may come from an untrusted entry
_DECIMAL: Final = re.compile(r"DECIMAL\((\d{1,4}),\s*(\d{1,4})\)")


def decimal_of(type_name: str) -> tuple[int, int] | None:
    """Precision and scale, or ``None`` if it is not a decimal type."""
    found = _DECIMAL.fullmatch(type_name)
    return (int(found[1]), int(found[2])) if found else None


def arrow_type(column: Column) -> pa.DataType:
    """The type in which a column's values travel; raises ``ConfigError`` for a type that cannot be delivered."""
    if (decimal := decimal_of(column.type)) is not None and max(1, decimal[1]) <= decimal[0] <= PRECISION_MAX:
        return pa.decimal128(*decimal)
    if column.type.endswith("[]") and column.type.count("[]") <= LISTS_DEEP_MAX:
        return pa.list_(arrow_type(Column(column.name, column.type[:-2])))
    if (known := ARROW_TYPES.get(column.type)) is not None:
        return known
    raise ConfigError(
        f"column {column.name!r:.200} has the type {column.type:.200}, which cannot be delivered; "
        "drop it from the source or cast it"
    )


def arrow_schema(columns: Sequence[Column]) -> pa.Schema:
    return pa.schema([pa.field(column.name, arrow_type(column)) for column in columns])


def widens(old: str, new: str) -> bool:
    """Whether ``new`` has every value of ``old`` and more, so that a destination can follow without loss."""
    if old == new:
        return False
    if (before := decimal_of(old)) is not None and (after := decimal_of(new)) is not None:
        return after[1] >= before[1] and after[0] - after[1] >= before[0] - before[1]
    return new in WIDER.get(old, ())


class Evolution(Struct, frozen=True):
    """How a destination's columns must change to take the source's rows."""

    added: Columns = ()
    widened: Columns = ()
    problems: tuple[str, ...] = ()  # differences that a destination cannot follow, as text

    @property
    def none(self) -> bool:
        return not (self.added or self.widened or self.problems)


def evolution(source: Sequence[Column], destination: Sequence[Column]) -> Evolution:
    """Order and nullability of columns do not matter."""
    held = {column.name: column for column in destination}
    wanted = {column.name for column in source}
    added = [column for column in source if column.name not in held]
    widened = [column for column in source if column.name in held and widens(held[column.name].type, column.type)]
    problems = [
        f"column {column.name!r} is {held[column.name].type} here and {column.type} in the source"
        for column in source
        if column.name in held and column.type != held[column.name].type and column not in widened
    ]
    problems += [f"column {column.name!r} is not in the source" for column in destination if column.name not in wanted]
    return Evolution(tuple(added), tuple(widened), tuple(problems))


def check_columns(columns: Sequence[Column], key: Sequence[str], routing: str | None) -> None:
    """Raises ``ConfigError`` that names a column which cannot be delivered, be a key or route."""
    names = {column.name: column for column in columns}
    folded: dict[str, str] = {}
    for column in columns:
        if (other := folded.setdefault(column.name.lower(), column.name)) != column.name:
            raise ConfigError(
                f"columns {other!r} and {column.name!r} differ only in case, which DuckDB, Delta and Spark ignore; "
                "rename one of them in the source"
            )
        if column.name.lower().startswith(RESERVED_PREFIX):
            raise ConfigError(
                f"column {column.name!r} begins with {RESERVED_PREFIX}, which is reserved; rename it in the source"
            )
        arrow_type(column)
    for name in key:
        if name not in names:
            raise ConfigError(f"key column {name!r} is not in the source table, which has {', '.join(names)}")
        if names[name].type in NEVER_KEYS or names[name].type.endswith("[]"):
            raise ConfigError(
                f"key column {name!r} is {names[name].type}, which cannot be compared exactly; choose another key"
            )
    if routing is not None and routing not in names:
        raise ConfigError(f"routing column {routing!r} is not in the source table, which has {', '.join(names)}")


def check_routing(columns: Sequence[Column], routing: str) -> None:
    """Raises ``ConfigError`` if the type of the routing column has no common text form."""
    kind = next((column.type for column in columns if column.name == routing), None)
    if kind is not None and kind not in ROUTABLE:
        raise ConfigError(
            f"routing.column: {routing!r} is {kind}; rows can be routed by text, integers, BOOLEAN, UUID or DATE: "
            "name such a column"
        )
