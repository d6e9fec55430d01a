"""Windows and states of a captured table in ranges and parts come to the same as in one piece."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from delivery.group_log import GroupLog, Work, changed, schema_of
from delivery.random_tables import RandomTables
from delivery.test_database_set import SetReading, request_of
from trunkline.delivery.changes.arrow_blobs import batch_of, blobs_of
from trunkline.delivery.changes.groups import RowKind
from trunkline.delivery.changes.rows import NetChanges
from trunkline.delivery.changes.schemas import Identity, SchemaChange
from trunkline.delivery.changes.versions import BEFORE_ALL, Window
from trunkline.delivery.config.table_patterns import Selection
from trunkline.delivery.sources import database_split
from trunkline.delivery.sources.contract import ALL_ROUTES, ReadRequest
from trunkline.delivery.sources.database_split import TableSplit, TableSplits
from trunkline.delivery.sources.key_split import joined_keys
from trunkline.delivery.sources.shuffled_reads import AllFacts, Facts

INSERT, DELETE, OLD, NEW, TRUNCATE, READ = RowKind
EVERY = Selection(("*.*",))
TABLE = "public.table1"


def shuffled(split: TableSplit) -> tuple[NetChanges | None, Facts]:
    """As Spark does it, without Spark; ``None``: some rows lack values, or it cannot be split."""
    noticed: AllFacts = {}
    parts: dict[int, list[pa.RecordBatch]] = {}
    ranges = TableSplits((split,))
    for number in reversed(range(ranges.ranges)):  # in any order
        for _, part, rows in ranges.split(number, noticed):
            parts.setdefault(part, []).extend(batch_of(blob, split.travel) for blob in blobs_of(rows))
    facts = noticed.get(split.number, Facts())
    if facts.parted:
        assert not split.joined
        return shuffled(replace(split, joined=joined_keys(facts.links)))
    found = [split.settled(pa.Table.from_batches(batches, split.travel), facts) for batches in parts.values()]
    if facts.lacking or facts.unsplit:
        return None, facts
    nothing = split.request.empty_rows()
    empty = NetChanges(nothing.select([nothing.column_names[0], *split.request.key]), nothing)
    sides = zip(*((each.removed, each.arrived) for each in [empty, *found]), strict=True)
    removed, arrived = (pa.concat_tables(side) for side in sides)
    return NetChanges(removed, arrived, split.whole or facts.truncated), facts


def _rows(table: pa.Table) -> list[Any]:
    return sorted((tuple(row.values()) for row in table.to_pylist()), key=repr)


@pytest.mark.parametrize("seed", range(12))
def test_parts_of_any_history_come_to_what_one_piece_does(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_split, "PIECE_BYTES", (1, 500, 10**7)[seed % 3])
    monkeypatch.setattr(database_split, "PART_BYTES", 300)
    database = RandomTables(seed)
    for _ in range(90):
        database.step()
    chance = random.Random(seed)
    versions = database.versions(lambda _: True)
    reading = SetReading(database.log.entries, EVERY)
    compared = 0
    for version in chance.sample(versions, 3):
        held = database.set_at(version, lambda _: True)
        assert reading.rows(version) == {f"public.{name}": each.rows for name, each in held.items()}
    for _ in range(10):
        after, through = sorted(chance.sample(versions, 2))
        if chance.random() < 0.3:
            after = BEFORE_ALL
        survey = reading.source.survey(Window(after, through))
        net = reading.net(after, through, survey.tables)
        for each in survey.tables:
            name, request = each.table.name, request_of(each)
            found, _ = shuffled(reading.source.splits(Window(after, through), {name: request})[name])
            if found is None:  # values that the window lacks
                assert "_trunkline_unchanged" in net[name].arrived.column_names
                continue
            assert found.emptied == (net[name].emptied or after == BEFORE_ALL)
            assert _rows(found.arrived) == _rows(net[name].arrived)
            assert _rows(found.removed) == _rows(net[name].removed)
            compared += 1
    assert compared


@pytest.mark.parametrize("seed", range(100, 106))
def test_tables_that_are_read_together_come_to_what_each_does_alone(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_split, "PART_BYTES", 500)
    database = RandomTables(seed)
    for _ in range(90):
        database.step()
    chance, reading = random.Random(seed), SetReading(database.log.entries, EVERY)
    for _ in range(6):
        after, through = sorted(chance.sample(database.versions(lambda _: True), 2))
        survey = reading.source.survey(Window(after, through))
        requests = {each.table.name: request_of(each) for each in survey.tables}
        splits = reading.source.splits(Window(after, through), requests)
        assert splits.keys() == requests.keys()
        if not splits:
            continue
        together, facts = TableSplits(tuple(splits.values())), AllFacts()
        parts: dict[tuple[int, int], list[pa.RecordBatch]] = {}
        for number in range(together.ranges):
            for table, part, rows in together.split(number, facts):
                parts.setdefault((table, part), []).append(rows)
        for name, split in splits.items():
            mine, noticed = [held for (table, _), held in parts.items() if table == split.number], Facts()
            settled = [split.settled(pa.Table.from_batches(each, split.travel), noticed) for each in mine]
            alone, _ = shuffled(split)
            if alone is None or noticed.lacking or facts[split.number].parted:
                continue
            assert _rows(pa.concat_tables([requests[name].empty_rows(), *(each.arrived for each in settled)])) == _rows(
                alone.arrived
            )
            assert sum(each.removed.num_rows for each in settled) == alone.removed.num_rows


def _split(log: GroupLog, after: int, *, parts: int = 7, key: Sequence[str] = ("id",)) -> TableSplit:
    reading = SetReading(log.entries, EVERY)
    [table] = reading.source.tables(log.last)
    asked = ReadRequest(table.columns, tuple(key), "")
    return replace(reading.source.splits(Window(after, log.last), {TABLE: asked})[TABLE], parts=parts)


WIDE = schema_of(1, "id BIGINT, tenant VARCHAR, note VARCHAR")


def test_a_row_that_moves_without_its_values_is_found_wherever_it_came_from() -> None:
    log = GroupLog()
    log.schema(WIDE)
    log.chunk(WIDE, 0, [(number, "acme", f"note {number}") for number in range(40)])
    begin = log.last
    moves: Work = []
    for number in range(40):  # each twice, through a key that is not there in the end
        moves += [(WIDE, OLD, (number, None, None)), (WIDE, NEW, (number + 100, "bolt", None), b"\x04")]
        moves += [(WIDE, OLD, (number + 100, None, None)), (WIDE, NEW, (number + 200, "bolt", None), b"\x04")]
    log.group(moves)
    found, facts = shuffled(_split(log, BEFORE_ALL))
    assert found is not None
    assert not facts.parted
    assert _rows(found.arrived) == sorted(((None, n + 200, "bolt", f"note {n}") for n in range(40)), key=repr)
    assert shuffled(_split(log, begin))[0] is None  # destinations have the values


def test_widened_keys_and_parts_that_never_were_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_split, "PIECE_BYTES", 1)
    small = schema_of(1, "id INTEGER, note VARCHAR")
    log = GroupLog()
    log.schema(small)
    log.chunk(small, 0, [(number, "old") for number in range(20)])
    begin = log.last
    log.part(0, [(small, INSERT, (50, "never")), (small, DELETE, (3, None))])
    log.mark()
    wide = log.schema(
        changed(small, SchemaChange.WIDENED, columns=(replace(small.columns[0], type="BIGINT"), small.columns[1]))
    )
    log.catalog()
    log.part(0, [(wide, INSERT, (60, "new"))])
    log.part(1, [(wide, NEW, (number, "changed")) for number in range(5)], last=True)
    log.catalog()
    log.group([(wide, DELETE, (7, None))], [(wide, INSERT, (50, "now"))])
    found, _ = shuffled(_split(log, BEFORE_ALL))
    assert found is not None
    wanted = {number: "old" for number in range(20) if number != 7} | dict.fromkeys(range(5), "changed")
    assert {row["id"]: row["note"] for row in found.arrived.to_pylist()} == {**wanted, 60: "new", 50: "now"}
    net, _ = shuffled(_split(log, begin))
    assert net is not None
    assert sorted(net.removed.column("id").to_pylist()) == [0, 1, 2, 3, 4, 7]
    assert sorted(net.arrived.column("id").to_pylist()) == [0, 1, 2, 3, 4, 50, 60]


def test_a_truncation_in_one_range_empties_all_parts() -> None:
    log = GroupLog()
    log.schema(WIDE)
    log.chunk(WIDE, 0, [(number, "acme", "x") for number in range(30)])
    begin = log.last
    log.catalog()
    log.group([(WIDE, INSERT, (40, "acme", "x")), (WIDE, TRUNCATE, ())], [(WIDE, INSERT, (1, "acme", "y"))])
    log.catalog()
    log.group([(WIDE, NEW, (1, "acme", None), b"\x04")])
    for after in (begin, BEFORE_ALL):
        found, facts = shuffled(_split(log, after))
        assert found is not None
        assert facts.truncated
        assert (found.removed.num_rows, _rows(found.arrived)) == (0, [(None, 1, "acme", "y")])


def test_a_table_whose_key_changes_on_the_way_is_read_in_one_piece() -> None:
    log = GroupLog()
    log.schema(WIDE)
    log.chunk(WIDE, 0, [(1, "acme", "x")])
    other = log.schema(changed(WIDE, SchemaChange.KEY, key=("note",), identity=Identity.KEY))
    log.group([(other, INSERT, (2, "acme", "y"))])
    reading = SetReading(log.entries, EVERY)
    [table] = reading.source.tables(log.last)
    asked = ReadRequest(table.columns, ("id",), "")
    assert reading.source.splits(Window(BEFORE_ALL, log.last), {TABLE: asked}) == {}
    whole = reading.source.net_changes(Window(BEFORE_ALL, log.last), {TABLE: asked}, ALL_ROUTES)[TABLE]
    assert whole.arrived.num_rows == 2
