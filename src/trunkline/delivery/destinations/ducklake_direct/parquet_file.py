"""Parquet files of a lake, as the extension names and writes them, and their values.

Rules
 P1  Every column has the number of its column in the catalog as field id: files are read by it, whatever the names.
 P2  A file is synced, and so is its directory, before the catalog names it: all files of a commit after the last one is
     written, so that the file system does its work once. A file's name is new, and unique.
 P3  Values have the types that the extension would write. A value that it might refuse raises ``Unusual``.
"""

from __future__ import annotations

import binascii
import os
import secrets
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct

from trunkline.delivery.changes.columns import Column, arrow_type
from trunkline.delivery.destinations.ducklake_direct.bounds import Unusual
from trunkline.delivery.destinations.ducklake_direct.catalog import Watch

FIELD_ID: Final = b"PARQUET:field_id"
TAIL_BYTES: Final = 8  # of a Parquet file: the length of its footer, and a magic word
DICTIONARY_ROWS_MIN: Final = 1000  # fewer: a dictionary costs more than it saves
HEX_UUID: Final = 32  # digits


class WrittenFile(Struct, frozen=True):
    handle: int  # open, until it is synced
    name: str
    path: str
    rows: int
    size_bytes: int
    footer_bytes: int
    column_bytes: tuple[int, ...]  # of each column


def new_name(suffix: str = "") -> str:
    """As the extension names a file: by a UUID of version 7."""
    ms, noise = int(time.time() * 1000), secrets.randbits(74)
    number = ms << 80 | 7 << 76 | (noise >> 62) << 64 | 2 << 62 | noise & (2**62 - 1)
    digits = f"{number:032x}"
    return f"ducklake-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}{suffix}.parquet"


def numbered(name: str, kind: pa.DataType, number: int) -> pa.Field:
    return pa.field(name, kind, metadata={FIELD_ID: str(number).encode()})


def write_file(folder: str, name: str, table: pa.Table, watch: Watch | None) -> WrittenFile:
    """Raises ``OSError``; then a part of it may be there."""
    sink = pa.BufferOutputStream()
    known: list[pq.FileMetaData] = []
    with pq.ParquetWriter(
        sink,
        table.schema,
        compression="snappy",
        use_dictionary=table.num_rows >= DICTIONARY_ROWS_MIN,
        store_schema=False,
        store_decimal_as_integer=True,
        metadata_collector=known,
    ) as writer:
        writer.write_table(table)
    content = sink.getvalue()
    path = folder + name
    if watch is not None:
        watch(f"write {path}")
    handle = _write(path, content)
    footer = int.from_bytes(content[-TAIL_BYTES:-4].to_pybytes(), "little")
    return WrittenFile(handle, name, path, table.num_rows, content.size, footer, _column_bytes(known[0]))


def _column_bytes(metadata: pq.FileMetaData) -> tuple[int, ...]:
    groups = [metadata.row_group(at) for at in range(metadata.num_row_groups)]
    return tuple(sum(group.column(at).total_compressed_size for group in groups) for at in range(metadata.num_columns))


def _write(path: str, content: pa.Buffer) -> int:
    """Returns the open file."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        left = memoryview(content)
        while left:
            left = left[os.write(handle, left) :]
    except BaseException:
        os.close(handle)
        raise
    return handle


def make_folder(folder: str) -> None:
    """With its parents, each of them synced."""
    missing = []
    path = Path(folder)
    while not path.exists():
        missing.append(path)
        path = path.parent
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        sync_path(str(each.parent))


def sync_path(path: str) -> None:
    """A file, or the names in a folder."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_files(paths: Collection[str]) -> None:
    """Files that no catalog names, and never will."""
    for path in paths:
        Path(path).unlink(missing_ok=True)


# ------------------------------------------------------------------------------------------------------------ values


def parquet_type(column: Column) -> pa.DataType:
    """The type of a column in a file."""
    if column.type == "UUID":
        return pa.uuid()
    if column.type == "JSON":
        return pa.json_(pa.string())
    return arrow_type(column)


def parquet_values(column: Column, values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Values as they travel, as they are in a file (P3)."""
    if not column.nullable and values.null_count:
        raise Unusual(f"NULL in column {column.name!r}, which has NOT NULL")
    if column.type == "UUID":
        return _wrapped([uuid_bytes(chunk) for chunk in values.chunks], pa.uuid())
    if column.type in ("VARCHAR", "JSON") and pc.any(pc.match_substring(values, "\0")).as_py():
        raise Unusual("a text with a NUL")
    if column.type == "JSON":
        _check_json(values)
        return _wrapped([chunk.cast(pa.string()) for chunk in values.chunks], pa.json_(pa.string()))
    return values


def _wrapped(chunks: Sequence[pa.Array], kind: Any) -> pa.ChunkedArray:
    return pa.chunked_array([pa.ExtensionArray.from_storage(kind, chunk) for chunk in chunks], kind)


def uuid_bytes(texts: pa.Array) -> pa.Array:
    """Texts of UUIDs, as bytes."""
    digits = pc.replace_substring(texts.fill_null("0" * HEX_UUID), "-", "")
    if not pc.all(pc.equal(pc.binary_length(digits), HEX_UUID), min_count=0).as_py():
        raise Unusual("a UUID in a form of its own")
    try:
        content = binascii.unhexlify("".join(digits.to_pylist()))
    except binascii.Error as error:
        raise Unusual("a UUID that is none") from error
    plain = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(texts), [None, pa.py_buffer(content)])
    return pc.if_else(texts.is_valid(), plain, pa.scalar(None, pa.binary(16))) if texts.null_count else plain


def _check_json(values: pa.ChunkedArray) -> None:
    """The extension refuses what is not JSON, so what cannot be read here is left to it."""
    try:
        for chunk in values.chunks:
            for text in chunk.drop_null().to_pylist():
                msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Unusual("a text that may not be JSON") from error
