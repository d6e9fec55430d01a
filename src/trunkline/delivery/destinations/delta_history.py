"""Merges versions of rows into the data files of a Delta table that is a history (T11).

Rules
 H1  Nothing is removed. To close a version is to write its file again, with the end of the version; only files that may
     hold an open version of a staged key are read.
 H2  A version that is added open while another one of its key stays open is a duplicate key (T4); with policy warn the
     older one ends where the newer begins.
 H3  Rows that replace a history are compared with its open versions, all columns but those of the history: versions
     without an equal row end at the step's version, and rows without an equal version are added. Both are in memory
     for that; the rows of a first seed are not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from trunkline.delivery.backends.delta_types import conformed
from trunkline.delivery.backends.table_folder import TableFolder
from trunkline.delivery.changes.column_steps import ColumnSteps
from trunkline.delivery.changes.columns import Columns
from trunkline.delivery.changes.history import (
    CURRENT,
    HISTORY_NAMES,
    VALID_FROM,
    VALID_FROM_TIME,
    VALID_TO,
    VALID_TO_TIME,
)
from trunkline.delivery.changes.net import row_codes
from trunkline.delivery.changes.rows import OP_COLUMN, DuplicatePolicy, Op
from trunkline.delivery.destinations.contract import Applied
from trunkline.delivery.destinations.delta_files import SMALL_FILES_MAX, DeltaDataFile
from trunkline.delivery.destinations.delta_merge import (
    WAITING_BYTES_MAX,
    Indices,
    KeySet,
    file_groups,
    file_rows,
    held_rows,
    spelled_key,
)
from trunkline.delivery.destinations.delta_steps import FileSteps
from trunkline.errors import DuplicateKey


class HistoryMerge:
    """One flush, or one replacement, of a history: gives the rows of new files, and counts what it did."""

    def __init__(
        self,
        folder: TableFolder,
        files: Sequence[DeltaDataFile],
        schema: pa.Schema,
        key: Sequence[str],
        duplicates: DuplicatePolicy,
        step: Callable[[str], None],
        steps: ColumnSteps | None = None,
    ) -> None:
        self.touched: list[DeltaDataFile] = []  # the files that the new ones replace
        self._folder = folder
        self._stepped = FileSteps(steps)
        self._files = [self._stepped.file(file) for file in files]
        self._schema = schema
        self._key = tuple(key)
        self._policy = duplicates
        self._step = step
        self._closed = self._written = self._duplicates = self._missing = 0
        self._ends = pa.schema([schema.field(VALID_TO), schema.field(VALID_TO_TIME)])

    def applied(self, position: int, reshaped: str = "", counts_missing: bool = True) -> Applied:
        """Valid when the pieces are exhausted."""
        missing = self._missing if counts_missing else 0
        return Applied(position, self._closed, self._written, self._duplicates, missing, reshaped=reshaped)

    def held(self, keys: pa.Table, key: Columns, columns: Columns) -> pa.Table:
        """As ``DeltaMerge.held``, of open versions."""
        return held_rows(
            self._folder, self._files, self._stepped, self._schema, self._step, keys, key, columns, CURRENT
        )

    def pieces(self, staged: Iterable[pa.RecordBatch], whole: bool = False) -> Iterator[pa.Table]:
        """The rows to write; ``whole``: of all files, not only touched ones. May raise ``DuplicateKey`` (H2)."""
        names = [*self._key, VALID_FROM, VALID_FROM_TIME]
        key_schema = pa.schema([self._schema.field(name) for name in self._key])
        closing = [pa.schema([*key_schema, *self._ends]).empty_table()]
        begun = [self._schema.empty_table().select(names)]
        waiting: list[pa.Table] = []
        waiting_bytes = 0
        for batch in staged:
            removals = np.asarray(batch.column(OP_COLUMN)) == Op.REMOVE
            rows = conformed(pa.Table.from_batches([batch]), self._schema)
            closing.append(rows.filter(pa.array(removals)).select([*self._key, VALID_TO, VALID_TO_TIME]))
            versions = rows.filter(pa.array(~removals))
            begun.append(versions.filter(versions.column(CURRENT)).select(names))
            self._written += len(versions)
            waiting.append(versions)
            waiting_bytes += versions.nbytes
            if waiting_bytes > WAITING_BYTES_MAX:
                yield pa.concat_tables(waiting)
                waiting, waiting_bytes = [], 0
        ends, indices = self._matched(pa.concat_tables(closing), pa.concat_tables(begun))
        yield from self._rewritten(indices, ends, whole)
        yield from waiting

    def replacement(self, rows: Iterable[pa.RecordBatch], through: int, whole: bool) -> Iterator[pa.Table]:
        """The rows to write if these are the present ones (H3)."""
        tables = [conformed(pa.Table.from_batches([batch]), self._schema) for batch in rows]
        present = pa.concat_tables([self._schema.empty_table(), *tables])
        names = [field.name for field in self._schema if field.name not in HISTORY_NAMES]
        held = [(file, self._open_rows(file, names)) for file in self._files if _may_be_open(file)]
        there = [rows.select(names).filter(pa.array(mine)) for _, (rows, mine) in held]
        codes = row_codes(pa.concat_tables([*there, present.select(names)]))
        open_codes, present_codes = np.split(codes, [len(codes) - len(present)])
        ended = ~np.isin(open_codes, present_codes)
        indices: dict[str, Indices] = {}
        start = 0
        for file, (_, mine) in held:
            index = np.full(len(mine), -1, np.int64)
            end = start + int(np.count_nonzero(mine))
            index[mine] = np.where(ended[start:end], 0, -1)
            start = end
            if (index >= 0).any():
                indices[file.path] = index
        self._closed = int(np.count_nonzero(ended))
        yield from self._rewritten(indices, self._end_of(present, through), whole)
        added = present.filter(pa.array(~np.isin(present_codes, open_codes)))
        self._written = len(added)
        yield added

    def _end_of(self, present: pa.Table, through: int) -> pa.Table:
        """The end of versions that the present rows lack: the time is that of the present rows, if there are any."""
        time = pc.max(present.column(VALID_FROM_TIME))
        return pa.table([pa.array([through]), pa.array([time.as_py()], time.type)], self._ends.names).cast(self._ends)

    def _matched(self, closing: pa.Table, begun: pa.Table) -> tuple[pa.Table, dict[str, Indices]]:
        """The ends of versions, and for each file with versions to close: which end each of its rows gets, or -1."""
        closed = len(closing)
        if closed:
            known = KeySet(self._key, closing.select(self._key).columns)
            begun = begun.filter(pa.array(known.match(begun.select(self._key).columns) < 0))
        keys = pa.concat_tables([closing.select(self._key), begun.select(self._key)])
        others = pa.table([begun.column(VALID_FROM), begun.column(VALID_FROM_TIME)], self._ends.names).cast(self._ends)
        ends = pa.concat_tables([closing.select(self._ends.names), others])
        indices: dict[str, Indices] = {}
        if not len(keys):
            return ends, indices
        known, found = KeySet(self._key, keys.columns), np.zeros(len(keys), np.bool_)
        for file in known.candidates([file for file in self._files if _may_be_open(file)]):
            rows, mine = self._open_rows(file, self._key)
            index = known.match(rows.select(self._key).columns)
            index[~mine] = -1
            hits = index[index >= 0]
            found[hits] = True
            self._closed += len(hits)
            if len(hits):
                indices[file.path] = index
        clashes = np.flatnonzero(found[closed:])
        if clashes.size and self._policy == "halt":
            raise DuplicateKey(
                f"{self._folder.name}: the key {spelled_key(self._key, keys.columns, closed + int(clashes[0]))} is new "
                f"in the source but has an open version in the table ({clashes.size} such keys); make the key unique "
                "in the source or choose another, then seed the destination again"
            )
        self._duplicates = int(clashes.size)
        self._missing = int(np.count_nonzero(~found[:closed]))
        return ends, indices

    def _open_rows(self, file: DeltaDataFile, names: Sequence[str]) -> tuple[pa.Table, npt.NDArray[np.bool_]]:
        """These columns of a file, and which of its rows are open versions."""
        self._step("look up")
        wanted = [self._stepped.held_name(name) for name in (*names, CURRENT)]
        rows = self._stepped.rows(file_rows(self._folder, file, wanted))
        schema = pa.schema([self._schema.field(name) for name in (*names, CURRENT)])
        rows = conformed(rows, schema)
        return rows, pc.fill_null(rows.column(CURRENT), False).to_numpy()

    def _rewritten(self, indices: dict[str, Indices], ends: pa.Table, whole: bool) -> Iterator[pa.Table]:
        small = [file for file in self._files if file.small]
        joined = {file.path for file in small} if self._written and len(small) > SMALL_FILES_MAX else set()
        self.touched = [file for file in self._files if whole or file.path in indices or file.path in joined]
        for file in self.touched:
            self._step("read")
            index, start = indices.get(file.path), 0
            for group in file_groups(self._folder, file):
                rows = conformed(self._stepped.rows(group), self._schema)
                if index is not None:
                    part, start = index[start : start + len(rows)], start + len(rows)
                    rows = self._ended(rows, part, ends)
                yield rows

    def _ended(self, rows: pa.Table, index: Indices, ends: pa.Table) -> pa.Table:
        """Rows with the ends that some of them get."""
        mine = pa.array(index >= 0)
        taken = ends.take(pa.array(np.maximum(index, 0)))
        values = {name: pc.if_else(mine, taken.column(name), rows.column(name)) for name in self._ends.names}
        values[CURRENT] = pc.if_else(mine, pa.scalar(False), rows.column(CURRENT))
        for name, value in values.items():
            place = rows.schema.get_field_index(name)
            rows = rows.set_column(place, rows.schema.field(place), value)
        return rows


def _may_be_open(file: DeltaDataFile) -> bool:
    """A file whose versions all have an end holds no open one."""
    bounds = file.bounds.get(VALID_TO)
    return bounds is None or bounds.nulls != 0
