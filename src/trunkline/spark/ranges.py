"""Ranges of positions: the range of a read, and its parts, one for each task.

      oldest          first                              end          tail
    ....|---------------|==========|==========|===========|-------------|
     trimmed             partition  partition  partition

A part may start inside a stored batch: it then gets the rest of it.
"""

from __future__ import annotations

import logging
from itertools import pairwise
from typing import Final

from msgspec import Struct
from pyspark.sql.datasource import InputPartition

from trunkline import sync
from trunkline.errors import Refused
from trunkline.spark.options import LATEST, OLDEST, ReadOptions

ENTRIES_PER_PARTITION: Final = 65_536  # too small: tasks cost more than their work; too big: idle cores
PARTITIONS_BY_SIZE_MAX: Final = 64  # the option partitions can ask for more

logger = logging.getLogger(__name__)


class PositionRange(InputPartition):
    """The positions from ``first`` up to but not including ``end``: the work of one task.

    ``replica``: which one it reads first, so that the tasks of a job spread the load.
    """

    def __init__(self, first: int, end: int, replica: int = 0) -> None:
        super().__init__((first, end))
        self.first = first
        self.end = end
        self.replica = replica


class LogExtent(Struct, frozen=True):
    """The oldest position of a log and its tail."""

    oldest: int
    tail: int


def extent(cluster: sync.Cluster, log: sync.Log) -> LogExtent:
    """As of now. The trim point is read first, so the tail is not below the oldest position."""
    oldest = cluster.describe(log.name).trim + 1
    return LogExtent(oldest, max(log.tail(), oldest))


def starting_position(options: ReadOptions, found: LogExtent) -> int:
    match options.starting:
        case int(position):
            return position
        case word:
            return {OLDEST: found.oldest, LATEST: found.tail}[word]


def untrimmed(options: ReadOptions, first: int, oldest: int) -> int:
    """Where to continue when positions from ``first`` on were trimmed: an error, or the oldest (``failOnTrim``)."""
    if first >= oldest:
        return first
    lost = f"positions {first} to {oldest - 1} of log {options.connection.log} were trimmed away before they were read"
    if options.fail_on_trim:
        raise Refused(
            f"{lost}; to read what is left, set the option failOnTrim to false, or restart at startingOffset {oldest} "
            "(a stream: with another checkpoint)"
        )
    logger.warning("%s; continuing at %d, because failOnTrim is false", lost, oldest)
    return oldest


def partitions(first: int, end: int, wanted: int | None) -> list[PositionRange]:
    """The range in parts of nearly the same size; none if it is empty."""
    count = end - first
    if count <= 0:
        return []
    if wanted is None:
        wanted = min(-(-count // ENTRIES_PER_PARTITION), PARTITIONS_BY_SIZE_MAX)
    wanted = min(wanted, count)
    cuts = [first + count * number // wanted for number in range(wanted + 1)]
    return [PositionRange(*pair, replica) for replica, pair in enumerate(pairwise(cuts))]
