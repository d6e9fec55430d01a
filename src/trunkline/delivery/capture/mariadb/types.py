"""Types of MariaDB columns: as they are declared, as rows of the binlog have them, and in our vocabulary.

A type that we do not have is captured as its text. `TIME` is one of them: MariaDB's is a duration from -838 to 838
hours, and not a time of the day. So is `DECIMAL` with more than 38 digits: nothing is rounded.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntEnum
from typing import Final

from msgspec import Struct

from trunkline.delivery.capture.mariadb.tablemap import BINARY, Wire, WireColumn
from trunkline.delivery.changes.columns import NEVER_KEYS, PRECISION_MAX
from trunkline.delivery.changes.schemas import SourceColumn
from trunkline.errors import ConfigError


class Family(IntEnum):
    """What a column is, in ``SourceColumn.type_oid``: logs have these numbers."""

    INTEGER = 1
    DECIMAL = 2
    FLOAT = 3
    DOUBLE = 4
    TEXT = 5  # modifier: characters, or -1
    BYTES = 6  # modifier: bytes, or -1
    DATE = 7
    DATETIME = 8
    TIMESTAMP = 9
    TIME = 10  # modifier: digits of a second
    YEAR = 11
    BIT = 12
    ENUM = 13
    SET = 14
    UUID = 15
    INET6 = 16
    INET4 = 17
    JSON = 18
    GEOMETRY = 19


INTEGERS: Final = {"tinyint": "TINYINT", "smallint": "SMALLINT", "mediumint": "INTEGER", "int": "INTEGER"}
INTEGERS["bigint"] = "BIGINT"
SYNONYMS: Final = {
    "integer": "int", "int1": "tinyint", "int2": "smallint", "int3": "mediumint", "middleint": "mediumint",
    "int4": "int", "int8": "bigint", "bool": "tinyint", "boolean": "tinyint", "dec": "decimal", "numeric": "decimal",
    "fixed": "decimal", "number": "decimal", "real": "double", "float8": "double", "float4": "float",
    "character": "char", "nchar": "char", "varchar2": "varchar", "nvarchar": "varchar", "clob": "longtext",
    "raw": "varbinary",
}  # fmt: skip
TEXTS: Final = {"char": 1, "varchar": -1, "tinytext": 255, "text": 65_535, "mediumtext": 2**24 - 1}
TEXTS["longtext"] = 2**31 - 1
BYTES: Final = {"binary": 1, "varbinary": -1, "tinyblob": 255, "blob": 65_535, "mediumblob": 2**24 - 1}
BYTES["longblob"] = 2**31 - 1
OTHERS: Final = {
    "double": (Family.DOUBLE, "DOUBLE"),
    "date": (Family.DATE, "DATE"),
    "datetime": (Family.DATETIME, "TIMESTAMP"),
    "timestamp": (Family.TIMESTAMP, "TIMESTAMP WITH TIME ZONE"),
    "time": (Family.TIME, "VARCHAR"),
    "year": (Family.YEAR, "SMALLINT"),
    "enum": (Family.ENUM, "VARCHAR"),
    "set": (Family.SET, "VARCHAR"),
    "uuid": (Family.UUID, "UUID"),
    "inet6": (Family.INET6, "VARCHAR"),
    "inet4": (Family.INET4, "VARCHAR"),
    "json": (Family.JSON, "JSON"),
}
GEOMETRIES: Final = frozenset(
    {"geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon"}
    | {"geometrycollection"}
)
_DECLARED: Final = re.compile(r"(\w+)\s*(?:\(([^)]*)\))?(.*)", re.DOTALL)
WIRE_INTEGERS: Final = {
    Wire.TINY: "TINYINT", Wire.SHORT: "SMALLINT", Wire.INT24: "INTEGER", Wire.LONG: "INTEGER", Wire.LONGLONG: "BIGINT",
}  # fmt: skip

# Of the metadata of a column: digits, bytes of a length, bytes of a number of labels.
LARGEST: Final[dict[int, int]] = {
    Wire.DATETIME2: 6, Wire.TIMESTAMP2: 6, Wire.TIME2: 6, Wire.NEWDECIMAL: 65, Wire.BLOB: 4, Wire.GEOMETRY: 4,
    Wire.ENUM: 2, Wire.SET: 8, Wire.BIT: 8,
}  # fmt: skip


class Declared(Struct, frozen=True):
    """A type in our vocabulary, and what it is in MariaDB."""

    type: str
    family: Family
    modifier: int = -1

    def column(self, name: str, number: int) -> SourceColumn:
        return SourceColumn(name, self.type, number, int(self.family), self.modifier)


def declared(text: str) -> Declared | None:
    """The type of a column of ``information_schema`` or of a statement; ``None`` for one that cannot be captured."""
    found = _DECLARED.fullmatch(text.strip().lower())
    if found is None:
        return None
    name, rest = SYNONYMS.get(found[1], found[1]), found[3]
    sizes = [int(size) for size in re.findall(r"\d+", found[2] or "")] if name not in ("enum", "set") else []
    if "compressed" in rest or "/*" in rest:
        return None  # compressed columns; UUIDs and times in an earlier form, which a comment marks
    if name in INTEGERS:
        unsigned = "unsigned" in rest or "zerofill" in rest
        return Declared("U" * unsigned + INTEGERS[name], Family.INTEGER)
    if name == "decimal":
        return _decimal(*(sizes or [10])[:2])
    if name == "float":
        wide = len(sizes) == 1 and sizes[0] > 24
        return Declared("DOUBLE", Family.DOUBLE) if wide else Declared("FLOAT", Family.FLOAT)
    if name == "bit":
        return _bits(sizes[0] if sizes else 1)
    if name in TEXTS or name in BYTES:
        return _characters(name, sizes, rest)
    if name in GEOMETRIES:
        return Declared("BLOB", Family.GEOMETRY)
    if name not in OTHERS:
        return None
    family, ours = OTHERS[name]
    return Declared(ours, family, sizes[0] if sizes else 0 if family in (Family.TIME, Family.DATETIME) else -1)


def _decimal(precision: int, scale: int = 0) -> Declared:
    ours = f"DECIMAL({precision},{scale})" if precision <= PRECISION_MAX else "VARCHAR"
    return Declared(ours, Family.DECIMAL, precision << 8 | scale)


def _bits(count: int) -> Declared:
    return Declared("BOOLEAN" if count == 1 else "UBIGINT", Family.BIT, count)


def _characters(name: str, sizes: Sequence[int], rest: str) -> Declared:
    binary = name in BYTES or re.search(r"(character set|charset)\s*=?\s*binary|\bbyte\b", rest) is not None
    length = sizes[0] if sizes else (BYTES if name in BYTES else TEXTS)[name]
    return Declared("BLOB", Family.BYTES, length) if binary else Declared("VARCHAR", Family.TEXT, length)


def from_wire(wire: WireColumn) -> Declared | None:
    """As far as rows of the binlog tell: a UUID looks like 16 bytes, and JSON like a text."""
    if wire.first > LARGEST.get(wire.type, wire.first) or (wire.type == Wire.NEWDECIMAL and wire.second > wire.first):
        return None
    if wire.type in WIRE_INTEGERS:
        return Declared("U" * wire.unsigned + WIRE_INTEGERS[Wire(wire.type)], Family.INTEGER)
    if wire.type == Wire.NEWDECIMAL:
        return _decimal(wire.first, wire.second)
    if wire.type == Wire.BIT:
        return _bits(wire.second * 8 + wire.first)
    if wire.type in (Wire.STRING, Wire.VARCHAR, Wire.VAR_STRING, Wire.BLOB):
        return Declared("BLOB", Family.BYTES) if wire.collation == BINARY else Declared("VARCHAR", Family.TEXT)
    simple = {
        Wire.FLOAT: "float", Wire.DOUBLE: "double", Wire.DATE: "date", Wire.YEAR: "year", Wire.ENUM: "enum",
        Wire.SET: "set", Wire.GEOMETRY: "geometry", Wire.DATETIME2: f"datetime({wire.first})",
        Wire.TIMESTAMP2: "timestamp", Wire.TIME2: f"time({wire.first})",
    }  # fmt: skip
    return declared(simple[Wire(wire.type)]) if wire.type in simple else None


SIXTEEN_BYTES: Final = (Family.UUID, Family.INET6)


def fits(wire: WireColumn, column: SourceColumn) -> bool:
    """Whether rows of the binlog have this column, under this name and with this type."""
    seen = from_wire(wire)
    if seen is None or wire.name != column.name:
        return False
    if column.type_oid in SIXTEEN_BYTES or column.type_oid == Family.INET4:
        return seen.family is Family.BYTES and wire.first == (4 if column.type_oid == Family.INET4 else 16)
    if column.type_oid == Family.JSON:
        return seen.family is Family.TEXT
    if seen.family is Family.TIME and column.modifier != seen.modifier:
        return False  # its text has other digits
    return (seen.family, seen.type) == (column.type_oid, column.type)


def may_be_key(columns: Sequence[SourceColumn]) -> bool:
    """Whether equal values of all these columns have one form."""
    return all(column.type not in NEVER_KEYS and column.type_oid != Family.GEOMETRY for column in columns)


def unfit_type(table: str, column: str, text: str) -> ConfigError:
    return ConfigError(
        f"column {column!r} of {table} has the type {text!r}, which cannot be captured; change it, "
        "or leave the table out"
    )
