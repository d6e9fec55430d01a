"""Hand-written histories for monitors: a log at several stages, and events of it.

The log has three replicas; a checksum identifies a value.

    segment 0   [1, 4)   a b c, sequencer a        segment 1   [4, ...)   a b c, sequencer a
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from trunkline.check.scenario import Invoked, Monitor, ObservedEvent
from trunkline.check.scenarios.cluster import CHAIN3, LOG, chain_log
from trunkline.core.calls import AppendRequested, TailRequested
from trunkline.core.effects import Event
from trunkline.core.entries import Frame, FrameKind, junk
from trunkline.core.events import (
    Committed,
    EntriesRead,
    FrameStored,
    HoleFilled,
    Projected,
    StreamFinalized,
    StreamRecovered,
)
from trunkline.core.projection import (
    AddJoiner,
    AdmitJoiner,
    Change,
    EndSegment,
    Gap,
    MarkRepaired,
    Opening,
    Owner,
    Projection,
    RaiseTrim,
    RemoveMember,
    Seat,
    Segment,
    apply,
)

History = list[ObservedEvent]

FIRST = chain_log(CHAIN3, "a b c", sequencer="a")
A, B, C = (member.stream for member in FIRST.last.members())
SEQUENCER = Owner("a", 1)
NEXT = Opening((tuple(Seat(node, 1) for node in "abc"),), SEQUENCER)
ENDED = apply(FIRST, EndSegment(0, 4, FIRST.last.groups, NEXT))
CLOSED = apply(FIRST, EndSegment(0, 4, FIRST.last.groups, None))
LOST = apply(FIRST, EndSegment(0, 4, ((),), NEXT, Gap(1, 4)))
REPAIRED = apply(ENDED, MarkRepaired(0))
NARROW = apply(REPAIRED, RemoveMember(0, C))
JOINING = apply(NARROW, AddJoiner(0, 0, Seat("d", 1)))
JOINER = JOINING.segments[0].members()[-1].stream
ADMITTED = apply(JOINING, AdmitJoiner(0, JOINER))
TRIMMED = apply(FIRST, RaiseTrim(1))


class Case(NamedTuple):
    clause: str
    monitor: Monitor
    history: History
    verdict: str = ""  # a part of the violation text; empty: accepted


def by(process: str, *events: Event) -> History:
    return [ObservedEvent(process, "role", event) for event in events]


def announced(*events: Event) -> History:
    """Events of a process whose name does not matter."""
    return by("any", *events)


def projected(*projections: Projection) -> History:
    return announced(*map(Projected, projections))


def data(first: int, value: int, count: int = 1) -> Frame:
    return Frame(first, count, FrameKind.DATA, "w", value, value)


def committed(frame: Frame, owner: Owner | None = None, segment: int = 0) -> Committed:
    return Committed(LOG, segment, owner, frame)


def read(frame: Frame, position: int | None = None) -> EntriesRead:
    return EntriesRead(LOG, frame.first if position is None else position, frame)


def filled(glsn: int, segment: int = 0) -> HoleFilled:
    return HoleFilled(LOG, segment, junk(glsn))


def stored(frame: Frame, *streams: str) -> History:
    return announced(*(FrameStored("n", 1, LOG, 0, stream, frame) for stream in streams))


def recovered(stream: str, *frames: Frame, end: int | None = None) -> StreamRecovered:
    return StreamRecovered("n", 1, LOG, 0, stream, frames, end)


def finalized(stream: str, end: int = 4, segment: int = 0) -> StreamFinalized:
    return StreamFinalized("n", LOG, segment, stream, end)


def changed(view: Projection, *changes: Change) -> Projection:
    for change in changes:
        view = apply(view, change)
    return view


def forged(view: Projection, first: Segment | None = None, **fields: object) -> Projection:
    """The next projection as a faulty metadata store would accept it: its first segment or any field replaced."""
    segments = view.segments if first is None else (first, *view.segments[1:])
    return replace(view, **{"epoch": view.epoch + 1, "segments": segments, **fields})


def append(operation: int, value: int, count: int = 1) -> Invoked:
    return Invoked(operation, AppendRequested(operation, LOG, count, value))


def tail(operation: int) -> Invoked:
    return Invoked(operation, TailRequested(operation, LOG))


def watched(monitor: Monitor, history: History) -> object:
    """The monitor's state after a history that it accepts."""
    state: object = monitor.initial()
    for observed in history:
        state = monitor.observe(state, observed)
    return state
