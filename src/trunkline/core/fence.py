"""The decision of a destination inside the transaction of a flush or a seed, before it writes anything.

Every kind of destination decides here, and so does the model of the checker. A destination that does everything in one
statement must reach the same decision: the contract suite compares them.

A *mark* is a fingerprint of one version of one source. It is stored with the position, so that a position is never
taken for that of another source, or of another history of the same source. An empty mark is unknown: an older release
did not store it.

Rules
 F1  A stored token above mine: another deliverer owns the destination. Nothing is written under this token again.
 F2  If the stored position and mark are ``through`` and its mark, the write was done before: success, and nothing is
     written. Only a seed that was planned from there is written, and a repair, which ends where it begins: an operator
     wants those rows again.
 F3  A flush or a seed is written only over the position and mark that it was planned from. So a seed may move a
     position back on the request of an operator, but a late seed may not.
 F4  A flush is never written over rows of another source. A seed that was planned from them replaces them.
"""

from __future__ import annotations

import enum
from typing import NamedTuple


class Decision(enum.Enum):
    PROCEED = "proceed"
    ALREADY = "already"  # done before: success, nothing is written
    FENCED = "fenced"  # nothing is written
    FOREIGN = "foreign"  # nothing is written
    MOVED = "moved"  # nothing is written


class StoredPosition(NamedTuple):
    """What a destination has stored. Without a record or a table the position is 0."""

    position: int = 0
    token: int = 0
    mark: str = ""  # of ``position``
    source: str = ""  # identity of the source


class PlannedWrite(NamedTuple):
    """A flush, or a seed."""

    expected: int  # the position that it was planned from
    mark: str  # of that position
    through: int
    through_mark: str
    token: int
    source: str | None  # whose rows must be there; None: replace any rows
    repairs: bool = False  # it writes rows of the position that it was planned from, which stays


def decide(held: StoredPosition, step: PlannedWrite) -> Decision:
    """Whether a flush or a seed may be written."""
    if held.token > step.token:  # F1
        return Decision.FENCED
    if step.source is not None and held.position and held.source != step.source:  # F4
        return Decision.FOREIGN
    done = (held.position, held.mark) == (step.through, step.through_mark)
    if done and step.source is not None and not step.repairs:  # F2, also if it was planned from there
        return Decision.ALREADY
    if (held.position, held.mark) == (step.expected, step.mark):  # F3
        return Decision.PROCEED
    return Decision.ALREADY if done else Decision.MOVED  # F2
