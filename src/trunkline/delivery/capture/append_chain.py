"""Appends entries in order: one append is in flight at a time, with everything that was queued meanwhile.

Rules
 A1  Entries are appended in the order in which they were added. Those of one append become one frame, which is
     committed whole or not at all.
 A2  After an append that failed nothing more is appended: a later entry would follow one that the log lacks.
 A3  Once ``close`` has returned, the chain appends nothing more.
 A4  A catalog is the last of its append: only then is its position known, which later entries name.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from msgspec import Struct

from trunkline.core.capture_messages import AppendOutcome
from trunkline.delivery.changes.database_entries import EntryKind, Heading
from trunkline.errors import OutcomeUnknown, OwnedByAnother, Refused, TrunklineError
from trunkline.threads import Threads

BYTES_MAX: Final = 4 * 1024 * 1024  # of one append, unless it has one entry
ENTRIES_MAX: Final = 64


class Encoded(Struct, frozen=True):
    """An entry without the position of its catalog. ``number``: of the request that it belongs to."""

    number: int
    heading: Heading
    payload: bytes


class Ended(Struct, frozen=True):
    """Every entry up to ``number`` has this outcome, or had it before."""

    number: int
    outcome: AppendOutcome
    error: TrunklineError | None = None


class Append(Protocol):
    def __call__(self, payload: Sequence[bytes], *, headers: Sequence[Mapping[str, bytes]]) -> int: ...


class AppendChain:
    """``ended`` is called in the thread of the chain."""

    def __init__(self, append: Append, catalog_glsn: int, ended: Callable[[Ended], None], threads: Threads) -> None:
        self._append = append
        self._catalog_glsn = catalog_glsn  # 0: there is none yet
        self._ended = ended
        self._queue: deque[Encoded] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._failed = False
        self._thread = threads.start("capture-appends", self._run)

    def add(self, entries: Sequence[Encoded]) -> None:
        with self._changed:
            self._queue.extend(entries)
            self._changed.notify()

    def close(self) -> None:
        """Wait for the append in flight, and drop what is queued."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while batch := self._next():
            self._ended(Ended(batch[-1].number, AppendOutcome.REFUSED) if self._failed else self._appended(batch))

    def _next(self) -> list[Encoded]:
        """The entries of the next append; none: the chain is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._queue)
            if self._closed:
                return []
            taken = [self._queue.popleft()]
            size = len(taken[0].payload)
            while self._queue and len(taken) < ENTRIES_MAX and taken[-1].heading.kind is not EntryKind.CATALOG:
                size += len(self._queue[0].payload)
                if size > BYTES_MAX:
                    break
                taken.append(self._queue.popleft())
            return taken

    def _appended(self, batch: Sequence[Encoded]) -> Ended:
        headers = [_named(each.heading, self._catalog_glsn).headers() for each in batch]
        try:
            glsn = self._append([each.payload for each in batch], headers=headers)
        except TrunklineError as error:
            self._failed = True
            return Ended(batch[-1].number, _outcome(error), error)
        if batch[-1].heading.kind is EntryKind.CATALOG:
            self._catalog_glsn = glsn + len(batch) - 1
        number = batch[-1].number
        with self._changed:  # entries of the last request may be in the next append
            unfinished = bool(self._queue) and self._queue[0].number == number
        return Ended(number - unfinished, AppendOutcome.COMMITTED)


def _named(heading: Heading, catalog: int) -> Heading:
    return Heading(heading.kind, heading.position, catalog or None, heading.index, heading.end)


def _outcome(error: TrunklineError) -> AppendOutcome:
    if isinstance(error, OwnedByAnother):
        return AppendOutcome.FENCED
    if isinstance(error, OutcomeUnknown) or not isinstance(error, Refused):
        return AppendOutcome.UNKNOWN
    return AppendOutcome.REFUSED
