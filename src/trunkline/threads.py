"""Threads that do not die silently.

Rules
 T1  Every long-lived thread of a process, and work of a pool, runs through this module, under a name.
 T2  Work handles the errors that it expects. Any other exception is a bug: it is logged with its traceback, kept in
     ``died`` for the readiness probe, and reported to the callback, which shuts the process down cleanly. A process
     that lost a thread looks healthy and is not.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)


class Threads:
    """The threads of one process, or of a part of it that can be restarted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._died: tuple[str, ...] = ()
        self._on_death: Callable[[str], None] | None = None

    @property
    def died(self) -> tuple[str, ...]:
        """Which threads died, and why."""
        return self._died

    def when_one_dies(self, callback: Callable[[str], None]) -> None:
        """Call ``callback`` in a thread that dies, or now if one has died already."""
        with self._lock:
            self._on_death = callback
            before = self._died
        for why in before[:1]:
            callback(why)

    def start(self, name: str, work: Callable[[], object]) -> threading.Thread:
        """Start a daemon thread."""
        thread = threading.Thread(target=self.run, args=(name, work), name=name, daemon=True)
        thread.start()
        return thread

    def run(self, name: str, work: Callable[[], object]) -> None:
        """Run the work in the calling thread, such as one of a pool."""
        try:
            work()
        except BaseException as error:
            logger.critical("the thread %s died, which is a bug", name, exc_info=True)
            self._note(f"the thread {name} died, which is a bug: {error!r:.500}")

    def _note(self, why: str) -> None:
        with self._lock:
            self._died = (*self._died, why)[:10]  # the first ones matter most
            callback = self._on_death
        if callback is not None:
            callback(why)
