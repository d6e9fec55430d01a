"""What delivery tells monitors, operators and recorded traces. None of it changes what the planner does.

The first part is announced by the planner, the second by whoever carries its jobs out.
"""

from __future__ import annotations

from trunkline.core.delivery_messages import JobMember, Result
from trunkline.core.effects import Event


class GroupStarted(Event, frozen=True):
    """A flush of ``(after, through]``, or a seed as of ``through`` (then ``after`` is 0)."""

    job: int
    after: int
    through: int
    members: tuple[JobMember, ...]
    seed: bool = False


class PlanDropped(Event, frozen=True):
    """What was planned for a destination does not hold any more: it is begun anew from what the destination says."""

    destination: str


class Halted(Event, frozen=True):
    """It is left alone until somebody resumes it, seeds it again or changes its configuration."""

    destination: str
    error: str


class BackedOff(Event, frozen=True):
    """It is tried again after some time."""

    destination: str
    failures: int
    error: str


class BreakerOpened(Event, frozen=True):
    """It failed so often in a row that it is only tried now and then."""

    destination: str
    error: str


class BreakerClosed(Event, frozen=True):
    destination: str


class HistoryExpired(Event, frozen=True):
    """The source no longer has what follows the destination's position: it is seeded again, or halts."""

    destination: str
    position: int
    oldest: int


class DeliveryFenced(Event, frozen=True):
    """Another deliverer has written there under a higher token; this one has left it alone."""

    destination: str
    token: int
    seen: int


class Seeded(Event, frozen=True):
    destination: str
    position: int


class Drained(Event, frozen=True):
    """It reached the version that was the newest when its draining began, and is left alone."""

    destination: str
    position: int


class Retired(Event, frozen=True):
    """Nothing is in flight to it any more: its record of a position may be forgotten."""

    destination: str


class Stopped(Event, frozen=True):
    """The result of a shutdown. ``behind``: destinations that did not reach the newest version (after a drain)."""

    behind: tuple[str, ...]


# --------------------------------------------------------------------------------------------------- told by the host


class JobEnded(Event, frozen=True):
    """All that a job did has come to its end. Told before the planner is."""

    job: int
    results: tuple[Result, ...]  # of every destination
