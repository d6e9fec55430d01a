"""A small window inside one task: read once for all its tables, settled and applied without a shuffle. No row leaves
the process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import pyarrow as pa
from msgspec.structs import replace

from trunkline.delivery.changes.history import VersionedChanges
from trunkline.delivery.changes.net import Routes
from trunkline.delivery.changes.rows import ROUTE_COLUMN, NetChanges
from trunkline.delivery.changes.versions import BEFORE_ALL, Window
from trunkline.delivery.job.apply import apply_drafts
from trunkline.delivery.job.drafts import MemberDraft, in_memory
from trunkline.delivery.job.results import JobReport
from trunkline.delivery.job.settlement import HistorySettlement, MemberRows, TableSettlement, whole_rows
from trunkline.delivery.job.sound_rows import failed_members, shaped_apart
from trunkline.delivery.job.work import FlushWork, Portion, SeedWork, TableWork, TaskPipeline
from trunkline.delivery.sources.contract import ALL_ROUTES, RouteFilter
from trunkline.errors import TrunklineError

FILTER_VALUES_MAX: Final = 500  # with more, the query costs more than reading rows that routing then drops
Counts = dict[str | None, int]  # rows by routing value


def flush_portion(pipeline: TaskPipeline, flush: FlushWork, portion: Portion) -> JobReport:
    """Deliver one window to the members of a portion."""
    drafts = _drafts(pipeline, portion)
    routes, through = route_filter(pipeline, portion), flush.window.through
    histories = {table.name: _in_history(drafts, table) for table in flush.tables}
    nets = _net_changes(
        pipeline, flush.window, [table for table in flush.tables if histories[table.name] < drafts.keys()], routes
    )
    versions = _versions(pipeline, flush.window, [table for table in flush.tables if histories[table.name]], routes)
    unrouted: Counter[str | None] = Counter()
    for table in flush.tables:
        if table.name in versions:
            history = HistorySettlement(pipeline, table, through, versions.pop(table.name))
            arrived = history.changes.arrived
            mine = {place: drafts[place] for place in histories[table.name]}
            _collect(mine, table, history.rows(mine.keys()), whole=history.changes.emptied, exact=history.exact)
            _fail(mine, history.failed)
        if table.name in nets:
            settlement = TableSettlement(pipeline, table, through, nets.pop(table.name))
            arrived = settlement.net.arrived
            mine = {place: draft for place, draft in drafts.items() if place not in histories[table.name]}
            _collect(mine, table, settlement.rows(mine.keys()), whole=settlement.net.emptied, exact=settlement.exact)
            _fail(mine, settlement.failed)
        if portion.counts_unrouted:
            unrouted.update(count_unrouted(arrived, pipeline.routes))
    chosen = [draft for draft in drafts.values() if flush.stamp or not draft.empty]
    results = apply_drafts(pipeline, flush, chosen)
    return JobReport(tuple(results), unrouted=dict(unrouted) if portion.counts_unrouted else None, path="small")


def stamp_portion(pipeline: TaskPipeline, flush: FlushWork, portion: Portion) -> JobReport:
    """Move the positions of members for which a window has no rows."""
    drafts = _drafts(pipeline, portion)
    for table in flush.tables:
        _collect(drafts, table, (), whole=table.whole, exact=True)
    return JobReport(tuple(apply_drafts(pipeline, flush, drafts.values())), path="small")


def seed_portion(pipeline: TaskPipeline, seed: SeedWork, portion: Portion) -> JobReport:
    """Seed the members of a portion with the state at one version."""
    drafts = _drafts(pipeline, portion)
    window, unrouted = Window(BEFORE_ALL, seed.through), Counter[str | None]()
    nets = {} if seed.nothing else _net_changes(pipeline, window, seed.tables, route_filter(pipeline, portion))
    for table in seed.tables:
        request = table.shaped.request(table.mark)
        nothing = NetChanges(request.empty_rows().select([ROUTE_COLUMN, *request.stated]), request.empty_rows())
        shaped, raw = table.shaped, nets.pop(table.name, nothing)
        net, _, failures = shaped_apart(shaped.net, raw, computes_route=shaped.computes_route)
        arrived = net.arrived
        if portion.counts_unrouted:
            unrouted.update(count_unrouted(arrived, pipeline.routes))
        found = whole_rows(pipeline, table, seed.through, arrived, drafts.keys())
        _collect(drafts, table, found, whole=True, exact=True)
        _fail(drafts, failed_members(failures, pipeline.routes))
    results = apply_drafts(pipeline, seed, drafts.values())
    counted = portion.counts_unrouted and not seed.nothing
    return JobReport(tuple(results), unrouted=dict(unrouted) if counted else None, path="small")


def _net_changes(
    pipeline: TaskPipeline, window: Window, tables: Sequence[TableWork], routes: RouteFilter
) -> dict[str, NetChanges]:
    """The window is read once for all tables; those that join late, as of its end."""
    if any(table.shaped.computes_route for table in tables):
        routes = ALL_ROUTES
    requests = {table.name: table.shaped.request(table.mark) for table in tables if not table.late}
    states = {table.name: table.shaped.request(table.mark) for table in tables if table.late}
    found = dict(pipeline.source.net_changes(window, requests, routes)) if requests else {}
    if states:
        whole = pipeline.source.net_changes(Window(BEFORE_ALL, window.through), states, routes)
        found |= {name: net._replace(emptied=True) for name, net in whole.items()}
    return found


def _versions(
    pipeline: TaskPipeline, window: Window, tables: Sequence[TableWork], routes: RouteFilter
) -> dict[str, VersionedChanges]:
    """For mode history."""
    if any(table.shaped.computes_route for table in tables):
        routes = ALL_ROUTES
    requests = {table.name: table.shaped.request(table.mark, whole=True) for table in tables}
    return dict(pipeline.source.versions(window, requests, routes)) if requests else {}


# --- drafts ---


def _in_history(drafts: Mapping[int, MemberDraft], table: TableWork) -> set[int]:
    """The members that get every version of a table. One that joins late has no versions yet."""
    return (
        set()
        if table.late
        else {place for place, draft in drafts.items() if draft.target.policy(table).mode == "history"}
    )


def _drafts(pipeline: TaskPipeline, portion: Portion) -> dict[int, MemberDraft]:
    members = pipeline.numbered(portion.members)
    return {place: MemberDraft(pipeline.targets[place], member) for place, member in members.items()}


def _collect(
    drafts: Mapping[int, MemberDraft], table: TableWork, found: Iterable[MemberRows], *, whole: bool, exact: bool
) -> None:
    """The rows of a table; a table that was read ``whole``, or changes for everyone, is also for members without."""
    for place, rows, duplicates in found:
        drafts[place].add(table, in_memory(rows), duplicates, whole=whole, exact=exact)
    if table.for_everyone or whole:
        for draft in drafts.values():
            draft.follow(table, whole=whole)


def _fail(drafts: Mapping[int, MemberDraft], failed: Mapping[int, TrunklineError]) -> None:
    """These members are not written."""
    for place in drafts.keys() & failed.keys():
        drafts[place].error = drafts[place].error or failed[place]


# --- routing ---


def route_filter(pipeline: TaskPipeline, portion: Portion) -> RouteFilter:
    """The routing values that one portion reads; with very many it reads all rows, and routes only its own."""
    targets = [pipeline.targets[place] for place in pipeline.numbered(portion.members)]
    if any(target.values is None for target in targets):
        return ALL_ROUTES
    values = tuple(dict.fromkeys(value for target in targets for value in target.values or ()))
    counts = portion.counts_unrouted and not pipeline.routes.everywhere
    unless = tuple(pipeline.routes.by_value) if counts else None
    return ALL_ROUTES if len(values) + len(unless or ()) > FILTER_VALUES_MAX else RouteFilter(values, unless)


def count_unrouted(arrived: pa.Table, routes: Routes) -> Counts:
    """Rows that no destination takes, by value."""
    return {} if routes.everywhere else count_unknown(arrived, routes)


def count_unknown(arrived: pa.Table, routes: Routes) -> Counts:
    """Rows whose routing value no destination has."""
    counts = arrived.column(ROUTE_COLUMN).combine_chunks().value_counts()
    pairs = zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True)
    return {value: count for value, count in pairs if value not in routes.by_value}


def unknown_values(pipeline: TaskPipeline, window: Window, tables: Sequence[TableWork]) -> Counts:
    """The rows that arrived in a window with a routing value that no destination has, by value; without a shape, only
    keys and routing values are read."""
    routes, tables = pipeline.routes, [_narrow(table) for table in tables]
    known = len(routes.by_value) <= FILTER_VALUES_MAX
    chosen = RouteFilter((), tuple(routes.by_value)) if known else ALL_ROUTES
    found: Counter[str | None] = Counter()
    nets = _net_changes(pipeline, window, tables, chosen)
    for table in tables:
        shaped = table.shaped
        net, _, _ = shaped_apart(shaped.net, nets.pop(table.name), computes_route=shaped.computes_route)
        found.update(count_unknown(net.arrived, routes))
    return dict(found)


def _narrow(table: TableWork) -> TableWork:
    needed = tuple(column for column in table.columns if column.name in (table.routing, *table.key))
    return table if table.shape is not None else replace(table, columns=needed)
