"""The planner's groups: which destinations wait together for a slot, and which windows begin when slots are free.

Destinations are moved between groups one by one; everything else costs as much as there are groups.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from trunkline.core.delivery_messages import SeedMode, SourceAt
from trunkline.core.planner_tracks import GroupKey, Job, Stage, Track


class Beginning(NamedTuple):
    """A job that may begin now."""

    key: GroupKey
    names: list[str]
    through: int


class Groups:
    def __init__(self, groups_max: int) -> None:
        self.groups_max = groups_max
        self.waiting: dict[GroupKey, set[str]] = {}  # in the order in which they began to wait
        self.jobs: dict[int, Job] = {}
        self.job_last = 0

    def queue(self, track: Track, key: GroupKey) -> None:
        track.stage, track.key = Stage.READY, key
        self.waiting.setdefault(key, set()).add(track.name)

    def lift(self, track: Track) -> None:
        """Take a destination away from where it waits."""
        if track.key is None:
            return
        group = self.waiting[track.key]
        group.discard(track.name)
        if not group:
            del self.waiting[track.key]
        track.key = None

    def begin(self, job: Job) -> int:
        self.job_last += 1
        self.jobs[self.job_last] = job
        return self.job_last

    def startable(self, due: int, source: SourceAt) -> list[Beginning]:
        """The jobs for which there are slots, first come first served. Spare ones leave one slot free (P1)."""
        flying = [job for job in self.jobs.values() if job.kind is not Stage.READING]
        free = self.groups_max - len(flying)
        spare = max(1, self.groups_max - 1) - sum(job.spare for job in flying)
        starting: list[tuple[GroupKey, list[str]]] = []
        left: list[GroupKey] = []
        for key in [key for key in self.waiting if _is_due(key, due, source)]:
            slots = min(free, spare) if key.spare else free
            names = sorted(self.waiting[key]) if slots > 0 else []
            parts = [names[at : at + key.crowd] for at in range(0, len(names), key.crowd)]
            starting += [(key, part) for part in parts[:slots]]
            free -= min(slots, len(parts))
            spare -= min(slots, len(parts)) if key.spare else 0
            if slots < len(parts) or slots <= 0:
                left.append(key)
        return [Beginning(key, names, _through(key, due, source, left)) for key, names in starting]


def _is_due(key: GroupKey, due: int, source: SourceAt) -> bool:
    if key.seed is not None:
        return source.version > 0
    return key.now or key.after < due


def _through(key: GroupKey, due: int, source: SourceAt, left: list[GroupKey]) -> int:
    """Where a window ends that begins at the key's position (P8), or the version of a seed."""
    if key.seed is not None:
        return source.oldest if key.seed is SeedMode.START else source.version
    stop = bisect_right(source.stops, key.after)
    ends = [max(due, key.after), *source.stops[stop : stop + 1]]
    ends += [other.after for other in left if other.after > key.after and key._replace(after=other.after) == other]
    return min(ends)
