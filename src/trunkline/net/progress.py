"""Whether a peer is at work on what it was sent: a slow one that takes its time is told from one that is silent.

    large message handed over --> leaving: its kernel takes the bytes --> taken: it reads, checks and stores them

1. While bytes leave, the peer is at work as long as it takes ``STEP_BYTES`` in the time that a role waits for it. One
   that trickles is not.
2. Once everything is taken it is given more time for more bytes, and has to show signs of life: answers, or PONGs.
3. Small messages give no patience: a peer that does not answer those in time is silent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from trunkline.net.limits import KIB, MIB

STEP_BYTES = 64 * KIB  # too small: a peer that trickles holds a log; too big: slow links cannot send large bodies
WORK_BYTES = 4 * MIB  # stored while a role waits; too small: hung disks are waited for; too big: slow ones are not
LOOK_S = 0.1


class Progress:
    """``outstanding`` tells how many bytes the peer's kernel has not taken yet; ``ping`` asks for a sign of life."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, outstanding: Callable[[], int], ping: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._outstanding = outstanding
        self._ping = ping
        self._timer: asyncio.TimerHandle | None = None  # while large messages leave
        self._sent = 0  # bytes, ever
        self._large_end = 0  # how many of them there were when the last large message was handed over
        self._burst = 0  # bytes since large messages began to leave
        self._taken = 0  # bytes that had been taken when a step was seen
        self._moved_at = -1e9  # when a step was seen
        self._done_at = -1e9  # when the last large message had been taken

    def sent(self, size: int) -> None:
        """A message was handed over."""
        self._sent += size
        if self._timer is not None:
            self._burst += size
        if size > STEP_BYTES:
            self._large_end = self._sent
            if self._timer is None:
                self._burst, self._taken = size, self._sent - self._outstanding()
                self._moved_at = self._loop.time()
                self._timer = self._loop.call_later(LOOK_S, self._look)

    def at_work(self, within_s: float, heard_at: float) -> bool:
        """Whether the peer did something of the kind within this time; ``heard_at``: when it was heard last."""
        now = self._loop.time()
        if self._timer is not None:
            self._measure()
        if self._timer is not None:
            return now - self._moved_at < within_s
        if now > self._done_at + within_s * (1 + self._burst / WORK_BYTES):
            return False
        self._ping()
        return now - max(self._done_at, heard_at) < within_s

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._measure()
        if self._timer is not None:
            self._timer = self._loop.call_later(LOOK_S, self._look)

    def _measure(self) -> None:
        taken, now = self._sent - self._outstanding(), self._loop.time()
        done = taken >= self._large_end
        if done or taken - self._taken >= STEP_BYTES:
            self._taken, self._moved_at = taken, now
        if done:
            self.stop()
            self._done_at = now
            self._ping()
