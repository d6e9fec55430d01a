"""Merges staged rows into the data files of a Delta table.

Rules
 M1  Keys are compared column by column, NULL equal to NULL, in the stored type.
 M2  A file is read only if its bounds allow for a staged key, and rewritten only if it holds one (or, if there are too
     many small files, to merge them).
 M3  Rows that stay in a file and rows that replace others of it are written together, so that bounds stay narrow.
 M4  In a table with deletion vectors, rows that a file loses are marked there if they are few (``delta_vectors``); then
     the file stays, and rows that replace others are written with the new ones.
 M5  Staged rows wait in memory up to a limit; beyond it they are written at once, and only their keys stay.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from trunkline.delivery.backends.delta_types import conformed
from trunkline.delivery.backends.object_errors import StoreError
from trunkline.delivery.backends.table_folder import TableFolder
from trunkline.delivery.changes.column_steps import ColumnSteps
from trunkline.delivery.changes.columns import Columns, arrow_schema
from trunkline.delivery.changes.rows import OP_COLUMN, DuplicatePolicy, Mode, Op
from trunkline.delivery.destinations.contract import Applied
from trunkline.delivery.destinations.delta_commit import MarkedFile
from trunkline.delivery.destinations.delta_files import SMALL_FILES_MAX, DeltaDataFile, bounded, marking
from trunkline.delivery.destinations.delta_steps import FileSteps
from trunkline.errors import DuplicateKey, Unreachable

# Staged rows that wait in memory. More: more memory; less: wider bounds after a large flush.
WAITING_BYTES_MAX: Final = 64 << 20
KEYS_AT_ONCE: Final = 1_000_000  # staged keys that are looked up together; a million take some 250 MB
MATCHED_ROWS: Final = 4_000_000  # rows of files that are compared at a time: keys are hashed for each such portion

Indices = npt.NDArray[np.int64]


class KeySet:
    """Distinct keys, in which rows of a table are looked up (M1)."""

    def __init__(self, names: Sequence[str], columns: Sequence[pa.ChunkedArray]) -> None:
        self.names = names
        self._columns = columns
        self._levels: list[tuple[pa.Array, pa.Array | None]] = []
        codes: pa.Array | None = None
        for column in columns:
            values, part = _encoded(column.combine_chunks())
            distinct = None
            if codes is None:
                codes = part
            else:
                distinct, codes = _encoded(_paired(codes, part, len(values)))
            self._levels.append((values, distinct))
        assert codes is not None
        counts = np.bincount(codes.to_numpy())
        if counts.size < len(codes):
            at = int(np.flatnonzero(counts[codes.to_numpy()] > 1)[0])
            raise DuplicateKey(
                f"two staged rows share the key {spelled_key(names, columns, at)}; this is a bug, please report it"
            )

    def match(self, columns: Sequence[pa.ChunkedArray]) -> Indices:
        """For each row, the index of its key, or -1."""
        codes: pa.ChunkedArray | None = None
        for column, (values, distinct) in zip(columns, self._levels, strict=True):
            part = pc.index_in(column, value_set=values)
            codes = part if codes is None else pc.index_in(_paired(codes, part, len(values)), value_set=distinct)
        found: Indices = pc.fill_null(codes, -1).to_numpy().astype(np.int64)
        return found

    def candidates(self, files: Sequence[DeltaDataFile]) -> list[DeltaDataFile]:
        """The files whose bounds allow for one of these keys (M2)."""
        if len(files) < 2:
            return list(files)
        for name, column in zip(self.names, self._columns, strict=True):
            if bounded(column.type):
                nulls, values = column.null_count > 0, _sorted(column)
                files = [file for file in files if _may_hold(file, name, values, nulls)]
        return list(files)


def spelled_key(names: Sequence[str], columns: Sequence[pa.ChunkedArray], at: int) -> str:
    return ", ".join(f"{name} = {column[at]}" for name, column in zip(names, columns, strict=True))


def _encoded(values: pa.Array) -> tuple[pa.Array, pa.Array]:
    """The distinct values, including NULL, in the order of first appearance; and the index of each value there."""
    encoded = pc.dictionary_encode(values, null_encoding="encode")
    return encoded.dictionary, encoded.indices


def _paired(codes: pa.Array, part: pa.Array, size: int) -> pa.Array:
    """One number for two; NULL, which stands for no key, stays NULL. Both are below the count of keys: no overflow."""
    return pc.add(pc.multiply(pc.cast(codes, pa.int64()), size), part)


def _sorted(column: pa.ChunkedArray) -> Sequence[Any]:
    values = pc.drop_null(pc.unique(column))
    values = values.take(pc.sort_indices(values))
    found: Sequence[Any] = values.to_pylist() if pa.types.is_string(values.type) else values.to_numpy()
    return found


def _may_hold(file: DeltaDataFile, name: str, values: Sequence[Any], nulls: bool) -> bool:
    if (bounds := file.bounds.get(name)) is None or (nulls and bounds.nulls):
        return True
    at = bisect_left(values, bounds.lowest)
    return at < len(values) and bool(values[at] <= bounds.highest)


class DeltaMerge:
    """One flush: turns staged rows into the rows of new files, and counts what it did."""

    def __init__(
        self,
        folder: TableFolder,
        files: Sequence[DeltaDataFile],
        schema: pa.Schema,
        key: Sequence[str],
        mode: Mode,
        duplicates: DuplicatePolicy,
        step: Callable[[str], None],
        steps: ColumnSteps | None = None,
        marks: bool = False,
    ) -> None:
        self.touched: list[DeltaDataFile] = []  # the files that the new ones replace
        self.marked: list[MarkedFile] = []  # those that stay, without some rows (M4)
        self._marks = marks
        self._folder = folder
        self._stepped = FileSteps(steps)
        self._files = [self._stepped.file(file) for file in files]
        self._schema = schema
        self._key = tuple(key) if mode == "mirror" else ()
        self._duplicates = duplicates
        self._step = step
        self._keys: list[pa.Table] = []
        self._ops: list[npt.NDArray[np.int8]] = []
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = 0
        self._written_now = 0  # staged rows that were written at once
        self._removed = self._written = 0
        self._found = np.zeros(0, np.bool_)

    def applied(self, position: int, reshaped: str = "", counts_missing: bool = True) -> Applied:
        """Valid when ``pieces`` is exhausted."""
        ops = self._all_ops()
        duplicates = int(np.count_nonzero(self._found & (ops == Op.INSERT)))
        missing = int(np.count_nonzero(~self._found & (ops != Op.INSERT))) if counts_missing else 0
        return Applied(position, self._removed, self._written, duplicates, missing, reshaped=reshaped)

    def pieces(self, staged: Iterable[pa.RecordBatch], whole: bool = False) -> Iterator[pa.Table]:
        """The rows to write; ``whole``: of all files, not only touched ones. May raise ``DuplicateKey``."""
        for batch in staged:
            self._stage(pa.Table.from_batches([batch]))
            if self._waiting_bytes > WAITING_BYTES_MAX:
                yield self._write_now()
        ops = self._all_ops()
        self._found = np.zeros(len(ops), np.bool_)
        matched = self._matched() if self._key and len(ops) else {}
        self._check(ops)
        self.touched = list(self._files) if whole else list(self._to_write(matched))
        waiting = pa.concat_tables(self._waiting) if self._waiting else None
        left = ops[self._written_now :] != Op.REMOVE
        for file in self.touched:
            yield from self._kept(file, matched.get(file.path))
            if waiting is not None and file.path in matched:
                at = matched[file.path][matched[file.path] >= self._written_now] - self._written_now
                mine = np.unique(at[left[at]])
                left[mine] = False
                yield waiting.take(mine)
        if waiting is not None:
            yield waiting.filter(pa.array(left))

    def held(self, keys: pa.Table, key: Columns, columns: Columns) -> pa.Table:
        """The rows of the table that have these keys: the key columns and these (T8)."""
        return held_rows(self._folder, self._files, self._stepped, self._schema, self._step, keys, key, columns)

    def _stage(self, batch: pa.Table) -> None:
        ops = batch.column(OP_COLUMN).to_numpy()
        rows = conformed(batch, self._schema)
        self._ops.append(ops)
        self._written += int(np.count_nonzero(ops != Op.REMOVE))
        if self._key:
            self._keys.append(rows.select(self._key))
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes

    def _write_now(self) -> pa.Table:
        ops = self._all_ops()[self._written_now :]
        rows = pa.concat_tables(self._waiting).filter(pa.array(ops != Op.REMOVE))
        self._waiting, self._waiting_bytes = [], 0
        self._written_now += len(ops)
        return rows

    def _all_ops(self) -> npt.NDArray[np.int8]:
        return np.concatenate(self._ops) if self._ops else np.zeros(0, np.int8)

    def _matched(self) -> dict[str, Indices]:
        """For each file that holds a staged key: the index of the key of each of its rows, or -1."""
        staged = pa.concat_tables(self._keys)
        self._keys = [staged]
        found: dict[str, Indices] = {}
        for start in range(0, len(staged), KEYS_AT_ONCE):
            keys = KeySet(self._key, staged.slice(start, KEYS_AT_ONCE).columns)
            for files, rows in self._portions(keys.candidates(self._files)):
                index = keys.match(rows.columns)
                hits = index >= 0
                index[hits] += start
                self._found[index[hits]] = True
                self._removed += int(np.count_nonzero(hits))
                ends = np.cumsum([count for _, count in files])
                for (file, _), part in zip(files, np.split(index, ends[:-1]), strict=True):
                    if (part >= 0).any():
                        found[file.path] = np.maximum(part, found.get(file.path, part))
        return found

    def _portions(self, files: Sequence[DeltaDataFile]) -> Iterator[tuple[list[tuple[DeltaDataFile, int]], pa.Table]]:
        """The keys of these files, some files at a time, with the row count of each."""
        schema = pa.schema([self._schema.field(name) for name in self._key])
        portion: list[tuple[DeltaDataFile, int]] = []
        tables: list[pa.Table] = []
        for file in files:
            self._step("look up")
            names = [self._stepped.held_name(name) for name in self._key]
            rows = self._stepped.rows(file_rows(self._folder, file, names))
            tables.append(conformed(rows, schema))
            portion.append((file, len(rows)))
            if sum(map(len, tables)) >= MATCHED_ROWS:
                yield portion, pa.concat_tables(tables)
                portion, tables = [], []
        if portion:
            yield portion, pa.concat_tables(tables)

    def _check(self, ops: npt.NDArray[np.int8]) -> None:
        """An INSERT whose key the table holds is a duplicate key (T4)."""
        clashes = np.flatnonzero(self._found & (ops == Op.INSERT))
        if clashes.size and self._duplicates == "halt":
            at = int(clashes[0])
            key = spelled_key(self._key, self._keys[0].columns, at)
            raise DuplicateKey(
                f"{self._folder.name}: the key {key} is new in the source but in the table ({clashes.size} such keys); "
                "make the key unique in the source or choose another, then seed the destination again"
            )

    def _to_write(self, matched: dict[str, Indices]) -> Iterator[DeltaDataFile]:
        """The files that hold a staged key, if it cannot be marked, and the small ones if there are too many (M2)."""
        small = [file for file in self._files if file.small]
        joined = {file.path for file in small} if self._written and len(small) > SMALL_FILES_MAX else set()
        for file in self._files:
            if file.path in joined:
                yield file
            elif (index := matched.get(file.path)) is not None:
                marked = marking(file, np.flatnonzero(index >= 0)) if self._marks else None
                if marked is None:
                    yield file
                else:
                    self.marked.append(marked)

    def _kept(self, file: DeltaDataFile, index: Indices | None) -> Iterator[pa.Table]:
        """The rows of a file that stay."""
        self._step("read")
        start = 0
        for group in file_groups(self._folder, file):
            rows = conformed(self._stepped.rows(group), self._schema)
            if index is not None:
                end = start + len(rows)
                rows, start = rows.filter(pa.array(index[start:end] < 0)), end
            yield rows


def opened(folder: TableFolder, file: DeltaDataFile) -> pq.ParquetFile:
    """Raises ``Unreachable`` if the file cannot be read."""
    try:
        return folder.parquet(file.path, pre_buffer=False)
    except StoreError as error:
        raise Unreachable(f"{folder}: data file {file.path} cannot be read: {error}; retrying") from None
    except OSError as error:
        raise Unreachable(
            f"{folder}: data file {file.path} cannot be read: {error}; find out what removed it"
        ) from error


def file_rows(folder: TableFolder, file: DeltaDataFile, names: Sequence[str]) -> pa.Table:
    """The rows of a file that are not marked (V4), as far as it has these columns."""
    with opened(folder, file) as reader:
        rows = reader.read(columns=[name for name in names if name in reader.schema_arrow.names], use_threads=False)
    return rows if file.vector is None else rows.filter(pa.array(file.vector.kept(0, len(rows))))


def file_groups(folder: TableFolder, file: DeltaDataFile) -> Iterator[pa.Table]:
    """The rows of a file that are not marked (V4), a row group at a time."""
    start = 0
    with opened(folder, file) as reader:
        for group in range(reader.num_row_groups):
            rows = reader.read_row_group(group, use_threads=False)
            end = start + len(rows)
            yield rows if file.vector is None else rows.filter(pa.array(file.vector.kept(start, end)))
            start = end


def held_rows(
    folder: TableFolder,
    files: Sequence[DeltaDataFile],
    stepped: FileSteps,
    schema: pa.Schema,
    step: Callable[[str], None],
    keys: pa.Table,
    key: Columns,
    columns: Columns,
    flag: str = "",
) -> pa.Table:
    """The rows of files that have these keys: the key columns and these (T8). ``flag``: only where that column is
    true."""
    read = (*key, *columns)
    stored = pa.schema([schema.field(column.name) for column in read])
    wanted = conformed(keys, pa.schema([schema.field(column.name) for column in key]))
    known = KeySet([column.name for column in key], wanted.columns)
    found = [stored.empty_table()]
    for file in known.candidates(files):
        step("look up")
        names = [stepped.held_name(column.name) for column in read] + ([flag] if flag else [])
        there_rows = file_rows(folder, file, names)
        rows = conformed(stepped.rows(there_rows), stored)
        mine = known.match(rows.select(known.names).columns) >= 0
        if flag:
            mine &= pc.fill_null(there_rows.column(flag), False).to_numpy()
        found.append(rows.filter(pa.array(mine)))
    return conformed(pa.concat_tables(found), arrow_schema(read))
