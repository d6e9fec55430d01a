"""The world around deliverers and places: a source that advances, and a control store that grants leases.

Their processes never crash: they stand for systems that keep their state. Messages to and from them may be lost.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from trunkline.check.delivery_rows import SourceScript
from trunkline.check.monitors.delivery import SourceMoved
from trunkline.check.scenarios.hosts import PassiveRole
from trunkline.core.delivery_messages import (
    NO_SPAN,
    FencedOff,
    Grant,
    LeasesGranted,
    LeasesLost,
    Lost,
    Note,
    Outcome,
    RecordEmpty,
    Released,
    ReleaseLeases,
    ReseedAsked,
    Reseeded,
    Result,
    SourceAt,
    Span,
)
from trunkline.core.effects import Address, Announce, Complete, Effects, Event, Message, Send

LAKE = "lake"  # source and control store are one process, so that a grant comes with the state of the source
SOURCE = Address(LAKE, "source")
CONTROL = Address(LAKE, "control")


class OperationDone(Event, frozen=True):
    """The result of an operation on the source or by an operator."""


# --------------------------------------------------------------------------------------------------------- the source


class WatchSource(Message, frozen=True):
    """Send the source's version to a deliverer, now and after each change."""

    deliverer: str


class ReadWindow(Message, frozen=True):
    """Read a window: is the history after this version still available?"""

    start: int
    job: int
    after: int
    mark: str  # of `after`
    through: int


class WindowRead(Message, frozen=True):
    start: int
    job: int
    readable: bool
    strayed: bool
    incarnation: int  # of the source


class CompareMark(Message, frozen=True):
    """Do the position of a destination, and the note about it, belong to this incarnation?"""

    start: int
    job: int
    result: Result
    note: Note | None


class MarkCompared(Message, frozen=True):
    start: int
    job: int
    result: Result


class Advance(Message, frozen=True):
    """The source reaches its next version, or forgets the versions before ``oldest``."""

    operation: int
    oldest: int = 0  # 0: a new version


class ReplaceSource(Message, frozen=True):
    """The source is restored from a backup of ``version``, as a new incarnation; an operator reseeds destinations."""

    operation: int
    version: int
    destinations: tuple[str, ...]


class ScriptedSource(PassiveRole):
    def __init__(self, script: SourceScript) -> None:
        self.script = script
        self.incarnation = 0
        self.version = 1
        self.oldest = 1
        self.watchers: tuple[str, ...] = ()

    def on_start(self) -> Effects:
        return [self._announce()]

    def _announce(self) -> Announce:
        return Announce(SourceMoved(self.version, self.oldest, self.incarnation))

    def on_message(self, source: Address, message: Message) -> Effects:
        match message:
            case WatchSource(deliverer):
                self.watchers = tuple(sorted({*self.watchers, deliverer}))
                return [self._notify(deliverer)]
            case Advance(operation, oldest):
                self.version += 0 if oldest else 1
                self.oldest = max(self.oldest, oldest)
                return [self._announce(), *map(self._notify, self.watchers), Complete(operation, OperationDone())]
            case ReplaceSource(operation, version, destinations):
                self.incarnation, self.version = self.incarnation + 1, version
                reseeds = [Send(CONTROL, ReseedRequest(each)) for each in destinations]
                return [
                    self._announce(),
                    *map(self._notify, self.watchers),
                    *reseeds,
                    Complete(operation, OperationDone()),
                ]
            case ReadWindow(start, job, after, mark, through):
                strayed = through > self.version or not self._has(after, mark)
                readable, incarnation = after >= self.oldest, self.incarnation
                return [Send(source, WindowRead(start, job, readable, strayed, incarnation))]
            case CompareMark(start, job, result, note):
                return [Send(source, MarkCompared(start, job, self._compared(result, note)))]
        return super().on_message(source, message)

    def _notify(self, watcher: str) -> Send:
        stops = tuple(stop for stop in self.script.stops if stop <= self.version)
        state = SourceAt(self.version, self.oldest, stops, history=self.incarnation)
        return Send(Address(watcher, "planner"), state)

    def _has(self, version: int, mark: str) -> bool:
        """Whether a version belongs to this incarnation; a version without a mark is assumed to."""
        return version <= self.version and mark in ("", self.script.mark(self.incarnation, version))

    def _compared(self, result: Result, note: Note | None) -> Result:
        strayed = not self._has(result.position, result.mark)
        holds = note is None or self._has(note.through, note.mark)
        return replace(result, outcome=Outcome.STRAYED if strayed else Outcome.STANDS, note_holds=holds)


# --------------------------------------------------------------------------------------------------- the control store


class Acquire(Message, frozen=True):
    """A deliverer has started: grant it what is free, and what its previous process held."""


class Expire(Message, frozen=True):
    """The lease of a destination expires, whether its owner is alive or not."""

    destination: str
    time: int = 1  # the first or the second time


class Seize(Message, frozen=True):
    """A repairer takes a destination from its owner."""

    destination: str


class Seized(Message, frozen=True):
    destination: str
    token: int


class ReseedRequest(Message, frozen=True):
    """An operator requests a new seed."""

    destination: str


class ControlEvents(PassiveRole):
    """Events of the control store: all are in flight from the beginning, so each happens at any moment."""

    def __init__(self, events: tuple[Expire | ReseedRequest, ...]) -> None:
        self.events = events

    def on_start(self) -> Effects:
        return [Send(CONTROL, event) for event in self.events]


class Forget(Message, frozen=True):
    """The configuration of a destination has changed: what was delivered under the old one does not count."""

    destination: str


class Lease(Struct, frozen=True):
    owner: str = ""
    token: int = 0
    empty: Span = NO_SPAN
    reseed: int = 0
    settled: bool = False
    empty_mark: str = ""
    insists: bool = False


class ControlStore(PassiveRole):
    def __init__(self, destinations: tuple[str, ...], deliverers: tuple[str, ...]) -> None:
        """The first deliverer gets all destinations; the others wait."""
        self.leases = {name: Lease(deliverers[0]) for name in destinations}
        self.deliverers = deliverers

    def on_message(self, source: Address, message: Message) -> Effects:
        match message:
            case Acquire():
                mine = [name for name, lease in self.leases.items() if lease.owner in ("", source.process)]
                return self._grant(mine, source.process) if mine else []
            case Expire(destination):
                return self._move(destination)
            case Seize(destination):
                return self._on_seized(destination, source)
            case ReseedRequest(destination):
                return self._on_reseed(destination)
            case Forget(destination):
                lease = self.leases[destination]
                self.leases[destination] = replace(lease, empty=NO_SPAN, empty_mark="", reseed=lease.reseed + 1)
                return self._grant([destination], source.process)
            case RecordEmpty(through, emptied, mark):
                for each in emptied:
                    self._note(each.destination, each.token, empty=Span(each.position, through), empty_mark=mark)
                return []
            case Reseeded(destination, token, request):
                lease = self.leases[destination]
                left = {} if lease.reseed > request else {"reseed": 0, "insists": False}
                self._note(destination, token, empty=NO_SPAN, empty_mark="", **left)
                return []
            case ReleaseLeases(released):
                return [effect for each in released for effect in self._on_released(each)]
            case FencedOff(destination, token, seen):
                return self._on_fenced(destination, token, seen)
        return super().on_message(source, message)

    def _grant(self, names: list[str], owner: str) -> Effects:
        grants: list[Grant] = []
        for name in names:
            lease = self.leases[name]
            state = (lease.reseed, lease.settled, lease.empty_mark, lease.insists)
            grants.append(Grant(name, lease.token + 1, lease.empty, *state))
            self.leases[name] = replace(lease, owner=owner, token=lease.token + 1, settled=False)
        return [Send(Address(owner, "planner"), LeasesGranted(tuple(grants))), Send(SOURCE, WatchSource(owner))]

    def _move(self, name: str) -> Effects:
        lease = self.leases[name]
        if not lease.owner:
            return []
        others = [each for each in self.deliverers if each != lease.owner]
        lost = Send(Address(lease.owner, "planner"), LeasesLost((Lost(name, lease.token),)))
        return [lost, *self._grant([name], others[0] if others else lease.owner)]

    def _on_seized(self, name: str, repairer: Address) -> Effects:
        lease = self.leases[name]
        lost = Send(Address(lease.owner, "planner"), LeasesLost((Lost(name, lease.token),)))
        self.leases[name] = replace(lease, owner=repairer.process, token=lease.token + 1, settled=False)
        return [*([lost] if lease.owner else []), Send(repairer, Seized(name, lease.token + 1))]

    def _on_released(self, released: Released) -> Effects:
        """The other deliverer gets it, if there is one."""
        name, lease = released.destination, self.leases[released.destination]
        if lease.token != released.token:
            return []
        self.leases[name] = replace(lease, owner="", settled=released.settled)
        others = [each for each in self.deliverers if each != lease.owner]
        return self._grant([name], others[0]) if others else []

    def _on_reseed(self, name: str) -> Effects:
        lease = self.leases[name] = replace(self.leases[name], reseed=self.leases[name].reseed + 1, insists=True)
        return [Send(Address(lease.owner, "planner"), ReseedAsked(name, lease.reseed))] if lease.owner else []

    def _note(self, name: str, token: int, **changes: object) -> None:
        """Accept a message of a deliverer only under the present grant."""
        if self.leases[name].token == token:
            self.leases[name] = replace(self.leases[name], **changes)

    def _on_fenced(self, name: str, token: int, seen: int) -> Effects:
        lease = self.leases[name]
        if lease.token != token:
            return []  # another deliverer owns it by now
        self.leases[name] = replace(lease, token=max(lease.token, seen))
        return self._grant([name], lease.owner)
