"""Whether a position is of the source's present history: the source may have been replaced, or restored from a backup.

A *mark* is a hash of what only one version of one source has: its identity, the version, and what the source's books
say of it (a snapshot's time, a commit's text, a segment's owner). It lies in the destination beside the position.
"""

from __future__ import annotations

import hashlib
from typing import Final

from msgspec import Struct

MARK_DIGITS: Final = 15  # hexadecimal ones: 60 bits, which every kind of destination can store as a number
REMEDY: Final = (
    "nothing is written to it; if the source is what it should be, `trunkline deliver reseed` replaces what it holds"
)


class Lineage(Struct, frozen=True):
    """What a source says of some of its versions."""

    identity: str
    version: int  # the newest
    marks: dict[int, str]  # of those that were asked for; of some it may not know any more

    def divergence(self, source: str, position: int, mark: str) -> str:
        """Why this position is not of the source's history; empty if it is, or cannot be told from one that is."""
        if not position:
            return ""
        if source != self.identity:
            return (
                f"it holds rows of the source {source}, and this one is {self.identity}: the source table was "
                f"replaced; {REMEDY}"
            )
        if not self.has(position, mark):
            found = f"only at {self.version}" if position > self.version else "another one"
            return (
                f"it is at version {position} of the source, which is {found} now: the source was made anew, or "
                f"restored from a backup; {REMEDY}"
            )
        return ""

    def has(self, version: int, mark: str) -> bool:
        """Whether this version is there. One whose mark is not known, here or there, passes for it."""
        known = self.marks.get(version, "")
        return version <= self.version and (not mark or not known or mark == known)


def version_mark(identity: str, version: int, *facts: object) -> str:
    text = "\0".join(map(str, (identity, version, *facts)))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()[:MARK_DIGITS]
