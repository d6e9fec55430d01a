"""``format("trunkline")`` itself, and the read of a fixed range.

Spark makes these objects in Python processes beside the driver, and sends copies of the reader to its tasks: what they
hold is options and bounds, never a connection.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from trunkline.spark.columns import check_schema, whole_schema
from trunkline.spark.connections import CONNECTIONS
from trunkline.spark.filters import Bounds, narrowed
from trunkline.spark.options import ReadOptions, batch_options, check_any_read, stream_options, write_options
from trunkline.spark.ranges import PositionRange, extent, partitions, starting_position, untrimmed
from trunkline.spark.reading import read_range
from trunkline.spark.sink import BatchSink, StreamSink
from trunkline.spark.stream import LogStreamReader


class TrunklineSource(DataSource):
    """A log as a table of its entries, and as a place to append rows to."""

    @classmethod
    def name(cls) -> str:
        return "trunkline"

    def schema(self) -> StructType:
        check_any_read(self.options)
        return whole_schema()

    def reader(self, schema: StructType) -> LogReader:
        check_schema(schema)
        return LogReader(batch_options(self.options), schema)

    def streamReader(self, schema: StructType) -> LogStreamReader:  # noqa: N802
        check_schema(schema)
        return LogStreamReader(stream_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchSink:
        return BatchSink(write_options(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:  # noqa: N802
        return StreamSink(write_options(self.options), schema, overwrite)


class LogReader(DataSourceReader):
    """Reads what the log holds as the query is planned."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._bounds = Bounds()

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802
        self._bounds, remaining = narrowed(self._bounds, filters)
        return remaining

    def partitions(self) -> list[PositionRange]:
        options, bounds = self._options, self._bounds
        with CONNECTIONS.using(options.connection) as (cluster, log):
            found = extent(cluster, log)
        first = untrimmed(options, max(starting_position(options, found), bounds.first), found.oldest)
        end = found.tail if options.ending is None else min(options.ending + 1, found.tail)
        cut = partitions(first, min(end, bounds.last + 1), options.partitions)
        return cut or [PositionRange(first, first)]  # Spark would make up a partition of its own

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, PositionRange)
        return read_range(self._options, self._schema, partition, self._bounds)
