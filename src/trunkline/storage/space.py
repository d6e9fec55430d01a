"""Disk space: the space level, and a reserve that keeps a node working when the disk is full.

The reserve is a file that occupies its space. A write that finds the disk full takes as much of it as it needs, and no
more: other programs cannot take the rest. It is refilled when space returns.

Rules
 P1  The last part of the reserve is for the manifest alone: seals, ends, trims and drops, and a restart.
 P2  A write without room raises ``OSError`` with one of ``NO_SPACE``, and can be retried later.

    | entries and replicas | entries |          fills, repairs          |  manifest  |
    +----------------------+---------+----------------------------------+------------+
    free                   tight     full                               exhausted    0
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from trunkline.core.messages import Space
from trunkline.storage.errors import NoRoom, StorageError
from trunkline.storage.files import NO_SPACE, Buffer, Files, write_whole
from trunkline.storage.options import KIB, MIB, StorageOptions

RESERVE = "reserve"
CHECK_BYTES = 4 * MIB  # after writing this much ...
CHECK_S = 0.5  # ... or after this time, the free space is read again
TIGHT_MARGINS = 4  # a disk with fewer free margins is tight. Too few: replicas fill it before that is known
MANIFEST_PART = 8  # one of so many parts of the reserve is for the manifest
TAKEN_PARTS = 16  # the reserve is taken in steps of one of so many parts
FILES_MIN = 16  # with fewer free inodes the disk is exhausted: a stream takes two, an extent one
EXHAUSTED_BYTES = 16 * KIB  # at least: files take space in blocks


class DiskSpace:
    """All writes go through it, from all threads."""

    def __init__(
        self, files: Files, directory: Path, options: StorageOptions, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._files = files
        self._directory = directory
        self._wanted, self._margin = options.reserve_bytes, options.margin_bytes
        self._manifest_bytes = self._wanted // MANIFEST_PART
        self._clock = clock
        self._lock = threading.Lock()
        self._left = 0  # with the reserve, at the last check
        self._written = 0  # since then
        self._checked = 0.0
        self._reported = Space.ROOMY
        self._gave_up = threading.Event()
        self._reserve = self._open_reserve()
        self._held = files.size(self._reserve) if self._reserve is not None else 0
        self.check()

    def _open_reserve(self) -> int | None:
        """None: there is no room for an empty file."""
        path = self._directory / RESERVE
        try:
            return self._files.open(path, create=RESERVE not in self._files.names(self._directory))
        except OSError as failure:
            if failure.errno not in NO_SPACE:
                raise
            return None

    # ------------------------------------------------------------------------------------------------------- writing

    def write(self, fd: int, buffers: Sequence[Buffer], offset: int, *, manifest: bool = False) -> None:
        """Write all at the end of a file, into the reserve's space if need be (P1, P2). Views must be of bytes."""
        size = sum(map(len, buffers))
        self._written += size
        while self._tried(fd, buffers, offset) != size:
            if not self._release(size, manifest=manifest):
                self._left = 0  # until the next check: a quota may leave less than the disk reports
                self._files.truncate(fd, offset)  # drop the partial write
                raise OSError(errno.ENOSPC, f"no space left in {self._directory}, and the reserve is used up")

    def _tried(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        try:
            return self._files.write(fd, buffers, offset)
        except OSError as failure:
            if failure.errno in NO_SPACE:
                return 0
            raise StorageError(f"cannot write in {self._directory}: {failure}; check the disk") from failure

    def write_whole(self, path: Path, content: bytes) -> None:
        self.with_reserve(lambda: write_whole(self._files, path, content))

    def with_reserve(self, action: Callable[[], None]) -> None:
        """Run an action that needs a little space, for the manifest or in a directory."""
        while True:
            try:
                return action()
            except OSError as failure:
                if failure.errno not in NO_SPACE or not self._release(0, manifest=True):
                    raise

    def _release(self, size: int, *, manifest: bool) -> bool:
        """Free some of the reserve. Returns whether there was any."""
        floor = 0 if manifest else self._manifest_bytes
        with self._lock:
            if self._reserve is None or self._held <= floor:
                return False
            self._held = max(floor, self._held - max(size, self._wanted // TAKEN_PARTS, 4 * KIB))
            self._files.truncate(self._reserve, self._held)
            self._checked = float("-inf")  # check again
            return True

    def wait(self) -> None:
        """Block until the next check. Raises ``NoRoom`` after ``give_up``."""
        if self._gave_up.wait(CHECK_S):
            raise NoRoom(f"no space left in {self._directory}, and the reserve is used up: free space")

    def give_up(self) -> None:
        self._gave_up.set()

    # ------------------------------------------------------------------------------------------------------- checks

    def level(self, size: int = 0) -> Space:
        """The level after writing ``size`` more bytes. Cheap enough to call before every request."""
        if self._written + size >= CHECK_BYTES or self._clock() - self._checked >= CHECK_S:
            self.check()
        return self._level_of(self._left - self._written - size)

    def _level_of(self, left: int) -> Space:
        if left < max(2 * self._manifest_bytes, EXHAUSTED_BYTES):
            return Space.EXHAUSTED
        if left < self._wanted + self._margin:
            return Space.FULL
        return Space.TIGHT if left < self._wanted + TIGHT_MARGINS * self._margin else Space.ROOMY

    def reported(self) -> Space:
        """The level for the registry: it improves only with a margin to spare, so that it changes rarely."""
        now, with_a_margin = self.level(), self.level(self._margin)
        self._reported = min(Space.FULL, max(now, min(self._reported, with_a_margin)))
        return self._reported

    def check(self) -> None:
        with self._lock:
            self._written = 0
            self._checked = self._clock()
            self._left = self.free_bytes() + self._held
            if self._files.free_files(self._directory) < FILES_MIN:
                self._left = 0
            if self._held != self._wanted and self._level_of(self._left) < Space.FULL:
                self._fill(self._wanted)
            elif self._held < self._manifest_bytes <= self._left:
                self._fill(self._manifest_bytes)

    def _fill(self, wanted: int) -> None:
        if self._reserve is None:
            return
        try:
            self._files.truncate(self._reserve, min(wanted, self._files.size(self._reserve)))
            self._files.allocate(self._reserve, wanted)
        except OSError as failure:
            if failure.errno not in (*NO_SPACE, errno.EOPNOTSUPP):
                raise StorageError(f"cannot reserve space in {self._directory}: {failure}") from failure
            self._files.truncate(self._reserve, min(self._held, wanted))
            self._held = min(self._held, wanted)
            if failure.errno in NO_SPACE:  # perhaps a quota: full, whatever the disk reports
                self._left = min(self._left, self._wanted + self._margin - 1)
            return
        self._held = wanted

    def free_bytes(self) -> int:
        """Without the reserve."""
        return self._files.free_bytes(self._directory)

    @property
    def reserved_bytes(self) -> int:
        return self._held

    def close(self) -> None:
        if self._reserve is not None:
            self._files.close(self._reserve)
