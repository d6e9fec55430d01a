"""Progress of long work: jobs in flight, seeds, and catching up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Final, NamedTuple

from msgspec.structs import replace

from trunkline.delivery.deliverer.views import JobKind, JobView, ProgressView

SHOWN_AFTER_S: Final = 5.0  # shorter work is not shown


class _Seeding(NamedTuple):
    begun: float
    total: frozenset[str]
    done: frozenset[str]


class _CatchingUp(NamedTuple):
    begun: float
    start: int
    at: int
    goal: int


class WorkProgress:
    """Any thread may call."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._jobs: dict[int, tuple[float, JobView]] = {}  # with the time of its start
        self._seeding: _Seeding | None = None
        self._catching_up: _CatchingUp | None = None

    # --- jobs ---

    def begin(self, job: int, kind: JobKind, after: int, through: int, destinations: int) -> None:
        view = JobView(job=job, kind=kind, after=after, through=through, destinations=destinations, elapsed_ms=0)
        with self._lock:
            self._jobs[job] = (self._clock(), view)

    def end(self, job: int) -> float:
        """How long it took, in seconds."""
        with self._lock:
            begun, _ = self._jobs.pop(job)
        return self._clock() - begun

    def jobs(self) -> tuple[JobView, ...]:
        now = self._clock()
        with self._lock:
            return tuple(replace(view, elapsed_ms=_ms(now - begun)) for begun, view in self._jobs.values())

    # --- seeds, and the slowest destination ---

    def update(self, seeding: Iterable[str], slowest: int | None, version: int) -> None:
        """Which destinations wait for a seed, and where the slowest of the others is (``None``: there are none)."""
        with self._lock:
            self._update_seeding(frozenset(seeding))
            self._update_slowest(slowest, version)

    def seeded(self, destination: str) -> None:
        with self._lock:
            if self._seeding is not None:
                self._seeding = self._seeding._replace(done=self._seeding.done | {destination})

    def _update_seeding(self, waiting: frozenset[str]) -> None:
        if not waiting:
            self._seeding = None
            return
        known = self._seeding or _Seeding(self._clock(), frozenset(), frozenset())
        self._seeding = known._replace(total=known.total | waiting, done=known.done - waiting)

    def _update_slowest(self, slowest: int | None, version: int) -> None:
        known = self._catching_up
        if slowest is None or slowest >= version:
            self._catching_up = None
        elif known is None or slowest >= known.goal:
            self._catching_up = _CatchingUp(self._clock(), slowest, slowest, version)
        else:
            self._catching_up = known._replace(start=min(known.start, slowest), at=slowest)

    def seeding(self) -> ProgressView | None:
        """``None`` while no seed takes long."""
        with self._lock:
            known = self._seeding
        if known is None:
            return None
        return _progress(len(known.done & known.total), len(known.total), self._clock() - known.begun)

    def catching_up(self) -> ProgressView | None:
        """``None`` unless the slowest destination has been behind for long."""
        with self._lock:
            known = self._catching_up
        if known is None:
            return None
        return _progress(known.at - known.start, known.goal - known.start, self._clock() - known.begun)


def _progress(done: int, total: int, elapsed_s: float) -> ProgressView | None:
    if elapsed_s < SHOWN_AFTER_S:
        return None
    share = min(done / total, 1.0)
    left_ms = _ms(elapsed_s * (1 - share) / share) if share else None
    return ProgressView(
        done=done, total=total, elapsed_ms=_ms(elapsed_s), percent=round(100 * share, 1), left_ms=left_ms
    )


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
