"""A table of a captured database, delivered by Spark to every kind of destination."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession

import trunkline.sync
from delivery.captured_database import CapturedDatabase
from delivery.group_log import GroupLog, Work, changed, schema_of
from delivery.pipe import Pipe, all_well, make_sites
from delivery.running_pipeline import Business, wait_until
from local_cluster import RunningCluster, local_cluster
from postgres_server import PostgresServer
from trunkline.core.delivery_messages import Outcome
from trunkline.delivery.changes.groups import RowKind
from trunkline.delivery.changes.rebuilt import rebuild
from trunkline.delivery.changes.schemas import SchemaChange, SourceColumn, TableSchema
from trunkline.delivery.config.addresses import LogAddress
from trunkline.delivery.sources.database import DatabaseSource
from trunkline.delivery.sources.log_reader import forget_reader
from trunkline.delivery.verification.preflight import preflight
from trunkline.delivery.verification.verify import verify_target
from trunkline.errors import Unreachable

INSERT, DELETE, OLD, NEW, TRUNCATE, READ = RowKind
ORDERS = schema_of(
    1, "id BIGINT, tenant VARCHAR, item VARCHAR, mark INTEGER, large VARCHAR", key=("id", "tenant"), name="orders"
)
OTHER = schema_of(2, "id BIGINT, note VARCHAR", name="other")
LARGE = 0b10000  # the bit of the column that updates leave as it is
EDGE = 999
NAMES = count(1)

Row = dict[str, Any]


class CapturedOrders:
    """``public.orders`` of a database, whose log is written here. A step is the work of one transaction, or of several
    parts of one."""

    def __init__(self, connect: str, name: str) -> None:
        self.address = LogAddress(name, connect, table="public.orders")
        self.source = DatabaseSource(self.address)
        self.log = GroupLog()
        self.schema: TableSchema = self.log.schema(ORDERS)
        self.log.schema(OTHER)
        self.log.chunk(OTHER, 0, [])
        self._cluster = trunkline.sync.connect(connect)
        self._cluster.open()
        self._log = self._cluster.log(name, create=True)
        self._sent = 0

    def close(self) -> None:
        self._cluster.close()
        forget_reader(self.address)

    def send(self) -> int:
        """Append what was written since; returns the newest position."""
        for entry in self.log.entries[self._sent :]:
            found = self._log.append(entry.payload, headers=dict(entry.headers))
            assert found == entry.glsn
        self._sent = self.log.last
        return self._sent

    def write(self, step: Any) -> int:
        if isinstance(step[0], list):
            for number, part in enumerate(step):
                self.log.part(number, part, last=number == len(step) - 1)
        else:
            self.log.group(step, [(OTHER, INSERT, (self.log.last, "beside"))])
        return self.send()

    def row(self, number: int, tenant: str, **new: Any) -> tuple[Any, ...]:
        found = {"id": number, "tenant": tenant, "item": f"item {number}", "mark": number, "large": "x" * 3_000}
        return tuple(({**found, **new}).get(column.name) for column in self.schema.columns)

    def insert(self, tenant: str, *numbers: int) -> Work:
        return [(self.schema, INSERT, self.row(number, tenant)) for number in numbers]

    def update(self, number: int, tenant: str, old: Sequence[Any] | None = None, **new: Any) -> Work:
        """Without the large value. ``old``: the key before, if it changes."""
        before: Work = [] if old is None else [(self.schema, OLD, self.key(*old))]
        width = -(-len(self.schema.columns) // 8)
        row = self.row(number, tenant, **new, large=None)
        return [*before, (self.schema, NEW, row, LARGE.to_bytes(width, "little"))]

    def delete(self, number: int, tenant: str) -> Work:
        return [(self.schema, DELETE, self.key(number, tenant))]

    def key(self, number: int, tenant: str) -> tuple[Any, ...]:
        return (number, tenant, *[None] * (len(self.schema.columns) - 2))

    def write_boundary(self) -> int:
        self.write(self.insert("acme", EDGE))
        return self.write(self.delete(EDGE, "acme"))

    def write_trail(self) -> int:
        self.write(self.insert("acme", EDGE))
        return self.write(self.delete(EDGE, "acme"))

    def rows(self, version: int) -> list[Row]:
        found: list[Row] = rebuild(self.log.entries, version)[1].to_pylist()
        return found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with local_cluster(tmp_path_factory.mktemp("cluster"), nodes=1) as running:
        yield running


@pytest.fixture
def table(cluster: RunningCluster) -> Iterator[CapturedOrders]:
    made = CapturedOrders(cluster.connect, f"shop-{next(NAMES)}")
    yield made
    made.close()


def test_every_kind_of_destination_follows_a_table_through_all_that_its_log_has(
    spark: SparkSession, postgres: PostgresServer, tmp_path: Path, table: CapturedOrders
) -> None:
    table.log.chunk(table.schema, 0, [table.row(number, "acme") for number in range(1, 6)], complete=False)
    table.log.group(table.update(2, "acme", item="while it is read"))
    table.log.chunk(table.schema, 1, [table.row(number, "bolt") for number in range(6, 10)])
    pipe = Pipe(spark, table, make_sites(tmp_path, postgres, paths=("small",)))
    try:
        _follow_rows(pipe, table)
        _follow_columns(pipe, table)
        _follow_truncations(pipe, table)
        _follow_the_end(pipe, table)
    finally:
        pipe.close()


def _follow_rows(pipe: Pipe[CapturedOrders], table: CapturedOrders) -> None:
    table.send()
    pipe.given(table.insert("acme", 10))
    pipe.deliver(table.insert("bolt", 20, 21), table.update(1, "acme", item="changed"), table.delete(3, "acme"))
    # keys and tenants change, and the large value is stated by none of these
    pipe.deliver(
        table.update(40, "acme", old=(4, "acme")),
        table.update(41, "acme", old=(40, "acme"), item="twice"),
        table.update(5, "bolt", old=(5, "acme"), item="moved"),
        [*table.update(6, "bolt", item="one"), *table.update(6, "bolt", item="two")],
    )
    # a large transaction, the first try of which a crash cut off
    table.log.part(0, table.insert("acme", 50))
    table.log.mark()
    pipe.deliver([table.insert("acme", 50), [*table.insert("acme", 51), *table.update(51, "acme", item="in parts")]])
    table.log.catalog()
    reports = pipe.deliver([(OTHER, INSERT, (1, "nothing of this table"))])
    assert [result for report in reports.values() for result in report.results] == []
    for name in pipe.sites:
        assert verify_target(pipe.work, name).outcome == "equal"


def _follow_columns(pipe: Pipe[CapturedOrders], table: CapturedOrders) -> None:
    old = table.schema.columns
    columns = (*old[:2], SourceColumn("product", "VARCHAR", 3), SourceColumn("mark", "BIGINT", 4), old[4])
    columns = (*columns, SourceColumn("score", "INTEGER", 6))
    changes = (SchemaChange.RENAMED, SchemaChange.WIDENED, SchemaChange.ADDED)
    pipe.catch_up(table.write_boundary())
    after = pipe.version
    table.write(table.update(1, "acme", item="just before"))
    table.schema = table.log.schema(changed(table.schema, *changes, columns=columns, defaults={"score": 3}))
    table.write(table.update(2, "acme", product="after", score=4))
    through = table.write([(table.schema, DELETE, table.key(10, "acme"))])
    all_well(pipe.flush("small", after, through))
    pipe.version = through
    pipe.assert_equal()
    table.schema = table.log.schema(changed(table.schema, SchemaChange.DROPPED, columns=(*columns[:3], *columns[4:])))
    through = table.write([(OTHER, INSERT, (2, "no row of this table"))])
    all_well(pipe.flush("small", pipe.version, through))
    pipe.version = through
    pipe.assert_equal()


def _follow_truncations(pipe: Pipe[CapturedOrders], table: CapturedOrders) -> None:
    after = pipe.version
    through = table.write([(table.schema, TRUNCATE, ()), *table.insert("acme", 60), *table.insert("bolt", 61)])
    _replaced(pipe, after, through)
    table.schema = table.log.schema(changed(table.schema, SchemaChange.RECAPTURED))
    table.log.chunk(table.schema, 0, [table.row(70, "acme")], complete=False)
    table.send()
    state = table.source.state(through)
    assert (state.version, bool(state.waiting)) == (through, True)
    table.log.chunk(table.schema, 1, [table.row(71, "bolt")])
    again = table.send()
    assert table.source.state(through).version == again
    _replaced(pipe, through, again)
    assert [row["id"] for row in table.rows(again)] == [70, 71]


def _replaced(pipe: Pipe[CapturedOrders], after: int, through: int) -> None:
    report = pipe.flush("small", after, through)
    all_well(report)
    assert len(report.results) == len(pipe.sites)
    pipe.version = through
    pipe.assert_equal()


def _follow_the_end(pipe: Pipe[CapturedOrders], table: CapturedOrders) -> None:
    table.log.schema(changed(table.schema, SchemaChange.TABLE_DROPPED))
    through = table.write([(OTHER, INSERT, (3, "beside"))])
    assert table.source.state(0).version == through
    report = pipe.flush("small", pipe.version, through)
    assert {result.outcome for result in report.results} == {Outcome.PERMANENT}
    assert all("public.orders was dropped" in result.error for result in report.results)
    held = {name: len(site.table.held() or ()) for name, site in pipe.sites.items()}
    assert set(held.values()) == {1}


def test_mode_append_looks_up_what_an_update_did_not_state(
    spark: SparkSession, postgres: PostgresServer, tmp_path: Path, table: CapturedOrders
) -> None:
    table.log.chunk(table.schema, 0, [table.row(1, "acme")])
    table.send()
    sites = make_sites(
        tmp_path, postgres, kinds=["delta"], paths=("small",), tenants={"acme": ("acme",)}, mode="append"
    )
    pipe = Pipe(spark, table, sites)
    try:
        pipe.given(table.insert("acme", 2))
        through = table.write(table.update(1, "acme", item="new"))
        all_well(pipe.flush("small", pipe.version, through))
        [held] = [site.table.held() or [] for site in pipe.sites.values()]
        assert sorted((row["id"], row["item"], len(row["large"])) for row in held) == [
            (1, "item 1", 3_000), (1, "new", 3_000), (2, "item 2", 3_000),
        ]  # fmt: skip
    finally:
        pipe.close()


class LiveOrders(CapturedDatabase):
    """``orders`` in a real database, with a large value that updates leave as it is."""

    def __init__(self, server: PostgresServer, connect: str, name: str) -> None:
        super().__init__(server, connect, name, "orders")
        self.run(
            "CREATE TABLE orders (id bigint, tenant text, item text, mark int, large text, PRIMARY KEY (tenant, id))",
            "ALTER TABLE orders ALTER COLUMN large SET STORAGE EXTERNAL",
            "CREATE TABLE other (id bigint PRIMARY KEY)",
            "CREATE FUNCTION many(a int, b int) RETURNS void LANGUAGE sql AS $$ INSERT INTO orders SELECT n, "
            "CASE n % 2 WHEN 0 THEN 'acme' ELSE 'bolt' END, 'item ' || n, n, repeat(n::text, 3000) "
            "FROM generate_series(a, b) n $$",
        )

    def write_boundary(self) -> int:
        self.write("INSERT INTO orders VALUES (999, 'acme', 'edge', 1, 'x')")
        return self.write("DELETE FROM orders WHERE id = 999")

    def write_trail(self) -> int:
        return self.write("UPDATE orders SET mark = mark + 1000")


def test_a_real_database_reaches_every_kind_of_destination(
    spark: SparkSession, postgres: PostgresServer, logical: PostgresServer, cluster: RunningCluster, tmp_path: Path
) -> None:
    table = LiveOrders(logical, cluster.connect, "live_orders")
    pipe = Pipe(spark, table, make_sites(tmp_path, postgres, paths=("small",)))
    try:
        table.run("SELECT many(1, 39)")
        options = ("--postgres", table.dsn, "--tables", "public.*", "--slot", table.slot, "--once")
        cluster.ok("capture", table.address.log, *options)
        pipe.given("SELECT many(40, 40)")
        pipe.deliver(
            "UPDATE orders SET item = 'changed' WHERE id < 5; DELETE FROM orders WHERE id = 7",
            "UPDATE orders SET id = id + 100 WHERE id BETWEEN 10 AND 20",  # of keys; large values are not sent
            "UPDATE orders SET tenant = 'bolt' WHERE id = 30",  # to another destination
            "SELECT many(200, 230); UPDATE orders SET mark = 0 WHERE id > 220; DELETE FROM orders WHERE id = 225",
        )
        pipe.deliver(
            "ALTER TABLE orders RENAME item TO product; UPDATE orders SET mark = 5 WHERE id = 1",
            "ALTER TABLE orders ADD COLUMN score int DEFAULT 7; UPDATE orders SET score = 8 WHERE id = 2",
        )
        for name in pipe.sites:
            verdict = verify_target(pipe.work, name)
            assert (verdict.outcome, verdict.note) == ("equal", "")
    finally:
        pipe.close()
        table.close()


def test_a_deliverer_waits_for_snapshots_replaces_rows_and_halts_when_the_table_is_dropped(
    spark: SparkSession, postgres: PostgresServer, tmp_path: Path, table: CapturedOrders
) -> None:
    business = Business(spark, tmp_path, postgres)
    pipeline = replace(business.pipeline(), source=table.address)
    business.source = table  # type: ignore[assignment]
    table.log.chunk(table.schema, 0, [table.row(1, "acme")], complete=False)
    table.send()
    with pytest.raises(Unreachable, match=r"the snapshot of public\.orders is not complete yet.*without --once"):
        business.run_once(pipeline)
    with business.running(pipeline) as running:
        wait_until(lambda: "not complete yet" in running.observer.snapshot().source_error)
        table.log.chunk(table.schema, 1, [table.row(number, name) for number, name in enumerate(business.tables, 10)])
        version = table.send()
        running.wait_for(version)
        business.assert_equal(version)
        version = table.write([*table.update(10, "acme", item="new"), *table.delete(1, "acme")])
        running.wait_for(version)
        business.assert_equal(version)
        table.schema = table.log.schema(changed(table.schema, SchemaChange.RECAPTURED))
        table.log.chunk(table.schema, 0, [table.row(5, "acme")], complete=False)
        table.send()
        wait_until(lambda: "is captured again" in running.observer.snapshot().source_error)
        business.assert_equal(version)
        table.log.chunk(table.schema, 1, [table.row(6, "bolt")])
        version = table.send()
        running.wait_for(version)
        business.assert_equal(version)
        table.log.schema(changed(table.schema, SchemaChange.TABLE_DROPPED))
        table.write([(OTHER, INSERT, (1, "beside"))])
        wait_until(lambda: all("was dropped" in each.error for each in running.observer.snapshot().destinations))
        business.assert_equal(version)


def test_validate_names_what_is_wrong_with_a_table_of_a_log(table: CapturedOrders, tmp_path: Path) -> None:
    table.log.chunk(table.schema, 0, [], complete=False)
    table.send()
    text = (
        "pipeline: orders\nkey: [id]\ncontrol: {{store: sqlite:control.db}}\nrouting: {{column: {column}}}\n"
        f"source: {{{{type: log, log: {table.address.log}, connect: '{table.address.connect}'{{table}}}}}}\n"
        "destinations: [{{name: x, type: delta, path: x}}]\n"
    )
    for column, named, why in (
        (
            "tenant",
            "",
            "has all tables of a database; name one in `table` of the source, such as public.orders, public",
        ),
        ("tenant", ", table: public.order", "no table public.order; name one of its 2 tables"),
        ("item", ", table: public.orders", "ALTER TABLE public.orders REPLICA IDENTITY FULL"),
    ):
        file = tmp_path / "orders.yaml"
        file.write_text(text.format(column=column, table=named))
        [problem] = [each for each in preflight(file)[1] if each.where == "source"]
        assert why in problem.what
    file.write_text(text.format(column="tenant", table=", table: public.orders"))
    assert [
        each for each in preflight(file)[1] if each.where != "spark"
    ] == []  # a snapshot that is not complete may be
