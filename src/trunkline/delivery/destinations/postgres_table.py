"""The tables of destinations as the catalog of a PostgreSQL database has them, and the statements about their keys.

A record remembers columns in the source's types, because PostgreSQL has fewer: a smallint does not show that the
source's column is a TINYINT.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from trunkline.delivery.backends.postgres_session import PostgresSession
from trunkline.delivery.backends.sql import identifier
from trunkline.delivery.changes.columns import Column, Columns
from trunkline.delivery.changes.history import CURRENT, VALID_TO, VALID_TO_TIME
from trunkline.delivery.changes.rows import Mode, Op
from trunkline.delivery.destinations.postgres_records import TableName
from trunkline.delivery.destinations.postgres_types import key_form, native_type, stored_type

SHAPES: Final = """
    SELECT w.schema::text, w.name::text, c.relkind::text,
           (SELECT json_agg(json_build_array(a.attname, format_type(a.atttypid, a.atttypmod)) ORDER BY a.attnum)
              FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
           (SELECT json_object_agg(n.relname, json_build_array(
                       coalesce(pg_get_expr(i.indpred, i.indrelid), ''),
                       ARRAY(SELECT a.attname FROM unnest(i.indkey) AS k (n) JOIN pg_attribute a ON a.attnum = k.n
                              WHERE a.attrelid = i.indrelid)))
              FROM pg_index i JOIN pg_class n ON n.oid = i.indexrelid
             WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid AND i.indnullsnotdistinct
               AND i.indexprs IS NULL)
      FROM unnest(%s::name[], %s::name[]) AS w (schema, name)
      JOIN pg_namespace s ON s.nspname = w.schema
      JOIN pg_class c ON c.relnamespace = s.oid AND c.relname = w.name"""


class TableShape(Struct, frozen=True):
    """A table as one transaction sees it."""

    kind: str  # of relation; "r" is a plain table
    actual: dict[str, str]  # column -> PostgreSQL's type
    unique: dict[str, tuple[str, list[str]]]  # indexes in which NULL equals NULL: name -> condition, columns

    def columns(self, remembered: Columns) -> Columns:
        """In the remembered types, where they still match the actual ones."""
        known = {column.name: column for column in remembered if column.name in self.actual}
        names = [*known, *(name for name in self.actual if name not in known)]
        return tuple(
            known[name]
            if name in known and stored_type(known[name]) == self.actual[name]
            else Column(name, native_type(self.actual[name]))
            for name in names
        )

    def key_index(self, key: tuple[str, ...], mode: Mode) -> str | None:
        """The index that a mode needs; append needs none."""
        wanted = (CURRENT if mode == "history" else "", sorted(key))
        return next((name for name, (test, names) in self.unique.items() if (test, sorted(names)) == wanted), None)


def read_shapes(session: PostgresSession, names: Iterable[TableName]) -> dict[TableName, TableShape]:
    """Of those that exist, in one query."""
    wanted = sorted(set(names))
    if not wanted:
        return {}
    rows = session.run(SHAPES, [[schema for schema, _ in wanted], [name for _, name in wanted]], prepare=True)
    return {
        (schema, name): TableShape(
            kind, dict(actual or []), {index: (test, columns) for index, (test, columns) in (unique or {}).items()}
        )
        for schema, name, kind, actual, unique in rows.fetchall()
    }


def removal(table: str, key: Columns, filled: Columns) -> str:
    """Removes rows by keys of which the ``filled`` columns are not NULL; counts them: all, those due to an INSERT and
    those due to a REMOVE.

    Its parameters are the arrays of ``RowChunk.keys``.
    """
    arrays, names, tests = _joined(key, filled, ())
    return (
        f"WITH gone AS (DELETE FROM {_escaped(table)} t USING unnest({arrays}) AS k ({names}) "
        f"WHERE {tests} RETURNING k.op) {_counts('gone')}"
    )


def closing(table: str, key: Columns, filled: Columns, end: Columns) -> str:
    """Ends open versions of a history by keys, as ``removal``; the arrays of ``end``, position and time, follow."""
    arrays, names, tests = _joined(key, filled, end)
    first = len(filled)
    ends = [f"k.k{first + n}::{key_form(column).cast}" for n, column in enumerate(end)]
    return (
        f"WITH closed AS (UPDATE {_escaped(table)} t SET {VALID_TO} = {ends[0]}, {VALID_TO_TIME} = {ends[1]}, "
        f"{CURRENT} = false FROM unnest({arrays}) AS k ({names}) WHERE t.{CURRENT} AND {tests} RETURNING k.op) "
        f"{_counts('closed')}"
    )


def open_version(table: str, key: Columns, filled: Columns) -> str:
    """One key that has an open version in a history, as text; its parameters are those of ``removal``."""
    arrays, names, tests = _joined(key, filled, ())
    return (
        f"SELECT ROW({', '.join(map(_named, key))})::text FROM {_escaped(table)} t, unnest({arrays}) AS k ({names}) "
        f"WHERE t.{CURRENT} AND {tests} LIMIT 1"
    )


def _joined(key: Columns, filled: Columns, beside: Columns) -> tuple[str, str, str]:
    """The arrays of the parameters, the names of their columns, and the condition that finds the rows."""
    forms = [key_form(column) for column in filled]
    arrays = ["%b::smallint[]", *(f"%b::{key_form(column).array}" for column in (*filled, *beside))]
    names = ["op", *(f"k{n}" for n in range(len(filled) + len(beside)))]
    tests = [
        f"{_named(column)} = k.k{n}::{form.cast}" for n, (column, form) in enumerate(zip(filled, forms, strict=True))
    ]
    tests += [f"{_named(column)} IS NULL" for column in key if column not in filled]
    return ", ".join(arrays), ", ".join(names), " AND ".join(tests)


def _counts(name: str) -> str:
    kinds = ", ".join(f"count(*) FILTER (WHERE op = {int(op)})" for op in (Op.INSERT, Op.REMOVE))
    return f"SELECT count(*), {kinds} FROM {name}"


def _named(column: Column) -> str:
    return "t." + _escaped(identifier(column.name))


def _escaped(text: str) -> str:
    return text.replace("%", "%%")
