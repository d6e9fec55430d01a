"""``trunkline capture``: copies the changes of a table into a log until it is stopped."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final

from trunkline.cli import INTERRUPTED, WrongInput
from trunkline.cli.connection import cluster_options, configuration
from trunkline.cli.serve import add_log_format_option, add_observe_option
from trunkline.cli.tables import plural, print_json
from trunkline.errors import ConfigError, TrunklineError
from trunkline.net.http_names import OwnNames
from trunkline.observing.log_lines import begin_logging
from trunkline.observing.targets import observe_address
from trunkline.threads import Threads

if TYPE_CHECKING:
    from trunkline.delivery.capture.runner import Capture, CaptureProgress, ChangeSource
    from trunkline.observing.thread import ObservingThread

logger = logging.getLogger("trunkline.capture")

SHOW_EVERY_S: Final = 5.0
EXAMPLES: Final = """
examples:
  trunkline capture orders --ducklake sqlite:shop.sqlite --table orders
  trunkline capture orders --postgres 'host=db dbname=shop user=capture' --table public.orders --password-env PGPASS
"""


def add_commands(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser(
        "capture",
        help="copy the changes of a table into a log, each once",
        parents=[cluster_options()],
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("log", help="the log; it is created with a single writer (broadcast) if it does not exist")
    source = parser.add_argument_group("the table").add_mutually_exclusive_group(required=True)
    source.add_argument("--ducklake", metavar="CATALOG", help="a lake's catalog: PATH, sqlite:PATH or postgres:DSN")
    source.add_argument("--postgres", metavar="DSN", help="a libpq connection string without a password")
    parser.add_argument("--table", required=True, metavar="[SCHEMA.]NAME", help="the table")
    parser.add_argument("--password-env", metavar="NAME", help="the environment variable that holds the password")
    parser.add_argument(
        "--slot",
        metavar="NAME",
        help="of PostgreSQL: the slot and publication (default: trunkline_ and the log's name)",
    )
    parser.add_argument("--poll-ms", type=int, default=200, help="how often the table is polled (default: 200)")
    parser.add_argument("--once", action="store_true", help="stop when all present changes are captured")
    add_observe_option(parser)
    add_log_format_option(parser)
    parser.set_defaults(run=_capture)


def _capture(options: argparse.Namespace) -> int:
    from trunkline.delivery.capture.runner import Capture

    if options.poll_ms < 1:
        raise WrongInput("--poll-ms must be at least 1")
    if options.observe:
        OwnNames(observe_address(options.observe)[0], options.allow_host)
    config = configuration(options)
    begin_logging(sys.stderr, options.log_format, {"process": "capture", "name": options.log})
    progress = _ProgressLines(options.log, quiet=options.json, logged=options.log_format == "json")
    capture = Capture(
        _source(options),
        config.connect,
        options.log,
        poll_ms=options.poll_ms,
        token=config.token,
        tls=config.tls(),
        report=progress.show,
    )
    threads = Threads()
    threads.when_one_dies(lambda _: capture.stop())
    observing = _observing(options, capture, threads) if options.observe else nullcontext()
    with observing as observed, _stopping(capture) as stopped:
        if observed is not None:
            logger.info(
                "observed at http://%s/metrics", observed.address, extra={"fields": {"observe": observed.address}}
            )
        captured = capture.run(once=options.once)
    if threads.died:
        raise TrunklineError(f"{threads.died[0]}; restart the capture, and report what it logged")
    if options.json:
        print_json({"transactions": captured.transactions, "rows": captured.rows, "position": captured.position})
    else:
        print(f"captured {_amount(captured)} into {options.log}")
    return INTERRUPTED if stopped and stopped[0] == signal.SIGINT else 0


def _source(options: argparse.Namespace) -> ChangeSource:
    from trunkline.delivery.config.addresses import LakeAddress, PostgresAddress

    schema, _, table = options.table.rpartition(".")
    if options.ducklake is not None:
        from trunkline.delivery.capture.ducklake import LakeCapture
        from trunkline.delivery.config.address_rules import CATALOG_FORMS, store_faults

        for fault in store_faults(options.ducklake, CATALOG_FORMS, path_allowed=True):
            raise ConfigError(f"--ducklake {fault}")
        return LakeCapture(LakeAddress(options.ducklake, table, schema or "main", password_env=options.password_env))
    from trunkline.delivery.capture.postgres import PostgresCapture
    from trunkline.delivery.config.address_rules import dsn_faults

    for fault in dsn_faults(options.postgres):
        raise ConfigError(f"--postgres {fault}")
    address = PostgresAddress(options.postgres, table, schema or "public", options.password_env)
    slot = options.slot or f"trunkline_{options.log}".lower().replace("-", "_").replace(".", "_")
    return PostgresCapture(address, slot)


def _observing(options: argparse.Namespace, capture: Capture, threads: Threads) -> ObservingThread:
    """Metrics and health, from another thread than the capture's."""
    from trunkline.delivery.capture.metrics import observed_capture  # loads an HTTP server: only if it is needed
    from trunkline.observing.thread import ObservingThread

    process = observed_capture(options.log, capture.captured)
    return ObservingThread(options.observe, process, options.allow_host, threads=threads)


@contextmanager
def _stopping(capture: Capture) -> Iterator[list[int]]:
    """SIGTERM and Ctrl-C stop the capture after the transaction in flight."""
    stopped: list[int] = []

    def stop(number: int, _: object) -> None:
        stopped.append(number)
        capture.stop()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _ProgressLines:
    """A line every few seconds while changes are captured."""

    def __init__(self, log: str, *, quiet: bool, logged: bool) -> None:
        self._log = log
        self._quiet = quiet
        self._logged = logged
        self._shown_at = 0.0
        self._rows = -1

    def show(self, captured: CaptureProgress) -> None:
        now = time.monotonic()
        if self._quiet or captured.rows == self._rows or now < self._shown_at + SHOW_EVERY_S:
            return
        self._shown_at, self._rows = now, captured.rows
        line = f"capturing into {self._log}: {_amount(captured)}"
        if self._logged:
            fields = {"transactions": captured.transactions, "rows": captured.rows, "position": captured.position}
            logger.info("%s", line, extra={"fields": fields})
        else:
            print(line, file=sys.stderr, flush=True)


def _amount(captured: CaptureProgress) -> str:
    return f"{plural(captured.transactions, 'transaction')}, {plural(captured.rows, 'change')}"
