"""Where a database is, and what it keeps for a capture, without a capture."""

from __future__ import annotations

from trunkline.delivery.capture.mariadb_catalog import position_now, server_of
from trunkline.delivery.capture.mariadb_connection import Session, parse_dsn
from trunkline.delivery.capture.postgres_source import LAG
from trunkline.delivery.capture.server_session import ServerAddress, ServerSession
from trunkline.delivery.capture.source import Lag

ANY_REPLICA = 1 << 31


def postgres_lag(address: ServerAddress, slot: str) -> Lag:
    session = ServerSession(address)
    try:
        [(position, retained)] = session.ask(LAG, slot)
    finally:
        session.close()
    return Lag(position, retained)


def mariadb_lag(dsn: str) -> Lag:
    session = Session(parse_dsn(dsn))
    try:
        return Lag(position_now(session, server_of(session, ANY_REPLICA)), 0)
    finally:
        session.close()
