"""The versions of a window of one table of a captured database (see ``history``): by its transactions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trunkline.delivery.changes.columns import Columns
from trunkline.delivery.changes.database_reader import Step
from trunkline.delivery.changes.history import (
    TIME,
    TIME_COLUMN,
    WHOLE_COLUMN,
    VersionedChanges,
    arrived_schema,
    removed_schema,
)
from trunkline.delivery.changes.net import filled
from trunkline.delivery.changes.rows import ORDINAL_COLUMN, VERSION_COLUMN
from trunkline.delivery.changes.table_changes import Spans

Indices = npt.NDArray[np.int64]


class Commits:
    """Where and when the transactions of a window ended, by their numbers from 0."""

    def __init__(self) -> None:
        self._positions: list[int] = []
        self._ordinals: list[int] = []
        self._times: list[int | None] = []  # in microseconds

    def add(self, step: Step) -> None:
        """An end. A chunk counts as one transaction, without a time."""
        times: list[int | None] = [each.commit_us for each in step.transactions] or [None]
        self._positions += [step.glsn] * len(times)
        self._ordinals += range(len(times))
        self._times += times

    @property
    def last_us(self) -> int | None:
        """When the last one ended."""
        return self._times[-1] if self._times else None

    def placed(self, rows: pa.Table, numbers: Indices) -> pa.Table:
        """Rows of some transactions, with the places of these."""
        taken = pa.array(numbers)
        facts = {VERSION_COLUMN: pa.array(self._positions, pa.int64()), ORDINAL_COLUMN: pa.array(self._ordinals)}
        facts[TIME_COLUMN] = pa.array(self._times, pa.int64()).cast(TIME)
        for name, values in facts.items():
            rows = rows.append_column(name, values.cast(TIME if name == TIME_COLUMN else pa.int64()).take(taken))
        return rows


def versions_of_table(
    spans: Spans,
    commits: Commits,
    columns: Columns,
    key: Sequence[str],
    routing: str,
    *,
    known: bool,
) -> VersionedChanges | None:
    """The versions of a table whose changes are ``TableChanges.spans``. ``known``: they begin with the state before the
    window. ``None``: that state is needed, because a truncation removes rows of it, or a row has values of it."""
    removed = [removed_schema(columns).empty_table()]
    arrived = [arrived_schema(columns).empty_table()]
    for history, truncation in spans:
        found = history.by_transaction(columns, key, routing)
        if found.unstated or (truncation is not None and not known):
            return None
        gone = found.removed.append_column(WHOLE_COLUMN, pa.array(found.whole))
        removed.append(filled(commits.placed(gone, found.removed_in), removed[0].schema))
        arrived.append(filled(commits.placed(found.arrived, found.arrived_in), arrived[0].schema))
        if truncation is not None:
            live = history.whole_rows(columns, routing)
            live = live.append_column(WHOLE_COLUMN, pa.repeat(True, live.num_rows))
            numbers = np.full(live.num_rows, truncation, np.int64)
            removed.append(filled(commits.placed(live, numbers), removed[0].schema))
        known = True
    return VersionedChanges(pa.concat_tables(removed), pa.concat_tables(arrived))
