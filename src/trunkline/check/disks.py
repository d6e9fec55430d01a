"""Disks of the checked world: one for records, and one that models the files of a node's streams.

Images are immutable. Unsynced writes are ``pending``; any part of them may survive a power cut.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple

from msgspec.structs import replace

from trunkline.core.effects import Record
from trunkline.core.entries import junk
from trunkline.core.recovery import Condition, Slot, recover
from trunkline.core.storage import NodeImage
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

ROTTEN = 2**32  # the checksum of a bad frame: no crc32c is that large
SUBSETS_MAX = 4  # with more pending writes, only prefixes and single losses are tried


class Folded(NamedTuple):
    """A durable value and the unsynced records."""

    value: Any
    pending: tuple[Record, ...] = ()


class FoldingDisk:
    """A disk whose content is a fold over records, such as that of the metadata store."""

    def __init__(self, fold: Callable[[Any, Record], Any]) -> None:
        self._fold = fold

    def write(self, image: Folded, record: Record) -> Folded:
        return Folded(image.value, (*image.pending, record))

    def sync(self, image: Folded) -> Folded:
        return Folded(self.load(image))

    def synced(self, image: Folded) -> bool:
        return not image.pending

    def after_power_cut(self, image: Folded) -> tuple[tuple[str, Hashable], ...]:
        return tuple((label, self.sync(Folded(image.value, tuple(kept)))) for label, kept in _kept_parts(image.pending))

    def after_rot(self, image: Folded) -> tuple[tuple[str, Hashable], ...]:
        return ()

    def load(self, image: Folded) -> Any:
        value = image.value
        for record in image.pending:
            value = self._fold(value, record)
        return value


class NoDisk:
    """The disk of a process that stores nothing."""

    def write(self, image: Any, record: Record) -> Hashable:
        raise AssertionError(f"a process without a disk wrote {record}")

    def sync(self, image: Any) -> Hashable:
        return None

    def synced(self, image: Any) -> bool:
        return True

    def after_power_cut(self, image: Any) -> tuple[tuple[str, Hashable], ...]:
        return (("nothing", None),)

    def after_rot(self, image: Any) -> tuple[tuple[str, Hashable], ...]:
        return ()

    def load(self, image: Any) -> Any:
        return None


class StoredStream(NamedTuple):
    """One stream on disk: its manifest, and the slots of its file."""

    facts: StreamImage  # its frames are unused: the slots hold them
    slots: tuple[Slot, ...] = ()
    mark: int = 0  # slots that were synced before the seal


class NodeFiles(NamedTuple):
    streams: tuple[tuple[Key, StoredStream], ...] = ()
    tombstones: tuple[Key, ...] = ()
    pending: tuple[tuple[Record, int], ...] = ()  # each with the number of synced slots when it was written


class StorageDisk:
    """A node's disk. It recovers by the same rule as the storage engine: ``core.recovery``."""

    def write(self, image: NodeFiles, record: Record) -> NodeFiles:
        if isinstance(record, JunkWritten):
            for glsn in range(record.first, record.end):
                image = self.write(image, FrameWritten(record.key, junk(glsn)))
            return image
        image = _settled(image)
        mark = 0
        if isinstance(record, FrameWritten):
            mark = len(dict(image.streams)[record.key].slots) if record.key in dict(image.streams) else 0
        return image._replace(pending=(*image.pending, (record, mark)))

    def sync(self, image: NodeFiles) -> NodeFiles:
        image = _settled(image)
        for record, mark in image.pending:
            image = _put(image, record, mark, Condition.GOOD)
        return image._replace(pending=())

    def synced(self, image: NodeFiles) -> bool:
        return not image.pending

    def after_power_cut(self, image: NodeFiles) -> tuple[tuple[str, Hashable], ...]:
        return tuple(_cut_images(image))

    def after_rot(self, image: NodeFiles) -> tuple[tuple[str, Hashable], ...]:
        synced = self.sync(image)
        return tuple(
            (f"slot {index} of {key[1]}", _with_condition(synced, key, index, Condition.BAD))
            for key, files in synced.streams
            for index in range(len(files.slots))
        )

    def load(self, image: NodeFiles) -> NodeImage:
        settled = self.sync(image)
        streams = tuple(
            replace(files.facts, frames=tuple(slot.frame for slot in files.slots if slot.condition is Condition.GOOD))
            for _, files in settled.streams
        )
        return NodeImage(streams, settled.tombstones)


def _kept_parts(pending: tuple[Any, ...]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """The pending writes that may survive: every subset if they are few, else prefixes and single losses."""
    count = len(pending)
    if count <= SUBSETS_MAX:
        chosen: Iterator[tuple[int, ...]] = itertools.chain.from_iterable(
            itertools.combinations(range(count), size) for size in range(count + 1)
        )
    else:
        prefixes = (tuple(range(size)) for size in range(count + 1))
        losses = (tuple(i for i in range(count) if i != lost) for lost in range(count))
        chosen = itertools.chain(prefixes, losses)
    for indexes in chosen:
        label = "keeps " + (",".join(str(i + 1) for i in indexes) or "nothing") + f" of {count}"
        yield label, tuple(pending[i] for i in indexes)


def _cut_images(image: NodeFiles) -> Iterator[tuple[str, NodeFiles]]:
    image = _settled(image)
    before = image._replace(pending=())
    count = len(image.pending)
    for label, kept in _kept_parts(tuple(range(count))):
        if not _possible(image.pending, kept):
            continue
        found, torn = before, before
        last = max(kept, default=-1)
        for index, (record, mark) in enumerate(image.pending):
            if index in kept:
                found = _put(found, record, mark, Condition.GOOD)
                torn = _put(torn, record, mark, Condition.GOOD)
            elif isinstance(record, FrameWritten):
                later = any(
                    isinstance(other, FrameWritten) and other.key == record.key
                    for i, (other, _) in enumerate(image.pending)
                    if i > index and i in kept
                )
                if later:  # the file continues after it: its slot exists, its bytes do not
                    found = _put(found, record, mark, Condition.BAD)
                    torn = _put(torn, record, mark, Condition.BAD)
                elif index == last + 1:
                    torn = _put(torn, record, mark, Condition.SHORT)
        yield label, found
        if torn != found:
            yield f"{label}, next torn", torn


def _possible(pending: tuple[tuple[Record, int], ...], kept: tuple[int, ...]) -> bool:
    """The manifest is written after a barrier: it is on disk only if the frames before it are."""
    for at in kept:
        fact = pending[at][0]
        if isinstance(fact, StreamSealing | StreamEnding | StreamTrimming):
            frames = [i for i, (r, _) in enumerate(pending[:at]) if isinstance(r, FrameWritten) and r.key == fact.key]
            if any(i not in kept for i in frames):
                return False
    return True


def _put(image: NodeFiles, record: Record, mark: int, condition: Condition) -> NodeFiles:
    """The image with one record on disk."""
    streams = dict(image.streams)
    match record:
        case StreamOpened(descriptor):
            key = (descriptor.target.log, descriptor.target.stream)
            streams[key] = StoredStream(StreamImage(descriptor))
        case StreamDropping(key):
            streams.pop(key, None)
            image = image._replace(tombstones=(*image.tombstones, key))
        case FrameWritten(key) | StreamSealing(key) | StreamEnding(key) | StreamTrimming(key) | StreamLosing(key) if (
            key in streams
        ):
            streams[key] = _put_in_stream(streams[key], record, mark, condition)
    return image._replace(streams=tuple(streams.items()))


def _put_in_stream(files: StoredStream, record: Record, mark: int, condition: Condition) -> StoredStream:
    facts, slots, _ = files
    match record:
        case FrameWritten(_, frame):
            found = frame if condition is Condition.GOOD else replace(frame, checksum=ROTTEN)
            return files._replace(slots=(*slots, Slot(found, mark, condition)))
        case StreamSealing():
            return files._replace(facts=replace(facts, sealed=True), mark=len(slots))
        case StreamLosing(_, lost):
            kept = tuple(slot for slot in slots if slot.frame not in lost)
            return StoredStream(replace(facts, data_loss=True), _marked(kept), min(files.mark, len(kept)))
        case StreamEnding(_, end):
            kept = tuple(slot for slot in slots if slot.frame.first < end)
            return StoredStream(replace(facts, sealed=True, end=end), _marked(kept), len(kept))
        case StreamTrimming(_, point):
            kept = tuple(slot for slot in slots if slot.frame.next > point + 1)
            return StoredStream(replace(facts, trim=point), _marked(kept), min(files.mark, len(kept)))
    return files


def _marked(slots: tuple[Slot, ...]) -> tuple[Slot, ...]:
    """Slots after some were removed: a mark counts slots, so it can only shrink."""
    return tuple(replace(slot, mark=min(slot.mark, index)) for index, slot in enumerate(slots))


def _settled(image: NodeFiles) -> NodeFiles:
    """The image after recovery: bad frames are removed, and the stream keeps the verdict."""
    return image._replace(streams=tuple((key, _judged(files)) for key, files in image.streams))


def _judged(files: StoredStream) -> StoredStream:
    if all(slot.condition is Condition.GOOD for slot in files.slots):
        return files
    found = recover(files.slots, files.mark)
    facts = replace(
        files.facts,
        data_loss=files.facts.data_loss or found.data_loss,
        uncertain=files.facts.uncertain or found.uncertain,
    )
    slots = tuple(slot for slot in files.slots[: found.kept] if slot.frame in found.frames)
    return StoredStream(facts, _marked(slots), min(files.mark, len(slots)))


def _with_condition(image: NodeFiles, key: Key, at: int, condition: Condition) -> NodeFiles:
    streams = dict(image.streams)
    slots = streams[key].slots
    bad = replace(slots[at], frame=replace(slots[at].frame, checksum=ROTTEN), condition=condition)
    streams[key] = streams[key]._replace(slots=(*slots[:at], bad, *slots[at + 1 :]))
    return image._replace(streams=tuple(streams.items()))
