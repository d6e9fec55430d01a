"""The sequencer: assigns the positions of an open chain segment.

States (per log)
    (none) --first Next or Peek of a segment that names this process as owner--> serving(segment, next)
    serving(s, n) --a later segment that names this process--> serving(s', base of s')

Rules
 Q1  The owner is one start of one process. A restarted process never serves a segment that it did not open.
 Q2  A segment is served from its base, once: it is never started again, nor any older one.
 Q3  A grant with several groups never crosses a stripe unit; it reports what it skips, so that the client fills it at
     once.
 Q4  Nothing is persisted: losing the sequencer ends the segment.
 Q5  A writer whose positions were filled before its bytes arrived reports it. Readers that ask about such a position
     learn it, and wait longer before they fill: a slow writer succeeds in the end.
"""

from __future__ import annotations

from msgspec import Struct

from trunkline.core.effects import Address, Announce, Effects, Message, Send
from trunkline.core.events import PositionsGranted
from trunkline.core.messages import Granted, Next, NotGranted, Peek, Peeked, Reason
from trunkline.core.projection import Owner, Segment

SLOW_MAX = 64  # remembered grants of slow appends; too small: readers do not wait for a slow writer among many


class SlowGrant(Struct, frozen=True):
    """Positions of an append whose earlier ones were filled by readers."""

    first: int
    end: int
    beaten: int


class Serving:
    def __init__(self, segment: int, next_position: int) -> None:
        self.segment = segment
        self.next = next_position
        self.slow: tuple[SlowGrant, ...] = ()  # oldest first

    def patience(self, glsn: int) -> tuple[int, int]:
        """How often the append at ``glsn`` was beaten, and up to which position this holds (Q5)."""
        grant = next((grant for grant in self.slow if grant.end > glsn), None)
        if grant is None:
            return 0, self.next
        return (grant.beaten, grant.end) if grant.first <= glsn else (0, grant.first)


class Sequencer:
    def __init__(self, me: Owner) -> None:
        self.me = me
        self.serving: dict[str, Serving] = {}

    @property
    def phase(self) -> str:
        return "serving" if self.serving else "idle"

    def on_start(self) -> Effects:
        return []

    def on_timer(self, key: str) -> Effects:
        raise AssertionError(f"a sequencer sets no timer, but {key} fired")

    def on_choice(self, key: str, option: object) -> Effects:
        raise AssertionError(f"a sequencer makes no choice, but {key} was chosen")

    def on_message(self, source: Address, message: Message) -> Effects:
        match message:
            case Next():
                return self._on_next(source, message)
            case Peek():
                return self._on_peek(source, message)
        raise AssertionError(f"a sequencer does not accept {message}")

    def _refusal(self, log: str, segment: Segment) -> Reason | None:
        if segment.owner != self.me:  # Q1
            return Reason.NOT_OWNER
        serving = self.serving.get(log)
        if serving is not None and serving.segment > segment.index:  # Q2
            return Reason.SEALED
        if serving is None or serving.segment < segment.index:
            self.serving[log] = Serving(segment.index, segment.base)
        return None

    def _on_next(self, source: Address, message: Next) -> Effects:
        log, segment = message.log, message.segment
        reason = self._refusal(log, segment)
        if reason is not None:
            return [Send(source, NotGranted(log, segment.index, message.writer, message.seq, reason))]
        if len(segment.groups) > 1 and message.count > segment.stripe_unit:
            refusal = NotGranted(log, segment.index, message.writer, message.seq, Reason.TOO_LARGE)
            return [Send(source, refusal)]
        serving = self.serving[log]
        skipped = serving.next
        first = unit_start(segment, skipped, message.count)
        if message.expect is not None and message.expect != first:
            refusal = NotGranted(log, segment.index, message.writer, message.seq, Reason.GAP, first)
            return [Send(source, refusal)]
        serving.next = first + message.count
        if message.beaten:
            serving.slow = (*serving.slow[1 - SLOW_MAX :], SlowGrant(first, serving.next, message.beaten))
        granted = Granted(log, segment.index, message.writer, message.seq, first, skipped)
        event = PositionsGranted(log, segment.index, self.me, first, message.count)
        return [Announce(event), Send(source, granted)]

    def _on_peek(self, source: Address, message: Peek) -> Effects:
        reason = self._refusal(message.log, message.segment)
        if reason is not None:
            return [Send(source, NotGranted(message.log, message.segment.index, "", 0, reason))]
        serving = self.serving[message.log]
        beaten, alike = serving.patience(message.glsn)
        return [Send(source, Peeked(message.log, message.segment.index, serving.next, alike, beaten))]


def unit_start(segment: Segment, position: int, count: int) -> int:
    """The first position at or after ``position`` from which ``count`` positions stay in one group (Q3)."""
    if len(segment.groups) == 1:
        return position
    into_unit = (position - segment.base) % segment.stripe_unit
    if into_unit + count <= segment.stripe_unit:
        return position
    return position - into_unit + segment.stripe_unit
