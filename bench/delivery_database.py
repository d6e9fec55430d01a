"""The source of `./run bench delivery --part tables`: a PostgreSQL database with many tables, captured into a log.

Deterministic, like ``delivery_source``: a window of M operations has M net changes, spread evenly over the tables.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from delivery_source import COMMITS, DELETES, UPDATES, Made, tenant
from log_processes import Failed
from log_trunkline import TrunklineCluster, trunkline_cluster

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))  # for the throw-away server of the tests

from postgres_server import PostgresServer
from trunkline.delivery.changes.versions import Window
from trunkline.delivery.config.addresses import LogAddress
from trunkline.delivery.config.table_patterns import Selection
from trunkline.delivery.sources.contract import Source
from trunkline.delivery.sources.factory import source_of

SETTINGS = {"wal_level": "logical", "max_replication_slots": "10", "max_connections": "100", "max_wal_size": "4GB"}
COLUMNS = (
    "id bigint, tenant text, item text, quantity int, price numeric(12,2), noted timestamp, paid boolean, "
    "PRIMARY KEY (id, tenant)"  # a removed row states its key only, and the tenant finds its destination
)
CAPTURE_S_MAX = 600.0


@contextmanager
def captured_database(directory: Path) -> Iterator[tuple[PostgresServer, TrunklineCluster]]:
    """A server that syncs its commits, and a log of three nodes."""
    with PostgresServer(fsync=True, settings=SETTINGS) as server, trunkline_cluster(directory) as cluster:
        yield server, cluster


class CapturedTables:
    """Tables ``public.t0``, ``t1``, ... of a database, whose rows have so many tenants, in a log of the same name."""

    def __init__(self, server: PostgresServer, cluster: TrunklineCluster, name: str, tables: int, tenants: int) -> None:
        self._dsn = server.create_database(name)
        self.connect = cluster.address
        self.log = name
        self.tables = tables
        self.tenants = tenants
        self.selection = Selection(("public.*",), "public")
        self._next = 0  # the first number that no table has had
        self._oldest = 0  # the first number that every table still has
        self._run([f"CREATE TABLE t{number} ({COLUMNS})" for number in range(tables)])

    @property
    def source(self) -> Source:
        return source_of(LogAddress(self.log, self.connect), self.selection)

    def fill(self, rows_each: int) -> int:
        """Returns the version."""
        self._run(self._inserts(rows_each))
        return self._capture()

    def make_window(self, operations: int) -> Made:
        each = operations // self.tables
        updates, deletes = round(each * UPDATES), round(each * DELETES)
        after = self._version()
        for commit in range(COMMITS):
            updated, deleted, inserted = (
                _part(count, commit) for count in (updates, deletes, each - updates - deletes)
            )
            self._run([*self._victims(updated, deleted), *self._inserts(inserted)])
        made = self.tables * each
        changed, gone = self.tables * updates, self.tables * deletes
        return Made(Window(after, self._capture()), made, changed + gone, made - gone)

    def _inserts(self, rows: int) -> list[str]:
        first, self._next = self._next, self._next + rows
        row = (
            f"n, 't' || n % {self.tenants}, 'item ' || n % 1000, n % 97, (n % 10000) / 100.0, "
            "timestamp '2025-01-01' + n * interval '1 second', n % 2 = 0"
        )
        made = f"SELECT {row} FROM generate_series({first}, {self._next - 1}) n"
        return [f"INSERT INTO t{number} {made}" for number in range(self.tables)] if rows else []

    def _victims(self, updates: int, deletes: int) -> list[str]:
        """The oldest rows: some go, and the next ones change; none of them again in the same window."""
        first, middle = self._oldest, self._oldest + deletes
        self._oldest = middle + updates
        found = []
        for number in range(self.tables):
            found.append(f"DELETE FROM t{number} WHERE id >= {first} AND id < {middle}")
            found.append(
                f"UPDATE t{number} SET quantity = quantity + 1, noted = noted + interval '1 day' "
                f"WHERE id >= {middle} AND id < {self._oldest}"
            )
        return found

    def _run(self, statements: list[str]) -> None:
        with psycopg.connect(self._dsn) as connection:
            connection.execute("; ".join(statements).encode())

    def _version(self) -> int:
        return self.source.state(0).version

    def _capture(self) -> int:
        """Everything that is committed now; returns the version."""
        command = [Path(sys.executable).parent / "trunkline", "capture", self.log, "--connect", self.connect]
        command += ["--postgres", self._dsn, "--tables", "public.*", "--once"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=CAPTURE_S_MAX)
        if done.returncode != 0:
            raise Failed(f"the capture ended with {done.returncode}:\n{done.stderr[-2000:]}")
        return self._version()


def tenants_of(count: int) -> list[str]:
    return [tenant(number) for number in range(count)]


def _part(count: int, number: int) -> int:
    return count * (number + 1) // COMMITS - count * number // COMMITS
