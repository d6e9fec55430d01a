"""The log compared with NATS JetStream, both with three replicas and every record synced, in one run.

    ./run bench log [--quick] [--json] [--rounds 3] [--seconds 5] [--no-nats] [--no-big-node] [--dir DIR]

Both run on this machine, never at the same time: each round starts a fresh cluster of the one, then of the other. CPU
time is that of all processes: servers, coordinator, supervisor, client.

Exit code 0: every goal is met; 1: one is missed.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

from bench_command import measured, parser_of, say
from log_report import report_lines, report_values, verdicts
from log_rounds import QUICK, Bench, Plan, Results


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = parser_of("log", __doc__, quick="one short round", needs="20 GB")
    parser.add_argument("--rounds", type=int, help="rounds, of which the median counts (default: 3)")
    parser.add_argument("--seconds", type=float, help="length of a measurement (default: 5)")
    parser.add_argument("--no-nats", action="store_true", help="skip the baseline and the goals that need it")
    parser.add_argument("--no-big-node", action="store_true", help="skip the node with ten million entries")
    return parser.parse_args(arguments)


def plan_of(options: argparse.Namespace) -> Plan:
    given = {name: value for name in ("rounds", "seconds") if (value := getattr(options, name)) is not None}
    return dataclasses.replace(QUICK if options.quick else Plan(), **given)


def main(arguments: list[str] | None = None) -> int:
    options = options_of(arguments)

    def measure(directory: Path) -> Results:
        bench = Bench(plan_of(options), directory, say)
        return bench.run(nats=not options.no_nats, big_node=not options.no_big_node)

    def met(results: Results) -> bool:
        return all(verdict.met for verdict in verdicts(results))

    return measured("log", options, measure, lines=report_lines, values=report_values, met=met)


if __name__ == "__main__":
    sys.exit(main())
