"""Polls the source for new versions in its own thread, and sends the planner what is new.

A poll that does not end is as bad as one that fails: ``polling_s`` shows it. A source whose newest changes cannot be
read yet is reported like one that does not answer. A source that no longer has the version of
the last poll was replaced, or restored from a backup: another history begins.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from time import monotonic
from typing import Final

from trunkline.core.delivery_messages import SourceAt
from trunkline.delivery.sources.contract import Source, SourceState
from trunkline.errors import TrunklineError
from trunkline.plural import plural
from trunkline.threads import Threads

logger = logging.getLogger(__name__)

NAMES_MAX: Final = 5  # tables in a line


class SourceWatch:
    """Polls the source every ``poll_ms``."""

    def __init__(
        self,
        source: Source,
        poll_ms: int,
        send: Callable[[SourceAt], None],
        failed: Callable[[str], None],
        threads: Threads,
    ) -> None:
        self._source = source
        self._poll_ms = poll_ms
        self._send = send
        self._failed = failed
        self._ended = threading.Event()
        self._threads = threads
        self._thread: threading.Thread | None = None
        self._began: float | None = None  # the poll in flight
        self._hint: object = None
        self._known = SourceAt(0, 0)
        self._state: SourceState | None = None  # as it was sent

    def poll(self) -> SourceAt:
        """Poll once; raises if the source is unreachable."""
        hint = self._source.change_hint()
        if hint is not None and hint == self._hint:
            return self._known
        state, history = self._source.state(self._known.version), self._known.history
        if (why := self._replaced(state)) and self._state is not None:
            logger.warning("the source was replaced or restored: %s; destinations are compared with it again", why)
            state, history = self._source.state(0), history + 1
        now = SourceAt(state.version, state.oldest, state.stops, first=state.first, history=history)
        if state.awaited and state.awaited != (() if self._state is None else self._state.awaited):
            logger.warning("%s: the set goes on without them until their first snapshots are complete", _named(state))
        self._hint, self._state = hint, state
        if now != self._known:
            self._known = now
            self._send(now)
        return now

    def _replaced(self, now: SourceState) -> str:
        """Why this is not a later state of the same history; empty if it is."""
        before = self._state
        if before is None:
            return ""
        if before.identity != now.identity:
            return f"it was {before.identity} and is {now.identity}"
        if now.version < before.version:
            return f"it was at version {before.version} and is at {now.version}"
        if before.mark and now.known_mark and before.mark != now.known_mark:
            return f"its version {before.version} has changed"
        return ""

    @property
    def waiting(self) -> str:
        """Why the source has nothing newer, though it has changes; empty if it has not. Any thread."""
        state = self._state
        return "" if state is None else state.waiting

    def begin(self) -> None:
        self._thread = self._threads.start("source", self._watch)

    def end(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def polling_s(self) -> float:
        """How long the poll in flight has taken; 0 between polls. Any thread."""
        began = self._began
        return 0.0 if began is None else monotonic() - began

    def _watch(self) -> None:
        error = ""
        while not self._ended.wait(self._poll_ms / 1000):
            self._began = monotonic()
            try:
                self.poll()
                if self.waiting and self.waiting != error:
                    logger.warning("the source has nothing to read yet: %s", self.waiting)
                error = self.waiting
            except TrunklineError as failure:
                self._hint = None
                if str(failure) != error:
                    logger.warning("the source is unreachable: %s", failure)
                error = str(failure)
            self._began = None
            self._failed(error)


def _named(state: SourceState) -> str:
    """Tables that are not in the set yet."""
    names = ", ".join(state.awaited[:NAMES_MAX])
    more = len(state.awaited) - NAMES_MAX
    return f"{plural(len(state.awaited), 'table')} not read yet: {names}{f' and {more} more' if more > 0 else ''}"
