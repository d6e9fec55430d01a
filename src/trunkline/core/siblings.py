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
    """Settle positions from ``glsn`` on, from the head down: each keeps its value, or becomes JUNK.

    What is settled at once is one batch, or a run of JUNK that stays below ``end``. ``whole``: go on until ``end``.
    """

    projection: Projection
    segment: int
    glsn: int
    end: int
    whole: bool = False


class FillDone(Message, frozen=True):
    """``frames`` hold ``glsn`` and what follows it on every member of the group; none: ``why`` it was not settled, and
    at which ``node``.
    """

    segment: int
    glsn: int
    frames: tuple[Frame, ...]
    why: Reason | None = None
    node: str = ""


class DamageFound(Message, frozen=True):
    """From the host of a node: something that was stored cannot be read any more. The coordinator is to know."""


class LookNow(Message, frozen=True):
    """From the host: the registry or the projection has changed since the last look."""


class SpaceTold(Message, frozen=True):
    """From the host of a node: how much room its disk has, as the coordinator is to know it."""

    space: Space
