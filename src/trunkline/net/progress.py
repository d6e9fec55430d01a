"""Whether a peer is still working on large messages: distinguishes a slow peer from a silent one.

    large message sent --> leaving: the peer's kernel acknowledges bytes --> taken: the peer reads, checks, stores them

1. While bytes leave, the peer is at work if it takes ``STEP_BYTES`` in the time that a role waits for it. A peer that
   trickles is not.
2. Once everything is taken, the peer gets more time for more bytes, and must show signs of life: answers, or PONGs.
3. Small messages earn no extra time: a peer that does not answer those in time is silent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from trunkline.net.limits import KIB, MIB

STEP_BYTES = 64 * KIB  # too small: a trickling peer blocks a log; too big: slow links cannot send large bodies
WORK_BYTES = 4 * MIB  # stored while a role waits; too small: waits for hung disks; too big: gives up slow ones
MEASURE_EVERY_S = 0.1


class TransferProgress:
    """``outstanding`` returns how many bytes the peer's kernel has not acknowledged; ``ping`` sends a PING."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, outstanding: Callable[[], int], ping: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._outstanding = outstanding
        self._ping = ping
        self._timer: asyncio.TimerHandle | None = None  # while large messages leave
        self._sent = 0  # bytes, ever
        self._large_end = 0  # value of ``_sent`` after the last large message
        self._burst = 0  # bytes since large messages began to leave
        self._taken = 0  # bytes taken at the last step
        self._moved_at = -1e9  # time of the last step
        self._done_at = -1e9  # when the last large message was taken

    def sent(self, size: int) -> None:
        """Call for every message that is sent."""
        self._sent += size
        if self._timer is not None:
            self._burst += size
        if size > STEP_BYTES:
            self._large_end = self._sent
            if self._timer is None:
                self._burst, self._taken = size, self._sent - self._outstanding()
                self._moved_at = self._loop.time()
                self._timer = self._loop.call_later(MEASURE_EVERY_S, self._tick)

    def at_work(self, within_s: float, heard_at: float) -> bool:
        """Whether the peer made progress within this time; ``heard_at``: when it last sent anything."""
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

    def _tick(self) -> None:
        self._measure()
        if self._timer is not None:
            self._timer = self._loop.call_later(MEASURE_EVERY_S, self._tick)

    def _measure(self) -> None:
        taken, now = self._sent - self._outstanding(), self._loop.time()
        done = taken >= self._large_end
        if done or taken - self._taken >= STEP_BYTES:
            self._taken, self._moved_at = taken, now
        if done:
            self.stop()
            self._done_at = now
            self._ping()
