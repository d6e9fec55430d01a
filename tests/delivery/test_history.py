"""Mode history, judged by a replay in plain Python; and however a log is cut into windows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import count, pairwise
from typing import Any

import pyarrow as pa
import pytest

from delivery.group_log import GroupLog, Work, schema_of
from delivery.memory_log import MemoryLog
from delivery.random_histories import COLUMNS, HistoryTable, RandomHistory, Transaction
from trunkline.delivery.changes.columns import Column, Columns, arrow_schema
from trunkline.delivery.changes.groups import RowKind
from trunkline.delivery.changes.history import (
    TIME,
    TIME_COLUMN,
    VersionedChanges,
    arrived_schema,
    check_history,
    open_versions,
    removed_schema,
    settle_history,
)
from trunkline.delivery.changes.net import Routes, routed
from trunkline.delivery.changes.row_versions import versions_of_net, versions_of_ordered
from trunkline.delivery.changes.rows import (
    DESTINATION_COLUMN,
    KIND_COLUMN,
    OP_COLUMN,
    ORDINAL_COLUMN,
    ROUTE_COLUMN,
    VERSION_COLUMN,
    ChangeKind,
    NetChanges,
    Op,
)
from trunkline.delivery.changes.shape import Shape
from trunkline.delivery.changes.versions import Window
from trunkline.delivery.config.addresses import LogAddress
from trunkline.delivery.shapes.shaped_table import shaped_table
from trunkline.delivery.sources import log_reader
from trunkline.delivery.sources.contract import ALL_ROUTES, ReadRequest
from trunkline.delivery.sources.database import DatabaseSource
from trunkline.errors import ConfigError, DestinationHalted

SEEDS = 1_002
PIECES = 6
FOUR: Columns = (
    Column("id", "BIGINT"),
    Column("tenant", "VARCHAR"),
    Column("note", "VARCHAR"),
    Column("size", "INTEGER"),
)
ORDERED = pa.schema(
    [
        pa.field(VERSION_COLUMN, pa.int64()),
        pa.field(ORDINAL_COLUMN, pa.int64()),
        pa.field(TIME_COLUMN, TIME),
        pa.field(KIND_COLUMN, pa.string()),
        pa.field(ROUTE_COLUMN, pa.string()),
        *arrow_schema(FOUR),
    ]
)
KINDS = {RowKind.INSERT: "insert", RowKind.DELETE: "delete", RowKind.UPDATE_NEW: "insert", RowKind.TRUNCATE: "truncate"}
KEYED = schema_of(1, COLUMNS, key=("id", "tenant"))
ROUTES = Routes({"a": (0,), "b": (0, 1), None: (1,)})  # rows of c have no destination
LOGS = count(1)


@pytest.fixture(scope="module", autouse=True)
def _no_logs_are_left() -> Iterator[None]:
    yield
    for number in range(1, next(LOGS)):
        log_reader._open.pop(log_reader._key(LogAddress(f"history{number}", "nowhere:1")), None)


def seeded(table: HistoryTable, rows: pa.Table, columns: Columns, version: int) -> None:
    chosen, _ = routed(rows, ROUTES)
    made = open_versions(chosen, columns, version, None)
    table.seed(made.append_column(DESTINATION_COLUMN, chosen.column(DESTINATION_COLUMN)).to_pylist())


def delivered(history: RandomHistory, source: DatabaseSource, ends: list[int]) -> HistoryTable:
    """All windows between some ends."""
    table = HistoryTable(("id",))
    columns = source.tables(ends[0])[0].columns
    request = ReadRequest(columns, ("id",), "tenant", also=("tenant", "note", "size"))
    [(_, batches)] = source.scan(ends[0], {"": request}, ALL_ROUTES)
    seeded(table, pa.Table.from_batches(batches, schema=request.empty_rows().schema), columns, ends[0])
    for after, through in pairwise(ends):
        found = source.versions(Window(after, through), {"": request}, ALL_ROUTES)[""]
        assert not found.emptied
        settled = settle_history(found, ROUTES, ("id",))
        assert not settled.duplicates
        table.flush(settled.staged.to_pylist())
    return table


def check(seed: int) -> Counter[str]:
    history = RandomHistory(seed, ("full", "key", "plain")[seed % 3])
    log = history.log(history.chance.randrange(1, 8))
    name = f"history{next(LOGS)}"
    MemoryLog(name, log.entries)
    source = DatabaseSource(LogAddress(name, "nowhere:1", table="public.table1"))
    expected = history.replayed(lambda tenant: ROUTES.of(tenant))
    every = sorted({history.first, *(end for end, _, _ in history.versions)})
    some = sorted({every[0], every[-1], *history.chance.sample(every, len(every) // 2)})
    for ends in (every, some, [every[0], every[-1]]):
        assert delivered(history, source, ends).found() == expected, f"seed {seed}, windows between {ends}"
    return Counter(change.kind.name for _, _, made in history.versions for change in made.changes)


@pytest.mark.parametrize("piece", range(PIECES))
def test_1000_random_histories_equal_a_replay_however_they_are_cut_into_windows(piece: int) -> None:
    kinds: Counter[str] = Counter()
    for seed in range(piece, SEEDS, PIECES):
        kinds += check(seed)
    assert set(kinds) == {"INSERT", "UPDATE_NEW", "DELETE", "TRUNCATE"}


# ------------------------------------------------------------------------------------------------- logs of one table


def ordered(history: RandomHistory, begin: int, end: int) -> pa.Table:
    """The changes of some transactions, as those of a log of one table: removals are whole."""
    rows: list[tuple[Any, ...]] = []
    for position, time_us, made in history.versions:
        if not begin < position <= end:
            continue
        for change in made.changes:
            events = [(ChangeKind(KINDS[change.kind]), change.new or change.old)]
            if change.kind is RowKind.UPDATE_NEW:
                events = [(ChangeKind.UPDATE_PREIMAGE, change.old), (ChangeKind.UPDATE_POSTIMAGE, change.new)]
            for kind, row in events:
                row = row or (None,) * 4
                rows.append((position, len(rows), time_us, kind.value, row[1], *row))
    return pa.table(
        [pa.array([row[place] for row in rows], field.type) for place, field in enumerate(ORDERED)], schema=ORDERED
    )


def live(history: RandomHistory, version: int) -> pa.Table:
    states = [history.seeded, *(made.after for position, _, made in history.versions if position <= version)]
    rows = [(row[1], *row) for row in states[-1].values()]
    schema = pa.schema([ORDERED.field(ROUTE_COLUMN), *arrow_schema(FOUR)])
    return pa.table([pa.array([row[at] for row in rows], field.type) for at, field in enumerate(schema)], schema=schema)


def one_table(seed: int) -> RandomHistory:
    """Its transactions are entries of their own, and no two rows change keys in one of them."""
    history = RandomHistory(seed, "plain")
    history.first = 1
    history.seeded = history.state = {number: history.row(number) for number in range(history.chance.randrange(5))}
    history.versions = [(2 + at, 1000 * at, history.transaction()) for at in range(history.chance.randrange(1, 12))]
    return history


def test_versions_of_a_log_of_one_table_equal_a_replay_however_it_is_cut() -> None:
    for seed in range(150):
        history = one_table(seed)
        expected = history.replayed(lambda tenant: ROUTES.of(tenant))
        every = [1, *(end for end, _, _ in history.versions)]
        for ends in (every, [1, every[-1]], sorted({1, every[-1], *history.chance.sample(every, len(every) // 2)})):
            table = HistoryTable(("id",))
            seeded(table, live(history, 1), FOUR, 1)
            for after, through in pairwise(ends):
                found = versions_of_ordered(ordered(history, after, through), FOUR, ("id",), live(history, after))
                table.flush(settle_history(found, ROUTES, ("id",)).staged.to_pylist())
            assert table.found() == expected, f"seed {seed}, windows between {ends}"


def test_a_truncation_of_rows_that_are_not_known_hands_over_the_whole_table() -> None:
    events = [(5, 0, 7, "insert", "a", 1, "a", "x", 0), (6, 1, 8, "truncate", None, None, None, None, None)]
    events += [(7, 2, 9, "insert", "b", 2, "b", "y", 1)]
    table = pa.table(
        [pa.array([row[at] for row in events], field.type) for at, field in enumerate(ORDERED)], schema=ORDERED
    )
    found = versions_of_ordered(table, FOUR, ("id",), None)
    assert found.emptied
    assert found.removed.num_rows == 0
    assert [(row[VERSION_COLUMN], row["id"]) for row in found.arrived.to_pylist()] == [(7, 2)]


# -------------------------------------------------------------------------------------------------------------- lakes


def net(history: RandomHistory, after: int, through: int, *, whole: bool) -> NetChanges:
    """The difference of two states, by the identity of rows that were written."""
    old, new = (
        [history.seeded, *(made.after for position, _, made in history.versions if position <= version)][-1]
        for version in (after, through)
    )
    written = {key for position, _, made in history.versions if after < position <= through for key in made.written}
    gone, came = ({key: row for key, row in state.items() if key in written} for state in (old, new))
    schema = pa.schema([ORDERED.field(ROUTE_COLUMN), *arrow_schema(FOUR)])
    removed, arrived = (
        pa.table(
            [pa.array([(row[1], *row)[at] for row in rows.values()], field.type) for at, field in enumerate(schema)],
            schema=schema,
        )
        for rows in (gone, came)
    )
    return NetChanges(removed if whole else removed.select([ROUTE_COLUMN, "id"]), arrived)


def test_a_lake_gives_one_version_for_each_window_that_changed_a_row() -> None:
    for seed in range(100):
        history = one_table(seed)
        table = HistoryTable(("id",))
        seeded(table, live(history, 1), FOUR, 1)
        ends = sorted({1, *history.chance.sample([end for end, _, _ in history.versions], len(history.versions) // 2)})
        windows = []
        for after, through in pairwise(ends):
            found = versions_of_net(net(history, after, through, whole=True), FOUR, through, through)
            table.flush(settle_history(found, ROUTES, ("id",)).staged.to_pylist())
            states = [live(history, version).to_pylist() for version in (after, through)]
            before, now = ({row["id"]: tuple(row.values())[1:] for row in state} for state in states)
            windows.append((through, through, Transaction([], before, now, before.keys() | now.keys())))
        history.versions = windows
        assert table.found() == history.replayed(lambda tenant: ROUTES.of(tenant))


def test_without_whole_removed_rows_each_write_is_a_version() -> None:
    history = one_table(0)
    history.seeded = {1: (1, "a", "x", 0)}
    history.versions = [(2, 5, Transaction([], history.seeded, history.seeded, {1}))]
    for whole, count_of_rows in ((True, 0), (False, 2)):
        found = versions_of_net(net(history, 1, 2, whole=whole), FOUR, 2, None)
        assert settle_history(found, ROUTES, ("id",)).staged.num_rows == count_of_rows


# -------------------------------------------------------------------------------------------------------------- shapes


def test_histories_of_a_shaped_table_equal_a_replay_of_shaped_rows() -> None:
    shape = Shape(exclude=("size",), rename={"id": "no"}, filter="note <> 'x'", computed={"loud": "upper(note)"})

    def shaped_row(row: tuple[Any, ...]) -> tuple[Any, ...] | None:
        return None if row[2] == "x" else (*row[:3], row[2].upper())

    for seed in range(100):
        history = one_table(seed)
        shaped = shaped_table(shape, FOUR, ("no",), "tenant")
        request = shaped.request(whole=True)
        assert set(request.also) == {"tenant", "note"}
        table = HistoryTable(("no",), ("no", "tenant", "note", "loud"))
        every = [1, *(end for end, _, _ in history.versions)]
        [*batches] = shaped.rows(live(history, 1).select([ROUTE_COLUMN, "id", "tenant", "note"]).to_batches())
        for batch in batches:
            seeded(table, pa.Table.from_batches([batch]), shaped.columns, 1)
        for after, through in pairwise(sorted({1, every[-1], *history.chance.sample(every, len(every) // 2)})):
            changes = versions_of_ordered(
                ordered(history, after, through).drop_columns(["size"]), request.columns, ("id",), live(history, after)
            )
            found = shaped.versions(changes)
            table.flush(settle_history(found, ROUTES, ("no",)).staged.to_pylist())
        assert table.found() == history.replayed(lambda tenant: ROUTES.of(tenant), shaped_row)


def test_a_removed_row_that_is_not_whole_passes_the_filter() -> None:
    shaped = shaped_table(Shape(filter="note <> 'x'", computed={"n": "note::INTEGER"}), FOUR, ("id",), "tenant")
    removed = pa.table(
        [
            [2],
            [0],
            pa.array([None], TIME),
            ["a"],
            [False],
            [1],
            ["a"],
            pa.nulls(1, pa.string()),
            pa.nulls(1, pa.int32()),
        ],
        schema=removed_schema(FOUR),
    )
    found = shaped.versions(VersionedChanges(removed, arrived_schema(FOUR).empty_table()))
    [row] = settle_history(found, ROUTES, ("id",)).staged.to_pylist()
    assert (row["id"], row[OP_COLUMN], row["_valid_to"], row["_valid_from"]) == (1, Op.REMOVE, 2, None)


def test_two_rows_of_one_key_are_counted_as_duplicates() -> None:
    events = [(5, 0, 7, "insert", "a", 1, "a", "x", 0), (6, 1, 8, "insert", "a", 1, "a", "y", 0)]
    table = pa.table(
        [pa.array([row[at] for row in events], field.type) for at, field in enumerate(ORDERED)], schema=ORDERED
    )
    found = settle_history(versions_of_ordered(table, FOUR, ("id",), None), ROUTES, ("id",))
    assert found.duplicates == {0: 1}


def trimmed_log(*works: Work) -> tuple[DatabaseSource, ReadRequest, list[int]]:
    """A table of a database whose snapshot is no longer in the log, and the ends of its transactions."""
    log = GroupLog()
    log.schema(KEYED)
    log.chunk(KEYED, 0, [(1, "a", "x", 1), (2, "b", "y", 2)])
    log.group([])
    log.catalog()
    ends = [log.group([]), *(log.group(work) for work in works)]
    name = f"history{next(LOGS)}"
    MemoryLog(name, log.entries).trimmed = ends[0] - 2
    source = DatabaseSource(LogAddress(name, "nowhere:1", table="public.table1"))
    return source, ReadRequest(FOUR, ("id",), "tenant", also=("note", "size")), ends


def test_after_a_trim_a_truncated_table_is_handed_over_whole() -> None:
    source, request, ends = trimmed_log([(KEYED, RowKind.TRUNCATE, ()), (KEYED, RowKind.INSERT, (3, "a", "z", 3))])
    found = source.versions(Window(*ends), {"": request}, ALL_ROUTES)[""]
    assert found.emptied
    assert found.arrived.column("id").to_pylist() == [3]
    assert found.arrived.column(VERSION_COLUMN).to_pylist() == [ends[-1]]


def test_after_a_trim_a_value_that_an_update_did_not_state_halts() -> None:
    source, request, ends = trimmed_log([(KEYED, RowKind.UPDATE_NEW, (1, "a", None, 5), b"\x04")])
    with pytest.raises(DestinationHalted, match="did not state all values of its row, and the log was trimmed"):
        source.versions(Window(*ends), {"": request}, ALL_ROUTES)


def test_a_source_column_with_a_name_of_history_is_refused() -> None:
    for name in ("_valid_from", "_Current"):
        with pytest.raises(ConfigError, match=name):
            check_history([Column("id", "BIGINT"), Column(name, "BIGINT")])
    check_history([Column("valid_from", "BIGINT")])
