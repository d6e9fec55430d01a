"""The direct writer of lakes: what it leaves to the extension, lost races and answers, bounds, and limits of memory."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace

from contract.ducklake_destination import LakeKind, LakeSite, unwatched
from delivery.cut_proxy import CutProxy
from postgres_server import PostgresServer
from trunkline.delivery.backends.duckdb_pool import pooled_duckdb
from trunkline.delivery.backends.ducklake_attachment import attach_lake, detach
from trunkline.delivery.backends.sql import identifier
from trunkline.delivery.changes.columns import Column
from trunkline.delivery.changes.rows import Op
from trunkline.delivery.destinations.contract import Applied, MemberWrite
from trunkline.delivery.destinations.ducklake import DuckLakePlace
from trunkline.delivery.destinations.ducklake_direct import gate, key_index, sqlite_catalog
from trunkline.delivery.destinations.ducklake_direct.bounds import (
    ColumnBounds,
    TableBounds,
    Unusual,
    bounds_of,
    first_bounds,
    text_of,
    value_of,
    widened,
)
from trunkline.delivery.destinations.ducklake_direct.catalog import Watch
from trunkline.delivery.destinations.ducklake_direct.direct_lake import DirectLake, DirectOutcome
from trunkline.destination_suite.place import Change, OneTable, Plan, Table, content, plain, staged
from trunkline.destination_suite.steps import CHANGES, FLUSH, FLUSHED, ORDERS, SEED, SEEDED
from trunkline.errors import DuplicateKey, OutcomeUnknown, SchemaMismatch, Unreachable

LIMIT: Final = "ducklake_default_data_inlining_row_limit"
NEXT: Final = replace(FLUSH, expected=20, through=30)


class Seen(DirectLake):
    """Remembers why members were left to the extension."""

    last: DirectOutcome | None = None

    def apply(self, writes: Sequence[MemberWrite]) -> DirectOutcome:
        self.last = super().apply(writes)
        return self.last

    @property
    def reason(self) -> str:
        assert self.last is not None
        return "".join(self.last.reasons.values())


class Rig:
    """A seeded table whose flushes are direct."""

    def __init__(self, site: LakeSite, watch: Watch | None = None, *, plan: Plan = SEED, seeds: bool = True) -> None:
        self.site = site
        self.table = Table(site)
        self.direct = Seen(site.address("orders"), watch)
        place = DuckLakePlace(site.address("orders"), unwatched(), direct=self.direct)
        self.one = OneTable(self.table, place)
        if seeds:
            self.one.seed(plan, plain(plan.columns, SEEDED))

    def flush(self, plan: Plan = FLUSH, changes: Sequence[Change] = CHANGES) -> Applied:
        return self.one.flush(plan, staged(plan.columns, plan.key, changes))

    def ask(self, *statements: str) -> None:
        """Another program; the table is ``{t}``."""
        address = self.site.address("orders")
        path = f"l.{identifier(address.schema)}.{identifier(address.table)}"
        with pooled_duckdb("ducklake", "sqlite_scanner", "postgres_scanner") as connection:
            attach_lake(connection, address, "l", read_only=False)
            for statement in statements:
                connection.execute(statement.format(t=path, name=address.table.replace("'", "''")))
            detach(connection, "l")


@pytest.fixture
def site(tmp_path: Path) -> LakeSite:
    return LakeKind("sqlite").make(tmp_path, lambda: pytest.fail("this test needs no server"))


# -------------------------------------------------------------------------------------------------------------- gate


def test_the_first_flush_after_a_seed_is_direct(site: LakeSite) -> None:
    rig = Rig(site)
    assert rig.direct.reason == "a step other than a flush"
    assert rig.flush() == Applied(20, 2, 2)
    assert rig.direct.reason == ""
    assert content(rig.table.held()) == content(FLUSHED)


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("ALTER TABLE {t} SET PARTITIONED BY (tenant)", "partitions"),
        ("ALTER TABLE {t} SET SORTED BY (id)", "partitions"),
        ("ALTER TABLE {t} ADD COLUMN extra INTEGER", "columns that differ"),
        ("CALL l.set_option('parquet_compression', 'zstd')", "settings: parquet_compression"),
        ("INSERT INTO {t} VALUES (77, 'other', 1)", "rows inlined in the catalog"),
    ],
)
def test_what_is_unusual_is_left_to_the_extension(site: LakeSite, statement: str, reason: str) -> None:
    rig = Rig(site)
    rig.ask(statement)
    with suppress(SchemaMismatch):  # the extension refuses a column that the source lacks
        rig.flush()
    assert rig.direct.reason.startswith(reason)


def test_another_format_is_left_to_the_extension(site: LakeSite) -> None:
    rig = Rig(site)
    with closing(sqlite3.connect(site.catalog.removeprefix("sqlite:"))) as plain_sqlite, plain_sqlite:
        plain_sqlite.execute("UPDATE ducklake_metadata SET value = '1.1' WHERE key = 'version'")
    outcome = rig.direct.apply([MemberWrite(FLUSH.member(site, "shop/acme", [FLUSH.table(site, "orders")]), {})])
    assert set(outcome.reasons.values()) == {"another format of the catalog"}


def test_many_rows_are_left_to_the_extension(site: LakeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(site)
    monkeypatch.setattr(gate, "MEMBER_BYTES_MAX", 10)
    assert rig.flush() == Applied(20, 2, 2)
    assert rig.direct.reason == "many rows"


def test_a_duplicate_key_leaves_out_its_member_alone(site: LakeSite) -> None:
    rig = Rig(site)
    with pytest.raises(DuplicateKey, match="already holds a row with the key id=3:"):
        rig.flush(changes=[(Op.INSERT, {"id": 3, "tenant": "acme", "amount": 1})])
    assert rig.direct.reason == ""
    assert rig.flush().position == 20


# ------------------------------------------------------------------------------------------------------------ commits


def test_files_of_a_commit_whose_answer_was_lost_stay(postgres: PostgresServer, tmp_path: Path) -> None:
    postgres.create_database("direct_cut")
    with CutProxy(postgres.port) as proxy:
        catalog = f"postgres:host=127.0.0.1 port={proxy.port} dbname=direct_cut user=postgres"
        cuts = False

        def watch(statement: str) -> None:
            nonlocal cuts
            if cuts and statement == "COMMIT":
                proxy.armed, cuts = True, False

        rig = Rig(LakeSite(catalog, str(tmp_path / "files")), watch)
        cuts = True
        with pytest.raises(OutcomeUnknown):
            rig.flush()
        assert proxy.cuts == 1
        found = rig.one.standing()
        assert found is not None
        assert found.position == 20
        assert content(rig.table.held()) == content(FLUSHED)
        assert rig.flush() == Applied(20, already=True)
        rig.one.close()


@pytest.mark.parametrize("catalog", ["sqlite", "postgres"])
def test_a_transaction_that_lost_a_race_reads_everything_again(
    catalog: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Another program commits between the reads and the first write; in SQLite it must wait, and comes later."""
    site = LakeKind(catalog).make(tmp_path, lambda: request.getfixturevalue("postgres"))
    met: list[str] = []

    def watch(statement: str) -> None:
        if catalog == "postgres" and statement.startswith("INSERT INTO ducklake_snapshot ") and not met:
            met.append(statement)
            rig.ask(f"SET {LIMIT} = 0", "DELETE FROM {t} WHERE id = 2", f"RESET {LIMIT}")

    rig = Rig(site, watch)
    applied = rig.flush()
    assert applied == (Applied(20, 1, 2, missing=1) if met else Applied(20, 2, 2))
    assert rig.direct.reason == ""
    assert content(rig.table.held()) == content(FLUSHED)
    files = {path.name for path in Path(site.data_path).rglob("*.parquet")}
    assert rig.flush(NEXT, []).position == 30
    assert {path.name for path in Path(site.data_path).rglob("*.parquet")} == files


def test_a_catalog_that_others_read_for_long_is_unreachable(site: LakeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_catalog, "LOCK_S", 0.05)
    rig = Rig(site)
    before = sorted(path.name for path in Path(site.data_path).rglob("*.parquet"))
    with closing(sqlite3.connect(site.catalog.removeprefix("sqlite:"), isolation_level=None)) as reader:
        monkeypatch.setattr("trunkline.delivery.backends.catalog_owners._has_handle", lambda _: False)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM ducklake_snapshot").fetchall()
        with pytest.raises(Unreachable):
            rig.flush()
    assert sorted(path.name for path in Path(site.data_path).rglob("*.parquet")) == before
    assert rig.flush().position == 20


# -------------------------------------------------------------------------------------------------------------- keys


def test_i4_a_large_file_is_read_in_pieces_and_not_kept(site: LakeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_index, "FILE_BYTES_MAX", 10)
    monkeypatch.setattr(key_index, "PIECE_ROWS", 2)
    cache = key_index.KeyCache()
    monkeypatch.setattr("trunkline.delivery.destinations.ducklake_direct.key_index.key_cache", lambda: cache)
    monkeypatch.setattr("trunkline.delivery.destinations.ducklake_direct.member.key_cache", lambda: cache)
    rig = Rig(site)
    assert rig.flush() == Applied(20, 2, 2)
    assert rig.direct.reason == ""
    assert cache.size_bytes == 0
    assert content(rig.table.held()) == content(FLUSHED)


def test_kept_keys_stay_within_their_limit() -> None:
    cache = key_index.KeyCache(bytes_max=1000)
    for number in range(50):
        cache.keep(str(number), (), key_index.KeptKeys(100, nulls=np.zeros(0, np.int64)))
        assert cache.size_bytes <= 1000
    assert cache.get("0", ()) is None
    assert cache.get("49", ()) is not None


def test_a_renamed_key_is_found_by_its_number(site: LakeSite) -> None:
    rig = Rig(site)
    rig.ask("ALTER TABLE {t} RENAME COLUMN id TO number")
    columns = (Column("number", "BIGINT"), *ORDERS[1:])
    plan = replace(FLUSH, columns=columns, key=("number",))
    changes: list[Change] = [(Op.REMOVE, {"number": 1}), (Op.REPLACE, {"number": 2, "tenant": "acme", "amount": 0})]
    assert rig.flush(plan, changes) == Applied(20, 2, 1)
    assert rig.direct.reason == ""


# ------------------------------------------------------------------------------------------------------------ bounds

TEXTS: Final[list[tuple[str, Any, str]]] = [
    ("BOOLEAN", 1, "1"),
    ("UBIGINT", 2**64 - 1, "18446744073709551615"),
    ("DOUBLE", -0.0, "-0.0"),
    ("DOUBLE", 1e20, "1e+20"),
    ("DOUBLE", float("-inf"), "-inf"),
    ("BLOB", b"\x00\xff", "00FF"),
    ("DATE", -1, "1969-12-31"),
    ("TIME", 3_723_500_000, "01:02:03.5"),
    ("TIMESTAMP", 1_704_164_645_123_000, "2024-01-02 03:04:05.123"),
    ("TIMESTAMP WITH TIME ZONE", -1, "1969-12-31 23:59:59.999999+00"),
]


@pytest.mark.parametrize(("kind", "value", "text"), TEXTS)
def test_b1_a_text_stands_for_its_value(kind: str, value: Any, text: str) -> None:
    assert text_of(kind, value) == text
    assert value_of(kind, text) == value


@pytest.mark.parametrize(("kind", "text"), [("DATE", "infinity"), ("DATE", "0044-03-15 (BC)"), ("DOUBLE", "nan")])
def test_b2_an_unknown_spelling_is_unusual(kind: str, text: str) -> None:
    with pytest.raises(Unusual):
        value_of(kind, text)


@pytest.mark.parametrize(
    ("value", "low", "high"),
    [
        ("a" * 300, "a" * 256, "a" * 255 + "b"),
        ("a" * 255 + "é", "a" * 255, "a" * 254 + "b"),
        ("b" + "é" * 129, "b" + "é" * 127, "c"),
        ("é" * 129, None, None),
    ],
)
def test_b3_long_texts_are_cut_and_stay_bounds(value: str, low: str | None, high: str | None) -> None:
    assert bounds_of("VARCHAR", pa.chunked_array([[value]])).texts("VARCHAR") == (low, high)


def test_b4_nan_is_a_flag_and_no_bound() -> None:
    found = bounds_of("DOUBLE", pa.chunked_array([[1.5, float("nan"), None]], pa.float64()))
    assert found == ColumnBounds(2, 1, 1.5, 1.5, True)
    held = first_bounds("DOUBLE", found)
    only = bounds_of("DOUBLE", pa.chunked_array([[float("nan")]]))
    assert widened("DOUBLE", held, only, had_values=True) == TableBounds(True, True, "1.5", "1.5")


def test_b5_a_bound_that_is_unknown_stays_unknown() -> None:
    new = ColumnBounds(1, 0, b"m", b"m")
    unknown = TableBounds(False, None, None, None)
    assert widened("VARCHAR", unknown, new, had_values=True) == unknown
    assert widened("VARCHAR", unknown, new, had_values=False) == TableBounds(False, None, "m", "m")
    assert widened("VARCHAR", TableBounds(False, None, "b", "c"), new, had_values=True).high == "m"
