"""The state of one destination in the planner, and the config of the planner."""

from __future__ import annotations

import enum
from typing import NamedTuple

from msgspec import Struct

from trunkline.core.delivery_messages import NO_SPAN, Planned, SeedMode, Span
from trunkline.core.effects import SELF, Address


class PlannerConfig(Struct, frozen=True):
    interval_ms: int = 1000  # how long a change may wait for others; 0: not at all
    rows: int = 100_000  # this many waiting changes are flushed at once
    size_bytes: int = 64 * 2**20  # this many waiting bytes are flushed at once
    groups_max: int = 2  # concurrent flushes, beside one seed; too small: destinations that catch up delay the others
    members_max: int = 20_000  # of one group; too small: more jobs; too big: a killed worker leaves more in doubt
    retry_first_ms: int = 500  # doubled with each failure
    retry_max_ms: int = 60_000  # too big: a recovered destination is noticed late
    breaker_after: int = 5  # failures in a row after which it is retried every retry_max_ms
    record_ms: int = 30_000  # too small: many notes; too big: more to read again after a crash; 0: noted at once
    worker: Address = Address(SELF, "worker")
    control: Address = Address(SELF, "control")


class TrackStage(enum.Enum):
    """The stage of a destination in the planner."""

    UNOWNED = "unowned"  # this deliverer has no grant
    READING = "reading"  # its position is being read
    READY = "ready"  # waits for a new version, or for a free slot
    FLUSHING = "flushing"
    SEEDING = "seeding"
    BACKING_OFF = "backing off"
    HALTED = "halted"
    PAUSED = "paused"
    DRAINED = "drained"
    RETIRED = "retired"


class GroupKey(NamedTuple):
    """Destinations with an equal key share one job."""

    after: int  # start of the next window; for a seed, the version that the source must reach first, usually 0
    stamp: bool  # their positions must be written, even without rows
    now: bool  # and at once, even without a new version
    failing: bool  # their last job failed: kept apart from healthy ones
    crowd: int  # how many may share a job
    seed: SeedMode | None  # how they are seeded; None: they are flushed
    mark: str = ""  # of ``after``
    until: int = 0  # the window ends exactly here (P16); 0: where P8 says


class Track:
    """One destination.

    position          effective            planned           source
       |------ empty -----|---- in flight ----|                |
    """

    def __init__(self, config: Planned, crowd: int) -> None:
        self.config = config  # with the life that operators requested
        self.life_configured = config.life
        self.removed = False  # it is no longer configured
        self.stage = TrackStage.UNOWNED
        self.token = 0  # of the present grant; 0: none
        self.token_floor = 0  # grants below it are late
        self.known = False  # `position` was read from the destination
        self.settled = False  # no write that is still in flight to it can succeed (P11)
        self.position = 0
        self.mark = ""  # of the position, as stored in the destination
        self.ahead = 0  # some of its tables are at this later version (P16); 0: none
        self.empty = NO_SPAN
        self.empty_mark = ""  # of the version at which it ends
        self.strayed = False  # its position is not of the history of the source
        self.unreadable = False  # the source no longer has the changes after its position
        self.planned = 0  # the target of the job in flight, else the effective position
        self.job = 0  # in flight; 0: none
        self.doubted = False  # the answer of the job in flight does not count: the read epoch moved (P3)
        self.key: GroupKey | None = None  # of the group in which it waits
        self.retry_ms = 0  # the wait before the next attempt; 0: none
        self.failures = 0  # in a row
        self.moved = False  # it was not at the expected position, and was not written since
        self.crowd = crowd
        self.halted = False
        self.error = ""  # of the last failure
        self.reseed = 0  # number of the open request for a seed; 0: none
        self.reseed_done = 0  # number of the last completed one
        self.insists = False  # the request replaces whatever the destination holds
        self.discards = False  # histories, too
        self.drain_to = 0

    @property
    def name(self) -> str:
        return self.config.destination

    @property
    def effective(self) -> int:
        """The start of its next window: its part of the source is the same at its position and here.

        In between it may have changed and changed back, so this holds for exactly that position (P6).
        """
        return self.empty.through if self.empty.after == self.position else self.position

    @property
    def effective_mark(self) -> str:
        return self.empty_mark if self.empty.after == self.position else self.mark

    def doubt(self) -> None:
        """Read the destination again; the answer of the job in flight does not count."""
        self.known, self.ahead = False, 0
        self.doubted = self.job != 0

    def emptied(self, through: int, mark: str) -> None:
        """No rows for it up to here."""
        self.empty, self.empty_mark = Span(self.position, through), mark

    def forget_empty(self) -> None:
        """Drop the note about windows without rows."""
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
        self.members = set(members)  # without a result so far
        self.size = len(members)
        self.through = through
        self.stamp = stamp
        self.failing = failing
        self.places = places  # that it writes to (P14)
        self.mark = ""  # of ``through``, once an answer has it
