"""The versions of one Delta table: loads the newest, commits the next, keeps the log short.

Rules
 L1  A commit is a compare-and-swap of the table's version. It is made on the loaded version v, and delta-rs may not
     retry it (``max_commit_retries=0``): the first commit of v + 1 wins, whatever it writes. So what was read of v
     still holds in the commit.
 L2  The record of a table (``delta_record``) is application transactions of the log, in the same commit as the data
     files: one file, which exists completely or not at all. The source's identity is metadata of the first column.
 L3  Every ``CHECKPOINT_EVERY`` versions the log gets a checkpoint, and entries older than the table's
     ``delta.logRetentionDuration`` are removed; every ``VACUUM_EVERY`` versions, files that were removed longer ago
     than its ``delta.deletedFileRetentionDuration``, and those of killed processes, are deleted. Both are ``HISTORY``
     in a table that a deliverer creates; change them with ALTER TABLE.
 L4  Files may be vacuumed while another process writes: vacuuming follows a commit, so that writer's commit fails (L1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, TableFeatures, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions
from msgspec import Struct

from trunkline.delivery.backends.delta_types import source_identity
from trunkline.delivery.backends.file_stamp import FileStamp
from trunkline.delivery.backends.object_errors import StoreRefusal
from trunkline.delivery.backends.table_folder import TableFolder
from trunkline.delivery.destinations.delta_files import DeltaDataFile, data_files
from trunkline.delivery.destinations.delta_record import RETIRED, StoredRecord, TableRecord, numbers_of, stored_record
from trunkline.errors import DestinationHalted, OutcomeUnknown, Unreachable

CHECKPOINT_EVERY: Final = 20  # versions; more: opening and committing read more log files; fewer: 12 ms each time
VACUUM_EVERY: Final = 200  # versions; a multiple of the above
HISTORY: Final = (
    "interval 1 hours"  # less: readers of an old version fail; more: more disk, and 5 ms a flush for 1,000 versions
)
NAIVE_TIMES: Final = "timestampNtz"
PROPERTIES: Final = {"delta.logRetentionDuration": HISTORY, "delta.deletedFileRetentionDuration": HISTORY}
FileAction = AddAction | RemoveAction


class CommitLost(Exception):
    """delta-rs reported an error for a commit; ``now`` is the newest version after it, which shows the outcome."""

    def __init__(self, folder: TableFolder, reason: Exception | str, now: LoadedVersion | None) -> None:
        super().__init__(f"{folder}: the commit failed and nothing was written; retrying ({reason})")
        self.now = now


class LoadedVersion(Struct, frozen=True):
    """One version of the table."""

    table: DeltaTable
    version: int
    stamp: FileStamp | None  # of the version's log file: that of a recreated table differs
    stored: StoredRecord
    schema: pa.Schema
    files: tuple[DeltaDataFile, ...]

    @property
    def record(self) -> TableRecord | None:
        """``None``: the table was not delivered, or is retired."""
        return self.stored.record


class DeltaLog:
    """The log of one table. ``step`` is called before each access to the storage."""

    def __init__(self, folder: TableFolder, step: Callable[[str], None]) -> None:
        self.folder = folder
        self._step = step
        self._loaded: LoadedVersion | None = None
        self._committed: tuple[int, TableRecord] | None = None  # the last commit of this process: it need not be read

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
        return held if self._stamp(held.version + 1) is None else self._updated(held)

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
        properties = CommitProperties(
            max_commit_retries=0,
            app_transactions=[Transaction(name, number) for name, number in numbers_of(record).items()],
        )
        quiet = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
        self._step("commit")
        try:
            if loaded is None:
                create_table_with_add_actions(
                    str(self.folder),
                    Schema.from_arrow(schema),
                    [action for action in actions if isinstance(action, AddAction)],
                    configuration=PROPERTIES,
                    storage_options=self.folder.options(),
                    commit_properties=properties,
                    post_commithook_properties=quiet,
                )
            else:
                loaded.table.create_write_transaction(
                    list(actions),
                    "overwrite" if replace else "append",
                    Schema.from_arrow(schema) if replace else loaded.table.schema(),
                    commit_properties=properties,
                    post_commithook_properties=quiet,
                )
        except (DeltaError, OSError) as error:
            known = self.folder.explained(error)
            raise CommitLost(self.folder, known, self._load_after(known)) from (error if known is error else None)
        version = 0 if loaded is None else loaded.version + 1
        self._committed = (version, record)
        if version % CHECKPOINT_EVERY == 0 and version > 0:
            self._shorten(version)

    def retire(self, loaded: LoadedVersion) -> None:
        """Commit that the table belongs to no member."""
        self.commit(loaded, loaded.schema, [], RETIRED if loaded.stored.role is None else RETIRED.leading(0))

    def with_features(self, loaded: LoadedVersion, schema: pa.Schema) -> LoadedVersion:
        """The table, with the features that these columns need.

        Delta needs a feature for timestamps without a zone, and delta-rs does not enable it when it replaces columns:
        that is a commit of its own, which changes no rows.
        """
        features = set(loaded.table.protocol().reader_features or ())
        problems = [*sorted(features - {NAIVE_TIMES}), *loaded.table.metadata().partition_columns]
        if problems:
            raise DestinationHalted(
                f"{self.folder}: tables that are partitioned or have features such as {', '.join(problems)} are not "
                "supported; choose another path"
            )
        if NAIVE_TIMES in features or not any(_has_naive_times(field.type) for field in schema):
            return loaded
        self._step("feature")
        try:
            loaded.table.alter.add_feature(
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
        with suppress(DeltaError, OSError, Unreachable, DestinationHalted):
            if (loaded := self.load()) is None:
                return
            loaded.table.create_checkpoint()
            loaded.table.cleanup_metadata()
            if version % VACUUM_EVERY == 0:
                loaded.table.vacuum(dry_run=False, full=True)

    def _opened(self) -> LoadedVersion | None:
        names = self.folder.names("_delta_log")
        if not any(name[:20].isdigit() and name.endswith((".json", ".parquet")) for name in names):
            return None  # perhaps a process was killed before the first commit
        if self.folder.finish_drop(names):
            return None
        return self._state(DeltaTable(str(self.folder), storage_options=self.folder.options()), None)

    def _updated(self, held: LoadedVersion) -> LoadedVersion:
        table = held.table
        table.update_incremental()
        if self._committed is not None and self._committed[0] == table.version() == held.version + 1:
            return self._state(table, self._committed[1])
        return self._state(table, None)

    def _state(self, table: DeltaTable, known: TableRecord | None) -> LoadedVersion:
        version, schema = table.version(), pa.schema(table.schema())
        written = table.transaction_version if known is None else numbers_of(known).get
        stored = stored_record(written, source_identity(schema))
        return LoadedVersion(table, version, self._stamp(version), stored, schema, data_files(table, schema))

    def _stamp(self, version: int) -> FileStamp | None:
        return self.folder.stamp(f"_delta_log/{version:020}.json")


def _has_naive_times(kept: pa.DataType) -> bool:
    if pa.types.is_list(kept):
        return _has_naive_times(kept.value_type)
    return bool(pa.types.is_timestamp(kept) and kept.tz is None)
