"""The shop of the demo: a DuckLake with customers and orders of twenty tenants that change continuously.

One transaction changes both tables: a customer counts its orders and what it spent. So a tenant that shows both tables
as of one version has sums that agree, and no order without its customer.
"""

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
TABLES: Final = {
    "customers": "id BIGINT, tenant VARCHAR, name VARCHAR, orders BIGINT, spent DECIMAL(18,2)",
    "orders": "id BIGINT, tenant VARCHAR, customer BIGINT, item VARCHAR, price DECIMAL(18,2), paid BOOLEAN",
}
CUSTOMERS: Final = 200
FIRST_ORDERS: Final = 2_000
PAUSE_S: Final = 0.25  # between two transactions
TRIES: Final = 20  # of a transaction that conflicts with a reader of the catalog
COUNTED: Final = """UPDATE lake.customers SET orders = coalesce(o.orders, 0), spent = coalesce(o.spent, 0)
    FROM (SELECT c.id, count(o.id) AS orders, sum(o.price) AS spent FROM lake.customers c
          LEFT JOIN lake.orders o ON o.customer = c.id GROUP BY c.id) o
    WHERE customers.id = o.id AND (customers.orders, customers.spent)
        IS DISTINCT FROM (coalesce(o.orders, 0), coalesce(o.spent, 0))"""


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
        tables = [f"CREATE TABLE lake.{name} ({columns})" for name, columns in TABLES.items()]
        self._commit(*tables, self._first_customers(), self._ordered(1, FIRST_ORDERS + 1), COUNTED)

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
            moved, to = self._chance.randrange(CUSTOMERS), literal(self._chance.choice(TENANTS))
            paid = f"UPDATE lake.orders SET paid = true WHERE id BETWEEN {at} AND {at + 40}"
            moves = [
                f"UPDATE lake.customers SET tenant = {to} WHERE id = {moved}",
                f"UPDATE lake.orders SET tenant = {to} WHERE customer = {moved}",
            ]
            cancelled = f"DELETE FROM lake.orders WHERE id BETWEEN {at + 60} AND {at + 65}"
            ordered = self._ordered(self._next, self._next + count)
            if self._commit(ordered, paid, *moves, cancelled, COUNTED):
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
    def _first_customers() -> str:
        tenants = ", ".join(map(literal, TENANTS))
        return (
            f"INSERT INTO lake.customers SELECT n, [{tenants}][n % {len(TENANTS)} + 1], 'customer ' || n, 0, 0 "
            f"FROM range({CUSTOMERS}) r(n)"
        )

    @staticmethod
    def _ordered(first: int, end: int) -> str:
        """Orders of these numbers, each with the tenant of its customer."""
        items = ", ".join(map(literal, ITEMS))
        return (
            f"INSERT INTO lake.orders SELECT n, c.tenant, c.id, [{items}][n % {len(ITEMS)} + 1], "
            f"(n * 37 % 10000) / 100, false FROM range({first}, {end}) r(n) "
            f"JOIN lake.customers c ON c.id = n * 7 % {CUSTOMERS}"
        )

    def rows(self) -> int:
        """Of both tables."""
        counted = [self._lake.execute(f"SELECT count(*) FROM lake.{name}").fetchall() for name in TABLES]
        return sum(int(found) for ((found,),) in counted)
