"""The rows of a chunk that are written: without those that the stream changed while the chunk was read.

Rules
 T1  A row whose key was touched between the watermarks is left out: the log has its newer state, before the chunk.
 T2  Updates do not state values that are stored apart and did not change. If no change of a touched row stated such a
     column, the snapshot has its value: a row with just these columns is written. Not if the row was removed, or moved
     to another key.
 T3  An update that moves a row to another key without stating all columns may take it from what is not read yet to what
     was read before: no chunk would state those columns. Such a table is read again, from its beginning, and is not
     complete before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from trunkline.delivery.changes.groups import KIND, PLACE_FIELDS, UNCHANGED, Layout, RowKind, TableRows, table_rows
from trunkline.delivery.changes.rebuilt import plain
from trunkline.delivery.changes.schemas import TableSchema

PLACES: Final = len(PLACE_FIELDS)
ROW: Final = "row"

Key = tuple[Any, ...]
Flags = npt.NDArray[np.bool_]


def touched_rows(rows: TableRows, schema: TableSchema) -> pa.Table:
    """Keys, kinds and unstated columns of changes, to be kept until the chunk ends; truncations are left out."""
    found = pa.Table.from_batches([rows.batch]).select([KIND, UNCHANGED, *schema.key])
    return found.filter(pc.not_equal(found.column(KIND), RowKind.TRUNCATE))


def truncates(rows: TableRows) -> bool:
    return bool((rows.batch.column(KIND).to_numpy() == RowKind.TRUNCATE).any())


def moves_unstated(rows: TableRows, schema: TableSchema) -> bool:
    """Whether an update moves a row to another key and leaves columns unstated (T3)."""
    unstated = rows.batch.column(UNCHANGED)
    if unstated.null_count == len(unstated):
        return False
    old = np.flatnonzero(rows.batch.column(KIND).to_numpy() == RowKind.UPDATE_OLD)
    old = old[unstated.is_valid().to_numpy(zero_copy_only=False)[old + 1]]
    keys = [plain(rows.batch.column(name)) for name in schema.key] if len(old) else []
    return any(key[at] != key[at + 1] for key in keys for at in old.tolist())


def written_rows(
    batch: pa.RecordBatch, schema: TableSchema, touched: Sequence[pa.Table], bytes_max: int
) -> list[TableRows]:
    """The rows of a chunk that are written (T1, T2): of one entry, or of more if they are too large for one."""
    if touched and batch.num_rows:
        window = pa.concat_tables(touched)
        held = _among(batch, window, schema.key)
        dropped, batch = batch.filter(pa.array(held)), batch.filter(pa.array(~held))
        if unstated := _unstated(window, dropped, schema):
            batch = pa.concat_batches([batch, _stating(dropped, schema, unstated)])
    return [_placed(piece, schema) for piece in _pieces(batch, bytes_max)]


def _pieces(batch: pa.RecordBatch, bytes_max: int) -> list[pa.RecordBatch]:
    count = batch.num_rows
    if batch.nbytes <= bytes_max or count <= 1:
        return [batch]
    half = count // 2
    return [*_pieces(batch.slice(0, half), bytes_max), *_pieces(batch.slice(half), bytes_max)]


def _placed(batch: pa.RecordBatch, schema: TableSchema) -> TableRows:
    """Rows of kind READ, numbered from 0."""
    count = batch.num_rows
    return table_rows(
        Layout(schema),
        batch.columns[PLACES:],
        tx=np.zeros(count, np.uint32),
        seq=np.arange(count, dtype=np.uint32),
        kind=np.full(count, RowKind.READ, np.int8),
        unchanged=batch.column(UNCHANGED),
    )


def _among(rows: pa.RecordBatch | pa.Table, others: pa.Table, key: Sequence[str]) -> Flags:
    """Which rows have a key that others have."""
    found = np.zeros(rows.num_rows, np.bool_)
    left, right = _keys(rows, key), _keys(others, key)
    names = left.column_names
    numbered = left.append_column(ROW, pa.array(np.arange(rows.num_rows)))
    found[numbered.join(right, names, join_type="left semi", use_threads=False).column(ROW).to_numpy()] = True
    return found


def _keys(rows: pa.RecordBatch | pa.Table, key: Sequence[str]) -> pa.Table:
    """The columns of the key, such that Arrow can compare them: it joins no lists."""
    columns = [rows.column(name) for name in key]
    comparable = [
        pa.array([repr(each) for each in plain(_whole(column))], pa.string())
        if pa.types.is_nested(column.type)
        else column
        for column in columns
    ]
    return pa.table(comparable, names=[f"key{place}" for place in range(len(key))])


def _whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column


def _key_values(rows: pa.RecordBatch | pa.Table, key: Sequence[str]) -> list[Key]:
    return list(zip(*(plain(_whole(rows.column(name))) for name in key), strict=True))


def _unstated(window: pa.Table, dropped: pa.RecordBatch, schema: TableSchema) -> dict[int, int]:
    """Rows that were dropped, by place, and the columns that nothing in the window stated, one bit each."""
    partial = window.filter(pc.is_valid(window.column(UNCHANGED)))
    if not partial.num_rows or not dropped.num_rows:
        return {}
    changes = window.filter(pa.array(_among(window, partial, schema.key)))
    kinds, bits = changes.column(KIND).to_pylist(), changes.column(UNCHANGED).to_pylist()
    every = (1 << len(schema.columns)) - 1
    state: dict[Key, int] = {}  # 0: nothing is unstated, or the row was removed
    stays = dict[Key, int]()  # of the old row of an update, whose new one comes next unless it has another key
    for key, kind, unsent in zip(_key_values(changes, schema.key), kinds, bits, strict=True):
        before, stays = stays.get(key, state.get(key, every)), {}
        match RowKind(kind):
            case RowKind.UPDATE_NEW:
                state[key] = before & int.from_bytes(unsent or b"", "little")
            case RowKind.UPDATE_OLD:
                state[key], stays = 0, {key: before}
            case RowKind.INSERT | RowKind.DELETE:
                state[key] = 0
    return {
        place: missing for place, key in enumerate(_key_values(dropped, schema.key)) if (missing := state.get(key, 0))
    }


def _stating(dropped: pa.RecordBatch, schema: TableSchema, unstated: dict[int, int]) -> pa.RecordBatch:
    """The rows of T2: every column that a change stated is NULL, and marked as unchanged."""
    some = dropped.take(pa.array(list(unstated), pa.int64()))
    width = -(-len(schema.columns) // 8)
    silent = [0] * len(unstated)
    columns = list(some.columns)
    for place, column in enumerate(schema.columns):
        if column.name in schema.key:
            continue
        stated = [not missing >> place & 1 for missing in unstated.values()]
        silent = [bits | said << place for bits, said in zip(silent, stated, strict=True)]
        array = columns[PLACES + place]
        columns[PLACES + place] = pc.if_else(pa.array(stated), pa.nulls(len(stated), array.type), array)
    columns[some.schema.get_field_index(UNCHANGED)] = pa.array(
        [bits.to_bytes(width, "little") for bits in silent], pa.binary()
    )
    return pa.RecordBatch.from_arrays(columns, schema=some.schema)
