"""Changes a lake's table without end: a process of its own, so that the source keeps moving whatever is killed.

Every version of a row has a ``stamp`` of its own, so that an append-only copy shows a row that was delivered twice.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb

from system.parent import die_with
from trunkline.delivery.backends.duckdb_pool import new_duckdb
from trunkline.delivery.backends.ducklake_attachment import attach_lake
from trunkline.delivery.config.addresses import LakeAddress
from trunkline.errors import Unreachable

TABLE = "CREATE TABLE lake.orders (id BIGINT, tenant VARCHAR, amount DECIMAL(12,2), note VARCHAR, stamp BIGINT)"
TENANTS = 10  # of which the last has no destination
KEYS = 4_000
REST_S = (0.05, 0.6)  # between two transactions
MAINTENANCE = (
    "CALL ducklake_flush_inlined_data('lake')",
    "CALL ducklake_merge_adjacent_files('lake')",
    "CALL ducklake_rewrite_data_files('lake', delete_threshold => 0.1)",
)


class Writer:
    """Random transactions; a key is live once."""

    def __init__(self, address: LakeAddress, seed: int) -> None:
        self._address = address
        self._chance = random.Random(seed)
        self._stamp = time.time_ns()

    def begin(self) -> None:
        with self._lake() as lake:
            lake.execute(TABLE)
            lake.execute(self._insert(200))

    def change(self) -> None:
        """One transaction, or a piece of maintenance; one that meets another's commit is made again later."""
        chance = self._chance
        with self._lake() as lake:
            if chance.random() < 0.06:
                lake.execute(chance.choice(MAINTENANCE))
                return
            statements = [self._statement() for _ in range(chance.choice((1, 1, 2, 4)))]
            for statement in ("BEGIN", *statements, "COMMIT"):
                lake.execute(statement)

    def _lake(self) -> duckdb.DuckDBPyConnection:
        connection = new_duckdb("ducklake", "sqlite_scanner")
        attach_lake(connection, self._address, "lake", read_only=False)
        return connection

    def _statement(self) -> str:
        chance = self._chance
        some = f"id % {chance.choice((7, 31, 97))} = {chance.randrange(7)}"
        makers = (
            lambda: self._insert(chance.choice((1, 3, 40, 200))),
            lambda: f"UPDATE lake.orders SET note = '{chance.random()}', stamp = {self._fresh()} + id WHERE {some}",
            lambda: f"UPDATE lake.orders SET tenant = {self._tenant()}, stamp = {self._fresh()} + id WHERE {some}",
            lambda: (
                f"UPDATE lake.orders SET id = id + {KEYS}, stamp = {self._fresh()} + id "
                f"WHERE id % 501 = 3 AND id < {KEYS} AND id + {KEYS} NOT IN (SELECT id FROM lake.orders)"
            ),
            lambda: f"DELETE FROM lake.orders WHERE {some} AND id % 2 = 0",
        )
        return chance.choices(makers, (5, 3, 2, 1, 2))[0]()

    def _insert(self, count: int) -> str:
        first = self._chance.randrange(KEYS)
        fresh = self._fresh()
        return (
            f"INSERT INTO lake.orders SELECT k, {self._tenant('k')}, k * 1.25, 'new', {fresh} + k "
            f"FROM (SELECT i + {first} AS k FROM range({count}) r(i)) WHERE k NOT IN (SELECT id FROM lake.orders)"
        )

    def _fresh(self) -> int:
        """A stamp below which none is used again, with room for an id on top."""
        self._stamp += 10_000_000
        return self._stamp

    def _tenant(self, of: str = "id") -> str:
        return f"'t' || (({of} + {self._chance.randrange(TENANTS)}) % {TENANTS})"


def endless(writer: Writer, chance: random.Random) -> Iterator[int]:
    """Transactions until the process ends; yields how many there were."""
    done = 0
    while True:
        try:
            writer.change()
        except (duckdb.Error, Unreachable):
            pass  # a reader had the catalog, or another commit came first
        else:
            done += 1
        yield done
        time.sleep(chance.uniform(*REST_S))


def main(catalog: str, data_path: str, seed: str, parent: str, progress: str) -> None:
    die_with(int(parent))
    writer = Writer(LakeAddress(catalog, "orders", data_path=data_path), int(seed))
    for done in endless(writer, random.Random(int(seed))):
        Path(progress).write_text(str(done))


if __name__ == "__main__":
    main(*sys.argv[1:])
