"""Rows that no destination takes, of every pipeline of a control store.

They are asked for once a second, so the store adds them up: ``ControlStore.unrouted`` sends up to 10,000 values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trunkline.dashboard.views import Unrouted

if TYPE_CHECKING:
    from trunkline.delivery.control.database import Database

VALUES_SHOWN: Final = 3
VALUE_CHARACTERS_MAX: Final = 40  # of one that is shown
TOTALS: Final = """
    SELECT p.pipeline, p.counted_through, p.nulls, p.nulls + p.others + coalesce(sum(u.counted), 0)
    FROM _trunkline_pipelines p LEFT JOIN _trunkline_unrouted u ON u.pipeline = p.pipeline
    GROUP BY p.pipeline, p.counted_through, p.nulls, p.others ORDER BY p.pipeline"""
FREQUENT: Final = f"""
    SELECT value, counted FROM _trunkline_unrouted WHERE pipeline = :pipeline
    ORDER BY counted DESC, value LIMIT {VALUES_SHOWN}"""


def pipelines_with_unrouted(database: Database) -> dict[str, Unrouted | None]:
    """Every pipeline of the store, in the order of names; None where all rows have a destination."""
    found: dict[str, Unrouted | None] = {}
    with database.transaction(writing=False):
        for pipeline, through, nulls, rows in database.run(TOTALS, {}):
            values = _frequent(database, str(pipeline), int(nulls)) if rows else ()
            found[str(pipeline)] = Unrouted(int(rows), int(through), values) if rows else None
    return found


def _frequent(database: Database, pipeline: str, nulls: int) -> tuple[tuple[str | None, int], ...]:
    values: list[tuple[str | None, int]] = [
        (_cut(str(value)), int(counted)) for value, counted in database.run(FREQUENT, {"pipeline": pipeline})
    ]
    if nulls:
        values.append((None, nulls))
    values.sort(key=lambda each: -each[1])
    return tuple(values[:VALUES_SHOWN])


def _cut(value: str) -> str:
    return value if len(value) <= VALUE_CHARACTERS_MAX else f"{value[:VALUE_CHARACTERS_MAX]}…"
