"""The step of one member: all its tables and its record, inside the transaction of a PostgreSQL place.

Only tables that the step touches are looked at: those with rows, other columns or ``replaces``, and those that the
record does not list yet. A member may have many others.
"""

from __future__ import annotations

from functools import reduce

import msgspec

from trunkline.core.fence import StoredPosition
from trunkline.delivery.backends.postgres_session import PostgresSession
from trunkline.delivery.backends.sql import identifier
from trunkline.delivery.changes.columns import Columns
from trunkline.delivery.changes.rows import RESERVED_PREFIX
from trunkline.delivery.destinations.contract import (
    Applied,
    Batches,
    MemberTables,
    MemberWrite,
    Standing,
    TableStep,
    stored,
)
from trunkline.delivery.destinations.postgres_records import (
    ListedTables,
    MemberRecord,
    PostgresRecords,
    TableName,
    listed_name,
    name_listed,
    table_name,
)
from trunkline.delivery.destinations.postgres_table import TableShape
from trunkline.delivery.destinations.postgres_table_step import (
    FoundTable,
    PostgresTableStep,
    TableDone,
    changes_only_rows,
    drop_table,
    quoted,
    spelled,
)
from trunkline.delivery.destinations.postgres_types import NAME_BYTES_MAX
from trunkline.errors import ConfigError, DestinationHalted, PositionMoved


class LostRace(Exception):
    """Another transaction was faster: read and judge again."""


def tables_of(write: MemberWrite) -> MemberTables:
    return write.step.found_by


def touched_about(write: MemberWrite) -> int:
    """About how many tables a step touches, before its record is read; changes of columns alone are rare."""
    step = write.step
    if not step.expected:
        return len(step.tables)
    return sum(each.replaces or each.table in write.rows for each in step.tables) + len(step.leaving)


class PostgresMemberStep:
    """A write, and the record that the transaction read."""

    def __init__(self, session: PostgresSession, write: MemberWrite, record: MemberRecord | None) -> None:
        self._session = session
        self.step, self._rows = write.step, write.rows
        self._record = record
        self._listed: ListedTables = {} if record is None else record.tables
        self._touched = [each for each in self.step.tables if self._touches(each)]
        self._shapes: dict[TableName, TableShape] = {}
        self.doing = self.step.member  # for messages

    def _touches(self, step: TableStep) -> bool:
        held = self._listed.get(_listed(step))
        if step.replaces or held is None or step.table in self._rows:
            return True
        if step.steps is not None:
            return not step.steps.unchanged
        return msgspec.json.encode(step.columns) != bytes(held) and _types(step.columns) != _types(_decoded(held))

    # --------------------------------------------------------------------------------------------------------- judging

    def looked_at(self) -> set[TableName]:
        """The tables whose shapes ``judged`` needs. If the step was planned without a position, one of any listed table
        may be missing."""
        names = {table_name(step.address) for step in self._touched}
        names |= {table_name(leaving.address) for leaving in self.step.leaving if leaving.drop}
        if not self.step.expected and self._record is not None and self._record.standing.position:
            names |= {name_listed(name) for name in self._listed}
        return names

    def judged(self, shapes: dict[TableName, TableShape]) -> StoredPosition:
        """What the fence decides about; without a listed table there is no position."""
        names = self.looked_at()
        self._shapes = {name: shapes[name] for name in names if name in shapes}
        if self._record is None:
            return stored(None)
        held = self._record.standing
        leaving = {table_name(each.address) for each in self.step.leaving}
        lost = any(name not in shapes and listed_name(name) in self._listed for name in names - leaving)
        return stored(Standing(0, held.token, held.source) if lost else held)

    def locks_readers(self) -> bool:
        """Whether readers of a table may have to wait from then on to the end of the transaction."""
        reshaped = any(each.replaces or each.steps is not None for each in self._touched)
        return reshaped or any(each.drop for each in self.step.leaving)

    def needs_home(self) -> bool:
        """Whether the record is not in its home yet."""
        return self._record is None or not self._record.member

    def check(self, records: PostgresRecords) -> None:
        """Raises an error for a table that cannot be the member's, before anything is written."""
        for step in self._touched:
            name = table_name(step.address)
            table = name[1]
            if table.lower().startswith(RESERVED_PREFIX) or len(table.encode()) > NAME_BYTES_MAX:
                raise ConfigError(
                    f"table {table!r} cannot be a destination: a name has up to {NAME_BYTES_MAX} bytes and does "
                    f"not begin with {RESERVED_PREFIX}; choose another"
                )
            shape = self._shapes.get(name)
            if shape is None:
                continue
            if shape.kind != "r":
                raise self._halted(name, "it is not a plain table; choose another name, or drop it")
            if _listed(step) not in self._listed and not (step.replaces and self.step.replace_existing):
                self._refuse_held(records, {name})
                raise self._halted(
                    name,
                    "it exists and was not delivered; choose another table, or set replace_existing: true and seed it",
                )

    # --------------------------------------------------------------------------------------------------------- writing

    @property
    def before(self) -> int:
        """The position in the record; 0 if there is none in its home."""
        return 0 if self._record is None or not self._record.member else self._record.standing.position

    def ordinary_tables(self) -> list[tuple[TableStep, str, Batches]] | None:
        """Each table that has rows, how statements name it, and the rows; ``None`` if the step is not ordinary (Q1 of
        ``postgres_pipeline.py``)."""
        step, record = self.step, self._record
        if record is None or record.member != step.member or step.seeds or step.repairs or step.leaving:
            return None
        if any(_listed(each) not in self._listed for each in step.tables):
            return None
        if not all(changes_only_rows(each, self._found(each), step.expected) for each in self._touched):
            return None
        return [(each, quoted(each), self._rows[each.table]) for each in self._touched if each.table in self._rows]

    def run(self, records: PostgresRecords) -> Applied:
        """Raises ``LostRace`` or an error: then the caller undoes everything."""
        step = self.step
        self._claim(records)
        done = {_listed(each): self._table_done(each) for each in self._touched}
        for each in self._touched:
            self.doing = spelled(each)
            if (finish := done[_listed(each)].finish) is not None:
                finish()
        self._drop()
        self.doing = step.member
        changed = {name: _encoded(each.columns) for name, each in done.items() if each.columns is not None}
        same = not (changed or step.leaving or step.seeds or self.needs_home())
        tables = None if same else self._tables(changed)
        if not records.move(step.home, step.member, self.before, step.reached, tables):
            raise PositionMoved(self.before, self.before)
        return reduce(Applied.plus, (each.applied for each in done.values()), Applied(step.through))

    def _table_done(self, step: TableStep) -> TableDone:
        self.doing = spelled(step)
        each = PostgresTableStep(self._session, step, self.step.expected, self.step.through)
        return each.run(self._found(step), self._rows.get(step.table))

    def _found(self, step: TableStep) -> FoundTable:
        listed = _listed(step)
        remembered = () if self._record is None else self._record.columns(listed)
        return FoundTable(self._shapes.get(table_name(step.address)), listed in self._listed, remembered)

    def _claim(self, records: PostgresRecords) -> None:
        """Put the record under the member's name, and list tables that it does not list yet."""
        step, record = self.step, self._record
        if record is not None and record.member not in ("", step.member) and not records.rename(record, step.member):
            raise LostRace
        if self.needs_home() and not records.begin(step.home, step.member, step.source):
            raise LostRace
        given = {table_name(each.address) for each in step.tables}
        if self.needs_home():
            new = given | set(map(name_listed, self._listed))
        else:
            new = {name for name in given if listed_name(name) not in self._listed}
        if new:
            records.claim(new)
            self._refuse_held(records, new)
            records.fence_older(new)

    def _refuse_held(self, records: PostgresRecords, names: set[TableName]) -> None:
        for name, owner in sorted(records.holders(self.step.home, names).items()):
            raise self._halted(
                name, f"it belongs to {owner}; choose another table for one of them, or retire {owner} first"
            )

    def _drop(self) -> None:
        for leaving in self.step.leaving:
            name = table_name(leaving.address)
            self.doing = "table {}.{}".format(*name)
            if leaving.drop and listed_name(name) in self._listed and name in self._shapes:
                drop_table(self._session, f"{identifier(name[0])}.{identifier(name[1])}")

    def _tables(self, changed: ListedTables) -> ListedTables:
        """What the record lists in the end: after a seed only its own."""
        kept = {_listed(each) for each in self.step.tables} if self.step.seeds else self._listed.keys() | changed
        gone = {listed_name(table_name(each.address)) for each in self.step.leaving}
        both = self._listed | changed
        return {name: both[name] for name in both if name in kept and name not in gone}

    def _halted(self, name: TableName, text: str) -> DestinationHalted:
        return DestinationHalted("table {}.{} at {}: {}".format(*name, self._session.place, text))


def _listed(step: TableStep) -> str:
    return listed_name(table_name(step.address))


def _encoded(columns: Columns) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(columns))


def _decoded(held: msgspec.Raw) -> Columns:
    return msgspec.json.decode(held, type=Columns)


def _types(columns: Columns) -> dict[str, str]:
    return {column.name: column.type for column in columns}
