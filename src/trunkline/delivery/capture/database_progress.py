"""How far the capture of a database is. Its thread writes, others read."""

from __future__ import annotations

import time
from collections import deque
from typing import Final

from msgspec import Struct

from trunkline.core.capture_messages import AppendEntry
from trunkline.delivery.capture.source import Changes, ChunkRows, Lag, SchemaUnit
from trunkline.delivery.changes.schemas import CatalogTable, SchemaChange

SAMPLES_MAX: Final = 1_000


class TableProgress(Struct, frozen=True):
    number: int
    name: str
    complete: bool
    generation: int
    chunks: int
    rows: int  # changes and read rows of this generation in the log


def table_progress(table: CatalogTable) -> TableProgress:
    schema = table.newest
    name = f"{schema.schema}.{schema.name}"
    return TableProgress(schema.number, name, table.complete, schema.generation, table.chunks, table.rows)


class Written(Struct, frozen=True):
    """An entry that is in flight."""

    number: int
    bytes: int
    commit_us: int
    transactions: int = 0
    rows: int = 0
    chunk_rows: int | None = None
    recaptures: bool = False


def written(request: AppendEntry, unit: Changes | SchemaUnit | ChunkRows | None, size: int, commit_us: int) -> Written:
    match unit:
        case Changes():
            rows = sum(each.rows for each in unit.transactions)
            return Written(request.number, size, commit_us, len(unit.transactions) * request.last, rows)
        case ChunkRows():
            return Written(request.number, size, commit_us, chunk_rows=unit.rows.batch.num_rows)
        case SchemaUnit():
            again = SchemaChange.RECAPTURED in unit.schema.changes
            return Written(request.number, size, commit_us, recaptures=again)
    return Written(request.number, size, commit_us)


class DatabaseProgress:
    """Counts are of what is committed to the log, since the process started."""

    def __init__(self) -> None:
        self.transactions = 0
        self.rows = 0
        self.entries = 0
        self.bytes = 0
        self.chunks = 0
        self.chunk_rows = 0
        self.recaptures = 0  # of tables
        self.failures = 0  # how often it had to restart
        self.error = ""
        self.running = False  # the stream is open, without a failure since
        self.position: int | None = None  # of the log: after its last whole transaction
        self.confirmed: int | None = None  # what the source may forget
        self.commit_us = 0  # of the last transaction in the log
        self.reached = 0  # everything that the source had up to here is in the log
        self.heard_at: float | None = None  # of time.monotonic(): when the source sent something
        self.wrote_at: float | None = None
        self.lag: Lag | None = None
        self.tables: tuple[TableProgress, ...] = ()
        self._samples: deque[tuple[float, int]] = deque(maxlen=SAMPLES_MAX)  # when the source was where

        self._written: deque[Written] = deque()  # in flight

    def begin(self) -> None:
        """A session begins: what was in flight is settled by the log."""
        self._written.clear()

    def appended(self, entry: Written) -> None:
        self._written.append(entry)

    def committed(self, number: int) -> None:
        """All entries up to this one are in the log."""
        while self._written and self._written[0].number <= number:
            entry = self._written.popleft()
            self.entries += 1
            self.bytes += entry.bytes
            self.transactions += entry.transactions
            self.rows += entry.rows
            self.chunks += entry.chunk_rows is not None
            self.chunk_rows += entry.chunk_rows or 0
            self.recaptures += entry.recaptures
            self.commit_us = max(self.commit_us, entry.commit_us)
            self.wrote_at = time.monotonic()

    def sampled(self, lag: Lag) -> None:
        self.lag = lag
        self._samples.append((time.time(), lag.position))

    def lag_bytes(self) -> int | None:
        return None if self.lag is None else self.lag.behind(self.reached)

    def lag_seconds(self) -> float | None:
        """How old the newest state is that the log has; 0 if it has everything that the source had when last asked."""
        if not self._samples:
            return None
        now, samples = time.time(), list(self._samples)
        if samples[-1][1] <= self.reached:
            return 0.0
        seen = [at for at, position in samples if position <= self.reached]
        if seen:
            return max(0.0, now - seen[-1])
        return max(0.0, now - self.commit_us / 1e6) if self.commit_us else None

    @property
    def incomplete(self) -> tuple[TableProgress, ...]:
        return tuple(table for table in self.tables if not table.complete)
