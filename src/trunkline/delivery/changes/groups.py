"""Rows of many transactions over many tables in one payload: groups, parts of large transactions, chunks of snapshots.

    u32 size of the head | head in msgpack | zeros up to a multiple of 8 | a record batch of each table, back to back

A batch is one Arrow message without a schema: its types are those of the schema entry that the head names. It begins
with the columns below, which give each row its place, then has the columns of the table.

    TX         the index of its transaction in the head
    SEQ        its number in the entry, over all tables
    KIND       a RowKind
    UNCHANGED  of a new row of an update and of a read row: a bit for each column whose value is not stated and stays
               as it is, the lowest bit first; NULL: all are stated

Rules
 G1  Rows are numbered from 0 without a gap, transactions in commit order. A head states the rows of each transaction
     and of each table, and the position of the transaction before its first: a lost entry or row does not pass.
 G2  An old row is followed at once by the new row of its update. Without one, an update has not changed the key.
 G3  Key columns are never NULL and always sent. A truncation is a row of NULLs.
 G4  A chunk has rows of kind READ of one table, and no other entry has any. A row that changed while the chunk was read
     is left out, unless the change did not state all columns: then the read row states just those.
 G5  Nothing is trusted: a head, a batch and every row are checked before any of them is used.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence
from enum import IntEnum
from functools import cached_property
from typing import Annotated, Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Meta, Struct

from trunkline.delivery.changes.arrow_stream import ALIGNMENT, read_batch
from trunkline.delivery.changes.columns import arrow_schema
from trunkline.delivery.changes.rows import RESERVED_PREFIX
from trunkline.delivery.changes.schemas import Identity, Malformed, Natural, Positive, TableSchema

GROUP_BYTES_MAX: Final = 512 * 1024  # about; a group closes here, and a larger transaction becomes parts
GROUP_ROWS_MAX: Final = 10_000
DECODED_BYTES_MAX: Final = 64 * 1024 * 1024  # of all batches that another writer compressed; capture does not
TX, SEQ, KIND, UNCHANGED = (f"{RESERVED_PREFIX}_{name}" for name in ("tx", "seq", "kind", "unchanged"))
PLACE_FIELDS: Final = (
    pa.field(TX, pa.uint32()),
    pa.field(SEQ, pa.uint32()),
    pa.field(KIND, pa.int8()),
    pa.field(UNCHANGED, pa.binary()),
)
_SIZE: Final = struct.Struct("<I")

Numbers = npt.NDArray[Any]
Flags = npt.NDArray[np.bool_]


class RowKind(IntEnum):
    INSERT = 0
    DELETE = 1  # its key, or the whole row
    UPDATE_OLD = 2
    UPDATE_NEW = 3
    TRUNCATE = 4
    READ = 5  # of a snapshot; it replaces a row of its key, except columns that are unchanged


class Transaction(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    lsn: Natural  # the position after it
    commit_us: int
    xid: Natural
    rows: Natural  # in this entry


class TableShare(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """What of an entry is of one version of one table."""

    number: Positive
    version: Positive
    rows: Natural
    size: Natural  # of its batch, in bytes


class GroupHead(Struct, frozen=True, forbid_unknown_fields=True):
    """``after``: the position of the last transaction before this entry."""

    after: Natural
    transactions: Annotated[tuple[Transaction, ...], Meta(min_length=1)]
    tables: tuple[TableShare, ...]


class ChunkHead(Struct, frozen=True, forbid_unknown_fields=True):
    """A piece of a snapshot. ``chunk``: its number in the generation. ``cursor``: where the next one begins."""

    after: Natural
    tables: Annotated[tuple[TableShare, ...], Meta(min_length=1, max_length=1)]
    generation: Positive
    chunk: Natural
    complete: bool  # it is the last of its generation
    cursor: bytes | None = None


Head = GroupHead | ChunkHead


class TableRows(Struct, frozen=True):
    """Rows of one version of a table, in order, with their places."""

    number: int
    version: int
    batch: pa.RecordBatch


class Layout:
    """How batches of one version of a table look."""

    def __init__(self, schema: TableSchema) -> None:
        self.schema = schema

    @cached_property
    def arrow(self) -> pa.Schema:
        """At first use: a catalog names more tables than a reader meets."""
        return pa.schema([*PLACE_FIELDS, *arrow_schema(self.schema.vocabulary())])


Layouts = Mapping[tuple[int, int], Layout]  # by number and version


def table_rows(
    layout: Layout,
    columns: Sequence[pa.Array],
    *,
    tx: Sequence[int] | Numbers,
    seq: Sequence[int] | Numbers,
    kind: Sequence[int] | Numbers,
    unchanged: pa.Array | None = None,
) -> TableRows:
    """Rows with their places, to be encoded. ``columns``: those of the table, in order."""
    count = len(seq)
    places = [pa.array(np.asarray(tx, np.uint32)), pa.array(np.asarray(seq, np.uint32))]
    places += [pa.array(np.asarray(kind, np.int8)), pa.nulls(count, pa.binary()) if unchanged is None else unchanged]
    batch = pa.RecordBatch.from_arrays([*places, *columns], schema=layout.arrow)
    return TableRows(layout.schema.number, layout.schema.version, batch)


def encode_group(after: int, transactions: Sequence[Transaction], tables: Sequence[TableRows]) -> bytes:
    """The payload of a group, or of a part, which has one transaction with its rows in this part."""
    shares, messages = _shares(tables)
    return _framed(GroupHead(after, tuple(transactions), shares), messages)


def encode_chunk(
    after: int, rows: TableRows, *, generation: int, chunk: int, complete: bool, cursor: bytes | None = None
) -> bytes:
    shares, messages = _shares([rows])
    return _framed(ChunkHead(after, shares, generation, chunk, complete, cursor), messages)


def _shares(tables: Sequence[TableRows]) -> tuple[tuple[TableShare, ...], list[pa.Buffer]]:
    messages = [each.batch.serialize() for each in tables]
    shares = [
        TableShare(each.number, each.version, each.batch.num_rows, message.size)
        for each, message in zip(tables, messages, strict=True)
    ]
    return tuple(shares), messages


def _framed(head: Head, messages: list[pa.Buffer]) -> bytes:
    encoded = msgspec.msgpack.encode(head)
    padding = bytes(-(_SIZE.size + len(encoded)) % ALIGNMENT)
    return b"".join([_SIZE.pack(len(encoded)), encoded, padding, *(memoryview(each) for each in messages)])


# ---------------------------------------------------------------------------------------------------------- reading

_group: Final = msgspec.msgpack.Decoder(GroupHead)
_chunk: Final = msgspec.msgpack.Decoder(ChunkHead)


def group_head(payload: bytes) -> tuple[GroupHead, int]:
    """The checked head, and where the batches begin. Raises one of ``REFUSALS``."""
    encoded, begin = _head(payload)
    head = _group.decode(encoded)
    before = head.after
    for transaction in head.transactions:
        if transaction.lsn <= before:
            raise Malformed("its transactions are not in commit order")
        before = transaction.lsn
    if sum(each.rows for each in head.transactions) != sum(each.rows for each in head.tables):
        raise Malformed("its transactions and its tables have different numbers of rows")
    _check_shares(head.tables, len(payload) - begin)
    return head, begin


def chunk_head(payload: bytes) -> tuple[ChunkHead, int]:
    """As ``group_head``."""
    encoded, begin = _head(payload)
    head = _chunk.decode(encoded)
    _check_shares(head.tables, len(payload) - begin)
    return head, begin


def _head(payload: bytes) -> tuple[memoryview, int]:
    view = memoryview(payload)
    if len(view) < _SIZE.size:
        raise Malformed("it is truncated")
    end = _SIZE.size + _SIZE.unpack_from(view)[0]
    begin = end + -end % ALIGNMENT
    if begin > len(view) or any(view[end:begin]):
        raise Malformed("its head does not fit")
    return view[_SIZE.size : end], begin


def _check_shares(shares: Sequence[TableShare], size: int) -> None:
    if sum(share.size for share in shares) != size or any(share.size % ALIGNMENT for share in shares):
        raise Malformed("its batches have other sizes than its head states")
    if len({(share.number, share.version) for share in shares}) < len(shares):
        raise Malformed("a table is there twice")


def rows_in(
    head: Head, batches: memoryview, layouts: Layouts, chosen: Collection[int] | None = None
) -> tuple[TableRows, ...]:
    """The checked rows of the chosen tables, by number; of all if ``None``. Raises one of ``REFUSALS`` (G5)."""
    found: list[TableRows] = []
    at = held = 0
    total = sum(share.rows for share in head.tables)
    for share in head.tables:
        message = batches[at : at + share.size]
        at += share.size
        layout = layouts.get((share.number, share.version))
        if layout is None:
            raise Malformed(f"no schema entry has version {share.version} of table {share.number}")
        if chosen is not None and share.number not in chosen:
            continue
        batch = read_batch(message, layout.arrow, DECODED_BYTES_MAX - held)
        held += batch.nbytes
        if batch.num_rows != share.rows:
            raise Malformed(f"table {share.number} has {batch.num_rows} rows, and its head states {share.rows}")
        _check_rows(head, total, layout.schema, batch)
        found.append(TableRows(share.number, share.version, batch))
    if len(found) == len(head.tables):
        _check_places(head, total, found)
    return tuple(found)


def _check_rows(head: Head, total: int, schema: TableSchema, batch: pa.RecordBatch) -> None:
    """The rows of one table."""
    if any(batch.column(place).null_count for place in range(3)):
        raise Malformed("a row has no place")
    if not batch.num_rows:
        return
    tx, seq, kind = (batch.column(place).to_numpy() for place in range(3))
    transactions = len(head.transactions) if isinstance(head, GroupHead) else 1
    if seq[-1] >= total or not (seq[1:] > seq[:-1]).all():
        raise Malformed("rows are not in order")
    if tx[-1] >= transactions or not (tx[1:] >= tx[:-1]).all():
        raise Malformed("a row is of no transaction, or not in the order of transactions")
    _check_kinds(isinstance(head, ChunkHead), schema, tx, seq, kind)
    _check_values(schema, batch, kind)
    _check_unchanged(schema, batch, kind)


def _check_kinds(chunk: bool, schema: TableSchema, tx: Numbers, seq: Numbers, kind: Numbers) -> None:
    if chunk and (kind != RowKind.READ).any():
        raise Malformed("a row of a chunk is not of the kind read")
    if not chunk and ((kind < RowKind.INSERT) | (kind > RowKind.TRUNCATE)).any():
        raise Malformed("a row has an unknown kind")
    paired = (kind[:-1] == RowKind.UPDATE_OLD) & (kind[1:] == RowKind.UPDATE_NEW)
    paired &= (seq[1:] == seq[:-1] + 1) & (tx[1:] == tx[:-1])
    if (kind == RowKind.UPDATE_OLD).sum() != paired.sum():
        raise Malformed("an old row is not followed by its new row")
    if schema.key:
        return
    if (kind == RowKind.UPDATE_NEW).sum() != paired.sum():
        raise Malformed("an update of a table without a key has no old row")
    if schema.identity is not Identity.FULL and ((kind == RowKind.DELETE) | (kind == RowKind.UPDATE_OLD)).any():
        raise Malformed("a removal does not say which row it removes")


def _check_values(schema: TableSchema, batch: pa.RecordBatch, kind: Numbers) -> None:
    """G3."""
    truncations = kind == RowKind.TRUNCATE
    for name in schema.key:
        column = batch.column(name)
        if column.null_count and (_nulls(column) & ~truncations).any():
            raise Malformed("a key is NULL")
    if truncations.any():
        for column in batch.columns[len(PLACE_FIELDS) :]:
            if not (_nulls(column) | ~truncations).all():
                raise Malformed("a truncation has values")


def _check_unchanged(schema: TableSchema, batch: pa.RecordBatch, kind: Numbers) -> None:
    stated = batch.column(UNCHANGED)
    if stated.null_count == len(stated):
        return
    if (~_nulls(stated) & (kind != RowKind.UPDATE_NEW) & (kind != RowKind.READ)).any():
        raise Malformed("a row that is neither an update nor read has unchanged columns")
    width = -(-len(schema.columns) // 8)
    if not pc.all(pc.equal(pc.binary_length(stated), width)).as_py():
        raise Malformed("unchanged columns are not one bit for each column")
    rows = np.flatnonzero(~_nulls(stated))
    bits = np.frombuffer(b"".join(stated.drop_null().to_pylist()), np.uint8).reshape(-1, width)
    for place in range(8 * width):
        unsent = rows[(bits[:, place >> 3] >> (place & 7)) & 1 == 1]
        if len(unsent) == 0:
            continue
        if place >= len(schema.columns) or schema.columns[place].name in schema.key:
            raise Malformed("an unchanged column is a key, or is not there")
        if not _nulls(batch.column(len(PLACE_FIELDS) + place))[unsent].all():
            raise Malformed("an unchanged column has a value")


def _check_places(head: Head, total: int, tables: Sequence[TableRows]) -> None:
    """G1, over all tables."""
    tx, seq = (
        np.concatenate([np.zeros(0, np.int64), *(each.batch.column(name).to_numpy() for each in tables)])
        for name in (TX, SEQ)
    )
    by_place = np.full(total, -1, np.int64)
    by_place[seq] = tx
    if (by_place < 0).any() or (by_place[1:] < by_place[:-1]).any():
        raise Malformed("two rows have one place, or transactions are mixed")
    if isinstance(head, GroupHead):
        counts = np.bincount(tx, minlength=len(head.transactions))
        if counts.tolist() != [each.rows for each in head.transactions]:
            raise Malformed("a transaction has other rows than its head states")


def _nulls(column: pa.Array) -> Flags:
    found: Flags = column.is_null().to_numpy(zero_copy_only=False)
    return found
