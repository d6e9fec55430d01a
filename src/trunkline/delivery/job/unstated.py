"""Arrived rows with values that their window does not state, for destinations that do not have them either.

A mirror has the values of its own rows (``destinations.unstated``). A row that came from another destination, and every
row of mode append, is looked up in the source's state: that reads the table's whole history in the log. With REPLICA
IDENTITY FULL no window has such rows.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trunkline.delivery.changes.net import Routes, row_codes
from trunkline.delivery.changes.rows import ORIGIN_COLUMN, ROUTE_COLUMN, UNCHANGED_COLUMN, NetChanges
from trunkline.delivery.sources.contract import ReadRequest, Source
from trunkline.errors import DestinationHalted


def stated(net: NetChanges) -> NetChanges:
    """Without the marks of such rows, for a caller that looks up all rows itself."""
    if UNCHANGED_COLUMN not in net.arrived.column_names:
        return net
    return NetChanges(net.removed, net.arrived.drop_columns([UNCHANGED_COLUMN, ORIGIN_COLUMN]), net.emptied)


def looked_up(
    net: NetChanges, source: Source, table: str, through: int, request: ReadRequest, routes: Routes, *, all_rows: bool
) -> NetChanges:
    """With the values of rows that moved to another routing value, or (``all_rows``) of all such rows. One that takes
    every row has those that moved too."""
    if UNCHANGED_COLUMN not in net.arrived.column_names:
        return net
    arrived = net.arrived
    route, origin = arrived.column(ROUTE_COLUMN), pc.struct_field(arrived.column(ORIGIN_COLUMN), ROUTE_COLUMN)
    wanted = pc.is_valid(arrived.column(UNCHANGED_COLUMN)).to_numpy()
    if not (all_rows and routes.everywhere):
        wanted &= pc.is_in(route, value_set=pa.array(list(routes.by_value), pa.string())).to_numpy()
    if not all_rows:
        wanted &= pc.fill_null(pc.not_equal(route, origin), True).to_numpy()
    if not wanted.any():
        return stated(net) if all_rows else net
    keys = arrived.filter(pa.array(wanted)).select([ROUTE_COLUMN, *request.key])
    if not request.key:
        raise DestinationHalted(
            "an update did not state all values of its row, and without `key` the row cannot be looked up; give the "
            "pipeline a key, or the table REPLICA IDENTITY FULL, then reseed"
        )
    live = source.live(table, through, request, keys)
    _check_each_once(keys, live)
    rest = arrived.filter(pa.array(~wanted))
    marks = [pa.nulls(len(live), rest.schema.field(name).type) for name in (UNCHANGED_COLUMN, ORIGIN_COLUMN)]
    whole = live.append_column(UNCHANGED_COLUMN, marks[0]).append_column(ORIGIN_COLUMN, marks[1])
    found = NetChanges(net.removed, pa.concat_tables([rest, whole.select(rest.column_names)]), net.emptied)
    return stated(found) if all_rows else found


def _check_each_once(keys: pa.Table, live: pa.Table) -> None:
    codes = row_codes(pa.concat_tables([keys, live.select(keys.column_names).cast(keys.schema)]))
    wanted, found = np.split(codes, [len(keys)])
    if len(live) != len(keys) or not np.array_equal(np.unique(wanted), np.unique(found)):
        raise DestinationHalted(
            "an update did not state all values of its row, and several rows of the source share its key; make the "
            "key unique, or give the table REPLICA IDENTITY FULL, then reseed"
        )
