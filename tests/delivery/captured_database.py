"""A PostgreSQL database that is captured into a log in this process, as a source of pipelines."""

from __future__ import annotations

from typing import Any

import psycopg

from postgres_server import PostgresServer
from trunkline.delivery.capture.database_capture import CaptureOptions, DatabaseCapture
from trunkline.delivery.capture.postgres.session import ServerAddress
from trunkline.delivery.capture.postgres.source import PostgresDatabase, PostgresSource
from trunkline.delivery.config.addresses import LogAddress
from trunkline.delivery.sources.database import DatabaseSource
from trunkline.delivery.sources.log_reader import forget_reader

Row = dict[str, Any]


class CapturedDatabase:
    """One table of a database that is captured whole. A step is the SQL of one transaction."""

    def __init__(self, server: PostgresServer, connect: str, name: str, table: str) -> None:
        self.dsn = server.create_database(name)
        self.address = LogAddress(name, connect, table=f"public.{table}")
        self.source = DatabaseSource(self.address)
        self._connect, self._table = connect, table
        self.slot = f"slot_{name}"
        self._database = PostgresDatabase(ServerAddress(self.dsn), self.slot, ("public.*",))
        self._held: dict[int, list[Row]] = {}  # at the versions that steps reached

    def close(self) -> None:
        forget_reader(self.address)
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            mine = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s"
            connection.execute(mine, (self.slot,))

    def run(self, *statements: str) -> None:
        with psycopg.connect(self.dsn) as connection:  # one transaction
            for statement in statements:
                connection.execute(statement.encode())

    def capture(self) -> int:
        """All that there is now; returns the newest version of the table."""
        source = PostgresSource(self._database, check_s=0.05)
        DatabaseCapture(source, [self._connect], self.address.log, CaptureOptions("postgres-database")).run(once=True)
        return self.source.state(0).version

    def write(self, step: str) -> int:
        self.run(*step.split(";"))
        version = self.capture()
        with psycopg.connect(self.dsn, row_factory=psycopg.rows.dict_row) as connection:
            self._held[version] = connection.execute(f"SELECT * FROM {self._table}".encode()).fetchall()
        return version

    def rows(self, version: int) -> list[Row]:
        return self._held[version]
