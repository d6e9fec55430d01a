"""The rule of delivery, as a pure function: from the net changes of a window to staged rows.

Correctness is defined by state, not by events: after a flush to `through`, a destination equals its part of the source
as of `through`. The input is the net difference of two states (see ``sources.contract``). Each row is routed by its own
routing value: a row that moved to another tenant is removed at one destination and arrives at the other.

Rules
 R1  Keys are equal when every key column is, NULL equal to NULL; by name and type, never by row id.
 R2  A key that was removed and did not arrive is a REMOVE; one that arrived is a REPLACE if it was also removed, else
     an INSERT.
 R3  There is at most one row for each (destination, key). Arrivals that share a key are duplicates: they are counted,
     and with policy warn the winner is the row that sorts last, column by column, among all live rows of the key
     (``settle_live``). So the winner depends on the state alone.
 R4  Unrouted arrivals are counted by routing value; NULL is a value like any other.
 R5  With mode append every arrival is an INSERT, nothing is removed and keys do not matter. A row arrives when it is
     written: by an insert, by an update (even one that changes no value), by a merge. A row that only moved to another
     file does not arrive. (In a window with a rewrite of files or with expired versions the two look the same: there, a
     row that was written again with the same values counts as moved.)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from trunkline.delivery.changes.rows import DESTINATION_COLUMN, OP_COLUMN, ROUTE_COLUMN, NetChanges, Op

Codes = npt.NDArray[np.int64]


class Routes(NamedTuple):
    """Which destinations take a row, by index."""

    by_value: Mapping[str | None, tuple[int, ...]]
    everywhere: tuple[int, ...] = ()  # these take every row, whatever its routing value

    def of(self, value: str | None) -> tuple[int, ...]:
        return (*self.by_value.get(value, ()), *self.everywhere)

    def only(self, places: Collection[int]) -> Routes:
        """The routes to these destinations."""
        kept = {value: tuple(place for place in found if place in places) for value, found in self.by_value.items()}
        return Routes(
            {value: found for value, found in kept.items() if found},
            tuple(place for place in self.everywhere if place in places),
        )


class Settled(NamedTuple):
    """The rows of a window for every destination."""

    staged: pa.Table  # DESTINATION_COLUMN, OP_COLUMN and every column, by destination
    duplicates: dict[int, int]  # destination -> arrivals beyond the first of their key
    unrouted: dict[str | None, int]  # routing value -> arrivals without a destination


def settle(net: NetChanges, routes: Routes, key: Sequence[str]) -> Settled:
    """Mode mirror: one row for each (destination, key) that the window touched."""
    removed, _ = routed(net.removed, routes)
    arrived, unrouted = routed(net.arrived, routes)
    return _settled(removed, arrived, unrouted, key)


def settle_live(net: NetChanges, live: pa.Table, routes: Routes, key: Sequence[str]) -> Settled:
    """Mode mirror with policy warn: ``live`` are the rows at `through` that have ``touched_keys``."""
    removed, _ = routed(net.removed, routes)
    arrived, unrouted = routed(net.arrived, routes)
    held, _ = routed(live.select(net.arrived.column_names), routes)
    names = [DESTINATION_COLUMN, *key]
    codes = row_codes(pa.concat_tables([table.select(names) for table in (removed, arrived, held)]))
    touched, there = np.split(codes, [removed.num_rows + arrived.num_rows])
    return _settled(removed, held.take(np.flatnonzero(np.isin(there, touched))), unrouted, key)


def settle_append(net: NetChanges, routes: Routes) -> Settled:
    """Mode append: every arrival, once."""
    arrived, unrouted = routed(net.arrived, routes)
    rows = arrived.drop_columns([ROUTE_COLUMN])
    rows = rows.append_column(OP_COLUMN, pa.array(np.full(rows.num_rows, Op.INSERT, np.int8)))
    return Settled(by_destination(rows), {}, unrouted)


def touched_keys(net: NetChanges, key: Sequence[str], routes: Routes | None = None) -> pa.Table:
    """Every (route, key) whose state a window may have changed, to look rows up: a destination with several routing
    values may hold a key under any of them. (One that takes every row: see ``without_routes``.)"""
    names = [ROUTE_COLUMN, *key]
    touched = pa.concat_tables([net.removed.select(names), net.arrived.select(names)]).combine_chunks()
    known = routes.by_value if routes is not None else {}
    siblings = {value: _siblings(value, known) for value in pc.unique(touched.column(ROUTE_COLUMN)).to_pylist()}
    if all(found == [value] for value, found in siblings.items()):
        return touched
    parts = []
    for value, found in siblings.items():
        mine = touched.filter(_equals(touched.column(ROUTE_COLUMN), value))
        parts += [mine.set_column(0, ROUTE_COLUMN, pa.array([other] * mine.num_rows, pa.string())) for other in found]
    return pa.concat_tables(parts).combine_chunks()


def without_routes(net: NetChanges) -> NetChanges:
    """All rows with the route NULL: for destinations that take every row, the routing value is not part of a key."""
    removed, arrived = (
        rows.set_column(rows.schema.get_field_index(ROUTE_COLUMN), ROUTE_COLUMN, pa.nulls(rows.num_rows, pa.string()))
        for rows in (net.removed, net.arrived)
    )
    return NetChanges(removed, arrived, net.emptied)


def routed(rows: pa.Table, routes: Routes) -> tuple[pa.Table, dict[str | None, int]]:
    """The rows with their destinations, one copy for each; and the counts of unrouted rows."""
    encoded = rows.column(ROUTE_COLUMN).combine_chunks().dictionary_encode(null_encoding="encode")
    values: list[str | None] = encoded.dictionary.to_pylist()
    targets = [routes.of(value) for value in values]
    codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    counts = np.bincount(codes, minlength=len(values)).tolist()
    unrouted = {value: count for value, target, count in zip(values, targets, counts, strict=True) if not target}
    taken, chosen = [np.zeros(0, np.int64)], [np.zeros(0, np.int32)]
    for place in range(max((len(target) for target in targets), default=0)):  # one, almost always
        lookup = np.array([target[place] if place < len(target) else -1 for target in targets], np.int32)
        found = lookup[codes]
        keep = np.flatnonzero(found >= 0)
        taken.append(keep)
        chosen.append(found[keep])
    destinations = pa.array(np.concatenate(chosen), pa.int32())
    return rows.take(np.concatenate(taken)).append_column(DESTINATION_COLUMN, destinations), unrouted


def row_codes(rows: pa.Table) -> Codes:
    """A number for each row; equal rows have equal numbers, and NULL equals NULL."""
    codes: Codes = np.zeros(rows.num_rows, np.int64)
    for column in rows.columns:
        encoded = _flat(column).dictionary_encode(null_encoding="encode")
        here = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        codes = codes * (len(encoded.dictionary) + 1) + here
        codes = np.unique(codes, return_inverse=True)[1].astype(np.int64)  # dense again, to prevent an overflow
    return codes


def less(rows: pa.Table, others: pa.Table) -> pa.Table:
    """The difference of two multisets of rows with the same columns."""
    codes = row_codes(pa.concat_tables([rows, others.select(rows.column_names)]))
    mine, theirs = np.split(codes, [rows.num_rows])
    return rows.take(np.flatnonzero(surplus(mine, theirs)))


def surplus(mine: Codes, theirs: Codes) -> npt.NDArray[np.bool_]:
    """Which of some codes are left if each of the others takes one that equals it: the first ones of equal codes go."""
    order = np.argsort(mine, kind="stable")
    ranked = mine[order]
    rank = np.arange(len(ranked)) - np.searchsorted(ranked, ranked)  # 0 for the first of equal rows, 1 for the second
    taken = np.bincount(theirs, minlength=int(mine.max(initial=0)) + 1)
    left = np.zeros(len(mine), np.bool_)
    left[order] = rank >= taken[ranked]
    return left


def by_destination(staged: pa.Table) -> pa.Table:
    """Sorted by destination; inside one, the order of the input."""
    column = staged.column(DESTINATION_COLUMN).to_numpy()
    return staged.take(np.argsort(column, kind="stable"))


def filled(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows with every column of the schema; missing columns are NULL."""
    columns = [
        rows.column(field.name).cast(field.type)
        if field.name in rows.column_names
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def winners(rows: pa.Table, codes: Codes) -> Codes:
    """The index of one row of each code, in order of the codes: the only one, or the one that sorts last (R3)."""
    groups, firsts, counts = np.unique(codes, return_index=True, return_counts=True)
    if len(groups) == len(codes):
        return firsts.astype(np.int64)
    shared = np.flatnonzero(np.isin(codes, groups[counts > 1]))
    columns = [name for name in rows.column_names if name not in (ROUTE_COLUMN, DESTINATION_COLUMN)]
    members = rows.select(columns).take(shared)
    order = np.lexsort([*(_ranks(column) for column in reversed(members.columns)), codes[shared]])
    ends = np.flatnonzero(np.append(np.diff(codes[shared][order]) != 0, True))
    firsts[counts > 1] = shared[order[ends]]
    return firsts.astype(np.int64)


def _settled(removed: pa.Table, arrived: pa.Table, unrouted: dict[str | None, int], key: Sequence[str]) -> Settled:
    names = [DESTINATION_COLUMN, *key]
    codes = row_codes(pa.concat_tables([removed.select(names), arrived.select(names)]))
    removed_codes, arrived_codes = np.split(codes, [removed.num_rows])
    first_removed = np.unique(removed_codes, return_index=True)[1]
    chosen = winners(arrived, arrived_codes)
    lone = first_removed[~np.isin(removed_codes[first_removed], arrived_codes)]
    replaced = np.isin(arrived_codes[chosen], removed_codes)
    rows = arrived.take(chosen).drop_columns([ROUTE_COLUMN])
    rows = rows.append_column(OP_COLUMN, pa.array(np.where(replaced, Op.REPLACE, Op.INSERT).astype(np.int8)))
    keys = removed.take(lone).drop_columns([ROUTE_COLUMN])
    keys = keys.append_column(OP_COLUMN, pa.array(np.full(len(lone), Op.REMOVE, np.int8)))
    staged = pa.concat_tables([filled(keys.select([*names, OP_COLUMN]), rows.schema), rows])
    return Settled(by_destination(staged), _extra(arrived, rows), unrouted)


def _extra(arrived: pa.Table, chosen: pa.Table) -> dict[int, int]:
    """How many arrivals of each destination were not chosen."""
    most = np.bincount(arrived.column(DESTINATION_COLUMN).to_numpy())
    extra = most - np.bincount(chosen.column(DESTINATION_COLUMN).to_numpy(), minlength=len(most))
    return {place: int(extra[place]) for place in np.flatnonzero(extra).tolist()}


def _ranks(column: pa.ChunkedArray) -> Codes:
    ranks: Codes = pc.rank(_flat(column), tiebreaker="dense").to_numpy().astype(np.int64)
    return ranks


def _flat(column: pa.ChunkedArray) -> pa.Array:
    """The values in one piece; lists, which Arrow does not compare, as text."""
    values = column.combine_chunks()
    if not pa.types.is_nested(values.type):
        return values
    return pa.array([None if value is None else str(value) for value in values.to_pylist()], pa.string())


def _siblings(value: str | None, routes: Mapping[str | None, tuple[int, ...]]) -> list[str | None]:
    """The routing values that share a destination with this one, itself included."""
    mine = set(routes.get(value, ()))
    return [value, *(other for other, places in routes.items() if other != value and mine.intersection(places))]


def _equals(column: pa.ChunkedArray, value: str | None) -> pa.ChunkedArray:
    return pc.is_null(column) if value is None else pc.equal(column, value)
