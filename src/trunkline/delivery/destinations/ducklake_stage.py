"""Rows on their way into a lake: from Arrow batches to a temporary table, and the statements that apply it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Final, Protocol

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from trunkline.delivery.backends.sql import identifier, literal
from trunkline.delivery.changes.columns import Column, Columns, arrow_schema
from trunkline.delivery.changes.history import CURRENT
from trunkline.delivery.changes.rows import BATCH_ROWS, OP_COLUMN, Op
from trunkline.delivery.destinations.contract import TableStep
from trunkline.delivery.destinations.unstated import divided, filled

DUPLICATE: Final = "trunkline-duplicate-key:"  # the error of the guard in ``delete_statement``, before the key
INCOMING: Final = "_trunkline_incoming"
STAGED: Final = "_trunkline_staged"
KEYS: Final = "_trunkline_keys"
KEY_CHARACTERS_MAX: Final = 200  # characters of a key in a message


class RowSession(Protocol):
    """A connection of DuckDB in which a table is written: of a lake, or of an Iceberg catalog."""

    @property
    def alias(self) -> str:
        """The name under which the catalog is attached."""
        ...

    @property
    def cursor(self) -> duckdb.DuckDBPyConnection: ...

    def run(self, statement: str) -> list[tuple[Any, ...]]: ...

    def read(self, statement: str, batch_rows: int) -> pa.RecordBatchReader: ...


@contextmanager
def incoming(lake: RowSession, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[None]:
    """Batches as the table ``INCOMING``, which can be read once. Errors of the iterable are raised unchanged."""
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


class TableStage:
    """The staged rows of one table of one member, in a temporary table of one connection, which spills to disk."""

    row_number: ClassVar[str] = "rowid"  # a column of every table of this kind that is never negative

    def __init__(self, step: TableStep, number: str) -> None:
        self.step = step
        self.name = f"{STAGED}_{number}"
        self.rows = 0
        self.removals = 0  # rows other than INSERT
        self.null_safe = False  # whether a key has a NULL, or a text with a NUL
        self._partial: pa.Table | None = None  # rows that lack values; they are staged when those are known (T8)

    def fill(self, lake: RowSession, batches: Iterable[pa.RecordBatch]) -> None:
        whole: Iterable[pa.RecordBatch] = batches
        if not self.step.replaces:
            whole, self._partial = divided(batches)
            for batch in [] if self._partial is None else self._partial.to_batches():
                self._counted(batch)
        with incoming(lake, self._schema(), map(self._counted, whole)):
            lake.run(f"CREATE TEMP TABLE {self.name} AS {self._incoming_rows()}")

    def complete(self, lake: RowSession, table: str, what: str) -> None:
        """Stage the rows that lacked values, in the transaction that applies them: if it fails, that is undone, too."""
        if self._partial is None:
            return

        def held(keys: pa.Table, key: Columns, columns: Columns) -> pa.Table:
            read = (*key, *columns)
            same = " AND ".join(f"t.{identifier(each.name)} = k.{identifier(each.name)}" for each in key)
            with incoming(lake, keys.schema, keys.to_batches()):
                lake.run(f"CREATE OR REPLACE TEMP TABLE {KEYS} AS SELECT {cast_list(key)} FROM {INCOMING}")
            open_only = f" WHERE t.{CURRENT}" if self.step.mode == "history" else ""
            query = f"SELECT {export_list(read)} FROM {table} AS t SEMI JOIN {KEYS} AS k ON {same}{open_only}"
            return lake.read(query, BATCH_ROWS).read_all().cast(arrow_schema(read))

        rows = filled(self._partial, self.step, held, what)
        with incoming(lake, self._schema(), rows.to_batches()):
            lake.run(f"INSERT INTO {self.name} {self._incoming_rows()}")

    def _schema(self) -> pa.Schema:
        schema = arrow_schema(self.step.columns)
        return schema if self.step.replaces else pa.schema([pa.field(OP_COLUMN, pa.int8()), *schema])

    def _incoming_rows(self) -> str:
        op = "" if self.step.replaces else f"{OP_COLUMN}, "
        return f"SELECT {op}{cast_list(self.step.columns)} FROM {INCOMING}"

    def _counted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.rows += batch.num_rows
        if not self.step.replaces:
            inserts = pc.sum(pc.equal(batch.column(OP_COLUMN), int(Op.INSERT))).as_py() or 0
            self.removals += batch.num_rows - inserts
        self.null_safe = self.null_safe or any(map(_needs_null_safe, map(batch.column, self.step.key)))
        return batch

    # ---------------------------------------------------------------------------------------------------- statements

    def held_statement(self, table: str) -> str:
        """The number of staged keys that the table holds, by whether they are an INSERT."""
        return (
            f"SELECT s.{OP_COLUMN} = {int(Op.INSERT)}, count(*) FROM {self.name} AS s "
            f"SEMI JOIN {table} AS t ON {self.same_key()} GROUP BY 1"
        )

    def taken_statement(self, table: str) -> str:
        """An INSERT whose key the table holds, if there is one."""
        return (
            f"SELECT {key_text(self.step.key, 's.')} FROM {self.name} AS s "
            f"SEMI JOIN {table} AS t ON {self.same_key()} WHERE s.{OP_COLUMN} = {int(Op.INSERT)} LIMIT 1"
        )

    def doubled_statement(self) -> str:
        """A key that several staged rows share, if there is one."""
        names = ", ".join(map(identifier, self.step.key))
        return f"SELECT {key_text(self.step.key)} FROM {self.name} GROUP BY {names} HAVING count(*) > 1 LIMIT 1"

    def delete_statement(self, table: str) -> str:
        """The guard refers to a row of the table as well, or DuckDB evaluates it for staged rows without a match."""
        guard = (
            f" AND CASE WHEN s.{OP_COLUMN} = {int(Op.INSERT)} AND t.{self.row_number} >= 0 "
            f"THEN error({literal(DUPLICATE)} || {key_text(self.step.key, 's.')}) ELSE true END"
        )
        guarded = guard if self.step.duplicates == "halt" else ""
        return f"DELETE FROM {table} AS t USING {self.name} AS s WHERE {self.same_key()}{guarded}"

    def insert_statement(self, table: str) -> str:
        names = ", ".join(identifier(column.name) for column in self.step.columns)
        rows = "" if self.step.replaces else f" WHERE {OP_COLUMN} <> {int(Op.REMOVE)}"
        return f"INSERT INTO {table} ({names}) SELECT {names} FROM {self.name}{rows}"

    def same_key(self, left: str = "t", right: str = "s") -> str:
        equal = "IS NOT DISTINCT FROM" if self.null_safe else "="
        return " AND ".join(f"{left}.{identifier(name)} {equal} {right}.{identifier(name)}" for name in self.step.key)


def _needs_null_safe(keys: pa.Array) -> bool:
    """With ``=``, DuckLake selects files by the text of a key, which it ends at a NUL."""
    if keys.null_count > 0:
        return True
    return pa.types.is_string(keys.type) and bool(pc.any(pc.match_substring(keys, "\0")).as_py())


def cast_list(columns: Columns) -> str:
    """Columns cast to the types that they have in the table."""
    return ", ".join(f"CAST({identifier(each.name)} AS {each.type}) AS {identifier(each.name)}" for each in columns)


def export_list(columns: Columns) -> str:
    """Columns of a table in types that DuckDB exports as ``columns.arrow_type``."""
    return ", ".join(f"{_exported(column)} AS {identifier(column.name)}" for column in columns)


def _exported(column: Column) -> str:
    element, brackets = column.type.rstrip("[]"), column.type.count("[]")
    if element not in ("JSON", "UUID"):
        return identifier(column.name)
    return f"CAST({identifier(column.name)} AS VARCHAR{'[]' * brackets})"


def key_text(key: Sequence[str], prefix: str = "") -> str:
    """An expression for a readable key: ``id=7, region=NULL``."""
    parts = (f"{literal(f'{name}=')} || coalesce(CAST({prefix}{identifier(name)} AS VARCHAR), 'NULL')" for name in key)
    return f"left(concat_ws(', ', {', '.join(parts)}), {KEY_CHARACTERS_MAX})"
