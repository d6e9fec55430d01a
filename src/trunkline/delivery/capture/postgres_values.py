"""Columns and values of a PostgreSQL table that is captured: its types in our vocabulary, its texts as Arrow values.

Types without a place there travel as their text, and so does `numeric` without a scale: nothing is rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import psycopg
import pyarrow as pa
from msgspec import Struct
from psycopg.adapt import Transformer
from psycopg.pq import Format

from trunkline.delivery.capture.pgoutput import Relation, RelationColumn, Row
from trunkline.delivery.columns import Column, Columns, arrow_type
from trunkline.errors import ProtocolError

TYPES: Final = {
    16: "BOOLEAN",
    21: "SMALLINT",
    23: "INTEGER",
    20: "BIGINT",
    700: "FLOAT",
    701: "DOUBLE",
    17: "BLOB",
    25: "VARCHAR",
    1043: "VARCHAR",
    1042: "VARCHAR",
    1082: "DATE",
    1083: "TIME",
    1114: "TIMESTAMP",
    1184: "TIMESTAMP WITH TIME ZONE",
    2950: "UUID",
    114: "JSON",
    3802: "JSON",
}
ARRAYS: Final = {  # of types that a list may hold
    1000: "BOOLEAN",
    1005: "SMALLINT",
    1007: "INTEGER",
    1016: "BIGINT",
    1021: "FLOAT",
    1022: "DOUBLE",
    1009: "VARCHAR",
    1015: "VARCHAR",
    1182: "DATE",
    1115: "TIMESTAMP",
    1185: "TIMESTAMP WITH TIME ZONE",
    2951: "UUID",
}
NUMERIC: Final = 1700
PRECISION_MOST: Final = 38


class TableValues(Struct, frozen=True):
    """How one shape of a table is read."""

    relation: tuple[RelationColumn, ...]
    columns: Columns

    def arrow(self, rows: Sequence[Row], connection: psycopg.Connection[Any]) -> pa.Table:
        """Rows of the server's texts as Arrow."""
        loaders = Transformer(connection)
        arrays = []
        for index, (found, column) in enumerate(zip(self.relation, self.columns, strict=True)):
            load = _loader(column, loaders.get_loader(found.type_oid, Format.TEXT).load)
            try:
                values = [None if row[index] is None else load(row[index]) for row in rows]
                arrays.append(pa.array(values, arrow_type(column)))
            except (pa.ArrowInvalid, pa.ArrowTypeError, psycopg.DataError, ValueError, OverflowError) as error:
                raise ProtocolError(
                    f"column {column.name!r} of type {column.type} has a value that cannot be captured: {error}; "
                    "change it in the table"
                ) from error
        return pa.table(arrays, names=[column.name for column in self.columns])


def table_values(relation: Relation | Sequence[RelationColumn]) -> TableValues:
    found = relation.columns if isinstance(relation, Relation) else tuple(relation)
    return TableValues(found, tuple(Column(each.name, type_of(each)) for each in found))


def type_of(column: RelationColumn) -> str:
    if column.type_oid == NUMERIC and column.modifier >= 4:
        precision, scale = (column.modifier - 4) >> 16 & 0xFFFF, (column.modifier - 4) & 0x7FF
        if precision <= PRECISION_MOST and scale <= precision:
            return f"DECIMAL({precision},{scale})"
    if column.type_oid in ARRAYS:
        return f"{ARRAYS[column.type_oid]}[]"
    return TYPES.get(column.type_oid, "VARCHAR")


def _loader(column: Column, load: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """From the server's text to what Arrow takes; ``load`` is psycopg's own."""
    if column.type in ("VARCHAR", "JSON"):
        return lambda text: bytes(text).decode()
    if column.type == "UUID[]":
        return lambda text: [None if each is None else str(each) for each in load(text)]
    if column.type == "UUID":
        return lambda text: str(load(text))
    return load
