"""One member of a group in one attempt of its transaction: its record, its tables, and what it may write (T5)."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from trunkline.core.fence import StoredPosition
from trunkline.delivery.changes.columns import Columns, check_columns
from trunkline.delivery.config.addresses import Address, LakeAddress
from trunkline.delivery.destinations.contract import Applied, MemberStep, MemberTables, Standing, TableStep, stored
from trunkline.delivery.destinations.ducklake_attachments import LakeSession
from trunkline.delivery.destinations.ducklake_records import (
    MemberRecord,
    RecordChange,
    TableName,
    check_name,
    table_name,
)
from trunkline.delivery.destinations.ducklake_stage import TableStage
from trunkline.delivery.destinations.ducklake_table import LakeTable, TablePlan
from trunkline.errors import ConfigError, DestinationHalted


class StagedMember(Struct, frozen=True):
    """A step, and its rows in temporary tables."""

    step: MemberStep
    stages: tuple[TableStage, ...]


class LakeMember:
    """What the transaction sees of a member, and what it does about it."""

    def __init__(self, lake: LakeSession, staged: StagedMember) -> None:
        self.step = staged.step
        self.stages = staged.stages
        self.tables = [LakeTable(lake, lake_address(stage.step.address)) for stage in staged.stages]
        self.columns = [table.columns() for table in self.tables]
        self.names = [table_name(stage.step.address) for stage in staged.stages]
        self.record: MemberRecord | None = None
        self.plans: list[TablePlan] = []

    @property
    def listed(self) -> frozenset[TableName]:
        return frozenset() if self.record is None else self.record.tables

    @property
    def takes(self) -> list[TableName]:
        """Tables that it does not have yet."""
        return [name for name in self.names if name not in self.listed]

    @property
    def of_member(self) -> MemberTables:
        """How its record is found (T9): by tables that it must have already, if the step says so of any."""
        kept = [stage.step.address for stage in self.stages if not stage.step.replaces]
        given = [*kept, *self.step.known] or [stage.step.address for stage in self.stages]
        return MemberTables(self.step.member, self.step.home, tuple(given), self.step.living)

    @property
    def complete(self) -> bool:
        """Whether every table of the step is there."""
        return all(columns is not None for columns in self.columns)

    def advanced(self) -> StoredPosition:
        """Its record was as the step expects, and lists all tables of the step."""
        step = self.step
        standing = Standing(step.expected, step.token, step.source, step.mark)
        self.record = MemberRecord(step.member, step.home, standing, frozenset(self.names))
        return stored(standing)

    def held(self, existing: set[TableName] | None) -> StoredPosition:
        """Without a table that its record lists, it has no position."""
        if self.record is None:
            return StoredPosition()
        gone = {name for name, columns in zip(self.names, self.columns, strict=True) if columns is None}
        if existing is not None:
            gone |= self.listed - existing
        found = stored(self.record.standing)
        return found._replace(position=0, mark="") if gone & self.listed else found

    def prepare(self, owners: Mapping[TableName, str], *, careful: bool) -> None:
        """Raises what keeps the member from being written, before anything is."""
        self.plans = []
        for table, stage, name, held in zip(self.tables, self.stages, self.names, self.columns, strict=True):
            fresh = name not in self.listed
            if fresh:
                self._may_take(table, stage.step, held, owners.get(name, ""))
            self.plans.append(table.prepare(self.step, stage, held, fresh=fresh, careful=careful))

    def _may_take(self, table: LakeTable, step: TableStep, held: Columns | None, owner: str) -> None:
        """T5."""
        if owner:
            raise DestinationHalted(
                f"{table.what} belongs to {owner}; choose another table for {self.step.member}, or retire {owner}"
            )
        if held is not None and not self.step.replace_existing:
            raise DestinationHalted(
                f"{table.what} holds rows that were not delivered; set replace_existing to replace them, "
                "or choose another table"
            )
        if self.step.expected and not step.replaces:
            raise DestinationHalted(
                f"{table.what} is not among the tables of {self.step.member}, and its rows before {self.step.expected} "
                "are missing; reseed the destination"
            )

    def write(self, lake: LakeSession) -> Applied:
        applied = Applied(self.step.through)
        for table, stage, plan in zip(self.tables, self.stages, self.plans, strict=True):
            applied = applied.plus(table.write(self.step, stage, plan))
        for leaving in self.step.leaving:
            if leaving.drop and table_name(leaving.address) in self.listed:
                LakeTable(lake, lake_address(leaving.address)).drop()
        return applied

    def change(self) -> RecordChange:
        left = {table_name(leaving.address) for leaving in self.step.leaving}
        kept = frozenset() if self.step.seeds else self.listed - left
        return RecordChange(self.step, self.record, kept | frozenset(self.names))


def lake_address(address: Address) -> LakeAddress:
    assert isinstance(address, LakeAddress)
    return address


def check_step(step: MemberStep) -> None:
    """Raises ``ConfigError`` for what no table can be."""
    for table in step.tables:
        check_name(table.address)
        check_columns(table.columns, table.key, None)
        if table.mode != "append" and not table.key:
            raise ConfigError(f"mode {table.mode} needs a key; list its columns in `key`, or set mode: append")
