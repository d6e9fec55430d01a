"""Spark on the log, on this machine: how fast a table of entries is read, and how soon a stream sees an entry.

    ./run bench spark [--quick] [--json] [--rounds 5] [--records 4000000] [--dir DIR]

Three nodes, Spark with two cores and the client share the machine. The baseline is the plain client, one process that
iterates `batches()` over the same log in the same run. Exit code 0: every goal is met; 1: one is not.
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
from spark_report import report_lines, report_values, verdicts
from spark_rounds import QUICK, Plan, measure_all


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./run bench spark", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="few records: shows that it works, proves nothing")
    parser.add_argument("--json", action="store_true", help="the report as one JSON object")
    parser.add_argument("--rounds", type=int, help="of which the median counts (default: 5)")
    parser.add_argument("--records", type=int, help="in the log that is read (default: 4,000,000)")
    parser.add_argument("--dir", type=Path, help="on the disk to be used, needs 3 GB (default: for temporary files)")
    return parser.parse_args(arguments)


def plan_of(options: argparse.Namespace) -> Plan:
    given = {name: value for name in ("rounds", "records") if (value := getattr(options, name)) is not None}
    return dataclasses.replace(QUICK if options.quick else Plan(), **given)


def main(arguments: list[str] | None = None) -> int:
    options = options_of(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything is stopped and removed then, too
    try:
        with tempfile.TemporaryDirectory(prefix="trunkline-bench-", dir=options.dir) as directory:
            results = measure_all(plan_of(options), Path(directory), say)
    except Failed as failure:
        say(f"bench spark: {failure}")
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
