"""What can happen to rows in one window, each case by its name: for every kind of destination and both read paths.

Each window has a deleted row right before it, and changes of every row behind it (see ``pipe_sources``).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from delivery.pipe import Pipe, make_sites
from delivery.pipe_sources import LakeSource, Row
from postgres_server import PostgresServer
from trunkline.core.delivery_messages import Outcome

TENANTS: dict[str, tuple[str | None, ...]] = {"acme": ("acme",), "bolt": ("bolt", "brass")}
Shop = Pipe[LakeSource]


@pytest.fixture(scope="module", params=[0, 10], ids=["in files, duckdb catalog", "inlined, sqlite catalog"])
def shop(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    postgres: PostgresServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Shop]:
    """One pipeline for all cases: each of them uses rows of its own."""
    folder = tmp_path_factory.mktemp("shop")
    catalog = f"sqlite:{folder / 'source.sqlite'}" if request.param else ""
    if request.param:  # how the source holds its rows matters to no destination; see test_read_paths for the large path
        sites = make_sites(folder, postgres, tenants=TENANTS, kinds=["ducklake"], paths=["small"])
    else:
        sites = make_sites(folder, postgres, tenants=TENANTS)
    pipe = Pipe(spark, LakeSource(folder, catalog=catalog, inlining=request.param), sites)
    yield pipe
    pipe.close()


def items(shop: Shop, tenant: str) -> dict[int, str]:
    """What one destination holds; all are equal to the source, and so to each other."""
    held = shop.sites[f"{tenant}-ducklake-small"].table.held()
    assert held is not None
    return {row["id"]: row["item"] for row in held}


# ------------------------------------------------------------------------------------------------------------ one row


def test_insert_updates_and_delete_in_one_window_leave_nothing_and_write_nothing(shop: Shop) -> None:
    reports = shop.deliver(
        "INSERT INTO lake.orders VALUES (10, 'acme', 'new', 1), (11, 'bolt', 'new', 1)",
        "UPDATE lake.orders SET item = 'once' WHERE id = 10",
        "UPDATE lake.orders SET item = 'twice' WHERE id IN (10, 11)",
        "DELETE FROM lake.orders WHERE id IN (10, 11)",
    )
    assert {report.results for report in reports.values()} == {()}


def test_several_updates_of_a_new_key_leave_the_last_one(shop: Shop) -> None:
    shop.deliver(
        "INSERT INTO lake.orders VALUES (20, 'acme', 'new', 1)",
        "UPDATE lake.orders SET item = 'once' WHERE id = 20",
        "UPDATE lake.orders SET item = 'twice' WHERE id = 20",
        "UPDATE lake.orders SET item = 'thrice' WHERE id = 20",
    )
    assert items(shop, "acme")[20] == "thrice"


def test_delete_and_reinsert_of_a_key_leave_the_new_row(shop: Shop) -> None:
    shop.given("INSERT INTO lake.orders VALUES (30, 'acme', 'old', 1), (31, 'acme', 'old', 1)")
    reports = shop.deliver(
        "DELETE FROM lake.orders WHERE id = 30",
        "INSERT INTO lake.orders VALUES (30, 'acme', 'new', 1)",
        "DELETE FROM lake.orders WHERE id = 31",
        "INSERT INTO lake.orders VALUES (31, 'acme', 'gone again', 1)",
        "DELETE FROM lake.orders WHERE id = 31",
    )
    assert items(shop, "acme").get(30) == "new"
    assert 31 not in items(shop, "acme")
    assert {(each.removed, each.written) for report in reports.values() for each in report.results} == {(2, 1)}


def test_a_reused_row_id_is_not_taken_for_the_same_row(shop: Shop) -> None:
    """In files, a transaction that changes its own new row leaves a row id that the next such one uses again."""

    def made(key: int, item: str) -> str:
        inserted = f"INSERT INTO lake.orders VALUES ({key}, 'acme', 'new', 1)"
        return f"BEGIN; {inserted}; UPDATE lake.orders SET item = '{item}' WHERE id = {key}; COMMIT"

    def row_id(item: str) -> list[Row]:
        return shop.table.ask(f"SELECT rowid FROM lake.orders AT (VERSION => {shop.version}) WHERE item = '{item}'")

    shop.given(made(40, "first"), made(41, "beside it"))
    before = row_id("first")
    assert shop.table.inlining or before == row_id("beside it"), "the case is not what it says"
    shop.deliver("DELETE FROM lake.orders WHERE id = 40", made(40, "second"), made(42, "third"))
    assert shop.table.inlining or before == row_id("second"), "the case is not what it says"
    assert {key: items(shop, "acme").get(key) for key in (40, 41, 42)} == {40: "second", 41: "beside it", 42: "third"}


def test_orphaned_preimage_an_update_without_its_new_row_removes_the_old_one(shop: Shop) -> None:
    shop.given("INSERT INTO lake.orders VALUES (50, 'acme', 'old', 1), (51, 'acme', 'old', 1)")
    shop.deliver(
        "UPDATE lake.orders SET item = 'new' WHERE id = 50",
        "DELETE FROM lake.orders WHERE id = 50",
        "BEGIN; UPDATE lake.orders SET item = 'new' WHERE id = 51; DELETE FROM lake.orders WHERE id = 51; COMMIT",
    )
    assert not {50, 51} & items(shop, "acme").keys()


# ---------------------------------------------------------------------------------------------------------------- keys


def test_an_updated_key_column_removes_the_old_key(shop: Shop) -> None:
    shop.given("INSERT INTO lake.orders VALUES (60, 'acme', 'sixty', 1), (61, 'acme', 'sixty-one', 1)")
    shop.deliver(
        "UPDATE lake.orders SET id = 62 WHERE id = 60",
        "UPDATE lake.orders SET id = 63 WHERE id = 62",
        "UPDATE lake.orders SET id = 60, item = 'in its place' WHERE id = 61",
    )
    held = items(shop, "acme")
    assert (held.get(60), held.get(61), held.get(62), held.get(63)) == ("in its place", None, None, "sixty")


def test_two_keys_that_are_swapped_change_places(shop: Shop) -> None:
    shop.given("INSERT INTO lake.orders VALUES (70, 'acme', 'seventy', 1), (71, 'acme', 'seventy-one', 1)")
    shop.deliver("UPDATE lake.orders SET id = 141 - id WHERE id IN (70, 71)")
    assert (items(shop, "acme")[70], items(shop, "acme")[71]) == ("seventy-one", "seventy")


# ------------------------------------------------------------------------------------------------------------- tenants


def test_update_then_move_to_a_configured_tenant_and_back(shop: Shop) -> None:
    shop.given("INSERT INTO lake.orders VALUES (80, 'acme', 'old', 1), (81, 'acme', 'old', 1), (82, 'acme', 'old', 1)")
    shop.given("UPDATE lake.orders SET tenant = 'bolt' WHERE id = 82")
    shop.deliver(
        "UPDATE lake.orders SET item = 'new' WHERE id = 80",
        "UPDATE lake.orders SET tenant = 'bolt' WHERE id = 80",
        "UPDATE lake.orders SET tenant = 'bolt' WHERE id = 81",
        "UPDATE lake.orders SET tenant = 'acme', item = 'was away' WHERE id = 81",
        "UPDATE lake.orders SET tenant = 'acme', item = 'back' WHERE id = 82",
    )
    assert {key: items(shop, "acme").get(key) for key in (80, 81, 82)} == {80: None, 81: "was away", 82: "back"}
    assert {key: items(shop, "bolt").get(key) for key in (80, 81, 82)} == {80: "new", 81: None, 82: None}


def test_update_then_move_to_a_tenant_that_is_not_configured_and_back(shop: Shop) -> None:
    shop.given("INSERT INTO lake.orders VALUES (90, 'acme', 'old', 1), (91, 'acme', 'old', 1), (92, 'acme', 'old', 1)")
    shop.given("UPDATE lake.orders SET tenant = 'nowhere' WHERE id = 92")
    reports = shop.deliver(
        "UPDATE lake.orders SET item = 'new' WHERE id = 90",
        "UPDATE lake.orders SET tenant = 'nowhere' WHERE id = 90",
        "UPDATE lake.orders SET tenant = 'nowhere' WHERE id = 91",
        "UPDATE lake.orders SET tenant = 'acme', item = 'was away' WHERE id = 91",
        "UPDATE lake.orders SET tenant = 'acme', item = 'back' WHERE id = 92",
    )
    assert [report.unrouted for report in reports.values()] == [{"nowhere": 1}] * len(reports)
    assert {key: items(shop, "acme").get(key) for key in (90, 91, 92)} == {90: None, 91: "was away", 92: "back"}


def test_a_row_that_moves_between_two_values_of_one_destination_stays_there(shop: Shop) -> None:
    shop.given("INSERT INTO lake.orders VALUES (100, 'bolt', 'old', 1)")
    reports = shop.deliver("UPDATE lake.orders SET tenant = 'brass', item = 'new' WHERE id = 100")
    assert items(shop, "bolt")[100] == "new"
    assert {(each.removed, each.written) for report in reports.values() for each in report.results} == {(1, 1)}


def test_unrouted_and_null_routing_values_are_counted_exactly(shop: Shop) -> None:
    reports = shop.deliver(
        "INSERT INTO lake.orders SELECT 1000 + i, 'nowhere', 'x', 1 FROM range(7) r(i)",
        "INSERT INTO lake.orders SELECT 1010 + i, NULL, 'x', 1 FROM range(5) r(i)",
        "INSERT INTO lake.orders VALUES (1020, 'Acme', 'x', 1), (1021, '', 'x', 1), (1022, 'acme', 'x', 1)",
        "DELETE FROM lake.orders WHERE id IN (1000, 1010)",
        "UPDATE lake.orders SET item = 'y' WHERE id IN (1001, 1011)",
    )
    wanted = {"nowhere": 6, None: 4, "Acme": 1, "": 1}
    assert [report.unrouted for report in reports.values()] == [wanted] * len(reports)


# -------------------------------------------------------------------------------------------------------- transactions


def test_several_operations_in_one_source_transaction_leave_what_they_leave(shop: Shop) -> None:
    shop.given("INSERT INTO lake.orders SELECT 200 + i, 'acme', 'old', 1 FROM range(6) r(i)")
    merge = (
        "MERGE INTO lake.orders t USING (SELECT unnest([204, 210]) AS id) s ON t.id = s.id WHEN MATCHED THEN "
        "UPDATE SET item = t.item || ' merged' WHEN NOT MATCHED THEN INSERT VALUES (s.id, 'acme', 'merged', 1)"
    )
    shop.deliver(
        f"""BEGIN;
        UPDATE lake.orders SET item = 'a' WHERE id = 200;
        UPDATE lake.orders SET item = 'b', tenant = 'bolt' WHERE id = 200;
        DELETE FROM lake.orders WHERE id = 201;
        INSERT INTO lake.orders VALUES (201, 'acme', 'again', 1), (206, 'bolt', 'new', 1);
        UPDATE lake.orders SET id = 207 WHERE id = 206;
        INSERT INTO lake.orders VALUES (208, 'acme', 'never', 1);
        DELETE FROM lake.orders WHERE id IN (202, 208);
        UPDATE lake.orders SET id = 202, item = 'on a free key' WHERE id = 203;
        {merge};
        {merge};
        COMMIT"""
    )
    held = {key: item for key, item in items(shop, "acme").items() if 200 <= key < 220}
    wanted = {201: "again", 202: "on a free key", 204: "old merged merged", 205: "old", 210: "merged merged"}
    assert held == wanted
    assert {key: items(shop, "bolt").get(key) for key in (200, 206, 207)} == {200: "b", 206: None, 207: "new"}


def test_boundary_deletes_belong_to_the_window_that_ends_with_them(shop: Shop) -> None:
    shop.given("INSERT INTO lake.orders VALUES (300, 'acme', 'x', 1), (301, 'bolt', 'x', 1), (302, 'acme', 'x', 1)")
    reports = shop.deliver(
        "DELETE FROM lake.orders WHERE id = 300",
        "UPDATE lake.orders SET item = 'y' WHERE id = 302",
        "DELETE FROM lake.orders WHERE id IN (301, 302)",
    )
    assert not {300, 302} & items(shop, "acme").keys()
    for report in reports.values():
        assert {each.removed for each in report.results} == {1, 2}


def test_deleting_every_row_leaves_empty_tables(shop: Shop) -> None:
    shop.given("INSERT INTO lake.orders VALUES (400, 'acme', 'x', 1), (401, 'bolt', 'x', 1)")
    shop.deliver("DELETE FROM lake.orders", "INSERT INTO lake.orders VALUES (400, 'acme', 'only one', 1)")
    assert (items(shop, "acme"), items(shop, "bolt")) == ({400: "only one"}, {})


# ---------------------------------------------------------------------------------------------------- nothing to write


def test_empty_window_is_written_nowhere(shop: Shop) -> None:
    """Neither a version that does not touch the table, nor one with unrouted rows only, nor one that undoes itself."""
    shop.catch_up(shop.table.write_boundary())
    after, before = shop.version, shop.traces()
    shop.table.write("CREATE TABLE IF NOT EXISTS lake.other (x INTEGER)")
    elsewhere = shop.table.write("INSERT INTO lake.other VALUES (1)")
    nobodys = shop.table.write("INSERT INTO lake.orders VALUES (500, 'nowhere', 'x', 1)")
    shop.table.write("INSERT INTO lake.orders VALUES (501, 'acme', 'x', 1)")
    undone = shop.table.write("DELETE FROM lake.orders WHERE id = 501")
    shop.table.write_trail()
    for path in shop.paths:
        for through, unrouted, read in (
            (elsewhere, {}, None),
            (nobodys, {"nowhere": 1}, path),
            (undone, {"nowhere": 1}, path),
        ):
            report = shop.flush(path, after, through)
            assert (report.results, report.rest) == ((), Outcome.EMPTY)
            assert (report.unrouted, report.path) == (unrouted, read)
    assert shop.traces() == before
    shop.version = undone


def test_a_destination_untouched_for_many_windows_is_written_once_when_something_comes(shop: Shop) -> None:
    shop.given("INSERT INTO lake.orders VALUES (600, 'bolt', 'before', 1)")
    bolts = [name for name in shop.sites if name.startswith("bolt")]
    (stored,) = {shop.positions[name] for name in bolts}
    before = {name: shop.sites[name].table.trace() for name in bolts}
    for number in range(6):
        shop.catch_up(shop.table.write(f"INSERT INTO lake.orders VALUES ({610 + number}, 'acme', 'x', 1)"))
    assert {name: shop.sites[name].table.trace() for name in bolts} == before
    assert {shop.positions[name] for name in bolts} == {stored}
    through = shop.table.write("UPDATE lake.orders SET item = 'after' WHERE id = 600")
    shop.table.write_trail()
    for path in shop.paths:
        shop.flush(path, shop.version, through)
    shop.version = through
    assert {shop.positions[name] for name in bolts} == {through}
    shop.assert_equal()
