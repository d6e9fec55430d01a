"""The change data feed of a window, read from the files that the table's log names.

delta-rs can read the feed, but does not unescape names of files: where a partition's value has a space or a slash, it
finds no file. A version's changes are in its ``cdc`` files, with a kind for each row; without such files, the rows of
its ``add`` files were inserted and those of its ``remove`` files deleted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import duckdb
import pyarrow as pa

from trunkline.delivery.backends.table_folder import TableFolder
from trunkline.delivery.changes.columns import Column, Columns, arrow_schema, arrow_type
from trunkline.delivery.changes.rows import BATCH_ROWS
from trunkline.delivery.sources.delta_history import FeedFile

KIND: Final = "_change_type"
Constants = dict[tuple[str, str | None], pa.Array]  # column and text -> the value of a partition


def read_feed(
    connection: duckdb.DuckDBPyConnection, folder: TableFolder, changes: Sequence[FeedFile], columns: Columns
) -> pa.RecordBatchReader:
    """All rows of the feed, with these columns and KIND.

    The connection is used before the first row is read, not during the read.
    """
    schema = pa.schema([*arrow_schema(columns), pa.field(KIND, pa.string())])
    constants = _constants(connection, changes, columns)
    rows = (batch for change in changes for batch in _batches(folder, change, columns, constants, schema))
    return pa.RecordBatchReader.from_batches(schema, rows)


def _constants(connection: duckdb.DuckDBPyConnection, changes: Sequence[FeedFile], columns: Columns) -> Constants:
    """The values of partitions, which are text in the log. Empty means NULL, except for VARCHAR, as in delta-rs."""
    found: Constants = {}
    for column in columns:
        texts = {change.partition[column.name] for change in changes if column.name in change.partition}
        for text in texts:
            given = text or (text if column.type == "VARCHAR" else None)
            value = connection.execute(f"SELECT CAST($1 AS {column.type}) AS value", [given]).to_arrow_table()
            found[column.name, text] = value["value"].combine_chunks().cast(arrow_type(column))
    return found


def _batches(
    folder: TableFolder, change: FeedFile, columns: Columns, constants: Constants, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    with folder.parquet(change.path, pre_buffer=False, coerce_int96_timestamp_unit="us") as file:
        there = set(file.schema_arrow.names) - set(change.partition)
        wanted = [column.name for column in columns if column.name in there]
        wanted += [KIND] if change.kind is None else []
        for batch in file.iter_batches(BATCH_ROWS, columns=wanted, use_threads=False):
            arrays = [_column(batch, change, column, constants) for column in columns]
            kinds = batch.column(KIND) if change.kind is None else pa.repeat(change.kind, len(batch))
            yield pa.RecordBatch.from_arrays([*arrays, kinds.cast(pa.string())], schema=schema)


def _column(batch: pa.RecordBatch, change: FeedFile, column: Column, constants: Constants) -> pa.Array:
    """A column that the file does not have is NULL."""
    if column.name in change.partition:
        return pa.repeat(constants[column.name, change.partition[column.name]][0], len(batch))
    if column.name not in batch.schema.names:
        return pa.nulls(len(batch), arrow_type(column))
    return batch.column(column.name).cast(arrow_type(column))
