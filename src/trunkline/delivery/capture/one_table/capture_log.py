"""The log that a capture writes: the capture owns the log, and reads its own position from it.

Rules
 W1  A capture is the only writer of a broadcast log. It takes the log over with a mark; an earlier writer can append
     nothing after it, so the entries before the mark are final.
 W2  The position of the capture is that of the last complete transaction before the mark, stored nowhere else. So a
     crash loses nothing and repeats nothing: an incomplete transaction does not count (X3) and is captured again.
 W3  An append with an unknown outcome is not retried: the capture restarts, with a mark (W1).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa
from msgspec import Struct

import trunkline.sync
from trunkline.delivery.changes.captured import TAKE_OVER_MARK, EntryPlace, encoded, entry_place, payloads
from trunkline.delivery.changes.columns import Columns, arrow_schema
from trunkline.delivery.changes.rows import KIND_COLUMN
from trunkline.errors import ConfigError, Hole, NoSuchLog, Trimmed

APPEND_BYTES_MAX: Final = 4 * 1024 * 1024  # of one append; a large transaction takes several
LOOK_BACK_MAX: Final = 100_000  # entries of incomplete transactions, and marks


class Transaction(Struct, frozen=True):
    """Changes of one transaction. ``position``: that of the source after them."""

    position: str
    columns: Columns
    changes: Iterable[pa.Table]


class CaptureLog:
    """The log of one capture."""

    def __init__(self, cluster: trunkline.sync.Cluster, name: str, *, replicas: int = 3) -> None:
        self.name = name
        nodes = max(1, min(replicas, len(cluster.nodes())))
        try:
            self._log = cluster.log(name)
        except NoSuchLog:
            self._log = cluster.log(name, create=True, policy="broadcast", replicas=nodes)
        policy = self._log.settings.policy.value
        if policy != "broadcast":
            raise ConfigError(
                f"the log {name} has the policy {policy}; a capture needs one with a single writer: "
                f"`trunkline log create {name} --policy broadcast`, or another name"
            )

    def take_over(self) -> str | None:
        """Become the writer (W1). Returns the position of the last capture; ``None`` if nothing was captured yet."""
        glsn = self._log.append(b"", headers=TAKE_OVER_MARK.headers(), takeover=True) - 1
        looked = 0
        while glsn > 0 and looked < LOOK_BACK_MAX:
            looked += 1
            try:
                entry = self._log.read(glsn)
            except Hole:
                glsn -= 1
                continue
            except Trimmed:
                return None
            place = entry_place(entry)
            if place.last and place.position is not None:
                return place.position
            glsn -= 1 if place.last else place.index + 1
        return None

    def write(self, transaction: Transaction) -> int:
        """Append a transaction; returns the number of its changes when all of them are committed."""
        rows = 0
        waiting: list[bytes] = []
        index = size = 0

        def counted() -> Iterable[pa.Table]:
            nonlocal rows
            for table in transaction.changes:
                rows += table.num_rows
                yield table

        held: bytes | None = None
        for payload in payloads(transaction.columns, counted()):
            if held is not None:
                waiting.append(held)
                size += len(held)
            held = payload
            if size >= APPEND_BYTES_MAX:
                index = self._append(waiting, index, transaction.position, last=False)
                waiting, size = [], 0
        if held is None:  # no rows, but maybe new columns
            held = encoded(transaction.columns, _no_changes(transaction.columns))
        self._append([*waiting, held], index, transaction.position, last=True)
        return rows

    def _append(self, entries: list[bytes], index: int, position: str, *, last: bool) -> int:
        count = len(entries)
        places = [EntryPlace(index + at, last and at == count - 1, position) for at in range(count)]
        self._log.append(entries, headers=[place.headers() for place in places])
        return index + count


def _no_changes(columns: Columns) -> pa.Table:
    fields = [pa.field(KIND_COLUMN, pa.string()), *arrow_schema(columns)]
    return pa.schema(fields).empty_table()
