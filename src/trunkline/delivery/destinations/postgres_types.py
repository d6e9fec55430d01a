"""The vocabulary of column types in PostgreSQL: as stored, as written, as compared, and as read back.

Every value is read back as it was written, or its type or the value is refused: nothing is rounded silently.

    type                    stored as            remarks
    TINYINT, UTINYINT       smallint             PostgreSQL has no one-byte and no unsigned types,
    USMALLINT, UINTEGER     integer, bigint      so each is stored in the next wider type
    UBIGINT                 numeric(20,0)
    VARCHAR, JSON           text, json           a NUL character is refused; json keeps its text
    TIMESTAMP_S, _MS, _NS   timestamp            fractions of a microsecond are refused
    T[]                     array of T           no arrays of arrays, and none of DECIMAL or UBIGINT
"""

from __future__ import annotations

import json
import re
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from trunkline.delivery.backends.sql import identifier, literal
from trunkline.delivery.changes.columns import Column, arrow_type, decimal_of
from trunkline.errors import SchemaMismatch

NAME_BYTES_MAX: Final = 63  # PostgreSQL silently truncates longer names

# As PostgreSQL's own format_type() spells them, so that they compare.
STORED: Final[dict[str, str]] = {
    "BOOLEAN": "boolean",
    "TINYINT": "smallint",
    "SMALLINT": "smallint",
    "INTEGER": "integer",
    "BIGINT": "bigint",
    "UTINYINT": "smallint",
    "USMALLINT": "integer",
    "UINTEGER": "bigint",
    "UBIGINT": "numeric(20,0)",
    "FLOAT": "real",
    "DOUBLE": "double precision",
    "VARCHAR": "text",
    "JSON": "json",
    "UUID": "uuid",
    "BLOB": "bytea",
    "DATE": "date",
    "TIME": "time without time zone",
    "TIMESTAMP": "timestamp without time zone",
    "TIMESTAMP_S": "timestamp without time zone",
    "TIMESTAMP_MS": "timestamp without time zone",
    "TIMESTAMP_NS": "timestamp without time zone",
    "TIMESTAMP WITH TIME ZONE": "timestamp with time zone",
}
_NATIVE: Final[dict[str, str]] = {
    "boolean": "BOOLEAN",
    "smallint": "SMALLINT",
    "integer": "INTEGER",
    "bigint": "BIGINT",
    "real": "FLOAT",
    "double precision": "DOUBLE",
    "text": "VARCHAR",
    "character varying": "VARCHAR",
    "json": "JSON",
    "uuid": "UUID",
    "bytea": "BLOB",
    "date": "DATE",
    "time without time zone": "TIME",
    "timestamp without time zone": "TIMESTAMP",
    "timestamp with time zone": "TIMESTAMP WITH TIME ZONE",
}
# DuckDB writes only these types in PostgreSQL's binary form.
_WRITTEN: Final[dict[str, str]] = {
    "TINYINT": "SMALLINT",
    "UTINYINT": "SMALLINT",
    "USMALLINT": "INTEGER",
    "UINTEGER": "BIGINT",
    "UBIGINT": "DECIMAL(20,0)",
    "UUID": "UUID",  # from text
    "TIMESTAMP_S": "TIMESTAMP",
    "TIMESTAMP_MS": "TIMESTAMP",
    "TIMESTAMP_NS": "TIMESTAMP",
}
_PER_SECOND: Final[dict[str, int]] = {
    "TIMESTAMP": 10**6,
    "TIMESTAMP WITH TIME ZONE": 10**6,
    "TIMESTAMP_S": 1,
    "TIMESTAMP_MS": 10**3,
    "TIMESTAMP_NS": 10**9,
}
_NUMERIC: Final = re.compile(r"numeric\((\d+),(\d+)\)")


def stored_type(column: Column) -> str:
    """The type of a table's column; raises ``SchemaMismatch`` for one that cannot be held."""
    if len(column.name.encode()) > NAME_BYTES_MAX:
        raise SchemaMismatch(
            f"column {column.name!r}: PostgreSQL allows names of up to {NAME_BYTES_MAX} bytes; rename it with "
            "`columns.rename`, or in the source"
        )
    if column.type.endswith("[]"):
        element = column.type[:-2]
        if element not in STORED or element == "UBIGINT":
            raise SchemaMismatch(
                f"column {column.name!r} is {column.type}, which a PostgreSQL destination cannot hold; cast it in the "
                "source, to DOUBLE[] or to JSON"
            )
        return ("character varying" if element in ("VARCHAR", "JSON") else STORED[element]) + "[]"
    if (decimal := decimal_of(column.type)) is not None:
        return f"numeric({decimal[0]},{decimal[1]})"
    arrow_type(column)  # raises for a type that cannot be delivered at all
    return STORED[column.type]


def native_type(stored: str) -> str:
    """The type of the vocabulary for one of PostgreSQL; for other types its own name."""
    if stored.endswith("[]"):
        return native_type(stored[:-2]) + "[]"
    if (found := _NUMERIC.fullmatch(stored)) is not None:
        return f"DECIMAL({found[1]},{found[2]})"
    return _NATIVE.get(stored, stored.upper())


def written_expression(column: Column) -> str:
    """The expression, in DuckDB, of a column's values as they are written."""
    name, array = identifier(column.name), column.type.endswith("[]")
    if column.type == "TIMESTAMP_NS":
        problem = literal("it has nanoseconds, which PostgreSQL does not keep; cast it to TIMESTAMP in the source")
        lost = f"isfinite({name}) AND epoch_ns({name}) % 1000 <> 0"
        return f"CASE WHEN {lost} THEN error({problem}) ELSE {name}::TIMESTAMP END"
    if (cast := _WRITTEN.get(column.type.removesuffix("[]"))) is not None:
        return f"{name}::{cast}{'[]' if array else ''}"
    return name


class KeyForm(Struct, frozen=True):
    """How a key column's values travel in an array: DuckDB cannot write arrays of decimals."""

    expression: str  # in DuckDB
    array: str  # type of the parameter
    cast: str  # what the array's elements are cast to


def key_form(column: Column) -> KeyForm:
    stored = stored_type(column)
    if stored.startswith("numeric"):
        return KeyForm(f"{written_expression(column)}::VARCHAR", "character varying[]", stored)
    if stored == "text":
        return KeyForm(written_expression(column), "character varying[]", stored)
    return KeyForm(written_expression(column), f"{stored}[]", stored)


def read_expression(name: str, type_name: str) -> str:
    """The expression, in PostgreSQL, of a column's values as text for ``from_text``."""
    if type_name.endswith("[]"):
        element = read_expression("e", type_name[:-2])
        listed = f"SELECT ({element})::text FROM unnest({name}) WITH ORDINALITY AS u (e, n) ORDER BY n"
        return f"CASE WHEN {name} IS NOT NULL THEN to_json(ARRAY({listed})) END"
    if type_name == "BLOB":
        return f"encode({name}, 'hex')"
    if type_name == "DATE":
        return _finite(name, f"{name} - DATE '1970-01-01'", 2**31 - 1)
    if type_name == "TIME":
        return f"(extract(epoch FROM {name}) * 1000000)::bigint"
    if (per_second := _PER_SECOND.get(type_name)) is not None:
        return _finite(name, f"(extract(epoch FROM {name}) * {per_second})::bigint", 2**63 - 1)
    return f"{name}::text"


def _finite(name: str, number: str, infinity: int) -> str:
    """PostgreSQL and DuckDB have infinite times; in Arrow they are the largest and the smallest number."""
    infinite = f"WHEN {name} > DATE '1970-01-01' THEN {infinity} ELSE -{infinity}"
    return f"CASE WHEN {name} IS NULL THEN NULL WHEN isfinite({name}) THEN {number} {infinite} END"


def from_text(texts: pa.Array, column: Column) -> pa.Array:
    """The values of a column, from the text of ``read_expression``."""
    wanted = arrow_type(column)
    if column.type.endswith("[]"):
        lists = [None if text is None else json.loads(text) for text in texts.to_pylist()]
        flat = pa.array([item for each in lists if each is not None for item in each], pa.string())
        ends = [0]
        for each in lists:
            ends.append(ends[-1] + len(each or ()))
        items = from_text(flat, Column(column.name, column.type[:-2]))
        absent = pa.array([each is None for each in lists], pa.bool_())
        return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), items, type=wanted, mask=absent)
    if column.type == "BLOB":
        return pa.array([None if text is None else bytes.fromhex(text) for text in texts.to_pylist()], wanted)
    if pa.types.is_date(wanted):
        return pc.cast(texts, pa.int32()).view(wanted)
    if pa.types.is_temporal(wanted):
        return pc.cast(texts, pa.int64()).view(wanted)
    return pc.cast(texts, wanted)
