"""Dead letters: malformed events in a log of their own, with the reason and the position.

Rules
 L1  Each malformed event is written once. Many tasks write windows in any order: a writer searches the newest letters
     for each event, and appends the missing ones. One that lies further back may be written again; none is omitted.
 L2  The append is conditional on the tail of that search: of two concurrent writers, one searches again.
 L3  A task writes the dead letters of its window before it applies any change of it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

import trunkline.sync
from trunkline.delivery.config.addresses import LogAddress
from trunkline.delivery.sources.log_reader import cluster_of
from trunkline.errors import ConditionFailed, CorruptEntry, EntriesLost, OutcomeUnknown, Trimmed, Unreachable

LOG_HEADER: Final = "dead-letter-log"
GLSN_HEADER: Final = "dead-letter-glsn"
REASON_HEADER: Final = "dead-letter-reason"
REASON_BYTES_MAX: Final = 1000
GLSN_DIGITS_MAX: Final = 19
APPEND_LETTERS_MAX: Final = 1000
APPEND_BYTES_MAX: Final = 8 << 20  # one letter may be larger, as an entry of a log may
TRIES: Final = 20
WAIT_S: Final = 0.02  # before the second try; it doubles
WAIT_S_MAX: Final = 1.0  # too small: all tries happen while another append is under way
LOOK_BACK_MAX: Final = 200_000  # letters; fewer: large windows repeat some; more: a search takes longer than a second


class DeadLetter(Struct, frozen=True):
    glsn: int
    reason: str
    payload: bytes


def write_dead_letters(address: LogAddress, letters: Sequence[DeadLetter]) -> int:
    """Append the missing ones; returns how many. Creates the log if needed."""
    assert address.dead_letters is not None
    written = 0
    with cluster_of(address) as cluster:
        log = cluster.log(address.dead_letters, create=True)
        for tries in range(TRIES):
            tail = log.tail()
            known = _known(log, cluster.describe(address.dead_letters).trim + 1, tail, address.log)
            try:
                for some in _appends([letter for letter in letters if letter.glsn not in known]):
                    headers = [_headers(address.log, letter) for letter in some]
                    log.append([letter.payload for letter in some], headers=headers, expect=tail)
                    tail += len(some)
                    written += len(some)
            except (ConditionFailed, OutcomeUnknown):
                time.sleep(min(WAIT_S * 2**tries, WAIT_S_MAX))  # the other append may not be written yet
                continue  # L2
            return written
    raise Unreachable(f"the dead letters {address.dead_letters} could not be written; retrying")


def _headers(of: str, letter: DeadLetter) -> dict[str, bytes]:
    return {
        LOG_HEADER: of.encode(),
        GLSN_HEADER: str(letter.glsn).encode(),
        REASON_HEADER: letter.reason.encode(errors="replace")[:REASON_BYTES_MAX],
    }


def _appends(letters: Sequence[DeadLetter]) -> Iterator[list[DeadLetter]]:
    """Batches of a bounded size, in order."""
    some: list[DeadLetter] = []
    size = 0
    for letter in letters:
        if some and (len(some) == APPEND_LETTERS_MAX or size + len(letter.payload) > APPEND_BYTES_MAX):
            yield some
            some, size = [], 0
        some.append(letter)
        size += len(letter.payload)
    if some:
        yield some


def _known(log: trunkline.sync.Log, oldest: int, tail: int, of: str) -> set[int]:
    """The positions of the newest letters of one log. Several logs and pipelines may share their dead letters."""
    found: set[int] = set()
    start = max(oldest, tail - LOOK_BACK_MAX)
    while start < tail:
        try:
            for letter in log.subscribe(start, tail - 1):
                start = letter.glsn + 1
                headers = letter.headers
                glsn = headers.get(GLSN_HEADER, b"")
                if headers.get(LOG_HEADER) == of.encode() and glsn.isdigit() and len(glsn) <= GLSN_DIGITS_MAX:
                    found.add(int(glsn))
        except Trimmed as trimmed:
            start = trimmed.point + 1
        except (EntriesLost, CorruptEntry) as passed:
            start = passed.end
        else:
            break
    return found
