"""A reader, driven by hand: the logs that it reads, and the messages that it receives."""

from __future__ import annotations

from core.driver import APPLICATION, META, target
from trunkline.check.scenarios.cluster import BROADCAST3, CHAIN3, LOG, broadcast_log, chain_log
from trunkline.core.calls import SubscribeRequested
from trunkline.core.effects import Address, Effects, Message
from trunkline.core.entries import Frame
from trunkline.core.messages import (
    Peeked,
    Read,
    ReadFrames,
    Unwritten,
)
from trunkline.core.projection import (
    EndSegment,
    MarkRepaired,
    Opening,
    Owner,
    Projection,
    Seat,
    apply,
)
from trunkline.core.reader import Reader, ReaderConfig

OPEN = chain_log(CHAIN3, "a b c", sequencer="a")
OWNED = broadcast_log(BROADCAST3, "a b c", owner="w")
NEXT = Opening(((Seat("d", 1),),), Owner("d", 1))
ENDED = apply(OPEN, EndSegment(0, 3, OPEN.last.groups, NEXT))
REPAIRED = apply(ENDED, MarkRepaired(0))
HEAD, MIDDLE, LAST = (member.stream for member in OPEN.last.members())
LIMIT = 64
ADMINISTRATOR = Address("client", "administrator")


class Client:
    """A reader that was asked to read from ``start`` on; ``begun`` is what it did first."""

    def __init__(
        self,
        view: Projection | None,
        start: int = 1,
        until: int | None = None,
        *,
        to_tail: bool = False,
        requester: Address = APPLICATION,
        seal_checks: int = 0,
        replica: int = 0,
    ) -> None:
        self.role = Reader(ReaderConfig(META, LOG, read_limit=LIMIT, seal_checks=seal_checks, replica=replica), view)
        self.begun = self.role.on_message(requester, SubscribeRequested(1, LOG, start, until, to_tail))

    def deliver(self, message: Message) -> Effects:
        return self.role.on_message(APPLICATION, message)

    def wait(self) -> Effects:
        """The timer fires."""
        return self.role.on_timer("wait")


def read(view: Projection, stream: str, glsn: int) -> Read:
    return Read(target(view, stream), glsn, LIMIT)


def frames(stream: str, *found: Frame) -> ReadFrames:
    return ReadFrames(stream, found[0].first, found)


def nothing(stream: str, glsn: int = 1, written: int = 1, *, sealed: bool = False) -> Unwritten:
    return Unwritten(stream, glsn, written, sealed)


def peeked(following: int, *, alike: int | None = None, beaten: int = 0) -> Peeked:
    return Peeked(LOG, 0, following, following if alike is None else alike, beaten)
