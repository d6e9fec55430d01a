"""The rule of delivery for ordered sources: changes are totally ordered, and the last event of a key wins.

Rules, applied before those of ``net``
 O1  The order is (version, ordinal), which is unique.
 O2  A preimage and a delete remove *their own* key under *their own* routing value; inserts and postimages arrive.
 O3  The last event of a (routing value, key) decides whether it arrives. It is also removed if its first event was a
     removal, because then it existed before, or if its last was one: the result is right whatever the destination held.
 O4  Where the last event is an insert right after another arrival, both arrive: they are duplicates.
 O5  A truncation removes every earlier row, at every destination. Earlier changes are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from trunkline.delivery.changes.net import row_codes
from trunkline.delivery.changes.rows import (
    KIND_COLUMN,
    ORDINAL_COLUMN,
    ROUTE_COLUMN,
    VERSION_COLUMN,
    ChangeKind,
    NetChanges,
)

ORDER: Final = [(VERSION_COLUMN, "ascending"), (ORDINAL_COLUMN, "ascending")]

Indices = npt.NDArray[np.intp]
Flags = npt.NDArray[np.bool_]


ARRIVALS: Final = pa.array([ChangeKind.INSERT, ChangeKind.UPDATE_POSTIMAGE], pa.string())


class Decided(NamedTuple):
    """What the events of each code come to. Indices of events."""

    arrived: Indices
    first: Indices  # of each code
    last: Indices  # of each code
    arrival: Flags  # of each event


def net_of_ordered(changes: pa.Table, key: Sequence[str]) -> tuple[NetChanges, bool]:
    """The net changes by (route, key), and whether a truncation is among the changes."""
    rest, truncated = since_truncation(changes)
    arrived, first, last, arrival = decided(rest, [ROUTE_COLUMN, *key])
    removals = last[~arrival[first] | ~arrival[last]]
    columns = [name for name in rest.column_names if name not in (VERSION_COLUMN, ORDINAL_COLUMN, KIND_COLUMN)]
    net = NetChanges(rest.take(removals).select([ROUTE_COLUMN, *key]), rest.take(arrived).select(columns))
    return net, truncated


def decided(events: pa.Table, names: Sequence[str]) -> Decided:
    """O3 and O4 for events in order, without truncations, by the values of some columns."""
    codes = row_codes(events.select(names))
    arrival = _is_arrival(events)
    first, last = _ends(codes)
    kept = np.zeros(events.num_rows, np.bool_)
    kept[last[arrival[last]]] = True
    order, follows = _followed(codes, arrival)
    inserted = pc.equal(events.column(KIND_COLUMN), ChangeKind.INSERT).to_numpy(zero_copy_only=False)
    doubled = np.flatnonzero(follows & inserted[order])
    kept[order[doubled - 1]] |= arrival[order[doubled - 1]] & kept[order[doubled]]
    return Decided(np.flatnonzero(kept), first, last, arrival)


def arrivals_only(changes: pa.Table) -> tuple[NetChanges, bool]:
    """As ``net_of_ordered``, without a key: every arrival counts, and removals are ignored."""
    rest, truncated = since_truncation(changes)
    arrived = rest.take(np.flatnonzero(_is_arrival(rest)))
    columns = [name for name in rest.column_names if name not in (VERSION_COLUMN, ORDINAL_COLUMN, KIND_COLUMN)]
    return NetChanges(rest.slice(0, 0).select([ROUTE_COLUMN]), arrived.select(columns)), truncated


def since_truncation(changes: pa.Table) -> tuple[pa.Table, bool]:
    """The changes after the last truncation, and whether there is one."""
    ordered = changes.sort_by(ORDER)
    found = np.flatnonzero(pc.equal(ordered.column(KIND_COLUMN), ChangeKind.TRUNCATE).to_numpy())
    return (ordered.slice(found[-1] + 1), True) if len(found) else (ordered, False)


def _is_arrival(rows: pa.Table) -> Flags:
    found: Flags = pc.is_in(rows.column(KIND_COLUMN), value_set=ARRIVALS).to_numpy()
    return found


def _ends(codes: npt.NDArray[np.int64]) -> tuple[Indices, Indices]:
    """The first and the last index of each code."""
    first = np.unique(codes, return_index=True)[1]
    last = len(codes) - 1 - np.unique(codes[::-1], return_index=True)[1]
    return first, last


def _followed(codes: npt.NDArray[np.int64], arrival: Flags) -> tuple[Indices, Flags]:
    """The indices by code, and which of them come right after an arrival of the same code."""
    order = np.argsort(codes, kind="stable")
    follows = np.zeros(len(order), np.bool_)
    follows[1:] = (np.diff(codes[order]) == 0) & arrival[order][:-1]
    return order, follows
