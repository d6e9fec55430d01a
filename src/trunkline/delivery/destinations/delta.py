"""A Delta table in a directory as a destination, through delta-rs.

Rules
 D1  All input of a flush is read from one version of the table: position, columns, files and their keys. The commit
     succeeds on that version only (``delta_log``, L1): so every check of T2, T4 and T6 holds in the transaction.
 D2  After a failed commit the table is read again: the token or position shows another deliverer. All else is
     ``Unreachable``: another writer, such as a compaction, was faster, nothing was written, and the flush can be
     retried.
 D3  Rows change by rewriting their data files (``delta_merge``); a file that no commit names is invisible. A change of
     the columns rewrites every file, piece by piece: a commit of delta-rs changes them only together with all files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from trunkline.delivery.backends.delta_types import columns_of, conformed, stored_schema
from trunkline.delivery.backends.duckdb_pool import pooled_duckdb
from trunkline.delivery.backends.sql import identifier
from trunkline.delivery.changes.column_steps import ColumnSteps
from trunkline.delivery.changes.columns import Columns, arrow_schema, check_columns, evolution
from trunkline.delivery.config.addresses import DeltaAddress
from trunkline.delivery.destinations.contract import Applied, Flush, Seed, Standing, checked_steps, judged, reached
from trunkline.delivery.destinations.delta_files import FileWriter, removal
from trunkline.delivery.destinations.delta_log import RETIRED, CommitLost, DeltaLog, LoadedVersion
from trunkline.delivery.destinations.delta_merge import DeltaMerge, opened
from trunkline.delivery.destinations.delta_steps import rewritten
from trunkline.delivery.destinations.unstated import completed
from trunkline.errors import (
    ConfigError,
    DestinationHalted,
    DuplicateKey,
    SchemaMismatch,
    Unreachable,
)


class DeltaDestination:
    """One Delta table. Caches the version that it loaded last, and checks for a newer one at each call."""

    def __init__(self, address: DeltaAddress) -> None:
        if "%" in address.path:
            raise ConfigError(f"the path {address.path} has a percent sign, which delta-rs unescapes; rename it")
        self._folder = Path(address.path).absolute()
        self._log = DeltaLog(self._folder, lambda name: self._step(name))

    def _step(self, name: str) -> None:
        """Called before each access to the storage; tests stop the process here."""

    def standing(self) -> Standing | None:
        return loaded.standing if (loaded := self._log.load()) else None

    def columns(self) -> Columns | None:
        return columns_of(loaded.schema) if (loaded := self._log.load()) else None

    def rows(self) -> tuple[Standing, Iterator[pa.RecordBatch]]:
        loaded = self._log.load()
        if loaded is None or loaded.standing is None:
            raise DestinationHalted(f"{self._folder}: the table has no position; seed the destination first")
        return loaded.standing, self._read(loaded)

    def flush(self, flush: Flush, staged: Iterable[pa.RecordBatch]) -> Applied:
        loaded = self._log.load()
        if (done := self._judged(loaded, flush, replace_existing=False)) is not None:
            return done
        steps = checked_steps(flush, columns_of(loaded.schema), str(self._folder)) if loaded else None
        schema = self._schema_for(loaded, flush, steps)
        loaded = self._log.with_features(loaded, schema) if loaded else None
        replace = loaded is not None and (steps is not None or schema != loaded.schema)
        files = () if loaded is None else loaded.files
        merge = DeltaMerge(self._folder, files, schema, flush.key, flush.mode, flush.duplicates, self._step, steps)
        with self._writer(schema, flush.key) as writer:
            for piece in merge.pieces(completed(staged, flush, merge.held, str(self._folder)), replace):
                writer.add(piece)
            added = writer.keep()
        removed = [] if replace else [removal(file) for file in merge.touched]
        try:
            self._log.commit(loaded, schema, [*removed, *added], reached(flush), replace)
        except CommitLost as lost:
            if (done := self._judged(lost.now, flush, replace_existing=False)) is not None:
                return done
            raise Unreachable(str(lost)) from lost
        return merge.applied(flush.through, "" if steps is None else rewritten(steps, files))

    def seed(self, seed: Seed, rows: Iterable[pa.RecordBatch]) -> Applied:
        check_columns(seed.columns, seed.key, None)
        schema = stored_schema(seed.columns, seed.source)
        loaded = self._log.load()
        if (done := self._judged(loaded, seed, replace_existing=seed.replace_existing)) is not None:
            return done
        loaded = self._log.with_features(loaded, schema) if loaded else None
        written, keys = 0, []
        with self._writer(schema, seed.key) as writer:
            for batch in rows:
                piece = conformed(pa.Table.from_batches([batch]), schema)
                written += len(piece)
                writer.add(piece)
                if seed.mode == "mirror":
                    keys.append(piece.select(seed.key))
            if keys:
                self._check_unique(seed.key, pa.concat_tables(keys))
            added = writer.keep()
        try:
            self._log.commit(loaded, schema, added, reached(seed), loaded is not None)
        except CommitLost as lost:
            if not _landed(lost.now, reached(seed), {action.path for action in added}):
                if (done := self._judged(lost.now, seed, replace_existing=seed.replace_existing)) is not None:
                    return done
                raise Unreachable(str(lost)) from lost
        return Applied(seed.through, sum(file.rows or 0 for file in loaded.files) if loaded else 0, written)

    def retire(self) -> None:
        loaded = self._log.load()
        if loaded is None or loaded.standing is None:
            return
        try:
            self._log.commit(loaded, loaded.schema, [], RETIRED)
        except CommitLost as lost:
            if lost.now is not None and lost.now.standing is not None:
                raise Unreachable(str(lost)) from lost

    def close(self) -> None:
        self._log.forget()

    def _writer(self, schema: pa.Schema, key: tuple[str, ...]) -> FileWriter:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Unreachable(
                f"{self._folder}: the directory cannot be created: {error}; check the path and its permissions"
            ) from error
        return FileWriter(self._folder, schema, key, self._step)

    def _read(self, loaded: LoadedVersion) -> Iterator[pa.RecordBatch]:
        travelling = arrow_schema(columns_of(loaded.schema))
        for file in loaded.files:
            with opened(self._folder, file) as reader:
                for group in range(reader.num_row_groups):
                    rows = conformed(reader.read_row_group(group, use_threads=False), loaded.schema)
                    yield from conformed(rows, travelling).to_batches()

    def _judged(self, loaded: LoadedVersion | None, step: Flush | Seed, *, replace_existing: bool) -> Applied | None:
        """``None`` if a step may proceed, a result if it was done before (T2, T5)."""
        if loaded is None:
            check_columns(step.columns, step.key, None)
            return judged(None, step, str(self._folder))
        if loaded.standing is None and not replace_existing:
            raise DestinationHalted(
                f"{self._folder}: there is a Delta table that was not delivered; choose another path, or set "
                "replace_existing: true to replace it"
            )
        return judged(loaded.standing, step, str(self._folder))

    def _check_unique(self, key: tuple[str, ...], keys: pa.Table) -> None:
        """With DuckDB, which needs a third of Arrow's memory for this; GROUP BY treats NULLs as equal."""
        names = ", ".join(identifier(name) for name in key)
        with pooled_duckdb() as connection:
            connection.register("seeded_keys", keys)
            shared = connection.sql(
                f"SELECT {names}, count(*) FROM seeded_keys GROUP BY {names} HAVING count(*) > 1 LIMIT 1"
            ).fetchone()
            connection.unregister("seeded_keys")
        if shared is not None:
            spelled = ", ".join(f"{name} = {value}" for name, value in zip(key, shared, strict=False))
            raise DuplicateKey(
                f"{self._folder}: {shared[-1]} rows of the source share the key {spelled}; make it unique there, or "
                "choose another key"
            )

    def _schema_for(self, loaded: LoadedVersion | None, flush: Flush, steps: ColumnSteps | None) -> pa.Schema:
        """The schema after the flush: the table's own one, or one that follows the source (T6)."""
        if loaded is None:
            return stored_schema(flush.columns, flush.source)
        held = columns_of(loaded.schema)
        if steps is not None:
            check_columns(flush.columns, flush.key, None)
            return stored_schema(steps.followed(held), flush.source)
        change = evolution(flush.columns, held)
        if change.problems:
            raise SchemaMismatch(f"{self._folder}: {'; '.join(change.problems)}; seed the destination again")
        if not change.added and not change.widened:
            return loaded.schema
        check_columns(flush.columns, flush.key, None)
        wider = {column.name: column for column in change.widened}
        return stored_schema([*(wider.get(column.name, column) for column in held), *change.added], flush.source)


def _landed(now: LoadedVersion | None, standing: Standing, paths: set[str]) -> bool:
    """Whether a commit that was reported as failed has succeeded."""
    return now is not None and now.standing == standing and paths <= {file.path for file in now.files}
