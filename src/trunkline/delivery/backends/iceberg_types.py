"""How columns are stored in an Iceberg table, which has fewer types than the shared vocabulary.

===================================  =======================  ====================================================
vocabulary                           stored as                note
===================================  =======================  ====================================================
TINYINT, SMALLINT                    int
UTINYINT, USMALLINT, UINTEGER        int, int, long           the next wider signed type
UBIGINT                              decimal(20,0)
JSON                                 string
TIMESTAMP_S, TIMESTAMP_MS            timestamp                microseconds
TIMESTAMP_NS                         refused                  microseconds would round it
===================================  =======================  ====================================================

Other types are stored as they are, lists by their elements. The table property ``trunkline.columns`` has the names in
the vocabulary, so that columns are read back as they were. A column that another program changed has its stored type.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from trunkline.delivery.changes.columns import Column, Columns, arrow_type, decimal_of
from trunkline.errors import SchemaMismatch

STORED: Final = {
    "TINYINT": "INTEGER",
    "SMALLINT": "INTEGER",
    "UTINYINT": "INTEGER",
    "USMALLINT": "INTEGER",
    "UINTEGER": "BIGINT",
    "UBIGINT": "DECIMAL(20,0)",
    "JSON": "VARCHAR",
    "TIMESTAMP_S": "TIMESTAMP",
    "TIMESTAMP_MS": "TIMESTAMP",
}
PROMOTED: Final = {("INTEGER", "BIGINT"), ("FLOAT", "DOUBLE")}  # without a rewrite of any file


def stored_type(column: Column) -> str:
    """The type of a column in the table, as DuckDB spells it."""
    if column.type.endswith("[]"):
        return stored_type(Column(column.name, column.type[:-2])) + "[]"
    if column.type == "TIMESTAMP_NS":
        raise SchemaMismatch(
            f"column {column.name!r} is TIMESTAMP_NS, and an Iceberg table stores microseconds; "
            "cast it to TIMESTAMP in the source"
        )
    if (decimal := decimal_of(column.type)) is not None:
        arrow_type(column)
        return f"DECIMAL({decimal[0]},{decimal[1]})"
    return STORED.get(column.type, column.type)


def is_promoted(old: str, new: str) -> bool:
    """Whether Iceberg reads files of the old stored type as the new one."""
    before, after = decimal_of(old), decimal_of(new)
    if before is not None and after is not None:
        return before[1] == after[1] and before[0] <= after[0]
    return (old, new) in PROMOTED


def written_types(columns: Iterable[Column]) -> str:
    """For the property."""
    return msgspec.json.encode({column.name: column.type for column in columns}).decode()


def read_types(written: str | None) -> dict[str, str]:
    """From the property; empty if it is not there, or is not ours."""
    try:
        return msgspec.json.decode(written or "{}", type=dict[str, str])
    except msgspec.MsgspecError:
        return {}


def columns_of(stored: Columns, known: Mapping[str, str]) -> Columns:
    """The columns of a table in the shared vocabulary."""
    return tuple(_column(column, known.get(column.name)) for column in stored)


def _column(stored: Column, known: str | None) -> Column:
    if known is not None and known != "TIMESTAMP_NS" and stored_type(Column(stored.name, known)) == stored.type:
        return Column(stored.name, known, stored.nullable)
    return stored
