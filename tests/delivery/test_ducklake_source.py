"""A DuckLake table as a source, case by case; every window has a version behind it. The fuzz does the rest."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from lake_fuzz.shapes import VALUES, value
from lake_fuzz.truth import plain_rows
from postgres_server import PostgresServer
from trunkline.delivery.backends.duckdb_pool import new_duckdb, pooled_duckdb
from trunkline.delivery.backends.ducklake_attachment import attach_lake
from trunkline.delivery.changes.rows import ROUTE_COLUMN, NetChanges
from trunkline.delivery.changes.versions import BEFORE_ALL, Window
from trunkline.delivery.config.addresses import LakeAddress
from trunkline.delivery.sources.contract import ALL_ROUTES, ReadRequest, RouteFilter
from trunkline.delivery.sources.ducklake import DuckLakeSource
from trunkline.delivery.sources.ducklake_catalog import LakeCatalog
from trunkline.errors import ConfigError, ProtocolError, SourceExpired, Unreachable

FLUSH = "CALL ducklake_flush_inlined_data('lake')"
REWRITE = "CALL ducklake_rewrite_data_files('lake', delete_threshold => 0.01)"
MERGE = "CALL ducklake_merge_adjacent_files('lake')"
FILE_ROWS = 20  # more than are inlined


class Lake:
    """A lake with a table ``items``. It is closed between statements."""

    def __init__(self, folder: Path, catalog: str | None = None, inlining: int = 10) -> None:
        self.address = LakeAddress(catalog or str(folder / "lake.db"), "items", data_path=str(folder / "data"))
        self.run(f"CALL lake.set_option('data_inlining_row_limit', {inlining})")

    def run(self, *statements: str) -> int:
        """The newest version after some statements."""
        with self.opened() as connection:
            for statement in statements:
                connection.execute(statement)
            ((newest,),) = connection.execute("SELECT max(snapshot_id) FROM lake.snapshots()").fetchall()
        return int(newest)

    def at(self, version: int, columns: str = "*") -> list[tuple[Any, ...]]:
        with self.opened() as connection:
            query = f"SELECT tenant::VARCHAR, {columns} FROM lake.items AT (VERSION => {version})"
            return plain_rows(connection.sql(query).to_arrow_table())

    @contextmanager
    def opened(self) -> Iterator[duckdb.DuckDBPyConnection]:
        with pooled_duckdb("ducklake", "sqlite_scanner", "postgres_scanner") as connection:
            attach_lake(connection, self.address, "lake", read_only=False)
            yield connection
            connection.execute("DETACH lake")

    @property
    def source(self) -> DuckLakeSource:
        return DuckLakeSource(self.address)

    def asked(self, version: int, *key: str) -> ReadRequest:
        columns = self.source.columns(version)
        return ReadRequest(columns, key or tuple(column.name for column in columns), "tenant")

    def net(self, after: int, through: int, routes: RouteFilter = ALL_ROUTES) -> NetChanges:
        return self.source.net_changes(Window(after, through), self.asked(through), routes)

    def signed(self, after: int, through: int) -> dict[tuple[Any, ...], int]:
        net = self.net(after, through)
        return signed(plain_rows(net.arrived), plain_rows(net.removed))


def signed(more: list[tuple[Any, ...]], fewer: list[tuple[Any, ...]]) -> dict[tuple[Any, ...], int]:
    found = Counter(more)
    found.subtract(fewer)
    return {row: count for row, count in found.items() if count}


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = Lake(tmp_path)
    made.run("CREATE TABLE lake.items (id BIGINT, tenant VARCHAR, note VARCHAR)")
    return made


def inserted(first: int, count: int = 1, note: str = "x") -> str:
    return f"INSERT INTO lake.items SELECT i, 't' || i % 3, '{note}' FROM range({first}, {first + count}) r(i)"


# --- windows ---


def test_a_window_begins_after_its_first_version_and_ends_with_its_last(lake: Lake) -> None:
    first = lake.run(inserted(1))
    second = lake.run(inserted(2, FILE_ROWS))
    third = lake.run("DELETE FROM lake.items WHERE id IN (1, 5)")
    lake.run(inserted(100), inserted(200, FILE_ROWS))
    assert lake.net(first, second).arrived.num_rows == FILE_ROWS
    assert lake.net(first, second).removed.num_rows == 0
    assert plain_rows(lake.net(second, third).removed) == [("t2", 5, "t2", "x"), ("t1", 1, "t1", "x")]
    assert lake.net(second, third).arrived.num_rows == 0
    assert lake.signed(first, third) == signed(lake.at(third), lake.at(first))


def test_only_the_requested_columns_are_read(lake: Lake) -> None:
    first = lake.run(inserted(1, FILE_ROWS))
    second = lake.run("UPDATE lake.items SET note = 'y' WHERE id < 3")
    net = lake.source.net_changes(Window(first, second), lake.asked(second, "id"), ALL_ROUTES)
    assert net.removed.column_names == [ROUTE_COLUMN, "id"]
    assert net.arrived.column_names == [ROUTE_COLUMN, "id", "tenant", "note"]


def test_shares_of_a_window_are_disjoint_and_complete(lake: Lake) -> None:
    first = lake.run(inserted(1, FILE_ROWS), "UPDATE lake.items SET tenant = NULL WHERE id = 7")
    second = lake.run("DELETE FROM lake.items WHERE id % 2 = 0", inserted(100), inserted(200, FILE_ROWS))
    shares = [RouteFilter(("t0", None)), RouteFilter(("t1",)), RouteFilter((), ("t0", "t1", None))]
    parts = [lake.net(first, second, share) for share in shares]
    whole = lake.net(first, second)
    assert Counter(row for part in parts for row in plain_rows(part.arrived)) == Counter(plain_rows(whole.arrived))
    assert Counter(row for part in parts for row in plain_rows(part.removed)) == Counter(plain_rows(whole.removed))
    routes = [set(part.arrived.column(ROUTE_COLUMN).to_pylist()) for part in parts]
    assert routes == [{"t0"}, {"t1"}, {"t2"}]


def test_everything_before_the_first_version_is_nothing(lake: Lake) -> None:
    version = lake.run(inserted(1, FILE_ROWS), inserted(100), "DELETE FROM lake.items WHERE id = 3")
    lake.run(inserted(200))
    assert lake.signed(BEFORE_ALL, version) == signed(lake.at(version), [])


def test_a_version_that_only_reorganises_files_holds_nothing(lake: Lake) -> None:
    lake.run(inserted(1, FILE_ROWS), inserted(50, FILE_ROWS), "DELETE FROM lake.items WHERE id = 3", inserted(100))
    before = lake.run(inserted(101))
    for statement in (FLUSH, REWRITE, MERGE):
        after = lake.run(statement)
        assert after == before + 1
        net = lake.net(before, after)
        assert (net.removed.num_rows, net.arrived.num_rows) == (0, 0)
        before = after
    assert lake.source.survey(Window(before - 2, before)).backlog.quiet


def test_windows_stop_around_a_rewrite_and_are_right_across_it(lake: Lake) -> None:
    first = lake.run(inserted(1, FILE_ROWS))
    second = lake.run("DELETE FROM lake.items WHERE id = 3")
    rewritten = lake.run(FLUSH, REWRITE)
    last = lake.run(inserted(100), "UPDATE lake.items SET note = 'y' WHERE id = 4")
    assert lake.source.state(second).stops == (rewritten - 1, rewritten)
    assert lake.source.state(rewritten).stops == ()
    net = lake.net(first, last)
    assert lake.source.plan(Window(first, last)).moved
    assert sorted(plain_rows(net.removed)) == [("t0", 3, "t0", "x"), ("t1", 4, "t1", "x")]
    assert sorted(plain_rows(net.arrived)) == [("t1", 4, "t1", "y"), ("t1", 100, "t1", "x")]


# --- regressions that the fuzz found ---


def test_deletes_that_were_flushed_with_their_rows_keep_their_own_versions(lake: Lake) -> None:
    first = lake.run(inserted(1, 5))
    second = lake.run("DELETE FROM lake.items WHERE id = 2")
    third = lake.run("DELETE FROM lake.items WHERE id = 4")
    lake.run(FLUSH, inserted(100))
    assert lake.signed(first, second) == {("t2", 2, "t2", "x"): -1}
    assert lake.signed(second, third) == {("t1", 4, "t1", "x"): -1}
    assert lake.signed(BEFORE_ALL, second) == {(f"t{i % 3}", i, f"t{i % 3}", "x"): 1 for i in (1, 3, 4, 5)}


def test_deletes_that_were_flushed_after_their_file_was_rewritten_count_beside_older_ones(lake: Lake) -> None:
    lake.run(inserted(1, 5), "DELETE FROM lake.items WHERE id = 1", FLUSH)
    first = lake.run(inserted(100))
    second = lake.run("DELETE FROM lake.items WHERE id = 2")
    lake.run(REWRITE, FLUSH, inserted(101))
    assert ("t1", 1, "t1", "x") in lake.at(second), "DuckLake reads its older versions right now: say so in the source"
    assert lake.signed(first, second) == {("t2", 2, "t2", "x"): -1}
    assert ("t1", 1, "t1", "x") not in lake.signed(BEFORE_ALL, second)


def test_inlining_may_be_switched_on_when_the_table_is_there_already(tmp_path: Path) -> None:
    lake = Lake(tmp_path, inlining=0)
    first = lake.run("CREATE TABLE lake.items (id BIGINT, tenant VARCHAR, note VARCHAR)", inserted(1))
    second = lake.run("CALL lake.set_option('data_inlining_row_limit', 10)", inserted(2))
    lake.run("ALTER TABLE lake.items RENAME note TO remark", "INSERT INTO lake.items VALUES (3, 'a', 'b')")
    assert lake.signed(first, second) == {("t2", 2, "t2", "x"): 1}


def test_a_transaction_that_deletes_and_flushes_is_refused_because_it_changes_older_versions(lake: Lake) -> None:
    first = lake.run(inserted(1, 3))
    second = lake.run("BEGIN", "DELETE FROM lake.items WHERE id = 2", FLUSH, "COMMIT")
    third = lake.run(inserted(9))
    assert len(lake.at(first)) == 2, "DuckLake keeps its history now: read such a version as any other"
    with pytest.raises(SourceExpired, match=f"snapshot {second} .* seed the destination again"):
        lake.net(first, second)
    assert lake.signed(second, third) == {("t0", 9, "t0", "x"): 1}


# --- expired versions ---


def test_a_window_whose_end_was_expired_is_refused_and_the_others_are_right(lake: Lake) -> None:
    versions = [lake.run(inserted(number, FILE_ROWS)) for number in (0, 100, 200)]
    versions.append(lake.run("DELETE FROM lake.items WHERE id % 2 = 0"))
    rewritten = lake.run(REWRITE)
    last = lake.run(inserted(300), inserted(400, FILE_ROWS))
    kept = {version: lake.at(version) for version in (versions[1], last)}
    gone = ", ".join(map(str, [versions[0], versions[2], versions[3], rewritten]))
    lake.run(f"CALL ducklake_expire_snapshots('lake', versions => [{gone}])")
    lake.run("CALL ducklake_cleanup_old_files('lake', cleanup_all => true)")
    for window in (Window(versions[0], last), Window(versions[1], rewritten)):
        with pytest.raises(SourceExpired, match="no longer has snapshot"):
            lake.source.plan(window)
    assert lake.signed(versions[1], last) == signed(kept[last], kept[versions[1]])
    net = lake.net(versions[1], last)
    assert not Counter(plain_rows(net.removed)) & Counter(plain_rows(net.arrived)), "rows that were moved count as new"
    assert lake.source.state(versions[1]).stops == ()


# --- columns ---


def test_rows_have_the_columns_of_the_end_of_the_window(lake: Lake) -> None:
    first = lake.run(inserted(1), inserted(20, FILE_ROWS))
    second = lake.run(
        "ALTER TABLE lake.items RENAME note TO remark",
        "ALTER TABLE lake.items ADD COLUMN note INTEGER DEFAULT 7",
        inserted(2, note="5").replace("'5'", "'r', 5"),
        "ALTER TABLE lake.items ADD COLUMN price DECIMAL(4,1)",
        "INSERT INTO lake.items VALUES (3, 't0', 'r', 6, 1.5)",
        "ALTER TABLE lake.items ALTER price SET DATA TYPE DECIMAL(10,3)",
        "DELETE FROM lake.items WHERE id IN (1, 21)",
    )
    lake.run("ALTER TABLE lake.items DROP COLUMN remark")
    net = lake.net(first, second)
    assert [column.name for column in lake.source.columns(second)] == ["id", "tenant", "remark", "note", "price"]
    assert Counter(plain_rows(net.removed)) == Counter([("t1", 1, "t1", "x", 7, None), ("t0", 21, "t0", "x", 7, None)])
    assert lake.signed(BEFORE_ALL, second) == signed(lake.at(second), [])


def test_a_key_column_may_become_wider(lake: Lake) -> None:
    lake.run("DROP TABLE lake.items", "CREATE TABLE lake.items (id INTEGER, tenant VARCHAR, note VARCHAR)")
    first = lake.run(inserted(1), inserted(20, FILE_ROWS))
    second = lake.run(
        "ALTER TABLE lake.items ALTER id SET DATA TYPE BIGINT", f"INSERT INTO lake.items VALUES ({2**40}, 'a', 'b')"
    )
    lake.run(inserted(99))
    assert lake.signed(first, second) == {("a", 2**40, "a", "b"): 1}
    assert lake.signed(BEFORE_ALL, second) == signed(lake.at(second), [])


@pytest.mark.parametrize("kind", ["duckdb", "sqlite", "postgres"])
def test_values_of_every_type_are_read_from_files_and_from_every_kind_of_catalog(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    lake = Lake(tmp_path, catalog_of(kind, tmp_path, request))
    columns = ", ".join(f"x{place} {name}" for place, name in enumerate(VALUES))
    values = ", ".join(value(name, "i") for name in VALUES)
    lake.run(f"CREATE TABLE lake.items (id BIGINT, tenant VARCHAR, {columns})")
    rows = "INSERT INTO lake.items SELECT i, 't', {} FROM range({}, {}) r(i)"
    first = lake.run(rows.format(values, 1, 9))
    second = lake.run(rows.format(values, 1000, 1000 + FILE_ROWS), "DELETE FROM lake.items WHERE id IN (3, 1003)")
    lake.run(FLUSH, rows.format(values, 9, 12))
    assert lake.signed(BEFORE_ALL, first) == signed(lake.at(first), [])
    assert lake.signed(first, second) == signed(lake.at(second), lake.at(first))
    assert lake.signed(BEFORE_ALL, second + 2) == signed(lake.at(second + 2), [])


def catalog_of(kind: str, folder: Path, request: pytest.FixtureRequest) -> str | None:
    if kind == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres")
        return f"postgres:{server.create_database(f'source_{folder.name}'.lower())}"
    return f"sqlite:{folder}/catalog.sqlite" if kind == "sqlite" else None


# --- names and places ---


def test_names_may_hold_anything(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    columns = '"filename" BIGINT, tenant VARCHAR, "file_row_number" INTEGER, "_snapshot" INTEGER, "c""1, x" VARCHAR'
    lake.run(
        'CREATE SCHEMA lake."s, ""1"',
        f'CREATE TABLE lake."s, ""1"."a table, rewrite_delete:1" ({columns})',
        f'CREATE TABLE lake."s, ""1"."another, rewrite_delete:2" ({columns})',
    )
    table = 'lake."s, ""1"."a table, rewrite_delete:1"'
    first = lake.run(f"INSERT INTO {table} SELECT i, 'a', i, i, 'x' FROM range({FILE_ROWS}) r(i)")
    second = lake.run(f"DELETE FROM {table} WHERE filename = 3", f"INSERT INTO {table} VALUES (99, 'a', 1, 2, 'y')")
    lake.run(f"INSERT INTO {table} VALUES (100, 'a', 1, 2, 'y')")
    lake.address = LakeAddress(
        lake.address.catalog, "a table, rewrite_delete:1", 's, "1', data_path=lake.address.data_path
    )
    assert lake.signed(first, second) == {("a", 3, "a", 3, 3, "x"): -1, ("a", 99, "a", 1, 2, "y"): 1}


def test_files_may_be_moved_elsewhere(lake: Lake, tmp_path: Path) -> None:
    version = lake.run(inserted(1, FILE_ROWS), "DELETE FROM lake.items WHERE id = 3")
    wanted = lake.at(version)
    shutil.move(tmp_path / "data", tmp_path / "it's [else]where*")
    lake.address = LakeAddress(lake.address.catalog, "items", data_path=str(tmp_path / "it's [else]where*"))
    assert lake.signed(BEFORE_ALL, version) == signed(wanted, [])


def test_a_data_path_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lake = Lake(Path("."))
    lake.run("CREATE TABLE lake.items (id BIGINT, tenant VARCHAR, note VARCHAR)")
    version = lake.run(inserted(1, FILE_ROWS))
    lake.address = LakeAddress("lake.db", "items")
    assert lake.signed(BEFORE_ALL, version) == signed(lake.at(version), [])


# --- looking up and scanning ---


def test_live_finds_the_rows_of_keys_and_null_equals_null(lake: Lake) -> None:
    version = lake.run(
        inserted(1, FILE_ROWS),
        "INSERT INTO lake.items VALUES (NULL, 't0', 'n1'), (NULL, NULL, 'n2'), (1, 't1', 'twice')",
        "DELETE FROM lake.items WHERE id = 2",
    )
    lake.run("DELETE FROM lake.items")
    keys = pa.table({ROUTE_COLUMN: ["t1", "t2", None, "t2"], "id": pa.array([1, 2, None, 1], pa.int64())})
    found = lake.source.live(version, lake.asked(version, "id"), keys)
    assert Counter(plain_rows(found)) == Counter(
        [("t1", 1, "t1", "x"), ("t1", 1, "t1", "twice"), (None, None, None, "n2")]
    )


def test_a_scan_gives_all_rows_or_those_of_some_routing_values(lake: Lake) -> None:
    version = lake.run(inserted(1, FILE_ROWS), "INSERT INTO lake.items VALUES (0, NULL, 'n')")
    lake.run("DELETE FROM lake.items")
    asked = lake.asked(version)
    for routes in (ALL_ROUTES, RouteFilter(("t1", None)), RouteFilter(("t2",))):
        found = [row for batch in lake.source.scan(version, asked, routes) for row in plain_rows(pa.table(batch))]
        wanted = [row for row in lake.at(version) if routes == ALL_ROUTES or row[0] in routes.values]
        assert Counter(found) == Counter(wanted)


def test_the_lake_can_be_written_while_files_are_read(lake: Lake) -> None:
    version = lake.run(inserted(1, FILE_ROWS))
    scan = lake.source.scan(version, lake.asked(version), ALL_ROUTES)
    next(scan)
    lake.run(inserted(100))  # a catalog in a DuckDB file is open once, or this fails
    assert list(scan) == []


def test_threads_of_a_process_read_at_the_same_time(lake: Lake) -> None:
    first = lake.run(inserted(1, FILE_ROWS))
    second = lake.run("DELETE FROM lake.items WHERE id % 2 = 0")
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: lake.signed(first, second), range(12)))
    assert all(each == found[0] for each in found)


# --- what cannot be read ---


def test_a_table_that_is_missing_is_named(lake: Lake) -> None:
    lake.address = LakeAddress(lake.address.catalog, "itens")
    with pytest.raises(ConfigError, match=r"has no table main\.itens"):
        lake.source.state(0)


def test_a_catalog_of_another_format_is_refused(lake: Lake) -> None:
    with duckdb.connect(lake.address.catalog) as connection:
        connection.execute("UPDATE ducklake_metadata SET value = '9.0' WHERE key = 'version'")
    with pytest.raises(ProtocolError, match=r"DuckLake format 9\.0, and this release reads 1\.0"):
        lake.source.state(0)


def test_a_catalog_that_is_not_there_is_unreachable(tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match="nowhere"):
        DuckLakeSource(LakeAddress(str(tmp_path / "nowhere"), "items")).state(0)


def test_a_catalog_that_another_process_writes_is_unreachable_for_now(lake: Lake) -> None:
    program = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('open', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", program, lake.address.catalog]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "open\n"
        with pytest.raises(Unreachable, match="cannot be opened"):
            lake.source.state(0)
        writer.communicate()
    assert lake.source.state(0).version == 1


def test_a_server_that_ends_under_a_reader_makes_the_source_unreachable(tmp_path: Path) -> None:
    with PostgresServer() as server:
        lake = Lake(tmp_path, f"postgres:{server.create_database('lake')}")
        with pytest.raises(Unreachable, match="cannot be read now"), lake.source.catalog() as (_, catalog):
            state_without(server, catalog)
        with pytest.raises(Unreachable, match="cannot be opened"):
            lake.source.state(0)
        server.restart()
        version = lake.run("CREATE TABLE lake.items (id BIGINT)")
        assert lake.source.state(0).version == version


def state_without(server: PostgresServer, catalog: LakeCatalog) -> None:
    server.kill()
    catalog.state(0)


def test_a_missing_file_makes_the_source_unreachable(lake: Lake, tmp_path: Path) -> None:
    first = lake.run(inserted(1))
    second = lake.run(inserted(10, FILE_ROWS))
    for file in tmp_path.glob("data/**/*.parquet"):
        file.unlink()
    with pytest.raises(Unreachable, match=r"cannot be read now.*\.parquet"):
        lake.net(first, second)
    assert lake.net(BEFORE_ALL, first).arrived.num_rows == 1


def test_a_lake_that_is_encrypted_is_refused(tmp_path: Path) -> None:
    address = LakeAddress(str(tmp_path / "catalog"), "items")
    with new_duckdb("ducklake") as connection:
        connection.execute("SET force_mbedtls_unsafe = 'true'")
        connection.execute(f"ATTACH 'ducklake:{address.catalog}' AS lake (DATA_PATH '{tmp_path}/data', ENCRYPTED)")
        connection.execute("CREATE TABLE lake.items (id BIGINT, tenant VARCHAR)")
        connection.execute(f"INSERT INTO lake.items SELECT i, 'a' FROM range({FILE_ROWS}) r(i)")
    with pytest.raises(ConfigError, match="encrypted"):
        DuckLakeSource(address).plan(Window(BEFORE_ALL, 2))


def test_files_from_outside_are_refused(lake: Lake, tmp_path: Path) -> None:
    with duckdb.connect() as connection:
        connection.execute(f"COPY (SELECT 1::BIGINT AS id, 'a' AS tenant, 'b' AS note) TO '{tmp_path}/out.parquet'")
    version = lake.run(f"CALL ducklake_add_data_files('lake', 'items', '{tmp_path}/out.parquet')")
    with pytest.raises(ConfigError, match="ducklake_add_data_files"):
        lake.source.plan(Window(BEFORE_ALL, version))


# --- how much waits ---


def test_a_survey_estimates_the_backlog(lake: Lake) -> None:
    first = lake.run(inserted(1))
    second = lake.run(inserted(10, FILE_ROWS), "DELETE FROM lake.items WHERE id IN (11, 12)", inserted(99))
    lake.run("CREATE TABLE lake.other (x INTEGER)")
    third = lake.run("INSERT INTO lake.other VALUES (1)")
    survey = lake.source.survey(Window(first, second))
    assert survey.backlog.rows == FILE_ROWS + 2 + 1
    assert survey.backlog.size_bytes > 0
    assert not survey.backlog.quiet
    assert survey.identity == lake.source.state(0).identity
    assert lake.source.survey(Window(second, third)).backlog.quiet
