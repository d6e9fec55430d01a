"""The versions of one Delta table: loads the newest, commits the next, keeps the log short.

Rules
 L1  A commit is a compare-and-swap of the table's version. It is made on the loaded version v, and is not retried: the
     first commit of v + 1 wins, whatever it writes. So what was read of v still holds in the commit.
 L2  The record of a table (``delta_record``) is application transactions of the log, in the same commit as the data
     files: one file, which exists completely or not at all. The source's identity is metadata of the first column.
 L3  Every ``CHECKPOINT_EVERY`` versions the log gets a checkpoint, and entries older than the table's
     ``delta.logRetentionDuration`` are removed; every ``VACUUM_EVERY`` versions, files that were removed longer ago
     than its ``delta.deletedFileRetentionDuration``, and those of killed processes, are deleted. Both are ``HISTORY``
     in a table that a deliverer creates; change them with ALTER TABLE.
 L4  Files may be vacuumed while another process writes: vacuuming follows a commit, so that writer's commit fails (L1).
 L5  The state of the loaded version stays in memory. A later one is that state and what each version since then
     changed, as their log files say (``delta_commit``); what a file does not say, delta-rs reads from the start. The
     own commit need not be read. On an object store delta-rs holds the state, follows it and makes every commit.
 L6  The loaded version is the newest if its log file is still the same one, there is no next one, and no checkpoint is
     later (P3). The last of these is checked again after a commit: a process may sleep between any two steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, TableFeatures, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, create_table_with_add_actions
from msgspec import Struct
from msgspec.structs import replace

from trunkline.delivery.backends.delta_types import source_identity
from trunkline.delivery.backends.file_stamp import FileStamp
from trunkline.delivery.backends.object_errors import StoreRefusal
from trunkline.delivery.backends.table_folder import LocalFolder, TableFolder
from trunkline.delivery.destinations.delta_commit import (
    LAST_CHECKPOINT,
    FileAction,
    MarkedFile,
    VersionChange,
    change_of,
    checkpoint_stamp,
    checkpoint_version,
    commit_bytes,
    is_plain,
    log_name,
    put_version,
    read_change,
    sync_log,
)
from trunkline.delivery.destinations.delta_files import DeltaDataFile, added_file, data_files
from trunkline.delivery.destinations.delta_record import (
    NUMBERS,
    RETIRED,
    StoredRecord,
    TableRecord,
    numbers_of,
    stored_record,
)
from trunkline.delivery.destinations.delta_vectors import FEATURE, PROPERTY, held_vectors
from trunkline.delivery.destinations.lone_tables import CommitLost
from trunkline.errors import DestinationHalted, OutcomeUnknown, Unreachable

CHECKPOINT_EVERY: Final = 40  # versions; more: opening reads more log files; fewer: 15 ms each time
VACUUM_EVERY: Final = 200  # versions; a multiple of the above
HISTORY: Final = "interval 1 hours"  # less: readers of an old version fail; more: more disk, slower checkpoints
NAIVE_TIMES: Final = "timestampNtz"
PROPERTIES: Final = {"delta.logRetentionDuration": HISTORY, "delta.deletedFileRetentionDuration": HISTORY}
VERSIONS_READ_MAX: Final = 40  # log files since the loaded version; if there are more, delta-rs opens the table again
# Of a table to which a flush commits without delta-rs: its properties, and features of its writers that are only in
# effect with others.
ORDINARY_PROPERTIES: Final = frozenset(
    {
        *(*PROPERTIES, PROPERTY, "delta.checkpointInterval", "delta.enableExpiredLogCleanup"),
        "delta.dataSkippingNumIndexedCols",
    }
)
# delta-rs 1.6 adds the feature of variants with any property; a table with such a column does not have our columns.
KNOWN_FEATURES: Final = frozenset({NAIVE_TIMES, FEATURE, "variantType"})
ORDINARY_FEATURES: Final = frozenset({*KNOWN_FEATURES, "appendOnly", "invariants"})


class TableForm(Struct, frozen=True):
    """What a table is, besides its rows and columns."""

    features: frozenset[str]  # that a reader needs
    partitions: tuple[str, ...]
    ordinary: bool  # a flush commits without delta-rs
    marks: bool  # ... and marks rows in deletion vectors


class LoadedVersion(Struct, frozen=True):
    """One version of the table."""

    version: int
    stamp: FileStamp | None  # of the version's log file: that of a recreated table differs
    checkpoint: FileStamp | None  # of the last checkpoint, when it was loaded
    numbers: dict[str, int]  # application transactions
    stored: StoredRecord
    schema: pa.Schema
    files: tuple[DeltaDataFile, ...]
    form: TableForm
    table: DeltaTable | None = None  # on an object store (L5)

    @property
    def record(self) -> TableRecord | None:
        """``None``: the table was not delivered, or is retired."""
        return self.stored.record


class DeltaLog:
    """The log of one table. ``step`` is called before each access to the storage."""

    def __init__(
        self, folder: TableFolder, step: Callable[[str], None], properties: Mapping[str, str] | None = None
    ) -> None:
        """``properties``: of the table if it is created, besides ``PROPERTIES``."""
        self.folder = folder
        self._directory = folder.path if isinstance(folder, LocalFolder) else None
        self._properties = properties or {}
        self._step = step
        self._loaded: LoadedVersion | None = None
        self._committed: tuple[int, dict[str, int]] | None = None  # by delta-rs: its numbers need not be read

    def load(self) -> LoadedVersion | None:
        """The newest version; ``None`` without a table."""
        self._step("look")
        held, self._loaded = self._loaded, None
        try:
            self._loaded = self._newest(held)
        except (DeltaError, OSError) as error:
            known = self.folder.explained(error)
            if isinstance(known, StoreRefusal):
                raise DestinationHalted(f"{self.folder}: the table cannot be read: {known}; then resume") from None
            raise Unreachable(
                f"{self.folder}: the table cannot be read: {known}; check the path and its permissions"
            ) from (error if known is error else None)
        return self._loaded

    def _newest(self, held: LoadedVersion | None) -> LoadedVersion | None:
        if held is None or held.stamp is None or self._stamp(held.version) != held.stamp:
            return self._opened()  # for the first time; or the table was recreated, or its log was cut
        for _ in range(VERSIONS_READ_MAX):
            stamp = self._stamp(held.version + 1)
            if stamp is None:
                return self._uncut(held)
            if self._directory is None:
                return self._updated(held)
            change = read_change(self._directory, held.version + 1)
            if change is None:
                break
            held = _followed(held, stamp, change)
        return self._opened()

    @property
    def loaded(self) -> LoadedVersion | None:
        """The version that was loaded last."""
        return self._loaded

    def forget(self) -> None:
        self._loaded = None

    def commit(
        self,
        loaded: LoadedVersion | None,
        schema: pa.Schema,
        actions: Sequence[FileAction],
        record: TableRecord,
        replace: bool = False,
    ) -> None:
        """Commit the next version after ``loaded``, or the first; ``replace``: with these files only, and this schema.

        Raises ``CommitLost`` if it failed, ``OutcomeUnknown`` if the table cannot be read after that.
        """
        self._step("commit")
        version = 0 if loaded is None else loaded.version + 1
        after: LoadedVersion | None
        try:
            if self._directory and loaded and loaded.form.ordinary and not replace and is_plain(actions):
                after = self._put(self._directory, loaded, actions, numbers_of(record))
            else:
                after = self._commit_by_delta_rs(loaded, schema, actions, record, replace)
            if loaded is not None and self._cut_since(loaded):  # or another writer is right behind (L6)
                raise OSError("another writer was faster, and the log was cut since then")
        except (DeltaError, OSError) as error:
            known = self.folder.explained(error)
            raise CommitLost(self.folder, known, self._load_after(known)) from (error if known is error else None)
        self._loaded = after
        if version % CHECKPOINT_EVERY == 0 and version > 0:
            self._shorten(version)

    def _put(
        self, directory: Path, loaded: LoadedVersion, actions: Sequence[FileAction], numbers: dict[str, int]
    ) -> LoadedVersion:
        stamp = put_version(directory, loaded.version + 1, commit_bytes(actions, numbers, loaded.version), self._step)
        return _followed(loaded, stamp, change_of(actions, numbers))

    def _commit_by_delta_rs(
        self,
        loaded: LoadedVersion | None,
        schema: pa.Schema,
        actions: Sequence[FileAction],
        record: TableRecord,
        replace: bool,
    ) -> LoadedVersion | None:
        """Returns the version that is loaded then: the one before, which ``load`` follows."""
        properties = CommitProperties(
            max_commit_retries=0,
            app_transactions=[Transaction(name, number) for name, number in numbers_of(record).items()],
        )
        quiet = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
        if loaded is None:
            create_table_with_add_actions(
                str(self.folder),
                Schema.from_arrow(schema),
                [action for action in actions if isinstance(action, AddAction)],
                configuration={**PROPERTIES, **self._properties},
                storage_options=self.folder.options(),
                commit_properties=properties,
                post_commithook_properties=quiet,
            )
        else:
            files = [action for action in actions if not isinstance(action, MarkedFile)]
            if len(files) < len(actions):  # delta-rs would not name the vector, and the file would stay (V3)
                raise DestinationHalted(
                    f"{self.folder}: a file with a deletion vector has a path that is not supported; compact the table "
                    "with `optimize.compact()` of delta-rs, or OPTIMIZE"
                )
            table = self._table(loaded)
            table.create_write_transaction(
                files,
                "overwrite" if replace else "append",
                Schema.from_arrow(schema) if replace else table.schema(),
                commit_properties=properties,
                post_commithook_properties=quiet,
            )
        version = 0 if loaded is None else loaded.version + 1
        if self._directory is not None:
            sync_log(self._directory, log_name(version))
        self._committed = (version, numbers_of(record))
        return self._loaded

    def _table(self, loaded: LoadedVersion) -> DeltaTable:
        return DeltaTable(str(self.folder), version=loaded.version) if loaded.table is None else loaded.table

    def retire(self, loaded: LoadedVersion) -> None:
        """Commit that the table belongs to no member."""
        self.commit(loaded, loaded.schema, [], RETIRED if loaded.stored.role is None else RETIRED.leading(0))

    def with_features(self, loaded: LoadedVersion, schema: pa.Schema) -> LoadedVersion:
        """The table, with the features that these columns need.

        Delta needs a feature for timestamps without a zone, and delta-rs does not enable it when it replaces columns:
        that is a commit of its own, which changes no rows.
        """
        features = loaded.form.features
        supported = KNOWN_FEATURES if loaded.form.ordinary else frozenset({NAIVE_TIMES})
        if self._directory is None:
            supported -= {FEATURE}
        problems = [*sorted(features - supported), *loaded.form.partitions]
        if problems:
            raise DestinationHalted(
                f"{self.folder}: tables that are partitioned or have features such as {', '.join(problems)} are not "
                "supported; choose another path"
            )
        if NAIVE_TIMES in features or not any(_has_naive_times(field.type) for field in schema):
            return loaded
        self._step("feature")
        try:
            self._table(loaded).alter.add_feature(
                TableFeatures.TimestampWithoutTimezone,
                allow_protocol_versions_increase=True,
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        except (DeltaError, OSError) as error:
            known = self.folder.explained(error)
            raise Unreachable(f"{self.folder}: the table's features could not be changed; retrying ({known})") from (
                error if known is error else None
            )
        after = self.load()
        if after is None or after.version != loaded.version + 1:
            raise Unreachable(f"{self.folder}: another writer changed the table at the same time; retrying")
        return after

    def _load_after(self, error: Exception) -> LoadedVersion | None:
        self._loaded = None
        try:
            return self.load()
        except (Unreachable, DestinationHalted) as lost:
            raise OutcomeUnknown(f"{self.folder}: the outcome of the commit is unknown: {error}; {lost}") from lost

    def _shorten(self, version: int) -> None:
        """Keep the log short (L3). A failure is retried at a later version: the commit has succeeded."""
        self._step("checkpoint")
        with suppress(DeltaError, OSError):
            table = DeltaTable(str(self.folder), storage_options=self.folder.options())
            table.create_checkpoint()
            if self._directory is not None:
                written = (self._directory / "_delta_log").glob(f"{table.version():020}.checkpoint*")
                sync_log(self._directory, LAST_CHECKPOINT, *(path.name for path in written))
            table.cleanup_metadata()
            if version % VACUUM_EVERY == 0:
                table.vacuum(dry_run=False, full=True)

    def _opened(self) -> LoadedVersion | None:
        names = self.folder.names("_delta_log")
        if not any(name[:20].isdigit() and name.endswith((".json", ".parquet")) for name in names):
            return None  # perhaps a process was killed before the first commit
        if self.folder.finish_drop(names):
            return None
        self._committed = None  # perhaps of a table that was dropped since then
        checkpoint = checkpoint_stamp(self.folder)
        return self._state(DeltaTable(str(self.folder), storage_options=self.folder.options()), checkpoint, None)

    def _updated(self, held: LoadedVersion) -> LoadedVersion:
        """The newest version, by delta-rs."""
        assert held.table is not None
        checkpoint = checkpoint_stamp(self.folder)
        held.table.update_incremental()
        if self._committed is not None and self._committed[0] == held.table.version() == held.version + 1:
            return self._state(held.table, checkpoint, {**held.numbers, **self._committed[1]})
        return self._state(held.table, checkpoint, None)

    def _state(self, table: DeltaTable, checkpoint: FileStamp | None, numbers: dict[str, int] | None) -> LoadedVersion:
        version, schema = table.version(), pa.schema(table.schema())
        if numbers is None:
            numbers = {name: number for name in NUMBERS if (number := table.transaction_version(name)) is not None}
        stored = stored_record(numbers.get, source_identity(schema))
        form = _form(table, schema)
        files = self._marked_files(table, schema) if FEATURE in form.features else data_files(table, schema, {})
        kept = table if self._directory is None else None
        return LoadedVersion(version, self._stamp(version), checkpoint, numbers, stored, schema, files, form, kept)

    def _marked_files(self, table: DeltaTable, schema: pa.Schema) -> tuple[DeltaDataFile, ...]:
        if self._directory is not None:
            vectors = held_vectors(self._directory, table, checkpoint_version(self.folder))
        else:
            vectors = None if len(pa.table(table.deletion_vectors())) else {}
        found = data_files(table, schema, vectors or {})
        if vectors is None or sum(file.vector is not None for file in found) < len(vectors):
            raise DestinationHalted(
                f"{self.folder}: the table has deletion vectors in a form that is not supported; remove them with "
                "REORG TABLE ... APPLY (PURGE), or with `optimize.compact()` of delta-rs"
            )
        return found

    def _uncut(self, held: LoadedVersion) -> LoadedVersion | None:
        """The newest version, where the next one is not there (L6)."""
        stamp = checkpoint_stamp(self.folder)
        if stamp == held.checkpoint:
            return held
        return self._opened() if checkpoint_version(self.folder) > held.version else replace(held, checkpoint=stamp)

    def _cut_since(self, loaded: LoadedVersion) -> bool:
        """Whether the log may have been cut after this version."""
        return checkpoint_stamp(self.folder) != loaded.checkpoint and checkpoint_version(self.folder) > loaded.version

    def _stamp(self, version: int) -> FileStamp | None:
        return self.folder.stamp(f"_delta_log/{log_name(version)}")


def _followed(held: LoadedVersion, stamp: FileStamp | None, change: VersionChange) -> LoadedVersion:
    """The next version (L5)."""
    numbers = {**held.numbers, **change.numbers}
    gone = change.removed | {added.path for added in change.added}
    files = [file for file in held.files if file.path not in gone]
    files += [added_file(added, held.schema) for added in change.added]
    stored = stored_record(numbers.get, source_identity(held.schema))
    return replace(held, version=held.version + 1, stamp=stamp, numbers=numbers, stored=stored, files=tuple(files))


def _form(table: DeltaTable, schema: pa.Schema) -> TableForm:
    protocol, metadata = table.protocol(), table.metadata()
    level, features = protocol.min_writer_version, set(protocol.writer_features or ())
    special = [name for name in metadata.configuration if name.startswith("delta.") and name not in ORDINARY_PROPERTIES]
    special += [field.name for field in schema if any(key.startswith(b"delta.") for key in field.metadata or ())]
    known = level <= 2 or (level == 7 and features <= ORDINARY_FEATURES)
    ordinary = known and not special and not metadata.partition_columns
    marks = ordinary and FEATURE in features and metadata.configuration.get(PROPERTY, "").lower() == "true"
    return TableForm(frozenset(protocol.reader_features or ()), tuple(metadata.partition_columns), ordinary, marks)


def _has_naive_times(kept: pa.DataType) -> bool:
    if pa.types.is_list(kept):
        return _has_naive_times(kept.value_type)
    return bool(pa.types.is_timestamp(kept) and kept.tz is None)
