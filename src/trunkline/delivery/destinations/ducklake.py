"""A table of a DuckLake as a destination. Rules T1 to T7 are in ``contract.py``; this is how they are implemented.

Rules
 K1  ``_trunkline_<table>``, in the table's schema, has one row: position, token, source, mark. It is read and written
     in the transaction that writes the rows, and no transaction commits unless it saw every earlier one (L2). So of two
     concurrent flushes one commits, and the other is judged again by the result of the first. One statement updates the
     row if it is as the flush expects; only otherwise the row is read and judged. After a first flush the row is
     inlined into the catalog: that saves each flush the two files of an update.
 K2  Rows of a flush or a seed are staged in a temporary table before the lake is attached: they block no other process
     while they arrive, and a commit that is refused is retried without reading them again.
 K3  One statement removes all staged keys. It fails on a row whose key is an INSERT (T4, halt).
 K4  Keys are compared with ``=``; if a staged one has a NULL (or a NUL), with ``IS NOT DISTINCT FROM``, which also
     finds those, but reads more files.
 K5  Every ``COMPACT_EVERY`` flushes of a process the smallest files are merged and former positions are flushed from
     the catalog, each in a transaction of its own after that of the flush. This changes no row and may fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Final

import duckdb
import pyarrow as pa
from msgspec import Struct

from trunkline.delivery.backends.sql import first_line, identifier, literal
from trunkline.delivery.changes.columns import Column, Columns, arrow_schema, check_columns, evolution
from trunkline.delivery.changes.rows import BATCH_ROWS, RESERVED_PREFIX
from trunkline.delivery.config.addresses import LakeAddress
from trunkline.delivery.destinations.contract import (
    Applied,
    Flush,
    Seed,
    Standing,
    checked_steps,
    judged,
    mark_of,
    reached,
    stored_mark,
)
from trunkline.delivery.destinations.ducklake_attachments import (
    AttachedLakes,
    CommitConflict,
    LakeSession,
    NoLake,
    process_lakes,
)
from trunkline.delivery.destinations.ducklake_compaction import (
    COMPACT_EVERY,
    compact,
    drop_old_rows,
    keep_in_catalog,
)
from trunkline.delivery.destinations.ducklake_stage import (
    DUPLICATE,
    STAGED,
    FlushStage,
    export_list,
    key_text,
    stage_rows,
)
from trunkline.delivery.destinations.ducklake_steps import follow_steps
from trunkline.errors import (
    ConfigError,
    DestinationHalted,
    DuplicateKey,
    OutcomeUnknown,
    PositionMoved,
    Refused,
    SchemaMismatch,
    Unreachable,
)

COMMIT_TRIES: Final = 16  # of a transaction that conflicts with others; each try sees what they wrote
ORPHAN_AGE_S: Final = 86_400  # of an unreferenced file: younger ones may belong to a flush that is under way


class LakeTableState(Struct, frozen=True):
    """The destination as one transaction sees it."""

    standing: Standing | None  # as recorded; meaningless without a table
    columns: Columns | None  # of the table, if it exists
    marked: bool = False  # the record has a column for the mark; that of an older release has not


class DuckLakeDestination:
    """One table. Destinations of one process share a DuckDB instance, unless ``lakes`` gives another."""

    def __init__(self, address: LakeAddress, lakes: AttachedLakes | None = None) -> None:
        if address.table.lower().startswith(RESERVED_PREFIX):
            raise ConfigError(
                f"table {address.table!r} cannot be a destination: names that begin with {RESERVED_PREFIX} are "
                "reserved; choose another"
            )
        self._address = address
        self._lakes = process_lakes() if lakes is None else lakes
        self._what = f"table {address.schema}.{address.table} of {address.catalog}"
        self._reading = ExitStack()  # the open session of ``rows``

    def close(self) -> None:
        self._reading.close()

    # -------------------------------------------------------------------------------------------------------- reading

    def standing(self) -> Standing | None:
        found = self._current()
        return found.standing if found.columns is not None else None

    def columns(self) -> Columns | None:
        return self._current().columns

    def _current(self) -> LakeTableState:
        with self._lakes.session(self._address) as lake:
            try:
                lake.attach()
            except NoLake:
                return LakeTableState(None, None)
            lake.run("BEGIN")
            return self._state(lake)

    def rows(self) -> tuple[Standing, Iterator[pa.RecordBatch]]:
        """The lake stays in use until the iterator is exhausted, the next call of ``rows``, or ``close``."""
        self._reading.close()
        with ExitStack() as stack:
            lake = stack.enter_context(self._lakes.session(self._address))
            lake.attach()
            lake.run("BEGIN")
            found = self._state(lake)
            if found.columns is None or found.standing is None:
                raise DestinationHalted(f"{self._what} has no position: nothing was delivered to it; seed it first")
            reader = lake.read(f"SELECT {export_list(found.columns)} FROM {self._table(lake)}", BATCH_ROWS)
            self._reading = stack.pop_all()
            return found.standing, _batches(reader, arrow_schema(found.columns), self._reading)

    def _state(self, lake: LakeSession) -> LakeTableState:
        columns = self._table_columns(lake)
        try:
            rows = lake.run(f"SELECT * FROM {self._positions(lake)}")
        except duckdb.CatalogException:
            return LakeTableState(None, columns)
        for position, token, source, *mark in rows:
            return LakeTableState(
                Standing(position, token, source, mark_of(position, *mark or [""])), columns, bool(mark)
            )
        return LakeTableState(None, columns)

    def _table_columns(self, lake: LakeSession) -> Columns | None:
        try:
            rows = lake.run(f"DESCRIBE {self._table(lake)}")
        except duckdb.CatalogException:
            return None
        return tuple(Column(name, type_name, null == "YES") for name, type_name, null, *_ in rows)

    # -------------------------------------------------------------------------------------------------------- flushing

    def flush(self, flush: Flush, staged: Iterable[pa.RecordBatch]) -> Applied:
        _check(flush)
        with self._lakes.session(self._address) as lake:
            stage = FlushStage(flush)
            stage.fill(lake, staged)
            try:
                lake.attach(create=flush.expected == 0)
            except NoLake:
                raise PositionMoved(0, flush.expected) from None
            return self._with_retries(lambda: self._flush(lake, flush, stage))

    def _with_retries(self, attempt: Callable[[], Applied]) -> Applied:
        """Retry a transaction while it conflicts with others."""
        for _ in range(COMMIT_TRIES):
            try:
                return attempt()
            except CommitConflict as error:
                conflict = error
        raise Unreachable(f"{self._what}: {conflict}")

    def _flush(self, lake: LakeSession, flush: Flush, stage: FlushStage) -> Applied:
        lake.run("BEGIN")
        columns = self._table_columns(lake)
        if columns is not None and self._advance(lake, flush):
            reshaped = self._evolve(lake, flush, columns)
            applied = self._apply(lake, flush, stage, reshaped)
            lake.commit()
        else:
            applied = self._judged_flush(lake, flush, stage)
        if not applied.already:
            self._lakes.flushed[self._address] += 1
            self._do_upkeep(lake, self._lakes.flushed[self._address])
        return applied

    def _advance(self, lake: LakeSession, flush: Flush) -> bool:
        """Update the position if the fence decides PROCEED. CASE prevents a search in the lake's statistics, which
        takes longer than all the rest: the table has one row."""
        if (flush.expected, flush.mark) == (flush.through, flush.through_mark):
            return False  # if it is stored, the flush was done before
        before = Standing(flush.expected, flush.token, flush.source, flush.mark)
        same = f"mark = {literal(stored_mark(before))}"
        if not flush.mark:  # the stored mark belongs to another position, or is empty
            same = f"NOT starts_with(mark, {literal(f'{flush.expected}:')})"
        try:
            [(count,)] = lake.run(
                f"UPDATE {self._positions(lake)} SET position = {flush.through}, token = {flush.token}, "
                f"mark = {literal(stored_mark(reached(flush)))} "
                f"WHERE CASE WHEN position = {flush.expected} AND token <= {flush.token} "
                f"AND source = {literal(flush.source)} AND {same} THEN true ELSE false END"
            )
        except (duckdb.CatalogException, duckdb.BinderException):
            return False
        return bool(count)

    def _judged_flush(self, lake: LakeSession, flush: Flush, stage: FlushStage) -> Applied:
        """A first flush, or one after another writer."""
        found = self._state(lake)
        if (done := self._judged(found, flush, replace_existing=False)) is not None:
            return done
        reshaped = ""
        if found.columns is None:
            self._make_table(lake, flush.columns)
        else:
            reshaped = self._evolve(lake, flush, found.columns)
        applied = self._apply(lake, flush, stage, reshaped)
        self._write_position(lake, found, reached(flush))
        lake.commit()
        return applied

    def _judged(self, found: LakeTableState, step: Flush | Seed, *, replace_existing: bool) -> Applied | None:
        """``None`` if the step may proceed; a result if it was done before. Without a table there is no position."""
        recorded = found.standing
        if found.columns is not None and recorded is None and not replace_existing:
            raise DestinationHalted(
                f"{self._what} holds rows that were not delivered; set replace_existing to replace them, "
                "or choose another table"
            )
        if recorded is not None and found.columns is None:
            recorded = Standing(0, recorded.token, recorded.source)
        return judged(recorded, step, self._what)

    def _apply(self, lake: LakeSession, flush: Flush, stage: FlushStage, reshaped: str) -> Applied:
        if stage.rows == 0:
            return Applied(flush.through, reshaped=reshaped)
        stage.complete(lake, self._table(lake), self._what)
        removed = duplicates = missing = 0
        if flush.mode == "mirror":
            if flush.duplicates == "warn":
                held = dict(lake.run(stage.held_statement(self._table(lake))))
                duplicates = held.get(True, 0)
                missing = stage.removals - held.get(False, 0)
            removed = self._remove(lake, stage)
            if flush.duplicates == "halt":
                missing = max(0, stage.removals - removed)
        [(written,)] = lake.run(stage.insert_statement(self._table(lake)))
        return Applied(flush.through, removed, written, duplicates, missing, reshaped=reshaped)

    def _remove(self, lake: LakeSession, stage: FlushStage) -> int:
        try:
            [(removed,)] = lake.run(stage.delete_statement(self._table(lake)))
        except duckdb.InvalidInputException as error:
            _, found, key = first_line(error).partition(DUPLICATE)
            if not found:
                raise
            raise DuplicateKey(
                f"{self._what} already holds a row with the key {key}: two rows of the source share it; "
                "fix the source and resume, or set duplicates: warn"
            ) from error
        return int(removed)

    def _evolve(self, lake: LakeSession, flush: Flush, held: Columns) -> str:
        """Make the table accept the source's rows (T6); returns the steps that it followed."""
        if (steps := checked_steps(flush, held, self._what)) is not None:
            return follow_steps(lake, self._address, steps)
        change = evolution(flush.columns, held)
        if change.problems:
            raise SchemaMismatch(
                f"{self._what} cannot follow its source: {'; '.join(change.problems)}; "
                "change the table by hand and resume, or reseed it"
            )
        for column in change.added:
            lake.run(f"ALTER TABLE {self._table(lake)} ADD COLUMN {identifier(column.name)} {column.type}")
        for column in change.widened:
            name = identifier(column.name)
            try:
                lake.run(f"ALTER TABLE {self._table(lake)} ALTER COLUMN {name} SET DATA TYPE {column.type}")
            except duckdb.Error as error:
                raise SchemaMismatch(
                    f"{self._what} cannot widen column {column.name!r} to {column.type} ({first_line(error)}); "
                    "reseed it"
                ) from error
        return ""

    # -------------------------------------------------------------------------------------------------------- seeding

    def seed(self, seed: Seed, rows: Iterable[pa.RecordBatch]) -> Applied:
        _check(seed)
        with self._lakes.session(self._address) as lake:
            stage_rows(lake, seed.columns, rows)
            lake.attach(create=True)
            return self._with_retries(lambda: self._seed(lake, seed))

    def _seed(self, lake: LakeSession, seed: Seed) -> Applied:
        lake.run("BEGIN")
        found = self._state(lake)
        if (done := self._judged(found, seed, replace_existing=seed.replace_existing)) is not None:
            return done
        removed = 0
        if found.columns is not None:
            [(removed,)] = lake.run(f"SELECT count(*) FROM {self._table(lake)}")
        self._make_table(lake, seed.columns)
        [(written,)] = lake.run(f"INSERT INTO {self._table(lake)} FROM {STAGED}")
        if seed.mode == "mirror":
            self._check_unique(lake, seed.key)
        self._write_position(lake, found, reached(seed))
        lake.commit()
        return Applied(seed.through, removed, written)

    def _check_unique(self, lake: LakeSession, key: Sequence[str]) -> None:
        names = ", ".join(map(identifier, key))
        doubled = lake.run(
            f"SELECT {key_text(key)} FROM {self._table(lake)} GROUP BY {names} HAVING count(*) > 1 LIMIT 1"
        )
        if doubled:
            raise DuplicateKey(
                f"{self._what} cannot be seeded: several rows of the source share the key {doubled[0][0]}; "
                "fix the source, or set duplicates: warn"
            )

    def _make_table(self, lake: LakeSession, columns: Columns) -> None:
        names = ", ".join(f"{identifier(column.name)} {column.type}" for column in columns)
        lake.run(f"CREATE SCHEMA IF NOT EXISTS {lake.alias}.{identifier(self._address.schema)}")
        lake.run(f"CREATE OR REPLACE TABLE {self._table(lake)} ({names})")

    def _write_position(self, lake: LakeSession, found: LakeTableState, to: Standing) -> None:
        """Write the position record; create it if needed."""
        record, source, mark = self._positions(lake), literal(to.source), literal(stored_mark(to))
        if found.standing is None or not found.marked:
            lake.run(f"CREATE OR REPLACE TABLE {record} (position BIGINT, token BIGINT, source VARCHAR, mark VARCHAR)")
            lake.run(f"INSERT INTO {record} VALUES ({to.position}, {to.token}, {source}, {mark})")
        else:
            changed = f"position = {to.position}, token = {to.token}, source = {source}, mark = {mark}"
            lake.run(f"UPDATE {record} SET {changed}")

    # -------------------------------------------------------------------------------------------------------- upkeep

    def retire(self) -> None:
        with self._lakes.session(self._address) as lake:
            try:
                lake.attach()
            except NoLake:
                return
            lake.run("BEGIN")
            lake.run(f"DROP TABLE IF EXISTS {self._positions(lake)}")
            lake.commit()

    def compact(self) -> int:
        """Merge the smallest files, if there are enough; returns how many. Flushes do the same from time to time."""
        with self._lakes.session(self._address) as lake:
            lake.attach()
            return compact(lake, self._address.schema, self._address.table)

    def _do_upkeep(self, lake: LakeSession, flushes: int) -> None:
        schema, table = self._address.schema, self._address.table
        try:
            if flushes == 1:
                keep_in_catalog(lake, schema, self._record_name)
            if flushes % COMPACT_EVERY == 0:
                compact(lake, schema, table)
                drop_old_rows(lake, schema, self._record_name)
        except (duckdb.Error, Refused, OutcomeUnknown):  # the flush is done; the next one reports what is wrong here
            lake.roll_back()

    def clean_orphans(self, age_s: int = ORPHAN_AGE_S) -> int:
        """Delete unreferenced files of the whole lake, which killed processes leave; returns how many.

        A file younger than ``age_s`` may belong to a flush that is under way.
        """
        with self._lakes.session(self._address) as lake:
            lake.attach()
            age = f"now() - INTERVAL {age_s} SECONDS"
            return len(lake.run(f"CALL ducklake_delete_orphaned_files({literal(lake.alias)}, older_than => {age})"))

    # -------------------------------------------------------------------------------------------------------- names

    def _table(self, lake: LakeSession) -> str:
        return f"{lake.alias}.{identifier(self._address.schema)}.{identifier(self._address.table)}"

    def _positions(self, lake: LakeSession) -> str:
        return f"{lake.alias}.{identifier(self._address.schema)}.{identifier(self._record_name)}"

    @property
    def _record_name(self) -> str:
        return f"{RESERVED_PREFIX}_{self._address.table}"


def _check(step: Flush | Seed) -> None:
    check_columns(step.columns, step.key, None)
    if step.mode == "mirror" and not step.key:
        raise ConfigError("mode mirror needs a key; list its columns in `key`, or set mode: append")


def _batches(reader: pa.RecordBatchReader, schema: pa.Schema, reading: ExitStack) -> Iterator[pa.RecordBatch]:
    with reading:
        for batch in reader:
            yield batch.cast(schema)
