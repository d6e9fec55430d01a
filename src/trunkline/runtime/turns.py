"""Turns: a limited number of tasks run at a time, in the order of their requests.

When a node comes or goes, thousands of logs have work. All at once they would only delay each other, and take slow
answers for silence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Turns:
    """A turn ends when it is given back, or after ``turn_s``: a long task does not block the others."""

    def __init__(self, running_max: int, turn_s: float) -> None:
        self._running_max = running_max
        self._turn_s = turn_s
        self._waiting: dict[str, Callable[[], None]] = {}  # in order; each name once
        self._running: dict[str, asyncio.TimerHandle] = {}
        self._starting = False

    def ask(self, name: str, start: Callable[[], None]) -> None:
        """Call ``start`` at the turn of this name, perhaps at once. A name that waits already keeps its place."""
        self._waiting.setdefault(name, start)
        self._start_some()

    def give_back(self, name: str) -> None:
        timer = self._running.pop(name, None)
        if timer is not None:
            timer.cancel()
            self._start_some()

    def forget(self, name: str) -> None:
        self._waiting.pop(name, None)
        self.give_back(name)

    def _start_some(self) -> None:
        if self._starting:  # ``start`` may ask or give back: the loop below handles it
            return
        self._starting = True
        try:
            while len(self._running) < self._running_max and (name := self._next()) is not None:
                start = self._waiting.pop(name)
                loop = asyncio.get_running_loop()
                self._running[name] = loop.call_later(self._turn_s, self.give_back, name)
                start()
        finally:
            self._starting = False

    def _next(self) -> str | None:
        """The first that waits and has no turn: a name that asks during its turn gets another one afterwards."""
        return next((name for name in self._waiting if name not in self._running), None)
