"""Runs the capture of a whole database for ``trunkline capture run``."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlsplit, urlunsplit

from trunkline.cli import INTERRUPTED, WrongInput
from trunkline.cli.capture_status import LAKE, MARIADB, POSTGRES, slot_name
from trunkline.cli.connection import configuration
from trunkline.cli.tables import plural, print_json, size
from trunkline.errors import ConfigError, TrunklineError, Unreachable
from trunkline.threads import Threads

if TYPE_CHECKING:
    from trunkline.delivery.capture.database_capture import DatabaseCapture
    from trunkline.delivery.capture.database_progress import DatabaseProgress
    from trunkline.delivery.capture.lake.source import LakeSource
    from trunkline.delivery.capture.mariadb.source import MariaSource
    from trunkline.delivery.capture.postgres.session import ServerAddress
    from trunkline.delivery.capture.postgres.source import PostgresSource
    from trunkline.delivery.capture.source import DatabaseSource
    from trunkline.observing.thread import ObservingThread

logger = logging.getLogger("trunkline.capture")

SHOW_EVERY_S: Final = 5.0


def capture_database(options: argparse.Namespace) -> int:
    from trunkline.cli.capture import note_observing, stopping
    from trunkline.delivery.capture.database_capture import CaptureOptions, DatabaseCapture, TooMuchKept
    from trunkline.delivery.capture.postgres.wal_guard import WalAction

    config = configuration(options)
    kind, source = _source(options)
    progress = ProgressLines(options.log, _estimates(options), quiet=options.json, logged=options.log_format == "json")
    threads = Threads()
    capture = DatabaseCapture(
        source,
        config.connect,
        options.log,
        CaptureOptions(
            kind,
            recaptures=options.recapture_on_loss,
            kept_max=options.max_wal_bytes,
            on_kept_max=WalAction(options.on_max_wal),
            slot=slot_name(options),
            again=tuple(options.resnapshot),
        ),
        token=config.token,
        tls=config.tls(),
        report=progress.show,
        threads=threads,
    )
    threads.when_one_dies(lambda _: capture.stop())
    observing = _observing(options, capture, threads) if options.observe else nullcontext()
    with observing as observed, stopping(capture) as stopped:
        note_observing(observed)
        try:
            captured = capture.run(once=options.once)
        except TooMuchKept as error:
            if options.on_max_wal == "drop":
                _drop_slot(options)
                raise ConfigError(f"{error}; capture again with --recapture-on-loss") from None
            raise
    if threads.died:
        raise TrunklineError(f"{threads.died[0]}; restart the capture, and report what it logged")
    if options.json:
        print_json(_summary(captured))
    else:
        print(f"captured {_amount(captured)} into {options.log}")
    return INTERRUPTED if stopped and stopped[0] == signal.SIGINT else 0


# ------------------------------------------------------------------------------------------------------- the sources


def _source(options: argparse.Namespace) -> tuple[str, DatabaseSource]:
    if options.postgres is not None:
        return POSTGRES, postgres_source(options, options.tables)
    if options.mariadb is not None:
        return MARIADB, mariadb_source(options, options.tables)
    return LAKE, lake_source(options, options.tables)


def server_address(options: argparse.Namespace) -> ServerAddress:
    from trunkline.delivery.capture.postgres.session import ServerAddress
    from trunkline.delivery.config.address_rules import dsn_faults

    for fault in dsn_faults(options.postgres):
        raise ConfigError(f"--postgres {fault}")
    return ServerAddress(options.postgres, options.password_env)


def postgres_source(options: argparse.Namespace, tables: Sequence[str]) -> PostgresSource:
    from trunkline.delivery.capture.postgres.source import PostgresDatabase, PostgresSource

    return PostgresSource(
        PostgresDatabase(
            server_address(options),
            slot_name(options),
            tuple(tables),
            tuple(options.exclude),
            set_identity=options.set_replica_identity,
            reader=f"trunkline capture {options.log}",
        )
    )


def mariadb_source(options: argparse.Namespace, tables: Sequence[str]) -> MariaSource:
    from trunkline.delivery.capture.mariadb.source import MariaSource

    if options.slot or options.set_replica_identity or options.max_wal_bytes:
        raise WrongInput("--slot, --set-replica-identity and --max-wal-bytes are for --postgres")
    return MariaSource(mariadb_address(options), [*tables, *(f"!{each}" for each in options.exclude)])


def lake_source(options: argparse.Namespace, tables: Sequence[str]) -> LakeSource:
    from trunkline.delivery.capture.lake.source import LakeSource
    from trunkline.delivery.config.address_rules import CATALOG_FORMS, store_faults
    from trunkline.delivery.config.addresses import LakeAddress

    if options.slot or options.set_replica_identity or options.max_wal_bytes:
        raise WrongInput("--slot, --set-replica-identity and --max-wal-bytes are for --postgres")
    for fault in store_faults(options.ducklake, CATALOG_FORMS, path_allowed=True):
        raise ConfigError(f"--ducklake {fault}")
    address = LakeAddress(options.ducklake, "", password_env=options.password_env)
    return LakeSource(address, [*(f"!{each}" for each in options.exclude), *tables], poll_ms=options.poll_ms)


def mariadb_address(options: argparse.Namespace) -> str:
    """With its password."""
    from trunkline.config import secret

    try:
        parts = urlsplit(options.mariadb)
        if parts.password is not None:
            raise ConfigError("--mariadb holds a password; remove it, and name its variable with --password-env")
    except ValueError as error:
        raise ConfigError(f"--mariadb is not a valid address ({error}); write mariadb://USER@HOST:PORT") from None
    address = str(options.mariadb)
    if options.password_env is not None:
        password = quote(secret(options.password_env, "the password of --mariadb"), safe="")
        user, _, host = parts.netloc.rpartition("@")
        address = urlunsplit(parts._replace(netloc=f"{user}:{password}@{host}"))
    return address


def _estimates(options: argparse.Namespace) -> dict[str, int]:
    """For the progress of snapshots."""
    if options.postgres is None or options.json:
        return {}
    from trunkline.delivery.capture.source_lag import postgres_estimates

    try:
        return postgres_estimates(server_address(options))
    except Unreachable:
        return {}  # the capture will wait for the server


def _drop_slot(options: argparse.Namespace) -> None:
    from trunkline.delivery.capture.postgres.replication import ReplicationConnection

    address = server_address(options)
    with ReplicationConnection(address.dsn, address.password_env) as connection:
        connection.drop_slot(slot_name(options))
    logger.warning("the slot %s was dropped", slot_name(options))


# --------------------------------------------------------------------------------------------------- what it reports


def _observing(options: argparse.Namespace, capture: DatabaseCapture, threads: Threads) -> ObservingThread:
    from trunkline.delivery.capture.metrics import observed_database_capture
    from trunkline.observing.thread import ObservingThread

    process = observed_database_capture(options.log, capture.captured)
    return ObservingThread(options.observe, process, options.allow_host, threads=threads)


def _summary(captured: DatabaseProgress) -> dict[str, object]:
    return {
        "transactions": captured.transactions,
        "rows": captured.rows,
        "snapshot_rows": captured.chunk_rows,
        "entries": captured.entries,
        "bytes": captured.bytes,
        "position": captured.position,
        "tables": len(captured.tables),
        "incomplete": [table.name for table in captured.incomplete],
        "restarts": captured.failures,
    }


def _amount(captured: DatabaseProgress) -> str:
    parts = [plural(captured.transactions, "transaction"), plural(captured.rows, "change")]
    if captured.chunk_rows:
        parts.append(f"{plural(captured.chunk_rows, 'row')} of snapshots")
    return ", ".join(parts)


class ProgressLines:
    """A line every few seconds."""

    def __init__(self, log: str, estimates: dict[str, int], *, quiet: bool, logged: bool) -> None:
        self._log = log
        self._estimates = estimates  # of the rows of tables
        self._quiet = quiet
        self._logged = logged
        self._shown_at = time.monotonic()
        self._before = (0, 0, 0)
        self._last = ""

    def show(self, captured: DatabaseProgress) -> None:
        now = time.monotonic()
        elapsed = now - self._shown_at
        if self._quiet or elapsed < SHOW_EVERY_S:
            return
        counts = (captured.transactions, captured.rows, captured.chunk_rows)
        rates = [(after - before) / elapsed for before, after in zip(self._before, counts, strict=True)]
        self._shown_at, self._before = now, counts
        line = progress_line(captured, rates, self._estimates)
        if line == self._last:
            return
        self._last = line
        if self._logged:
            logger.info("%s", line, extra={"fields": _summary(captured)})
        else:
            print(f"capturing into {self._log}: {line}", file=sys.stderr, flush=True)


def progress_line(captured: DatabaseProgress, rates: Sequence[float], estimates: Mapping[str, int]) -> str:
    """``rates``: transactions, changes and rows of snapshots per second."""
    if captured.error:
        return f"waiting ({captured.error})"
    parts = [f"{rates[0]:,.0f} transactions/s, {rates[1]:,.0f} changes/s"]
    lag, seconds = captured.lag_bytes(), captured.lag_seconds()
    if lag is not None:
        parts.append(f"{size(lag)} behind" + ("" if seconds is None else f" ({seconds:.1f} s)"))
    incomplete = captured.incomplete
    if incomplete:
        first = next((table for table in incomplete if table.chunks), incomplete[0])
        total = f" of about {estimates[first.name]:,}" if first.name in estimates else ""
        parts.append(
            f"snapshot {rates[2]:,.0f} rows/s: {first.name} {plural(first.chunks, 'chunk')}, {first.rows:,}{total} "
            f"rows; {plural(len(incomplete), 'table')} of {len(captured.tables)} to go"
        )
    return "; ".join(parts)
