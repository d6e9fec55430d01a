"""A pipeline on a captured log, while nodes of the log pause and segments end; compared with its source.

    .venv/bin/python tests/system/log_source_soak.py --minutes 5 --seed 7 --dir D

A node is stopped (SIGSTOP) for a moment or for longer than any timeout, or the log is reconfigured, again and again,
while a table changes, its changes are captured into the log, and a deliverer reads windows of it. Now and then, and at
the end, everything is let go on, and every table must become equal to its part of the source. Exit codes: 0 nothing is
wrong, 1 something is.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":  # pytest has put the tests on the path already
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from local_cluster import RunningCluster, wait_until
from system.captured_tables import PATIENCE_S, Business, equal, started

PAUSES_S = (0.3, 1.0, 2.5, 4.5)  # below and above what writers, readers and leases wait
COMPARED_EVERY_S = 30.0


@dataclass(frozen=True)
class Plan:
    seconds: float
    seed: int


def run(directory: Path, plan: Plan) -> Counter[str]:
    """What was done, by kind. Raises ``AssertionError`` where a table is not equal to the source."""
    done: Counter[str] = Counter()
    chance = random.Random(plan.seed)
    with started(directory) as (business, running, cluster, _, pipeline):
        wait_until(lambda: equal(business, pipeline), PATIENCE_S)
        ends = time.monotonic() + plan.seconds
        while time.monotonic() < ends:
            compared = min(ends, time.monotonic() + COMPARED_EVERY_S)
            while time.monotonic() < compared:
                done[_fault(chance, cluster, business)] += 1
            wait_until(lambda: equal(business, pipeline), PATIENCE_S)
            running.assert_well()
            done["compared"] += 1
        description = cluster.json("log", "describe", "orders")
        done["epochs"] = description["epoch"]
    return done


def _fault(chance: random.Random, cluster: RunningCluster, business: Business) -> str:
    """One fault, with changes beside and after it."""
    if chance.random() < 0.25:
        cluster.ok("reconfigure", "orders")
        _change_for(chance.uniform(0.2, 1.0), business.change)
        return "reconfigured"
    node = f"node{chance.randrange(1, 4)}"
    cluster.pause(node)
    try:
        _change_for(chance.choice(PAUSES_S), business.change)
    finally:
        cluster.resume(node)
    _change_for(chance.uniform(0.2, 1.0), business.change)
    return "paused"


def _change_for(seconds: float, change: Callable[[], object]) -> None:
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        change()
        time.sleep(0.05)  # several windows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dir", type=Path, help="where everything is kept; without it nothing is")
    asked = parser.parse_args()
    plan = Plan(asked.minutes * 60, asked.seed)
    try:
        if asked.dir is not None:
            done = run(asked.dir, plan)
        else:
            with tempfile.TemporaryDirectory() as directory:
                done = run(Path(directory), plan)
    except AssertionError as wrong:
        print(f"WRONG: {wrong}", file=sys.stderr)
        return 1
    print(", ".join(f"{kind} {count}" for kind, count in sorted(done.items())), "- every table equal", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
