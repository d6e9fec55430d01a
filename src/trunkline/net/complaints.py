"""Warnings about peers. A peer controls how often they occur, so the number of lines is bounded."""

from __future__ import annotations

import logging
import time
from typing import Final

LINES_MAX: Final = 10  # in a period; fewer: a second cause is missed; more: a hostile peer fills the disk
PERIOD_S: Final = 10.0
LINE_CHARACTERS_MAX: Final = 1_000


class Complaints:
    """At most ``LINES_MAX`` lines in ``PERIOD_S``; the next line reports how many were suppressed."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._period = float("-inf")  # when it began
        self._lines = 0
        self._suppressed = 0

    def warn(self, text: str) -> None:
        now = time.monotonic()
        if now - self._period >= PERIOD_S:
            self._period, self._lines = now, 0
        if self._lines >= LINES_MAX:
            self._suppressed += 1
            return
        self._lines += 1
        more = f" (suppressed: {self._suppressed} similar warnings)" if self._suppressed else ""
        self._suppressed = 0
        self._log.warning("%s%s", printable(text)[:LINE_CHARACTERS_MAX], more)


def printable(text: str) -> str:
    """On one line, without control characters for a terminal."""
    return "".join(each if each.isprintable() else "?" for each in text[: 2 * LINE_CHARACTERS_MAX])
