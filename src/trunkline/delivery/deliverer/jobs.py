"""The threads of a deliverer in which jobs run. A job uses the runner that was the newest when it started."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from trunkline.core.delivery_messages import FlushGroup, ReadStandings, SeedGroup
from trunkline.delivery.changes.windows import Window
from trunkline.delivery.config import DestinationConfig
from trunkline.delivery.destinations.factory import open_destination
from trunkline.delivery.job.results import JobReport
from trunkline.delivery.job.runner import JobRunner
from trunkline.errors import TrunklineError
from trunkline.threads import Threads

Job = ReadStandings | FlushGroup | SeedGroup
Found = TypeVar("Found")

logger = logging.getLogger(__name__)


class JobThreads:
    """``make_runner``: a runner that knows these destinations."""

    def __init__(
        self, make_runner: Callable[[list[DestinationConfig]], JobRunner], threads_max: int, threads: Threads
    ) -> None:
        self._make_runner = make_runner
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads_max, thread_name_prefix="job")
        self._runners: list[JobRunner] = []  # earlier ones may still have a job in flight

    def configure(self, destinations: list[DestinationConfig]) -> None:
        self._runners.append(self._make_runner(destinations))

    def start(self, job: Job) -> Future[JobReport]:
        return self._pool.submit(_run, self._runners[-1], job)

    def submit(self, call: Callable[[], Found]) -> Future[Found]:
        return self._pool.submit(call)

    def count_unrouted(self, window: Window) -> Mapping[str | None, int]:
        """Called in any thread, and runs there."""
        return self._runners[-1].count_unrouted(window)

    def retire(self, destination: DestinationConfig, retired: Callable[[], None]) -> None:
        """Remove a destination's position, so that no pipeline owns its table; then call ``retired``."""
        self._pool.submit(self._threads.run, "job", lambda: _retire(destination, retired))

    def finish(self) -> None:
        """Wait for the jobs in flight."""
        self._pool.shutdown(wait=True)

    def close(self) -> None:
        for runner in self._runners:
            runner.close()


def _run(runner: JobRunner, job: Job) -> JobReport:
    match job:
        case ReadStandings(_, destinations, notes):
            return runner.standings(destinations, notes)
        case FlushGroup():
            return runner.flush(job)
        case SeedGroup():
            return runner.seed(job)


def _retire(config: DestinationConfig, retired: Callable[[], None]) -> None:
    try:
        destination = open_destination(config.address)
        try:
            destination.retire()
        finally:
            destination.close()
    except TrunklineError as error:
        logger.warning("%s could not be retired; the next start of a deliverer retries it: %s", config.name, error)
        return
    retired()
