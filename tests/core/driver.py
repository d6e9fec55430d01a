"""Drives roles by hand: feeds messages to one role, or lets several roles exchange messages until none is left.

There is one order here, first come first served: interleavings are the checker's business.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from trunkline.check.disks import NodeFiles, StorageDisk
from trunkline.check.scenarios.cluster import CLUSTER, LOG
from trunkline.core.effects import (
    SELF,
    Address,
    Announce,
    CancelTimer,
    Choose,
    Complete,
    Effects,
    Event,
    Message,
    Persist,
    Record,
    Send,
    SetTimer,
)
from trunkline.core.entries import Frame, FrameKind
from trunkline.core.messages import NodeInfo, StreamTarget, target_of
from trunkline.core.projection import Projection
from trunkline.core.role import Role
from trunkline.core.siblings import ViewChanged
from trunkline.core.storage import StorageNode

STEPS_MAX = 2000  # roles that still talk after this many messages will never stop

APPLICATION = Address("client", "application")
RECONFIGURER = Address("client", "reconfigurer")
FILLER = Address("client", "filler")
META = Address("meta", "register")


def storage(node: str) -> Address:
    return Address(node, "storage")


# ------------------------------------------------------------------------------------------------- what effects show


def sent(effects: Effects) -> list[tuple[str, Message]]:
    """Messages with their addressees, written ``process.role``."""
    return [(f"{e.to.process}.{e.to.role}", e.message) for e in effects if isinstance(e, Send)]


def messages(effects: Effects) -> list[Message]:
    return [message for _, message in sent(effects)]


def announced(effects: Effects) -> list[Event]:
    return [e.event for e in effects if isinstance(e, Announce)]


def results(effects: Effects) -> list[tuple[int, Event]]:
    return [(e.operation, e.result) for e in effects if isinstance(e, Complete)]


def records(effects: Effects) -> list[Record]:
    return [e.record for e in effects if isinstance(e, Persist)]


def timers(effects: Effects) -> list[str]:
    """Keys of the timers that are set when these effects have been carried out, in order."""
    running: dict[str, None] = {}
    for effect in effects:
        if isinstance(effect, SetTimer):
            running[effect.key] = None
        elif isinstance(effect, CancelTimer):
            running.pop(effect.key, None)
    return list(running)


# ---------------------------------------------------------------------------------------------------------- examples


def data(first: int, count: int = 1, *, writer: str = "w", seq: int = 1, checksum: int = 7) -> Frame:
    return Frame(first, count, FrameKind.DATA, writer, seq, checksum)


def seen(view: Projection | None, nodes: tuple[NodeInfo, ...] = ()) -> ViewChanged:
    """The answer of the reconfigurer with a projection."""
    return ViewChanged(LOG, view, nodes)


def registered(names: str, *, dead: str = "") -> tuple[NodeInfo, ...]:
    return tuple(NodeInfo(name, 1, 1, live=name not in dead.split()) for name in names.split())


def target(view: Projection, stream: str) -> StreamTarget:
    segment, member = next((s, m) for s in view.segments for m in s.members() if m.stream == stream)
    return target_of(view, segment, member)


# ------------------------------------------------------------------------------------------------------- a real disk


class DiskedNode:
    """A storage node on the checker's disk. It can be stopped and started at any moment."""

    def __init__(self, name: str = "a", incarnation: int = 1) -> None:
        self.name = name
        self.incarnation = incarnation
        self.disk = StorageDisk()
        self.image = NodeFiles()
        self.role = StorageNode(CLUSTER, name, incarnation, self.disk.load(self.image))

    def ask(self, message: Message, source: Address = APPLICATION) -> list[Message]:
        """The answers to a request, with everything persisted."""
        effects = self.role.on_message(source, message)
        for record in records(effects):
            self.image = self.disk.sync(self.disk.write(self.image, record))
        return messages(effects)

    def restart(self) -> list[Event]:
        self.role = StorageNode(CLUSTER, self.name, self.incarnation, self.disk.load(self.image))
        return announced(self.role.on_start())

    def rot(self, slot: int) -> None:
        """One stored frame goes bad while the node is down."""
        image = dict(self.disk.after_rot(self.image))[f"slot {slot} of {self.image.streams[0][0][1]}"]
        assert isinstance(image, NodeFiles)
        self.image = image
        self.restart()


# -------------------------------------------------------------------------------------------------- several together


class Company:
    """Roles that exchange messages in the order in which they were sent. ``Choose`` takes the first option."""

    def __init__(self, roles: Mapping[Address, Role], down: Iterable[str] = ()) -> None:
        self.roles = dict(roles)
        self.down = set(down)
        self.in_flight: deque[tuple[Address, Address, Message]] = deque()
        self.timers: dict[tuple[Address, str], None] = {}  # those that are set, in the order of setting
        self.results: dict[int, Event] = {}
        self.events: list[Event] = []

    def deliver(self, to: Address, message: Message, source: Address = APPLICATION) -> None:
        """Hand over one message and let everybody talk until it is quiet."""
        self.carry_out(to, self.roles[to].on_message(source, message))

    def pass_time(self, *, but: str = "") -> None:
        """Every timer that is set now fires, unless another one's firing takes it back. A key that begins with ``but``
        is of a longer time.
        """
        for of, key in list(self.timers):
            longer = but and key.startswith(but)
            if (of, key) in self.timers and of.process not in self.down and not longer:
                del self.timers[of, key]
                self.carry_out(of, self.roles[of].on_timer(key))

    def carry_out(self, of: Address, effects: Effects) -> None:
        self._note(of, effects)
        for _ in range(STEPS_MAX):
            if not self.in_flight:
                return
            source, to, message = self.in_flight.popleft()
            if to.process not in self.down and to in self.roles:
                self._note(to, self.roles[to].on_message(source, message))
        raise AssertionError(f"still talking after {STEPS_MAX} messages: {self.in_flight[0]}")

    def _note(self, of: Address, effects: Effects) -> None:
        for effect in effects:
            match effect:
                case Send(to, message):
                    process = of.process if to.process == SELF else to.process
                    self.in_flight.append((of, Address(process, to.role), message))
                case SetTimer(key):
                    self.timers[of, key] = None
                case CancelTimer(key):
                    self.timers.pop((of, key), None)
                case Announce(event):
                    self.events.append(event)
                case Complete(operation, result):
                    self.results[operation] = result
                case Choose(key, options):
                    self._note(of, self.roles[of].on_choice(key, options[0]))
