"""Sources and destinations in a bucket, through Spark: small windows, large ones, and the check before a run."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from msgspec.structs import replace
from pyspark.sql import SparkSession

from contract.s3_destination import ACCESS_KEY_ENV, SECRET_KEY_ENV, Bucket, S3DeltaKind, S3LakeKind, server
from delivery.pipe import PATHS, TENANTS, Pipe, Site, address_of
from delivery.pipe_sources import EXTENSIONS, DeltaFeed, LakeSource, Row, order_rows
from object_server import object_server
from trunkline.core.delivery_messages import Outcome
from trunkline.delivery.backends.duckdb_pool import pooled_duckdb
from trunkline.delivery.backends.ducklake_attachment import attach_lake
from trunkline.delivery.backends.object_store import store_options
from trunkline.delivery.config.addresses import DeltaAddress, LakeAddress
from trunkline.delivery.job.work import TaskDestination
from trunkline.delivery.sources.delta import DeltaSource
from trunkline.delivery.sources.ducklake import DuckLakeSource
from trunkline.delivery.verification.preflight import preflight
from trunkline.destination_suite.place import Kind, Table
from trunkline.errors import Unreachable

KINDS: Final[dict[str, Kind]] = {"ducklake": S3LakeKind("sqlite"), "delta": S3DeltaKind()}
ROWS: Final[list[Row]] = [{"id": n, "tenant": ("acme", "bolt")[n % 2], "item": f"i{n}", "mark": n} for n in (1, 2, 3)]


class S3LakeSource(LakeSource):
    """A lake whose files are in a bucket."""

    def __init__(self, folder: Path, bucket: Bucket) -> None:
        keys: dict[str, Any] = bucket.keys()
        url = f"s3://lake/{uuid.uuid4()}"
        self.address = LakeAddress(f"sqlite:{folder / 'source.sqlite'}", "orders", data_path=url, **keys)
        self.source = DuckLakeSource(self.address)
        self._row = "n AS id, tenant, 'item ' || n AS item, n AS mark"
        self.inlining = 0
        self.write("CALL lake.set_option('data_inlining_row_limit', 0)")
        self.write("CREATE TABLE lake.orders (id BIGINT, tenant VARCHAR, item VARCHAR, mark INTEGER)")

    @contextmanager
    def opened(self) -> Iterator[duckdb.DuckDBPyConnection]:
        with pooled_duckdb(*EXTENSIONS, "httpfs") as connection:
            attach_lake(connection, self.address, "lake", read_only=False)
            yield connection
            connection.execute("DETACH lake")


class S3DeltaFeed(DeltaFeed):
    """A Delta table with a feed in a bucket."""

    def __init__(self, bucket: Bucket) -> None:
        self.path = f"s3://lake/{uuid.uuid4()}"
        keys: dict[str, Any] = bucket.keys()
        self.address = DeltaAddress(self.path, **keys)
        self.source = DeltaSource(self.address)
        self.options = store_options(self.address)
        feed = {"delta.enableChangeDataFeed": "true"}
        write_deltalake(self.path, order_rows(ROWS), configuration=feed, storage_options=self.options)

    def write(self, step: Callable[[DeltaTable], object]) -> int:
        step(self._table())
        return self._table().version() + 1

    def rows(self, version: int) -> list[Row]:
        found: list[Row] = pa.table(self._table(version - 1).scan()).to_pylist()
        return found

    def _table(self, version: int | None = None) -> DeltaTable:
        return DeltaTable(self.path, version=version, storage_options=self.options)


@pytest.fixture
def workers(spark: SparkSession) -> Iterator[SparkSession]:
    """Spark's workers with the keys of the server: the session was started before there was one."""
    Bucket.of(server()).keys()
    environment = spark.sparkContext.environment
    before = dict(environment)
    environment.update({name: os.environ[name] for name in (ACCESS_KEY_ENV, SECRET_KEY_ENV)})
    yield spark
    environment.clear()
    environment.update(before)


def sites(folder: Path) -> list[Site]:
    """A destination for each tenant, kind and path."""
    made = []
    for path in PATHS:
        for kind in KINDS:
            for tenant, values in TENANTS.items():
                place = folder / f"{tenant}-{kind}-{path}"
                place.mkdir()
                table = Table(KINDS[kind].make(place, lambda: None))
                target = TaskDestination(place.name, address_of(table), values, "mirror", "halt")
                made.append(Site(target, table, path))
    return made


def test_a_lake_in_a_bucket_is_delivered_by_small_and_large_reads(
    workers: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """DuckDB reads also what is too large for one task: Spark's own reader would need Java packages."""
    caplog.set_level(logging.DEBUG, logger="trunkline")
    source = S3LakeSource(tmp_path, Bucket.of(server()))
    pipe = Pipe(workers, source, sites(tmp_path))
    try:
        pipe.given(source.insert("acme", 1, 2, 3), source.insert("bolt", 4, 5))
        reports = pipe.deliver(
            source.insert("acme", *range(100, 400)),
            "UPDATE lake.orders SET item = 'changed' WHERE id IN (1, 4)",
            "DELETE FROM lake.orders WHERE id IN (2, 150)",
            "UPDATE lake.orders SET tenant = 'bolt' WHERE id = 3",
        )
        assert {path: report.path for path, report in reports.items()} == {"small": "small", "large": "large"}
    finally:
        pipe.close()
    settings = str(workers.sparkContext.getConf().getAll())
    for secret in (server().secret_key, server().access_key):
        assert secret not in caplog.text
        assert f"{secret}'" not in settings


def test_a_delta_table_in_a_bucket_is_a_source(workers: SparkSession, tmp_path: Path) -> None:
    source = S3DeltaFeed(Bucket.of(server()))
    pipe = Pipe(workers, source, [site for site in sites(tmp_path) if site.path == "small"])
    try:
        pipe.catch_up(1)
        pipe.deliver(
            source.insert({"id": 9, "tenant": "acme", "item": "nine", "mark": 9}),
            lambda table: table.update(updates={"item": "'changed'"}, predicate="id = 1"),
            lambda table: table.delete("id = 2"),
        )
    finally:
        pipe.close()


def test_while_the_server_is_down_sources_and_destinations_are_unreachable(
    tmp_path: Path, workers: SparkSession
) -> None:
    objects = server()
    bucket = Bucket.of(objects)
    lake, feed = S3LakeSource(tmp_path, bucket), S3DeltaFeed(bucket)
    newest = lake.write(lake.insert("acme", 1, 2, 3))
    pipe = Pipe(workers, lake, [each for each in sites(tmp_path) if each.path == "small"])
    objects.kill()
    try:
        for ask in (lambda: feed.source.state(0), feed.source.change_hint, lambda: feed.source.columns(1)):
            with pytest.raises(Unreachable, match=f"cannot be read now: {objects.endpoint} does not answer"):
                ask()
        report = pipe.seed("small", newest)
        assert {result.outcome for result in report.results} == {Outcome.TRANSIENT}, report
        assert f"{objects.endpoint} does not answer" in report.results[0].error
    finally:
        objects.restart()
    assert feed.source.state(0).version == 1
    pipe.catch_up(newest)
    pipe.assert_equal()
    pipe.close()


def test_the_check_before_a_run_names_what_is_wrong_with_a_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with object_server() as objects:
        bucket = Bucket.of(objects)
        source = S3DeltaFeed(bucket)
        monkeypatch.setenv("WRONG", "not the secret")
        access = f"endpoint: '{objects.endpoint}', access_key_env: CONTRACT_ACCESS_KEY, secret_key_env"
        good, wrong = f"{access}: CONTRACT_SECRET_KEY", f"{access}: WRONG"
        lake = "type: ducklake, table: t"
        file = tmp_path / "orders.yaml"
        file.write_text(
            f"pipeline: orders\nsource: {{type: delta, path: '{source.path}', {good}}}\nkey: [id]\n"
            "routing: {column: tenant}\ndestinations:\n"
            f"- {{name: fine, type: delta, path: 's3://lake/fine', {good}}}\n"
            f"- {{name: new, {lake}, catalog: 'sqlite:a.db', data_path: 's3://lake/new', {good}}}\n"
            f"- {{name: denied, {lake}, catalog: 'sqlite:b.db', data_path: 's3://lake/denied', {wrong}}}\n"
            f"- {{name: nowhere, type: delta, path: 's3://other/x', {good}}}\n"
        )
        found = {each.where: each.what for each in preflight(file).problems}
        assert found.keys() == {"denied", "nowhere"}, found
        assert "answers SignatureDoesNotMatch: it refuses the secret key" in found["denied"]
        assert "the bucket other does not exist there; create it" in found["nowhere"]
        assert "not the secret" not in str(found)
        text = file.read_text().replace(objects.endpoint, "http://127.0.0.1:1")
        file.write_text(text)
        [*others, last] = [each.what for each in preflight(file).problems]
        assert all("http://127.0.0.1:1 does not answer" in each for each in (*others, last))


def test_an_address_without_keys_counts_on_the_variables_of_amazon(tmp_path: Path) -> None:
    lake = S3LakeSource(tmp_path, Bucket.of(server()))
    bare = replace(lake.address, access_key_env=None, secret_key_env=None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", server().access_key)
        patch.setenv("AWS_SECRET_ACCESS_KEY", server().secret_key)
        assert DuckLakeSource(bare).state(0).version == DuckLakeSource(lake.address).state(0).version
