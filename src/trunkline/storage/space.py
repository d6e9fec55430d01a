"""Space on the disk: when to refuse appends, and a reserve that keeps fills, seals and manifests going.

The reserve is a file that takes its space. When a write finds the disk full the reserve is emptied and the write is
tried once more; it is filled again when space has returned.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from trunkline.storage.errors import StorageError
from trunkline.storage.files import NO_SPACE, Buffer, Files, write_whole
from trunkline.storage.options import MIB, StorageOptions

RESERVE = "reserve"
LOOK_AGAIN_BYTES = 4 * MIB  # after so much was written ...
LOOK_AGAIN_S = 0.5  # ... or so much time has passed, the free space is asked for again


class Space:
    """Writes of all threads pass here."""

    def __init__(
        self, files: Files, directory: Path, options: StorageOptions, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._files = files
        self._directory = directory
        self._options = options
        self._clock = clock
        self._lock = threading.Lock()
        self._full = False
        self._written = 0  # since the last look
        self._looked = 0.0
        path = directory / RESERVE
        exists = RESERVE in files.names(directory)
        self._reserve = files.open(path, create=not exists)
        self._held = files.size(self._reserve)
        self.look()

    # ------------------------------------------------------------------------------------------------------- writing

    def write(self, fd: int, buffers: Sequence[Buffer], offset: int) -> None:
        """Write everything, with the reserve's space if there is no other. Views must be of bytes."""
        size = sum(map(len, buffers))
        self._written += size
        if self._tried(fd, buffers, offset) == size:
            return
        self._release()
        if self._tried(fd, buffers, offset) != size:
            raise StorageError(f"no space left in {self._directory}, the reserve is used up: free space, then restart")

    def _tried(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        try:
            return self._files.write(fd, buffers, offset)
        except OSError as failure:
            if failure.errno in NO_SPACE:
                return 0
            raise StorageError(f"cannot write in {self._directory}: {failure}; check the disk") from failure

    def write_whole(self, path: Path, content: bytes) -> None:
        try:
            try:
                write_whole(self._files, path, content)
            except OSError as failure:
                if failure.errno not in NO_SPACE:
                    raise
                self._release()
                write_whole(self._files, path, content)
        except OSError as failure:
            raise StorageError(f"cannot write {path}: {failure}; free space or check the disk") from failure

    def _release(self) -> None:
        with self._lock:
            self._files.truncate(self._reserve, 0)
            self._held = 0
            self._full = True

    # ------------------------------------------------------------------------------------------------------- looking

    def full(self) -> bool:
        """Whether only the reserve is left."""
        if self._written >= LOOK_AGAIN_BYTES or self._clock() - self._looked >= LOOK_AGAIN_S:
            self.look()
        return self._full

    def look(self) -> None:
        with self._lock:
            self._written = 0
            self._looked = self._clock()
            wanted, margin = self._options.reserve_bytes, self._options.margin_bytes
            self._full = self.free_bytes() + self._held < wanted + margin
            if self._held != wanted and not self._full:
                self._fill(wanted)

    def _fill(self, wanted: int) -> None:
        try:
            self._files.truncate(self._reserve, min(wanted, self._files.size(self._reserve)))
            self._files.allocate(self._reserve, wanted)
        except OSError as failure:
            if failure.errno not in (*NO_SPACE, errno.EOPNOTSUPP):
                raise StorageError(f"cannot reserve space in {self._directory}: {failure}") from failure
            self._files.truncate(self._reserve, 0)
            self._held, self._full = 0, failure.errno in NO_SPACE
            return
        self._held = wanted

    def free_bytes(self) -> int:
        """Without the reserve."""
        return self._files.free_bytes(self._directory)

    @property
    def reserved_bytes(self) -> int:
        return self._held

    def close(self) -> None:
        self._files.close(self._reserve)
