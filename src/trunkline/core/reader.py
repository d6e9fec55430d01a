"""The reader: returns entries in order, follows segments, fills holes, and reads around damage.

States
    viewing --projection--> reading --frames--> reading (next position) ...
    reading --nothing there, open chain--> peeking --granted--> hole --patience--> filling --settled--> reading
    reading --nothing there, at the tail--> idle --quiet or pushed--> viewing / reading
    reading --nothing there, to_tail--> measuring --tail--> reading (up to it) / done
    reading / peeking --no answer, sealed--> ending --segment ended--> reading
    reading --nothing there, ended--> filling

Rules
 D1  ``trim`` comes from the projection, and is applied before a node is asked.
 D2  Open chain, and ended but not repaired: the last member only. A value that only the head has is never returned.
 D3  Repaired: any serving member. Open broadcast: any member, up to its LAC; the reader leaves an unreachable or
     damaged member for another, and leaves the end of the segment to its owner.
 D4  "Nothing there" is final only below the end. A reader fills only holes below ``peek``, and only those that were
     granted before the wait began: one wait serves all of them. It waits longer for a writer that was beaten (Q5).
 D5  A segment is left only at its end: every position below it was returned, filled, trimmed or declared lost.
 D6  "Nothing there" from a node never ends a read: its map may be old, and so may that of the reader. A read
     ``to_tail`` that finds nothing measures the tail (T1 to T4), once, and ends when it has everything below it.
 D7  A LAC may be lost (a restart, a lost Release, a dead owner), and a taker may die between seal and swap. If every
     member stays like this, the reader ends the segment; it keeps its owner, and the reader waits first, so that a live
     taker can finish.
 D8  A read that ends at ``until`` returns no batch that begins after it, however many an answer holds: a trim deletes
     what was read for it.
 D9  A reader that meets a seal leaves the end to the process that sealed, for a while.
 D10 Frames count whenever they arrive, also while the metadata store does not answer: the member of D2 and D3 has only
     committed entries, however old the projection is.
 D11 A late projection may have forgotten the segment that is being read: then the reader looks the position up again
     before it handles any answer.
 D12 No batch at or past the end of its segment is returned, whatever its member answered.
 D13 A member without space for an entry of its head is left only if there are others: it answers, and may have space
     again.
"""

from __future__ import annotations

import enum

from msgspec import Struct

from trunkline.core.calls import SubscribeRequested, TailRequested
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
from trunkline.core.entries import Frame
from trunkline.core.events import (
    EntriesRead,
    FollowedSegment,
    PositionsSkipped,
    SubscriptionEnded,
    TailIs,
)
from trunkline.core.messages import (
    NotGranted,
    Peek,
    Peeked,
    Read,
    ReadFrames,
    Reason,
    Rejected,
    Subscribe,
    Unwritten,
    target_of,
)
from trunkline.core.projection import Member, Policy, Projection, Segment
from trunkline.core.refusals import DELETED
from trunkline.core.siblings import EndOpenSegment, Fill, FillDone, Refresh, ViewChanged
from trunkline.core.tail import TailConfig, TailFinder
from trunkline.core.timing import DEFAULT_TIMING, Timing


class ReaderState(enum.Enum):
    DONE = "done"
    VIEWING = "viewing"
    READING = "reading"
    PEEKING = "peeking"
    HOLE = "hole"
    FILLING = "filling"
    IDLE = "idle"
    MEASURING = "measuring"
    ENDING = "ending"


ACCEPTS_FRAMES = (ReaderState.READING, ReaderState.IDLE, ReaderState.VIEWING)  # D10


class ReaderConfig(Struct, frozen=True):
    register: Address
    log: str
    timing: Timing = DEFAULT_TIMING
    doublings_max: int = 6  # of ``fill_after_ms``, for a writer that was beaten; too small: a slow link never succeeds
    quiet_ms: int = 500  # too small: idle readers load the metadata store; too big: a lost member is noticed late
    read_limit: int = 64  # frames per request
    seal_checks: int = 1  # how often to wait for the process that sealed (D9)
    push: bool = True  # the node sends new entries; otherwise the reader polls
    replica: int = 0  # the first member to read where any will do (D3): spreads readers over members


class Reader:
    def __init__(self, config: ReaderConfig, view: Projection | None = None) -> None:
        self.config = config
        self.view = view
        self.state = ReaderState.DONE
        self.request: SubscribeRequested | None = None
        self.requester = "application"
        self.next = 1
        self.batch = 1  # first position of the last batch that was read
        self.segment = -1
        self.replica = config.replica  # the member to read where any will do
        self.blocked = 0  # answers in a row without a readable entry (D7, D9)
        self.waited = 1  # the wait for holes below this is over (D4)
        self.finder: TailFinder | None = None  # while it measures the tail
        self.tail: int | None = None  # measured: a read ``to_tail`` ends there (D6)

    @property
    def phase(self) -> str:
        return self.state.value

    def on_start(self) -> Effects:
        return []

    def on_choice(self, key: str, option: object) -> Effects:
        raise AssertionError(f"a reader makes no choice, but {key} was chosen")

    def on_message(self, source: Address, message: Message) -> Effects:
        match message:
            case SubscribeRequested():
                self.request, self.requester, self.next = message, source.role, message.start
                self.segment, self.waited, self.finder, self.tail = -1, 1, None, None
                return self._advance()
            case _ if self.finder is not None:
                return self._measured(self.finder.on_message(source, message))
            case ViewChanged(_, projection):
                return self._on_view(projection)
            case ReadFrames(stream, glsn, frames) if glsn == self.next and self.state in ACCEPTS_FRAMES:
                return self._on_frames(frames) if self._asked(stream) else []
            case Unwritten(stream, glsn) if glsn == self.next and self.state in (ReaderState.READING, ReaderState.IDLE):
                return self._on_unwritten(message) if self._asked(stream) else []
            case Rejected(stream, glsn, reason) if self.state is ReaderState.READING and glsn in (0, self.next):
                return self._on_rejected(reason) if self._asked(stream) else []
            case Peeked(_, segment) if self.state is ReaderState.PEEKING and segment == self.segment:
                return self._on_peeked(message)
            case NotGranted(_, segment) if self.state is ReaderState.PEEKING and segment == self.segment:
                return self._end((self._current().owner.process,))
            case FillDone(_, glsn) if self.state is ReaderState.FILLING and glsn == self.next:
                return self._on_fill_done(message)
        return []  # a late answer

    def on_timer(self, key: str) -> Effects:
        if self.finder is not None:
            return self._measured(self.finder.on_timer(key))
        match self.state:
            case ReaderState.HOLE:
                return self._fill(self.waited)
            case ReaderState.PEEKING:
                return self._end((self._current().owner.process,))
            case ReaderState.READING if self._current().is_open and self._current().policy is Policy.CHAIN:
                return self._end((self._member(self._current()).node,))
            case ReaderState.READING:
                self._turn()
        return self._refresh()

    # -------------------------------------------------------------------------------------------------- where to read

    def _current(self) -> Segment:
        assert self.view is not None
        segment = self.view.segment(self.segment)
        assert segment is not None
        return segment

    def _is_placed(self) -> bool:
        """Whether the segment that it reads is in the map."""
        return self.view is not None and self.view.segment(self.segment) is not None

    def _member(self, segment: Segment) -> Member:
        group = segment.serving(segment.group_of(self.next))
        if segment.repaired or (segment.is_open and segment.policy is Policy.BROADCAST):  # D3
            return group[self.replica % len(group)]
        return group[-1]  # D2

    def _turn(self) -> None:
        """Switch to another member."""
        segment = self._current()
        self.replica = (self.replica + 1) % len(segment.serving(segment.group_of(self.next)))

    def _asked(self, stream: str) -> bool:
        return self._is_placed() and self._member(self._current()).stream == stream

    def _advance(self) -> Effects:
        view = self.view
        if view is None:
            return self._refresh()
        assert self.request is not None
        if self._is_through(self.request):
            return self._done()
        if view.deleted:
            return self._refused()
        if self.next <= view.trim:  # D1
            return self._skip(view.trim + 1, Reason.TRIMMED)
        gap = view.gap_at(self.next)
        if gap is not None:
            return self._skip(gap.end, Reason.LOST)
        segment = view.segment_of(self.next)
        if segment is None:
            return self._at_tail(push=False)
        followed: Effects = []
        if segment.index != self.segment:
            followed = (
                [Announce(FollowedSegment(self.config.log, segment.index, self.next))] if self.segment >= 0 else []
            )
            self.segment, self.replica, self.waited = segment.index, self.config.replica, self.next
        return [*followed, *self._read(view, segment)]

    def _is_through(self, request: SubscribeRequested) -> bool:
        """Whether it has returned everything that was requested."""
        if request.until is not None and self.next > request.until:
            return True
        return self.tail is not None and self.next >= self.tail

    def _read(self, view: Projection, segment: Segment) -> Effects:
        self.state = ReaderState.READING
        member = self._member(segment)
        read = Read(target_of(view, segment, member), self.next, self.config.read_limit)
        return [Send(Address(member.node, "storage"), read), self._suspect_later()]

    def _suspect_later(self) -> SetTimer:
        return SetTimer("wait", self.config.timing.suspect_after_ms)

    def _skip(self, end: int, why: Reason) -> Effects:
        event = PositionsSkipped(self.config.log, self.next, end, why)
        self.next = end
        return [Announce(event), *self._advance()]

    def _done(self) -> Effects:
        assert self.request is not None
        self.state = ReaderState.DONE
        result = SubscriptionEnded(self.next)
        if self.requester == "application":
            return [CancelTimer("wait"), Complete(self.request.operation, result)]
        cut = self.request.until is not None and self.next > self.request.until + 1
        settled = self.batch - 1 if cut else self.next - 1
        return [CancelTimer("wait"), Send(Address(SELF, self.requester), ReadThrough(settled, self.next - 1))]

    def _refused(self) -> Effects:
        """The log was deleted. A sibling learns it from the projection."""
        assert self.request is not None
        if self.requester != "application":
            return self._done()
        self.state = ReaderState.DONE
        refusal = Complete(self.request.operation, DELETED)
        return [CancelTimer("wait"), refusal]

    # -------------------------------------------------------------------------------------------------------- answers

    def _on_frames(self, frames: tuple[Frame, ...]) -> Effects:
        effects: Effects = []
        self.blocked = 0
        end, until = self._current().end, self.request.until if self.request is not None else None
        for frame in frames:
            if end is not None and frame.first >= end:  # D12
                break
            if until is not None and frame.first > until:  # D8
                break
            effects.append(Announce(EntriesRead(self.config.log, self.next, frame)))
            self.next, self.batch = frame.next, frame.first
        return [*effects, *self._advance()]

    def _on_unwritten(self, answer: Unwritten) -> Effects:
        segment, view = self._current(), self.view
        assert view is not None
        if segment.end is not None:  # below the end there is a value, but this member may not know the end yet
            return self._fill(segment.end)
        if answer.sealed and segment.policy is Policy.CHAIN:
            self.blocked += 1  # D9
            return self._end(()) if self.blocked > self.config.seal_checks else self._wait(push=False)
        if segment.policy is Policy.BROADCAST:
            waits = answer.sealed or answer.written > self.next
            return self._on_unreleased(segment) if waits else self._at_tail(push=True)
        if self.state is ReaderState.IDLE and answer.written <= self.next:
            return []
        self.state = ReaderState.PEEKING
        peek = Peek(self.config.log, segment, self.next)
        return [Send(Address(segment.owner.process, "sequencer"), peek), self._suspect_later()]

    def _on_unreleased(self, segment: Segment) -> Effects:
        """The member has unreleased entries, or is sealed: ask the others, then end the segment (D7)."""
        self.blocked += 1
        if self.blocked > len(segment.groups[0]):
            self.blocked = 0
            return self._end(())
        self._turn()
        return self._wait(push=False)

    def _on_peeked(self, answer: Peeked) -> Effects:
        if self.next >= answer.next:
            return self._at_tail(push=True)
        if self.next < self.waited:
            return self._fill(self.waited)
        self.state, self.waited = ReaderState.HOLE, max(self.next + 1, min(answer.alike, answer.next))  # D4
        doublings = min(answer.beaten, self.config.doublings_max)
        return [SetTimer("wait", self.config.timing.fill_after_ms << doublings)]

    def _on_rejected(self, reason: Reason) -> Effects:
        segment = self._current()
        match reason:
            case Reason.UNKNOWN if segment.is_open:  # nothing was ever written to it
                return self._on_unwritten(Unwritten("", self.next, segment.base, sealed=False))
            case Reason.UNKNOWN:
                assert segment.end is not None
                return self._fill(segment.end)
            case Reason.TRIMMED:
                return self._refresh()
            case Reason.CORRUPT | Reason.MISMATCH | Reason.GONE if segment.is_open and segment.policy is Policy.CHAIN:
                return self._end((self._member(segment).node,))
        self._turn()
        return self._wait(push=False)

    def _on_fill_done(self, done: FillDone) -> Effects:
        if done.frames:
            return self._on_frames(done.frames)
        if done.why is Reason.STALE:
            return self._refresh()
        if self._current().is_open and done.why is Reason.NO_SPACE:  # D13
            return self._end((done.node,), only_to_spares=True)
        if self._current().is_open and done.why is not Reason.TRIMMED:
            return self._end(())  # a member is silent, sealed, damaged or replaced: the segment cannot continue
        return self._wait(push=False)

    # -------------------------------------------------------------------------------------------- waiting, and ending

    def _fill(self, end: int) -> Effects:
        assert self.view is not None
        self.state = ReaderState.FILLING
        return [CancelTimer("wait"), Send(Address(SELF, "filler"), Fill(self.view, self.segment, self.next, end))]

    def _at_tail(self, *, push: bool) -> Effects:
        assert self.request is not None
        if self.request.to_tail and self.tail is None:
            return self._measure(self.request)
        return self._wait(push=push)

    def _measure(self, request: SubscribeRequested) -> Effects:
        """Find the present tail: everything acknowledged before this read lies below it (D6)."""
        self.state = ReaderState.MEASURING
        config = TailConfig(self.config.register, self.config.log, self.config.timing)
        self.finder = TailFinder(config)
        return self._measured(
            self.finder.on_message(Address(SELF, "reader"), TailRequested(request.operation, request.log))
        )

    def _measured(self, effects: Effects) -> Effects:
        """The effects of the finder, until it has found the tail."""
        found = next((effect for effect in effects if isinstance(effect, Complete)), None)
        if found is None or self.finder is None:
            return effects
        view, self.finder = self.finder.view, None
        others = [effect for effect in effects if effect is not found]
        if not isinstance(found.result, TailIs):
            return [*others, *self._refused()]
        self.tail = found.result.glsn
        if view is not None and (self.view is None or view.epoch > self.view.epoch):
            self.view = view
        return [*others, *self._advance()]

    def _wait(self, *, push: bool) -> Effects:
        self.state = ReaderState.IDLE
        return [*(self._listen() if push else []), SetTimer("wait", self.config.quiet_ms)]

    def _listen(self) -> Effects:
        """Let the member send new entries at once."""
        if not self.config.push or (self.request is not None and self.request.to_tail):
            return []
        segment, view = self._current(), self.view
        assert view is not None
        member = self._member(segment)
        subscribe = Subscribe(target_of(view, segment, member), self.next, self.config.read_limit)
        return [Send(Address(member.node, "storage"), subscribe)]

    def _refresh(self) -> Effects:
        self.state = ReaderState.VIEWING
        return [CancelTimer("wait"), Send(Address(SELF, "reconfigurer"), Refresh(self.config.log))]

    def _end(self, suspects: tuple[str, ...], *, only_to_spares: bool = False) -> Effects:
        self.state = ReaderState.ENDING
        job = EndOpenSegment(self.config.log, self.segment, suspects, only_to_spares=only_to_spares)
        return [CancelTimer("wait"), Send(Address(SELF, "reconfigurer"), job)]

    def _on_view(self, projection: Projection | None) -> Effects:
        if projection is not None and (self.view is None or projection.epoch > self.view.epoch):
            self.view = projection
        if self.state not in (ReaderState.VIEWING, ReaderState.ENDING):
            lost = self.state is not ReaderState.DONE and self.segment >= 0 and not self._is_placed()
            return self._advance() if lost else []  # D11
        if self.view is None:
            return self._wait(push=False)  # no such log yet
        segment = self.view.segment(self.segment)
        blocked = self.state is ReaderState.ENDING and segment is not None and segment.is_open
        return self._wait(push=False) if blocked else self._advance()


class ReadThrough(Message, frozen=True):
    """To a sibling: everything up to ``reached`` was read or filled; a trim at ``settled`` cuts no batch."""

    settled: int
    reached: int
