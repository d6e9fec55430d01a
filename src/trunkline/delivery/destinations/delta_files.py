"""Data files of a Delta table: their list, bounds of their keys, and writing new ones.

Delta changes a row by rewriting its file, so files are small enough to be rewritten in some tens of milliseconds.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Self

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.transaction import AddAction, RemoveAction
from msgspec import Struct

from trunkline.delivery.backends.object_errors import StoreError, StoreRefusal
from trunkline.delivery.backends.table_folder import TableFolder
from trunkline.delivery.destinations.delta_commit import AddedFile, MarkedFile
from trunkline.delivery.destinations.delta_vectors import (
    MARKED_MAX,
    MARKED_SHARE,
    DeletionVector,
    inline_vector,
    vector_of,
)
from trunkline.errors import DestinationHalted, Unreachable

ROWS_PER_FILE: Final = 250_000  # more: one changed row costs more; fewer: more files to open and list
BYTES_PER_FILE: Final = 128 << 20  # in memory, where rows are wide
SMALL_FILES_MAX: Final = 8  # files of less than half the size; if there are more, a flush merges them
BOUND_CHARACTERS_MAX: Final = 64  # of a text that is stored as a bound
REPEATS: Final = 10  # a column whose values repeat this often gets a dictionary
SAMPLE_ROWS: Final = 1_000


class KeyBounds(Struct, frozen=True):
    """Of one key column in one file."""

    lowest: Any
    highest: Any
    nulls: int  # -1: unknown


class DeltaDataFile(Struct, frozen=True):
    path: str  # as in the table's log: relative to the table
    size_bytes: int
    rows: int | None  # None: another writer wrote no statistics
    bounds: dict[str, KeyBounds]  # by key column; a column without bounds may hold anything
    vector: DeletionVector | None = None

    @property
    def live_rows(self) -> int | None:
        """Without those that its vector marks."""
        marked = 0 if self.vector is None else self.vector.record.cardinality
        return None if self.rows is None else self.rows - marked

    @property
    def small(self) -> bool:
        return self.live_rows is not None and self.live_rows < ROWS_PER_FILE // 2


class Statistics(Struct, frozen=True, rename="camel"):
    """As in a commit."""

    num_records: int | None = None
    min_values: dict[str, Any] = {}
    max_values: dict[str, Any] = {}
    null_count: dict[str, Any] = {}


_STATISTICS: Final = msgspec.json.Decoder(Statistics)


def bounded(stored: pa.DataType) -> bool:
    """Whether bounds of this type are exact: those of timestamps, for example, are rounded."""
    return bool(pa.types.is_integer(stored) or pa.types.is_string(stored))


def data_files(
    table: DeltaTable, schema: pa.Schema, vectors: Mapping[str, DeletionVector]
) -> tuple[DeltaDataFile, ...]:
    """The live files of the loaded version."""
    listed = pa.table(table.get_add_actions(flatten=True))
    names = [field.name for field in schema if bounded(field.type) and f"min.{field.name}" in listed.column_names]
    found = listed.select(
        ["path", "size_bytes", "num_records", *(f"{part}.{n}" for n in names for part in ("min", "max", "null_count"))]
    ).to_pylist()
    return tuple(
        DeltaDataFile(
            row["path"],
            row["size_bytes"],
            row["num_records"],
            {n: b for n in names if (b := _bounds(row, n))},
            vectors.get(row["path"]),
        )
        for row in found
    )


def added_file(added: AddedFile, schema: pa.Schema) -> DeltaDataFile:
    """The file of a commit."""
    try:
        stats = _STATISTICS.decode(added.stats or "{}")
    except msgspec.MsgspecError:
        stats = Statistics()
    bounds = {}
    for name in stats.min_values.keys() & stats.max_values.keys():
        at = schema.get_field_index(name)
        lowest, highest = stats.min_values[name], stats.max_values[name]
        if at >= 0 and bounded(kept := schema.field(at).type):
            wanted = str if pa.types.is_string(kept) else int
            if isinstance(lowest, wanted) and isinstance(highest, wanted):
                bounds[name] = KeyBounds(lowest, highest, stats.null_count.get(name, -1))
    vector = None if added.deletion_vector is None else inline_vector(added.deletion_vector)
    return DeltaDataFile(added.path, added.size, stats.num_records, bounds, vector)


def _bounds(row: dict[str, Any], name: str) -> KeyBounds | None:
    lowest, highest, nulls = row[f"min.{name}"], row[f"max.{name}"], row[f"null_count.{name}"]
    if lowest is None or highest is None:
        return None
    return KeyBounds(lowest, highest, -1 if nulls is None else nulls)


def removal(file: DeltaDataFile) -> RemoveAction | MarkedFile:
    if file.vector is not None:
        return MarkedFile(file.path, file.size_bytes, "", file.vector, None)
    return RemoveAction(file.path, True, time.time_ns() // 1_000_000, file.size_bytes, {})


def marking(file: DeltaDataFile, live: npt.NDArray[np.int64]) -> MarkedFile | None:
    """Marks rows of a file, by their places among those that are not marked yet; ``None`` if they are too many, or
    all (V1)."""
    if file.rows is None:
        return None
    if file.vector is not None:
        live = np.concatenate([np.flatnonzero(file.vector.kept(0, file.rows))[live], file.vector.positions])
    if len(live) == file.rows or len(live) > MARKED_MAX or len(live) * MARKED_SHARE > file.rows:
        return None
    bounds = file.bounds.items()
    stats = {
        "numRecords": file.rows,
        "minValues": {name: each.lowest for name, each in bounds},
        "maxValues": {name: each.highest for name, each in bounds},
        "nullCount": {name: each.nulls for name, each in bounds if each.nulls >= 0},
        "tightBounds": False,
    }
    return MarkedFile(file.path, file.size_bytes, json.dumps(stats), file.vector, vector_of(live))


class FileWriter:
    """Writes pieces of rows to new data files, which are invisible until a commit names them.

    Pieces share a file until it is full; a piece is not split over two files, so that adjacent keys stay together.
    Leaving the ``with`` block removes the files, unless ``keep`` was called; vacuuming removes those of a killed
    process.
    """

    def __init__(self, folder: TableFolder, schema: pa.Schema, key: Sequence[str], step: Callable[[str], None]) -> None:
        self._folder = folder
        self._schema = schema
        self._bounded = [name for name in key if bounded(schema.field(name).type)]
        self._step = step
        self._pieces: list[pa.Table] = []
        self._rows = self._bytes = 0
        self._written: list[AddAction] = []
        self._kept = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._kept:
            for action in self._written:
                with suppress(StoreError):  # vacuuming removes it
                    self._folder.remove(action.path)

    def add(self, piece: pa.Table) -> None:
        for start in range(0, len(piece), ROWS_PER_FILE):
            part = piece.slice(start, ROWS_PER_FILE)
            if self._rows + len(part) > ROWS_PER_FILE or self._bytes + part.nbytes > BYTES_PER_FILE:
                self._write()
            self._pieces.append(part)
            self._rows += len(part)
            self._bytes += part.nbytes

    def finish(self) -> list[AddAction]:
        """Write what is left; the actions for a commit."""
        self._write()
        return self._written

    def keep(self) -> None:
        """From here on the files stay: a commit that is reported as failed may name them."""
        self._kept = True

    def _write(self) -> None:
        if not self._pieces:
            return
        rows = pa.concat_tables(self._pieces)
        self._pieces, self._rows, self._bytes = [], 0, 0
        self._step("write")
        name = f"part-{uuid.uuid4()}.parquet"
        stats = json.dumps(_statistics(rows, self._bounded))
        self._written.append(AddAction(name, 0, {}, time.time_ns() // 1_000_000, True, stats))
        try:
            written = self._folder.write(name, rows, use_dictionary=_repeating(rows), row_group_size=ROWS_PER_FILE)
            self._written[-1].size = written
        except StoreRefusal as error:
            raise DestinationHalted(f"{self._folder}/{name} cannot be written: {error}; then resume") from None
        except StoreError as error:
            raise Unreachable(
                f"{self._folder}/{name} cannot be written: {error}; nothing was changed, retrying"
            ) from None
        except OSError as error:
            raise Unreachable(
                f"{self._folder}/{name} cannot be written: {error}; nothing was changed, free some space and retry"
            ) from error


def _statistics(rows: pa.Table, names: Sequence[str]) -> dict[str, Any]:
    lowest, highest, nulls = {}, {}, {}
    for name in names:
        column = rows.column(name)
        nulls[name] = column.null_count
        low, high = pc.min_max(column).as_py().values()
        if low is not None and not (isinstance(low, str) and max(len(low), len(high)) > BOUND_CHARACTERS_MAX):
            lowest[name], highest[name] = low, high
    return {"numRecords": len(rows), "minValues": lowest, "maxValues": highest, "nullCount": nulls}


def _repeating(rows: pa.Table) -> list[str]:
    """The columns worth a dictionary, by a sample: a dictionary for every column doubles the time of a write."""
    sample = rows.slice(0, SAMPLE_ROWS)
    texts = [field.name for field in rows.schema if pa.types.is_string(field.type) or pa.types.is_binary(field.type)]
    return [name for name in texts if pc.count_distinct(sample[name]).as_py() * REPEATS <= len(sample)]
