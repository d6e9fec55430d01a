"""One group commit: makes everything written before it durable, in an order that a power cut cannot break.

Rules
 G1  Frames first, then the directories of new files, then footers, and the manifest last. So a seal is durable only if
     every frame before it is, and a stream is in the manifest only if its files exist.
 G2  A file is removed only after the manifest no longer needs it.
 G3  A failed sync is never retried: data that the kernel dropped would look durable.
 G4  Without room (no space, no file descriptor) it waits. A footer is left out instead: it only makes restarts faster.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from trunkline.storage.errors import StorageError
from trunkline.storage.extents import Extent, StreamFiles
from trunkline.storage.files import NO_ROOM, NO_SPACE, TOO_MANY, Files
from trunkline.storage.handles import Handles
from trunkline.storage.layout import pack_footer
from trunkline.storage.manifest import Manifest, ManifestEntry
from trunkline.storage.space import DiskSpace


class Closing(NamedTuple):
    """An extent that gets no more frames."""

    stream: StreamFiles
    extent: Extent
    successor: bool


class PendingWork:
    """What the next group commit has to do."""

    def __init__(self) -> None:
        self.dirty: dict[Extent, StreamFiles] = {}
        self.directories: dict[Path, None] = {}  # with new files
        self.closing: list[Closing] = []
        self.entries: list[ManifestEntry] = []
        self.trimmed: list[Extent] = []
        self.dropped: list[StreamFiles] = []
        self.bytes = 0

    def __bool__(self) -> bool:
        return bool(self.dirty or self.closing or self.entries or self.trimmed or self.dropped or self.directories)


class SyncBatch:
    """``run`` it on a worker thread, then pass it to ``Engine.end_sync`` on the engine's thread."""

    def __init__(
        self, ticket: int, work: PendingWork, files: Files, handles: Handles, manifest: Manifest, space: DiskSpace
    ) -> None:
        self.ticket = ticket  # records up to this one are durable when ``run`` has returned
        self.work = work
        self.synced = {stream: stream.slots for stream in work.dirty.values()}
        self._files = files
        self._handles = handles
        self._manifest = manifest
        self._space = space
        self.unindexed: set[Extent] = set()  # closed without a footer
        self.done = False

    def run(self) -> None:
        """Blocks. If it raises, the process must stop (G3)."""
        try:
            self._sync_frames()
            for path in self.work.directories:
                self._patiently(partial(self._handles.sync_directory, path))
            for closing in self.work.closing:
                self._patiently(partial(self._write_footer, closing))
            if self.work.entries:
                self._patiently(partial(self._manifest.append, self.work.entries))
            self._remove_files()
        except OSError as failure:
            raise StorageError(f"cannot sync: {failure}; stop the node and check its disk") from failure
        self.done = True

    def _patiently(self, step: Callable[[], None]) -> None:
        """Retry a step that fails for lack of room (G4)."""
        while True:
            try:
                return step()
            except OSError as failure:
                if failure.errno not in NO_ROOM:
                    raise
                if not (failure.errno in TOO_MANY and self._handles.close_some()):
                    self._space.wait()

    def _sync_frames(self) -> None:
        for extent in self.work.dirty:
            self._patiently(partial(self._handles.sync, extent.path))

    def _write_footer(self, closing: Closing) -> None:
        stream, extent, successor = closing
        if extent.damaged or stream.dropped:
            return
        fd = self._handles.take(extent.path)
        try:
            content = b"".join(pack_footer(stream.salt, extent.footer(successor=successor)))
            self._space.write(fd, [content], extent.size)
        except OSError as failure:
            if failure.errno not in NO_SPACE:
                raise
            self.unindexed.add(extent)
        finally:
            self._handles.give_back(extent.path, written=True)
        self._handles.sync(extent.path)

    def _remove_files(self) -> None:
        for extent in self.work.trimmed:
            self._files.unlink(extent.path)
        for stream in self.work.dropped:
            self._patiently(partial(remove_stream_directory, self._files, stream.path))


def remove_stream_directory(files: Files, path: Path) -> None:
    """Not synced: if it reappears, the next start removes it again."""
    if path.name not in files.names(path.parent):
        return
    for name in files.names(path):
        files.unlink(path / name)
    files.remove_directory(path)
