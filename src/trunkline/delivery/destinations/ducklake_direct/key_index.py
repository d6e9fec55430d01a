"""Where keys are in data files: the positions of all rows that have one of some keys.

Files never change, so what was read of one is kept, up to a limit of the process. A single key column whose values are
whole numbers, dates or times is kept sorted; other keys as they are.

Rules
 I1  NULL equals NULL. Keys are compared as the table's type: a file that is older than a wider type is cast.
 I2  Key columns are found by field id. A file without one is older than the column: the extension writes such tables.
 I3  Statistics exclude a file only if they are known and no key is within them; those of blobs have two spellings, and
     exclude nothing.
 I4  A file whose keys do not fit is read in pieces, and not kept: memory is bounded whatever the size of a file.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct

from trunkline.delivery.changes.columns import arrow_type
from trunkline.delivery.changes.net import row_codes
from trunkline.delivery.destinations.ducklake_direct.bounds import Unusual, value_of
from trunkline.delivery.destinations.ducklake_direct.parquet_file import FIELD_ID, uuid_bytes
from trunkline.delivery.destinations.ducklake_direct.table_state import DataFile, StateColumn

KEPT_BYTES_MAX: Final = 128 * 2**20  # of all files of a process; less: files are read again at each flush
FILE_BYTES_MAX: Final = KEPT_BYTES_MAX // 4  # of one file; a larger one is read in pieces (I4)
PIECE_ROWS: Final = 131_072  # of a file that is read in pieces
ROW_BYTES: Final = 16  # at least, of a kept key

Positions = npt.NDArray[np.int64]


class Bound(Struct, frozen=True):
    """What the catalog says about one key column of one file."""

    nulls: int | None
    low: str | None
    high: str | None


class SearchedKeys:
    """The keys that a flush removes or adds, each of them once."""

    def __init__(self, key: Sequence[StateColumn], staged: pa.Table) -> None:
        """``staged``: the key columns under the names of ``key``."""
        self.key = tuple(key)
        self._whole = len(key) == 1 and _is_whole(key[0])
        table = pa.table({each.column.name: _keys(each, staged.column(each.column.name)) for each in key})
        self.codes = row_codes(table)  # of each staged row
        _, first = np.unique(self.codes, return_index=True)
        self.table = table.take(pa.array(first))  # row n has the code n
        if self._whole:
            column = self.table.column(0)
            numbers = _numbers(column)
            self._valid = np.asarray(column.is_valid().combine_chunks())
            self._numbers = numbers

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def may_be_in(self, bounds: Sequence[Bound | None]) -> bool:
        """Whether a file with these statistics may have one (I3)."""
        return all(
            bound is None or self._overlaps(each, self.table.column(at), bound)
            for at, (each, bound) in enumerate(zip(self.key, bounds, strict=True))
        )

    def _overlaps(self, key: StateColumn, column: pa.ChunkedArray, bound: Bound) -> bool:
        if column.null_count and bound.nulls != 0:
            return True
        if bound.low is None or bound.high is None or key.column.type == "BLOB":
            return True
        try:
            low, high = (value_of(key.column.type, text) for text in (bound.low, bound.high))
        except Unusual:
            return True
        ordered = self._ordered(key, column)
        at = bisect_left(ordered, low)
        return at < len(ordered) and ordered[at] <= high

    def _ordered(self, key: StateColumn, column: pa.ChunkedArray) -> list[Any]:
        if _is_whole(key):
            return sorted(_numbers(column.drop_null()).tolist())
        values = column.drop_null().to_pylist()
        return sorted(each.encode() if isinstance(each, str) else each for each in values)

    # ------------------------------------------------------------------------------------------------ finding them

    def found_in(self, kept: KeptKeys) -> tuple[Positions, Positions]:
        """Positions of rows, and the code of the key of each."""
        if kept.order is not None:
            return self._found_sorted(kept)
        assert kept.table is not None
        return self._found_plain(kept.table)

    def _found_sorted(self, kept: KeptKeys) -> tuple[Positions, Positions]:
        assert kept.order is not None
        assert kept.sorted is not None
        assert kept.nulls is not None
        wanted = self._numbers[self._valid]
        begin = np.searchsorted(kept.sorted, wanted, "left")
        end = np.searchsorted(kept.sorted, wanted, "right")
        counts = end - begin
        codes = np.repeat(np.flatnonzero(self._valid), counts)
        offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        positions = kept.order[np.repeat(begin, counts) + offsets].astype(np.int64)
        if not self._valid.all():  # one of the keys is NULL
            null = int(np.flatnonzero(~self._valid)[0])
            positions = np.concatenate([positions, kept.nulls])
            codes = np.concatenate([codes, np.full(len(kept.nulls), null)])
        return positions, codes.astype(np.int64)

    def _found_plain(self, table: pa.Table) -> tuple[Positions, Positions]:
        near: npt.NDArray[np.bool_] | None = None
        for column, mine in zip(table.columns, self.table.columns, strict=True):
            here = np.asarray(pc.is_in(column, value_set=mine.combine_chunks()))
            near = here if near is None else near & here
        assert near is not None
        positions = np.flatnonzero(near)
        if not len(positions):
            return positions, positions
        candidates = table.take(pa.array(positions))
        codes = row_codes(pa.concat_tables([self.table, candidates.rename_columns(self.table.column_names)]))
        mine_codes, theirs = np.split(codes, [len(self)])
        order = np.argsort(mine_codes)
        at = np.searchsorted(mine_codes[order], theirs)
        known = at < len(order)
        known[known] = mine_codes[order][at[known]] == theirs[known]
        return positions[known], order[at[known]].astype(np.int64)


class KeptKeys(Struct, frozen=True):
    """The keys of one file."""

    size_bytes: int
    table: pa.Table | None = None  # as they are
    sorted: npt.NDArray[np.int64] | None = None  # or in order, with the position of each, and those of NULL
    order: npt.NDArray[np.int32] | None = None
    nulls: Positions | None = None


class KeyCache:
    """Keys of files by path, the least recently used ones go first. Thread-safe."""

    def __init__(self, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, tuple[int, ...]], KeptKeys] = OrderedDict()
        self.size_bytes = 0

    def get(self, path: str, key: Sequence[StateColumn]) -> KeptKeys | None:
        with self._lock:
            name = (path, tuple(each.id for each in key))
            if name in self._kept:
                self._kept.move_to_end(name)
            return self._kept.get(name)

    def keep(self, path: str, key: Sequence[StateColumn], keys: KeptKeys) -> None:
        if keys.size_bytes > FILE_BYTES_MAX:
            return
        with self._lock:
            name = (path, tuple(each.id for each in key))
            if (before := self._kept.pop(name, None)) is not None:
                self.size_bytes -= before.size_bytes
            self._kept[name] = keys
            self.size_bytes += keys.size_bytes
            while self.size_bytes > self._bytes_max:
                _, gone = self._kept.popitem(last=False)
                self.size_bytes -= gone.size_bytes


@cache
def key_cache() -> KeyCache:
    """Global to the process."""
    return KeyCache()


def positions_in(file: DataFile, keys: SearchedKeys) -> tuple[Positions, Positions]:
    """Rows of a file that have one of the keys, and the code of each one's key. May raise ``OSError``, ``Unusual``."""
    if (kept := key_cache().get(file.path, keys.key)) is not None:
        return keys.found_in(kept)
    if file.rows * ROW_BYTES * len(keys.key) > FILE_BYTES_MAX:
        return _in_pieces(file, keys)
    with pq.ParquetFile(file.path) as opened:
        kept = kept_keys(keys.key, opened.read(_names(opened, keys.key)))
    key_cache().keep(file.path, keys.key, kept)
    return keys.found_in(kept)


def _in_pieces(file: DataFile, keys: SearchedKeys) -> tuple[Positions, Positions]:
    found: list[tuple[Positions, Positions]] = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
    begin = 0
    for piece in _pieces(file, keys.key):
        positions, codes = keys.found_in(kept_keys(keys.key, piece))
        found.append((positions + begin, codes))
        begin += piece.num_rows
    return np.concatenate([each for each, _ in found]), np.concatenate([each for _, each in found])


def _pieces(file: DataFile, key: Sequence[StateColumn]) -> Iterator[pa.Table]:
    with pq.ParquetFile(file.path) as opened:
        names = _names(opened, key)
        for batch in opened.iter_batches(PIECE_ROWS, columns=names):
            yield pa.Table.from_batches([batch]).select(names)


def _names(opened: pq.ParquetFile, key: Sequence[StateColumn]) -> list[str]:
    """The names that the key columns have in a file (I2)."""
    numbers = {(field.metadata or {}).get(FIELD_ID): field.name for field in opened.schema_arrow}
    names = [numbers.get(str(each.id).encode()) for each in key]
    if None in names:
        raise Unusual("a data file that is older than a key column")
    return [name for name in names if name is not None]


def kept_keys(key: Sequence[StateColumn], table: pa.Table) -> KeptKeys:
    """``table``: the key columns of a file, in the order of ``key``."""
    columns = [_keys(each, table.column(at)) for at, each in enumerate(key)]
    if len(key) == 1 and _is_whole(key[0]):
        valid = np.asarray(columns[0].is_valid().combine_chunks())
        positions = np.flatnonzero(valid).astype(np.int32)
        numbers = _numbers(columns[0])[valid]
        order = np.argsort(numbers, kind="stable")
        ranked, places = numbers[order], positions[order]
        nulls = np.flatnonzero(~valid).astype(np.int64)
        return KeptKeys(
            ranked.nbytes + places.nbytes + nulls.nbytes + ROW_BYTES, sorted=ranked, order=places, nulls=nulls
        )
    made = pa.table(columns, [each.column.name for each in key])
    return KeptKeys(made.nbytes + ROW_BYTES, made)


def _is_whole(key: StateColumn) -> bool:
    """Whether 64-bit numbers stand for its values, in their order."""
    kind = arrow_type(key.column)
    return (
        (pa.types.is_integer(kind) and not pa.types.is_uint64(kind))
        or pa.types.is_date32(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_time64(kind)
    )


def _numbers(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Of values that ``_is_whole`` allows; NULL is 0."""
    flat = column.combine_chunks()
    if pa.types.is_date32(flat.type):
        flat = flat.cast(pa.int32())
    found: npt.NDArray[np.int64] = flat.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return found


def _keys(key: StateColumn, values: pa.ChunkedArray) -> pa.ChunkedArray:
    """In one type, from a file or as they travel."""
    if key.column.type == "UUID":
        chunks = [
            chunk.storage
            if isinstance(chunk, pa.ExtensionArray)
            else uuid_bytes(chunk)
            if pa.types.is_string(chunk.type)
            else chunk
            for chunk in values.chunks
        ]
        return pa.chunked_array(chunks, pa.binary(16))
    wanted = arrow_type(key.column)
    try:
        return values if values.type == wanted else values.cast(wanted)
    except pa.ArrowException as error:
        raise Unusual(f"key column {key.column.name!r} of an older type") from error
