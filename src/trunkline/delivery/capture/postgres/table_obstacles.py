"""What keeps a PostgreSQL table from being captured: rights of the role, its replica identity, its columns.

With REPLICA IDENTITY DEFAULT or USING INDEX the server records the key of a row that is removed, which is enough for a
copy of the table. It then does not record the rest of the old row, nor large values that an update did not touch:
filters, masks, computed columns and histories of such columns need FULL. A table without a key needs FULL.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final

import psycopg
from msgspec import Struct
from psycopg import sql

from trunkline.delivery.capture.postgres.catalog import DEFAULT, FULL, INDEX, TableDefinition, quoted, schema_of
from trunkline.delivery.changes.columns import check_columns
from trunkline.errors import ConfigError

RIGHTS: Final = """
SELECT c.oid::bigint, n.nspname::text, c.relname::text, c.relreplident::text, has_schema_privilege(n.oid, 'USAGE'),
       has_table_privilege(c.oid, 'SELECT'), row_security_active(c.oid), pg_has_role(c.relowner, 'USAGE'),
       pg_get_userbyid(c.relowner)::text,
       EXISTS (SELECT FROM pg_index AS i
               WHERE i.indrelid = c.oid AND i.indisprimary AND i.indimmediate AND i.indisvalid),
       EXISTS (SELECT FROM pg_index AS i WHERE i.indrelid = c.oid AND i.indisreplident)
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = ANY (%s) ORDER BY 2, 3
"""


class TableRights(Struct, frozen=True):
    oid: int
    schema: str
    name: str
    identity: str
    enters: bool  # the role may use its schema
    reads: bool
    hides: bool  # row-level security may hide rows from the role
    owns: bool
    owner: str
    keyed: bool  # it has a primary key
    indexed: bool  # the index of USING INDEX exists

    @property
    def text(self) -> str:
        return quoted(self.schema, self.name)

    @property
    def missing_identity(self) -> str | None:
        """The replica identity that it needs; None: it has one."""
        has = self.identity == FULL or (self.keyed if self.identity == DEFAULT else self.indexed)
        return None if has else "DEFAULT" if self.keyed else "FULL"


def rights_of(connection: psycopg.Connection[Any], oids: Iterable[int]) -> list[TableRights]:
    """By schema and name."""
    return [TableRights(*row) for row in connection.execute(RIGHTS.encode(), (list(oids),)).fetchall()]


def missing_identities(tables: Iterable[TableRights]) -> list[tuple[str, str]]:
    """For each table without an identity: the statement that gives it one, and the one that takes it back."""
    kinds = {DEFAULT: "DEFAULT", FULL: "FULL", INDEX: "DEFAULT"}  # the index of INDEX was dropped: DEFAULT is as much
    missing = []
    for each in tables:
        if (identity := each.missing_identity) is not None:
            alter = f"ALTER TABLE {each.text} REPLICA IDENTITY"
            missing.append((f"{alter} {identity}", f"{alter} {kinds.get(each.identity, 'NOTHING')}"))
    return missing


def obstacles(
    connection: psycopg.Connection[Any], tables: Collection[TableDefinition], published: Collection[int]
) -> dict[int, str]:
    """Why each of these tables cannot be captured, with the remedy; tables that can be are not in it."""
    [(role,)] = connection.execute("SELECT current_user::text").fetchall()
    rights = {each.oid: each for each in rights_of(connection, [table.oid for table in tables])}
    found = dict[int, str]()
    for table in tables:
        allowed = rights.get(table.oid)
        reason = "it was dropped" if allowed is None else obstacle_of_rights(allowed, role, table.oid in published)
        if reason := reason or obstacle_of_shape(table):
            found[table.oid] = reason
    return found


def obstacle_of_rights(table: TableRights, role: str, published: bool) -> str:
    """An empty string: none."""
    grantee = name_of(role)
    if not table.enters:
        return (
            f"the role {role} may not use its schema; run: GRANT USAGE ON SCHEMA {name_of(table.schema)} TO {grantee}"
        )
    if not table.reads:
        return f"the role {role} may not read it; run: GRANT SELECT ON {table.text} TO {grantee}"
    if table.hides:
        return f"row-level security may hide rows from the role {role}; run: ALTER ROLE {grantee} BYPASSRLS"
    if not table.owns and not published:
        return (
            f"the role {role} does not own it, and so cannot publish it; run: GRANT {name_of(table.owner)} TO {grantee}"
        )
    return ""


def obstacle_of_shape(table: TableDefinition) -> str:
    """Of its identity and its columns."""
    if not table.key and table.identity != FULL:
        alter = f"ALTER TABLE {quoted(table.schema, table.name)} REPLICA IDENTITY"
        needs = "DEFAULT" if table.primary else "FULL"
        return f"the server does not record which of its rows are removed; run: {alter} {needs}"
    return obstacle_of_columns(table)


def obstacle_of_columns(table: TableDefinition) -> str:
    if not table.ordinary:
        return "it is not an ordinary table"
    if not table.live:
        return "it has no columns that could be captured; add one"
    try:
        check_columns(schema_of(table, 1).vocabulary(), (), None)
    except ConfigError as error:
        return str(error)
    return ""


def name_of(name: str) -> str:
    """Of a role, a schema or a publication, for a statement."""
    return sql.Identifier(name).as_string(None)
