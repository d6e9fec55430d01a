"""The parts of a scenario: processes, their operations, fault budgets, monitors and the goal.

A scenario is plain data plus constructors of roles. It does not determine how it is explored.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, Protocol

from trunkline.core.effects import Event, Message, Record
from trunkline.core.events import Completed as Completed  # re-exported: what monitors observe
from trunkline.core.events import Invoked as Invoked
from trunkline.core.events import ProcessEnded as ProcessEnded
from trunkline.core.role import Role


class Violation(Exception):
    """The monitor's property does not hold."""


class ObservedEvent(Event, frozen=True):
    """What monitors observe: an event, and the process and role where it happened."""

    process: str
    role: str
    event: Event


class Monitor(Protocol):
    """One property. Its state is an immutable, comparable value: the same monitor judges searches and recordings."""

    @property
    def name(self) -> str: ...

    def initial(self) -> Hashable: ...

    def observe(self, state: Any, observed: ObservedEvent) -> Hashable:
        """The state after this event; raises ``Violation`` if it violates the property."""
        ...

    def hot(self, state: Any) -> str:
        """Why the goal is not reached here, or an empty string (liveness)."""
        ...


class SafetyMonitor:
    """A monitor without a goal."""

    def hot(self, state: Any) -> str:
        return ""


class DiskModel(Protocol):
    """A pure model of one process's disk. Images are immutable, comparable values."""

    def write(self, image: Any, record: Record) -> Hashable:
        """The image with one more write, not yet synced."""
        ...

    def sync(self, image: Any) -> Hashable:
        """The image with everything synced."""
        ...

    def synced(self, image: Any) -> bool: ...

    def after_power_cut(self, image: Any) -> tuple[tuple[str, Hashable], ...]:
        """All possible images after a power cut: any part of the unsynced writes is lost."""
        ...

    def after_rot(self, image: Any) -> tuple[tuple[str, Hashable], ...]:
        """All images in which one synced piece of data is bad; empty if rot is not modelled."""
        ...

    def load(self, image: Any) -> Any:
        """What a starting process reads from the image: passed to ``ProcessSpec.start``."""
        ...


@dataclass(frozen=True)
class Boot:
    """The input of a starting process."""

    process: str
    incarnation: int  # how often the disk was formatted: 1, then +1 for each wipe
    start: int  # how often the process was started: 1, then +1 for each restart
    durable: Any  # DiskModel.load of its image


class OperationEnd(NamedTuple):
    """The end of an operation, by process and the number in its ``Complete``."""

    process: str
    operation: int


@dataclass(frozen=True)
class Operation:
    """One call of an application into a role of its own process.

    ``after``: it begins at some moment after these operations, of any process, have ended: their results are known
    when it begins.
    """

    role: str
    request: Message
    after: tuple[OperationEnd, ...] = ()


@dataclass(frozen=True)
class ProcessSpec:
    name: str
    start: Callable[[Boot], Mapping[str, Role]]
    disk: DiskModel
    image: Hashable  # the disk's image at the beginning
    operations: tuple[Operation, ...] = ()
    up: bool = True  # False: down at the beginning (a restart may start it)
    blank: Hashable = None  # the image after a wipe; None: ``image``


@dataclass(frozen=True)
class NetworkCut:
    """One possible network partition: messages from → to that are blocked while it lasts."""

    name: str
    blocked: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Faults:
    """Budgets: how often each fault may happen in one run. Zero means never."""

    loss: int = 0  # a message vanishes
    duplicate: int = 0  # a message is delivered and stays
    crash: int = 0  # a process ends between any two effects (the operating system keeps its writes)
    restart: int = 0  # a process that ended restarts
    wipe: int = 0  # a process that ended restarts on an empty disk, as a new incarnation
    power_cut: int = 0  # all processes of `power_domain` end at once; unsynced writes are lost in part
    rot: int = 0  # one synced piece of data goes bad while its process is down
    cut: int = 0  # a network cut begins (its end costs nothing)
    early_timer: int = 0  # a timer fires although messages that can be delivered are in flight


NO_FAULTS = Faults()


@dataclass(frozen=True)
class FreeTimer:
    """Timers that may fire at any moment, ``count`` times in a run, at no cost in ``early_timer``.

    When ``count`` is used up they are timers like all others. Patterns are those of ``fnmatch``.
    """

    process: str
    role: str = "*"
    key: str = "*"
    count: int = 1

    def matches(self, process: str, role: str, key: str) -> bool:
        return fnmatchcase(process, self.process) and fnmatchcase(role, self.role) and fnmatchcase(key, self.key)


@dataclass(frozen=True)
class MessageDrop:
    """Messages that their sender's host may drop ``count`` times in a run, at no cost in ``loss``.

    A host drops messages that a peer does not read, and the metadata service limits requests. ``message`` is the name
    of a class; patterns are those of ``fnmatch``.
    """

    source: str
    target: str
    message: str = "*"
    count: int = 1

    def matches(self, source: str, target: str, message: str) -> bool:
        return (
            fnmatchcase(source, self.source) and fnmatchcase(target, self.target) and fnmatchcase(message, self.message)
        )


@dataclass(frozen=True)
class Scenario:
    name: str
    summary: str  # one line, for the table
    processes: tuple[ProcessSpec, ...]
    monitors: tuple[Monitor, ...]
    faults: Faults = NO_FAULTS
    fifo: bool = False  # False: a bag, any message may be next
    atomic_disk: bool = True  # True: each Persist is synced at once; False: group commit, a sync is an action
    eager_operations: bool = True  # False: an idle process begins its next operation at any later moment
    every_choice: bool = True  # False: `Choose` takes the first option
    crashable: tuple[str, ...] = ()
    lossy: tuple[str, ...] = ()  # only messages to or from these may be lost or doubled; empty: all
    power_domain: tuple[str, ...] = ()
    cuts: tuple[NetworkCut, ...] = ()
    stays_down: tuple[str, ...] = ()  # processes that the fair phase does not restart
    sometimes: tuple[str, ...] = ()  # names of events that must happen in some run
    symmetric: tuple[tuple[str, ...], ...] = ()  # sets of process names that may be swapped
    free_timers: tuple[FreeTimer, ...] = ()
    drops: tuple[MessageDrop, ...] = ()
    copies: int = 1  # at most so many identical messages are in flight
    smaller: tuple[Callable[[], Scenario], ...] = ()  # simpler versions, tried first when shrinking
