"""One transaction of a lake for several members, again and again until each has a verdict.

Rules
 K1  Records of members are read and written in the transaction that writes the rows, and ``core/group_commit.py``
     decides by them. A transaction that lost a race reads and judges everything again.
 K7  DuckDB has no savepoints: an error inside a statement undoes the transaction, which begins again without the member
     that caused it. So what can be known before is looked at before the first write, and a member that fails there does
     not disturb the others. After a first duplicate key those of the others are looked for, too. After a few members
     that failed inside of statements, each of the others has a transaction of its own: 200 would write 200 times.
 K8  An error that may happen to anybody (a disk, a connection) ends the call: nothing was written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import duckdb

from trunkline.core.fence import StoredPosition
from trunkline.core.group_commit import GroupCommit, GroupStage
from trunkline.delivery.destinations.contract import Applied, MemberResult, result_of
from trunkline.delivery.destinations.ducklake_attachments import LakeSession
from trunkline.delivery.destinations.ducklake_errors import (
    CatalogLocked,
    CommitConflict,
    halted,
    is_locked,
    may_happen_to_anybody,
    translated_errors,
)
from trunkline.delivery.destinations.ducklake_member import LakeMember, StagedMember
from trunkline.delivery.destinations.ducklake_records import MemberRecords
from trunkline.errors import DestinationHalted, OutcomeUnknown, TrunklineError, Unreachable

COMMIT_TRIES: Final = 16  # of a transaction that conflicts with others; each try sees what they wrote
UNDONE_MAX: Final = 4  # transactions that a member's error undoes; more: more work for nothing, fewer: more commits


class GroupTransaction:
    """What becomes of the members of one call. ``errors``: of members that are not written."""

    def __init__(self, lake: LakeSession, members: Sequence[StagedMember]) -> None:
        self._lake = lake
        self._members = {member.step.member: member for member in members}
        self._group = GroupCommit({name: each.step.write for name, each in self._members.items()}, COMMIT_TRIES)
        self._errors: dict[str, TrunklineError] = {}
        self._common: TrunklineError | None = None  # of the commit
        self._applied: dict[str, Applied] = {}
        self._careful = False
        self._undone = 0
        self._alone: dict[str, MemberResult] = {}  # of members that had a transaction of their own
        self.written: list[StagedMember] = []  # members that are committed

    def run(self) -> None:
        while self._group.stage is not GroupStage.OVER:
            if self._undone == UNDONE_MAX:
                self._run_alone()
                return
            try:
                self._attempt()
            except CommitConflict as error:
                self._common = Unreachable(str(error))
                self._group.lost_race()
                if isinstance(error, CatalogLocked):
                    self._lake.attach_again()
            except OutcomeUnknown as error:
                self._common = error
                self._group.unknown()
                self._lake.suspect = True
                self._lake.settle()
            except duckdb.Error as error:
                if not is_locked(error):
                    raise
                if self._group.stage is GroupStage.WRITING:
                    self._group.lost_race()
                self._lake.attach_again()
            finally:
                self._lake.roll_back()

    def _run_alone(self) -> None:
        """K7."""
        broken: TrunklineError | None = None  # the lake, for all that follow
        for name in self._group.waiting:
            alone = GroupTransaction(self._lake, [self._members[name]])
            try:
                if broken is None:
                    with translated_errors(self._lake.address):
                        alone.run()
            except TrunklineError as error:
                broken = error
            self._alone |= {name: broken} if broken is not None else alone.results()
            self.written += alone.written

    def without_lake(self) -> None:
        """There is nothing at all."""
        self._group.judge({name: StoredPosition() for name in self._group.waiting})

    def results(self) -> dict[str, MemberResult]:
        return {
            name: result_of(
                verdict, self._members[name].step, self._applied.get(name), self._errors.get(name, self._common)
            )
            for name, verdict in self._group.verdicts.items()
        } | self._alone

    def _attempt(self) -> None:
        self._lake.begin()
        members = {name: LakeMember(self._lake, self._members[name]) for name in self._group.waiting}
        records = MemberRecords(self._lake)
        moved = self._advanced(members, records)
        if not moved:
            self._judge(members, records)
        if not self._prepared(members, records) or not self._rows_written(members):
            return
        if not moved:
            records.write([members[name].change() for name in self._group.writing])
        self._lake.commit()
        self.written = [self._members[name] for name in self._group.writing]
        self._group.committed()

    def _advanced(self, members: Mapping[str, LakeMember], records: MemberRecords) -> bool:
        """A single member whose record is as expected: there is nothing to read (M3)."""
        [first, *others] = members.values()
        if others or not first.complete or not records.advanced(first.step):
            return False
        self._group.judge({first.step.member: first.advanced()})
        return True

    def _judge(self, members: Mapping[str, LakeMember], records: MemberRecords) -> None:
        found = records.found([each.of_member for each in members.values()])
        for name, member in members.items():
            member.record = found[name]
        held = {
            name: each.held(records.existing() if each.step.seeds and each.record is not None else None)
            for name, each in members.items()
        }
        self._group.judge(held)

    def _prepared(self, members: Mapping[str, LakeMember], records: MemberRecords) -> bool:
        """Whether the transaction goes on, with those that may be written."""
        chosen = [members[name] for name in self._group.writing]
        taken = [name for each in chosen for name in each.takes]
        owners = records.owners(taken, [each.step.home for each in chosen]) if taken else {}
        for member in chosen:
            try:
                member.prepare(owners, careful=self._careful)
            except TrunklineError as error:
                self._leave_out(member, error, undone_alone=True)
            except duckdb.Error as error:
                self._leave_out(member, self._of_member(error, member), undone_alone=False)
                self._undone += 1
                return False
            else:
                owners.update(dict.fromkeys(member.names, member.step.member))
        return self._group.stage is GroupStage.WRITING

    def _rows_written(self, members: Mapping[str, LakeMember]) -> bool:
        """Whether all members could be written; else the transaction is undone."""
        for name in self._group.writing:
            try:
                self._applied[name] = members[name].write(self._lake)
            except (TrunklineError, duckdb.Error) as error:
                found = error if isinstance(error, TrunklineError) else self._of_member(error, members[name])
                self._careful = True
                self._leave_out(members[name], found, undone_alone=False)
                self._undone += 1
                return False
        return True

    def _leave_out(self, member: LakeMember, error: TrunklineError, *, undone_alone: bool) -> None:
        self._errors[member.step.member] = error
        self._group.leave_out(member.step.member, undone_alone=undone_alone)

    def _of_member(self, error: duckdb.Error, member: LakeMember) -> DestinationHalted:
        """Raises an error that is not the member's own (K8)."""
        if may_happen_to_anybody(error):
            raise error
        return halted(error, member.step.member, self._lake.address)
