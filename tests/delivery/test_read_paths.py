"""Which way a window is read, what of it reaches the driver, and that both ways come to the same."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from delivery.pipe import PATHS, Pipe, all_well, make_sites
from delivery.pipe_sources import LakeSource
from delivery.plan_judge import Compared, compared, some_windows
from lake_fuzz.histories import made_history
from postgres_server import PostgresServer
from trunkline.core.delivery_messages import FlushGroup
from trunkline.delivery.changes.versions import Window
from trunkline.delivery.job.results import ReadPath
from trunkline.delivery.job.runner import JobRunner
from trunkline.delivery.sources.contract import ReadRequest
from trunkline.delivery.sources.ducklake_spark import LakeWindowFrames

RESULT_BYTES_MAX = 128 * 1024  # that all tasks of a job together may answer; a result takes a kilobyte or two
READ_BYTES_MAX = 2 * 1024 * 1024  # that the driver may read from files: the catalog, and Python's own modules
FUZZED = ((3, 2), (17, 1), (13, 1), (14, 1), (21, 3), (23, 1))  # seeds, and how many of their windows are judged


# ---------------------------------------------------------------------------------------------------- the driver's part


@contextmanager
def little_for_the_driver(spark: SparkSession) -> Iterator[None]:
    """Spark breaks a job off whose answers are larger than allowed; what the driver itself reads is counted."""
    conf = spark.sparkContext._jsc.sc().conf()
    conf.set("spark.driver.maxResultSize", str(RESULT_BYTES_MAX))
    before = bytes_read()
    try:
        yield
    finally:
        conf.remove("spark.driver.maxResultSize")
    assert bytes_read() - before < READ_BYTES_MAX


def bytes_read() -> int:
    """By this process, from files of any kind."""
    facts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(facts["rchar"])


def test_rows_of_a_window_never_pass_through_the_driver(
    spark: SparkSession, postgres: PostgresServer, tmp_path: Path
) -> None:
    """Some 15 MB of them: inserted, updated and deleted; and once more as a seed."""
    table = LakeSource(
        tmp_path,
        catalog=f"sqlite:{tmp_path / 'source.sqlite'}",
        columns="id BIGINT, tenant VARCHAR, item VARCHAR, mark INTEGER",
    )
    shop = Pipe(spark, table, make_sites(tmp_path, postgres, kinds=["ducklake"]))
    shop.given(table.insert("acme", 1), table.insert("bolt", 2))
    item = " || ".join(f"md5('{part}' || i)" for part in range(8))
    table.write(
        f"INSERT INTO lake.orders SELECT i, CASE i % 2 WHEN 0 THEN 'acme' ELSE 'bolt' END, {item}, 1 "
        "FROM range(10, 60000) r(i)"
    )
    table.write("DELETE FROM lake.orders WHERE id % 10 = 3")
    through = table.write("UPDATE lake.orders SET mark = 2 WHERE id % 10 = 4")
    assert table.source.survey(Window(shop.version, through)).backlog.size_bytes > 4 * READ_BYTES_MAX
    with little_for_the_driver(spark):
        for path in PATHS:
            report = shop.flush(path, shop.version, through)
            all_well(report)
            assert (report.path, sum(each.written for each in report.results)) == (path, 53_991)
    shop.assert_equal(through)
    with little_for_the_driver(spark):
        for path in PATHS:
            all_well(shop.seed(path, through, names=shop.of(path)))
    shop.close()


def test_it_would_be_noticed_if_rows_passed_through_the_driver(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(Py4JJavaError, match="maxResultSize"), little_for_the_driver(spark):
        spark.range(10_000).selectExpr("uuid()").collect()
    file = tmp_path / "data"
    file.write_bytes(bytes(2 * READ_BYTES_MAX))
    with pytest.raises(AssertionError), little_for_the_driver(spark):
        file.read_bytes()


# ---------------------------------------------------------------------------------------------------------- which path


@pytest.mark.parametrize("catalog", ["duckdb", "sqlite", "postgres"])
def test_the_catalogs_bytes_choose_the_path_and_both_read_inlined_and_deleted_rows(
    spark: SparkSession, postgres: PostgresServer, tmp_path: Path, catalog: str
) -> None:
    place = {
        "duckdb": "",
        "sqlite": f"sqlite:{tmp_path / 'source.sqlite'}",
        "postgres": f"postgres:{postgres.create_database(f'source_{uuid.uuid4().hex}')}",
    }[catalog]
    shop = Pipe(
        spark, LakeSource(tmp_path, catalog=place, inlining=3), make_sites(tmp_path, postgres, kinds=["ducklake"])
    )
    insert = shop.table.insert
    shop.given(
        insert("acme", *range(1, 30)), insert("bolt", 31, 32), "DELETE FROM lake.orders WHERE id IN (1, 2, 3, 4, 31)"
    )
    shop.catch_up(shop.table.write_boundary())
    for step in (
        "DELETE FROM lake.orders WHERE id IN (5, 6, 7, 8, 9)",  # a delete file
        "DELETE FROM lake.orders WHERE id IN (10, 32)",  # deletes in the catalog, of a file's row and of an inlined one
        insert("bolt", *range(40, 60)),  # a data file
        insert("acme", 61, 62),  # rows in the catalog
    ):
        through = shop.table.write(step)
    shop.table.write_trail()
    window = Window(shop.version, through)
    plan = shop.table.source.plan(window)
    assert (len(plan.files), len(plan.deletes), len(plan.inlined_dead)) == (2, 1, 1)
    assert plan.size_bytes == shop.table.source.survey(window).backlog.size_bytes > 0
    frames = LakeWindowFrames(
        spark, shop.table.source, plan, ReadRequest(shop.table.source.columns(through), ("id",), "tenant")
    )
    assert frames.native
    assert "FileScan parquet" in frames.arrived()._jdf.queryExecution().executedPlan().toString()
    thresholds: dict[ReadPath, int] = {"small": plan.size_bytes, "large": plan.size_bytes - 1}
    for path, small_bytes in thresholds.items():
        runner = JobRunner(spark, shop.work, small_bytes)
        report = runner.flush(FlushGroup(1, window.after, through, shop.members(shop.of(path))))
        all_well(report)
        assert report.path == path
        counted = {each.destination.split("-")[0]: (each.removed, each.written) for each in report.results}
        assert counted == {"acme": (6, 2), "bolt": (1, 20)}
        runner.close()
    shop.assert_equal(through)
    shop.close()


# ------------------------------------------------------------------------------------------------------- the same rule


def test_the_plan_of_spark_equals_the_pure_rule_over_random_histories(spark: SparkSession) -> None:
    found: list[Compared] = []
    for seed, count in FUZZED:
        with made_history(seed) as history:
            found += compared(spark, history, some_windows(history, count))
    wrong = [each for each in found if each.wrong]
    assert not wrong, f"PYTHONPATH=tests python tests/delivery/plan_judge.py FIRST LAST shows more of it: {wrong[0]}"
    kinds = {(each.native, each.deletes, each.moved, each.shared) for each in found}
    for place, what in enumerate(("read by Spark itself", "with delete files", "across a rewrite", "with shared keys")):
        assert {kind[place] for kind in kinds} == {True, False}, f"no window {what} or none without was judged"
