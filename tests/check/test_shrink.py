"""Shrinking: the same monitor reports it, every action is needed, smaller scenarios come first."""

from __future__ import annotations

import pytest

from toy_store import careless, impatient, put_scenario, unshrinkable_scenario
from trunkline.check.heal import Healer
from trunkline.check.mutant import Strategy
from trunkline.check.random_search import HEAL_STEPS_MAX, search
from trunkline.check.scenario import Scenario
from trunkline.check.search import explore
from trunkline.check.shrink import Failure, shrink
from trunkline.check.world import World


def first_failure(scenario: Scenario, strategy: Strategy) -> Failure:
    found = search(World(scenario), 5000, 0, strategy).walk
    assert found is not None
    assert found.finding is not None
    return Failure(found.world, tuple(found.actions), found.finding, HEAL_STEPS_MAX if found.healed else None)


@pytest.mark.parametrize("strategy", ["random", "pct", "swarm"])
def test_a_run_shrinks_until_every_action_is_needed(strategy: Strategy) -> None:
    with careless():
        scenario = unshrinkable_scenario()
        failure = first_failure(scenario, strategy)
        shrunk = shrink(scenario, failure)
        shortest = explore(World(scenario))
    assert shrunk.failure.finding.monitor == "NoLostAck"
    assert len(shortest.actions) <= len(shrunk.failure.actions) <= len(failure.actions)
    assert len(shrunk.failure.actions) <= len(shortest.actions) + 2


def test_a_smaller_scenario_is_preferred() -> None:
    with careless():
        scenario = put_scenario(2, 2)
        shrunk = shrink(scenario, first_failure(scenario, "random"))
    assert shrunk.smaller == 0
    assert shrunk.failure.world.scenario.name == "put-small"
    assert shrunk.failure.finding.monitor == "NoLostAck"


def test_a_failure_of_the_fair_phase_shrinks_to_one_of_the_fair_phase() -> None:
    with impatient():
        scenario = unshrinkable_scenario()
        shrunk = shrink(scenario, first_failure(scenario, "random")).failure
        state = shrunk.world.initial()
        for action in shrunk.actions:
            after = shrunk.world.apply(state, action)
            assert after is not None
            state = after
        healing = Healer(shrunk.world).heal(state, HEAL_STEPS_MAX)
    assert healing.finding == shrunk.finding
    assert len(shrunk.actions) == 1  # one loss is all that it takes
    assert shrunk.actions[0].kind in ("lose", "crash_in")


def test_a_run_found_in_a_mix_replays_in_the_scenario_itself() -> None:
    with careless():
        scenario = unshrinkable_scenario()
        shrunk = shrink(scenario, first_failure(scenario, "swarm"))
    assert shrunk.failure.world.scenario == scenario
    assert not shrunk.failure.world.scenario.fifo
