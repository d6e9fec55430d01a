"""Reads the catalog of a PostgreSQL database: which tables are captured, and what one table is like.

What is captured: ordinary, permanent tables outside of the system's schemas. A partitioned table has no rows of its
own: its partitions are captured, each as a table of its own. A pattern that matches a partitioned table selects all of
them. (As one table it could not be exact: the server streams neither the truncation of a partition under the name of
the whole, nor the rows that come and go when a partition is attached or detached.) A table that others inherit from is
captured without their rows. Views, foreign tables, unlogged and temporary tables have no changes in the WAL.

A definition is later than the place in the stream for which it is read: `shape_changes` judges what that means. The
session must have the settings `SESSION`, so that defaults have the texts that the stream would have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import psycopg
from msgspec import Struct, structs
from psycopg import sql

from trunkline.delivery.capture.postgres.pgoutput import Relation, RelationColumn
from trunkline.delivery.capture.postgres.values import type_of
from trunkline.delivery.changes.schemas import Identity, SchemaChange, SourceColumn, TableSchema
from trunkline.delivery.config.table_patterns import TablePatterns

TABLES: Final = """
SELECT c.oid::bigint, n.nspname::text, c.relname::text, c.relkind = 'r', c.relfilenode::bigint,
       c.xmin::text::bigint, CASE WHEN c.relispartition THEN i.inhparent::bigint END
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
LEFT JOIN pg_inherits AS i ON c.relispartition AND i.inhrelid = c.oid
WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND c.oid >= 16384
  AND n.nspname NOT IN ('information_schema', 'pg_catalog') AND n.nspname !~ '^pg_(toast|temp)'
"""
DEFINITION: Final = """
SELECT c.oid::bigint, n.nspname::text, c.relname::text, c.relfilenode::bigint, c.relreplident::text,
       coalesce(c.relkind = 'r' AND c.relpersistence = 'p', false), c.relnatts::int,
       k.conid::bigint, k.keys, r.keys,
       a.attnum::int, a.attname::text, a.atttypid::bigint, a.atttypmod, a.attnotnull, a.attgenerated <> '',
       a.attisdropped, a.xmin::text::bigint, a.atthasmissing, (a.attmissingval::text::text[])[1]
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
LEFT JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0
LEFT JOIN LATERAL (
  SELECT o.oid AS conid, (string_to_array(x.indkey::text, ' ')::int[])[1:x.indnkeyatts] AS keys
  FROM pg_index AS x JOIN pg_constraint AS o ON o.conindid = x.indexrelid AND o.contype = 'p'
  WHERE x.indrelid = c.oid AND x.indisprimary AND x.indimmediate AND x.indisvalid
) AS k ON true
LEFT JOIN LATERAL (
  SELECT (string_to_array(x.indkey::text, ' ')::int[])[1:x.indnkeyatts] AS keys
  FROM pg_index AS x WHERE x.indrelid = c.oid AND x.indisreplident
) AS r ON true
WHERE c.oid = ANY (%s) ORDER BY c.oid, a.attnum
"""
WAL: Final = "SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint"
DEFAULT, FULL, INDEX, NOTHING = "dfin"  # kinds of replica identities
IDENTITIES: Final = {FULL: Identity.FULL, NOTHING: Identity.NOTHING}


class ListedTable(Struct, frozen=True):
    oid: int
    schema: str
    name: str
    storage: int
    stamp: int  # of the table's row in pg_class: another one after a column was added, and after some other changes


class DefinedColumn(Struct, frozen=True):
    number: int  # attnum
    name: str
    type_oid: int
    modifier: int
    stamp: int  # the transaction that altered it last
    not_null: bool = False
    generated: bool = False  # the server does not send it
    dropped: bool = False
    has_missing: bool = False  # rows that are older than the column have ``missing``
    missing: str | None = None

    @property
    def sent(self) -> bool:
        return not self.generated and not self.dropped


class TableDefinition(Struct, frozen=True):
    """A table as the catalog has it when the WAL is at ``lsn``: every alteration that is seen was committed before."""

    oid: int
    schema: str
    name: str
    storage: int
    identity: str  # DEFAULT, FULL, INDEX or NOTHING
    columns: tuple[DefinedColumn, ...]  # with those that were dropped
    lsn: int
    constraint: int = 0  # the oid of the primary key
    primary: tuple[int, ...] = ()  # the numbers of its columns
    index: tuple[int, ...] = ()  # of the columns of REPLICA IDENTITY USING INDEX
    ordinary: bool = True  # it can be captured

    @property
    def live(self) -> tuple[DefinedColumn, ...]:
        """The columns that the server sends."""
        return tuple(column for column in self.columns if column.sent)

    @property
    def generated(self) -> tuple[int, ...]:
        return tuple(column.number for column in self.columns if column.generated and not column.dropped)

    @property
    def attributes(self) -> int:
        return max((column.number for column in self.columns), default=0)

    @property
    def key(self) -> tuple[int, ...]:
        """Numbers of the columns that identify a row, in the order of their index; empty: none, or all together."""
        return {DEFAULT: self.primary, FULL: self.primary, INDEX: self.index}.get(self.identity, ())

    def same_catalog(self, other: TableDefinition) -> bool:
        """Whether nothing was altered between the two definitions."""
        return structs.replace(self, lsn=0) == structs.replace(other, lsn=0)


def listed_tables(connection: psycopg.Connection[Any], patterns: TablePatterns) -> dict[int, ListedTable]:
    """The tables that are captured now, by oid. Cheap: one query over pg_class."""
    rows = connection.execute(TABLES.encode()).fetchall()
    parents = {oid: (schema, name, parent) for oid, schema, name, _, _, _, parent in rows}
    found = dict[int, ListedTable]()
    for oid, schema, name, ordinary, storage, stamp, parent in rows:
        if ordinary and (
            patterns.matches(schema, name) if parent is None else patterns.matches_any(_ancestors(parents, oid))
        ):
            found[oid] = ListedTable(oid, schema, name, storage, stamp)
    return found


def names_of_tables(connection: psycopg.Connection[Any]) -> set[tuple[str, str]]:
    """Of all tables that could be captured, and of partitioned tables that have partitions."""
    rows = connection.execute(TABLES.encode()).fetchall()
    parents = {oid: (schema, name, parent) for oid, schema, name, _, _, _, parent in rows}
    return {name for oid, _, _, ordinary, *_ in rows if ordinary for name in _ancestors(parents, oid)}


def _ancestors(parents: Mapping[int, tuple[str, str, int | None]], oid: int | None) -> list[tuple[str, str]]:
    """The names of a table, and of those that it is a partition of."""
    names = []
    while oid is not None and oid in parents:
        schema, name, oid = parents[oid]
        names.append((schema, name))
    return names


def definitions_of(connection: psycopg.Connection[Any], oids: Sequence[int]) -> dict[int, TableDefinition]:
    """Those that exist. Must not run inside a transaction with an older snapshot."""
    rows = connection.execute(DEFINITION.encode(), (list(oids),)).fetchall()
    [(lsn,)] = connection.execute(WAL.encode()).fetchall()
    grouped = dict[int, list[tuple[Any, ...]]]()
    for row in rows:
        grouped.setdefault(row[0], []).append(row)
    return {oid: _definition(table, lsn) for oid, table in grouped.items()}


def definition_of(connection: psycopg.Connection[Any], oid: int) -> TableDefinition | None:
    """None: there is no such table any more."""
    return definitions_of(connection, [oid]).get(oid)


def _definition(rows: Sequence[tuple[Any, ...]], lsn: int) -> TableDefinition:
    oid, schema, name, storage, identity, ordinary, _, constraint, primary, index = rows[0][:10]
    columns = tuple(
        DefinedColumn(number, title, type_oid, modifier, stamp, not_null, generated, dropped, has_missing, missing)
        for number, title, type_oid, modifier, not_null, generated, dropped, stamp, has_missing, missing in (
            row[10:] for row in rows
        )
        if number is not None
    )
    return TableDefinition(
        oid, schema, name, storage, identity, columns, lsn,
        constraint or 0, tuple(primary or ()), tuple(index or ()), ordinary,
    )  # fmt: skip


def relation_of(definition: TableDefinition) -> Relation:
    """The message that the server would send for rows that are written now."""
    key = set(definition.key)
    flagged = tuple(
        place for place, column in enumerate(definition.live) if definition.identity == FULL or column.number in key
    )
    columns = tuple(RelationColumn(column.name, column.type_oid, column.modifier) for column in definition.live)
    return Relation(definition.oid, definition.schema, definition.name, definition.identity, columns, flagged)


def source_column(column: DefinedColumn) -> SourceColumn:
    kind = type_of(RelationColumn(column.name, column.type_oid, column.modifier))
    return SourceColumn(column.name, kind, column.number, column.type_oid, column.modifier, column.stamp)


def schema_of(
    definition: TableDefinition,
    number: int,
    *,
    generation: int = 1,
    version: int = 1,
    changes: tuple[SchemaChange, ...] = (SchemaChange.CREATED,),
) -> TableSchema:
    """A table as it is now. Its key is the replica identity; with FULL the primary key, or none if it has none."""
    names = {column.number: column.name for column in definition.live}
    key = tuple(names[each] for each in definition.key)
    identity = IDENTITIES.get(definition.identity, Identity.KEY if key else Identity.NOTHING)
    return TableSchema(
        number,
        generation,
        version,
        definition.schema,
        definition.name,
        tuple(map(source_column, definition.live)),
        key,
        identity,
        changes,
        storage=definition.storage,
        oid=definition.oid,
        attributes=definition.attributes,
        generated=definition.generated,
        constraint=definition.constraint,
    )


def quoted(schema: str, name: str) -> str:
    """For a statement, and for messages."""
    return sql.Identifier(schema, name).as_string(None)
