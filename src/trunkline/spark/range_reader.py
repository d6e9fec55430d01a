"""Reads one range of positions in a task, as Arrow record batches.

1. The range is below the tail that the source read, so every position in it is settled sooner or later: an entry, a
   hole (which is skipped), trimmed or declared lost. The time-out of the options limits the wait.
2. The client handles reconfigurations: a subscription follows segments, nodes and coordinators by itself.
3. A declared loss is always an error; positions trimmed since planning are an error or skipped, by ``failOnTrim``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from pyspark.sql.types import StructType

from trunkline import sync
from trunkline.client.entries import Batch
from trunkline.errors import Trimmed
from trunkline.spark.columns import arrow_schema, record_batch
from trunkline.spark.connections import CONNECTIONS
from trunkline.spark.options import ReadOptions
from trunkline.spark.ranges import PositionRange, untrimmed

ROWS_MAX: Final = 16_384  # of an Arrow batch that joins stored ones; too small: Spark's overhead for each
BYTES_MAX: Final = 4 * 1024 * 1024  # likewise; a larger stored batch is passed on as it is


def read_range(options: ReadOptions, schema: StructType, part: PositionRange) -> Iterator[Any]:
    """Record batches of the range, in order. Raises ``TrunklineError``."""
    wanted = arrow_schema(schema)
    with CONNECTIONS.using(options.connection) as (_, log):
        for joined in _joined(_found(log, options, part)):
            yield record_batch(joined, wanted)


def _found(log: sync.Log, options: ReadOptions, part: PositionRange) -> Iterator[list[Batch]]:
    """Stored batches as they arrive. Trimmed positions are skipped once for each trim."""
    position = part.first
    while position < part.end:
        with log.batches(position, part.end - 1, replica=part.replica) as batches:
            try:
                while found := batches.some(timeout=options.connection.timeout_s):
                    yield found
                    position = found[-1].last + 1
            except Trimmed as trimmed:
                position = untrimmed(options, position, trimmed.point + 1)
            else:
                return


def _joined(arriving: Iterator[list[Batch]]) -> Iterator[list[Batch]]:
    """Stored batches, grouped into Arrow batches of a good size."""
    group: list[Batch] = []
    rows = size = 0
    for found in arriving:
        for batch in found:
            if group and (rows + len(batch) > ROWS_MAX or size + batch.size_bytes > BYTES_MAX):
                yield group
                group, rows, size = [], 0, 0
            group.append(batch)
            rows, size = rows + len(batch), size + batch.size_bytes
    if group:
        yield group
