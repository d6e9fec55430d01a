"""One commit of a Delta table's log, written and read by the public protocol, without delta-rs.

delta-rs needs 5 ms of a core to commit and to read a version, mostly to plan what a flush knows already. So a flush of
an ordinary table writes the file of its version itself, and reads those of others. What is unusual is left to delta-rs:
the first commit, a change of columns or features, tables that another program made special, those on object stores, and
checkpoints.

Rules
 P1  A version is put in place with a hard link of a complete file, as delta-rs does: the first one wins, and no reader
     sees a part of it.
 P2  A power cut loses no flush that was reported, and leaves no version without its data: data files are synced first
     (``table_folder``), then the bytes of the version, then it is linked, then the directory is synced. What delta-rs
     writes is synced after it, since it does not do so: checkpoints before the log files are removed that they replace.
 P3  Log files are removed only after a later checkpoint. So a version that is not there, and no checkpoint of it or a
     later one, was never written. Without this check a process that slept while the log was cut could commit a version
     for the second time, which no reader would ever see.
"""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec
from deltalake.transaction import AddAction, RemoveAction
from msgspec import Struct

from trunkline.delivery.backends.file_stamp import FileStamp, file_stamp
from trunkline.delivery.backends.table_folder import TableFolder, synced
from trunkline.delivery.destinations.delta_vectors import DeletionVector, VectorRecord, inline_vector

LAST_CHECKPOINT: Final = "_last_checkpoint"
PLAIN_PATH: Final = re.compile(r"[A-Za-z0-9_.=/-]+")  # others are escaped in the log
ENGINE: Final = "trunkline"


class MarkedFile(Struct, frozen=True):
    """A file gets another deletion vector; ``after`` None: it is removed, and had one (V3)."""

    path: str
    size: int
    stats: str
    before: DeletionVector | None
    after: DeletionVector | None


FileAction = AddAction | RemoveAction | MarkedFile


class AddedFile(Struct, frozen=True, rename="camel"):
    path: str
    size: int
    stats: str | None = None
    deletion_vector: VectorRecord | None = None


class RemovedFile(Struct, frozen=True):
    path: str


class ApplicationNumber(Struct, frozen=True, rename="camel"):
    app_id: str
    version: int


class LogLine(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """One action; any other is for delta-rs."""

    commit_info: Any = None
    add: AddedFile | None = None
    remove: RemovedFile | None = None
    txn: ApplicationNumber | None = None


class VersionChange(Struct, frozen=True):
    """What one version changes in the state of a table."""

    added: tuple[AddedFile, ...]
    removed: frozenset[str]
    numbers: dict[str, int]


_LINE: Final = msgspec.json.Decoder(LogLine)


def log_name(version: int) -> str:
    return f"{version:020}.json"


def log_file(folder: Path, version: int) -> str:
    return f"{folder}/_delta_log/{log_name(version)}"


def read_change(folder: Path, version: int) -> VersionChange | None:
    """What a version changed; ``None`` if only delta-rs can tell. Raises ``OSError`` if it is not there."""
    with open(log_file(folder, version), "rb") as file:
        lines = file.read().splitlines()
    added, removed, numbers = [], set(), {}
    try:
        for line in lines:
            found = _LINE.decode(line)
            if found.add is not None and PLAIN_PATH.fullmatch(found.add.path) and _is_known(found.add.deletion_vector):
                added.append(found.add)
            elif found.remove is not None and PLAIN_PATH.fullmatch(found.remove.path):
                removed.add(found.remove.path)
            elif found.txn is not None:
                numbers[found.txn.app_id] = found.txn.version
            elif found.commit_info is None:
                return None
    except msgspec.MsgspecError:
        return None
    return VersionChange(tuple(added), frozenset(removed), numbers)


def _is_known(vector: VectorRecord | None) -> bool:
    return vector is None or inline_vector(vector) is not None


def change_of(actions: Iterable[FileAction], numbers: Mapping[str, int]) -> VersionChange:
    """What a commit of these changes."""
    added, removed = [], set()
    for action in actions:
        if isinstance(action, AddAction):
            added.append(AddedFile(action.path, action.size, action.stats))
            continue
        removed.add(action.path)
        if isinstance(action, MarkedFile) and action.after is not None:
            added.append(AddedFile(action.path, action.size, action.stats, action.after.record))
    return VersionChange(tuple(added), frozenset(removed), dict(numbers))


def is_plain(actions: Iterable[FileAction]) -> bool:
    return all(PLAIN_PATH.fullmatch(action.path) for action in actions)


def commit_bytes(actions: Sequence[FileAction], numbers: Mapping[str, int], read_version: int) -> bytes:
    now = time.time_ns() // 1_000_000
    info = {"timestamp": now, "operation": "WRITE", "operationParameters": {"mode": "Append"}, "engineInfo": ENGINE}
    lines: list[dict[str, dict[str, Any]]] = [{"commitInfo": {**info, "readVersion": read_version}}]
    for action in actions:
        named: dict[str, Any] = {"path": action.path, "partitionValues": {}, "size": action.size, "dataChange": True}
        removed = {**named, "deletionTimestamp": now, "extendedFileMetadata": True}
        added = {**named, "modificationTime": now}
        match action:
            case AddAction():
                lines.append({"add": {**added, "stats": action.stats}})
            case RemoveAction():
                lines.append({"remove": removed})
            case MarkedFile(before=before, after=after):
                lines.append({"remove": {**removed, **_vector(before)}})
                if after is not None:
                    lines.append({"add": {**added, "stats": action.stats, **_vector(after)}})
    lines += [{"txn": {"appId": name, "version": number}} for name, number in numbers.items()]
    return b"\n".join([*map(msgspec.json.encode, lines), b""])


def _vector(vector: DeletionVector | None) -> dict[str, VectorRecord]:
    return {} if vector is None else {"deletionVector": vector.record}


def put_version(folder: Path, version: int, content: bytes, step: Callable[[str], None]) -> FileStamp | None:
    """Put a version in place (P1, P2). Raises ``FileExistsError`` if another writer was faster."""
    target = log_file(folder, version)
    draft = f"{folder}/_delta_log/_commit_{uuid.uuid4()}.json.tmp"
    try:
        with open(draft, "xb", buffering=0) as file:
            file.write(content)
            os.fsync(file.fileno())
        step("link")
        os.link(draft, target)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(draft)
    stamp = file_stamp(target)
    synced(f"{folder}/_delta_log")
    return stamp


def sync_log(folder: Path, *names: str) -> None:
    """Sync files of the log that delta-rs wrote, and their names (P2)."""
    for name in names:
        synced(f"{folder}/_delta_log/{name}")
    synced(f"{folder}/_delta_log")


def checkpoint_stamp(folder: TableFolder) -> FileStamp | None:
    return folder.stamp(f"_delta_log/{LAST_CHECKPOINT}")


def checkpoint_version(folder: TableFolder) -> int:
    """Of the last checkpoint; -1 without one. Raises ``OSError`` if it cannot be read."""
    try:
        return int(msgspec.json.decode(folder.read(f"_delta_log/{LAST_CHECKPOINT}"))["version"])
    except FileNotFoundError:
        return -1
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:
        raise OSError(f"{LAST_CHECKPOINT} is unreadable: {error}") from error
