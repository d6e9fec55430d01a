"""Several tables of a lake, captured as one stream of transactions over all of them."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from delivery.source_driver import SourceDriver
from trunkline.core.capture_messages import SlotState
from trunkline.delivery.backends.duckdb_pool import new_duckdb
from trunkline.delivery.backends.ducklake_attachment import attach_lake
from trunkline.delivery.capture.lake.source import LakeSource
from trunkline.delivery.capture.source import Changes, KeepAlive, SourceStart
from trunkline.delivery.changes.groups import GROUP_ROWS_MAX
from trunkline.delivery.config.addresses import LakeAddress
from trunkline.errors import ConfigError


class Lake:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = LakeAddress(f"sqlite:{folder / 'lake.sqlite'}", "", data_path=str(folder / "data"))
        self._connection = self._opened()

    def _opened(self) -> duckdb.DuckDBPyConnection:
        connection = new_duckdb("ducklake", "sqlite_scanner")
        attach_lake(connection, self.address, "lake", read_only=False)
        connection.execute("USE lake")
        return connection

    def run(self, *statements: str) -> None:
        """One transaction."""
        self._connection.execute("BEGIN")
        for statement in statements:
            self._connection.execute(statement)
        self._connection.execute("COMMIT")

    def rows(self, table: str) -> Counter[tuple[object, ...]]:
        return Counter(self._connection.execute(f"SELECT * FROM lake.{table}").fetchall())

    def version(self) -> int:
        [(found,)] = self._connection.execute("SELECT max(snapshot_id) FROM ducklake_snapshots('lake')").fetchall()
        return int(found)

    def source(self, *patterns: str) -> LakeSource:
        return LakeSource(self.address, patterns or ("main.*",), poll_ms=10)

    def backup(self) -> Path:
        self._connection.close()
        shutil.copytree(self.folder, self.folder.parent / "backup")
        self._connection = self._opened()
        return self.folder.parent / "backup"

    def restore(self, backup: Path) -> None:
        self._connection.close()
        shutil.rmtree(self.folder)
        shutil.copytree(backup, self.folder)
        self._connection = self._opened()

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    folder = tmp_path / "lake"
    folder.mkdir()
    made = Lake(folder)
    made.run("CREATE TABLE customers (id BIGINT, name VARCHAR)", "CREATE TABLE orders (id BIGINT, customer BIGINT)")
    yield made
    made.close()


def opened(lake: Lake, *patterns: str) -> SourceDriver:
    driver = SourceDriver(lake.source(*patterns))
    driver.open()
    return driver


def level(driver: SourceDriver, lake: Lake) -> None:
    """The stream has all that the lake has, and every table was read."""
    version = lake.version()
    driver.step()
    driver.until(
        lambda: (driver.position >> 21) - 1 >= version and all(each.complete for each in driver.tables.values())
    )


def assert_equal(driver: SourceDriver, lake: Lake, *tables: str) -> None:
    for table in tables:
        assert driver.table(table).values() == lake.rows(table), table


def test_a_snapshot_of_the_lake_is_one_transaction_over_its_tables(lake: Lake) -> None:
    lake.run("INSERT INTO customers VALUES (1, 'a')", "INSERT INTO orders VALUES (10, 1)")
    driver = opened(lake)
    level(driver, lake)
    assert_equal(driver, lake, "customers", "orders")
    before = len(driver.units)
    lake.run(
        "INSERT INTO customers VALUES (2, 'b')", "INSERT INTO orders VALUES (20, 2)", "DELETE FROM orders WHERE id = 10"
    )
    level(driver, lake)
    [changes] = [unit for unit in driver.units[before:] if isinstance(unit, Changes)]
    assert [len(changes.transactions), len(changes.tables), changes.transactions[0].rows] == [1, 2, 3]
    assert_equal(driver, lake, "customers", "orders")


def test_a_large_snapshot_comes_in_parts(lake: Lake) -> None:
    driver = opened(lake)
    level(driver, lake)
    count = GROUP_ROWS_MAX * 2 + 5
    lake.run(f"INSERT INTO customers SELECT n, 'x' FROM range({count}) r(n)", "INSERT INTO orders VALUES (1, 1)")
    level(driver, lake)
    parts = [unit for unit in driver.units if isinstance(unit, Changes)]
    assert [unit.part for unit in parts] == list(range(len(parts)))
    assert [unit.last for unit in parts] == [False] * (len(parts) - 1) + [True]
    assert_equal(driver, lake, "customers", "orders")


@pytest.mark.parametrize("seed", range(3))
def test_tables_equal_the_lake_after_random_changes_and_restarts(lake: Lake, seed: int) -> None:
    chance = random.Random(seed)
    driver, made = opened(lake), ["customers", "orders"]
    for number in range(30):
        table = chance.choice(made)
        match chance.randrange(12):
            case 0:
                made.append(f"t{number}")
                lake.run(f"CREATE TABLE t{number} (id BIGINT, word VARCHAR)", f"INSERT INTO t{number} VALUES (1, 'x')")
            case 1 if len(made) > 2:
                made.remove(table)
                lake.run(f"DROP TABLE {table}")
            case 2:
                lake.run(f"ALTER TABLE {table} ADD COLUMN c{number} INTEGER")
            case 3:
                lake.run(f"ALTER TABLE {table} RENAME TO r{number}")
                made[made.index(table)] = f"r{number}"
            case 4:
                driver.source.close()
                driver.open()
            case 5:
                lake.run(f"DROP TABLE {table}", f"CREATE TABLE {table} (id BIGINT)", f"INSERT INTO {table} VALUES (7)")
            case 6 | 7:
                lake.run(f"DELETE FROM {table} WHERE id % 3 = {number % 3}")
            case _:
                other = chance.choice(made)
                lake.run(
                    f"INSERT INTO {table} (id) SELECT n FROM range({number}, {number + chance.randrange(1, 50)}) r(n)",
                    f"UPDATE {other} SET id = id + 1000 WHERE id % 7 = {number % 7}",
                )
        if chance.random() < 0.5:
            driver.step()
    level(driver, lake)
    assert {each.schema.name for each in driver.tables.values()} == set(made)
    assert_equal(driver, lake, *made)


def test_a_lake_that_was_restored_from_a_backup_has_lost_its_changes(lake: Lake) -> None:
    lake.run("INSERT INTO customers VALUES (1, 'a')")
    backup = lake.backup()
    lake.run("INSERT INTO customers VALUES (2, 'b')")
    driver = opened(lake)
    level(driver, lake)
    lake.restore(backup)
    lake.run("INSERT INTO customers VALUES (3, 'c')")  # a snapshot of the same number
    driver.source.close()
    assert lake.source().open(SourceStart(driver.position, driver.catalog())).slot is SlotState.LOST
    driver.position = 0
    driver.open()
    level(driver, lake)
    assert_equal(driver, lake, "customers", "orders")


def test_patterns_that_select_nothing_are_refused(lake: Lake) -> None:
    with pytest.raises(ConfigError, match=r"no table of .* matches main\.nothing_"):
        lake.source("main.nothing_*").reach()


def test_a_stream_that_is_level_says_so(lake: Lake) -> None:
    driver = opened(lake)
    level(driver, lake)
    driver.source.close()
    driver.open()
    assert driver.source.receive(0, close=True) == [KeepAlive(driver.source.lag().position)]
    assert driver.source.lag().behind(driver.position) == 0
