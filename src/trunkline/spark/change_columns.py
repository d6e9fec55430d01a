"""The columns of a captured table's changes: where and when each happened, then the columns of the table.

The columns are those of the newest version of the table when the source was created. They are recognized by their
number in the source database, whatever their names. A change of another version has NULL in columns that it lacks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import types as t

from trunkline.delivery.changes.columns import decimal_of
from trunkline.delivery.changes.database_reader import PLACES, Step
from trunkline.delivery.changes.groups import KIND, SEQ, TX, UNCHANGED, RowKind, TableRows
from trunkline.delivery.changes.schemas import TableSchema
from trunkline.errors import ConfigError

PLACE_COLUMNS: Final[dict[str, t.DataType]] = {
    "_kind": t.StringType(),
    "_glsn": t.LongType(),
    "_seq": t.LongType(),
    "_tx": t.LongType(),
    "_commit_time": t.TimestampType(),
    "_unchanged": t.ArrayType(t.StringType()),
}
KINDS: Final = {
    RowKind.INSERT: "insert",
    RowKind.DELETE: "delete",
    RowKind.UPDATE_OLD: "update_preimage",
    RowKind.UPDATE_NEW: "update_postimage",
    RowKind.TRUNCATE: "truncate",
    RowKind.READ: "read",
}
TYPES: Final[dict[str, t.DataType]] = {
    "BOOLEAN": t.BooleanType(),
    "TINYINT": t.ByteType(),
    "SMALLINT": t.ShortType(),
    "INTEGER": t.IntegerType(),
    "BIGINT": t.LongType(),
    "UTINYINT": t.ShortType(),  # Spark has no types without a sign: the next wider one
    "USMALLINT": t.IntegerType(),
    "UINTEGER": t.LongType(),
    "UBIGINT": t.DecimalType(20, 0),
    "FLOAT": t.FloatType(),
    "DOUBLE": t.DoubleType(),
    "VARCHAR": t.StringType(),
    "JSON": t.StringType(),
    "UUID": t.StringType(),
    "BLOB": t.BinaryType(),
    "DATE": t.DateType(),
    "TIME": t.StringType(),
    "TIMESTAMP": t.TimestampNTZType(),
    "TIMESTAMP_S": t.TimestampNTZType(),
    "TIMESTAMP_MS": t.TimestampNTZType(),
    "TIMESTAMP_NS": t.TimestampNTZType(),
    "TIMESTAMP WITH TIME ZONE": t.TimestampType(),
}


def spark_type(kind: str) -> t.DataType:
    """Of a type in our vocabulary."""
    if kind.endswith("[]"):
        return t.ArrayType(spark_type(kind[:-2]))
    if (decimal := decimal_of(kind)) is not None:
        return t.DecimalType(*decimal)
    return TYPES[kind]


def changes_schema(table: TableSchema) -> t.StructType:
    """Raises ``ConfigError`` if the table has a column of a reserved name."""
    schema = t.StructType()
    for name, kind in PLACE_COLUMNS.items():
        schema.add(name, kind)
    for column in table.columns:
        if column.name.lower() in PLACE_COLUMNS:
            raise ConfigError(
                f"table {table.schema}.{table.name} has a column {column.name}, which is a name of this source: rename "
                "it, or read the entries without the option changes"
            )
        schema.add(column.name, spark_type(column.type))
    return schema


def check_changes_schema(schema: t.StructType, table: TableSchema) -> None:
    """Raises ``ConfigError`` unless every column is one of the changes of this table, with its type."""
    known = {field.name.lower(): field.dataType.simpleString() for field in changes_schema(table).fields}
    for field in schema.fields:
        if known.get(field.name.lower()) != field.dataType.simpleString():
            choices = ", ".join(f"{name} {kind.upper()}" for name, kind in known.items())
            raise ConfigError(
                f"the changes of {table.schema}.{table.name} have no column {field.name} "
                f"{field.dataType.simpleString().upper()}; choose from: {choices}"
            )


def change_batch(step: Step, rows: TableRows, version: TableSchema, table: TableSchema, wanted: Any) -> Any:
    """Changes of one version as a record batch of the wanted columns of the table."""
    places = {column.number: place for place, column in enumerate(version.columns)}
    numbers = {column.name.lower(): column.number for column in table.columns}
    arrays = []
    for field in wanted:
        if field.name.lower() in PLACE_COLUMNS:
            array = _place(field.name.lower(), step, rows, version)
        elif (place := places.get(numbers[field.name.lower()])) is None:
            array = pa.nulls(rows.batch.num_rows, field.type)
        else:
            array = rows.batch.column(PLACES + place)
        arrays.append(_cast(array, field, version, step.glsn))
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)


def _cast(array: Any, field: Any, version: TableSchema, glsn: int) -> Any:
    if array.type == field.type:
        return array
    try:
        if pa.types.is_timestamp(array.type) and array.type.unit == "ns":
            return array.cast(field.type, safe=False)  # Spark has microseconds
        return array.cast(field.type)
    except pa.ArrowInvalid as error:
        raise ConfigError(
            f"column {field.name} of {version.schema}.{version.name} is {array.type} at position {glsn}, and its "
            f"values are not of the type that it has at the end, {field.type} ({error!s:.200}); read another range"
        ) from None


def _place(name: str, step: Step, rows: TableRows, version: TableSchema) -> Any:
    batch, count = rows.batch, rows.batch.num_rows
    match name:
        case "_kind":
            names = pa.array([KINDS[kind] for kind in RowKind], pa.string())
            return names.take(batch.column(KIND).cast(pa.int32()))
        case "_glsn":
            return pa.array([step.glsn], pa.int64()).take(pa.array([0] * count, pa.int32()))
        case "_seq":
            return batch.column(SEQ).cast(pa.int64())
        case "_unchanged":
            return _unchanged(batch.column(UNCHANGED), version)
    if not step.transactions:  # a snapshot is read at no single time
        return pa.nulls(count, pa.int64() if name == "_tx" else pa.timestamp("us", tz="UTC"))
    of_transaction = [each.xid if name == "_tx" else each.commit_us for each in step.transactions]
    found = pa.array(of_transaction, pa.int64()).take(batch.column(TX))
    return found if name == "_tx" else found.cast(pa.timestamp("us", tz="UTC"))


def _unchanged(bits: Any, version: TableSchema) -> Any:
    """The names of the columns that the source did not send; NULL if it sent all."""
    kind = pa.list_(pa.string())
    if bits.null_count == len(bits):
        return pa.nulls(len(bits), kind)
    names: list[Sequence[str] | None] = []
    for each in bits.to_pylist():
        unsent = int.from_bytes(each or b"", "little")
        found = [column.name for place, column in enumerate(version.columns) if unsent >> place & 1]
        names.append(found if each is not None else None)
    return pa.array(names, kind)
