"""Counts the rows that no destination takes, each once, in the control store that all deliverers of a pipeline share.

            counted          after          through
    -----------|----- gap -----|----- a job ---|          the gap is read for itself, then the job's counts are added

Rules
 N1  The store adds a window only where its counts end: a row is counted once, whoever tells it, and how often.
 N2  What a job counted is used where it fits. What is missing (a job broke off after its destinations were written, or
     windows overlap) is read once more, for the counts alone.
 N3  Such a read crosses no stop. Where nothing was counted yet, it is the state of the source that is counted.
 N4  A gap gets time to close by itself: another job, or another deliverer, may be about to tell it.
 N5  What the source has forgotten cannot be counted any more: this is told loudly, and passed over.
 N6  When the source was replaced or restored from a backup, counting goes on from the version that it was found at:
     what was counted stays counted, and this is told.
 N7  Nothing of this happens in the caller's thread. What fails is tried a few times, and again after the next job.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Final

from trunkline.core.delivery_messages import SourceAt
from trunkline.delivery.changes.windows import BEFORE_ALL, Window
from trunkline.delivery.control.contract import UnroutedCounts
from trunkline.delivery.control.store import ControlStore
from trunkline.errors import SourceExpired, TrunklineError
from trunkline.threads import Threads

logger = logging.getLogger(__name__)

Counts = Mapping[str | None, int]  # rows by routing value

WINDOWS_MAX: Final = 100  # that wait; of more the oldest is forgotten, and read again as a part of a gap
PARTS_MAX: Final = 1_000  # reads in a row for one gap
TRIES_MAX: Final = 5
PATIENCE_S: Final = 10.0  # too small: windows are read twice that were about to be told; too big: counts come late
RETRY_FIRST_S: Final = 1.0  # doubled each time
SHOW_EVERY_S: Final = 5.0  # too small: all counts are read from the store after every window


class UnroutedCounter:
    """Brings the pipeline's counts up to the windows that it is told of.

    ``count`` reads one window for the counts alone, or raises a ``TrunklineError``. ``source`` says how far the source
    is. ``counted`` is told how far the counts reach and what they are, when they changed. All three are called in a
    thread of this.
    """

    def __init__(
        self,
        store: ControlStore,
        pipeline: str,
        count: Callable[[Window], Counts],
        source: Callable[[], SourceAt],
        counted: Callable[[int, UnroutedCounts], None],
        *,
        threads: Threads | None = None,
        patience_s: float = PATIENCE_S,
        retry_first_s: float = RETRY_FIRST_S,
    ) -> None:
        self._store = store
        self._pipeline = pipeline
        self._count = count
        self._source = source
        self._counted = counted
        self._patience_s = patience_s
        self._retry_first_s = retry_first_s
        self._news = threading.Condition()
        self._told: dict[Window, UnroutedCounts | None] = {}  # in the order of telling; None: its rows were not counted
        self._fresh = True  # the counts are read once at the beginning
        self._ending: str | None = None  # "finish" or "leave"
        self._reach: int | None = None  # how far the counts of the store reach, as last heard; they only grow
        self._gap: tuple[int, float] | None = None  # where it begins, and when it was noticed
        self._shown = -1  # how far the counts reached that ``counted`` was last told
        self._show_at = 0.0  # not told again before
        self._failures = 0
        self._history = 0  # of the source
        self._threads = threads or Threads()
        self._thread: threading.Thread | None = None

    # --- from any thread ---

    def begin(self) -> None:
        self._thread = self._threads.start("unrouted", self._work)

    def job_ended(self, window: Window, counts: Counts | None) -> None:
        """A job has read this window to its end; a seed as of v has read ``(0, v]``.

        ``None``: the job broke off, or did not count. Then the counts are read when nobody else brings them.
        """
        known = Window(max(window.after, 0), window.through)
        if known.empty:
            return
        with self._news:
            if counts is not None or known not in self._told:
                self._told[known] = None if counts is None else _unrouted(counts)
            while len(self._told) > WINDOWS_MAX:
                del self._told[min(self._told, key=lambda each: each.through)]
            self._fresh = True
            self._news.notify()

    def close(self, *, finish: bool = True) -> None:
        """End. ``finish``: gaps are closed first, at once; else only what is known is told to the store."""
        with self._news:
            self._ending = "finish" if finish else "leave"
            self._news.notify()
        if self._thread is not None:
            self._thread.join()

    # --- in the thread of the counter ---

    def _work(self) -> None:
        wait_s: float | None = None
        while True:
            with self._news:
                self._news.wait_for(lambda: self._fresh or self._ending, timeout=wait_s)
                self._fresh, ending = False, self._ending
            wait_s = self._try(ending)
            if ending:
                return

    def _try(self, ending: str | None) -> float | None:
        """In how many seconds to look again; ``None``: not before there is news (N7)."""
        try:
            waits_s = [self._settle(ending), self._show(ending)]
        except TrunklineError as error:
            self._failures += 1
            if ending or self._failures >= TRIES_MAX:
                self._failures = 0
                logger.warning(
                    "rows that no destination takes are not counted for now, later jobs try again: %s", error
                )
                return None
            return self._retry_first_s * 2.0 ** (self._failures - 1)
        self._failures = 0
        return min((wait_s for wait_s in waits_s if wait_s is not None), default=None)

    def _settle(self, ending: str | None) -> float | None:
        waiting = self._tell()
        if not waiting or ending == "leave":
            return None
        assert self._reach is not None
        now = monotonic()
        if self._gap is None or self._gap[0] != self._reach:
            self._gap = (self._reach, now)
        left_s = self._gap[1] + self._patience_s - now
        if left_s > 0 and not ending:  # N4
            return left_s
        for _ in range(PARTS_MAX):
            self._close_gap(waiting)
            waiting = self._tell()
            if not waiting:
                break
        return 0.0 if waiting else None

    def _tell(self) -> dict[Window, UnroutedCounts | None]:
        """Tell the store what fits; returns the windows that a gap keeps away from it, in their order."""
        source = self._source()
        if source.history != self._history:
            take_counts_back(self._store, self._pipeline, source.version)
            self._history, self._reach = source.history, None
        if self._reach is None:
            self._reach = self._store.unrouted.counts(self._pipeline)[0]
        asked = False
        for window, counts in self._waiting().items():
            fits = window.after == self._reach
            probes = window.after > self._reach and not asked  # others may have closed the gap
            if counts is not None and (fits or probes):
                self._add(window, counts)
                asked = True
        if self._waiting() and not asked:
            self._reach = max(self._reach, self._store.unrouted.counts(self._pipeline)[0])
        return self._waiting()

    def _waiting(self) -> dict[Window, UnroutedCounts | None]:
        assert self._reach is not None
        newest = self._source().version  # what lies past it was read before the source was taken back (N6)
        with self._news:
            for window in [each for each in self._told if each.through <= self._reach or each.through > newest]:
                del self._told[window]
            return dict(sorted(self._told.items(), key=lambda each: (each[0].after, each[0].through)))

    def _add(self, window: Window, counts: UnroutedCounts) -> None:
        """Told again it does no harm (N1)."""
        self._reach = max(self._reach or 0, self._store.unrouted.add(self._pipeline, window, counts))

    def _close_gap(self, waiting: dict[Window, UnroutedCounts | None]) -> None:
        """Read the first part of what is missing (N2, N3)."""
        assert self._reach is not None
        begin, source = self._reach, self._source()
        window, counts = next(iter(waiting.items()))
        end = window.through if counts is None or window.after <= begin else window.after
        if begin == 0:
            end = max(end, source.oldest)
            self._add(Window(0, end), _unrouted(self._count(Window(BEFORE_ALL, end))))
            return
        if begin < source.oldest:
            self._pass_over(Window(begin, min(end, source.oldest)))
            return
        part = Window(begin, min([end, *(stop for stop in source.stops if stop > begin)]))
        try:
            counts = _unrouted(self._count(part))
        except SourceExpired:
            if self._source().oldest <= begin:
                raise  # it will be told soon
            return
        self._add(part, counts)

    def _pass_over(self, lost: Window) -> None:  # N5
        logger.warning(
            "rows of versions %d to %d that no destination takes are not in the counts: the source has forgotten them; "
            "keep its history longer than deliverers are away",
            lost.after + 1,
            lost.through,
        )
        self._add(lost, UnroutedCounts({}))

    def _show(self, ending: str | None) -> float | None:
        if self._reach is None or self._reach == self._shown:
            return None
        left_s = self._show_at - monotonic()
        if left_s > 0 and not ending:
            return left_s
        self._shown, totals = self._store.unrouted.counts(self._pipeline)
        self._reach, self._show_at = self._shown, monotonic() + SHOW_EVERY_S
        self._counted(self._shown, totals)
        return None


def take_counts_back(store: ControlStore, pipeline: str, version: int) -> None:
    logger.warning(
        "the source was replaced or taken back: rows that no destination takes are counted from version %d on", version
    )
    store.unrouted.rewind(pipeline, version)


def _unrouted(counts: Counts) -> UnroutedCounts:
    values = {value: rows for value, rows in counts.items() if value is not None and rows}
    return UnroutedCounts(values, counts.get(None, 0))
