"""Delete files: the positions of a data file's deleted rows, and since when.

Rules
 D1  The first delete file of a data file has two columns, and is valid from its snapshot on. A later one replaces it:
     it has the positions of both, each with its own snapshot in a third column, begins where the first one began, and
     says up to which snapshot it goes (``partial_max``). So every earlier snapshot is still read from it.
 D2  The file that was replaced is scheduled for deletion.
 D3  A data file without any row left ends, and needs no delete file; the one that it has stays as it is.
 D4  Several delete files of one data file, which concurrent writers of other programs can leave, are left to the
     extension.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from trunkline.delivery.destinations.ducklake_direct.bounds import Unusual
from trunkline.delivery.destinations.ducklake_direct.parquet_file import FIELD_ID, numbered
from trunkline.delivery.destinations.ducklake_direct.table_state import DataFile, DeleteFile

PATH_ID, POSITION_ID, SNAPSHOT_ID = 2147483646, 2147483645, 2147483539  # field ids, as the extension has them
PATH, POSITION, SNAPSHOT = "file_path", "pos", "_ducklake_internal_snapshot_id"
FIRST: Final = pa.schema([numbered(PATH, pa.string(), PATH_ID), numbered(POSITION, pa.int64(), POSITION_ID)])
LATER: Final = FIRST.append(numbered(SNAPSHOT, pa.int64(), SNAPSHOT_ID))
FILES_MAX: Final = 4096  # delete files whose positions are kept
KEPT_BYTES_MAX: Final = 64 * 2**20  # of all of them

Numbers = npt.NDArray[np.int64]


class Deleted(Struct, frozen=True):
    """The content of a delete file, in the order of positions."""

    positions: Numbers
    snapshots: Numbers  # that deleted each

    def living(self, positions: Numbers) -> npt.NDArray[np.bool_]:
        """Which of these positions are not deleted."""
        if not len(self.positions):
            return np.ones(len(positions), np.bool_)
        at = np.minimum(np.searchsorted(self.positions, positions), len(self.positions) - 1)
        found: npt.NDArray[np.bool_] = self.positions[at] != positions
        return found


def no_deleted() -> Deleted:
    return Deleted(np.zeros(0, np.int64), np.zeros(0, np.int64))


class _Kept:
    """Contents by path: files never change."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[str, Deleted] = OrderedDict()
        self._size_bytes = 0

    def get(self, path: str) -> Deleted | None:
        with self._lock:
            if path in self._known:
                self._known.move_to_end(path)
            return self._known.get(path)

    def keep(self, path: str, deleted: Deleted) -> None:
        with self._lock:
            if path in self._known:
                return
            self._known[path] = deleted
            self._size_bytes += _size_bytes(deleted)
            while len(self._known) > FILES_MAX or self._size_bytes > KEPT_BYTES_MAX:
                self._size_bytes -= _size_bytes(self._known.popitem(last=False)[1])


def _size_bytes(deleted: Deleted) -> int:
    return int(deleted.positions.nbytes + deleted.snapshots.nbytes)


@cache
def kept_deletions() -> _Kept:
    """Global to the process."""
    return _Kept()


def deleted_rows(files: list[DeleteFile]) -> Deleted:
    """What the delete file of a data file says; nothing without one. May raise ``OSError``, ``Unusual``."""
    if not files:
        return no_deleted()
    if len(files) > 1 or not files[0].plain:
        raise Unusual("several delete files of one data file, or of another format")  # D4
    [file] = files
    if (known := kept_deletions().get(file.path)) is not None:
        return known
    found = _read(file)
    kept_deletions().keep(file.path, found)
    return found


def _read(file: DeleteFile) -> Deleted:
    with pq.ParquetFile(file.path) as opened:
        numbers = {(field.metadata or {}).get(FIELD_ID): field.name for field in opened.schema_arrow}
        position = numbers.get(str(POSITION_ID).encode(), POSITION)
        names = [field.name for field in opened.schema_arrow]
        content = opened.read([position, *([SNAPSHOT] if SNAPSHOT in names else [])])
    positions = content.column(position).to_numpy().astype(np.int64)
    order = np.argsort(positions, kind="stable")
    if SNAPSHOT not in content.column_names:
        return Deleted(positions[order], np.full(len(positions), file.begin, np.int64))
    snapshots = content.column(SNAPSHOT).fill_null(file.begin).to_numpy().astype(np.int64)
    return Deleted(positions[order], snapshots[order])


def with_more(held: Deleted, positions: Numbers, snapshot: int) -> Deleted:
    """After these rows were deleted, too; in ascending order."""
    places = np.concatenate([held.positions, positions])
    since = np.concatenate([held.snapshots, np.full(len(positions), snapshot, np.int64)])
    order = np.argsort(places, kind="stable")
    return Deleted(places[order], since[order])


def delete_rows(file: DataFile, deleted: Deleted, *, later: bool) -> pa.Table:
    """The content of a delete file; ``later``: it replaces another one (D1)."""
    columns: list[pa.Array] = [pa.repeat(file.path, len(deleted.positions)), pa.array(deleted.positions)]
    if later:
        columns.append(pa.array(deleted.snapshots))
    return pa.Table.from_arrays(columns, schema=LATER if later else FIRST)
