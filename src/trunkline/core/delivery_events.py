"""Events of delivery for monitors and operators. None of them changes what the planner does.

The planner announces the first part, the host that carries out its jobs the second.
"""

from __future__ import annotations

from trunkline.core.delivery_messages import JobMember, Result
from trunkline.core.effects import Event


class GroupStarted(Event, frozen=True):
    """A flush of ``(after, through]``, or a seed at ``through`` (then ``after`` is 0)."""

    job: int
    after: int
    through: int
    members: tuple[JobMember, ...]
    seed: bool = False


class PlanDropped(Event, frozen=True):
    """The plan for a destination no longer holds: it starts over from what the destination has stored."""

    destination: str


class Halted(Event, frozen=True):
    """It is left alone until an operator resumes it, seeds it again or changes its configuration."""

    destination: str
    error: str


class BackedOff(Event, frozen=True):
    """It is retried later."""

    destination: str
    failures: int
    error: str


class BreakerOpened(Event, frozen=True):
    """It failed so often in a row that it is retried only rarely."""

    destination: str
    error: str


class BreakerClosed(Event, frozen=True):
    destination: str


class HistoryExpired(Event, frozen=True):
    """The source no longer has the changes after the position of the destination: it is seeded again, or halts."""

    destination: str
    position: int
    oldest: int


class DeliveryFenced(Event, frozen=True):
    """Another deliverer wrote there under a higher token; this one leaves it alone."""

    destination: str
    token: int
    seen: int


class Seeded(Event, frozen=True):
    destination: str
    position: int


class Drained(Event, frozen=True):
    """It reached the version at which its draining began, and is left alone."""

    destination: str
    position: int


class Retired(Event, frozen=True):
    """Nothing is in flight to it: its position may be removed."""

    destination: str


class Stopped(Event, frozen=True):
    """The result of a shutdown. ``behind``: destinations that did not reach the newest version (after a drain)."""

    behind: tuple[str, ...]


# --------------------------------------------------------------------------------------------------- of the host


class JobEnded(Event, frozen=True):
    """A job has ended completely. Reported before the planner gets the answer."""

    job: int
    results: tuple[Result, ...]  # of every destination
