"""The rows that a direct flush leaves in a catalog are those of the extension, up to numbers, paths, times and sizes.

An upgrade of DuckDB must pass this: a difference means that the extension writes another format than the direct writer.
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from msgspec.structs import replace

from contract.ducklake_destination import LakeSite
from postgres_server import PostgresServer
from trunkline.delivery.backends.ducklake_attachment import catalog_location
from trunkline.delivery.changes.columns import Column, Columns
from trunkline.delivery.changes.rows import Op
from trunkline.delivery.destinations.contract import Applied, MemberWrite
from trunkline.delivery.destinations.ducklake_direct.direct_lake import DirectLake, DirectOutcome
from trunkline.destination_suite.place import Change, Plan, Table, plain, staged

COLUMNS: Final[Columns] = (
    Column("id", "BIGINT"),
    Column("name", "VARCHAR"),
    Column("price", "DECIMAL(18,3)"),
    Column("ratio", "DOUBLE"),
    Column("paid", "BOOLEAN"),
    Column("raw", "BLOB"),
    Column("at", "TIMESTAMP"),
    Column("small", "TINYINT"),
)
TABLES: Final = (
    "ducklake_snapshot",
    "ducklake_snapshot_changes",
    "ducklake_data_file",
    "ducklake_delete_file",
    "ducklake_file_column_stats",
    "ducklake_table_stats",
    "ducklake_table_column_stats",
    "ducklake_files_scheduled_for_deletion",
    "ducklake_inlined_data_tables",
)
# The size of a file is that of its writer; so is where records are, and which number a file has.
DIFFERENT: Final = frozenset(
    {"snapshot_time", "schedule_start", "file_size_bytes", "footer_size", "column_size_bytes", "data_file_id"}
    | {"delete_file_id"}
)
UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}")


def row(number: int, **values: Any) -> dict[str, Any]:
    return {"id": number, "name": f"n{number}", "small": number % 100} | values


SEEDED: Final = [row(number) for number in range(1, 21)]
FLUSHES: Final[dict[str, list[list[Change]]]] = {
    "insert": [[(Op.INSERT, row(30, price=None, ratio=1.5, paid=True, raw=b"\x00\xff"))]],
    "nothing": [[]],
    "NaN and infinity": [[(Op.INSERT, row(30, ratio=float("nan"))), (Op.INSERT, row(31, ratio=float("-inf")))]],
    "long texts": [[(Op.INSERT, row(30, name="a" * 300)), (Op.INSERT, row(31, name="b" * 255 + "é"))]],
    "first deletions": [[(Op.REMOVE, row(1)), (Op.REPLACE, row(2, name="again"))]],
    "later deletions": [[(Op.REMOVE, row(1))], [(Op.REMOVE, row(3)), (Op.INSERT, row(40))], [(Op.REMOVE, row(40))]],
    "a file without rows": [
        [(Op.INSERT, row(30))],
        [(Op.REMOVE, row(30))],
        [(Op.REMOVE, row(n)) for n in range(1, 21)],
    ],
    "two files": [[(Op.INSERT, row(30))], [(Op.REPLACE, row(30, name="x")), (Op.REPLACE, row(5, name="y"))]],
}


class Seen(DirectLake):
    last: DirectOutcome | None = None

    def apply(self, writes: Any) -> DirectOutcome:
        self.last = super().apply(writes)
        return self.last


def delivered(site: LakeSite, flushes: list[list[Change]]) -> None:
    place = site.open()
    direct = Seen(site.address("any")) if site.directly else None
    place._direct = direct
    table = Table(site)
    seed = Plan(1, 1, "source", COLUMNS, ("id",), seeds=True)
    writes = [(seed, list(plain(COLUMNS, SEEDED)))]
    for at, changes in enumerate(flushes):
        plan = replace(seed, seeds=False, expected=at + 1, through=at + 2)
        writes.append((plan, list(staged(COLUMNS, ("id",), changes))))
    for plan, batches in writes:
        step = plan.member(site, table.member, [plan.table(site, table.name)])
        [result] = place.apply([MemberWrite(step, {table.name: partial(iter, batches)})]).values()
        assert isinstance(result, Applied), result
        if direct is not None and not plan.seeds:
            assert direct.last is not None
            assert not direct.last.left, direct.last.reasons
    place.close()


def catalog_rows(site: LakeSite) -> dict[str, Counter[Any]]:
    kind, where = catalog_location(site.catalog)
    if kind == "sqlite":
        with closing(sqlite3.connect(where)) as opened:
            return {table: _rows(opened.execute(f"SELECT * FROM {table}")) for table in TABLES}
    with psycopg.connect(where) as server:
        return {table: _rows(server.execute(f"SELECT * FROM {table}".encode())) for table in TABLES}


def _rows(answer: Any) -> Counter[Any]:
    names = [column[0] for column in answer.description]
    found: Counter[Any] = Counter()
    for values in answer.fetchall():
        kept = [(name, _alike(value)) for name, value in zip(names, values, strict=True) if name not in DIFFERENT]
        found[tuple(kept)] += 1
    return found


def _alike(value: Any) -> Any:
    if isinstance(value, str):
        changes = UUID.sub("UUID", value)
        return ",".join(sorted(changes.split(","))) if ":" in changes and "table" in changes else changes
    return int(value) if isinstance(value, bool) else value


@pytest.mark.parametrize("name", FLUSHES)
def test_direct_flushes_leave_the_rows_of_the_extension_in_sqlite(tmp_path: Path, name: str) -> None:
    sites = [
        LakeSite(f"sqlite:{tmp_path / f'{directly}.sqlite'}", str(tmp_path / str(directly)), directly=directly)
        for directly in (True, False)
    ]
    _compare(sites, FLUSHES[name])


@pytest.mark.parametrize("name", ["later deletions", "a file without rows", "NaN and infinity"])
def test_direct_flushes_leave_the_rows_of_the_extension_in_postgres(
    tmp_path: Path, name: str, postgres: PostgresServer, request: pytest.FixtureRequest
) -> None:
    made: Callable[[str], str] = postgres.create_database
    sites = [
        LakeSite(
            f"postgres:{made(f'rows_{abs(hash(request.node.name)) % 10**9}_{int(directly)}')}",
            str(tmp_path / str(directly)),
            directly=directly,
        )
        for directly in (True, False)
    ]
    _compare(sites, FLUSHES[name])


def _compare(sites: list[LakeSite], flushes: list[list[Change]]) -> None:
    for site in sites:
        delivered(site, flushes)
    direct, extension = map(catalog_rows, sites)
    for table in TABLES:
        assert direct[table] == extension[table], table
