"""The tail finder: finds the position after the last committed entry, linearizable.

States
    idle --request--> viewing --projection--> asking --answers--> idle
    asking --a member cannot answer--> waiting --> viewing, or ending --segment ended--> viewing

Rules
 T1  The projection is read after the call began, so everything committed before it lies in its segments. (That the
     known one is unchanged is as good.)
 T2  chain: the largest "highest written + 1" over the last members of all groups, at least the base. Grants are not
     entries: ``peek`` runs ahead of the tail, and would let it move back.
 T3  broadcast: the contiguous end c of one member, once its LAC has reached c - 1; if the segment ends first, the
     smaller of c and its end.
 T4  broadcast: a member that is unreachable, damaged or without the LAC is left for another; if none can answer, the
     segment is ended, and keeps its owner.
"""

from __future__ import annotations

import enum

from msgspec import Struct

from trunkline.core.calls import TailRequested
from trunkline.core.effects import SELF, Address, CancelTimer, Complete, Effects, Message, Send, SetTimer
from trunkline.core.events import TailIs
from trunkline.core.messages import (
    FindTail,
    Get,
    Got,
    Reason,
    Rejected,
    TailFound,
    target_of,
)
from trunkline.core.projection import Member, Policy, Projection
from trunkline.core.refusals import DELETED
from trunkline.core.siblings import EndOpenSegment, ViewChanged
from trunkline.core.timing import DEFAULT_TIMING, Timing


class TailState(enum.Enum):
    IDLE = "idle"
    VIEWING = "viewing"
    ASKING = "asking"
    ENDING = "ending"
    WAITING = "waiting"


class TailConfig(Struct, frozen=True):
    register: Address
    log: str
    timing: Timing = DEFAULT_TIMING


class TailFinder:
    def __init__(self, config: TailConfig, view: Projection | None = None) -> None:
        """``view``: a known projection of the log, so that it need not be sent again."""
        self.config = config
        self.state = TailState.IDLE
        self.operation = 0
        self.view = view
        self.found: dict[str, int] = {}  # by stream
        self.contiguous = 0  # broadcast: the c that must be released ...
        self.segment = -1  # ... and the segment that it was found in
        self.replica = 0  # broadcast: the member to ask
        self.blocked = 0  # broadcast: members in a row that could not answer

    @property
    def phase(self) -> str:
        return self.state.value

    def on_start(self) -> Effects:
        return []

    def on_choice(self, key: str, option: object) -> Effects:
        raise AssertionError(f"a tail finder makes no choice, but {key} was chosen")

    def on_message(self, source: Address, message: Message) -> Effects:
        match message:
            case TailRequested(operation):
                self.operation, self.contiguous, self.segment = operation, 0, -1
                return self._refresh()
            case Got(_, nonce) if self.state is TailState.VIEWING and nonce == self.operation:
                return self._on_got(message)
            case TailFound(stream, operation, written, lac) if self._asks(operation):
                return self._on_found(stream, written, lac)
            case Rejected(stream, operation, reason) if self._asks(operation):
                return self._on_found(stream, 0, 0) if reason is Reason.UNKNOWN else self._on_unreachable()
            case ViewChanged(_, view) if self.state is TailState.ENDING:
                blocked = view is not None and self.view is not None and view.last == self.view.last
                return self._later() if blocked else self._refresh()
        return []  # a late answer

    def _asks(self, operation: int) -> bool:
        return self.state is TailState.ASKING and operation == self.operation

    def on_timer(self, key: str) -> Effects:
        return self._on_unreachable() if self.state is TailState.ASKING else self._refresh()

    def _on_unreachable(self) -> Effects:
        """A required member does not answer, or cannot: chain, end the segment; broadcast, ask another (T4)."""
        assert self.view is not None
        last = self.view.last
        if last.policy is Policy.CHAIN or self.blocked >= len(last.groups[0]):
            self.blocked = 0
            return self._end()
        self.replica, self.blocked = (self.replica + 1) % len(last.groups[0]), self.blocked + 1
        return self._later()

    def _later(self) -> Effects:
        self.state = TailState.WAITING
        return [SetTimer("wait", self.config.timing.poll_ms)]

    def _refresh(self) -> Effects:
        self.state = TailState.VIEWING  # T1
        known = self.view.epoch if self.view is not None else 0
        ask = Send(self.config.register, Get(self.config.log, self.operation, known))
        return [ask, SetTimer("wait", self.config.timing.suspect_after_ms)]

    def _end(self) -> Effects:
        assert self.view is not None
        self.state = TailState.ENDING
        job = EndOpenSegment(self.config.log, self.view.last.index)
        return [CancelTimer("wait"), Send(Address(SELF, "reconfigurer"), job)]

    def _on_got(self, got: Got) -> Effects:
        if not got.unchanged:
            return self._on_projection(got.projection)
        known = self.view is not None and self.view.epoch == got.unchanged
        return self._on_projection(self.view) if known else []  # of another epoch: a late answer

    def _on_projection(self, projection: Projection | None) -> Effects:
        self.view = projection
        if projection is None:
            return self._done(1)
        if projection.deleted:
            self.state, self.blocked = TailState.IDLE, 0
            return [CancelTimer("wait"), Complete(self.operation, DELETED)]
        last = projection.last
        if last.end is not None:
            return self._done(last.end)
        held = projection.segment(self.segment)
        if held is not None and held.end is not None:
            return self._done(min(self.contiguous, held.end))  # T3
        self.state, self.found = TailState.ASKING, {}
        asks: Effects = [self._ask(projection, member) for member in self._members(projection)]
        return [*asks, SetTimer("wait", self.config.timing.suspect_after_ms)]

    def _members(self, projection: Projection) -> list[Member]:
        if projection.last.policy is Policy.BROADCAST:
            return [projection.last.groups[0][self.replica % len(projection.last.groups[0])]]
        return [group[-1] for group in projection.last.groups]

    def _ask(self, projection: Projection, member: Member) -> Send:
        target = target_of(projection, projection.last, member)
        return Send(Address(member.node, "storage"), FindTail(target, self.operation))

    def _on_found(self, stream: str, written: int, lac: int) -> Effects:
        assert self.view is not None
        last = self.view.last
        if stream not in [member.stream for member in self._members(self.view)]:
            return []
        if last.policy is Policy.BROADCAST:
            self.segment = last.index
            self.contiguous = max(self.contiguous, written, last.base)
            if lac >= self.contiguous - 1 or self.contiguous == last.base:
                return self._done(self.contiguous)
            return self._on_unreachable()
        self.found[stream] = written
        if len(self.found) < len(self._members(self.view)):
            return []
        return self._done(max(last.base, *self.found.values()))  # T2

    def _done(self, tail: int) -> Effects:
        self.state, self.blocked = TailState.IDLE, 0
        return [CancelTimer("wait"), Complete(self.operation, TailIs(tail))]
