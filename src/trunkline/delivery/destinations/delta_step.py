"""One step of one member whose tables commit alone: the rules are in ``delta.py``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Final, Generic

from msgspec.structs import replace

from trunkline.core.fence import StoredPosition
from trunkline.core.group_commit import GroupCommit
from trunkline.delivery.changes.columns import check_columns
from trunkline.delivery.config.addresses import Address
from trunkline.delivery.destinations.contract import (
    Applied,
    MemberResult,
    MemberWrite,
    Standing,
    TableStep,
    result_of,
    stored,
)
from trunkline.delivery.destinations.delta_member import MemberState
from trunkline.delivery.destinations.delta_record import UNKNOWN, TableRecord, digest_of
from trunkline.delivery.destinations.lone_tables import CommitLost, LoneTable, LoneVersion, Prepared, Version
from trunkline.errors import (
    ConfigError,
    DestinationHalted,
    OutcomeUnknown,
    TrunklineError,
    Unreachable,
)

TRIES: Final = 3  # of a step whose commits lose races; each prepares its rows again


def apply_step(write: MemberWrite, table: Callable[[Address], LoneTable[Version, Prepared]]) -> MemberResult:
    """Do a step, and once more while other writers are faster (E6)."""
    wrote = False
    for _ in range(TRIES):
        attempt = DeltaStep(write, table)
        try:
            return attempt.apply()
        except _Judged as judged:
            return judged.result
        except (CommitLost, Unreachable) as lost:
            last = lost
        wrote = wrote or attempt.wrote
        write = write._replace(step=attempt.step)
        if isinstance(last, Unreachable):
            break
    if wrote:
        raise OutcomeUnknown(f"{last}; some tables are at {write.step.through} already")
    raise Unreachable(str(last)) from last


class DeltaStep(Generic[Version, Prepared]):
    """Reads, judges, prepares and commits. Raises ``CommitLost`` if another writer was faster."""

    def __init__(self, write: MemberWrite, table: Callable[[Address], LoneTable[Version, Prepared]]) -> None:
        self.step = write.step  # a seed that began was planned from 0 since then
        self._rows = write.rows
        for each in write.step.tables:
            check_columns(each.columns, each.key, None)
            if each.mode != "append" and not each.key:
                raise ConfigError(f"mode {each.mode} needs a key; list its columns in `key`, or set mode: append")
        step = write.step
        steps = {table(each.address).path: each for each in step.tables}
        self._steps: dict[str, TableStep] = dict(sorted(steps.items()))
        self._members = {*steps, *(table(address).path for address in step.known)}
        self._leaving = {table(each.address).path: each for each in step.leaving}
        for path in self._members:
            self._leaving.pop(path, None)
        listed = (*(each.address for each in step.tables), *(each.address for each in step.leaving), *step.known)
        self._state = MemberState(step.member, listed, table)
        self._lead = self._state.lead
        self._next_lead = self._lead if self._lead in self._members else min(self._steps or self._members, default="")
        self._whole = step.seeds or step.expected == 0 or self._lead is None  # every table is written (E4)
        self.wrote = False  # a table was committed

    def apply(self) -> MemberResult:
        fate = self._judged(self._held_by_member())
        if fate is not None:
            return fate
        self._check_tables()
        with ExitStack() as stack:
            prepared = {
                path: self._state.tables[path].prepared(stack, self.step, each, self._rows.get(each.table))
                for path, each in self._steps.items()
                if self._is_behind(path)
            }
            return self._commit(prepared)

    # -------------------------------------------------------------------------------------------------------- judging

    def _judged(self, held: StoredPosition) -> MemberResult | None:
        """``None`` if the step may proceed."""
        group = GroupCommit({self.step.member: self.step.write})
        if group.judge({self.step.member: held}):
            return None
        return result_of(group.verdicts[self.step.member], self.step, None, None)

    def _held_by_member(self) -> StoredPosition:
        standing = self._state.standing()
        if standing is None or self._lead is None:
            return stored(standing)
        lead, step = self._state.records[self._lead], self.step
        on_the_way = not self._whole and standing.position == step.expected and lead.going > lead.position
        if on_the_way and step.through != lead.going:  # E3
            return stored(replace(standing, position=lead.going, mark=lead.going_mark))
        if on_the_way and step.through_mark != lead.going_mark:
            raise DestinationHalted(
                f"{step.member}: some tables are at version {lead.going} of another history of the source; reseed the "
                "destination"
            )
        return stored(standing)

    def _held_by_table(self, path: str, record: TableRecord | None) -> StoredPosition:
        """A table that does not lead, as the fence sees it: at or before P counts as P, later than Q as Q (E3)."""
        step = self.step
        if record is None:
            return StoredPosition()
        held = stored(record.standing)
        if step.repairs and held.position > step.expected:
            return held
        if self._whole or held.position <= step.expected:
            return held._replace(position=step.expected, mark=step.mark)
        if held.position > step.through:
            return held._replace(position=step.through, mark=step.through_mark)
        if held.position == step.through and held.mark != step.through_mark:
            raise DestinationHalted(
                f"{path}: the table is at version {held.position} of another history of the source; reseed the "
                "destination"
            )
        return held

    def _check_tables(self) -> None:
        """Whose tables they are (T5), and where each of them is."""
        for path in (*self._steps, *self._leaving):
            if path in self._state.foreign:
                raise DestinationHalted(
                    f"{path}: the table belongs to another destination; choose another path, or retire that one"
                )
        for path, each in self._steps.items():
            loaded, record = self._state.loaded[path], self._state.records.get(path)
            if loaded is not None and record is None:
                if not (self.step.replace_existing and each.replaces):
                    raise DestinationHalted(
                        f"{path}: there is a table that was not delivered; choose another one, or set "
                        "replace_existing: true to replace it"
                    )
            elif record is None and not each.replaces and self.step.expected:
                raise DestinationHalted(
                    f"{path}: the table is not there, and its destination is at {self.step.expected}; reseed the "
                    "destination"
                )
            elif record is not None and path != self._lead:
                result = self._judged(self._held_by_table(path, record))
                if isinstance(result, TrunklineError):
                    raise result

    def _is_behind(self, path: str) -> bool:
        """Whether a table still needs the step."""
        record = self._state.records.get(path)
        if record is None or path == self._lead or self._whole or self.step.repairs:
            return True
        return record.position < self.step.through

    # ------------------------------------------------------------------------------------------------------ committing

    def _commit(self, prepared: dict[str, Prepared]) -> MemberResult:
        others = [path for path in sorted(self._members - {self._next_lead}) if self._changes(path, prepared)]
        leaving = [path for path in sorted(self._leaving) if path in self._state.records]
        announced: Version | None = None
        elsewhere = others or leaving or self._lead not in (None, self._next_lead)
        if elsewhere and not self.step.repairs:  # E7
            announced = self._announce(self._lead or self._next_lead, prepared)
        total = Applied(self.step.through)
        for path in others:
            total = total.plus(self._commit_table(path, prepared.get(path), None))
        for path in leaving:
            if path != self._lead:
                self._leave(path, self._state.loaded[path])
        if self._next_lead:
            after = announced if self._next_lead == (self._lead or self._next_lead) else None
            total = total.plus(self._commit_table(self._next_lead, prepared.get(self._next_lead), after))
        if self._lead in leaving:
            self._leave(self._lead, announced)
        return total

    def _changes(self, path: str, prepared: dict[str, Prepared]) -> bool:
        """Whether a table other than the next lead has to be committed: also to say which one leads."""
        record = self._state.records.get(path)
        if record is not None and record.leads != digest_of([self._next_lead]):
            return True
        return path in prepared and (record is None or self._whole or prepared[path].changes)

    def _announce(self, path: str, prepared: dict[str, Prepared]) -> Version | None:
        """Record in the lead where the tables are going (E2), or that all are written (E4); returns its version."""
        table, step, record = self._state.tables[path], self.step, self._state.records.get(path)
        own = prepared.get(path)
        loaded = self._state.loaded[path] if own is None else own.loaded
        if self._whole:
            began = TableRecord(Standing(0, step.token, step.source))
        else:
            assert record is not None
            if (record.going, record.going_mark) == (step.through, step.through_mark):
                return loaded
            began = TableRecord(replace(record.standing, token=step.token))
            began = replace(began, going=step.through, going_mark=step.through_mark)
        tables = UNKNOWN if record is None else record.tables
        began = replace(began.leading(tables), member=digest_of([step.member]))
        try:
            if loaded is not None and record is not None:
                table.commit_record(loaded, began)
            else:
                assert own is not None
                table.begin(own, began)
        except CommitLost as lost:
            self._check_lost(lost.now, path)
            raise
        if self._whole:
            self.step = replace(step, expected=0, mark="")
        after = table.load()
        if not table.is_next(after, loaded):
            self._check_lost(after, path)
            raise CommitLost(table.path, RuntimeError("another writer followed at once"), after)
        return after

    def _commit_table(self, path: str, prepared: Prepared | None, after: Version | None) -> Applied:
        """``after``: the version that the lead has since it was prepared."""
        table, loaded = self._state.tables[path], self._state.loaded[path]
        record = self._record_of(path, loaded, prepared is None)
        try:
            if prepared is not None:
                table.commit(prepared, record, after)
            else:
                loaded = after or loaded
                assert loaded is not None
                if loaded.record == record:
                    return Applied(self.step.through)
                table.commit_record(loaded, record)
        except CommitLost as lost:
            if prepared is not None and table.landed(lost.now, record, prepared):
                self.wrote = True
                return prepared.applied
            self._check_lost(lost.now, path)
            again = self._whole or self.step.repairs
            if path != self._next_lead and not again and _is_at(lost.now, self.step.through):
                return Applied(self.step.through)  # by another process
            raise
        self.wrote = True
        return Applied(self.step.through) if prepared is None else prepared.applied

    def _record_of(self, path: str, loaded: Version | None, only_role: bool) -> TableRecord:
        """After the step; ``only_role``: a table that does not lead stays where it is."""
        step = self.step
        role = None if loaded is None else loaded.stored.role
        record = TableRecord(step.reached, digest_of([step.member]))
        if len(self._members) == 1 and role is None:
            return record
        if path == self._next_lead:
            return record.leading(digest_of(self._members))
        if only_role:
            assert loaded is not None
            assert loaded.record is not None
            record = replace(record, standing=replace(loaded.record.standing, token=step.token))
        return replace(record, leads=digest_of([self._next_lead]))

    def _leave(self, path: str, loaded: Version | None) -> None:
        table = self._state.tables[path]
        assert loaded is not None
        if self._leaving[path].drop:
            table.drop()
        else:
            try:
                table.retire(loaded)
            except CommitLost as lost:
                if lost.now is not None and lost.now.record is not None:
                    raise
        self.wrote = True

    def _check_lost(self, now: LoneVersion | None, path: str) -> None:
        """Raises what the step came to, if a commit failed because another process did it or forbids it (E6)."""
        record = None if now is None else now.record
        if path in (self._lead, self._next_lead):
            result = self._judged(stored(None if record is None else record.standing))
        else:
            result = self._judged(self._held_by_table(path, record))
            if isinstance(result, Applied):
                return
        if result is not None:
            raise _Judged(result)


class _Judged(Exception):
    """A step that is over, by what another process committed."""

    def __init__(self, result: MemberResult) -> None:
        super().__init__(result)
        self.result = result


def _is_at(now: LoneVersion | None, position: int) -> bool:
    return now is not None and now.record is not None and now.record.position >= position
