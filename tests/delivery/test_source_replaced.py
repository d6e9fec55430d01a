"""A source that was replaced: recreated under its name, or restored from a backup and then written differently.

A destination that strayed from it halts with the reason, is not written, and an operator's seed wins. Others go on.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from msgspec.structs import replace
from pyspark.sql import SparkSession

from delivery.captured_log import CapturedLog
from delivery.direct_delivery import Direct, delta_target
from delivery.lake_backup import Backup
from delivery.pipe_sources import DeltaFeed, LakeSource
from delivery.running_pipeline import TENANTS, Business, Running, wait_until
from local_cluster import local_cluster
from postgres_server import PostgresServer
from trunkline.core.delivery_messages import Note, Outcome, Result
from trunkline.delivery.capture.one_table.ducklake import LakeCapture
from trunkline.delivery.config.addresses import DeltaAddress, LogAddress
from trunkline.delivery.config.tree import Pipeline
from trunkline.delivery.job.standings import read_standings
from trunkline.delivery.sources.delta import DeltaSource
from trunkline.delivery.sources.log import LogSource

ALL = tuple(TENANTS)


@pytest.fixture
def business(spark: SparkSession, postgres: PostgresServer, tmp_path: Path) -> Business:
    """Three rows of each tenant, delivered."""
    made = Business(spark, tmp_path, postgres)
    for place, tenant in enumerate(TENANTS):
        made.source.write(made.source.insert(tenant, *(10 * place + number for number in (1, 2, 3))))
    assert made.run_once().behind == ()
    return made


def statuses(business: Business) -> dict[str, tuple[str, str]]:
    with business.store() as store:
        found = {each.name: each.status for each in store.destinations("orders")}
    return {name: ("", "") if each is None else (each.state, each.error) for name, each in found.items()}


def assert_halted(business: Business, before: dict[str, object], *names: str, why: str) -> None:
    """A run does not write these destinations, and reports why."""
    assert set(names) <= set(business.run_once().behind)
    for name in names:
        state, error = statuses(business)[name]
        assert state == "halted"
        assert why in error
        assert "trunkline deliver reseed" in error
        assert business.traces()[name] == before[name]


def reseed(business: Business, *names: str) -> None:
    with business.store() as store:
        store.desired_states.request_reseed("orders", names or ALL)


def test_a_recreated_lake_halts_every_destination_until_an_operator_seeds_it_again(
    business: Business, tmp_path: Path
) -> None:
    business.source.write("UPDATE lake.orders SET item = 'x' WHERE id IN (1, 11, 21)")
    assert business.run_once().behind == ()
    before = business.traces()
    Backup(tmp_path).remove()
    business.source = LakeSource(tmp_path, catalog=business.source.address.catalog, inlining=3)
    version = business.source.write(business.source.insert("acme", 7))
    assert version < business.position("acme")
    assert_halted(business, before, *ALL, why="the source table was replaced")
    reseed(business, "acme")  # the source is behind
    assert set(business.run_once().behind) == {"bolt", "cargo"}
    business.assert_equal(version, "acme")
    for number in range(8, 16):
        version = business.source.write(business.source.insert("bolt", number))
    assert version > business.position("bolt")
    assert_halted(business, before, "bolt", "cargo", why="the source table was replaced")
    business.assert_equal(version, "acme")
    reseed(business)
    assert business.run_once().behind == ()
    business.assert_equal(version)


def test_a_catalog_that_was_restored_from_a_backup_halts_what_is_ahead_of_it_and_what_it_has_grown_past(
    business: Business, tmp_path: Path
) -> None:
    backup = Backup(tmp_path)
    assert business.run_once(business.pipeline(("acme",))).behind == ()  # bolt and cargo are left where they are
    for number in range(30, 36):
        business.source.write(business.source.insert("acme", number))
    business.run_once(business.pipeline(("acme",)))
    before, ahead = business.traces(), business.position("acme")
    backup.restore()
    version = business.source.write("UPDATE lake.orders SET item = 'y' WHERE id IN (1, 11, 21)")
    assert version < ahead
    assert_halted(business, before, "acme", why=f"it is at version {ahead}, and the source is at {version}")
    business.assert_equal(version, "bolt", "cargo")
    reseed(business, "acme")
    assert business.run_once().behind == ()
    business.assert_equal(version)

    for number in range(40, 46):  # and again, but no poll happens before it has grown past
        business.source.write(business.source.insert("acme", number))
    assert business.run_once().behind == ()
    before, ahead = business.traces(), business.position("acme")
    backup.restore()
    for number in range(50, 65):
        version = business.source.write(business.source.insert("acme", number))
    assert version > ahead
    assert_halted(business, before, *ALL, why=f"it is at version {ahead}, and the source has another one")
    reseed(business)
    assert business.run_once().behind == ()
    business.assert_equal(version)


def test_a_note_of_an_empty_window_does_not_outlive_the_history_that_it_is_of(
    business: Business, tmp_path: Path
) -> None:
    """Bolt has nothing in a long window, so that only a note has its position; the other history has something."""
    version = business.source.write(business.source.insert("bolt", 60))
    with business.running() as running:
        running.wait_for(version)
        backup = Backup(tmp_path)
        for number in range(70, 76):
            version = business.source.write(business.source.insert("acme", number))
        running.wait_for(version)
    noted, stands = version, business.position("bolt")
    assert stands < noted
    backup.restore()
    for number in range(90, 92 + noted - stands):
        version = business.source.write(business.source.insert("bolt", number))
    assert version > noted
    assert business.run_once().behind == ("acme",)
    business.assert_equal(version, "bolt", "cargo")


def test_a_source_that_is_restored_while_it_is_delivered_halts_what_strayed_and_the_others_go_on(
    business: Business, tmp_path: Path
) -> None:
    with business.running() as running:
        backup = Backup(tmp_path)
        for number in range(80, 84):
            version = business.source.write(business.source.insert("acme", number))
        running.wait_for(version)
        backup.restore()
        business.source.write("UPDATE lake.orders SET item = 'z' WHERE id IN (1, 11, 21)")
        wait_until(lambda: stage(running, "acme") == "halted", lambda: str(running.observer.snapshot()))
        version = business.source.write("UPDATE lake.orders SET item = 'later' WHERE id IN (2, 12, 22)")
        halted = [name for name in ALL if stage(running, name) == "halted"]
        reseed(business, *halted)
        running.wait_for(version)
        wait_until(lambda: all(stage(running, name) == "ready" for name in ALL))
    business.assert_equal(version)


def stage(running: Running, name: str) -> str:
    found = running.destination(name)
    return "" if found is None else found.stage


def test_a_changed_configuration_alone_does_not_replace_the_rows_of_another_source(business: Business) -> None:
    before = business.traces()
    with business.source.opened() as lake:
        lake.execute("CREATE TABLE lake.others AS SELECT * FROM lake.orders WHERE id = 1")
    other = replace(business.pipeline(), source=replace(business.source.address, table="others"))
    assert set(business.run_once(other).behind) == set(ALL)
    assert business.traces() == before
    assert {state for state, _ in statuses(business).values()} == {"halted"}
    reseed(business, "acme")
    assert set(business.run_once(other).behind) == {"bolt", "cargo"}
    assert [row["id"] for row in business.tables["acme"].held() or []] == [1]


# ------------------------------------------------------------------------------------------------------ other sources


@pytest.fixture
def feed(business: Business, tmp_path: Path) -> tuple[DeltaFeed, Pipeline]:
    """A Delta table as the source of the same destinations; each has one row, delivered."""
    (tmp_path / "feed").mkdir()
    table = DeltaFeed(tmp_path / "feed", [row(number, tenant) for number, tenant in enumerate(ALL, start=1)])
    pipeline = replace(business.pipeline(store="delta"), source=table.source.address)
    business.run_once(pipeline)
    with business.store("delta") as store:
        store.desired_states.request_reseed("orders", ALL)
    assert business.run_once(pipeline).behind == ()
    return table, pipeline


def row(number: int, tenant: str) -> dict[str, Any]:
    return {"id": number, "tenant": tenant, "item": f"item {number}", "mark": number}


def test_a_delta_table_that_was_restored_from_a_copy_halts_what_is_ahead_and_what_it_has_grown_past(
    business: Business, feed: tuple[DeltaFeed, Pipeline], tmp_path: Path
) -> None:
    table, pipeline = feed
    shutil.copytree(table.path, tmp_path / "copy")
    for number in (10, 11):
        table.write(table.insert(row(number, "acme")))
    assert business.run_once(pipeline).behind == ()
    before = business.traces()
    shutil.rmtree(table.path)
    shutil.copytree(tmp_path / "copy", table.path)
    for length in range(1, 5):  # behind, then as far, then past it
        table.write(table.insert(row(20 + length, "bolt")))
        assert set(business.run_once(pipeline).behind) >= {"acme"}, length
    assert business.traces() == before
    with business.store("delta") as store:
        store.desired_states.request_reseed("orders", ALL)
    assert business.run_once(pipeline).behind == ()
    wanted = {name: sorted(each["id"] for each in table.rows(5) if each["tenant"] == name) for name in ALL}
    assert {name: sorted(each["id"] for each in business.tables[name].held() or []) for name in ALL} == wanted
    moved = tmp_path / "moved"  # the same history in another place is the same source
    shutil.copytree(table.path, moved)
    assert table.source.lineage([3]).marks == DeltaSource(DeltaAddress(str(moved))).lineage([3]).marks
    assert str(DeltaTable(table.path).metadata().id) == table.source.lineage([]).identity


def test_a_recreated_log_is_not_the_history_that_was_delivered(tmp_path: Path) -> None:
    lake = LakeSource(tmp_path)
    lake.write(lake.insert("acme", 1, 2, 3))
    target = delta_target(tmp_path, "acme")
    found: list[Result] = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        with local_cluster(tmp_path / name) as cluster:
            CapturedLog(cluster.connect, "orders").capture(LakeCapture(lake.address))
            direct = Direct(LogSource(LogAddress("orders", cluster.connect)), target)
            if not found:
                direct.seed()
            version = direct.work.source.state(0)
            note = Note("acme", version.version, found[0].mark if found else version.mark)
            found += read_standings(direct.work, ["acme"], {"acme": note}, [""])
    first, second = found
    assert (first.outcome, first.note_holds, first.mark) == (Outcome.STANDS, True, note.mark)
    assert (second.outcome, second.position, second.mark) == (Outcome.STRAYED, first.position, first.mark)
    assert "the source table was replaced" in second.error
    assert not second.note_holds
