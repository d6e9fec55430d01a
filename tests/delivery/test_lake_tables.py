"""Several tables of one lake as a source: their common versions, tables that come and go, and what a window costs."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from delivery.pipe_sources import opened_lake
from trunkline.delivery.changes.rows import ROUTE_COLUMN, NetChanges
from trunkline.delivery.changes.versions import BEFORE_ALL, Window
from trunkline.delivery.config.addresses import LakeAddress
from trunkline.delivery.config.table_patterns import Selection
from trunkline.delivery.sources.contract import ALL_ROUTES, ReadRequest, SurveyedTable
from trunkline.delivery.sources.ducklake_catalog import LakeCatalog
from trunkline.delivery.sources.lake_tables import LakeTables
from trunkline.errors import ConfigError, SourceExpired, Unreachable

Rows = Counter[tuple[Any, ...]]


class Lake:
    def __init__(self, folder: Path, *patterns: str, kind: str = "sqlite:") -> None:
        self.address = LakeAddress(f"{kind}{folder / 'lake.db'}", "", data_path=str(folder / "data"))
        self.source = LakeTables(self.address, Selection(patterns or ("main.*",), schema="main"))
        self.run("CALL lake.set_option('data_inlining_row_limit', 3)")

    def run(self, *statements: str) -> int:
        """One transaction; returns the newest version."""
        with opened_lake(self.address) as lake:
            lake.execute("BEGIN")
            for statement in statements:
                lake.execute(statement)
            lake.execute("COMMIT")
            return int(lake.execute("SELECT max(snapshot_id) FROM ducklake_snapshots('lake')").fetchall()[0][0])

    def rows(self, table: str, version: int) -> Rows:
        with opened_lake(self.address) as lake:
            return Counter(lake.execute(f"SELECT * FROM lake.{table} AT (VERSION => {version})").fetchall())

    def net(self, after: int, through: int) -> tuple[tuple[SurveyedTable, ...], dict[str, NetChanges]]:
        survey = self.source.survey(Window(after, through))
        requests = {each.table.name: _request(each) for each in survey.tables}
        return survey.tables, self.source.net_changes(Window(after, through), requests, ALL_ROUTES)


def _request(table: SurveyedTable) -> ReadRequest:
    return ReadRequest(table.table.columns, tuple(column.name for column in table.table.columns), "", table.survey.mark)


def _counted(rows: Sequence[dict[str, Any]]) -> Rows:
    return Counter(tuple(value for name, value in row.items() if name != ROUTE_COLUMN) for row in rows)


@pytest.mark.parametrize(("seed", "kind"), [(1, "sqlite:"), (2, "sqlite:"), (3, ""), (4, "sqlite:"), (5, "sqlite:")])
def test_windows_of_any_cut_lead_from_one_state_of_all_tables_to_the_next(seed: int, kind: str, tmp_path: Path) -> None:
    lake, chance = Lake(tmp_path, "!other", "main.*", kind=kind), random.Random(seed)
    held: dict[int, dict[str, tuple[str, Rows]]] = {}
    live: dict[str, str] = {}  # name -> which table it is

    def create() -> list[str]:
        name = chance.choice([name for name in ("a", "b", "c", "d", "other", "_trunkline_x") if name not in live])
        live[name] = f"table {len(held)} {name}"
        return [f"CREATE TABLE lake.{name} AS SELECT range AS id, 'x' AS note FROM range({chance.randrange(6)})"]

    def step() -> list[str]:
        name = chance.choice(list(live)) if live else ""
        match chance.randrange(9) if live else 0:
            case 0 if len(live) < 5:
                return create()
            case 1:
                del live[name]
                return [f"DROP TABLE lake.{name}"]
            case 2:
                live[name] = f"table {len(held)} {name} again"
                return [f"DROP TABLE lake.{name}", f"CREATE TABLE lake.{name} (id BIGINT, more VARCHAR)"]
            case 3 if "e" not in live:
                live["e"] = live.pop(name)
                return [f"ALTER TABLE lake.{name} RENAME TO e"]
            case 4:
                return [f"DELETE FROM lake.{name} WHERE id % 3 = {chance.randrange(3)}"]
            case 5:
                return [f"UPDATE lake.{name} SET id = id + 1 WHERE id % 2 = 0"]
            case _:
                several = chance.sample(list(live), min(2, len(live)))
                count = chance.randrange(1, 6)
                return [f"INSERT INTO lake.{each} SELECT range + 10, 'y' FROM range({count})" for each in several]

    for _ in range(16):
        version = lake.run(*step())
        held[version] = {name: (which, lake.rows(name, version)) for name, which in live.items() if name in "abcde"}
    versions = sorted(held)
    for _ in range(14):
        after, through = sorted(chance.sample(versions, 2))
        survey = lake.source.survey(Window(after, through))
        before, now = held[after], held[through]
        assert [each.table.name for each in survey.tables] == sorted(f"main.{name}" for name in now)
        assert survey.left == tuple(sorted(f"main.{name}" for name in before.keys() - now.keys()))
        tables, found = lake.net(after, through)
        for each in tables:
            name = each.table.name.removeprefix("main.")
            net, (which, wanted) = found[each.table.name], now[name]
            assert each.whole == net.emptied == (name not in before or before[name][0] != which)
            arrived, removed = _counted(net.arrived.to_pylist()), _counted(net.removed.to_pylist())
            if net.emptied:
                assert not removed
                assert arrived == wanted
            else:
                expected = before[name][1].copy()
                expected.subtract(removed)
                expected.update(arrived)
                assert +expected == wanted
                assert min(expected.values(), default=0) >= 0
    newest = versions[-1]
    requests = {each.table.name: _request(each) for each in lake.source.survey(Window(BEFORE_ALL, newest)).tables}
    scanned = {name: [row for batch in batches for row in batch.to_pylist()] for name, batches in
               lake.source.scan(newest, requests, ALL_ROUTES)}  # fmt: skip
    assert {name: _counted(rows) for name, rows in scanned.items()} == {
        f"main.{name}": rows for name, (_, rows) in held[newest].items()
    }


def test_a_set_has_the_versions_and_the_identity_of_its_lake(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.run("CREATE TABLE lake.a (id BIGINT)", "CREATE TABLE lake.b (id BIGINT)")
    first = lake.run("INSERT INTO lake.a VALUES (1)", "INSERT INTO lake.b VALUES (1)")
    state = lake.source.state(0)
    assert (state.version, state.oldest) == (first, 0)
    assert state.identity.startswith("ducklake:")
    later = lake.run("INSERT INTO lake.b VALUES (2)")
    now = lake.source.state(first)
    assert (now.version, now.identity, now.known_mark) == (later, state.identity, state.mark)
    assert lake.source.lineage([first, later]).marks == {first: state.mark, later: now.mark}
    assert [each.name for each in lake.source.tables(0)] == ["main.a", "main.b"]
    with pytest.raises(ConfigError, match=r"no table main\.nothing; name others in `tables`"):
        LakeTables(lake.address, Selection(("nothing",), schema="main")).tables(0)
    with pytest.raises(SourceExpired, match="no longer has snapshot 99"):
        lake.source.survey(Window(99, 100))
    [table, _] = lake.source.survey(Window(first, later)).tables
    asked = ReadRequest(table.table.columns, ("id",), "", "another mark")
    with pytest.raises(Unreachable, match="was replaced during the read"):
        lake.source.net_changes(Window(first, later), {"main.a": asked}, ALL_ROUTES)


def test_rows_that_have_other_values_without_being_written_are_read_whole(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.run("CREATE TABLE lake.a AS SELECT range AS id FROM range(9)", "CREATE TABLE lake.b (id BIGINT)")
    before = lake.run("INSERT INTO lake.b VALUES (1)")
    lake.run("ALTER TABLE lake.a ADD COLUMN size INTEGER DEFAULT 7")
    through = lake.run("INSERT INTO lake.b VALUES (2)")
    (a, b), net = lake.net(before, through)
    assert (a.whole, b.whole) == (True, False)
    assert _counted(net["main.a"].arrived.to_pylist()) == lake.rows("a", through)
    assert _counted(net["main.b"].arrived.to_pylist()) == Counter([(2,)])


FILES = ("ducklake_data_file", "ducklake_delete_file")  # one query asks for both


def test_a_window_of_two_hundred_tables_opens_the_catalog_once_and_reads_what_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(tmp_path)
    created = lake.run(*(f"CREATE TABLE lake.t{number:03} (id BIGINT, note VARCHAR)" for number in range(200)))
    before = lake.run(*(f"INSERT INTO lake.t{number:03} VALUES (1, 'x')" for number in range(200)))
    through = lake.run("INSERT INTO lake.t007 VALUES (2, 'y')", "INSERT INTO lake.t107 VALUES (2, 'z')")
    queries: list[str] = []
    opened: list[object] = []
    asked, entered = LakeCatalog.rows, LakeCatalog.__enter__

    def rows(catalog: LakeCatalog, query: str) -> list[tuple[Any, ...]]:
        queries.append(query)
        return asked(catalog, query)

    def enter(catalog: LakeCatalog) -> LakeCatalog:
        opened.append(catalog)
        return entered(catalog)

    monkeypatch.setattr(LakeCatalog, "rows", rows)
    monkeypatch.setattr(LakeCatalog, "__enter__", enter)
    survey = lake.source.survey(Window(before, through))
    busy = [each.table.name for each in survey.tables if not each.survey.backlog.quiet]
    assert (len(survey.tables), busy, len(opened)) == (200, ["main.t007", "main.t107"], 1)
    assert len(queries) < 30
    requests = {each.table.name: _request(each) for each in survey.tables}
    net = lake.source.net_changes(Window(before, through), requests, ALL_ROUTES)
    assert {name: each.arrived.num_rows for name, each in net.items() if each.arrived.num_rows} == dict.fromkeys(
        busy, 1
    )
    assert len(opened) == 2
    assert len(queries) < 60
    queries.clear()
    survey = lake.source.survey(Window(created, before))
    assert [each.survey.backlog.quiet for each in survey.tables] == [False] * 200
    assert [sum(f"FROM {{{each}}}" in query for query in queries) for each in FILES] == [1, 2]
