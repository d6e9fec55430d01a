"""The rule of delivery for ordered sources: every change has a place in one order, and the last event of a key wins.

Rules, beside those of ``rule``
 O1  Order is (version, ordinal). No two changes have the same place.
 O2  A preimage and a delete remove *their own* key from *their own* destination; inserts and postimages are arrivals.
 O3  The last event of a (destination, key) decides. An arrival is a REPLACE if the first event was a removal, because
     then the key was there before, else an INSERT. A removal is a REMOVE even if the key also arrived in the window:
     the destination ends right whatever it held.
 O4  An insert right after another arrival of its key is a duplicate; it is counted, and the last row wins.
 O5  A truncation removes every earlier row, at every destination. Nothing before it counts; what comes after it arrives
     in empty tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from trunkline.delivery.rule import Routes, by_destination, filled, routed, row_codes
from trunkline.delivery.sources.contract import ROUTE_COLUMN, NetChanges
from trunkline.delivery.windows import DESTINATION_COLUMN, OP_COLUMN, Op

VERSION_COLUMN: Final = "_trunkline_version"
ORDINAL_COLUMN: Final = "_trunkline_ordinal"
KIND_COLUMN: Final = "_trunkline_kind"  # text: a Kind
PLACE: Final = [(VERSION_COLUMN, "ascending"), (ORDINAL_COLUMN, "ascending")]
MARKS: Final = [VERSION_COLUMN, ORDINAL_COLUMN, KIND_COLUMN, ROUTE_COLUMN]

Places = npt.NDArray[np.intp]


class Kind(StrEnum):
    INSERT = "insert"
    UPDATE_PREIMAGE = "update_preimage"
    UPDATE_POSTIMAGE = "update_postimage"
    DELETE = "delete"
    TRUNCATE = "truncate"


ARRIVALS: Final = pa.array([Kind.INSERT, Kind.UPDATE_POSTIMAGE], pa.string())


class SettledOrdered(NamedTuple):
    """What a window means for every destination, as ``rule.Settled`` has it."""

    staged: pa.Table
    duplicates: dict[int, int]
    unrouted: dict[str | None, int]
    truncated: bool  # every destination is emptied first; the staged rows are then all INSERTs


def settle_ordered(changes: pa.Table, routes: Routes, key: Sequence[str]) -> SettledOrdered:
    """One row for each (destination, key) that the window touched. ``changes`` has MARKS and every column."""
    rest, truncated = _since_truncation(changes)
    taken, _ = routed(rest, routes)
    taken = taken.sort_by(PLACE)
    codes = row_codes(taken.select([DESTINATION_COLUMN, *key]))
    arrival = _is_arrival(taken)
    first, last = _ends(codes)
    ops = np.where(arrival[last], np.where(arrival[first] | truncated, Op.INSERT, Op.REPLACE), Op.REMOVE)
    kept = ops != Op.REMOVE
    rows = _with_ops(taken.take(last[kept]), ops[kept])
    if not truncated:
        gone = _with_ops(taken.take(last[~kept]), ops[~kept]).select([DESTINATION_COLUMN, *key, OP_COLUMN])
        rows = pa.concat_tables([filled(gone, rows.schema), rows])
    return SettledOrdered(
        by_destination(rows), _duplicates(taken, codes, arrival), _unrouted(rest, routes, key), truncated
    )


def net_of_ordered(changes: pa.Table, key: Sequence[str]) -> tuple[NetChanges, bool]:
    """The net difference that ordered changes make, by (route, key), and whether a truncation is among them.

    So an ordered source is delivered like any other: ``rule.settle`` comes to what ``settle_ordered`` does. A removal
    is told even of a key that arrived in the window, too; arrivals that are duplicates (O4) are told with the last.
    """
    rest, truncated = _since_truncation(changes)
    codes = row_codes(rest.select([ROUTE_COLUMN, *key]))
    arrival = _is_arrival(rest)
    first, last = _ends(codes)
    kept = np.zeros(rest.num_rows, np.bool_)
    kept[last[arrival[last]]] = True
    order, follows = _followed(codes, arrival)
    inserted = pc.equal(rest.column(KIND_COLUMN), Kind.INSERT).to_numpy(zero_copy_only=False)
    doubled = np.flatnonzero(follows & inserted[order])
    kept[order[doubled - 1]] |= arrival[order[doubled - 1]] & kept[order[doubled]]
    removals = last[~arrival[first] | ~arrival[last]]
    columns = [name for name in rest.column_names if name not in (VERSION_COLUMN, ORDINAL_COLUMN, KIND_COLUMN)]
    net = NetChanges(rest.take(removals).select([ROUTE_COLUMN, *key]), rest.take(np.flatnonzero(kept)).select(columns))
    return net, truncated


def arrivals_only(changes: pa.Table) -> tuple[NetChanges, bool]:
    """As ``net_of_ordered`` where there is no key: every arrival counts, and nothing can be told of removals."""
    rest, truncated = _since_truncation(changes)
    arrived = rest.take(np.flatnonzero(_is_arrival(rest)))
    columns = [name for name in rest.column_names if name not in (VERSION_COLUMN, ORDINAL_COLUMN, KIND_COLUMN)]
    return NetChanges(rest.slice(0, 0).select([ROUTE_COLUMN]), arrived.select(columns)), truncated


def _since_truncation(changes: pa.Table) -> tuple[pa.Table, bool]:
    """The changes after the last truncation, and whether there is one."""
    ordered = changes.sort_by(PLACE)
    found = np.flatnonzero(pc.equal(ordered.column(KIND_COLUMN), Kind.TRUNCATE).to_numpy())
    return (ordered.slice(found[-1] + 1), True) if len(found) else (ordered, False)


def _is_arrival(rows: pa.Table) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = pc.is_in(rows.column(KIND_COLUMN), value_set=ARRIVALS).to_numpy()
    return found


def _ends(codes: npt.NDArray[np.int64]) -> tuple[Places, Places]:
    """The first and the last place of each code."""
    first = np.unique(codes, return_index=True)[1]
    last = len(codes) - 1 - np.unique(codes[::-1], return_index=True)[1]
    return first, last


def _with_ops(rows: pa.Table, ops: npt.NDArray[np.int64]) -> pa.Table:
    return rows.drop_columns(MARKS).append_column(OP_COLUMN, pa.array(ops.astype(np.int8)))


def _duplicates(rows: pa.Table, codes: npt.NDArray[np.int64], arrival: npt.NDArray[np.bool_]) -> dict[int, int]:
    """Inserts right after an arrival of the same key, by destination."""
    order, follows = _followed(codes, arrival)
    inserted = pc.equal(rows.column(KIND_COLUMN), Kind.INSERT).to_numpy()[order]
    places = rows.column(DESTINATION_COLUMN).to_numpy()[order][follows & inserted]
    found, counts = np.unique(places, return_counts=True)
    return dict(zip(found.tolist(), counts.tolist(), strict=True))


def _followed(codes: npt.NDArray[np.int64], arrival: npt.NDArray[np.bool_]) -> tuple[Places, npt.NDArray[np.bool_]]:
    """The places by code, and which of them come right after an arrival of the same code."""
    order = np.argsort(codes, kind="stable")
    follows = np.zeros(len(order), np.bool_)
    follows[1:] = (np.diff(codes[order]) == 0) & arrival[order][:-1]
    return order, follows


def _unrouted(rows: pa.Table, routes: Routes, key: Sequence[str]) -> dict[str | None, int]:
    """How many keys are there at the end that no destination takes, by routing value."""
    values = rows.column(ROUTE_COLUMN).to_pylist()
    lost = rows.take(np.flatnonzero([value not in routes or not routes[value] for value in values]))
    _, last = _ends(row_codes(lost.select([ROUTE_COLUMN, *key])))
    counts = lost.take(last[_is_arrival(lost)[last]]).column(ROUTE_COLUMN).combine_chunks().value_counts()
    return dict(zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True))
