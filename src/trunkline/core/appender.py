"""The appender: appends batches to a chain log, and settles each of them.

States of one attempt
    viewing --projection--> asking --Granted--> writing(member 0) --Stored--> writing(1) ... --last Stored--> committed
    asking / writing --no answer, ...--> ending --segment ended--> settling (below the end) or asking (again)
    writing --SEALED--> patient --segment ended--> settling or asking;  --still open after some checks--> ending
    settling --own frame--> committed;  --another frame--> asking (again)

Rules
 A1  Members are written one at a time in chain order, the next only after ``Stored``. The batch is committed when the
     last one has it.
 A2  ``Written`` with another frame, from any member: the batch is never committed at this position. It takes a new one,
     under a new seq.
 A3  After a lost answer or a reconfiguration the old position is settled before the batch is sent anywhere else.
 A4  At or past the decided end: not committed. Below it, the value at the position decides.
 A5  Trimmed, deleted or declared lost: the outcome is unknown, never "not committed".
 A6  A grant serves only the append that requested it.
 A7  Unused positions of a grant are filled at once, also those of a batch that lost its first position.
 A8  At most ``in_flight_max`` grants are unsettled; later appends wait.
 A9  Without space on any node the position is settled first, and only then the append is refused: by filling it or, if
     the head has the entry, by ending the segment, once.
 A10 An appender that meets a seal, also while it settles a position, leaves the end to the process that sealed, for a
     while: that process knows which node to leave out. Then it ends the segment itself.
 A11 An append that lost positions to impatient readers reports it with the next request, and readers wait longer (Q5).
 A12 After each segment that was ended because of silence, ``suspect_after_ms`` doubles until something is committed, so
     that slow nodes do not end one segment after another. The wait after an impossible ending does not grow.
"""

from __future__ import annotations

import enum
from collections import deque

from msgspec import Struct

from trunkline.core.calls import AppendRequested
from trunkline.core.effects import (
    SELF,
    Address,
    Announce,
    CancelTimer,
    Complete,
    Effects,
    Event,
    Message,
    Send,
    SetTimer,
)
from trunkline.core.entries import Frame, FrameKind
from trunkline.core.events import Appended, AppendRefused, Committed, OutcomeUnknown
from trunkline.core.messages import (
    Granted,
    Next,
    NotGranted,
    Open,
    Opened,
    Reason,
    Rejected,
    Stored,
    Write,
    Written,
    descriptor_of,
    target_of,
)
from trunkline.core.projection import Group, Member, Policy, Projection, Segment
from trunkline.core.refusals import NO_SUCH_LOG, append_refused, closed, lost_condition, no_space
from trunkline.core.siblings import EndOpenSegment, Fill, FillDone, Refresh, ViewChanged
from trunkline.core.timing import DEFAULT_TIMING, Timing


class AppenderConfig(Struct, frozen=True):
    log: str
    writer: str  # unique to the process start
    timing: Timing = DEFAULT_TIMING
    in_flight_max: int = 64  # too small: low throughput; too big: a dying client leaves that many holes
    seal_checks: int = 4  # how often to wait for the process that sealed (A10)
    seal_check_ms: int = 100  # too small: clients race to end a segment; too big: they wait for a dead process


TIMER = "append:"
BEATEN_MAX = 16  # readers do not wait longer than for this
CALM_AFTER = 64  # appends; too small: a slow writer is beaten again and again; too big: its death is noticed late
DOUBTS_MAX = 3  # doublings of ``suspect_after_ms``; too small: slow nodes are replaced; too big: dead ones late


class AttemptState(enum.Enum):
    VIEWING = "viewing"
    ASKING = "asking"
    OPENING = "opening"
    WRITING = "writing"
    ENDING = "ending"
    PATIENT = "patient"
    SETTLING = "settling"


AWAIT_VIEW = (AttemptState.VIEWING, AttemptState.ENDING, AttemptState.PATIENT)


class Attempt:
    """One batch in progress. ``first``: the granted position that is not settled yet."""

    def __init__(self, request: AppendRequested, beaten: int) -> None:
        self.request = request
        self.beaten = beaten  # positions that were filled before its bytes, or those of earlier appends, arrived
        self.state = AttemptState.VIEWING
        self.seq = 0
        self.segment: Segment | None = None  # as of the request for a position
        self.full: tuple[str, ...] = ()  # nodes without space for it
        self.checks = 0  # how often it has waited for another process to end the segment
        self.giving_up = False  # no node has space: settle the position, then refuse the append
        self.first: int | None = None
        self.at = 0  # index of the member that is written
        self.timer = f"{TIMER}{request.operation}"

    def frame(self, writer: str) -> Frame:
        assert self.first is not None
        return Frame(self.first, self.request.count, FrameKind.DATA, writer, self.seq, self.request.checksum)


class Appender:
    def __init__(self, config: AppenderConfig, view: Projection | None = None) -> None:
        self.config = config
        self.view = view
        self.seq = 0
        self.attempts: dict[int, Attempt] = {}  # by operation
        self.operations: dict[int, int] = {}  # seq -> operation, of attempts that requested a position
        self.queue: deque[AppendRequested] = deque()
        self.beaten = 0  # of recent appends: the next ones begin with it
        self.calm = 0  # appends since then without a lost position
        self.doubts = 0  # suspicions since the last commit ...
        self.doubted = -1  # ... and the segment of the last one

    @property
    def phase(self) -> str:
        return next(iter(self.attempts.values())).state.value if self.attempts else "idle"

    def on_start(self) -> Effects:
        return []

    def on_choice(self, key: str, option: object) -> Effects:
        raise AssertionError(f"an appender makes no choice, but {key} was chosen")

    def on_message(self, source: Address, message: Message) -> Effects:
        match message:
            case AppendRequested():
                return self._on_append(message)
            case Granted(writer=writer, seq=seq):
                asking = self._asking(writer, seq)
                return self._on_granted(asking, message) if asking is not None else []
            case NotGranted(writer=writer, seq=seq):
                asking = self._asking(writer, seq)
                return self._on_not_granted(asking, message) if asking is not None else []
            case Stored(stream, frame):
                writing = self._writing(stream, frame)
                return self._on_stored(writing) if writing is not None else []
            case Opened(stream):
                return [e for a in self._opening(stream) for e in self._write(a)]
            case Written(stream, offered, _):
                writing = self._writing(stream, offered)
                return self._on_taken(writing) if writing is not None else []
            case Rejected(stream, glsn, reason):
                waiting = self._opening(stream) if glsn == 0 else self._writing_at(stream, glsn)
                return [e for a in waiting for e in self._on_rejected(a, reason)]
            case ViewChanged(_, projection):
                return self._on_view(projection)
            case FillDone():
                return self._on_fill_done(message)
        raise AssertionError(f"an appender does not accept {message}")

    def on_timer(self, key: str) -> Effects:
        return self.on_silence(key, self.awaits(key))

    def awaits(self, key: str) -> tuple[str, ...]:
        """The node whose answer the timer waits for, if any."""
        attempt = self.attempts[int(key.removeprefix(TIMER))]
        if attempt.state is AttemptState.ASKING:
            return (self._segment(attempt).owner.process,)
        return (self._member(attempt).node,) if attempt.state in (AttemptState.WRITING, AttemptState.OPENING) else ()

    def on_silence(self, key: str, silent: tuple[str, ...]) -> Effects:
        attempt = self.attempts[int(key.removeprefix(TIMER))]
        if not silent:
            return self._refresh(attempt)
        if self.doubted != self._segment(attempt).index:  # A12: appends that time out together are one suspicion
            self.doubts, self.doubted = min(self.doubts + 1, DOUBTS_MAX), self._segment(attempt).index
        return self._end(attempt, silent)

    def ignores(self, source: Address, message: Message) -> bool:
        """A seq and a granted position are used once: an answer to an attempt that moved on never counts again."""
        match message:
            case Granted(writer=writer, seq=seq) | NotGranted(writer=writer, seq=seq):
                return self._asking(writer, seq) is None
            case Stored(stream, frame):
                return self._writing(stream, frame) is None
            case Written(stream, offered, _):
                return self._writing(stream, offered) is None
        return False

    def operation_of(self, seq: int) -> int | None:
        """The append in progress as ``seq``; the host finds the body of a frame by it."""
        return self.operations.get(seq)

    # ------------------------------------------------------------------------------------------------ finding attempts

    def _numbered(self, writer: str, seq: int) -> Attempt | None:
        """A restarted process counts from one again, so the writer is compared, too (A6)."""
        operation = self.operations.get(seq) if writer == self.config.writer else None
        return self.attempts[operation] if operation is not None else None

    def _asking(self, writer: str, seq: int) -> Attempt | None:
        attempt = self._numbered(writer, seq)
        return attempt if attempt is not None and attempt.state is AttemptState.ASKING else None

    def _writing(self, stream: str, frame: Frame) -> Attempt | None:
        attempt = self._numbered(frame.writer, frame.seq)
        if attempt is None or attempt.state is not AttemptState.WRITING or attempt.first != frame.first:
            return None
        return attempt if self._member(attempt).stream == stream else None

    def _writing_at(self, stream: str, first: int) -> list[Attempt]:
        return [
            a
            for a in self.attempts.values()
            if a.state is AttemptState.WRITING and a.first == first and self._member(a).stream == stream
        ]

    def _opening(self, stream: str) -> list[Attempt]:
        opening = [a for a in self.attempts.values() if a.state is AttemptState.OPENING]
        return [a for a in opening if self._member(a).stream == stream]

    def _segment(self, attempt: Attempt) -> Segment:
        assert attempt.segment is not None
        return attempt.segment

    def _group(self, attempt: Attempt) -> Group:
        assert attempt.first is not None
        return self._segment(attempt).group_of(attempt.first)

    def _member(self, attempt: Attempt) -> Member:
        return self._group(attempt)[attempt.at]

    # --------------------------------------------------------------------------------------------------- the good path

    def _on_append(self, request: AppendRequested) -> Effects:
        if len(self.attempts) >= self.config.in_flight_max:  # A8
            self.queue.append(request)
            return []
        attempt = Attempt(request, self.beaten)
        self.attempts[request.operation] = attempt
        if self.view is None:
            return [Send(Address(SELF, "reconfigurer"), Refresh(self.config.log))]
        return self._ask(attempt)

    def _ask(self, attempt: Attempt, *, just_read: bool = False) -> Effects:
        assert self.view is not None
        last = self.view.last
        if not last.is_open and not just_read:
            return self._refresh(attempt)  # it may have been reopened since
        if not last.is_open:
            return self._complete(attempt, closed(self.view))
        if last.policy is not Policy.CHAIN:
            return self._complete(attempt, AppendRefused("the log has one writer; append through it"))
        self.operations.pop(attempt.seq, None)
        self.seq += 1
        self.operations[self.seq] = attempt.request.operation
        attempt.state, attempt.seq, attempt.first, attempt.segment = AttemptState.ASKING, self.seq, None, last
        attempt.checks = 0
        request = attempt.request
        me, seq, beaten = self.config.writer, attempt.seq, attempt.beaten
        ask = Next(self.config.log, last, me, seq, request.count, request.expect, beaten)
        return [Send(Address(last.owner.process, "sequencer"), ask), self._suspect_later(attempt)]

    def _on_granted(self, attempt: Attempt, granted: Granted) -> Effects:
        assert self.view is not None
        attempt.first, attempt.at = granted.first, 0
        return [*self._fill_all(granted.skipped, granted.first, attempt), *self._write(attempt)]  # A7

    def _write(self, attempt: Attempt) -> Effects:
        assert self.view is not None
        attempt.state = AttemptState.WRITING
        member = self._member(attempt)
        target = target_of(self.view, self._segment(attempt), member)
        write = Write(target, attempt.frame(self.config.writer))
        return [Send(Address(member.node, "storage"), write), self._suspect_later(attempt)]

    def _on_stored(self, attempt: Attempt) -> Effects:
        attempt.at += 1  # A1
        if attempt.at < len(self._group(attempt)):
            return self._write(attempt)
        return self._committed(attempt)

    def _committed(self, attempt: Attempt) -> Effects:
        assert attempt.first is not None
        self.doubts, self.doubted = 0, -1
        event = Committed(self.config.log, self._segment(attempt).index, None, attempt.frame(self.config.writer))
        self._grow_calm()
        return [Announce(event), *self._complete(attempt, Appended(attempt.first))]

    def _grow_calm(self) -> None:
        """After some appends without a lost position, request less patience: a link may have become faster (A11)."""
        if self.beaten:
            self.calm += 1
            if self.calm == CALM_AFTER:
                self.beaten, self.calm = self.beaten - 1, 0

    def _complete(self, attempt: Attempt, result: Event) -> Effects:
        del self.attempts[attempt.request.operation]
        self.operations.pop(attempt.seq, None)
        effects: Effects = [CancelTimer(attempt.timer), Complete(attempt.request.operation, result)]
        if self.queue:
            effects += self._on_append(self.queue.popleft())
        return effects

    def _suspect_later(self, attempt: Attempt) -> SetTimer:
        return SetTimer(attempt.timer, self.config.timing.suspect_after_ms << self.doubts)

    def _try_later(self, attempt: Attempt) -> SetTimer:
        return SetTimer(attempt.timer, self.config.timing.suspect_after_ms)

    # ---------------------------------------------------------------------------------------------------- the bad paths

    def _on_not_granted(self, attempt: Attempt, answer: NotGranted) -> Effects:
        if answer.reason is Reason.GAP:
            return self._complete(attempt, lost_condition(answer.next))
        if answer.reason is Reason.TOO_LARGE:
            why = "the batch is larger than a stripe unit; append it in parts"
            return self._complete(attempt, AppendRefused(why, Reason.TOO_LARGE))
        return self._end(attempt, (self._segment(attempt).owner.process,))

    def _on_taken(self, attempt: Attempt) -> Effects:
        """Another frame holds (part of) the position (A2)."""
        attempt.beaten, self.calm = min(attempt.beaten + 1, BEATEN_MAX), 0  # A11
        self.beaten = max(self.beaten, attempt.beaten)
        return [*self._fill_unused(attempt), *self._again(attempt)]

    def _again(self, attempt: Attempt, *, just_read: bool = False) -> Effects:
        """The position is settled, and holds another value."""
        attempt.first, attempt.segment = None, None
        if attempt.giving_up:
            return self._complete(attempt, no_space(attempt.full))
        if attempt.request.expect is not None:
            return self._complete(attempt, lost_condition())
        return self._ask(attempt, just_read=just_read)

    def _on_rejected(self, attempt: Attempt, reason: Reason) -> Effects:
        assert self.view is not None
        member = self._member(attempt)
        if reason is Reason.UNKNOWN:
            return self._open(attempt, self.view)
        if reason is Reason.TRIMMED:
            return self._refresh(attempt)
        if reason is Reason.NO_SPACE:
            return self._on_full(attempt, member.node)
        if reason is Reason.SEALED:
            return self._leave_to_others(attempt)
        return self._end(attempt, (member.node,))

    def _open(self, attempt: Attempt, view: Projection) -> Effects:
        """The next members do not have their streams either: all create them at the same time."""
        attempt.state = AttemptState.OPENING
        segment, rest = self._segment(attempt), self._group(attempt)[attempt.at :]
        asks = [(member.node, Open(descriptor_of(view, segment, member))) for member in rest]
        return [*(Send(Address(node, "storage"), ask) for node, ask in asks), self._suspect_later(attempt)]

    def _on_full(self, attempt: Attempt, node: str) -> Effects:
        attempt.full = tuple(dict.fromkeys((*attempt.full, node)))
        return self._end(attempt, attempt.full, only_to_spares=True)

    def _end(self, attempt: Attempt, suspects: tuple[str, ...], *, only_to_spares: bool = False) -> Effects:
        attempt.state = AttemptState.ENDING
        index = self._segment(attempt).index
        job = EndOpenSegment(self.config.log, index, suspects, only_to_spares=only_to_spares)
        return [CancelTimer(attempt.timer), Send(Address(SELF, "reconfigurer"), job)]

    def _refresh(self, attempt: Attempt) -> Effects:
        attempt.state = AttemptState.VIEWING
        return [CancelTimer(attempt.timer), Send(Address(SELF, "reconfigurer"), Refresh(self.config.log))]

    # --------------------------------------------------------------------------------------------------------- settling

    def _on_view(self, projection: Projection | None) -> Effects:
        if projection is not None and (self.view is None or projection.epoch > self.view.epoch):
            self.view = projection
        waiting = [a for a in self.attempts.values() if a.state in AWAIT_VIEW]
        if self.view is None:
            return [e for a in waiting for e in self._complete(a, append_refused(NO_SUCH_LOG))]
        return [effect for attempt in waiting for effect in self._reconsider(attempt, self.view)]

    def _reconsider(self, attempt: Attempt, view: Projection) -> Effects:
        asked = attempt.segment
        if asked is None:
            return self._ask(attempt, just_read=True)
        segment = view.segment(asked.index)
        trimmed = attempt.first is not None and attempt.first <= view.trim
        if segment is not None and segment.is_open and not trimmed:
            return self._still_open(attempt)
        attempt.giving_up = any(member.node in attempt.full for member in view.last.members())
        if attempt.first is None:
            return self._ask(attempt, just_read=True)
        if trimmed or view.gap_at(attempt.first) is not None:  # A5
            return self._complete(attempt, OutcomeUnknown(attempt.first))
        if segment is None or (segment.end is not None and attempt.first >= segment.end):  # A4, also if forgotten
            return self._again(attempt, just_read=True)
        if view.deleted:  # A5
            return self._complete(attempt, OutcomeUnknown(attempt.first))
        attempt.segment = segment
        return self._settle(attempt)

    def _still_open(self, attempt: Attempt) -> Effects:
        """The segment cannot be ended now, or need not be."""
        if attempt.first is None:
            viewing = attempt.state is AttemptState.VIEWING
            return self._ask(attempt, just_read=True) if viewing else [self._try_later(attempt)]
        if attempt.full and not (attempt.giving_up and attempt.at):  # A9
            attempt.giving_up = True
            return self._end(attempt, attempt.full) if attempt.at else self._settle(attempt)
        if attempt.state is AttemptState.PATIENT:
            return []
        return self._leave_to_others(attempt) if attempt.state is AttemptState.VIEWING else [self._try_later(attempt)]

    def _leave_to_others(self, attempt: Attempt) -> Effects:
        """The process that sealed the segment may still end it, and knows which node to leave out (A10)."""
        if attempt.checks == self.config.seal_checks:
            return self._end(attempt, ())
        attempt.checks += 1
        attempt.state = AttemptState.PATIENT
        return [SetTimer(attempt.timer, self.config.seal_check_ms)]

    def _on_fill_done(self, done: FillDone) -> Effects:
        for attempt in list(self.attempts.values()):
            if attempt.state is AttemptState.SETTLING and attempt.first == done.glsn:
                return self._on_settled(attempt, done)
        return []  # an unused position was filled: no attempt waits for it

    def _on_settled(self, attempt: Attempt, done: FillDone) -> Effects:
        if not done.frames:
            if done.why is Reason.STALE:
                return self._refresh(attempt)
            if done.why is Reason.NO_SPACE:  # the head has an entry there: it had space after all
                attempt.at, attempt.giving_up = max(attempt.at, 1), False
                return self._on_full(attempt, done.node)
            if done.why is Reason.SEALED and self._segment(attempt).is_open:
                return self._leave_to_others(attempt)
            return [self._try_later(attempt)]  # a member is unreachable: retry later
        if done.frames[0] == attempt.frame(self.config.writer):
            return self._committed(attempt)
        return [*self._fill_unused(attempt), *self._again(attempt)]

    def _settle(self, attempt: Attempt) -> Effects:
        assert self.view is not None and attempt.first is not None
        attempt.state = AttemptState.SETTLING
        fill = Fill(self.view, self._segment(attempt).index, attempt.first, attempt.first + 1)
        return [Send(Address(SELF, "filler"), fill)]

    def _fill_unused(self, attempt: Attempt) -> Effects:
        """The first position of a batch is lost, so the others are unused (A7)."""
        assert attempt.first is not None
        first, end = attempt.first, attempt.first + attempt.request.count
        below = self._segment(attempt).end
        return self._fill_all(first, end if below is None else min(end, below), attempt) if end > first + 1 else []

    def _fill_all(self, first: int, end: int, attempt: Attempt) -> Effects:
        assert self.view is not None
        index = self._segment(attempt).index
        if first >= end or self.view.segment(index) is None:
            return []  # trimmed and forgotten: nothing is left to fill
        return [Send(Address(SELF, "filler"), Fill(self.view, index, first, end, whole=True))]
