"""A small window inside one task: read by DuckDB, settled by the pure rule, applied.

There is no shuffle, and no row leaves the process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from trunkline.core.delivery_messages import JobMember, Result
from trunkline.delivery.changes.columns import Columns
from trunkline.delivery.changes.net import Routes, Settled, settle, settle_append, settle_live, touched_keys
from trunkline.delivery.changes.rows import DESTINATION_COLUMN, ROUTE_COLUMN, NetChanges
from trunkline.delivery.changes.windows import BEFORE_ALL, Window
from trunkline.delivery.job.apply import flush_destination, seed_destination
from trunkline.delivery.job.outcomes import failed
from trunkline.delivery.job.work import Counted, FlushWork, Portion, SeedWork, TaskReport, Work
from trunkline.delivery.sources.contract import ALL_ROUTES, ReadRequest, RouteFilter
from trunkline.errors import DuplicateKey, SourceExpired
from trunkline.plural import plural

EMPTIED: Final = "the source was emptied at once (truncated); the destination is seeded again"
FILTER_VALUES_MAX: Final = 500  # more of them in a query cost more than the rows of others, which routing leaves out


def flush_portion(work: Work, flush: FlushWork, portion: Portion) -> TaskReport:
    """Deliver one window to the members of a portion."""
    request = work.request(flush.columns, flush.mark)
    net = work.source.net_changes(flush.window, request, route_filter(work, portion))
    unrouted = count_unrouted(net.arrived, work.routes) if portion.counts_unrouted else None
    results: list[Result] = []
    counted: list[Counted] = []
    members = {work.index[member.destination]: member for member in portion.members}
    seen = set()
    if net.emptied:
        seen = {place for place in members if work.targets[place].mode == "mirror"}
        results += [failed(work.targets[place].name, SourceExpired(EMPTIED)) for place in seen]
        members = {place: member for place, member in members.items() if place not in seen}
    for place, staged, duplicates in _settled(work, flush, request, net, members):
        seen.add(place)
        target, member = work.targets[place], members[place]
        if duplicates and target.duplicates == "halt" and target.mode == "mirror":
            results.append(failed(target.name, _duplicate(target.name, staged, work.key, duplicates)))
            continue
        rows = staged.drop_columns([DESTINATION_COLUMN]).to_batches()
        result, count = flush_destination(target, member, flush, work.key, rows)
        results.append(result)
        counted.append(replace(count, duplicates=max(count.duplicates, duplicates)))
    if flush.stamp:
        rest = tuple(member for place, member in members.items() if place not in seen)
        stamped = stamp_portion(work, flush, replace(portion, members=rest))
        results += stamped.results
        counted += stamped.counted
    return TaskReport(tuple(results), tuple(counted), unrouted, "small")


def stamp_portion(work: Work, flush: FlushWork, portion: Portion) -> TaskReport:
    """Move the positions of members for which a window has nothing."""
    done = [
        flush_destination(work.targets[work.index[member.destination]], member, flush, work.key, ())
        for member in portion.members
    ]
    return TaskReport(tuple(result for result, _ in done), tuple(count for _, count in done), None, "small")


def _settled(
    work: Work, flush: FlushWork, request: ReadRequest, net: NetChanges, members: dict[int, JobMember]
) -> Iterator[tuple[int, pa.Table, int]]:
    """The staged rows of each destination that has any, by the mode and the policy of each."""
    for policy, places in work.by_policy(members).items():
        routes = routes_to(work.routes, places)
        if policy == "append":
            settled = settle_append(net, routes)
        elif policy == "warn":
            # A key may be shared, so what is live under it is looked up and not concluded.
            keys = touched_keys(net, work.key, routes)
            live = work.source.live(flush.window.through, request, keys) if keys.num_rows else net.arrived
            settled = settle_live(net, live, routes, work.key)
        else:
            settled = settle(net, routes, work.key)
        yield from slices(settled)


def seed_portion(work: Work, seed: SeedWork, portion: Portion) -> TaskReport:
    """Fill the members of a portion with the state at one version."""
    request = work.request(seed.columns, seed.mark)
    members = {work.index[member.destination]: member for member in portion.members}
    routes = routes_to(work.routes, set(members))
    empty = request.empty_rows()
    rows = empty
    if not seed.nothing:
        rows = work.source.net_changes(Window(BEFORE_ALL, seed.through), request, route_filter(work, portion)).arrived
    found = {place: (table, extra) for place, table, extra in slices(_seeded(work, rows, empty, routes, members))}
    results, counted = [], []
    for place, member in members.items():
        target = work.targets[place]
        table, duplicates = found.get(place, (None, 0))
        if table is not None and duplicates and target.duplicates == "halt" and target.mode == "mirror":
            results.append(failed(target.name, _duplicate(target.name, table, work.key, duplicates)))
            continue
        batches = [] if table is None else table.select([column.name for column in seed.columns]).to_batches()
        result, count = seed_destination(target, member, seed, work.key, batches)
        results.append(result)
        counted.append(replace(count, duplicates=max(count.duplicates, duplicates)))
    unrouted = count_unrouted(rows, work.routes) if portion.counts_unrouted and not seed.nothing else None
    return TaskReport(tuple(results), tuple(counted), unrouted, "small")


def _seeded(work: Work, rows: pa.Table, empty: pa.Table, routes: Routes, members: dict[int, JobMember]) -> Settled:
    net = NetChanges(empty.select([ROUTE_COLUMN, *work.key]), rows)
    mirrors = {place for place in members if work.targets[place].mode == "mirror"}
    keyed = settle(net, routes_to(routes, mirrors), work.key)
    plain = settle_append(net, routes_to(routes, members.keys() - mirrors))
    staged = pa.concat_tables([keyed.staged, plain.staged.select(keyed.staged.column_names)])
    return Settled(staged.sort_by(DESTINATION_COLUMN), keyed.duplicates, {})


# --- routing ---


def route_filter(work: Work, portion: Portion) -> RouteFilter:
    """The routing values that one portion reads; with very many of them it reads all, and routes only its own."""
    values = tuple(
        dict.fromkeys(
            value for member in portion.members for value in work.targets[work.index[member.destination]].values
        )
    )
    unless = tuple(work.routes) if portion.counts_unrouted else None
    return ALL_ROUTES if len(values) + len(unless or ()) > FILTER_VALUES_MAX else RouteFilter(values, unless)


def routes_to(routes: Routes, places: set[int]) -> Routes:
    """The part of the routes that leads to some destinations."""
    found = {value: tuple(place for place in targets if place in places) for value, targets in routes.items()}
    return {value: targets for value, targets in found.items() if targets}


def count_unrouted(arrived: pa.Table, routes: Routes) -> dict[str | None, int]:
    counts = arrived.column(ROUTE_COLUMN).combine_chunks().value_counts()
    pairs = zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True)
    return {value: count for value, count in pairs if value not in routes}


def unrouted_values(work: Work, window: Window, columns: Columns) -> dict[str | None, int]:
    """The arrivals of a window that no destination takes, by value; only keys and routing values are read."""
    needed = tuple(column for column in columns if column.name in (work.routing, *work.key))
    request = ReadRequest(needed, work.key, work.routing)
    routes = RouteFilter((), tuple(work.routes)) if len(work.routes) <= FILTER_VALUES_MAX else ALL_ROUTES
    return count_unrouted(work.source.net_changes(window, request, routes).arrived, work.routes)


def slices(settled: Settled) -> Iterator[tuple[int, pa.Table, int]]:
    """(destination, its rows, its duplicates), for each destination that has rows."""
    places = settled.staged.column(DESTINATION_COLUMN).to_numpy()
    found, starts = np.unique(places, return_index=True)
    ends = [*starts[1:], len(places)][: len(starts)]  # none where there are no rows
    for place, start, end in zip(found, starts, ends, strict=True):
        yield int(place), settled.staged.slice(start, end - start), settled.duplicates.get(int(place), 0)


def _duplicate(name: str, rows: pa.Table, key: Sequence[str], count: int) -> DuplicateKey:
    sharing = plural(count, "row of the source shares", "rows of the source share")
    return DuplicateKey(
        f"{sharing} a key ({', '.join(key)}) with another row of {name}; make the key unique, "
        "or set duplicates: warn, and resume the destination"
    )
