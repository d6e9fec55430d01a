"""Batches as plain bytes, for shuffles: so the rows of tables with different columns share one plan.

A blob is the message of a record batch in Arrow's stream format, without the schema: after that of its schema, blobs
that are written one behind the other are a stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import pyarrow as pa

from trunkline.delivery.changes.spool_file import SpoolFile

Part = tuple[int, str]  # a member and a table
BLOB_BYTES: Final = 256 * 1024  # of a blob, about; more: shuffles need more memory, fewer: more overhead


def blobs_of(batch: pa.RecordBatch) -> Iterator[bytes]:
    """The rows of a batch, in pieces of about BLOB_BYTES."""
    pieces = max(1, -(-batch.nbytes // BLOB_BYTES))
    rows = max(1, -(-batch.num_rows // pieces))
    for first in range(0, batch.num_rows, rows):
        yield batch.slice(first, rows).serialize().to_pybytes()


def batch_of(blob: bytes | bytearray | memoryview | pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    return pa.ipc.read_record_batch(blob if isinstance(blob, pa.Buffer) else pa.py_buffer(blob), schema)


class BlobSpool:
    """Rows of many tables in one file."""

    def __init__(self) -> None:
        self._file = SpoolFile()

    def add(self, schema: pa.Schema, blobs: Iterable[bytes | bytearray]) -> Callable[[], Iterator[pa.RecordBatch]]:
        """Write the rows of one table; they can be read any number of times. Both raise ``Unreachable``."""
        file = self._file
        start = file.write(schema.serialize().to_pybytes())
        for blob in blobs:
            file.write(blob)
        end = file.size

        def read() -> Iterator[pa.RecordBatch]:
            with pa.BufferReader(file.mapped(end).slice(start, end - start)) as stream:
                yield from pa.ipc.open_stream(stream)

        return read


class DividedSpool:
    """Rows of many parts in one file, as ``BlobSpool``, that come in any order. Used until it is closed."""

    def __init__(self) -> None:
        self._file = SpoolFile()
        self._pieces: dict[Part, list[tuple[int, int]]] = {}  # places in the file

    def add(self, part: Part, batch: pa.RecordBatch) -> None:
        for blob in blobs_of(batch):
            self._pieces.setdefault(part, []).append((self._file.write(blob), len(blob)))

    def close(self) -> None:
        self._file.close()

    def reader(self, part: Part, schema: pa.Schema) -> Callable[[], Iterator[pa.RecordBatch]] | None:
        """The rows of a part, once everything was added; they can be read any number of times. ``None``: there are
        none."""
        pieces, file = self._pieces.get(part), self._file
        if pieces is None:
            return None

        def read() -> Iterator[pa.RecordBatch]:
            mapped = file.mapped(file.size)
            for start, length in pieces:
                yield batch_of(mapped.slice(start, length), schema)

        return read
