"""The host of a planner: one thread handles the planner's messages, timers and effects.

Rules
 D1  The planner runs in this thread only. Other threads post messages for it to the inbox.
 D2  Jobs run in threads; each ends with a report, whatever happens to it.
 D3  This thread never calls the source, a destination or the store: one that hangs delays no other.
 D4  A thread that fails stops the deliverer: jobs in flight finish, then it reports the reason.
 D5  A first SIGTERM or Ctrl-C drains, a second one stops as soon as the jobs in flight have ended.
"""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from time import monotonic

from msgspec.structs import replace

from trunkline.core.delivery_events import Drained, JobEnded, Retired, Stopped
from trunkline.core.delivery_messages import Configured, FlushGroup, Life, ReadStandings, SeedGroup, Shutdown
from trunkline.core.effects import Address, Announce, CancelTimer, Complete, Effects, Event, Message, Send, SetTimer
from trunkline.core.planner import Planner
from trunkline.delivery.changes.versions import Window
from trunkline.delivery.config import DestinationConfig, Pipeline
from trunkline.delivery.config.digests import pipeline_digest
from trunkline.delivery.control.store import ControlStore
from trunkline.delivery.deliverer.assembly import (
    addresses_of,
    pipeline_source,
    places_of,
    planned,
    planner_config,
    task_pipeline,
)
from trunkline.delivery.deliverer.discovery import Discovery
from trunkline.delivery.deliverer.hidden_columns import HiddenColumns
from trunkline.delivery.deliverer.leases import DelivererLeases
from trunkline.delivery.deliverer.observer import Observer
from trunkline.delivery.deliverer.source_watch import SourceWatch
from trunkline.delivery.deliverer.unrouted_counter import UnroutedCounter, rewind_counts
from trunkline.delivery.destinations.factory import open_place
from trunkline.delivery.job.results import JobReport
from trunkline.delivery.job.runner import Job, JobRunner
from trunkline.delivery.job.table_works import known_tables
from trunkline.delivery.job.work import TaskPipeline
from trunkline.errors import TrunklineError, Unreachable
from trunkline.threads import Threads

logger = logging.getLogger(__name__)
HOST = Address("self", "host")
TICK_MS = 1_000  # how often desired states and leases are checked
POLL_S_MAX = 60.0  # a longer poll of the source is an error; too small: a slow catalog counts as unreachable


class Deliverer:
    """Delivers one pipeline until it is stopped."""

    def __init__(
        self,
        pipeline: Pipeline,
        runner: Callable[[TaskPipeline], JobRunner],
        store: ControlStore,
        name: str,
        observer: Observer,
        threads: Threads | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._store = store
        self._observer = observer
        self._threads = threads or Threads()
        self._destinations: dict[str, DestinationConfig] = {each.name: each for each in pipeline.destinations}
        self.planner = Planner(planner_config(pipeline))
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._timers: dict[str, float] = {}
        self._operation = 0
        self._stopped: Stopped | None = None
        self._failure: TrunklineError | None = None
        self._digest = pipeline_digest(pipeline)
        self._source = pipeline_source(pipeline)
        self._make_runner = runner
        self._hidden = HiddenColumns(pipeline, self._source, store.seen_columns)
        self._runners = [self._new_runner()]  # the last one has all destinations; others may have a job in flight
        self._jobs = ThreadPoolExecutor(pipeline.flush.groups + 2, thread_name_prefix="job")
        self._leases = DelivererLeases(
            store,
            pipeline.name,
            name,
            self._digest,
            pipeline.control.lease_ms,
            send=self.send,
            unreachable=observer.store_error,
            failed=self._fail,
            threads=self._threads,
        )
        self._watch = SourceWatch(
            self._source, pipeline.reading.poll_ms, self.send, observer.source_error, self._threads
        )
        self._slow_poll_reported = False
        self._discovery = Discovery(pipeline, store) if pipeline.discover is not None else None
        self._discovering: Future[list[DestinationConfig]] | None = None
        self._counter = UnroutedCounter(
            store,
            pipeline.name,
            self._count_unrouted,
            lambda: self.planner.schedule.source,
            observer.unrouted,
            threads=self._threads,
        )
        self._threads.when_one_dies(self._thread_died)

    # --- from any thread ---

    def send(self, message: Message) -> None:
        """Send the planner a message."""
        self._inbox.put(lambda: self._carry_out(self.planner.on_message(HOST, message)))

    def stop(self, *, drain: bool) -> None:
        """Stop; with ``drain`` all destinations are first brought to the present version."""
        self._operation += 1
        self.send(Shutdown(self._operation, drain))

    def _count_unrouted(self, window: Window) -> Mapping[str | None, int]:
        return self._runners[-1].count_unrouted(window)

    def _unknown_values(self, window: Window) -> Mapping[str | None, int]:
        return self._runners[-1].unknown_values(window)

    def _fail(self, error: TrunklineError) -> None:
        """Stop: jobs in flight finish, and no new ones start."""
        self._failure = self._failure or error
        self.stop(drain=False)

    def _thread_died(self, why: str) -> None:  # D4
        self._observer.thread_died(why)
        self._fail(TrunklineError(f"{why}; restart the deliverer, and report what it logged"))

    # --- the loop ---

    def run(self, *, once: bool = False) -> Stopped:
        """Deliver until stopped, or (``once``) until all destinations are at the present version."""
        self._begin(once=once)
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
        if self._failure is not None:
            raise self._failure
        return stopped

    def _begin(self, *, once: bool) -> None:
        digests = {name: planned(self._pipeline, each, Life.ACTIVE).digest for name, each in self._destinations.items()}
        present = self._destinations.values()
        places, addresses = places_of(present), addresses_of(present)
        self._store.configurations.configure(self._pipeline.name, self._digest, digests, places, addresses)
        self._carry_out(self.planner.on_start())
        self._send_configured()
        counted, _ = self._store.unrouted.counts(self._pipeline.name)
        source = self._watch.poll()  # after the counts: other deliverers may advance both
        if once and not source.version and self._watch.waiting:
            raise Unreachable(f"{self._watch.waiting}; run again then, or without --once")
        if counted > source.version:
            rewind_counts(self._store, self._pipeline.name, source.version)
        if self._discovery is not None:
            self._add([*self._discovery.known(), *self._discovery.search(source, self._unknown_values)])
        self._leases.begin()
        if once:
            self.stop(drain=True)
        else:
            self._watch.begin()
        self._observer.began(self.planner, self._leases)
        self._counter.begin()

    def _loop(self) -> Stopped:
        next_tick = monotonic()
        while self._stopped is None:
            now = monotonic()
            if now >= next_tick:
                self._leases.tick()
                self._observer.tick()
                self._report_slow_poll()
                self._discover()
                next_tick = now + TICK_MS / 1000
            self._fire_timers(now)
            wait = min([next_tick, *self._timers.values()]) - monotonic()
            try:
                self._inbox.get(timeout=max(wait, 0))()
            except queue.Empty:
                continue
        return self._stopped

    def _report_slow_poll(self) -> None:
        slow = self._watch.polling_s() > POLL_S_MAX
        if slow and not self._slow_poll_reported:
            self._observer.source_error(f"a poll takes longer than {POLL_S_MAX:.0f} s; is the source overloaded?")
        self._slow_poll_reported = slow

    def _fire_timers(self, now: float) -> None:
        for key in [key for key, due in self._timers.items() if due <= now]:
            del self._timers[key]
            self._carry_out(self.planner.on_timer(key))

    # --- discovery ---

    def _discover(self) -> None:
        """Search for new routing values in a thread, one search at a time."""
        if self._discovery is None or (self._discovering is not None and not self._discovering.done()):
            return
        discovery, source = self._discovery, self.planner.schedule.source
        self._discovering = self._jobs.submit(
            lambda: [*discovery.known(), *discovery.search(source, self._unknown_values)]
        )
        self._discovering.add_done_callback(lambda done: self._inbox.put(lambda: self._discovered(done)))

    def _discovered(self, done: Future[list[DestinationConfig]]) -> None:
        try:
            self._add(done.result())
        except TrunklineError as error:
            logger.warning("the search for new routing values failed and is retried: %s", error)

    def _add(self, found: list[DestinationConfig]) -> None:
        new = {each.name: each for each in found if each.name not in self._destinations}
        if new:
            self._destinations |= new
            self._runners.append(self._new_runner())
            self._send_configured()

    def _new_runner(self) -> JobRunner:
        tasks = task_pipeline(self._pipeline, self._source, list(self._destinations.values()))
        return self._make_runner(replace(tasks, guard=self._hidden))

    def _send_configured(self) -> None:
        self.send(Configured(tuple(planned(self._pipeline, each, Life.ACTIVE) for each in self._destinations.values())))

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
                    raise AssertionError(f"a planner does not return {effect}")

    def _on_event(self, event: Event) -> None:
        self._observer.event(event)
        states, pipeline = self._store.desired_states, self._pipeline.name
        match event:
            case Retired(destination):
                token = self._leases.token(destination)
                self._jobs.submit(self._threads.run, "job", lambda: self._retire(destination, token))
            case Drained(destination):
                self._leases.submit(lambda: states.set(pipeline, [destination], "paused", instead_of="draining"))

    def _retire(self, name: str, token: int | None) -> None:
        """Remove a destination's record, so that its tables have no owner. Runs in the thread of a job."""
        try:
            work = self._runners[-1].pipeline
            target = work.targets[work.index[name]]
            with closing(open_place(target.address)) as place:
                place.retire(work.tables_of(target, known_tables(work)))
        except TrunklineError as error:
            logger.warning("%s could not be retired; the next start of a deliverer retries it: %s", name, error)
            return
        if token is not None:
            self._leases.submit(lambda: self._store.desired_states.retired(self._pipeline.name, name, token))

    # --- jobs ---

    def _start_job(self, message: Message) -> None:
        assert isinstance(message, ReadStandings | FlushGroup | SeedGroup)
        self._observer.job_started(message)
        future = self._jobs.submit(self._runners[-1].run, message)
        future.add_done_callback(lambda done: self._inbox.put(lambda: self._job_ended(message, done.result())))

    def _job_ended(self, job: Job, report: JobReport) -> None:
        self._observer.job_ended(job, report)
        self._observer.event(JobEnded(job.job, report.results))
        if isinstance(job, FlushGroup | SeedGroup) and (report.unrouted is not None or report.may_have_written):
            after = job.after if isinstance(job, FlushGroup) else 0
            self._counter.job_ended(Window(after, job.through), report.unrouted)
        self._carry_out(self.planner.on_message(HOST, report.done(job.job)))
