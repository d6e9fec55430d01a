"""The planner's schedule: where each destination waits, and what begins next. The rules are in ``planner.py``."""

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
    Life,
    Member,
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
from trunkline.core.planner_tracks import GroupKey, Job, PlannerConfig, Stage, Track


class Schedule:
    def __init__(self, config: PlannerConfig) -> None:
        self.config = config
        self.tracks: dict[str, Track] = {}
        self.source = SourceAt(0, 0)  # what is known of it; version 0: nothing
        self.due = 0  # flushes go up to here
        self.groups = Groups(config.groups_max)
        self.unread: set[str] = set()  # their standings are asked for next
        self.backing_off: dict[int, set[str]] = {}  # by the length of the wait
        self.unrecorded: set[str] = set()  # their empty stretches are not noted yet

    # -------------------------------------------------------------------------------------------- where one belongs

    def place(self, track: Track) -> Effects:
        """A destination goes where it belongs, or will do so when its job has ended."""
        self.lift(track)
        if track.job:
            return []
        if not track.token:
            return self._forget(track, Stage.UNOWNED)
        if track.removed:
            return self._leave(track, Stage.UNOWNED)
        if track.config.life is Life.RETIRED:
            return [*self._leave(track, Stage.RETIRED), Announce(Retired(track.name))]
        if track.halted:
            track.stage = Stage.HALTED
        elif track.config.life is Life.PAUSED:
            track.stage = Stage.PAUSED
        elif track.retry_ms:
            return self._wait(track)
        elif not track.known:
            track.stage = Stage.READING
            self.unread.add(track.name)
        else:
            return self._place_known(track)
        return []

    def lift(self, track: Track) -> None:
        """Take a destination away from wherever it waits."""
        self.unread.discard(track.name)
        self.groups.lift(track)
        if track.stage is Stage.BACKING_OFF:
            self.backing_off.get(track.retry_ms, set()).discard(track.name)

    def _place_known(self, track: Track) -> Effects:
        track.planned, oldest = track.effective, self.source.oldest
        if track.config.life is Life.DRAINING and self._is_drained(track):
            return [*self._leave(track, Stage.DRAINED), Announce(Drained(track.name, track.position))]
        expired = track.position > 0 and (track.effective < oldest or track.unreadable)
        if track.position and not track.reseed and not expired:
            self.groups.queue(track, self._flush_key(track))
            return []
        told: Effects = [Announce(HistoryExpired(track.name, track.position, oldest))] if expired else []
        if expired and not track.reseed and not track.config.reseeds:
            why = f"the source no longer has the changes after {track.position}; seed it again with reseed"
            return [*told, *self.halt(track, why), *self.place(track)]
        self.groups.queue(track, self._seed_key(track))
        return told

    def _is_drained(self, track: Track) -> bool:
        certain = track.settled or track.position == track.effective  # P11
        return certain and 0 < track.drain_to <= track.effective

    def _flush_key(self, track: Track) -> GroupKey:
        stamp = track.position < self.source.oldest or not track.settled  # P7, P11
        now = stamp and track.position < track.effective
        return GroupKey(track.effective, stamp, now, track.failures > 0, track.crowd, None)

    def _seed_key(self, track: Track) -> GroupKey:
        """A seed takes no position back: what has one is not begun at the start of history again."""
        rewinds = track.config.seed is SeedMode.START and track.position > 0 and self.source.oldest <= track.position
        mode = SeedMode.SCAN if rewinds else track.config.seed
        return GroupKey(0, False, False, track.failures > 0, track.crowd, mode)

    def _forget(self, track: Track, stage: Stage) -> Effects:
        track.stage, track.known = stage, False
        if track.removed:
            del self.tracks[track.name]
        return []

    # ------------------------------------------------------------------------------------------------------ giving back

    def _leave(self, track: Track, stage: Stage) -> Effects:
        """Give a destination back; nothing is in flight to it (P13)."""
        noted = self.record([track.name])
        released = self.release(Released(track.name, track.token, track.settled))
        track.token = 0
        return [*noted, released, *self._forget(track, stage)]

    def release(self, *released: Released) -> Send:
        return Send(self.config.control, ReleaseLeases(released))

    def note_empty(self, track: Track, through: int) -> Effects:
        """A window without rows (P5). It is noted with others, after a while."""
        track.emptied(through)
        begun = not self.unrecorded and self.config.record_ms > 0
        self.unrecorded.add(track.name)
        return [SetTimer("record", self.config.record_ms)] if begun else []

    def record(self, names: list[str]) -> Effects:
        """Note the empty stretches of these destinations, as far as they are news."""
        emptied: dict[int, list[Emptied]] = {}
        for track in [self.tracks[name] for name in names if name in self.unrecorded]:
            emptied.setdefault(track.effective, []).append(Emptied(track.name, track.token, track.position))
            self.unrecorded.discard(track.name)
        return [Send(self.config.control, RecordEmpty(through, tuple(each))) for through, each in emptied.items()]

    # ------------------------------------------------------------------------------------------------------- failures

    def halt(self, track: Track, error: str) -> Effects:
        track.halted, track.error = True, error
        track.doubt()
        return [Announce(Halted(track.name, error))]

    def back_off(self, track: Track, error: str) -> Effects:
        """Count a failure; ``place`` then makes the destination wait."""
        before, most = track.failures, self.config.breaker_after
        track.failures, track.error = min(before + 1, most), error
        grown = self.config.retry_first_ms << (track.failures - 1)
        track.retry_ms = self.config.retry_most_ms if track.failures == most else min(grown, self.config.retry_most_ms)
        effects: Effects = [Announce(BackedOff(track.name, track.failures, error))]
        if before < most == track.failures:
            effects.append(Announce(BreakerOpened(track.name, error)))
        return effects

    def _wait(self, track: Track) -> Effects:
        """One timer serves all that wait equally long; who comes later may wait a little less."""
        track.stage = Stage.BACKING_OFF
        begun = track.retry_ms not in self.backing_off
        self.backing_off.setdefault(track.retry_ms, set()).add(track.name)
        return [SetTimer(f"retry {track.retry_ms}", track.retry_ms)] if begun else []

    def try_again(self, retry_ms: int) -> Effects:
        effects: Effects = []
        for track in [self.tracks[name] for name in sorted(self.backing_off.pop(retry_ms))]:
            track.retry_ms = 0
            effects += self.place(track)
        return effects

    # ------------------------------------------------------------------------------------------------------ beginning

    def start(self) -> Effects:
        """Begin all that can begin now."""
        effects = self._read_standings()
        for beginning in self.groups.startable(self.due, self.source, self.tracks):
            effects += self._begin(beginning)
        return effects

    def _read_standings(self) -> Effects:
        names = sorted(self.unread)
        self.unread.clear()
        if not names:
            return []
        number = self.groups.begin(Job(Stage.READING, names))
        for name in names:
            self.tracks[name].job = number
        return [Send(self.config.worker, ReadStandings(number, tuple(names)))]

    def _begin(self, beginning: Beginning) -> Effects:
        key, names, through = beginning
        kind = Stage.FLUSHING if key.seed is None else Stage.SEEDING
        places = self.groups.places(names, self.tracks)
        number = self.groups.begin(Job(kind, names, through, stamp=key.stamp, failing=key.failing, places=places))
        for track in map(self.tracks.__getitem__, names):
            self.groups.lift(track)
            track.stage, track.job, track.planned = kind, number, through
        members = tuple(Member(name, self.tracks[name].position, self.tracks[name].token) for name in names)
        told = Announce(GroupStarted(number, key.after, through, members, seed=key.seed is not None))
        if key.seed is not None:
            return [told, Send(self.config.worker, SeedGroup(number, through, key.seed, members))]
        return [told, Send(self.config.worker, FlushGroup(number, key.after, through, members, key.stamp))]
