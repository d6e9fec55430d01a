"""Work for a storage engine, and what must be true of it after a crash.

A ``Desk`` puts records as a node's host does, and remembers what was put and what was acknowledged. ``faults`` compares
that with what a restart has found.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from storage.recording_files import RecordingFiles
from trunkline.core.effects import Record
from trunkline.core.entries import Frame, FrameKind, junk
from trunkline.core.messages import Descriptor, StreamTarget
from trunkline.core.projection import Member, Owner, Policy
from trunkline.core.streams import (
    FrameWritten,
    JunkWritten,
    Key,
    StreamDropping,
    StreamEnding,
    StreamImage,
    StreamLosing,
    StreamOpened,
    StreamSealing,
    StreamTrimming,
)
from trunkline.storage import Engine, StorageOptions, SyncPolicy, format_directory
from trunkline.storage.files import Files
from trunkline.storage.layout import checksum
from trunkline.storage.options import KIB

ROOT = Path("/disk")
LOG = "orders/2024"
SMALL = StorageOptions(extent_bytes=4 * KIB, reserve_bytes=0, margin_bytes=0, manifest_bytes=600)
BOOT = "boot 1"
NEXT_BOOT = "boot 2"


def lazy(policy: SyncPolicy = SyncPolicy.INTERVAL) -> StorageOptions:
    return StorageOptions(sync=policy, extent_bytes=4 * KIB, reserve_bytes=0, margin_bytes=0, manifest_bytes=600)


def key_of(stream: str) -> Key:
    return (LOG, stream)


def descriptor(stream: str, base: int = 1) -> Descriptor:
    target = StreamTarget("cluster", LOG, 0, 1, stream, 7)
    return Descriptor(target, base, Policy.CHAIN, 1 << 20, (Member("n1", 7, stream),), Owner("n1", 1))


def body_of(first: int, size: int) -> bytes:
    return random.Random(first * 65_537 + size).randbytes(size)


def frame_of(first: int, count: int, size: int, writer: str = "writer-1") -> tuple[Frame, bytes]:
    body = body_of(first, size)
    return Frame(first, count, FrameKind.DATA, writer, first, checksum(body)), body


class Put(NamedTuple):
    record: Record
    body: bytes
    at: int  # after how many operations on files


def formatted(files: Files | None = None, root: Path = ROOT) -> None:
    format_directory(root, "cluster", "n1", files)


class Desk:
    """A host that keeps books."""

    def __init__(self, files: RecordingFiles, options: StorageOptions = SMALL, boot: str = BOOT) -> None:
        self.files = files
        self.engine = Engine.open(ROOT, options, files, boot=boot)
        self.puts: list[Put] = []
        self.acknowledged: list[tuple[int, int]] = []  # after how many operations on files, how many puts were

    def put(self, record: Record, body: bytes = b"") -> None:
        at = len(self.files.operations)
        self.engine.put(record, body if isinstance(record, FrameWritten) else None)
        self.puts.append(Put(record, body, at))

    def open(self, stream: str, base: int = 1) -> None:
        self.put(StreamOpened(descriptor(stream, base)))

    def write(self, stream: str, first: int, count: int = 2, size: int = 300, writer: str = "writer-1") -> Frame:
        frame, body = frame_of(first, count, size, writer)
        self.put(FrameWritten(key_of(stream), frame), body)
        return frame

    def fill(self, stream: str, glsn: int) -> None:
        self.put(FrameWritten(key_of(stream), junk(glsn)))

    def fill_run(self, stream: str, first: int, end: int) -> None:
        self.put(JunkWritten(key_of(stream), first, end))

    def seal(self, stream: str) -> None:
        self.put(StreamSealing(key_of(stream)))

    def end(self, stream: str, end: int) -> None:
        self.put(StreamEnding(key_of(stream), end))

    def trim(self, stream: str, point: int) -> None:
        self.put(StreamTrimming(key_of(stream), point))

    def lose(self, stream: str, *frames: Frame) -> None:
        self.put(StreamLosing(key_of(stream), frames))

    def drop(self, stream: str) -> None:
        self.put(StreamDropping(key_of(stream)))

    def sync(self) -> None:
        batch = self.engine.begin_sync()
        batch.run()
        self.engine.end_sync(batch)
        self.acknowledge()

    def acknowledge(self) -> None:
        self.acknowledged.append((len(self.files.operations), len(self.puts)))

    def idle(self) -> None:
        self.engine.mark_idle()
        self.engine.mark_idle()

    def put_after(self, operations: int) -> list[Put]:
        return [put for put in self.puts if put.at <= operations]

    def acknowledged_after(self, operations: int) -> int:
        """How many puts were acknowledged when so many operations had been done."""
        return max((puts for done, puts in self.acknowledged if done <= operations), default=0)


def mixed_workload(desk: Desk) -> None:
    """One of everything: opens, frames in and out of order, fills, seals, ends, repairs, trims, drops, extents that get
    full, footers, marks, a manifest that is rewritten, a stream that was lost.
    """
    desk.open("s1")
    desk.open("s2", base=1)
    desk.sync()
    desk.write("s1", 1)
    desk.write("s1", 3, writer="writer-2")
    desk.write("s2", 1, size=0)
    desk.sync()
    desk.idle()
    for first in (5, 9, 7):
        desk.write("s1", first, size=1500)
    desk.fill("s1", 11)
    desk.fill_run("s2", 3, 6)
    desk.sync()
    desk.write("s1", 12, size=2000)
    desk.write("s1", 14, size=13)
    desk.sync()
    desk.write("s2", 6, size=77)
    desk.seal("s2")
    desk.open("s3", base=5)
    desk.sync()
    desk.end("s2", 7)
    desk.write("s3", 5)
    desk.sync()
    desk.trim("s1", 8)
    desk.write("s1", 16, size=3000)
    desk.sync()
    desk.drop("s3")
    desk.trim("s1", 13)
    desk.sync()
    desk.seal("s1")
    desk.end("s1", 20)
    desk.sync()
    desk.write("s1", 18)  # a repair below the end
    desk.drop("s4")  # never seen here
    desk.open("s5")
    desk.sync()
    lost = desk.write("s5", 1)
    desk.write("s5", 3)
    desk.sync()
    desk.lose("s5", lost)
    desk.sync()


# ------------------------------------------------------------------------------------------------------------ judgement


class Expected:
    """What the first of the puts add up to."""

    def __init__(self, puts: list[Put]) -> None:
        self.opened: dict[Key, Descriptor] = {}
        self.frames: dict[Key, dict[int, tuple[Frame, bytes]]] = {}
        self.written: dict[Key, dict[int, tuple[Frame, bytes]]] = {}  # with those that were lost
        self.sealed: dict[Key, list[int]] = {}  # positions that had been written when it was sealed
        self.end: dict[Key, int] = {}
        self.trim: dict[Key, int] = {}
        self.lost: set[Key] = set()
        self.dropped: set[Key] = set()
        for put in puts:
            self._add(put)

    def _add(self, put: Put) -> None:
        match put.record:
            case StreamOpened(found):
                key = (found.target.log, found.target.stream)
                self.opened[key], self.frames[key], self.written[key] = found, {}, {}
            case FrameWritten(key, frame):
                self.frames[key][frame.first] = self.written[key][frame.first] = (frame, put.body)
            case JunkWritten(key, first, end):
                for glsn in range(first, end):
                    self.frames[key][glsn] = self.written[key][glsn] = (junk(glsn), b"")
            case StreamSealing(key):
                self.sealed.setdefault(key, list(self.frames[key]))
            case StreamEnding(key, end):
                self.sealed.setdefault(key, list(self.frames[key]))
                self.end[key] = end
            case StreamTrimming(key, point):
                self.trim[key] = point
            case StreamLosing(key, frames):
                self.lost.add(key)
                for frame in frames:
                    del self.frames[key][frame.first]
            case StreamDropping(key):
                self.dropped.add(key)

    def must_hold(self, key: Key, limits: Expected) -> dict[int, Frame]:
        """Frames that nothing in ``limits`` may have taken away."""
        end, trim, held = limits.end.get(key), limits.trim.get(key, 0), limits.frames[key]
        return {
            first: frame
            for first, (frame, _) in self.frames[key].items()
            if first in held and frame.next > trim + 1 and (end is None or first < end)
        }


def faults(engine: Engine, puts: list[Put], acknowledged: int) -> Iterator[str]:
    """What is wrong with a directory after a crash, given what had been put and how much of it was acknowledged."""
    acked, tried = Expected(puts[:acknowledged]), Expected(puts)
    found = {(image.descriptor.target.log, image.descriptor.target.stream): image for image in engine.image.streams}
    tombstones = set(engine.image.tombstones)
    if not acked.dropped <= tombstones:
        yield f"forgot that {acked.dropped - tombstones} are dropped"
    if not tombstones <= tried.dropped:
        yield f"never dropped: {tombstones - tried.dropped}"
    for key in acked.opened:
        if key not in found and key not in tombstones:
            yield f"{key} is not there"
    for key, image in found.items():
        if key not in tried.opened or key in tombstones:
            yield f"{key} should not be there"
        else:
            for why in _faults_of_stream(engine, key, image, acked, tried):
                yield f"{key}: {why}"


def _faults_of_stream(engine: Engine, key: Key, image: StreamImage, acked: Expected, tried: Expected) -> Iterator[str]:
    if image.descriptor != tried.opened[key]:
        yield "another descriptor"
    if key in acked.sealed and not image.sealed:
        yield "is not sealed any more"
    if image.sealed and key not in tried.sealed:
        yield "it was never sealed"
    if image.end not in (acked.end.get(key), tried.end.get(key)) or (key in acked.end and image.end is None):
        yield f"ends at {image.end}"
    if not acked.trim.get(key, 0) <= image.trim <= tried.trim.get(key, 0):
        yield f"is trimmed to {image.trim}"
    if image.data_loss and key not in tried.lost:
        yield "claims to have lost data"
    if key in acked.lost and not image.data_loss:
        yield "forgot that it lost data"
    held = {frame.first: frame for frame in image.frames}
    if key in acked.frames:
        for first, frame in acked.must_hold(key, tried).items():
            if held.get(first) != frame:
                yield f"lost the acknowledged frame at {first}"
    if image.sealed and key in tried.sealed:
        missing = [first for first in tried.sealed[key] if first in tried.must_hold(key, tried) and first not in held]
        if missing:
            yield f"is sealed and lacks {missing}"
    if key in acked.written and (acked.written[key].keys() - acked.frames[key].keys()) & held.keys():
        yield "has frames again that were lost"
    if list(held) != sorted(held):
        yield "frames are not sorted"
    yield from _faults_of_frames(engine, key, image, tried)


def _faults_of_frames(engine: Engine, key: Key, image: StreamImage, tried: Expected) -> Iterator[str]:
    for frame in image.frames:
        put = tried.written[key].get(frame.first)
        if put is None or put[0] != frame:
            yield f"invented {frame}"
            continue
        if frame.next <= image.trim + 1 or (image.end is not None and frame.first >= image.end):
            yield f"kept {frame}, which is trimmed or past the end"
        bodies = engine.read(key, [frame], 1 << 20, may_block=True)
        if bodies is None or bytes(bodies[0]) != put[1]:
            yield f"returned a wrong body for {frame}"
