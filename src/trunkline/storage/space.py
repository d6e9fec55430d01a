"""Space on the disk: what there is room for, and a reserve that keeps a node going when others have taken the rest.

The reserve is a file that takes its space. A write that finds the disk full takes as much of it as it needs, and no
more: what is left in it nobody else can take. It is filled again when space has returned.

Rules
 P1  The last part of the reserve is for the manifest alone: seals, ends, trims and drops, and a restart.
 P2  A write for which there is no room raises ``OSError`` with one of ``NO_SPACE``, and can be tried again later.

    |  entries and copies  | entries |          fills, repairs          |  manifest  |
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
LOOK_AGAIN_BYTES = 4 * MIB  # after so much was written ...
LOOK_AGAIN_S = 0.5  # ... or so much time has passed, the free space is asked for again
TIGHT_MARGINS = 4  # a disk is tight when so many margins are left. Too few: copies fill it before that is known
MANIFEST_PART = 8  # the last of so many parts of the reserve is for the manifest
TAKEN_PARTS = 16  # the reserve is taken in steps of one of so many parts
FILES_MIN = 16  # with fewer that can still be made, the disk is exhausted: a stream takes two, an extent one
EXHAUSTED_BYTES = 16 * KIB  # at least: files take space in blocks


class DiskSpace:
    """Writes of all threads pass here."""

    def __init__(
        self, files: Files, directory: Path, options: StorageOptions, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._files = files
        self._directory = directory
        self._wanted, self._margin = options.reserve_bytes, options.margin_bytes
        self._manifest_bytes = self._wanted // MANIFEST_PART
        self._clock = clock
        self._lock = threading.Lock()
        self._left = 0  # with the reserve, at the last look
        self._written = 0  # since then
        self._looked = 0.0
        self._told = Space.ROOMY
        self._gave_up = threading.Event()
        self._reserve = self._open_reserve()
        self._held = files.size(self._reserve) if self._reserve is not None else 0
        self.look()

    def _open_reserve(self) -> int | None:
        """None: there is not even room for an empty file."""
        path = self._directory / RESERVE
        try:
            return self._files.open(path, create=RESERVE not in self._files.names(self._directory))
        except OSError as failure:
            if failure.errno not in NO_SPACE:
                raise
            return None

    # ------------------------------------------------------------------------------------------------------- writing

    def write(self, fd: int, buffers: Sequence[Buffer], offset: int, *, manifest: bool = False) -> None:
        """Write everything at the end of a file, with the reserve's space if there is no other (P1, P2). Views must be
        of bytes.
        """
        size = sum(map(len, buffers))
        self._written += size
        while self._tried(fd, buffers, offset) != size:
            if not self._release(size, manifest=manifest):
                self._left = 0  # until the next look: a quota may leave less than there seems to be
                self._files.truncate(fd, offset)  # of what was begun nothing stays
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
        """Do something that needs a little space, for the manifest or in a directory."""
        while True:
            try:
                return action()
            except OSError as failure:
                if failure.errno not in NO_SPACE or not self._release(0, manifest=True):
                    raise

    def _release(self, size: int, *, manifest: bool) -> bool:
        """Give some of the reserve away. Answers whether there was some."""
        floor = 0 if manifest else self._manifest_bytes
        with self._lock:
            if self._reserve is None or self._held <= floor:
                return False
            self._held = max(floor, self._held - max(size, self._wanted // TAKEN_PARTS, 4 * KIB))
            self._files.truncate(self._reserve, self._held)
            self._looked = float("-inf")  # look again
            return True

    def wait(self) -> None:
        """For room, on a thread that may. Raises ``NoRoom`` when nobody waits for it any more."""
        if self._gave_up.wait(LOOK_AGAIN_S):
            raise NoRoom(f"no space left in {self._directory}, and the reserve is used up: free space")

    def give_up(self) -> None:
        self._gave_up.set()

    # ------------------------------------------------------------------------------------------------------- looking

    def level(self, size: int = 0) -> Space:
        """What there is room for when so many bytes more are written. Cheap enough to ask before every request."""
        if self._written + size >= LOOK_AGAIN_BYTES or self._clock() - self._looked >= LOOK_AGAIN_S:
            self.look()
        return self._level_of(self._left - self._written - size)

    def _level_of(self, left: int) -> Space:
        if left < max(2 * self._manifest_bytes, EXHAUSTED_BYTES):
            return Space.EXHAUSTED
        if left < self._wanted + self._margin:
            return Space.FULL
        return Space.TIGHT if left < self._wanted + TIGHT_MARGINS * self._margin else Space.ROOMY

    def told(self) -> Space:
        """The level as others know it: it becomes better only with a margin to spare, so that it changes seldom."""
        now, with_a_margin = self.level(), self.level(self._margin)
        self._told = min(Space.FULL, max(now, min(self._told, with_a_margin)))
        return self._told

    def look(self) -> None:
        with self._lock:
            self._written = 0
            self._looked = self._clock()
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
            if failure.errno in NO_SPACE:  # a quota, perhaps: it is full, whatever seems to be free
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
