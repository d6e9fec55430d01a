"""Who may begin now: so many at a time, in the order in which they asked.

When a node comes or goes, thousands of logs have something to do. All at once they would only make each other wait, and
take each other's slow answers for none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Turns:
    """A turn ends when it is given back, or after ``turn_s``: who works for long does not keep the others waiting."""

    def __init__(self, most: int, turn_s: float) -> None:
        self._most = most
        self._turn_s = turn_s
        self._waiting: dict[str, Callable[[], None]] = {}  # in order; each name once
        self._running: dict[str, asyncio.TimerHandle] = {}
        self._beginning = False

    def ask(self, name: str, begin: Callable[[], None]) -> None:
        """``begin`` is called when it is this one's turn, perhaps at once. One that has asked already waits on."""
        self._waiting.setdefault(name, begin)
        self._begin_some()

    def give_back(self, name: str) -> None:
        timer = self._running.pop(name, None)
        if timer is not None:
            timer.cancel()
            self._begin_some()

    def forget(self, name: str) -> None:
        self._waiting.pop(name, None)
        self.give_back(name)

    def _begin_some(self) -> None:
        if self._beginning:  # who begins may ask, or give back at once: the loop below goes on with that
            return
        self._beginning = True
        try:
            while len(self._running) < self._most and self._ready() is not None:
                name = self._ready()
                assert name is not None
                begin = self._waiting.pop(name)
                loop = asyncio.get_running_loop()
                self._running[name] = loop.call_later(self._turn_s, self.give_back, name)
                begin()
        finally:
            self._beginning = False

    def _ready(self) -> str | None:
        """The first that waits and has no turn: one that asks during its turn gets another one afterwards."""
        return next((name for name in self._waiting if name not in self._running), None)
