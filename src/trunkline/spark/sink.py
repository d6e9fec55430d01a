"""Rows as entries of a log: each partition appends its own, in order.

1. At least once. Spark retries a task that fails, and a batch of a stream after a crash; what was appended before
   stays in the log.
2. The headers of an entry identify its row: ``query``, ``batch``, ``partition``, ``index``. A retried attempt gives the
   same row the same four, so ``subscribe(dedupe=True)`` drops repeats.
3. Within one attempt, entries are in the log in the order of their indexes: an append is awaited before the next one
   begins. So a reader remembers one row for each query and partition instead of all.
4. ``query`` names the write: for a stream its id, from its checkpoint; otherwise the option ``queryName``, or a random
   name, the same for all tasks and attempts of the write.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from msgspec import Struct
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, MapType, StringType, StructType

from trunkline import sync
from trunkline.client.dedupe import row_headers
from trunkline.core.projection import Policy
from trunkline.errors import ConfigError
from trunkline.spark.connections import CONNECTIONS
from trunkline.spark.one_line_errors import in_one_line
from trunkline.spark.options import ConnectionOptions, WriteOptions

APPEND_ENTRIES_MAX: Final = 16_384
APPEND_BYTES_MAX: Final = 4 * 1024 * 1024  # too small: round trips; too big: disks wait for each other along the chain
ENTRY_OVERHEAD_BYTES: Final = 128  # of an entry's headers, roughly
BATCH_ID: Final = "streaming.sql.batchId"  # local properties that Spark sets for a task
QUERY_ID: Final = "sql.streaming.queryId"

logger = logging.getLogger(__name__)


class AppendedRows(WriterCommitMessage):
    """What one task appended: the number of entries, and the first and the last position (0: none)."""

    def __init__(self, entries: int, first: int, last: int) -> None:
        self.entries = entries
        self.first = first
        self.last = last


class SinkRow(Struct, frozen=True):
    payload: bytes
    headers: dict[str, bytes]


class BatchSink(DataSourceArrowWriter):
    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        check_write(schema, overwrite)
        check_log(options.connection)
        self._connection = options.connection
        self._query = options.query or secrets.token_hex(16)

    @in_one_line()
    def write(self, iterator: Iterator[Any]) -> AppendedRows:
        return append_rows(self._connection, self._query, 0, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _report(self._connection.log, self._query, messages)


class StreamSink(DataSourceStreamArrowWriter):
    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        check_write(schema, overwrite)  # and nothing expensive: Spark makes several of these for each batch
        self._connection = options.connection

    @in_one_line()
    def write(self, iterator: Iterator[Any]) -> AppendedRows:
        query, batch = _property(QUERY_ID), _property(BATCH_ID)
        return append_rows(self._connection, query, int(batch), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        _report(self._connection.log, f"batch {batchId}", messages)


def check_write(schema: StructType, overwrite: bool) -> None:
    """Raises ``ConfigError``."""
    if overwrite:
        raise ConfigError('a log only takes appends: write with .mode("append"), a stream with outputMode("append")')
    kinds = {field.name.lower(): field.dataType for field in schema.fields}
    if not isinstance(kinds.pop("payload", None), BinaryType | StringType):
        raise ConfigError("rows to append need a column payload, BINARY or STRING: select or cast it")
    headers = kinds.pop("headers", None)
    if headers is not None and headers.simpleString() != MapType(StringType(), BinaryType()).simpleString():
        raise ConfigError(f"the column headers must be MAP<STRING,BINARY>, it is {headers.simpleString()}: cast it")
    if kinds:
        raise ConfigError(f"entries have no column {', '.join(sorted(kinds))}: select payload and, at most, headers")


def check_log(connection: ConnectionOptions) -> None:
    """Raises ``TrunklineError`` once, before any task starts, instead of in each of them."""
    with CONNECTIONS.using(connection) as (_, log):
        _entries_max(log)


def append_rows(connection: ConnectionOptions, query: str, batch: int, arriving: Iterator[Any]) -> AppendedRows:
    """Append the rows of a task's partition, one large append after the other (3)."""
    context = TaskContext.get()
    assert context is not None, "rows are written by a task of Spark"
    partition = context.partitionId()
    entries = first = last = 0
    with CONNECTIONS.using(connection) as (_, log):
        entries_max = _entries_max(log)
        for rows in _appends(_rows(arriving), entries_max):
            position = _append(log, rows, (query, batch, partition), entries)
            first, last = first or position, position + len(rows) - 1
            entries += len(rows)
    return AppendedRows(entries, first, last)


def _append(log: sync.Log, rows: Sequence[SinkRow], place: tuple[str, int, int], index: int) -> int:
    headers = [row.headers | row_headers(*place, number) for number, row in enumerate(rows, start=index)]
    return log.append([row.payload for row in rows], headers=headers)


def _appends(rows: Iterator[SinkRow], entries_max: int) -> Iterator[list[SinkRow]]:
    """Rows, grouped into appends of a good size."""
    taken: list[SinkRow] = []
    size = 0
    for row in rows:
        row_bytes = len(row.payload) + ENTRY_OVERHEAD_BYTES + sum(map(len, row.headers.values()))
        if taken and (len(taken) >= entries_max or size + row_bytes > APPEND_BYTES_MAX):
            yield taken
            taken, size = [], 0
        taken.append(row)
        size += row_bytes
    if taken:
        yield taken


def _rows(arriving: Iterator[Any]) -> Iterator[SinkRow]:
    for batch in arriving:
        columns = {name.lower(): column for name, column in zip(batch.schema.names, batch.columns, strict=True)}
        payloads = columns["payload"].cast(pa.binary()).to_pylist()
        headers = columns["headers"].to_pylist() if "headers" in columns else [None] * len(payloads)
        for payload, pairs in zip(payloads, headers, strict=True):
            if payload is None:
                raise ConfigError("a row has no payload (NULL): filter such rows out, or write an empty payload")
            found = dict(pairs or ())
            if None in found.values():
                raise ConfigError("a header is NULL: leave it out of the map, or make it empty")
            yield SinkRow(payload, found)


def _entries_max(log: sync.Log) -> int:
    settings = log.settings
    if settings.policy is not Policy.CHAIN:
        raise ConfigError(f"log {log.name} has the policy broadcast, so one writer: Spark has many, use a chain log")
    return APPEND_ENTRIES_MAX if settings.groups == 1 else min(APPEND_ENTRIES_MAX, settings.stripe_unit)


def _property(key: str) -> str:
    context = TaskContext.get()
    value = context.getLocalProperty(key) if context is not None else None
    if value is None:
        raise ConfigError(f"Spark did not set the local property {key} for this task: use Spark 4.3")
    return value


def _report(log: str, what: str, messages: list[WriterCommitMessage | None]) -> None:
    entries = sum(message.entries for message in messages if isinstance(message, AppendedRows))
    logger.info("%d entries appended to log %s by %s", entries, log, what)
