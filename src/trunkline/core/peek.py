"""The peeker: finds the next position that the sequencer would grant. It is at or past the tail.

States
    idle --request--> viewing --projection--> asking --answer--> idle
    asking --no answer, not the owner--> ending --> asking
    ending --not possible now--> waiting --> viewing

Rules
 X1  The next position of a closed log is its end; no node is asked.
 X2  chain: the owner of the segment that was open after the call began answers. The segment of a silent owner is ended,
     as a reader does.
 X3  broadcast: the contiguous end of a member; an unreachable or damaged one is left for another. If none can answer,
     the segment is ended, and keeps its owner.
"""

from __future__ import annotations

import enum

from msgspec import Struct

from trunkline.core.calls import PeekRequested
from trunkline.core.effects import SELF, Address, CancelTimer, Complete, Effects, Event, Message, Send, SetTimer
from trunkline.core.events import PeekIs
from trunkline.core.messages import (
    FindTail,
    NotGranted,
    Peek,
    Peeked,
    Reason,
    Rejected,
    TailFound,
    target_of,
)
from trunkline.core.projection import Policy, Projection
from trunkline.core.refusals import DELETED, NO_SUCH_LOG
from trunkline.core.siblings import EndOpenSegment, Refresh, ViewChanged
from trunkline.core.timing import DEFAULT_TIMING, Timing


class PeekerState(enum.Enum):
    IDLE = "idle"
    VIEWING = "viewing"
    ASKING = "asking"
    ENDING = "ending"
    WAITING = "waiting"


class PeekerConfig(Struct, frozen=True):
    log: str
    timing: Timing = DEFAULT_TIMING


class Peeker:
    def __init__(self, config: PeekerConfig) -> None:
        self.config = config
        self.state = PeekerState.IDLE
        self.operation = 0
        self.view: Projection | None = None
        self.replica = 0  # broadcast: the member to ask
        self.ending = -1  # the segment to end

    @property
    def phase(self) -> str:
        return self.state.value

    def on_start(self) -> Effects:
        return []

    def on_choice(self, key: str, option: object) -> Effects:
        raise AssertionError(f"a peeker makes no choice, but {key} was chosen")

    def on_message(self, source: Address, message: Message) -> Effects:
        match message:
            case PeekRequested(operation):
                self.operation, self.ending, self.replica = operation, -1, 0
                return self._refresh()
            case ViewChanged(_, projection) if self.state in (PeekerState.VIEWING, PeekerState.ENDING):
                return self._on_view(projection)
            case Peeked(_, segment, following) if self.state is PeekerState.ASKING and segment == self._segment():
                return self._done(PeekIs(following))
            case NotGranted(_, segment) if self.state is PeekerState.ASKING and segment == self._segment():
                return self._end()
            case TailFound(_, operation, written) if self.state is PeekerState.ASKING and operation == self.operation:
                return self._done(PeekIs(written))
            case Rejected(_, operation, reason) if self.state is PeekerState.ASKING and operation == self.operation:
                return self._on_unreachable(reason)
        return []  # a late answer

    def on_timer(self, key: str) -> Effects:
        return self._on_unreachable(Reason.SILENT) if self.state is PeekerState.ASKING else self._refresh()

    def _segment(self) -> int:
        assert self.view is not None
        return self.view.last.index

    def _refresh(self) -> Effects:
        self.state = PeekerState.VIEWING
        return [CancelTimer("wait"), Send(Address(SELF, "reconfigurer"), Refresh(self.config.log))]

    def _on_view(self, projection: Projection | None) -> Effects:
        ended, self.view = self.state is PeekerState.ENDING, projection
        if projection is None or projection.deleted:
            return self._done(NO_SUCH_LOG if projection is None else DELETED)
        last = projection.last
        if last.end is not None:  # X1
            return self._done(PeekIs(last.end))
        if ended and last.index == self.ending:
            self.state = PeekerState.WAITING  # it cannot be ended now
            return [SetTimer("wait", self.config.timing.poll_ms)]
        return [self._ask(projection), SetTimer("wait", self.config.timing.suspect_after_ms)]

    def _ask(self, projection: Projection) -> Send:
        self.state = PeekerState.ASKING
        last = projection.last
        if last.policy is Policy.CHAIN:
            return Send(Address(last.owner.process, "sequencer"), Peek(self.config.log, last))
        member = last.groups[0][self.replica % len(last.groups[0])]
        ask = FindTail(target_of(projection, last, member), self.operation)
        return Send(Address(member.node, "storage"), ask)

    def _on_unreachable(self, reason: Reason) -> Effects:
        assert self.view is not None
        last = self.view.last
        if last.policy is Policy.CHAIN:
            return self._end()
        if reason is Reason.UNKNOWN:
            return self._done(PeekIs(last.base))  # nothing was ever written to it
        self.replica += 1  # X3
        return self._refresh() if self.replica % len(last.groups[0]) else self._end()

    def _end(self) -> Effects:
        assert self.view is not None
        self.state, self.ending = PeekerState.ENDING, self.view.last.index
        suspects = (self.view.last.owner.process,) if self.view.last.policy is Policy.CHAIN else ()
        job = EndOpenSegment(self.config.log, self.view.last.index, suspects)
        return [CancelTimer("wait"), Send(Address(SELF, "reconfigurer"), job)]

    def _done(self, result: Event) -> Effects:
        self.state = PeekerState.IDLE
        return [CancelTimer("wait"), Complete(self.operation, result)]
