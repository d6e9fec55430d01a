"""The states of a history in a form that can be compared: multisets of rows of plain values."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa

from lake_fuzz.histories import History
from lake_fuzz.shapes import Layout
from trunkline.delivery.backends.duckdb_pool import pooled_duckdb
from trunkline.delivery.backends.sql import identifier
from trunkline.delivery.changes.versions import BEFORE_ALL, Window

PlainRow = tuple[Any, ...]  # the routing value as text, and every column


class Truth:
    """The states of a history in the columns of any version, and the versions that wrote their rows."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._rows: dict[tuple[int, Layout], Counter[PlainRow]] = {}
        self._written: dict[
            int, list[tuple[int, PlainRow]]
        ] = {}  # each row of a version with the version that wrote it

    def rows(self, version: int, layout: Layout) -> Counter[PlainRow]:
        """The state at a version, with the columns of a layout: identified by ``uid``, with defaults for missing
        ones."""
        if version == BEFORE_ALL:
            return Counter()
        if (version, layout) not in self._rows:
            self._rows[version, layout] = Counter(plain_rows(self._converted(version, layout)))
        return self._rows[version, layout]

    def written(self, window: Window) -> Counter[PlainRow]:
        """The rows at `through` that were written after `after`."""
        through = window.through
        if through not in self._written:
            versions = self._history.states[through].column("snapshot_id").to_pylist()
            rows = plain_rows(self._converted(through, self._history.layouts[through]))
            self._written[through] = list(zip(versions, rows, strict=True))
        return Counter(row for version, row in self._written[through] if version > window.after)

    def lost_lineage(self, window: Window) -> bool:
        """Whether files were rewritten in a window, which makes all their rows new; or may have been, because versions
        of it were expired."""
        doubtful = self._history.rewrites | self._history.expired
        return any(BEFORE_ALL < window.after < version <= window.through for version in doubtful)

    def _converted(self, version: int, layout: Layout) -> pa.Table:
        held = {field.uid: field for field in self._history.layouts[version]}
        chosen = ["tenant::VARCHAR AS route"]
        for field in layout:
            stored = identifier(held[field.uid].name) if field.uid in held else (field.default or "NULL")
            own = held[field.uid].type if field.uid in held else field.type
            chosen.append(f"CAST(CAST({stored} AS {own}) AS {field.type}) AS {identifier(field.name)}")
        with pooled_duckdb() as connection:
            connection.register("state", self._history.states[version])
            found = connection.sql(f"SELECT {', '.join(chosen)} FROM state").to_arrow_table()
            connection.unregister("state")
        return found


def plain_rows(table: pa.Table) -> list[PlainRow]:
    """Rows of values that Python can compare: numbers for times (which may be infinite), text for floats and lists."""
    return list(zip(*(_plain(column) for column in table.columns), strict=True))


def _plain(column: pa.ChunkedArray) -> list[Any]:
    kind = column.type
    if pa.types.is_temporal(kind):
        column = column.cast(pa.int32() if pa.types.is_date32(kind) else pa.int64())
    found: list[Any] = column.to_pylist()
    if pa.types.is_floating(kind) or pa.types.is_list(kind):
        found = [None if value is None else repr(value) for value in found]
    return found
