"""How far a deliverer is: each destination, each job in flight, and when seeds and catching up will be done.

The values here are what health, metrics and a dashboard show. Estimates are just that: they use what is known (a share
that was told, bytes and the speed of earlier jobs), and are ``None`` where nothing is.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Final, Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from trunkline.core.planner_tracks import Track
from trunkline.delivery.control.contract import Unrouted
from trunkline.delivery.job.work import Counted

VERSION_TIMES_MAX: Final = 1_000  # versions with a known time; beyond, the older half is thinned out
SHOWN_AFTER_S: Final = 5.0  # what takes less is not worth a word
SPEED_WEIGHT: Final = 0.3  # of the last job in the speed that estimates use
SHARE_MOST: Final = 0.99  # by an estimate nothing is ever done

JobKind = Literal["reading", "flush", "seed"]


class DestinationView(Struct, frozen=True, kw_only=True):
    """One destination. Totals count since this deliverer was granted it."""

    name: str
    stage: str  # the planner's word
    life: str  # what operators want of it
    owned: bool  # by this deliverer
    position: int | None = None  # as stored in the destination; None: not known yet
    effective: int | None = None  # there is nothing for it between its position and here
    lag_versions: int | None = None  # of the source, behind `effective`
    lag_ms: int | None = None  # since the first version that it lacks was seen
    flushed_at_ms: int | None = None  # since 1970
    rows_last: int = 0  # removed and written by the last flush or seed
    removed: int = 0
    written: int = 0
    flushes: int = 0
    seeds: int = 0
    duplicates: int = 0  # rows that shared a key with another (policy warn)
    missing: int = 0  # keys that somebody else took away
    failures: int = 0  # in a row
    breaker: bool = False  # it failed so often that it is only tried now and then
    error: str = ""


class JobView(Struct, frozen=True, kw_only=True):
    """A job in flight: ``(after, through]``, or a seed as of ``through``."""

    job: int
    kind: JobKind
    after: int
    through: int
    destinations: int
    elapsed_ms: int
    rows: int | None = None  # in the window, as the source estimates it
    size_bytes: int | None = None
    percent: float | None = None
    left_ms: int | None = None


class StretchView(Struct, frozen=True, kw_only=True):
    """Something that takes long: seeds (in destinations), or the way of the slowest destination (in versions)."""

    done: int
    total: int
    elapsed_ms: int
    percent: float
    left_ms: int | None


class DelivererView(Struct, frozen=True, kw_only=True):
    """All that a deliverer shows of itself, as of one moment."""

    pipeline: str
    deliverer: str
    state: str  # starting, running, draining, stopping, stopped
    at_ms: int  # since 1970
    turned_ms_ago: int  # since the loop last came round
    source_version: int = 0
    source_oldest: int = 0
    source_error: str = ""  # empty: the source can be reached
    store_error: str = ""  # empty: the control store can be reached
    died: tuple[str, ...] = ()  # threads that broke off, each with why; then the deliverer ends
    held: int = 0  # leases
    waiting_rows: int | None = None  # for the interval to end, in all; None: the source does not tell
    unrouted: Unrouted | None = None  # rows that no destination takes, of the whole pipeline; None: not known yet
    unrouted_through: int | None = None  # up to this version
    jobs: tuple[JobView, ...] = ()
    seeding: StretchView | None = None  # None: no seed takes long
    catching_up: StretchView | None = None  # to the version that was the newest when it began; None: it is not far
    destinations: tuple[DestinationView, ...] = ()


class DestinationStats:
    """What is kept of one destination."""

    def __init__(self) -> None:
        self.granted(0)
        self.facts: tuple[object, ...] = ()
        self.view: DestinationView | None = None
        self.told: tuple[object, ...] = ()  # what the store knows of it
        self.told_lag = 0
        self.told_at = 0.0

    def granted(self, token: int) -> None:
        """Totals begin with each grant."""
        self.token = token
        self.position: int | None = None
        self.effective: int | None = None
        self.flushed_at_ms: int | None = None
        self.rows_last = self.removed = self.written = 0
        self.flushes = self.seeds = self.duplicates = self.missing = 0

    def add(self, counted: Counted, token: int, now_ms: int, *, seed: bool) -> None:
        """What a flush or seed under this token did."""
        if token < self.token:
            return
        if token > self.token:
            self.granted(token)
        self.flushed_at_ms, self.rows_last = now_ms, counted.removed + counted.written
        self.removed, self.written = self.removed + counted.removed, self.written + counted.written
        self.duplicates, self.missing = self.duplicates + counted.duplicates, self.missing + counted.missing
        self.flushes, self.seeds = self.flushes + (not seed), self.seeds + seed

    def seen(self, track: Track, breaker_after: int, *, last: bool = False) -> None:
        """Take down what the planner knows. ``last``: it is being given back, so its position is what it was."""
        if track.token and track.token != self.token:
            self.granted(track.token)
        if track.known or (last and track.position):
            self.position, self.effective = track.position, track.effective
        life, written = track.config.life, (self.flushes, self.seeds)
        facts = (track.stage, life, track.token, self.position, self.effective, track.failures, track.error, written)
        if facts == self.facts:
            return
        self.facts = facts
        self.view = DestinationView(
            name=track.name,
            stage=track.stage.value,
            life=life.value,
            owned=track.token > 0,
            position=self.position,
            effective=self.effective,
            flushed_at_ms=self.flushed_at_ms,
            rows_last=self.rows_last,
            removed=self.removed,
            written=self.written,
            flushes=self.flushes,
            seeds=self.seeds,
            duplicates=self.duplicates,
            missing=self.missing,
            failures=track.failures,
            breaker=track.failures >= breaker_after,
            error=track.error,
        )


class VersionTimes:
    """When versions of the source were first seen. One thread notes, any may ask."""

    def __init__(self) -> None:
        self._seen: tuple[list[int], list[float]] = ([], [])  # never changed, only replaced

    def note(self, version: int, now: float) -> None:
        versions, times = self._seen
        if versions and version <= versions[-1]:
            return
        if len(versions) >= VERSION_TIMES_MAX:
            half = (
                VERSION_TIMES_MAX // 2
            )  # of two keep the later version with the earlier time: a lag is never too small
            versions, times = versions[1:half:2] + versions[half:], times[0:half:2] + times[half:]
        self._seen = ([*versions, version], [*times, now])

    def lacking_since(self, effective: int) -> float | None:
        """When the first version after this one was seen."""
        versions, times = self._seen
        place = bisect_right(versions, effective)
        return times[place] if place < len(times) else None

    def newest_before(self, time: float) -> int:
        """The newest version that had been seen by then; 0: none had."""
        versions, times = self._seen
        place = bisect_right(times, time)
        return versions[place - 1] if place else 0


class _Running:
    """What is known of a job in flight."""

    def __init__(self, view: JobView, begun: float) -> None:
        self.view = view
        self.begun = begun
        self.share: float | None = None  # that is done, if somebody told


class _Seeding(NamedTuple):
    begun: float
    total: frozenset[str]
    done: frozenset[str]


class _CatchingUp(NamedTuple):
    begun: float
    start: int
    at: int
    goal: int


class Progress:
    """Keeps jobs in flight, seeds, and the slowest destination. Any thread may call."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._jobs: dict[int, _Running] = {}
        self._speed: dict[JobKind, float] = {}  # bytes a second
        self._seeding: _Seeding | None = None
        self._catching_up: _CatchingUp | None = None

    # --- jobs ---

    def begin(self, job: int, kind: JobKind, after: int, through: int, destinations: int) -> None:
        view = JobView(job=job, kind=kind, after=after, through=through, destinations=destinations, elapsed_ms=0)
        with self._lock:
            self._jobs[job] = _Running(view, self._clock())

    def know(self, job: int, *, rows: int | None, size_bytes: int | None, share: float | None) -> None:
        """What was found out about a job: what it has to read, or which share of it is done."""
        with self._lock:
            if (running := self._jobs.get(job)) is None:
                return
            view = running.view
            running.view = replace(
                view,
                rows=view.rows if rows is None else rows,
                size_bytes=view.size_bytes if size_bytes is None else size_bytes,
            )
            running.share = running.share if share is None else share

    def end(self, job: int) -> float:
        """How long it took, in seconds."""
        with self._lock:
            running = self._jobs.pop(job)
            took_s = self._clock() - running.begun
            if running.view.size_bytes and took_s > 0:
                kind, speed = running.view.kind, running.view.size_bytes / took_s
                self._speed[kind] = SPEED_WEIGHT * speed + (1 - SPEED_WEIGHT) * self._speed.get(kind, speed)
            return took_s

    def jobs(self) -> tuple[JobView, ...]:
        now = self._clock()
        with self._lock:
            return tuple(self._job(running, now) for running in self._jobs.values())

    def _job(self, running: _Running, now: float) -> JobView:
        elapsed_s, share = now - running.begun, running.share
        speed = self._speed.get(running.view.kind)
        if share is None and running.view.size_bytes and speed:
            share = min(elapsed_s * speed / running.view.size_bytes, SHARE_MOST)
        percent = None if share is None else round(100 * share, 1)
        return replace(running.view, elapsed_ms=_ms(elapsed_s), percent=percent, left_ms=_left_ms(elapsed_s, share))

    # --- seeds, and the slowest destination ---

    def look(self, seeding: Iterable[str], slowest: int | None, version: int) -> None:
        """Who is to be seeded now, and where the slowest of the others is (``None``: there are none)."""
        with self._lock:
            self._look_at_seeds(frozenset(seeding))
            self._look_at_slowest(slowest, version)

    def seeded(self, destination: str) -> None:
        with self._lock:
            if self._seeding is not None:
                self._seeding = self._seeding._replace(done=self._seeding.done | {destination})

    def _look_at_seeds(self, waiting: frozenset[str]) -> None:
        if not waiting:
            self._seeding = None
            return
        known = self._seeding or _Seeding(self._clock(), frozenset(), frozenset())
        self._seeding = known._replace(total=known.total | waiting, done=known.done - waiting)

    def _look_at_slowest(self, slowest: int | None, version: int) -> None:
        known = self._catching_up
        if slowest is None or slowest >= version:
            self._catching_up = None
        elif known is None or slowest >= known.goal:
            self._catching_up = _CatchingUp(self._clock(), slowest, slowest, version)
        else:
            self._catching_up = known._replace(start=min(known.start, slowest), at=slowest)

    def seeding(self) -> StretchView | None:
        """``None`` while no seed takes long."""
        now = self._clock()
        with self._lock:
            known = self._seeding
            jobs = [self._job(running, now) for running in self._jobs.values() if running.view.kind == "seed"]
        if known is None:
            return None
        done, total = len(known.done & known.total), len(known.total)
        flying = sum(job.destinations * (job.percent or 0) / 100 for job in jobs)
        return _stretch(done, total, now - known.begun, flying)

    def catching_up(self) -> StretchView | None:
        """``None`` unless the slowest destination has been on its way for long."""
        with self._lock:
            known = self._catching_up
        if known is None:
            return None
        return _stretch(known.at - known.start, known.goal - known.start, self._clock() - known.begun)


def _stretch(done: int, total: int, elapsed_s: float, flying: float = 0.0) -> StretchView | None:
    if elapsed_s < SHOWN_AFTER_S:
        return None
    share = min((done + flying) / total, 1.0)
    left_ms, percent = _left_ms(elapsed_s, share), round(100 * share, 1)
    return StretchView(done=done, total=total, elapsed_ms=_ms(elapsed_s), percent=percent, left_ms=left_ms)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _left_ms(elapsed_s: float, share: float | None) -> int | None:
    return _ms(elapsed_s * (1 - share) / share) if share else None
