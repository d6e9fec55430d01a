"""An appender, driven by hand: the log that it appends to, and the messages that it receives."""

from __future__ import annotations

from core.driver import (
    APPLICATION,
    data,
    messages,
    results,
)
from trunkline.check.scenarios.cluster import CHAIN3, LOG, chain_log
from trunkline.core.appender import Appender, AppenderConfig
from trunkline.core.calls import AppendRequested
from trunkline.core.effects import Effects, Message
from trunkline.core.entries import Frame
from trunkline.core.events import Appended
from trunkline.core.messages import (
    Granted,
    Next,
    Stored,
)
from trunkline.core.projection import (
    EndSegment,
    Opening,
    Owner,
    Projection,
    Seat,
    apply,
)
from trunkline.core.siblings import EndOpenSegment

VIEW = chain_log(CHAIN3, "a b c", sequencer="a")
HEAD, MIDDLE, LAST = (member.stream for member in VIEW.last.members())
ONE = AppendRequested(1, LOG, 1, 7)


def ended(end: int, survivors: str = "a b c", view: Projection = VIEW) -> Projection:
    """The log after its first segment ended and another began on d."""
    kept = tuple(member for member in view.last.members() if member.node in survivors)
    following = Opening(((Seat("d", 1),),), Owner("d", 1))
    return apply(view, EndSegment(0, end, (kept,), following))


class Client:
    def __init__(self, view: Projection | None = VIEW, in_flight_max: int = 64, seal_checks: int = 0) -> None:
        self.role = Appender(AppenderConfig(LOG, "w", in_flight_max=in_flight_max, seal_checks=seal_checks), view)

    def deliver(self, message: Message) -> Effects:
        return self.role.on_message(APPLICATION, message)

    def begin(self, request: AppendRequested = ONE, first: int = 1, *, stored: int = 0) -> Effects:
        """An append that was granted ``first`` and is stored on so many members of the chain."""
        self.deliver(request)
        effects = self.deliver(grant(self.role.seq, first))
        for stream in (HEAD, MIDDLE, LAST)[:stored]:
            effects = self.deliver(Stored(stream, frame(first, self.role.seq, request.count)))
        return effects

    def commit(self, request: AppendRequested) -> Next:
        """An append that goes through; what it asked the sequencer."""
        [asked] = messages(self.deliver(request))
        assert isinstance(asked, Next)
        self.deliver(grant(asked.seq, asked.seq))
        for stream in (HEAD, MIDDLE, LAST):
            effects = self.deliver(Stored(stream, frame(asked.seq, asked.seq)))
        assert results(effects) == [(request.operation, Appended(asked.seq))]
        return asked


def grant(seq: int, first: int, skipped: int | None = None, segment: int = 0) -> Granted:
    return Granted(LOG, segment, "w", seq, first, first if skipped is None else skipped)


def frame(first: int = 1, seq: int = 1, count: int = 1) -> Frame:
    return data(first, count, seq=seq)


def ask(view: Projection, seq: int, count: int = 1, expect: int | None = None, beaten: int = 0) -> Next:
    return Next(LOG, view.last, "w", seq, count, expect, beaten)


END = EndOpenSegment(LOG, 0, ())
