"""The writer: the one owner of a broadcast log. It numbers its batches and sends each to all replicas at once.

States
    idle --first append--> claiming --segment with me as owner--> owning --all replicas have it--> committed ...
    owning --a replica is silent, sealed or full--> rolling --new segment of mine--> owning
                                                      |--log owned by another--> idle, or claiming (take-over)

    base        committed        next
     |-- acknowledged --|-- in flight --|            positions below `committed` are on every replica

Rules
 W1  An entry is committed when all members have it, and entries commit in order.
 W2  Freeze before the swap of a roll: once the count is named as the end, nothing more is acknowledged in this segment.
 W3  The end of a segment settles what was in flight: below it committed, at or past it not.
 W4  What is not committed is sent again only in a segment of my own, under a new seq; otherwise it is refused.
 W5  The owner is this process start. It takes the log of another owner over only on request, or if that owner has no
     lease while this process has one: by ending its segment. Each append is judged alone, and takes a log over at most
     once.
 W6  The LAC never exceeds what is committed. It travels with the next batch, or in Release if nothing is in flight.
 W7  If no node has space, a roll settles what is in flight, and what was not committed is refused.
 W8  ``suspect_after_ms`` counts from the oldest batch in flight, whatever is sent after it. It doubles after a
     suspicion until something is committed, so that slow replicas are not replaced again and again.
"""

from __future__ import annotations

import enum
from collections import deque

from msgspec import Struct
from msgspec.structs import replace

from trunkline.core.calls import AppendRequested
from trunkline.core.effects import (
    SELF,
    Address,
    Announce,
    CancelTimer,
    Complete,
    Effects,
    Message,
    Send,
    SetTimer,
)
from trunkline.core.entries import Frame, FrameKind
from trunkline.core.events import Appended, AppendRefused, Committed, OutcomeUnknown
from trunkline.core.messages import (
    Append,
    NodeInfo,
    Open,
    Opened,
    Reason,
    Rejected,
    Release,
    Stored,
    descriptor_of,
    target_of,
)
from trunkline.core.projection import Member, Owner, Projection, Segment
from trunkline.core.refusals import NO_SUCH_LOG, append_refused, closed, no_space, owned
from trunkline.core.siblings import EndOpenSegment, Refresh, ViewChanged
from trunkline.core.timing import DEFAULT_TIMING, Timing


class WriterState(enum.Enum):
    IDLE = "idle"
    VIEWING = "viewing"
    CLAIMING = "claiming"
    OWNING = "owning"
    ROLLING = "rolling"


class WriterConfig(Struct, frozen=True):
    log: str
    me: Owner
    timing: Timing = DEFAULT_TIMING
    in_flight_max: int = 64  # too small: low throughput; too big: memory, and more to resend after a roll

    @property
    def writer(self) -> str:
        return f"{self.me.process}#{self.me.start}"


DOUBTS_MAX = 3  # doublings of ``suspect_after_ms``; too small: slow nodes are replaced; too big: dead ones late


class Sending:
    """One batch in flight."""

    def __init__(self, request: AppendRequested, frame: Frame, missing: list[str]) -> None:
        self.request = request
        self.frame = frame
        self.missing = missing  # streams that have not stored it


class Writer:
    def __init__(self, config: WriterConfig, view: Projection | None = None) -> None:
        self.config = config
        self.view = view
        self.state = WriterState.IDLE
        self.seq = 0
        self.taken_from: Owner | None = None  # the owner whose segment is being ended for a take-over
        self.doubts = 0  # suspicions since the last commit
        self.segment = -1
        self.next = 0
        self.committed = 0  # every position below it is committed
        self.in_flight: deque[Sending] = deque()  # with consecutive seqs
        self.queue: deque[AppendRequested] = deque()
        self.full: tuple[str, ...] = ()  # nodes without space in this segment

    @property
    def phase(self) -> str:
        return self.state.value

    def on_start(self) -> Effects:
        return []

    def on_choice(self, key: str, option: object) -> Effects:
        raise AssertionError(f"a writer makes no choice, but {key} was chosen")

    def on_timer(self, key: str) -> Effects:
        return self.on_silence(key, self.awaits(key))

    def awaits(self, key: str) -> tuple[str, ...]:
        """Nodes whose answers the timer waits for."""
        if self.state is not WriterState.OWNING:
            return ()
        return tuple(node for node in self._lacking() if node not in self.full)

    def on_silence(self, key: str, silent: tuple[str, ...]) -> Effects:
        if self.state is WriterState.CLAIMING:
            return self._claim()
        if self.state is WriterState.ROLLING:
            return self._roll(())
        self.doubts = min(self.doubts + 1, DOUBTS_MAX)  # W8
        return self._roll(tuple(node for node in self._lacking() if node in silent or node in self.full))

    def on_message(self, source: Address, message: Message) -> Effects:
        match message:
            case AppendRequested():
                self.queue.append(message)
                return self._pump()
            case Stored(stream, frame) if self.state is WriterState.OWNING:
                return self._on_stored(stream, frame)
            case Opened(stream) if self.state is WriterState.OWNING:
                return self._resend(stream, 0)
            case Rejected(stream, _, reason, point) if self.state is WriterState.OWNING:
                return self._on_rejected(stream, reason, point)
            case ViewChanged(_, projection, nodes):
                return self._on_view(projection, nodes)
        return []  # frozen (W2), or a late answer of an ended segment

    def ignores(self, source: Address, message: Message) -> bool:
        """A seq is used once: a batch that is not in flight never will be again."""
        if isinstance(message, Stored):
            return self._sending(message.frame) is None
        return False

    def operation_of(self, seq: int) -> int | None:
        """The append that is in flight as ``seq``; the host finds the body of a frame by it."""
        sending = self._numbered(seq)
        return sending.request.operation if sending is not None else None

    # ---------------------------------------------------------------------------------------------------------- sending

    def _current(self) -> Segment:
        assert self.view is not None
        segment = self.view.segment(self.segment)
        assert segment is not None
        return segment

    def _lacking(self) -> tuple[str, ...]:
        """Nodes that have not stored the oldest batch in flight."""
        missing = self.in_flight[0].missing
        return tuple(member.node for member in self._current().members() if member.stream in missing)

    def _pump(self) -> Effects:
        """Start whatever can start now."""
        if self.state is WriterState.IDLE and self.queue:
            return self._claim()
        effects: Effects = []
        while self.state is WriterState.OWNING and self.queue and len(self.in_flight) < self.config.in_flight_max:
            effects += self._send(self.queue.popleft())
        return effects

    def _claim(self) -> Effects:
        """Own the log, or read who does: the known projection may be old."""
        view = self.view
        if view is not None and view.last.owner == self.config.me and view.last.is_open:
            return self._own(view)
        self.state = WriterState.VIEWING
        return [CancelTimer("ack"), Send(Address(SELF, "reconfigurer"), Refresh(self.config.log))]

    def _claim_from(self, view: Projection, nodes: tuple[NodeInfo, ...]) -> Effects:
        owner = view.last.owner
        if view.last.is_open and owner == self.config.me:
            return self._own(view)
        if not view.last.is_open:
            return self._refuse_queue(closed(view))
        free = not owner.process or owner == self.taken_from or self._is_abandoned(owner, nodes)
        allowed = [request for request in self.queue if free or request.takeover]
        refused = [request for request in self.queue if not (free or request.takeover)]  # W5
        self.state, self.taken_from = (WriterState.CLAIMING, owner) if allowed else (WriterState.IDLE, None)
        self.queue = deque(request if free else replace(request, takeover=False) for request in allowed)
        effects = _refusals(refused, owned(owner))
        job = EndOpenSegment(self.config.log, view.last.index, owner=self.config.me)
        return [*effects, Send(Address(SELF, "reconfigurer"), job)] if allowed else effects

    def _is_abandoned(self, owner: Owner, nodes: tuple[NodeInfo, ...]) -> bool:
        """Whether the owner has no lease. A process without a lease of its own cannot tell."""
        leased = [(info.node, info.start) for info in nodes if info.live]
        return tuple(self.config.me) in leased and tuple(owner) not in leased

    def _on_claimed(self, view: Projection, nodes: tuple[NodeInfo, ...]) -> Effects:
        if view.last.is_open and view.last.owner == self.config.me:
            return self._own(view)
        if view.last.owner == self.taken_from:  # blocked, or ended by a reader: retry
            return [self._try_later()]
        self.taken_from = None
        return self._claim_from(view, nodes)  # another writer was faster: only later appends may take it over

    def _own(self, view: Projection) -> Effects:
        self.state, self.segment, self.taken_from = WriterState.OWNING, view.last.index, None
        self.next = self.committed = view.last.base
        return self._pump()

    def _send(self, request: AppendRequested) -> Effects:
        self.seq += 1
        frame = Frame(self.next, request.count, FrameKind.DATA, self.config.writer, self.seq, request.checksum)
        self.next = frame.next
        members = self._current().members()
        oldest = not self.in_flight
        self.in_flight.append(Sending(request, frame, [member.stream for member in members]))
        sends: Effects = [self._append(member, frame) for member in members]
        return [*sends, self._suspect_later()] if oldest else sends  # W8

    def _append(self, member: Member, frame: Frame) -> Send:
        assert self.view is not None
        target = target_of(self.view, self._current(), member)
        return Send(Address(member.node, "storage"), Append(target, self.config.me, frame, self.committed - 1))

    def _suspect_later(self) -> SetTimer:
        return SetTimer("ack", self.config.timing.suspect_after_ms << self.doubts)

    def _try_later(self) -> SetTimer:
        return SetTimer("ack", self.config.timing.suspect_after_ms)

    def _on_stored(self, stream: str, frame: Frame) -> Effects:
        sending = self._sending(frame)
        if sending is None or stream not in sending.missing:
            return []
        sending.missing.remove(stream)
        return self._commit_ready()

    def _sending(self, frame: Frame) -> Sending | None:
        sending = self._numbered(frame.seq)
        return sending if sending is not None and sending.frame == frame else None

    def _numbered(self, seq: int) -> Sending | None:
        at = seq - self.in_flight[0].frame.seq if self.in_flight else -1
        return self.in_flight[at] if 0 <= at < len(self.in_flight) else None

    def _commit_ready(self) -> Effects:
        effects: Effects = []
        while self.in_flight and not self.in_flight[0].missing:  # W1
            effects += self._committed(self.in_flight.popleft())
        if not effects:
            return []
        if self.in_flight:
            return [*effects, self._suspect_later(), *self._pump()]
        more = self._pump()
        return [*effects, *(more if more else [CancelTimer("ack"), *self._release()])]

    def _committed(self, sending: Sending) -> Effects:
        self.committed, self.doubts = sending.frame.next, 0
        event = Committed(self.config.log, self.segment, self.config.me, sending.frame)
        return [Announce(event), Complete(sending.request.operation, Appended(sending.frame.first))]

    def _release(self) -> Effects:
        assert self.view is not None
        segment = self._current()
        return [
            Send(
                Address(member.node, "storage"),
                Release(target_of(self.view, segment, member), self.config.me, self.committed - 1),
            )
            for member in segment.members()
        ]

    # -------------------------------------------------------------------------------------------------- the bad paths

    def _on_rejected(self, stream: str, reason: Reason, point: int) -> Effects:
        member = next((m for m in self._current().members() if m.stream == stream), None)
        if member is None or not self.in_flight:
            return []
        if reason is Reason.UNKNOWN:
            assert self.view is not None
            ask = Open(descriptor_of(self.view, self._current(), member))
            return [Send(Address(member.node, "storage"), ask)]
        if reason is Reason.GAP:
            return self._resend(stream, point)
        if reason is Reason.NO_SPACE:
            self.full = tuple(dict.fromkeys((*self.full, member.node)))
            return []  # the timer triggers the roll, which bounds how often it happens
        return self._roll(() if reason is Reason.SEALED else (member.node,))

    def _resend(self, stream: str, start: int) -> Effects:
        """Resend, in order, the batches from ``start`` that a member lacks."""
        member = next((m for m in self._current().members() if m.stream == stream), None)
        if member is None:
            return []
        lacking = [s.frame for s in self.in_flight if stream in s.missing and s.frame.first >= start]
        return [self._append(member, frame) for frame in lacking]

    def _roll(self, suspects: tuple[str, ...]) -> Effects:
        self.state = WriterState.ROLLING  # W2: from here on nothing is acknowledged in this segment
        full = any(node in self.full for node in suspects)  # it answers, and may be needed again
        me, end = self.config.me, self.committed
        job = EndOpenSegment(self.config.log, self.segment, suspects, owner=me, end=end, only_to_spares=full)
        return [CancelTimer("ack"), Send(Address(SELF, "reconfigurer"), job)]

    # ------------------------------------------------------------------------------------------------------- settling

    def _on_view(self, projection: Projection | None, nodes: tuple[NodeInfo, ...]) -> Effects:
        if projection is not None and (self.view is None or projection.epoch > self.view.epoch):
            self.view = projection
        view = self.view
        if view is None:
            return self._refuse_queue(append_refused(NO_SUCH_LOG))
        match self.state:
            case WriterState.VIEWING:
                return self._claim_from(view, nodes)
            case WriterState.CLAIMING:
                return self._on_claimed(view, nodes)
            case WriterState.ROLLING:
                return self._settle(view)
        return []

    def _settle(self, view: Projection) -> Effects:
        """The segment has ended: its end settles what was in flight (W3), a segment of mine takes the rest (W4)."""
        ended = view.segment(self.segment)
        if ended is not None and ended.is_open:
            return [self._try_later()]  # it cannot be ended now: stay frozen, and retry
        pending, self.in_flight = self.in_flight, deque()
        effects: Effects = []
        unsettled: list[AppendRequested] = []
        for sending in pending:
            if sending.frame.first <= view.trim or view.gap_at(sending.frame.first) is not None:
                result = OutcomeUnknown(sending.frame.first)
                effects.append(Complete(sending.request.operation, result))
            elif ended is not None and ended.end is not None and sending.frame.next <= ended.end:
                effects += self._committed(sending)
            else:
                unsettled.append(sending.request)
        self.state = WriterState.IDLE
        full, self.full = [m.node for m in view.last.members() if m.node in self.full], ()
        if view.last.is_open and view.last.owner == self.config.me:
            if full:  # W7
                return [*effects, *_refusals(unsettled, no_space(full)), *self._own(view)]
            self.queue.extendleft(reversed(unsettled))
            return [*effects, *self._own(view)]
        refusal = owned(view.last.owner) if view.last.is_open else closed(view)
        takers = [request for request in unsettled if request.takeover and view.last.is_open]  # W5
        self.queue.extendleft(reversed(takers))
        refused = _refusals([request for request in unsettled if request not in takers], refusal)
        return [*effects, *refused, *self._pump()]

    def _refuse_queue(self, refusal: AppendRefused) -> Effects:
        self.state, self.taken_from = WriterState.IDLE, None
        refused, self.queue = self.queue, deque()
        return _refusals(list(refused), refusal)


def _refusals(requests: list[AppendRequested], refusal: AppendRefused) -> Effects:
    return [Complete(request.operation, refusal) for request in requests]
