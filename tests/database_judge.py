"""Rebuilds the tables of a captured database from its log, column by column, at chosen transactions; judges pgbench.

``delivery/changes/rebuilt.py`` goes through all changes one by one; this is another program for the same purpose, fast
enough for millions of them: between two chosen transactions, the last change of each key decides, by Arrow's groups.

    judged = judge_pgbench(lambda: log.subscribe(start=1, to_tail=True), ends=50, seed=1)
    differences(dsn, judged.last.tables)
"""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql
from pyarrow import csv

from trunkline.client.entries import Entry
from trunkline.delivery.changes.database_entries import CatalogEntry, Group, Part, entry_of
from trunkline.delivery.changes.database_reader import PLACES, DatabaseReader, Step
from trunkline.delivery.changes.groups import KIND, SEQ, UNCHANGED, Layout, RowKind, TableRows

ORDER: Final = "_trunkline_order"
KEPT: Final = -1  # the order of rows that earlier events came to
REMOVALS: Final = (RowKind.DELETE, RowKind.UPDATE_OLD)
BATCH_ROWS: Final = 65_536
SUMS: Final = {"branches": "bbalance", "tellers": "tbalance", "accounts": "abalance", "history": "delta"}

Entries = Callable[[], Iterable[Entry]]


class Wrong(AssertionError):
    """The log does not have what the database had."""


class Place(NamedTuple):
    """``number``: of the transaction among the whole ones of the log, from 1. ``glsn``: of the entry of its end."""

    number: int
    glsn: int
    xid: int


class State(NamedTuple):
    """After a transaction, or at the end of the log (``place`` is None). Tables that cannot be read are left out."""

    place: Place | None
    tables: dict[str, pa.Table]


class Census(NamedTuple):
    transactions: int
    readable: int  # the number of the first transaction after which every table can be read
    rows: int
    entries: int


def census(entries: Iterable[Entry]) -> Census:
    """By heads alone."""
    counted = readable = rows = seen = 0
    reader: DatabaseReader | None = None
    for entry in map(entry_of, entries):
        seen += 1
        if reader is None:
            reader = DatabaseReader(entry) if isinstance(entry, CatalogEntry) else None
            continue
        step = reader.feed(entry, rows=False)
        rows += sum(each.rows for each in step.transactions)
        if step.end and isinstance(entry, Group):
            counted += len(step.transactions)
        if reader.blocked() or not reader.tables():
            readable = counted + 1
    return Census(counted, readable, rows, seen)


def states(entries: Iterable[Entry], chosen: Collection[int]) -> Iterator[State]:
    """The states after the chosen transactions, by number, and at the end."""
    found = map(entry_of, entries)
    start = next((entry for entry in found if isinstance(entry, CatalogEntry)), None)
    if start is None or any(table.chunks for table in start.catalog.tables):
        raise Wrong("the log does not begin with a catalog of tables without rows")
    reader, tables = DatabaseReader(start), _Tables()
    number = 0
    for entry in found:
        readable = _readable(reader)
        step = reader.feed(entry)
        begin = tables.take(step, open_part=isinstance(entry, Part) and not step.end)
        if not (step.end and isinstance(entry, Group)):
            continue
        ends = np.cumsum([each.rows for each in step.transactions]) + begin
        for transaction, end in zip(step.transactions, ends.tolist(), strict=True):
            number += 1
            if number in chosen:
                place = Place(number, entry.glsn, transaction.xid)
                yield State(place, tables.rows(reader, int(end), readable))
    tables.forget()
    yield State(None, tables.rows(reader, tables.order, _readable(reader)))


def _readable(reader: DatabaseReader) -> set[int]:
    return {table.newest.number for table in reader.tables() if table.complete}


class _Tables:
    """``order``: of the next event. What lies behind the chosen transactions is kept as rows, the rest as events."""

    def __init__(self) -> None:
        self.order = 0
        self._events: dict[int, list[tuple[int, TableRows]]] = {}  # with the order of the first event of their entry
        self._open: dict[int, int] | None = None  # how many there were before the parts of a transaction

    def forget(self) -> None:
        """Parts without a last one never were."""
        if self._open is not None:
            self._events = {number: self._events[number][:held] for number, held in self._open.items()}
            self._open = None

    def take(self, step: Step, *, open_part: bool) -> int:
        """The order of the first event."""
        if step.forgets:
            self.forget()
        if open_part and self._open is None:
            self._open = {number: len(held) for number, held in self._events.items()}
        elif step.end:
            self._open = None
        for number in step.emptied:
            self._events[number] = []
            if self._open is not None:
                self._open[number] = 0
        begin = self.order
        for rows in step.rows:
            self._events.setdefault(rows.number, []).append((begin, rows))
            self.order += rows.batch.num_rows
        return begin

    def rows(self, reader: DatabaseReader, end: int, readable: set[int]) -> dict[str, pa.Table]:
        """All readable tables after the events before ``end``."""
        found = {}
        for table in reader.tables():
            newest = table.newest
            if newest.number not in readable:
                continue
            held = self._events.get(newest.number, [])
            before = [each for each in held if each[0] < end]
            inside = [each for each in before if each[0] + _events_of(each) > end]  # the entry of the transaction
            events = _joined(reader, before, Layout(newest).arrow, end)
            kept = _settled(events, newest.key)
            after = [(base, _from(rows, end - base)) for base, rows in inside]
            done = (
                TableRows(newest.number, newest.version, kept.combine_chunks().to_batches()[0]) if len(kept) else None
            )
            rest = [*after, *held[len(before) :]]
            self._events[newest.number] = [*([] if done is None else [(KEPT, done)]), *rest]
            found[f"{newest.schema}.{newest.name}"] = kept.select(kept.schema.names[PLACES:])
        return found


def _events_of(placed: tuple[int, TableRows]) -> int:
    """Up to where the events of an entry may reach."""
    base, rows = placed
    return 0 if base == KEPT or not rows.batch.num_rows else int(rows.batch.column(SEQ)[-1].as_py()) + 1


def _from(rows: TableRows, begin: int) -> TableRows:
    """The events from a number in their entry on."""
    kept = rows.batch.filter(pc.greater_equal(rows.batch.column(SEQ), begin))
    return TableRows(rows.number, rows.version, kept)


def _joined(reader: DatabaseReader, held: list[tuple[int, TableRows]], schema: pa.Schema, end: int) -> pa.Table:
    """Events before ``end`` in order, under the newest version."""
    found, orders = [], [np.zeros(0, np.int64)]
    for base, rows in held:
        batch = reader.presented(rows).batch
        order = np.full(batch.num_rows, KEPT) if base == KEPT else base + batch.column(SEQ).to_numpy().astype(np.int64)
        found.append(batch)
        orders.append(order)
    events, order = pa.Table.from_batches(found, schema), np.concatenate(orders)
    if (order[1:] < order[:-1]).any():  # two versions in one entry
        places = np.argsort(order, kind="stable")
        events, order = events.take(places), order[places]
    return events.slice(0, int(np.searchsorted(order, end)))


def _settled(events: pa.Table, key: Sequence[str]) -> pa.Table:
    """The rows that are left."""
    truncated = np.flatnonzero(events[KIND].to_numpy() == RowKind.TRUNCATE)
    if len(truncated):
        events = events.slice(int(truncated[-1]) + 1)
    kind = events[KIND].to_numpy()
    removes = np.isin(kind, REMOVALS)
    if key:
        return _last_of_keys(events.combine_chunks(), key, removes)
    return _counted(events, removes) if removes.any() else events


def _last_of_keys(events: pa.Table, key: Sequence[str], removes: Any) -> pa.Table:
    """Each key's last event; a column that it did not state has the value of the one before that did."""
    if not len(events):
        return events
    indexed = events.select(list(key)).append_column("index", pa.array(np.arange(len(events))))
    groups = (
        indexed.group_by(list(key), use_threads=False).aggregate([("index", "list")])["index_list"].combine_chunks()
    )
    flat, ends = groups.values.to_numpy(), groups.offsets.to_numpy()[1:] - 1
    last = flat[ends]
    live = ~removes[last]
    kept = events.take(last[live])
    stated = events[UNCHANGED]
    if stated.null_count == len(stated):
        return kept
    if (_moves(events) & stated.is_valid().to_numpy()).any():
        raise Wrong("an update changes a key and leaves a column out: this judge cannot follow; use rebuilt.rebuild")
    bits = np.array([int.from_bytes(each or b"", "little") for each in stated.to_pylist()], object)
    for place, name in enumerate(events.schema.names[PLACES:]):
        sent = np.array([not each >> place & 1 for each in bits[flat]], bool)
        newest = np.maximum.accumulate(np.where(sent, np.arange(len(flat)), -1))[ends]
        if (newest[live] < groups.offsets.to_numpy()[:-1][live]).any():
            raise Wrong(f"column {name} of a row was never stated")
        column = events[name].take(pa.array(flat[newest[live]]))
        kept = kept.set_column(kept.schema.get_field_index(name), events.schema.field(name), column)
    unsent = pa.nulls(len(kept), pa.binary())
    return kept.set_column(kept.schema.get_field_index(UNCHANGED), events.schema.field(UNCHANGED), unsent)


def _moves(events: pa.Table) -> Any:
    """Which events are the new row of an update that states its old row."""
    kind = events[KIND].to_numpy()
    return np.append([False], kind[:-1] == RowKind.UPDATE_OLD) & (kind == RowKind.UPDATE_NEW)


def _counted(events: pa.Table, removes: Any) -> pa.Table:
    """Of a table without a key: as many of each row as were added and not removed."""
    names = events.schema.names[PLACES:]
    signed = events.select(names).append_column(ORDER, pa.array(np.where(removes, -1, 1)))
    groups = signed.group_by(names).aggregate([(ORDER, "sum")])
    counts = groups[f"{ORDER}_sum"].to_numpy()
    if (counts < 0).any():
        raise Wrong(f"a row was removed that was not there: {groups.filter(pa.array(counts < 0)).to_pylist()[0]}")
    rows = groups.select(names).take(pa.array(np.repeat(np.arange(len(groups)), counts)))
    places = [
        pa.array(np.zeros(len(rows), field.type.to_pandas_dtype())) for field in list(events.schema)[: PLACES - 1]
    ]
    return pa.table([*places, pa.nulls(len(rows), pa.binary()), *rows.columns], schema=events.schema)


# ------------------------------------------------------------------------------------------------------------- verdicts


class Judged(NamedTuple):
    census: Census
    places: tuple[Place, ...]  # of the transactions at which the sums were compared
    last: State


def judge_pgbench(entries: Entries, *, ends: int, seed: int, schema: str = "public") -> Judged:
    """Raises ``Wrong`` unless the sums of each branch agree across tables, after random transactions and at the end."""
    counted = census(entries())
    readable = range(counted.readable, counted.transactions + 1)
    chosen = set(random.Random(seed).sample(readable, min(ends, len(readable))))
    places = []
    last: State | None = None
    for last in states(entries(), chosen):
        check_sums(last, schema)
        places += [] if last.place is None else [last.place]
    assert last is not None
    return Judged(counted, tuple(places), last)


def check_sums(state: State, schema: str = "public") -> None:
    """pgbench adds one amount to an account, a teller and a branch, and writes it into the history."""
    sums = {name: _by_branch(state.tables[f"{schema}.pgbench_{name}"], column) for name, column in SUMS.items()}
    expected = sums["branches"]
    for name, found in sums.items():
        for branch in expected.keys() | found.keys():
            if (one := expected.get(branch, 0)) != (other := found.get(branch, 0)):
                raise Wrong(f"branch {branch}: branches have {one}, {name} {other}, after {state.place or 'the end'}")


def _by_branch(table: pa.Table, column: str) -> dict[int, int]:
    grouped = table.group_by("bid").aggregate([(column, "sum")])
    return dict(zip(grouped["bid"].to_pylist(), grouped[f"{column}_sum"].to_pylist(), strict=True))


def differences(dsn: str, tables: dict[str, pa.Table]) -> dict[str, tuple[int, int]]:
    """Rows that only the server has, and that only the rebuilt table has; of tables that differ."""
    found = {}
    with psycopg.connect(dsn) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        for name, table in tables.items():
            only = _only(connection, sql.Identifier(*name.split(".", 1)), table)
            if any(only):
                found[name] = only
    return found


def _only(connection: psycopg.Connection[Any], name: sql.Identifier, table: pa.Table) -> tuple[int, int]:
    columns = sql.SQL(", ").join(map(sql.Identifier, table.schema.names))
    connection.execute(sql.SQL("CREATE TEMP TABLE judged AS SELECT {} FROM {} WHERE false").format(columns, name))
    with connection.cursor().copy("COPY judged FROM STDIN (FORMAT csv)") as copy:
        for batch in table.to_batches(max_chunksize=BATCH_ROWS):
            text = io.BytesIO()
            csv.write_csv(batch, text, csv.WriteOptions(include_header=False))
            copy.write(text.getvalue())
    rows = sql.SQL("SELECT {} FROM {}").format(columns, name), sql.SQL("SELECT {} FROM judged").format(columns)
    counts = [
        connection.execute(sql.SQL("SELECT count(*) FROM ({} EXCEPT ALL {}) AS one_side").format(one, other)).fetchone()
        for one, other in (rows, reversed(rows))
    ]
    connection.execute("DROP TABLE judged")
    (server,), (rebuilt,) = (count or (0,) for count in counts)
    return int(server), int(rebuilt)
