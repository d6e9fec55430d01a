"""Requests of applications to the roles of their own process. None of them leaves the process."""

from __future__ import annotations

from trunkline.core.effects import Message
from trunkline.core.projection import Settings


class CreateLog(Message, frozen=True):
    operation: int
    log: str
    settings: Settings


class AppendRequested(Message, frozen=True):
    """Append a batch. The host keeps its bytes by ``operation``: batches of equal content are different batches."""

    operation: int
    log: str
    count: int
    checksum: int
    takeover: bool = False  # broadcast: take the log over from its owner
    expect: int | None = None  # chain: only at exactly this position


class SubscribeRequested(Message, frozen=True):
    """Read from ``start``; complete after the entry at ``until`` (None: never) or, with ``to_tail``, at the tail."""

    operation: int
    log: str
    start: int
    until: int | None = None
    to_tail: bool = False


class TailRequested(Message, frozen=True):
    operation: int
    log: str


class PeekRequested(Message, frozen=True):
    operation: int
    log: str


class TrimRequested(Message, frozen=True):
    operation: int
    log: str
    point: int


class SealRequested(Message, frozen=True):
    """Make the log read-only or, with ``reopen``, end the open segment and open another."""

    operation: int
    log: str
    reopen: bool = False
    declared_end: int | None = None  # give the segment up: readers see a gap up to here


class DeleteRequested(Message, frozen=True):
    """Delete the log. Its name cannot be used again."""

    operation: int
    log: str
