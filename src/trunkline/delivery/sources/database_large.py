"""Large windows of tables of a captured database, read by Spark: the log is read once for all tables of a window."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from msgspec import Struct
from msgspec.structs import replace

from trunkline.delivery.changes.table_changes import lacks_values
from trunkline.delivery.changes.versions import Window
from trunkline.delivery.sources.contract import ReadRequest, Requests
from trunkline.delivery.sources.database_split import TableSplit, TableSplits, check_columns
from trunkline.delivery.sources.key_split import joined_keys
from trunkline.delivery.sources.shuffled_reads import SettledFrames, SplitBlobs
from trunkline.errors import DestinationHalted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SplitSource(Protocol):
    def splits(self, window: Window, requests: Requests) -> dict[str, TableSplit]:
        """A window of some tables in ranges and parts; without those that can only be read in one piece."""
        ...


class SharedReads:
    """What the reads of some tables have in common; in the driver only."""

    def __init__(self, source: SplitSource, tables: tuple[str, ...]) -> None:
        self._source = source
        self._tables = tables
        self._found: dict[Window, tuple[dict[str, TableSplit], SplitBlobs | None]] = {}

    def of(
        self, spark: SparkSession, window: Window, table: str, request: ReadRequest
    ) -> tuple[TableSplit, SplitBlobs] | None:
        """``None``: the table can only be read in one piece."""
        if window not in self._found:
            nothing = ReadRequest((), (), "", request.mark)  # of which columns is known when each table is asked for
            splits = self._source.splits(window, dict.fromkeys(self._tables, nothing))
            together = TableSplits(tuple(splits.values()))
            blobs = SplitBlobs(spark, together, keep=len(splits) > 1) if splits else None
            self._found[window] = (splits, blobs)
        splits, blobs = self._found[window]
        if blobs is None or table not in splits:
            return None
        check_columns(splits[table].versions[-1], request)
        return replace(splits[table], request=request), blobs


class DatabaseLargeReads(Struct, frozen=True):
    """Windows and states of one table."""

    shared: SharedReads
    table: str

    def frames(self, spark: SparkSession, window: Window, request: ReadRequest) -> SettledFrames | None:
        found = self.shared.of(spark, window, self.table, request)
        if found is None:
            return None
        split, blobs = found
        frame, facts = blobs.settled(split)
        if facts.parted and not facts.unsplit:  # the keys are known that must be together
            split = replace(split, joined=joined_keys(facts.links))
            frame, facts = SplitBlobs(spark, TableSplits((split,)), keep=False).settled(split)
        if facts.halted:
            raise DestinationHalted(facts.halted)
        if facts.lacking and split.whole and not facts.unsplit:
            raise lacks_values(split.versions[-1])
        if facts.lacking or facts.unsplit:
            return None  # a destination has the values that the window lacks
        emptied = (split.whole or facts.truncated) and window.after > 0
        return SettledFrames(frame, request, emptied, exact=not facts.inexact)
