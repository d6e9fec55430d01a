"""What a task does that reads: the entries of one range as Arrow record batches.

1. The range lies below the tail that the source saw, so every position in it is settled sooner or later: an entry, a
   hole (which is passed over), trimmed or declared lost. Waiting ends with the time-out of the options.
2. Reconfigurations are the client's affair: a subscription follows segments, nodes and coordinators by itself.
3. Declared losses are raised, always; what was trimmed since planning is raised or passed over, by ``failOnTrim``.
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

ROWS_MAX: Final = 16_384  # of an Arrow batch that is joined from stored ones; too small: Spark's cost for each
BYTES_MAX: Final = 4 * 1024 * 1024  # likewise; a stored batch that is larger by itself is handed on as it is


def read_range(options: ReadOptions, schema: StructType, part: PositionRange) -> Iterator[Any]:
    """Record batches of the range, in order. Raises ``TrunklineError``."""
    wanted = arrow_schema(schema)
    with CONNECTIONS.using(options.connection) as (_, log):
        for joined in _joined(_found(log, options, part)):
            yield record_batch(joined, wanted)


def _found(log: sync.Log, options: ReadOptions, part: PositionRange) -> Iterator[list[Batch]]:
    """Stored batches as they arrive. What was trimmed meanwhile is passed over once for each trim."""
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
    """Stored batches in groups that make good Arrow batches."""
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
