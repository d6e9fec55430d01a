"""What a flush of 200 rows costs in a Delta table, by Trunkline and by `merge` of delta-rs.

    ./run bench delta-commit [--rows 10000] [--files 10] [--flushes 5] [--quick] [--json] [--dir DIR]

Each flush has 160 inserts, 30 updates and 10 deletes, the position and the token. Updates and deletes are of keys all
over the table, or side by side. `merge` gets the position as an application transaction of its commit, may not retry,
and its table stays open between flushes, as ours does. "With vectors": the table allows deletion vectors; "delta-rs
commits": the files are ours, the commit is not. The cost is CPU time of the process with all its threads; files
are counted after the flushes. Nothing is compared with a goal: the exit code is 0, or 2 if a measurement failed.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from bench_command import measured, parser_of, say
from deltalake import CommitProperties, DeltaTable, Transaction
from log_processes import Failed

from trunkline.delivery.backends.delta_types import conformed, stored_schema
from trunkline.delivery.changes.columns import Column
from trunkline.delivery.changes.rows import OP_COLUMN, Op
from trunkline.delivery.config.addresses import DeltaAddress
from trunkline.delivery.destinations import delta_files, delta_log
from trunkline.delivery.destinations.contract import Applied, MemberStep, MemberWrite, TableStep
from trunkline.delivery.destinations.delta import DeltaPlace
from trunkline.delivery.destinations.delta_vectors import PROPERTY

COLUMNS = tuple(
    Column(*each)
    for each in (
        *(("id", "BIGINT"), ("tenant", "VARCHAR"), ("item", "VARCHAR"), ("quantity", "INTEGER")),
        *(("price", "DECIMAL(12,2)"), ("noted", "TIMESTAMP"), ("paid", "BOOLEAN"), ("payload", "VARCHAR")),
    )
)
KEY, SOURCE = ("id",), "bench"
INSERTS, UPDATES, DELETES = 160, 30, 10
OURS, VECTORS, OUR_FILES, MERGE = "Trunkline", "with vectors", "delta-rs commits", "delta-rs merge"
WAYS = (OURS, VECTORS, OUR_FILES, MERGE)


@dataclasses.dataclass(frozen=True)
class Plan:
    rows: tuple[int, ...] = (10_000, 100_000, 1_000_000)
    files: tuple[int, ...] = (1, 10, 100)
    flushes: int = 5


QUICK = Plan((2_000,), (1, 10), 2)


@dataclasses.dataclass(frozen=True)
class Cost:
    rows: int
    files: int
    keys: str  # of updates and deletes
    way: str
    cpu_ms: float  # of a flush, the mean
    first_cpu_ms: float  # of the first one, which does not count
    files_after: int


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = parser_of("delta-commit", __doc__, quick="small tables", needs="1 GB")
    parser.add_argument("--rows", type=int, action="append", help="only tables of this size; may be repeated")
    parser.add_argument("--files", type=int, action="append", help="only tables of this many files; may be repeated")
    parser.add_argument("--flushes", type=int, help="measured flushes, after the first (default: 5)")
    return parser.parse_args(arguments)


def rows_of(ids: list[int], version: int) -> pa.Table:
    count = len(ids)
    values = (
        *(pa.array(ids, pa.int64()), pa.array(["t1"] * count), pa.array([f"item {at % 1000}" for at in ids])),
        *(
            pa.array([version] * count, pa.int32()),
            pa.array([at % 10_000 for at in ids], pa.int32()).cast(pa.decimal128(12, 2)),
        ),
        *(pa.array([at * 1_000_000 for at in ids], pa.timestamp("us")), pa.array([at % 2 == 0 for at in ids])),
    )
    return pa.table([*values, pa.array([f"{at * 31:032x}" for at in ids])], [column.name for column in COLUMNS])


class Keys:
    """The keys of one table, and changes of them."""

    def __init__(self, rows: int, spread: str) -> None:
        self.held = list(range(rows))
        self._next = rows
        self._spread = spread
        self._draw = random.Random(rows)

    def changes(self, version: int) -> pa.Table:
        count = UPDATES + DELETES
        first = self._draw.randrange(len(self.held) - count)
        places = range(first, first + count)
        if self._spread == "random":
            places = self._draw.sample(range(len(self.held)), count)
        chosen = [self.held[at] for at in places]
        fresh = list(range(self._next, self._next + INSERTS))
        self._next += INSERTS
        gone = set(chosen[UPDATES:])
        self.held = [at for at in self.held if at not in gone] + fresh
        ops = [Op.REPLACE] * UPDATES + [Op.REMOVE] * DELETES + [Op.INSERT] * INSERTS
        return rows_of([*chosen, *fresh], version).append_column(OP_COLUMN, pa.array(map(int, ops), pa.int8()))


class OwnTable:
    """Written as a deliverer does."""

    def __init__(self, path: Path, rows: int, files: int, *, vectors: bool = False) -> None:
        self.path = path
        self._place = DeltaPlace({PROPERTY: "true"} if vectors else {})
        with patch.object(delta_files, "ROWS_PER_FILE", -(-rows // files)):
            self._write(rows_of(list(range(rows)), 0), 0, 1, seeds=True)

    def flush(self, changes: pa.Table, version: int) -> None:
        applied = self._write(changes, version, version + 1, seeds=False)
        if (applied.removed, applied.written, applied.missing) != (UPDATES + DELETES, UPDATES + INSERTS, 0):
            raise Failed(f"a flush has done {applied}")

    def _write(self, rows: pa.Table, expected: int, through: int, *, seeds: bool) -> Applied:
        table = TableStep("", DeltaAddress(str(self.path)), COLUMNS, KEY, replaces=seeds)
        step = MemberStep("bench/t", "", expected, through, 1, SOURCE, (table,), seeds=seeds)
        [result] = self._place.apply([MemberWrite(step, {"": lambda: iter(rows.to_batches())})]).values()
        if not isinstance(result, Applied):
            raise Failed(str(result))
        return result


class MergedTable(OwnTable):
    """Seeded as a deliverer does, then merged by delta-rs."""

    def __init__(self, path: Path, rows: int, files: int) -> None:
        super().__init__(path, rows, files)
        self._table = DeltaTable(str(path))
        self._schema = stored_schema(COLUMNS, SOURCE).append(pa.field(OP_COLUMN, pa.int8()))

    def flush(self, changes: pa.Table, version: int) -> None:
        table = self._table
        table.update_incremental()
        if table.transaction_version("trunkline.position") != version:
            raise Failed("another position")
        numbers = {"trunkline.position": version + 1, "trunkline.token": 1}
        properties = CommitProperties(
            max_commit_retries=0, app_transactions=[Transaction(*each) for each in numbers.items()]
        )
        values = {column.name: f"s.{column.name}" for column in COLUMNS}
        merger = table.merge(conformed(changes, self._schema), "t.id = s.id", "s", "t", commit_properties=properties)
        merger.when_matched_delete(f"s.{OP_COLUMN} = {int(Op.REMOVE)}").when_matched_update(values)
        found = merger.when_not_matched_insert(values, f"s.{OP_COLUMN} != {int(Op.REMOVE)}").execute()
        done = [found[f"num_target_rows_{what}"] for what in ("inserted", "updated", "deleted")]
        if done != [INSERTS, UPDATES, DELETES]:
            raise Failed(f"a merge has done {found}")


def cost(way: str, path: Path, rows: int, files: int, keys: str, flushes: int) -> Cost:
    table = MergedTable(path, rows, files) if way == MERGE else OwnTable(path, rows, files, vectors=way == VECTORS)
    chosen, spent = Keys(rows, keys), []
    with patch.object(delta_log, "is_plain", (lambda _: False) if way == OUR_FILES else delta_log.is_plain):
        for version in range(1, flushes + 2):
            changes = chosen.changes(version)
            begun = time.process_time()
            table.flush(changes, version)
            spent.append((time.process_time() - begun) * 1000)
    held = DeltaTable(str(path))
    if pa.table(held.scan(["id"])).num_rows != len(chosen.held):
        raise Failed(f"{way}: rows are missing")
    return Cost(rows, files, keys, way, mean(spent[1:]), spent[0], len(held.file_uris()))


def costs(options: argparse.Namespace, directory: Path) -> list[Cost]:
    plan, found = QUICK if options.quick else Plan(), []
    for rows in options.rows or plan.rows:
        for files in options.files or plan.files:
            for keys in ("random", "clustered"):
                for way in WAYS:
                    path = directory / f"{rows}-{files}-{keys}-{WAYS.index(way)}"
                    found.append(cost(way, path, rows, files, keys, options.flushes or plan.flushes))
                    say(f"{rows:,} rows, {files} files, {keys} keys, {way}: {found[-1].cpu_ms:.1f} CPU-ms")
    return found


def lines(found: list[Cost]) -> Iterator[str]:
    yield f"{'CPU-ms of a flush (files after it)':38}" + "".join(f"{way:>20}" for way in WAYS)
    for at in range(0, len(found), len(WAYS)):
        group = found[at : at + len(WAYS)]
        what = f"{group[0].rows:,} rows, {group[0].files} files, {group[0].keys}"
        yield f"{what:38}" + "".join(f"{f'{each.cpu_ms:.1f} ({each.files_after})':>20}" for each in group)


def values(found: list[Cost]) -> list[dict[str, Any]]:
    return [dataclasses.asdict(each) for each in found]


def main(arguments: list[str] | None = None) -> int:
    options = options_of(arguments)
    return measured(
        "delta-commit", options, lambda place: costs(options, place), lines=lines, values=values, met=lambda _: True
    )


if __name__ == "__main__":
    sys.exit(main())
