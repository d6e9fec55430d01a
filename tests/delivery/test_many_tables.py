"""Many tables in one place: as the set of one destination, and as one table each of many destinations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession

from delivery.captured_database import CapturedDatabase
from local_cluster import RunningCluster, local_cluster
from postgres_server import PostgresServer
from trunkline.core.delivery_events import Stopped
from trunkline.core.delivery_messages import Outcome
from trunkline.delivery.backends.duckdb_pool import new_duckdb
from trunkline.delivery.backends.ducklake_attachment import attach_lake
from trunkline.delivery.config import Pipeline, load_pipeline
from trunkline.delivery.config.addresses import LakeAddress
from trunkline.delivery.control.store import open_control_store
from trunkline.delivery.deliverer.assembly import pipeline_source, task_pipeline
from trunkline.delivery.deliverer.host import Deliverer
from trunkline.delivery.deliverer.observer import Observer
from trunkline.delivery.job.results import JobReport
from trunkline.delivery.job.runner import Job, JobRunner
from trunkline.delivery.verification.verify import verify_all

TABLES = 40
MORE_TABLES, FEW_CONNECTIONS = 60, 12  # three of which are reserved for superusers, as 300 with 20
NAMES = count(1)
WELL = (Outcome.APPLIED, Outcome.ALREADY, Outcome.STANDS)


class ManyTables(CapturedDatabase):
    """Tables ``t0``, ``t1``, ..., each with rows of as many tenants."""

    def __init__(self, server: PostgresServer, connect: str, tables: int) -> None:
        super().__init__(server, connect, f"many{next(NAMES)}", "t0")
        self.tables = [f"t{number}" for number in range(tables)]
        self.tenants = [f"tenant-{number}" for number in range(tables)]
        self.run(
            *(
                f"CREATE TABLE {name} (id bigint, tenant text, item text, PRIMARY KEY (id, tenant))"
                for name in self.tables
            )
        )
        row = f"n, 'tenant-' || n % {tables}, 'item ' || n"
        self.run(*(f"INSERT INTO {name} SELECT {row} FROM generate_series(1, 120) n" for name in self.tables))
        self.capture()

    def change(self) -> None:
        """Rows of every table and every tenant, in one transaction."""
        for name in self.tables:
            self.run(
                f"UPDATE {name} SET item = 'changed' WHERE id <= 60",
                f"DELETE FROM {name} WHERE id > 110",
                f"INSERT INTO {name} SELECT id + 1000, tenant, 'new' FROM {name} WHERE id <= 60",
            )
        self.capture()


class Ran(NamedTuple):
    stopped: Stopped
    failed: list[str]  # what destinations met in jobs
    jobs: Counter[str]  # by kind


class CountingObserver(Observer):
    def __init__(self, pipeline: str) -> None:
        super().__init__(pipeline, f"deliverer-{next(NAMES)}")
        self.failed: list[str] = []
        self.jobs: Counter[str] = Counter()

    def job_ended(self, job: Job, report: JobReport) -> None:
        self.jobs[type(job).__name__] += 1
        self.failed += [each.error for each in report.results if each.outcome not in WELL]
        self.failed += [report.error] if report.error else []
        super().job_ended(job, report)


def run_once(spark: SparkSession, pipeline: Pipeline) -> Ran:
    observer = CountingObserver(pipeline.name)
    with closing(open_control_store(pipeline.control.store)) as store:
        deliverer = Deliverer(
            pipeline, lambda work: JobRunner(spark, work, pipeline.reading.small_bytes), store, "me", observer
        )
        return Ran(deliverer.run(once=True), observer.failed, observer.jobs)


def assert_equal(pipeline: Pipeline) -> None:
    work = task_pipeline(pipeline, pipeline_source(pipeline), pipeline.destinations)
    seeds = {each.name: each.seed for each in pipeline.destinations}
    verdicts = list(verify_all(work, list(seeds), seeds, at_once=2))
    assert [each.outcome for each in verdicts] == ["equal"] * len(seeds), verdicts


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with local_cluster(tmp_path_factory.mktemp("cluster"), nodes=1) as running:
        yield running


@pytest.fixture(scope="module")
def source(logical: PostgresServer, cluster: RunningCluster) -> Iterator[ManyTables]:
    made = ManyTables(logical, cluster.connect, TABLES)
    yield made
    made.close()


def pipeline_of(folder: Path, source: ManyTables, place: str, *, tenants: bool) -> Pipeline:
    """``place``: the settings of every destination."""
    log = f"type: log, log: {source.address.log}, connect: '{source.address.connect}'"
    lines = ["pipeline: many", "control: {store: 'sqlite:control.db'}"]
    if tenants:
        lines += [f"source: {{{log}, table: public.t0}}", "key: [id]", "routing: {column: tenant}", "destinations:"]
        lines += [f"  - {{name: {name}, table: '{name}', {place}}}" for name in source.tenants]
    else:
        lines += [f"source: {{{log}}}", "tables: [public.*]", f"destinations: [{{name: copy, {place}}}]"]
    file = folder / "many.yaml"
    file.write_text("\n".join(lines))
    return load_pipeline(file)


def assert_complete(ran: Ran, jobs: dict[str, int]) -> None:
    assert ran.stopped.behind == ()
    assert (ran.failed, ran.jobs) == ([], jobs)


def errors_of(server: PostgresServer) -> list[str]:
    """Its messages, but for those to a client that asks whether it is ready yet."""
    log = (server.directory / "server.log").read_text()
    wrong = [line for line in log.splitlines() if "ERROR" in line or "FATAL" in line]
    return [line for line in wrong if "the database system is starting up" not in line]


SEEDED = {"ReadStandings": 1, "SeedGroup": 1}
FLUSHED = {"ReadStandings": 1, "FlushGroup": 1}
SHAPES = pytest.mark.parametrize("tenants", [False, True], ids=["one destination", "many destinations"])


@SHAPES
def test_many_tables_of_one_lake_complete_at_the_first_run_with_one_commit(
    spark: SparkSession, source: ManyTables, tmp_path: Path, *, tenants: bool
) -> None:
    catalog, data = f"sqlite:{tmp_path}/lake.sqlite", str(tmp_path / "data")
    pipeline = pipeline_of(
        tmp_path, source, f"type: ducklake, catalog: '{catalog}', data_path: '{data}'", tenants=tenants
    )
    assert_complete(run_once(spark, pipeline), SEEDED)
    before = snapshots(catalog, data)
    source.change()
    assert_complete(run_once(spark, pipeline), FLUSHED)
    changed = [made for made in snapshots(catalog, data)[len(before) :] if "deleted_from_table" in str(made)]
    assert len(changed) == 1
    assert_equal(pipeline)


def snapshots(catalog: str, data: str) -> list[Any]:
    """What each snapshot of a lake changed."""
    with closing(new_duckdb("ducklake", "sqlite_scanner")) as connection:
        attach_lake(connection, LakeAddress(catalog, "", data_path=data), "lake", read_only=True)
        query = "SELECT changes_made FROM __ducklake_metadata_lake.ducklake_snapshot_changes ORDER BY snapshot_id"
        return connection.execute(query).fetchall()


@SHAPES
def test_many_tables_of_one_database_complete_at_the_first_run_without_an_error(
    spark: SparkSession, source: ManyTables, tmp_path: Path, *, tenants: bool
) -> None:
    with PostgresServer() as server:
        place = f"type: postgres, dsn: '{server.create_database('place')}'"
        pipeline = pipeline_of(tmp_path, source, place, tenants=tenants)
        assert_complete(run_once(spark, pipeline), SEEDED)
        source.change()
        assert_complete(run_once(spark, pipeline), FLUSHED)
        assert errors_of(server) == []
        assert_equal(pipeline)


@SHAPES
def test_a_database_needs_no_connection_for_each_table(
    spark: SparkSession, logical: PostgresServer, cluster: RunningCluster, tmp_path: Path, *, tenants: bool
) -> None:
    source = ManyTables(logical, cluster.connect, MORE_TABLES)
    try:
        with PostgresServer(settings={"max_connections": str(FEW_CONNECTIONS)}) as server:
            place = f"type: postgres, dsn: '{server.create_database('place')}'"
            pipeline = pipeline_of(tmp_path, source, place, tenants=tenants)
            assert_complete(run_once(spark, pipeline), SEEDED)
            source.change()
            assert_complete(run_once(spark, pipeline), FLUSHED)
            assert_equal(pipeline)
            assert errors_of(server) == []
    finally:
        source.close()
