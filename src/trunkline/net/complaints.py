"""Log lines about what others do. They decide how often it happens, so the number of lines is bounded here."""

from __future__ import annotations

import logging
import time
from typing import Final

LINES_MAX: Final = 10  # in a period; fewer: a second cause is missed; more: a stranger fills the disk
PERIOD_S: Final = 10.0
LINE_CHARACTERS_MAX: Final = 1_000


class Complaints:
    """At most ``LINES_MAX`` lines in ``PERIOD_S``; what was left out is counted, and told with the next line."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._period = float("-inf")  # when it began
        self._lines = 0
        self._left_out = 0

    def warn(self, text: str) -> None:
        now = time.monotonic()
        if now - self._period >= PERIOD_S:
            self._period, self._lines = now, 0
        if self._lines >= LINES_MAX:
            self._left_out += 1
            return
        self._lines += 1
        more = f" (not logged: {self._left_out} more of this kind)" if self._left_out else ""
        self._left_out = 0
        self._log.warning("%s%s", printable(text)[:LINE_CHARACTERS_MAX], more)


def printable(text: str) -> str:
    """On one line, without anything that a terminal obeys."""
    return "".join(each if each.isprintable() else "?" for each in text[: 2 * LINE_CHARACTERS_MAX])
