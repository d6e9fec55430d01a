"""The net changes of one table of a window, as rows for each member, by its mode and policy."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from trunkline.delivery.changes.history import (
    TIME_COLUMN,
    WHOLE_COLUMN,
    VersionedChanges,
    open_versions,
    settle_history,
)
from trunkline.delivery.changes.net import (
    Routes,
    Settled,
    settle,
    settle_append,
    settle_live,
    touched_keys,
    without_routes,
)
from trunkline.delivery.changes.rows import (
    DESTINATION_COLUMN,
    ROUTE_COLUMN,
    UNCHANGED_COLUMN,
    NetChanges,
)
from trunkline.delivery.changes.versions import BEFORE_ALL, Window
from trunkline.delivery.job.sound_rows import failed_members, shaped_apart
from trunkline.delivery.job.unstated import looked_up, stated
from trunkline.delivery.job.work import TableWork, TaskPipeline
from trunkline.delivery.sources.contract import ALL_ROUTES, ReadRequest


class MemberRows(NamedTuple):
    """What one table has for one member."""

    place: int  # the member
    rows: pa.Table  # staged rows without DESTINATION_COLUMN; of a table that is replaced, also without OP_COLUMN
    duplicates: int  # rows that lost against another of their key


class TableSettlement:
    """One table of a window in one task. ``raw``: as the source read it; the shape is applied here."""

    def __init__(self, pipeline: TaskPipeline, table: TableWork, through: int, raw: NetChanges) -> None:
        self._pipeline = pipeline
        self._table = table
        self._through = through
        self._raw = raw
        self._request = table.shaped.request(table.mark)
        if table.shaped.needs_whole_rows(raw):
            self._raw = self._looked_up(raw, Routes({}, (0,)), all_rows=True)
        shaped = table.shaped
        self.net, self._raw, failures = shaped_apart(shaped.net, self._raw, computes_route=shaped.computes_route)
        self.failed = failed_members(failures, pipeline.routes)  # members with a row on which the shape fails
        self.exact = table.shaped.exact(self._raw)  # see ``TaskDestination.step``

    def rows(self, members: Collection[int]) -> Iterator[MemberRows]:
        """Of each member that has any; those in mode history only if the table was read whole."""
        table = self._table
        if self.net.emptied:
            kept = {place for place in members if self._pipeline.targets[place].replaces(table, whole=True)}
            yield from whole_rows(self._pipeline, table, self._through, stated(self.net).arrived, kept)
            members = set(members) - kept
        for policy, places in self._pipeline.by_policy(table, members).items():
            routes = self._pipeline.routes.only(places)
            if policy.mode == "append":
                yield from slices(settle_append(self._stated(routes, all_rows=True), routes))
            elif policy.warns:
                yield from slices(self._settled_live(Routes(routes.by_value), everywhere=False))
                yield from slices(self._settled_live(Routes({}, routes.everywhere), everywhere=True))
            else:
                yield from slices(settle(self._stated(routes, all_rows=False), routes, table.shaped.key))

    # --- live rows ---

    def _settled_live(self, routes: Routes, *, everywhere: bool) -> Settled:
        """Rows may share a key, so its live rows are looked up, not inferred."""
        shaped, net = self._table.shaped, stated(self.net)
        if not (routes.by_value or routes.everywhere):
            return settle(net, routes, shaped.key)
        raw, request = stated(self._raw), self._request
        if everywhere:
            raw, net, request = without_routes(raw), without_routes(net), replace(request, routing="")
        keys = touched_keys(raw, request.key, routes)
        if not keys.num_rows:
            return settle(net, routes, shaped.key)
        live = self._live(request, keys) if shaped.one_to_one else self._state(everywhere=everywhere)
        return settle_live(net, live, routes, shaped.key)

    def _live(self, request: ReadRequest, keys: pa.Table) -> pa.Table:
        return self._shaped(self._pipeline.source.live(self._table.name, self._through, request, keys))

    def _state(self, *, everywhere: bool) -> pa.Table:
        """All rows: a key of the destination does not tell those of the source."""
        window, name = Window(BEFORE_ALL, self._through), self._table.name
        net = self._pipeline.source.net_changes(window, {name: self._request}, ALL_ROUTES)[name]
        return self._shaped(without_routes(net).arrived if everywhere else net.arrived)

    def _shaped(self, rows: pa.Table) -> pa.Table:
        return pa.Table.from_batches(self._table.shaped.rows(rows.to_batches()), stated(self.net).arrived.schema)

    def _stated(self, routes: Routes, *, all_rows: bool) -> NetChanges:
        """With the values that the window did not state, as far as destinations do not have them either."""
        if UNCHANGED_COLUMN not in self.net.arrived.column_names:
            return self.net
        if self._table.shape is None:
            return self._looked_up(self.net, routes, all_rows=all_rows)
        return self._table.shaped.net(self._looked_up(self._raw, routes, all_rows=all_rows))

    def _looked_up(self, net: NetChanges, routes: Routes, *, all_rows: bool) -> NetChanges:
        source, name, request = self._pipeline.source, self._table.name, self._request
        return looked_up(net, source, name, self._through, request, routes, all_rows=all_rows)


class HistorySettlement:
    """The versions of one table of a window in one task, for members in mode history."""

    def __init__(self, pipeline: TaskPipeline, table: TableWork, through: int, raw: VersionedChanges) -> None:
        self._pipeline = pipeline
        self._table = table
        self._through = through
        shaped = table.shaped
        self.changes, raw, failures = shaped_apart(shaped.versions, raw, computes_route=shaped.computes_route)
        self.failed = failed_members(failures, pipeline.routes)
        known = raw.removed.column(WHOLE_COLUMN)
        self.exact = table.shape is None or table.shape.filter is None or bool(pc.all(known, min_count=0).as_py())

    def rows(self, members: Collection[int]) -> Iterator[MemberRows]:
        """Of each member that has any."""
        if not self.changes.emptied:
            yield from slices(settle_history(self.changes, self._routes(members), self._table.shaped.key))
            return
        arrived = self.changes.arrived
        times = arrived.column(TIME_COLUMN).cast(pa.int64())
        time_us = times[0].as_py() if len(times) else None
        yield from whole_rows(self._pipeline, self._table, self._through, arrived, members, time_us)

    def _routes(self, members: Collection[int]) -> Routes:
        return self._pipeline.routes.only(members)


def whole_rows(
    pipeline: TaskPipeline,
    table: TableWork,
    through: int,
    arrived: pa.Table,
    members: Collection[int],
    time_us: int | None = None,
) -> Iterator[MemberRows]:
    """The rows of each member that has any, of a whole table as destinations see it, to replace what they hold."""
    key, columns = table.shaped.key, table.shaped.columns
    rows = arrived.select([ROUTE_COLUMN, *(column.name for column in columns)])
    net = NetChanges(rows.slice(0, 0).select([ROUTE_COLUMN, *key]), rows)
    for policy, places in pipeline.by_policy(table, members).items():
        routes = pipeline.routes.only(places)
        settled = settle_append(net, routes) if policy.mode == "append" else settle(net, routes, key)
        for each in slices(settled):
            if policy.mode == "history":
                yield each._replace(rows=open_versions(each.rows, columns, through, time_us))
            else:
                yield each._replace(rows=each.rows.select([column.name for column in columns]))


def slices(settled: Settled) -> Iterator[MemberRows]:
    """The rows of each destination that has any."""
    places = settled.staged.column(DESTINATION_COLUMN).to_numpy()
    found, starts = np.unique(places, return_index=True)
    ends = [*starts[1:], len(places)][: len(starts)]  # none if there are no rows
    for place, start, end in zip(found, starts, ends, strict=True):
        rows = settled.staged.slice(start, end - start).drop_columns([DESTINATION_COLUMN])
        yield MemberRows(int(place), rows, settled.duplicates.get(int(place), 0))
