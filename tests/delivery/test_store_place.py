"""What a place over a store does if the store fails; all else is in the contract suite, over SQLite files."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from sqlite_destination import SqliteAddress, SqliteStore, SqliteTransaction
from sqlite_site import SqliteSite
from trunkline.delivery.destinations.contract import Applied, MemberTables, Standing
from trunkline.destination_suite.place import MEMBER, Table, content
from trunkline.destination_suite.steps import (
    CHANGES,
    FLUSH,
    FLUSHED,
    ORDERS,
    SEED,
    SEEDED,
    applied,
    doing,
    seeded,
    standing,
)
from trunkline.destinations import BATCH_ROWS, Column, StorePlace
from trunkline.errors import ConfigError, DestinationHalted, OutcomeUnknown, Unreachable


@pytest.fixture
def table(tmp_path: Path) -> Table:
    found = Table(SqliteSite(str(tmp_path / "tables.db")))
    seeded(found)
    return found


class Failing:
    """A connection of which one statement fails, before or after it ran."""

    def __init__(self, sql: sqlite3.Connection, statement: str, *, after: bool) -> None:
        self._sql, self._statement, self._after = sql, statement, after

    def execute(self, statement: str, given: Any = ()) -> sqlite3.Cursor:
        fails = statement.startswith(self._statement)
        if fails and not self._after:
            raise sqlite3.OperationalError("disk I/O error")
        found = self._sql.execute(statement, given)
        if fails:
            raise sqlite3.OperationalError("disk I/O error")
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sql, name)


def failing(monkeypatch: pytest.MonkeyPatch, statement: str, *, after: bool) -> None:
    before: Callable[..., None] = SqliteTransaction.__init__

    def begun(self: SqliteTransaction, sql: sqlite3.Connection) -> None:
        before(self, Failing(sql, statement, after=after))

    monkeypatch.setattr(SqliteTransaction, "__init__", begun)


@pytest.mark.parametrize("after", [False, True], ids=["nothing was written", "all was written"])
def test_a_commit_that_fails_is_of_unknown_outcome_and_the_next_try_finds_out(
    table: Table, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    one = doing(table.site, {"orders": CHANGES}, FLUSH)
    with monkeypatch.context() as patch:
        failing(patch, "COMMIT", after=after)
        with closing(table.site.open()) as place:
            assert isinstance(place.apply([one.write()])[MEMBER], OutcomeUnknown)
    assert standing(table) == Standing(20 if after else 10, 1, "lake/orders")
    assert content(table.held()) == content(FLUSHED if after else SEEDED)
    expected = Applied(20, already=True) if after else Applied(20, removed=2, written=2)
    assert applied(table.site, one) == expected
    assert content(table.held()) == content(FLUSHED)


@pytest.mark.parametrize("statement", ["SELECT member", "SAVEPOINT", "CREATE TEMP", "DELETE", "INSERT"])
def test_a_store_that_fails_before_the_commit_has_written_nothing(
    table: Table, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    one = doing(table.site, {"orders": CHANGES}, FLUSH)
    before = table.trace()
    with monkeypatch.context() as patch:
        failing(patch, statement, after=True)
        with closing(table.site.open()) as place, pytest.raises((Unreachable, DestinationHalted), match="disk I/O"):
            place.apply([one.write()])
    assert table.trace() == before
    assert applied(table.site, one) == Applied(20, removed=2, written=2)


def test_a_place_that_fails_while_its_rows_are_read_is_unreachable(tmp_path: Path) -> None:
    many = [{"id": n, "tenant": "acme", "amount": n} for n in range(BATCH_ROWS + 1)]
    wide = Table(SqliteSite(str(tmp_path / "wide.db")))
    seeded(wide, rows=many)
    member = MemberTables(MEMBER, "", (wide.site.address("orders"),))
    _, [batches], end = StorePlace(SqliteStore(str(tmp_path / "wide.db"))).rows(member)
    assert next(batches).num_rows == BATCH_ROWS
    end()
    with pytest.raises(Unreachable, match="cannot be read to its end"):
        next(batches)


def test_a_file_that_is_not_a_database_halts_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a database " * 100)
    place = SqliteAddress(str(tmp_path / "notes.txt"), "orders").open_place()
    with pytest.raises(DestinationHalted, match=r"notes\.txt: file is not a database; repair the file"):
        place.standings([MemberTables(MEMBER, "", ())])


def test_a_column_that_sqlite_needs_for_itself_is_refused(tmp_path: Path) -> None:
    table = Table(SqliteSite(str(tmp_path / "tables.db")))
    with pytest.raises(ConfigError, match="_rowid_"):
        seeded(table, replace(SEED, columns=(*ORDERS, Column("_ROWID_", "BIGINT"))), [])
