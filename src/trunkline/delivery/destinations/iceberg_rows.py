"""Rows and columns of one Iceberg table inside a transaction of DuckDB: the statements of a lake, but for these.

Rules
 R1  A table that is replaced stays the same table: its rows are removed and its columns changed in the transaction
     that writes the new rows. DuckDB cannot drop and create a table in one.
 R2  Iceberg records no default that older rows get (before version 3): it is written into every row. The same holds for
     a column whose stored type Iceberg cannot widen. Each of them adds files, and removes none.
 R3  DuckDB adds no column of lists to a table that exists. Such a step is ``SchemaMismatch`` and writes nothing: the
     table has to be dropped.
"""

from __future__ import annotations

from typing import ClassVar

from trunkline.delivery.backends.iceberg_types import is_promoted, stored_type
from trunkline.delivery.backends.sql import identifier
from trunkline.delivery.changes.column_steps import ON_THE_WAY, ColumnSteps, renaming
from trunkline.delivery.changes.columns import Column, Columns
from trunkline.delivery.config.addresses import IcebergAddress
from trunkline.delivery.destinations.ducklake_stage import RowSession, TableStage
from trunkline.delivery.destinations.ducklake_steps import update_rows
from trunkline.delivery.destinations.ducklake_table import LakeTable, TablePlan
from trunkline.errors import SchemaMismatch
from trunkline.plural import plural


class IcebergStage(TableStage):
    row_number: ClassVar[str] = "file_row_number"


class IcebergRows(LakeTable):
    """``stored``: the columns as they are in the table; ``None`` without a table."""

    def __init__(self, session: RowSession, address: IcebergAddress, stored: Columns | None) -> None:
        super().__init__(session, address)
        self._stored = stored

    def empty(self, columns: Columns) -> None:
        """Create the table, or remove all rows, and give it these columns."""
        self._make(columns)

    def _make(self, columns: Columns) -> None:
        if self._stored is None:
            names = ", ".join(f"{identifier(each.name)} {stored_type(each)}" for each in columns)
            self._lake.run(f"CREATE TABLE {self.path} ({names}) WITH ('format-version' = 2)")
            return
        self._lake.run(f"DELETE FROM {self.path}")
        self._replace_columns(self._stored, columns)

    def _replace_columns(self, stored: Columns, columns: Columns) -> None:
        """Of a table without rows (R1). None may be the only one of its table: so they are dropped last."""
        wanted = {each.name: stored_type(each) for each in columns}
        kept = {each.name for each in stored if each.nullable and wanted.get(each.name) == each.type}
        taken = {name.lower() for name in wanted}
        gone = []
        for number, each in enumerate(each for each in stored if each.name not in kept):
            gone.append(each.name)
            if each.name.lower() in taken:
                gone[-1] = f"{ON_THE_WAY}{number}"
                self._alter(f"RENAME COLUMN {identifier(each.name)} TO {identifier(gone[-1])}")
        for name, kind in wanted.items():
            if name not in kept:
                self._add(name, kind)
        for name in gone:
            self._alter(f"DROP COLUMN {identifier(name)}")

    def _reshape(self, plan: TablePlan) -> str:
        if plan.steps is not None:
            return self._follow(plan.steps)
        for column in plan.change.added:
            self._add(column.name, stored_type(column))
        held = {column.name: column for column in plan.held or ()}
        for number, column in enumerate(plan.change.widened):
            self._widen(held[column.name], column, number)
        return ""

    def _follow(self, steps: ColumnSteps) -> str:
        """Returns what was done."""
        plan = renaming(steps)
        for old, new in plan.renames:
            self._alter(f"RENAME COLUMN {identifier(old)} TO {identifier(new)}")
        for column in steps.added:
            self._add(column.name, stored_type(column))
        for gone in plan.drops:
            self._alter(f"DROP COLUMN {identifier(gone)}")
        row = steps.default_row()
        rewritten = 0
        if defaults := tuple(column for column in steps.added if row.column(column.name).null_count == 0):
            rewritten = update_rows(self._lake, self.path, steps, defaults, [])
        for number, (before, wide) in enumerate(steps.widened):
            rewritten = max(rewritten, self._widen(before, wide, len(plan.renames) + number))
        return steps.spelled() + (f"; rewrote {plural(rewritten, 'row')}" if rewritten else "")

    def _widen(self, before: Column, wide: Column, number: int) -> int:
        """Returns how many rows were rewritten for it (R2)."""
        old, new, name = stored_type(before), stored_type(wide), identifier(wide.name)
        if old == new:
            return 0
        if is_promoted(old, new):
            self._alter(f"ALTER COLUMN {name} SET DATA TYPE {new}")
            return 0
        away = identifier(f"{ON_THE_WAY}wide_{number}")
        self._alter(f"RENAME COLUMN {name} TO {away}")
        self._add(wide.name, new)
        [(count,)] = self._lake.run(f"UPDATE {self.path} SET {name} = CAST({away} AS {new})")
        self._alter(f"DROP COLUMN {away}")
        return int(count)

    def _add(self, name: str, kind: str) -> None:
        if kind.endswith("[]"):
            raise SchemaMismatch(
                f"{self.what} cannot get the column {name!r}: DuckDB adds no lists to an Iceberg table; drop the "
                "table, and reseed the destination"
            )
        self._alter(f"ADD COLUMN {identifier(name)} {kind}")

    def _alter(self, what: str) -> None:
        self._lake.run(f"ALTER TABLE {self.path} {what}")
