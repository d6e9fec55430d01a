"""What deliverers note: empty windows, statuses, and rows that no destination takes (rules C4 and C5)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from trunkline.delivery.changes.windows import Window
from trunkline.delivery.control.contract import (
    ERROR_CHARACTERS_MAX,
    UNROUTED_VALUES_MAX,
    Emptied,
    Reported,
    Status,
    Unrouted,
)
from trunkline.delivery.control.tables import Tables, json_text

VALUE_CHARACTERS_MAX: Final = 500  # of a routing value; a longer one is cut off, and told apart by a digest


class Notes(Tables):
    def record_empty(self, pipeline: str, through: int, emptied: Sequence[Emptied], mark: str = "") -> int:
        with self._database.transaction(writing=True):
            noted = self._run(
                self._given("name text", "token bigint", "position bigint")
                + "UPDATE _trunkline_destinations SET empty_after = i.position, empty_through = :through, "
                "empty_mark = :mark FROM i WHERE pipeline = :pipeline "
                "AND _trunkline_destinations.name = i.name AND _trunkline_destinations.token = i.token "
                "AND owner IS NOT NULL RETURNING 1",
                pipeline,
                through=through,
                mark=mark,
                items=json_text([(each.name, each.token, each.position) for each in emptied]),
            )
            return len(noted)

    def report(self, pipeline: str, reports: Sequence[Reported]) -> None:
        with self._database.transaction(writing=True):
            self._run(
                self._given("name text", "token bigint", "status text")
                + "UPDATE _trunkline_destinations SET status = i.status "
                "FROM i WHERE pipeline = :pipeline "
                "AND _trunkline_destinations.name = i.name AND _trunkline_destinations.token = i.token "
                "AND owner IS NOT NULL",
                pipeline,
                items=json_text([(each.name, each.token, _status_text(each.status)) for each in reports]),
            )

    def count_unrouted(self, pipeline: str, window: Window, unrouted: Unrouted) -> int:
        with self._database.transaction(writing=True):
            self._take(pipeline)
            rows = self._run("SELECT counted_through FROM _trunkline_pipelines WHERE pipeline = :pipeline", pipeline)
            [(counted,)] = rows
            if counted != window.after:
                return int(counted)
            others = self._count_values(pipeline, unrouted.values)
            self._run(
                "UPDATE _trunkline_pipelines SET counted_through = :through, nulls = nulls + :nulls, "
                "others = others + :others WHERE pipeline = :pipeline",
                pipeline,
                through=window.through,
                nulls=unrouted.nulls,
                others=unrouted.others + others,
            )
            return window.through

    def _count_values(self, pipeline: str, values: Mapping[str, int]) -> int:
        """Add to the counts by value; returns how many rows have a value for which there is no room."""
        added: dict[str, int] = {}
        for value, count in values.items():
            added[_short(value)] = added.get(_short(value), 0) + count
        counted = "SELECT value FROM _trunkline_unrouted WHERE pipeline = :pipeline"
        known = {value for (value,) in self._run(counted, pipeline)} if added else set()
        new = sorted(value for value in added if value not in known)
        beyond = new[max(UNROUTED_VALUES_MAX - len(known), 0) :]
        others = sum(added.pop(value) for value in beyond)
        self._run(
            self._given("value text", "counted bigint")
            + "INSERT INTO _trunkline_unrouted SELECT :pipeline, i.value, i.counted "
            "FROM i WHERE true ON CONFLICT (pipeline, value) "
            "DO UPDATE SET counted = _trunkline_unrouted.counted + excluded.counted",
            pipeline,
            items=json_text(list(added.items())),
        )
        return others

    def take_counts_back(self, pipeline: str, version: int) -> None:
        with self._database.transaction(writing=True):
            self._take(pipeline)
            self._run(
                "UPDATE _trunkline_pipelines SET counted_through = :version "
                "WHERE pipeline = :pipeline AND counted_through > :version",
                pipeline,
                version=version,
            )

    def unrouted(self, pipeline: str) -> tuple[int, Unrouted]:
        with self._database.transaction(writing=False):
            totals = self._run(
                "SELECT counted_through, nulls, others FROM _trunkline_pipelines WHERE pipeline = :pipeline", pipeline
            )
            values = self._run(
                "SELECT value, counted FROM _trunkline_unrouted WHERE pipeline = :pipeline ORDER BY value", pipeline
            )
        through, nulls, others = totals[0] if totals else (0, 0, 0)
        return through, Unrouted({str(value): int(count) for value, count in values}, nulls, others)


def _status_text(status: Status) -> str:
    error = status.error[:ERROR_CHARACTERS_MAX].replace("\0", "�")
    return msgspec.json.encode(msgspec.structs.replace(status, error=error)).decode()


def _short(value: str) -> str:
    """A routing value as it is counted: PostgreSQL takes no NUL characters, and no long keys."""
    value = value.replace("\0", "�")
    if len(value) <= VALUE_CHARACTERS_MAX:
        return value
    return f"{value[:VALUE_CHARACTERS_MAX]}… {hashlib.sha256(value.encode()).hexdigest()[:8]}"
