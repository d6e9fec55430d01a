"""Judges a recording with the monitors: all of its logs in one pass.

A monitor knows one log and expects operation numbers that are unique per process. So events are split by log here, and
operations, which each role numbers by itself, get new numbers.

Monitors observe projections in the order of epochs, each once. A metadata store may show a projection to others before
the process that stored it has written its line (it may be stopped just then), and the next coordinator announces it
again. So a projection counts as announced as soon as an event acts on it, or a later one is announced.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from itertools import count

from trunkline.check.monitors import safety
from trunkline.check.recording import LineRef, Recorded, Recording, RecordingError, merged
from trunkline.check.scenario import Completed, Invoked, ObservedEvent, ProcessEnded, Violation
from trunkline.check.views import Finding
from trunkline.core.effects import Event
from trunkline.core.events import Committed, EntriesRead, PositionsSkipped, Projected, StreamFinalized
from trunkline.core.projection import Projection


@dataclass(frozen=True)
class LogVerdict:
    """The verdict on one log. A recording without commits or reads proves nothing."""

    log: str
    events: int
    committed: int  # frames, once per acknowledgement
    read: int  # frames, once per read
    finding: Finding | None
    place: LineRef | None  # of the violating event, the last one that the monitors of this log observe


@dataclass(frozen=True)
class RecordingVerdict:
    files: int
    cut: int  # files of processes that were killed or still run
    events: int
    logs: tuple[LogVerdict, ...]
    monitors: tuple[str, ...]

    @property
    def violated(self) -> bool:
        return any(log.finding is not None for log in self.logs)


def judge_recording(recording: Recording) -> RecordingVerdict:
    """Raises ``RecordingError`` for an invalid recording."""
    judges: dict[str, _LogJudge] = {}
    splitter = _LogSplitter()
    events = 0
    for recorded in merged(recording):
        if isinstance(recorded.observed.event, ProcessEnded):
            splitter.ended(recorded.observed.process)
            for judge in judges.values():
                judge.observe(recorded)
            continue
        events += 1
        log, renumbered = splitter.log_of(recorded)
        if log is None:
            continue
        if log not in judges:
            judges[log] = _LogJudge(log, recording.projections.get(log, {}))
        judges[log].observe(renumbered)
    names = tuple(monitor.name for monitor in safety())
    verdicts = tuple(judges[log].verdict() for log in sorted(judges))
    return RecordingVerdict(len(recording.files), recording.cut, events, verdicts, names)


class _LogSplitter:
    """Finds the log of an event. A result does not name its log: its operation does."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._pending: dict[tuple[str, str, int], tuple[str | None, int]] = {}  # process, role, operation

    def log_of(self, recorded: Recorded) -> tuple[str | None, Recorded]:
        process, role, event = recorded.observed.process, recorded.observed.role, recorded.observed.event
        match event:
            case Projected(projection):
                return projection.log, recorded
            case Invoked(operation, request):
                log, number = getattr(request, "log", None), next(self._numbers)
                if (process, role, operation) in self._pending:
                    raise RecordingError(
                        f"{recorded.place}: operation {operation} of {process} {role} is under way already"
                    )
                self._pending[process, role, operation] = log, number
                return log, recorded._replace(observed=ObservedEvent(process, role, Invoked(number, request)))
            case Completed(operation, result):
                log, number = self._pending.pop((process, role, operation), (None, 0))
                if number == 0:
                    raise RecordingError(
                        f"{recorded.place}: operation {operation} of {process} {role} ended, but never began"
                    )
                return log, recorded._replace(observed=ObservedEvent(process, role, Completed(number, result)))
        return getattr(event, "log", None), recorded

    def ended(self, process: str) -> None:
        for key in [key for key in self._pending if key[0] == process]:
            del self._pending[key]


class _LogJudge:
    def __init__(self, log: str, projections: dict[int, Projection]) -> None:
        self._log = log
        self._projections = projections
        self._epochs = sorted(projections)
        self._next = 0  # index of the first epoch that the monitors have not observed
        self._current: Projection | None = None
        if self._epochs and self._epochs[0] > 1:  # the log is older than the recording
            self._current = projections[self._epochs[0]]
            self._next = 1
        self._monitors = safety(self._current)
        self._states: list[Hashable] = [monitor.initial() for monitor in self._monitors]
        self._events = self._committed = self._read = 0
        self._finding: Finding | None = None
        self._place: LineRef | None = None

    def observe(self, recorded: Recorded) -> None:
        if self._finding is not None:
            return
        event = recorded.observed.event
        self._events += not isinstance(event, ProcessEnded)
        if isinstance(event, Projected):
            self._projected(recorded, event.projection)
            return
        if not _knows(self._current, event):
            acted_on = next((epoch for epoch in self._epochs if _knows(self._projections[epoch], event)), 0)
            self._announce_through(acted_on, recorded)
        self._committed += isinstance(event, Committed)
        self._read += isinstance(event, EntriesRead)
        self._observe(recorded)

    def verdict(self) -> LogVerdict:
        return LogVerdict(self._log, self._events, self._committed, self._read, self._finding, self._place)

    def _projected(self, recorded: Recorded, projection: Projection) -> None:
        self._announce_through(projection.epoch, recorded)
        if self._projections.get(projection.epoch) != projection:
            self._observe(recorded)  # a fork, which the monitors report, or written since the recording was opened

    def _announce_through(self, epoch: int, recorded: Recorded) -> None:
        while self._next < len(self._epochs) and self._epochs[self._next] <= epoch:
            self._current = self._projections[self._epochs[self._next]]
            self._next += 1
            self._observe(recorded._replace(observed=ObservedEvent("metadata", "register", Projected(self._current))))

    def _observe(self, recorded: Recorded) -> None:
        if self._finding is not None:
            return
        for index, monitor in enumerate(self._monitors):
            try:
                self._states[index] = monitor.observe(self._states[index], recorded.observed)
            except Violation as violation:
                self._finding, self._place = Finding(monitor.name, str(violation)), recorded.place
                return


def _knows(projection: Projection | None, event: Event) -> bool:
    """Whether this projection, or an earlier one, contains what the event acts on."""
    if isinstance(event, PositionsSkipped):
        trimmed = projection is not None and event.end <= projection.trim + 1
        return trimmed or (projection is not None and projection.gap_at(event.first) is not None)
    segment: int | None = getattr(event, "segment", None)
    if segment is None:
        return True
    if projection is None or segment > projection.last.index:
        return False
    named = projection.segment(segment)
    return not (isinstance(event, StreamFinalized) and named is not None and named.is_open)
