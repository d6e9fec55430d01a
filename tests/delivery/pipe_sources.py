"""Source tables for tests: written by statements, and read at any version without our own reader.

Each of them knows how to put something behind a window and something right before it, so that a wrong bound shows:

    ... | a row comes | it goes | the window ... | every row is marked | a row comes | it goes
                      after  ---|            |---  through
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import duckdb
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from trunkline.delivery.backends.duckdb_pool import pooled_duckdb
from trunkline.delivery.backends.ducklake_attachment import attach_lake
from trunkline.delivery.config.addresses import DeltaAddress, LakeAddress
from trunkline.delivery.sources.contract import Source, TableSource
from trunkline.delivery.sources.delta import DeltaSource
from trunkline.delivery.sources.ducklake import DuckLakeSource

Row = dict[str, Any]
EDGE: Final = 0  # the number of the row at both ends of a window; tests leave it alone
EXTENSIONS: Final = ("ducklake", "sqlite_scanner", "postgres_scanner")
ORDERS: Final = "id BIGINT, tenant VARCHAR, item VARCHAR, mark INTEGER"
ORDER: Final = "n AS id, tenant, 'item ' || n AS item, n AS mark"


class SourceTable(Protocol):
    """A table with the columns ``tenant`` and ``mark``, whose changes are delivered. Each kind has steps of its own."""

    @property
    def source(self) -> Source | TableSource: ...

    def write(self, step: Any) -> int:
        """Commit one transaction; returns the newest version."""
        ...

    def write_boundary(self) -> int:
        """A row comes, and goes again with the version that is returned."""
        ...

    def write_trail(self) -> int:
        """Change every row; a row comes and goes."""
        ...

    def rows(self, version: int) -> list[Row]: ...


class LakeSource:
    """``lake.orders``. A step is the SQL of one transaction; several statements need their own BEGIN and COMMIT.

    ``row`` makes a row from ``n`` and ``tenant``, as the select list of a query.
    """

    def __init__(
        self,
        folder: Path,
        *,
        catalog: str = "",
        columns: str = ORDERS,
        row: str = ORDER,
        inlining: int = 10,
    ) -> None:
        self.address = LakeAddress(
            catalog or str(folder / "source.ducklake"), "orders", data_path=str(folder / "source")
        )
        self.source = DuckLakeSource(self.address)
        self._row = row
        self.inlining = inlining
        self.write(f"CALL lake.set_option('data_inlining_row_limit', {inlining})")
        self.write(f"CREATE TABLE lake.orders ({columns})")

    def write(self, step: str) -> int:
        with self.opened() as lake:
            lake.execute(step)
            return _newest(lake)

    def insert(self, tenant: str | None, *numbers: int) -> str:
        """The statement that inserts the rows of these numbers."""
        value = "NULL" if tenant is None else f"'{tenant}'"
        made = ", ".join(f"({number}, {value})" for number in numbers)
        return f"INSERT INTO lake.orders BY NAME SELECT {self._row} FROM (VALUES {made}) v(n, tenant)"

    def write_boundary(self) -> int:
        self.write(self.insert("acme", EDGE))
        return self.write(self._delete_edge())

    def write_trail(self) -> int:
        self.mark_all()
        self.write(self.insert("acme", EDGE))
        return self.write(self._delete_edge())

    def mark_all(self) -> int:
        return self.write("UPDATE lake.orders SET mark = mark + 1000")

    def _delete_edge(self) -> str:
        return f"DELETE FROM lake.orders WHERE mark = {EDGE}"

    def rows(self, version: int) -> list[Row]:
        return self.ask(f"SELECT * FROM lake.orders AT (VERSION => {version})")

    def ask(self, query: str) -> list[Row]:
        with self.opened() as lake:
            result = lake.execute(query)
            names = [name for name, *_ in result.description or ()]
            return [dict(zip(names, row, strict=True)) for row in result.fetchall()]

    @contextmanager
    def opened(self) -> Iterator[duckdb.DuckDBPyConnection]:
        with opened_lake(self.address) as lake:
            yield lake


@contextmanager
def opened_lake(address: LakeAddress) -> Iterator[duckdb.DuckDBPyConnection]:
    """A lake, attached briefly as ``lake``: no other process can have a catalog in a DuckDB file open meanwhile."""
    with pooled_duckdb(*EXTENSIONS) as connection:
        attach_lake(connection, address, "lake", read_only=False)
        yield connection
        connection.execute("DETACH lake")


def _newest(lake: duckdb.DuckDBPyConnection) -> int:
    ((version,),) = lake.execute("SELECT max(snapshot_id) FROM ducklake_snapshots('lake')").fetchall()
    return int(version)


class DeltaFeed:
    """A Delta table with a change data feed. A step is called with the table, and commits once."""

    def __init__(self, folder: Path, rows: Sequence[Row]) -> None:
        self.path = str(folder / "source")
        self.source = DeltaSource(DeltaAddress(self.path))
        write_deltalake(self.path, order_rows(rows), configuration={"delta.enableChangeDataFeed": "true"})

    def write(self, step: Callable[[DeltaTable], object]) -> int:
        step(DeltaTable(self.path))
        return DeltaTable(self.path).version() + 1

    def insert(self, *rows: Row) -> Callable[[DeltaTable], object]:
        return lambda table: write_deltalake(table, order_rows(rows), mode="append")

    def write_boundary(self) -> int:
        self.write(self.insert({"id": EDGE, "tenant": "acme", "item": "boundary", "mark": EDGE}))
        return self.write(lambda table: table.delete(f"mark = {EDGE}"))

    def write_trail(self) -> int:
        self.write(lambda table: table.update(updates={"mark": "mark + 1000"}))
        self.write(self.insert({"id": EDGE, "tenant": "acme", "item": "phantom", "mark": EDGE}))
        return self.write(lambda table: table.delete(f"mark = {EDGE}"))

    def rows(self, version: int) -> list[Row]:
        found: list[Row] = pa.table(DeltaTable(self.path, version=version - 1).scan()).to_pylist()
        return found


def order_rows(rows: Sequence[Row]) -> pa.Table:
    kinds = {"id": pa.int64(), "tenant": pa.string(), "item": pa.string(), "mark": pa.int32()}
    return pa.Table.from_pylist(list(rows), pa.schema(list(kinds.items())))
