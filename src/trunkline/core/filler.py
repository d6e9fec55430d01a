"""The filler: settles positions, from the head of their chain down.

    open segment     the positions were granted and their writer is silent: JUNK, unless the head has a value
    ended segment    the positions lie below the end: the value of the head, or JUNK if the head has none

A writer that dies leaves thousands of positions, so a request covers a run. The head fills it up to the first value
that it has, and that part is settled together; a value at the very beginning is settled alone.

States of one filling
    writing(member i) --RunFilled / Stored / Written of the head--> writing(i + 1) ... --> done
    writing(i) --the member lacks the stream or its end--> preparing(i) --Opened / Finalized--> writing(i)
    In a repaired segment nothing is written: members are read, one after another, until one has the value.

Rules
 F1  The head decides. ``Written`` there means: carry that value on, unchanged.
 F2  A different value further down means that this projection is stale: nothing is returned.
 F3  A value is settled only when every member of the group has it.
 F4  Nothing is written at or past the end, and nothing passes a seal before the member knows the end.
 F5  In a repaired segment no member is offered JUNK.
 F6  A run stays in one group: it ends with its stripe unit.
"""

from __future__ import annotations

from trunkline.core.effects import SELF, Address, Announce, CancelTimer, Effects, Message, Send, SetTimer
from trunkline.core.entries import Frame, FrameKind, junk
from trunkline.core.events import HoleFilled, ValueCarried
from trunkline.core.messages import (
    FillRun,
    Finalize,
    Finalized,
    Open,
    Opened,
    Read,
    ReadFrames,
    Reason,
    Rejected,
    RunFilled,
    Stored,
    Unwritten,
    Write,
    Written,
    descriptor_of,
    target_of,
)
from trunkline.core.projection import Member, Projection, Segment
from trunkline.core.siblings import Fill, FillDone
from trunkline.core.timing import DEFAULT_TIMING, Timing

RUN_MAX = 4096  # positions in a run; too big: a node is busy for long; too small: more round trips


class Filling:
    def __init__(self, projection: Projection, segment: Segment, glsn: int, end: int) -> None:
        self.projection = projection
        self.segment = segment
        self.glsn = glsn
        self.end = min(end, glsn + RUN_MAX, _unit_end(segment, glsn))  # F6; the head may make it shorter
        self.wanted = end  # the highest end that an insisting requester wants
        self.group = segment.serving(segment.group_of(glsn))
        self.at = 0  # index of the member that is asked
        self.preparing = False
        self.knows_end = False  # the member that is asked received the end
        self.frame: Frame | None = None  # the value, once the head has decided
        self.requesters: list[str] = []
        self.insisting: list[str] = []  # requesters that want the whole range

    @property
    def key(self) -> str:
        return f"{self.segment.index}.{self.glsn}"

    @property
    def member(self) -> Member:
        return self.group[self.at]

    @property
    def is_run(self) -> bool:
        """Whether it covers several positions that may all be JUNK."""
        return self.end > self.glsn + 1 and not self.segment.repaired

    def offer(self) -> Frame:
        return self.frame if self.frame is not None else junk(self.glsn)


class Filler:
    def __init__(self, timing: Timing = DEFAULT_TIMING) -> None:
        self.suspect_after_ms = timing.suspect_after_ms
        self.fillings: dict[str, Filling] = {}

    @property
    def phase(self) -> str:
        if not self.fillings:
            return "idle"
        first = next(iter(self.fillings.values()))
        return "preparing" if first.preparing else "writing"

    def on_start(self) -> Effects:
        return []

    def on_choice(self, key: str, option: object) -> Effects:
        raise AssertionError(f"a filler makes no choice, but {key} was chosen")

    def on_timer(self, key: str) -> Effects:
        return self._refused(self.fillings[key], Reason.SILENT)

    def on_message(self, source: Address, message: Message) -> Effects:
        match message:
            case Fill():
                return self._on_fill(source.role, message)
            case Stored(stream, frame):
                return self._on_value(stream, frame, frame)
            case Written(stream, offered, existing):
                return self._on_value(stream, offered, existing)
            case RunFilled(stream, first, end, reached):
                return [e for f in self._running(stream, first, end) for e in self._on_run(f, reached)]
            case ReadFrames(stream, glsn, frames):
                return [e for f in self._reading(stream, glsn) for e in self._done(f, frames[:1], None)]
            case Unwritten(stream, glsn):
                return [e for f in self._reading(stream, glsn) for e in self._on_unwritten(f)]
            case Opened(stream) | Finalized(stream):
                return [effect for f in self._awaiting(stream) if f.preparing for effect in self._write(f)]
            case Rejected(stream, glsn, reason):
                return self._on_rejected(stream, glsn, reason)
        raise AssertionError(f"a filler does not accept {message}")

    def _on_fill(self, role: str, message: Fill) -> Effects:
        segment = message.projection.segment(message.segment)
        assert segment is not None
        filling = Filling(message.projection, segment, message.glsn, message.end)
        known = self.fillings.setdefault(filling.key, filling)
        if role not in known.requesters:
            known.requesters.append(role)
        if message.whole and role not in known.insisting:
            known.insisting.append(role)
            known.wanted = max(known.wanted, message.end)
        return self._write(filling) if known is filling else []

    def _awaiting(self, stream: str) -> list[Filling]:
        return [filling for filling in self.fillings.values() if filling.member.stream == stream]

    def _write(self, filling: Filling) -> Effects:
        filling.preparing = False
        target = target_of(filling.projection, filling.segment, filling.member)
        if filling.segment.repaired:  # F5
            return self._ask(filling, Read(target, filling.glsn, 1))
        if filling.is_run:
            return self._ask(filling, FillRun(target, filling.glsn, filling.end, repair=not filling.segment.is_open))
        write = Write(target, filling.offer(), repair=not filling.segment.is_open)
        return self._ask(filling, write)

    def _ask(self, filling: Filling, message: Message) -> Effects:
        ask = Send(Address(filling.member.node, "storage"), message)
        return [ask, SetTimer(filling.key, self.suspect_after_ms)]

    def _on_value(self, stream: str, offered: Frame, existing: Frame) -> Effects:
        for filling in self._awaiting(stream):
            if not filling.preparing and not filling.is_run and filling.offer() == offered:
                return self._on_member_value(filling, existing)
        return []

    def _running(self, stream: str, first: int, end: int) -> list[Filling]:
        asked = [f for f in self._awaiting(stream) if f.is_run and not f.preparing]
        return [f for f in asked if (f.glsn, f.end) == (first, end)]

    def _on_run(self, filling: Filling, reached: int) -> Effects:
        following: Effects = []
        if filling.at == 0:  # F1
            goes_on = filling.end == reached < filling.wanted
            filling.end = max(reached, filling.glsn + 1)
            if reached == filling.glsn:
                return self._write(filling)  # the head has a value: carry it on alone
            filling.frame = junk(filling.glsn)
            following = self._begin_next(filling) if goes_on else []
        elif reached < filling.end:  # F2
            return self._done(filling, (), Reason.STALE)
        return [*self._next_member(filling), *following]

    def _begin_next(self, filling: Filling) -> Effects:
        """The head fills the next run while the other members fill this one."""
        following = Filling(filling.projection, filling.segment, filling.end, filling.wanted)
        if following.key in self.fillings:
            return []
        self.fillings[following.key] = following
        return self._write(following)

    def _reading(self, stream: str, glsn: int) -> list[Filling]:
        return [f for f in self._awaiting(stream) if f.segment.repaired and not f.preparing and f.glsn == glsn]

    def _on_unwritten(self, filling: Filling) -> Effects:
        """A member without the end holds values back; one that knows the end and lacks the value is damaged."""
        return self._refused(filling, Reason.CORRUPT if filling.knows_end else Reason.END_UNKNOWN)

    def _on_member_value(self, filling: Filling, value: Frame) -> Effects:
        if filling.frame is None:  # F1: the first member that can answer is the head
            filling.frame = value
        elif value != filling.frame:  # F2
            return self._done(filling, (), Reason.STALE)
        return self._next_member(filling)

    def _next_member(self, filling: Filling) -> Effects:
        if filling.at + 1 == len(filling.group):  # F3
            return self._done(filling, _settled(filling), None)
        filling.at += 1
        return self._write(filling)

    def _on_rejected(self, stream: str, glsn: int, reason: Reason) -> Effects:
        for filling in self._awaiting(stream):
            if glsn in (filling.glsn, filling.offer().first, 0):
                return self._refused(filling, reason)
        return []

    def _refused(self, filling: Filling, reason: Reason) -> Effects:
        projection, segment, member = filling.projection, filling.segment, filling.member
        if reason is Reason.UNKNOWN and segment.is_open:
            filling.preparing = True
            return self._ask(filling, Open(descriptor_of(projection, segment, member)))
        if reason in (Reason.UNKNOWN, Reason.END_UNKNOWN) and segment.end is not None:  # F4
            filling.preparing, filling.knows_end = True, True
            return self._ask(filling, Finalize(descriptor_of(projection, segment, member), segment.end))
        if segment.repaired and reason in (Reason.SILENT, Reason.CORRUPT) and filling.at + 1 < len(filling.group):
            filling.at, filling.knows_end = filling.at + 1, False  # every member of a repaired segment has every value
            return self._write(filling)
        return self._done(filling, (), reason)

    def _done(self, filling: Filling, frames: tuple[Frame, ...], why: Reason | None) -> Effects:
        del self.fillings[filling.key]
        effects: Effects = [CancelTimer(filling.key)]
        if not filling.segment.repaired:
            log, index = filling.projection.log, filling.segment.index
            effects += [
                Announce((HoleFilled if frame.kind is FrameKind.JUNK else ValueCarried)(log, index, frame))
                for frame in frames
            ]
        answer = FillDone(filling.segment.index, filling.glsn, frames, why, "" if frames else filling.member.node)
        effects += [Send(Address(SELF, role), answer) for role in filling.requesters]
        if frames and frames[-1].next < filling.wanted:
            rest = Fill(filling.projection, filling.segment.index, frames[-1].next, filling.wanted, whole=True)
            effects += [effect for role in filling.insisting for effect in self._on_fill(role, rest)]
        return effects


def _settled(filling: Filling) -> tuple[Frame, ...]:
    assert filling.frame is not None
    return tuple(map(junk, range(filling.glsn, filling.end))) if filling.is_run else (filling.frame,)


def _unit_end(segment: Segment, glsn: int) -> int:
    """The end of the stripe unit of a position."""
    if len(segment.groups) == 1:
        return glsn + RUN_MAX
    return glsn + segment.stripe_unit - (glsn - segment.base) % segment.stripe_unit
