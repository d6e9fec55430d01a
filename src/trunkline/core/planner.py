"""The planner of a delivery pipeline: decides which destinations are brought from which version to which, and when.

It holds no rows: the source is the buffer. Workers carry out its jobs; the destination itself makes the final decision
(``core/fence.py``), so an outdated plan is refused there and does no harm.

States of a destination
    unowned --granted--> reading --stands--> ready --due--> flushing --applied, empty--> ready ...
                            |--no record, expired, requested--> seeding --applied--> ready
    any job --moved--> reading    --transient--> backing off --> ready    --unknown--> backing off --> reading
            --fenced--> unowned   --permanent--> halted (until resumed, seeded again or reconfigured)
            --strayed--> halted, if its own position is not of the history of the source; else reading

Rules
 P1  One job in flight per destination; at most one seed and ``groups_max`` flushes at a time, the last of them for
     destinations that did not fail.
 P2  position <= effective <= planned <= source. A failure moves ``planned`` back to the effective position.
 P3  The read epoch: an answer counts for a destination only if its job is the one in flight, and nothing has happened
     since that outdates what it read or wrote (lease, configuration, a request for a seed).
 P4  If the position of a destination is not known (granted, resumed, moved, outcome unknown), it is read before
     planning.
 P5  A window without rows for a settled destination is not written. It is noted; the next window begins after it, and
     still expects the stored position. Only an answer that says so makes a window empty: silence never does.
 P6  The note holds for exactly the stored position. A destination whose digest changed is left alone until the next
     grant: what it holds belongs to the old configuration, so that grant comes with a request for a seed.
 P7  When the source is about to expire a stored position that is covered by a note, the position is written once. What
     is not covered is seeded again, and announced.
 P8  A window ends at the newest version that is due, at the next stop, or where destinations wait for a slot (to
     continue with them), whichever comes first.
 P9  One destination never delays another: failed destinations fly apart from healthy ones, and the members of a job
     that broke off fly in ever smaller groups, until they succeed. Not alone at once: a job may have 20,000 members,
     most jobs break off for a reason outside their members, and halves find the culprit in 15 rounds.
 P10 A fenced destination is left alone until the next grant.
 P11 Settled: no write that is still in flight to a destination can succeed. A write under my token makes it so; a
     grant, an unknown outcome and a position that moved end it. Until then every window is written, rows or not: an
     older flush that lands late would otherwise change what an empty window was measured from.
 P12 Idle is idle: without news nothing is requested, and if nothing waits no timer runs.
 P13 A destination is released only when nothing is in flight to it. A stopped planner gives every grant back.
 P14 Destinations of one place (tables of one catalog, which accepts one commit at a time) are in one job, or in jobs
     one after another: two at once would undo the work of each other. One that waits for its place delays no other.
 P15 A position, and a note, hold in the history of the source that their marks identify. When the source was replaced
     or restored, every destination is read again and compared with it. A strayed destination is never flushed: it
     halts, until an operator who insists has it seeded again, at the present version of the source.
 P16 A destination whose tables commit alone may have some of them ahead of the others. Its next window ends exactly
     there, and is written, rows or not: every table is level again before any goes on. If the source cannot read that
     window in one piece, it is seeded, as after any expiry.
"""

from __future__ import annotations

import enum

from msgspec.structs import replace

from trunkline.core.delivery_events import BreakerClosed, DeliveryFenced, PlanDropped, Seeded, Stopped
from trunkline.core.delivery_messages import (
    Configured,
    FencedOff,
    Grant,
    JobDone,
    LeasesGranted,
    LeasesLost,
    Life,
    LifeChanged,
    Lost,
    Outcome,
    Planned,
    Released,
    ReseedAsked,
    Reseeded,
    Result,
    Shutdown,
    SourceAt,
)
from trunkline.core.effects import Address, Announce, CancelTimer, Complete, Effects, Message, Send, SetTimer
from trunkline.core.planner_schedule import Schedule
from trunkline.core.planner_tracks import PlannerConfig, PlannerJob, Track, TrackStage

UNSETTLING = (Outcome.UNKNOWN, Outcome.MOVED, Outcome.ALREADY, Outcome.FENCED)


class PlannerState(enum.Enum):
    RUNNING = "running"
    DRAINING = "draining"
    STOPPING = "stopping"
    STOPPED = "stopped"


class Planner:
    def __init__(self, config: PlannerConfig) -> None:
        self.config = config
        self.state = PlannerState.RUNNING
        self.schedule = Schedule(config)
        self.pending = (0, 0)  # rows and bytes that wait for the interval
        self.interval_runs = False
        self.shutdowns: tuple[int, ...] = ()  # operations to complete

    @property
    def phase(self) -> str:
        return self.state.value

    @property
    def tracks(self) -> dict[str, Track]:
        """The destinations, read-only."""
        return self.schedule.tracks

    def on_start(self) -> Effects:
        return []

    def on_choice(self, key: str, option: object) -> Effects:
        raise AssertionError(f"a planner makes no choice, but {key} was chosen")

    def on_timer(self, key: str) -> Effects:
        if self.state is PlannerState.STOPPED:
            return []
        if key == "interval":
            self.interval_runs = False
            return self._trigger() + self._continue()
        if key == "record":
            return self._record() + self._continue()
        return self.schedule.try_again(int(key.removeprefix("retry "))) + self._continue()

    def on_message(self, source: Address, message: Message) -> Effects:
        if self.state is PlannerState.STOPPED:
            return self._give_back(message.grants) if isinstance(message, LeasesGranted) else []
        return self._handle(message) + self._continue()

    def ignores(self, source: Address, message: Message) -> bool:
        """Versions and tokens only grow: an older one is never news."""
        match message:
            case SourceAt(version, oldest, stops, rows, size_bytes, first, history):
                known = self.schedule.source
                if history != known.history:
                    return history < known.history
                new_stops = [stop for stop in stops if stop > known.oldest and stop not in known.stops]
                newer = version > known.version or oldest > known.oldest or first > known.first
                return not (newer or new_stops or rows or size_bytes)
            case LeasesGranted(grants):
                return all(self._is_late(grant.destination, grant.token) for grant in grants)
            case LeasesLost(lost):
                return all(self._is_late(each.destination, each.token) for each in lost)
        return False

    def _is_late(self, destination: str, token: int) -> bool:
        return destination in self.tracks and token < self.tracks[destination].token_floor

    def _handle(self, message: Message) -> Effects:
        match message:
            case SourceAt():
                return self._on_source(message)
            case JobDone():
                return self._on_done(message)
            case LeasesGranted(grants):
                return [effect for grant in grants for effect in self._on_granted(grant)]
            case LeasesLost(lost):
                return [effect for each in lost for effect in self._on_lost(each)]
            case Configured(destinations):
                return self._on_configured(destinations)
            case LifeChanged(destination, life):
                return self._on_life(self.tracks.get(destination), life)
            case ReseedAsked(destination):
                return self._on_reseed(self.tracks.get(destination), message)
            case Shutdown(operation, drain):
                return self._on_shutdown(operation, drain=drain)
        raise AssertionError(f"a planner does not accept {message}")

    def _continue(self) -> Effects:
        """Start whatever can start now, or stop."""
        effects = [] if self.config.record_ms else self._record()
        if self.state is not PlannerState.STOPPING:
            effects += self.schedule.start()
        if self.state in (PlannerState.DRAINING, PlannerState.STOPPING) and not self.schedule.groups.jobs:
            effects += self._stop()
        return effects

    def _record(self) -> Effects:
        return self.schedule.record(sorted(self.schedule.unrecorded))

    # ------------------------------------------------------------------------------------------------------ the source

    def _on_source(self, report: SourceAt) -> Effects:
        known, effects = self.schedule.source, Effects()
        if report.history != known.history:
            return self._on_history(report) if report.history > known.history else []
        version, oldest = max(known.version, report.version), max(known.oldest, report.oldest)
        stops = sorted({*known.stops, *report.stops})
        later = tuple(stop for stop in stops if stop > oldest)
        first = max(known.first, report.first)
        self.schedule.source = SourceAt(version, oldest, later, first=first, history=known.history)
        self.pending = (self.pending[0] + report.rows, self.pending[1] + report.size_bytes)
        if not known.version:
            effects += self._drain_from_here()
        if oldest > known.oldest or later != known.stops:
            effects += self._meet_limits()
        if self.state is not PlannerState.RUNNING or version <= self.schedule.due:
            return effects
        enough = self.pending[0] >= self.config.rows or self.pending[1] >= self.config.size_bytes
        if not known.version or not self.config.interval_ms or enough:
            return effects + self._trigger()
        if not self.interval_runs:
            self.interval_runs = True
            effects.append(SetTimer("interval", self.config.interval_ms))
        return effects

    def _on_history(self, report: SourceAt) -> Effects:
        """The source was replaced or restored: what was known of it no longer counts (P15)."""
        self.schedule.source = replace(report, rows=0, size_bytes=0)
        effects = self._trigger()
        for track in list(self.tracks.values()):
            track.forget_empty()
            track.unreadable, track.drain_to = False, min(track.drain_to, report.version)
            self.schedule.unrecorded.discard(track.name)
            self.schedule.lift(track)
            track.doubt()
            effects += [Announce(PlanDropped(track.name)), *self.schedule.place(track)]
        return effects

    def _trigger(self) -> Effects:
        """Every known version is due now."""
        self.schedule.due, self.pending = self.schedule.source.version, (0, 0)
        ended: Effects = [CancelTimer("interval")] if self.interval_runs else []
        self.interval_runs = False
        return ended

    def _meet_limits(self) -> Effects:
        """The source has expired versions, or has new stops: place the destinations that it affects (P7, P16)."""
        oldest, ready = self.schedule.source.oldest, TrackStage.READY
        affected = [track for track in self.tracks.values() if track.position < oldest or track.ahead]
        return [effect for track in affected if track.stage is ready for effect in self.schedule.place(track)]

    # ------------------------------------------------------------------------------------------------------- ownership

    def _on_granted(self, grant: Grant) -> Effects:
        track = self.tracks.get(grant.destination)
        if track is None:
            return self._give_back((grant,))
        if grant.token == track.token:
            return self._on_reseed(track, ReseedAsked(track.name, grant.reseed, grant.insists, grant.discards))
        if grant.token < track.token_floor:
            return []
        if grant.token > track.token_floor:
            track.settled = grant.settled  # P11
        track.token = track.token_floor = grant.token
        track.empty, track.empty_mark = grant.empty, grant.empty_mark
        if grant.reseed > max(track.reseed, track.reseed_done):
            track.reseed, track.insists, track.discards = grant.reseed, grant.insists, grant.discards
        return self._start_over(track)

    def _give_back(self, grants: tuple[Grant, ...]) -> Effects:
        released = [Released(grant.destination, grant.token, grant.settled) for grant in grants]
        return [self.schedule.release(*released)]

    def _on_lost(self, lost: Lost) -> Effects:
        track = self.tracks.get(lost.destination)
        if track is None or track.token != lost.token:
            return []
        track.token, track.reseed = 0, 0  # the next grant says what is requested
        track.insists = track.discards = False
        return self._start_over(track)

    def _on_fenced(self, track: Track, seen: int) -> Effects:
        fenced = Announce(DeliveryFenced(track.name, track.token, seen))
        note = Send(self.config.control, FencedOff(track.name, track.token, seen))
        track.token, track.token_floor = 0, max(track.token_floor, seen)  # P10
        track.doubt()
        return [fenced, note]

    def _start_over(self, track: Track) -> Effects:
        """Drop everything that was known or planned (P3)."""
        self.schedule.lift(track)
        track.doubt()
        track.revive(self.config.members_max)
        self.schedule.unrecorded.discard(track.name)
        return [Announce(PlanDropped(track.name)), *self.schedule.place(track)]

    # ------------------------------------------------------------------------------------------------- operators

    def _on_configured(self, destinations: tuple[Planned, ...]) -> Effects:
        effects: Effects = []
        named = {planned.destination for planned in destinations}
        for planned in destinations:
            effects += self._configure(planned)
        for track in [track for name, track in self.tracks.items() if name not in named]:
            track.removed = True
            effects += self.schedule.place(track)
        return effects

    def _configure(self, planned: Planned) -> Effects:
        """An unchanged configured life does not override what an operator requested."""
        track = self.tracks.get(planned.destination)
        if track is None:
            track = self.tracks[planned.destination] = Track(planned, self.config.members_max)
            return self._on_life(track, planned.life)
        before, track.removed = track.config, False
        life_before, track.life_configured = track.life_configured, planned.life
        track.config = replace(planned, life=before.life)
        effects: Effects = []
        if before.digest != planned.digest:
            track.token = 0  # P6
            effects += self._start_over(track)
        return effects + (self._on_life(track, planned.life) if life_before != planned.life else [])

    def _on_life(self, track: Track | None, life: Life) -> Effects:
        if track is None:
            return []
        track.config = replace(track.config, life=life)
        if life is Life.DRAINING:
            track.drain_to = self.schedule.source.version
            return self._trigger() + self.schedule.place(track)
        changed = life is Life.PAUSED or (life is Life.ACTIVE and (track.halted or track.retry_ms > 0))
        if changed:  # an operator may change the destination in the meantime (P4)
            return self._start_over(track)
        return self.schedule.place(track)

    def _drain_from_here(self) -> Effects:
        draining = [track for track in self.tracks.values() if track.config.life is Life.DRAINING]
        return [effect for track in draining for effect in self._on_life(track, Life.DRAINING)]

    def _on_reseed(self, track: Track | None, asked: ReseedAsked) -> Effects:
        if track is None or asked.request <= max(track.reseed, track.reseed_done):
            return []
        track.reseed = asked.request
        track.insists, track.discards = track.insists or asked.insists, track.discards or asked.discards
        return self._start_over(track)

    def _on_shutdown(self, operation: int, *, drain: bool) -> Effects:
        self.shutdowns += (operation,)
        if drain and self.state is PlannerState.RUNNING:
            self.state = PlannerState.DRAINING
            return self._trigger()
        self.state = PlannerState.STOPPING
        return []

    def _stop(self) -> Effects:
        self.state = PlannerState.STOPPED
        owned = [track for _, track in sorted(self.tracks.items()) if track.token]
        late = [track for track in owned if track.halted or track.ahead or track.effective < self.schedule.due]
        behind = tuple(track.name for track in late)
        released = [Released(track.name, track.token, track.settled) for track in owned]
        ended: Effects = [CancelTimer(f"retry {retry_ms}") for retry_ms in self.schedule.backing_off]
        ended += [CancelTimer("interval"), CancelTimer("record"), *self._record()]
        ended += [self.schedule.release(*released)] if released else []
        return [*ended, *(Complete(operation, Stopped(behind)) for operation in self.shutdowns)]

    # --------------------------------------------------------------------------------------------------------- answers

    def _on_done(self, done: JobDone) -> Effects:
        job, effects = self.schedule.groups.jobs.get(done.job), Effects()
        if job is None:
            return []
        job.mark = done.mark
        for result in done.results:
            effects += self._settle(done.job, job, result)
        if done.rest is None:
            return effects
        for name in sorted(job.members):
            effects += self._settle(done.job, job, Result(name, done.rest, error=done.error))
        del self.schedule.groups.jobs[done.job]
        return effects

    def _settle(self, number: int, job: PlannerJob, result: Result) -> Effects:
        track = self.tracks.get(result.destination)
        job.members.discard(result.destination)
        if track is None or track.job != number:
            return []
        current, track.job, track.doubted = not track.doubted, 0, False
        if result.outcome in UNSETTLING and job.kind is not TrackStage.READING:
            track.settled = False  # P11, even if the answer is outdated
        effects = self._on_result(track, job, result) if current else []  # P3
        track.planned = track.effective  # P2
        return effects + self.schedule.place(track)

    def _on_result(self, track: Track, job: PlannerJob, result: Result) -> Effects:
        match result.outcome:
            case Outcome.STANDS:
                return self._on_stands(track, result)
            case Outcome.STRAYED if job.kind is TrackStage.READING:
                return self._on_stands(track, result)
            case Outcome.APPLIED:
                track.settled = True  # P11
                return self._on_applied(track, job, result)
            case Outcome.ALREADY if not track.reseed:
                return self._on_applied(track, job, result)
            case Outcome.EMPTY:
                assert job.kind is TrackStage.FLUSHING and not job.stamp, f"a job of {track.name} cannot be empty"
                return self.schedule.note_empty(track, job.through, job.mark) + self._on_success(track)
            case Outcome.MOVED | Outcome.ALREADY:
                return self._on_moved(track)
            case Outcome.STRAYED:
                track.forget_empty()  # P15: perhaps only the note strayed
                return self._on_moved(track)
            case Outcome.FENCED:
                return self._on_fenced(track, result.token)
            case Outcome.EXPIRED if job.kind is TrackStage.FLUSHING:
                track.unreadable = True  # P7
                return [Announce(PlanDropped(track.name))]
            case Outcome.TRANSIENT | Outcome.UNKNOWN | Outcome.EXPIRED:
                if result.outcome is Outcome.UNKNOWN and job.kind is not TrackStage.READING:
                    track.doubt()  # P4
                    track.crowd = max(1, job.size // 2)  # P9
                return self.schedule.back_off(track, result.error)
            case Outcome.PERMANENT:
                return self.schedule.halt(track, result.error)

    def _on_stands(self, track: Track, result: Result) -> Effects:
        if result.token > track.token:
            return self._on_fenced(track, result.token)
        track.known, track.position, track.mark, track.ahead = True, result.position, result.mark, result.ahead
        track.strayed = result.outcome is Outcome.STRAYED
        if not result.note_holds or 0 < track.ahead < track.effective:
            track.forget_empty()
        if track.strayed and not (track.reseed and track.insists):  # P15
            return self.schedule.halt(track, result.error)
        return []

    def _on_applied(self, track: Track, job: PlannerJob, result: Result) -> Effects:
        track.position, track.mark, track.unreadable, track.strayed = (
            result.position,
            result.mark or job.mark,
            False,
            False,
        )
        track.ahead = 0  # P16
        track.forget_empty()
        self.schedule.unrecorded.discard(track.name)
        effects = self._on_success(track)
        if job.kind is TrackStage.SEEDING:
            effects.append(Announce(Seeded(track.name, result.position)))
            if track.reseed:
                effects.append(Send(self.config.control, Reseeded(track.name, track.token, track.reseed)))
                track.reseed, track.reseed_done = 0, track.reseed
                track.insists = track.discards = False
        return effects

    def _on_moved(self, track: Track) -> Effects:
        """Once: an older flush landed late. Repeatedly: another process writes there."""
        again, track.moved = track.moved, True
        track.doubt()  # P4
        why = "its position, or the source's history, keeps moving; let one pipeline alone write to it"
        return [Announce(PlanDropped(track.name)), *(self.schedule.back_off(track, why) if again else [])]

    def _on_success(self, track: Track) -> Effects:
        closed = track.failures >= self.config.breaker_after
        track.revive(self.config.members_max)
        return [Announce(BreakerClosed(track.name))] if closed else []
