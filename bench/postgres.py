"""CPU of a group of flushes to one PostgreSQL database: in pipelines, and one member after the other behind savepoints.

    ./run bench postgres [MEMBERSxROWS]...        50x200 50x2000 5x20000 by default

Only the place is measured, without Spark and without a source: a task that writes its members in one transaction. Each
row is an operation (80 % inserts, 15 % updates, 5 % deletes). The two ways take turns, window by window, on tables of
their own; figures are medians, in milliseconds of CPU for one member. The server syncs its commits.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from delivery_places import server_for
from delivery_rig import descendants
from log_processes import Failed

from trunkline.delivery.changes.columns import Column, Columns, arrow_schema
from trunkline.delivery.changes.rows import OP_COLUMN, Op
from trunkline.delivery.config.addresses import PostgresAddress
from trunkline.delivery.destinations.contract import Applied, MemberStep, MemberWrite, TableStep
from trunkline.delivery.destinations.postgres_pipeline import OrdinaryMembers
from trunkline.delivery.destinations.postgres_place import PostgresPlace

SIZES = ("50x200", "50x2000", "5x20000")
WARM_UP, WINDOWS = 6, 5  # the server settles for a plan after a few
NAMES = ("id", "tenant", "item", "quantity", "price", "noted", "paid", "payload")
TYPES = ("BIGINT", "VARCHAR", "VARCHAR", "INTEGER", "DECIMAL(12,2)", "TIMESTAMP", "BOOLEAN", "VARCHAR")
COLUMNS: Columns = tuple(Column(name, kind) for name, kind in zip(NAMES, TYPES, strict=True))
Ids = npt.NDArray[np.int64]


class Cost(NamedTuple):
    """Of one window, in seconds."""

    wall: float
    client: float
    server: float


class Tenant:
    """One member with one table, and the keys that it has."""

    def __init__(self, dsn: str, name: str, rows: int) -> None:
        self._address = PostgresAddress(dsn, name)
        self._live = np.arange(rows)
        self._at = 0
        self.member = f"bench/{name}"

    def seed(self) -> MemberWrite:
        return self._write(_rows(self._live), seeds=True)

    def flush(self, rows: int, rng: np.random.Generator) -> MemberWrite:
        updates, deletes = rows * 15 // 100, rows * 5 // 100
        held = rng.permutation(self._live)
        first = int(self._live.max()) + 1
        added = np.arange(first, first + rows - updates - deletes)
        self._live = np.concatenate([held[deletes:], added])
        parts = {Op.REMOVE: held[:deletes], Op.REPLACE: held[deletes : deletes + updates], Op.INSERT: added}
        ops = np.concatenate([np.full(len(ids), op, np.int8) for op, ids in parts.items()])
        return self._write(_rows(np.concatenate(list(parts.values()))).add_column(0, OP_COLUMN, pa.array(ops)))

    def _write(self, rows: pa.Table, *, seeds: bool = False) -> MemberWrite:
        table = TableStep("", self._address, COLUMNS, ("id",), replaces=seeds)
        step = MemberStep(self.member, "public", self._at, self._at + 1, 1, "bench", (table,), seeds=seeds)
        self._at += 1
        batches = rows.combine_chunks().to_batches()
        return MemberWrite(step, {"": lambda: iter(batches)})


def _rows(ids: Ids) -> pa.Table:
    numbers = pa.array(ids)
    columns = {
        "id": numbers,
        "tenant": pa.array(["acme"] * len(ids)),
        "item": pc.binary_join_element_wise("item", numbers.cast(pa.string()), " "),
        "quantity": pa.array(ids % 97),
        "price": pa.array(ids % 10_000).cast(pa.decimal128(21, 2)),
        "noted": pa.array(ids * 1_000_000),
        "paid": pa.array(ids % 2 == 0),
        "payload": pa.array([""] * len(ids)),
    }
    return pa.table(columns).cast(arrow_schema(COLUMNS))


@contextmanager
def one_after_the_other() -> Iterator[None]:
    """No member is ordinary."""
    kept = OrdinaryMembers.write
    OrdinaryMembers.write = lambda self, steps: {}  # type: ignore[method-assign]
    try:
        yield
    finally:
        OrdinaryMembers.write = kept  # type: ignore[method-assign]


def measured(place: PostgresPlace, writes: list[MemberWrite], server: int) -> Cost:
    processes = descendants(server)
    before = (time.monotonic(), time.process_time(), _used(processes))
    results = place.apply(writes)
    after = (time.monotonic(), time.process_time(), _used(processes))
    if failed := [each for each in results.values() if not isinstance(each, Applied)]:
        raise Failed(str(failed[0]))
    return Cost(*(end - begin for begin, end in zip(before, after, strict=True)))


def _used(processes: list[int]) -> float:
    """CPU-seconds, to the nanosecond: a window takes less than the usual tick of 10 ms."""
    files = [Path(f"/proc/{process}/schedstat") for process in processes]
    return sum(int(file.read_text().split()[0]) for file in files if file.exists()) / 1e9


def compare(members: int, rows: int) -> None:
    rng = np.random.default_rng(1)
    with server_for("postgres") as server:
        assert server is not None
        ways: dict[str, list[Cost]] = {"pipelines": [], "one by one": []}
        groups = {way: server.create_database(way.replace(" ", "_")) for way in ways}
        tenants = {way: [Tenant(dsn, f"t{n}", max(rows, 1000)) for n in range(members)] for way, dsn in groups.items()}
        places = {way: PostgresPlace(PostgresAddress(dsn, "t0")) for way, dsn in groups.items()}
        for way, some in tenants.items():
            places[way].apply([each.seed() for each in some])
        for number in range(WARM_UP + WINDOWS):
            for way, some in tenants.items():
                writes = [each.flush(rows, rng) for each in some]
                with nullcontext() if way == "pipelines" else one_after_the_other():
                    cost = measured(places[way], writes, server.pid)
                if number >= WARM_UP:
                    ways[way].append(cost)
        for place in places.values():
            place.close()
    for way, costs in ways.items():
        wall, client, used = (median(each) * 1000 / members for each in zip(*costs, strict=True))
        million = (client + used) * 1000 / rows
        print(f"{members:>5} x {rows:<8,} {way:<12} {client:>8.2f} {used:>8.2f} {wall:>8.2f} {million:>10.1f}")


def main(sizes: list[str]) -> None:
    print("members x rows       way            client   server     wall    CPU-s/M     (ms for one member)")
    for size in sizes or SIZES:
        members, rows = (int(part) for part in size.replace(",", "").lower().split("x"))
        compare(members, rows)


if __name__ == "__main__":
    main(sys.argv[1:])
