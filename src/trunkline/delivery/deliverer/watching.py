"""Watches the source for new versions, in a thread of its own; looks cheaply, and tells only what is new."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from trunkline.core.delivery_messages import SourceAt
from trunkline.delivery.sources.contract import Source
from trunkline.errors import TrunklineError

logger = logging.getLogger(__name__)


class SourceWatch:
    """Polls the source every ``poll_ms``."""

    def __init__(
        self, source: Source, poll_ms: int, tell: Callable[[SourceAt], None], failed: Callable[[str], None]
    ) -> None:
        self._source = source
        self._poll_ms = poll_ms
        self._tell = tell
        self._failed = failed
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="source", daemon=True)
        self._mark: object = None
        self._known = SourceAt(0, 0)

    def look(self) -> SourceAt:
        """Look once, now; raises if the source cannot be reached."""
        mark = self._source.mark()
        if mark is not None and mark == self._mark:
            return self._known
        state = self._source.state(self._known.version)
        told = SourceAt(state.version, state.oldest, state.stops, first=state.first)
        self._mark = mark
        if told != self._known:
            self._known = told
            self._tell(told)
        return told

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        error = ""
        while not self._ended.wait(self._poll_ms / 1000):
            try:
                self.look()
                error = ""
            except TrunklineError as failure:
                self._mark = None
                if str(failure) != error:
                    logger.warning("the source is away: %s", failure)
                error = str(failure)
            self._failed(error)
