"""One Delta table: what a step writes is prepared in files that no commit names, and then committed.

Rules
 D1  All input of a step is read from one version of the table: record, columns, files and their keys. The commit
     succeeds on that version only (``delta_log``, L1): so every check of T2, T4 and T6 holds in the transaction.
 D2  Rows change by rewriting their data files (``delta_merge``, ``delta_history``); a file that no commit names is
     invisible. A change of the columns rewrites every file, piece by piece: a commit of delta-rs changes them only
     together with all files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress

import pyarrow as pa
from deltalake.transaction import AddAction
from msgspec import Struct
from msgspec.structs import replace

from trunkline.delivery.backends.delta_types import columns_of, conformed, source_identity, stored_schema
from trunkline.delivery.backends.duckdb_pool import pooled_duckdb
from trunkline.delivery.backends.object_errors import StoreError, StoreRefusal
from trunkline.delivery.backends.sql import identifier
from trunkline.delivery.backends.table_folder import table_folder
from trunkline.delivery.changes.column_steps import ColumnSteps
from trunkline.delivery.changes.columns import arrow_schema, evolution
from trunkline.delivery.changes.history import HISTORY_NAMES, VALID_TO
from trunkline.delivery.config.addresses import Address, DeltaAddress
from trunkline.delivery.destinations.contract import Applied, Batches, MemberStep, TableStep, checked_steps
from trunkline.delivery.destinations.delta_commit import FileAction
from trunkline.delivery.destinations.delta_files import FileWriter, removal
from trunkline.delivery.destinations.delta_history import HistoryMerge
from trunkline.delivery.destinations.delta_log import DeltaLog, LoadedVersion
from trunkline.delivery.destinations.delta_merge import DeltaMerge, file_groups
from trunkline.delivery.destinations.delta_record import TableRecord
from trunkline.delivery.destinations.delta_steps import rewritten
from trunkline.delivery.destinations.lone_tables import LoneVersion
from trunkline.delivery.destinations.unstated import completed
from trunkline.errors import DestinationHalted, DuplicateKey, SchemaMismatch, Unreachable


class PreparedTable(Struct, frozen=True):
    """What a step does to a table, all but the commit."""

    loaded: LoadedVersion | None
    schema: pa.Schema
    actions: Sequence[FileAction]
    replace: bool  # these files are all files
    applied: Applied
    keep: Callable[[], None]  # called before the commit: the files may be named from then on

    @property
    def changes(self) -> bool:
        """Whether anything but the record changes."""
        return self.replace or self.loaded is None or bool(self.actions)


class DeliveredTable:
    """A table. Caches the version that it loaded last, and checks for a newer one at each call."""

    def __init__(self, address: DeltaAddress, step: Callable[[str], None], properties: Mapping[str, str]) -> None:
        self.folder = table_folder(address)
        self.address = address
        self.log = DeltaLog(self.folder, step, properties)
        self._step = step

    @property
    def path(self) -> str:
        return str(self.folder)

    def load(self) -> LoadedVersion | None:
        return self.log.load()

    def prepared(self, stack: ExitStack, step: MemberStep, table: TableStep, rows: Batches | None) -> PreparedTable:
        """On the version that was loaded last. Files are removed when ``stack`` ends, unless they are kept."""
        loaded = self.log.loaded
        batches: Iterable[pa.RecordBatch] = () if rows is None else rows()
        if table.replaces and not (table.mode == "history" and not table.discards and _is_history(loaded)):
            return self._replaced(stack, step, table, loaded, batches)
        return self._merged(stack, step, table, loaded, batches)

    def _merged(
        self,
        stack: ExitStack,
        step: MemberStep,
        table: TableStep,
        loaded: LoadedVersion | None,
        batches: Iterable[pa.RecordBatch],
    ) -> PreparedTable:
        # A first flush: rows that a broken one left do not count. A history is never begun again.
        fresh = loaded is None or (step.expected == 0 and table.mode != "history")
        held = () if loaded is None or fresh else columns_of(loaded.schema)
        steps = None if fresh else checked_steps(table, held, step.expected, str(self.folder))
        schema = self._schema_for(None if fresh else loaded, step, table, steps)
        loaded = self.log.with_features(loaded, schema) if loaded else None
        replace = loaded is not None and (fresh or steps is not None or schema != loaded.schema)
        files = () if loaded is None or fresh else loaded.files
        writer = self._writer(stack, schema, table)
        merge: DeltaMerge | HistoryMerge
        if table.mode == "history":
            merge = HistoryMerge(self.folder, files, schema, table.key, table.duplicates, self._step, steps)
        else:
            shape = (schema, table.key, table.mode, table.duplicates)
            marks = loaded is not None and loaded.form.marks and not replace
            merge = DeltaMerge(self.folder, files, *shape, self._step, steps, marks)
        if table.replaces:
            assert isinstance(merge, HistoryMerge)
            present = self._checked_keys(table, schema, batches)
            pieces = merge.replacement(present, step.through, replace)
        else:
            pieces = merge.pieces(completed(batches, table, merge.held, str(self.folder)), replace)
        for piece in pieces:
            writer.add(piece)
        added = writer.finish()
        removed: list[FileAction] = [] if replace else [removal(file) for file in merge.touched]
        if isinstance(merge, DeltaMerge):
            removed += merge.marked
        reshaped = "" if steps is None else rewritten(steps, files)
        applied = merge.applied(step.through, reshaped, table.counts_missing)
        return PreparedTable(loaded, schema, [*removed, *added], replace, applied, writer.keep)

    def _replaced(
        self,
        stack: ExitStack,
        step: MemberStep,
        table: TableStep,
        loaded: LoadedVersion | None,
        batches: Iterable[pa.RecordBatch],
    ) -> PreparedTable:
        schema = stored_schema(table.columns, step.source)
        loaded = self.log.with_features(loaded, schema) if loaded else None
        writer, written = self._writer(stack, schema, table), 0
        for batch in self._checked_keys(table, schema, batches):
            piece = conformed(pa.Table.from_batches([batch]), schema)
            written += len(piece)
            writer.add(piece)
        before = sum(file.live_rows or 0 for file in loaded.files) if loaded else 0
        applied = Applied(step.through, before, written)
        return PreparedTable(loaded, schema, writer.finish(), loaded is not None, applied, writer.keep)

    def commit(self, prepared: PreparedTable, record: TableRecord, after: LoadedVersion | None = None) -> None:
        """``after``: a later version than that of ``prepared``, which only has another record."""
        prepared.keep()
        self.log.commit(after or prepared.loaded, prepared.schema, prepared.actions, record, prepared.replace)

    def begin(self, prepared: PreparedTable, record: TableRecord) -> None:
        self.log.commit(prepared.loaded, prepared.schema, [], record, prepared.loaded is not None)

    def commit_record(self, loaded: LoadedVersion, record: TableRecord) -> None:
        self.log.commit(loaded, loaded.schema, [], record)

    def retire(self, loaded: LoadedVersion) -> None:
        self.log.retire(loaded)

    def landed(self, now: LoneVersion | None, record: TableRecord, prepared: PreparedTable) -> bool:
        added = {action.path for action in prepared.actions if isinstance(action, AddAction)}
        found = {file.path for file in now.files} if isinstance(now, LoadedVersion) and now.record == record else set()
        return bool(added) and added <= found

    def is_next(self, after: LoadedVersion | None, loaded: LoadedVersion | None) -> bool:
        return after is not None and after.version == (0 if loaded is None else loaded.version + 1)

    def beside(self) -> Iterator[tuple[str, Address]]:
        """With the access of this one."""
        try:
            yield from ((path, replace(self.address, path=path)) for path in self.folder.beside())
        except OSError as error:
            raise Unreachable(f"{self.folder}: the folders beside it cannot be listed: {error}; retrying") from error

    def drop(self) -> None:
        """Remove the table: after the first step it no longer exists, and the second one cleans up."""
        self._step("drop")
        steps = self.folder.drop()
        try:
            next(steps)
        except OSError as error:
            raise Unreachable(f"{self.folder}: the table cannot be removed: {error}; retrying") from error
        self.log.forget()
        self._step("clean up")
        with suppress(OSError):  # the next one that opens the table continues
            next(steps, None)

    def rows(self, loaded: LoadedVersion, stack: ExitStack) -> Iterator[pa.RecordBatch]:
        travelling = arrow_schema(columns_of(loaded.schema))
        for file in loaded.files:
            for rows in file_groups(self.folder, file):
                yield from conformed(conformed(rows, loaded.schema), travelling).to_batches()

    def _writer(self, stack: ExitStack, schema: pa.Schema, table: TableStep) -> FileWriter:
        try:
            self.folder.prepare()
        except StoreRefusal as error:
            raise DestinationHalted(f"{self.folder}: {error}") from None
        except StoreError as error:
            raise Unreachable(f"{self.folder}: {error}; retrying") from None
        except OSError as error:
            raise Unreachable(
                f"{self.folder}: the directory cannot be created: {error}; check the path and its permissions"
            ) from error
        bounds = (*table.key, VALID_TO) if table.mode == "history" else table.key
        return stack.enter_context(FileWriter(self.folder, schema, bounds, self._step))

    def _checked_keys(
        self, table: TableStep, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """The batches; after the last one, an error if two rows share a key (T5)."""
        keys = []
        for batch in batches:
            if table.mode != "append":
                key = pa.schema([schema.field(name) for name in table.key])
                keys.append(conformed(pa.Table.from_batches([batch]), key))
            yield batch
        if not keys:
            return
        names = ", ".join(identifier(name) for name in table.key)
        with pooled_duckdb() as connection:  # it needs a third of Arrow's memory; GROUP BY treats NULLs as equal
            connection.register("seeded_keys", pa.concat_tables(keys))
            shared = connection.sql(
                f"SELECT {names}, count(*) FROM seeded_keys GROUP BY {names} HAVING count(*) > 1 LIMIT 1"
            ).fetchone()
            connection.unregister("seeded_keys")
        if shared is not None:
            spelled = ", ".join(f"{name} = {value}" for name, value in zip(table.key, shared, strict=False))
            raise DuplicateKey(
                f"{self.folder}: {shared[-1]} rows of the source share the key {spelled}; make it unique there, or "
                "choose another key"
            )

    def _schema_for(
        self, loaded: LoadedVersion | None, step: MemberStep, table: TableStep, steps: ColumnSteps | None
    ) -> pa.Schema:
        """The schema after the step: the table's own one, or one that follows the source (T6)."""
        if loaded is None:
            return stored_schema(table.columns, step.source)
        held = columns_of(loaded.schema)
        if steps is not None:
            return stored_schema(steps.followed(held), step.source)
        change = evolution(table.columns, held)
        if change.problems:
            raise SchemaMismatch(f"{self.folder}: {'; '.join(change.problems)}; {table.begin_again}")
        if not change.added and not change.widened and source_identity(loaded.schema) == step.source:
            return loaded.schema
        wider = {column.name: column for column in change.widened}
        return stored_schema([*(wider.get(column.name, column) for column in held), *change.added], step.source)


def _is_history(loaded: LoadedVersion | None) -> bool:
    """Whether its versions have to be kept."""
    return loaded is not None and loaded.record is not None and set(loaded.schema.names) >= HISTORY_NAMES
