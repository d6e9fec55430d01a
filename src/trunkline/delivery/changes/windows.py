"""Windows of versions.

A version orders the source: a snapshot id of a lake, or a position of a log. A window is half open:

    after                through
      |  o   o   o   o   o  |        (after, through]: the change at `after` is not in it, the one at `through` is
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

BEFORE_ALL: Final = -1  # the version before every other: nothing was live, so every row of a state arrived after it


class Window(Struct, frozen=True):
    """The versions ``(after, through]``."""

    after: int
    through: int

    @property
    def empty(self) -> bool:
        return self.through <= self.after
