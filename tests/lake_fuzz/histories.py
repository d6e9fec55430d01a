"""Random histories of a real DuckLake table, and the state at each version.

The same seed gives the same statements on any machine. The state of a version is recorded from the lake itself right
after the commit, so that later changes cannot affect it.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa
from msgspec.structs import replace

from lake_fuzz.shapes import Layout, draw_shape
from lake_fuzz.statements import CLEAN_UP, MAINTENANCE, REWRITE, Statements
from trunkline.delivery.backends.duckdb_pool import pooled_duckdb
from trunkline.delivery.backends.ducklake_attachment import attach_lake
from trunkline.delivery.backends.sql import identifier
from trunkline.delivery.config.addresses import LakeAddress

TRANSACTIONS: Final = 14  # of a history; some change nothing and make no version
EXTENSIONS: Final = ("ducklake", "sqlite_scanner", "postgres_scanner")


class History:
    """A lake under construction. Between calls it is closed."""

    def __init__(self, seed: int, folder: Path, catalog: str | None = None) -> None:
        """Create a lake in a directory. ``catalog``: the location of its catalog, if not in a DuckDB file there."""
        chance = random.Random(seed)
        folder.mkdir(exist_ok=True)
        self.seed = seed
        self.shape = draw_shape(chance)
        self.address = LakeAddress(
            catalog or str(folder / "catalog.ducklake"), self.shape.table, data_path=str(folder / self.shape.folder)
        )
        self.statements: list[str] = []
        self.refused: list[str] = []  # statements that failed, and why
        self.states: dict[int, pa.Table] = {}  # each version's rows with the version that wrote each, in its columns
        self.layouts: dict[int, Layout] = {}
        self.maintenance: set[int] = set()  # versions that only moved rows
        self.rewrites: set[int] = set()  # those of them that lost the version that wrote each row
        self.expired: set[int] = set()
        self._chance = chance
        self._statements = Statements(chance, self.shape)
        with self.opened() as connection:
            self._create(connection)

    @property
    def versions(self) -> list[int]:
        """The versions that were not expired, from the table's first one."""
        return [version for version in sorted(self.states) if version not in self.expired]

    def grow(self, transactions: int) -> None:
        with self.opened() as connection:
            for _ in range(transactions):
                self._commit(connection)
                if self.shape.expires and len(self.versions) > 3 and self._chance.random() < 0.15:
                    self._expire(connection)

    @contextmanager
    def opened(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """The lake, attached as ``lake``; with one thread, because several write rows in any order."""
        with pooled_duckdb(*EXTENSIONS) as connection:
            connection.execute("SET threads = 1")
            attach_lake(connection, self.address, "lake", read_only=False)
            yield connection
            connection.execute("DETACH lake")

    def move_data(self, folder: Path) -> None:
        """Move the data files to another directory; from then on the lake is read-only."""
        assert self.address.data_path is not None
        Path(self.address.data_path).rename(folder)
        self.address = replace(self.address, data_path=str(folder))

    def _create(self, connection: duckdb.DuckDBPyConnection) -> None:
        columns = ", ".join(f"{identifier(field.name)} {field.type}" for field in self.shape.layout)
        self._run(connection, f"CALL lake.set_option('data_inlining_row_limit', {self.shape.inlining})")
        self._run(connection, "CREATE TABLE lake.other (x INTEGER)")
        self._run(connection, f"CREATE TABLE {self.shape.name} ({columns})")
        if self.shape.partitioned is not None:
            self._run(connection, f"ALTER TABLE {self.shape.name} SET PARTITIONED BY ({self.shape.partitioned})")
        self._record(connection, newest(connection))

    def _commit(self, connection: duckdb.DuckDBPyConnection) -> None:
        before = self._statements.layout
        transaction = self._statements.transaction()
        try:
            for statement in transaction:
                self._run(connection, statement)
        except duckdb.Error as error:
            self.refused.append(f"{self.statements[-1]}: {error}")
            self._statements.layout = before
            if transaction[-1] == "COMMIT" and self.statements[-1] != "COMMIT":
                self._run(connection, "ROLLBACK")
        for version in range(max(self.states) + 1, newest(connection) + 1):
            self._record(connection, version)
            if transaction[0] in MAINTENANCE and len(transaction) == 1:
                self.maintenance.add(version)
            if transaction == [REWRITE]:
                self.rewrites.add(version)

    def _run(self, connection: duckdb.DuckDBPyConnection, statement: str) -> None:
        self.statements.append(statement)
        connection.execute(statement)

    def _record(self, connection: duckdb.DuckDBPyConnection, version: int) -> None:
        self.layouts[version] = self._statements.layout
        query = f"SELECT snapshot_id, * FROM {self.shape.name} AT (VERSION => {version})"
        self.states[version] = connection.sql(query).to_arrow_table()

    def _expire(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._run(connection, self._statements.expire(self.versions[:-1]))
        there = {row[0] for row in connection.execute("SELECT snapshot_id FROM lake.snapshots()").fetchall()}
        self.expired = set(self.states) - there
        if self._chance.random() < 0.5:
            self._run(connection, CLEAN_UP)


def newest(connection: duckdb.DuckDBPyConnection) -> int:
    (found,) = connection.execute("SELECT max(snapshot_id) FROM lake.snapshots()").fetchall()
    return int(found[0])


@contextmanager
def made_history(seed: int, catalog: str | None = None) -> Iterator[History]:
    """A complete history in a temporary directory."""
    with tempfile.TemporaryDirectory(prefix="trunkline-fuzz-") as folder:
        history = History(seed, Path(folder), catalog)
        history.grow(TRANSACTIONS)
        yield history
