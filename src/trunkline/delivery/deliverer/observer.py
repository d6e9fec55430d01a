"""What a deliverer shows of itself. The host reports every event, in its own thread, and never waits for the observer.

Rules
 V1  What other threads see is a value that never changes after it was made: any thread may read it at any time.
 V2  Updating the view of all destinations takes at most a small share of the host's time, however many there are.
 V5  One log line for each event; of each kind a limited number between two ticks, and then the number of the rest.
V3 and V4 are in ``status_reports.py``.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from time import monotonic
from typing import Final

from msgspec.structs import asdict, replace

from trunkline.core.delivery_events import (
    BackedOff,
    BreakerClosed,
    BreakerOpened,
    DeliveryFenced,
    Drained,
    Halted,
    HistoryExpired,
    Retired,
    Seeded,
)
from trunkline.core.delivery_messages import FlushGroup, Outcome, ReadStandings, ReleaseLeases, SeedGroup
from trunkline.core.effects import Event, Message
from trunkline.core.planner import Planner
from trunkline.core.planner_tracks import TrackStage
from trunkline.delivery.control.contract import UnroutedCounts
from trunkline.delivery.deliverer.leases import DelivererLeases
from trunkline.delivery.deliverer.metrics import DelivererMetrics
from trunkline.delivery.deliverer.progress import WorkProgress
from trunkline.delivery.deliverer.statistics import DestinationStats, VersionTimes
from trunkline.delivery.deliverer.status_reports import PASSING, StatusReports
from trunkline.delivery.deliverer.views import DelivererView
from trunkline.delivery.job.results import JobReport
from trunkline.observing.log_lines import log_event

logger = logging.getLogger(__name__)

UPDATE_SHARE: Final = 0.02  # of the host's time, at most, for updating the view (V2)
UPDATE_EVERY_S: Final = 5.0  # also without news: a pause has no event
LINES_MAX: Final = 20  # of one kind between two ticks (V5)
PROGRESS_EVERY_S: Final = 5.0

LOUD: Final[dict[type[Event], tuple[int, str, str]]] = {  # level, name of the line, metric
    Halted: (logging.ERROR, "halted", "halts_total"),
    HistoryExpired: (logging.WARNING, "history_expired", "expired_total"),
    DeliveryFenced: (logging.WARNING, "fenced", "fenced_total"),
    BackedOff: (logging.WARNING, "backed_off", "retries_total"),
    BreakerOpened: (logging.WARNING, "breaker_opened", "breakers_opened_total"),
}
QUIET: Final[dict[type[Event], str]] = {
    BreakerClosed: "breaker_closed",
    Seeded: "seeded",
    Drained: "drained",
    Retired: "retired",
}  # the line of a job covers the others


class Observer:
    """Called in the host's thread, unless a method says otherwise."""

    def __init__(
        self,
        pipeline: str,
        deliverer: str,
        *,
        per_destination: bool | None = None,
        clock: Callable[[], float] = monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._wall = wall
        self._planner: Planner | None = None
        self._stats: dict[str, DestinationStats] = {}
        self._version_times = VersionTimes()
        self._reports = StatusReports(self._version_times)
        self._progress = WorkProgress(clock)
        self._view = DelivererView(pipeline=pipeline, deliverer=deliverer, state="starting", at_ms=0, turned_ms_ago=0)
        self._turned = clock()
        self._unrouted: tuple[int, UnroutedCounts] | None = None
        self._source_error = self._store_error = ""
        self._died: tuple[str, ...] = ()
        self._news = True  # since the view was updated
        self._update_at = 0.0  # not before
        self._updated = 0.0
        self._lines: Counter[tuple[int, str]] = Counter()
        self._progress_at = 0.0
        self.metrics = DelivererMetrics(self.snapshot, per_destination=per_destination)

    # --- the deliverer's life ---

    def began(self, planner: Planner, leases: DelivererLeases) -> None:
        self._planner = planner
        self._reports.began(leases)
        self._log(logging.INFO, "began", deliverer=self._view.deliverer, destinations=len(planner.tracks))
        self.tick()

    def ended(self) -> None:
        """The loop has ended, and all destinations were released."""
        if self._planner is None:
            return
        self._update_view(self._planner, self._clock())
        self._log_surplus()
        self._log(logging.INFO, "ended", source_version=self._view.source_version)

    def tick(self) -> None:
        """About once a second."""
        if self._planner is None:
            return
        now = self._turned = self._clock()
        self._news |= self._planner.schedule.source.version != self._view.source_version
        self._news |= self._reports.is_incomplete
        self._version_times.note(self._planner.schedule.source.version, now)
        if now >= self._update_at and (self._news or now - self._updated >= UPDATE_EVERY_S):
            self._update_view(self._planner, now)
        if not self._store_error:
            self._reports.send_due(self._stats, self._planner.tracks, self._planner.schedule.source.version, now)
        self._log_progress(now)
        self._log_surplus()

    # --- what happens ---

    def event(self, event: Event) -> None:
        self._news = True
        kind = type(event)
        if kind in LOUD:
            level, name, metric = LOUD[kind]
            self.metrics.add(metric)
            self._log(level, name, **asdict(event))
        elif kind in QUIET:
            self._log(logging.INFO, QUIET[kind], **asdict(event))
        if isinstance(event, Seeded):
            self._progress.seeded(event.destination)

    def job_started(self, job: ReadStandings | FlushGroup | SeedGroup) -> None:
        self._news = True
        match job:
            case ReadStandings(number, destinations):
                self._progress.begin(number, "reading", 0, 0, len(destinations))
            case FlushGroup(number, after, through, members):
                self._progress.begin(number, "flush", after, through, len(members))
            case SeedGroup(number, through, _, members):
                self._progress.begin(number, "seed", 0, through, len(members))

    def job_ended(self, job: ReadStandings | FlushGroup | SeedGroup, report: JobReport) -> None:
        """Called before the planner receives the report."""
        self._news = True
        took_s = self._progress.end(job.job)
        kind = {ReadStandings: "reading", FlushGroup: "flush", SeedGroup: "seed"}[type(job)]
        self.metrics.observe("job_duration_seconds", took_s, (kind, report.path or "none"))
        outcomes = Counter(result.outcome for result in report.results)
        members = len(job.destinations) if isinstance(job, ReadStandings) else len(job.members)
        if missing := members - outcomes.total():
            outcomes[report.rest] += missing
            if report.rest is Outcome.UNKNOWN:
                error = report.error
                self._log(logging.WARNING, "job_broke_off", job=job.job, kind=kind, unknown=missing, error=error)
        if isinstance(job, ReadStandings):
            return
        for outcome, count in outcomes.items():
            self.metrics.add("flushes_total" if kind == "flush" else "seeds_total", count, (outcome.value,))
        rows = self._count(job, report)
        after = job.after if isinstance(job, FlushGroup) else 0
        if isinstance(job, FlushGroup):
            self.metrics.observe("window_versions", job.through - job.after)
            self.metrics.observe("window_rows", rows)
        level = logging.INFO if report.path or report.results else logging.DEBUG  # DEBUG: nothing had to be read
        self._log(
            level,
            "flushed" if kind == "flush" else "seed_ended",
            job=job.job,
            after=after,
            through=job.through,
            members=len(job.members),
            touched=outcomes[Outcome.APPLIED],
            failed=outcomes.total() - sum(outcomes[each] for each in (Outcome.APPLIED, Outcome.ALREADY, Outcome.EMPTY)),
            rows=rows,
            ms=round(took_s * 1000),
            path=report.path,
        )

    def _count(self, job: FlushGroup | SeedGroup, report: JobReport) -> int:
        """Add what a job did to the statistics; returns the total of rows."""
        now_ms = round(self._wall() * 1000)
        tokens = {member.destination: member.token for member in job.members}
        for each in report.results:
            if each.outcome is not Outcome.APPLIED:
                continue
            stats = self._stats.setdefault(each.destination, DestinationStats())
            stats.add(each, tokens[each.destination], now_ms, seed=isinstance(job, SeedGroup))
            self.metrics.add("rows_removed_total", each.removed)
            self.metrics.add("rows_written_total", each.written)
            self.metrics.add("duplicate_rows_total", each.duplicates)
            self.metrics.add("missing_rows_total", each.missing)
            if each.reshaped:
                self._log(logging.WARNING, "columns_changed", destination=each.destination, done=each.reshaped)
            if each.duplicates:
                todo = "make the key unique in the source; one row of each key was kept"
                self._log(logging.WARNING, "duplicates", destination=each.destination, rows=each.duplicates, todo=todo)
            if each.missing:
                todo = "another program changes the table; find it, compare with verify, and repair with reseed"
                self._log(logging.WARNING, "missing_rows", destination=each.destination, rows=each.missing, todo=todo)
        return sum(each.removed + each.written for each in report.results)

    # --- from any thread ---

    def source_error(self, text: str) -> None:
        """The source cannot be reached; empty: it can again. Any thread."""
        if text:
            self.metrics.add("source_errors_total")
        self._source_error = text

    def store_error(self, text: str) -> None:
        """A call to the control store failed; empty: one succeeded. Any thread."""
        if text:
            self.metrics.add("control_errors_total")
            self._reports.store_failed()
        self._store_error = text

    def thread_died(self, why: str) -> None:
        """Any thread."""
        self._died = (*self._died, why)

    def unrouted(self, through: int, counts: UnroutedCounts) -> None:
        """The unrouted rows of the pipeline up to this version. Any thread."""
        self._unrouted = (through, counts)

    def snapshot(self) -> DelivererView:
        """The present state; of destinations the last update, about a second ago. Any thread."""
        now, view = self._clock(), self._view
        through, counts = self._unrouted or (None, None)
        return replace(
            view,
            at_ms=round(self._wall() * 1000),
            turned_ms_ago=max(0, round((now - self._turned) * 1000)),
            source_error=self._source_error,
            store_error=self._store_error,
            died=self._died,
            unrouted_through=through,
            unrouted=counts,
            jobs=self._progress.jobs(),
            seeding=self._progress.seeding(),
            catching_up=self._progress.catching_up(),
            destinations=tuple(
                self._version_times.with_lag(each, view.source_version, now) for each in view.destinations
            ),
        )

    # --- the view of all destinations ---

    def _update_view(self, planner: Planner, now: float) -> None:
        self._news, version = False, planner.schedule.source.version
        failures = self._reports.failures  # read first: a failure after it counts as another one
        if self._reports.is_incomplete and not self._store_error:
            self._reports.resend(failures)
        self._stats = {name: self._stats.get(name) or DestinationStats() for name in planner.tracks}
        for name, stats in self._stats.items():
            stats.seen(planner.tracks[name], planner.config.breaker_after)
        self._reports.collect(self._stats, version, now)
        views = (stats.view for stats in self._stats.values())
        self._view = replace(
            self._view,
            state=planner.phase,
            source_version=version,
            source_oldest=planner.schedule.source.oldest,
            held=sum(track.token > 0 for track in planner.tracks.values()),
            waiting_rows=planner.pending[0] or None,
            destinations=tuple(view for view in views if view is not None),
        )
        self._update_progress(planner)
        self._updated = self._clock()
        self._update_at = self._updated + (self._updated - now) / UPDATE_SHARE  # V2

    def _update_progress(self, planner: Planner) -> None:
        seeding, behind = [], []
        for track in planner.tracks.values():
            waits_for_seed = track.key is not None and track.key.seed is not None
            if track.stage is TrackStage.SEEDING or waits_for_seed:
                seeding.append(track.name)
            elif track.stage in PASSING and track.known:
                behind.append(track.effective)
        self._progress.update(seeding, min(behind, default=None), planner.schedule.source.version)

    def releasing(self, message: Message) -> None:
        """Called before the control store releases destinations."""
        if not isinstance(message, ReleaseLeases) or self._planner is None or self._store_error:
            return
        released = {each.destination: each.token for each in message.released}
        released = {name: token for name, token in released.items() if name in self._planner.tracks}
        for name in released:
            stats = self._stats.setdefault(name, DestinationStats())
            stats.seen(self._planner.tracks[name], self._planner.config.breaker_after, last=True)
        version = self._planner.schedule.source.version
        self._reports.send_released(released, self._stats, version, self._clock())

    # --- log lines ---

    def _log(self, level: int, name: str, **fields: object) -> None:
        self._lines[level, name] += 1
        if self._lines[level, name] <= LINES_MAX:  # V5
            log_event(logger, level, name, pipeline=self._view.pipeline, **fields)

    def _log_surplus(self) -> None:
        for (level, name), count in self._lines.items():
            if count > LINES_MAX:
                surplus = count - LINES_MAX
                log_event(logger, level, "more_lines", pipeline=self._view.pipeline, of=name, count=surplus)
        self._lines.clear()

    def _log_progress(self, now: float) -> None:
        if now < self._progress_at:
            return
        long_jobs = [job for job in self._progress.jobs() if job.elapsed_ms >= PROGRESS_EVERY_S * 1000]
        for name, view in (
            *(("job_progress", job) for job in long_jobs),
            ("seeding", self._progress.seeding()),
            ("catching_up", self._progress.catching_up()),
        ):
            if view is not None:
                self._progress_at = now + PROGRESS_EVERY_S
                self._log(logging.INFO, name, **asdict(view))
