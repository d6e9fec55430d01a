"""Follows the steps of a source's columns in a table of a lake, inside the transaction of a flush (T6).

A lake identifies columns by number, so no file is rewritten: rows that are older than a column get the default that its
catalog records. There are two exceptions, in which every row is updated:

 - That default is a literal: a list cannot be one, nor a text with a NUL.
 - In the transaction that widens a column, DuckLake reads NULL instead of its recorded default, and if anything else is
   done to the column, that stays so. So its values are written into the rows before, and it is widened last.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from trunkline.delivery.backends.sql import identifier, literal
from trunkline.delivery.changes.column_steps import ColumnSteps, renaming
from trunkline.delivery.changes.columns import Column, Columns
from trunkline.delivery.config.addresses import IcebergAddress, LakeAddress
from trunkline.delivery.destinations.ducklake_stage import RowSession, cast_list
from trunkline.plural import plural

DEFAULTS: Final = "_trunkline_defaults"


def follow_steps(lake: RowSession, address: LakeAddress | IcebergAddress, steps: ColumnSteps) -> str:
    """Returns what was done."""
    table = f"{lake.alias}.{identifier(address.schema)}.{identifier(address.table)}"
    recorded = _recorded_defaults(lake, address) if steps.widened else set()
    plan = renaming(steps)
    for old, new in plan.renames:
        lake.run(f"ALTER TABLE {table} RENAME COLUMN {identifier(old)} TO {identifier(new)}")
    texts, others = _defaults(lake, steps)
    for column in steps.added:
        name = identifier(column.name)
        if column.name not in texts:
            lake.run(f"ALTER TABLE {table} ADD COLUMN {name} {column.type}")
            continue
        lake.run(f"ALTER TABLE {table} ADD COLUMN {name} {column.type} DEFAULT {literal(texts[column.name])}")
        lake.run(f"ALTER TABLE {table} ALTER COLUMN {name} DROP DEFAULT")  # of later rows; each of them comes whole
    for gone in plan.drops:
        lake.run(f"ALTER TABLE {table} DROP COLUMN {identifier(gone)}")
    done = steps.spelled()
    lasting = tuple(before.name for before, _ in steps.widened if before.name in recorded)
    if others or lasting:
        named = [now for name in lasting if (now := steps.now(name)) is not None]
        done += f"; rewrote {plural(update_rows(lake, table, steps, others, named), 'row')}"
    for _, wide in steps.widened:
        lake.run(f"ALTER TABLE {table} ALTER COLUMN {identifier(wide.name)} SET DATA TYPE {wide.type}")
    return done


def _recorded_defaults(lake: RowSession, address: LakeAddress | IcebergAddress) -> set[str]:
    """The columns for which the catalog records a default of older rows."""
    catalog = f"__ducklake_metadata_{lake.alias}"
    found = lake.run(
        f"SELECT c.column_name FROM {catalog}.ducklake_column c JOIN {catalog}.ducklake_table t USING (table_id) "
        f"JOIN {catalog}.ducklake_schema s USING (schema_id) WHERE t.table_name = {literal(address.table)} "
        f"AND s.schema_name = {literal(address.schema)} AND c.end_snapshot IS NULL AND t.end_snapshot IS NULL "
        "AND s.end_snapshot IS NULL AND c.parent_column IS NULL AND c.initial_default IS NOT NULL"
    )
    return {name for (name,) in found}


def _defaults(lake: RowSession, steps: ColumnSteps) -> tuple[dict[str, str], Columns]:
    """The defaults that are not NULL: as texts, which DuckDB casts to the type of their column; and all others."""
    row = steps.default_row()
    columns = tuple(column for column in steps.added if row.column(column.name).null_count == 0)
    plain = tuple(column for column in columns if not column.type.endswith("[]"))
    if not plain:
        return {}, columns
    listed = ", ".join(f"CAST({_cast(column)} AS VARCHAR)" for column in plain)
    lake.cursor.register(DEFAULTS, pa.Table.from_batches([row]))
    try:
        [found] = lake.run(f"SELECT {listed} FROM {DEFAULTS}")
    finally:
        lake.cursor.unregister(DEFAULTS)
    texts = {column.name: text for column, text in zip(plain, found, strict=True) if "\0" not in text}
    return texts, tuple(column for column in columns if column.name not in texts)


def _cast(column: Column) -> str:
    return f"CAST({identifier(column.name)} AS {column.type})"


def update_rows(lake: RowSession, table: str, steps: ColumnSteps, columns: Columns, lasting: list[str]) -> int:
    """Write defaults of new columns, and the values of others, into every row; returns how many there are."""
    sets = [f"{identifier(column.name)} = d.{identifier(column.name)}" for column in columns]
    sets += [f"{identifier(name)} = t.{identifier(name)}" for name in lasting]
    if not columns:
        [(count,)] = lake.run(f"UPDATE {table} AS t SET {', '.join(sets)}")
        return int(count)
    lake.cursor.register(DEFAULTS, pa.Table.from_batches([steps.default_row()]))
    try:
        row = f"(SELECT {cast_list(columns)} FROM {DEFAULTS}) AS d"
        [(count,)] = lake.run(f"UPDATE {table} AS t SET {', '.join(sets)} FROM {row}")
    finally:
        lake.cursor.unregister(DEFAULTS)
    return int(count)
