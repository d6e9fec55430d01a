"""The capture of a whole PostgreSQL database: pgbench, backlogs, snapshots, many tables, kills; Debezium beside it.

    ./run bench capture [--pgbench] [--kills] [--backlog] [--copy] [--snapshot] [--tables] [--retained] [--debezium]
                        [--quick] [--json] [--seconds 120] [--dir DIR]

Without the name of a part, all of them run, each with a server and a log of its own. The server syncs its commits, the
log has three synced nodes, and all of it shares the machine. Exit code 0: every goal is met; 1: one is missed; 2: the
measurement failed.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench_command import measured, parser_of, say
from capture_debezium import Missing, compare
from capture_drains import measure_backlog, measure_copy, measure_snapshot
from capture_pgbench import measure_pgbench
from capture_report import Results, report_lines, report_values, verdicts
from capture_rig import Bench, bench_in
from capture_tables import measure_retained, measure_tables
from log_machine import machine_facts
from log_processes import Failed, own_directory


@dataclass(frozen=True)
class Plan:
    scale: int = 10
    seconds: float = 120.0
    backlog: int = 100_000
    copied: int = 5_000_000
    present: int = 10_000_000
    kills: int = 5  # of a snapshot
    tables: int = 200
    busy: int = 20
    tables_s: float = 60.0
    minutes: float = 3.0
    beside: int = 100_000  # transactions, of the comparison with Debezium


QUICK = Plan(1, 12.0, 5_000, 200_000, 300_000, 2, 20, 5, 10.0, 0.2, 4_000)

PARTS: dict[str, tuple[str, Callable[[Bench, Plan], Any]]] = {
    "pgbench": (
        "pgbench alone and with the capture: rates, lag, CPU; the judge",
        lambda bench, plan: measure_pgbench(bench, scale=plan.scale, seconds=plan.seconds, kills=False),
    ),
    "kills": (
        "the same, while the capture, a node of the log and PostgreSQL are killed in turn",
        lambda bench, plan: measure_pgbench(bench, scale=plan.scale, seconds=plan.seconds, kills=True),
    ),
    "backlog": (
        "transactions of one row, drained; the capture of one table beside it",
        lambda bench, plan: measure_backlog(bench, plan.backlog),
    ),
    "copy": ("one COPY: rows a second and memory", lambda bench, plan: measure_copy(bench, plan.copied)),
    "snapshot": (
        "the snapshot of a large table; again, killed in the middle",
        lambda bench, plan: measure_snapshot(bench, plan.present, plan.kills),
    ),
    "tables": (
        "many tables, few of them busy, and one more",
        lambda bench, plan: measure_tables(bench, tables=plan.tables, busy=plan.busy, seconds=plan.tables_s),
    ),
    "retained": (
        "what the server keeps while only other tables change",
        lambda bench, plan: measure_retained(bench, plan.minutes),
    ),
    "debezium": (
        "Debezium over the same backlog, and both replayed",
        lambda bench, plan: compare(bench, scale=plan.scale, transactions=plan.beside),
    ),
}


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = parser_of("capture", __doc__, quick="small sizes", needs="20 GB")
    for name, (text, _) in PARTS.items():
        parser.add_argument(f"--{name}", dest="parts", action="append_const", const=name, help=f"only this: {text}")
    parser.add_argument("--seconds", type=float, help="of pgbench, each time (default: 120)")
    parser.add_argument("--scale", type=int, help="of pgbench: 100,000 accounts each (default: 10)")
    parser.add_argument("--minutes", type=float, help="of --retained (default: 3)")
    return parser.parse_args(arguments)


def plan_of(options: argparse.Namespace) -> Plan:
    names = ("seconds", "scale", "minutes")
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    return dataclasses.replace(QUICK if options.quick else Plan(), **given)


def main(arguments: list[str] | None = None) -> int:
    options = options_of(arguments)
    plan = plan_of(options)

    def measure(directory: Path) -> Results:
        results = Results(machine_facts(directory))
        for name in options.parts or PARTS:
            say(f"--- {name}: {PARTS[name][0]}")
            try:
                with bench_in(own_directory(directory, name), say) as bench:
                    results.parts[name] = PARTS[name][1](bench, plan)
            except Missing as missing:
                results.missing[name] = str(missing)
            except Failed as failure:
                if len(options.parts or PARTS) == 1:
                    raise
                results.failed[name] = str(failure)
        return results

    def met(results: Results) -> bool:
        return not results.failed and all(verdict.met for verdict in verdicts(results))

    return measured("capture", options, measure, lines=report_lines, values=report_values, met=met)


if __name__ == "__main__":
    sys.exit(main())
