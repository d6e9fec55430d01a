"""Windows of the change feed, and the form in which their settled rows travel to a destination.

A version orders the source: a snapshot id of a lake, or a position of a log. A window is half open:

    after                through
      |  o   o   o   o   o  |        (after, through]: the change at `after` is not in it, the one at `through` is
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from msgspec import Struct

RESERVED_PREFIX: Final = "_trunkline"  # no source column and no destination table may begin with it
BEFORE_ALL: Final = -1  # the version before every other: nothing was live then, so all of a state arrived after it
OP_COLUMN: Final = "_trunkline_op"  # int8: an Op
DESTINATION_COLUMN: Final = "_trunkline_destination"  # int32: index of the destination among those of the pipeline


class Window(Struct, frozen=True):
    """The versions ``(after, through]``."""

    after: int
    through: int

    @property
    def empty(self) -> bool:
        return self.through <= self.after


class Op(IntEnum):
    """What a flush does about one key of one destination."""

    REMOVE = 0  # the key is gone: only its key columns are filled
    REPLACE = 1  # the key was there before the window and is there after it, with this row
    INSERT = 2  # the key was not there before; if the destination holds it, it is a duplicate key
