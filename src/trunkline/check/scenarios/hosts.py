"""Stand-ins for the surroundings of roles: applications, clocks, and hosts that scrub or bound their answers."""

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


class PassiveRole:
    """A role that does nothing. Stand-ins override the handlers that they use; a call of any other is a bug."""

    @property
    def phase(self) -> str:
        return "ready"

    def on_start(self) -> Effects:
        return []

    def on_message(self, source: Address, message: Message) -> Effects:
        raise AssertionError(f"{type(self).__name__} does not accept {message}")

    def on_timer(self, key: str) -> Effects:
        raise AssertionError(f"{type(self).__name__} sets no timer {key}")

    def on_choice(self, key: str, option: object) -> Effects:
        raise AssertionError(f"{type(self).__name__} offers no choice {key}")


class LeaseExpiry(PassiveRole):
    """The clock of the register's host: the lease of each node expires once, at some moment."""

    def __init__(self, register: Address, nodes: tuple[str, ...]) -> None:
        self.register = register
        self.nodes = nodes

    def on_start(self) -> Effects:
        return [SetTimer(node, 3000) for node in self.nodes]

    def on_timer(self, key: str) -> Effects:
        return [Send(self.register, LeaseExpired(key, 1))]


class Burst(Message, frozen=True):
    """An application requests several appends at once."""

    requests: tuple[AppendRequested, ...]


class BurstBegun(Event, frozen=True):
    """A burst completes when its appends begin: these are operations of their own, and also number from 1."""


class Application(PassiveRole):
    """Requests several appends at once: the world itself gives a process one operation after another."""

    def __init__(self, role: str) -> None:
        self.role = role

    def on_message(self, source: Address, message: Message) -> Effects:
        assert isinstance(message, Burst)
        begun: Effects = [Announce(Invoked(request.operation, request)) for request in message.requests]
        return [Complete(1, BurstBegun()), *begun] + [
            Send(Address(SELF, self.role), request) for request in message.requests
        ]


class BoundedNode(StorageNode):
    """A node whose host bounds the bytes of an answer: it sends at most the first ``answer_max`` batches."""

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


class ScrubbingHost(PassiveRole):
    """A node's host that finds, at some moment, that stored frames are unreadable."""

    def __init__(self, found: FramesDamaged) -> None:
        self.found = found

    def on_start(self) -> Effects:
        return [SetTimer("scrub", 3000)]

    def on_timer(self, key: str) -> Effects:
        return [Send(Address(SELF, "storage"), self.found), Send(Address(SELF, "lease"), DamageFound())]


class FullAtFirstDisk(PassiveRole):
    """A node's host whose disk is full at first and has space again at some moment."""

    def on_start(self) -> Effects:
        return [Send(Address(SELF, "storage"), SpaceChanged(Space.FULL)), SetTimer("space", 3000)]

    def on_timer(self, key: str) -> Effects:
        return [Send(Address(SELF, "storage"), SpaceChanged(Space.ROOMY))]
