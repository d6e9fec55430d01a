"""What sources state of removed rows and of versions: lakes, and logs of one table (databases: ``test_history``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from delivery.memory_log import MemoryLog
from delivery.random_histories import HistoryTable, RandomHistory
from trunkline.client.entries import Entry
from trunkline.client.headers import encode_headers
from trunkline.delivery.backends.duckdb_pool import pooled_duckdb
from trunkline.delivery.backends.ducklake_attachment import attach_lake
from trunkline.delivery.changes.captured import EntryPlace, encoded
from trunkline.delivery.changes.columns import Column, Columns, arrow_schema
from trunkline.delivery.changes.groups import RowKind
from trunkline.delivery.changes.history import TIME_COLUMN, WHOLE_COLUMN, open_versions, settle_history
from trunkline.delivery.changes.net import Routes, routed
from trunkline.delivery.changes.rows import DESTINATION_COLUMN, KIND_COLUMN, VERSION_COLUMN, ChangeKind
from trunkline.delivery.changes.shape import Shape
from trunkline.delivery.changes.versions import Window
from trunkline.delivery.config.addresses import DeltaAddress, LakeAddress, LogAddress
from trunkline.delivery.shapes.shaped_table import shaped_table
from trunkline.delivery.sources import log_reader
from trunkline.delivery.sources.contract import ALL_ROUTES, ReadRequest
from trunkline.delivery.sources.delta import DeltaSource
from trunkline.delivery.sources.ducklake import DuckLakeSource
from trunkline.delivery.sources.log import LogSource

FOUR: Columns = (
    Column("id", "BIGINT"),
    Column("tenant", "VARCHAR"),
    Column("note", "VARCHAR"),
    Column("size", "INTEGER"),
)
ROUTES = Routes({"a": (0,), "b": (0, 1), None: (1,)})
LOGS = count(1)
Row = tuple[Any, ...]


@pytest.fixture(scope="module", autouse=True)
def _no_logs_are_left() -> Iterator[None]:
    yield
    for number in range(1, next(LOGS)):
        log_reader._open.pop(log_reader._key(LogAddress(f"rows{number}", "nowhere:1")), None)


# -------------------------------------------------------------------------------------------------------------- lakes


class Lake:
    def __init__(self, folder: Path, inlined: int) -> None:
        self.address = LakeAddress(str(folder / "lake.db"), "items", data_path=str(folder / "data"))
        self.source = DuckLakeSource(self.address)
        self.run(
            f"CALL lake.set_option('data_inlining_row_limit', {inlined})",
            "CREATE TABLE lake.items (id BIGINT, tenant VARCHAR, note VARCHAR, size INTEGER)",
        )

    def run(self, *statements: str) -> int:
        with pooled_duckdb("ducklake", "sqlite_scanner") as connection:
            attach_lake(connection, self.address, "lake", read_only=False)
            for statement in statements:
                connection.execute(statement)
            ((newest,),) = connection.execute("SELECT max(snapshot_id) FROM lake.snapshots()").fetchall()
            connection.execute("DETACH lake")
        return int(newest)


@pytest.mark.parametrize("inlined", [0, 100])
def test_removed_rows_of_a_lake_have_the_values_that_they_had_at_the_beginning(tmp_path: Path, inlined: int) -> None:
    lake = Lake(tmp_path, inlined)
    first = lake.run("INSERT INTO lake.items VALUES (1, 'a', 'x', 1), (2, 'a', 'y', 2), (3, 'b', 'z', 3)")
    lake.run("UPDATE lake.items SET note = 'between', size = 7 WHERE id = 1")
    last = lake.run(
        "UPDATE lake.items SET note = 'last' WHERE id = 1",
        "DELETE FROM lake.items WHERE id = 2",
        "UPDATE lake.items SET tenant = 'a' WHERE id = 3",
    )
    request = ReadRequest(lake.source.columns(last), ("id",), "tenant", also=("note", "size", "tenant"))
    net = lake.source.net_changes(Window(first, last), request, ALL_ROUTES)
    assert sorted(tuple(row.values())[1:] for row in net.removed.to_pylist()) == [
        (1, "x", 1, "a"),
        (2, "y", 2, "a"),
        (3, "z", 3, "b"),
    ]
    found = lake.source.versions(Window(first, last), request, ALL_ROUTES)
    assert found.removed.column(WHOLE_COLUMN).to_pylist() == [True] * 3
    assert set(found.arrived.column(VERSION_COLUMN).to_pylist()) == {last}
    times = set(found.arrived.column(TIME_COLUMN).to_pylist())
    assert len(times) == 1
    assert None not in times


def test_a_filter_over_a_lake_is_exact_and_a_row_that_stops_matching_leaves(tmp_path: Path) -> None:
    lake = Lake(tmp_path, 10)
    first = lake.run("INSERT INTO lake.items VALUES (1, 'a', 'live', 1), (2, 'a', 'draft', 2), (3, 'a', 'draft', 3)")
    last = lake.run(
        "UPDATE lake.items SET note = 'draft' WHERE id = 1",
        "UPDATE lake.items SET note = 'live' WHERE id = 2",
        "UPDATE lake.items SET size = 4 WHERE id = 3",
    )
    shape = Shape(exclude=("note",), filter="note = 'live'")
    shaped = shaped_table(shape, lake.source.columns(last), ("id",), "tenant")
    net = lake.source.net_changes(Window(first, last), shaped.request(), ALL_ROUTES)
    assert shaped.exact(net)
    made = shaped.net(net)
    assert made.removed.column("id").to_pylist() == [1]
    assert made.arrived.column("id").to_pylist() == [2]


def test_removed_rows_of_a_delta_table_have_the_values_that_they_had_at_the_beginning(tmp_path: Path) -> None:
    schema = arrow_schema(FOUR)
    rows = pa.table([[1, 2], ["a", "b"], ["x", "y"], [1, 2]], schema=schema)
    write_deltalake(tmp_path / "t", rows, configuration={"delta.enableChangeDataFeed": "true"})
    table = DeltaTable(tmp_path / "t")
    table.update(predicate="id = 1", updates={"note": "'between'"})
    table.update(predicate="id = 1", updates={"note": "'last'"})
    table.delete("id = 2")
    source = DeltaSource(DeltaAddress(str(tmp_path / "t")))
    request = ReadRequest(source.columns(4), ("id",), "tenant", also=("note", "size", "tenant"))
    net = source.net_changes(Window(1, 4), request, ALL_ROUTES)
    removed = sorted(tuple(row.values())[1:] for row in net.removed.to_pylist())
    assert removed == [(1, "x", 1, "a"), (2, "y", 2, "b")]
    found = source.versions(Window(1, 4), request, ALL_ROUTES)
    assert found.removed.column(WHOLE_COLUMN).to_pylist() == [True, True]
    assert found.arrived.column(VERSION_COLUMN).to_pylist() == [4]
    assert found.arrived.column(TIME_COLUMN).null_count == 0


# ------------------------------------------------------------------------------------------------- logs of one table


def events(history: RandomHistory, number: int) -> pa.Table:
    """The changes of a transaction; removals are whole."""
    kinds: list[str] = []
    rows: list[Row] = []
    for change in history.versions[number][2].changes:
        if change.kind is RowKind.UPDATE_NEW:
            assert change.old is not None
            assert change.new is not None
            kinds += [ChangeKind.UPDATE_PREIMAGE, ChangeKind.UPDATE_POSTIMAGE]
            rows += [change.old, change.new]
        else:
            known = {RowKind.INSERT: "insert", RowKind.DELETE: "delete", RowKind.TRUNCATE: "truncate"}
            kinds.append(ChangeKind(known[change.kind]))
            rows.append(change.new or change.old or (None,) * 4)
    columns = [pa.array([row[at] for row in rows], field.type) for at, field in enumerate(arrow_schema(FOUR))]
    return pa.table([pa.array(kinds, pa.string()), *columns], names=[KIND_COLUMN, *(each.name for each in FOUR)])


def log_of(history: RandomHistory) -> LogSource:
    """Transactions of one or several entries, the first one with the rows at the beginning."""
    entries: list[Entry] = []

    def write(changes: Sequence[pa.Table]) -> None:
        for place, table in enumerate(changes):
            heading = EntryPlace(place, place == len(changes) - 1, str(len(entries))).headers()
            payload = encoded(FOUR, table)
            at = len(entries) + 1
            entries.append(Entry(at, payload, time_ms=at, encoded_headers=encode_headers(heading)))

    seeds = [
        pa.array([row[at] for row in history.seeded.values()], field.type)
        for at, field in enumerate(arrow_schema(FOUR))
    ]
    seeds = [pa.array(["insert"] * len(history.seeded), pa.string()), *seeds]
    write([pa.table(seeds, names=[KIND_COLUMN, *(each.name for each in FOUR)])])
    for number in range(len(history.versions)):
        table = events(history, number)
        cut = history.chance.randrange(table.num_rows + 1)
        write([table] if history.chance.random() < 0.5 else [table.slice(0, cut), table.slice(cut)])
        made = history.versions[number][2]
        history.versions[number] = (len(entries), 1000 * len(entries), made)
    name = f"rows{next(LOGS)}"
    MemoryLog(name, entries)
    return LogSource(LogAddress(name, "nowhere:1"))


def test_versions_of_a_log_of_one_table_equal_a_replay_of_its_transactions() -> None:
    for seed in range(100):
        history = RandomHistory(seed, "plain")
        history.first = 1
        history.seeded = history.state = {number: history.row(number) for number in range(history.chance.randrange(5))}
        history.versions = [(0, 0, history.transaction()) for _ in range(history.chance.randrange(1, 12))]
        source = log_of(history)
        every = [1, *(end for end, _, _ in history.versions)]
        request = ReadRequest(FOUR, ("id",), "tenant", also=("tenant", "note", "size"))
        for ends in (every, [1, every[-1]], sorted({1, every[-1], *history.chance.sample(every, len(every) // 2)})):
            table = HistoryTable(("id",))
            seeded = pa.Table.from_batches(source.scan(1, request, ALL_ROUTES), schema=request.empty_rows().schema)
            chosen, _ = routed(seeded, ROUTES)
            made = open_versions(chosen, FOUR, 1, None)
            table.seed(made.append_column(DESTINATION_COLUMN, chosen.column(DESTINATION_COLUMN)).to_pylist())
            for after, through in pairwise(ends):
                found = source.versions(Window(after, through), request, ALL_ROUTES)
                assert not found.emptied
                table.flush(settle_history(found, ROUTES, ("id",)).staged.to_pylist())
            assert table.found() == history.replayed(lambda tenant: ROUTES.of(tenant)), f"seed {seed}: {ends}"
