"""Reads rows of a PostgreSQL table by their keys, inside the transaction of a flush (T8)."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from trunkline.delivery.backends.postgres_session import BULK_MS, PostgresSession
from trunkline.delivery.backends.sql import identifier
from trunkline.delivery.changes.columns import Columns, arrow_schema
from trunkline.delivery.changes.rows import OP_COLUMN, Op
from trunkline.delivery.destinations.postgres_copy import shared_encoder
from trunkline.delivery.destinations.postgres_types import from_text, key_form, read_expression

ROWS_AT_ONCE: Final = 4_096  # their values are large; more: more memory, fewer: more statements


def held_rows(
    session: PostgresSession, table: str, keys: pa.Table, key: Columns, columns: Columns, *, where: str = ""
) -> pa.Table:
    """The rows that have these keys, of which none is NULL: the key columns and these. ``where``: a column that is
    true in them."""
    read = (*key, *columns)
    statement = _statement(table, key, read) + (f" AND {_named(where)}" if where else "")
    staged = keys.append_column(OP_COLUMN, pa.array(np.full(len(keys), Op.REPLACE, np.int8)))
    found = [arrow_schema(read).empty_table()]
    for start in range(0, len(keys), ROWS_AT_ONCE):
        with shared_encoder().chunk(staged.slice(start, ROWS_AT_ONCE)) as chunk:
            arrays = chunk.keys(key, key, inserts=True)
        rows = session.run(statement, arrays, wait_ms=BULK_MS).fetchall()
        texts = [pa.array([row[place] for row in rows], pa.string()) for place in range(len(read))]
        values = [from_text(array, column) for array, column in zip(texts, read, strict=True)]
        found.append(pa.table(values, schema=arrow_schema(read)))
    return pa.concat_tables(found)


def _statement(table: str, key: Columns, read: Columns) -> str:
    """Its parameters are the arrays of ``RowChunk.keys``."""
    forms = [key_form(column) for column in key]
    arrays = ", ".join(["%b::smallint[]", *(f"%b::{form.array}" for form in forms)])
    names = ", ".join(["op", *(f"k{n}" for n in range(len(key)))])
    listed = ", ".join(f"({read_expression(_named(column.name), column.type)})::text" for column in read)
    same = " AND ".join(
        f"{_named(column.name)} = k.k{n}::{form.cast}" for n, (column, form) in enumerate(zip(key, forms, strict=True))
    )
    return f"SELECT {listed} FROM {_escaped(table)} t JOIN unnest({arrays}) AS k ({names}) ON {same}"


def _named(name: str) -> str:
    return "t." + _escaped(identifier(name))


def _escaped(text: str) -> str:
    return text.replace("%", "%%")
