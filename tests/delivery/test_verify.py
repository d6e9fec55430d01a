"""Destinations are compared with the source as it was at their own position, and every difference is named."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from msgspec.structs import replace
from pyspark.sql import SparkSession

from delivery.direct_delivery import ORDERS, Direct, Lake, delta_target, lake_source
from delivery.task_pipelines import flush_work, member_of
from postgres_server import PostgresServer
from trunkline.delivery.changes.columns import Column, arrow_schema
from trunkline.delivery.changes.rows import OP_COLUMN, Op
from trunkline.delivery.changes.versions import Window
from trunkline.delivery.config.addresses import Address, DeltaAddress, LakeAddress, PostgresAddress
from trunkline.delivery.job.apply import apply_drafts
from trunkline.delivery.job.drafts import MemberDraft, in_memory
from trunkline.delivery.job.work import TaskDestination
from trunkline.delivery.sources.delta import DeltaSource
from trunkline.delivery.verification.comparison import Comparison, comparison_connection
from trunkline.delivery.verification.verify import verify_all, verify_target

TEN = "INSERT INTO lake.orders SELECT i, 'acme', 'item ' || i, i / 4 FROM range(10) t(i)"
EVERY_TYPE = """CREATE TABLE lake.orders (id BIGINT, tenant VARCHAR, b BOOLEAN, i1 TINYINT, i2 SMALLINT, i4 INTEGER,
    u1 UTINYINT, u2 USMALLINT, u4 UINTEGER, u8 UBIGINT, f4 FLOAT, f8 DOUBLE, t VARCHAR, j JSON, u UUID, x BLOB, d DATE,
    tm TIME, ts TIMESTAMP, tss TIMESTAMP_S, tsm TIMESTAMP_MS, tz TIMESTAMPTZ, n DECIMAL(18,3), l INTEGER[],
    lf DOUBLE[])"""
EVERY_VALUE = """INSERT INTO lake.orders
    SELECT i, 'acme', i % 2 = 0, i, -i, i * 1000, i, i, i, 18446744073709551615, CAST('-0.0' AS FLOAT),
    CAST('nan' AS DOUBLE), 'é''"', '{"a": 1}', 'f2d0cd1e-6bb2-4b8b-9c3e-000000000001', '\\x00\\xFF'::BLOB,
    DATE '1969-12-31' + i::INTEGER, TIME '23:59:59.999999',
    TIMESTAMP '1900-01-01 00:00:00.000001', TIMESTAMP '2026-01-01 00:00:01', TIMESTAMP '2026-01-01 00:00:00.001',
    TIMESTAMPTZ '2026-01-01 00:00:00+02', i / 8, [i, NULL], [CAST('-0.0' AS DOUBLE), CAST('nan' AS DOUBLE), NULL]
    FROM range(5) t(i)"""
NULLS = "INSERT INTO lake.orders (id, tenant) VALUES (NULL, 'acme'), (99, 'acme')"


def tampered(direct: Direct, lake: Lake, changes: list[tuple[Op, dict[str, Any]]], name: str = "acme") -> None:
    """Move a destination to a version that has nothing for it, with changes that the source never had."""
    version = lake.run("INSERT INTO lake.orders (id, tenant) VALUES (1, 'another')")
    target = direct.work.targets[direct.work.index[name]]
    member = member_of(direct.work, name)
    work = flush_work(direct.work, Window(member.expected, version))
    (table,) = work.tables
    schema = pa.schema([pa.field(OP_COLUMN, pa.int8()), *arrow_schema(table.columns)])
    rows = pa.Table.from_pylist([{OP_COLUMN: int(op), **row} for op, row in changes], schema)
    draft = MemberDraft(replace(target, duplicates="warn"), member)
    draft.add(table, in_memory(rows), whole=False)
    assert apply_drafts(direct.work, work, [draft])[0].error == ""


# ------------------------------------------------------------------------------------------------------------ mirror


@pytest.fixture(params=["ducklake", "delta", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Address:
    match request.param:
        case "ducklake":
            return LakeAddress(str(tmp_path / "d.ducklake"), "orders", data_path=str(tmp_path / "d"))
        case "delta":
            return DeltaAddress(str(tmp_path / "d"))
    server: PostgresServer = request.getfixturevalue("postgres")
    return PostgresAddress(server.create_database(f"verify{abs(hash(tmp_path))}"), "orders")


def test_a_destination_of_each_kind_with_every_type_is_equal(tmp_path: Path, address: Address) -> None:
    lake = Lake(tmp_path, EVERY_TYPE, EVERY_VALUE, NULLS)
    direct = Direct(lake_source(lake), TaskDestination("acme", address, ("acme",)))
    direct.seed()
    lake.run("UPDATE lake.orders SET i4 = 7 WHERE id = 3", "DELETE FROM lake.orders WHERE id = 1")
    direct.flush()
    verdict = verify_target(direct.work, "acme")
    assert (verdict.outcome, verdict.rows, verdict.source_rows, verdict.note) == ("equal", 6, 6, "")


def test_missing_extra_and_different_keys_are_named_with_their_columns(tmp_path: Path) -> None:
    lake = Lake(tmp_path, ORDERS, TEN)
    direct = Direct(lake_source(lake), delta_target(tmp_path, "acme"))
    direct.seed()
    tampered(
        direct,
        lake,
        [
            (Op.REMOVE, {"id": 3}),
            (Op.INSERT, {"id": 77, "tenant": "acme"}),
            (Op.REPLACE, {"id": 5, "tenant": "acme", "item": "other", "price": 1.25}),
        ],
    )
    verdict = verify_target(direct.work, "acme")
    assert (verdict.outcome, verdict.missing, verdict.extra, verdict.different) == ("differs", 1, 1, 1)
    assert [(each.kind, each.key, each.columns) for each in verdict.differences] == [
        ("missing", {"id": "3"}, ()),
        ("different", {"id": "5"}, ("item",)),
        ("extra", {"id": "77"}, ()),
    ]
    assert len(verify_target(direct.work, "acme", keys_shown=1).differences) == 1


@pytest.mark.parametrize(("value", "outcome"), [(0.0, "differs"), (-0.0, "equal"), (float("nan"), "differs")])
def test_floating_point_numbers_are_compared_by_their_bits(tmp_path: Path, value: float, outcome: str) -> None:
    lake = Lake(tmp_path, ORDERS, "INSERT INTO lake.orders VALUES (1, 'acme', 'a', CAST('-0.0' AS DOUBLE))")
    direct = Direct(lake_source(lake), delta_target(tmp_path, "acme"))
    direct.seed()
    tampered(direct, lake, [(Op.REPLACE, {"id": 1, "tenant": "acme", "item": "a", "price": value})])
    assert verify_target(direct.work, "acme").outcome == outcome


def test_null_and_composite_keys_are_distinguished(tmp_path: Path) -> None:
    lake = Lake(tmp_path, ORDERS, "INSERT INTO lake.orders VALUES (NULL, 'acme', 'a', 1), (NULL, 'acme', NULL, 2)")
    direct = Direct(lake_source(lake), delta_target(tmp_path, "acme"), key=("id", "item"))
    direct.seed()
    assert verify_target(direct.work, "acme").outcome == "equal"
    tampered(direct, lake, [(Op.REMOVE, {"id": None, "item": None})])
    (missing,) = verify_target(direct.work, "acme").differences
    assert (missing.kind, missing.key) == ("missing", {"id": None, "item": None})


def test_it_is_compared_at_its_own_position_while_the_source_moves_on(tmp_path: Path) -> None:
    lake = Lake(tmp_path, ORDERS, TEN)
    direct = Direct(lake_source(lake), delta_target(tmp_path, "acme"), delta_target(tmp_path, "other"))
    direct.seed()
    behind = lake.run("UPDATE lake.orders SET item = 'new'", "INSERT INTO lake.orders VALUES (99, 'other', 'a', 1)") - 2
    verdicts = list(verify_all(direct.work, ["acme", "other"], {"acme": "scan", "other": "scan"}, at_once=2))
    assert [(each.destination, each.outcome, each.position) for each in verdicts] == [
        ("acme", "equal", behind),
        ("other", "equal", behind),
    ]
    direct.flush()
    assert verify_target(direct.work, "other").rows == 1


def test_of_rows_that_share_a_key_the_winner_is_wanted_with_policy_warn(tmp_path: Path) -> None:
    shared = "INSERT INTO lake.orders SELECT i % 5, 'acme', 'item ' || (i * 7 % 11), i FROM range(20) t(i)"
    lake = Lake(tmp_path, ORDERS, shared)
    direct = Direct(lake_source(lake), delta_target(tmp_path, "acme", duplicates="warn"))
    direct.seed()
    verdict = verify_target(direct.work, "acme")
    assert (verdict.outcome, verdict.rows, verdict.source_rows) == ("equal", 5, 5)
    assert "15 rows of the source lost" in verdict.note
    loser = {"id": 2, "tenant": "acme", "item": "item 3", "price": 2.0}
    tampered(direct, lake, [(Op.REPLACE, loser)])
    assert [each.key for each in verify_target(direct.work, "acme").differences] == [{"id": "2"}]


def test_a_mirror_that_began_now_holds_only_what_is_in_the_source(tmp_path: Path) -> None:
    lake = Lake(tmp_path, ORDERS, TEN)
    direct = Direct(lake_source(lake), delta_target(tmp_path, "acme"))
    direct.seed(nothing=True)
    lake.run("UPDATE lake.orders SET item = 'new' WHERE id = 3")
    direct.flush()
    verdict = verify_target(direct.work, "acme", seed="now")
    assert (verdict.outcome, verdict.rows, verdict.missing) == ("kept", 1, 9)
    assert "9 rows of the source are missing: seed: now" in verdict.note
    assert verify_target(direct.work, "acme", seed="scan").outcome == "differs"
    tampered(direct, lake, [(Op.INSERT, {"id": 77, "tenant": "acme"})])
    assert verify_target(direct.work, "acme", seed="now").outcome == "differs"


# ------------------------------------------------------------------------------------------------------------ append


@pytest.fixture
def appending(tmp_path: Path) -> tuple[Lake, Direct]:
    lake = Lake(tmp_path, ORDERS, TEN, "INSERT INTO lake.orders VALUES (1, 'acme', 'twin', 1), (1, 'acme', 'twin', 1)")
    direct = Direct(lake_source(lake), delta_target(tmp_path, "acme", mode="append"), key=())
    direct.seed()
    return lake, direct


def test_an_appended_destination_is_equal_as_long_as_the_source_only_grows(appending: tuple[Lake, Direct]) -> None:
    lake, direct = appending
    lake.run("INSERT INTO lake.orders VALUES (1, 'acme', 'twin', 1)")
    direct.flush()
    assert verify_target(direct.work, "acme").outcome == "equal"
    row = {"id": 1, "tenant": "acme", "item": "twin", "price": 1.0}
    tampered(direct, lake, [(Op.INSERT, row)])
    verdict = verify_target(direct.work, "acme")
    assert (verdict.outcome, verdict.extra) == ("differs", 1)
    assert [(each.kind, each.wanted, each.held) for each in verdict.differences] == [("extra", 3, 4)]
    assert "never changed or removed" in verdict.note


def test_an_appended_destination_keeps_what_the_source_changed_later(appending: tuple[Lake, Direct]) -> None:
    lake, direct = appending
    lake.run("UPDATE lake.orders SET price = -0.5 WHERE id = 4", "DELETE FROM lake.orders WHERE id = 5")
    direct.flush()
    verdict = verify_target(direct.work, "acme")
    assert (verdict.outcome, verdict.missing, verdict.extra) == ("kept", 0, 2)
    assert verdict.note.startswith("2 rows that the source no longer has")


def test_a_row_that_an_appended_destination_lacks_is_named(tmp_path: Path) -> None:
    lake = Lake(tmp_path, ORDERS, TEN)
    direct = Direct(lake_source(lake), delta_target(tmp_path, "acme", mode="append"))
    direct.seed()
    lake.run("DELETE FROM lake.orders WHERE id = 5", "INSERT INTO lake.orders VALUES (50, 'acme', 'lost', 1)")
    tampered(direct, lake, [])
    verdict = verify_target(direct.work, "acme")
    assert (verdict.outcome, verdict.missing, verdict.extra) == ("differs", 1, 1)
    assert {"id": "50"} in [each.key for each in verdict.differences]


def test_with_append_and_seed_now_only_the_counts_are_reported(appending: tuple[Lake, Direct]) -> None:
    lake, direct = appending
    direct.seed(nothing=True)
    lake.run("INSERT INTO lake.orders VALUES (60, 'acme', 'new', 1)")
    direct.flush()
    lake.run("DELETE FROM lake.orders WHERE id = 60")
    direct.flush()
    verdict = verify_target(direct.work, "acme", seed="now")
    assert (verdict.outcome, verdict.missing, verdict.extra) == ("kept", 12, 1)
    assert "nothing is guaranteed" in verdict.note


# ------------------------------------------------------------------------------------------- what cannot be compared


def test_a_destination_that_cannot_be_compared_is_unverified_with_the_reason(tmp_path: Path) -> None:
    lake = Lake(tmp_path, ORDERS, TEN)
    nowhere = PostgresAddress("host=127.0.0.1 port=1 dbname=none connect_timeout=2", "orders")
    direct = Direct(lake_source(lake), delta_target(tmp_path, "acme"), TaskDestination("lost", nowhere, ("lost",)))
    waiting = verify_target(direct.work, "acme")
    assert (waiting.outcome, waiting.note) == ("unverified", "nothing was delivered to it yet; run the pipeline")
    lost = verify_target(direct.work, "lost")
    assert lost.outcome == "unverified"
    assert lost.note


def test_a_version_that_the_source_has_expired_cannot_be_verified(tmp_path: Path) -> None:
    lake = Lake(tmp_path, ORDERS, TEN)
    direct = Direct(lake_source(lake), delta_target(tmp_path, "acme"))
    direct.seed()
    newest = lake.run("UPDATE lake.orders SET item = 'new'")
    lake.run(f"CALL ducklake_expire_snapshots('lake', versions => [{newest - 1}])")
    verdict = verify_target(direct.work, "acme")
    assert verdict.outcome == "unverified"
    assert verdict.note.startswith("cannot be verified: ")
    assert f"no longer has snapshot {newest - 1}" in verdict.note


def test_a_column_that_one_side_lacks_is_a_difference(tmp_path: Path) -> None:
    lake = Lake(tmp_path, ORDERS, TEN)
    direct = Direct(lake_source(lake), delta_target(tmp_path, "acme"))
    direct.seed()
    lake.run("ALTER TABLE lake.orders ADD COLUMN note VARCHAR")
    direct.flush()
    assert verify_target(direct.work, "acme").outcome == "equal"
    write_deltalake(tmp_path / "acme", pa.table({"mine": [1]}), mode="append", schema_mode="merge")
    verdict = verify_target(direct.work, "acme")
    assert verdict.outcome == "differs"


# ---------------------------------------------------------------------------------------------------- other sources


def test_a_lake_with_a_catalog_in_sqlite_is_compared(tmp_path: Path) -> None:
    lake = Lake(tmp_path, ORDERS, TEN, catalog=f"sqlite:{tmp_path}/source.db")
    direct = Direct(lake_source(lake), delta_target(tmp_path, "acme"))
    direct.seed()
    assert verify_target(direct.work, "acme").outcome == "equal"


def test_a_delta_table_as_the_source_is_compared(tmp_path: Path) -> None:
    rows = pa.table({"id": [1, 2], "tenant": ["acme", None], "price": [0.5, None]})
    write_deltalake(tmp_path / "source", rows, configuration={"delta.enableChangeDataFeed": "true"})
    source = DeltaSource(DeltaAddress(str(tmp_path / "source")))
    nulls = delta_target(tmp_path, "nulls", values=(None,))
    direct = Direct(source, delta_target(tmp_path, "acme"), nulls)
    direct.seed()
    write_deltalake(tmp_path / "source", rows.slice(0, 1).set_column(0, "id", [[3]]), mode="append")
    direct.flush()
    verdicts = list(verify_all(direct.work, ["acme", "nulls"], {"acme": "scan", "nulls": "scan"}))
    assert [(each.outcome, each.rows) for each in verdicts] == [("equal", 2), ("equal", 1)]


def test_destinations_are_verified_in_tasks_of_spark(tmp_path: Path, spark: SparkSession) -> None:
    lake = Lake(tmp_path, ORDERS, TEN)
    direct = Direct(lake_source(lake), delta_target(tmp_path, "acme"), delta_target(tmp_path, "other"))
    direct.seed()
    seeds: dict[str, Any] = {"acme": "scan", "other": "scan"}
    verdicts = list(verify_all(direct.work, ["acme", "other"], seeds, context=spark.sparkContext))
    assert [(each.destination, each.outcome, each.rows) for each in verdicts] == [
        ("acme", "equal", 10),
        ("other", "equal", 0),
    ]


# --------------------------------------------------------------------------------------------------- the comparison

COLUMNS = (
    Column("n", "INTEGER"),
    Column("kind", "VARCHAR"),
    Column("held", "DOUBLE"),
)  # names that SQL inside uses too


def filled(connection: duckdb.DuckDBPyConnection, chance: random.Random, key: tuple[str, ...]) -> tuple[Any, ...]:
    """Two random sides in DuckDB, and the same as counters."""
    values = [None, *range(4)], [None, "", "a", "b"], [None, 0.0, 1.0]
    rows = [[tuple(chance.choice(each) for each in values) for _ in range(chance.randrange(12))] for _ in "wh"]
    if key:
        rows = [list({row[0]: row for row in side}.values()) for side in rows]
    both = Comparison(connection, COLUMNS, key)
    for name, side in zip(("wanted", "held"), rows, strict=True):
        batch = pa.RecordBatch.from_pylist(
            [dict(zip(("n", "kind", "held"), row, strict=True)) for row in side], arrow_schema(COLUMNS)
        )
        both.add_batches("wanted" if name == "wanted" else "held", [batch])
    return both, Counter(rows[0]), Counter(rows[1])


@pytest.mark.parametrize("key", [("n",), ()])
def test_the_differences_are_those_of_the_two_multisets(key: tuple[str, ...]) -> None:
    chance = random.Random(4)
    for _ in range(25):
        with comparison_connection() as connection:
            both, wanted, held = filled(connection, chance, key)
            found = both.differences(1000)
        missing, extra = wanted - held, held - wanted
        different = {row[0] for row in missing} & {row[0] for row in extra} if key else set()
        assert found.different == len(different)
        assert found.missing == missing.total() - len(different)
        assert found.extra == extra.total() - len(different)
        named = {tuple(each.key.values()) for each in found.first}
        if key:
            assert named == {(None if row[0] is None else str(row[0]),) for row in (*missing, *extra)}
