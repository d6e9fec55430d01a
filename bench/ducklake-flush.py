"""What one flush of 200 rows costs, by the extension and written directly.

    ./run bench ducklake-flush [--rows N] [--flushes N]

Each row is CPU-milliseconds of this process for one flush of one table: 160 inserts, 30 updates, 10 deletes. Lakes have
their catalog in SQLite. Compaction is off, so that the number of files is the one that is named; both begin with
the same files, in one process, one after the other.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa

from trunkline.delivery.changes.columns import Column, Columns, arrow_schema
from trunkline.delivery.changes.rows import OP_COLUMN, Op
from trunkline.delivery.config.addresses import LakeAddress
from trunkline.delivery.destinations import ducklake_upkeep
from trunkline.delivery.destinations.contract import Applied, MemberStep, MemberWrite, TableStep
from trunkline.delivery.destinations.ducklake import DuckLakePlace
from trunkline.delivery.destinations.ducklake_attachments import AttachedLakes
from trunkline.delivery.destinations.ducklake_direct.direct_lake import DirectLake

COLUMNS: Final[Columns] = (
    Column("id", "BIGINT"),
    Column("tenant", "VARCHAR"),
    Column("item", "VARCHAR"),
    Column("price", "DECIMAL(18,2)"),
    Column("paid", "BOOLEAN"),
    Column("at", "TIMESTAMP"),
)
INSERTS, UPDATES, DELETES = 160, 30, 10


class Lake:
    """Tables of one catalog, each of its own member, and their keys."""

    def __init__(self, folder: Path, tables: int, *, directly: bool) -> None:
        self.addresses = [
            LakeAddress(f"sqlite:{folder / 'catalog.sqlite'}", f"t{at}", "main", data_path=str(folder / "data"))
            for at in range(tables)
        ]
        direct = DirectLake(self.addresses[0]) if directly else None
        self.place = DuckLakePlace(self.addresses[0], AttachedLakes(), direct=direct)
        self.keys: list[list[int]] = [[] for _ in range(tables)]
        self.next_key = 0
        self.position = 0
        self.draw = random.Random(7)

    def apply(self, rows: Sequence[pa.RecordBatch], *, seeds: bool = False) -> None:
        position, self.position = self.position, self.position + 1
        writes = []
        for at, (address, batch) in enumerate(zip(self.addresses, rows, strict=True)):
            step = TableStep("t", address, COLUMNS, ("id",), replaces=seeds)
            through = (position, position + 1, 1, "source", (step,))
            write = MemberStep(f"bench/m{at}", "main", *through, seeds=seeds)
            writes.append(MemberWrite(write, {"t": lambda batch=batch: iter([batch])}))
        for result in self.place.apply(writes).values():
            assert isinstance(result, Applied), result

    def seed(self, rows: int) -> None:
        self.apply([self._batch(self._new_keys(at, rows), None) for at in range(len(self.addresses))], seeds=True)

    def grow(self, rows: int) -> None:
        """One more file."""
        self.apply([self._batch(self._new_keys(at, rows), Op.INSERT) for at in range(len(self.addresses))])

    def changes(self) -> list[pa.RecordBatch]:
        """The rows of one flush of all tables."""
        return [self._changes(at) for at in range(len(self.addresses))]

    def _changes(self, at: int) -> pa.RecordBatch:
        keys = self.keys[at]
        chosen = self.draw.sample(range(len(keys)), UPDATES + DELETES)
        updated = [keys[each] for each in chosen[:UPDATES]]
        deleted = [keys[each] for each in chosen[UPDATES:]]
        gone = set(deleted)
        self.keys[at] = [key for key in keys if key not in gone]
        parts = [(Op.INSERT, self._new_keys(at, INSERTS)), (Op.REPLACE, updated), (Op.REMOVE, deleted)]
        batches = [self._batch(each, op) for op, each in parts]
        return pa.concat_batches(batches)

    def _new_keys(self, at: int, count: int) -> list[int]:
        made = list(range(self.next_key, self.next_key + count))
        self.next_key += count
        self.keys[at] += made
        return made

    def _batch(self, keys: Sequence[int], op: Op | None) -> pa.RecordBatch:
        rows = [
            {"id": key, "tenant": "acme", "item": f"item {key % 97}", "paid": key % 2 == 0, "at": key * 10**6}
            for key in keys
        ]
        made = pa.RecordBatch.from_pylist(rows, arrow_schema(COLUMNS))
        if op is None:
            return made
        ops = pa.array([int(op)] * len(rows), pa.int8())
        return pa.RecordBatch.from_arrays([ops, *made.columns], [OP_COLUMN, *made.schema.names])


def cpu_ms() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return (used.ru_utime + used.ru_stime) * 1000


def measured(lake: Lake, flushes: int) -> tuple[float, float]:
    """CPU and wall milliseconds of one flush of one table."""
    lake.apply(lake.changes())  # the first one of a process reads more
    every = [lake.changes() for _ in range(flushes)]
    begun, at = cpu_ms(), time.monotonic()
    for each in every:
        lake.apply(each)
    count = flushes * len(lake.addresses)
    return (cpu_ms() - begun) / count, (time.monotonic() - at) * 1000 / count


def cases(rows: int) -> Iterator[tuple[str, int, int, int, int]]:
    """A title, tables, rows of the first file, further files and their rows."""
    yield f"{rows:,} rows in 10 files", 1, rows // 10, 9, rows // 10
    yield f"{rows:,} rows in 200 files", 1, rows // 200, 199, rows // 200
    yield "100 tables in one transaction", 100, 1000, 1, 200


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000, help="of a table (default: 100,000)")
    parser.add_argument("--flushes", type=int, default=10, help="that are measured (default: 10)")
    options = parser.parse_args(arguments)
    ducklake_upkeep.COMPACT_EVERY = 10**9  # type: ignore[misc]
    print(f"{'':32} {'extension':>20} {'direct':>20} {'ratio':>7}")
    for title, tables, first, files, each in cases(options.rows):
        found = [_case(tables, first, files, each, options.flushes, directly=directly) for directly in (False, True)]
        shown = "".join(f"{cpu:12.1f} ({wall:5.0f})" for cpu, wall in found)
        print(f"{title:32} {shown:>40} {found[0][0] / found[1][0]:6.1f}x", flush=True)
    print("CPU-ms for one flush of one table (wall ms)")
    return 0


def _case(tables: int, first: int, files: int, each: int, flushes: int, *, directly: bool) -> tuple[float, float]:
    with tempfile.TemporaryDirectory(prefix="trunkline-bench-") as folder:
        lake = Lake(Path(folder), tables, directly=directly)
        lake.seed(first)
        made: Callable[[int], None] = lake.grow
        for _ in range(files):
            made(each)
        return measured(lake, max(1, flushes // (10 if tables > 1 else 1)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
