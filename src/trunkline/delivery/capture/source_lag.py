"""What a database says without a capture: where it is, what it keeps for one, and about how many rows it has."""

from __future__ import annotations

from typing import Final

from trunkline.delivery.capture.mariadb.catalog import binlog_files, position_now, server_of
from trunkline.delivery.capture.mariadb.connection import Session, parse_dsn
from trunkline.delivery.capture.postgres.session import ServerAddress, ServerSession
from trunkline.delivery.capture.postgres.source import LAG
from trunkline.delivery.capture.source import Lag

ANY_REPLICA: Final = 1 << 31
ESTIMATES: Final = """
SELECT n.nspname::text, c.relname::text, c.reltuples::bigint FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.relkind = 'r' AND c.reltuples > 0
"""


def postgres_lag(address: ServerAddress, slot: str) -> Lag:
    session = ServerSession(address)
    try:
        [(position, retained)] = session.ask(LAG, slot)
    finally:
        session.close()
    return Lag(position, retained)


def postgres_estimates(address: ServerAddress) -> dict[str, int]:
    """About how many rows tables have, by schema.name; without those that the server does not know."""
    session = ServerSession(address)
    try:
        found = session.ask(ESTIMATES)
    finally:
        session.close()
    return {f"{schema}.{name}": rows for schema, name, rows in found}


def mariadb_lag(dsn: str) -> Lag:
    session = Session(parse_dsn(dsn))
    try:
        return Lag(position_now(session, server_of(session, ANY_REPLICA)), 0, tuple(binlog_files(session)))
    finally:
        session.close()
