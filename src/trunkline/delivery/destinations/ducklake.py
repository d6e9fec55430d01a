"""A DuckLake as a place: one catalog, in which one transaction commits all tables of several members.

Rules T1 to T11 are in ``contract.py``. How they are implemented: K1, K7 and K8 in ``ducklake_transaction.py``; K3, K4
and K6 in ``ducklake_table.py``; and here:

 K2  Rows are staged in temporary tables before the lake is attached: they block no other process while they arrive, and
     a transaction that begins again does not read them again.
 K9  Ordinary flushes are written directly, in one transaction for all such members of a call; the others follow in one
     transaction of the extension (``ducklake_direct``). What is ordinary is decided by the catalog, at each flush.
 K5  After a flush the files of tables that were written are compacted, each in a transaction of its own
     (``ducklake_upkeep.py``). This changes no row and may fail.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Final, TypeVar

import duckdb
import pyarrow as pa

from trunkline.delivery.backends.sql import literal
from trunkline.delivery.changes.columns import Columns, arrow_schema
from trunkline.delivery.changes.rows import BATCH_ROWS
from trunkline.delivery.config.addresses import Address, LakeAddress
from trunkline.delivery.destinations.contract import (
    MemberResult,
    MemberTables,
    MemberWrite,
    Standing,
)
from trunkline.delivery.destinations.ducklake_attachments import (
    AttachedLakes,
    LakeSession,
    process_lakes,
)
from trunkline.delivery.destinations.ducklake_direct.direct_lake import DirectLake, OrdinaryMember, is_direct
from trunkline.delivery.destinations.ducklake_errors import NoLake, halted, may_happen_to_anybody
from trunkline.delivery.destinations.ducklake_member import StagedMember, check_step, lake_address
from trunkline.delivery.destinations.ducklake_records import MemberRecord, MemberRecords, table_name
from trunkline.delivery.destinations.ducklake_stage import TableStage, export_list
from trunkline.delivery.destinations.ducklake_table import LakeTable
from trunkline.delivery.destinations.ducklake_transaction import GroupTransaction
from trunkline.delivery.destinations.ducklake_upkeep import Upkeep
from trunkline.errors import DestinationHalted, OutcomeUnknown, Refused, TrunklineError

ORPHAN_AGE_S: Final = 86_400  # of an unreferenced file: younger ones may belong to a flush that is under way
Found = TypeVar("Found")
Reading = tuple[Standing, list[Iterator[pa.RecordBatch]], Callable[[], None]]


class DuckLakePlace:
    """One catalog. Places of one process share a DuckDB instance, unless ``lakes`` gives another.

    ``direct`` writes the ordinary flushes (K9); ``None``: the extension writes all.
    """

    def __init__(
        self, address: LakeAddress, lakes: AttachedLakes | None = None, *, direct: DirectLake | None = None
    ) -> None:
        self._address = address
        self._lakes = process_lakes() if lakes is None else lakes
        self._direct = direct
        self._upkeep = Upkeep()
        self._reading = ExitStack()  # the open session of ``rows``

    def close(self) -> None:
        self._reading.close()

    # ----------------------------------------------------------------------------------------------------- reading

    def standings(self, members: Sequence[MemberTables]) -> dict[str, Standing | TrunklineError | None]:
        def read(lake: LakeSession) -> dict[str, Standing | TrunklineError | None]:
            records = MemberRecords(lake)
            found = records.found(members)
            return {name: None if held is None else _standing(held, records) for name, held in found.items()}

        return self._read(read, {each.member: None for each in members})

    def columns(self, address: Address) -> Columns | None:
        return self._read(lambda lake: LakeTable(lake, lake_address(address)).columns(), None)

    def _read(self, read: Callable[[LakeSession], Found], without_lake: Found) -> Found:
        def attempt() -> Found:
            with self._lakes.session(self._address) as lake:
                try:
                    lake.attach()
                except NoLake:
                    return without_lake
                lake.begin()
                return read(lake)

        return self._lakes.when_free(attempt)

    def rows(self, member: MemberTables) -> Reading:
        """The tables are read one after the other, in their order. The lake stays in use until the last one is
        exhausted, the next call, or ``close``."""
        self._reading.close()
        return self._lakes.when_free(lambda: self._begin_reading(member))

    def _begin_reading(self, member: MemberTables) -> Reading:
        with ExitStack() as stack:
            lake = stack.enter_context(self._lakes.session(self._address))
            lake.attach()
            lake.begin()
            record = MemberRecords(lake).found([member])[member.member]
            tables = [LakeTable(lake, lake_address(address)) for address in member.tables]
            columns = [table.columns() for table in tables]
            if record is None or None in columns:
                raise DestinationHalted(
                    f"{member.member} has no position in {self._address.catalog}: nothing was delivered to it; seed it "
                    "first"
                )
            self._reading = reading = stack.pop_all()
        left = len(tables)

        def batches(table: LakeTable, columns: Columns) -> Iterator[pa.RecordBatch]:
            nonlocal left
            for batch in lake.read(f"SELECT {export_list(columns)} FROM {table.path}", BATCH_ROWS):
                yield batch.cast(arrow_schema(columns))
            left -= 1
            if left == 0:
                reading.close()

        every = [batches(*each) for each in zip(tables, filter(None, columns), strict=True)]
        return record.standing, every, reading.close

    # ----------------------------------------------------------------------------------------------------- writing

    def apply(self, writes: Sequence[MemberWrite]) -> dict[str, MemberResult]:
        if self._direct is None:
            return self._apply_by_extension(writes)
        begun = time.monotonic()
        outcome = self._direct.apply(writes)
        if outcome.written:
            self._look_after_direct(outcome.written, time.monotonic() - begun)
        if not outcome.left:
            return outcome.results
        try:
            return outcome.results | self._apply_by_extension(outcome.left)
        except TrunklineError as error:
            if not outcome.results:
                raise
            return outcome.results | {write.step.member: error for write in outcome.left}

    def _apply_by_extension(self, writes: Sequence[MemberWrite]) -> dict[str, MemberResult]:
        begun = time.monotonic()
        with self._lakes.session(self._address) as lake:
            staged, results = self._staged(lake, writes)
            if not staged:
                return results
            group = GroupTransaction(lake, staged)
            creates = any(member.step.expected == 0 for member in staged)
            try:
                self._lakes.when_free(lambda: lake.attach(create=creates, writes=True))
            except NoLake:
                group.without_lake()
            else:
                group.run()
                if group.written:
                    self._look_after(lake, group.written, time.monotonic() - begun)
            return results | group.results()

    def _staged(
        self, lake: LakeSession, writes: Sequence[MemberWrite]
    ) -> tuple[list[StagedMember], dict[str, MemberResult]]:
        """The members whose rows arrived, and what is wrong with the others."""
        staged: list[StagedMember] = []
        failed: dict[str, MemberResult] = {}
        for step, rows in writes:
            try:
                check_step(step)
                stages = tuple(TableStage(table, f"{len(staged)}_{at}") for at, table in enumerate(step.tables))
                for stage in stages:
                    stage.fill(lake, rows[stage.step.table]() if stage.step.table in rows else ())
            except TrunklineError as error:
                failed[step.member] = error
            except duckdb.Error as error:
                if may_happen_to_anybody(error):
                    raise
                failed[step.member] = halted(error, step.member, self._address)
            else:
                staged.append(StagedMember(step, stages))
        return staged, failed

    def retire(self, member: MemberTables) -> None:
        def remove(lake: LakeSession) -> None:
            MemberRecords(lake).remove(member)
            lake.commit()

        self._read(remove, None)

    # ------------------------------------------------------------------------------------------------------ upkeep

    def _look_after(self, lake: LakeSession, written: Sequence[StagedMember], took_s: float) -> None:
        stages = [stage for member in written for stage in member.stages if stage.rows]
        self._upkeep.note([table_name(stage.step.address) for stage in stages], [each.step.home for each in written])
        try:
            self._upkeep.do(lake, took_s)
        except (duckdb.Error, Refused, OutcomeUnknown):  # the flush is done; the next one reports what is wrong here
            lake.roll_back()
            lake.suspect = True

    def _look_after_direct(self, written: Sequence[OrdinaryMember], took_s: float) -> None:
        """The lake is attached only if there is something to do."""
        tables = [table_name(staged.step.address) for each in written for staged in each.tables if staged.rows.num_rows]
        self._upkeep.note(tables, [each.step.home for each in written], inlined=True)
        if not self._upkeep.pending:
            return
        try:
            with self._lakes.session(self._address) as lake:
                self._lakes.when_free(lambda: lake.attach(writes=True))
                self._upkeep.do(lake, took_s)
        except (duckdb.Error, TrunklineError):  # the flush is done; the next one reports what is wrong here
            return

    def clean_orphans(self, age_s: int = ORPHAN_AGE_S) -> int:
        """Delete unreferenced files of the whole lake, which killed processes leave; returns how many.

        A file younger than ``age_s`` may belong to a flush that is under way.
        """
        with self._lakes.session(self._address) as lake:
            lake.attach()
            age = f"now() - INTERVAL {age_s} SECONDS"
            return len(lake.run(f"CALL ducklake_delete_orphaned_files({literal(lake.alias)}, older_than => {age})"))


def _standing(record: MemberRecord, records: MemberRecords) -> Standing:
    """Without one of its tables a member has no position."""
    held = record.standing
    return held if record.tables <= records.existing() else Standing(0, held.token, held.source)


def open_lake(address: LakeAddress) -> DuckLakePlace:
    """The place as everybody but tests opens it."""
    return DuckLakePlace(address, direct=DirectLake(address) if is_direct(address) else None)
