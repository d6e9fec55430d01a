"""Columns of the source that change: what evolves, what halts a destination, and what seeds it again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from delivery.pipe import Pipe, all_well, make_sites
from delivery.pipe_sources import LakeSource
from postgres_server import PostgresServer
from trunkline.core.delivery_messages import Outcome
from trunkline.delivery.config import Pipeline
from trunkline.delivery.config.addresses import DeltaAddress
from trunkline.delivery.config.tree import RoutingConfig
from trunkline.delivery.deliverer.assembly import check_source
from trunkline.delivery.sources.table_set import OneTable
from trunkline.errors import ConfigError

Shop = Pipe[LakeSource]
ALTER = "ALTER TABLE lake.orders"


@pytest.fixture
def shop(spark: SparkSession, postgres: PostgresServer, tmp_path: Path) -> Iterator[Shop]:
    """A pipeline with three rows."""
    pipe = Pipe(spark, LakeSource(tmp_path), make_sites(tmp_path, postgres, tenants={"acme": ("acme",)}))
    pipe.given(pipe.table.insert("acme", 1, 2, 3))
    yield pipe
    pipe.close()


# ------------------------------------------------------------------------------------------------------------- evolves


def test_an_added_column_is_added_and_older_rows_have_no_value_in_it(shop: Shop) -> None:
    shop.deliver(
        "UPDATE lake.orders SET item = 'before' WHERE id = 1",
        f"{ALTER} ADD COLUMN note VARCHAR",
        "INSERT INTO lake.orders VALUES (4, 'acme', 'x', 4, 'noted')",
        "UPDATE lake.orders SET note = 'later' WHERE id = 2",
    )


def test_a_column_that_is_added_with_no_row_touched_is_added_at_once(shop: Shop) -> None:
    shop.deliver(f"{ALTER} ADD COLUMN note VARCHAR")
    shop.deliver("UPDATE lake.orders SET note = 'later' WHERE id = 2")


def test_a_widened_column_is_widened(shop: Shop) -> None:
    shop.deliver(
        f"{ALTER} ALTER COLUMN mark SET DATA TYPE BIGINT",
        "INSERT INTO lake.orders VALUES (4, 'acme', 'x', 3000000000)",
        "UPDATE lake.orders SET mark = 4000000000 WHERE id = 1",
    )


# --------------------------------------------------------------------------------------------------------------- halts


@pytest.mark.parametrize(
    ("change", "named"),
    [("DROP COLUMN item", "'item'"), ("RENAME COLUMN item TO thing", "'item'")],
    ids=["dropped", "renamed"],
)
def test_a_column_that_is_dropped_or_renamed_halts_the_destination_until_it_is_seeded(
    shop: Shop, change: str, named: str
) -> None:
    """Also if no row is touched: columns do not wait for the next row."""
    before = shop.traces()
    altered = shop.table.write(f"{ALTER} {change}")
    touched = shop.table.write("UPDATE lake.orders SET mark = 7 WHERE id = 1")
    shop.table.mark_all()
    for path in shop.paths:
        for through in (altered, touched):
            for result in shop.flush(path, shop.version, through).results:
                assert result.outcome is Outcome.PERMANENT
                assert result.error.startswith(f"{result.destination}: ")
                assert named in result.error
                assert "not in the source" in result.error
    assert shop.traces() == before
    for path in shop.paths:
        all_well(shop.seed(path, touched, names=shop.of(path)))
    shop.version = touched
    shop.assert_equal()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("ADD COLUMN _trunkline_op INTEGER", "'_trunkline_op'"),
        ("ADD COLUMN _Trunkline_x INTEGER", "'_Trunkline_x'"),
        ("RENAME COLUMN id TO number", "key column 'id'"),
        ("RENAME COLUMN tenant TO customer", "routing column 'tenant'"),
        ("ADD COLUMN place STRUCT(x INTEGER)", "'place'"),
    ],
)
def test_reserved_column_names_and_lost_keys_halt_with_their_name(shop: Shop, change: str, named: str) -> None:
    before = shop.traces()
    through = shop.table.write(f"{ALTER} {change}")
    shop.table.mark_all()
    for path in shop.paths:
        for report in (shop.flush(path, shop.version, through), shop.seed(path, through, names=shop.of(path))):
            assert {result.destination for result in report.results} == set(shop.of(path))
            for result in report.results:
                assert result.outcome is Outcome.PERMANENT
                assert named in result.error
    assert shop.traces() == before


def test_reserved_column_names_are_refused_at_the_start(tmp_path: Path) -> None:
    source = LakeSource(tmp_path, columns="id BIGINT, tenant VARCHAR, _trunkline_op INTEGER")
    pipeline = Pipeline(name="shop", source=DeltaAddress("unused"), routing=RoutingConfig(column="tenant"), key=("id",))
    with pytest.raises(ConfigError, match="'_trunkline_op' begins with _trunkline, which is reserved"):
        check_source(pipeline, OneTable(source.source))


# --------------------------------------------------------------------------------------------------------- seeds again


@pytest.mark.parametrize(
    "changes",
    [
        ["ADD COLUMN note VARCHAR DEFAULT 'none'"],
        ["DROP COLUMN item", "ADD COLUMN item VARCHAR"],
        ["RENAME COLUMN item TO other", "RENAME COLUMN note TO item", "RENAME COLUMN other TO note"],
    ],
    ids=["added with a default", "dropped and added again", "reordered: two names swapped"],
)
def test_columns_whose_values_change_in_untouched_rows_need_a_new_seed(shop: Shop, changes: list[str]) -> None:
    """No window contains those rows. Columns are matched by name, in any order."""
    if "note" in " ".join(changes) and "DEFAULT" not in changes[0]:
        shop.given(f"{ALTER} ADD COLUMN note VARCHAR", "UPDATE lake.orders SET note = 'noted'")
    before = shop.traces()
    for change in changes:
        altered = shop.table.write(f"{ALTER} {change}")
    touched = shop.table.write("UPDATE lake.orders SET mark = 7 WHERE id = 1")
    shop.table.mark_all()
    for path in shop.paths:
        for through in (altered, touched):
            report = shop.flush(path, shop.version, through)
            assert {result.outcome for result in report.results} == {Outcome.EXPIRED}
    assert shop.traces() == before
    for path in shop.paths:
        all_well(shop.seed(path, touched, names=shop.of(path)))
    shop.version = touched
    shop.assert_equal()
    shop.deliver("UPDATE lake.orders SET item = 'after' WHERE id = 2")
