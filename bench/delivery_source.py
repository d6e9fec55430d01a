"""The source of `./run bench delivery`: a lake with one table, and windows of 80 % inserts, 15 % updates, 5 % deletes.

Deterministic: the same sizes give the same rows. Updates and deletes affect rows of earlier windows, and no row twice,
so that a window of M operations has M net changes, and all counts can be verified.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb

from trunkline.delivery.backends.duckdb_pool import new_duckdb
from trunkline.delivery.backends.ducklake_attachment import attach_lake
from trunkline.delivery.changes.versions import Window
from trunkline.delivery.config.addresses import LakeAddress
from trunkline.delivery.sources.ducklake import DuckLakeSource

TABLE = (
    "id BIGINT, tenant VARCHAR, item VARCHAR, quantity INTEGER, price DECIMAL(12,2), noted TIMESTAMP, paid BOOLEAN, "
    "payload VARCHAR"
)
KEY, ROUTING = ("id",), "tenant"
UPDATES, DELETES = 0.15, 0.05
COMMITS = 4  # of a window: each inserts, updates and deletes, in its own transaction


@dataclass(frozen=True)
class Made:
    """A window, and its effect on the destinations."""

    window: Window
    operations: int
    removed: int  # rows that destinations lose: updated and deleted ones
    written: int  # ... and gain: inserted and updated ones


def tenant(number: int) -> str:
    return f"t{number}"


class SourceLake:
    """The table ``orders`` with rows of ``tenants`` routing values."""

    def __init__(
        self, folder: Path, tenants: int, *, catalog: str = "duckdb", skewed: bool = False, payload: int = 0
    ) -> None:
        """``skewed``: nine rows in ten belong to the first tenant. ``payload``: blocks of 32 random letters a row."""
        folder.mkdir(parents=True)
        prefix = "" if catalog == "duckdb" else f"{catalog}:"
        self.address = LakeAddress(f"{prefix}{folder / 'source.catalog'}", "orders", data_path=str(folder / "source"))
        self.source = DuckLakeSource(self.address)
        number = f"id % {tenants}"
        if skewed:
            number = f"CASE WHEN id % 10 < 9 THEN 0 ELSE 1 + (id // 10) % {tenants - 1} END"
        blocks = " || ".join(f"md5(CAST(id * 31 + {block} AS VARCHAR))" for block in range(payload)) or "''"
        self._row = (
            f"id, 't' || CAST({number} AS VARCHAR), 'item ' || CAST(id % 1000 AS VARCHAR), CAST(id % 97 AS INTEGER), "
            f"CAST(id % 10000 AS DECIMAL(12,2)) / 100, TIMESTAMP '2025-01-01' + to_seconds(id), id % 2 = 0, {blocks}"
        )
        self._scanners = () if catalog == "duckdb" else ("sqlite_scanner",)
        self._connection = new_duckdb("ducklake", *self._scanners)
        self._connection.execute("CREATE TEMP TABLE known (id BIGINT)")
        self._next = 0
        self._windows = 0
        with self._lake() as lake:
            lake.execute(f"CREATE TABLE lake.orders ({TABLE})")

    def close(self) -> None:
        self._connection.close()

    def fill(self, rows: int) -> int:
        """Insert rows, without any window; returns the version."""
        with self._lake() as lake:
            self._insert(lake, rows)
            return _version(lake)

    def make_window(self, operations: int) -> Made:
        updates, deletes = round(operations * UPDATES), round(operations * DELETES)
        inserts = operations - updates - deletes
        self._windows += 1
        with self._lake() as lake:
            after = _version(lake)
            self._choose_victims(lake, updates, deletes)
            for commit in range(COMMITS):
                lake.execute("BEGIN")
                lake.execute(
                    "UPDATE lake.orders SET quantity = quantity + 1, noted = noted + INTERVAL 1 DAY FROM victims v "
                    f"WHERE orders.id = v.id AND v.number % {COMMITS} = {commit} AND v.number < {updates}"
                )
                lake.execute(
                    "DELETE FROM lake.orders USING victims v "
                    f"WHERE orders.id = v.id AND v.number % {COMMITS} = {commit} AND v.number >= {updates}"
                )
                self._insert(lake, _part(inserts, commit))
                lake.execute("COMMIT")
            lake.execute(f"DELETE FROM known USING victims v WHERE known.id = v.id AND v.number >= {updates}")
            return Made(Window(after, _version(lake)), operations, updates + deletes, inserts + updates)

    def _choose_victims(self, lake: duckdb.DuckDBPyConnection, updates: int, deletes: int) -> None:
        lake.execute(
            "CREATE OR REPLACE TEMP TABLE victims AS SELECT id, row_number() OVER () - 1 AS number FROM "
            f"(SELECT id FROM known ORDER BY hash(id * 7919 + {self._windows}), id LIMIT {updates + deletes})"
        )

    def _insert(self, lake: duckdb.DuckDBPyConnection, rows: int) -> None:
        first, self._next = self._next, self._next + rows
        made = f"(SELECT range AS id FROM range({first}, {self._next}))"
        lake.execute(f"INSERT INTO lake.orders SELECT {self._row} FROM {made}")
        lake.execute(f"INSERT INTO known SELECT id FROM {made}")

    @contextmanager
    def _lake(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """The lake, attached briefly: a catalog in a DuckDB file is open in one process at a time."""
        attach_lake(self._connection, self.address, "lake", read_only=False)
        try:
            yield self._connection
        finally:
            self._connection.execute("DETACH lake")


def _part(count: int, number: int) -> int:
    return count * (number + 1) // COMMITS - count * number // COMMITS


def _version(lake: duckdb.DuckDBPyConnection) -> int:
    ((version,),) = lake.execute("SELECT max(snapshot_id) FROM ducklake_snapshots('lake')").fetchall()
    return int(version)
