"""How columns are kept in a Delta table, which has fewer types than the shared vocabulary.

===================================  =======================  ====================================================
vocabulary                           kept as                  note
===================================  =======================  ====================================================
UTINYINT, USMALLINT, UINTEGER        short, integer, long     the next wider signed type
UBIGINT                              decimal(20,0)
UUID, JSON                           string
TIME                                 long                     microseconds since midnight
TIMESTAMP, TIMESTAMP_S, TIMESTAMP_MS timestamp_ntz            microseconds
TIMESTAMP WITH TIME ZONE             timestamp                microseconds, UTC
TIMESTAMP_NS                         refused                  microseconds would round it
===================================  =======================  ====================================================

Everything else is kept as it is, lists by their elements. The name in the vocabulary stays in the field's metadata, so
that columns come back as they were; so does the identity of the source, in the metadata of the first column.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from trunkline.delivery.changes.columns import ARROW_TYPES, Column, Columns, arrow_type
from trunkline.errors import DestinationHalted, SchemaMismatch

TYPE_KEY: Final = b"trunkline.type"
SOURCE_KEY: Final = b"trunkline.source"
STORED: Final[dict[str, pa.DataType]] = {
    "UTINYINT": pa.int16(),
    "USMALLINT": pa.int32(),
    "UINTEGER": pa.int64(),
    "UBIGINT": pa.decimal128(20, 0),
    "TIME": pa.int64(),
    "TIMESTAMP_S": pa.timestamp("us"),
    "TIMESTAMP_MS": pa.timestamp("us"),
}
_NAMES: Final = {
    ARROW_TYPES[name]: name
    for name in (
        *("BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "FLOAT", "DOUBLE", "VARCHAR", "BLOB", "DATE"),
        *("TIMESTAMP", "TIMESTAMP WITH TIME ZONE"),
    )
}


def stored_type(column: Column) -> pa.DataType:
    """The Arrow type of a column's values in a data file."""
    if column.type.endswith("[]"):
        return pa.list_(stored_type(Column(column.name, column.type[:-2])))
    if column.type == "TIMESTAMP_NS":
        raise SchemaMismatch(
            f"column {column.name!r} is TIMESTAMP_NS, and a Delta table keeps microseconds; "
            "cast it to TIMESTAMP in the source"
        )
    return STORED.get(column.type) or arrow_type(column)


def stored_schema(columns: Sequence[Column], source: str) -> pa.Schema:
    """The schema of a destination's table."""
    fields = [pa.field(column.name, stored_type(column), metadata={TYPE_KEY: column.type}) for column in columns]
    fields[0] = fields[0].with_metadata({**fields[0].metadata, SOURCE_KEY: source})
    return pa.schema(fields)


def source_identity(schema: pa.Schema) -> str | None:
    """The identity of the source whose rows a table holds, if it is a destination of ours."""
    for field in schema:
        if SOURCE_KEY in (field.metadata or {}):
            return str(field.metadata[SOURCE_KEY].decode())
    return None


def columns_of(schema: pa.Schema) -> Columns:
    """The columns of a destination in the shared vocabulary."""
    kept = [(field.metadata or {}).get(TYPE_KEY) for field in schema]
    names = [type_name(field.type) if name is None else name.decode() for field, name in zip(schema, kept, strict=True)]
    return tuple(Column(field.name, name) for field, name in zip(schema, names, strict=True))


def type_name(kept: pa.DataType) -> str:
    """The vocabulary's name for a type of a Delta table; one without a name there is spelled as Arrow does."""
    if pa.types.is_list(kept):
        return type_name(kept.value_type) + "[]"
    if pa.types.is_decimal(kept):
        return f"DECIMAL({kept.precision},{kept.scale})"
    return _NAMES.get(kept) or str(kept)


def conformed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The same rows with these columns and types, by name; a column that they lack is NULL."""
    return pa.Table.from_arrays([_conformed(table, field) for field in schema], schema=schema)


def _conformed(table: pa.Table, field: pa.Field) -> pa.ChunkedArray:
    at = table.schema.get_field_index(field.name)
    if at < 0:
        return pa.chunked_array([pa.nulls(len(table), field.type)])
    values = table.column(at)
    if values.type == field.type:
        return values
    try:
        return values.cast(field.type)
    except pa.ArrowInvalid as error:
        raise DestinationHalted(
            f"column {field.name!r} has a value that does not fit {field.type}: {error}; mend it in the source"
        ) from error
