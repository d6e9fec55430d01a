"""What a kind of another package does not do is refused before its place is called, with what to do instead."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from delivery.direct_delivery import Direct, Lake, lake_source
from sqlite_destination import SqliteAddress
from trunkline.core.delivery_messages import JobMember
from trunkline.delivery.changes.columns import Column
from trunkline.delivery.job.drafts import MemberDraft
from trunkline.delivery.job.work import TableWork, TaskDestination
from trunkline.delivery.verification.repair import repair_together
from trunkline.destination_suite.steps import steps
from trunkline.errors import SchemaMismatch


class FixedAddress(SqliteAddress, frozen=True, tag="fixed"):
    """A kind that follows no columns, and is not repaired."""

    column_steps = False
    repairs = False


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(
        tmp_path,
        "CREATE TABLE lake.orders (id BIGINT, tenant VARCHAR, amount INTEGER)",
        "INSERT INTO lake.orders VALUES (1, 'acme', 1), (2, 'acme', 2)",
    )


@pytest.fixture
def delivery(tmp_path: Path, lake: Lake) -> Direct:
    """Two destinations, one of a kind that does everything."""
    file = str(tmp_path / "tables.db")
    targets = [
        TaskDestination("fixed", FixedAddress(file, "fixed"), None),
        TaskDestination("moving", SqliteAddress(file, "moving"), None),
    ]
    found = Direct(lake_source(lake), *targets)
    found.seed()
    return found


def rows(tmp_path: Path, table: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(tmp_path / "tables.db")) as sql:
        return sorted(sql.execute(f"SELECT * FROM {table}").fetchall())


def test_columns_that_are_added_or_widened_are_followed_without_the_ability(
    tmp_path: Path, lake: Lake, delivery: Direct
) -> None:
    lake.run(
        "ALTER TABLE lake.orders ADD COLUMN note VARCHAR",
        "ALTER TABLE lake.orders ALTER COLUMN amount TYPE BIGINT",
        f"INSERT INTO lake.orders VALUES (3, 'acme', {2**40}, 'new')",
    )
    delivery.flush()
    expected = [(1, "acme", 1, None), (2, "acme", 2, None), (3, "acme", 2**40, "new")]
    assert rows(tmp_path, "fixed") == rows(tmp_path, "moving") == expected


ORDERS = (Column("id", "BIGINT"), Column("amount", "INTEGER"))
STEPS = {
    "renamed 'amount' to 'total'": steps(ORDERS, {ORDERS[0]: "id", Column("total", "INTEGER"): "amount"}),
    "dropped 'amount'": steps(ORDERS, {ORDERS[0]: "id"}),
    "added 'n'": steps(ORDERS, {**{each: each.name for each in ORDERS}, Column("n", "BIGINT"): None}, {"n": 1}),
}


@pytest.mark.parametrize("change", STEPS)
def test_other_changes_of_columns_halt_a_kind_that_does_not_follow_them_and_no_other(
    delivery: Direct, change: str
) -> None:
    table = TableWork("shop.orders", STEPS[change].after, ("id",), steps=STEPS[change], altered=True)
    fixed, moving = (MemberDraft(target, JobMember(target.name, 1, 1)) for target in delivery.work.targets)
    for draft in (fixed, moving):
        draft.follow(table, whole=False)
    assert moving.error is None
    assert isinstance(fixed.error, SchemaMismatch)
    assert str(fixed.error) == (
        f"table shop.orders: the columns of the source changed ({change}), which destinations of type fixed do not "
        "follow; reseed fixed"
    )


def test_a_kind_that_is_not_repaired_says_so(tmp_path: Path, delivery: Direct) -> None:
    with closing(sqlite3.connect(tmp_path / "tables.db", isolation_level=None)) as sql:
        sql.execute("DELETE FROM fixed WHERE id = 1")
        sql.execute("DELETE FROM moving WHERE id = 1")
    fixed, moving = repair_together(delivery.work, {"fixed": 2, "moving": 2}, {"fixed": "scan", "moving": "scan"})
    assert (moving.outcome, moving.written) == ("repaired", 1)
    assert fixed.outcome == "differs"
    assert "destinations of type fixed are not repaired; see `trunkline deliver reseed`" in fixed.note
    assert rows(tmp_path, "fixed") == [(2, "acme", 2)]
    assert len(rows(tmp_path, "moving")) == 2


def test_destinations_of_one_file_are_written_by_one_task_in_one_transaction(delivery: Direct) -> None:
    assert delivery.work.hands == {"fixed": 0, "moving": 1}, "they are of two kinds, so of two places"
    same = [TaskDestination(name, SqliteAddress("tables.db", name), None) for name in ("a", "b")]
    pipeline = Direct(delivery.work.source, *same).work
    assert pipeline.hands == pipeline.places == {"a": 0, "b": 0}
