"""Ranges of positions: what a read covers, and its parts, one for each task.

      oldest          first                              end          tail
    ....|---------------|==========|==========|===========|-------------|
     trimmed             partition  partition  partition

A part may begin inside a stored batch: it is then given the rest of it.
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
PARTITIONS_BY_SIZE_MAX: Final = 64  # a range is not cut into more, unless the user says so

logger = logging.getLogger(__name__)


class PositionRange(InputPartition):
    """The positions from ``first`` up to but not including ``end``: the work of one task.

    ``replica``: which one it asks first, so that the tasks of a job share the load out.
    """

    def __init__(self, first: int, end: int, replica: int = 0) -> None:
        super().__init__((first, end))
        self.first = first
        self.end = end
        self.replica = replica


class Extent(Struct, frozen=True):
    """What a log holds: its oldest position and its tail."""

    oldest: int
    tail: int


def extent(cluster: sync.Cluster, log: sync.Log) -> Extent:
    """As of now. The trim point is asked for first, so the tail is not before the oldest."""
    oldest = cluster.describe(log.name).trim + 1
    return Extent(oldest, max(log.tail(), oldest))


def starting_position(options: ReadOptions, found: Extent) -> int:
    match options.starting:
        case int(position):
            return position
        case word:
            return {OLDEST: found.oldest, LATEST: found.tail}[word]


def untrimmed(options: ReadOptions, first: int, oldest: int) -> int:
    """Where to go on when positions from ``first`` on are gone: an error, or the oldest (``failOnTrim``)."""
    if first >= oldest:
        return first
    gone = f"positions {first} to {oldest - 1} of log {options.connection.log} were trimmed away before they were read"
    if options.fail_on_trim:
        raise Refused(
            f"{gone}; to go on with what is left, set the option failOnTrim to false, or begin anew at startingOffset "
            f"{oldest} (a stream: with another checkpoint)"
        )
    logger.warning("%s; going on from %d, because failOnTrim is false", gone, oldest)
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
