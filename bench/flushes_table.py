"""The table of `./run bench flushes`: it is seeded, flushed in this process, and compared at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, median
from types import TracebackType
from typing import TypeVar

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake
from log_load import cpu_seconds, percentile
from log_processes import Failed

from trunkline.delivery.backends.duckdb_pool import new_duckdb
from trunkline.delivery.backends.ducklake_attachment import attach_lake, catalog_scanners
from trunkline.delivery.changes.columns import Column, Columns, arrow_schema
from trunkline.delivery.changes.rows import OP_COLUMN, Op
from trunkline.delivery.config.address_rules import home_of
from trunkline.delivery.config.addresses import Address, DeltaAddress, LakeAddress, PostgresAddress
from trunkline.delivery.destinations.contract import Applied, MemberStep, MemberTables, MemberWrite, TableStep
from trunkline.delivery.destinations.factory import open_place

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))  # for the throw-away server of the tests

from postgres_server import PostgresServer

NAMES = {
    "ducklake-sqlite": "DuckLake, catalog in SQLite",
    "ducklake-postgres": "DuckLake, catalog in PostgreSQL",
    "delta": "Delta",
    "postgres": "PostgreSQL",
}
KINDS = tuple(NAMES)
COLUMNS: Columns = (
    Column("id", "BIGINT"),
    Column("tenant", "VARCHAR"),
    Column("item", "VARCHAR"),
    Column("price", "DOUBLE"),
    Column("noted", "TIMESTAMP"),
)
Result = TypeVar("Result")
MEMBER, SOURCE = "bench/table", "bench"


@contextmanager
def bench_server(kind: str) -> Iterator[PostgresServer | None]:
    """A PostgreSQL server that syncs its commits, for kinds that need one."""
    if "postgres" not in kind:
        yield None
        return
    with PostgresServer(fsync=True) as server:
        yield server


@dataclass(frozen=True)
class Cost:
    """Of flushes: CPU time is the mean, of this process and of a PostgreSQL server."""

    cpu_ms: float
    p50_ms: float
    p99_ms: float


def middle_cost(costs: Sequence[Cost]) -> Cost:
    times = [cost.p50_ms for cost in costs]
    return Cost(mean(cost.cpu_ms for cost in costs), median(times), percentile(times, 0.99))


class BenchTable:
    """Rows are numbered: a flush inserts the next numbers, removes the oldest, and updates some in between."""

    def __init__(self, kind: str, folder: Path, server: PostgresServer | None) -> None:
        self.kind = kind
        self._server = server
        self._address = _address(kind, folder, server)
        self._place = open_place(self._address)
        self._schema = arrow_schema(COLUMNS)
        self._position = 0
        self._oldest = self._next = 0  # the numbers of the rows that the table has
        folder.mkdir(parents=True)

    def __enter__(self) -> BenchTable:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._place.close()

    @property
    def has_files(self) -> bool:
        return not isinstance(self._address, PostgresAddress)

    # ----------------------------------------------------------------------------------------------------- writing

    def seed(self, rows: int) -> None:
        self._apply(self._rows(range(rows), 0), seeds=True)
        self._next = rows

    def flush(self, operations: int) -> Cost:
        updates, deletes = operations * 15 // 100, operations * 5 // 100
        arriving = range(self._next, self._next + operations - updates - deletes)
        gone = range(self._oldest, self._oldest + deletes)
        held = self._next - gone.stop
        changed = [gone.stop + (self._position * 7919 + number * held // updates) % held for number in range(updates)]
        parts = [
            self._staged(gone, Op.REMOVE),
            self._staged(sorted(set(changed)), Op.REPLACE),
            self._staged(arriving, Op.INSERT),
        ]
        self._oldest, self._next = gone.stop, arriving.stop
        return self._apply(pa.concat_tables(parts), seeds=False)

    def add_files(self, count: int) -> None:
        """Another program appends so many files of rows that stay."""
        parts = [self._rows(range(-(number + 1) * 1000, -number * 1000), 0) for number in range(count)]
        if isinstance(self._address, DeltaAddress):
            for rows in parts:
                write_deltalake(self._address.path, rows, mode="append")
        elif isinstance(self._address, LakeAddress):
            _elsewhere(append_to_lake, self._address, parts)

    def _apply(self, rows: pa.Table, *, seeds: bool) -> Cost:
        table = TableStep("", self._address, COLUMNS, ("id",), replaces=seeds)
        home = home_of(self._address)
        through = self._position + 1
        step = MemberStep(MEMBER, home, self._position, through, 1, SOURCE, (table,), seeds=seeds)
        begun, cpu = time.perf_counter(), self._cpu_s()
        result = self._place.apply([MemberWrite(step, {"": lambda: iter(rows.to_batches())})])[MEMBER]
        took = time.perf_counter() - begun
        if not isinstance(result, Applied):
            raise Failed(f"{NAMES[self.kind]}: a flush failed: {result}")
        self._position = through
        return Cost((self._cpu_s() - cpu) * 1000, took * 1000, took * 1000)

    def _cpu_s(self) -> float:
        if self._server is None:
            return time.process_time()
        server = self._server.pid
        children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
        return time.process_time() + cpu_seconds([server, *map(int, children)])

    def _rows(self, numbers: Sequence[int], version: int) -> pa.Table:
        ids = pa.array(numbers, pa.int64())
        names = pc.binary_join_element_wise("item", pc.cast(ids, pa.string()), "-")
        return pa.table(
            {
                "id": ids,
                "tenant": pa.array(["acme"] * len(numbers), pa.string()),
                "item": names,
                "price": pc.add(pc.cast(ids, pa.float64()), float(version)),
                "noted": pc.cast(pc.multiply(ids, 1_000_000), pa.timestamp("us")),
            }
        ).cast(self._schema)

    def _staged(self, numbers: Sequence[int], op: Op) -> pa.Table:
        rows = self._rows(numbers, self._position)
        return rows.append_column(OP_COLUMN, pa.array([int(op)] * len(numbers), pa.int8()))

    # ----------------------------------------------------------------------------------------------------- reading

    def files(self) -> int | None:
        """Data files of the table as it is now."""
        if isinstance(self._address, DeltaAddress):
            return len(DeltaTable(self._address.path).file_uris())
        return _elsewhere(files_of_lake, self._address) if isinstance(self._address, LakeAddress) else None

    def check(self) -> None:
        """The table has exactly the rows that it should have."""
        member = MemberTables(MEMBER, home_of(self._address), (self._address,))
        _, [rows], close = self._place.rows(member)
        ids = sorted(number for batch in rows for number in batch.column("id").to_pylist() if number >= 0)
        close()
        if ids != list(range(self._oldest, self._next)):
            raise Failed(f"{NAMES[self.kind]}: the table has other rows than those that were delivered")


def _elsewhere(function: Callable[..., Result], *arguments: object) -> Result:
    """In a process of its own: another program opens the catalog there."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


@contextmanager
def _lake(address: LakeAddress) -> Iterator[duckdb.DuckDBPyConnection]:
    connection = new_duckdb("ducklake", *catalog_scanners(address))
    try:
        attach_lake(connection, address, "lake", read_only=False)
        yield connection
    finally:
        connection.close()


def append_to_lake(address: LakeAddress, parts: Sequence[pa.Table]) -> None:
    with _lake(address) as connection:
        for rows in parts:
            connection.register("arriving", rows)
            connection.execute(f"INSERT INTO lake.{address.table} SELECT * FROM arriving")


def files_of_lake(address: LakeAddress) -> int:
    with _lake(address) as connection:
        query = f"SELECT count(*) FROM ducklake_list_files('lake', '{address.table}')"
        [(count,)] = connection.execute(query).fetchall()
    return int(count)


def _address(kind: str, folder: Path, server: PostgresServer | None) -> Address:
    match kind:
        case "delta":
            return DeltaAddress(str(folder / "table"))
        case "ducklake-sqlite":
            return LakeAddress(f"sqlite:{folder}/catalog.sqlite", "orders", data_path=str(folder / "data"))
    assert server is not None
    dsn = server.create_database(f"bench_{folder.name.replace('-', '_')}")
    if kind == "postgres":
        return PostgresAddress(dsn, "orders")
    return LakeAddress(f"postgres:{dsn}", "orders", data_path=str(folder / "data"))
