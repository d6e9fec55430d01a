"""Large windows of a set of tables, read and settled by Spark: the tables of a destination meet in one task."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from pyspark.sql import SparkSession

from delivery.pipe import all_well
from delivery.pipe_sources import opened_lake
from delivery.task_pipelines import member_of, opened_rows, task_pipeline_of
from postgres_server import PostgresServer
from trunkline.core.delivery_messages import FlushGroup, Outcome, SeedGroup, SeedMode
from trunkline.delivery.changes.shape import Mask
from trunkline.delivery.config.address_rules import address_of
from trunkline.delivery.config.addresses import DeltaAddress, LakeAddress, PostgresAddress
from trunkline.delivery.config.table_patterns import Selection
from trunkline.delivery.config.tree import ColumnsConfig, TableConfig
from trunkline.delivery.job.runner import JobRunner
from trunkline.delivery.job.work import TaskDestination, TaskPipeline
from trunkline.delivery.sources.lake_tables import LakeTables
from trunkline.delivery.verification.verify import verify_all

ALL_LARGE = -1
HISTORY = "history"
NUMBERS = count()
ENTRIES = (
    TableConfig(table="main.customers", key=("id",), mask={"name": Mask("null")}),
    TableConfig(
        table="main.orders",
        key=("id",),
        filter="price < 90",
        columns=ColumnsConfig(rename={"price": "amount"}),
        computed={"cents": "price * 100"},
    ),
    TableConfig(table="main.*", key=("id",)),
)


class Shop:
    """A lake with tables, and tenants of every kind."""

    def __init__(self, spark: SparkSession, folder: Path, server: PostgresServer) -> None:
        self.address = LakeAddress(f"sqlite:{folder / 'source.sqlite'}", "", data_path=str(folder / "source"))
        self.run(
            "CREATE TABLE lake.customers (id BIGINT, tenant VARCHAR, name VARCHAR)",
            "CREATE TABLE lake.orders (id BIGINT, tenant VARCHAR, price DOUBLE, number UINTEGER, noted TIMESTAMP)",
            self.customers(0, 300),
            self.orders(0, 500),
        )
        source = LakeTables(self.address, Selection(tuple(entry.table for entry in ENTRIES), "main"))
        number = next(NUMBERS)
        targets = []
        for tenant, values in {"acme": ("acme",), "bolt": ("bolt",), "all": None}.items():
            targets += [
                TaskDestination(
                    f"{tenant}-lake",
                    LakeAddress(f"sqlite:{folder}/lake.db", f"{tenant}_{{table}}", data_path=f"{folder}/lake"),
                    values,
                ),
                TaskDestination(
                    f"{tenant}-postgres", PostgresAddress(server.dsn(), f"large{number}_{tenant}_{{table}}"), values
                ),
                TaskDestination(f"{tenant}-delta", DeltaAddress(f"{folder}/delta/{tenant}/{{table}}"), values),
            ]
        targets.append(
            TaskDestination(
                HISTORY, PostgresAddress(server.dsn(), f"large{number}_old_{{table}}"), None, mode="history"
            )
        )
        self.work: TaskPipeline = task_pipeline_of(source, targets, key=(), tables=ENTRIES)
        self.names = [target.name for target in targets]
        self.runner = JobRunner(spark, self.work, ALL_LARGE)
        self._jobs = count(1)

    def run(self, *statements: str) -> int:
        with opened_lake(self.address) as lake:
            for statement in statements:
                lake.execute(statement)
            ((version,),) = lake.execute("SELECT max(snapshot_id) FROM ducklake_snapshots('lake')").fetchall()
            return int(version)

    def customers(self, first: int, end: int) -> str:
        return f"INSERT INTO lake.customers SELECT i, {TENANT}, 'name ' || i FROM range({first}, {end}) r(i)"

    def orders(self, first: int, end: int) -> str:
        values = f"i, {TENANT}, i % 100, i, TIMESTAMP '2026-01-01' + to_seconds(i)"
        return f"INSERT INTO lake.orders SELECT {values} FROM range({first}, {end}) r(i)"

    def seed(self) -> None:
        through = self.work.source.state(0).version
        members = tuple(member_of(self.work, name) for name in self.names)
        report = self.runner.seed(SeedGroup(next(self._jobs), through, SeedMode.SCAN, members))
        all_well(report)
        assert report.path == "large"

    def flush(self) -> None:
        through = self.work.source.state(0).version
        members = tuple(member_of(self.work, name) for name in self.names)
        (after,) = {member.expected for member in members}
        report = self.runner.flush(FlushGroup(next(self._jobs), after, through, members))
        all_well(report)
        assert report.path == "large"

    def position(self) -> int:
        return member_of(self.work, HISTORY).expected

    def spans(self, *orders: int) -> dict[int, list[tuple[int, int | None]]]:
        """The versions of some orders in the history, by number."""
        address = address_of(self.work.targets[self.work.index[HISTORY]].address, "main.orders")
        with opened_rows(address) as (_, batches):
            rows = [row for batch in batches for row in batch.to_pylist()]
        return {each: [(row["_valid_from"], row["_valid_to"]) for row in rows if row["id"] == each] for each in orders}

    def assert_equal(self, tables: int) -> None:
        found = list(verify_all(self.work, self.names, dict.fromkeys(self.names, "scan"), at_once=2))
        wrong = [each for each in found if each.outcome != "equal" or each.tables != tables]
        assert wrong == []


TENANT = "CASE i % 3 WHEN 0 THEN 'acme' WHEN 1 THEN 'bolt' ELSE 'nothing' END"


@pytest.fixture(scope="module")
def shop(spark: SparkSession, postgres: PostgresServer) -> Iterator[Shop]:
    with TemporaryDirectory(prefix="sets-") as folder:
        made = Shop(spark, Path(folder), postgres)
        yield made
        made.runner.close()


def test_a_large_window_of_several_tables_is_delivered_with_shapes_to_every_kind(shop: Shop) -> None:
    shop.seed()
    shop.assert_equal(2)
    seeded = shop.position()
    shop.run(
        shop.orders(500, 900),
        "UPDATE lake.orders SET price = 95 WHERE id % 7 = 0",  # no longer matches
        "UPDATE lake.orders SET price = 1 WHERE id % 100 = 99",  # matches now
        "UPDATE lake.customers SET tenant = 'bolt' WHERE id % 5 = 0",
        "DELETE FROM lake.customers WHERE id % 11 = 0",
    )
    shop.flush()
    shop.assert_equal(2)
    first = shop.position()
    shop.run(
        "CREATE TABLE lake.items (id BIGINT, tenant VARCHAR, note VARCHAR)",  # joins
        f"INSERT INTO lake.items SELECT i, {TENANT}, 'note ' || i FROM range(50) r(i)",
        "CREATE TABLE lake.nothing (id BIGINT, tenant VARCHAR)",
        "DELETE FROM lake.orders WHERE id < 100",
    )
    shop.flush()
    shop.assert_equal(4)
    second = shop.position()
    assert shop.spans(99, 7, 8, 150) == {
        99: [(first, second)],  # matches since the first flush
        7: [(seeded, first)],
        8: [(seeded, second)],
        150: [(seeded, None)],
    }


def test_rows_that_share_a_key_halt_only_their_member(shop: Shop) -> None:
    before = {name: member_of(shop.work, name).expected for name in shop.names}
    through = shop.run(
        "INSERT INTO lake.customers VALUES (100001, 'acme', 'a'), (100001, 'acme', 'b'), (100002, 'bolt', 'c')"
    )
    members = tuple(member_of(shop.work, name) for name in shop.names if not name.startswith(("all", HISTORY)))
    report = shop.runner.flush(FlushGroup(99, before["acme-lake"], through, members))
    outcomes = {each.destination: each for each in report.results}
    for name, result in outcomes.items():
        assert result.outcome is (Outcome.PERMANENT if name.startswith("acme") else Outcome.APPLIED), result
    assert "main.customers: 1 row of the source shares a key (id)" in outcomes["acme-lake"].error
