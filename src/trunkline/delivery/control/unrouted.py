"""Counts of unrouted rows. They grow window by window, so that each row is counted once."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

from trunkline.delivery.changes.versions import Window
from trunkline.delivery.control.contract import UNROUTED_VALUES_MAX, UnroutedCounts, UnroutedSummary
from trunkline.delivery.control.tables import Tables, json_rows

VALUE_CHARACTERS_MAX: Final = 500  # of a routing value; a longer one is cut off, and gets a digest


class UnroutedRows:
    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def add(self, pipeline: str, window: Window, counts: UnroutedCounts) -> int:
        """Add the rows of a window if the counts end at its ``after``, and move them to its ``through``, atomically.

        Returns where the counts end now; if that is not ``window.through``, nothing was added.
        """
        run = self._tables.run
        with self._tables.locked(pipeline):
            rows = run("SELECT counted_through FROM _trunkline_pipelines WHERE pipeline = :pipeline", pipeline)
            [(counted,)] = rows
            if counted != window.after:
                return int(counted)
            others = self._add_values(pipeline, counts.values)
            run(
                "UPDATE _trunkline_pipelines SET counted_through = :through, nulls = nulls + :nulls, "
                "others = others + :others WHERE pipeline = :pipeline",
                pipeline,
                through=window.through,
                nulls=counts.nulls,
                others=counts.others + others,
            )
            return window.through

    def rewind(self, pipeline: str, version: int) -> None:
        """The source was restored to this version: count the rows after it again."""
        with self._tables.locked(pipeline):
            self._tables.run(
                "UPDATE _trunkline_pipelines SET counted_through = :version "
                "WHERE pipeline = :pipeline AND counted_through > :version",
                pipeline,
                version=version,
            )

    def counts(self, pipeline: str) -> tuple[int, UnroutedCounts]:
        """The version up to which rows are counted, and the counts."""
        with self._tables.reading():
            totals = self._tables.run(
                "SELECT counted_through, nulls, others FROM _trunkline_pipelines WHERE pipeline = :pipeline", pipeline
            )
            values = self._tables.run(
                "SELECT value, counted FROM _trunkline_unrouted WHERE pipeline = :pipeline ORDER BY value", pipeline
            )
        through, nulls, others = totals[0] if totals else (0, 0, 0)
        return through, UnroutedCounts({str(value): int(count) for value, count in values}, nulls, others)

    def summary(self, pipeline: str, values_max: int) -> UnroutedSummary:
        """The sum and the most frequent values, computed by the database: cheap enough to poll."""
        with self._tables.reading():
            totals = self._tables.run(
                "SELECT counted_through, nulls, nulls + others + coalesce((SELECT sum(counted) "
                "FROM _trunkline_unrouted u WHERE u.pipeline = :pipeline), 0) "
                "FROM _trunkline_pipelines WHERE pipeline = :pipeline",
                pipeline,
            )
            frequent = self._tables.run(
                "SELECT value, counted FROM _trunkline_unrouted WHERE pipeline = :pipeline "
                "ORDER BY counted DESC, value LIMIT :values_max",
                pipeline,
                values_max=values_max,
            )
        through, nulls, rows = totals[0] if totals else (0, 0, 0)
        values: list[tuple[str | None, int]] = [(str(value), int(count)) for value, count in frequent]
        values += [(None, int(nulls))] if nulls else []
        values.sort(key=lambda each: -each[1])
        return UnroutedSummary(int(rows), int(through), tuple(values[:values_max]))

    def _add_values(self, pipeline: str, values: Mapping[str, int]) -> int:
        """Add to the counts by value; returns how many rows have a value for which there is no room."""
        added: dict[str, int] = {}
        for value, count in values.items():
            added[_short(value)] = added.get(_short(value), 0) + count
        counted = "SELECT value FROM _trunkline_unrouted WHERE pipeline = :pipeline"
        known = {value for (value,) in self._tables.run(counted, pipeline)} if added else set()
        new = sorted(value for value in added if value not in known)
        beyond = new[max(UNROUTED_VALUES_MAX - len(known), 0) :]
        others = sum(added.pop(value) for value in beyond)
        self._tables.run(
            self._tables.given("value text", "counted bigint")
            + "INSERT INTO _trunkline_unrouted SELECT :pipeline, i.value, i.counted "
            "FROM i WHERE true ON CONFLICT (pipeline, value) "
            "DO UPDATE SET counted = _trunkline_unrouted.counted + excluded.counted",
            pipeline,
            items=json_rows(list(added.items())),
        )
        return others


def _short(value: str) -> str:
    """A routing value as it is counted: PostgreSQL accepts no NUL characters, and no long keys."""
    value = value.replace("\0", "\N{REPLACEMENT CHARACTER}")
    if len(value) <= VALUE_CHARACTERS_MAX:
        return value
    return f"{value[:VALUE_CHARACTERS_MAX]}… {hashlib.sha256(value.encode()).hexdigest()[:8]}"
