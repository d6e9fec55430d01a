"""Gives tables without a key REPLICA IDENTITY FULL, so that their updates and deletions can be captured."""

from __future__ import annotations

from typing import Final

from psycopg import sql

from trunkline.delivery.capture.server_session import ServerAddress, ServerSession
from trunkline.delivery.capture.table_patterns import TablePatterns

WITHOUT_KEY: Final = """
SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND c.relpersistence = 'p' AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
  AND (c.relreplident = 'n' OR (c.relreplident = 'd' AND NOT EXISTS (
    SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)))
ORDER BY 1, 2
"""


def set_replica_identities(address: ServerAddress, patterns: TablePatterns) -> list[str]:
    """The names of the tables that were altered."""
    session = ServerSession(address)
    found = []
    try:
        for schema, name in session.ask(WITHOUT_KEY):
            if patterns.matches(schema, name):
                table = sql.Identifier(schema, name)
                with session.reporting() as connection:
                    connection.execute(sql.SQL("ALTER TABLE {} REPLICA IDENTITY FULL").format(table))
                found.append(f"{schema}.{name}")
    finally:
        session.close()
    return found
