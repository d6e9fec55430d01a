"""The manifest: the state of a node's streams besides their frames.

There are two copies, ``manifest.a`` and ``manifest.b``. Each is a snapshot followed by batches of records, in blocks:

    [snapshot][batch][batch]...          block: [length, sequence, checksum of the content, checksum of this][content]

Rules
 M1  A batch is written to one copy and synced, then to the other and synced. Only then is it durable. So every
     undamaged copy holds everything that was ever acknowledged.
 M2  A copy is read up to its first bad block. The copy with more blocks wins if it ends cleanly or torn (the file ends
     inside a block). If it ends in a complete but bad block, it may have decayed: it wins only if the other copy is
     undamaged, for then nothing after that block was acknowledged.
 M3  At open and close, and when the copies have grown, both are rewritten: one after the other, each atomically.
 M4  A write without space changes nothing and can be retried. A copy that has grown then stays as it is; one that must
     be rewritten (at open) is overwritten in place, if the other one is good.
"""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct

from trunkline.core.effects import Record
from trunkline.core.messages import Descriptor, Space
from trunkline.core.streams import (
    Key,
    StreamDropping,
    StreamEnding,
    StreamLosing,
    StreamOpened,
    StreamSealing,
    StreamTrimming,
)
from trunkline.storage.errors import AnotherVersion, CorruptDirectory, NoRoom, StorageError
from trunkline.storage.files import NO_ROOM, Files, read_all, write_whole
from trunkline.storage.layout import checksum
from trunkline.storage.options import SyncPolicy
from trunkline.storage.space import DiskSpace

COPIES = ("manifest.a", "manifest.b")
VERSION = 1

BLOCK = struct.Struct("<IQI")  # length, sequence, crc of the content; its own crc follows
BLOCK_BYTES = BLOCK.size + 4


class WrittenLate(Record, frozen=True):
    """Frames were written after the seal, perhaps unsynced: a power cut may have lost repairs."""

    key: Key


RECORDS: dict[str, type[Record]] = {
    "opened": StreamOpened,
    "sealing": StreamSealing,
    "ending": StreamEnding,
    "trimming": StreamTrimming,
    "losing": StreamLosing,
    "dropping": StreamDropping,
    "late": WrittenLate,
}
RECORD_NAMES = {kind: name for name, kind in RECORDS.items()}


class StreamState(Struct, frozen=True, array_like=True):
    """A stream according to the manifest."""

    descriptor: Descriptor
    salt: int
    sealed: bool = False
    end: int | None = None
    trim: int = 0
    data_loss: bool = False
    uncertain: bool = False
    late: bool = False
    mark: int = 0  # slots that were durable when it was sealed
    first_extent: int = 1  # earlier ones are trimmed
    first_slot: int = 0  # of that extent
    lost: tuple[int, ...] = ()  # positions of frames that the role has recorded as lost

    @property
    def key(self) -> Key:
        return (self.descriptor.target.log, self.descriptor.target.stream)


class Snapshot(Struct, frozen=True, array_like=True):
    version: int
    policy: SyncPolicy  # of the frames that are being written
    boot: str  # of the machine when the directory was opened: a power cut changes it
    clean: bool  # it was shut down cleanly: everything is durable
    streams: tuple[StreamState, ...] = ()
    tombstones: tuple[Key, ...] = ()


class _Versioned(Struct, frozen=True, array_like=True):
    """The part that the snapshot of every version begins with."""

    version: int


class ManifestEntry(Struct, frozen=True, array_like=True):
    """A record, and the state of the engine when it was written."""

    name: str
    record: msgspec.Raw
    salt: int = 0  # of an opened stream
    slots: int = 0  # of the stream: a seal vouches for them
    first_extent: int = 1  # that remains after a trim
    first_slot: int = 0


class ManifestState:
    """The state after all records."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.policy = snapshot.policy
        self.boot = snapshot.boot
        self.clean = snapshot.clean
        self.streams = {stream.key: stream for stream in snapshot.streams}
        self.tombstones = dict.fromkeys(snapshot.tombstones)

    def snapshot(self) -> Snapshot:
        streams = tuple(self.streams.values())
        return Snapshot(VERSION, self.policy, self.boot, self.clean, streams, tuple(self.tombstones))

    def apply(self, entry: ManifestEntry) -> None:
        match msgspec.msgpack.decode(entry.record, type=RECORDS[entry.name]):
            case StreamOpened(descriptor):
                opened = StreamState(descriptor, entry.salt)
                self.streams[opened.key] = opened
            case StreamSealing(key):
                self._change(key, sealed=True, mark=entry.slots)
            case StreamEnding(key, end):
                self._change(key, sealed=True, end=end, mark=entry.slots)
            case StreamTrimming(key, point):
                self._change(key, trim=point, first_extent=entry.first_extent, first_slot=entry.first_slot)
            case StreamLosing(key, frames) if key in self.streams:
                lost = {*self.streams[key].lost, *(frame.first for frame in frames)}
                self._change(key, data_loss=True, lost=tuple(sorted(lost)))
            case StreamDropping(key):
                self.streams.pop(key, None)
                self.tombstones[key] = None
            case WrittenLate(key):
                self._change(key, late=True)

    def _change(self, key: Key, **changes: object) -> None:
        if key in self.streams:
            self.streams[key] = msgspec.structs.replace(self.streams[key], **changes)


def entry_of(
    record: Record, *, salt: int = 0, slots: int = 0, first_extent: int = 1, first_slot: int = 0
) -> ManifestEntry:
    name = RECORD_NAMES[type(record)]
    return ManifestEntry(name, msgspec.Raw(msgspec.msgpack.encode(record)), salt, slots, first_extent, first_slot)


# -------------------------------------------------------------------------------------------------------------- blocks


def pack_block(content: bytes, sequence: int) -> bytes:
    head = BLOCK.pack(len(content), sequence, checksum(content))
    return head + checksum(head).to_bytes(4, "little") + content


class Copy(Struct, frozen=True):
    """The readable part of one copy."""

    state: ManifestState | None  # None: its snapshot is damaged
    last: int = 0  # sequence of its last good block
    torn: bool = False  # the file ends inside a block
    bad: bool = True  # a complete block is bad, or the file is missing

    @property
    def damaged(self) -> bool:
        return self.bad or self.state is None


def read_copy(content: bytes) -> Copy:
    """Raises ``AnotherVersion`` for an intact copy that cannot be decoded."""
    state: ManifestState | None = None
    at, last = 0, 0
    while at < len(content):
        head = content[at : at + BLOCK_BYTES]
        if len(head) < BLOCK_BYTES:
            return Copy(state, last, torn=True, bad=False)
        length, sequence, crc = BLOCK.unpack_from(head)
        if checksum(head[: BLOCK.size]) != int.from_bytes(head[BLOCK.size :], "little"):
            return Copy(state, last)
        block = content[at + BLOCK_BYTES : at + BLOCK_BYTES + length]
        if len(block) < length:
            return Copy(state, last, torn=True, bad=False)
        if checksum(block) != crc or (state is not None and sequence != last + 1):
            return Copy(state, last)
        state = _with_block(state, block)
        at += BLOCK_BYTES + length
        last = sequence
    return Copy(state, last, bad=state is None)


def _with_block(state: ManifestState | None, block: bytes) -> ManifestState:
    """Its checksum is good: if it cannot be decoded, another version wrote it."""
    try:
        if state is None:
            version = msgspec.msgpack.decode(block, type=_Versioned).version
            if version != VERSION:
                raise AnotherVersion("the manifest", version, VERSION)
            return ManifestState(msgspec.msgpack.decode(block, type=Snapshot))
        for entry in msgspec.msgpack.decode(block, type=tuple[ManifestEntry, ...]):
            state.apply(entry)
    except (msgspec.MsgspecError, KeyError) as unknown:
        raise AnotherVersion("the manifest", None, VERSION) from unknown
    return state


def chosen_copy(a: Copy, b: Copy) -> Copy:
    """The copy that holds everything that was acknowledged (M2)."""
    other, best = sorted((a, b), key=lambda copy: (copy.state is not None, copy.last, not copy.bad))
    if best.state is None or (best.bad and other.damaged):
        raise CorruptDirectory(
            "both copies of the manifest are corrupt: replace the node (remove it, format an empty directory, add it)"
        )
    return best


# --------------------------------------------------------------------------------------------------------------- files


def create_manifest(files: Files, directory: Path) -> None:
    content = msgspec.msgpack.encode(Snapshot(VERSION, SyncPolicy.ALWAYS, boot="", clean=True))
    for name in COPIES:
        write_whole(files, directory / name, pack_block(content, 1))


class FoundManifest(NamedTuple):
    state: ManifestState
    last: int  # sequence number of the last block
    good: tuple[str, ...]  # the copies that are complete


def read_manifest(files: Files, directory: Path) -> FoundManifest:
    found = []
    present = files.names(directory)
    for name in COPIES:
        if name not in present:
            found.append(Copy(None))
            continue
        fd = files.open(directory / name)
        try:
            found.append(read_copy(read_all(files, fd)))
        finally:
            files.close(fd)
    best = chosen_copy(*found)
    assert best.state is not None
    good = (name for name, copy in zip(COPIES, found, strict=True) if copy.last == best.last and not copy.damaged)
    return FoundManifest(best.state, best.last, tuple(good))


class _Copy:
    __slots__ = ("fd", "size")

    def __init__(self, fd: int, size: int) -> None:
        self.fd = fd
        self.size = size


class Manifest:
    """Both copies, open for appends. Used by one thread at a time."""

    def __init__(
        self, files: Files, directory: Path, space: DiskSpace, found: FoundManifest, *, growth_bytes: int
    ) -> None:
        """Rewrites both copies with the present state."""
        self._files = files
        self._directory = directory
        self._space = space
        self._state = found.state
        self._last = found.last
        self._growth_bytes = growth_bytes
        self._copies: dict[str, _Copy] = {}
        self._compacted_size = 0
        self._renew(found.good)

    def append(self, entries: list[ManifestEntry]) -> None:
        """Make entries durable (M1). ``OSError`` with one of ``NO_ROOM``: nothing has changed (M4)."""
        block = pack_block(msgspec.msgpack.encode(entries), self._last + 1)
        for copy in self._copies.values():
            self._space.write(copy.fd, [block], copy.size, manifest=True)
            self._sync(copy.fd)
        self._last += 1
        for copy in self._copies.values():
            copy.size += len(block)
        for entry in entries:
            self._state.apply(entry)
        grown = max(copy.size for copy in self._copies.values()) - self._compacted_size
        if grown > max(self._growth_bytes, self._compacted_size) and self._space.level() < Space.FULL:
            with contextlib.suppress(NoRoom):
                self._compact()

    def close_clean(self) -> None:
        """Record a clean shutdown and close. Without space nothing is recorded, and the next start reads more."""
        self._state.clean = True
        with contextlib.suppress(NoRoom):
            self._renew(())
        self.close()

    def close(self) -> None:
        while self._copies:
            self._files.close(self._copies.popitem()[1].fd)

    # --------------------------------------------------------------------------------------------------------- inside

    def _renew(self, good: tuple[str, ...]) -> None:
        """Rewrite both copies because the state changed (M3). ``good`` copies hold all of the state before."""
        self._last += 1
        block = self._snapshot()
        for name in COPIES:
            try:
                self._replace(name, block)
            except NoRoom:
                if not any(other in good for other in COPIES if other != name):
                    raise
                self._overwrite(name, block)
            good = (*good, name)
        self._compacted_size = len(block)

    def _compact(self) -> None:
        """Rewrite both copies because they have grown. Either may stay as it is: both hold the same state."""
        block = self._snapshot()
        for name in COPIES:
            self._replace(name, block)
        self._compacted_size = len(block)

    def _snapshot(self) -> bytes:
        return pack_block(msgspec.msgpack.encode(self._state.snapshot()), self._last)

    def _replace(self, name: str, block: bytes) -> None:
        path = self._directory / name
        try:
            self._space.write_whole(path, block)
            fd = self._files.open(path)
        except OSError as failure:
            if failure.errno not in NO_ROOM:
                raise
            raise NoRoom(f"no space to write {path}: free some, then start the node") from failure
        self._use(name, fd, len(block))

    def _overwrite(self, name: str, block: bytes) -> None:
        """In place, which needs no space (M4)."""
        path = self._directory / name
        fd = self._files.open(path)
        if self._files.size(fd) < len(block) or self._files.write(fd, [block], 0) < len(block):
            self._files.close(fd)
            raise NoRoom(f"no space to write {path}: free some, then start the node")
        self._files.truncate(fd, len(block))
        self._sync(fd)
        self._use(name, fd, len(block))

    def _use(self, name: str, fd: int, size: int) -> None:
        known = self._copies.pop(name, None)
        if known is not None:
            self._files.close(known.fd)
        self._copies[name] = _Copy(fd, size)

    def _sync(self, fd: int) -> None:
        try:
            self._files.sync(fd)
        except OSError as failure:
            raise StorageError(f"cannot sync: {failure}; stop the node and check its disk") from failure
