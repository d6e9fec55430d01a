"""The reader: returns entries in order, follows segments, fills holes, and reads around what is damaged.

States
    viewing --projection--> reading --frames--> reading (next position) ...
    reading --nothing there, open chain--> peeking --granted--> hole --fill_after--> filling --settled--> reading
    reading --nothing there, at the tail--> idle --quiet or pushed--> viewing / reading
    reading / peeking --no answer, sealed--> ending --segment ended--> reading
    reading --nothing there, ended--> filling

Rules
 D1  ``trim`` and ``end`` come from the projection, and are applied before a node is asked.
 D2  Open chain, and ended but not repaired: the last member only. A value found only at the head is never returned.
 D3  Repaired: any member that is not joining. Open broadcast: any member, up to its LAC; one that is away or damaged is
     left for another, and ending the segment is left to its owner.
 D4  "Nothing there" is final only below the end. A hole is filled only if it lies below ``peek``, after ``fill_after``.
 D5  A segment is left only at its end: every position below it has been returned, filled, trimmed or declared lost.
 D6  A "nothing there" that is not fresh is believed only after another look at the projection.
 D7  A LAC may be lost (a restart, a lost Release, a dead owner), and a taker may die between seal and swap. What stays
     so on every member is settled by ending the segment; it keeps its owner, and patience leaves a live taker its
     chance.
 D8  A read that ends at ``until`` returns no batch that begins behind it, however many an answer holds: a trim deletes
     what was read for it.
 D9  Who meets a seal leaves the end to whoever sealed, for a while.
 D10 Entries are taken whenever they come, also while the metadata is asked and does not answer: the member that D2 and
     D3 name has only what was committed, however old the projection is. Only "nothing there" needs a fresh one.
"""

from __future__ import annotations

from msgspec import Struct

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
from trunkline.core.events import EntriesRead, FollowedSegment, PositionsSkipped, RequestRefused, SubscriptionEnded
from trunkline.core.messages import (
    NotGranted,
    Peek,
    Peeked,
    Read,
    ReadFrames,
    Reason,
    Rejected,
    Subscribe,
    SubscribeRequested,
    Unwritten,
    target_of,
)
from trunkline.core.projection import Member, Policy, Projection, Segment
from trunkline.core.siblings import EndOpenSegment, Fill, FillDone, Refresh, ViewChanged


class ReaderConfig(Struct, frozen=True):
    log: str
    suspect_after_ms: int = 1000  # too small: slow nodes end segments; too big: readers stall this long
    fill_after_ms: int = 200  # too small: slow writers lose their positions; too big: a dead writer stalls readers
    quiet_ms: int = 500  # too small: idle readers load the metadata; too big: a reader learns of a lost member late
    read_limit: int = 64  # frames per request
    seal_looks: int = 1  # how often to look whether whoever sealed has finished, before finishing it oneself
    push: bool = True  # wait at the node for new entries instead of asking again
    replica: int = 0  # which member to begin with where any may be read (D3): readers that differ share the load


class Reader:
    def __init__(self, config: ReaderConfig, view: Projection | None = None) -> None:
        self.config = config
        self.view = view
        self.state = "done"
        self.request: SubscribeRequested | None = None
        self.requester = "application"
        self.next = 1
        self.batch = 1  # where the batch that was read last begins
        self.segment = -1
        self.replica = config.replica  # which member of a repaired group is read
        self.blocked = 0  # how often in a row an open broadcast segment had entries that were not released
        self.confirmed = False  # the projection was read after the last entry or pause: a stale node may be believed

    @property
    def phase(self) -> str:
        return self.state

    def on_start(self) -> Effects:
        return []

    def on_choice(self, key: str, option: object) -> Effects:
        raise AssertionError(f"a reader asks for no choice, yet {key} was made")

    def on_message(self, source: Address, message: Message) -> Effects:
        match message:
            case SubscribeRequested():
                self.request, self.requester, self.next = message, source.role, message.start
                self.segment = -1
                return self._advance()
            case ViewChanged(_, projection):
                return self._on_view(projection)
            case ReadFrames(stream, glsn, frames) if glsn == self.next and self.state in ("reading", "idle"):
                return self._on_frames(frames) if self._asked(stream) else []
            case ReadFrames(stream, glsn, frames) if (
                glsn == self.next and self.state == "viewing" and self._is_placed()
            ):
                return self._on_frames(frames) if self._asked(stream) else []  # D10
            case Unwritten(stream, glsn) if glsn == self.next and self.state in ("reading", "idle"):
                return self._on_unwritten(message) if self._asked(stream) else []
            case Rejected(stream, glsn, reason) if self.state == "reading" and glsn in (0, self.next):
                return self._on_rejected(reason) if self._asked(stream) else []
            case Peeked(_, segment) if self.state == "peeking" and segment == self.segment:
                return self._on_peeked(message)
            case NotGranted(_, segment) if self.state == "peeking" and segment == self.segment:
                return self._end((self._current().owner.process,))
            case FillDone(_, glsn) if self.state == "filling" and glsn == self.next:
                return self._on_fill_done(message)
        return []  # a late answer

    def on_timer(self, key: str) -> Effects:
        match self.state:
            case "hole":
                return self._fill()
            case "peeking":
                return self._end((self._current().owner.process,))
            case "reading" if self._current().is_open and self._current().policy is Policy.CHAIN:
                return self._end((self._member(self._current()).node,))
            case "reading":
                self._turn()
        return self._refresh()

    # -------------------------------------------------------------------------------------------------- where to read

    def _current(self) -> Segment:
        assert self.view is not None
        segment = self.view.segment(self.segment)
        assert segment is not None
        return segment

    def _is_placed(self) -> bool:
        """It knows a segment to read from."""
        return self.view is not None and self.view.segment(self.segment) is not None

    def _member(self, segment: Segment) -> Member:
        group = segment.serving(segment.group_of(self.next))
        if segment.repaired or (segment.is_open and segment.policy is Policy.BROADCAST):  # D3
            return group[self.replica % len(group)]
        return group[-1]  # D2

    def _turn(self) -> None:
        """Read another member from now on."""
        segment = self._current()
        self.replica = (self.replica + 1) % len(segment.serving(segment.group_of(self.next)))

    def _asked(self, stream: str) -> bool:
        return self._member(self._current()).stream == stream

    def _advance(self) -> Effects:
        view = self.view
        if view is None:
            return self._refresh()
        assert self.request is not None
        if self.request.until is not None and self.next > self.request.until:
            return self._done()
        if view.deleted:
            return self._refused()
        if self.next <= view.trim:  # D1
            return self._skip(view.trim + 1, "trimmed")
        gap = view.gap_at(self.next)
        if gap is not None:
            return self._skip(gap.end, "lost")
        segment = view.segment_of(self.next)
        if segment is None:
            return self._at_tail(push=False)
        followed: Effects = []
        if segment.index != self.segment:
            followed = (
                [Announce(FollowedSegment(self.config.log, segment.index, self.next))] if self.segment >= 0 else []
            )
            self.segment, self.replica = segment.index, self.config.replica
        return [*followed, *self._read(view, segment)]

    def _read(self, view: Projection, segment: Segment) -> Effects:
        self.state = "reading"
        member = self._member(segment)
        read = Read(target_of(view, segment, member), self.next, self.config.read_limit)
        return [Send(Address(member.node, "storage"), read), SetTimer("wait", self.config.suspect_after_ms)]

    def _skip(self, end: int, why: str) -> Effects:
        event = PositionsSkipped(self.config.log, self.next, end, why)
        self.next = end
        return [Announce(event), *self._advance()]

    def _done(self) -> Effects:
        assert self.request is not None
        self.state = "done"
        result = SubscriptionEnded(self.next)
        if self.requester == "application":
            return [CancelTimer("wait"), Complete(self.request.operation, result)]
        cut = self.request.until is not None and self.next > self.request.until + 1
        settled = self.batch - 1 if cut else self.next - 1
        return [CancelTimer("wait"), Send(Address(SELF, self.requester), ReadThrough(settled, self.next - 1))]

    def _refused(self) -> Effects:
        """The log was deleted. A sibling that asked finds out by itself, as soon as it looks."""
        assert self.request is not None
        if self.requester != "application":
            return self._done()
        self.state = "done"
        refusal = Complete(self.request.operation, RequestRefused("the log was deleted"))
        return [CancelTimer("wait"), refusal]

    # -------------------------------------------------------------------------------------------------------- answers

    def _on_frames(self, frames: tuple[Frame, ...]) -> Effects:
        effects: Effects = []
        self.confirmed, self.blocked = False, 0
        end, until = self._current().end, self.request.until if self.request is not None else None
        for frame in frames:
            if end is not None and frame.first >= end:  # D1: an end that this answer did not know
                break
            if until is not None and frame.first > until:  # D8
                break
            effects.append(Announce(EntriesRead(self.config.log, self.next, frame)))
            self.next, self.batch = frame.next, frame.first
        return [*effects, *self._advance()]

    def _on_unwritten(self, answer: Unwritten) -> Effects:
        segment, view = self._current(), self.view
        assert view is not None
        if not segment.is_open:  # below the end there is a value, but this member may not know of the end yet
            return self._fill()
        if answer.sealed and segment.policy is Policy.CHAIN:
            self.blocked += 1  # D9
            return self._end(()) if self.blocked > self.config.seal_looks else self._wait(push=False)
        if not answer.fresh and not self.confirmed:  # D6
            return [*self._listen(), *self._refresh()]
        if segment.policy is Policy.BROADCAST:
            waits = answer.sealed or answer.written > self.next
            return self._on_unreleased(segment) if waits else self._at_tail(push=True)
        if self.state == "idle" and answer.written <= self.next:
            return []
        self.state = "peeking"
        peek = Peek(self.config.log, segment)
        return [Send(Address(segment.owner.process, "sequencer"), peek), SetTimer("wait", self.config.suspect_after_ms)]

    def _on_unreleased(self, segment: Segment) -> Effects:
        """The member has more than was released to it, or is sealed: ask the others, at last end the segment (D7)."""
        self.blocked += 1
        if self.blocked > len(segment.groups[0]):
            self.blocked = 0
            return self._end(())
        self._turn()
        return self._wait(push=False)

    def _on_peeked(self, answer: Peeked) -> Effects:
        if not answer.fresh and not self.confirmed:
            return self._refresh()
        if self.next >= answer.next:  # D4
            return self._at_tail(push=True)
        self.state = "hole"
        return [SetTimer("wait", self.config.fill_after_ms)]

    def _on_rejected(self, reason: Reason) -> Effects:
        segment = self._current()
        match reason:
            case Reason.UNKNOWN if segment.is_open:  # nothing was ever written to it
                return self._on_unwritten(Unwritten("", self.next, segment.base, sealed=False, fresh=True))
            case Reason.UNKNOWN:
                return self._fill()
            case Reason.TRIMMED:
                return self._refresh()
            case Reason.CORRUPT | Reason.MISMATCH | Reason.GONE if segment.is_open and segment.policy is Policy.CHAIN:
                return self._end((self._member(segment).node,))
        self._turn()
        return self._wait(push=False)

    def _on_fill_done(self, done: FillDone) -> Effects:
        if done.frame is not None:
            return self._on_frames((done.frame,))
        if done.why is Reason.STALE:
            return self._refresh()
        if self._current().is_open and done.why is not Reason.TRIMMED:
            return self._end(())  # a member is silent, sealed, damaged or another: the segment cannot go on
        return self._wait(push=False)

    # -------------------------------------------------------------------------------------------- waiting, and others

    def _fill(self) -> Effects:
        assert self.view is not None
        self.state = "filling"
        return [CancelTimer("wait"), Send(Address(SELF, "filler"), Fill(self.view, self.segment, self.next))]

    def _at_tail(self, *, push: bool) -> Effects:
        assert self.request is not None
        return self._done() if self.request.to_tail else self._wait(push=push)

    def _wait(self, *, push: bool) -> Effects:
        self.state, self.confirmed = "idle", False
        return [*(self._listen() if push else []), SetTimer("wait", self.config.quiet_ms)]

    def _listen(self) -> Effects:
        """Let the member send what comes, as soon as it comes."""
        if not self.config.push or (self.request is not None and self.request.to_tail):
            return []
        segment, view = self._current(), self.view
        assert view is not None
        member = self._member(segment)
        subscribe = Subscribe(target_of(view, segment, member), self.next, self.config.read_limit)
        return [Send(Address(member.node, "storage"), subscribe)]

    def _refresh(self) -> Effects:
        self.state = "viewing"
        return [CancelTimer("wait"), Send(Address(SELF, "reconfigurer"), Refresh(self.config.log))]

    def _end(self, suspects: tuple[str, ...]) -> Effects:
        self.state = "ending"
        job = EndOpenSegment(self.config.log, self.segment, suspects)
        return [CancelTimer("wait"), Send(Address(SELF, "reconfigurer"), job)]

    def _on_view(self, projection: Projection | None) -> Effects:
        if projection is not None and (self.view is None or projection.epoch > self.view.epoch):
            self.view = projection
        if self.state not in ("viewing", "ending"):
            return []
        self.confirmed = True
        if self.view is None:
            return self._wait(push=False)  # no such log yet
        segment = self.view.segment(self.segment)
        blocked = self.state == "ending" and segment is not None and segment.is_open
        return self._wait(push=False) if blocked else self._advance()


class ReadThrough(Message, frozen=True):
    """Inside one process: everything up to ``reached`` has been read or filled; no batch is cut at ``settled``."""

    settled: int
    reached: int
