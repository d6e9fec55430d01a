"""The step of one table of a member, inside the transaction of its place: the columns, and a table that is replaced.

Rules
 G1  Readers never see a part of a replaced table, and do not wait for its rows: a table that keeps its columns is
     emptied with DELETE, so that views and grants stay; any other is built beside the old one, which it replaces when
     all rows of the member are written. (A transaction that took its snapshot before that, and reads the table only
     then, finds the new one empty.)
 G2  A history is never replaced: rows of its present state are compared with it (T11).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Final, NamedTuple

import psycopg
import pyarrow as pa

from trunkline.delivery.backends.postgres_session import LOCK_MS, REBUILD_MS, PostgresSession
from trunkline.delivery.backends.sql import identifier, identifiers
from trunkline.delivery.changes.columns import Columns, check_columns, evolution
from trunkline.delivery.changes.history import CURRENT, HISTORY_NAMES
from trunkline.delivery.changes.rows import RESERVED_PREFIX
from trunkline.delivery.destinations.contract import Applied, Batches, TableStep, checked_steps
from trunkline.delivery.destinations.postgres_elements import element_form
from trunkline.delivery.destinations.postgres_records import table_name
from trunkline.delivery.destinations.postgres_rows import PostgresRows
from trunkline.delivery.destinations.postgres_steps import follow_steps
from trunkline.delivery.destinations.postgres_table import TableShape, read_shapes
from trunkline.delivery.destinations.postgres_types import stored_type
from trunkline.errors import DestinationHalted, SchemaMismatch

COLUMNS_KEPT: Final = 1_024  # sets of columns that were compared; fewer: those of many tables are compared again
SWAP_LOCK_MS: Final = 30_000  # waiting for readers of a table that goes; new readers wait as long


class FoundTable(NamedTuple):
    """What a step finds."""

    shape: TableShape | None  # None: there is no table
    listed: bool  # in the record of the member
    remembered: Columns  # as the record has them


class TableDone(NamedTuple):
    applied: Applied
    columns: Columns | None = None  # of the table, if they changed
    finish: Callable[[], None] | None = None  # what is left to do, when all rows of the member are written


class PostgresTableStep:
    """Raises an error of the table, or one of the server: then the caller undoes everything of the member."""

    def __init__(self, session: PostgresSession, step: TableStep, expected: int, through: int) -> None:
        self._session = session
        self._step = step
        self._expected = expected
        self._through = through
        self._name = table_name(step.address)
        self._table = self._beside(self._name[1])
        self._what = spelled(step)
        self._rows = PostgresRows(session, step, self._table, through, self._what)

    def run(self, found: FoundTable, rows: Batches | None) -> TableDone:
        given = rows or _no_rows
        if not self._step.replaces:
            index, columns, reshaped = self._shaped(found)
            applied = Applied(self._through, reshaped=reshaped).plus(self._rows.apply(given, index))
            return TableDone(applied, columns)
        self._session.run(f"SET LOCAL statement_timeout = {REBUILD_MS}")
        if self._keeps_history(found):
            _, columns, reshaped = self._shaped(found)
            applied = Applied(self._through, reshaped=reshaped).plus(self._rows.compare(given()))
            return TableDone(applied, columns)
        check_columns(self._step.columns, self._step.key, None)
        return self._replaced(found.shape, given())

    def _keeps_history(self, found: FoundTable) -> bool:
        """Whether the table has a history that goes on."""
        history = self._step.mode == "history" and not self._step.discards
        return history and found.listed and found.shape is not None and found.shape.actual.keys() >= HISTORY_NAMES

    # --------------------------------------------------------------------------------------------------------- columns

    def _shaped(self, found: FoundTable) -> tuple[str | None, Columns | None, str]:
        """The table as the source's rows need it (T6): its index, its columns if they changed, and what was done."""
        step, shape = self._step, found.shape
        if shape is None:
            self._create(self._table)
            self._index(self._table)
            return None, step.columns, ""
        held = shape.columns(found.remembered)
        steps = checked_steps(step, held, self._expected, self._what)
        if steps is None:
            return shape.key_index(step.key, step.mode), self._evolved(shape, held), ""
        check_columns(step.columns, step.key, None)
        try:
            follow_steps(self._session, self._table, steps)
        except DestinationHalted as error:  # a default that PostgreSQL cannot hold
            raise DestinationHalted(f"{self._what} at {self._session.place}: {error}") from error
        columns = steps.followed(held)
        after = read_shapes(self._session, [self._name])[self._name]
        self._evolved(after, after.columns(columns))
        words = f"{steps.spelled()} in {step.table}" if step.table else steps.spelled()
        return after.key_index(step.key, step.mode), columns, words

    def _evolved(self, shape: TableShape, held: Columns) -> Columns | None:
        """Make the table accept the source's rows (T6); returns its columns if they changed."""
        step = self._step
        change = evolution(step.columns, held)
        problems = list(change.problems)
        if step.mode != "append" and shape.key_index(step.key, step.mode) is None:
            where = f" where {CURRENT}" if step.mode == "history" else ""
            problems.append(f"it has no unique index on the key ({', '.join(step.key)}){where}, NULLS NOT DISTINCT")
        if problems:
            raise SchemaMismatch(f"{self._what}: {'; '.join(problems)}; change the source back, or {step.begin_again}")
        if not change.added and not change.widened:
            return None
        check_columns(step.columns, step.key, None)
        actions = [f"ADD COLUMN {identifier(column.name)} {stored_type(column)}" for column in change.added]
        actions += [
            f"ALTER COLUMN {identifier(column.name)} TYPE {stored_type(column)}"
            for column in change.widened
            if stored_type(column) != shape.actual[column.name]
        ]
        if actions:
            self._session.run(f"SET LOCAL statement_timeout = {REBUILD_MS}")
            self._session.run(f"ALTER TABLE {self._table} {', '.join(actions)}", wait_ms=REBUILD_MS)
        widened = {column.name: column for column in change.widened}
        return (*(widened.get(column.name, column) for column in held), *change.added)

    # ------------------------------------------------------------------------------------------------------- replacing

    def _replaced(self, shape: TableShape | None, rows: Iterable[pa.RecordBatch]) -> TableDone:
        """Replace the content of the table (G1)."""
        columns = self._step.columns
        if shape is not None and self._keeps_columns(shape):
            index = shape.key_index(self._step.key, self._step.mode)
            removed = self._session.run(f"DELETE FROM {self._table}", wait_ms=REBUILD_MS).rowcount
            written = self._rows.copy(self._table, rows, index)
            return TableDone(Applied(self._through, removed=removed, written=written), columns)
        beside = f"{RESERVED_PREFIX}_seed_{hashlib.sha256(self._name[1].encode()).hexdigest()[:16]}"
        target = self._table if shape is None else self._beside(beside)
        self._create(target)
        written = self._rows.copy(target, rows, None)
        self._index(target)
        if shape is None:
            return TableDone(Applied(self._through, written=written), columns)
        counted = self._session.run(f"SELECT count(*) FROM {self._table}", wait_ms=REBUILD_MS).fetchone()
        assert counted is not None
        applied = Applied(self._through, removed=counted[0], written=written)
        return TableDone(applied, columns, lambda: self._swap(target))

    def _swap(self, target: str) -> None:
        drop_table(self._session, self._table)
        self._session.run(f"ALTER TABLE {target} RENAME TO {identifier(self._name[1])}")

    def _keeps_columns(self, shape: TableShape) -> bool:
        step = self._step
        if shape.actual != {column.name: stored_type(column) for column in step.columns}:
            return False
        return not shape.unique if step.mode == "append" else shape.key_index(step.key, step.mode) is not None

    def _create(self, table: str) -> None:
        check_columns(self._step.columns, () if self._step.mode == "append" else self._step.key, None)
        listed = ", ".join(f"{identifier(column.name)} {stored_type(column)}" for column in self._step.columns)
        self._session.run(f"CREATE TABLE {table} ({listed})")

    def _index(self, table: str) -> None:
        if self._step.mode == "append":
            return
        where = f" WHERE {CURRENT}" if self._step.mode == "history" else ""
        listed = identifiers(self._step.key)
        try:
            self._session.run(
                f"CREATE UNIQUE INDEX ON {table} ({listed}) NULLS NOT DISTINCT{where}", wait_ms=REBUILD_MS
            )
        except psycopg.errors.UniqueViolation as error:
            raise self._rows.duplicate(error) from error

    def _beside(self, name: str) -> str:
        """A table in the same schema."""
        return f"{identifier(self._name[0])}.{identifier(name)}"


def changes_only_rows(step: TableStep, found: FoundTable, expected: int) -> bool:
    """Whether a flush leaves the table's columns as they are, and ``postgres_elements.py`` encodes all of them."""
    shape = found.shape
    if shape is None or shape.kind != "r" or step.replaces or step.mode == "history":
        return False
    if step.mode != "append" and shape.key_index(step.key, step.mode) is None:
        return False
    try:
        steps = step.steps and checked_steps(step, shape.columns(found.remembered), expected, spelled(step))
        return steps is None and _columns_fit(step.columns, found.remembered, tuple(shape.actual.items()))
    except SchemaMismatch:
        return False


@lru_cache(COLUMNS_KEPT)
def _columns_fit(columns: Columns, remembered: Columns, actual: tuple[tuple[str, str], ...]) -> bool:
    """Whether a table has exactly these columns, all of which ``postgres_elements.py`` encodes. Members of one pipeline
    have the same: each set is compared once."""
    shape = TableShape("r", dict(actual), {})
    return (
        evolution(columns, shape.columns(remembered)).none
        and all(stored_type(column) == shape.actual[column.name] for column in columns)
        and all(element_form(column) is not None for column in columns)
    )


def spelled(step: TableStep) -> str:
    """A table in messages."""
    return "table {}.{}".format(*table_name(step.address))


def quoted(step: TableStep) -> str:
    """A table in statements."""
    schema, table = table_name(step.address)
    return f"{identifier(schema)}.{identifier(table)}"


def drop_table(session: PostgresSession, table: str) -> None:
    """Waits for its readers longer than for locks otherwise."""
    session.run(f"SET LOCAL lock_timeout = {SWAP_LOCK_MS}")
    session.run(f"DROP TABLE {table}", wait_ms=2 * SWAP_LOCK_MS)
    session.run(f"SET LOCAL lock_timeout = {LOCK_MS}")


def _no_rows() -> Iterator[pa.RecordBatch]:
    return iter(())
