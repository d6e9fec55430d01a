"""Events that could not be understood, kept in a log of their own with the reason and the position.

Rules
 L1  Each malformed event is in the dead letters once: they are in the order of their positions, so whoever writes looks
     at the last one and adds only what comes after it.
 L2  The append is conditional on the tail that was looked at: of two who write at once, one looks again.
 L3  They are written before anything of their window is applied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

import trunkline.sync
from trunkline.delivery.addresses import LogAddress
from trunkline.delivery.sources.log_reading import cluster_of
from trunkline.errors import ConditionFailed, Hole, OutcomeUnknown, Trimmed, Unreachable

LOG_HEADER: Final = "dead-letter-log"
GLSN_HEADER: Final = "dead-letter-glsn"
REASON_HEADER: Final = "dead-letter-reason"
REASON_BYTES_MOST: Final = 1000
TRIES: Final = 20
LOOK_BACK_MOST: Final = 10_000  # letters of other logs; beyond them a letter may be written again, never lost


class DeadLetter(Struct, frozen=True):
    glsn: int
    reason: str
    payload: bytes


def write_dead_letters(address: LogAddress, letters: Sequence[DeadLetter]) -> int:
    """Add those that are not there yet; returns how many. The log is made if it is not there."""
    assert address.dead_letters is not None
    with cluster_of(address) as cluster:
        log = cluster.log(address.dead_letters, create=True)
        for _ in range(TRIES):
            tail = log.tail()
            known = _last_known(log, tail, address.log)
            new = [letter for letter in letters if letter.glsn > known]
            if not new:
                return 0
            headers = [
                {
                    LOG_HEADER: address.log.encode(),
                    GLSN_HEADER: str(letter.glsn).encode(),
                    REASON_HEADER: letter.reason.encode()[:REASON_BYTES_MOST],
                }
                for letter in new
            ]
            try:
                log.append([letter.payload for letter in new], headers=headers, expect=tail)
            except (ConditionFailed, OutcomeUnknown):
                continue  # L2: what is there now is looked at again
            return len(new)
    raise Unreachable(f"the dead letters {address.dead_letters} could not be written; it is tried again")


def _last_known(log: trunkline.sync.Log, tail: int, of: str) -> int:
    """The position of the newest letter of one log; 0 if there is none. Several logs may share their dead letters."""
    for glsn in range(tail - 1, max(0, tail - 1 - LOOK_BACK_MOST), -1):
        try:
            headers = log.read(glsn).headers
        except Hole:
            continue
        except Trimmed:
            break
        if headers.get(LOG_HEADER) == of.encode():
            return int(headers.get(GLSN_HEADER, b"0"))
    return 0
