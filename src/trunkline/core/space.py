"""How much room a disk has, as roles and the registry know it."""

from __future__ import annotations

import enum


class Space(enum.IntEnum):
    """How much room a node's disk has: coarsely, for the registry is not to be written all the time."""

    ROOMY = 0
    TIGHT = 1  # it takes entries, but no copies of what others hold
    FULL = 2  # it takes no entries either: fills, seals, ends and repairs go on, from a reserve
    EXHAUSTED = 3  # nothing is stored; what is here can be sealed, ended, trimmed and dropped. Told as FULL
