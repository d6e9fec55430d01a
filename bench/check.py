"""How fast the checker explores the main chain scenario, with and without its memo, in the same run.

    ./run bench check [--scenario chain-restart] [--states 400000] [--plain-states 20000]

Both runs explore the same scenario breadth-first. With the memo, a step that was computed once is looked up; without
it, every step runs the handler of its role again. Seconds are CPU-seconds of this one process.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass

from trunkline.check.catalogue import UnknownName, shipped
from trunkline.check.scenario import Scenario
from trunkline.check.search import explore
from trunkline.check.world import World

GOAL_PER_SECOND = 150_000


@dataclass(frozen=True)
class Run:
    name: str
    states: int
    transitions: int
    seconds: float
    computed: int  # distinct steps: a handler ran
    memoised: int  # steps found in the memo
    memory_mib: float

    @property
    def per_second(self) -> float:
        return self.transitions / self.seconds


def measure(name: str, scenario: Scenario, states: int, *, memo: bool) -> Run:
    world = World(scenario, memo=memo)
    found = explore(world, max_states=states)
    if found.finding is not None:
        raise SystemExit(f"{scenario.name} is violated: {found.finding.text}")
    return Run(
        name,
        found.distinct,
        found.transitions,
        found.seconds,
        world.steps_computed,
        world.steps_memoised if memo else 0,
        found.memory_bytes / 2**20,
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="./run bench check", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--scenario", default="chain-restart")
    parser.add_argument("--states", type=int, default=400_000, help="states with the memo (default: 400000)")
    parser.add_argument("--plain-states", type=int, default=20_000, help="states without it (default: 20000)")
    options = parser.parse_args(arguments)
    try:
        scenario = shipped().scenario(options.scenario)
    except UnknownName as error:
        print(f"bench check: {error}", file=sys.stderr)
        return 2
    plain = measure("without memo", scenario, options.plain_states, memo=False)
    fast = measure("with memo", scenario, options.states, memo=True)
    print(f"scenario {scenario.name}: {scenario.summary}\n")
    header = (
        f"{'':14}{'states':>10}{'transitions':>13}{'CPU-s':>8}{'per CPU-s':>11}{'distinct steps':>16}{'memo hits':>12}"
    )
    print(header)
    for run in (plain, fast):
        print(
            f"{run.name:14}{run.states:>10,}{run.transitions:>13,}{run.seconds:>8.1f}{run.per_second:>11,.0f}"
            f"{run.computed:>16,}{run.memoised:>12,}"
        )
    met = fast.per_second >= GOAL_PER_SECOND
    print(f"\nratio with / without memo: {fast.per_second / plain.per_second:.1f}")
    print(f"peak memory with memo: {fast.memory_mib:,.0f} MiB")
    print(f"goal of {GOAL_PER_SECOND:,} transitions per CPU-second: {'met' if met else 'MISSED'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
