"""A bounded number of open files, opened on demand.

Rules
 F1  A file in use is never closed.
 F2  A file with unsynced bytes is synced before it is closed: the kernel may drop a write-back error of a file that no
     process has open.
 F3  A failed sync is final: from then on no file can be taken or synced, on any thread.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path

from trunkline.storage.errors import StorageError
from trunkline.storage.files import TOO_MANY, Files

FILES_MAX = 256  # too small: files are reopened all the time; too big: none are left for connections


class _Handle:
    __slots__ = ("dirty", "fd", "users")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.users = 1
        self.dirty = False  # it has unsynced bytes


class Handles:
    """Take a file, use it, give it back. Thread-safe."""

    def __init__(self, files: Files, files_max: int = FILES_MAX) -> None:
        """``files_max``: idle files; fewer where the process hits its limit."""
        self._files = files
        self._files_max = files_max
        self._lock = threading.Lock()
        self._used: dict[Path, _Handle] = {}
        self._idle: OrderedDict[Path, _Handle] = OrderedDict()  # least recently used first
        self._failure: StorageError | None = None

    def take(self, path: Path, *, create: bool = False) -> int:
        """Raises ``OSError`` with one of ``TOO_MANY`` if no file can be opened."""
        with self._lock:
            if self._failure is not None:  # F3
                raise self._failure
            handle = self._used.get(path)
            if handle is not None:
                handle.users += 1
                return handle.fd
            handle = self._idle.pop(path, None)
            if handle is None:
                handle = _Handle(self._open(path, create=create))
            handle.users = 1
            self._used[path] = handle
            return handle.fd

    def give_back(self, path: Path, *, written: bool = False) -> None:
        with self._lock:
            handle = self._used[path]
            handle.dirty = handle.dirty or written
            handle.users -= 1
            if handle.users:
                return
            self._idle[path] = self._used.pop(path)
            while len(self._idle) > self._files_max:
                self._close_oldest()

    def sync(self, path: Path) -> None:
        """Sync a file. If it raises ``StorageError``, the process must stop."""
        fd = self.take(path)
        try:
            with self._lock:
                self._used[path].dirty = False  # later writes are not covered
            self._files.sync(fd)
        except OSError as failure:
            raise self._failed(failure) from failure
        finally:
            self.give_back(path)

    def sync_directory(self, path: Path) -> None:
        try:
            self._files.sync_directory(path)
        except OSError as failure:
            if failure.errno not in TOO_MANY or not self.close_some():
                raise
            self._files.sync_directory(path)

    def close_some(self) -> bool:
        """Close an idle file. Returns whether there was one."""
        with self._lock:
            return self._make_room()

    def forget(self, path: Path) -> None:
        """The file was removed: do not keep it open."""
        with self._lock:
            handle = self._idle.pop(path, None)
            if handle is not None:
                self._files.close(handle.fd)

    def close(self) -> None:
        with self._lock:
            for handle in (*self._idle.values(), *self._used.values()):
                self._files.close(handle.fd)
            self._idle.clear()
            self._used.clear()

    # ------------------------------------------------------------------------------------------ internal, with the lock

    def _open(self, path: Path, *, create: bool) -> int:
        try:
            return self._files.open(path, create=create)
        except OSError as failure:
            if failure.errno not in TOO_MANY:
                raise
            if not self._make_room():
                text = "too many open files: raise the limit (ulimit -n, LimitNOFILE= of systemd)"
                raise OSError(failure.errno, text, str(path)) from failure
        return self._files.open(path, create=create)

    def _make_room(self) -> bool:
        if not self._idle:
            return False
        self._close_oldest()
        return True

    def _close_oldest(self) -> None:
        """The oldest that needs no sync, else the oldest (F2)."""
        path = next((path for path, handle in self._idle.items() if not handle.dirty), None)
        if path is None:
            path = next(iter(self._idle))
            try:
                self._files.sync(self._idle[path].fd)
            except OSError as failure:
                raise self._failed(failure) from failure
        self._files.close(self._idle.pop(path).fd)

    def _failed(self, failure: OSError) -> StorageError:
        self._failure = StorageError(f"cannot sync: {failure}; stop the node and check its disk")
        return self._failure
