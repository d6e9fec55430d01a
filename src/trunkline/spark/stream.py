"""A log as a stream: Spark asks for the latest offset, and reads the log range by range.

    offset    {"glsn": n}: everything below n was read; n is next

1. Only offsets are kept, by Spark, in the checkpoint. A retried batch reads the same range, which holds the same
   entries forever.
2. The end of a batch is at most the tail at that time, so every position in it is settled, or will be.
3. With ``availableNow`` the stream ends at the tail of its start: later entries are left for another run.
4. Positions that were trimmed before a batch read them are an error, or skipped, by ``failOnTrim``.
5. Spark asks again after 10 ms if there is nothing new. The cluster is polled after ``POLL_S`` at the earliest.
6. A stream of a table's changes ends its batches at ends of transactions only, even if they exceed the limit.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from trunkline.delivery.changes.schemas import TableSchema
from trunkline.errors import ConfigError
from trunkline.spark.change_ranges import read_changes, transaction_end
from trunkline.spark.connections import CONNECTIONS
from trunkline.spark.one_line_errors import in_one_line
from trunkline.spark.options import ReadOptions
from trunkline.spark.range_reader import read_range
from trunkline.spark.ranges import LogExtent, PositionRange, extent, partitions, starting_position, untrimmed

Offset = dict[str, int]

POLL_S: Final = 0.05  # too small: idle streams load the cluster; too big: an entry waits this long for its batch


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReadOptions, schema: StructType, table: TableSchema | None = None) -> None:
        self._options = options
        self._schema = schema
        self._table = table  # whose changes are read; None: entries
        self._target: int | None = None  # where a run with availableNow ends (3)
        self._tail: int | None = None  # as last seen
        self._latest: int | None = None  # as last answered
        self._poll_at_s = 0.0  # when to poll again, in monotonic time (5)

    @in_one_line()
    def initialOffset(self) -> Offset:  # noqa: N802
        found = self._extent()
        return offset(untrimmed(self._options, starting_position(self._options, found), found.oldest))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        entries = self._options.entries_per_trigger
        return ReadAllAvailable() if entries is None else ReadMaxRows(entries)

    @in_one_line()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._extent().tail

    @in_one_line()
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        known = self._tail if self._table is None else self._latest
        if self._target is None and known is not None and known <= position_of(start):
            time.sleep(max(self._poll_at_s - time.monotonic(), 0))  # (5)
        found = self._extent()
        first = untrimmed(self._options, position_of(start), found.oldest)  # (4)
        end = found.tail if self._target is None else min(found.tail, self._target)
        if isinstance(limit, ReadMaxRows):
            end = min(end, first + limit.max_rows)
        if self._table is not None and first < end:
            with CONNECTIONS.using(self._options.connection) as (_, log):
                end = transaction_end(log, first, end, self._target or found.tail)  # (6)
        self._latest = max(end, position_of(start))
        return offset(self._latest)

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        return None if self._tail is None else offset(self._tail)

    @in_one_line()
    def partitions(self, start: Offset, end: Offset) -> list[PositionRange]:
        first, last = position_of(start), position_of(end)
        if first < last:
            with CONNECTIONS.using(self._options.connection) as (cluster, log):
                first = untrimmed(self._options, first, cluster.describe(log.name).trim + 1)
        return partitions(first, last, self._options.partitions)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, PositionRange)
        with in_one_line():
            if self._table is None:
                yield from read_range(self._options, self._schema, partition)
            else:
                yield from read_changes(self._options, self._table, self._schema, partition)

    def _extent(self) -> LogExtent:
        with CONNECTIONS.using(self._options.connection) as (cluster, log):
            found = extent(cluster, log)
        self._tail = found.tail
        self._poll_at_s = time.monotonic() + POLL_S
        return found


class RefusedStream(DataSourceStreamReader):
    """A stream with invalid options: every call raises.

    PySpark hides an error in the constructor of the reader behind one of its own.
    """

    def __init__(self, message: str) -> None:
        self._message = message

    @in_one_line()
    def initialOffset(self) -> Offset:  # noqa: N802
        raise ConfigError(self._message)

    @in_one_line()
    def partitions(self, start: Offset, end: Offset) -> list[PositionRange]:
        raise ConfigError(self._message)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        raise ConfigError(self._message)


def offset(position: int) -> Offset:
    return {"glsn": position}


def position_of(found: Offset) -> int:
    return int(found["glsn"])
