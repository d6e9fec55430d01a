"""Rows of many tables, encoded together, and the statements that write them: one that removes keys, one that adds rows.

Keys are compared with ``=``, none of them is NULL. A few rows travel as one array per column, which a pipeline can
carry; a pipeline cannot carry ``COPY``, which costs the server less for many.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trunkline.delivery.backends.postgres_session import BinaryParameter
from trunkline.delivery.backends.sql import identifier, identifiers
from trunkline.delivery.changes.columns import Column, Columns
from trunkline.delivery.changes.rows import OP_COLUMN, Op
from trunkline.delivery.destinations.contract import Applied, TableStep
from trunkline.delivery.destinations.postgres_elements import CopyRows, Elements, element_form, elements, table_elements

ARRAY_ROWS_MAX: Final = 1_024  # of a table, written from arrays; more: the server holds them twice, fewer: more waiting
STATEMENTS_KEPT: Final = 2_048  # texts of tables, about 1 KB each; fewer: texts of many tables are made again
OPERATION: Final = Column(OP_COLUMN, "SMALLINT")


class TableRows(NamedTuple):
    """What one flush has for one table."""

    member: str
    step: TableStep
    table: str  # in statements
    batches: list[pa.RecordBatch]  # staged rows: at least one, no NULL in a key, every value stated


class EncodedRows(NamedTuple):
    """Parameters of the statements for one table; without any, there is nothing to do."""

    rows: TableRows
    expected: int  # keys that the table should hold
    keys: list[BinaryParameter]
    values: list[BinaryParameter]
    content: bytes  # instead of ``values``, for ``COPY``

    def applied(self, through: int, removed: int, duplicates: int, written: int) -> Applied:
        """Given what the statements counted."""
        counts = self.rows.step.counts_missing and self.rows.step.mode == "mirror"
        missing = self.expected - (removed - duplicates) if counts else 0
        return Applied(through, removed, written, duplicates, missing)


class TableStatements(NamedTuple):
    remove: str  # by ``EncodedRows.keys``, if the policy is to halt
    tally: str  # by operations and keys; its row are the counts: of all, and of those due to an INSERT
    add: str  # from ``EncodedRows.values``
    copy: str


def encoded(tables: Sequence[TableRows]) -> Iterator[EncodedRows]:
    """Raises ``OddValue``. Tables with the same columns are encoded together."""
    alike: dict[tuple[Columns, tuple[str, ...], pa.Schema], list[TableRows]] = {}
    for each in tables:
        alike.setdefault((each.step.columns, each.step.key, each.batches[0].schema), []).append(each)
    for (columns, key, _), some in alike.items():
        yield from _Alike(some, columns, key).encoded()


class _Alike:
    """Tables with the same columns and key."""

    def __init__(self, tables: Sequence[TableRows], columns: Columns, key: tuple[str, ...]) -> None:
        self._tables = tables
        self._columns = columns
        self._key = tuple(column for column in columns if column.name in key)
        self._rows = pa.Table.from_batches([batch for each in tables for batch in each.batches])
        self._ops = self._rows[OP_COLUMN].to_numpy()
        sizes = [sum(batch.num_rows for batch in each.batches) for each in tables]
        self._ends = np.concatenate([[0], np.cumsum(sizes)])

    def encoded(self) -> Iterator[EncodedRows]:
        warns = np.repeat([each.step.duplicates == "warn" for each in self._tables], np.diff(self._ends))
        mirror = np.repeat([each.step.mode == "mirror" for each in self._tables], np.diff(self._ends))
        held = self._ops != Op.INSERT
        looked_up, kept = mirror & (held | warns), self._ops != Op.REMOVE
        key_ends, row_ends, expected = self._counted(looked_up), self._counted(kept), self._counted(held)
        keys = table_elements(self._rows.filter(pa.array(looked_up)), self._key)
        ops = elements(OPERATION, pa.chunked_array([self._ops[looked_up]]))
        written = table_elements(self._rows.filter(pa.array(kept)), self._columns)
        large = any(row_ends[n + 1] - row_ends[n] > ARRAY_ROWS_MAX for n in range(len(self._tables)))
        copied = CopyRows(written) if large else None
        for n, each in enumerate(self._tables):
            by = [ops, *keys] if each.step.duplicates == "warn" else keys
            span = (int(row_ends[n]), int(row_ends[n + 1]))
            whole = copied is not None and span[1] - span[0] > ARRAY_ROWS_MAX
            yield EncodedRows(
                each,
                int(expected[n + 1] - expected[n]),
                _arrays(by, int(key_ends[n]), int(key_ends[n + 1])),
                [] if whole else _arrays(written, *span),
                copied.content(*span) if copied is not None and whole else b"",
            )

    def _counted(self, chosen: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        """How many of the chosen rows come before each table, and in all."""
        counts = np.concatenate([[0], np.cumsum(chosen)])
        found: npt.NDArray[np.int64] = counts[self._ends]
        return found


def _arrays(columns: Sequence[Elements], first: int, end: int) -> list[BinaryParameter]:
    return [each.array(first, end) for each in columns] if end > first else []


@lru_cache(STATEMENTS_KEPT)
def table_statements(table: str, columns: Columns, key: tuple[str, ...]) -> TableStatements:
    """Of a table whose columns have an ``element_form``."""
    keys = tuple(column for column in columns if column.name in key)
    names = identifiers(column.name for column in columns)
    if len(keys) == 1:
        remove = f"DELETE FROM {table} t WHERE t.{identifier(keys[0].name)} = ANY($1::{_array(keys[0])})"
    else:
        remove = f"DELETE FROM {table} t USING {_unnested(keys)} WHERE {_same(keys)}"
    tally = (
        f"WITH gone AS (DELETE FROM {table} t USING {_unnested((OPERATION, *keys))} WHERE {_same(keys, 1)} "
        f"RETURNING k.k0) SELECT count(*), count(*) FILTER (WHERE k0 = {int(Op.INSERT)}) FROM gone"
    )
    add = f"INSERT INTO {table} ({names}) OVERRIDING SYSTEM VALUE SELECT * FROM {_unnested(columns)}"
    return TableStatements(remove, tally, add, f"COPY {table} ({names}) FROM STDIN (FORMAT binary)")


def _unnested(columns: Columns) -> str:
    arrays = ", ".join(f"${n}::{_array(column)}" for n, column in enumerate(columns, 1))
    return f"unnest({arrays}) AS k ({', '.join(f'k{n}' for n in range(len(columns)))})"


def _same(keys: Columns, first: int = 0) -> str:
    return " AND ".join(f"t.{identifier(column.name)} = k.k{n}" for n, column in enumerate(keys, first))


def _array(column: Column) -> str:
    form = element_form(column)
    assert form is not None
    return form.array
