"""What becomes of destinations over time, with whole deliverers: lost and found, removed and added, owned by two."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from delivery.pipe import Pipe, make_sites
from delivery.pipe_sources import LakeSource
from delivery.running_pipeline import TENANTS, Business, Running, wait_until
from postgres_server import PostgresServer
from trunkline.core.delivery_messages import Outcome

ALL = tuple(TENANTS)


@pytest.fixture
def business(spark: SparkSession, postgres: PostgresServer, tmp_path: Path) -> Business:
    """Three rows of each tenant, and nothing delivered yet."""
    made = Business(spark, tmp_path, postgres)
    for place, tenant in enumerate(TENANTS):
        made.source.write(made.source.insert(tenant, *(10 * place + number for number in (1, 2, 3))))
    return made


@pytest.fixture
def shared(spark: SparkSession, postgres: PostgresServer, tmp_path: Path) -> Business:
    """The same with a catalog that others may write while it is read."""
    catalog = f"postgres:{postgres.create_database(f'source_{uuid.uuid4().hex}')}"
    made = Business(spark, tmp_path, postgres, catalog=catalog)
    for place, tenant in enumerate(TENANTS):
        made.source.write(made.source.insert(tenant, *(10 * place + number for number in (1, 2, 3))))
    return made


# ---------------------------------------------------------------------------------------------------------------- idle


def test_without_news_nothing_is_written_anywhere(business: Business) -> None:
    assert business.run_once().behind == ()
    before = business.traces()
    assert business.run_once().behind == ()
    assert business.traces() == before
    with business.running() as running:
        version = business.source.write("CREATE TABLE lake.other (x INTEGER)")
        running.wait_for(version)  # the first window of a new owner is written, rows or not
        before = business.traces()
        for number in range(3):
            version = business.source.write(f"CREATE TABLE lake.other{number} (x INTEGER)")
            running.wait_for(version)
        assert business.traces() == before
        version = business.source.write("DELETE FROM lake.orders WHERE id = 1")
        running.wait_for(version)
        after = business.traces()
        assert [name for name in ALL if after[name] != before[name]] == ["acme"]
    business.assert_equal(version)


# --------------------------------------------------------------------------------------------------------------- seeds


def test_a_history_is_followed_from_the_first_version_of_the_table(business: Business) -> None:
    """The lake still has snapshot 0, at which there is no table."""
    assert business.source.source.state(0).oldest == 0
    version = business.source.write("DELETE FROM lake.orders WHERE id IN (1, 11, 21)")
    history = {"seed": "history"}
    pipeline = business.pipeline(ALL, acme=history, bolt=history, cargo=history)
    assert business.run_once(pipeline).behind == ()
    business.assert_equal(version)
    version = business.source.write("UPDATE lake.orders SET item = 'other' WHERE id = 2")
    assert business.run_once(pipeline).behind == ()
    business.assert_equal(version)


# ------------------------------------------------------------------------------------------------------ configurations


def test_a_destination_that_is_removed_and_added_again_is_complete_again(business: Business) -> None:
    business.run_once()
    without = business.pipeline(("acme", "cargo"))
    business.source.write("UPDATE lake.orders SET tenant = 'bolt', item = 'moved' WHERE id = 1")
    version = business.source.write("DELETE FROM lake.orders WHERE id IN (11, 21)")
    before = business.traces()["bolt"]
    assert business.run_once(without).behind == ()
    business.assert_equal(version, "acme", "cargo")
    assert business.traces()["bolt"] == before
    version = business.source.write("UPDATE lake.orders SET item = 'later' WHERE id IN (2, 12, 22)")
    assert business.run_once().behind == ()
    business.assert_equal(version)


def test_a_destination_whose_routing_values_change_is_seeded_again(business: Business) -> None:
    version = business.source.write(business.source.insert("apex", 91, 92))
    business.run_once()
    business.assert_equal(version)
    wider = business.pipeline(acme={"values": ("acme", "apex")})
    assert business.run_once(wider).behind == ()
    business.assert_equal(version, acme=("acme", "apex"))
    assert business.run_once().behind == ()
    business.assert_equal(version)


# ------------------------------------------------------------------------------------------------------------- history


def test_expired_snapshots_seed_a_destination_again_with_a_warning(
    business: Business, caplog: pytest.LogCaptureFixture
) -> None:
    business.run_once()
    business.run_once(business.pipeline(("acme",)))
    stale = business.position("bolt")
    business.source.write("DELETE FROM lake.orders WHERE id IN (1, 11)")
    version = business.source.write("UPDATE lake.orders SET item = 'x' WHERE id IN (2, 12, 22)")
    business.source.write(f"CALL ducklake_expire_snapshots('lake', versions => {list(range(stale + 1))})")
    with caplog.at_level(logging.WARNING):
        assert business.run_once().behind == ()
    business.assert_equal(version)
    loud = [record.getMessage() for record in caplog.records if "history_expired" in record.getMessage()]
    assert {name for name in ALL if any(name in line for line in loud)} == set(ALL)


def test_a_column_that_is_added_with_a_default_seeds_every_destination_again(business: Business) -> None:
    business.run_once()
    business.source.write("ALTER TABLE lake.orders ADD COLUMN note VARCHAR DEFAULT 'none'")
    version = business.source.write("UPDATE lake.orders SET note = 'some' WHERE id IN (1, 11, 21)")
    assert business.run_once().behind == ()
    business.assert_equal(version)


# --------------------------------------------------------------------------------------------------------- out of reach


def test_one_unreachable_destination_at_seed_delays_no_other(business: Business, tmp_path: Path) -> None:
    (tmp_path / "bolt").rename(tmp_path / "away")
    (tmp_path / "bolt").write_text("not a folder")
    version = business.source.write("UPDATE lake.orders SET item = 'x' WHERE id IN (1, 11, 21)")
    with business.running() as running:
        running.wait_for(version, "acme", "cargo")
        business.assert_equal(version, "acme", "cargo")
        wait_until(lambda: (found := running.destination("bolt")) is not None and found.breaker)
        version = business.source.write("UPDATE lake.orders SET item = 'y' WHERE id IN (2, 12, 22)")
        running.wait_for(version, "acme", "cargo")
        found = running.destination("bolt")
        assert found is not None
        assert str(tmp_path / "bolt") in found.error
        (tmp_path / "bolt").unlink()
        (tmp_path / "away").rename(tmp_path / "bolt")
        running.wait_for(version)
    business.assert_equal(version)


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A server that a test may harm."""
    with PostgresServer() as server:
        yield server


def test_one_unreachable_destination_at_run_time_delays_no_other_and_unrouted_rows_are_counted_once(
    spark: SparkSession, own_server: PostgresServer, tmp_path: Path
) -> None:
    business = Business(spark, tmp_path, own_server)
    for place, tenant in enumerate(TENANTS):
        business.source.write(business.source.insert(tenant, 10 * place + 1, 10 * place + 2))
    business.source.write("INSERT INTO lake.orders VALUES (70, 'nowhere', 'x', 70), (71, NULL, 'x', 71)")
    business.run_once()
    with business.running() as running:
        own_server.kill()
        for number in range(3):  # windows that one destination needs again
            touched = "id IN (1, 11, 21)"
            business.source.write(f"UPDATE lake.orders SET item = 'round {number}' WHERE {touched}")
            version = business.source.write(
                f"INSERT INTO lake.orders VALUES ({80 + number}, 'nowhere', 'x', 0), ({90 + number}, NULL, 'x', 0)"
            )
            running.wait_for(version, "acme", "bolt")
        business.assert_equal(version, "acme", "bolt")
        wait_until(lambda: (found := running.destination("cargo")) is not None and found.breaker)
        own_server.restart()
        running.wait_for(version)
    business.assert_equal(version)
    with business.store() as store:
        through, counted = store.unrouted.counts("orders")
    assert (through, counted.values, counted.nulls, counted.others) == (version, {"nowhere": 4}, 4, 0)


# ------------------------------------------------------------------------------------------------------- two deliverers


def test_of_two_deliverers_on_one_destination_the_one_with_the_older_token_is_fenced(
    spark: SparkSession, postgres: PostgresServer, tmp_path: Path
) -> None:
    shop = Pipe(spark, LakeSource(tmp_path), make_sites(tmp_path, postgres, tenants={"acme": ("acme",)}))
    shop.given(shop.table.insert("acme", 1, 2))
    first = shop.table.write("UPDATE lake.orders SET item = 'first' WHERE id = 1")
    second = shop.table.write("UPDATE lake.orders SET item = 'second' WHERE id = 2")
    shop.table.write_trail()
    for path in shop.paths:
        report = shop.flush(path, shop.version, first, token=2)
        assert {result.outcome for result in report.results} == {Outcome.APPLIED}
    before = shop.traces()
    for path in shop.paths:
        for report in (shop.flush(path, first, second, token=1), shop.seed(path, second, names=shop.of(path))):
            assert {(result.outcome, result.token) for result in report.results} == {(Outcome.FENCED, 2)}
    assert shop.traces() == before
    for path in shop.paths:
        shop.flush(path, first, second, token=2)
    shop.version = second
    shop.assert_equal()
    shop.close()


def test_two_deliverers_of_one_store_share_the_destinations_and_the_last_one_takes_all(shared: Business) -> None:
    with shared.running() as stays:
        with shared.running() as leaves:
            wait_until(lambda: sorted((owned(leaves), owned(stays))) == [1, 2])
            version = change(shared, range(5))
            wait_until(lambda: reached(version, stays, leaves))
        version = change(shared, range(5, 7))
        stays.wait_for(version)
        assert owned(stays) == 3
    shared.assert_equal(version)


def test_two_deliverers_that_do_not_know_of_each_other_deliver_everything_once(shared: Business) -> None:
    """Each has a control store of its own. Every write checks position and token in the destination."""
    here, there = (shared.pipeline(store=name) for name in ("here", "there"))
    with shared.running(here) as one, shared.running(there) as other:
        wait_until(lambda: (owned(one), owned(other)) == (3, 3))
        version = change(shared, range(12))
        wait_until(lambda: reached(version, one, other))
    shared.assert_equal(version)


def change(business: Business, numbers: range) -> int:
    """Every tenant has something in every version, and rows move around."""
    for number in numbers:
        tenant = ("bolt", "acme")[number % 2]
        version = business.source.write(
            f"""BEGIN; UPDATE lake.orders SET tenant = '{tenant}', item = 'n{number}' WHERE id = 1;
            UPDATE lake.orders SET item = 'n{number}' WHERE id IN (2, 12, 22);
            INSERT INTO lake.orders VALUES ({200 + number}, 'cargo', 'n', 0); COMMIT"""
        )
    return version


def reached(version: int, *deliverers: Running) -> bool:
    """Whether one of them has brought each destination to a version."""
    seen = [each for running in deliverers for each in running.observer.snapshot().destinations]
    return {each.name for each in seen if each.position == version} == set(ALL)


def owned(running: Running) -> int:
    return sum(each.owned for each in running.observer.snapshot().destinations)
