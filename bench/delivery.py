"""Delivery on Spark compared with DuckDB only, in one run: rows per second, and where the time goes.

    ./run bench delivery [--quick] [--part PART]... [--kind KIND]... [--profile] [--json] [--dir DIR]

Windows hold 80 % inserts, 15 % updates and 5 % deletes; N x M are N destinations and M operations per window in total.
Each window is delivered by the runner of a real deliverer, and then by the baseline, to other destinations.
Exit code 0: every gate is met; 1: one is missed. Missed targets are only reported.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench_command import measured, parser_of, say
from delivery_parts import QUICK, Bench, Plan, Results
from delivery_places import KINDS
from delivery_report import GATE, report_lines, report_values, verdicts
from delivery_tables import PLACES
from log_machine import machine_facts

PARTS = ("rates", "tables", "routing", "touched", "big-window", "sweep", "idle")
PROGRAMS = ("pyspark", "duckdb", "deltalake", "pyarrow", "psycopg")


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = parser_of("delivery", __doc__, quick="small sizes", needs="20 GB")
    parser.add_argument("--part", action="append", choices=PARTS, help="only this part; may be repeated")
    kinds = dict.fromkeys((*KINDS, *PLACES))
    parser.add_argument("--kind", action="append", choices=kinds, help="only these destinations; may be repeated")
    parser.add_argument("--size", action="append", metavar="NxM", help="only this size of `rates`; may be repeated")
    parser.add_argument("--windows", type=int, help="measured windows, after the warm-up (default: 5)")
    parser.add_argument("--slots", type=int, help="concurrent tasks (default: one per core)")
    parser.add_argument("--no-baseline", action="store_true", help="skip the baseline and the gates that need it")
    parser.add_argument(
        "--profile", action="store_true", help="also time statements and functions, which costs some speed"
    )
    return parser.parse_args(arguments)


def plan_of(options: argparse.Namespace) -> Plan:
    plan = QUICK if options.quick else Plan()
    if options.size:
        pairs = (size.lower().replace(",", "").split("x") for size in options.size)
        plan = dataclasses.replace(plan, sizes=tuple((int(count), int(operations)) for count, operations in pairs))
    if options.windows:
        plan = dataclasses.replace(plan, windows=options.windows)
    return plan


def facts_of(directory: Path) -> dict[str, Any]:
    facts = machine_facts(directory)
    facts["programs"] = {"Python": facts["python"], **{name: version(name) for name in PROGRAMS}}
    return facts


def run(options: argparse.Namespace, directory: Path) -> Results:
    bench = Bench(plan_of(options), directory, say, Results(facts_of(directory)))
    parts, kinds = options.part or PARTS, options.kind or KINDS
    slots = options.slots or len(os.sched_getaffinity(0))
    # For many or large tables one kind is enough, unless others are requested.
    single = options.kind or KINDS[:1]
    if "rates" in parts:
        bench.rates(kinds, slots=slots, baseline=not options.no_baseline, profile=options.profile)
    if "tables" in parts:
        bench.tables(options.kind or tuple(PLACES), slots=slots)
    if "routing" in parts:
        for kind in single:
            bench.routing(kind, slots=slots)
    if "touched" in parts:
        for kind in options.kind or ("ducklake-sqlite", "delta"):  # ten thousand DuckDB files need a large disk
            bench.touched(kind, slots=slots)
    if "big-window" in parts:
        bench.big_window(single[0], slots=slots)
    if "sweep" in parts:
        bench.sweep(single[0])
    if "idle" in parts:
        bench.idle(single[0])
    return bench.results


def main(arguments: list[str] | None = None) -> int:
    options = options_of(arguments)

    def lines(results: Results) -> Iterator[str]:
        return report_lines(results, profile=options.profile)

    def met(results: Results) -> bool:
        return all(verdict.met for verdict in verdicts(results) if verdict.kind == GATE)

    return measured(
        "delivery", options, lambda directory: run(options, directory), lines=lines, values=report_values, met=met
    )


if __name__ == "__main__":
    sys.exit(main())
