"""What a deliverer shows of itself: it is told of everything that happens, in the host's thread, and never stops it.

Rules
 V1  What others see is a value that is made here and then left alone: any thread may ask for it at any time.
 V2  Looking at all destinations takes at most a small share of the host's time, however many there are.
 V3  The control store hears of a destination when something about it changed, not to say that nothing did: at most once
     a second, and never again before the last report has come to its end.
 V4  While the store is away nothing is sent; afterwards all is sent again, since nobody knows what got lost.
 V5  One line for each thing that happened; of one kind only so many between two ticks, and then their number.
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
from trunkline.core.planner_tracks import Stage
from trunkline.delivery.control.contract import ERROR_CHARACTERS_MAX, Reported, Status, UnroutedCounts
from trunkline.delivery.deliverer.leases import DelivererLeases
from trunkline.delivery.deliverer.metrics import DelivererMetrics
from trunkline.delivery.deliverer.progress import WorkProgress
from trunkline.delivery.deliverer.statistics import DestinationStats, VersionTimes
from trunkline.delivery.deliverer.views import DelivererView, DestinationView
from trunkline.delivery.job.results import JobReport
from trunkline.observing.log_lines import log_event

logger = logging.getLogger(__name__)

LOOK_SHARE: Final = 0.02  # of the host's time, at most, for looking at all destinations (V2)
LOOK_EVERY_S: Final = 5.0  # also without news: a pause is not announced
LATE_S: Final = 5.0  # a shorter lag is the normal course of things, and not reported for itself
LAG_EVERY_S: Final = 30.0  # how often a lag that goes on is reported
REPORTS_MAX: Final = 1_000  # in one call; the rest follows a second later
LINES_MAX: Final = 20  # of one kind between two ticks (V5)
PROGRESS_EVERY_S: Final = 5.0

PASSING: Final = {Stage.READING, Stage.READY, Stage.FLUSHING}  # a healthy destination goes through them all the time
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
}  # the others are told by the job they belong to


class Observer:
    """Keeps what people ask about. Methods are called in the host's thread unless they say otherwise."""

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
        self._leases: DelivererLeases | None = None
        self._stats: dict[str, DestinationStats] = {}
        self._version_times = VersionTimes()
        self._progress = WorkProgress(clock)
        self._view = DelivererView(pipeline=pipeline, deliverer=deliverer, state="starting", at_ms=0, turned_ms_ago=0)
        self._turned = clock()
        self._unrouted: tuple[int, UnroutedCounts] | None = None
        self._source_error = self._store_error = ""
        self._died: tuple[str, ...] = ()
        self._news = True  # since all destinations were last looked at
        self._look_at = 0.0  # not before
        self._looked = 0.0
        self._due: dict[str, None] = {}  # destinations of which the store is to hear
        self._reporting = False  # a report is on its way
        self._store_failures = 0
        self._store_failures_met = 0  # all was sent again since
        self._lines: Counter[tuple[int, str]] = Counter()
        self._progress_at = 0.0
        self.metrics = DelivererMetrics(self.snapshot, per_destination=per_destination)

    # --- the deliverer's life ---

    def began(self, planner: Planner, leases: DelivererLeases) -> None:
        self._planner = planner
        self._leases = leases
        self._say(logging.INFO, "began", deliverer=self._view.deliverer, destinations=len(planner.tracks))
        self.tick()

    def ended(self) -> None:
        """The loop has ended, and all was given back."""
        if self._planner is None:
            return
        self._look(self._planner, self._clock())
        self._tell_surplus()
        self._say(logging.INFO, "ended", source_version=self._view.source_version)

    def tick(self) -> None:
        """About once a second."""
        if self._planner is None:
            return
        now = self._turned = self._clock()
        self._news |= self._planner.schedule.source.version != self._view.source_version
        self._news |= self._store_failures != self._store_failures_met
        self._version_times.note(self._planner.schedule.source.version, now)
        if now >= self._look_at and (self._news or now - self._looked >= LOOK_EVERY_S):
            self._look(self._planner, now)
        self._report(self._planner, now)
        self._tell_progress(now)
        self._tell_surplus()

    # --- what happens ---

    def event(self, event: Event) -> None:
        self._news = True
        kind = type(event)
        if kind in LOUD:
            level, name, metric = LOUD[kind]
            self.metrics.add(metric)
            self._say(level, name, **asdict(event))
        elif kind in QUIET:
            self._say(logging.INFO, QUIET[kind], **asdict(event))
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
        """Before the planner is told."""
        self._news = True
        took_s = self._progress.end(job.job)
        kind = {ReadStandings: "reading", FlushGroup: "flush", SeedGroup: "seed"}[type(job)]
        self.metrics.observe("job_duration_seconds", took_s, (kind, report.path or "none"))
        outcomes = Counter(result.outcome for result in report.results)
        asked = len(job.destinations) if isinstance(job, ReadStandings) else len(job.members)
        if silent := asked - outcomes.total():
            outcomes[report.rest] += silent
            if report.rest is Outcome.UNKNOWN:
                error = report.error
                self._say(logging.WARNING, "job_broke_off", job=job.job, kind=kind, unknown=silent, error=error)
        if isinstance(job, ReadStandings):
            return
        for outcome, count in outcomes.items():
            self.metrics.add("flushes_total" if kind == "flush" else "seeds_total", count, (outcome.value,))
        rows = self._count(job, report)
        after = job.after if isinstance(job, FlushGroup) else 0
        if isinstance(job, FlushGroup):
            self.metrics.observe("window_versions", job.through - job.after)
            self.metrics.observe("window_rows", rows)
        worth = logging.INFO if report.path or report.results else logging.DEBUG  # DEBUG: nothing had to be read
        self._say(
            worth,
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
        """Add what a job did to the statistics; returns the rows in all."""
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
            if each.duplicates:
                todo = "make the key unique in the source; one row of each key was kept"
                self._say(logging.WARNING, "duplicates", destination=each.destination, rows=each.duplicates, todo=todo)
            if each.missing:
                todo = "somebody else changes the table; find out who, compare with verify, and mend it with reseed"
                self._say(logging.WARNING, "missing_rows", destination=each.destination, rows=each.missing, todo=todo)
        return sum(each.removed + each.written for each in report.results)

    # --- from any thread ---

    def source_error(self, text: str) -> None:
        """The source cannot be reached (or can again: an empty text). Any thread."""
        if text:
            self.metrics.add("source_errors_total")
        self._source_error = text

    def store_error(self, text: str) -> None:
        """A call to the control store failed (or came through: an empty text). Any thread."""
        if text:
            self.metrics.add("control_errors_total")
            self._store_failures += 1
        self._store_error = text

    def thread_died(self, why: str) -> None:
        """Any thread."""
        self._died = (*self._died, why)

    def unrouted(self, through: int, counts: UnroutedCounts) -> None:
        """Rows that no destination takes, all of the pipeline up to this version. Any thread."""
        self._unrouted = (through, counts)

    def snapshot(self) -> DelivererView:
        """All that is known, as of now; destinations as of the last look at them, about a second ago. Any thread."""
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
            destinations=tuple(self._with_lag(each, view.source_version, now) for each in view.destinations),
        )

    def _with_lag(self, each: DestinationView, version: int, now: float) -> DestinationView:
        if each.effective is None:
            return each
        since = self._version_times.lacking_since(each.effective) if each.effective < version else None
        lag_ms = 0 if since is None else max(0, round((now - since) * 1000))
        return replace(each, lag_versions=max(0, version - each.effective), lag_ms=lag_ms)

    # --- looking at all destinations ---

    def _look(self, planner: Planner, now: float) -> None:
        self._news, version = False, planner.schedule.source.version
        failures = self._store_failures
        if failures != self._store_failures_met and not self._store_error:  # V4
            self._store_failures_met = failures
            for stats in self._stats.values():
                stats.told = ()
        late = self._version_times.newest_before(now - LATE_S)
        self._stats = {name: self._stats.get(name) or DestinationStats() for name in planner.tracks}
        for name, stats in self._stats.items():
            track = planner.tracks[name]
            stats.seen(track, planner.config.breaker_after)
            if track.token and self._is_due(stats, version, late, now):
                self._due[name] = None
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
        self._look_at_progress(planner)
        self._looked = self._clock()
        self._look_at = self._looked + (self._looked - now) / LOOK_SHARE  # V2

    def _look_at_progress(self, planner: Planner) -> None:
        seeding, under_way = [], []
        for track in planner.tracks.values():
            waits_for_seed = track.key is not None and track.key.seed is not None
            if track.stage is Stage.SEEDING or waits_for_seed:
                seeding.append(track.name)
            elif track.stage in PASSING and track.known:
                under_way.append(track.effective)
        self._progress.update(seeding, min(under_way, default=None), planner.schedule.source.version)

    # --- reports to the control store ---

    def _is_due(self, stats: DestinationStats, version: int, late: int, now: float) -> bool:
        """Whether the store is to hear of a destination (V3)."""
        if _reported_facts(stats, late) != stats.told:
            return True
        lag = 0 if stats.effective is None else version - stats.effective
        if lag <= 0:
            return stats.told_lag > 0
        is_late = stats.effective is not None and stats.effective < late
        return is_late and lag != stats.told_lag and now - stats.told_at >= LAG_EVERY_S

    def _report(self, planner: Planner, now: float) -> None:
        if self._reporting or self._store_error:
            return
        reports = []
        for name in list(self._due)[:REPORTS_MAX]:
            del self._due[name]
            stats, track = self._stats.get(name), planner.tracks.get(name)
            if stats is not None and track is not None and track.token:
                reports.append(self._reported(stats, track.token, now))
        if reports:
            self._send(reports)

    def _reported(self, stats: DestinationStats, token: int, now: float) -> Reported:
        assert stats.view is not None
        assert self._planner is not None
        view = self._with_lag(stats.view, self._planner.schedule.source.version, now)
        stats.told = _reported_facts(stats, self._version_times.newest_before(now - LATE_S))
        stats.told_lag, stats.told_at = view.lag_versions or 0, now
        return Reported(view.name, token, _status(view, str(stats.told[0])))

    def _send(self, reports: list[Reported]) -> None:
        assert self._leases is not None
        self._reporting = True
        self._leases.report(reports)
        self._leases.submit(self._report_ended)

    def releasing(self, message: Message) -> None:
        """Before the control store is told: what is given back is reported while it still counts."""
        if not isinstance(message, ReleaseLeases) or self._planner is None or self._store_error:
            return
        now, reports = self._clock(), []
        for name, token in ((each.destination, each.token) for each in message.released):
            track = self._planner.tracks.get(name)
            if track is not None:
                stats = self._stats.setdefault(name, DestinationStats())
                stats.seen(track, self._planner.config.breaker_after, last=True)
                reports.append(self._reported(stats, token, now))
        for at in range(0, len(reports), REPORTS_MAX):
            self._send(reports[at : at + REPORTS_MAX])

    def _report_ended(self) -> None:
        """In the thread of the store, behind the report."""
        self._reporting = False

    # --- lines ---

    def _say(self, level: int, name: str, **fields: object) -> None:
        self._lines[level, name] += 1
        if self._lines[level, name] <= LINES_MAX:  # V5
            log_event(logger, level, name, pipeline=self._view.pipeline, **fields)

    def _tell_surplus(self) -> None:
        for (level, name), count in self._lines.items():
            if count > LINES_MAX:
                surplus = count - LINES_MAX
                log_event(logger, level, "more_lines", pipeline=self._view.pipeline, of=name, count=surplus)
        self._lines.clear()

    def _tell_progress(self, now: float) -> None:
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
                self._say(logging.INFO, name, **asdict(view))


def _reported_facts(stats: DestinationStats, late: int) -> tuple[object, ...]:
    """What a report is about, but for the lag: the state first."""
    stage, _, _, position, effective, _, error, written = stats.facts
    assert isinstance(stage, Stage)
    is_late = stats.effective is not None and stats.effective < late
    passing = stage in PASSING and effective is not None and not is_late
    return (Stage.READY.value if passing else stage.value, position, error, written)


def _status(view: DestinationView, state: str) -> Status:
    return Status(
        state=state,
        position=view.position,
        lag_versions=view.lag_versions,
        lag_ms=view.lag_ms,
        flushed_at_ms=view.flushed_at_ms,
        rows=view.rows_last,
        rows_total=view.removed + view.written,
        error=view.error[:ERROR_CHARACTERS_MAX],
    )
