"""A lake as a place: groups, records of older releases, many tables, and readers beside the flushes."""

from __future__ import annotations

import json
import logging
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace

from contract.ducklake_destination import LakeKind, LakeSite
from trunkline.delivery.backends.duckdb_pool import pooled_duckdb
from trunkline.delivery.backends.sql import identifier, literal
from trunkline.delivery.changes.columns import Column, Columns
from trunkline.delivery.changes.rows import Op
from trunkline.delivery.destinations import ducklake_attachments, ducklake_transaction
from trunkline.delivery.destinations.contract import FENCED_TOKEN, Applied, MemberTables, Standing
from trunkline.delivery.destinations.ducklake_records import TableName
from trunkline.delivery.destinations.ducklake_upkeep import COMPACT_EVERY, Upkeep
from trunkline.destination_suite.place import Change, Row, Table, content, plain, staged
from trunkline.destination_suite.steps import CHANGES, FLUSH, FLUSHED, ORDERS, SEED, SEEDED, applied, doing, done
from trunkline.errors import DestinationHalted, DuplicateKey, Unreachable

PAIR: Final[Columns] = (Column("id", "BIGINT"), Column("amount", "BIGINT"))
PAIRS: Final = ("debits", "credits")
WRITE_AHEAD: Final = 2  # as the header of a file of SQLite has it
LOOKER: Final = Path(__file__).parent / "lake_poll.py"


@pytest.fixture
def site(tmp_path: Path) -> LakeSite:
    return LakeKind("sqlite").make(tmp_path, lambda: pytest.fail("this test needs no server"))


def journal(site: LakeSite) -> int:
    """What the header of the catalog's file says; only while no connection of this process has it open."""
    return Path(site.catalog.removeprefix("sqlite:")).read_bytes()[18]


def ask(site: LakeSite, *statements: str, options: str = "") -> list[tuple[Any, ...]]:
    """Statements of another program; the lake is attached as ``l``."""
    with pooled_duckdb("ducklake", "sqlite_scanner") as connection:
        where = literal(f"ducklake:{site.catalog}")
        connection.execute(f"ATTACH {where} AS l (DATA_PATH {literal(site.data_path)}{options})")
        try:
            for statement in statements:
                rows = connection.execute(statement).fetchall()
            return rows
        finally:
            connection.execute("DETACH l")


# ---------------------------------------------------------------------------------------------------- older releases


def older_lake(site: LakeSite, *, marks: bool = True) -> None:
    """As an older release left it: a write-ahead log, and the record of one table beside it, inlined."""
    table, record = (f"l.main.{identifier(f'{name} 50%')}" for name in ("orders", "_trunkline_orders"))
    mark, value = (", mark VARCHAR", ", ''") if marks else ("", "")
    ask(
        site,
        f"CREATE TABLE {table} (id BIGINT, tenant VARCHAR, amount INTEGER)",
        f"INSERT INTO {table} VALUES (1, 'acme', 10), (2, 'acme', 20), (3, 'acme', 30)",
        f"CREATE TABLE {record} (position BIGINT, token BIGINT, source VARCHAR{mark})",
        f"INSERT INTO {record} VALUES (5, 1, 'lake/orders'{value})",
        "CALL l.set_option('data_inlining_row_limit', 1, schema => 'main', table_name => '_trunkline_orders 50%')",
        f"UPDATE {record} SET position = 10",
        options=", META_JOURNAL_MODE 'WAL', DATA_INLINING_ROW_LIMIT 0",
    )


@pytest.mark.parametrize("marks", [True, False])
def test_a_lake_of_an_older_release_is_taken_over_by_the_first_flush(site: LakeSite, marks: bool) -> None:
    older_lake(site, marks=marks)
    assert journal(site) == WRITE_AHEAD
    table = Table(site)
    destination = table.open()
    assert destination.standing() == Standing(10, 1, "lake/orders")
    assert destination.flush(FLUSH, staged(ORDERS, ("id",), CHANGES)) == Applied(20, removed=2, written=2)
    assert site.old_token("orders") == FENCED_TOKEN
    assert content(table.held()) == content(FLUSHED)
    later = replace(FLUSH, expected=20, through=30)
    assert destination.flush(later, iter(())) == Applied(30)
    assert destination.standing() == Standing(30, 1, "lake/orders")
    destination.close()


def test_a_catalog_with_a_write_ahead_log_gets_a_rollback_journal_when_readers_let_it(
    site: LakeSite, caplog: pytest.LogCaptureFixture
) -> None:
    older_lake(site)
    table = Table(site)
    destination = table.open()
    with pooled_duckdb("ducklake", "sqlite_scanner") as connection:
        connection.execute(f"ATTACH {literal(f'ducklake:{site.catalog}')} AS l")
        connection.execute("BEGIN")
        connection.execute('SELECT count(*) FROM l.main."orders 50%"').fetchall()
        with caplog.at_level(logging.WARNING):
            assert destination.flush(FLUSH, staged(ORDERS, ("id",), CHANGES)).position == 20
        assert "write-ahead log" in caplog.text
        connection.execute("ROLLBACK")
        connection.execute("DETACH l")
    assert journal(site) == WRITE_AHEAD
    assert destination.flush(replace(FLUSH, expected=20, through=30), iter(())) == Applied(30)
    destination.close()
    assert journal(site) != WRITE_AHEAD


def test_a_step_without_tables_finds_the_record_by_a_table_that_is_known(site: LakeSite) -> None:
    older_lake(site)
    stamp = doing(site, {}, FLUSH)
    with pytest.raises(Exception, match="planned again"):
        applied(site, stamp)
    known = replace(stamp.step, known=(site.address("orders"),))
    assert applied(site, stamp._replace(step=known)) == Applied(20)
    assert site.old_token("orders") == FENCED_TOKEN
    assert applied(site, doing(site, {"orders": []}, replace(FLUSH, expected=20, through=30))) == Applied(30)


# ------------------------------------------------------------------------------------------------------------ homes


def test_a_table_that_a_member_of_another_home_has_is_not_touched(site: LakeSite) -> None:
    applied(site, doing(site, {"orders": SEEDED}, SEED, "shop/acme"))
    other = doing(site, {"orders": SEEDED, "items": SEEDED}, replace(SEED, replace_existing=True), "shop/bolt")
    other = other._replace(step=replace(other.step, home="elsewhere"))
    with pytest.raises(DestinationHalted, match="shop/acme"):
        applied(site, other)


def test_the_record_of_a_member_whose_home_changed_moves_there(site: LakeSite) -> None:
    applied(site, doing(site, {"orders": SEEDED}, SEED))
    moved = doing(site, {"orders": CHANGES}, FLUSH)
    moved = moved._replace(step=replace(moved.step, home="elsewhere"))
    assert applied(site, moved) == Applied(20, removed=2, written=2)
    place = site.open()
    there = MemberTables(moved.step.member, "elsewhere", (site.address("orders"),))
    assert place.standings([there])[moved.step.member] == Standing(20, 1, "lake/orders")
    assert ask(site, "SELECT count(*) FROM l.main._trunkline_members") == [(0,)]
    place.close()


# ----------------------------------------------------------------------------------------------------------- groups


def test_duplicates_of_many_members_are_found_in_two_attempts(site: LakeSite) -> None:
    members = [f"shop/m{number:02}" for number in range(12)]
    names = {member: f"t{number}" for number, member in enumerate(members)}
    done(site, *(doing(site, {names[member]: SEEDED}, SEED, member) for member in members))
    begun = 0

    def watch(statement: str) -> None:
        nonlocal begun
        begun += statement == "BEGIN"

    place = site.open(watch)
    row: Row = {"id": 1, "tenant": "acme", "amount": 1}
    held: list[Change] = [(Op.INSERT, row)]
    new: list[Change] = [(Op.INSERT, {**row, "id": 9})]
    writes = [
        doing(site, {names[member]: held if number % 2 else new}, FLUSH, member).write()
        for number, member in enumerate(members)
    ]
    results = place.apply(writes)
    assert [isinstance(results[member], DuplicateKey) for member in members] == [False, True] * 6
    assert [each for each in results.values() if isinstance(each, Applied)] == [Applied(20, written=1)] * 6
    assert begun <= 2 + 1  # two attempts; and upkeep
    place.close()


@pytest.mark.parametrize("catalog", ["sqlite", "postgres"])
def test_two_hundred_tables_of_one_lake_are_flushed_at_once(
    catalog: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    site = LakeKind(catalog).make(tmp_path, lambda: request.getfixturevalue("postgres"))
    names = [f"t{number}" for number in range(200)]
    place = site.open()
    seed = doing(site, dict.fromkeys(names[:100], SEEDED), SEED, "shop/one")
    alone = [doing(site, {name: SEEDED}, SEED, f"shop/{name}") for name in names[100:]]
    results = place.apply([each.write() for each in (seed, *alone)])
    assert results == {"shop/one": Applied(10, written=300)} | {
        f"shop/{n}": Applied(10, written=3) for n in names[100:]
    }
    flush = doing(site, dict.fromkeys(names[:100], CHANGES), FLUSH, "shop/one")
    alone = [doing(site, {name: CHANGES}, FLUSH, f"shop/{name}") for name in names[100:]]
    results = place.apply([each.write() for each in (flush, *alone)])
    assert results.pop("shop/one") == Applied(20, removed=200, written=200)
    assert set(results.values()) == {Applied(20, removed=2, written=2)}
    place.close()
    for name in (names[0], names[99], names[199]):
        assert content(site.held(name)) == content(FLUSHED)


def test_upkeep_of_many_tables_is_spread_over_flushes() -> None:
    upkeep = Upkeep()
    tables = [TableName("main", f"t{number}") for number in range(200)]
    due = []
    for _ in range(2 * COMPACT_EVERY):
        upkeep.note(tables, ["main"])
        due.append(len(upkeep.due))
        upkeep.due.clear()
    assert sum(due) == 2 * len(tables)
    assert max(due) < len(tables) / 4


# ---------------------------------------------------------------------------------------------------------- readers


def pair_flushes(count: int, rows: int) -> Iterator[list[Change]]:
    """Changes of two tables that always agree: every flush replaces, removes and adds rows of both."""
    draw, live = random.Random(7), list(range(rows))
    for number in range(count):
        chosen = draw.sample(live, 50)
        new = [rows + 10 * number + each for each in range(10)]
        live = [key for key in live if key not in chosen[40:]] + new
        changes: list[Change] = [(Op.REPLACE, {"id": key, "amount": number}) for key in chosen[:40]]
        changes += [(Op.REMOVE, {"id": key}) for key in chosen[40:]]
        yield changes + [(Op.INSERT, {"id": key, "amount": key}) for key in new]


def test_a_reader_that_polls_two_tables_finds_them_equal_at_every_look(site: LakeSite, tmp_path: Path) -> None:
    """Each look is one transaction of a plain reader in another process, beside a hundred flushes."""
    rows: list[Row] = [{"id": number, "amount": number} for number in range(2000)]
    applied(site, doing(site, dict.fromkeys(PAIRS, rows), replace(SEED, columns=PAIR)))
    stop = tmp_path / "stop"
    tables = [site.address(name).table for name in PAIRS]
    arguments = [site.catalog, site.data_path, str(stop), *tables]
    with subprocess.Popen([sys.executable, str(LOOKER), *arguments], stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "ready\n"
        place = site.open()
        try:
            for number, changes in enumerate(pair_flushes(100, len(rows))):
                plan = replace(FLUSH, columns=PAIR, expected=10 + number, through=11 + number)
                step = doing(site, dict.fromkeys(PAIRS, changes), plan)
                while isinstance(result := place.apply([step.write()])[step.step.member], Unreachable):
                    pass  # the reader was there all the time
                assert result == Applied(11 + number, removed=100, written=100)
        finally:
            stop.touch()
        place.close()
        found = json.loads(reader.stdout.readline())
    assert found["wrong"] == []
    assert found["errors"] == []
    assert found["looks"] >= 5  # on a loaded machine; hundreds otherwise


def test_a_reader_that_does_not_end_makes_a_flush_unreachable_and_then_it_goes_on(
    site: LakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ducklake_attachments, "PATIENT_MS", 0)
    monkeypatch.setattr(ducklake_transaction, "COMMIT_TRIES", 4)
    table = Table(site)
    destination = table.open()
    destination.seed(SEED, plain(ORDERS, SEEDED))
    with pooled_duckdb("ducklake", "sqlite_scanner") as connection:
        connection.execute(f"ATTACH {literal(f'ducklake:{site.catalog}')} AS l")
        connection.execute("BEGIN")
        connection.execute('SELECT count(*) FROM l.main."orders 50%"').fetchall()
        with pytest.raises(Unreachable, match="at the same time"):
            destination.flush(FLUSH, staged(ORDERS, ("id",), CHANGES))
        connection.execute("ROLLBACK")
        connection.execute("DETACH l")
    assert destination.standing() == Standing(10, 1, "lake/orders")
    assert destination.flush(FLUSH, staged(ORDERS, ("id",), CHANGES)) == Applied(20, removed=2, written=2)
    destination.close()


def test_rows_of_several_tables_are_of_one_snapshot_and_free_the_lake_at_the_end(site: LakeSite) -> None:
    applied(site, doing(site, dict.fromkeys(PAIRS, SEEDED), SEED))
    place = site.open()
    member = MemberTables("shop/acme", site.home, tuple(site.address(name) for name in PAIRS))
    standing, tables, _ = place.rows(member)
    found = [[row for batch in batches for row in batch.to_pylist()] for batches in tables]
    assert standing == Standing(10, 1, "lake/orders")
    assert [content(rows) for rows in found] == [content(SEEDED)] * 2
    flush = doing(site, dict.fromkeys(PAIRS, CHANGES), FLUSH)
    assert place.apply([flush.write()])["shop/acme"] == Applied(
        20, removed=4, written=4
    )  # though the reading was not closed
    place.close()
