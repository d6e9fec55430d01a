"""One table of a lake inside a transaction: what it has to follow, and the statements that do it.

Rules
 K3  One statement removes all staged keys. It fails on a row whose key is an INSERT (T4, halt).
 K4  Keys are compared with ``=``; if a staged one has a NULL (or a NUL), with ``IS NOT DISTINCT FROM``, which also
     finds those, but reads more files.
 K6  ``prepare`` reads and writes nothing, so that a member that fails there does not end the transaction. It looks for
     duplicate keys only if ``careful``: the statement of K3 finds them for nothing, but undoes everybody's work.
"""

from __future__ import annotations

import duckdb
from msgspec import Struct

from trunkline.delivery.backends.sql import first_line, identifier
from trunkline.delivery.changes.column_steps import ColumnSteps
from trunkline.delivery.changes.columns import Column, Columns, Evolution, evolution
from trunkline.delivery.changes.history import HISTORY_NAMES
from trunkline.delivery.config.addresses import IcebergAddress, LakeAddress
from trunkline.delivery.destinations.contract import Applied, MemberStep, TableStep, checked_steps
from trunkline.delivery.destinations.ducklake_history import (
    close_gone_statement,
    close_statement,
    insert_new_statement,
    second_open_statement,
    supersede_statement,
)
from trunkline.delivery.destinations.ducklake_stage import DUPLICATE, RowSession, TableStage
from trunkline.delivery.destinations.ducklake_steps import follow_steps
from trunkline.errors import DuplicateKey, SchemaMismatch


class TablePlan(Struct, frozen=True):
    """What a transaction does to a table before it writes rows."""

    makes: bool = False  # it is created, or replaced
    held: Columns | None = None  # as it was
    steps: ColumnSteps | None = None
    change: Evolution = Evolution()


class LakeTable:
    """A table of one member, in the transaction of one session."""

    def __init__(self, lake: RowSession, address: LakeAddress | IcebergAddress) -> None:
        self._lake = lake
        self._address = address
        self.path = f"{lake.alias}.{identifier(address.schema)}.{identifier(address.table)}"
        self.what = table_text(address)

    def columns(self) -> Columns | None:
        try:
            rows = self._lake.run(f"DESCRIBE {self.path}")
        except duckdb.CatalogException:
            return None
        return tuple(Column(name, type_name, null == "YES") for name, type_name, null, *_ in rows)

    # --------------------------------------------------------------------------------------------------- beforehand

    def prepare(
        self, member: MemberStep, stage: TableStage, held: Columns | None, *, fresh: bool, careful: bool
    ) -> TablePlan:
        """What is to be done. ``fresh``: the member does not have the table yet. ``careful``: look for duplicates."""
        step = stage.step
        if step.replaces and step.mode != "append" and (doubled := self._lake.run(stage.doubled_statement())):
            raise DuplicateKey(
                f"{self.what} cannot be seeded: several rows of the source share the key {doubled[0][0]}; "
                "fix the source, or set duplicates: warn"
            )
        if held is None or fresh or (step.replaces and not _keeps_history(step, held)):
            return TablePlan(makes=True, held=held)
        plan = self._reshaping(member, step, held)
        unshaped = plan.steps is None and not plan.change.added and not plan.change.widened
        if careful and unshaped and stage.rows and (step.mode, step.duplicates) == ("mirror", "halt"):
            for (key,) in self._lake.run(stage.taken_statement(self.path)):
                raise duplicate_key(self.what, key)
        return plan

    def _reshaping(self, member: MemberStep, step: TableStep, held: Columns) -> TablePlan:
        if (steps := checked_steps(step, held, member.expected, self.what)) is not None:
            return TablePlan(held=held, steps=steps)
        if step.steps is not None:
            return TablePlan(held=held)
        change = evolution(step.columns, held)
        if change.problems:
            raise SchemaMismatch(
                f"{self.what} cannot follow its source: {'; '.join(change.problems)}; "
                f"change the table by hand and resume, or {step.begin_again}"
            )
        return TablePlan(held=held, change=change)

    # ----------------------------------------------------------------------------------------------------- writing

    def write(self, member: MemberStep, stage: TableStage, plan: TablePlan) -> Applied:
        removed, reshaped = 0, ""
        if plan.makes:
            removed = self._count() if plan.held is not None else 0
            self._make(stage.step.columns)
        else:
            reshaped = self._reshape(plan)
        done = self._write_rows(member, stage, made=plan.makes)
        return Applied(
            member.through, done.removed + removed, done.written, done.duplicates, done.missing, reshaped=reshaped
        )

    def _write_rows(self, member: MemberStep, stage: TableStage, *, made: bool) -> Applied:
        step, through = stage.step, member.through
        if step.replaces and not made:
            [(closed,)] = self._lake.run(close_gone_statement(stage, self.path, through))
            [(written,)] = self._lake.run(insert_new_statement(stage, self.path))
            return Applied(through, int(closed), int(written))
        if stage.rows == 0:
            return Applied(through)
        stage.complete(self._lake, self.path, self.what)
        removed = duplicates = missing = 0
        if step.mode == "mirror" and not step.replaces:
            if step.duplicates == "warn":
                held = dict(self._lake.run(stage.held_statement(self.path)))
                duplicates = held.get(True, 0)
                missing = stage.removals - held.get(False, 0)
            removed = self._remove(stage)
            if step.duplicates == "halt":
                missing = max(0, stage.removals - removed)
        elif step.mode == "history" and not step.replaces:
            removed, duplicates = self._close_versions(stage)
            missing = max(0, stage.removals - removed)
            removed += duplicates
        [(written,)] = self._lake.run(stage.insert_statement(self.path))
        return Applied(through, removed, int(written), duplicates, missing if step.counts_missing else 0)

    def _remove(self, stage: TableStage) -> int:
        try:
            [(removed,)] = self._lake.run(stage.delete_statement(self.path))
        except duckdb.InvalidInputException as error:
            _, found, key = first_line(error).partition(DUPLICATE)
            if not found:
                raise
            raise duplicate_key(self.what, key) from error
        return int(removed)

    def _close_versions(self, stage: TableStage) -> tuple[int, int]:
        """How many versions end because they were removed, and how many because their key came again (T4)."""
        closed = again = 0
        if stage.removals:
            [(closed,)] = self._lake.run(close_statement(stage, self.path))
        if stage.step.duplicates == "warn":
            [(again,)] = self._lake.run(supersede_statement(stage, self.path))
        else:
            for (key,) in self._lake.run(second_open_statement(stage, self.path)):
                raise duplicate_key(self.what, key)
        return int(closed), int(again)

    def _count(self) -> int:
        [(count,)] = self._lake.run(f"SELECT count(*) FROM {self.path}")
        return int(count)

    def _make(self, columns: Columns) -> None:
        names = ", ".join(f"{identifier(column.name)} {column.type}" for column in columns)
        self._lake.run(f"CREATE SCHEMA IF NOT EXISTS {self._lake.alias}.{identifier(self._address.schema)}")
        self._lake.run(f"CREATE OR REPLACE TABLE {self.path} ({names})")

    def _reshape(self, plan: TablePlan) -> str:
        """Make the table accept the source's rows (T6); returns the steps that it followed."""
        if plan.steps is not None:
            return follow_steps(self._lake, self._address, plan.steps)
        for column in plan.change.added:
            self._lake.run(f"ALTER TABLE {self.path} ADD COLUMN {identifier(column.name)} {column.type}")
        for column in plan.change.widened:
            name = identifier(column.name)
            try:
                self._lake.run(f"ALTER TABLE {self.path} ALTER COLUMN {name} SET DATA TYPE {column.type}")
            except duckdb.Error as error:
                raise SchemaMismatch(
                    f"{self.what} cannot widen column {column.name!r} to {column.type} ({first_line(error)}); reseed it"
                ) from error
        return ""

    def drop(self) -> None:
        self._lake.run(f"DROP TABLE IF EXISTS {self.path}")


def table_text(address: LakeAddress | IcebergAddress) -> str:
    """A table in a message."""
    return f"table {address.schema}.{address.table} of {address.catalog}"


def duplicate_key(what: str, key: str) -> DuplicateKey:
    return DuplicateKey(
        f"{what} already holds a row with the key {key}: two rows of the source share it; "
        "fix the source and resume, or set duplicates: warn"
    )


def _keeps_history(step: TableStep, held: Columns) -> bool:
    """Whether a table with these columns has a history that goes on."""
    return step.mode == "history" and not step.discards and {column.name for column in held} >= HISTORY_NAMES
