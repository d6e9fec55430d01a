"""Deletion vectors: which rows of a data file of a Delta table are removed, without writing the file again.

Without them a flush writes every file again of which it changes a row. delta-rs reads vectors and keeps them, and does
not write any. So the property ``delta.enableDeletionVectors`` of a table decides, which is off until its owner sets
it: some readers refuse such a table, of delta-rs 1.6 those that return a pyarrow dataset or pandas.

Rules
 V1  Only a mirror's flush marks rows. A file with more than one row in ``MARKED_SHARE`` marked, or more than
     ``MARKED_MAX``, is written again instead, and so is one that is merged with others.
 V2  A vector that is written is inside of the log (storage type ``i``): there is no file of it that could get lost, or
     that a vacuum would have to know. Vectors of all kinds are read.
 V3  A file is its path and its vector. To change the vector removes the one and adds the other in one version; and a
     commit that removes a file names its vector: a reader would not find it otherwise.
 V4  Rows that are marked are not there: every read of a file leaves them out (``delta_merge.file_groups``).
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from msgspec import Struct

FEATURE: Final = "deletionVectors"
PROPERTY: Final = "delta.enableDeletionVectors"
MARKED_SHARE: Final = 8  # one row in so many; more: files are written again sooner, fewer: readers skip more rows
MARKED_MAX: Final = 8_192  # rows of a file; more: longer log files, fewer: large files are written again sooner
INLINE: Final = "i"
MAGIC: Final = 1681511377  # of a vector of 64-bit positions, as Roaring bitmaps
WITHOUT_RUNS: Final = 12346  # of a Roaring bitmap of 32 bits
ARRAY_MAX: Final = 4096  # values of a container that lists them
DIGITS: Final = np.frombuffer(
    b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#", np.uint8
)

Positions = npt.NDArray[np.uint32]


class VectorRecord(Struct, frozen=True, rename="camel", omit_defaults=True):
    """As in the log."""

    storage_type: str
    path_or_inline_dv: str
    size_in_bytes: int
    cardinality: int
    offset: int | None = None


class DeletionVector(Struct, frozen=True):
    record: VectorRecord
    marked: bytes  # the positions of the rows, ascending, 4 bytes each

    @property
    def positions(self) -> Positions:
        return np.frombuffer(self.marked, "<u4")

    def kept(self, start: int, end: int) -> npt.NDArray[np.bool_]:
        """Which of these rows are still there."""
        found = np.ones(end - start, np.bool_)
        first, last = np.searchsorted(self.positions, [start, end])
        found[self.positions[first:last] - start] = False
        return found


def vector_of(positions: npt.NDArray[Any]) -> DeletionVector:
    """Of distinct positions."""
    ordered = np.sort(positions).astype("<u4")
    raw = struct.pack("<iQI", MAGIC, 1, 0) + _bitmap(ordered)
    return DeletionVector(VectorRecord(INLINE, _encoded(raw), len(raw), len(ordered)), ordered.tobytes())


def inline_vector(record: VectorRecord) -> DeletionVector | None:
    """The vector of a record; ``None`` if it is not one that this module writes."""
    if record.storage_type != INLINE:
        return None
    try:
        positions = _positions(_decoded(record.path_or_inline_dv)[: record.size_in_bytes])
    except (ValueError, struct.error, IndexError):
        return None
    return DeletionVector(record, positions.tobytes()) if len(positions) == record.cardinality else None


def _bitmap(positions: Positions) -> bytes:
    """A Roaring bitmap: a header, then the positions by their upper 16 bits."""
    keys, starts = np.unique(positions >> 16, return_index=True)
    parts = np.split((positions & 0xFFFF).astype("<u2"), starts[1:])
    header = struct.pack("<II", WITHOUT_RUNS, len(keys))
    header += b"".join(struct.pack("<HH", key, len(part) - 1) for key, part in zip(keys, parts, strict=True))
    bodies = [part.tobytes() if len(part) <= ARRAY_MAX else _bits(part) for part in parts]
    begin = len(header) + 4 * len(keys)
    offsets = np.cumsum([begin, *(len(body) for body in bodies)][:-1]).astype("<u4")
    return header + offsets.tobytes() + b"".join(bodies)


def _bits(values: npt.NDArray[np.uint16]) -> bytes:
    found = np.zeros(1 << 16, np.uint8)
    found[values] = 1
    return np.packbits(found, bitorder="little").tobytes()


def _positions(raw: bytes) -> Positions:
    magic, count, upper = struct.unpack_from("<iQI", raw)
    cookie, containers = struct.unpack_from("<II", raw, 16)
    if (magic, count, upper, cookie) != (MAGIC, 1, 0, WITHOUT_RUNS) or containers > 1 << 16:
        raise ValueError("a vector of another writer")
    at, found = 24 + 8 * containers, [np.zeros(0, "<u4")]
    for number in range(containers):
        key, less = struct.unpack_from("<HH", raw, 24 + 4 * number)
        if less < ARRAY_MAX:
            values = np.frombuffer(raw, "<u2", less + 1, at)
        else:
            values = np.flatnonzero(np.unpackbits(np.frombuffer(raw, np.uint8, 1 << 13, at), bitorder="little"))
        at += 2 * (less + 1) if less < ARRAY_MAX else 1 << 13
        found.append(values.astype("<u4") | np.uint32(key << 16))
    return np.concatenate(found)


def _encoded(raw: bytes) -> str:
    """Base 85, four bytes in five digits (Z85)."""
    words = np.frombuffer(raw + b"\0" * (-len(raw) % 4), ">u4").astype(np.uint32)
    digits = np.empty((len(words), 5), np.uint8)
    for place in (4, 3, 2, 1, 0):
        digits[:, place] = DIGITS[words % 85]
        words //= 85
    return digits.tobytes().decode()


def _decoded(text: str) -> bytes:
    values = np.full(128, 255, np.uint8)
    values[DIGITS] = np.arange(85)
    digits = values[np.frombuffer(text.encode("ascii"), np.uint8)].reshape(-1, 5)
    if (digits == 255).any():
        raise ValueError("not base 85")
    words = np.zeros(len(digits), np.uint64)
    for place in range(5):
        words = words * np.uint64(85) + digits[:, place]
    return words.astype(">u4").tobytes()


# ------------------------------------------------------------------------------------------------- of an opened table


class _Line(Struct, frozen=True):
    """An action of a version that adds or removes a file."""

    add: _File | None = None
    remove: _File | None = None


class _File(Struct, frozen=True, rename="camel"):
    path: str
    deletion_vector: VectorRecord | None = None


_LINE: Final = msgspec.json.Decoder(_Line)


def held_vectors(folder: Path, table: DeltaTable, checkpoint: int) -> dict[str, DeletionVector] | None:
    """The vectors of a loaded version, by path: positions as delta-rs reads them, and records as the log has them.
    ``None`` if the two differ: the log has a form that only delta-rs knows. Raises ``OSError`` if another writer cut
    the log meanwhile."""
    masks = pa.table(table.deletion_vectors())
    if not len(masks):
        return {}
    if any(Path(folder, "_delta_log").glob(f"{checkpoint:020}.checkpoint.*.parquet")):  # in several parts
        return None
    records = _held_records(folder, table.version(), checkpoint)
    found = {}
    for name, mask in zip(masks.column(0).to_pylist(), masks.column(1), strict=True):
        path = name.rpartition("/")[2]
        kept = mask.values.to_numpy(zero_copy_only=False)
        positions = np.flatnonzero(~kept).astype("<u4")
        record = records.pop(path, None)
        if record is None or record.cardinality != len(positions):
            return None
        found[path] = DeletionVector(record, positions.tobytes())
    return None if records else found


def _held_records(folder: Path, version: int, checkpoint: int) -> dict[str, VectorRecord]:
    found: dict[str, VectorRecord] = {}
    if checkpoint > version:
        raise OSError("another writer was faster")
    if checkpoint >= 0:
        with pq.ParquetFile(f"{folder}/_delta_log/{checkpoint:020}.checkpoint.parquet") as file:
            rows = file.read(columns=["add.path", "add.deletionVector"]).column("add").combine_chunks()
        for row in rows.filter(rows.is_valid()).to_pylist():
            if row.get("deletionVector"):
                found[row["path"]] = msgspec.convert(row["deletionVector"], VectorRecord)
    for number in range(checkpoint + 1, version + 1):
        lines = [
            _LINE.decode(line) for line in Path(f"{folder}/_delta_log/{number:020}.json").read_bytes().splitlines()
        ]
        for removed in (line.remove for line in lines if line.remove is not None):
            found.pop(removed.path, None)
        for added in (line.add for line in lines if line.add is not None and line.add.deletion_vector is not None):
            assert added.deletion_vector is not None
            found[added.path] = added.deletion_vector
    return found
