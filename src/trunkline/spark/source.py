"""``format("trunkline")`` itself, and the read of a fixed range.

Spark creates these objects in Python processes beside the driver, and sends copies of the reader to its tasks: they
hold options and bounds, never a connection.

1. Spark creates one source for each ``load()`` and keeps a copy of it, from which every plan of the frame starts: a
   second action, each side of a union or a join, a view. So the source reads the extent of the log once, when it is
   created, and all plans read the same range: the frame is the log as of then.
2. The reader accepts no filters from Spark. Spark would keep what was planned with one for the whole frame, and use it
   for plans without the filter.
3. With the option ``changes`` the rows are changes of one table of a captured database. Its columns are those that the
   table has at the end of the range, found once, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from trunkline.delivery.changes.schemas import TableSchema
from trunkline.errors import ConfigError
from trunkline.spark.change_columns import changes_schema, check_changes_schema
from trunkline.spark.change_ranges import captured_table, read_changes
from trunkline.spark.columns import check_schema, whole_schema
from trunkline.spark.connections import CONNECTIONS
from trunkline.spark.one_line_errors import in_one_line
from trunkline.spark.options import (
    ReadOptions,
    batch_options,
    check_any_read,
    connection_options,
    read_options,
    stream_options,
    write_options,
)
from trunkline.spark.range_reader import read_range
from trunkline.spark.ranges import LogExtent, PositionRange, extent, partitions, starting_position, untrimmed
from trunkline.spark.sink import BatchSink, StreamSink
from trunkline.spark.stream import LogStreamReader, RefusedStream


class TrunklineSource(DataSource):
    """A log as a table of its entries, to read and to append to."""

    @in_one_line()
    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        with CONNECTIONS.using(connection_options(options)) as (cluster, log):
            self._extent = extent(cluster, log)  # (1)
            chosen = read_options(options)
            self._table = None if chosen is None else captured_table(log, self._extent, chosen.ending, chosen.changes)

    @classmethod
    def name(cls) -> str:
        return "trunkline"

    @in_one_line()
    def schema(self) -> StructType:
        check_any_read(self.options)
        return whole_schema() if self._table is None else changes_schema(self._table)

    @in_one_line()
    def reader(self, schema: StructType) -> LogReader:
        self._check(schema)
        return LogReader(batch_options(self.options), schema, self._extent, self._table)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        try:
            self._check(schema)
            return LogStreamReader(stream_options(self.options), schema, self._table)
        except ConfigError as error:
            return RefusedStream(str(error))

    def _check(self, schema: StructType) -> None:
        if self._table is None:
            check_schema(schema)
        else:
            check_changes_schema(schema, self._table)

    @in_one_line()
    def writer(self, schema: StructType, overwrite: bool) -> BatchSink:
        return BatchSink(write_options(self.options), schema, overwrite)

    @in_one_line()
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:  # noqa: N802
        return StreamSink(write_options(self.options), schema, overwrite)


class LogReader(DataSourceReader):
    """Reads what the log held when the source was created."""

    def __init__(
        self, options: ReadOptions, schema: StructType, found: LogExtent, table: TableSchema | None = None
    ) -> None:
        self._options = options
        self._schema = schema
        self._extent = found
        self._table = table

    @in_one_line()
    def partitions(self) -> list[PositionRange]:
        options, found = self._options, self._extent
        first = untrimmed(options, starting_position(options, found), found.oldest)
        end = found.tail if options.ending is None else min(options.ending + 1, found.tail)
        cut = partitions(first, end, options.partitions)
        return cut or [PositionRange(first, first)]  # for an empty list Spark makes a partition of its own

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, PositionRange)
        with in_one_line():
            if self._table is None:
                yield from read_range(self._options, self._schema, partition)
            else:
                yield from read_changes(self._options, self._table, self._schema, partition)
