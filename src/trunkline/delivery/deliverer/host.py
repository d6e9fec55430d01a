"""The host of a planner: one thread in which the planner's messages, timers and effects take their turn.

Rules
 D1  The planner runs in this thread only. Whoever has news for it posts it to the inbox.
 D2  Jobs run in threads; each is answered to its end, whatever happens to it.
 D3  Nothing is asked of the source, a destination or the store in this thread: one that hangs delays no other.
 D4  A thread that breaks off ends the deliverer: what is in flight comes to its end, then it says why.
 D5  A first SIGTERM or Ctrl-C drains, a second one stops as soon as what is in flight has ended.
"""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from time import monotonic

from trunkline.core.delivery_events import Drained, JobEnded, Retired, Stopped
from trunkline.core.delivery_messages import (
    Configured,
    FlushGroup,
    Life,
    Outcome,
    ReadStandings,
    SeedGroup,
    Shutdown,
)
from trunkline.core.effects import Address, Announce, CancelTimer, Complete, Effects, Event, Message, Send, SetTimer
from trunkline.core.planner import Planner
from trunkline.delivery.changes.windows import Window
from trunkline.delivery.config import DestinationConfig, Pipeline
from trunkline.delivery.control.store import ControlStore
from trunkline.delivery.deliverer.assembly import pipeline_digest, planned, planner_config, work_of
from trunkline.delivery.deliverer.discovery import Discovery
from trunkline.delivery.deliverer.leases import LeaseKeeper
from trunkline.delivery.deliverer.observer import Observer
from trunkline.delivery.deliverer.source_watch import SourceWatch
from trunkline.delivery.deliverer.unrouted_counter import UnroutedCounter, take_counts_back
from trunkline.delivery.destinations.factory import open_destination
from trunkline.delivery.job.runner import JobReport, JobRunner
from trunkline.delivery.job.work import Work
from trunkline.delivery.sources.factory import source_of
from trunkline.errors import TrunklineError
from trunkline.threads import Threads

logger = logging.getLogger(__name__)
HOST = Address("self", "host")
TICK_MS = 1_000  # how often desired states and leases are checked
LOOK_S_MOST = 60.0  # a look at the source that takes longer is told; too small: a slow catalog counts as away


class Deliverer:
    """Delivers one pipeline until it is stopped."""

    def __init__(
        self,
        pipeline: Pipeline,
        runner: Callable[[Work], JobRunner],
        store: ControlStore,
        name: str,
        observer: Observer,
        threads: Threads | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._source = source_of(pipeline.source)
        self._make_runner = runner
        self._store = store
        self._observer = observer
        self._destinations: dict[str, DestinationConfig] = {each.name: each for each in pipeline.destinations}
        self.planner = Planner(planner_config(pipeline))
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._timers: dict[str, float] = {}
        self._stopped: Stopped | None = None
        self._operation = 0
        self._threads = threads or Threads()
        self._jobs = ThreadPoolExecutor(pipeline.flush.groups + 2, thread_name_prefix="job")
        self._digest = pipeline_digest(pipeline)
        self._leases = LeaseKeeper(
            store,
            pipeline.name,
            name,
            self._digest,
            pipeline.control.lease_ms,
            tell=self.tell,
            unreachable=observer.store_error,
            failed=self._break,
            threads=self._threads,
        )
        self._watch = SourceWatch(
            self._source, pipeline.reading.poll_ms, self.tell, observer.source_error, self._threads
        )
        self._told_slow = False  # of a look at the source
        self._discovery = Discovery(pipeline, store) if pipeline.discover is not None else None
        self._discovering: Future[list[DestinationConfig]] | None = None
        self._runners = [self._make_runner(work_of(pipeline, self._source, list(self._destinations.values())))]
        self._counter = UnroutedCounter(
            store,
            pipeline.name,
            lambda window: self._runner.count_unrouted(window),
            lambda: self.planner.schedule.source,
            observer.unrouted,
            threads=self._threads,
        )
        self._broken: TrunklineError | None = None
        self._threads.when_one_dies(self._thread_died)

    @property
    def _runner(self) -> JobRunner:
        """The one that knows all destinations; earlier ones may still have a job in flight."""
        return self._runners[-1]

    # --- from any thread ---

    def tell(self, message: Message) -> None:
        self._inbox.put(lambda: self._carry_out(self.planner.on_message(HOST, message)))

    def stop(self, *, drain: bool) -> None:
        """End; with ``drain`` everything is first brought to the version of this moment."""
        self._operation += 1
        self.tell(Shutdown(self._operation, drain))

    def _break(self, error: TrunklineError) -> None:
        """End at once: what is in flight comes to its end, and nothing more is begun."""
        self._broken = self._broken or error
        self.stop(drain=False)

    def _thread_died(self, why: str) -> None:  # D4
        self._observer.thread_died(why)
        self._break(TrunklineError(f"{why}; start the deliverer again, and report what it logged"))

    # --- the loop ---

    def run(self, *, once: bool = False) -> Stopped:
        """Deliver until stopped, or (``once``) until everything is at the version of this moment."""
        self._configure()
        counted, _ = self._store.unrouted.counts(self._pipeline.name)
        source = self._watch.look()  # after the counts: others may move both on
        if counted > source.version:
            take_counts_back(self._store, self._pipeline.name, source.version)
        if self._discovery is not None:
            self._add([*self._discovery.known(), *self._discovery.look(source, self._runner.count_unrouted)])
        self._leases.begin()
        if once:
            self.stop(drain=True)
        else:
            self._watch.begin()
        self._observer.began(self.planner, self._leases)
        self._counter.begin()
        stopped = None
        try:
            stopped = self._loop()
        finally:
            if not once:
                self._watch.end()
            self._jobs.shutdown(wait=True)
            self._counter.close(finish=stopped is not None)
            self._observer.ended()
            self._leases.end()
            for runner in self._runners:
                runner.close()
        if self._broken is not None:
            raise self._broken
        return stopped

    def _configure(self) -> None:
        digests = {name: planned(self._pipeline, each, Life.ACTIVE).digest for name, each in self._destinations.items()}
        self._store.configurations.configure(self._pipeline.name, self._digest, digests)
        self._carry_out(self.planner.on_start())
        self._tell_configured()

    def _add(self, found: list[DestinationConfig]) -> None:
        """Destinations that were discovered."""
        new = {each.name: each for each in found if each.name not in self._destinations}
        if new:
            self._destinations |= new
            self._runners.append(
                self._make_runner(work_of(self._pipeline, self._source, list(self._destinations.values())))
            )
            self._tell_configured()

    def _discover(self) -> None:
        """Look for new routing values in a thread, one look at a time (V1)."""
        if self._discovery is None or (self._discovering is not None and not self._discovering.done()):
            return
        discovery, source, count = self._discovery, self.planner.schedule.source, self._runner.count_unrouted
        self._discovering = self._jobs.submit(lambda: [*discovery.known(), *discovery.look(source, count)])
        self._discovering.add_done_callback(lambda done: self._inbox.put(lambda: self._discovered(done)))

    def _discovered(self, done: Future[list[DestinationConfig]]) -> None:
        try:
            self._add(done.result())
        except TrunklineError as error:
            logger.warning("new routing values could not be looked for, which is tried again: %s", error)

    def _tell_configured(self) -> None:
        self.tell(Configured(tuple(planned(self._pipeline, each, Life.ACTIVE) for each in self._destinations.values())))

    def _loop(self) -> Stopped:
        next_tick = monotonic()
        while self._stopped is None:
            now = monotonic()
            if now >= next_tick:
                self._leases.tick()
                self._observer.tick()
                self._tell_slow_look()
                self._discover()
                next_tick = now + TICK_MS / 1000
            self._fire_timers(now)
            wait = min([next_tick, *self._timers.values()]) - monotonic()
            try:
                self._inbox.get(timeout=max(wait, 0))()
            except queue.Empty:
                continue
        return self._stopped

    def _tell_slow_look(self) -> None:
        slow = self._watch.taking_s() > LOOK_S_MOST
        if slow and not self._told_slow:
            self._observer.source_error(f"a look at it takes longer than {LOOK_S_MOST:.0f} s; is it overloaded?")
        self._told_slow = slow

    def _fire_timers(self, now: float) -> None:
        for key in [key for key, due in self._timers.items() if due <= now]:
            del self._timers[key]
            self._carry_out(self.planner.on_timer(key))

    # --- effects ---

    def _carry_out(self, effects: Effects) -> None:
        for effect in effects:
            match effect:
                case Send(to, message) if to.role == "worker":
                    self._start_job(message)
                case Send(_, message):
                    self._observer.releasing(message)
                    self._leases.carry_out(message)
                case SetTimer(key, after_ms):
                    self._timers[key] = monotonic() + after_ms / 1000
                case CancelTimer(key):
                    self._timers.pop(key, None)
                case Announce(event):
                    self._on_event(event)
                case Complete(_, Stopped() as stopped):
                    self._stopped = stopped
                case _:
                    raise AssertionError(f"a planner does not ask for {effect}")

    def _on_event(self, event: Event) -> None:
        self._observer.event(event)
        match event:
            case Retired(destination):
                self._jobs.submit(self._threads.run, "job", lambda: self._retire(destination))
            case Drained(destination):
                self._leases.submit(
                    lambda: self._store.desired_states.set(
                        self._pipeline.name, [destination], "paused", instead_of="draining"
                    )
                )

    def _retire(self, name: str) -> None:
        """Forget a retired destination's position, so that its table belongs to nobody."""
        token = self._leases.token(name)
        try:
            destination = open_destination(self._destinations[name].address)
            try:
                destination.retire()
            finally:
                destination.close()
        except TrunklineError as error:
            logger.warning("%s could not be retired, and is tried again when this starts anew: %s", name, error)
            return
        if token is not None:
            self._leases.submit(lambda: self._store.desired_states.retired(self._pipeline.name, name, token))

    # --- jobs ---

    def _start_job(self, message: Message) -> None:
        assert isinstance(message, ReadStandings | FlushGroup | SeedGroup)
        self._observer.job_started(message)
        future = self._jobs.submit(self._run_job, self._runner, message)
        future.add_done_callback(lambda done: self._inbox.put(lambda: self._job_ended(message, done.result())))

    @staticmethod
    def _run_job(runner: JobRunner, message: ReadStandings | FlushGroup | SeedGroup) -> JobReport:
        match message:
            case ReadStandings(job, destinations, notes):
                return runner.standings(job, destinations, notes)
            case FlushGroup():
                return runner.flush(message)
            case SeedGroup():
                return runner.seed(message)

    def _job_ended(self, message: ReadStandings | FlushGroup | SeedGroup, report: JobReport) -> None:
        self._observer.job_ended(message, report)
        self._observer.event(JobEnded(message.job, report.done.results))
        if isinstance(message, FlushGroup | SeedGroup) and (report.unrouted is not None or _may_have_written(report)):
            after = message.after if isinstance(message, FlushGroup) else 0
            self._counter.job_ended(Window(after, message.through), report.unrouted)
        self._carry_out(self.planner.on_message(HOST, report.done))


def _may_have_written(report: JobReport) -> bool:
    """Whether a window may not be read again for some destination, so that its unrouted rows must be counted now."""
    untouched = {Outcome.TRANSIENT, Outcome.PERMANENT, Outcome.FENCED, Outcome.MOVED, Outcome.EXPIRED}
    return report.done.rest is not Outcome.EMPTY or any(each.outcome not in untouched for each in report.done.results)
