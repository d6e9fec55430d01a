"""The shipped scenarios: explored counts are pinned, so that lost coverage shows; none is violated."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from trunkline.check.campaign import Bounds, Plan, check_exhaustively, check_schedules
from trunkline.check.scenarios import SCENARIOS

# Scenario: states, transitions, depth of the complete exploration. They change whenever a role, a scenario or the
# world changes:
# then look at why, and pin the new figures.
EXHAUSTED = {
@@PINS@@
}
SMALL_STATES = 8_000
SCHEDULES = 40


def _quiet(text: str) -> None:
    pass


@pytest.mark.parametrize("name", EXHAUSTED)
def test_every_interleaving_is_right_and_the_counts_are_those_pinned(name: str) -> None:
    report = check_exhaustively(SCENARIOS[name](), Bounds(), _quiet)
    assert report.violations == (), f"./run check {name} --exhaustive"
    assert report.complete
    assert report.never_seen == ()
    assert (report.states, report.transitions, report.depth) == EXHAUSTED[name]


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name not in EXHAUSTED])
def test_a_bounded_search_and_random_schedules_find_nothing(name: str) -> None:
    scenario = SCENARIOS[name]()
    report = check_exhaustively(scenario, Bounds(max_states=SMALL_STATES), _quiet)
    assert report.violations == (), f"./run check {name}"
    walks = check_schedules(scenario, Plan("swarm", 0, SCHEDULES), Bounds(), _quiet)
    assert walks.violations == (), f"./run check {name} --schedules {SCHEDULES}"


@pytest.mark.parametrize("strategy", ["random", "pct", "swarm"])
def test_one_seed_gives_one_trace_under_any_hash_seed(strategy: str) -> None:
    trunkline = [sys.executable, "-m", "trunkline.cli.main"]
    command = [*trunkline, "check", "takeover", "--seed", "2483", "--strategy", strategy]

    def replayed(hash_seed: str) -> bytes:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        return subprocess.run(command, env=environment, capture_output=True, check=True).stdout

    traces = [replayed(hash_seed) for hash_seed in ("0", "1", "0", "4242")]
    assert len(traces[0].splitlines()) > 20
    assert len(set(traces)) == 1
