"""A set of tables of a captured database as a source: any history, read in windows of any cut."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import pytest

from delivery.group_log import GroupLog, changed, schema_of
from delivery.memory_log import MemoryLog
from delivery.random_tables import Held, RandomTables
from delivery.test_database_source import applied, multiset
from trunkline.delivery.changes import table_changes
from trunkline.delivery.changes.groups import RowKind
from trunkline.delivery.changes.rows import ROUTE_COLUMN, NetChanges
from trunkline.delivery.changes.schemas import SchemaChange
from trunkline.delivery.changes.versions import BEFORE_ALL, Window
from trunkline.delivery.config.addresses import LogAddress
from trunkline.delivery.config.table_patterns import Selection
from trunkline.delivery.sources import database_timeline, log_reader
from trunkline.delivery.sources.contract import ALL_ROUTES, ReadRequest, SurveyedTable
from trunkline.delivery.sources.database import DatabaseSource
from trunkline.errors import ConfigError

INSERT, DELETE, OLD, NEW, TRUNCATE, READ = RowKind
NAMES = count(1)
SETS = (Selection(("public.a*",)), Selection(("!b1", "*.*")), Selection(("a1", "public.b2", "b3")))


class SetReading:
    """A set over a log in memory."""

    def __init__(self, entries: Sequence[Any], selection: Selection, upto: int | None = None) -> None:
        self.log = MemoryLog(f"set{next(NAMES)}", entries)
        self.log.upto = upto
        self.source = DatabaseSource(LogAddress(self.log.address.log, "nowhere:1"), selection)

    def again(self) -> SetReading:
        """Another process."""
        return SetReading(self.log._entries, self.source.selection or Selection(()), self.log.upto)

    def net(self, after: int, through: int, tables: Sequence[SurveyedTable]) -> dict[str, NetChanges]:
        requests = {each.table.name: request_of(each) for each in tables}
        return self.source.net_changes(Window(after, through), requests, ALL_ROUTES)

    def rows(self, version: int) -> dict[str, list[Any]]:
        tables = self.source.survey(Window(BEFORE_ALL, version)).tables
        found = self.source.scan(version, {each.table.name: request_of(each) for each in tables}, ALL_ROUTES)
        return {name: _rows([row for batch in batches for row in batch.to_pylist()]) for name, batches in found}


def request_of(table: SurveyedTable) -> ReadRequest:
    key = table.table.key or tuple(column.name for column in table.table.columns)
    return ReadRequest(table.table.columns, key, "", table.survey.mark)


def _rows(rows: Sequence[dict[str, Any]]) -> list[Any]:
    return sorted((tuple(row.values())[1:] for row in rows), key=repr)


@pytest.fixture(scope="module", autouse=True)
def _no_logs_are_left() -> Iterator[None]:
    yield
    for number in range(1, next(NAMES)):
        log_reader._open.pop(log_reader._key(LogAddress(f"set{number}", "nowhere:1")), None)


def _lead(held: Held, net: NetChanges, table: SurveyedTable) -> list[Any]:
    """Where the net changes of a window lead from the rows at its beginning."""
    steps = table.survey.steps
    assert steps is not None
    [added] = steps.default_row().to_pylist() if steps.added else [{}]
    rows = [(*row, *(added[column.name] for column in steps.added)) for row in held.rows]
    names = [column.name for column in table.table.columns]
    return applied(rows, net, names, table.table.key) if table.table.key else multiset(rows, net)


# ------------------------------------------------------------------------------------------------------ any history


@pytest.mark.parametrize("seed", range(40))
def test_every_version_of_a_set_is_a_state_that_the_database_had(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if seed % 2:
        monkeypatch.setattr(table_changes, "COMPACT_ROWS", 7)
        monkeypatch.setattr(database_timeline, "TOUCHES_MAX", 10)
    database = RandomTables(seed)
    for _ in range(90):
        database.step()
    chance, selection = random.Random(seed), SETS[seed % len(SETS)]

    def chosen(name: str) -> bool:
        return selection.matches("public", name)

    versions = database.versions(chosen)
    reading = SetReading(database.log.entries, selection)
    for version in chance.sample(versions, min(5, len(versions))):
        there = database.set_at(version, chosen)
        assert reading.rows(version) == {f"public.{name}": each.rows for name, each in there.items()}
    for _ in range(25):
        after, through = sorted(chance.sample(versions, 2))
        before, now = database.set_at(after, chosen), database.set_at(through, chosen)
        reading = reading if chance.random() < 0.7 else reading.again()
        survey = reading.source.survey(Window(after, through))
        assert [each.table.name for each in survey.tables] == sorted(f"public.{name}" for name in now)
        assert survey.left == tuple(sorted(f"public.{name}" for name in before.keys() - now.keys()))
        net = reading.net(after, through, survey.tables)
        for each in survey.tables:
            name = each.table.name.removeprefix("public.")
            held, wanted, found = before.get(name), now[name], net[each.table.name]
            whole = held is None or (held.number, held.generation) != (wanted.number, wanted.generation)
            assert each.whole == whole
            assert each.table.identity.endswith(f"#{wanted.number}")
            if each.survey.backlog.quiet:
                assert (found.emptied, found.removed.num_rows, found.arrived.num_rows) == (False, 0, 0)
            if found.emptied:
                assert found.removed.num_rows == 0
                assert _rows(found.arrived.to_pylist()) == wanted.rows
            else:
                assert held is not None
                assert not whole
                assert _lead(held, found, each) == wanted.rows


@pytest.mark.parametrize("seed", range(40, 70))
def test_the_newest_version_follows_the_rule_for_one_that_follows_and_one_that_starts(seed: int) -> None:
    database = RandomTables(seed)
    for _ in range(120):
        database.step()
    chance, selection = random.Random(seed), SETS[seed % len(SETS)]

    def chosen(name: str) -> bool:
        return selection.matches("public", name)

    versions = database.versions(chosen)
    first = min(database.at)
    following = SetReading(database.log.entries, selection, first)
    known = following.source.state(0)
    for upto in range(first, database.log.last + 1, chance.randrange(1, 4)):
        following.log.upto = upto
        ends = [end for end in database.at if end <= upto]
        wanted = max((version for version in versions if version <= upto), default=0)
        state = following.source.state(known.version)
        assert state.version == wanted
        assert known.mark == state.known_mark
        assert bool(state.waiting) == (wanted != ends[-1])
        incomplete = sorted(
            f"public.{n}" for n, each in database.at[ends[-1]].items() if chosen(n) and not each.complete
        )
        if ends[-1] == upto:
            assert list(state.awaited) == incomplete
        assert set(state.stops) <= set(versions)
        known = state
        if chance.random() < 0.25:
            fresh = following.again().source.state(0)
            assert set(fresh.stops) <= set(versions)
            assert fresh.first in (0, *versions)
            if fresh.version != wanted:  # no table of the set is complete, and none was at an earlier catalog
                assert fresh.version in (0, *versions)
                assert not database.set_at(ends[-1], chosen)


# ------------------------------------------------------------------------------------------------- what is reported


def _two(first: str = "a1", second: str = "a2") -> tuple[GroupLog, Any, Any]:
    log = GroupLog()
    one = log.schema(schema_of(1, "id BIGINT, note VARCHAR", name=first))
    two = log.schema(schema_of(2, "id BIGINT, note VARCHAR", name=second))
    log.chunk(one, 0, [(1, "x")])
    return log, one, two


def test_a_table_joins_when_its_snapshot_is_complete_and_delays_no_other() -> None:
    log, one, two = _two()
    reading = SetReading(log.entries, SETS[0])
    state = reading.source.state(0)
    assert (state.version, state.waiting, state.awaited) == (log.last, "", ("public.a2",))
    assert [each.name for each in reading.source.tables(0)] == ["public.a1", "public.a2"]
    [known] = reading.source.tables(state.version)
    assert (known.name, known.key, known.identity) == ("public.a1", ("id",), f"{state.identity}#1")
    log.group([(one, INSERT, (2, "y"))], [(two, INSERT, (5, "new"))])
    log.chunk(two, 0, [(number, "old") for number in range(3)])
    survey = reading.source.survey(Window(state.version, log.last))
    assert [(each.table.name, each.whole) for each in survey.tables] == [("public.a1", False), ("public.a2", True)]
    net = reading.net(state.version, log.last, survey.tables)
    assert (net["public.a1"].arrived.num_rows, net["public.a2"].arrived.num_rows) == (1, 4)
    assert net["public.a2"].arrived.column(ROUTE_COLUMN).null_count == 4


def test_a_table_that_is_captured_again_holds_the_set_and_says_so() -> None:
    log, one, two = _two()
    log.chunk(two, 0, [])
    before = log.last
    again = log.schema(changed(one, SchemaChange.RECAPTURED))
    log.group([(two, INSERT, (1, "x"))])
    log.chunk(again, 0, [(1, "x")], complete=False)
    for reading in (SetReading(log.entries, SETS[0]), SetReading(log.entries, SETS[0])):
        state = reading.source.state(before)
        assert state.version == before
        assert f"public.a1 is captured again: destinations stay at version {before}" in state.waiting
    log.chunk(again, 1, [(2, "y")])
    assert SetReading(log.entries, SETS[0]).source.state(before).version == log.last


def test_a_set_without_a_complete_table_waits_and_one_without_its_named_tables_is_refused() -> None:
    log = GroupLog()
    log.schema(schema_of(1, "id BIGINT", name="a1"))
    log.mark()
    state = SetReading(log.entries, SETS[0]).source.state(0)
    assert (state.version, state.waiting) == (0, "the snapshot of public.a1 is not complete yet")
    with pytest.raises(ConfigError, match=r"has no table public\.b2, public\.b3; name others in `tables`"):
        SetReading(log.entries, SETS[2]).source.tables(0)


def test_a_poll_costs_what_is_new_however_many_tables_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    log = GroupLog()
    schemas = [log.schema(schema_of(number, "id BIGINT", name=f"a{number}")) for number in range(1, 501)]
    for schema in schemas:
        log.chunk(schema, 0, [])
    log.catalog()
    reading = SetReading(log.entries, SETS[0])
    known = reading.source.state(0).version
    asked: list[str] = []
    matches = Selection.matches

    def noted(selection: Selection, schema: str, name: str) -> bool:
        asked.append(name)
        return matches(selection, schema, name)

    monkeypatch.setattr(Selection, "matches", noted)
    before = reading.log.read
    for number in range(10):
        log.group([(schemas[number], INSERT, (1,))])
        state = reading.source.state(known)
        assert state.version == log.last
    assert reading.log.read - before < 30
    assert not asked
    survey = reading.source.survey(Window(known, log.last))
    assert [each.table.name for each in survey.tables if not each.survey.backlog.quiet] == sorted(
        f"public.a{number}" for number in range(1, 11)
    )


def test_sizes_are_those_of_rows_even_if_no_entry_was_followed() -> None:
    log = GroupLog()
    wide = log.schema(schema_of(1, "id BIGINT, note VARCHAR", name="a1"))
    for chunk in range(20):
        rows = [(number, "x" * 200) for number in range(chunk * 5000, chunk * 5000 + 5000)]
        log.chunk(wide, chunk, rows, complete=chunk == 19)
    for _ in range(3):
        log.catalog()
        log.mark()
    [table] = SetReading(log.entries, SETS[0]).source.survey(Window(BEFORE_ALL, log.last)).tables
    assert table.survey.backlog.rows == 100_000
    assert 20_000_000 < table.survey.backlog.size_bytes < 30_000_000


def test_a_renamed_table_keeps_its_identity_and_one_that_takes_its_name_has_another() -> None:
    log, one, two = _two()
    log.chunk(two, 0, [])
    before = log.last
    log.schema(changed(one, SchemaChange.TABLE_RENAMED, name="a9"))
    taking = log.schema(schema_of(3, "id BIGINT, note VARCHAR", name="a1"))
    log.chunk(taking, 0, [])
    source = SetReading(log.entries, SETS[0]).source
    known, now = ({each.name: each.identity for each in source.tables(at)} for at in (before, log.last))
    assert now == {"public.a9": known["public.a1"], "public.a2": known["public.a2"], "public.a1": now["public.a1"]}
    assert now["public.a1"] not in known.values()
