"""How columns are stored in a Delta table, which has fewer types than the shared vocabulary.

===================================  =======================  ====================================================
vocabulary                           stored as                note
===================================  =======================  ====================================================
UTINYINT, USMALLINT, UINTEGER        short, integer, long     the next wider signed type
UBIGINT                              decimal(20,0)
UUID, JSON                           string
TIME                                 long                     microseconds since midnight
TIMESTAMP, TIMESTAMP_S, TIMESTAMP_MS timestamp_ntz            microseconds
TIMESTAMP WITH TIME ZONE             timestamp                microseconds, UTC
TIMESTAMP_NS                         refused                  microseconds would round it
===================================  =======================  ====================================================

Other types are stored as they are, lists by their elements. The field's metadata has the name in the vocabulary, so
that columns are read back as they were; the metadata of the first column also has the identity of the source.
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
            f"column {column.name!r} is TIMESTAMP_NS, and a Delta table stores microseconds; "
            "cast it to TIMESTAMP in the source"
        )
    return STORED.get(column.type) or arrow_type(column)


def stored_schema(columns: Sequence[Column], source: str) -> pa.Schema:
    """The schema of a destination's table."""
    fields = [pa.field(column.name, stored_type(column), metadata={TYPE_KEY: column.type}) for column in columns]
    fields[0] = fields[0].with_metadata({**fields[0].metadata, SOURCE_KEY: source})
    return pa.schema(fields)


def source_identity(schema: pa.Schema) -> str | None:
    """The identity of the source whose rows a table holds, if it is a destination."""
    for field in schema:
        if SOURCE_KEY in (field.metadata or {}):
            return str(field.metadata[SOURCE_KEY].decode())
    return None


def columns_of(schema: pa.Schema) -> Columns:
    """The columns of a destination in the shared vocabulary."""
    known = [(field.metadata or {}).get(TYPE_KEY) for field in schema]
    names = [
        type_name(field.type) if name is None else name.decode() for field, name in zip(schema, known, strict=True)
    ]
    return tuple(Column(field.name, name) for field, name in zip(schema, names, strict=True))


def type_name(stored: pa.DataType) -> str:
    """The vocabulary's name for a type of a Delta table, or else Arrow's."""
    if pa.types.is_list(stored):
        return type_name(stored.value_type) + "[]"
    if pa.types.is_decimal(stored):
        return f"DECIMAL({stored.precision},{stored.scale})"
    return _NAMES.get(stored) or str(stored)


def conformed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The same rows with these columns and types, by name; a missing column is NULL."""
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
            f"column {field.name!r} has a value that does not fit {field.type}: {error}; fix it in the source"
        ) from error
