"""What only a DuckLake destination has: kinds of catalogs, tables that share a lake, files, maintenance by others."""

from __future__ import annotations

import datetime
import math
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pandas as pd
import psycopg
import pyarrow as pa
import pytest
from msgspec.structs import replace

from contract.ducklake_destination import LakeKind, LakeSite, WatchedCatalogs, unwatched
from delivery.cut_proxy import CutProxy
from postgres_server import PostgresServer
from trunkline.delivery.backends.duckdb_pool import pooled_duckdb
from trunkline.delivery.backends.sql import identifier, literal
from trunkline.delivery.changes.columns import WIDER, Column
from trunkline.delivery.changes.rows import Op
from trunkline.delivery.config.addresses import LakeAddress
from trunkline.delivery.destinations import ducklake_attachments
from trunkline.delivery.destinations.contract import Applied, Standing
from trunkline.delivery.destinations.ducklake import DuckLakePlace
from trunkline.delivery.destinations.ducklake_attachments import AttachedLakes, process_lakes
from trunkline.delivery.destinations.ducklake_compaction import FILES_MIN, worth_merging
from trunkline.delivery.destinations.ducklake_kept_files import KEPT
from trunkline.delivery.destinations.ducklake_upkeep import COMPACT_EVERY
from trunkline.destination_suite.place import Change, OneTable, Plan, Row, Table, content, plain, staged
from trunkline.destination_suite.processes import apply, run_until, worker
from trunkline.destination_suite.steps import CHANGES, FLUSH, FLUSHED, ORDERS, SEED, SEEDED, steps
from trunkline.errors import ConfigError, DestinationHalted, OutcomeUnknown, Unreachable

# DuckLake gives them the statistics of the newest version for older ones too: after a rewrite values come out wrong.
MISLED: Final = "compressed_materialization,statistics_propagation"
KEYED: Final = (Column("id", "BIGINT"), Column("v", "BIGINT"))


def no_server() -> PostgresServer:
    raise AssertionError("this test needs no server")


@pytest.fixture
def site(tmp_path: Path) -> LakeSite:
    return LakeKind("sqlite").make(tmp_path, no_server)


@pytest.fixture
def table(site: LakeSite) -> Table:
    return Table(site)


def address(table: Table) -> LakeAddress:
    found = table.site.address(table.name)
    assert isinstance(found, LakeAddress)
    return found


@dataclass(frozen=True)
class OneAddress(LakeSite):
    at: LakeAddress | None = None

    def address(self, name: str) -> LakeAddress:
        assert self.at is not None
        return self.at


def opened(where: LakeAddress, lakes: AttachedLakes | None = None) -> OneTable:
    """The table of one member, at an address."""
    site = OneAddress(where.catalog, where.data_path or "", where.schema, at=where)
    return OneTable(Table(site), DuckLakePlace(where, lakes))


def ask(table: Table, *statements: str) -> list[tuple[Any, ...]]:
    """Statements of another writer; the lake is attached as ``l``, the table is ``{t}``."""
    with pooled_duckdb("ducklake", "sqlite_scanner", "postgres_scanner") as connection:
        connection.execute(f"ATTACH {literal('ducklake:' + address(table).catalog)} AS l")
        connection.execute(f"SET disabled_optimizers = {literal(MISLED)}")
        for statement in statements:
            rows = connection.execute(statement.format(t=f"l.main.{identifier(address(table).table)}")).fetchall()
        connection.execute("RESET disabled_optimizers")
        connection.execute("DETACH l")
        return rows


def random_flushes(seed_number: int, count: int) -> Iterator[tuple[Plan, list[Change], dict[int, Row]]]:
    """Flushes of a table that was seeded empty at version 1, and what the table holds after each."""
    draw = random.Random(seed_number)
    model: dict[int, Row] = {}
    for version in range(1, count + 1):
        changes: list[Change] = []
        for key in draw.sample(range(60), draw.choice((1, 4, 30))):
            row = {"id": key, "v": version}
            if key not in model:
                changes.append((Op.INSERT, row))
            elif draw.random() < 0.6:
                changes.append((Op.REPLACE, row))
            else:
                changes.append((Op.REMOVE, row))
            model[key] = row
            if changes[-1][0] is Op.REMOVE:
                del model[key]
        yield replace(FLUSH, expected=version, through=version + 1, columns=KEYED), changes, dict(model)


# ------------------------------------------------------------------------------------------------------------- the lake


def test_a_catalog_in_a_duckdb_file_is_free_for_others_after_each_call(tmp_path: Path) -> None:
    table = Table(LakeKind("duckdb").make(tmp_path, no_server))
    destination = table.open()
    with worker(table) as other:  # which is another process
        apply(destination, (SEED, SEEDED))
        other.send((FLUSH, CHANGES))
        assert other.recv() == Applied(20, removed=2, written=2)
        assert destination.flush(FLUSH, staged(ORDERS, ("id",), CHANGES)) == Applied(20, already=True)
        other.send((replace(FLUSH, expected=20, through=21), []))
        assert other.recv() == Applied(21)


def test_a_catalog_in_a_duckdb_file_that_another_process_has_open_is_unreachable(tmp_path: Path) -> None:
    table = Table(LakeKind("duckdb").make(tmp_path, no_server))
    destination = table.open()
    apply(destination, (SEED, SEEDED))
    with pooled_duckdb("ducklake") as connection:
        connection.execute(f"ATTACH {literal('ducklake:' + address(table).catalog)} AS l")
        with pytest.raises(Unreachable, match="cannot be reached"):
            destination.standing()
        connection.execute("DETACH l")
    assert destination.standing() is not None


def test_a_seed_creates_a_lake_and_a_read_does_not(tmp_path: Path) -> None:
    where = LakeAddress(f"sqlite:{tmp_path}/new/catalog.sqlite", "t", "tenants", data_path=f"{tmp_path}/data")
    destination = opened(where)
    assert destination.standing() is None
    assert destination.columns() is None
    destination.retire()
    with pytest.raises(DestinationHalted, match="no lake"):
        destination.rows()
    assert list(tmp_path.iterdir()) == []
    assert destination.seed(SEED, plain(ORDERS, SEEDED)) == Applied(10, written=3)
    assert [tuple(batch.schema.names) for batch in destination.rows()[1]] == [("id", "tenant", "amount")]
    destination.close()


def test_a_file_that_is_not_a_catalog_halts_the_destination(tmp_path: Path) -> None:
    junk = tmp_path / "junk"
    junk.write_bytes(b"not a database" * 1000)
    for catalog in (f"{junk}", f"sqlite:{junk}"):
        with pytest.raises(DestinationHalted, match="junk"):
            opened(LakeAddress(catalog, "t")).standing()


def test_another_data_path_than_the_lake_has_halts_the_destination(table: Table) -> None:
    apply(table.open(), (SEED, SEEDED))
    elsewhere = replace(address(table), data_path=f"{address(table).data_path}-elsewhere")
    with pytest.raises(DestinationHalted, match="data path"):
        opened(elsewhere).standing()


def test_a_table_whose_name_is_reserved_is_refused() -> None:
    for name in ("_trunkline_orders", "_Trunkline"):
        with pytest.raises(ConfigError, match="reserved"):
            opened(LakeAddress("lake", name)).seed(SEED, plain(ORDERS, SEEDED))


def test_tables_of_one_lake_have_positions_of_their_own(table: Table) -> None:
    other = Table(table.site, "others", "shop/others")
    apply(table.open(), (SEED, SEEDED))
    apply(other.open(), (replace(SEED, through=5, token=9), []))
    apply(table.open(), (FLUSH, CHANGES))
    standings = [each.open().standing() for each in (table, other)]
    assert [(each.position, each.token) for each in standings if each] == [(20, 1), (5, 9)]
    assert content(table.held()) == content(FLUSHED)


def test_flushes_of_two_tables_of_one_lake_do_not_keep_each_other_from_committing(postgres: PostgresServer) -> None:
    kind = LakeKind("postgres")
    tables = [Table(kind.make(Path(), lambda: postgres)) for _ in range(2)]
    for table in tables:
        apply(table.open(), (SEED, SEEDED))
    with worker(tables[0]) as one, worker(tables[1]) as two:
        for number in range(10):
            flush = replace(FLUSH, expected=10 + number, through=11 + number)
            for each in (one, two):
                each.send((flush, [(Op.REPLACE, {"id": 1, "tenant": "acme", "amount": number})]))
            for each in (one, two):
                assert each.recv() == Applied(11 + number, removed=1, written=1)


def test_columns_of_two_tables_of_one_lake_change_at_the_same_time(postgres: PostgresServer) -> None:
    kind = LakeKind("postgres")
    tables = [Table(kind.make(Path(), lambda: postgres)) for _ in range(2)]
    for each in tables:
        destination = each.open()
        apply(destination, (SEED, SEEDED))
        destination.close()
    with worker(tables[0]) as one, worker(tables[1]) as two:
        held = ORDERS
        for number in range(4):
            added, name = Column(f"n{number}", "INTEGER"), Column(f"amount {number}", "INTEGER")
            kept: dict[Column, str | None] = {column: column.name for column in held if column is not held[2]}
            moved = steps(
                held, {held[0]: "id", held[1]: "tenant", name: held[2].name, **kept, added: None}, {added.name: 5}
            )
            flush = replace(FLUSH, expected=10 + number, through=11 + number, columns=moved.after, steps=moved)
            one.send((flush, []))
            two.send((flush, []))
            assert [one.recv().position, two.recv().position] == [11 + number] * 2
            held = moved.after
    expected = [
        {"id": row["id"], "tenant": "acme", "amount 3": row["amount"], **{f"n{number}": 5 for number in range(4)}}
        for row in SEEDED
    ]
    assert [content(each.held()) for each in tables] == [content(expected)] * 2


def test_idle_catalogs_are_detached_when_there_are_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ducklake_attachments.ATTACHED_MAX, "sqlite", 2)
    catalogs = WatchedCatalogs(None)
    lakes = [
        opened(LakeAddress(f"sqlite:{tmp_path}/{n}.sqlite", "t", data_path=f"{tmp_path}/{n}"), catalogs)
        for n in range(4)
    ]
    for round_number in range(2):
        for lake in lakes:
            apply(lake, (replace(SEED, expected=10 * round_number, through=10 + round_number), SEEDED))
            assert len(catalogs._attached) <= 2
    catalogs.close()


def test_a_process_that_grew_gets_a_new_instance_between_two_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ducklake_attachments, "GROWTH_MB_MAX", -1)
    monkeypatch.setattr(ducklake_attachments, "SESSIONS_MIN", 3)
    catalogs = AttachedLakes()
    destination = opened(LakeAddress(f"sqlite:{tmp_path}/c.sqlite", "t", data_path=f"{tmp_path}/data"), catalogs)
    destination.seed(SEED, plain(ORDERS, SEEDED))
    instances = []
    for _ in range(4):
        instances.append(catalogs._instance)
        _, batches = destination.rows()
        assert destination.standing() == Standing(10, 1, SEED.source)  # while another session is open
        assert sum(batch.num_rows for batch in batches) == 3
    assert instances[0] is not instances[-1]
    assert destination.flush(FLUSH, staged(ORDERS, ("id",), CHANGES)) == Applied(20, removed=2, written=2)
    catalogs.close()


def test_destinations_of_one_process_can_be_used_by_many_threads(tmp_path: Path) -> None:
    kinds = [LakeKind("sqlite"), LakeKind("duckdb"), LakeKind("sqlite"), LakeKind("duckdb")]
    tables = [Table(kind.make(tmp_path / str(n), no_server)) for n, kind in enumerate(kinds)]
    assert process_lakes() is process_lakes()
    catalogs = AttachedLakes()
    counts: list[int] = []

    def deliver(where: LakeAddress) -> None:
        destination = opened(where, catalogs)
        destination.seed(SEED, plain(ORDERS, SEEDED))
        for number in range(4):
            changes: list[Change] = [(Op.INSERT, {"id": 100 + number})]
            flush = replace(FLUSH, expected=10 + number, through=11 + number)
            destination.flush(flush, staged(ORDERS, ("id",), changes))
        counts.append(sum(batch.num_rows for batch in destination.rows()[1]))

    threads = [threading.Thread(target=deliver, args=(address(table),)) for table in tables]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    catalogs.close()
    assert counts == [7] * 4


# -------------------------------------------------------------------------------------------------- PostgreSQL catalogs


def test_a_password_is_taken_from_the_environment_and_never_shown(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS guarded")
        connection.execute("DROP ROLE IF EXISTS deliverer")
        connection.execute("CREATE ROLE deliverer LOGIN PASSWORD 'it''s \\ secret'")
        connection.execute("CREATE DATABASE guarded OWNER deliverer")
    catalog = f"postgres:{postgres.dsn('guarded', user='deliverer')}"
    where = LakeAddress(catalog, "t", data_path=str(tmp_path), password_env="LAKE_PASSWORD")
    with pytest.raises(ConfigError, match="LAKE_PASSWORD"):
        opened(where, unwatched()).standing()
    monkeypatch.setenv("LAKE_PASSWORD", "wr'ong")
    with pytest.raises(DestinationHalted, match="password authentication failed") as refused:
        opened(where, unwatched()).standing()
    assert "wr" not in str(refused.value)
    monkeypatch.setenv("LAKE_PASSWORD", "it's \\ secret")
    destination = opened(where, unwatched())
    assert destination.standing() is None
    assert destination.seed(SEED, plain(ORDERS, SEEDED)).written == 3


def test_a_database_that_does_not_exist_halts_the_destination(postgres: PostgresServer) -> None:
    with pytest.raises(DestinationHalted, match="nowhere"):
        opened(LakeAddress(f"postgres:{postgres.dsn('nowhere')}", "t"), unwatched()).standing()


def test_a_server_that_dies_and_comes_back_is_used_again(tmp_path: Path, table: Table) -> None:
    with PostgresServer() as server:
        server.create_database("lake")
        where = LakeAddress(f"postgres:{server.dsn('lake')}", "t", data_path=str(tmp_path / "files"))
        dying = False

        def watch(statement: str) -> None:
            if dying and statement == "COMMIT":
                server.kill()

        catalogs = WatchedCatalogs(watch)
        destination = opened(where, catalogs)
        another = opened(address(table), catalogs)
        destination.seed(SEED, plain(ORDERS, SEEDED))
        dying = True
        with pytest.raises(OutcomeUnknown, match="position is read again"):
            destination.flush(FLUSH, staged(ORDERS, ("id",), CHANGES))
        with pytest.raises(Unreachable):
            destination.standing()
        dying = False
        assert another.standing() is None  # a lake of the same process
        another.seed(SEED, plain(ORDERS, SEEDED))
        server.restart()
        assert destination.flush(FLUSH, staged(ORDERS, ("id",), CHANGES)).position == 20
        _, batches = destination.rows()
        assert content(row for batch in batches for row in batch.to_pylist()) == content(FLUSHED)
        catalogs.close()


def test_files_of_a_commit_whose_answer_was_lost_are_there_again(postgres: PostgresServer, tmp_path: Path) -> None:
    """DuckLake removes them: it takes such a commit for failed."""
    postgres.create_database("cut")
    with CutProxy(postgres.port) as proxy:
        catalog = f"postgres:host=127.0.0.1 port={proxy.port} dbname=cut user=postgres"
        cuts = False

        def watch(statement: str) -> None:
            nonlocal cuts
            if cuts and statement == "COMMIT":
                proxy.armed, cuts = True, False

        catalogs = WatchedCatalogs(watch)
        destination = opened(LakeAddress(catalog, "t", data_path=str(tmp_path / "files")), catalogs)
        destination.seed(SEED, plain(ORDERS, SEEDED))
        kept = tmp_path / "files" / KEPT
        assert not list(kept.rglob("*.kept"))
        cuts = True
        with pytest.raises(OutcomeUnknown, match="position is read again"):
            destination.flush(FLUSH, staged(ORDERS, ("id",), CHANGES))
        assert proxy.cuts == 1
        found = destination.standing()
        assert found is not None
        assert found.position == 20
        assert content(row for batch in destination.rows()[1] for row in batch.to_pylist()) == content(FLUSHED)
        assert not list(kept.rglob("*.kept"))
        assert destination.flush(FLUSH, staged(ORDERS, ("id",), CHANGES)) == Applied(20, already=True)
        catalogs.close()


def test_a_seed_that_others_come_before_is_tried_again_with_the_same_rows(postgres: PostgresServer) -> None:
    table = Table(LakeKind("postgres").make(Path(), lambda: postgres))
    others = iter(range(3))

    def watch(statement: str) -> None:
        if statement == "COMMIT" and (number := next(others, None)) is not None:
            ask(table, f"CREATE TABLE l.other{number} (x INTEGER)")

    rows = iter(plain(ORDERS, SEEDED))  # a stream, which can be read once
    assert table.open(watch).seed(SEED, lambda: rows).written == 3
    assert next(others, None) is None
    assert content(table.held() or ()) == content(SEEDED)


# --------------------------------------------------------------------------------------------------- files and versions


@pytest.mark.parametrize("inlined", [0, 10], ids=["files", "inlined"])
def test_every_version_of_the_table_is_right_whatever_maintenance_others_do(table: Table, inlined: int) -> None:
    """Also where the owner of the lake wants small changes kept in the catalog."""
    destination = table.open()
    destination.seed(replace(SEED, through=1, columns=KEYED), iter(()))
    ask(table, f"CALL l.set_option('data_inlining_row_limit', {inlined})")
    versions: dict[int, dict[int, Row]] = {}
    for flush, changes, model in random_flushes(inlined, 20):
        assert destination.flush(flush, staged(KEYED, ("id",), changes)).missing == 0
        [(newest,)] = ask(table, "SELECT max(snapshot_id) FROM l.snapshots()")
        versions[newest] = model
        if flush.expected % 5 == 0:
            ask(
                table,
                "CALL ducklake_flush_inlined_data('l')",
                "CALL ducklake_rewrite_data_files('l', delete_threshold => 0)",
                "CALL ducklake_merge_adjacent_files('l')",
            )
    for version, model in versions.items():
        rows = ask(table, f"SELECT id, v FROM {{t}} AT (VERSION => {version}) ORDER BY id")
        assert rows == [(key, model[key]["v"]) for key in sorted(model)], version
    ask(
        table,
        "CALL ducklake_expire_snapshots('l', older_than => now())",
        "CALL ducklake_cleanup_old_files('l', cleanup_all => true)",
    )
    assert content(table.held()) == content(model.values())
    assert destination.flush(replace(flush, expected=21, through=22), iter(())) == Applied(22)


def test_files_stay_few_however_many_flushes_there_are(table: Table) -> None:
    destination = table.open()
    destination.seed(replace(SEED, through=1, columns=KEYED), plain(KEYED, []))
    for flush, changes, model in random_flushes(3, 3 * COMPACT_EVERY):  # noqa: B007
        destination.flush(flush, staged(KEYED, ("id",), changes))
    [(files,)] = ask(table, f"SELECT count(*) FROM ducklake_list_files('l', {literal(address(table).table)})")
    assert files <= COMPACT_EVERY + FILES_MIN
    assert content(table.held()) == content(model.values())
    assert destination.flush(replace(flush, expected=flush.through, through=100), iter(())) == Applied(100)


def test_files_are_merged_from_the_smallest_up_while_the_next_is_not_bigger_than_the_sum() -> None:
    assert worth_merging([1] * (FILES_MIN - 1)) == 0
    assert worth_merging([1] * FILES_MIN) == FILES_MIN
    assert worth_merging([1] * FILES_MIN + [FILES_MIN, 2 * FILES_MIN, 100]) == FILES_MIN + 2
    assert worth_merging([1] * FILES_MIN + [FILES_MIN + 1]) == FILES_MIN
    assert worth_merging([2**30] * FILES_MIN) == 0


def test_files_of_a_process_that_was_killed_can_be_removed(table: Table) -> None:
    destination = table.open()
    place = destination.place
    assert isinstance(place, DuckLakePlace)
    apply(destination, (SEED, SEEDED))
    assert place.clean_orphans(0) == 0
    for at in range(80):  # one of these moments is after the rows were written and before they were committed
        if run_until(table, (FLUSH, CHANGES), at):
            break
    assert place.clean_orphans() == 0  # they are young: a flush may be under way
    assert place.clean_orphans(0) > 0
    assert place.clean_orphans(0) == 0
    assert content(table.held()) == content(FLUSHED)


# -------------------------------------------------------------------------------------------------------------- columns


def test_every_widening_is_followed_and_keeps_values(table: Table) -> None:
    pairs = [(old, new) for old, all_new in WIDER.items() for new in all_new]
    pairs += [("DECIMAL(4,2)", "DECIMAL(10,2)"), ("DECIMAL(10,2)", "DECIMAL(38,3)")]
    old = (Column("id", "BIGINT"), *(Column(f"c{n}", pair[0]) for n, pair in enumerate(pairs)))
    new = (Column("id", "BIGINT"), *(Column(f"c{n}", pair[1]) for n, pair in enumerate(pairs)))
    values = {c.name: Decimal("1.25") if "DEC" in c.type else 0.5 if c.type == "FLOAT" else 7 for c in old[1:]}
    destination = table.open()
    destination.seed(replace(SEED, columns=old), plain(old, [{"id": 1, **values}]))
    flush = replace(FLUSH, columns=new)
    assert destination.flush(flush, staged(new, ("id",), [(Op.INSERT, {"id": 2, **values})])) == Applied(20, written=1)
    assert destination.columns() == new
    [one, two] = pa.Table.from_batches(destination.rows()[1]).to_pylist()
    assert {**one, "id": 0} == {**two, "id": 0} == {**values, "id": 0}


def test_a_column_may_have_any_name(table: Table) -> None:
    columns = (
        Column("id", "BIGINT"),
        Column("at", "BIGINT"),
        Column('a "b" %s {}', "VARCHAR"),
        Column("rowid", "BIGINT"),
    )
    rows: list[Row] = [{"id": 1, "at": 2, 'a "b" %s {}': "x", "rowid": 77}]
    destination = table.open()
    destination.seed(replace(SEED, columns=columns), plain(columns, rows))
    changes: list[Change] = [(Op.REPLACE, {**rows[0], "at": 3}), (Op.INSERT, {**rows[0], "id": 2, "rowid": None})]
    flush = replace(FLUSH, columns=columns)
    assert destination.flush(flush, staged(columns, ("id",), changes)) == Applied(20, removed=1, written=2)
    assert content(table.held()) == content(row for _, row in changes)


@pytest.mark.parametrize("catalog", ["duckdb", "sqlite", "postgres"])
def test_values_that_only_lakes_hold_come_back(catalog: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    table = Table(LakeKind(catalog).make(tmp_path, lambda: request.getfixturevalue("postgres")))
    moment = datetime.datetime(2026, 11, 15, 1, 2, 3)  # noqa: DTZ001
    types = {
        "VARCHAR": "a\0b",
        "TIME": datetime.time(23, 59, 59, 999_999),
        "TIMESTAMP_S": moment,
        "TIMESTAMP_MS": moment.replace(microsecond=4000),
        "TIMESTAMP_NS": pd.Timestamp("2026-11-15 01:02:03.000000004"),
        "UUID[]": ["00000000-0000-0000-0000-00000000004d", None],
        "INTEGER[][]": [[1], [], None],
        "DOUBLE": math.inf,
        "FLOAT": -0.0,
        "DECIMAL(38,10)": Decimal("-1.5000000000"),
    }
    columns = tuple(Column(f"c{n}", name) for n, name in enumerate(types))
    row: Row = {f"c{n}": value for n, value in enumerate(types.values())}
    destination = table.open()
    destination.seed(replace(SEED, columns=columns, key=("c0",)), plain(columns, [row, {**row, "c0": "a"}]))
    flush = replace(FLUSH, columns=columns, key=("c0",))
    changes: list[Change] = [(Op.REPLACE, row), (Op.INSERT, {**row, "c0": "a\0"})]
    assert destination.flush(flush, staged(columns, ("c0",), changes)) == Applied(20, removed=1, written=2)
    assert destination.columns() == columns
    read = pa.Table.from_batches(destination.rows()[1]).to_pylist()
    assert content(read) == content({**row, "c0": text} for text in ("a\0b", "a", "a\0"))


def test_a_million_rows_are_seeded_and_read_back_batch_by_batch(table: Table) -> None:
    size, count = 50_000, 20

    def batches() -> Iterator[pa.RecordBatch]:
        for n in range(count):
            ids = pa.array(range(n * size, (n + 1) * size), pa.int64())
            yield pa.record_batch({"id": ids, "v": ids})

    destination = table.open()
    assert destination.seed(replace(SEED, columns=KEYED), batches()) == Applied(10, written=size * count)
    _, read = destination.rows()
    rows = 0
    for batch in read:
        assert batch.num_rows <= 200_000
        rows += batch.num_rows
    assert rows == size * count
