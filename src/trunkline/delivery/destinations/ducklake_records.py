"""The records of members in a lake: table ``_trunkline_members``, one in each home.

Rules
 M1  A record is found by its name in the member's home; else by tables: the one record that lists all of them, or any
     of them, if it is of a name that its pipeline no longer has; else as an older release left it:
     ``_trunkline_<table>`` beside its one table (T9).
 M4  A home is the schema of its members' tables, or ``main`` if they are in several. So a record that lists a table is
     in one of these two, or in the home of the member that asks.
 M2  Records are read and written in the transaction that writes the rows, and no transaction commits unless it saw
     every earlier one (L2). So of two concurrent ones one commits, and the other is judged again.
 M3  For a single member one statement moves the record if it is as the step expects; only otherwise it is read and
     judged. That statement finds a record only where ``core/fence.py`` decides PROCEED.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

import duckdb
import msgspec
from msgspec import Struct

from trunkline.delivery.backends.sql import identifier, literal
from trunkline.delivery.changes.rows import RESERVED_PREFIX
from trunkline.delivery.config.addresses import Address, LakeAddress
from trunkline.delivery.destinations.contract import (
    FENCED_TOKEN,
    MEMBERS,
    TAKEN_OVER,
    MemberStep,
    MemberTables,
    Standing,
    mark_of,
    renamed_from,
    renamed_within,
)
from trunkline.delivery.destinations.ducklake_attachments import LakeSession
from trunkline.errors import ConfigError

MAIN: Final = "main"
FIELDS: Final = "member, position, token, source, mark, tables"


class TableName(NamedTuple):
    """Where a table is in a lake. Names of DuckDB differ in more than case: these are folded."""

    schema: str
    table: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}"


class MemberRecord(Struct, frozen=True):
    member: str  # empty: the record of an older release has no name
    home: str
    standing: Standing
    tables: frozenset[TableName]

    @property
    def older(self) -> bool:
        return not self.member


class RecordChange(NamedTuple):
    """What a step does to a member's record."""

    step: MemberStep
    held: MemberRecord | None
    tables: frozenset[TableName]


class MemberRecords:
    """The records that one transaction of a session sees. ``home`` is as a step names it."""

    def __init__(self, lake: LakeSession) -> None:
        self._lake = lake
        self._homes: dict[str, list[MemberRecord]] = {}  # that were read as a whole
        self._existing: set[TableName] | None = None

    def found(self, members: Sequence[MemberTables]) -> dict[str, MemberRecord | None]:
        """The records of these members (M1); ``None`` without one."""
        homes: defaultdict[str, list[str]] = defaultdict(list)
        for each in members:
            homes[each.home].append(each.member)
        named = {record.member: record for home, names in homes.items() for record in self._read(home, names)}
        return {each.member: named.get(each.member) or self._adopted(each, named) for each in members}

    def owners(self, tables: Collection[TableName], homes: Collection[str]) -> dict[TableName, str]:
        """The members that have these tables or others; ``homes``: of those who ask (M4)."""
        return {table: record.member for record in self._about(tables, homes) for table in record.tables}

    def existing(self) -> set[TableName]:
        """Every table of the lake. It may show more than the transaction sees: then its commit will fail (L2)."""
        if self._existing is None:
            catalog = f"__ducklake_metadata_{self._lake.alias}"
            rows = self._lake.run(
                f"SELECT s.schema_name, t.table_name FROM {catalog}.ducklake_table t JOIN {catalog}.ducklake_schema s "
                "ON t.schema_id = s.schema_id WHERE t.end_snapshot IS NULL AND s.end_snapshot IS NULL"
            )
            self._existing = {TableName(schema.lower(), table.lower()) for schema, table in rows}
        return self._existing

    def _adopted(self, member: MemberTables, named: Mapping[str, MemberRecord]) -> MemberRecord | None:
        tables = frozenset(map(table_name, member.tables))
        if not tables:
            return None
        for record in self._about(tables, [member.home]):
            if record.tables >= tables and record.member not in named:
                return record
        some = [record for record in self._about(tables, [member.home]) if record.tables & tables]
        if len(some) == 1 and renamed_from(some[0].member, member) and some[0].member not in named:
            return some[0]
        return self._older(*tables) if len(tables) == 1 else None

    def _older(self, table: TableName) -> MemberRecord | None:
        """As an older release left it, unless it was taken over (T9)."""
        try:
            rows = self._lake.run(f"SELECT * FROM {_path(self._lake, _older_name(table))}")
        except duckdb.CatalogException:
            return None
        for position, token, source, *mark in rows:
            if token < FENCED_TOKEN:
                standing = Standing(position, token, source, mark_of(position, *mark or [""]))
                return MemberRecord("", table.schema, standing, frozenset({table}))
        return None

    def _about(self, tables: Collection[TableName], homes: Collection[str]) -> list[MemberRecord]:
        """The records in every home where one of these tables may be listed (M4)."""
        schemas = {MAIN, *(table.schema for table in tables), *(home.lower() for home in homes)}
        for home in schemas - self._homes.keys():
            there = TableName(home, MEMBERS) in self.existing()
            self._homes[home] = self._read(home) if there else []
        return [record for home in sorted(schemas) for record in self._homes[home]]

    def _read(self, home: str, members: Sequence[str] = ()) -> list[MemberRecord]:
        """CASE prevents a search in the lake's statistics, which takes longer than reading all of a small table."""
        where = ""
        if members:
            where = f" WHERE CASE WHEN member IN ({', '.join(map(literal, members))}) THEN true ELSE false END"
        try:
            rows = self._lake.run(f"SELECT {FIELDS} FROM {_records(self._lake, home)}{where}")
        except duckdb.CatalogException:
            return []
        return [_record(home, *row) for row in rows]

    # ---------------------------------------------------------------------------------------------------- writing

    def advanced(self, step: MemberStep) -> bool:
        """Move the record of a flush if it lists the step's tables and the fence decides PROCEED (M3)."""
        if step.seeds or step.leaving or (step.expected, step.mark) == (step.through, step.through_mark):
            return False  # if it is stored, the flush was done before
        held = (
            f"member = {literal(step.member)} AND position = {step.expected} AND token <= {step.token} "
            f"AND source = {literal(step.source)} AND mark = {literal(step.mark)}"
        )
        for table in step.tables:
            held += f" AND contains(tables, {literal(_text(table_name(table.address)))})"
        try:
            [(count,)] = self._lake.run(
                f"UPDATE {_records(self._lake, step.home)} SET position = {step.through}, token = {step.token}, "
                f"mark = {literal(step.through_mark)} WHERE CASE WHEN {held} THEN true ELSE false END"
            )
        except duckdb.CatalogException:
            return False
        return bool(count)

    def write(self, changes: Sequence[RecordChange]) -> None:
        """Move the records of all these members, in one statement for each home."""
        homes: defaultdict[str, list[RecordChange]] = defaultdict(list)
        for change in changes:
            homes[change.step.home].append(change)
        for home, wanted in homes.items():
            for change in wanted:
                self._leave_behind(change)
            if known := [each for each in wanted if _is_in_place(each)]:
                self._update(home, known)
            if new := [each for each in wanted if not _is_in_place(each)]:
                self._insert(home, new)

    def _update(self, home: str, changes: Sequence[RecordChange]) -> None:
        values = ", ".join(map(_row, changes))
        fields = FIELDS.split(", ")[1:]
        sets = ", ".join(f"{name} = v.{name}" for name in fields)
        self._lake.run(
            f"UPDATE {_records(self._lake, home)} AS m SET {sets} FROM (VALUES {values}) AS v({FIELDS}) "
            "WHERE m.member = v.member"
        )

    def _insert(self, home: str, changes: Sequence[RecordChange]) -> None:
        records = _records(self._lake, home)
        types = "member VARCHAR, position BIGINT, token BIGINT, source VARCHAR, mark VARCHAR, tables VARCHAR"
        self._lake.run(f"CREATE SCHEMA IF NOT EXISTS {self._lake.alias}.{identifier(home)}")
        self._lake.run(f"CREATE TABLE IF NOT EXISTS {records} ({types})")
        self._lake.run(f"INSERT INTO {records} ({FIELDS}) VALUES {', '.join(map(_row, changes))}")

    def _leave_behind(self, change: RecordChange) -> None:
        """The record under another name goes, and older releases are kept from the tables that the member takes."""
        held = change.held
        if held is not None and not held.older and not _is_in_place(change):
            self._delete(held)
        mine = held.tables if held is not None and not held.older else frozenset[TableName]()
        for table in sorted(change.tables - mine):
            if _older_name(table) in self.existing():
                older = _path(self._lake, _older_name(table))
                self._lake.run(f"UPDATE {older} SET token = {FENCED_TOKEN}, source = {literal(TAKEN_OVER)}")

    def _delete(self, record: MemberRecord) -> None:
        where = f"member = {literal(record.member)}"
        self._lake.run(f"DELETE FROM {_records(self._lake, record.home)} WHERE {where}")

    def remove(self, member: MemberTables) -> None:
        """The record of a member, and what older releases left for its tables."""
        held = self.found([member])[member.member]
        tables = set(map(table_name, member.tables))
        if (
            held is not None
            and held.member != member.member
            and not (held.tables == tables and renamed_within(held.member, member.member))
        ):
            return
        if held is not None and not held.older:
            self._delete(held)
            tables |= held.tables
        for table in sorted(tables):
            self._lake.run(f"DROP TABLE IF EXISTS {_path(self._lake, _older_name(table))}")


def table_name(address: Address) -> TableName:
    assert isinstance(address, LakeAddress)
    return TableName(address.schema.lower(), address.table.lower())


def check_name(address: Address) -> None:
    """Raises ``ConfigError`` if a table cannot be a destination."""
    if table_name(address).table.startswith(RESERVED_PREFIX):
        raise ConfigError(
            f"table {table_name(address).table!r} cannot be a destination: names that begin with {RESERVED_PREFIX} are "
            "reserved; choose another"
        )


def _older_name(table: TableName) -> TableName:
    """The record of an older release for one table."""
    return TableName(table.schema, f"{RESERVED_PREFIX}_{table.table}")


def _path(lake: LakeSession, table: TableName) -> str:
    return f"{lake.alias}.{identifier(table.schema)}.{identifier(table.table)}"


def _records(lake: LakeSession, home: str) -> str:
    return f"{lake.alias}.{identifier(home)}.{MEMBERS}"


def _is_in_place(change: RecordChange) -> bool:
    held = change.held
    return held is not None and (held.member, held.home.lower()) == (change.step.member, change.step.home.lower())


def _record(home: str, member: str, position: int, token: int, source: str, mark: str, tables: str) -> MemberRecord:
    names = msgspec.json.decode(tables, type=list[TableName])
    return MemberRecord(member, home, Standing(position, token, source, mark), frozenset(names))


def _row(change: RecordChange) -> str:
    step = change.step
    tables = f"[{','.join(map(_text, sorted(change.tables)))}]"
    values: list[Any] = [step.member, step.through, step.token, step.source, step.through_mark, tables]
    return f"({', '.join(map(literal, values))})"


def _text(table: TableName) -> str:
    """A table in a list of tables, as JSON: no other list contains this text."""
    return msgspec.json.encode(table).decode()
