"""Trunkline's log beside NATS JetStream, both with three replicas and every record synced, in one run.

    ./run bench log [--quick] [--json] [--rounds 3] [--seconds 5] [--no-nats] [--no-big-node] [--dir DIR]

Both run on this machine, never at the same time: each round starts a fresh cluster of the one, then of the other. CPU
time is that of all processes: servers, coordinator, supervisor, client. Exit code 0: every goal is met; 1: one is not.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import signal
import sys
import tempfile
from pathlib import Path

from log_processes import Failed
from log_report import report_lines, report_values, verdicts
from log_rounds import QUICK, Bench, Plan


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./run bench log", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="one short round: shows that it works, proves nothing")
    parser.add_argument("--json", action="store_true", help="the report as one JSON object")
    parser.add_argument("--rounds", type=int, help="of which the median counts (default: 3)")
    parser.add_argument("--seconds", type=float, help="of one measured window (default: 5)")
    parser.add_argument("--no-nats", action="store_true", help="leave the baseline out, and the goals that need it")
    parser.add_argument("--no-big-node", action="store_true", help="leave out the node with ten million entries")
    parser.add_argument(
        "--dir", type=Path, help="on the disk to be measured, needs 20 GB (default: for temporary files)"
    )
    return parser.parse_args(arguments)


def plan_of(options: argparse.Namespace) -> Plan:
    given = {name: value for name in ("rounds", "seconds") if (value := getattr(options, name)) is not None}
    return dataclasses.replace(QUICK if options.quick else Plan(), **given)


def main(arguments: list[str] | None = None) -> int:
    options = options_of(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything is stopped and removed then, too
    try:
        with tempfile.TemporaryDirectory(prefix="trunkline-bench-", dir=options.dir) as directory:
            bench = Bench(plan_of(options), Path(directory), say)
            results = bench.run(nats=not options.no_nats, big_node=not options.no_big_node)
    except Failed as failure:
        say(f"bench log: {failure}")
        return 2
    except KeyboardInterrupt:
        return 130
    if options.json:
        print(json.dumps(report_values(results), indent=2))
    else:
        print("\n".join(["", *report_lines(results)]))
    return 0 if all(verdict.met for verdict in verdicts(results)) else 1


if __name__ == "__main__":
    sys.exit(main())
