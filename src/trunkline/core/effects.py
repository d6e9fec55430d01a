"""What a role may ask of its host.

A role is a pure state machine: it is told of a message, a timer or a choice, changes its own fields and returns a
list of effects. It never performs one. Two hosts carry effects out: the asyncio host of a running process, and the
checker's world.

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
    """Where a message goes: a role inside a process. The process name ``SELF`` means the sender's own process."""

    process: str
    role: str


SELF = "self"


class Message(Struct, frozen=True, array_like=True, tag=True):
    """Anything that travels between roles. Immutable and comparable by value.

    On a wire it is an array that begins with its class name; a field added at the end, with a default, can be read by
    both sides.
    """


class Record(Struct, frozen=True, array_like=True, tag=True):
    """Anything that a role asks its host to make durable. Written as messages are."""


class Event(Struct, frozen=True):
    """Something that happened, told to monitors and to recorded traces. It never changes what the protocol does."""


class Send(Struct, frozen=True):
    """Send a message. To another process it may be lost, doubled or reordered; to ``SELF`` it arrives at once."""

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
    """Answer the caller of an operation (an application, never another role)."""

    operation: int
    result: Event


class Announce(Struct, frozen=True):
    event: Event


class Choose(Struct, frozen=True):
    """Pick one of several moves that are all safe; the host answers with ``on_choice`` at once.

    Production picks by its own policy (load, zones), the checker tries every one. It is always a step's last effect.
    """

    key: str
    options: tuple[object, ...]


Effect = Send | SetTimer | CancelTimer | Persist | Complete | Announce | Choose
Effects = list[Effect]
