"""Writes rows to PostgreSQL and reads them back, without Python code per row.

Writing: DuckDB writes Arrow batches in the binary format of ``COPY`` into a file in memory (20,000 rows: 5 ms), which
preserves every value, and which the server reads faster than text. Keys to remove travel as one array per key column:
PostgreSQL's planner knows the length of an array; of a temporary table it knows nothing, and it read a whole table for
40 keys. Reading: the server writes CSV, in expressions that preserve every value, and Arrow reads it.
"""

from __future__ import annotations

import io
import os
import struct
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Final

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from psycopg.abc import Buffer

from trunkline.delivery.backends.duckdb_pool import new_duckdb
from trunkline.delivery.backends.postgres_session import BinaryParameter
from trunkline.delivery.backends.sql import identifier, literal
from trunkline.delivery.changes.columns import Column, Columns, arrow_schema
from trunkline.delivery.changes.rows import OP_COLUMN, Op
from trunkline.delivery.destinations.postgres_types import from_text, key_form, read_expression, written_expression
from trunkline.errors import DestinationHalted

CHUNK_ROWS: Final = 65_536  # applied at once; more: more memory, fewer: more statements
CHUNK_BYTES: Final = 32 * 2**20
READ_BLOCK_BYTES: Final = 32 * 2**20  # the longest row that can be read back, as text
INTEGERS: Final = {  # type id and format in PostgreSQL
    "TINYINT": (21, ">i2"),
    "UTINYINT": (21, ">i2"),
    "SMALLINT": (21, ">i2"),
    "USMALLINT": (23, ">i4"),
    "INTEGER": (23, ">i4"),
    "UINTEGER": (20, ">i8"),
    "BIGINT": (20, ">i8"),
}
COPY_HEADER_BYTES: Final = 19  # signature, flags and length of the extension


def chunks(batches: Iterable[pa.RecordBatch], names: Sequence[str]) -> Iterator[pa.Table]:
    """The rows in chunks of a bounded size, with these columns only; no chunk is empty."""
    kept: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        for piece in _pieces(batch.select(list(names))):
            if kept and (rows + piece.num_rows > CHUNK_ROWS or size + piece.nbytes > CHUNK_BYTES):
                yield pa.Table.from_batches(kept)
                kept, rows, size = [], 0, 0
            kept.append(piece)
            rows, size = rows + piece.num_rows, size + piece.nbytes
    if kept:
        yield pa.Table.from_batches(kept)


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    count = max(-(-batch.num_rows // CHUNK_ROWS), -(-batch.nbytes // CHUNK_BYTES), 1)
    step = max(-(-batch.num_rows // count), 1)
    for first in range(0, batch.num_rows, step):
        yield batch.slice(first, step)


def filled_columns(table: pa.Table, key: Columns) -> tuple[Columns, ...]:
    """Each set of key columns that are not NULL in the same row: NULL needs another comparison than a value."""
    with_nulls = [column for column in key if table[column.name].null_count]
    if not with_nulls:
        return (key,)
    absent = pa.table({str(n): pc.is_null(table[column.name]) for n, column in enumerate(with_nulls)})
    patterns = absent.group_by(absent.column_names).aggregate([]).to_pylist()
    return tuple(
        tuple(column for column in key if column not in with_nulls or not pattern[str(with_nulls.index(column))])
        for pattern in patterns
    )


class CopyEncoder:
    """Writes rows in PostgreSQL's binary format. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._duck = new_duckdb("postgres_scanner")
        self._duck.execute("SET threads = 1")  # with more, arrays of one row's key columns have different orders
        self._duck.execute("PRAGMA disable_optimizer")  # nothing to optimise, and it took a third of a small statement
        self._file = os.memfd_create("trunkline-copy")

    @contextmanager
    def chunk(self, table: pa.Table) -> Iterator[RowChunk]:
        """Registering rows costs as much as writing a few hundred."""
        with self._lock:
            self._duck.register("chunk", table)
            try:
                yield RowChunk(table, self._duck, self._file)
            finally:
                self._duck.unregister("chunk")


class RowChunk:
    """Rows to write. Raises ``DestinationHalted`` that names a column with a value that cannot be written."""

    def __init__(self, table: pa.Table, duck: duckdb.DuckDBPyConnection, file: int) -> None:
        self._table = table
        self._duck = duck
        self._file = file

    def rows(self, columns: Columns, *, staged: bool) -> bytes:
        """Rows for ``COPY … (FORMAT binary)``; of staged rows, without removals."""
        where = f"WHERE {OP_COLUMN} <> {int(Op.REMOVE)}" if staged else ""
        return self._written([written_expression(column) for column in columns], where, columns)

    def keys(self, key: Columns, filled: Columns, *, inserts: bool, beside: Columns = ()) -> list[BinaryParameter]:
        """An array of operations, then one for each filled column, of rows in which exactly these are not NULL; then
        one for each of the columns ``beside``."""
        if not beside and (quick := _whole_numbers(self._table, key, inserts=inserts)) is not None:
            return quick
        lists = [f"list({OP_COLUMN}::SMALLINT)"]
        lists += [f"list({key_form(column).expression})" for column in (*filled, *beside)]
        tests = [f"{identifier(column.name)} IS {'NOT ' if column in filled else ''}NULL" for column in key]
        if not inserts:
            tests.append(f"{OP_COLUMN} <> {int(Op.INSERT)}")
        return fields(self._written(lists, f"WHERE {' AND '.join(tests)}", (*filled, *beside)))

    def _written(self, expressions: Sequence[str], where: str, columns: Columns) -> bytes:
        try:
            return self._copy(expressions, where)
        except duckdb.Error:
            for column in columns:
                self._explain(column, where)
            raise

    def _copy(self, expressions: Sequence[str], where: str) -> bytes:
        named = ", ".join(f"{expression} AS c{n}" for n, expression in enumerate(expressions))
        target = literal(f"/proc/self/fd/{self._file}")
        os.ftruncate(self._file, 0)
        self._duck.execute(
            f"COPY (SELECT {named} FROM chunk {where}) TO {target} (FORMAT postgres_binary, USE_TMP_FILE false)"
        )
        return os.pread(self._file, os.fstat(self._file).st_size, 0)

    def _explain(self, column: Column, where: str) -> None:
        try:
            self._copy([written_expression(column)], where)
        except duckdb.Error as error:
            text = (
                "it holds a text with a NUL character" if "NULL-byte" in str(error) else str(error).partition("\n")[0]
            )
            raise DestinationHalted(
                f"column {column.name!r} has a value that PostgreSQL cannot hold: {text}; fix the row in the source"
            ) from error


@cache
def shared_encoder() -> CopyEncoder:
    """Global to the process: it takes time to load, and memory."""
    return CopyEncoder()


def _whole_numbers(table: pa.Table, key: Columns, *, inserts: bool) -> list[BinaryParameter] | None:
    """The arrays of a key of integers, without DuckDB: that took a quarter of a small flush."""
    forms = [INTEGERS.get(column.type) for column in key]
    if None in forms or any(table[column.name].null_count for column in key):
        return None
    rows = table.select([OP_COLUMN, *(column.name for column in key)])
    if not inserts:
        rows = rows.filter(pc.not_equal(rows[OP_COLUMN], int(Op.INSERT)))
    return [
        _array(values, form) for values, form in zip(rows.columns, [INTEGERS["SMALLINT"], *forms], strict=True) if form
    ]


def _array(values: pa.ChunkedArray, form: tuple[int, str]) -> BinaryParameter:
    """An array of PostgreSQL: dimensions, whether it has NULLs, type, length, first index; then sizes and values."""
    oid, number = form
    elements = np.empty(len(values), [("size", ">i4"), ("value", number)])
    elements["size"] = elements.dtype["value"].itemsize
    elements["value"] = values.to_numpy()
    return BinaryParameter(
        struct.pack(">iiIii", 1, 0, oid, len(values), 1) + elements.tobytes() if len(values) else b""
    )


def fields(content: bytes) -> list[BinaryParameter]:
    """The fields of the single row of a binary ``COPY``: a count, then each with its length before it.

    Empty arrays are NULL, with length -1.
    """
    at = COPY_HEADER_BYTES
    count = int.from_bytes(content[at : at + 2])
    found, at = [], at + 2
    for _ in range(count):
        end = at + 4 + max(int.from_bytes(content[at : at + 4], signed=True), 0)
        found.append(BinaryParameter(content[at + 4 : end]))
        at = end
    return found


# ------------------------------------------------------------------------------------------------------------ reading


def select(table: str, columns: Columns) -> str:
    """The statement that returns a table as text."""
    listed = ", ".join(read_expression(identifier(column.name), column.type) for column in columns)
    return f"COPY (SELECT {listed} FROM {table}) TO STDOUT (FORMAT csv)"


def read(blocks: Iterator[Buffer], columns: Columns) -> Iterator[pa.RecordBatch]:
    """The rows of ``select``; at least one batch, which may be empty."""
    stream = _Blocks(blocks)
    schema = arrow_schema(columns)
    if stream.empty():
        yield pa.RecordBatch.from_pylist([], schema)
        return
    names = [str(n) for n in range(len(columns))]
    texts = pyarrow.csv.open_csv(
        io.BufferedReader(stream, 2**16),
        read_options=pyarrow.csv.ReadOptions(block_size=READ_BLOCK_BYTES, column_names=names, use_threads=False),
        parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    for batch in texts:
        arrays = [from_text(array, column) for array, column in zip(batch.columns, columns, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


class _Blocks(io.RawIOBase):
    """Blocks of bytes as a file."""

    def __init__(self, blocks: Iterator[Buffer]) -> None:
        self._blocks = blocks
        self._rest = memoryview(next(blocks, b""))

    def empty(self) -> bool:
        return not self._rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if not self._rest:
            self._rest = memoryview(next(self._blocks, b""))
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size
