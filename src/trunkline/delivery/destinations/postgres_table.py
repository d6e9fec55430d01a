"""The state of one destination in a PostgreSQL database, and the statements about it.

The position record of a destination is a row of ``_trunkline_positions``: its position with its mark, the token of the
last writer, the source, and the columns in the source's types. (PostgreSQL has fewer types: a smallint does not show
that the source's column is a TINYINT.)
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from trunkline.delivery.backends.postgres_session import PostgresSession
from trunkline.delivery.backends.sql import identifier, literal
from trunkline.delivery.changes.columns import Column, Columns
from trunkline.delivery.changes.rows import RESERVED_PREFIX, Op
from trunkline.delivery.config.addresses import PostgresAddress
from trunkline.delivery.destinations.contract import Standing, mark_of
from trunkline.delivery.destinations.postgres_types import key_form, native_type, stored_type

POSITIONS: Final = f"{RESERVED_PREFIX}_positions"
SHAPE: Final = """
    SELECT c.relkind::text,
           (SELECT json_agg(json_build_array(a.attname, format_type(a.atttypid, a.atttypmod)) ORDER BY a.attnum)
              FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
           (SELECT json_object_agg(n.relname, ARRAY(
                       SELECT a.attname FROM unnest(i.indkey) AS k (n) JOIN pg_attribute a ON a.attnum = k.n
                        WHERE a.attrelid = i.indrelid))
              FROM pg_index i JOIN pg_class n ON n.oid = i.indexrelid
             WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid AND i.indnullsnotdistinct
               AND i.indpred IS NULL AND i.indexprs IS NULL)
      FROM pg_class c WHERE c.oid = to_regclass(%s)"""


class PostgresTableState(Struct, frozen=True):
    """The destination as one transaction sees it."""

    record: Standing | None
    remembered: Columns  # as recorded by the last writer
    exists: bool
    kind: str  # of relation; "r" is a plain table
    actual: dict[str, str]  # column -> PostgreSQL's type
    unique: dict[str, list[str]]  # unique indexes in which NULL equals NULL: name -> columns

    def columns(self) -> Columns:
        """In the recorded types, where they still match the actual ones."""
        known = {column.name: column for column in self.remembered if column.name in self.actual}
        names = [*known, *(name for name in self.actual if name not in known)]
        return tuple(
            known[name]
            if name in known and stored_type(known[name]) == self.actual[name]
            else Column(name, native_type(self.actual[name]))
            for name in names
        )

    def key_index(self, key: tuple[str, ...]) -> str | None:
        return next((name for name, columns in self.unique.items() if sorted(columns) == sorted(key)), None)


class PostgresNames:
    """The names in statements of one destination."""

    def __init__(self, address: PostgresAddress) -> None:
        self.address = address
        self.table = self.beside(address.table)
        self.positions = self.beside(POSITIONS)
        self.record = f"table_name = {literal(address.table)}"  # the condition that finds it

    def beside(self, name: str) -> str:
        """A table in the same schema."""
        return f"{identifier(self.address.schema)}.{identifier(name)}"


def positions_found(session: PostgresSession, names: PostgresNames) -> tuple[bool, bool]:
    """Whether there is a table of positions, and whether it has a column for marks."""
    place = f"to_regclass({literal(names.positions)})"
    marked = f"SELECT 1 FROM pg_attribute WHERE attrelid = {place} AND attname = 'mark' AND NOT attisdropped"
    row = session.run(f"SELECT {place} IS NOT NULL, EXISTS ({marked})").fetchone()
    assert row is not None
    return bool(row[0]), bool(row[1])


def positions_statements(names: PostgresNames) -> tuple[str, str]:
    """Create the table of positions, or add the last column to one of an older release."""
    table = (
        f"CREATE TABLE IF NOT EXISTS {names.positions} (table_name text PRIMARY KEY, "
        "position bigint NOT NULL, token bigint NOT NULL, source text NOT NULL, columns text NOT NULL)"
    )
    return table, f"ALTER TABLE {names.positions} ADD COLUMN IF NOT EXISTS mark text NOT NULL DEFAULT ''"


def read_state(
    session: PostgresSession, names: PostgresNames, *, recorded: bool, marked: bool = False, lock: bool = False
) -> PostgresTableState:
    """The record, if there may be one, and the table. ``lock`` locks the record until the transaction ends."""
    record, remembered = None, "[]"
    if recorded:
        mark = "mark" if marked else "''"
        columns = f"position, token, source, columns, {mark} FROM {names.positions.replace('%', '%%')}"
        statement = f"SELECT {columns} WHERE table_name = %s{' FOR UPDATE' if lock else ''}"
        row = session.run(statement, [names.address.table], prepare=True).fetchone()
        if row is not None:
            position, token, source, remembered, stored = row
            record = Standing(position, token, source, mark_of(position, stored))
    shape = session.run(SHAPE, [names.table], prepare=True).fetchone()
    kind, actual, unique = shape or ("", [], {})
    words = msgspec.json.decode(remembered, type=Columns)
    return PostgresTableState(record, words, shape is not None, kind, dict(actual or []), unique or {})


def removal(table: str, key: Columns, filled: Columns) -> str:
    """Removes rows by keys of which the ``filled`` columns are not NULL; counts them, and those due to an INSERT.

    Its parameters are the arrays of ``RowChunk.keys``.
    """
    forms = [key_form(column) for column in filled]
    arrays = ", ".join(["%b::smallint[]", *(f"%b::{form.array}" for form in forms)])
    names = ", ".join(["op", *(f"k{n}" for n in range(len(filled)))])
    tests = [
        f"{_escaped(column)} = k.k{n}::{form.cast}" for n, (column, form) in enumerate(zip(filled, forms, strict=True))
    ]
    tests += [f"{_escaped(column)} IS NULL" for column in key if column not in filled]
    return (
        f"WITH gone AS (DELETE FROM {table.replace('%', '%%')} t USING unnest({arrays}) AS k ({names}) "
        f"WHERE {' AND '.join(tests)} RETURNING k.op) "
        f"SELECT count(*), count(*) FILTER (WHERE op = {int(Op.INSERT)}) FROM gone"
    )


def _escaped(column: Column) -> str:
    return "t." + identifier(column.name).replace("%", "%%")
