"""Reads recordings of running processes: many files, merged into one order.

The format and its guarantees are in ``core/recording.py``; this module merges the files:

 1. Events of all files are merged by ``at``. An effect is carried out after the lines of its causes are written (T2),
    so on one machine no event precedes its cause.
 2. A process ends with its ``end`` line, or when its next start begins.
 3. A last line without a line end was cut by a kill. Its effects never left the process, so it is skipped. Any other
    unreadable line is an error: a recording that cannot be read proves nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from trunkline.check.recording_values import decode
from trunkline.check.scenario import ObservedEvent
from trunkline.core.effects import Event
from trunkline.core.events import ProcessEnded, Projected
from trunkline.core.projection import Projection
from trunkline.core.recording import FORMAT, VERSION

PROJECTED = b'"event":{"type":"Projected"'


class RecordingError(ValueError):
    """The recording cannot be read; the text names file and line, and what is wrong."""


class LineRef(NamedTuple):
    """A line of a recording."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file} line {self.line}"


class Recorded(NamedTuple):
    at_ns: int
    place: LineRef
    observed: ObservedEvent


@dataclass(frozen=True)
class RecordedFile:
    path: Path
    process: str
    start: int
    cluster: str
    at_ns: int
    stopped: bool  # False: cut by a kill, or still running


@dataclass(frozen=True)
class Recording:
    files: tuple[RecordedFile, ...]
    projections: dict[str, dict[int, Projection]]  # by log, by epoch: the first one recorded of each

    @property
    def cut(self) -> int:
        return sum(not file.stopped for file in self.files)


def open_recording(path: Path) -> Recording:
    """A directory of ``*.trace`` files, or one such file. Raises ``RecordingError`` or OSError."""
    paths = sorted(path.glob("*.trace")) if path.is_dir() else [path]
    if not paths:
        raise RecordingError("no *.trace files in this directory: start the cluster and its clients with --record")
    projections: dict[str, dict[int, Projection]] = {}
    files = tuple(_scanned(each, projections) for each in paths)
    clusters = sorted({file.cluster for file in files if file.cluster})
    if len(clusters) > 1:
        raise RecordingError(f"files of {len(clusters)} clusters ({', '.join(clusters)}): judge each by itself")
    starts = [(file.process, file.start) for file in files]
    twice = next((each for each in starts if starts.count(each) > 1), None)
    if twice is not None:
        raise RecordingError(f"two files hold start {twice[1]} of {twice[0]}: give each process its own name")
    return Recording(files, projections)


def merged(recording: Recording) -> Iterator[Recorded]:
    """All events in one order, with the ends of processes. Memory use does not grow with the files."""
    running: dict[str, RecordedFile] = {}
    streams = [_events(file) for file in recording.files]
    for recorded, file in heapq.merge(*streams, key=lambda each: (each[0].at_ns, each[0].place)):
        process, before = file.process, running.get(file.process)
        if recorded.place.line == 1:
            if before is not None:
                if before.start > file.start:
                    raise RecordingError(f"{recorded.place}: {process} started after its start {before.start}")
                yield Recorded(recorded.at_ns, recorded.place, ObservedEvent(process, "", ProcessEnded("restart")))
            running[process] = file
            continue
        if before is not file:
            raise RecordingError(f"{recorded.place}: {process} has restarted since: give each process its own name")
        yield recorded


def _scanned(path: Path, projections: dict[str, dict[int, Projection]]) -> RecordedFile:
    """Collect what the judge needs before the first event: the header, all projections, and how the file ends."""
    with path.open("rb") as lines:
        header = _header(path, lines.readline())
        last = b""
        for number, line in enumerate(lines, start=2):
            if PROJECTED in line and line.endswith(b"\n"):
                projection = _projection(_decoded(LineRef(path.name, number), line, header["process"]).observed)
                projections.setdefault(projection.log, {}).setdefault(projection.epoch, projection)
            last = line
    stopped = last.startswith(b'{"end":') and last.endswith(b"\n")
    return RecordedFile(path, header["process"], header["start"], header["cluster"], header["at"], stopped)


def _projection(observed: ObservedEvent) -> Projection:
    assert isinstance(observed.event, Projected)
    return observed.event.projection


def _header(path: Path, line: bytes) -> dict[str, Any]:
    value = _object(LineRef(path.name, 1), line)
    if value.get("format") != FORMAT or value.get("version") != VERSION:
        raise RecordingError(f"{path.name} line 1: not a recording (expected {FORMAT}, version {VERSION})")
    for name, kind in (("process", str), ("start", int), ("cluster", str), ("at", int)):
        if not isinstance(value.get(name), kind):
            raise RecordingError(f"{path.name} line 1: the header lacks {name!r}")
    return value


def _events(file: RecordedFile) -> Iterator[tuple[Recorded, RecordedFile]]:
    """The start (as line 1), then the events. The file is opened when its first event is due."""
    name, at_ns = file.path.name, file.at_ns
    yield Recorded(at_ns, LineRef(name, 1), ObservedEvent(file.process, "", ProcessEnded("start"))), file
    with file.path.open("rb") as lines:
        next(lines)
        for number, line in enumerate(lines, start=2):
            if not line.endswith(b"\n"):
                return  # rule 3
            recorded = _decoded(LineRef(name, number), line, file.process)
            if recorded.at_ns < at_ns:
                raise RecordingError(f"{recorded.place}: its time is before that of the previous line")
            at_ns = recorded.at_ns
            yield recorded, file


def _decoded(place: LineRef, line: bytes, process: str) -> Recorded:
    value = _object(place, line)
    role, at_ns = value.get("role"), value.get("at")
    if "end" in value and isinstance(at_ns, int):
        return Recorded(at_ns, place, ObservedEvent(process, "", ProcessEnded("stopped")))
    if not (isinstance(role, str) and isinstance(at_ns, int) and "process" in value and len(value) == 4):
        raise RecordingError(f"{place}: expected exactly process, role, at and event")
    if value["process"] != process:
        raise RecordingError(f"{place}: an event of {value['process']} in a file of {process}")
    try:
        return Recorded(at_ns, place, ObservedEvent(process, role, decode(value.get("event"), Event)))
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise RecordingError(f"{place}: {error}") from None


def _object(place: LineRef, line: bytes) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(line)
    except msgspec.DecodeError:
        value = None
    if not isinstance(value, dict):
        raise RecordingError(f"{place}: not a JSON object")
    return value
