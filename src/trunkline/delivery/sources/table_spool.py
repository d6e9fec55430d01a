"""The states of tables of a captured database, by way of a file: the log is read once, and no table is held in memory.

Rows are split by key into parts as for a shuffle (``key_split``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa

from trunkline.delivery.changes.rows import BATCH_ROWS
from trunkline.delivery.sources.database_split import TableSplit, TableSplits
from trunkline.delivery.sources.part_spool import PartSpool
from trunkline.delivery.sources.shuffled_reads import AllFacts


class TableSpool:
    """``splits``: whole tables, by name; all have the same ranges."""

    def __init__(self, splits: Mapping[str, TableSplit]) -> None:
        self._splits = splits
        self._spool = PartSpool()
        self._unfit: set[int] = set()  # tables whose parts cannot be settled alone
        facts: AllFacts = {}
        ranges = TableSplits(tuple(splits.values()))
        for number in range(ranges.ranges if splits else 0):
            for table, part, rows in ranges.split(number, facts):
                self._spool.add(table, part, rows)
        self._unfit |= {table for table, each in facts.items() if each.unsplit or each.parted}

    def rows(self, name: str) -> Iterator[pa.RecordBatch] | None:
        """All rows of a table; ``None``: they can only be found in one piece."""
        split = self._splits.get(name)
        return None if split is None or split.number in self._unfit else self._settled(split)

    def _settled(self, split: TableSplit) -> Iterator[pa.RecordBatch]:
        for batches in self._spool.parts(split.number, split.travel):
            yield from split.state(pa.Table.from_batches(batches, split.travel)).to_batches(BATCH_ROWS)
