"""``trunkline capture``: copies the changes of a database, or of one table, into a log until it is stopped."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final, Protocol

from trunkline.cli import INTERRUPTED, WrongInput, capture_status
from trunkline.cli.capture_status import byte_count, slot_name
from trunkline.cli.connection import cluster_options, configuration
from trunkline.cli.serve import add_log_format_option, add_observe_option
from trunkline.cli.tables import plural, print_json
from trunkline.errors import ConfigError, TrunklineError
from trunkline.net.http_names import OwnNames
from trunkline.observing.log_lines import begin_logging
from trunkline.observing.targets import observe_address
from trunkline.threads import Threads

if TYPE_CHECKING:
    from trunkline.delivery.capture.one_table.runner import Capture, CaptureProgress, ChangeSource
    from trunkline.observing.thread import ObservingThread


class Stoppable(Protocol):
    def stop(self) -> None: ...


logger = logging.getLogger("trunkline.capture")

SHOW_EVERY_S: Final = 5.0
DESCRIPTION: Final = """\
Copy the changes of a database, or of one table, into a log, each once. `trunkline capture LOG ...` is short for
`trunkline capture run LOG ...`, which a log needs that is called run, status or resnapshot."""
EXAMPLES: Final = """
examples:
  trunkline capture shop --postgres 'host=db dbname=shop user=capture' --tables 'public.*' --password-env PGPASS
  trunkline capture shop --mariadb mariadb://capture@db --tables 'shop.*' --exclude 'shop.tmp_*' --password-env DBPASS
  trunkline capture shop --ducklake sqlite:shop.sqlite --tables 'main.*'
  trunkline capture run status --ducklake sqlite:shop.sqlite --table orders      into a log that is called status
  trunkline capture orders --postgres 'host=db dbname=shop user=capture' --table public.orders --password-env PGPASS
"""
ON_MAX_WAL: Final = ("warn", "stop", "drop")


def add_commands(commands: argparse._SubParsersAction[Any]) -> None:
    family = commands.add_parser(
        "capture",
        help="copy the changes of a database, or of one table, into a log, each once",
        description=DESCRIPTION,
    )
    family.usual_command = "run"
    actions = family.add_subparsers(required=True, metavar="ACTION")
    parser = actions.add_parser(
        "run",
        help="capture until stopped",
        parents=[cluster_options()],
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("log", help="the log; it is created with a single writer (broadcast) if it does not exist")
    source = parser.add_argument_group("the source").add_mutually_exclusive_group(required=True)
    source.add_argument("--postgres", metavar="DSN", help="a libpq connection string without a password")
    source.add_argument("--mariadb", metavar="URL", help="mariadb://USER@HOST:PORT, without a password")
    source.add_argument("--ducklake", metavar="CATALOG", help="a lake's catalog: PATH, sqlite:PATH or postgres:DSN")
    tables = parser.add_argument_group("what").add_mutually_exclusive_group(required=True)
    tables.add_argument(
        "--tables",
        action="append",
        metavar="PATTERN",
        help="tables of a database or a lake, such as 'public.*'; repeatable",
    )
    tables.add_argument("--table", metavar="[SCHEMA.]NAME", help="one table, in the format of one table")
    parser.add_argument("--password-env", metavar="NAME", help="the environment variable that holds the password")
    parser.add_argument(
        "--slot",
        metavar="NAME",
        help="of PostgreSQL: the slot and publication (default: trunkline_ and the log's name)",
    )
    parser.add_argument(
        "--poll-ms", type=int, default=200, help="how often a lake, or one table, is polled (default: 200)"
    )
    parser.add_argument("--once", action="store_true", help="stop when all present changes are captured")
    _add_database_options(parser)
    add_observe_option(parser)
    add_log_format_option(parser)
    parser.set_defaults(run=_capture)
    capture_status.add_actions(actions)


def _add_database_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("with --tables")
    group.add_argument(
        "--exclude", action="append", default=[], metavar="PATTERN", help="leave out these tables; repeatable"
    )
    group.add_argument(
        "--set-replica-identity",
        action="store_true",
        help="give tables the replica identity that they lack (those without a key: FULL)",
    )
    group.add_argument(
        "--max-wal-bytes", type=byte_count, metavar="SIZE", help="of WAL that PostgreSQL keeps for it, such as 20GiB"
    )
    group.add_argument(
        "--on-max-wal",
        choices=ON_MAX_WAL,
        default="warn",
        help="beyond that: warn, stop, or stop and drop the slot so that the WAL is freed (default: warn)",
    )
    group.add_argument(
        "--resnapshot",
        action="append",
        default=[],
        metavar="SCHEMA.TABLE",
        help="capture all rows of this table again, as a new generation; repeatable",
    )
    group.add_argument(
        "--recapture-on-loss",
        action="store_true",
        help="capture every table again if the source was replaced or has lost changes, instead of stopping",
    )


def _capture(options: argparse.Namespace) -> int:
    if options.poll_ms < 1:
        raise WrongInput("--poll-ms must be at least 1")
    if options.observe:
        OwnNames(observe_address(options.observe)[0], options.allow_host)
    begin_logging(sys.stderr, options.log_format, {"process": "capture", "name": options.log})
    if options.tables is not None:
        from trunkline.cli.capture_database import capture_database

        return capture_database(options)
    if options.mariadb is not None:
        raise WrongInput("--mariadb goes with --tables, such as --tables shop.orders")
    return _capture_table(options)


def _capture_table(options: argparse.Namespace) -> int:
    from trunkline.delivery.capture.one_table.runner import Capture

    config = configuration(options)
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
    with observing as observed, stopping(capture) as stopped:
        note_observing(observed)
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
        from trunkline.delivery.capture.one_table.ducklake import LakeCapture
        from trunkline.delivery.config.address_rules import CATALOG_FORMS, store_faults

        for fault in store_faults(options.ducklake, CATALOG_FORMS, path_allowed=True):
            raise ConfigError(f"--ducklake {fault}")
        return LakeCapture(LakeAddress(options.ducklake, table, schema or "main", password_env=options.password_env))
    from trunkline.delivery.capture.one_table.postgres import PostgresCapture
    from trunkline.delivery.config.address_rules import dsn_faults

    for fault in dsn_faults(options.postgres):
        raise ConfigError(f"--postgres {fault}")
    address = PostgresAddress(options.postgres, table, schema or "public", options.password_env)
    return PostgresCapture(address, slot_name(options))


def _observing(options: argparse.Namespace, capture: Capture, threads: Threads) -> ObservingThread:
    """Metrics and health, from another thread than the capture's."""
    from trunkline.delivery.capture.metrics import observed_capture  # loads an HTTP server: only if it is needed
    from trunkline.observing.thread import ObservingThread

    process = observed_capture(options.log, capture.captured)
    return ObservingThread(options.observe, process, options.allow_host, threads=threads)


def note_observing(observed: ObservingThread | None) -> None:
    if observed is not None:
        fields = {"observe": observed.address}
        logger.info("observed at http://%s/metrics", observed.address, extra={"fields": fields})


@contextmanager
def stopping(capture: Stoppable) -> Iterator[list[int]]:
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
