"""What a role may ask of its host.

A role is a pure state machine: it receives a message, a timer or a choice, changes its own fields and returns a list of
effects. It never performs one. Two hosts carry effects out: the asyncio host of a running process, and the world of the
checker.

The ordering rule, stated once:

    A host carries out the effects of a process in the order in which its roles returned them, and carries out
    nothing that comes after a ``Persist`` before that ``Persist`` is durable.

So an answer that follows a ``Persist`` never leaves before the disk has it, and neither does an answer of a later step
that was computed from the same memory. A process may crash between any two effects.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct


class Address(NamedTuple):
    """The destination of a message: a role in a process. ``SELF`` is the process of the sender."""

    process: str
    role: str


SELF = "self"


class Message(Struct, frozen=True, array_like=True, tag=True):
    """What travels between roles. Immutable and comparable by value.

    On the wire it is an array that begins with the class name. A field added at the end, with a default, stays readable
    for both sides.
    """


class Record(Struct, frozen=True, array_like=True, tag=True):
    """What a role asks its host to make durable. Encoded like a message."""


class Event(Struct, frozen=True):
    """Something that happened, for monitors and recordings. It never changes what the protocol does."""


class Send(Struct, frozen=True):
    """Send a message. To another process it may be lost, duplicated or reordered; to ``SELF`` it arrives at once."""

    to: Address
    message: Message


class SetTimer(Struct, frozen=True):
    """Call ``on_timer(key)`` once, not before ``after_ms``. Setting a key again replaces it."""

    key: str
    after_ms: int


class CancelTimer(Struct, frozen=True):
    key: str


class Persist(Struct, frozen=True):
    """Make a record durable before any later effect."""

    record: Record


class Complete(Struct, frozen=True):
    """Return the result of an operation to the application."""

    operation: int
    result: Event


class Announce(Struct, frozen=True):
    event: Event


class Choose(Struct, frozen=True):
    """Pick one of several safe options; the host calls ``on_choice`` at once. Always the last effect of a step.

    Production picks by policy (load, zones); the checker tries every option.
    """

    key: str
    options: tuple[object, ...]


Effect = Send | SetTimer | CancelTimer | Persist | Complete | Announce | Choose
Effects = list[Effect]
