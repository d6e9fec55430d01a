"""The versions of a window, for sources of one table: lakes, and logs of one table (see ``history``)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trunkline.delivery.changes.columns import Columns
from trunkline.delivery.changes.history import (
    TIME,
    TIME_COLUMN,
    WHOLE_COLUMN,
    VersionedChanges,
    arrived_schema,
    removed_schema,
)
from trunkline.delivery.changes.net import filled
from trunkline.delivery.changes.ordered import ORDER, decided, since_truncation
from trunkline.delivery.changes.rows import (
    KIND_COLUMN,
    ORDINAL_COLUMN,
    ROUTE_COLUMN,
    VERSION_COLUMN,
    ChangeKind,
    NetChanges,
)


def versions_of_net(net: NetChanges, columns: Columns, version: int, time_us: int | None) -> VersionedChanges:
    """One version of each changed row, at the end of a window: a lake has no order inside of it."""
    whole = set(net.removed.column_names) >= {column.name for column in columns}
    place = pa.table({VERSION_COLUMN: pa.array([version]), TIME_COLUMN: pa.array([time_us], pa.int64()).cast(TIME)})
    return VersionedChanges(
        _placed(net.removed, place, removed_schema(columns), whole=whole),
        _placed(net.arrived, place, arrived_schema(columns)),
        net.emptied,
    )


def versions_of_ordered(
    changes: pa.Table, columns: Columns, key: Sequence[str], before: pa.Table | None
) -> VersionedChanges:
    """Ordered changes with TIME_COLUMN, whose VERSION_COLUMN is the end of their transaction, and whose removals are
    whole. ``before``: the rows at the beginning of the window, ROUTE_COLUMN and every column; ``None``: they are not
    known, so that a truncation makes the window ``emptied``."""
    ordered = changes.sort_by(ORDER)
    versions = ordered.column(VERSION_COLUMN).to_numpy()
    truncations = pc.equal(ordered.column(KIND_COLUMN), ChangeKind.TRUNCATE).to_numpy(zero_copy_only=False)
    cuts = np.unique(versions[truncations]).tolist()
    if cuts and before is None:
        last, (rest, _) = ordered.slice(ordered.num_rows - 1), since_truncation(ordered)
        live = rest.take(decided(rest, [ROUTE_COLUMN, *key]).arrived)
        arrived = _placed(live, last, arrived_schema(columns))
        return VersionedChanges(removed_schema(columns).empty_table(), arrived, emptied=True)
    parts: list[tuple[pa.Table, pa.Table]] = []
    begin = 0
    for cut in cuts:  # what was there is removed by the truncation; earlier changes of its transaction never were
        first, end = np.searchsorted(versions, [cut, cut + 1]).tolist()
        span, place = ordered.slice(begin, first - begin), ordered.slice(first, 1)
        parts.append(_changed(span, columns, key))
        live = _live(before, span, columns, key)
        rest, _ = since_truncation(ordered.slice(first, end - first))
        before = rest.take(decided(rest, [ROUTE_COLUMN, *key]).arrived).drop_columns([KIND_COLUMN])
        removed = _placed(live, place, removed_schema(columns), whole=True)
        parts.append((removed, _placed(before, place, arrived_schema(columns))))
        begin = end
    parts.append(_changed(ordered.slice(begin), columns, key))
    found = [pa.concat_tables(tables) for tables in zip(*parts, strict=True)]
    return VersionedChanges(found[0], found[1])


def _changed(events: pa.Table, columns: Columns, key: Sequence[str]) -> tuple[pa.Table, pa.Table]:
    """What each transaction removed and added: the first and the last event of each of its keys decide. A row that it
    wrote and removed again never was."""
    arrived, first, _, arrival = decided(events, [VERSION_COLUMN, ROUTE_COLUMN, *key])
    events = events.set_column(
        events.schema.get_field_index(ORDINAL_COLUMN), ORDINAL_COLUMN, pa.array(np.zeros(events.num_rows, np.int64))
    )
    gone = events.take(np.sort(first[~arrival[first]]))
    gone = gone.append_column(WHOLE_COLUMN, pa.repeat(True, gone.num_rows))
    return filled(gone, removed_schema(columns)), filled(events.take(arrived), arrived_schema(columns))


def _live(before: pa.Table | None, span: pa.Table, columns: Columns, key: Sequence[str]) -> pa.Table:
    """The rows after a span of changes."""
    assert before is not None
    held = before.append_column(KIND_COLUMN, pa.repeat(ChangeKind.INSERT.value, before.num_rows))
    names = [KIND_COLUMN, ROUTE_COLUMN, *(column.name for column in columns)]
    events = pa.concat_tables([filled(each, span.select(names).schema) for each in (held, span)])
    return events.take(decided(events, [ROUTE_COLUMN, *key]).arrived)


def _placed(rows: pa.Table, place: pa.Table, schema: pa.Schema, *, whole: bool = True) -> pa.Table:
    """Rows at the version and time of the one row of ``place``."""
    facts = {name: place.column(name)[0] for name in (VERSION_COLUMN, TIME_COLUMN)}
    facts |= {ORDINAL_COLUMN: pa.scalar(0, pa.int64()), WHOLE_COLUMN: pa.scalar(whole)}
    kept = rows.select([name for name in rows.column_names if name not in facts])
    for name, fact in facts.items():
        kept = kept.append_column(name, pa.repeat(fact, rows.num_rows))
    return filled(kept, schema)
