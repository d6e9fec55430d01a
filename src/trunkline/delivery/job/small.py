"""A small window inside one task: read, settled and applied without a shuffle. No row leaves the process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from trunkline.core.delivery_messages import JobMember, Result
from trunkline.delivery.changes.columns import Columns
from trunkline.delivery.changes.net import Routes, Settled, settle, settle_append, settle_live, touched_keys
from trunkline.delivery.changes.rows import DESTINATION_COLUMN, ROUTE_COLUMN, NetChanges
from trunkline.delivery.changes.versions import BEFORE_ALL, Window
from trunkline.delivery.job.apply import flush_destination, seed_destination
from trunkline.delivery.job.results import JobReport, failed
from trunkline.delivery.job.unstated import looked_up, stated
from trunkline.delivery.job.work import FlushWork, Portion, SeedWork, TaskPipeline
from trunkline.delivery.sources.contract import ALL_ROUTES, ReadRequest, RouteFilter
from trunkline.errors import DuplicateKey, SourceExpired
from trunkline.plural import plural

EMPTIED: Final = "the source was truncated; the destination is seeded again"
FILTER_VALUES_MAX: Final = 500  # with more, the query costs more than reading rows that routing then drops


def flush_portion(pipeline: TaskPipeline, flush: FlushWork, portion: Portion) -> JobReport:
    """Deliver one window to the members of a portion."""
    request = pipeline.request(flush.columns, flush.mark)
    net = pipeline.source.net_changes(flush.window, request, route_filter(pipeline, portion))
    unrouted = count_unrouted(net.arrived, pipeline.routes) if portion.counts_unrouted else None
    results: list[Result] = []
    members = {pipeline.index[member.destination]: member for member in portion.members}
    seen = set()
    if net.emptied:
        seen = {place for place in members if pipeline.targets[place].mode == "mirror"}
        results += [failed(pipeline.targets[place].name, SourceExpired(EMPTIED)) for place in seen]
        members = {place: member for place, member in members.items() if place not in seen}
    for place, staged, duplicates in _settled(pipeline, flush, request, net, members):
        seen.add(place)
        target, member = pipeline.targets[place], members[place]
        if duplicates and target.duplicates == "halt" and target.mode == "mirror":
            results.append(failed(target.name, _duplicate(target.name, staged, pipeline.key, duplicates)))
            continue
        rows = staged.drop_columns([DESTINATION_COLUMN]).to_batches()
        result = flush_destination(target, member, flush, pipeline.key, rows)
        results.append(replace(result, duplicates=max(result.duplicates, duplicates)))
    if flush.stamp:
        rest = tuple(member for place, member in members.items() if place not in seen)
        results += stamp_portion(pipeline, flush, replace(portion, members=rest)).results
    return JobReport(tuple(results), unrouted=unrouted, path="small")


def stamp_portion(pipeline: TaskPipeline, flush: FlushWork, portion: Portion) -> JobReport:
    """Move the positions of members for which a window has nothing."""
    targets = (pipeline.targets[pipeline.index[member.destination]] for member in portion.members)
    results = (
        flush_destination(target, member, flush, pipeline.key, ())
        for target, member in zip(targets, portion.members, strict=True)
    )
    return JobReport(tuple(results), path="small")


def _settled(
    pipeline: TaskPipeline, flush: FlushWork, request: ReadRequest, net: NetChanges, members: dict[int, JobMember]
) -> Iterator[tuple[int, pa.Table, int]]:
    """The staged rows of each destination that has any, by its mode and policy."""
    for policy, places in pipeline.by_policy(members).items():
        routes = routes_to(pipeline.routes, places)
        look_up = partial(looked_up, net, pipeline.source, flush.window.through, request, routes)
        if policy == "append":
            settled = settle_append(look_up(all_rows=True), routes)
        elif policy == "warn":
            # Rows may share a key, so its live rows are looked up, not inferred.
            keys = touched_keys(net, pipeline.key, routes)
            live = pipeline.source.live(flush.window.through, request, keys) if keys.num_rows else net.arrived
            settled = settle_live(stated(net), live, routes, pipeline.key)
        else:
            settled = settle(look_up(all_rows=False), routes, pipeline.key)
        yield from slices(settled)


def seed_portion(pipeline: TaskPipeline, seed: SeedWork, portion: Portion) -> JobReport:
    """Seed the members of a portion with the state at one version."""
    request = pipeline.request(seed.columns, seed.mark)
    members = {pipeline.index[member.destination]: member for member in portion.members}
    routes = routes_to(pipeline.routes, set(members))
    empty = request.empty_rows()
    rows = empty
    if not seed.nothing:
        rows = pipeline.source.net_changes(
            Window(BEFORE_ALL, seed.through), request, route_filter(pipeline, portion)
        ).arrived
    found = {place: (table, extra) for place, table, extra in slices(_seeded(pipeline, rows, empty, routes, members))}
    results = []
    for place, member in members.items():
        target = pipeline.targets[place]
        table, duplicates = found.get(place, (None, 0))
        if table is not None and duplicates and target.duplicates == "halt" and target.mode == "mirror":
            results.append(failed(target.name, _duplicate(target.name, table, pipeline.key, duplicates)))
            continue
        batches = [] if table is None else table.select([column.name for column in seed.columns]).to_batches()
        result = seed_destination(target, member, seed, pipeline.key, batches)
        results.append(replace(result, duplicates=max(result.duplicates, duplicates)))
    unrouted = count_unrouted(rows, pipeline.routes) if portion.counts_unrouted and not seed.nothing else None
    return JobReport(tuple(results), unrouted=unrouted, path="small")


def _seeded(
    pipeline: TaskPipeline, rows: pa.Table, empty: pa.Table, routes: Routes, members: dict[int, JobMember]
) -> Settled:
    net = NetChanges(empty.select([ROUTE_COLUMN, *pipeline.key]), rows)
    mirrors = {place for place in members if pipeline.targets[place].mode == "mirror"}
    keyed = settle(net, routes_to(routes, mirrors), pipeline.key)
    plain = settle_append(net, routes_to(routes, members.keys() - mirrors))
    staged = pa.concat_tables([keyed.staged, plain.staged.select(keyed.staged.column_names)])
    return Settled(staged.sort_by(DESTINATION_COLUMN), keyed.duplicates, {})


# --- routing ---


def route_filter(pipeline: TaskPipeline, portion: Portion) -> RouteFilter:
    """The routing values that one portion reads; with very many it reads all rows, and routes only its own."""
    values = tuple(
        dict.fromkeys(
            value for member in portion.members for value in pipeline.targets[pipeline.index[member.destination]].values
        )
    )
    unless = tuple(pipeline.routes) if portion.counts_unrouted else None
    return ALL_ROUTES if len(values) + len(unless or ()) > FILTER_VALUES_MAX else RouteFilter(values, unless)


def routes_to(routes: Routes, places: set[int]) -> Routes:
    """The routes to these destinations."""
    found = {value: tuple(place for place in targets if place in places) for value, targets in routes.items()}
    return {value: targets for value, targets in found.items() if targets}


def count_unrouted(arrived: pa.Table, routes: Routes) -> dict[str | None, int]:
    counts = arrived.column(ROUTE_COLUMN).combine_chunks().value_counts()
    pairs = zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True)
    return {value: count for value, count in pairs if value not in routes}


def unrouted_values(pipeline: TaskPipeline, window: Window, columns: Columns) -> dict[str | None, int]:
    """The unrouted rows that arrived in a window, by value; only keys and routing values are read."""
    needed = tuple(column for column in columns if column.name in (pipeline.routing, *pipeline.key))
    request = ReadRequest(needed, pipeline.key, pipeline.routing)
    routes = RouteFilter((), tuple(pipeline.routes)) if len(pipeline.routes) <= FILTER_VALUES_MAX else ALL_ROUTES
    return count_unrouted(pipeline.source.net_changes(window, request, routes).arrived, pipeline.routes)


def slices(settled: Settled) -> Iterator[tuple[int, pa.Table, int]]:
    """(destination, its rows, its duplicates), for each destination that has rows."""
    places = settled.staged.column(DESTINATION_COLUMN).to_numpy()
    found, starts = np.unique(places, return_index=True)
    ends = [*starts[1:], len(places)][: len(starts)]  # none if there are no rows
    for place, start, end in zip(found, starts, ends, strict=True):
        yield int(place), settled.staged.slice(start, end - start), settled.duplicates.get(int(place), 0)


def _duplicate(name: str, rows: pa.Table, key: Sequence[str], count: int) -> DuplicateKey:
    sharing = plural(count, "row of the source shares", "rows of the source share")
    return DuplicateKey(
        f"{sharing} a key ({', '.join(key)}) with another row of {name}; make the key unique, "
        "or set duplicates: warn, and resume the destination"
    )
