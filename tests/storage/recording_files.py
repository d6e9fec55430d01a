"""A disk in memory that records every operation and shows what a power cut may leave of it.

What was written and not synced is pending: a power cut keeps any part of it. All parts are tried when few operations
are pending; else those that lose everything from some operation on, and those that lose one. Of the first write that is
lost a piece may stay, or only its length. An entry of a directory is pending until the directory is synced.
"""

from __future__ import annotations

import errno
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from trunkline.storage.files import Buffer

SUBSETS_MAX = 4  # with more operations pending than this, only prefixes and single losses are tried
FREE_BYTES = 1 << 40


class Write(NamedTuple):
    file: int
    offset: int
    content: bytes


class Truncate(NamedTuple):
    file: int
    size: int


class Create(NamedTuple):
    directory: str
    name: str
    file: int


class MakeDirectory(NamedTuple):
    directory: str
    name: str


class Unlink(NamedTuple):
    """Of a file, or of an empty directory."""

    directory: str
    name: str


class Rename(NamedTuple):
    directory: str
    old: str
    new: str


class SyncFile(NamedTuple):
    file: int


class SyncDirectory(NamedTuple):
    directory: str


Change = Write | Truncate | Create | MakeDirectory | Unlink | Rename
Operation = Change | SyncFile | SyncDirectory

DIRECTORY = -1  # stands for a file's number in an entry of a directory


class Image:
    """What a disk holds."""

    def __init__(self, root: str) -> None:
        self.directories: dict[str, dict[str, int]] = {root: {}}
        self.files: dict[int, bytearray] = {}

    def copy(self) -> Image:
        twin = Image("")
        twin.directories = {path: dict(entries) for path, entries in self.directories.items()}
        twin.files = {number: bytearray(content) for number, content in self.files.items()}
        return twin

    def apply(self, change: Change) -> None:
        """An operation on a missing entry does nothing: what it depends on was lost."""
        match change:
            case Write(file, offset, content):
                held = self.files.setdefault(file, bytearray())
                held.extend(bytes(max(0, offset - len(held))))
                held[offset : offset + len(content)] = content
            case Truncate(file, size):
                held = self.files.setdefault(file, bytearray())
                del held[size:]
                held.extend(bytes(size - len(held)))
            case Create(directory, name, file):
                if directory in self.directories:
                    self.directories[directory][name] = file
                    self.files.setdefault(file, bytearray())
            case MakeDirectory(directory, name):
                if directory in self.directories:
                    self.directories[directory][name] = DIRECTORY
                    self.directories.setdefault(f"{directory}/{name}", {})
            case Unlink(directory, name):
                self.directories.get(directory, {}).pop(name, None)
            case Rename(directory, old, new):
                entries = self.directories.get(directory, {})
                if old in entries:
                    entries[new] = entries.pop(old)

    def reachable(self) -> dict[str, bytes | None]:
        """Paths and contents; None is a directory."""
        root = next(iter(self.directories))
        found: dict[str, bytes | None] = {}
        waiting = [root]
        while waiting:
            path = waiting.pop()
            found[path] = None
            for name, file in self.directories.get(path, {}).items():
                if file == DIRECTORY:
                    waiting.append(f"{path}/{name}")
                else:
                    found[f"{path}/{name}"] = bytes(self.files.get(file, b""))
        return found


def image_of(root: str, content: dict[str, bytes | None]) -> Image:
    image = Image(root)
    numbers = itertools.count(1)
    for path, held in sorted(content.items()):
        if path == root:
            continue
        directory, _, name = path.rpartition("/")
        if held is None:
            image.apply(MakeDirectory(directory, name))
        else:
            number = next(numbers)
            image.apply(Create(directory, name, number))
            image.apply(Write(number, 0, held))
    return image


class RecordingFiles:
    """The engine's files, in memory."""

    def __init__(self, root: Path, start: Image | None = None) -> None:
        self._start = start.copy() if start is not None else Image(str(root))
        self._now = self._start.copy()
        self._numbers = itertools.count(max(self._now.files, default=0) + 1)
        self._open: dict[int, int] = {}
        self._fds = itertools.count(3)
        self._locked: set[int] = set()
        self.operations: list[Operation] = []
        self.free = FREE_BYTES
        self.files_left = 1 << 20
        self.fail_sync: int | None = None  # the error of every sync from now on

    # ------------------------------------------------------------------------------------------------ as files are used

    def _change(self, change: Change) -> None:
        self.operations.append(change)
        self._now.apply(change)

    def _entries(self, path: Path) -> dict[str, int]:
        entries = self._now.directories.get(str(path))
        if entries is None:
            raise FileNotFoundError(errno.ENOENT, "no such directory", str(path))
        return entries

    def _content(self, fd: int) -> bytearray:
        return self._now.files[self._open[fd]]

    def open(self, path: Path, *, create: bool = False) -> int:
        entries = self._entries(path.parent)
        if create:
            if path.name in entries:
                raise FileExistsError(errno.EEXIST, "file exists", str(path))
            self._change(Create(str(path.parent), path.name, next(self._numbers)))
        elif path.name not in entries:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        fd = next(self._fds)
        self._open[fd] = entries[path.name]
        return fd

    def close(self, fd: int) -> None:
        self._locked.discard(self._open.pop(fd))

    def write(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        content = b"".join(buffers)
        grown = max(0, offset + len(content) - len(self._content(fd)))
        if grown > self.free:
            content = content[: max(0, len(content) - grown + self.free)]
            if not content:
                raise OSError(errno.ENOSPC, "no space left on device")
            grown = self.free
        self.free -= grown
        self._change(Write(self._open[fd], offset, content))
        return len(content)

    def read_into(self, fd: int, buffer: Buffer, offset: int, *, wait: bool = True) -> int:
        view = memoryview(buffer)
        piece = self._content(fd)[offset : offset + len(view)]
        view[: len(piece)] = piece
        return len(piece)

    def size(self, fd: int) -> int:
        return len(self._content(fd))

    def truncate(self, fd: int, size: int) -> None:
        self.free += len(self._content(fd)) - size
        self._change(Truncate(self._open[fd], size))

    def allocate(self, fd: int, size: int) -> None:
        if size - len(self._content(fd)) > self.free:
            raise OSError(errno.ENOSPC, "no space left on device")
        if size > len(self._content(fd)):
            self.truncate(fd, size)

    def sync(self, fd: int) -> None:
        if self.fail_sync is not None:
            raise OSError(self.fail_sync, "sync failed")
        self.operations.append(SyncFile(self._open[fd]))

    def forget(self, fd: int) -> None:
        pass

    def sync_directory(self, path: Path) -> None:
        self._entries(path)
        self.operations.append(SyncDirectory(str(path)))

    def make_directory(self, path: Path) -> None:
        if path.name in self._entries(path.parent):
            raise FileExistsError(errno.EEXIST, "file exists", str(path))
        self._change(MakeDirectory(str(path.parent), path.name))

    def remove_directory(self, path: Path) -> None:
        if self._entries(path):
            raise OSError(errno.ENOTEMPTY, "directory not empty", str(path))
        self._change(Unlink(str(path.parent), path.name))
        del self._now.directories[str(path)]

    def rename(self, old: Path, new: Path) -> None:
        if old.name not in self._entries(old.parent):
            raise FileNotFoundError(errno.ENOENT, "no such file", str(old))
        self._change(Rename(str(old.parent), old.name, new.name))

    def unlink(self, path: Path) -> None:
        if path.name not in self._entries(path.parent):
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        self._change(Unlink(str(path.parent), path.name))

    def names(self, path: Path) -> list[str]:
        return sorted(self._entries(path))

    def free_bytes(self, path: Path) -> int:
        return self.free

    def free_files(self, path: Path) -> int:
        return self.files_left

    def lock(self, fd: int) -> bool:
        file = self._open[fd]
        if file in self._locked:
            return False
        self._locked.add(file)
        return True

    # ------------------------------------------------------------------------------------------------- what may be left

    def now(self) -> Image:
        """The disk as the processes of the machine see it: what a killed process leaves."""
        return self._now.copy()

    def after_power_cut(self, count: int) -> Iterator[tuple[str, Image]]:
        """Every image that a power cut after the first ``count`` operations may leave, with a name."""
        done = self.operations[:count]
        pending = _pending(done)
        for kept in kept_parts(pending):
            lost = [index for index in pending if index not in kept]
            names = ",".join(str(pending.index(index) + 1) for index in kept) or "nothing"
            label = f"after {count}, keeps {names} of {len(pending)}"
            yield label, self._replayed(done, set(lost), {})
            if lost:
                for piece, torn in _torn(done[lost[0]]):
                    yield f"{label}, then {piece}", self._replayed(done, set(lost), {lost[0]: torn})

    def _replayed(self, done: list[Operation], lost: set[int], instead: dict[int, Change]) -> Image:
        image = self._start.copy()
        for index, operation in enumerate(done):
            if isinstance(operation, SyncFile | SyncDirectory):
                continue
            if index in instead:
                image.apply(instead[index])
            elif index not in lost:
                image.apply(operation)
        return image


def _pending(done: Sequence[Operation]) -> list[int]:
    """The operations that no sync has covered."""
    waiting: dict[object, list[int]] = {}
    for index, operation in enumerate(done):
        match operation:
            case Write(file) | Truncate(file):
                waiting.setdefault(file, []).append(index)
            case SyncFile(file):
                waiting.pop(file, None)
            case SyncDirectory(directory):
                waiting.pop(directory, None)
            case Create(directory) | MakeDirectory(directory) | Unlink(directory) | Rename(directory):
                waiting.setdefault(directory, []).append(index)
    return sorted(itertools.chain.from_iterable(waiting.values()))


def kept_parts(pending: Sequence[int]) -> Iterator[tuple[int, ...]]:
    count = len(pending)
    if count <= SUBSETS_MAX:
        for size in range(count + 1):
            yield from itertools.combinations(pending, size)
        return
    for size in range(count + 1):
        yield tuple(pending[:size])
    for lost in range(count - 1):
        yield (*pending[:lost], *pending[lost + 1 :])


def _torn(operation: Operation) -> Iterator[tuple[str, Write]]:
    """What may be left of a write."""
    if not isinstance(operation, Write):
        return
    file, offset, content = operation
    for size in sorted({1, len(content) // 2, len(content) - 1} - {0, len(content)}):
        yield f"{size} bytes", Write(file, offset, content[:size])
    yield "its length", Write(file, offset, bytes(len(content)))
