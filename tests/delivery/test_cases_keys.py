"""Keys of every type, without a value, composite, and shared by several rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from delivery.pipe import WELL, Pipe, make_sites
from delivery.pipe_sources import LakeSource, Row
from postgres_server import PostgresServer
from trunkline.core.delivery_messages import Outcome
from trunkline.delivery.changes.rows import DuplicatePolicy, Mode
from trunkline.destination_suite.place import content

Shop = Pipe[LakeSource]
ONE: dict[str, tuple[str | None, ...]] = {"acme": ("acme",)}
TWO: dict[str, tuple[str | None, ...]] = {"acme": ("acme",), "bolt": ("bolt",)}
TYPES = {
    "DECIMAL": ("DECIMAL(18,3)", "CAST(n * 1.125 AS DECIMAL(18,3))"),
    "BLOB": ("BLOB", "'\\x00'::BLOB || encode('k' || n) || '\\xFF'::BLOB"),
    "UUID": ("UUID", "CAST('a0000000-0000-0000-0000-' || lpad(CAST(n AS VARCHAR), 12, '0') AS UUID)"),
    "TIMESTAMP": ("TIMESTAMP", "TIMESTAMP '1969-12-31 23:59:59.999999' + to_microseconds(n)"),
    "TIMESTAMPTZ": ("TIMESTAMPTZ", "TIMESTAMPTZ '2026-03-29 01:59:59.999999+01' + to_microseconds(n)"),
    "BOOLEAN": ("BOOLEAN", "CASE n % 3 WHEN 1 THEN true WHEN 2 THEN false END"),
    "VARCHAR": ("VARCHAR", "(['', 'a', 'A', 'a ', 'ä', 'a\u0308', ' a', '1', '01', '1.0', 'NULL'])[n + 1]"),
}


@pytest.fixture
def shop_of(spark: SparkSession, postgres: PostgresServer, tmp_path: Path) -> Iterator[Callable[..., Shop]]:
    """Makes a pipeline whose rows are ``columns`` of a number ``n``, a tenant and a mark, which is ``n`` at first."""
    made: list[Shop] = []

    def make(
        columns: str,
        row: str,
        key: Sequence[str],
        *,
        tenants: dict[str, tuple[str | None, ...]] = ONE,
        duplicates: DuplicatePolicy = "halt",
        mode: Mode = "mirror",
    ) -> Shop:
        table = LakeSource(
            tmp_path,
            columns=f"{columns}, tenant VARCHAR, mark INTEGER",
            row=f"{row}, tenant, CAST(n AS INTEGER) AS mark",
            inlining=3,
        )
        sites = make_sites(tmp_path, postgres, tenants=tenants, duplicates=duplicates, mode=mode)
        made.append(Pipe(spark, table, sites, key=key))
        return made[-1]

    yield make
    for shop in made:
        shop.close()


def marked(*numbers: int) -> str:
    """A condition that finds rows by the number they were made of."""
    return f"mark % 1000 IN ({', '.join(map(str, numbers))})"


# --------------------------------------------------------------------------------------------------------------- types


@pytest.mark.parametrize("name", TYPES)
def test_keys_of_each_type_are_distinguished_and_found_again(shop_of: Callable[..., Shop], name: str) -> None:
    type_name, made = TYPES[name]
    shop = shop_of(f"k {type_name}", f"{made} AS k", ["k"])
    insert = shop.table.insert
    if name == "BOOLEAN":
        shop.given(insert("acme", 1, 2))
        shop.deliver(
            f"UPDATE lake.orders SET mark = 11 WHERE {marked(1)}",
            f"DELETE FROM lake.orders WHERE {marked(2)}",
            insert("acme", 3).replace("n AS INTEGER", "13 AS INTEGER"),  # the key is NULL
        )
        return
    shop.given(insert("acme", *range(1, 9)))
    reports = shop.deliver(
        f"UPDATE lake.orders SET mark = mark + 100 WHERE {marked(1)}",
        f"DELETE FROM lake.orders WHERE {marked(2, 3, 8)}",
        insert("acme", 3, 9),
        f"UPDATE lake.orders SET k = (SELECT {made} FROM (SELECT 10 AS n)) WHERE {marked(4)}",
        f"UPDATE lake.orders SET k = NULL WHERE {marked(5)}",
    )
    for report in reports.values():
        assert {(each.removed, each.written) for each in report.results} == {(6, 5)}


def test_composite_keys_with_null_parts_are_equal_only_where_every_part_is(shop_of: Callable[..., Shop]) -> None:
    shop = shop_of("a BIGINT, b VARCHAR, c DECIMAL(9,2)", "n AS a, NULL AS b, NULL AS c", ["a", "b", "c"])
    shop.given(
        """INSERT INTO lake.orders VALUES (1, 'x', 1.5, 'acme', 1), (1, 'x', NULL, 'acme', 2),
        (1, NULL, 1.5, 'acme', 3), (NULL, 'x', 1.5, 'acme', 4), (NULL, NULL, NULL, 'acme', 5),
        (1, NULL, NULL, 'acme', 6), (1, '', 1.5, 'acme', 7)"""
    )
    shop.deliver(
        f"DELETE FROM lake.orders WHERE {marked(2, 5)}",
        f"UPDATE lake.orders SET mark = 100 + mark WHERE {marked(3, 6)}",
        f"UPDATE lake.orders SET b = NULL WHERE {marked(4)}",
        "INSERT INTO lake.orders VALUES (NULL, NULL, NULL, 'acme', 8)",
    )


def test_5000_composite_deletes_in_one_window(shop_of: Callable[..., Shop]) -> None:
    shop = shop_of("a BIGINT, b VARCHAR", "n AS a, 'b' || n AS b", ["a", "b"])
    shop.given(
        """INSERT INTO lake.orders
        SELECT i // 10, CASE WHEN i % 10 > 0 THEN 'b' || (i % 10) END, 'acme', 1 FROM range(10000) r(i)"""
    )
    reports = shop.deliver("DELETE FROM lake.orders WHERE coalesce(a % 2, 0) = 0 AND mark < 2000")
    for report in reports.values():
        assert {(each.removed, each.written) for each in report.results} == {(5000, 0)}


# ---------------------------------------------------------------------------------------------------- shared keys, halt


def test_duplicate_live_keys_halt_their_destination_and_no_other(shop_of: Callable[..., Shop]) -> None:
    """In one window, by a row that is there already, and in a seed."""
    shop = shop_of("id BIGINT", "n AS id", ["id"], tenants=TWO)
    insert = shop.table.insert
    shop.given(insert("acme", 1), insert("bolt", 1))
    acmes = [name for name in shop.sites if name.startswith("acme")]
    before = {name: shop.sites[name].table.trace() for name in acmes}
    in_window = shop.table.write(insert("acme", 2, 2))
    shop.table.write(f"DELETE FROM lake.orders WHERE {marked(2)}")
    held_before = shop.table.write(insert("acme", 1))
    shop.table.write(insert("bolt", 2))
    shop.table.write_trail()
    for path in shop.paths:
        for after, through in ((shop.version, in_window), (shop.version, held_before)):
            report = shop.flush(path, after, through)
            assert_halted(report.results, "acme")
        report = shop.flush(path, shop.version, held_before + 1)
        assert_halted([each for each in report.results if each.outcome not in WELL], "acme")
        assert {each.destination[:4] for each in report.results if each.outcome in WELL} == {"bolt"}
        report = shop.seed(path, held_before + 1, names=shop.of(path))
        assert_halted([each for each in report.results if each.outcome not in WELL], "acme")
    assert {name: shop.sites[name].table.trace() for name in acmes} == before
    shop.assert_equal(names=acmes)
    shop.assert_equal(held_before + 1, names=[name for name in shop.sites if name not in acmes])


def assert_halted(results: Sequence[object], tenant: str) -> None:
    """One permanent failure for each kind, with a message that names the destination and what to do."""
    from trunkline.core.delivery_messages import Result

    assert len(results) == 3
    for result in results:
        assert isinstance(result, Result)
        assert result.outcome is Outcome.PERMANENT
        assert result.error.startswith(f"{result.destination}: ")
        assert result.destination.startswith(tenant)
        assert "key" in result.error


# ---------------------------------------------------------------------------------------------------- shared keys, warn


def winners(rows: Sequence[Row], key: str) -> list[Row]:
    """Of the rows that share a key the one that sorts last, column by column, NULL after all else."""
    order = [tuple((value is None, value) for value in row.values()) for row in rows]
    found: dict[object, Row] = {}
    for _, row in sorted(zip(order, rows, strict=True), key=lambda pair: pair[0]):
        found[row[key]] = row
    return list(found.values())


def assert_winners(shop: Shop, version: int) -> None:
    wanted = winners(shop.table.rows(version), "id")
    for site in shop.sites.values():
        assert content(site.table.held()) == content(wanted), site.name


def test_duplicate_live_keys_with_policy_warn_keep_one_row_and_are_counted(shop_of: Callable[..., Shop]) -> None:
    shop = shop_of("id BIGINT, item VARCHAR", "n AS id, 'item' AS item", ["id"], duplicates="warn")
    shop.given("INSERT INTO lake.orders VALUES (1, 'first', 'acme', 1), (2, 'alone', 'acme', 2)")
    windows = [
        ("INSERT INTO lake.orders VALUES (1, 'another', 'acme', 1)", 1),  # the key is held; the old row sorts last
        ("INSERT INTO lake.orders VALUES (3, 'b', 'acme', 3), (3, NULL, 'acme', 3), (3, 'c', 'acme', 3)", 2),
        ("DELETE FROM lake.orders WHERE item = 'first'", 0),  # the other one remains
        ("DELETE FROM lake.orders WHERE id = 3 AND item IS NULL", 1),
        ("UPDATE lake.orders SET id = 2 WHERE item = 'b'", 1),
    ]
    for statement, duplicates in windows:
        through = shop.table.write(statement)
        shop.table.write_trail()
        for path in shop.paths:
            report = shop.flush(path, shop.version, through)
            assert {(each.outcome, report.path) for each in report.results} == {(Outcome.APPLIED, path)}
            assert {each.duplicates for each in report.results} == {duplicates}, statement
        assert_winners(shop, through)
        shop.version = through
        shop.catch_up(shop.table.write_boundary())
    for path in shop.paths:
        assert {each.outcome for each in shop.seed(path, shop.version, names=shop.of(path)).results} == {
            Outcome.APPLIED
        }
    assert_winners(shop, shop.version)


def test_of_two_rows_with_a_null_key_one_is_deleted_and_the_other_stays(shop_of: Callable[..., Shop]) -> None:
    shop = shop_of("id BIGINT, item VARCHAR", "n AS id, 'item' AS item", ["id"], duplicates="warn")
    shop.given("INSERT INTO lake.orders VALUES (NULL, 'one', 'acme', 1), (NULL, 'two', 'acme', 2), (7, 'x', 'acme', 7)")
    assert_winners(shop, shop.version)
    for item in ("two", "one"):
        through = shop.table.write(f"DELETE FROM lake.orders WHERE item = '{item}'")
        shop.table.write_trail()
        for path in shop.paths:
            shop.flush(path, shop.version, through)
        assert_winners(shop, through)
        shop.version = through
        shop.catch_up(shop.table.write_boundary())


# -------------------------------------------------------------------------------------------------------------- append


def test_append_delivers_each_arrival_once_and_removes_nothing(shop_of: Callable[..., Shop]) -> None:
    shop = shop_of("id BIGINT", "n AS id", [], mode="append")
    shop.given(shop.table.insert("acme", 1, 2, 2))
    wanted = shop.table.rows(shop.version)
    through = shop.table.write(
        f"BEGIN; {shop.table.insert('acme', 3, 3)}; DELETE FROM lake.orders WHERE id = 1; "
        "UPDATE lake.orders SET mark = 9 WHERE id = 3; COMMIT"
    )
    shop.table.write(shop.table.insert("acme", 4))
    through = shop.table.write("DELETE FROM lake.orders WHERE id = 4")
    shop.table.write_trail()
    wanted += [{"id": 3, "tenant": "acme", "mark": 9}] * 2
    for path in shop.paths:
        for _ in range(2):  # the second time it is done already
            report = shop.flush(path, shop.version, through)
            assert {each.outcome for each in report.results} <= set(WELL)
    for site in shop.sites.values():
        assert content(site.table.held()) == content(wanted), site.name
