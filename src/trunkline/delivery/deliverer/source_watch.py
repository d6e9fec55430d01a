"""Watches the source for new versions, in a thread of its own; looks cheaply, and tells only what is new.

A look that does not come to its end is as bad as one that fails: ``taking_s`` shows it. A source that does not have the
version any more which it had at the last look was replaced, or restored from a backup: then another history begins,
which is told.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from time import monotonic

from trunkline.core.delivery_messages import SourceAt
from trunkline.delivery.sources.contract import Source, SourceState
from trunkline.errors import TrunklineError
from trunkline.threads import Threads

logger = logging.getLogger(__name__)


class SourceWatch:
    """Polls the source every ``poll_ms``."""

    def __init__(
        self,
        source: Source,
        poll_ms: int,
        tell: Callable[[SourceAt], None],
        failed: Callable[[str], None],
        threads: Threads,
    ) -> None:
        self._source = source
        self._poll_ms = poll_ms
        self._tell = tell
        self._failed = failed
        self._ended = threading.Event()
        self._threads = threads
        self._thread: threading.Thread | None = None
        self._began: float | None = None  # the look that is under way
        self._mark: object = None
        self._known = SourceAt(0, 0)
        self._state: SourceState | None = None  # as it was told

    def look(self) -> SourceAt:
        """Look once, now; raises if the source cannot be reached."""
        mark = self._source.change_hint()
        if mark is not None and mark == self._mark:
            return self._known
        state, history = self._source.state(self._known.version), self._known.history
        if (why := self._replaced(state)) and self._state is not None:
            logger.warning("the source is not what it was: %s; destinations are compared with it", why)
            state, history = self._source.state(0), history + 1
        told = SourceAt(state.version, state.oldest, state.stops, first=state.first, history=history)
        self._mark, self._state = mark, state
        if told != self._known:
            self._known = told
            self._tell(told)
        return told

    def _replaced(self, now: SourceState) -> str:
        """Why this is not a later state of what was told; empty if it is."""
        before = self._state
        if before is None:
            return ""
        if before.identity != now.identity:
            return f"it was {before.identity}, and is {now.identity}"
        if now.version < before.version:
            return f"it was at version {before.version}, and is at {now.version}"
        if before.mark and now.known_mark and before.mark != now.known_mark:
            return f"its version {before.version} is another one"
        return ""

    def begin(self) -> None:
        self._thread = self._threads.start("source", self._watch)

    def end(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def taking_s(self) -> float:
        """How long the look takes that is under way; 0 between two of them. Any thread."""
        began = self._began
        return 0.0 if began is None else monotonic() - began

    def _watch(self) -> None:
        error = ""
        while not self._ended.wait(self._poll_ms / 1000):
            self._began = monotonic()
            try:
                self.look()
                error = ""
            except TrunklineError as failure:
                self._mark = None
                if str(failure) != error:
                    logger.warning("the source is away: %s", failure)
                error = str(failure)
            self._began = None
            self._failed(error)
