"""What a deliverer remembers of each destination, and when it saw each version of the source."""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from msgspec.structs import replace

from trunkline.core.delivery_messages import Result
from trunkline.core.planner_tracks import Track
from trunkline.delivery.deliverer.views import DestinationView

VERSION_TIMES_MAX: Final = 1_000  # versions with a known time; beyond, the older half is thinned out


class DestinationStats:
    """Totals since the present grant."""

    def __init__(self) -> None:
        self.granted(0)
        self.facts: tuple[object, ...] = ()
        self.view: DestinationView | None = None

    def granted(self, token: int) -> None:
        """Totals restart with each grant."""
        self.token = token
        self.position: int | None = None
        self.effective: int | None = None
        self.flushed_at_ms: int | None = None
        self.rows_last = self.removed = self.written = 0
        self.flushes = self.seeds = self.duplicates = self.missing = 0

    def add(self, result: Result, token: int, now_ms: int, *, seed: bool) -> None:
        """Count a flush or seed under this token."""
        if token < self.token:
            return
        if token > self.token:
            self.granted(token)
        self.flushed_at_ms, self.rows_last = now_ms, result.removed + result.written
        self.removed, self.written = self.removed + result.removed, self.written + result.written
        self.duplicates, self.missing = self.duplicates + result.duplicates, self.missing + result.missing
        self.flushes, self.seeds = self.flushes + (not seed), self.seeds + seed

    def seen(self, track: Track, breaker_after: int, *, last: bool = False) -> None:
        """Copy what the planner knows. ``last``: it is being released, so its position stays the last known one."""
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
    """When versions of the source were first seen. One thread adds, any thread reads."""

    def __init__(self) -> None:
        self._seen: tuple[list[int], list[float]] = ([], [])  # never changed, only replaced

    def note(self, version: int, now: float) -> None:
        versions, times = self._seen
        if versions and version <= versions[-1]:
            return
        if len(versions) >= VERSION_TIMES_MAX:
            half = VERSION_TIMES_MAX // 2  # of two, keep the later version and the earlier time: never too small a lag
            versions, times = versions[1:half:2] + versions[half:], times[0:half:2] + times[half:]
        self._seen = ([*versions, version], [*times, now])

    def lacking_since(self, effective: int) -> float | None:
        """When the first version after this one was seen."""
        versions, times = self._seen
        place = bisect_right(versions, effective)
        return times[place] if place < len(times) else None

    def with_lag(self, view: DestinationView, version: int, now: float) -> DestinationView:
        """The view with its lag behind this version of the source."""
        if view.effective is None:
            return view
        since = self.lacking_since(view.effective) if view.effective < version else None
        lag_ms = 0 if since is None else max(0, round((now - since) * 1000))
        return replace(view, lag_versions=max(0, version - view.effective), lag_ms=lag_ms)

    def newest_before(self, time: float) -> int:
        """The newest version that had been seen by then; 0: none."""
        versions, times = self._seen
        place = bisect_right(times, time)
        return versions[place - 1] if place else 0
