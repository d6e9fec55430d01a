"""``trunkline capture status`` and ``resnapshot``: how far the capture of a database is, and a table read again."""

from __future__ import annotations

import argparse
import datetime as dt
import re
import time
from typing import TYPE_CHECKING, Any, Final

from trunkline.cli import WrongInput
from trunkline.cli.connection import cluster_options, configuration
from trunkline.cli.tables import json_option, print_json, size, table
from trunkline.errors import ConfigError

if TYPE_CHECKING:
    from trunkline.delivery.capture.log_survey import LogState
    from trunkline.delivery.capture.source import Lag

UNITS: Final = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}
POSTGRES: Final = "postgres-database"
MARIADB: Final = "mariadb-database"
LAKE: Final = "ducklake-tables"
STATUS_EXAMPLES: Final = """
examples:
  trunkline capture status shop
  trunkline capture status shop --postgres 'host=db dbname=shop user=capture' --password-env PGPASS --json
"""
AGAIN_EXAMPLES: Final = """
example:
  trunkline capture resnapshot shop public.orders --postgres 'host=db dbname=shop user=capture' --password-env PGPASS
"""


def add_actions(actions: argparse._SubParsersAction[Any]) -> None:
    status = actions.add_parser(
        "status",
        help="show the tables of a captured database, and how far their capture is",
        parents=[cluster_options()],
        epilog=STATUS_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    status.add_argument("log", help="the log of the capture")
    source = status.add_mutually_exclusive_group()
    source.add_argument("--postgres", metavar="DSN", help="the source, to show the lag and the WAL that it keeps")
    source.add_argument("--mariadb", metavar="URL", help="the source, to show the lag")
    _add_common(status)
    status.set_defaults(run=_status)
    again = actions.add_parser(
        "resnapshot",
        help="capture all rows of a table again, with the capture that runs or the next one",
        parents=[json_option()],
        epilog=AGAIN_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    again.add_argument("log", help="the log of the capture; it names the slot")
    again.add_argument("table", metavar="[SCHEMA.]TABLE", help="the table")
    again.add_argument("--postgres", metavar="DSN", required=True, help="the source")
    _add_common(again)
    again.set_defaults(run=_resnapshot)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--password-env", metavar="NAME", help="the environment variable that holds the password")
    parser.add_argument("--slot", metavar="NAME", help="of PostgreSQL (default: trunkline_ and the log's name)")


def slot_name(options: argparse.Namespace) -> str:
    return options.slot or f"trunkline_{options.log}".lower().replace("-", "_").replace(".", "_")


def byte_count(text: str) -> int:
    """``20GiB``, ``500M`` or plain bytes."""
    found = re.fullmatch(r"(\d+)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if found is None or int(found[1]) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write for example 20GiB")
    return int(found[1]) * UNITS[found[2].upper()]


# ------------------------------------------------------------------------------------------------------------- status


def _status(options: argparse.Namespace) -> int:
    from trunkline.delivery.capture.log_survey import surveyed

    config = configuration(options)
    state = surveyed(config.connect, options.log, token=config.token, tls=config.tls(), timeout=config.timeout_s)
    found = report(options.log, state, _lag(options, state))
    if options.json:
        print_json(found)
    else:
        print(_shown(found))
    return 0


def _lag(options: argparse.Namespace, state: LogState) -> Lag | None:
    """Asked of the source, if one is named."""
    kind = "" if state.position is None else state.position.kind
    if options.postgres is not None:
        from trunkline.cli.capture_database import server_address
        from trunkline.delivery.capture.source_lag import postgres_lag

        _check_kind(kind, POSTGRES)
        return postgres_lag(server_address(options), slot_name(options))
    if options.mariadb is not None:
        from trunkline.cli.capture_database import mariadb_address
        from trunkline.delivery.capture.source_lag import mariadb_lag

        _check_kind(kind, MARIADB)
        return mariadb_lag(mariadb_address(options))
    return None


def _check_kind(found: str, wanted: str) -> None:
    if found and found != wanted:
        raise WrongInput(f"the log has the capture of a {found}, not of a {wanted}")


def report(name: str, state: LogState, lag: Lag | None) -> dict[str, Any]:
    from trunkline.cli.change_lines import place_text

    tables = () if state.reader is None else state.reader.tables()
    position = state.position
    behind = None if lag is None or position is None else lag.behind(position.lsn)
    commit_us = 0 if position is None else position.commit_us
    return {
        "log": name,
        "kind": None if position is None else position.kind,
        "system": None if position is None else position.system,
        "timeline": None if position is None else position.timeline,
        "position": None if position is None else position.lsn,
        "position_text": None if position is None else place_text(position.kind, position.lsn)[1],
        "last_commit": None if not commit_us else _time(commit_us),
        "source_position": None if lag is None else lag.position,
        "lag_bytes": behind,
        "lag_seconds": None if behind is None or not commit_us else (time.time() - commit_us / 1e6 if behind else 0.0),
        "retained_bytes": None if lag is None else lag.retained,
        "tables": [
            {
                "number": each.newest.number,
                "schema": each.newest.schema,
                "name": each.newest.name,
                "state": "complete" if each.complete else "snapshot",
                "version": each.newest.version,
                "generation": each.newest.generation,
                "chunks": each.chunks,
                "rows": each.rows,
            }
            for each in tables
        ],
    }


def _time(micros: int) -> str:
    return dt.datetime.fromtimestamp(micros / 1e6, dt.UTC).isoformat(timespec="milliseconds")


def _shown(found: dict[str, Any]) -> str:
    if found["position"] is None and not found["tables"]:
        return f"{found['log']}: nothing was captured yet"
    lines = [f"{found['log']}: {found['kind']} at {found['position_text']}, last commit {found['last_commit'] or '-'}"]
    if found["source_position"] is not None:
        seconds = "" if found["lag_seconds"] is None else f", {found['lag_seconds']:.1f} s"
        kept = size(found["retained_bytes"])
        lines.append(f"behind the source: {size(found['lag_bytes'])}{seconds}; the source keeps {kept} for it")
    counts = ("state", "version", "generation", "rows")
    rows = [
        [each["number"], f"{each['schema']}.{each['name']}", *(each[count] for count in counts)]
        for each in found["tables"]
    ]
    header = ["number", "table", *counts[:-1], "rows in the log"]  # snapshots and changes, not the rows of the table
    return "\n".join([*lines, "", table(header, rows)])


# --------------------------------------------------------------------------------------------------------- resnapshot


def _resnapshot(options: argparse.Namespace) -> int:
    from trunkline.cli.capture_database import server_address
    from trunkline.delivery.capture.postgres.session import ServerSession
    from trunkline.delivery.capture.postgres.source import request_snapshot
    from trunkline.delivery.config.table_patterns import exact_name

    exact = exact_name(options.table)
    if exact is None:
        raise ConfigError(f"{options.table!r} names several tables; name one")
    slot = slot_name(options)
    session = ServerSession(server_address(options))
    try:
        if not session.ask("SELECT 1 FROM pg_replication_slots WHERE slot_name = %s", slot):
            raise ConfigError(f"there is no slot {slot}: no capture would see the request; name it with --slot")
        query = "SELECT 1 FROM pg_publication_tables WHERE pubname = %s AND (schemaname, tablename) = (%s, %s)"
        if not session.ask(query, slot, *exact):
            raise ConfigError(f"the table {'.'.join(exact)} is not captured with the slot {slot}")
        with session.reporting() as connection:
            request_snapshot(connection, slot, *exact)
    finally:
        session.close()
    if options.json:
        print_json({"slot": slot, "table": ".".join(exact)})
    else:
        print(f"{'.'.join(exact)} is captured again by the capture that reads the slot {slot}, now or when it starts")
    return 0
