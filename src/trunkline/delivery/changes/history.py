"""History mode (SCD type 2): every version of a row, with the span in which it was the present one.

A source with ordered changes gives every version of a window, a lake at most one for each window. Both come as
``VersionedChanges``: what each transaction removed and what it added, after all its changes.

Rules
 E1  A version begins at the end of the transaction that wrote it (`_valid_from`), and ends at the end of the one that
     changed or removed the row, or gave it to another destination (`_valid_to`). Positions are ends of the source.
     Transactions that share a position are in order: a version that lived between two of them begins and ends there.
 E2  Several changes of a key in one transaction are one version: the last state. A key that was removed and comes back
     in the same transaction with an equal row goes on: nothing is written. Whether rows are equal is known only if the
     removed row is whole (WHOLE_COLUMN); else each write of a row is a version.
 E3  What a transaction comes to depends on that transaction alone. So versions do not depend on how the changes are cut
     into windows.
 E4  Staged rows: a REMOVE closes the version of its key that was open before the window, with `_valid_to` and its time;
     an INSERT is a version of the window, closed or current. A key may have one REMOVE and many INSERTs. A REMOVE whose
     key has no open version does nothing.
 E5  A key has one open version. One more arrival without a removal is a duplicate: it is counted, and ends the version
     before.
 E6  All rows that a truncation removes are named: sources that know them read the state before it. If they do not
     (the log was trimmed), or if a table is captured again, ``emptied`` is true: then a destination compares its open
     versions with the rows at `through`, and versions end or begin there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trunkline.delivery.changes.column_steps import ColumnSteps
from trunkline.delivery.changes.columns import Column, Columns, arrow_schema
from trunkline.delivery.changes.net import Routes, Settled, by_destination, filled, routed, row_codes, surplus
from trunkline.delivery.changes.rows import (
    DESTINATION_COLUMN,
    OP_COLUMN,
    ORDINAL_COLUMN,
    RESERVED_PREFIX,
    ROUTE_COLUMN,
    VERSION_COLUMN,
    Op,
)
from trunkline.errors import ConfigError

VALID_FROM, VALID_FROM_TIME, VALID_TO, VALID_TO_TIME, CURRENT = (
    "_valid_from",
    "_valid_from_time",
    "_valid_to",
    "_valid_to_time",
    "_current",
)
HISTORY_COLUMNS: Final[Columns] = (
    Column(VALID_FROM, "BIGINT"),
    Column(VALID_FROM_TIME, "TIMESTAMP WITH TIME ZONE"),  # NULL: the source does not know it
    Column(VALID_TO, "BIGINT"),  # NULL: it is the present one
    Column(VALID_TO_TIME, "TIMESTAMP WITH TIME ZONE"),
    Column(CURRENT, "BOOLEAN"),
)
HISTORY_NAMES: Final = frozenset(column.name for column in HISTORY_COLUMNS)
TIME_COLUMN: Final = f"{RESERVED_PREFIX}_time"  # when the transaction committed; NULL: unknown
WHOLE_COLUMN: Final = f"{RESERVED_PREFIX}_whole"  # of removed rows: all values are stated, not only those of the key
TIME: Final = pa.timestamp("us", tz="UTC")
PLACE_FIELDS: Final = (
    pa.field(VERSION_COLUMN, pa.int64()),  # the end of the transaction
    pa.field(ORDINAL_COLUMN, pa.int64()),  # its number among those with the same end
    pa.field(TIME_COLUMN, TIME),
    pa.field(ROUTE_COLUMN, pa.string()),
)
PLACES: Final = tuple(field.name for field in PLACE_FIELDS)

Flags = npt.NDArray[np.bool_]


class VersionedChanges(NamedTuple):
    """The net changes of each transaction of a window. Every value of an arrived row is stated."""

    removed: pa.Table  # PLACE_FIELDS, WHOLE_COLUMN and every column; rows that are not whole state the key
    arrived: pa.Table  # PLACE_FIELDS and every column
    emptied: bool = False  # what was removed is not known: `arrived` is the whole table at `through` (E6)


def check_history(columns: Sequence[Column]) -> None:
    """Raises ``ConfigError`` that names a column of the source whose name history mode needs."""
    for column in columns:
        if column.name.lower() in HISTORY_NAMES:
            raise ConfigError(
                f"column {column.name!r} has a name that mode history uses; rename it with `columns.rename`, or in the "
                "source"
            )


def versioned(columns: Columns) -> Columns:
    """The columns of a history table."""
    return (*columns, *HISTORY_COLUMNS)


def versioned_steps(steps: ColumnSteps) -> ColumnSteps:
    """Steps of a table's columns as those of its history table."""
    origins = (*steps.origins, *(len(steps.before) + at for at in range(len(HISTORY_COLUMNS))))
    defaults = b""
    if steps.defaults:
        row = pa.ipc.read_record_batch(pa.py_buffer(steps.defaults), arrow_schema(steps.after))
        added = [pa.nulls(1, field.type) for field in arrow_schema(HISTORY_COLUMNS)]
        schema = arrow_schema(versioned(steps.after))
        defaults = pa.RecordBatch.from_arrays([*row.columns, *added], schema=schema).serialize().to_pybytes()
    return ColumnSteps(versioned(steps.before), versioned(steps.after), origins, defaults)


def removed_schema(columns: Columns) -> pa.Schema:
    return pa.schema([*PLACE_FIELDS, pa.field(WHOLE_COLUMN, pa.bool_()), *arrow_schema(columns)])


def arrived_schema(columns: Columns) -> pa.Schema:
    return pa.schema([*PLACE_FIELDS, *arrow_schema(columns)])


def open_versions(rows: pa.Table, columns: Columns, version: int, time_us: int | None) -> pa.Table:
    """Rows of a state as present versions that begin at a version: those of a seed, or of a table that is replaced."""
    count = rows.num_rows
    facts = {VALID_FROM: pa.repeat(pa.scalar(version, pa.int64()), count), VALID_FROM_TIME: _times(time_us, count)}
    facts[CURRENT] = pa.repeat(True, count)
    listed = {column.name: rows.column(column.name) for column in columns}
    return filled(pa.table({**listed, **facts}), arrow_schema(versioned(columns)))


def _times(time_us: int | None, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(time_us, pa.int64()), count).cast(TIME)


# ---------------------------------------------------------------------------------------------------------- staged rows


def settle_history(changes: VersionedChanges, routes: Routes, key: Sequence[str]) -> Settled:
    """The staged rows of every destination (E4): DESTINATION_COLUMN, OP_COLUMN, every column and HISTORY_COLUMNS."""
    assert not changes.emptied, "its rows replace a table"
    columns = changes.arrived.column_names[len(PLACES) :]
    removed, _ = routed(changes.removed, routes)
    arrived, unrouted = routed(changes.arrived, routes)
    removed, arrived = _without_equals(removed, arrived, columns)
    names = [DESTINATION_COLUMN, *key, *PLACES[:3]]
    events = pa.concat_tables([removed.select(names), arrived.select(names)]).combine_chunks()
    arrival = np.repeat([False, True], [removed.num_rows, arrived.num_rows])
    codes = row_codes(events.select([DESTINATION_COLUMN, *key]))
    version, ordinal = (events.column(name).to_numpy() for name in PLACES[:2])
    order = np.lexsort((arrival, ordinal, version, codes))
    codes, arrival = codes[order], arrival[order]
    again = np.zeros(len(order), np.bool_)  # the event before it is of the same key
    again[1:] = codes[1:] == codes[:-1]
    after_arrival = again & np.append(False, arrival[:-1])
    ends = np.full(len(order), -1, np.int64)  # of each arrival: the event that ends it
    ends[np.flatnonzero(after_arrival) - 1] = np.flatnonzero(after_arrival)
    places = events.take(order)
    opened = np.flatnonzero(arrival)
    rows = arrived.take(order[opened] - removed.num_rows)
    closed = pa.array(ends[opened], mask=ends[opened] < 0)
    versions = rows.select([DESTINATION_COLUMN, *columns])
    for name, column in _spans(places.take(opened), places.take(closed)).items():
        versions = versions.append_column(name, column)
    versions = versions.append_column(CURRENT, pa.array(ends[opened] < 0))
    versions = versions.append_column(OP_COLUMN, pa.array(np.full(len(opened), Op.INSERT, np.int8)))
    lone = np.flatnonzero(~arrival & ~again)
    closings = places.take(lone).select([DESTINATION_COLUMN, *key])
    closings = closings.append_column(VALID_TO, places.take(lone).column(VERSION_COLUMN))
    closings = closings.append_column(VALID_TO_TIME, places.take(lone).column(TIME_COLUMN))
    closings = closings.append_column(OP_COLUMN, pa.array(np.full(len(lone), Op.REMOVE, np.int8)))
    staged = pa.concat_tables([filled(closings, versions.schema), versions])
    return Settled(by_destination(staged), _counts(places, after_arrival & arrival), unrouted)


def _without_equals(removed: pa.Table, arrived: pa.Table, columns: Sequence[str]) -> tuple[pa.Table, pa.Table]:
    """E2."""
    whole = np.flatnonzero(removed.column(WHOLE_COLUMN).to_numpy(zero_copy_only=False))
    if not len(whole) or not arrived.num_rows:
        return removed, arrived
    names = [DESTINATION_COLUMN, VERSION_COLUMN, ORDINAL_COLUMN, *columns]
    codes = row_codes(pa.concat_tables([removed.take(whole).select(names), arrived.select(names)]))
    gone, came = np.split(codes, [len(whole)])
    kept = np.ones(removed.num_rows, np.bool_)
    kept[whole] = surplus(gone, came)
    return removed.filter(pa.array(kept)), arrived.filter(pa.array(surplus(came, gone)))


def _spans(begin: pa.Table, end: pa.Table) -> dict[str, pa.ChunkedArray]:
    return {
        VALID_FROM: begin.column(VERSION_COLUMN),
        VALID_FROM_TIME: begin.column(TIME_COLUMN),
        VALID_TO: end.column(VERSION_COLUMN),
        VALID_TO_TIME: end.column(TIME_COLUMN),
    }


def _counts(places: pa.Table, chosen: Flags) -> dict[int, int]:
    """How many of the chosen events each destination has."""
    counts = np.bincount(places.column(DESTINATION_COLUMN).to_numpy()[chosen])
    return {place: int(counts[place]) for place in np.flatnonzero(counts).tolist()}
