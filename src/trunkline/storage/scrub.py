"""The scrubber: reads everything that is stored, step by step, and reports damage."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

from trunkline.core.entries import Frame, FrameKind
from trunkline.core.streams import Key
from trunkline.storage.extents import Extent, StreamFiles
from trunkline.storage.files import TOO_MANY, Files, read_range
from trunkline.storage.handles import Handles
from trunkline.storage.layout import FRAME_HEADER, WRITER_BYTES_MAX, FoundFrame, padded, unpack_frame
from trunkline.storage.options import MIB
from trunkline.storage.packed import PackedFrames
from trunkline.storage.recovery import read_footer

STEP_BYTES = MIB


class ScrubStep(NamedTuple):
    """The position of a damaged frame is right; its other fields may be unknown."""

    bytes_read: int
    damaged: tuple[tuple[Key, Frame], ...] = ()


class _Spot(NamedTuple):
    """A frame in memory."""

    first: int
    body: int
    size: int


class Scrubber:
    """Reads the extents of all streams once. ``next`` may be called on any thread, one at a time."""

    def __init__(
        self, streams: Callable[[], list[StreamFiles]], files: Files, handles: Handles, lock: threading.Lock
    ) -> None:
        self._streams = streams
        self._files = files
        self._handles = handles
        self._lock = lock

    def steps(self) -> Iterator[ScrubStep]:
        with self._lock:
            streams = self._streams()
        for stream in streams:
            with self._lock:
                extents = list(stream.extents)
            for extent in extents:
                yield from self._extent_steps(stream, extent)

    def _extent_steps(self, stream: StreamFiles, extent: Extent) -> Iterator[ScrubStep]:
        with self._lock:
            spots = sorted(map(_Spot, extent.firsts, extent.bodies, extent.sizes), key=lambda spot: spot.body)
        for group in _groups(spots):
            if stream.dropped:
                return
            try:
                fd = self._handles.take(extent.path)
            except OSError as failure:
                if failure.errno in (errno.ENOENT, *TOO_MANY):  # trimmed in the meantime, or left for the next round
                    return
                raise
            try:
                if group[0] is spots[0] and extent.closed:
                    self._files.forget(fd)
                step = self._step(stream, extent, fd, group)
            finally:
                self._handles.give_back(extent.path)
            yield step

    def _step(self, stream: StreamFiles, extent: Extent, fd: int, group: list[_Spot]) -> ScrubStep:
        start = max(0, group[0].body - FRAME_HEADER.size - padded(WRITER_BYTES_MAX))
        end = group[-1].body + padded(group[-1].size)
        try:
            content = read_range(self._files, fd, start, end - start)
        except OSError:  # an unreadable sector
            content = b""
        bad = [spot for spot in group if not _is_good(stream.salt, content, spot, start)]
        if not bad:
            return ScrubStep(len(content))
        frames = self._known_frames(stream, extent, fd)
        return ScrubStep(len(content), tuple((stream.key, _identified(spot, frames)) for spot in bad))

    def _known_frames(self, stream: StreamFiles, extent: Extent, fd: int) -> PackedFrames:
        with self._lock:
            if extent.frames is not None:
                return extent.frames[:]
        footer = read_footer(self._files, fd, stream.salt)
        return footer.frames if footer is not None else PackedFrames()


def _groups(spots: list[_Spot]) -> Iterator[list[_Spot]]:
    """Neighbours that one step reads."""
    group: list[_Spot] = []
    for spot in spots:
        if group and spot.body + spot.size - group[0].body > STEP_BYTES:
            yield group
            group = []
        group.append(spot)
    if group:
        yield group


def _is_good(salt: int, content: bytes, spot: _Spot, start: int) -> bool:
    body = spot.body - start
    found = _header_before(salt, content, body)
    return found is not None and found.frame.first == spot.first and found.body_is_good(content)


def _header_before(salt: int, content: bytes, body: int) -> FoundFrame | None:
    """The frame whose body begins here. The length of its writer id is unknown."""
    for writer_bytes in range(0, padded(WRITER_BYTES_MAX) + 1, 8):
        at = body - FRAME_HEADER.size - writer_bytes
        if at < 0:
            return None
        found = unpack_frame(salt, content, at)
        if found is not None and found.body == body:
            return found
    return None


def _identified(spot: _Spot, frames: PackedFrames) -> Frame:
    for at, first in enumerate(frames.firsts):
        if first == spot.first:
            return frames[at]
    return Frame(spot.first, 1, FrameKind.DATA, "", 0, 0)
