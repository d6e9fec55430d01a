"""A table of PostgreSQL that tests capture, and how its rows compare with those of a log."""

from __future__ import annotations

from typing import Any

import psycopg

from delivery.captured_log import same
from postgres_server import PostgresServer
from trunkline.delivery.capture.one_table.postgres import PostgresCapture
from trunkline.delivery.config.addresses import PostgresAddress

TABLE = """CREATE TABLE orders (id bigint PRIMARY KEY, tenant text, amount numeric(12,3), loose numeric, doc jsonb,
    tags text[], numbers int[], at timestamptz, local timestamp, day date, raw bytea, ref uuid, ok boolean, score real,
    big text)"""
ROW = """INSERT INTO orders SELECT n, 'acme', n * 1.001, 1.23456789012345678901234567890 * n,
    jsonb_build_object('n', n, 'quote', 'a "b" c'), ARRAY['a', NULL, 'c,"d"', n::text], ARRAY[n, NULL, -1],
    '2026-01-01 00:00:00+02'::timestamptz + n * interval '1 second', '2026-02-03 04:05:06.789', '2026-05-06',
    decode(lpad(to_hex(n), 4, '0'), 'hex'), md5(n::text)::uuid, n % 2 = 0, n / 3.0,
    (SELECT string_agg(md5((n * i)::text), '') FROM generate_series(1, 400) i)
    FROM generate_series({a}, {b}) n"""


class Server:
    """A table in a database of its own."""

    def __init__(self, server: PostgresServer, name: str) -> None:
        self.dsn = server.create_database(name)
        self.slot = f"slot_{name}"
        self.run(TABLE, "ALTER TABLE orders REPLICA IDENTITY FULL")

    def run(self, *statements: str) -> None:
        with psycopg.connect(self.dsn) as connection:  # one transaction
            for statement in statements:
                connection.execute(statement.encode())

    def capture(self) -> PostgresCapture:
        return PostgresCapture(PostgresAddress(self.dsn, "orders"), self.slot)

    def rows(self) -> list[dict[str, Any]]:
        """As the log should have them; JSON and numbers without a scale as the server's text."""
        query = (
            "SELECT id, tenant, amount, loose::text AS loose, doc::text AS doc, tags, numbers, at, local, day, raw, "
            "ref::text AS ref, ok, score, big FROM orders"
        )
        with psycopg.connect(self.dsn, row_factory=psycopg.rows.dict_row) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            return connection.execute(query.encode()).fetchall()

    def written(self) -> int:
        """How far the server's log of changes is on disk."""
        return self._number("SELECT pg_current_wal_flush_lsn() - '0/0'::pg_lsn")

    def slot_position(self, name: str) -> int:
        slots = f"FROM pg_replication_slots WHERE slot_name = '{self.slot}'"
        return self._number(f"SELECT {name} - '0/0'::pg_lsn {slots}")

    def decoded_transactions(self) -> int:
        """That the slot has decoded so far, each as often as it did."""
        return self._number(f"SELECT total_txns FROM pg_stat_replication_slots WHERE slot_name = '{self.slot}'")

    def _number(self, query: str) -> int:
        with psycopg.connect(self.dsn) as connection:
            [(found,)] = connection.execute(query.encode()).fetchall()
            return int(found)


def comparable(rows: list[dict[str, Any]]) -> list[str]:
    return same([{name: _plain(value) for name, value in row.items()} for row in rows])


def _plain(value: Any) -> Any:
    return value.isoformat() if hasattr(value, "isoformat") else round(value, 4) if isinstance(value, float) else value
