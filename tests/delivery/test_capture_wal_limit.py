"""The WAL that a server keeps for a capture is limited also while the log is unreachable: most of all then."""

from __future__ import annotations

import socket

import psycopg
import pytest

from postgres_server import PostgresServer
from trunkline.delivery.capture.database_capture import CaptureOptions, DatabaseCapture, TooMuchKept
from trunkline.delivery.capture.postgres.session import ServerAddress
from trunkline.delivery.capture.postgres.source import PostgresDatabase, PostgresSource
from trunkline.delivery.capture.postgres.wal_guard import MIB, WalAction


def test_a_capture_whose_log_is_unreachable_ends_at_the_limit(logical: PostgresServer) -> None:
    dsn = logical.create_database("kept_wal")
    with psycopg.connect(dsn, autocommit=True) as connection, socket.socket() as nowhere:
        nowhere.bind(("127.0.0.1", 0))  # and nothing listens
        connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
        connection.execute("SELECT pg_create_logical_replication_slot('kept_wal', 'pgoutput')")
        connection.execute(
            "SELECT pg_logical_emit_message(false, 'other', repeat('x', 1000000)) FROM generate_series(1, 5)"
        )
        source = PostgresSource(PostgresDatabase(ServerAddress(dsn), "kept_wal", ("public.*",)))
        options = CaptureOptions("postgres", kept_max=4 * MIB, on_kept_max=WalAction.DROP, slot="kept_wal")
        with pytest.raises(TooMuchKept, match=r"slot kept_wal, which is over the limit of 4 MiB: .* drops the slot"):
            DatabaseCapture(source, [f"127.0.0.1:{nowhere.getsockname()[1]}"], "kept", options).run()
        connection.execute("SELECT pg_drop_replication_slot('kept_wal')")  # nothing reads it any more
