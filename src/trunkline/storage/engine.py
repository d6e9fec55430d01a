"""The storage engine: what the host of a node calls.

Rules
 E1  A record is durable when ``run`` of a batch that covers its ticket has returned. Under ``interval`` and ``never`` a
     frame is as durable as these promise when ``put`` returns, and everything that is no frame is durable for certain.
 E2  All calls are made on one thread, except ``SyncBatch.run``, ``read`` and the steps of a scrub.
 E3  One group commit is under way at a time.
 E4  After an error of storage nothing more is written.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from trunkline.core.effects import Record
from trunkline.core.entries import Frame, junk
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
from trunkline.storage.errors import StorageError
from trunkline.storage.extents import Extent, StreamFiles
from trunkline.storage.files import Buffer, Files, RealFiles
from trunkline.storage.handles import Handles
from trunkline.storage.layout import EXTENT_HEADER, MARK, pack_extent_header, pack_frame_header, pack_mark, padding
from trunkline.storage.manifest import Entry, WrittenLate, entry_of
from trunkline.storage.options import StorageOptions, SyncPolicy
from trunkline.storage.reading import FrameReader
from trunkline.storage.recovered import RecoveredDirectory, recover_directory
from trunkline.storage.scrub import Scrubber, ScrubStep
from trunkline.storage.sync import Closing, SyncBatch, Work


class EngineStatus(Struct, frozen=True):
    sync: SyncPolicy
    streams: int
    extents: int
    stored_bytes: int
    unsynced_bytes: int
    free_bytes: int  # without the reserve
    reserved_bytes: int
    full: bool


class Engine:
    """A node's directory, open."""

    def __init__(self, found: RecoveredDirectory, identity: Identity, options: StorageOptions, lock_fd: int) -> None:
        self.identity = identity
        self.image = found.image  # the caller sets it to an empty one when it has taken it
        self._options = options
        self._directory = found.directory
        self._files = found.files
        self._space = found.space
        self._manifest = found.manifest
        self._streams = found.streams
        self._lock_fd = lock_fd
        self._handles = Handles(found.files)
        self._lock = threading.Lock()  # over what says where frames are
        self._reader = FrameReader(self._streams, self._files, self._handles, self._lock)
        self._work = Work()
        self._batch: SyncBatch | None = None
        self._ticket = 0
        self._failed = False
        self._closed = False
        self._unmarked = {stream: -1 for stream in self._streams.values() if stream.synced > stream.marked}
        for stream in self._streams.values():
            if stream.active is not None:
                stream.active.fd = self._handles.take(stream.active.path)

    @staticmethod
    def open(
        directory: Path, options: StorageOptions, files: Files | None = None, *, boot: str | None = None
    ) -> Engine:
        """Recover what the directory holds. ``boot`` stands for this start of the machine."""
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
        return Engine(found, identity, options, lock_fd)

    # ------------------------------------------------------------------------------------------------------- writing

    def put(self, record: Record, body: Buffer | None = None) -> int:
        """Write a record; returns its ticket. The caller has compared a frame's body with its checksum."""
        if self._failed:
            raise StorageError("the storage engine has failed before: restart the node")
        self._ticket += 1
        try:
            match record:
                case FrameWritten(key, frame):
                    self._put_frame(self._streams[key], frame, b"" if body is None else body)
                case JunkWritten(key, first, end):
                    self._put_junk(self._streams[key], first, end)
                case StreamOpened():
                    self._put_opened(record)
                case StreamSealing(key) | StreamEnding(key):
                    stream = self._streams[key]
                    self._close_active(stream, successor=False)
                    stream.sealed = True
                    self._put_entry(entry_of(record, slots=stream.slots))
                case StreamTrimming(key, point):
                    self._put_trimming(record, self._streams[key], point)
                case StreamDropping(key):
                    self._put_dropping(record, key)
                case StreamLosing():
                    self._put_entry(entry_of(record))
                case _:
                    raise TypeError(f"a storage engine does not keep {record}")
        except OSError as failure:
            self._failed = True
            raise StorageError(f"cannot write in {self._directory}: {failure}; check the disk") from failure
        except StorageError:
            self._failed = True
            raise
        return self._ticket

    def _put_junk(self, stream: StreamFiles, first: int, end: int) -> None:
        """Many frames without a body, by one write."""
        extent, writer = self._extent_for_frame(stream), stream.writer("")
        headers = [
            pack_frame_header(stream.salt, junk(glsn), 0, stream.slots + slot, stream.synced, writer)
            for slot, glsn in enumerate(range(first, end))
        ]
        written = b"".join(headers)
        self._space.write(extent.fd, (written,), extent.size)
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
        self._space.write(extent.fd, (header, body, pad) if pad else (header, body), extent.size)
        with self._lock:
            extent.add(frame, extent.size + len(header), size)
        self._count_written(stream, extent, 1, len(header) + size + len(pad))

    def _extent_for_frame(self, stream: StreamFiles) -> Extent:
        if stream.sealed and not stream.late and self._is_lazy:
            stream.late = True
            self._put_entry(entry_of(WrittenLate(stream.key)))
        extent = stream.active
        if extent is None or extent.size >= self._options.extent_bytes:
            self._close_active(stream, successor=True)
            extent = self._new_extent(stream)
        return extent

    def _count_written(self, stream: StreamFiles, extent: Extent, slots: int, written: int) -> None:
        extent.size += written
        extent.slots += slots
        stream.slots += slots
        stream.marked = stream.synced
        self._work.dirty[extent] = stream
        self._work.bytes += written

    def _new_extent(self, stream: StreamFiles) -> Extent:
        with self._lock:
            extent = stream.next_extent()
        extent.fd = self._handles.take(extent.path, create=True)
        self._space.write(extent.fd, [pack_extent_header(stream.salt, extent.number, extent.first_slot)], 0)
        extent.size = EXTENT_HEADER.size
        self._work.dirty[extent] = stream
        self._work.directories[stream.path] = None
        return extent

    def _close_active(self, stream: StreamFiles, *, successor: bool) -> None:
        if stream.active is not None:
            self._work.closing.append(Closing(stream, stream.active, successor))
            stream.active = None

    def _put_opened(self, record: StreamOpened) -> None:
        target = record.descriptor.target
        key = (target.log, target.stream)
        if key in self._streams:
            raise ValueError(f"stream {key} is open already")
        stream = StreamFiles(key, self._directory / STREAMS / stream_name(key), secrets.randbits(32))
        self._files.make_directory(stream.path)
        self._new_extent(stream)
        with self._lock:
            self._streams[key] = stream
        self._work.directories[stream.path.parent] = None
        self._put_entry(entry_of(record, salt=stream.salt))

    def _put_trimming(self, record: StreamTrimming, stream: StreamFiles, point: int) -> None:
        count = stream.trimmed_extents(point)
        if not stream.extents:  # the disk lacks it
            self._put_entry(entry_of(record))
            return
        with self._lock:
            gone = stream.drop_extents(count)
        first = stream.extents[0]
        self._put_entry(entry_of(record, first_extent=first.number, first_slot=first.first_slot))
        self._work.gone += gone

    def _put_dropping(self, record: StreamDropping, key: Key) -> None:
        with self._lock:
            stream = self._streams.pop(key, None)
        self._put_entry(entry_of(record))
        if stream is not None:
            stream.dropped = True
            self._unmarked.pop(stream, None)
            self._work.dropped.append(stream)
            self._work.dirty = {extent: of for extent, of in self._work.dirty.items() if of is not stream}
            self._work.directories.pop(stream.path, None)

    @property
    def _is_lazy(self) -> bool:
        return self._options.sync is not SyncPolicy.ALWAYS

    def _put_entry(self, entry: Entry) -> None:
        """Under ``always`` the entry waits for the group commit: a seal must not be on disk before the frames are.

        Under the others nobody waits for that commit, and a seal whose frames are lost says just that: they are lost.
        """
        if not self._is_lazy:
            self._work.entries.append(entry)
            return
        if self._work.directories:
            for extent in self._work.dirty:
                if len(extent) == 0:
                    self._files.sync(extent.fd)
            for path in self._work.directories:
                self._files.sync_directory(path)
        self._manifest.append([entry])

    # ------------------------------------------------------------------------------------------------------- syncing

    @property
    def unsynced(self) -> bool:
        """Whether there is something that no group commit has taken yet."""
        return bool(self._work)

    @property
    def unsynced_bytes(self) -> int:
        return self._work.bytes

    def begin_sync(self) -> SyncBatch:
        """A group commit of everything put so far. Run it on a worker thread, then call ``end_sync``."""
        if self._batch is not None:
            raise RuntimeError("a group commit is under way: end it first")
        work, self._work = self._work, Work()
        self._batch = SyncBatch(self._ticket, work, self._files, self._handles, self._manifest, self._space)
        return self._batch

    def end_sync(self, batch: SyncBatch) -> None:
        if batch is not self._batch or not batch.done:
            self._failed = True
            raise StorageError("a group commit has failed: stop the node and check its disk")
        self._batch = None
        for stream, slots in batch.synced.items():
            if not stream.dropped:
                stream.synced = max(stream.synced, slots)
                self._unmarked.setdefault(stream, -1)
        for closing in batch.work.closing:
            self._finish_closing(closing)
        for extent in batch.work.gone:
            self._handles.forget(extent.path)
        for stream in batch.work.dropped:
            self._forget_stream(stream)

    def _finish_closing(self, closing: Closing) -> None:
        stream, extent, _ = closing
        if stream.dropped:
            return
        self._handles.give_back(extent.path)
        extent.fd = -1
        if not extent.damaged:
            with self._lock:
                extent.frames, extent.closed = None, True
            stream.marked = max(stream.marked, extent.first_slot + extent.slots)

    def _forget_stream(self, stream: StreamFiles) -> None:
        for extent in stream.extents:
            if extent.fd >= 0:
                self._handles.give_back(extent.path)
                extent.fd = -1
            self._handles.forget(extent.path)

    def mark_idle(self) -> None:
        """Let streams that got no frame since the last call say on disk that everything in them is synced.

        Without it, rot in the last frames of an idle stream leaves it uncertain. Call it about once a second; it needs
        no sync.
        """
        for stream, slots_before in list(self._unmarked.items()):
            if stream.synced <= stream.marked:
                del self._unmarked[stream]
            elif stream.synced == stream.slots == slots_before:
                self._write_mark(stream)
                del self._unmarked[stream]
            else:
                self._unmarked[stream] = stream.slots

    def _write_mark(self, stream: StreamFiles) -> None:
        extent = stream.active
        if extent is None:
            return
        self._space.write(extent.fd, [pack_mark(stream.salt, stream.synced, stream.slots)], extent.size)
        extent.size += MARK.size
        stream.marked = stream.synced

    # ------------------------------------------------------------------------------------------------------- reading

    def read(self, key: Key, frames: Sequence[Frame], bytes_max: int, *, may_block: bool) -> list[Buffer] | None:
        """Bodies of the first of these frames, at least of one, as many as fit into ``bytes_max``; each matches its
        checksum. None: it is not in memory, and ``may_block`` is False.

        Raises ``FrameDamaged`` and ``FrameMissing``. For any thread.
        """
        return self._reader.read(key, frames, bytes_max, may_block=may_block)

    def scrub(self) -> Iterator[ScrubStep]:
        """Read everything once. Each step reads about 1 MiB, or one larger frame; the caller sets the pace."""
        return Scrubber(lambda: list(self._streams.values()), self._files, self._handles, self._lock).steps()

    # --------------------------------------------------------------------------------------------------------- state

    def full(self) -> bool:
        """Whether only the reserve is left. Cheap enough to ask before every append."""
        return self._space.full()

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
            self._space.full(),
        )

    def close(self) -> None:
        """Sync everything, say so on disk, and unlock. After a failure, or during a group commit: only unlock."""
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
        batch = self.begin_sync()
        batch.run()
        self.end_sync(batch)
        try:
            for stream in self._streams.values():
                if stream.synced > stream.marked and stream.active is not None:
                    self._write_mark(stream)
                    self._files.sync(stream.active.fd)
            self._manifest.close_clean()
        except OSError as failure:
            raise StorageError(f"cannot close {self._directory}: {failure}; check the disk") from failure
