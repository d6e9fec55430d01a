"""What a destination decides inside the transaction of a flush or a seed, before it writes anything.

Every kind of destination asks here, and so does the checker's model of one. Whoever cannot ask inside a transaction
(one statement does it all) must come to the same answer: the contract suite compares them.

A *mark* is a short text that only one version of one source has. It is stored beside the position, so that a position
cannot be taken for that of another source, or of another history of the same one. An empty mark is not known: an older
release did not store it.

Rules
 F1  A token above mine: another deliverer owns it now. Nothing of mine is written, ever again under this token.
 F2  What was done before (the stored position is ``through``, with its mark) is a success, and nothing is written. Only
     a seed that was planned from there is written: an operator wants those rows anew.
 F3  A flush or a seed is written only over what it was planned from: the stored position and mark are the expected
     ones. So a seed may take a position back, as an operator wishes, but one that comes too late does not.
 F4  A flush is never written over rows of another source. A seed that was planned from them replaces them.
"""

from __future__ import annotations

import enum
from typing import NamedTuple


class Decision(enum.Enum):
    PROCEED = "proceed"
    ALREADY = "already"  # done before; success, nothing is written
    FENCED = "fenced"  # nothing is written
    FOREIGN = "foreign"  # nothing is written
    MOVED = "moved"  # nothing is written


class StoredPosition(NamedTuple):
    """What a destination has stored. One without a record, or without a table, has position 0."""

    position: int = 0
    token: int = 0
    mark: str = ""  # of the version at ``position``
    source: str = ""  # identity of the source


class PlannedWrite(NamedTuple):
    """A flush, or a seed."""

    expected: int  # the position that it was planned from
    mark: str  # of that position
    through: int
    through_mark: str
    token: int
    source: str | None  # whose rows must be there; None: whatever is there is replaced


def decide(held: StoredPosition, step: PlannedWrite) -> Decision:
    """What becomes of a flush or a seed."""
    if held.token > step.token:  # F1
        return Decision.FENCED
    if step.source is not None and held.position and held.source != step.source:  # F4
        return Decision.FOREIGN
    done = (held.position, held.mark) == (step.through, step.through_mark)
    if done and step.source is not None:  # F2, also of one that was planned from there
        return Decision.ALREADY
    if (held.position, held.mark) == (step.expected, step.mark):  # F3
        return Decision.PROCEED
    return Decision.ALREADY if done else Decision.MOVED  # F2
