"""Spark on the log: how fast it reads a table of entries, and how soon a stream sees an entry.

    ./run bench spark [--quick] [--json] [--rounds 5] [--records 4000000] [--dir DIR]

Three nodes, Spark with two cores and the client share the machine. The baseline is the plain client, one process that
iterates `batches()` over the same log in the same run. Exit code 0: every goal is met; 1: one is missed.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

from bench_command import measured, parser_of, say
from spark_report import report_lines, report_values, verdicts
from spark_rounds import QUICK, Plan, Results, measure_all


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = parser_of("spark", __doc__, quick="few records", needs="3 GB")
    parser.add_argument("--rounds", type=int, help="rounds, of which the median counts (default: 5)")
    parser.add_argument("--records", type=int, help="in the log that is read (default: 4,000,000)")
    return parser.parse_args(arguments)


def plan_of(options: argparse.Namespace) -> Plan:
    given = {name: value for name in ("rounds", "records") if (value := getattr(options, name)) is not None}
    return dataclasses.replace(QUICK if options.quick else Plan(), **given)


def main(arguments: list[str] | None = None) -> int:
    options = options_of(arguments)

    def measure(directory: Path) -> Results:
        return measure_all(plan_of(options), directory, say)

    def met(results: Results) -> bool:
        return all(verdict.met for verdict in verdicts(results))

    return measured("spark", options, measure, lines=report_lines, values=report_values, met=met)


if __name__ == "__main__":
    sys.exit(main())
