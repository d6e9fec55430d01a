"""Ordinary members of a group, written in a few round trips, inside the transaction of a PostgreSQL place.

Rules
 Q1  A member is *ordinary* if a flush only changes rows of tables that its record lists, and moves it: no column, table
     or name changes, no history, no NULL in a key, every value is stated, and ``postgres_elements.py`` encodes the
     types. All other members are written by ``postgres_member_step.py``.
 Q2  The statements of all ordinary members go out in pipelines, without savepoints. A pipeline has at most one chunk of
     rows; the next one begins when all responses are there.
 Q3  After any error, and if a record does not move, the whole transaction is undone, and read and judged again; then
     every member is written behind a savepoint, which finds the one that fails, and its error. So a member that fails
     costs its group a second transaction, and the result is the same.
 Q4  The server keeps the plans of these statements. Such a plan does not know how many keys come, nor how a table has
     grown: so it always looks keys up in the index.
 Q5  Records move last, all of a home in one statement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa

from trunkline.delivery.backends.postgres_session import PostgresSession
from trunkline.delivery.changes.rows import OP_COLUMN, UNCHANGED_COLUMN
from trunkline.delivery.destinations.contract import Applied, Batches, Standing, TableStep
from trunkline.delivery.destinations.postgres_batch import (
    EncodedRows,
    TableRows,
    TableStatements,
    encoded,
    table_statements,
)
from trunkline.delivery.destinations.postgres_copy import CHUNK_BYTES, CHUNK_ROWS
from trunkline.delivery.destinations.postgres_elements import OddValue
from trunkline.delivery.destinations.postgres_member_step import PostgresMemberStep
from trunkline.delivery.destinations.postgres_records import PostgresRecords

BY_INDEX: Final = (
    "SELECT set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true), "
    "set_config('enable_mergejoin', 'off', true), set_config('plan_cache_mode', 'force_generic_plan', true)"
)
AS_BEFORE: Final = (
    "SET LOCAL enable_seqscan TO DEFAULT; SET LOCAL enable_hashjoin TO DEFAULT; "
    "SET LOCAL enable_mergejoin TO DEFAULT; SET LOCAL plan_cache_mode TO DEFAULT"
)

MemberRows = list[TableRows]  # of one member


class Unmoved(Exception):
    """A record was not as found."""


class OrdinaryMembers:
    """The members of one transaction. ``write`` raises ``Unmoved`` or an error of the server: then all is undone."""

    def __init__(self, session: PostgresSession, records: PostgresRecords) -> None:
        self._session = session
        self._records = records
        self._by_index = False  # the settings of this transaction

    def write(self, steps: Mapping[str, PostgresMemberStep]) -> dict[str, Applied]:
        """What became of those that are ordinary; the others are left to do."""
        applied: dict[str, Applied] = {}
        for batch in _batches(steps):
            try:
                rows = list(encoded([each for tables in batch.values() for each in tables]))
            except OddValue:
                continue
            applied |= {name: Applied(steps[name].step.through) for name in batch}
            for each, done in zip(rows, self._written(rows, steps), strict=True):
                applied[each.rows.member] = applied[each.rows.member].plus(done)
        self._move([steps[name] for name in applied])
        if self._by_index and len(applied) < len(steps):
            self._session.run(AS_BEFORE)
        return applied

    def _written(self, rows: Sequence[EncodedRows], steps: Mapping[str, PostgresMemberStep]) -> Iterator[Applied]:
        counts: list[Callable[[], tuple[int, int, int]]] = []
        with self._session.pipeline():
            if not self._by_index:
                self._session.send(BY_INDEX)
                self._by_index = True
            counts = [self._sent(each) for each in rows]
        for each, count in zip(rows, counts, strict=True):
            removed, duplicates, written = count()
            if each.content:
                written = self._session.copy_in(_statements(each.rows).copy, each.content)
            yield each.applied(steps[each.rows.member].step.through, removed, duplicates, written)

    def _sent(self, each: EncodedRows) -> Callable[[], tuple[int, int, int]]:
        """A function that gives the counts, when the pipeline is over: rows removed, those due to an INSERT, added."""
        statements = _statements(each.rows)
        warns = each.rows.step.duplicates == "warn"
        removal = self._session.send(statements.tally if warns else statements.remove, each.keys) if each.keys else None
        addition = self._session.send(statements.add, each.values) if each.values else None

        def counts() -> tuple[int, int, int]:
            removed = duplicates = 0
            if removal is not None and warns:
                found = removal.fetchone()
                assert found is not None
                removed, duplicates = found
            elif removal is not None:
                removed = removal.rowcount
            return removed, duplicates, 0 if addition is None else addition.rowcount

        return counts

    def _move(self, steps: Sequence[PostgresMemberStep]) -> None:
        homes: dict[str, dict[str, tuple[int, Standing]]] = {}
        for each in steps:
            homes.setdefault(each.step.home, {})[each.step.member] = (each.before, each.step.reached)
        for home, moves in sorted(homes.items()):
            if self._records.move_all(home, moves) != len(moves):
                raise Unmoved(home)


def _batches(steps: Mapping[str, PostgresMemberStep]) -> Iterator[dict[str, MemberRows]]:
    """Ordinary members with their rows, by name: a chunk of rows each time (Q2)."""
    batch: dict[str, MemberRows] = {}
    rows = size = 0
    for name, step in steps.items():
        if (found := _rows_of(step)) is None:
            continue
        listed = [batch for each in found for batch in each.batches]
        count, large = sum(each.num_rows for each in listed), sum(each.nbytes for each in listed)
        if batch and (rows + count > CHUNK_ROWS or size + large > CHUNK_BYTES):
            yield batch
            batch, rows, size = {}, 0, 0
        batch[name] = found
        rows, size = rows + count, size + large
    if batch:
        yield batch


def _rows_of(member: PostgresMemberStep) -> MemberRows | None:
    """``None``: the member is not ordinary (Q1), or it has more than a chunk of rows."""
    tables = member.ordinary_tables()
    if tables is None:
        return None
    found: MemberRows = []
    left = _Room()
    for step, table, rows in tables:
        batches = left.taken(step, rows)
        if batches is None:
            return None
        if batches:
            found.append(TableRows(member.step.member, step, table, batches))
    return found


class _Room:
    """What is left of a chunk."""

    def __init__(self) -> None:
        self._rows, self._bytes = CHUNK_ROWS, CHUNK_BYTES

    def taken(self, step: TableStep, rows: Batches) -> list[pa.RecordBatch] | None:
        """The rows of a table, if there is room for them, and if they are ordinary."""
        names = [OP_COLUMN, *(column.name for column in step.columns)]
        found = []
        for batch in rows():
            if UNCHANGED_COLUMN in batch.schema.names and batch[UNCHANGED_COLUMN].null_count < batch.num_rows:
                return None
            kept = batch.select(names)
            self._rows -= kept.num_rows
            self._bytes -= kept.nbytes
            nulls = step.mode == "mirror" and any(batch.column(name).null_count for name in step.key)
            if nulls or min(self._rows, self._bytes) < 0:
                return None
            if kept.num_rows:
                found.append(kept)
        return found


def _statements(rows: TableRows) -> TableStatements:
    return table_statements(rows.table, rows.step.columns, rows.step.key)
