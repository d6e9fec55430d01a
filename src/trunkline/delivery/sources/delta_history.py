"""The log of a Delta table as a source reads it: its versions, and the files with the changes of each.

Versions are counted from 1 here: version n is Delta's own version n - 1. So 0 is before the table existed, as with
other sources, and a destination at 0 has received nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NoReturn
from urllib.parse import unquote

import msgspec
from msgspec import Struct, field

from trunkline.delivery.backends.file_stamp import FileStamp
from trunkline.delivery.backends.object_errors import StoreError
from trunkline.delivery.backends.table_folder import TableFolder
from trunkline.delivery.changes.versions import Window
from trunkline.delivery.sources.contract import Backlog
from trunkline.errors import SourceExpired, Unreachable

FEED: Final = "delta.enableChangeDataFeed"
ROW_BYTES: Final = 64  # a guess, for files without statistics
LOG_NAME_DIGITS: Final = 20


class FileStatistics(Struct, rename="camel"):
    num_records: int | None = None


class ChangedFile(Struct, rename="camel"):
    path: str
    size: int | None = None
    data_change: bool = True
    stats: str | None = None
    partition_values: dict[str, str | None] | None = None  # a removal may leave them out

    @property
    def size_bytes(self) -> int:
        return self.size or 0

    @property
    def rows(self) -> int:
        known = msgspec.json.decode(self.stats, type=FileStatistics).num_records if self.stats else None
        return self.size_bytes // ROW_BYTES if known is None else known


class FeedFile(Struct, frozen=True):
    """A file of the feed."""

    path: str  # in the folder of the table
    kind: str | None  # of all its rows; None: each row has its own
    partition: dict[str, str | None]  # column -> the value of all its rows, as text


class DeltaMetadata(Struct):
    configuration: dict[str, str | None] = field(default_factory=dict)


class CommitInfo(Struct):
    """Writers may leave the time out."""

    timestamp: int | None = None  # in milliseconds


class LogAction(Struct, rename="camel"):
    """One line of a version's log file, with the fields that a source needs."""

    add: ChangedFile | None = None
    remove: ChangedFile | None = None
    cdc: ChangedFile | None = None
    commit_info: CommitInfo | None = None
    meta_data: DeltaMetadata | None = None


class DeltaVersion(Struct, frozen=True):
    """The changes of one version."""

    files: tuple[tuple[str | None, ChangedFile], ...]  # with the kind of their changes (``FeedFile``)
    feed: bool | None  # it turned the change data feed on or off; None: neither


class DeltaHistory:
    """The log folder of one table."""

    def __init__(self, folder: TableFolder) -> None:
        self.folder = folder
        self._decoder = msgspec.json.Decoder(LogAction)

    def stamp(self, path: str) -> FileStamp | None:
        """Of a file of the table; ``None`` without it."""
        with self._translated_errors():
            return self.folder.stamp(path)

    def _read(self, path: str) -> bytes:
        with self._translated_errors():
            return self.folder.read(path)

    def _names(self, folder: str) -> list[str]:
        with self._translated_errors():
            return self.folder.names(folder)

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except StoreError as error:
            raise Unreachable(f"the Delta table {self.folder} cannot be read now: {error}") from None

    def newest(self) -> int:
        """The newest version, 0 without a table. Probes files by name: listing a long log is slow."""
        known = self._checkpoint()
        if not self._has(known):
            return max(self._listed(), default=-1) + 1
        step = 1
        while self._has(known + step):
            known, step = known + step, step * 2
        while step > 1:
            step //= 2
            if self._has(known + step):
                known += step
        return known + 1

    def commit_digest(self, version: int) -> str:
        """A hash of the text of a commit, which survives a move of the table; empty without its log file."""
        try:
            return hashlib.sha256(self._read(_file(version - 1))).hexdigest()
        except (FileNotFoundError, NotADirectoryError):
            return ""

    def committed_us(self, version: int) -> int | None:
        """When a version was committed, in microseconds, by its writer's clock; ``None`` if the log does not say."""
        for action in self._actions(version - 1):
            if action.commit_info is not None and action.commit_info.timestamp is not None:
                return 1000 * action.commit_info.timestamp
        return None

    def change_hint(self) -> tuple[int, FileStamp] | None:
        """Differs after each commit, and for a table that was recreated."""
        version = self.newest()
        stamp = self.stamp(_file(version - 1))
        return None if stamp is None else (version, stamp)

    def oldest(self) -> int:
        """The first version from which on all have log files."""
        there = set(self._listed())
        at = max(there, default=-1)
        while at - 1 in there:
            at -= 1
        return at + 1

    def backlog(self, window: Window, on_before: bool) -> Backlog:
        """``on_before``: whether the change data feed was on just before the window.

        Raises ``SourceExpired`` if the changes of a version can no longer be read.
        """
        rows = size_bytes = 0
        feed = on_before
        for number in range(window.after, window.through):
            version = self._version(number)
            feed = feed if version.feed is None else version.feed
            if not feed:
                self._expired(f"its change data feed was off at version {number}")
            for _, file in version.files:
                if self.stamp(_place(file)) is None:
                    self._expired(f"file {file.path}, with changes of version {number}, was vacuumed")
                rows += file.rows
                size_bytes += file.size_bytes
        return Backlog(rows, size_bytes, quiet=rows == 0 and size_bytes == 0)

    def changes(self, window: Window, *, partitioned: bool) -> list[FeedFile]:
        """The files of the feed of a window. Raises ``SourceExpired``."""
        return [
            FeedFile(_place(file), kind, self._partition(file, number) if partitioned else {})
            for number in range(window.after, window.through)
            for kind, file in self._version(number).files
        ]

    def _partition(self, file: ChangedFile, number: int) -> dict[str, str | None]:
        if file.partition_values is None:
            self._expired(f"version {number} does not name the partition of the removed file {file.path}")
        return file.partition_values

    def switches(self, window: Window) -> bool:
        """Whether the feed was turned on or off inside a window."""
        return any(self._version(number).feed is not None for number in range(window.after, window.through))

    def _version(self, number: int) -> DeltaVersion:
        files: list[tuple[str | None, ChangedFile]] = []
        changes: list[tuple[str | None, ChangedFile]] = []
        feed = None
        for action in self._actions(number):
            if action.cdc is not None:
                changes.append((None, action.cdc))
            elif (file := action.add or action.remove) is not None:
                kind = "delete" if action.add is None else "insert"
                files += [(kind, file)] if file.data_change else []
            elif action.meta_data is not None:
                feed = feed_is_on(action.meta_data.configuration)
        return DeltaVersion(tuple(changes or files), feed)

    def _actions(self, number: int) -> Iterator[LogAction]:
        try:
            lines = self._read(_file(number)).splitlines()
        except FileNotFoundError:
            self._expired(f"its log no longer has version {number}")
        return map(self._decoder.decode, filter(None, lines))

    def _expired(self, why: str) -> NoReturn:
        raise SourceExpired(
            f"the Delta table {self.folder} no longer has these changes: {why}; seed the destination again, and keep "
            "more history in the table: see delta.logRetentionDuration and delta.deletedFileRetentionDuration"
        )

    def _checkpoint(self) -> int:
        try:
            found: int = msgspec.json.decode(self._read("_delta_log/_last_checkpoint"))["version"]
        except FileNotFoundError:
            return 0
        return found

    def _has(self, number: int) -> bool:
        return self.stamp(_file(number)) is not None

    def _listed(self) -> Iterator[int]:
        for name in self._names("_delta_log"):
            if name.endswith(".json") and name[:-5].isdigit() and len(name) == LOG_NAME_DIGITS + 5:
                yield int(name[:-5])


def _file(number: int) -> str:
    return f"_delta_log/{number:0{LOG_NAME_DIGITS}}.json"


def _place(file: ChangedFile) -> str:
    """Paths in the log are URLs: escaped, and relative to the table or absolute."""
    return unquote(file.path.removeprefix("file://"))


def feed_is_on(configuration: Mapping[str, str | None]) -> bool:
    return (configuration.get(FEED) or "").lower() == "true"
