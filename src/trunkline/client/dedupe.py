"""Detects rows that a Spark job appended more than once.

The headers of an entry identify its row: ``query``, ``batch``, ``partition``, ``index``. Rows of a partition are
appended in order, and a retried attempt starts from the first. So it is enough to remember the greatest (batch, index)
of each query and partition: a row that is not greater was seen before.

     batch 7:  0 1 2 3           the task dies
     retry:    0 1 2 3 4 5 6     0 to 3 are repeats
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Final

from trunkline.client.entries import Entry

DIGITS_MAX: Final = 19  # of a number in a header
QUERY_BYTES_MAX: Final = 64  # a longer query name is remembered by its hash
PARTITIONS_MAX: Final = 65_536  # remembered (query, partition) pairs; the least recently used are forgotten


def row_headers(query: str, batch: int, partition: int, index: int) -> dict[str, bytes]:
    """The headers that identify a row of a job."""
    return {
        "query": query.encode(),
        "batch": b"%d" % batch,
        "partition": b"%d" % partition,
        "index": b"%d" % index,
    }


class Repeats:
    """Call it with every entry, in order."""

    def __init__(self, partitions_max: int = PARTITIONS_MAX) -> None:
        self._partitions_max = partitions_max
        self._newest: OrderedDict[tuple[bytes, int], tuple[int, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._newest)

    def is_repeat(self, entry: Entry) -> bool:
        """Whether the row was seen before. An entry that is not from a Spark job is never a repeat."""
        headers = entry.headers
        try:
            key = _short(headers["query"]), _number(headers["partition"])
            row = _number(headers["batch"]), _number(headers["index"])
        except (KeyError, ValueError):
            return False
        newest = self._newest.get(key)
        repeated = newest is not None and row <= newest
        if not repeated:
            self._newest[key] = row
        self._newest.move_to_end(key)
        if len(self._newest) > self._partitions_max:
            self._newest.popitem(last=False)
        return repeated

    def without_repeats(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """The entries that are not repeats."""
        return (entry for entry in entries if not self.is_repeat(entry))


def _number(text: bytes) -> int:
    """Bounded, because any client can write such headers."""
    if len(text) > DIGITS_MAX:
        raise ValueError("the number is too long")
    return int(text)


def _short(query: bytes) -> bytes:
    return query if len(query) <= QUERY_BYTES_MAX else hashlib.sha256(query).digest()
