"""Checks of a PostgreSQL table, its publication and the role, made before anything is captured."""

from __future__ import annotations

from typing import Any, Final

import psycopg
from psycopg import sql

from trunkline.delivery.capture.postgres.pgoutput import RelationColumn
from trunkline.delivery.capture.postgres.values import table_values
from trunkline.delivery.changes.columns import check_columns
from trunkline.errors import ConfigError

TABLE: Final = (
    "SELECT relkind::text, relreplident::text, row_security_active(oid), current_user::text FROM pg_class "
    "WHERE oid = to_regclass(%s)"
)
COLUMNS: Final = (
    "SELECT attname::text, atttypid::bigint, atttypmod, attgenerated <> '' FROM pg_attribute "
    "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
)
PUBLICATION: Final = (
    "SELECT r.prrelid IS NOT NULL, p.pubinsert AND p.pubupdate AND p.pubdelete AND p.pubtruncate AND r.prqual IS NULL "
    "AND r.prattrs IS NULL FROM pg_publication AS p LEFT JOIN pg_publication_rel AS r ON r.prpubid = p.oid "
    "AND r.prrelid = to_regclass(%s) WHERE p.pubname = %s"
)
KEY: Final = (
    "SELECT a.attname::text FROM pg_index AS i JOIN pg_attribute AS a ON a.attrelid = i.indrelid "
    "AND a.attnum = ANY (i.indkey) WHERE i.indisprimary AND i.indrelid = to_regclass(%s)"
)


def check_table(connection: psycopg.Connection[Any], table: str) -> None:
    """Raise ``ConfigError`` for a server, a table or a role with which rows would be missing. ``table`` is quoted."""
    [(level,)] = ask(connection, "SHOW wal_level")
    if level != "logical":
        raise ConfigError(f"the server's wal_level is {level}; set wal_level = logical and restart it")
    found = ask(connection, TABLE, table)
    if not found:
        raise ConfigError(f"there is no table {table}; create it, or name another")
    [(kind, identity, hides_rows, role)] = found
    if kind != "r":
        raise ConfigError(f"{table} is not an ordinary table; name one")
    if identity != "f":
        raise ConfigError(f"{table} does not record deleted rows; run: ALTER TABLE {table} REPLICA IDENTITY FULL")
    if hides_rows:
        raise ConfigError(
            f"row-level security of {table} may hide rows from the role {role}, so that a snapshot would lack them; "
            f"run: ALTER ROLE {sql.Identifier(role).as_string(None)} BYPASSRLS, or capture as a role that has it"
        )
    captured_columns(connection, table)


def captured_columns(connection: psycopg.Connection[Any], table: str) -> tuple[RelationColumn, ...]:
    """Those that the server sends; raises ``ConfigError`` if a log cannot hold them."""
    found = ask(connection, COLUMNS, table)
    columns = tuple(RelationColumn(name, oid, modifier) for name, oid, modifier, generated in found if not generated)
    if not columns:
        raise ConfigError(f"{table} has no columns that could be captured; add one, or name another table")
    check_columns(table_values(columns).columns, (), None)
    return columns


def generated_columns(connection: psycopg.Connection[Any], table: str) -> list[str]:
    """Those that the server computes from others, and does not send."""
    return [name for name, _, _, generated in ask(connection, COLUMNS, table) if generated]


def ensure_publication(connection: psycopg.Connection[Any], name: str, table: sql.Identifier) -> None:
    """Create it, or add the table, which may have been replaced; reject one that omits something.

    An existing slot of the same name has not kept the changes that were made without it, so it is dropped first.
    """
    publication, text = sql.Identifier(name), table.as_string(None)
    found = ask(connection, PUBLICATION, text, name)
    if not found or not found[0][0]:
        ask(
            connection,
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s",
            name,
        )
    if not found:
        connection.execute(sql.SQL("CREATE PUBLICATION {} FOR TABLE ONLY {}").format(publication, table))
    elif not found[0][0]:
        connection.execute(sql.SQL("ALTER PUBLICATION {} ADD TABLE ONLY {}").format(publication, table))
    elif not found[0][1]:
        raise ConfigError(
            f"the publication {name} leaves out rows, columns or kinds of changes of {text}; drop it and the slot "
            f"{name}, then restart the capture: it creates both, and captures all rows again"
        )


def key_of(connection: psycopg.Connection[Any], table: str) -> list[str]:
    """The names of the primary key's columns."""
    return [name for (name,) in ask(connection, KEY, table)]


def ask(connection: psycopg.Connection[Any], query: str, *values: object) -> list[tuple[Any, ...]]:
    return connection.execute(query.encode(), values or None).fetchall()
