"""Splits the rows of one table of a captured database by a hash of their key: each part is settled for itself.

Rules
 K1  All rows of a key are in one part; of a table without a key, all rows with equal values. The hash is of the values
     under the newest columns.
 K2  A truncation is in every part, and so is the note that a transaction never was.
 K3  The rows of an update that changes the key are in the parts of their keys, as a delete and an insert. If the new
     row does not state all values, and the old one is not whole, the two keys are *linked*: linked keys are in one
     part. Links are found on the way, so that a second pass may be needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from trunkline.delivery.changes.database_reader import PLACES
from trunkline.delivery.changes.groups import KIND, SEQ, TX, UNCHANGED, Layout, RowKind
from trunkline.delivery.changes.rows import RESERVED_PREFIX
from trunkline.delivery.changes.schemas import Identity, TableSchema
from trunkline.delivery.changes.table_changes import RowPlaces, TableHistory
from trunkline.delivery.sources.row_hashes import Hashes, row_hashes

TRANSACTION, GLSN, VERSION = (f"{RESERVED_PREFIX}_{name}" for name in ("transaction", "glsn", "row_version"))
WHERE_FIELDS: Final = (pa.field(TRANSACTION, pa.int64()), pa.field(GLSN, pa.int64()), pa.field(VERSION, pa.int32()))
WHERE: Final = len(WHERE_FIELDS)
FORGET: Final = 127  # a kind of our own: its transaction never was
SEQ_MAX: Final = 2**32 - 1
TRANSACTIONS_MAX: Final = 1 << 20  # of an entry, which has no more rows than that

Indices = npt.NDArray[np.int64]
Links = set[tuple[int, int]]


def travel_schema(schema: TableSchema) -> pa.Schema:
    """Rows with their places and where they stand in the log."""
    return pa.schema([*WHERE_FIELDS, *Layout(schema).arrow])


def placed(batch: pa.RecordBatch, begin: int, glsn: int, version: int) -> pa.RecordBatch:
    """Rows of an entry, under the newest version. ``begin``: of its transactions' parts, the first entry."""
    count = batch.num_rows
    transactions = begin * TRANSACTIONS_MAX + batch.column(TX).to_numpy().astype(np.int64)
    where = [transactions, np.full(count, glsn, np.int64), np.full(count, version, np.int32)]
    return pa.RecordBatch.from_arrays(
        [*map(pa.array, where), *batch.columns], schema=pa.schema([*WHERE_FIELDS, *batch.schema])
    )


def forgotten(schema: TableSchema, begin: int, glsn: int) -> pa.RecordBatch:
    """The note that the parts since an entry never were."""
    return _note(schema, FORGET, begin, glsn, 0)


def emptied(schema: TableSchema, glsn: int) -> pa.RecordBatch:
    """The note that a table had no rows right before an entry: a truncation after the entry before it."""
    return _note(schema, RowKind.TRUNCATE, glsn, glsn - 1, SEQ_MAX)


def _note(schema: TableSchema, kind: int, begin: int, glsn: int, seq: int) -> pa.RecordBatch:
    travel = travel_schema(schema)
    stated = {TRANSACTION: begin * TRANSACTIONS_MAX, GLSN: glsn, VERSION: schema.version, TX: 0, SEQ: seq, KIND: kind}
    return pa.RecordBatch.from_arrays([pa.array([stated.get(each.name)], each.type) for each in travel], schema=travel)


class KeySplit:
    """``joined``: of linked keys, the hash whose part is theirs; from the links of an earlier pass."""

    def __init__(self, versions: Sequence[TableSchema], parts: int, joined: Mapping[int, int] | None = None) -> None:
        self._schema = versions[-1]
        self._parts = parts
        self._whole = [each.version for each in versions if each.identity is Identity.FULL]
        self._from = np.array(sorted(joined or ()), np.uint64)
        self._to = np.array([(joined or {})[each] for each in self._from.tolist()], np.uint64)
        self.links: Links = set()
        self.parted = False  # linked keys are in several parts

    def split(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Parts with their rows; a part has the order of the input. The rows of an update are in one batch."""
        rows = self._stated(pa.Table.from_batches(batches, travel_schema(self._schema)).combine_chunks())
        kinds = rows.column(KIND).to_numpy()
        everywhere = np.flatnonzero((kinds == RowKind.TRUNCATE) | (kinds == FORGET))
        if self._parts == 1:
            parts = np.zeros(len(kinds), np.int64)
        else:
            hashes = self._hashes(rows)
            parts = (hashes % np.uint64(self._parts)).astype(np.int64)
            rows = self._parted_updates(rows, kinds, hashes, parts)
        single = np.setdiff1d(np.arange(len(kinds)), everywhere, assume_unique=True)
        where = np.concatenate([parts[single], np.tile(np.arange(self._parts), len(everywhere))])
        taken = np.concatenate([single, np.repeat(everywhere, self._parts)])
        order = np.lexsort((taken, where))
        sorted_rows, where = rows.take(pa.array(taken[order])).combine_chunks(), where[order]
        found, firsts = np.unique(where, return_index=True)
        for part, first, last in zip(found.tolist(), firsts, [*firsts[1:], len(where)], strict=True):
            yield from ((part, batch) for batch in sorted_rows.slice(first, last - first).to_batches())

    def _stated(self, rows: pa.Table) -> pa.Table:
        """Values that an update did not state, from its old row where that is whole."""
        unstated = rows.column(UNCHANGED).combine_chunks()
        if unstated.null_count == len(unstated):
            return rows
        kinds, versions = rows.column(KIND).to_numpy(), rows.column(VERSION).to_numpy()
        paired = _paired(kinds) & np.isin(versions, self._whole) & unstated.is_valid().to_numpy(zero_copy_only=False)
        sources: dict[int, Indices] = {}
        for row in np.flatnonzero(paired).tolist():
            bits = int.from_bytes(unstated[row].as_py(), "little")
            for place in (each for each in range(bits.bit_length()) if bits >> each & 1):
                sources.setdefault(place, np.arange(len(kinds)))[row] = row - 1
        for place, taken in sources.items():
            at = WHERE + PLACES + place
            rows = rows.set_column(at, rows.schema.field(at), rows.column(at).take(pa.array(taken)))
        cleared = pc.if_else(pa.array(paired), pa.scalar(None, pa.binary()), unstated)
        return rows.set_column(WHERE + PLACES - 1, rows.schema.field(WHERE + PLACES - 1), cleared)

    def _hashes(self, rows: pa.Table) -> Hashes:
        """K1."""
        hashes = row_hashes(rows, self._schema.key or [column.name for column in self._schema.columns])
        if len(self._from):
            at = np.minimum(np.searchsorted(self._from, hashes), len(self._from) - 1)
            hashes = np.where(self._from[at] == hashes, self._to[at], hashes)
        return hashes

    def _parted_updates(self, rows: pa.Table, kinds: npt.NDArray[np.int8], hashes: Hashes, parts: Indices) -> pa.Table:
        """K3."""
        new = np.flatnonzero(_paired(kinds))
        new = new[hashes[new] != hashes[new - 1]]
        lacking = rows.column(UNCHANGED).combine_chunks().is_valid().to_numpy(zero_copy_only=False)[new]
        self.links |= {(int(hashes[row - 1]), int(hashes[row])) for row in new[lacking].tolist()}
        apart = parts[new] != parts[new - 1]
        self.parted |= bool((apart & lacking).any())
        new = new[apart]
        if not len(new):
            return rows
        changed = kinds.copy()
        changed[new - 1], changed[new] = RowKind.DELETE, RowKind.INSERT
        at = rows.schema.get_field_index(KIND)
        return rows.set_column(at, rows.schema.field(at), pa.array(changed))


def history_of(versions: Sequence[TableSchema], rows: pa.Table) -> TableHistory:
    """The changes of one part."""
    forget = pc.equal(rows.column(KIND), FORGET)
    if pc.any(forget).as_py():
        gone = pc.divide(rows.filter(forget).column(TRANSACTION), TRANSACTIONS_MAX)
        begun = pc.divide(rows.column(TRANSACTION), TRANSACTIONS_MAX)
        rows = rows.filter(pc.invert(pc.is_in(begun, value_set=gone.combine_chunks())))
    where = [rows.column(name).to_numpy().astype(np.int64) for name in (TRANSACTION, GLSN, VERSION)]
    return TableHistory(versions, rows.select(rows.column_names[WHERE:]), RowPlaces(*where))


def joined_keys(links: Links) -> dict[int, int]:
    """One hash for all keys that are linked with each other."""
    parent: dict[int, int] = {}

    def root(key: int) -> int:
        while (above := parent.setdefault(key, key)) != key:
            parent[key] = parent[above]
            key = above
        return key

    for one, other in links:
        parent[root(one)] = root(other)
    return {key: root(key) for key in list(parent)}


def _paired(kinds: npt.NDArray[np.int8]) -> npt.NDArray[np.bool_]:
    """New rows of updates right after their old rows."""
    found: npt.NDArray[np.bool_] = kinds == RowKind.UPDATE_NEW
    found[:1] = False
    found[1:] &= kinds[:-1] == RowKind.UPDATE_OLD
    return found
