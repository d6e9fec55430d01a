"""The shop of the demo: a DuckLake table of orders of twenty tenants that changes continuously."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Final

import duckdb

from trunkline.delivery.backends.duckdb_pool import new_duckdb
from trunkline.delivery.backends.ducklake_attachment import attach_lake
from trunkline.delivery.backends.sql import literal
from trunkline.delivery.config.addresses import LakeAddress

TENANTS: Final = tuple(f"tenant-{number:02}" for number in range(1, 21))
ITEMS: Final = ("anvil", "bellows", "chisel", "drill", "easel", "file", "gimlet")
TABLE: Final = "id BIGINT, tenant VARCHAR, item VARCHAR, quantity INTEGER, price DECIMAL(10,2), paid BOOLEAN"
FIRST_ORDERS: Final = 2_000
PAUSE_S: Final = 0.25  # between two transactions
TRIES: Final = 20  # of a transaction that conflicts with a reader of the catalog


class Shop:
    """A thread in which customers order, pay, cancel and move to other tenants."""

    def __init__(self, folder: Path, seed: int = 7) -> None:
        self.address = LakeAddress(f"sqlite:{folder / 'shop.sqlite'}", "orders", data_path=str(folder / "shop"))
        self._chance = random.Random(seed)
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self.transactions = 0
        self.operations = 0
        self.failed: duckdb.Error | None = None
        self._next = FIRST_ORDERS + 1
        self._lake = new_duckdb("ducklake", "sqlite_scanner")
        attach_lake(self._lake, self.address, "lake", read_only=False)
        self._lake.execute(f"CREATE TABLE lake.orders ({TABLE})")
        self._lake.execute(f"INSERT INTO lake.orders SELECT {self._row()} FROM range(1, {FIRST_ORDERS + 1}) r(n)")

    def open(self) -> None:
        self._closed.clear()
        self._thread = threading.Thread(target=self._trade, name="shop", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop after the current transaction."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def disconnect(self) -> None:
        self._lake.close()

    def _trade(self) -> None:
        while not self._closed.wait(PAUSE_S):
            count = self._chance.randrange(20, 120)
            at = self._chance.randrange(1, self._next)
            moved = self._chance.choice(TENANTS)
            ordered = (
                f"INSERT INTO lake.orders SELECT {self._row()} FROM range({self._next}, {self._next + count}) r(n)"
            )
            paid = f"UPDATE lake.orders SET paid = true WHERE id BETWEEN {at} AND {at + 40}"
            moves = f"UPDATE lake.orders SET tenant = {literal(moved)} WHERE id = {at + 50}"
            cancelled = f"DELETE FROM lake.orders WHERE id BETWEEN {at + 60} AND {at + 65}"
            if self._commit(ordered, paid, moves, cancelled):
                self._next += count
                self.transactions += 1
                self.operations += count + 41 + 1 + 6

    def _commit(self, *statements: str) -> bool:
        """One transaction; it is retried, as readers may lock the catalog for a moment."""
        for _ in range(TRIES):
            try:
                self._lake.execute("BEGIN")
                for statement in statements:
                    self._lake.execute(statement)
                self._lake.execute("COMMIT")
            except duckdb.Error as error:
                self.failed = error
                self._roll_back()
                time.sleep(0.05)
            else:
                self.failed = None
                return True
        return False

    def _roll_back(self) -> None:
        try:
            self._lake.execute("ROLLBACK")
        except duckdb.Error:
            return  # the transaction has ended

    @staticmethod
    def _row() -> str:
        tenants, items = (", ".join(map(literal, names)) for names in (TENANTS, ITEMS))
        return (
            f"n, [{tenants}][n * 7 % {len(TENANTS)} + 1], [{items}][n % {len(ITEMS)} + 1], n % 9 + 1, "
            "(n * 37 % 10000) / 100, false"
        )

    def version(self) -> int:
        ((found,),) = self._lake.execute("SELECT max(snapshot_id) FROM ducklake_snapshots('lake')").fetchall()
        return int(found)

    def rows(self) -> int:
        ((found,),) = self._lake.execute("SELECT count(*) FROM lake.orders").fetchall()
        return int(found)
