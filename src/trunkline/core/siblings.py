"""Messages between the roles of one process and its host. None of them leaves the process."""

from __future__ import annotations

from trunkline.core.effects import Message
from trunkline.core.entries import Frame
from trunkline.core.messages import NodeInfo, Reason, Space
from trunkline.core.projection import Owner, Projection


class Refresh(Message, frozen=True):
    """Read the projection again. ``ViewChanged`` answers."""

    log: str


class EndOpenSegment(Message, frozen=True):
    """End this segment if it is still open."""

    log: str
    segment: int
    suspects: tuple[str, ...] = ()  # nodes that failed the sender
    owner: Owner | None = None  # broadcast: the next writer
    end: int | None = None  # broadcast roll: the exact count of the owner
    reopen: bool = True  # False leaves the log read-only
    only_to_spares: bool = False  # only if enough nodes are not suspects
    declared_end: int | None = None  # an operator gives the segment up: everything below is lost


class OpenClosedLog(Message, frozen=True):
    """An operator reopens a read-only log."""

    log: str


class ChangeProjection(Message, frozen=True):
    """Try any other change once, against the epoch it was computed from."""

    expected: int
    projection: Projection


class ViewChanged(Message, frozen=True):
    """The projection as just read. It may equal the known one: that it is fresh is news in itself."""

    log: str
    projection: Projection | None
    nodes: tuple[NodeInfo, ...]


class Fill(Message, frozen=True):
    """Settle positions from ``glsn`` on, from the head down: each keeps its value, or becomes JUNK.

    One answer covers one batch, or a run of JUNK below ``end``. ``whole``: continue up to ``end``.
    """

    projection: Projection
    segment: int
    glsn: int
    end: int
    whole: bool = False


class FillDone(Message, frozen=True):
    """``frames`` are at ``glsn`` and after it on every member of the group. None: ``why`` it failed, and on which
    ``node``.
    """

    segment: int
    glsn: int
    frames: tuple[Frame, ...]
    why: Reason | None = None
    node: str = ""


class DamageFound(Message, frozen=True):
    """From the host of a node: stored data is unreadable, and the coordinator must learn it."""


class CheckNow(Message, frozen=True):
    """From the host: the registry or the projection has changed."""


class SpaceReported(Message, frozen=True):
    """From the host of a node: how much space its disk has, for the registry."""

    space: Space
