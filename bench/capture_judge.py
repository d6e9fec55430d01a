"""Judges the log of a captured pgbench database: sums of each branch at random transactions, rows at the end.

    python bench/capture_judge.py LOG --connect 127.0.0.1:7400 --postgres 'host=db dbname=bench' [--ends 50] [--seed 1]

The rows are compared with the server's, which must not change meanwhile. Exit code 0: all agrees; 1: it does not.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))  # for the judge

from database_judge import Wrong, differences, judge_pgbench
from trunkline import sync


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("log", metavar="LOG", help="the log of the capture")
    parser.add_argument(
        "--connect", default="127.0.0.1:7400", metavar="ADDR", help="the cluster (default: %(default)s)"
    )
    parser.add_argument("--postgres", metavar="DSN", help="compare with the tables of this server, too")
    parser.add_argument("--ends", type=int, default=50, help="random transactions (default: 50)")
    parser.add_argument("--seed", type=int, default=1, help="of the random transactions (default: 1)")
    options = parser.parse_args(arguments)
    with sync.connect(options.connect) as handle:
        log = handle.log(options.log)
        try:
            judged = judge_pgbench(lambda: log.subscribe(start=1, to_tail=True), ends=options.ends, seed=options.seed)
        except Wrong as wrong:
            print(f"WRONG: {wrong}")
            return 1
    counted = judged.census
    print(f"{counted.transactions:,} transactions, {counted.rows:,} changes, {counted.entries:,} entries")
    print(f"the sums of all branches agree at {len(judged.places)} transactions and at the end")
    differs = differences(options.postgres, judged.last.tables) if options.postgres else {}
    for name, (server, rebuilt) in differs.items():
        print(f"WRONG: {name}: {server:,} rows only in the server, {rebuilt:,} only in the log")
    if options.postgres and not differs:
        print(f"the rows of {len(judged.last.tables)} tables are the server's")
    return 1 if differs else 0


if __name__ == "__main__":
    sys.exit(main())
