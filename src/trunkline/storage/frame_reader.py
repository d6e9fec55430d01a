"""Reads bodies: neighbours with one read, and never a body that does not match its checksum."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from trunkline.core.entries import Frame
from trunkline.core.streams import Key
from trunkline.storage.errors import FrameDamaged, FrameMissing
from trunkline.storage.extents import BodyPlace, StreamFiles
from trunkline.storage.files import Buffer, Files
from trunkline.storage.handles import Handles
from trunkline.storage.layout import checksum

FRAMES_MAX = 4096  # of one call


class FrameReader:
    def __init__(
        self, streams: Mapping[Key, StreamFiles], files: Files, handles: Handles, lock: threading.Lock
    ) -> None:
        self._streams = streams
        self._files = files
        self._handles = handles
        self._lock = lock

    def read(self, key: Key, frames: Sequence[Frame], bytes_max: int, *, may_block: bool) -> list[Buffer] | None:
        bodies: list[Buffer] = []
        places = self._places(key, frames, bytes_max)
        while len(bodies) < len(places):
            start = len(bodies)
            end = start + 1
            while end < len(places) and places[end - 1].is_followed_by(places[end]):
                end += 1
            run = self._read_run(key, frames[start:end], places[start:end], may_block=may_block)
            if run is None:
                return bodies or None
            bodies += run
        return bodies

    def _places(self, key: Key, frames: Sequence[Frame], bytes_max: int) -> list[BodyPlace]:
        """The bodies that fit into ``bytes_max``, at least the first one."""
        places: list[BodyPlace] = []
        left = bytes_max
        with self._lock:
            stream = self._streams.get(key)
            for frame in frames[:FRAMES_MAX]:
                place = stream.place_of(frame.first) if stream is not None else None
                if place is None:
                    if places:
                        break  # the next call raises
                    raise FrameMissing(key, frame, "was removed: ask again")
                left -= place.size
                if places and left < 0:
                    break
                places.append(place)
        return places

    def _read_run(
        self, key: Key, frames: Sequence[Frame], places: Sequence[BodyPlace], *, may_block: bool
    ) -> list[Buffer] | None:
        """Adjacent bodies, with one read."""
        start = places[0].body
        content = bytearray(places[-1].body + places[-1].size - start)
        if content:
            count = self._fill(key, frames[0], places[0], content, may_block=may_block)
            if count is None:
                return None
        view = memoryview(content).toreadonly()
        bodies: list[Buffer] = []
        for frame, place in zip(frames, places, strict=True):
            body = view[place.body - start : place.body - start + place.size]
            if checksum(body) != frame.checksum:
                raise FrameDamaged(key, frame, "does not match its checksum; another replica serves it")
            bodies.append(body)
        return bodies

    def _fill(self, key: Key, frame: Frame, place: BodyPlace, content: bytearray, *, may_block: bool) -> int | None:
        """None: it would block."""
        path = place.extent.path
        try:
            fd = self._handles.take(path)
        except FileNotFoundError as missing:
            with self._lock:
                stream = self._streams.get(key)
                expected = stream is not None and place.extent in stream.extents
            if expected:
                raise FrameDamaged(key, frame, f"is lost: {path} is missing") from missing
            raise FrameMissing(key, frame, "was trimmed or dropped: ask again") from missing
        try:
            done, view = 0, memoryview(content)
            while done < len(content):
                count = self._files.read_into(fd, view[done:], place.body + done, wait=may_block)
                if count == 0:
                    break
                done += count
        except OSError as failure:
            raise FrameDamaged(key, frame, f"cannot be read: {failure}") from failure
        finally:
            self._handles.give_back(path)
        return None if done < len(content) and not may_block else done
