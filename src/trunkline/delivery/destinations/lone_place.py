"""A place whose tables commit alone (T10): the rules are in ``delta.py``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Final, Generic

import pyarrow as pa
from msgspec.structs import replace

from trunkline.delivery.config.addresses import Address
from trunkline.delivery.destinations.contract import MemberResult, MemberTables, MemberWrite, Standing
from trunkline.delivery.destinations.delta_member import MemberState
from trunkline.delivery.destinations.delta_record import UNKNOWN, digest_of
from trunkline.delivery.destinations.delta_step import apply_step
from trunkline.delivery.destinations.lone_tables import CommitLost, LoneTable, Prepared, Version
from trunkline.errors import DestinationHalted, TrunklineError, Unreachable

# Of all tables, until two in a row find the same; more: longer waits, fewer: errors while others write.
READS: Final = 20


class LonePlace(Generic[Version, Prepared]):
    """The tables of one destination, or of several."""

    def _table(self, address: Address) -> LoneTable[Version, Prepared]:
        """The same object for the same table."""
        raise NotImplementedError

    def standings(self, members: Sequence[MemberTables]) -> dict[str, Standing | TrunklineError | None]:
        found: dict[str, Standing | TrunklineError | None] = {}
        for member in members:
            try:
                found[member.member] = self._state(member).standing()
            except TrunklineError as error:
                found[member.member] = error
        return found

    def apply(self, writes: Sequence[MemberWrite]) -> dict[str, MemberResult]:
        """One member after the other."""
        results: dict[str, MemberResult] = {}
        for write in writes:
            try:
                results[write.step.member] = apply_step(write, self._table)
            except TrunklineError as error:
                results[write.step.member] = error
        return results

    def rows(self, member: MemberTables) -> tuple[Standing, list[Iterator[pa.RecordBatch]], Callable[[], None]]:
        state = self._steady(member)
        standing = state.standing()
        if standing is None:
            raise DestinationHalted(f"{member.member}: its tables have no position; seed the destination first")
        found = []
        with ExitStack() as stack:
            for table in map(self._table, member.tables):
                if (loaded := state.loaded[table.path]) is None:
                    raise DestinationHalted(f"{table.path}: the table is not there; seed the destination again")
                found.append(table.rows(loaded, stack))
            end = stack.pop_all().close
        if standing.ahead:
            own = [state.records.get(table.path) for table in map(self._table, member.tables)]
            at = tuple(max(standing.position, each.position if each else 0) for each in own)
            standing = replace(standing, at=at)
        return standing, found, end

    def retire(self, member: MemberTables) -> None:
        """The lead last: as long as it is there, the member has a record. Those of another name stay: a digest does not
        tell whether it is of the same pipeline (T9)."""
        state = self._state(member)
        if not all(record.member in (digest_of([member.member]), UNKNOWN) for record in state.records.values()):
            return
        for path in sorted(state.records, key=lambda path: (state.records[path].is_lead, path)):
            loaded = state.loaded[path]
            assert loaded is not None
            try:
                state.tables[path].retire(loaded)
            except CommitLost as lost:
                if lost.now is not None and lost.now.record is not None:
                    raise Unreachable(str(lost)) from lost

    def _steady(self, member: MemberTables) -> MemberState[Version, Prepared]:
        """All tables as they were at one moment: the lead may be newer than a table that was read before it (E8)."""
        state = self._state(member)
        for _ in range(READS):
            again = self._state(member)
            if again.versions == state.versions:
                return again
            state = again
        raise Unreachable(f"{member.member}: its tables change all the time; retrying")

    def _state(self, member: MemberTables) -> MemberState[Version, Prepared]:
        return MemberState(member.member, member.tables, self._table)
