"""Stand-ins for what surrounds roles in a process: applications, clocks, hosts that scrub or bound their answers."""

from __future__ import annotations

from msgspec.structs import replace

from trunkline.check.scenario import Invoked
from trunkline.core.calls import AppendRequested
from trunkline.core.effects import SELF, Address, Announce, Complete, Effect, Effects, Event, Message, Send, SetTimer
from trunkline.core.messages import (
    Fetched,
    LeaseExpired,
    ReadFrames,
    Space,
)
from trunkline.core.siblings import DamageFound
from trunkline.core.storage import FramesDamaged, SpaceChanged, StorageNode


class LeaseExpiry:
    """The clock of the register's host: says once, at some moment, that the lease of a node has run out."""

    def __init__(self, register: Address, nodes: tuple[str, ...]) -> None:
        self.register = register
        self.nodes = nodes

    @property
    def phase(self) -> str:
        return "running"

    def on_start(self) -> Effects:
        return [SetTimer(node, 3000) for node in self.nodes]

    def on_timer(self, key: str) -> Effects:
        return [Send(self.register, LeaseExpired(key, 1))]

    def on_message(self, source: Address, message: Message) -> Effects:
        raise AssertionError(f"a clock takes no message, yet {message} came")

    def on_choice(self, key: str, option: object) -> Effects:
        raise AssertionError(f"a clock asks for no choice, yet {key} was made")


class Burst(Message, frozen=True):
    """An application's request for several appends at once."""

    requests: tuple[AppendRequested, ...]


class BurstBegun(Event, frozen=True):
    """The request ends as its appends begin: they are operations of their own, also numbered from 1."""


class Application:
    """Asks for several appends at once: the world by itself hands a process one operation after another."""

    def __init__(self, role: str) -> None:
        self.role = role

    @property
    def phase(self) -> str:
        return "asking"

    def on_start(self) -> Effects:
        return []

    def on_timer(self, key: str) -> Effects:
        raise AssertionError(f"an application sets no timer, yet {key} fired")

    def on_choice(self, key: str, option: object) -> Effects:
        raise AssertionError(f"an application asks for no choice, yet {key} was made")

    def on_message(self, source: Address, message: Message) -> Effects:
        assert isinstance(message, Burst)
        begun: Effects = [Announce(Invoked(request.operation, request)) for request in message.requests]
        return [Complete(1, BurstBegun()), *begun] + [
            Send(Address(SELF, self.role), request) for request in message.requests
        ]


class BoundedNode(StorageNode):
    """A node whose host bounds the bytes of an answer: it sends the first ``answer_max`` batches of what was asked."""

    answer_max = 1

    def on_message(self, source: Address, message: Message) -> Effects:
        return [self._bounded(effect) for effect in super().on_message(source, message)]

    def _bounded(self, effect: Effect) -> Effect:
        answer = effect.message if isinstance(effect, Send) else None
        if not isinstance(answer, ReadFrames | Fetched) or len(answer.frames) <= self.answer_max:
            return effect
        assert isinstance(effect, Send)
        frames = answer.frames[: self.answer_max]
        if isinstance(answer, ReadFrames):
            return Send(effect.to, replace(answer, frames=frames))
        return Send(effect.to, replace(answer, frames=frames, end=frames[-1].next))


class ScrubbingHost:
    """A node's host that finds, at some moment, that stored frames cannot be read any more."""

    def __init__(self, found: FramesDamaged) -> None:
        self.found = found

    @property
    def phase(self) -> str:
        return "scrubbing"

    def on_start(self) -> Effects:
        return [SetTimer("scrub", 3000)]

    def on_timer(self, key: str) -> Effects:
        return [Send(Address(SELF, "storage"), self.found), Send(Address(SELF, "lease"), DamageFound())]

    def on_message(self, source: Address, message: Message) -> Effects:
        raise AssertionError(f"a scrubber takes no message, yet {message} came")

    def on_choice(self, key: str, option: object) -> Effects:
        raise AssertionError(f"a scrubber asks for no choice, yet {key} was made")


class FullAtFirstDisk:
    """A node's host whose disk is full at first and has space again at some moment."""

    @property
    def phase(self) -> str:
        return "watching"

    def on_start(self) -> Effects:
        return [Send(Address(SELF, "storage"), SpaceChanged(Space.FULL)), SetTimer("space", 3000)]

    def on_timer(self, key: str) -> Effects:
        return [Send(Address(SELF, "storage"), SpaceChanged(Space.ROOMY))]

    def on_message(self, source: Address, message: Message) -> Effects:
        raise AssertionError(f"a host of a disk takes no message, yet {message} came")

    def on_choice(self, key: str, option: object) -> Effects:
        raise AssertionError(f"a host of a disk asks for no choice, yet {key} was made")
