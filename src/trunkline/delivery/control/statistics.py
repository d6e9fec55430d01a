"""What owners record about their destinations: empty windows and statuses (rules C4 and C5)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from trunkline.core.delivery_messages import Emptied
from trunkline.delivery.control.contract import ERROR_CHARACTERS_MAX, Reported, Status
from trunkline.delivery.control.tables import Tables, json_rows


class Statistics:
    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def record_empty(self, pipeline: str, through: int, emptied: Sequence[Emptied], mark: str = "") -> int:
        """Record an empty window up to ``through``, with its mark, for each; returns for how many it counted (C4)."""
        with self._tables.writing():
            recorded = self._tables.run(
                self._tables.given("name text", "token bigint", "position bigint")
                + "UPDATE _trunkline_destinations SET empty_after = i.position, empty_through = :through, "
                "empty_mark = :mark FROM i WHERE pipeline = :pipeline "
                "AND _trunkline_destinations.name = i.name AND _trunkline_destinations.token = i.token "
                "AND owner IS NOT NULL RETURNING 1",
                pipeline,
                through=through,
                mark=mark,
                items=json_rows([(each.destination, each.token, each.position) for each in emptied]),
            )
            return len(recorded)

    def report(self, pipeline: str, reports: Sequence[Reported]) -> None:
        """Record statuses (C4). Call it when something changed, not periodically."""
        with self._tables.writing():
            self._tables.run(
                self._tables.given("name text", "token bigint", "status text")
                + "UPDATE _trunkline_destinations SET status = i.status "
                "FROM i WHERE pipeline = :pipeline "
                "AND _trunkline_destinations.name = i.name AND _trunkline_destinations.token = i.token "
                "AND owner IS NOT NULL",
                pipeline,
                items=json_rows([(each.name, each.token, _status_text(each.status)) for each in reports]),
            )


def _status_text(status: Status) -> str:
    error = status.error[:ERROR_CHARACTERS_MAX].replace("\0", "\N{REPLACEMENT CHARACTER}")
    return msgspec.json.encode(msgspec.structs.replace(status, error=error)).decode()
