"""Open files, no more than the process may have. A file that somebody uses is never closed under him."""

from __future__ import annotations

import errno
import threading
from collections import OrderedDict
from pathlib import Path

from trunkline.storage.files import Files

IDLE_MAX = 256  # files that are open and that nobody uses
TOO_MANY = (errno.EMFILE, errno.ENFILE)


class _Handle:
    __slots__ = ("fd", "users")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.users = 1


class Handles:
    """Take a file, use it, give it back. For all threads."""

    def __init__(self, files: Files, idle_max: int = IDLE_MAX) -> None:
        self._files = files
        self._idle_max = idle_max
        self._lock = threading.Lock()
        self._used: dict[Path, _Handle] = {}
        self._idle: OrderedDict[Path, _Handle] = OrderedDict()

    def take(self, path: Path, *, create: bool = False) -> int:
        with self._lock:
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

    def _open(self, path: Path, *, create: bool) -> int:
        try:
            return self._files.open(path, create=create)
        except OSError as failure:
            if failure.errno not in TOO_MANY:
                raise
            self._close_idle()
        try:
            return self._files.open(path, create=create)
        except OSError as failure:
            if failure.errno not in TOO_MANY:
                raise
            text = "too many open files: raise the limit (ulimit -n, LimitNOFILE= of systemd)"
            raise OSError(failure.errno, text, str(path)) from failure

    def _close_idle(self) -> None:
        for handle in self._idle.values():
            self._files.close(handle.fd)
        self._idle.clear()

    def give_back(self, path: Path) -> None:
        with self._lock:
            handle = self._used[path]
            handle.users -= 1
            if handle.users:
                return
            self._idle[path] = self._used.pop(path)
            if len(self._idle) > self._idle_max:
                _, oldest = self._idle.popitem(last=False)
                self._files.close(oldest.fd)

    def forget(self, path: Path) -> None:
        """The file is gone: do not keep it open for later."""
        with self._lock:
            handle = self._idle.pop(path, None)
            if handle is not None:
                self._files.close(handle.fd)

    def close(self) -> None:
        with self._lock:
            self._close_idle()
            for handle in self._used.values():
                self._files.close(handle.fd)
            self._used.clear()
