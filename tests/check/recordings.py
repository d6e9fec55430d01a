"""Recordings for tests: histories as the files that running processes would have written."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from check.histories import FIRST, SEQUENCER
from trunkline.check.recording import open_recording
from trunkline.check.recording_judge import RecordingVerdict, judge_recording
from trunkline.check.scenario import ObservedEvent
from trunkline.check.scenarios.cluster import LOG
from trunkline.core.calls import AppendRequested, SubscribeRequested
from trunkline.core.entries import Frame, FrameKind
from trunkline.core.events import (
    Appended,
    Committed,
    Completed,
    EntriesRead,
    FrameStored,
    Invoked,
    PositionsGranted,
    ProcessEnded,
    Projected,
)
from trunkline.core.recording import encode_event, end_line, file_name, header_line

STEP_NS = 1_000
IN_FLIGHT = 16


def write_recording(directory: Path, history: Iterable[ObservedEvent], *, stopped: tuple[str, ...] = ()) -> None:
    """One file for each process and each of its starts; ``ProcessEnded`` is where a process is killed."""
    lines: dict[tuple[str, int], list[bytes]] = {}
    starts: dict[str, int] = {}
    at_ns = 0
    for at_ns, (process, role, event) in enumerate(((o.process, o.role, o.event) for o in history), start=1):
        if isinstance(event, ProcessEnded):
            starts[process] += 1
            continue
        start = starts.setdefault(process, 1)
        file = lines.setdefault((process, start), [])
        if not file:
            file.append(header_line(process, start, "cluster", at_ns * STEP_NS - 1))
        file.append(encode_event(process, role, at_ns * STEP_NS, event))
    for process in stopped:
        lines[process, starts[process]].append(end_line((at_ns + 1) * STEP_NS))
    for old in directory.glob("*.trace"):
        old.unlink()
    for key, file in lines.items():
        (directory / file_name(*key)).write_bytes(b"".join(file))


def judged(directory: Path) -> RecordingVerdict:
    return judge_recording(open_recording(directory))


def busy_history(batches: int, count: int = 100) -> Iterable[ObservedEvent]:
    """A chain of three under load: a client with many appends in flight, and two readers in another one."""
    yield ObservedEvent("meta", "register", Projected(FIRST))
    for reader in ("reader:1", "reader:2"):
        yield ObservedEvent("r", reader, Invoked(1, SubscribeRequested(1, LOG, 1)))
    members = FIRST.last.members()
    for low in range(0, batches, IN_FLIGHT):
        numbers = range(low, min(low + IN_FLIGHT, batches))
        frames = {
            n: Frame(1 + n * count, count, FrameKind.DATA, "client#1", n, n * 2654435761 % 2**32) for n in numbers
        }
        for n, frame in frames.items():
            yield ObservedEvent("w", "appender", Invoked(n + 1, AppendRequested(n + 1, LOG, count, frame.checksum)))
            yield ObservedEvent("a", "sequencer", PositionsGranted(LOG, 0, SEQUENCER, frame.first, count))
        for member in members:
            for frame in frames.values():
                stored = FrameStored(member.node, 1, LOG, 0, member.stream, frame)
                yield ObservedEvent(member.node, "storage", stored)
        for n, frame in reversed(frames.items()):
            yield ObservedEvent("w", "appender", Committed(LOG, 0, None, frame))
            yield ObservedEvent("w", "appender", Completed(n + 1, Appended(frame.first)))
        for frame in frames.values():
            yield ObservedEvent("r", "reader:1", EntriesRead(LOG, frame.first, frame))
            yield ObservedEvent("r", "reader:2", EntriesRead(LOG, frame.first, frame))
