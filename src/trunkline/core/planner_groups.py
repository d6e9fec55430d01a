"""The groups of the planner: which destinations wait together for a slot, and which windows begin when slots are free.

Destinations move between groups one by one; everything else costs as much as there are groups.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from itertools import islice
from typing import NamedTuple

from trunkline.core.delivery_messages import SeedMode, SourceAt
from trunkline.core.planner_tracks import GroupKey, PlannerJob, Track, TrackStage


class Beginning(NamedTuple):
    """A job that can start now."""

    key: GroupKey
    names: list[str]
    through: int


class Groups:
    def __init__(self, groups_max: int) -> None:
        self.groups_max = groups_max
        self.waiting: dict[GroupKey, set[str]] = {}  # in order of arrival
        self.jobs: dict[int, PlannerJob] = {}
        self.job_last = 0

    def queue(self, track: Track, key: GroupKey) -> None:
        track.stage, track.key = TrackStage.READY, key
        self.waiting.setdefault(key, set()).add(track.name)

    def lift(self, track: Track) -> None:
        """Remove a destination from its queue."""
        if track.key is None:
            return
        group = self.waiting[track.key]
        group.discard(track.name)
        if not group:
            del self.waiting[track.key]
        track.key = None

    def begin(self, job: PlannerJob) -> int:
        self.job_last += 1
        self.jobs[self.job_last] = job
        return self.job_last

    def startable(self, due: int, source: SourceAt, tracks: Mapping[str, Track]) -> list[Beginning]:
        """The jobs that have a slot, first come, first served."""
        slots = Slots(self.groups_max, self.jobs)
        taken = {place for job in self.jobs.values() for place in job.places}
        starting: list[tuple[GroupKey, list[str]]] = []
        left: list[GroupKey] = []
        for key in [key for key in self.waiting if _is_due(key, due, source)]:
            names = sorted(self.waiting[key]) if slots.free(key) else []
            begun = 0
            while slots.free(key) and (chosen := _unhindered(names, tracks, taken, key.crowd)):
                starting.append((key, chosen))
                slots.take(key)
                taken |= self.places(chosen, tracks)
                begun += len(chosen)
                others = set(chosen)
                names = [name for name in names if name not in others]
            if begun < len(self.waiting[key]):
                left.append(key)
        return [Beginning(key, names, _through(key, due, source, left)) for key, names in starting]

    def places(self, names: list[str], tracks: Mapping[str, Track]) -> frozenset[str]:
        """The places that a job for these destinations writes to (P14)."""
        return frozenset(tracks[name].config.place for name in names) - {""}


class Slots:
    """Free slots: one seed, and flushes. Failing destinations leave one slot to the others (P1)."""

    def __init__(self, groups_max: int, jobs: dict[int, PlannerJob]) -> None:
        flushes = [job.failing for job in jobs.values() if job.kind is TrackStage.FLUSHING]
        self.seeds = 1 - sum(job.kind is TrackStage.SEEDING for job in jobs.values())
        self.flushes = groups_max - len(flushes)
        self.failing = max(1, groups_max - 1) - sum(flushes)

    def free(self, key: GroupKey) -> bool:
        if key.seed is not None:
            return self.seeds > 0
        return self.flushes > 0 and (self.failing > 0 or not key.failing)

    def take(self, key: GroupKey) -> None:
        if key.seed is not None:
            self.seeds -= 1
        else:
            self.flushes -= 1
            self.failing -= key.failing


def _unhindered(names: list[str], tracks: Mapping[str, Track], taken: set[str], limit: int) -> list[str]:
    """The first destinations whose place is free (P14)."""
    return list(islice((name for name in names if tracks[name].config.place not in taken), limit))


def _is_due(key: GroupKey, due: int, source: SourceAt) -> bool:
    if key.seed is not None:
        return source.version > 0 and source.version >= key.after
    if key.until:
        return source.version >= key.until
    return key.now or key.after < due


def _through(key: GroupKey, due: int, source: SourceAt, left: list[GroupKey]) -> int:
    """The end of the next window of a key (P8, P16), or the version of a seed."""
    if key.seed is not None:
        return max(source.oldest, source.first) if key.seed is SeedMode.START else source.version
    if key.until:
        return key.until
    stop = bisect_right(source.stops, key.after)
    ends = [max(due, key.after), *source.stops[stop : stop + 1]]
    ends += [other.after for other in left if other.after > key.after and _meet(key, other)]
    return min(ends)


def _meet(key: GroupKey, other: GroupKey) -> bool:
    """Whether they differ only in their positions, so that they can continue together."""
    return key._replace(after=other.after, mark=other.mark) == other
