"""What the planner knows of one destination, and its settings."""

from __future__ import annotations

import enum
from typing import NamedTuple

from msgspec import Struct

from trunkline.core.delivery_messages import NO_SPAN, Planned, SeedMode, Span
from trunkline.core.effects import SELF, Address


class PlannerConfig(Struct, frozen=True):
    interval_ms: int = 1000  # how long a change may wait for others; 0: not at all
    rows: int = 100_000  # as many waiting changes are flushed at once
    size_bytes: int = 64 * 2**20  # as many waiting bytes are flushed at once
    groups_max: int = 2  # flushes at the same time, beside one seed; too small: those that catch up delay the others
    members_max: int = 20_000  # of one group; too small: more jobs; too big: one killed worker leaves more in doubt
    retry_first_ms: int = 500  # doubled with each failure
    retry_max_ms: int = 60_000  # too big: a mended destination is noticed late
    breaker_after: int = 5  # failures in a row after which it is tried only once in retry_max_ms
    record_ms: int = 30_000  # too small: many notes; too big: after a crash more is read again; 0: noted at once
    worker: Address = Address(SELF, "worker")
    control: Address = Address(SELF, "control")


class TrackStage(enum.Enum):
    """Where a destination is in the planner's eyes."""

    UNOWNED = "unowned"  # another deliverer's, or nobody's
    READING = "reading"  # its standing is being asked for
    READY = "ready"  # waits for the source to move on, or for a free slot
    FLUSHING = "flushing"
    SEEDING = "seeding"
    BACKING_OFF = "backing off"
    HALTED = "halted"
    PAUSED = "paused"
    DRAINED = "drained"
    RETIRED = "retired"


class GroupKey(NamedTuple):
    """Destinations with an equal key share one job."""

    after: int  # where their next window begins; for a seed, what the source has to reach first, mostly 0
    stamp: bool  # their positions must be written, rows or not
    now: bool  # and that at once, although the source has not moved on
    failing: bool  # their last job failed: they are kept apart from the healthy ones
    crowd: int  # how many of them may share a job
    seed: SeedMode | None  # what they are seeded with; None: they are flushed
    mark: str = ""  # of ``after``


class Track:
    """One destination.

    position          effective            planned           source
       |------ empty -----|---- in flight ----|                |
    """

    def __init__(self, config: Planned, crowd: int) -> None:
        self.config = config  # its life is what operators made of it
        self.life_configured = config.life
        self.removed = False  # it is not in the configuration any more
        self.stage = TrackStage.UNOWNED
        self.token = 0  # of the grant that holds; 0: none does
        self.token_floor = 0  # grants below it come too late
        self.known = False  # `position` is what the destination says
        self.settled = False  # nothing that somebody may have on its way to it can be written any more
        self.position = 0
        self.mark = ""  # of the position, as the destination has it
        self.empty = NO_SPAN
        self.empty_mark = ""  # of the version at which that ends
        self.strayed = False  # its position is not of the source's history
        self.unreadable = False  # the source cannot tell what follows its position
        self.planned = 0  # what the job in flight will reach, else the effective position
        self.job = 0  # the one in flight; 0: none is
        self.doubted = False  # the answer of the job in flight is not to be believed: the read epoch was raised
        self.key: GroupKey | None = None  # of the group in which it waits for a slot
        self.retry_ms = 0  # it waits this long before it is tried again; 0: it does not wait
        self.failures = 0  # in a row
        self.moved = False  # it was not where it was expected, and has not been written since
        self.crowd = crowd
        self.halted = False
        self.error = ""  # of the last failure
        self.reseed = 0  # number of an operator's wish that is not fulfilled; 0: there is none
        self.reseed_done = 0  # number of the last one that was
        self.insists = False  # and that wish is for a seed over whatever it holds
        self.drain_to = 0

    @property
    def name(self) -> str:
        return self.config.destination

    @property
    def effective(self) -> int:
        """Where its next window begins: its part of the source is the same at its position and here.

        In between it may have changed and changed back, so this holds for that very position and for no other (P6).
        """
        return self.empty.through if self.empty.after == self.position else self.position

    @property
    def effective_mark(self) -> str:
        return self.empty_mark if self.empty.after == self.position else self.mark

    def doubt(self) -> None:
        """Only what the destination says from now on counts; what is in flight was asked before."""
        self.known = False
        self.doubted = self.job != 0

    def emptied(self, through: int, mark: str) -> None:
        """Nothing came for it up to here."""
        self.empty, self.empty_mark = Span(self.position, through), mark

    def forget_empty(self) -> None:
        """What was noted of windows without rows is not known any more."""
        self.empty, self.empty_mark = NO_SPAN, ""

    def revive(self, crowd: int) -> None:
        """Forget its failures."""
        self.halted, self.moved, self.error = False, False, ""
        self.failures, self.retry_ms, self.crowd = 0, 0, crowd


class PlannerJob:
    """One job in flight. ``kind`` is READING, FLUSHING or SEEDING; ``failing`` as in its key."""

    def __init__(
        self,
        kind: TrackStage,
        members: list[str],
        through: int = 0,
        *,
        stamp: bool = False,
        failing: bool = False,
        places: frozenset[str] = frozenset(),
    ) -> None:
        self.kind = kind
        self.members = set(members)  # those without a result so far
        self.size = len(members)
        self.through = through
        self.stamp = stamp
        self.failing = failing
        self.places = places  # that it writes to (P14)
        self.mark = ""  # of ``through``, once an answer says so
