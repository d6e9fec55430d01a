"""The schedule of the planner: where each destination waits, and what starts next. The rules are in ``planner.py``."""

from __future__ import annotations

from trunkline.core.delivery_events import (
    BackedOff,
    BreakerOpened,
    Drained,
    GroupStarted,
    Halted,
    HistoryExpired,
    Retired,
)
from trunkline.core.delivery_messages import (
    Emptied,
    FlushGroup,
    JobMember,
    Life,
    Note,
    ReadStandings,
    RecordEmpty,
    Released,
    ReleaseLeases,
    SeedGroup,
    SeedMode,
    SourceAt,
)
from trunkline.core.effects import Announce, Effects, Send, SetTimer
from trunkline.core.planner_groups import Beginning, Groups
from trunkline.core.planner_tracks import GroupKey, PlannerConfig, PlannerJob, Track, TrackStage


class Schedule:
    def __init__(self, config: PlannerConfig) -> None:
        self.config = config
        self.tracks: dict[str, Track] = {}
        self.source = SourceAt(0, 0)  # as last reported; version 0: unknown
        self.due = 0  # flushes end here
        self.groups = Groups(config.groups_max)
        self.unread: set[str] = set()  # destinations whose positions must be read
        self.backing_off: dict[int, set[str]] = {}  # by the length of the wait
        self.unrecorded: set[str] = set()  # destinations whose empty windows are not noted yet

    # -------------------------------------------------------------------------------------------- placement

    def place(self, track: Track) -> Effects:
        """Move a destination to its queue or stage, unless a job is in flight."""
        self.lift(track)
        if track.job:
            return []
        if not track.token:
            return self._forget(track, TrackStage.UNOWNED)
        if track.removed:
            return self._leave(track, TrackStage.UNOWNED)
        if track.config.life is Life.RETIRED:
            return [*self._leave(track, TrackStage.RETIRED), Announce(Retired(track.name))]
        if track.halted:
            track.stage = TrackStage.HALTED
        elif track.config.life is Life.PAUSED:
            track.stage = TrackStage.PAUSED
        elif track.retry_ms:
            return self._wait(track)
        elif not track.known:
            track.stage = TrackStage.READING
            self.unread.add(track.name)
        else:
            return self._place_known(track)
        return []

    def lift(self, track: Track) -> None:
        """Remove a destination from wherever it waits."""
        self.unread.discard(track.name)
        self.groups.lift(track)
        if track.stage is TrackStage.BACKING_OFF:
            self.backing_off.get(track.retry_ms, set()).discard(track.name)

    def _place_known(self, track: Track) -> Effects:
        track.planned, oldest = track.effective, self.source.oldest
        if track.config.life is Life.DRAINING and self._is_drained(track):
            return [*self._leave(track, TrackStage.DRAINED), Announce(Drained(track.name, track.position))]
        lost = track.effective < oldest or track.unreadable or self._is_divided(track)
        expired = track.position > 0 and lost
        if track.position and not track.reseed and not expired:
            self.groups.queue(track, self._flush_key(track))
            return []
        news: Effects = [Announce(HistoryExpired(track.name, track.position, oldest))] if expired else []
        if expired and not track.reseed and not track.config.reseeds:
            why = f"the source no longer has the changes after {track.position}; seed it again with reseed"
            return [*news, *self.halt(track, why), *self.place(track)]
        self.groups.queue(track, self._seed_key(track))
        return news

    def _is_drained(self, track: Track) -> bool:
        certain = track.settled or track.position == track.effective  # P11
        return certain and not track.ahead and 0 < track.drain_to <= track.effective

    def _is_divided(self, track: Track) -> bool:
        """Whether a stop lies between its tables: no window makes them level (P16)."""
        return track.ahead > 0 and any(track.effective < stop < track.ahead for stop in self.source.stops)

    def _flush_key(self, track: Track) -> GroupKey:
        stamp = track.position < self.source.oldest or not track.settled or track.ahead > 0  # P7, P11, P16
        now = stamp and track.position < track.effective
        apart = (track.failures > 0, track.crowd, None)
        return GroupKey(track.effective, stamp, now, *apart, track.effective_mark, track.ahead)

    def _seed_key(self, track: Track) -> GroupKey:
        """A position of this history never moves back: a destination with one does not start at the beginning again,
        and waits until the source is known to have reached it.
        """
        reached = 0 if track.strayed else track.position
        rewinds = track.config.seed is SeedMode.START and reached > 0 and self.source.oldest <= reached
        mode = SeedMode.SCAN if rewinds else track.config.seed
        at_least = reached if reached > self.source.version else 0
        return GroupKey(at_least, False, False, track.failures > 0, track.crowd, mode)

    def _forget(self, track: Track, stage: TrackStage) -> Effects:
        track.stage, track.known = stage, False
        if track.removed:
            del self.tracks[track.name]
        return []

    # ------------------------------------------------------------------------------------------------------ release

    def _leave(self, track: Track, stage: TrackStage) -> Effects:
        """Release a destination; nothing is in flight to it (P13)."""
        noted = self.record([track.name])
        released = self.release(Released(track.name, track.token, track.settled))
        track.token = 0
        return [*noted, released, *self._forget(track, stage)]

    def release(self, *released: Released) -> Send:
        return Send(self.config.control, ReleaseLeases(released))

    def note_empty(self, track: Track, through: int, mark: str) -> Effects:
        """A window without rows (P5). It is noted later, together with others."""
        track.emptied(through, mark)
        begun = not self.unrecorded and self.config.record_ms > 0
        self.unrecorded.add(track.name)
        return [SetTimer("record", self.config.record_ms)] if begun else []

    def record(self, names: list[str]) -> Effects:
        """Note the empty windows of these destinations that are not noted yet."""
        emptied: dict[tuple[int, str], list[Emptied]] = {}
        for track in [self.tracks[name] for name in names if name in self.unrecorded]:
            end = (track.effective, track.effective_mark)
            emptied.setdefault(end, []).append(Emptied(track.name, track.token, track.position))
            self.unrecorded.discard(track.name)
        return [Send(self.config.control, RecordEmpty(end, tuple(each), mark)) for (end, mark), each in emptied.items()]

    # ------------------------------------------------------------------------------------------------------- failures

    def halt(self, track: Track, error: str) -> Effects:
        track.halted, track.error = True, error
        track.doubt()
        return [Announce(Halted(track.name, error))]

    def back_off(self, track: Track, error: str) -> Effects:
        """Count a failure; ``place`` makes the destination wait."""
        before, limit = track.failures, self.config.breaker_after
        track.failures, track.error = min(before + 1, limit), error
        grown = self.config.retry_first_ms << (track.failures - 1)
        track.retry_ms = self.config.retry_max_ms if track.failures == limit else min(grown, self.config.retry_max_ms)
        effects: Effects = [Announce(BackedOff(track.name, track.failures, error))]
        if before < limit == track.failures:
            effects.append(Announce(BreakerOpened(track.name, error)))
        return effects

    def _wait(self, track: Track) -> Effects:
        """One timer serves all destinations with the same wait; later ones may wait a little less."""
        track.stage = TrackStage.BACKING_OFF
        begun = track.retry_ms not in self.backing_off
        self.backing_off.setdefault(track.retry_ms, set()).add(track.name)
        return [SetTimer(f"retry {track.retry_ms}", track.retry_ms)] if begun else []

    def try_again(self, retry_ms: int) -> Effects:
        effects: Effects = []
        for track in [self.tracks[name] for name in sorted(self.backing_off.pop(retry_ms))]:
            track.retry_ms = 0
            effects += self.place(track)
        return effects

    # ------------------------------------------------------------------------------------------------------ starting

    def start(self) -> Effects:
        """Start every job that can start now."""
        effects = self._read_standings()
        for beginning in self.groups.startable(self.due, self.source, self.tracks):
            effects += self._begin(beginning)
        return effects

    def _read_standings(self) -> Effects:
        names = sorted(self.unread)
        self.unread.clear()
        if not names:
            return []
        number = self.groups.begin(PlannerJob(TrackStage.READING, names))
        notes = []
        for track in map(self.tracks.__getitem__, names):
            track.job = number
            if track.empty_mark:
                notes.append(Note(track.name, track.empty.through, track.empty_mark))
        return [Send(self.config.worker, ReadStandings(number, tuple(names), tuple(notes)))]

    def _begin(self, beginning: Beginning) -> Effects:
        key, names, through = beginning
        kind = TrackStage.FLUSHING if key.seed is None else TrackStage.SEEDING
        places = self.groups.places(names, self.tracks)
        number = self.groups.begin(
            PlannerJob(kind, names, through, stamp=key.stamp, failing=key.failing, places=places)
        )
        for track in map(self.tracks.__getitem__, names):
            self.groups.lift(track)
            track.stage, track.job, track.planned = kind, number, through
        tracks = [self.tracks[name] for name in names]
        members = tuple(
            JobMember(track.name, track.position, track.token, track.mark, track.ahead, track.discards)
            for track in tracks
        )
        after = 0 if key.seed is not None else key.after
        started = Announce(GroupStarted(number, after, through, members, seed=key.seed is not None))
        if key.seed is not None:
            return [started, Send(self.config.worker, SeedGroup(number, through, key.seed, members))]
        return [started, Send(self.config.worker, FlushGroup(number, key.after, through, members, key.stamp, key.mark))]
