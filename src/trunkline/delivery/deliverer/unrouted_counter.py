"""Counts unrouted rows, each once, in the control store that all deliverers of a pipeline share.

            counted          after          through
    -----------|----- gap -----|----- a job ---|          the gap is read separately, then the job's counts are added

Rules
 N1  The store adds a window only where its counts end: a row is counted once, however often it is reported.
 N2  The counts of a job are used where they fit. What is missing (a job failed after its destinations were written, or
     windows overlap) is read again, for the counts alone.
 N3  Such a read crosses no stop. If nothing was counted yet, the state of the source is counted.
 N4  A gap gets time to close: another job, or another deliverer, may be about to report it.
 N5  Versions that the source no longer has cannot be counted: they are skipped with a warning.
 N6  When the source was replaced or restored from a backup, counting goes on from its version of that moment, with a
     warning: earlier counts stay.
 N7  Nothing of this runs in the caller's thread. A failure is retried a few times, and again after the next job.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Final

from trunkline.core.delivery_messages import SourceAt
from trunkline.delivery.changes.versions import BEFORE_ALL, Window
from trunkline.delivery.control.contract import UnroutedCounts
from trunkline.delivery.control.store import ControlStore
from trunkline.errors import SourceExpired, TrunklineError
from trunkline.threads import Threads

logger = logging.getLogger(__name__)

Counts = Mapping[str | None, int]  # rows by routing value

WINDOWS_MAX: Final = 100  # that wait; beyond, the oldest is dropped, and read again as part of a gap
PARTS_MAX: Final = 1_000  # reads in a row for one gap
TRIES_MAX: Final = 5
PATIENCE_S: Final = 10.0  # too small: windows are read twice; too big: counts are late
RETRY_FIRST_S: Final = 1.0  # doubled each time
PUBLISH_EVERY_S: Final = 5.0  # too small: all counts are read from the store after every window


class UnroutedCounter:
    """Brings the pipeline's counts up to the windows of the jobs that ended.

    ``count`` reads one window for the counts alone, or raises a ``TrunklineError``. ``source`` is the present state of
    the source. ``counted`` receives the counts, and the version up to which they reach, when they changed. All three
    are called in the counter's own thread.
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
        self._windows: dict[Window, UnroutedCounts | None] = {}  # in the order of arrival; None: not counted
        self._fresh = True  # the counts are read once at the start
        self._ending: str | None = None  # "finish" or "leave"
        self._reach: int | None = None  # where the store's counts ended when last read; they only grow
        self._gap: tuple[int, float] | None = None  # where it begins, and when it was found
        self._published = -1  # up to which version ``counted`` received the counts
        self._publish_at = 0.0  # not again before
        self._failures = 0
        self._history = 0  # of the source
        self._threads = threads or Threads()
        self._thread: threading.Thread | None = None

    # --- from any thread ---

    def begin(self) -> None:
        self._thread = self._threads.start("unrouted", self._work)

    def job_ended(self, window: Window, counts: Counts | None) -> None:
        """A job has read this window; a seed as of v has read ``(0, v]``.

        ``None``: the job failed, or did not count. Then the counts are read unless another deliverer adds them.
        """
        known = Window(max(window.after, 0), window.through)
        if known.empty:
            return
        with self._news:
            if counts is not None or known not in self._windows:
                self._windows[known] = None if counts is None else _unrouted(counts)
            while len(self._windows) > WINDOWS_MAX:
                del self._windows[min(self._windows, key=lambda each: each.through)]
            self._fresh = True
            self._news.notify()

    def close(self, *, finish: bool = True) -> None:
        """Stop. ``finish``: close gaps first, without waiting; else add only what is known."""
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
        """In how many seconds to try again; ``None``: not before the next job (N7)."""
        try:
            waits_s = [self._settle(ending), self._publish(ending)]
        except TrunklineError as error:
            self._failures += 1
            if ending or self._failures >= TRIES_MAX:
                self._failures = 0
                logger.warning("unrouted rows could not be counted; it is retried after the next job: %s", error)
                return None
            return self._retry_first_s * 2.0 ** (self._failures - 1)
        self._failures = 0
        return min((wait_s for wait_s in waits_s if wait_s is not None), default=None)

    def _settle(self, ending: str | None) -> float | None:
        waiting = self._add_windows()
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
            waiting = self._add_windows()
            if not waiting:
                break
        return 0.0 if waiting else None

    def _add_windows(self) -> dict[Window, UnroutedCounts | None]:
        """Add the windows that fit; returns those behind a gap, in order."""
        source = self._source()
        if source.history != self._history:
            rewind_counts(self._store, self._pipeline, source.version)
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
        newest = self._source().version  # windows past it were read before the source was restored (N6)
        with self._news:
            for window in [each for each in self._windows if each.through <= self._reach or each.through > newest]:
                del self._windows[window]
            return dict(sorted(self._windows.items(), key=lambda each: (each[0].after, each[0].through)))

    def _add(self, window: Window, counts: UnroutedCounts) -> None:
        """Adding a window again does no harm (N1)."""
        self._reach = max(self._reach or 0, self._store.unrouted.add(self._pipeline, window, counts))

    def _close_gap(self, waiting: dict[Window, UnroutedCounts | None]) -> None:
        """Read the first part of the gap (N2, N3)."""
        assert self._reach is not None
        begin, source = self._reach, self._source()
        window, counts = next(iter(waiting.items()))
        end = window.through if counts is None or window.after <= begin else window.after
        if begin == 0:
            end = max(end, source.oldest)
            self._add(Window(0, end), _unrouted(self._count(Window(BEFORE_ALL, end))))
            return
        if begin < source.oldest:
            self._skip(Window(begin, min(end, source.oldest)))
            return
        part = Window(begin, min([end, *(stop for stop in source.stops if stop > begin)]))
        try:
            counts = _unrouted(self._count(part))
        except SourceExpired:
            if self._source().oldest <= begin:
                raise  # the next poll of the source shows it
            return
        self._add(part, counts)

    def _skip(self, lost: Window) -> None:  # N5
        logger.warning(
            "unrouted rows of versions %d to %d are not counted: the source no longer has them; keep its history "
            "longer than deliverers are stopped",
            lost.after + 1,
            lost.through,
        )
        self._add(lost, UnroutedCounts({}))

    def _publish(self, ending: str | None) -> float | None:
        if self._reach is None or self._reach == self._published:
            return None
        left_s = self._publish_at - monotonic()
        if left_s > 0 and not ending:
            return left_s
        self._published, totals = self._store.unrouted.counts(self._pipeline)
        self._reach, self._publish_at = self._published, monotonic() + PUBLISH_EVERY_S
        self._counted(self._published, totals)
        return None


def rewind_counts(store: ControlStore, pipeline: str, version: int) -> None:
    logger.warning("the source was replaced or restored: unrouted rows are counted again from version %d on", version)
    store.unrouted.rewind(pipeline, version)


def _unrouted(counts: Counts) -> UnroutedCounts:
    values = {value: rows for value, rows in counts.items() if value is not None and rows}
    return UnroutedCounts(values, counts.get(None, 0))
