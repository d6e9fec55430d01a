"""What roles of one process, and its host, say to each other. None of it leaves the process."""

from __future__ import annotations

from trunkline.core.effects import Message
from trunkline.core.entries import Frame
from trunkline.core.messages import NodeInfo, Reason, Space
from trunkline.core.projection import Owner, Projection


class Refresh(Message, frozen=True):
    """Read the projection again and tell me."""

    log: str


class EndOpenSegment(Message, frozen=True):
    """End this segment if it is still open."""

    log: str
    segment: int
    suspects: tuple[str, ...] = ()  # nodes that somebody could not work with
    owner: Owner | None = None  # broadcast: who wants to write next
    end: int | None = None  # broadcast roll: the owner's exact count
    reopen: bool = True  # False leaves the log read-only
    only_to_spares: bool = False  # do it only if there are enough nodes that are not suspects
    declared_end: int | None = None  # an operator's word, where no intact member is left: all below it is lost


class OpenClosedLog(Message, frozen=True):
    """An operator opens a read-only log again. Nobody else does."""

    log: str


class ChangeProjection(Message, frozen=True):
    """Try one other change, once, against the epoch it was computed from."""

    expected: int
    projection: Projection


class ViewChanged(Message, frozen=True):
    """The projection as just read. It may equal the one already known: a fresh reading is news in itself."""

    log: str
    projection: Projection | None
    nodes: tuple[NodeInfo, ...]


class Fill(Message, frozen=True):
    """Settle one position: from the head down, its value or JUNK."""

    projection: Projection
    segment: int
    glsn: int


class FillDone(Message, frozen=True):
    """``frame`` holds the position on every member of the group; None: it could not be settled, ``why`` says how."""

    segment: int
    glsn: int
    frame: Frame | None
    why: Reason | None = None


class DamageFound(Message, frozen=True):
    """From the host of a node: something that was stored cannot be read any more. The coordinator is to know."""


class SpaceTold(Message, frozen=True):
    """From the host of a node: how much room its disk has, as the coordinator is to know it."""

    space: Space


class Freshness(Message, frozen=True):
    """The node's lease holds, or has run out."""

    fresh: bool
