"""Many tables of one catalog, which takes one commit after another: they do not get in each other's way."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession

from delivery.running_pipeline import Business
from delivery.task_pipelines import opened_rows
from postgres_server import PostgresServer
from trunkline.delivery.config import DestinationConfig, Pipeline
from trunkline.delivery.config.addresses import LakeAddress
from trunkline.delivery.job.runner import deal
from trunkline.destination_suite.place import content

TABLES: Final = 24
NAMES: Final = tuple(f"tenant-{number:02}" for number in range(TABLES))
APPENDED: Final = NAMES[1]  # it is written in another way than the others, and not beside them
CATALOGS: Final[dict[str, Callable[[Path, PostgresServer], str]]] = {
    "duckdb": lambda folder, _: str(folder / "all.ducklake"),
    "sqlite": lambda folder, _: f"sqlite:{folder / 'all.sqlite'}",
    "postgres": lambda _, server: f"postgres:{server.create_database(f'all_{uuid.uuid4().hex}')}",
}


@pytest.fixture
def business(spark: SparkSession, postgres: PostgresServer, tmp_path: Path) -> Business:
    made = Business(spark, tmp_path, postgres)
    named = ", ".join(f"({number}, '{name}')" for number, name in enumerate(NAMES, 1))
    made.source.write(f"INSERT INTO lake.orders SELECT n, tenant, 'item', n FROM (VALUES {named}) v(n, tenant)")
    return made


def in_one_catalog(business: Business, catalog: str, data_path: str, tables: int) -> Pipeline:
    destinations = tuple(
        DestinationConfig(
            name=name,
            address=LakeAddress(catalog, name, data_path=data_path),
            values=(name,),
            mode="append" if name == APPENDED else "mirror",
            duplicates="halt",
            seed="scan",
        )
        for name in NAMES[:tables]
    )
    return replace(business.pipeline(()), destinations=destinations)


def assert_equal(business: Business, pipeline: Pipeline, version: int) -> None:
    rows = business.source.rows(version)
    for each in pipeline.destinations:
        if each.name != APPENDED:
            assert content(held(each)) == content([row for row in rows if row["tenant"] == each.name]), each.name


def held(destination: DestinationConfig) -> list[dict[str, Any]]:
    with opened_rows(destination.address) as (_, batches):
        return [row for batch in batches for row in batch.to_pylist()]


def test_what_is_of_one_place_is_dealt_to_one_task_and_the_rest_evenly() -> None:
    shared = [("shared", number) for number in range(5)]
    lone = [(f"lone {number}", number) for number in range(7)]
    dealt = deal([*lone, *shared], 3, lambda each: hash(each[0]))
    assert sorted(map(len, dealt)) == [3, 4, 5]
    assert shared in dealt
    assert deal(shared, 3, lambda each: hash(each[0])) == [shared]


@pytest.mark.parametrize("kind", CATALOGS)
def test_all_tables_of_one_catalog_are_seeded_and_flushed_at_once(
    kind: str, business: Business, postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = 8 if kind == "duckdb" else TABLES  # such a catalog is attached again for each of them
    pipeline = in_one_catalog(business, CATALOGS[kind](tmp_path, postgres), str(tmp_path / "data"), tables)
    assert business.run_once(pipeline).behind == ()
    version = business.source.write("UPDATE lake.orders SET item = 'changed'")
    assert business.run_once(pipeline).behind == ()
    assert_equal(business, pipeline, version)
    if kind != "sqlite":
        return
    monkeypatch.setattr("delivery.running_pipeline.SMALL_BYTES", -1)  # the other way to read a window
    version = business.source.write("UPDATE lake.orders SET item = 'changed again' WHERE id % 2 = 0")
    assert business.run_once(pipeline).behind == ()
    assert_equal(business, pipeline, version)
    assert sorted(row["item"] for row in held(pipeline.destinations[1])) == ["changed", "changed again", "item"]
