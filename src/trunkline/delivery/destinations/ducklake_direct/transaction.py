"""One direct transaction of a lake for its ordinary members, again until each has a verdict.

Rules
 X1  Everything is read inside the transaction that writes: the gate (``gate.py``), the records, the files. A
     transaction that lost a race reads and judges everything again (U4).
 X2  A member that the gate does not let through is handed to the extension, before or after it is judged; nothing of it
     was written. The others go on.
 X3  Keys are looked up before the first write, so a member that fails is left out alone, and the others commit.
 X4  Order: look up, write and sync the files, sync their folders, then the rows of the catalog, then COMMIT. A process
     that is killed leaves files that no catalog names.
 X5  Files are removed only if the transaction was not committed, for certain. After an unknown outcome they stay.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from trunkline.core.group_commit import GroupCommit, GroupStage, Verdict
from trunkline.delivery.config.addresses import LakeAddress
from trunkline.delivery.destinations.contract import MEMBERS, Applied, MemberResult, result_of, stored
from trunkline.delivery.destinations.ducklake_direct.bounds import Unusual
from trunkline.delivery.destinations.ducklake_direct.catalog import Catalog, Watch
from trunkline.delivery.destinations.ducklake_direct.commit_rows import CommitRows
from trunkline.delivery.destinations.ducklake_direct.gate import OrdinaryMember, check_lake, check_tables
from trunkline.delivery.destinations.ducklake_direct.key_index import Bound
from trunkline.delivery.destinations.ducklake_direct.member import (
    Bounds,
    TableChange,
    checked_states,
    key_of,
    needs_bounds,
    table_change,
    write_change,
)
from trunkline.delivery.destinations.ducklake_direct.record_table import (
    HeldRecord,
    check_table,
    move_records,
    read_records,
)
from trunkline.delivery.destinations.ducklake_direct.table_state import Name, TableState, read_head, read_tables
from trunkline.delivery.destinations.ducklake_direct.written_files import WrittenFiles
from trunkline.delivery.destinations.ducklake_errors import CommitConflict
from trunkline.delivery.destinations.ducklake_member import lake_address
from trunkline.errors import OutcomeUnknown, TrunklineError, Unreachable

COMMIT_TRIES: Final = 16  # of a transaction that conflicts with others; each try sees what they wrote
PAUSE_S: Final = 0.005  # before the next try; it doubles each time
PAUSE_S_MAX: Final = 0.2


class DirectTransaction:
    """What becomes of ordinary members. ``handed_over``: those for the extension, and why."""

    def __init__(
        self, catalog: Catalog, address: LakeAddress, members: Sequence[OrdinaryMember], watch: Watch | None
    ) -> None:
        self._catalog = catalog
        self._address = address
        self._watch = watch
        self._members = {member.step.member: member for member in members}
        self._waiting = tuple(self._members)
        self._group = GroupCommit({})
        self._verdicts: dict[str, Verdict] = {}
        self._errors: dict[str, TrunklineError] = {}
        self._common: TrunklineError | None = None
        self._applied: dict[str, Applied] = {}
        self._lost = 0
        self._committing = False
        self.handed_over: dict[str, str] = {}
        self.written: tuple[str, ...] = ()

    def run(self) -> None:
        while self._waiting:
            files = WrittenFiles(self._watch)
            self._group, self._committing = GroupCommit({}), False
            try:
                self._attempt(files)
            except Unusual as error:  # about the whole lake
                self._hand_over(self._waiting, str(error))
            except OutcomeUnknown as error:
                self._common = error
                self._group.unknown()
            except CommitConflict as error:
                files.discard()
                self._lose(error)
            except OSError as error:
                files.discard()
                raise Unreachable(
                    f"files of the lake {self._address.catalog} cannot be written ({error.strerror}); check the disk "
                    "and the permissions of its directory; retrying"
                ) from error
            except BaseException:
                if not self._committing:
                    files.discard()
                raise
            self._verdicts |= self._group.verdicts
            done = self._verdicts.keys() | self.handed_over.keys()
            self._waiting = tuple(name for name in self._waiting if name not in done)

    def _lose(self, error: CommitConflict) -> None:
        """Another transaction was faster."""
        self._common = Unreachable(str(error))
        self._lost += 1
        if self._group.stage is GroupStage.WRITING:
            self._group.lost_race()
        elif self._lost >= COMMIT_TRIES:
            raise self._common
        time.sleep(random.uniform(0.5, 1) * min(PAUSE_S_MAX, PAUSE_S * 2**self._lost))

    def results(self) -> dict[str, MemberResult]:
        return {
            name: result_of(
                verdict, self._members[name].step, self._applied.get(name), self._errors.get(name, self._common)
            )
            for name, verdict in self._verdicts.items()
            if name not in self.handed_over
        }

    def _hand_over(self, names: Sequence[str], why: str) -> None:
        self.handed_over |= dict.fromkeys(names, why)

    # -------------------------------------------------------------------------------------------------- one attempt

    def _attempt(self, files: WrittenFiles) -> None:
        with self._catalog.transaction() as usable:
            if not usable:
                raise Unusual("a catalog that the extension has open")
            head = read_head(self._catalog)
            check_lake(head, self._address)
            assert head is not None
            states = read_tables(self._catalog, head, self._names())
            records = self._records(states)
            tables = self._tables(states, records)
            self._judge(tables, records)
            changes = self._changes(tables)
            if self._group.stage is not GroupStage.WRITING:
                return
            rows = CommitRows(self._catalog, head)
            for name in self._group.writing:
                for change in changes[name]:
                    write_change(change, rows, files)
            files.sync()
            rows.begin()
            self._move(rows, states, records)
            rows.write()
            self._committing = True
            self._catalog.commit()
        self.written += self._group.writing
        self._group.committed()

    def _names(self) -> set[Name]:
        found: set[Name] = set()
        for name in self._waiting:
            step = self._members[name].step
            found.add((step.home, MEMBERS))
            addresses = [lake_address(table.address) for table in step.tables]
            found |= {(address.schema, address.table) for address in addresses}
        return found

    def _records(self, states: Mapping[Name, TableState]) -> dict[str, HeldRecord]:
        """Of members whose records are as they should be; the others are handed over."""
        homes: defaultdict[str, list[str]] = defaultdict(list)
        for name in self._waiting:
            homes[self._members[name].step.home].append(name)
        found: dict[str, HeldRecord] = {}
        for home, names in homes.items():
            try:
                if (state := states.get((home, MEMBERS))) is None:
                    raise Unusual("no table of records")
                check_table(state)
                found |= read_records(self._catalog, state, names)
            except (Unusual, OSError) as error:
                self._hand_over(names, str(error))
        return found

    def _tables(
        self, states: Mapping[Name, TableState], records: Mapping[str, HeldRecord]
    ) -> dict[str, list[TableState]]:
        """The tables of members that pass the gate."""
        homes = {(self._members[name].step.home, MEMBERS) for name in self._waiting}
        unusual = check_tables(self._catalog, [state for name, state in states.items() if name not in homes])
        found: dict[str, list[TableState]] = {}
        for name in self._waiting:
            if name in self.handed_over:
                continue
            try:
                if name not in records:
                    raise Unusual("no record under the member's name")
                found[name] = checked_states(self._members[name], states, unusual, records[name])
            except Unusual as error:
                self._hand_over([name], str(error))
        return found

    def _judge(self, tables: Mapping[str, list[TableState]], records: Mapping[str, HeldRecord]) -> None:
        writes = {name: self._members[name].step.write for name in tables}
        self._group = GroupCommit(writes, COMMIT_TRIES - self._lost)
        if writes:
            self._group.judge({name: stored(records[name].standing) for name in writes})

    def _changes(self, tables: Mapping[str, list[TableState]]) -> dict[str, list[TableChange]]:
        """What each member does to its tables; those that fail are left out (X3)."""
        bounds = self._bounds(tables)
        found: dict[str, list[TableChange]] = {}
        for name in self._group.writing:
            member = self._members[name]
            pairs = zip(member.tables, tables[name], strict=True)
            try:
                changes = [table_change(member.step, staged, state, bounds) for staged, state in pairs]
            except (Unusual, OSError) as error:
                self._hand_over([name], str(error))
                self._group.leave_out(name, undone_alone=True)
            except TrunklineError as error:
                self._errors[name] = error
                self._group.leave_out(name, undone_alone=True)
            else:
                found[name] = changes
                applied = Applied(member.step.through)
                for change in changes:
                    applied = applied.plus(change.applied)
                self._applied[name] = applied
        return found

    def _bounds(self, tables: Mapping[str, list[TableState]]) -> Bounds:
        """Statistics of files whose keys are not known yet, for all tables at once."""
        wanted: dict[int, list[int]] = {}
        for name in self._group.writing:
            for staged, state in zip(self._members[name].tables, tables[name], strict=True):
                if needs_bounds(staged, state):
                    wanted[state.id] = [each.id for each in key_of(staged, state)]
        if not wanted:
            return {}
        ids = ", ".join(map(str, wanted))
        rows = self._catalog.rows(
            "SELECT table_id, data_file_id, column_id, null_count, min_value, max_value "
            f"FROM ducklake_file_column_stats WHERE table_id IN ({ids})"
            f" AND column_id IN ({', '.join(map(str, sorted({each for one in wanted.values() for each in one})))})"
        )
        return {
            (file, column): Bound(nulls, low, high)
            for table, file, column, nulls, low, high in rows
            if column in wanted[table]
        }

    def _move(self, rows: CommitRows, states: Mapping[Name, TableState], records: Mapping[str, HeldRecord]) -> None:
        homes: defaultdict[str, list[str]] = defaultdict(list)
        for name in self._group.writing:
            homes[self._members[name].step.home].append(name)
        for home, names in homes.items():
            reached = {name: self._members[name].step.reached for name in names}
            move_records(self._catalog, rows, states[home, MEMBERS], records, reached)
