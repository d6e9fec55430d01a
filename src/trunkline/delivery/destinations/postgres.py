"""A table of a PostgreSQL database as a destination. Rules T1 to T7 are in ``contract.py``; this is how they are kept.

Rules
 G1  ``_trunkline_positions``, in the table's schema, has one row per destination. A transaction locks that row first,
     so that flushes and seeds of one destination are serial; the row is checked then (T2), and again when it is
     updated: ``WHERE position = … AND token <= …`` must match one row.
 G2  In mode mirror the table has a unique index on its key in which NULL equals NULL. Rows are copied straight into the
     table: an existing key violates the index, and the transaction fails (T4, policy halt).
 G3  Keys are removed chunk by chunk, each before its rows are written. A key is in one chunk only, because it is
     unique.
 G4  Keys are compared with ``=``, so that the index is used. Rows whose key has NULLs are removed by one statement for
     each set of columns that are NULL.
 G5  Readers never see a part of a seed, and do not wait for its rows: a table that keeps its columns is emptied with
     DELETE, so that views and grants stay; any other is built beside the old one, which it replaces at the end.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Final

import msgspec
import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from trunkline.delivery.backends.postgres_session import (
    BULK_MS,
    REBUILD_MS,
    PostgresSession,
    borrow_session,
    password_of,
    return_session,
)
from trunkline.delivery.backends.sql import identifier, literal
from trunkline.delivery.changes.columns import Columns, check_columns, evolution
from trunkline.delivery.changes.rows import OP_COLUMN, RESERVED_PREFIX, Mode, Op
from trunkline.delivery.config.addresses import PostgresAddress
from trunkline.delivery.destinations.contract import (
    Applied,
    Flush,
    Seed,
    Standing,
    checked_steps,
    judged,
    reached,
    stored_mark,
)
from trunkline.delivery.destinations.postgres_copy import RowChunk, chunks, filled_columns, read, select, shared_encoder
from trunkline.delivery.destinations.postgres_lookup import held_rows
from trunkline.delivery.destinations.postgres_steps import follow_steps
from trunkline.delivery.destinations.postgres_table import (
    PostgresNames,
    PostgresTableState,
    positions_found,
    positions_statements,
    read_state,
    removal,
)
from trunkline.delivery.destinations.postgres_types import NAME_BYTES_MAX, stored_type
from trunkline.delivery.destinations.unstated import completed
from trunkline.errors import (
    ConfigError,
    DestinationHalted,
    DuplicateKey,
    PositionMoved,
    SchemaMismatch,
    Unreachable,
)

MARK_LOCK_MS: Final = 5_000  # waiting for running seeds, to add a column once; new flushes wait as long
SWAP_LOCK_MS: Final = 30_000  # waiting for readers of a table that a seed replaces; new readers wait as long


class PostgresDestination:
    """One table. Destinations of one database share a connection, unless ``session`` gives another."""

    def __init__(self, address: PostgresAddress, session: PostgresSession | None = None) -> None:
        if address.table.lower().startswith(RESERVED_PREFIX) or len(address.table.encode()) > NAME_BYTES_MAX:
            raise ConfigError(
                f"table {address.table!r} cannot be a destination: a name has up to {NAME_BYTES_MAX} bytes and does "
                f"not begin with {RESERVED_PREFIX}; choose another"
            )
        self._address = address
        self._given = session
        self._borrowed: PostgresSession | None = None
        self._names = PostgresNames(address)
        self._what = f"table {address.schema}.{address.table}"
        self._positions_seen = False
        self._marks_seen = False  # the table of positions has a column for marks; that of an older release has not

    @property
    def _session(self) -> PostgresSession:
        if self._given is not None:
            return self._given
        if self._borrowed is None:
            self._borrowed = borrow_session(self._address.dsn, password_of(self._address))
        return self._borrowed

    def close(self) -> None:
        if self._borrowed is not None:
            return_session(self._borrowed)
            self._borrowed = None

    # -------------------------------------------------------------------------------------------------------- reading

    def standing(self) -> Standing | None:
        with self._session.transaction(self._what, reading=True):
            found = self._read_state(self._session)
        return found.record if found.exists else None

    def columns(self) -> Columns | None:
        with self._session.transaction(self._what, reading=True):
            found = self._read_state(self._session)
        return found.columns() if found.exists else None

    def rows(self) -> tuple[Standing, Iterator[pa.RecordBatch]]:
        """Over a connection of its own, which is closed after the last batch."""
        stack = ExitStack()
        session = self._session.new_session()
        stack.callback(session.close)
        try:
            stack.enter_context(session.transaction(self._what, reading=True))
            found = self._read_state(session)
            if found.record is None or not found.exists:
                raise self._halted("it has no position record; seed it first")
        except BaseException:
            stack.close()
            raise
        return found.record, self._read(stack, session, found.columns())

    def _read(self, stack: ExitStack, session: PostgresSession, columns: Columns) -> Iterator[pa.RecordBatch]:
        with stack:
            try:
                yield from read(session.copy_out(select(self._names.table, columns)), columns)
            except pa.ArrowInvalid as error:
                raise self._halted(f"its rows cannot be read back: {error}") from error

    def _read_state(self, session: PostgresSession, *, lock: bool = False) -> PostgresTableState:
        try:
            if not self._positions_seen:
                self._positions_seen, self._marks_seen = positions_found(session, self._names)
            return read_state(session, self._names, recorded=self._positions_seen, marked=self._marks_seen, lock=lock)
        except psycopg.errors.UndefinedTable as error:
            self._positions_seen = False
            raise Unreachable(f"{self._what}: {self._names.positions} was dropped; retrying") from error

    # ------------------------------------------------------------------------------------------------------- flushing

    def flush(self, flush: Flush, staged: Iterable[pa.RecordBatch]) -> Applied:
        self._make_positions(create=flush.expected == 0)
        with self._session.transaction(self._what):
            found = self._read_state(self._session, lock=True)
            if (done := self._judged(found, flush)) is not None:
                return done
            if found.record is None:
                found = self._claim(flush.source)
            found, columns, reshaped = self._shaped(found, flush)
            applied = Applied(flush.through, reshaped=reshaped)
            whole = completed(staged, flush, self._held, self._what)
            for rows in chunks(whole, [OP_COLUMN, *(column.name for column in flush.columns)]):
                applied = self._apply(flush, rows, applied, found.key_index(flush.key))
            self._write_position(flush, columns, found)
        return applied

    def _judged(self, found: PostgresTableState, step: Flush | Seed) -> Applied | None:
        """``None`` if the step may proceed. Without the table there is no position, whatever its record."""
        record = found.record
        if record is not None and not found.exists:
            record = Standing(0, record.token, record.source)
        return judged(record, step, f"{self._what} at {self._session.place}")

    def _claim(self, source: str) -> PostgresTableState:
        """Insert the record, so that others wait for this transaction, and read the state again."""
        row = f"({literal(self._address.table)}, 0, 0, {literal(source)}, '[]')"
        done = self._session.run(f"INSERT INTO {self._names.positions} VALUES {row} ON CONFLICT DO NOTHING")
        found = self._read_state(self._session, lock=True)
        if done.rowcount == 0:
            raise Unreachable(f"{self._what}: another deliverer began to write it at the same time; retrying")
        return msgspec.structs.replace(found, record=None)

    def _shaped(self, found: PostgresTableState, flush: Flush) -> tuple[PostgresTableState, Columns | None, str]:
        """The table as the source's rows need it (T6), its columns if they changed, and the steps that it followed."""
        steps = checked_steps(flush, found.columns(), self._what) if found.exists else None
        if steps is None:
            return found, self._evolve(found, flush), ""
        self._check_delivered(found, replace_existing=False)
        check_columns(flush.columns, flush.key, None)
        try:
            follow_steps(self._session, self._names.table, steps)
        except DestinationHalted as error:  # a default that PostgreSQL cannot hold
            raise self._halted(str(error)) from error
        columns = steps.followed(found.columns())
        after = msgspec.structs.replace(self._read_state(self._session), remembered=columns)
        self._evolve(after, flush)
        return msgspec.structs.replace(after, record=found.record), columns, steps.spelled()

    def _evolve(self, found: PostgresTableState, flush: Flush) -> Columns | None:
        """Make the table accept the source's rows (T6); returns its columns if they changed."""
        if not found.exists:
            self._create(self._names.table, flush.columns, flush.key, flush.mode)
            self._index(self._names.table, flush.key, flush.mode)
            return flush.columns
        self._check_delivered(found, replace_existing=False)
        held = found.columns()
        change = evolution(flush.columns, held)
        problems = list(change.problems)
        if flush.mode == "mirror" and found.key_index(flush.key) is None:
            problems.append(f"it has no unique index on the key ({', '.join(flush.key)}), NULLS NOT DISTINCT")
        if problems:
            raise SchemaMismatch(f"{self._what}: {'; '.join(problems)}; change the source back, or seed it again")
        if not change.added and not change.widened:
            return None
        check_columns(flush.columns, flush.key, None)
        actions = [f"ADD COLUMN {identifier(column.name)} {stored_type(column)}" for column in change.added]
        actions += [
            f"ALTER COLUMN {identifier(column.name)} TYPE {stored_type(column)}"
            for column in change.widened
            if stored_type(column) != found.actual[column.name]
        ]
        if actions:
            self._session.run(f"SET LOCAL statement_timeout = {REBUILD_MS}")
            self._session.run(f"ALTER TABLE {self._names.table} {', '.join(actions)}", wait_ms=REBUILD_MS)
        widened = {column.name: column for column in change.widened}
        return (*(widened.get(column.name, column) for column in held), *change.added)

    def _apply(self, flush: Flush, rows: pa.Table, so_far: Applied, index: str | None) -> Applied:
        """Remove the keys of a chunk, then write its rows (G3)."""
        removed = duplicates = missing = 0
        kept = pc.sum(pc.not_equal(rows[OP_COLUMN], int(Op.REMOVE))).as_py()
        with shared_encoder().chunk(rows) as chunk:
            if flush.mode == "mirror":
                known = pc.sum(pc.not_equal(rows[OP_COLUMN], int(Op.INSERT))).as_py()
                removed, duplicates = self._remove(flush, rows, chunk, known)
                missing = known - (removed - duplicates)
            content = self._encoded(chunk, flush.columns, staged=True) if kept else None
        written = self._write(self._names.table, content, flush.columns, index)
        return Applied(
            so_far.position,
            so_far.removed + removed,
            so_far.written + written,
            so_far.duplicates + duplicates,
            so_far.missing + missing,
            reshaped=so_far.reshaped,
        )

    def _held(self, keys: pa.Table, key: Columns, columns: Columns) -> pa.Table:
        return held_rows(self._session, self._names.table, keys, key, columns)

    def _remove(self, flush: Flush, rows: pa.Table, chunk: RowChunk, known: int) -> tuple[int, int]:
        """The number of removed rows, and how many of them an INSERT removed (G4)."""
        removed = duplicates = 0
        inserts = flush.duplicates == "warn"
        if not known and not inserts:
            return 0, 0
        key = tuple(column for column in flush.columns if column.name in flush.key)
        for filled in filled_columns(rows, key):
            arrays = chunk.keys(key, filled, inserts=inserts)
            if arrays[0]:
                row = self._session.run(removal(self._names.table, key, filled), arrays, wait_ms=BULK_MS).fetchone()
                assert row is not None
                removed, duplicates = removed + row[0], duplicates + row[1]
        return removed, duplicates

    def _encoded(self, chunk: RowChunk, columns: Columns, *, staged: bool) -> bytes:
        try:
            return chunk.rows(columns, staged=staged)
        except DestinationHalted as error:
            raise self._halted(str(error)) from error

    def _write(self, table: str, content: bytes | None, columns: Columns, index: str | None) -> int:
        """Copy rows in. A violation of ``index`` is a duplicate key; without a name, that of any index."""
        if content is None:
            return 0
        names = ", ".join(identifier(column.name) for column in columns)
        try:
            return self._session.copy_in(f"COPY {table} ({names}) FROM STDIN (FORMAT binary)", content)
        except psycopg.errors.UniqueViolation as error:
            if index is not None and error.diag.constraint_name != index:
                raise
            raise self._duplicate(error) from error

    def _write_all(self, table: str, rows: Iterable[pa.RecordBatch], columns: Columns, index: str | None) -> int:
        written = 0
        for part in chunks(rows, [column.name for column in columns]):
            with shared_encoder().chunk(part) as chunk:
                content = self._encoded(chunk, columns, staged=False)
            written += self._write(table, content, columns, index)
        return written

    def _write_position(self, step: Flush | Seed, columns: Columns | None, found: PostgresTableState) -> None:
        """Update the position and the token, if they are still as found (G1)."""
        before = found.record.position if found.record is not None else 0
        words = None if columns is None else msgspec.json.encode(columns).decode()
        done = self._session.run(
            f"UPDATE {self._names.positions.replace('%', '%%')} SET position = %s, token = %s, source = %s, mark = %s, "
            "columns = coalesce(%s, columns) WHERE table_name = %s AND position = %s AND token <= %s",
            [
                *(step.through, step.token, step.source, stored_mark(reached(step))),
                *(words, self._address.table, before, step.token),
            ],
            prepare=True,
        )
        if done.rowcount != 1:
            raise PositionMoved(before, before)

    # -------------------------------------------------------------------------------------------------------- seeding

    def seed(self, seed: Seed, rows: Iterable[pa.RecordBatch]) -> Applied:
        check_columns(seed.columns, seed.key, None)
        self._make_positions(replace_existing=seed.replace_existing)
        with self._session.transaction(self._what):
            found = self._read_state(self._session, lock=True)
            if (done := self._judged(found, seed)) is not None:
                return done
            if found.record is None:
                found = self._claim(seed.source)
            if found.exists:
                self._check_delivered(found, replace_existing=seed.replace_existing)
            self._session.run(f"SET LOCAL statement_timeout = {REBUILD_MS}")
            removed, written = self._replace(seed, found, rows)
            self._write_position(seed, seed.columns, found)
        return Applied(seed.through, removed=removed, written=written)

    def _replace(self, seed: Seed, found: PostgresTableState, rows: Iterable[pa.RecordBatch]) -> tuple[int, int]:
        """Replace the content of the table (G5)."""
        if self._keeps_columns(seed, found):
            removed = self._session.run(f"DELETE FROM {self._names.table}", wait_ms=REBUILD_MS).rowcount
            return removed, self._write_all(self._names.table, rows, seed.columns, found.key_index(seed.key))
        beside = f"{RESERVED_PREFIX}_seed_{hashlib.sha256(self._address.table.encode()).hexdigest()[:16]}"
        target = self._names.beside(beside) if found.exists else self._names.table
        self._create(target, seed.columns, seed.key, seed.mode)
        written = self._write_all(target, rows, seed.columns, None)
        self._index(target, seed.key, seed.mode)
        if not found.exists:
            return 0, written
        counted = self._session.run(f"SELECT count(*) FROM {self._names.table}", wait_ms=REBUILD_MS).fetchone()
        assert counted is not None
        self._session.run(f"SET LOCAL lock_timeout = {SWAP_LOCK_MS}")
        self._session.run(f"DROP TABLE {self._names.table}", wait_ms=2 * SWAP_LOCK_MS)
        self._session.run(f"ALTER TABLE {target} RENAME TO {identifier(self._address.table)}")
        return counted[0], written

    def _keeps_columns(self, seed: Seed, found: PostgresTableState) -> bool:
        wanted = {column.name: stored_type(column) for column in seed.columns}
        if not found.exists or found.actual != wanted:
            return False
        return (found.key_index(seed.key) is not None) if seed.mode == "mirror" else not found.unique

    def _check_delivered(self, found: PostgresTableState, *, replace_existing: bool) -> None:
        if found.kind != "r":
            raise self._halted("it is not a plain table; choose another name, or drop it")
        if found.record is None and not replace_existing:
            raise self._halted(
                "it exists and was not delivered; choose another table, or set replace_existing: true and seed it"
            )

    def _create(self, table: str, columns: Columns, key: tuple[str, ...], mode: Mode) -> None:
        check_columns(columns, key if mode == "mirror" else (), None)
        listed = ", ".join(f"{identifier(column.name)} {stored_type(column)}" for column in columns)
        self._session.run(f"CREATE TABLE {table} ({listed})")

    def _index(self, table: str, key: tuple[str, ...], mode: Mode) -> None:
        if mode == "append":
            return
        listed = ", ".join(identifier(name) for name in key)
        try:
            self._session.run(f"CREATE UNIQUE INDEX ON {table} ({listed}) NULLS NOT DISTINCT", wait_ms=REBUILD_MS)
        except psycopg.errors.UniqueViolation as error:
            raise self._duplicate(error) from error

    def _make_positions(self, *, create: bool = True, replace_existing: bool = False) -> None:
        """Create the table of positions before the transaction, so that a long seed blocks no other process."""
        if self._positions_seen and self._marks_seen:
            return
        with self._session.transaction(self._what):
            seen, marked = positions_found(self._session, self._names)
            if not seen and not create:
                return
            if not seen:
                found = read_state(self._session, self._names, recorded=False)
                if found.exists:
                    self._check_delivered(found, replace_existing=replace_existing)
            if not marked:
                self._session.run(f"SELECT pg_advisory_xact_lock(hashtext({literal(self._names.positions)}))")
                self._session.run(f"SET LOCAL lock_timeout = {MARK_LOCK_MS}")
                for statement in positions_statements(self._names):
                    self._session.run(statement)
        self._positions_seen = self._marks_seen = True

    # --------------------------------------------------------------------------------------------------------- ending

    def retire(self) -> None:
        with self._session.transaction(self._what):
            found = self._read_state(self._session, lock=True)
            if found.record is not None:
                self._session.run(f"DELETE FROM {self._names.positions} WHERE {self._names.record}")

    def _halted(self, text: str) -> DestinationHalted:
        return DestinationHalted(f"{self._what} at {self._session.place}: {text}")

    def _duplicate(self, error: psycopg.Error) -> DuplicateKey:
        detail = error.diag.message_detail or error.diag.message_primary
        return DuplicateKey(
            f"{self._what}: two rows of the source share a key: {detail} "
            "Remove one of them in the source, or set duplicates: warn"
        )
