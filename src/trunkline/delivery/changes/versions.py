"""Versions of a source: windows of them, and the marks that identify them.

A version orders the source: a snapshot id of a lake, or a position of a log. A window is half open:

    after                through
      |  o   o   o   o   o  |        (after, through]: the change at `after` is not in it, the one at `through` is

A *mark* is a hash of what is unique to one version of one source: its identity, the version, and metadata of it (a
snapshot's time, a commit's text, a segment's owner). A destination stores it with the position, so that a source that
was replaced or restored is recognised.
"""

from __future__ import annotations

import hashlib
from typing import Final

from msgspec import Struct

BEFORE_ALL: Final = -1  # the version before every other: nothing was live, so every row of a state arrived after it
MARK_DIGITS: Final = 15  # hexadecimal: 60 bits, which every kind of destination can store as a number
REMEDY: Final = "nothing is written to it; if the source is the right one, `trunkline deliver reseed` replaces its rows"


class Window(Struct, frozen=True):
    """The versions ``(after, through]``."""

    after: int
    through: int

    @property
    def empty(self) -> bool:
        return self.through <= self.after


class Lineage(Struct, frozen=True):
    """The identity of a source and the marks of some of its versions."""

    identity: str
    version: int  # the newest
    marks: dict[int, str]  # of the requested versions that the source still knows

    def divergence(self, source: str, position: int, mark: str) -> str:
        """Why a position is not of the source's history; empty if it is, or if that is unknown."""
        if not position:
            return ""
        if source != self.identity:
            return (
                f"it holds rows of the source {source}, not of {self.identity}: the source table was replaced; {REMEDY}"
            )
        if not self.has(position, mark):
            found = f"the source is at {self.version}" if position > self.version else "the source has another one"
            return (
                f"it is at version {position}, and {found}: the source was recreated, or restored from a backup; "
                f"{REMEDY}"
            )
        return ""

    def has(self, version: int, mark: str) -> bool:
        """Whether the source has this version. Without a mark on either side, the number alone decides."""
        known = self.marks.get(version, "")
        return version <= self.version and (not mark or not known or mark == known)


def version_mark(identity: str, version: int, *facts: object) -> str:
    text = "\0".join(map(str, (identity, version, *facts)))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()[:MARK_DIGITS]
