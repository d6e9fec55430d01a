"""What happens to the source's files and history, and the other kinds of catalogs and sources."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from delivery.pipe import Pipe, make_sites
from delivery.pipe_sources import DeltaFeed, LakeSource
from postgres_server import PostgresServer
from trunkline.core.delivery_messages import Outcome
from trunkline.destination_suite.place import content

Shop = Pipe[LakeSource]
MERGE_FILES = "CALL ducklake_merge_adjacent_files('lake')"
FLUSH_INLINED = "CALL ducklake_flush_inlined_data('lake')"
REWRITE = "CALL ducklake_rewrite_data_files('lake', delete_threshold => 0.01)"
ONE: dict[str, tuple[str | None, ...]] = {"acme": ("acme",)}


@pytest.fixture
def shop(spark: SparkSession, postgres: PostgresServer, tmp_path: Path) -> Iterator[Shop]:
    """Mirrors and appends, with rows in files, in the catalog, and deleted in both."""
    mirrors = make_sites(tmp_path, postgres, tenants=ONE, kinds=["ducklake"])
    (tmp_path / "appends").mkdir()
    appends = make_sites(tmp_path / "appends", postgres, tenants=ONE, kinds=["delta"], mode="append")
    pipe = Pipe(spark, LakeSource(tmp_path, inlining=3), [*mirrors, *appends])
    pipe.given(
        pipe.table.insert("acme", *range(1, 9)),
        pipe.table.insert("acme", 11, 12),
        "DELETE FROM lake.orders WHERE id IN (1, 2, 3, 4)",
        "DELETE FROM lake.orders WHERE id IN (5, 11)",
        pipe.table.insert("acme", *range(21, 29)),
        "UPDATE lake.orders SET item = 'again' WHERE id = 12",
    )
    yield pipe
    pipe.close()


def appended(shop: Shop) -> list[list[tuple[tuple[str, str], ...]] | None]:
    """What the destinations of mode append hold."""
    return [content(site.table.held()) for site in shop.sites.values() if site.target.mode == "append"]


def mirrors(shop: Shop) -> list[str]:
    return [name for name, site in shop.sites.items() if site.target.mode == "mirror"]


def test_compaction_of_the_source_changes_nothing_and_hides_no_change(shop: Shop) -> None:
    """Merged files and flushed rows hold the same rows, with the versions in which they came and went."""
    before, held = shop.traces(), appended(shop)
    for maintenance in (MERGE_FILES, FLUSH_INLINED, MERGE_FILES):
        through = shop.table.write(maintenance)
        for path in shop.paths:
            report = shop.flush(path, shop.version, through)
            assert (report.results, report.rest) == ((), Outcome.EMPTY)
        shop.version = through
    assert shop.traces() == before
    steps = [
        "UPDATE lake.orders SET item = 'first' WHERE id IN (6, 22)",
        MERGE_FILES,
        "INSERT INTO lake.orders VALUES (31, 'acme', 'new', 31)",
        FLUSH_INLINED,
        "DELETE FROM lake.orders WHERE id IN (7, 23)",
        MERGE_FILES,
    ]
    for step in steps:
        through = shop.table.write(step)
    shop.table.write_trail()
    shop.table.write(FLUSH_INLINED)
    shop.table.write(MERGE_FILES)
    for path in shop.paths:
        assert shop.flush(path, shop.version, through).path == path
    shop.assert_equal(through, names=mirrors(shop))
    rows = [row for row in shop.table.rows(through) if row["id"] in (6, 22, 31)]
    assert appended(shop) == [sorted([*(each or ()), *(content(rows) or ())]) for each in held]


def test_a_rewrite_of_the_source_changes_nothing_and_no_window_has_to_cross_it(shop: Shop) -> None:
    before = shop.traces()
    rewritten = shop.table.write(REWRITE)
    shop.table.write_trail()
    assert set(shop.table.source.state(shop.version).stops) >= {rewritten}
    for path in shop.paths:
        report = shop.flush(path, shop.version, rewritten)
        assert (report.results, report.rest, report.path) == ((), Outcome.EMPTY, None)
    assert shop.traces() == before
    shop.version = rewritten
    shop.assert_equal(names=mirrors(shop))


def test_where_a_window_must_cross_a_rewrite_rows_that_only_moved_are_not_delivered_again(shop: Shop) -> None:
    """Versions in between were expired, and with them the knowledge which of them was the rewrite."""
    held, after = appended(shop), shop.version
    between = [shop.table.write("UPDATE lake.orders SET item = 'x' WHERE id = 6"), shop.table.write(REWRITE)]
    through = shop.table.write("INSERT INTO lake.orders VALUES (31, 'acme', 'new', 31)")
    shop.table.write_trail()
    shop.table.write(f"CALL ducklake_expire_snapshots('lake', versions => {between})")
    for path in shop.paths:
        report = shop.flush(path, after, through)
        assert {result.outcome for result in report.results} == {Outcome.APPLIED}
        counted = {each.destination: each for each in report.results}
        assert (counted[f"acme-delta-{path}"].written, counted[f"acme-ducklake-{path}"].written) == (2, 2)
    shop.assert_equal(through, names=mirrors(shop))
    rows = [row for row in shop.table.rows(through) if row["id"] in (6, 31)]
    assert appended(shop) == [sorted([*(each or ()), *(content(rows) or ())]) for each in held]


def test_expired_snapshots_are_reported_and_nothing_is_written(shop: Shop) -> None:
    before, after = shop.traces(), shop.version
    through = shop.table.write("UPDATE lake.orders SET item = 'x' WHERE id = 6")
    shop.table.write_trail()
    shop.table.write(f"CALL ducklake_expire_snapshots('lake', versions => [{after}])")
    for path in shop.paths:
        report = shop.flush(path, after, through)
        assert {result.outcome for result in report.results} == {Outcome.EXPIRED}
        assert all("no longer has snapshot" in result.error for result in report.results)
    assert shop.traces() == before


def test_a_catalog_in_postgresql_is_read_in_both_ways(
    spark: SparkSession, postgres: PostgresServer, tmp_path: Path
) -> None:
    catalog = f"postgres:{postgres.create_database(f'source_{uuid.uuid4().hex}')}"
    shop = Pipe(
        spark, LakeSource(tmp_path, catalog=catalog, inlining=3), make_sites(tmp_path, postgres, kinds=["ducklake"])
    )
    insert = shop.table.insert
    shop.given(insert("acme", *range(1, 9)), insert("bolt", 11, 12), "DELETE FROM lake.orders WHERE id = 3")
    shop.deliver(
        "BEGIN; DELETE FROM lake.orders WHERE id IN (1, 11); UPDATE lake.orders SET id = 1 WHERE id = 2; COMMIT",
        "UPDATE lake.orders SET tenant = 'bolt', item = 'ä\\x41''' WHERE id IN (4, 12)",
        insert("bolt", 13, 14, 15, 16),
        "DELETE FROM lake.orders WHERE id IN (5, 14)",
    )
    shop.close()


def test_a_delta_source_delivers_the_same_cases(spark: SparkSession, postgres: PostgresServer, tmp_path: Path) -> None:
    """Insert, updates and delete in one window; delete and re-insert; a new key; a move away; an empty window."""

    def row(number: int, tenant: str | None, item: str = "new") -> dict[str, object]:
        return {"id": number, "tenant": tenant, "item": item, "mark": number}

    feed = DeltaFeed(tmp_path, [row(number, "acme", "old") for number in range(1, 9)])
    shop = Pipe(spark, feed, make_sites(tmp_path, postgres, paths=["small"]))
    shop.given(feed.insert(row(11, "bolt"), row(12, "nowhere")))
    reports = shop.deliver(
        feed.insert(row(20, "acme"), row(21, "acme"), row(22, None)),
        lambda table: table.update(predicate="id IN (1, 20, 21)", updates={"item": "'updated'"}),
        lambda table: table.delete("id IN (2, 20)"),
        feed.insert(row(2, "acme", "again")),
        lambda table: table.update(predicate="id = 3", updates={"id": "33"}),
        lambda table: table.update(predicate="id IN (4, 5)", updates={"tenant": "'bolt'"}),
        lambda table: table.update(predicate="id IN (5, 6)", updates={"tenant": "'nowhere'"}),
        lambda table: table.update(predicate="id = 6", updates={"tenant": "'acme'", "item": "'back'"}),
    )
    assert reports["small"].unrouted == {"nowhere": 1, None: 1}
    shop.catch_up(feed.write_boundary())
    before = shop.traces()
    through = feed.write(lambda table: table.optimize.compact())
    assert shop.flush("small", shop.version, through).results == ()
    assert shop.traces() == before
    shop.close()
