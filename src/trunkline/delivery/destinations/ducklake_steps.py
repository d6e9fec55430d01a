"""Follows the steps of a source's columns in a table of a lake, inside the transaction of a flush (T6).

A lake identifies columns by number, so no file is rewritten: rows that are older than a column get the default that its
catalog records. That default is a literal: for lists, and texts with a NUL, every row is updated instead.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from trunkline.delivery.backends.sql import identifier, literal
from trunkline.delivery.changes.column_steps import ColumnSteps, renaming
from trunkline.delivery.changes.columns import Column, Columns
from trunkline.delivery.destinations.ducklake_attachments import LakeSession
from trunkline.delivery.destinations.ducklake_stage import cast_list
from trunkline.plural import plural

DEFAULTS: Final = "_trunkline_defaults"


def follow_steps(lake: LakeSession, table: str, steps: ColumnSteps) -> str:
    """Returns what was done."""
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
    for _, wide in steps.widened:
        lake.run(f"ALTER TABLE {table} ALTER COLUMN {identifier(wide.name)} SET DATA TYPE {wide.type}")
    for gone in plan.drops:
        lake.run(f"ALTER TABLE {table} DROP COLUMN {identifier(gone)}")
    if not others:
        return steps.spelled()
    return f"{steps.spelled()}; rewrote {plural(_update(lake, table, steps, others), 'row')}"


def _defaults(lake: LakeSession, steps: ColumnSteps) -> tuple[dict[str, str], Columns]:
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


def _update(lake: LakeSession, table: str, steps: ColumnSteps, columns: Columns) -> int:
    """Write defaults into every row; returns how many there are."""
    set_list = ", ".join(f"{identifier(column.name)} = d.{identifier(column.name)}" for column in columns)
    lake.cursor.register(DEFAULTS, pa.Table.from_batches([steps.default_row()]))
    try:
        [(count,)] = lake.run(f"UPDATE {table} SET {set_list} FROM (SELECT {cast_list(columns)} FROM {DEFAULTS}) AS d")
    finally:
        lake.cursor.unregister(DEFAULTS)
    return int(count)
