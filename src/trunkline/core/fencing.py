"""What a destination decides inside the transaction of a flush or a seed, before it writes anything.

Every kind of destination asks here, and so does the checker's model of one. Whoever cannot ask inside a transaction
(one statement does it all) must come to the same answer.

Rules
 F1  A token above mine: another deliverer owns it now. Nothing of mine is written, ever again under this token.
 F2  A flush whose ``through`` is reached was done before: success, and nothing is written.
 F3  A flush is written only where it was planned from: the stored position is the expected one.
 F4  A seed replaces what is there, also at the very position that is stored (an operator asked for it), but never what
     is past it: that would be an old seed which comes too late.
"""

from __future__ import annotations

import enum


class Decision(enum.Enum):
    PROCEED = "proceed"
    ALREADY = "already"  # done before; success, nothing is written
    FENCED = "fenced"  # nothing is written
    MOVED = "moved"  # nothing is written


def decide_flush(position: int, token: int, *, expected: int, through: int, mine: int) -> Decision:
    """What becomes of a flush to ``through``. A destination without a record has position 0 and token 0."""
    if token > mine:  # F1
        return Decision.FENCED
    if position >= through:  # F2
        return Decision.ALREADY
    return Decision.PROCEED if position == expected else Decision.MOVED  # F3


def decide_seed(position: int, token: int, *, through: int, mine: int) -> Decision:
    """What becomes of a seed as of ``through``."""
    if token > mine:  # F1
        return Decision.FENCED
    return Decision.ALREADY if position > through else Decision.PROCEED  # F4
