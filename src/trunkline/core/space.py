"""How much space a disk has, as roles and the registry see it."""

from __future__ import annotations

import enum


class Space(enum.IntEnum):
    """Coarse levels, so that the registry is rarely written."""

    ROOMY = 0
    TIGHT = 1  # accepts entries, but no copies for other nodes
    FULL = 2  # accepts no entries; fills, seals, ends and repairs use a reserve
    EXHAUSTED = 3  # stores nothing; seal, end, trim and drop still work. The registry shows FULL
