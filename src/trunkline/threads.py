"""Threads that do not die in silence.

Rules
 T1  A thread that a process keeps is started here, and so is work that a pool does for it: under a name.
 T2  What such work is expected to raise, it handles itself. Anything else is a bug: it is logged with its traceback, is
     kept in ``died`` for whoever is asked whether the process is ready, and is told to whoever runs the process, who
     ends it in order. A process without one of its threads looks healthy, and is not.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)


class Threads:
    """The threads of one process, or of one part of it that can be made anew."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._died: tuple[str, ...] = ()
        self._tell: Callable[[str], None] | None = None

    @property
    def died(self) -> tuple[str, ...]:
        """What broke off, and why; in words."""
        return self._died

    def when_one_dies(self, tell: Callable[[str], None]) -> None:
        """Whom to tell, in the thread that dies. What died before is told now."""
        with self._lock:
            self._tell = tell
            before = self._died
        for why in before[:1]:
            tell(why)

    def start(self, name: str, work: Callable[[], object]) -> threading.Thread:
        """It does not keep the interpreter from ending."""
        thread = threading.Thread(target=self.run, args=(name, work), name=name, daemon=True)
        thread.start()
        return thread

    def run(self, name: str, work: Callable[[], object]) -> None:
        """Do the work here, in a thread of a pool or of somebody else."""
        try:
            work()
        except BaseException as error:
            logger.critical("the thread %s broke off, which is a bug", name, exc_info=True)
            self._note(f"the thread {name} broke off, which is a bug: {error!r:.500}")

    def _note(self, why: str) -> None:
        with self._lock:
            self._died = (*self._died, why)[:10]  # the first ones say the most
            tell = self._tell
        if tell is not None:
            tell(why)
