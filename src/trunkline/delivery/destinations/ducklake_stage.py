"""Rows on their way into a lake: Arrow batches, a temporary table, and the statements that take them from there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from trunkline.delivery.backends.sql import identifier, literal
from trunkline.delivery.changes.columns import Column, Columns, arrow_schema
from trunkline.delivery.changes.rows import OP_COLUMN, Op
from trunkline.delivery.destinations.contract import Flush
from trunkline.delivery.destinations.ducklake_attachments import LakeSession

DUPLICATE: Final = "trunkline-duplicate-key:"  # what the guard of `Stage.removing` says before the key
INCOMING: Final = "_trunkline_incoming"
STAGED: Final = "_trunkline_staged"
KEY_CHARACTERS_MAX: Final = 200  # characters of a key in a message


@contextmanager
def incoming(lake: LakeSession, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[None]:
    """Batches as the table ``INCOMING``, which can be read once. Errors of who makes them are raised as they are."""
    failed: list[BaseException] = []

    def shaped() -> Iterator[pa.RecordBatch]:
        try:
            for batch in batches:
                yield batch if batch.schema.equals(schema) else batch.select(schema.names).cast(schema)
        except BaseException as error:
            failed.append(error)
            raise

    lake.cursor.register(INCOMING, pa.RecordBatchReader.from_batches(schema, shaped()))
    try:
        yield
    except duckdb.Error:
        if failed:
            raise failed[0] from None
        raise
    finally:
        lake.cursor.unregister(INCOMING)


def stage_rows(lake: LakeSession, columns: Columns, rows: Iterable[pa.RecordBatch]) -> None:
    """All rows of a seed, in a temporary table: what does not fit into memory goes to a file."""
    with incoming(lake, arrow_schema(columns), rows):
        lake.run(f"CREATE OR REPLACE TEMP TABLE {STAGED} AS SELECT {declared(columns)} FROM {INCOMING}")


class FlushStage:
    """The settled rows of one flush, in a temporary table of one connection."""

    def __init__(self, flush: Flush) -> None:
        self._key = flush.key
        self._columns = flush.columns
        self._guarded = flush.duplicates == "halt"
        self.rows = 0
        self.removals = 0  # rows that are no INSERT
        self._odd = False  # whether a key has a NULL, or a text with a NUL

    def fill(self, lake: LakeSession, batches: Iterable[pa.RecordBatch]) -> None:
        schema = pa.schema([pa.field(OP_COLUMN, pa.int8()), *arrow_schema(self._columns)])
        with incoming(lake, schema, map(self._counted, batches)):
            lake.run(
                f"CREATE OR REPLACE TEMP TABLE {STAGED} AS "
                f"SELECT {OP_COLUMN}, {declared(self._columns)} FROM {INCOMING}"
            )

    def _counted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.rows += batch.num_rows
        inserts = pc.sum(pc.equal(batch.column(OP_COLUMN), int(Op.INSERT))).as_py() or 0
        self.removals += batch.num_rows - inserts
        self._odd = self._odd or any(map(_is_odd, map(batch.column, self._key)))
        return batch

    def held(self, table: str) -> str:
        """How many staged keys the table holds, by whether an INSERT names them."""
        return (
            f"SELECT s.{OP_COLUMN} = {int(Op.INSERT)}, count(*) FROM {STAGED} AS s "
            f"SEMI JOIN {table} AS t ON {self._same_key()} GROUP BY 1"
        )

    def removing(self, table: str) -> str:
        """The guard looks at a row of the table too, or it would be asked about staged rows that meet none."""
        guard = (
            f" AND CASE WHEN s.{OP_COLUMN} = {int(Op.INSERT)} AND t.rowid >= 0 "
            f"THEN error({literal(DUPLICATE)} || {key_text(self._key, 's.')}) ELSE true END"
        )
        return f"DELETE FROM {table} AS t USING {STAGED} AS s WHERE {self._same_key()}{guard if self._guarded else ''}"

    def writing(self, table: str) -> str:
        names = ", ".join(identifier(column.name) for column in self._columns)
        return f"INSERT INTO {table} ({names}) SELECT {names} FROM {STAGED} WHERE {OP_COLUMN} <> {int(Op.REMOVE)}"

    def _same_key(self) -> str:
        equal = "IS NOT DISTINCT FROM" if self._odd else "="
        return " AND ".join(f"t.{identifier(name)} {equal} s.{identifier(name)}" for name in self._key)


def _is_odd(keys: pa.Array) -> bool:
    """DuckLake looks for the files of keys that are compared with ``=`` by their texts, which end for it at a NUL."""
    if keys.null_count > 0:
        return True
    return pa.types.is_string(keys.type) and bool(pc.any(pc.match_substring(keys, "\0")).as_py())


def declared(columns: Columns) -> str:
    """Columns that travelled, in the types that they have in the table."""
    return ", ".join(f"CAST({identifier(each.name)} AS {each.type}) AS {identifier(each.name)}" for each in columns)


def travelling(columns: Columns) -> str:
    """Columns of a table in types that travel as ``columns.arrow_type`` says."""
    return ", ".join(f"{_sent(column)} AS {identifier(column.name)}" for column in columns)


def _sent(column: Column) -> str:
    element, brackets = column.type.rstrip("[]"), column.type.count("[]")
    if element not in ("JSON", "UUID"):
        return identifier(column.name)
    return f"CAST({identifier(column.name)} AS VARCHAR{'[]' * brackets})"


def key_text(key: Sequence[str], prefix: str = "") -> str:
    """An expression for a key as people read it: ``id=7, region=NULL``."""
    parts = (f"{literal(f'{name}=')} || coalesce(CAST({prefix}{identifier(name)} AS VARCHAR), 'NULL')" for name in key)
    return f"left(concat_ws(', ', {', '.join(parts)}), {KEY_CHARACTERS_MAX})"
