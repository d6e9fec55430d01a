"""``trunkline deliver run``: one deliverer in the foreground."""

from __future__ import annotations

import argparse
import logging
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from trunkline.cli import INTERRUPTED
from trunkline.cli.deliver_pipeline import control_store
from trunkline.cli.tables import plural, print_json
from trunkline.config import secret
from trunkline.core.delivery_events import Stopped
from trunkline.delivery.config import Pipeline, load_pipeline
from trunkline.delivery.deliverer.assembly import check_source, pipeline_source
from trunkline.delivery.deliverer.health import observed_deliverer
from trunkline.delivery.deliverer.host import Deliverer
from trunkline.delivery.deliverer.observer import Observer
from trunkline.delivery.deliverer.views import DelivererView, DestinationView
from trunkline.delivery.engine.session import spark_session, stop_session
from trunkline.delivery.job.runner import JobRunner
from trunkline.observing.log_lines import JsonLines, KeyValueLines
from trunkline.observing.thread import ObservingThread
from trunkline.threads import Threads

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

PROGRESS_S: Final = 0.5  # between polls
REPEAT_S: Final = 5.0  # between two lines of one kind
BEHIND = 1


def run(options: argparse.Namespace) -> int:
    pipeline = load_pipeline(options.config)
    if options.master:
        pipeline = replace(pipeline, spark=replace(pipeline.spark, master=options.master))
    _begin_logging(options)
    # The control store needs a name that is never used again.
    name = f"{options.name or socket.gethostname()}-{secrets.token_hex(3)}"
    check_source(pipeline, pipeline_source(pipeline))
    with ExitStack() as stack:
        store = stack.enter_context(control_store(pipeline))
        store.configurations.record(pipeline.name)  # an unusable store is reported before Spark starts
        observer, threads = Observer(pipeline.name, name), Threads()
        if pipeline.listen is not None:
            process = observed_deliverer(observer)
            observing = stack.enter_context(
                ObservingThread(pipeline.listen, process, pipeline.listen_names, setting="listen", threads=threads)
            )
            logger.info("health and metrics: http://%s/status", observing.address)
        stopping = stack.enter_context(_Stopping())
        _show(f"pipeline {pipeline.name}: starting Spark on {pipeline.spark.master}")
        session = spark_of(pipeline)
        stack.callback(stop_session, session)
        deliverer = Deliverer(
            pipeline,
            lambda tasks: JobRunner(session, tasks, pipeline.reading.small_bytes),
            store,
            name,
            observer,
            threads,
        )
        begun = time.monotonic()
        with _progress(observer, threads), stopping.of(deliverer):
            stopped = deliverer.run(once=options.once)
        return _summary(options, observer.snapshot(), stopped, time.monotonic() - begun, stopping)


def spark_of(pipeline: Pipeline) -> SparkSession:
    """The session that the file configures; its secrets come from the environment."""
    secret_conf = {
        setting: secret(variable, f"Spark's {setting}") for setting, variable in pipeline.spark.conf_env.items()
    }
    name = f"trunkline deliver {pipeline.name}"
    return spark_session(pipeline.spark.master, conf=pipeline.spark.conf, secret_conf=secret_conf, name=name)


def _begin_logging(options: argparse.Namespace) -> None:
    """A terminal shows warnings and the lines of ``_progress``; anything else a line for each event."""
    interactive = sys.stderr.isatty() and options.log_format is None
    level = logging.WARNING if interactive else logging.INFO
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if options.log_format == "json" else KeyValueLines())
    ours = logging.getLogger("trunkline")
    ours.handlers[:] = [handler]
    ours.propagate = False
    ours.setLevel(level - 10 if options.verbose else level)


# ------------------------------------------------------------------------------------------------------------- signals


class _Stopping:
    """A first signal drains, a second one stops, a third one ends the process.

    A signal during the start of Spark waits for it: an abandoned Java process would never end.
    """

    def __init__(self) -> None:
        self.count = 0
        self.first: int | None = None
        self._deliverer: Deliverer | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Stopping:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def of(self, deliverer: Deliverer) -> Iterator[None]:
        self._deliverer = deliverer
        if self.count:
            raise KeyboardInterrupt
        yield
        self._deliverer = None

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        self.first = self.first or number
        if self._deliverer is None:
            _show("shutting down cleanly; press again to exit at once")
            if self.count > 1:
                raise KeyboardInterrupt
        elif self.count == 1:
            _show("draining to the present version of the source; press again to stop sooner")
            self._deliverer.stop(drain=True)
        elif self.count == 2:
            _show("stopping when the jobs in flight have ended; press again to exit at once")
            self._deliverer.stop(drain=False)
        else:
            os._exit(INTERRUPTED)  # jobs in flight commit completely or not at all; Java ends with this process


# ------------------------------------------------------------------------------------------------------------ progress


def _show(text: str) -> None:
    """Only on a terminal, which shows no log lines."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)


@contextmanager
def _progress(observer: Observer, threads: Threads) -> Iterator[None]:
    """Shows the progress on a terminal when it changes."""
    ended = threading.Event()
    thread = threads.start("progress", lambda: _show_progress(observer, ended)) if sys.stderr.isatty() else None
    try:
        yield
    finally:
        ended.set()
        if thread is not None:
            thread.join()


def _show_progress(observer: Observer, ended: threading.Event) -> None:
    shown, at = ("", ""), 0.0
    while not ended.wait(PROGRESS_S):
        line = progress(observer.snapshot())
        if line is None or line == shown:
            continue
        if line[0] != shown[0] or time.monotonic() - at >= REPEAT_S:
            try:
                print(line[1], file=sys.stderr, flush=True)
            except OSError:
                return  # the terminal was closed
            shown, at = line, time.monotonic()


def progress(view: DelivererView) -> tuple[str, str] | None:
    """The kind of the line, and the line. ``None``: nothing is known yet."""
    stages = Counter(each.stage for each in view.destinations if each.owned)
    working = [each for each in view.destinations if each.owned and each.life == "active" and each.stage != "halted"]
    if not working or stages["reading"] == len(working):
        return None
    halted = f", {stages['halted']} halted" if stages["halted"] else ""
    if seeds := stages["seeding"]:
        share = f", {view.seeding.percent:.0f} %" if view.seeding is not None else ""
        return "seeding", f"seeding {plural(seeds, 'destination')}{share}{halted}"
    late = [each for each in working if each.lag_versions]
    if late:
        most = max(each.lag_versions or 0 for each in late)
        left = view.catching_up.left_ms if view.catching_up is not None else None
        estimate = f", about {left // 1000 + 1} s left" if left is not None else ""
        return (
            "behind",
            f"catching up: {len(late)} of {len(working)}, at most {plural(most, 'version')}{estimate}{halted}",
        )
    return "up to date", f"up to date with version {view.source_version}: {plural(len(working), 'destination')}{halted}"


# ------------------------------------------------------------------------------------------------------------- the end


def _summary(
    options: argparse.Namespace, view: DelivererView, stopped: Stopped, seconds: float, stopping: _Stopping
) -> int:
    """Print the summary; returns the exit code."""
    known = {each.name: each for each in view.destinations}
    behind = [known[name] for name in stopped.behind if name in known]
    left = [each for each in behind if each.life == "active"]
    rows = sum(each.removed + each.written for each in view.destinations)
    facts = {
        "pipeline": view.pipeline,
        "version": view.source_version,
        "destinations": len(view.destinations),
        "rows": rows,
        "seconds": round(seconds, 1),
        "behind": {each.name: _why(each) for each in behind},
    }
    if options.json:
        print_json(facts)
    else:
        print(
            f"pipeline {view.pipeline}: {plural(len(view.destinations) - len(behind), 'destination')} at version "
            f"{view.source_version}, {plural(rows, 'row')} removed and written in {seconds:.1f} s"
        )
        for each in behind:
            print(f"behind: {each.name}, at version {each.effective or 0}: {_why(each)}", file=sys.stderr)
    if stopping.first == signal.SIGINT:
        return INTERRUPTED
    return BEHIND if left and stopping.count < 2 else 0


def _why(each: DestinationView) -> str:
    if each.life != "active":
        return each.life
    return each.error.removeprefix(f"{each.name}: ") or "it was not delivered in time; run again"
