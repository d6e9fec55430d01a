"""The query of a chunk: rows of a table in key order after a cursor, and their texts as columns.

The texts are those of the types' output functions, which the stream uses, too. A cast to text would not do: it has its
own forms of `boolean`, `char(n)` and `inet`. A cursor holds the texts of a key, the order of the key's columns by which
it was read (that of the index then), and their collations: with others, what lies behind it is not the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import psycopg
import pyarrow as pa
from msgspec import Struct
from psycopg import sql

from trunkline.delivery.capture.postgres.change_batches import Table, placed
from trunkline.delivery.capture.postgres.tuple_columns import JoinedMessages, Texts, copied_rows
from trunkline.delivery.changes.groups import RowKind, TableRows
from trunkline.delivery.changes.schemas import TableSchema
from trunkline.errors import ProtocolError

TYPES: Final = """
SELECT t.oid::bigint, n.nspname::text, t.typname::text, p.nspname::text, f.proname::text
FROM pg_type AS t JOIN pg_namespace AS n ON n.oid = t.typnamespace
JOIN pg_proc AS f ON f.oid = t.typoutput JOIN pg_namespace AS p ON p.oid = f.pronamespace WHERE t.oid = ANY (%s)
"""
COLLATIONS: Final = """
SELECT coalesce(c.oid || ' ' || coalesce(pg_collation_actual_version(c.oid), ''), '')
FROM unnest(%s::int[]) WITH ORDINALITY AS k (number, place)
JOIN pg_attribute AS a ON a.attrelid = %s AND a.attnum = k.number
LEFT JOIN pg_collation AS c ON c.oid = a.attcollation ORDER BY k.place
"""
AS_TEXT: Final = (25, 1043)  # text, varchar: their binary form is the text


class TypeNames(Struct, frozen=True):
    type: tuple[str, str]  # schema, name
    output: tuple[str, str]


class Cursor(Struct, frozen=True, forbid_unknown_fields=True):
    """``order``: the numbers of the key's columns."""

    order: tuple[int, ...]
    after: tuple[str, ...]
    collations: tuple[str, ...] = ()


def cursor_of(encoded: bytes | None, schema: TableSchema) -> Cursor | None:
    """``None``: read from the beginning, which is always right; also if the key is another one now."""
    if encoded is None:
        return None
    try:
        cursor = msgspec.json.decode(encoded, type=Cursor)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ProtocolError(f"the log holds a cursor of another source ({encoded!r:.80}); use another log") from error
    key = {column.number for column in schema.columns if column.name in schema.key}
    fits = set(cursor.order) == key and len(cursor.after) == len(cursor.order) == len(key)
    return cursor if fits else None


def collations_of(connection: psycopg.Connection[Any], oid: int, order: Sequence[int]) -> tuple[str, ...]:
    """Of columns of a table, with their versions."""
    return tuple(text for (text,) in connection.execute(COLLATIONS.encode(), (list(order), oid)).fetchall())


def type_names(connection: psycopg.Connection[Any], oids: Sequence[int]) -> dict[int, TypeNames]:
    rows = connection.execute(TYPES.encode(), (list(oids),)).fetchall()
    return {oid: TypeNames((schema, name), (place, output)) for oid, schema, name, place, output in rows}


def chunk_query(
    schema: TableSchema, types: Mapping[int, TypeNames], order: Sequence[int], after: Cursor | None, limit: int | None
) -> sql.Composed:
    """``order``: the numbers of the columns to read by; none: a table without a key is read whole."""
    columns = {column.number: column for column in schema.columns}

    def name(number: int) -> sql.Composed:
        return sql.SQL("r.{}").format(sql.Identifier(columns[number].name))

    def text(number: int) -> sql.Composed:
        if (oid := columns[number].type_oid) in AS_TEXT:
            return name(number)
        output = sql.Identifier(*types[oid].output)
        return sql.SQL("pg_catalog.textin({}({}))").format(output, name(number))

    query = sql.SQL("SELECT {} FROM ONLY {} AS r").format(
        sql.SQL(", ").join(text(column.number) for column in schema.columns),
        sql.Identifier(schema.schema, schema.name),
    )
    comma = sql.SQL(", ")
    if after is not None:
        values = [
            sql.SQL("{}::{}").format(sql.Literal(value), sql.Identifier(*types[columns[number].type_oid].type))
            for number, value in zip(after.order, after.after, strict=True)
        ]
        names = comma.join(map(name, after.order))
        query += sql.SQL(" WHERE ROW({}) > ROW({})").format(names, comma.join(values))
    if order:
        query += sql.SQL(" ORDER BY {}").format(comma.join(map(name, order)))
    if limit is not None:
        query += sql.SQL(" LIMIT {}").format(sql.Literal(limit))
    return sql.SQL("COPY ({}) TO STDOUT (FORMAT binary)").format(query)


class CopiedRows:
    """Rows of a chunk, as the server sent them."""

    def __init__(self, table: Table, messages: Sequence[bytes]) -> None:
        self._table = table
        self._joined = JoinedMessages(messages)
        self._texts: list[Texts] = copied_rows(self._joined, len(table.schema.columns))

    def batch(self) -> pa.RecordBatch:
        """With their places. Raises ``UnfitValue``."""
        count = len(self._joined.starts)
        arrays = self._table.reader.arrays(self._texts, self._joined)
        places = placed(
            np.zeros(count, np.uint32), np.arange(count, dtype=np.uint32), np.full(count, RowKind.READ, np.int8)
        )
        return pa.RecordBatch.from_arrays(
            [*places, pa.nulls(count, pa.binary()), *arrays], schema=self._table.layout.arrow
        )

    def cursor(self, row: int, order: Sequence[int], collations: tuple[str, ...]) -> bytes:
        """After a row. Raises ``ProtocolError`` if its key is NULL."""
        place = {column.number: index for index, column in enumerate(self._table.schema.columns)}
        found = [self._texts[place[number]].text(self._joined, row) for number in order]
        if any(each is None for each in found):
            raise ProtocolError(f"a key of {self._table.schema.name} is NULL; restart the capture")
        texts = tuple(each.decode() for each in found if each is not None)
        return msgspec.json.encode(Cursor(tuple(order), texts, collations))

    def rows(self, batch: pa.RecordBatch) -> TableRows:
        return TableRows(self._table.schema.number, self._table.schema.version, batch)
