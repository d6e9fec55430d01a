"""The interface between the engine and the operating system: every file operation goes through it.

Tests implement it with a disk that records the calls and enumerates what a power cut may leave.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

PRIVATE_FILE = 0o600  # entries and metadata are readable by the node's user only
PRIVATE_DIRECTORY = 0o700

Buffer = bytes | bytearray | memoryview

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
TOO_MANY = (errno.EMFILE, errno.ENFILE)
NO_ROOM = (*NO_SPACE, *TOO_MANY)  # not a failure: it can be retried when there is room
READ_ONCE_MAX = 16 << 20  # Linux reads at most 2 GiB at a time; smaller steps let other threads run


class Files(Protocol):
    """Errors are ``OSError``. Offsets are explicit; nothing here depends on a file position."""

    def open(self, path: Path, *, create: bool = False) -> int:
        """Open for reading and writing. ``create``: it must not exist yet."""

    def close(self, fd: int) -> None: ...

    def write(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        """Write the buffers one after the other; returns how many bytes were written, which may be fewer."""

    def read_into(self, fd: int, buffer: Buffer, offset: int, *, wait: bool = True) -> int:
        """Returns how many bytes were read: fewer at the end of the file, and without ``wait`` where it would block."""

    def size(self, fd: int) -> int: ...

    def truncate(self, fd: int, size: int) -> None: ...

    def allocate(self, fd: int, size: int) -> None:
        """Allocate space for a file of this size."""

    def sync(self, fd: int) -> None:
        """Make content and size durable."""

    def forget(self, fd: int) -> None:
        """Evict it from the page cache."""

    def sync_directory(self, path: Path) -> None: ...

    def make_directory(self, path: Path) -> None: ...

    def remove_directory(self, path: Path) -> None: ...

    def rename(self, old: Path, new: Path) -> None:
        """Within one directory; ``new`` is replaced."""

    def unlink(self, path: Path) -> None: ...

    def names(self, path: Path) -> list[str]:
        """The names in a directory, sorted."""

    def free_bytes(self, path: Path) -> int: ...

    def free_files(self, path: Path) -> int:
        """How many files and directories can still be created."""

    def lock(self, fd: int) -> bool:
        """Whether this process got the lock; it lasts until the file is closed or the process ends."""


class RealFiles:
    """The operating system's files."""

    def open(self, path: Path, *, create: bool = False) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC
        return os.open(path, flags | os.O_CREAT | os.O_EXCL if create else flags, PRIVATE_FILE)

    def close(self, fd: int) -> None:
        os.close(fd)

    def write(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        return os.pwritev(fd, buffers, offset)

    def read_into(self, fd: int, buffer: Buffer, offset: int, *, wait: bool = True) -> int:
        if not wait:
            try:
                return os.preadv(fd, [buffer], offset, os.RWF_NOWAIT)
            except BlockingIOError:
                return 0
            except OSError as failure:
                if failure.errno != errno.EOPNOTSUPP:
                    raise
        return os.preadv(fd, [buffer], offset)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def allocate(self, fd: int, size: int) -> None:
        if size:
            os.posix_fallocate(fd, 0, size)

    def sync(self, fd: int) -> None:
        os.fdatasync(fd)

    def forget(self, fd: int) -> None:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def sync_directory(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def make_directory(self, path: Path) -> None:
        path.mkdir(PRIVATE_DIRECTORY)

    def remove_directory(self, path: Path) -> None:
        path.rmdir()

    def rename(self, old: Path, new: Path) -> None:
        old.replace(new)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def names(self, path: Path) -> list[str]:
        return sorted(os.listdir(path))

    def free_bytes(self, path: Path) -> int:
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    def free_files(self, path: Path) -> int:
        found = os.statvfs(path)
        return found.f_favail if found.f_files else sys.maxsize  # some file systems do not count them

    def lock(self, fd: int) -> bool:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def make_private(directory: Path) -> None:
    """Restrict files that an older version created readable for others. Files of other users are left alone."""
    with contextlib.suppress(OSError):
        if directory.stat().st_uid == os.geteuid():
            directory.chmod(PRIVATE_DIRECTORY)
        for each in directory.iterdir():
            with contextlib.suppress(OSError):
                if each.is_file() and not each.is_symlink() and each.stat().st_uid == os.geteuid():
                    each.chmod(PRIVATE_FILE)


def read_all(files: Files, fd: int) -> bytes:
    """The whole file."""
    return read_range(files, fd, 0, files.size(fd))


def read_range(files: Files, fd: int, offset: int, length: int) -> bytes:
    """Shorter than ``length`` only at the end of the file."""
    content = bytearray(length)
    view = memoryview(content)
    done = 0
    while done < length:
        count = files.read_into(fd, view[done : done + READ_ONCE_MAX], offset + done)
        if not count:
            break
        done += count
    return bytes(view[:done])


def write_whole(files: Files, path: Path, content: bytes) -> None:
    """Replace a small file atomically and durably."""
    fresh = path.with_name(path.name + ".new")
    if fresh.name in files.names(path.parent):
        files.unlink(fresh)
    fd = files.open(fresh, create=True)
    try:
        if files.write(fd, [content], 0) < len(content):
            raise OSError(errno.ENOSPC, f"no space to write {fresh}")
        files.sync(fd)
    except OSError:
        files.unlink(fresh)  # it must not take space
        raise
    finally:
        files.close(fd)
    files.rename(fresh, path)
    files.sync_directory(path.parent)
