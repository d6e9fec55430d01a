"""A PostgreSQL database as a place. Rules T1 to T11 are in ``contract.py``; this is how they are kept.

Rules
 D1  A group of members is one transaction. It locks their records (``postgres_records.py``), reads the tables that they
     touch, and ``core/group_commit.py`` decides who is written. Ordinary members come first, in few round trips
     (``postgres_pipeline.py``). If that fails, the transaction begins again without it. Any other member is written
     behind a savepoint: one that fails is undone alone.
 D2  An error that belongs to no member, while the server answers, does not keep the others from being written: each
     member of the group is tried alone. So is a group that needs more locks than the server has.
 D3  If the connection is lost, nothing was committed, or ``COMMIT`` was under way: then the outcome is unknown for all
     that were written.
 D4  A group of members with very many tables is several transactions, each with whole members.
 D5  A process has one connection that writes, for all members of a database, and one for each reading of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Final

import psycopg
import pyarrow as pa
from psycopg.errors import DeadlockDetected, OutOfMemory, SerializationFailure, UndefinedTable

from trunkline.core.group_commit import GroupCommit, GroupStage
from trunkline.delivery.backends.postgres_session import (
    PostgresSession,
    borrow_session,
    password_of,
    return_session,
)
from trunkline.delivery.backends.sql import identifier
from trunkline.delivery.changes.columns import Columns
from trunkline.delivery.config.addresses import Address, PostgresAddress
from trunkline.delivery.destinations.contract import (
    MEMBERS,
    Applied,
    MemberResult,
    MemberTables,
    MemberWrite,
    Standing,
    renamed_within,
    result_of,
)
from trunkline.delivery.destinations.postgres_copy import read, select
from trunkline.delivery.destinations.postgres_member_step import LostRace, PostgresMemberStep, tables_of, touched_about
from trunkline.delivery.destinations.postgres_pipeline import OrdinaryMembers, Unmoved
from trunkline.delivery.destinations.postgres_records import (
    HOMES_AT_ONCE,
    MemberRecord,
    PostgresRecords,
    listed_name,
    name_listed,
    relations,
    table_name,
)
from trunkline.delivery.destinations.postgres_table import read_shapes
from trunkline.errors import DestinationHalted, OutcomeUnknown, TrunklineError

SAVEPOINT: Final = "SAVEPOINT member"
NEXT_SAVEPOINT: Final = "RELEASE SAVEPOINT member; SAVEPOINT member"
UNDO: Final = "ROLLBACK TO SAVEPOINT member"
TABLES_MAX: Final = 256  # that one transaction touches; more: it may need more locks than a server has


class _Undone(Exception):
    """The transaction is rolled back without an error; ``homes``: schemas that need a table of records."""

    def __init__(self, homes: set[str]) -> None:
        super().__init__()
        self.homes = homes


class PostgresPlace:
    """A database; of ``address`` only the way to it counts. All places of one database share a connection, unless
    ``session`` gives another."""

    def __init__(self, address: PostgresAddress, session: PostgresSession | None = None) -> None:
        self._address = address
        self._given = session
        self._borrowed: PostgresSession | None = None
        self._known: PostgresRecords | None = None

    @property
    def _session(self) -> PostgresSession:
        if self._given is not None:
            return self._given
        if self._borrowed is None:
            self._borrowed = borrow_session(self._address.dsn, password_of(self._address))
        return self._borrowed

    @property
    def _records(self) -> PostgresRecords:
        if self._known is None:
            self._known = PostgresRecords(self._session)
        return self._known

    def close(self) -> None:
        self._known = None
        if self._borrowed is not None:
            return_session(self._borrowed)
            self._borrowed = None

    # --------------------------------------------------------------------------------------------------------- reading

    def standings(self, members: Sequence[MemberTables]) -> dict[str, Standing | TrunklineError | None]:
        homes: dict[str, list[MemberTables]] = {}
        for each in members:
            homes.setdefault(each.home, []).append(each)
        listed = list(homes.values())
        found: dict[str, Standing | TrunklineError | None] = {}
        for start in range(0, len(listed), HOMES_AT_ONCE):
            found |= self._standings(listed[start : start + HOMES_AT_ONCE])
        return found

    def _standings(self, homes: Sequence[Sequence[MemberTables]]) -> dict[str, Standing | TrunklineError | None]:
        """Of members by home; one home that cannot be read does not keep the others from it."""
        members = [each for some in homes for each in some]
        try:
            with self._session.transaction(_spelled(members), reading=True):
                records = PostgresRecords(self._session).found(members, names_only=True)
                listed = {name_listed(name) for each in records.values() for name in each.tables}
                gone = listed - relations(self._session, listed).keys()
        except TrunklineError as error:
            if not self._session.connected:
                raise
            if len(homes) > 1:
                return {name: each for some in homes for name, each in self._standings([some]).items()}
            return {each.member: error for each in members}
        lost = {listed_name(name) for name in gone}
        return {each.member: _standing(records.get(each.member), lost) for each in members}

    def columns(self, address: Address) -> Columns | None:
        name = table_name(address)
        with self._session.transaction(_table(address), reading=True):
            shape = read_shapes(self._session, [name]).get(name)
            return None if shape is None else shape.columns(PostgresRecords(self._session).remembered(name))

    def rows(self, member: MemberTables) -> tuple[Standing, list[Iterator[pa.RecordBatch]], Callable[[], None]]:
        """Over a connection of its own, so one table after the other: each is read to its end before the next."""
        stack = ExitStack()
        session = self._session.new_session()
        stack.callback(session.close)
        try:
            stack.enter_context(session.transaction(member.member, reading=True))
            record = PostgresRecords(session).found([member]).get(member.member)
            names = [table_name(address) for address in member.tables]
            shapes = read_shapes(session, names)
            tables = []
            for address, name in zip(member.tables, names, strict=True):
                if record is None or listed_name(name) not in record.tables or name not in shapes:
                    raise DestinationHalted(
                        f"{_table(address)} at {session.place}: {member.member} has not delivered it; seed it first"
                    )
                tables.append(_read(session, address, shapes[name].columns(record.columns(listed_name(name)))))
            if record is None:
                raise DestinationHalted(f"{member.member} at {session.place}: it has no record; seed it first")
        except BaseException:
            stack.close()
            raise
        return record.standing, tables, stack.close

    # --------------------------------------------------------------------------------------------------------- writing

    def apply(self, writes: Sequence[MemberWrite]) -> dict[str, MemberResult]:
        results: dict[str, MemberResult] = {}
        for part in _parts(writes):
            results |= self._together(part)
        return results

    def _together(self, writes: Sequence[MemberWrite]) -> dict[str, MemberResult]:
        """One transaction (D1), again after a lost race; if need be one for each member (D2)."""
        group = GroupCommit({write.step.member: write.step.write for write in writes})
        attempt = _Attempt(self._session, self._records, writes, group)
        while group.stage is not GroupStage.OVER:
            try:
                attempt.run()
            except TrunklineError as error:
                known = self._records.forget()
                if known and group.stage is GroupStage.READING and isinstance(error.__cause__, UndefinedTable):
                    continue  # another program dropped a table of records
                waiting = [write for write in writes if write.step.member in group.waiting]
                if len(writes) > 1 and self._session.connected:
                    rest = [self._together([write]) for write in waiting]
                    return attempt.results() | {name: result for some in rest for name, result in some.items()}
                return attempt.results() | {write.step.member: error for write in waiting}
        return attempt.results()

    def retire(self, member: MemberTables) -> None:
        with self._session.transaction(member.member):
            records = PostgresRecords(self._session)
            record = records.found([member], lock=True).get(member.member)
            if record is None:
                return
            tables = {listed_name(table_name(address)) for address in member.tables}
            renamed = record.tables.keys() == tables and renamed_within(record.member, member.member)
            if record.member in ("", member.member) or renamed:
                records.remove(record)


class _Attempt:
    """The transactions of one group."""

    def __init__(
        self, session: PostgresSession, records: PostgresRecords, writes: Sequence[MemberWrite], group: GroupCommit
    ) -> None:
        self._session = session
        self._records = records
        self._writes = {write.step.member: write for write in writes}
        self._group = group
        self._applied: dict[str, Applied] = {}
        self._errors: dict[str, TrunklineError] = {}
        self._one_by_one = False  # each member behind a savepoint, after an error of the ordinary ones

    def results(self) -> dict[str, MemberResult]:
        """Of the members that have a verdict."""
        return {
            name: result_of(verdict, self._writes[name].step, self._applied.get(name), self._errors.get(name))
            for name, verdict in self._group.verdicts.items()
        }

    def run(self) -> None:
        """One transaction. Raises an error that belongs to no member; then nothing was written."""
        try:
            with self._session.transaction(_spelled([tables_of(self._writes[name]) for name in self._group.waiting])):
                self._write(self._read())
        except _Undone as undone:
            self._make_homes(undone.homes)
        except LostRace:
            self._group.lost_race()
        except OutcomeUnknown as error:
            self._errors |= dict.fromkeys(self._group.writing, error)
            self._group.unknown()
        else:
            self._group.committed()

    def _read(self) -> dict[str, PostgresMemberStep]:
        """Lock the records of all waiting members, and judge them."""
        waiting = [self._writes[name] for name in self._group.waiting]
        records = self._records.found([tables_of(write) for write in waiting], lock=True)
        steps = {
            write.step.member: PostgresMemberStep(self._session, write, records.get(write.step.member))
            for write in waiting
        }
        shapes = read_shapes(self._session, {name for step in steps.values() for name in step.looked_at()})
        self._group.judge({name: step.judged(shapes) for name, step in steps.items()})
        return steps

    def _write(self, steps: dict[str, PostgresMemberStep]) -> None:
        for name in self._group.writing:
            try:
                steps[name].check(self._records)
            except TrunklineError as error:
                self._leave_out(name, error)
        homes = {self._writes[name].step.home for name in self._group.writing if steps[name].needs_home()}
        homes -= {home for home, _ in self._records.present((home, MEMBERS) for home in homes)}
        if homes:
            raise _Undone(homes)
        together = len(self._group.writing) > 1
        done = {} if self._one_by_one else self._write_ordinary({name: steps[name] for name in self._group.writing})
        self._applied |= done
        rest = [name for name in self._group.writing if name not in done]
        for number, name in enumerate(sorted(rest, key=lambda name: steps[name].locks_readers())):
            if together:
                self._session.run(NEXT_SAVEPOINT if number else SAVEPOINT)
            self._write_member(name, steps[name], together=together)
        if not self._group.writing:
            raise _Undone(set())

    def _write_ordinary(self, steps: dict[str, PostgresMemberStep]) -> dict[str, Applied]:
        try:
            return OrdinaryMembers(self._session, self._records).write(steps)
        except (DeadlockDetected, SerializationFailure) as error:
            raise LostRace from error
        except (psycopg.Error, TrunklineError, Unmoved):
            if not self._session.connected:
                raise
            self._one_by_one = True
            raise _Undone(set()) from None

    def _write_member(self, name: str, step: PostgresMemberStep, *, together: bool) -> None:
        try:
            self._applied[name] = step.run(self._records)
            return
        except (DeadlockDetected, SerializationFailure) as error:
            raise LostRace from error
        except psycopg.Error as error:
            if not self._session.connected or (together and isinstance(error, OutOfMemory)):
                raise
            failure = self._session.failure(error, step.doing)
        except TrunklineError as error:
            failure = error
        if together:
            self._session.run(UNDO)
        self._leave_out(name, failure)

    def _leave_out(self, name: str, error: TrunklineError) -> None:
        """Of this member nothing is left; of a member that is alone, the caller undoes all."""
        self._errors[name] = error
        self._group.leave_out(name, undone_alone=True)

    def _make_homes(self, homes: set[str]) -> None:
        for home in sorted(homes):
            try:
                self._records.make_home(home)
            except TrunklineError as error:
                if not self._session.connected:
                    raise
                for name in self._group.writing:
                    if self._writes[name].step.home == home:
                        self._leave_out(name, error)
        if self._group.stage is GroupStage.WRITING:
            self._group.lost_race()


def _parts(writes: Sequence[MemberWrite]) -> Iterator[list[MemberWrite]]:
    """Members that are written together (D4)."""
    part: list[MemberWrite] = []
    size = 0
    for write in writes:
        touched = max(touched_about(write), 1)
        if part and size + touched > TABLES_MAX:
            yield part
            part, size = [], 0
        part.append(write)
        size += touched
    if part:
        yield part


def _read(session: PostgresSession, address: Address, columns: Columns) -> Iterator[pa.RecordBatch]:
    schema, table = table_name(address)
    try:
        yield from read(session.copy_out(select(f"{identifier(schema)}.{identifier(table)}", columns)), columns)
    except psycopg.Error as error:
        raise session.failure(error, _table(address)) from error
    except pa.ArrowInvalid as error:
        raise DestinationHalted(
            f"{_table(address)} at {session.place}: its rows cannot be read back: {error}"
        ) from error


def _standing(record: MemberRecord | None, lost: set[str]) -> Standing | None:
    if record is None or record.tables.keys().isdisjoint(lost):
        return None if record is None else record.standing
    return Standing(0, record.standing.token, record.standing.source)


def _table(address: Address) -> str:
    return "table {}.{}".format(*table_name(address))


def _spelled(members: Sequence[MemberTables]) -> str:
    """Members in messages."""
    return members[0].member if len(members) == 1 else f"{len(members)} members"
