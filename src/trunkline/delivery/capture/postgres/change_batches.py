"""A range of `pgoutput` messages as the rows of each table, with the directory of their transactions.

The rows are those that an entry holds (``changes/groups.py``), with their places. Numbers of transactions have 32 bits
in the stream and 64 bits here, so that they can be compared with a snapshot of the server.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from msgspec import Struct
from numpy.typing import NDArray

from trunkline.delivery.capture.postgres.pgoutput import RelationColumn, Row, Truncate, parse
from trunkline.delivery.capture.postgres.text_columns import TableReader
from trunkline.delivery.capture.postgres.tuple_columns import (
    DELETE,
    INSERT,
    MESSAGE_BYTES_MIN,
    NEW,
    ROW_AT,
    UNSENT,
    UPDATE,
    JoinedMessages,
    Texts,
    changed_rows,
    empty_texts,
)
from trunkline.delivery.capture.postgres.values import UnfitValue
from trunkline.delivery.changes.groups import Layout, RowKind, TableRows, Transaction
from trunkline.delivery.changes.schemas import TableSchema
from trunkline.errors import ProtocolError

BEGIN, COMMIT, TRUNCATE = b"BCT"
BEGIN_FORM: Final = struct.Struct(">QqI")  # LSN of the commit, its time, transaction
COMMIT_FORM: Final = struct.Struct(">BQQq")  # flags, LSN of the commit, LSN after it, time
BEGIN_BYTES: Final = BEGIN_FORM.size + 1
COMMIT_BYTES: Final = COMMIT_FORM.size + 1
XIDS: Final = 2**32  # then the numbers of transactions repeat in the stream
EPOCH_MICROS: Final = 946_684_800 * 10**6  # PostgreSQL counts from the year 2000

_NONE: Final = np.empty(0, np.int64)
_KINDS: Final = np.full(256, RowKind.UPDATE_NEW, np.int8)  # by the kind of a message
_KINDS[INSERT], _KINDS[DELETE] = RowKind.INSERT, RowKind.DELETE


class UnfitChange(UnfitValue):
    """A value that its column's type cannot hold, and its table."""

    def __init__(self, schema: TableSchema, index: int, row: Row, why: str) -> None:
        super().__init__(index, row, why)
        self.schema = schema


class OpenTransaction(Struct, frozen=True):
    """As its Begin describes it."""

    commit_lsn: int
    commit_us: int  # since 1970
    xid: int


class Table:
    """One version of a table, prepared for its rows. ``key``: the places of the columns that a short old row has."""

    def __init__(self, schema: TableSchema, key: Sequence[int] = ()) -> None:
        self.layout = Layout(schema)
        self.key = tuple(key)
        columns = tuple(RelationColumn(each.name, each.type_oid, each.modifier) for each in schema.columns)
        self.reader = TableReader(columns, schema.vocabulary())

    @property
    def schema(self) -> TableSchema:
        return self.layout.schema


Tables = Mapping[int, Table | None]  # by the number that the server gives a table; None: its rows are left out


class DecodedChanges(Struct, frozen=True):
    transactions: tuple[Transaction, ...]  # those with rows
    tables: tuple[TableRows, ...]
    open: OpenTransaction | None  # after the range
    end_lsn: int  # of the last commit in or before the range


def decoded_changes(
    messages: Sequence[bytes], tables: Tables, opened: OpenTransaction | None, end_lsn: int, near: int = 0
) -> DecodedChanges:
    """The messages are of the kinds B, C, I, U, D and T; ``opened`` is the transaction that they begin in.

    ``near``: a number of a transaction that is less than 2^31 from theirs.

    Raises ``ProtocolError`` and ``UnfitChange``.
    """
    joined = JoinedMessages(messages)
    kinds = joined.octets[joined.starts]
    begin, commit = kinds == BEGIN, kinds == COMMIT
    begun = np.cumsum(begin) + (opened is not None)
    if (begun - np.cumsum(commit) != ~commit).any():
        raise _invalid("a Begin, a Commit or a change is out of place")
    begins = _begins(messages, begin, opened, near)
    commits = _commits(messages, commit)
    _check_order(begins, commits, end_lsn)
    count, rows = _rows_of(joined, messages, kinds, tables)
    transaction = begun - 1  # of each message
    sizes = np.bincount(transaction, count, len(begins)).astype(np.int64)
    kept = sizes > 0
    entry = np.cumsum(kept) - 1  # D3: the place of each transaction among those with rows
    ends = [each[2] for each in commits]
    directory = tuple(
        Transaction(each.commit_lsn, each.commit_us, each.xid, size)
        for each, size in zip(begins, sizes.tolist(), strict=True)
        if size
    )
    places = _Places(entry[transaction], np.cumsum(count) - count)
    found = tuple(_batch(table, numbers, truncations, joined, places) for table, numbers, truncations in rows)
    still = begins[-1] if len(begins) > len(commits) else None
    return DecodedChanges(directory, found, still, ends[-1] if ends else end_lsn)


def _invalid(why: str) -> ProtocolError:
    return ProtocolError(f"the server sent an invalid pgoutput stream: {why}; restart the capture")


# --- transactions ---


def _begins(
    messages: Sequence[bytes], which: NDArray[np.bool_], opened: OpenTransaction | None, near: int
) -> list[OpenTransaction]:
    found = [] if opened is None else [opened]
    first = max(0, near - XIDS // 2)
    for number in np.flatnonzero(which).tolist():
        if len(messages[number]) != BEGIN_BYTES:
            raise _invalid("a Begin has another length")
        lsn, micros, xid = BEGIN_FORM.unpack_from(messages[number], 1)
        found.append(OpenTransaction(lsn, micros + EPOCH_MICROS, first + (xid - first) % XIDS))
    return found


def _commits(messages: Sequence[bytes], which: NDArray[np.bool_]) -> list[tuple[int, int, int, int]]:
    found = [messages[number] for number in np.flatnonzero(which).tolist()]
    if any(len(each) != COMMIT_BYTES for each in found):
        raise _invalid("a Commit has another length")
    return [COMMIT_FORM.unpack_from(each, 1) for each in found]


def _check_order(begins: Sequence[OpenTransaction], commits: Sequence[tuple[int, int, int, int]], end_lsn: int) -> None:
    """D4."""
    for number, (_, lsn, end, _) in enumerate(commits):
        if not end_lsn <= lsn < end or lsn != begins[number].commit_lsn:
            raise _invalid("a Commit does not belong to its Begin, or is behind an earlier one")
        end_lsn = end


# --- rows ---

_TableMessages = tuple[Table, NDArray[np.int64], list[tuple[int, int]]]  # messages with rows, (message, number)


class _Places(Struct, frozen=True):
    """Of each message: its transaction in the directory, and the order of its first row."""

    transaction: NDArray[np.int64]
    order: NDArray[np.int64]


def _rows_of(
    joined: JoinedMessages, messages: Sequence[bytes], kinds: NDArray[np.uint8], tables: Tables
) -> tuple[NDArray[np.int64], list[_TableMessages]]:
    """How many rows each message has, and the messages of each table, in the order of their first one."""
    rows = np.flatnonzero((kinds == INSERT) | (kinds == UPDATE) | (kinds == DELETE))
    starts = joined.starts[rows]
    if (joined.ends[rows] - starts < MESSAGE_BYTES_MIN).any():
        raise _invalid("a change is too short")
    count = np.zeros(len(messages), np.int64)
    count[rows] = 1 + ((kinds[rows] == UPDATE) & (joined.octets[starts + ROW_AT - 1] != NEW))
    oids = joined.unsigned32(starts + 1)
    order = np.argsort(oids, kind="stable")
    names, firsts = np.unique(oids[order], return_index=True)
    found = dict(zip(names.tolist(), np.split(rows[order], firsts[1:]), strict=True)) if len(rows) else {}
    truncations = _truncations(messages, kinds, tables, count)
    if unknown := (found.keys() | truncations.keys()) - tables.keys():
        raise _invalid(f"the table with the number {min(unknown)} was not described before its changes")
    every: list[tuple[int, int, _TableMessages]] = []
    for oid in found.keys() | truncations.keys():
        numbers, cut = found.get(oid, _NONE), truncations.get(oid, [])
        if (table := tables[oid]) is None:
            count[numbers] = 0
        else:
            first = min([*numbers[:1].tolist(), *(each[0] for each in cut[:1])])
            every.append((first, oid, (table, numbers, cut)))
    every.sort(key=lambda each: each[:2])
    return count, [each for _, _, each in every]


def _truncations(
    messages: Sequence[bytes], kinds: NDArray[np.uint8], tables: Tables, count: NDArray[np.int64]
) -> dict[int, list[tuple[int, int]]]:
    """By table, and counted: one message may empty several tables."""
    found: dict[int, list[tuple[int, int]]] = {}
    for message in np.flatnonzero(kinds == TRUNCATE).tolist():
        truncate = parse(messages[message])
        assert isinstance(truncate, Truncate)
        for oid in truncate.relations:
            found.setdefault(oid, []).append((message, int(count[message])))
            count[message] += tables.get(oid) is not None
    return found


def _batch(
    table: Table,
    numbers: NDArray[np.int64],
    truncations: Sequence[tuple[int, int]],
    joined: JoinedMessages,
    at: _Places,
) -> TableRows:
    changed = changed_rows(joined, numbers, len(table.schema.columns), table.key)
    paired, kind = changed.paired, joined.octets[joined.starts[numbers]]
    kinds = _KINDS[kind]
    kinds[paired] = RowKind.UPDATE_OLD
    tx, seq, texts = at.transaction[numbers], at.order[numbers], changed.first
    if (pairs := bool(paired.any())) or truncations:
        if pairs:
            texts = [one.then(two) for one, two in zip(texts, changed.second, strict=True)]
        texts = [each.then(empty_texts(len(truncations))) for each in texts]
        cut = np.array([message for message, _ in truncations], np.int64)
        tx = np.concatenate([tx, tx[paired], at.transaction[cut]])
        cut_order = at.order[cut] + np.array([number for _, number in truncations], np.int64)
        seq = np.concatenate([seq, seq[paired] + 1, cut_order])
        added = [np.full(int(paired.sum()), RowKind.UPDATE_NEW, np.int8), np.full(len(cut), RowKind.TRUNCATE, np.int8)]
        kinds = np.concatenate([kinds, *added])
        order = np.argsort(seq, kind="stable")
        tx, seq, kinds, texts = tx[order], seq[order], kinds[order], [each.chosen(order) for each in texts]
    try:
        arrays = table.reader.arrays(texts, joined)
    except UnfitValue as unfit:
        raise UnfitChange(table.schema, unfit.index, unfit.row, str(unfit)) from unfit
    places = placed(tx, seq, kinds)
    batch = pa.RecordBatch.from_arrays([*places, _unsent(texts, kinds), *arrays], schema=table.layout.arrow)
    return TableRows(table.schema.number, table.schema.version, batch)


def placed(tx: NDArray[Any], seq: NDArray[Any], kinds: NDArray[np.int8]) -> list[pa.Array]:
    """The first three columns of rows, without a copy where their types fit."""
    places = [_numbers(tx.astype(np.uint32), pa.uint32()), _numbers(seq.astype(np.uint32), pa.uint32())]
    return [*places, _numbers(kinds, pa.int8())]


def _numbers(values: NDArray[Any], kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _unsent(texts: Sequence[Texts], kinds: NDArray[np.int8]) -> pa.Array:
    """Which columns the new row of an update did not send. An old row always lacks them if it has its key alone."""
    absent = [each.state == UNSENT for each in texts]
    if not any(each.any() for each in absent):
        return pa.nulls(len(kinds), pa.binary())
    bits: NDArray[Any] = np.packbits(np.stack(absent, axis=1), axis=1, bitorder="little")
    new = kinds == RowKind.UPDATE_NEW
    stated = [bytes(row) if each and row.any() else None for row, each in zip(bits, new.tolist(), strict=True)]
    return pa.array(stated, pa.binary())
