"""The storage engine, as the host of a node calls it.

Rules
 E1  A record is durable when ``run`` of a batch that covers its ticket has returned. Under ``interval`` and ``never`` a
     frame is as durable as the policy promises when ``put`` returns; every other record is fully durable then.
 E2  All calls are made on one thread, except ``SyncBatch.run``, ``read`` and the steps of a scrub.
 E3  One group commit runs at a time.
 E4  After a storage error nothing more is written.
 E5  Lack of room is not an error. A record that finds no space, or no file descriptor, waits, and so does every record
     after it: to the caller the disk is slow. ``retry`` tries again.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from trunkline.core.effects import Record
from trunkline.core.entries import Frame, junk
from trunkline.core.messages import Space
from trunkline.core.streams import (
    FrameWritten,
    JunkWritten,
    Key,
    StreamDropping,
    StreamEnding,
    StreamLosing,
    StreamOpened,
    StreamSealing,
    StreamTrimming,
)
from trunkline.storage.directory import STREAMS, Identity, boot_id, lock_directory, read_identity, stream_name
from trunkline.storage.errors import NoRoom, StorageError
from trunkline.storage.extents import Extent, StreamFiles
from trunkline.storage.files import NO_ROOM, Buffer, Files, RealFiles
from trunkline.storage.frame_reader import FrameReader
from trunkline.storage.handles import FILES_MAX, Handles
from trunkline.storage.layout import EXTENT_HEADER, MARK, pack_extent_header, pack_frame_header, pack_mark, padding
from trunkline.storage.manifest import ManifestEntry, WrittenLate, entry_of
from trunkline.storage.options import StorageOptions, SyncPolicy
from trunkline.storage.recovered import RecoveredDirectory, recover_directory
from trunkline.storage.scrub import Scrubber, ScrubStep
from trunkline.storage.sync import Closing, PendingWork, SyncBatch


class EngineStatus(Struct, frozen=True):
    sync: SyncPolicy
    streams: int
    extents: int
    stored_bytes: int
    unsynced_bytes: int
    free_bytes: int  # without the reserve
    reserved_bytes: int
    full: bool
    waiting: int = 0  # records that wait for room


class Engine:
    """An open node directory."""

    def __init__(
        self, found: RecoveredDirectory, identity: Identity, options: StorageOptions, lock_fd: int, files_max: int
    ) -> None:
        self.identity = identity
        self.image = found.image  # the caller takes it and leaves an empty one
        self._options = options
        self._directory = found.directory
        self._files = found.files
        self._space = found.space
        self._manifest = found.manifest
        self._streams = found.streams
        self._lock_fd = lock_fd
        self._handles = Handles(found.files, files_max)
        self._lock = threading.Lock()  # guards the positions of frames
        self._reader = FrameReader(self._streams, self._files, self._handles, self._lock)
        self._work = PendingWork()
        self._batch: SyncBatch | None = None
        self._ticket = 0
        self._waiting: deque[tuple[Record, Buffer | None]] = deque()
        self._waiting_bytes = 0
        self._failed = False
        self._closed = False
        self._unmarked = {stream: -1 for stream in self._streams.values() if stream.synced > stream.marked}

    @staticmethod
    def open(
        directory: Path,
        options: StorageOptions,
        files: Files | None = None,
        *,
        boot: str | None = None,
        files_max: int = FILES_MAX,
    ) -> Engine:
        """Recover a directory. ``boot`` identifies this boot of the machine; about ``files_max`` files stay open."""
        files = files or RealFiles()
        try:
            identity = read_identity(directory, files)
            with contextlib.ExitStack() as undo:
                lock_fd = lock_directory(files, directory)
                undo.callback(files.close, lock_fd)
                found = recover_directory(files, directory, options, boot or boot_id())
                undo.pop_all()
        except OSError as failure:
            raise StorageError(f"cannot open {directory}: {failure}; check the disk") from failure
        return Engine(found, identity, options, lock_fd, files_max)

    # ------------------------------------------------------------------------------------------------------- writing

    def put(self, record: Record, body: Buffer | None = None) -> int:
        """Write a record, now or later (E5); returns its ticket. The caller has verified a body's checksum."""
        if self._failed:
            raise StorageError("the storage engine failed earlier: restart the node")
        self._ticket += 1
        self._waiting.append((record, body))
        self._waiting_bytes += 0 if body is None else len(body)
        if len(self._waiting) == 1:
            self.retry()
        return self._ticket

    def retry(self) -> None:
        """Write waiting records while there is room."""
        while self._waiting:
            record, body = self._waiting[0]
            try:
                self._write(record, body)
            except OSError as failure:
                if failure.errno in NO_ROOM:
                    return
                self._failed = True
                raise StorageError(f"cannot write in {self._directory}: {failure}; check the disk") from failure
            except StorageError:
                self._failed = True
                raise
            self._waiting.popleft()
            self._waiting_bytes -= 0 if body is None else len(body)

    @property
    def written(self) -> int:
        """The ticket of the last record that was written."""
        return self._ticket - len(self._waiting)

    @property
    def stuck(self) -> bool:
        """Whether a record waits for room."""
        return bool(self._waiting)

    def _write(self, record: Record, body: Buffer | None) -> None:
        """A write that fails for lack of room leaves everything as it was, so that it can be retried."""
        match record:
            case FrameWritten(key, frame):
                self._put_frame(self._streams[key], frame, b"" if body is None else body)
            case JunkWritten(key, first, end):
                self._put_junk(self._streams[key], first, end)
            case StreamOpened():
                self._put_opened(record)
            case StreamSealing(key) | StreamEnding(key):
                stream = self._streams[key]
                if stream.active is not None:
                    self._work.closing.append(Closing(stream, stream.active, successor=False))
                stream.active, stream.sealed = None, True
                self._put_entry(entry_of(record, slots=stream.slots))
            case StreamTrimming(key, point):
                self._put_trimming(record, self._streams[key], point)
            case StreamDropping(key):
                self._put_dropping(record, key)
            case StreamLosing():
                self._put_entry(entry_of(record))
            case _:
                raise TypeError(f"the storage engine does not accept {record}")

    def _put_junk(self, stream: StreamFiles, first: int, end: int) -> None:
        """Many frames without a body, in one write."""
        extent, writer = self._extent_for_frame(stream), stream.writer("")
        headers = [
            pack_frame_header(stream.salt, junk(glsn), 0, stream.slots + slot, stream.synced, writer)
            for slot, glsn in enumerate(range(first, end))
        ]
        written = b"".join(headers)
        self._write_at(extent, (written,), extent.size)
        with self._lock:
            at = extent.size
            for glsn, header in zip(range(first, end), headers, strict=True):
                at += len(header)
                extent.add(junk(glsn), at, 0)
        self._count_written(stream, extent, end - first, len(written))

    def _put_frame(self, stream: StreamFiles, frame: Frame, body: Buffer) -> None:
        extent, size = self._extent_for_frame(stream), len(body)
        header = pack_frame_header(stream.salt, frame, size, stream.slots, stream.synced, stream.writer(frame.writer))
        pad = padding(size)
        self._write_at(extent, (header, body, pad) if pad else (header, body), extent.size)
        with self._lock:
            extent.add(frame, extent.size + len(header), size)
        self._count_written(stream, extent, 1, len(header) + size + len(pad))

    def _extent_for_frame(self, stream: StreamFiles) -> Extent:
        if stream.sealed and not stream.late and self._is_lazy:
            self._put_entry(entry_of(WrittenLate(stream.key)))
            stream.late = True
        extent = stream.active
        if extent is None or extent.size >= self._options.extent_bytes:
            before, extent = extent, self._new_extent(stream)
            if before is not None:
                self._work.closing.append(Closing(stream, before, successor=True))
        return extent

    def _count_written(self, stream: StreamFiles, extent: Extent, slots: int, written: int) -> None:
        extent.size += written
        extent.slots += slots
        stream.slots += slots
        stream.marked = stream.synced
        self._work.dirty[extent] = stream
        self._work.bytes += written

    def _write_at(self, extent: Extent, buffers: Sequence[Buffer], offset: int) -> None:
        fd = self._handles.take(extent.path)
        try:
            self._space.write(fd, buffers, offset)
        finally:
            self._handles.give_back(extent.path, written=True)

    def _new_extent(self, stream: StreamFiles) -> Extent:
        extent = stream.next_extent()

        def make() -> None:
            self._handles.take(extent.path, create=True)
            self._handles.give_back(extent.path)

        with contextlib.suppress(FileExistsError):  # an earlier attempt created it, then ran out of room
            self._space.with_reserve(make)
        self._write_at(extent, [pack_extent_header(stream.salt, extent.number, extent.first_slot)], 0)
        extent.size = EXTENT_HEADER.size
        with self._lock:
            stream.add_extent(extent)
        self._work.dirty[extent] = stream
        self._work.directories[stream.path] = None
        return extent

    def _put_opened(self, record: StreamOpened) -> None:
        target = record.descriptor.target
        key = (target.log, target.stream)
        if key in self._streams:
            raise ValueError(f"stream {key} is open already")
        stream = StreamFiles(key, self._directory / STREAMS / stream_name(key), secrets.randbits(32))
        with contextlib.suppress(FileExistsError):  # as for an extent
            self._space.with_reserve(lambda: self._files.make_directory(stream.path))
        extent = self._new_extent(stream)
        self._work.directories[stream.path.parent] = None
        try:
            self._put_entry(entry_of(record, salt=stream.salt))
        except OSError:
            del self._work.dirty[extent]  # the next attempt creates another one
            raise
        with self._lock:
            self._streams[key] = stream

    def _put_trimming(self, record: StreamTrimming, stream: StreamFiles, point: int) -> None:
        count = stream.trimmed_extents(point)
        if not stream.extents:  # its files are lost
            self._put_entry(entry_of(record))
            return
        first = stream.extents[count]
        self._put_entry(entry_of(record, first_extent=first.number, first_slot=first.first_slot))
        with self._lock:
            self._work.trimmed += stream.drop_extents(count)

    def _put_dropping(self, record: StreamDropping, key: Key) -> None:
        self._put_entry(entry_of(record))
        with self._lock:
            stream = self._streams.pop(key, None)
        if stream is not None:
            stream.dropped = True
            self._unmarked.pop(stream, None)
            self._work.dropped.append(stream)
            self._work.dirty = {extent: of for extent, of in self._work.dirty.items() if of is not stream}
            self._work.directories.pop(stream.path, None)

    @property
    def _is_lazy(self) -> bool:
        return self._options.sync is not SyncPolicy.ALWAYS

    def _put_entry(self, entry: ManifestEntry) -> None:
        """Under ``always`` the entry waits for the group commit: a seal must not be on disk before its frames.

        The other policies do not wait for that commit: a seal without its frames then records that they are lost.
        """
        if not self._is_lazy:
            self._work.entries.append(entry)
            return
        if self._work.directories:
            for extent in self._work.dirty:
                if len(extent) == 0:
                    self._handles.sync(extent.path)
            for path in self._work.directories:
                self._handles.sync_directory(path)
        self._manifest.append([entry])

    # ------------------------------------------------------------------------------------------------------- syncing

    @property
    def unsynced(self) -> bool:
        """Whether anything waits for the next group commit."""
        return bool(self._work)

    @property
    def unsynced_bytes(self) -> int:
        return self._work.bytes + self._waiting_bytes

    def begin_sync(self) -> SyncBatch:
        """A group commit of all records so far. Run it on a worker thread, then call ``end_sync``."""
        if self._batch is not None:
            raise RuntimeError("a group commit is running: end it first")
        work, self._work = self._work, PendingWork()
        self._batch = SyncBatch(self.written, work, self._files, self._handles, self._manifest, self._space)
        return self._batch

    def end_sync(self, batch: SyncBatch) -> None:
        if batch is not self._batch or not batch.done:
            self._failed = True
            raise StorageError("a group commit failed: stop the node and check its disk")
        self._batch = None
        for stream, slots in batch.synced.items():
            if not stream.dropped:
                stream.synced = max(stream.synced, slots)
                self._unmarked.setdefault(stream, -1)
        for closing in batch.work.closing:
            if closing.extent not in batch.unindexed:
                self._finish_closing(closing)
        for extent in batch.work.trimmed:
            self._handles.forget(extent.path)
        for stream in batch.work.dropped:
            self._forget_stream(stream)

    def _finish_closing(self, closing: Closing) -> None:
        stream, extent, _ = closing
        if stream.dropped:
            return
        if not extent.damaged:
            with self._lock:
                extent.frames, extent.closed = None, True
            stream.marked = max(stream.marked, extent.first_slot + extent.slots)

    def _forget_stream(self, stream: StreamFiles) -> None:
        for extent in stream.extents:
            self._handles.forget(extent.path)

    def mark_idle(self) -> None:
        """Write a mark to streams that got no frame since the last call: everything in them is synced.

        Without it, damage in the last frames of an idle stream leaves it uncertain. Call it about once a second; it
        needs no sync.
        """
        for stream, slots_before in list(self._unmarked.items()):
            if stream.synced <= stream.marked:
                del self._unmarked[stream]
            elif stream.synced == stream.slots == slots_before:
                if self._wrote_mark(stream):
                    del self._unmarked[stream]
            else:
                self._unmarked[stream] = stream.slots

    def _wrote_mark(self, stream: StreamFiles) -> bool:
        """False: there is no room."""
        extent = stream.active
        if extent is None:
            return True
        try:
            self._write_at(extent, [pack_mark(stream.salt, stream.synced, stream.slots)], extent.size)
        except OSError as failure:
            if failure.errno in NO_ROOM:
                return False
            raise
        extent.size += MARK.size
        stream.marked = stream.synced
        return True

    # ------------------------------------------------------------------------------------------------------- reading

    def read(self, key: Key, frames: Sequence[Frame], bytes_max: int, *, may_block: bool) -> list[Buffer] | None:
        """Bodies of the first frames, at least one, as many as fit into ``bytes_max``; each matches its checksum.
        None: not in memory, and ``may_block`` is False.

        Raises ``FrameDamaged`` and ``FrameMissing``. Thread-safe.
        """
        return self._reader.read(key, frames, bytes_max, may_block=may_block)

    def scrub(self) -> Iterator[ScrubStep]:
        """Read everything once. Each step reads about 1 MiB, or one larger frame; the caller sets the pace."""
        return Scrubber(lambda: list(self._streams.values()), self._files, self._handles, self._lock).steps()

    # --------------------------------------------------------------------------------------------------------- state

    def space(self, size: int = 0) -> Space:
        """The space level after writing ``size`` more bytes. Cheap enough to call before every request."""
        return self._space.level(size)

    def reported_space(self) -> Space:
        """The level for the registry: it changes rarely."""
        return self._space.reported()

    def status(self) -> EngineStatus:
        extents = [extent for stream in self._streams.values() for extent in stream.extents]
        return EngineStatus(
            self._options.sync,
            len(self._streams),
            len(extents),
            sum(extent.size for extent in extents),
            self.unsynced_bytes,
            self._space.free_bytes(),
            self._space.reserved_bytes,
            self._space.level() >= Space.FULL,
            len(self._waiting),
        )

    def give_up(self) -> None:
        """Fail a group commit that waits for room. Thread-safe."""
        self._space.give_up()

    def close(self) -> None:
        """Sync everything, record a clean shutdown, unlock. After a failure or during a group commit: only unlock."""
        if self._closed:
            return
        self._closed = True
        try:
            if not self._failed and self._batch is None:
                self._close_clean()
        finally:
            self._manifest.close()
            self._handles.close()
            self._space.close()
            self._files.close(self._lock_fd)

    def _close_clean(self) -> None:
        self._space.give_up()  # no record that waits for room was acknowledged
        batch = self.begin_sync()
        try:
            batch.run()
        except NoRoom:
            return
        self.end_sync(batch)
        try:
            for stream in self._streams.values():
                if stream.synced > stream.marked and stream.active is not None and self._wrote_mark(stream):
                    self._handles.sync(stream.active.path)
            self._manifest.close_clean()
        except OSError as failure:
            raise StorageError(f"cannot close {self._directory}: {failure}; check the disk") from failure
