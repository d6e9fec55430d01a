"""Captured changes as plain values, in the order in which they happened; for people and other programs.

Values are those of JSON. What JSON lacks is text: decimals, dates, times, floats that are no number, and bytes in
PostgreSQL's form (``\\x00ff``). Columns whose values the source did not send are named, and have none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
from msgspec import Struct

from trunkline.delivery.changes.captured import decoded
from trunkline.delivery.changes.database_reader import PLACES, DatabaseReader, Step
from trunkline.delivery.changes.groups import KIND, SEQ, TX, UNCHANGED, RowKind, TableRows
from trunkline.delivery.changes.rows import KIND_COLUMN, ChangeKind
from trunkline.delivery.changes.schemas import Identity, TableSchema

Row = dict[str, Any]


class RowChange(Struct, frozen=True):
    """``tx``: the index of its transaction in the entry. ``seq``: its number in the entry, over all tables."""

    tx: int
    seq: int
    kind: str  # insert, update, delete, truncate or read
    table: str = ""  # unknown in a log of one table
    key: tuple[str, ...] = ()
    row: Row | None = None  # of a removal: what identifies the row
    old: Row | None = None  # of an update that states it: the key, or the whole row, before
    unchanged: tuple[str, ...] = ()


def qualified(schema: TableSchema) -> str:
    return f"{schema.schema}.{schema.name}"


def row_changes(reader: DatabaseReader, step: Step) -> list[RowChange]:
    """Of all tables whose rows the step has. The reader was fed with nothing after it."""
    found = [change for rows in step.rows for change in _of_table(_schema(reader, rows), rows.batch)]
    return sorted(found, key=lambda change: change.seq)


def _schema(reader: DatabaseReader, rows: TableRows) -> TableSchema:
    [schema] = [each for each in reader.versions(rows.number) if each.version == rows.version]
    return schema


def _of_table(schema: TableSchema, batch: pa.RecordBatch) -> Iterator[RowChange]:
    names = [column.name for column in schema.columns]
    identifying = names if schema.identity is Identity.FULL or not schema.key else list(schema.key)
    columns = [values(column) for column in batch.columns[PLACES:]]
    places = [batch.column(name).to_pylist() for name in (TX, SEQ, KIND, UNCHANGED)]
    table, old = qualified(schema), None
    for index, (tx, seq, kind, bits) in enumerate(zip(*places, strict=True)):
        unsent = int.from_bytes(bits or b"", "little")
        row = {name: columns[place][index] for place, name in enumerate(names) if not unsent >> place & 1}
        unchanged = tuple(name for place, name in enumerate(names) if unsent >> place & 1)
        match kind:
            case RowKind.UPDATE_OLD:
                old = {name: row[name] for name in identifying}
            case RowKind.UPDATE_NEW:
                yield RowChange(tx, seq, "update", table, schema.key, row, old, unchanged)
                old = None
            case RowKind.DELETE:
                gone = {name: row[name] for name in identifying}
                yield RowChange(tx, seq, "delete", table, schema.key, gone)
            case RowKind.TRUNCATE:
                yield RowChange(tx, seq, "truncate", table)
            case _:
                yield RowChange(tx, seq, RowKind(kind).name.lower(), table, schema.key, row, None, unchanged)


def one_table_changes(payload: bytes) -> list[RowChange]:
    """Of an entry of format 1, which names neither its table nor a key. Raises ``CorruptEntry``."""
    columns, changes = decoded(payload)
    arrays = [values(changes.column(column.name).combine_chunks()) for column in columns]
    found: list[RowChange] = []
    old: Row | None = None
    for seq, kind in enumerate(changes.column(KIND_COLUMN).to_pylist()):
        row = {column.name: array[seq] for column, array in zip(columns, arrays, strict=True)}
        match ChangeKind(kind):
            case ChangeKind.UPDATE_PREIMAGE:
                old = row
            case ChangeKind.UPDATE_POSTIMAGE:
                found.append(RowChange(0, seq, "update", row=row, old=old))
                old = None
            case ChangeKind.TRUNCATE:
                found.append(RowChange(0, seq, "truncate"))
            case other:
                found.append(RowChange(0, seq, other.value, row=row))
    return found


def values(array: pa.Array) -> Sequence[Any]:
    """The values of a column, as JSON has them, or as text."""
    kind = array.type
    if pa.types.is_list(kind):
        inner, offsets, valid = values(array.values), array.offsets.to_pylist(), array.is_valid().to_pylist()
        return [list(inner[a:b]) if held else None for held, (a, b) in zip(valid, pairwise(offsets), strict=True)]
    if pa.types.is_temporal(kind) or pa.types.is_decimal(kind):
        texts: list[Any] = array.cast(pa.string()).to_pylist()
        return texts
    if pa.types.is_floating(kind):
        return [None if text is None else _number(text) for text in array.cast(pa.string()).to_pylist()]
    if pa.types.is_binary(kind):
        return [None if value is None else f"\\x{value.hex()}" for value in array.to_pylist()]
    plain: list[Any] = array.to_pylist()
    return plain


def _number(text: str) -> float | str:
    """As short as the column's own precision allows."""
    value = float(text)
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
