"""Random schedules: one seed is one run, bugs are found, correct code survives, the fair phase is fair."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from toy_store import Acknowledged, Answered, Put, ValuesDisk, careless, impatient, put_scenario
from trunkline.check import random_search
from trunkline.check.heal import Healer
from trunkline.check.mutant import Strategy
from trunkline.check.random_search import search, walk
from trunkline.check.scenario import Operation, ProcessSpec, Scenario
from trunkline.check.strategies import draw_mix
from trunkline.check.world import World
from trunkline.core.effects import Address, Choose, Complete, Effects, Message, SetTimer

RANDOM: tuple[Strategy, ...] = ("random", "pct", "swarm")


def texts(seed: int, strategy: Strategy) -> list[str]:
    one = walk(World(put_scenario()), seed, strategy)
    return [one.world.action(each).text() for each in (*one.action_ids, *one.healing_ids)]


@pytest.mark.parametrize("strategy", RANDOM)
def test_one_seed_is_one_schedule_whatever_the_world_has_seen_before(strategy: Strategy) -> None:
    world = World(put_scenario())
    search(world, 30, 100, strategy)
    used = walk(world, 7, strategy)
    again = [used.world.action(each).text() for each in (*used.action_ids, *used.healing_ids)]
    assert again == texts(7, strategy)


@pytest.mark.parametrize("strategy", RANDOM)
def test_different_seeds_give_different_schedules(strategy: Strategy) -> None:
    assert len({tuple(texts(seed, strategy)) for seed in range(20)}) > 5


@pytest.mark.parametrize("strategy", RANDOM)
def test_correct_code_survives_every_strategy(strategy: Strategy) -> None:
    found = search(World(put_scenario(2, 2)), 300, 0, strategy)
    assert found.walk is None
    assert found.schedules == 300
    assert found.distinct > 100
    assert found.events_seen["Stored"] > 0


@pytest.mark.parametrize("strategy", RANDOM)
def test_every_strategy_finds_an_answer_that_precedes_its_write(strategy: Strategy) -> None:
    with careless():
        found = search(World(put_scenario()), 2000, 0, strategy)
    assert found.walk is not None
    assert found.walk.finding is not None
    assert found.walk.finding.monitor == "NoLostAck"


@pytest.mark.parametrize("strategy", RANDOM)
def test_the_fair_phase_finds_a_request_that_is_never_repeated(strategy: Strategy) -> None:
    with impatient():
        found = search(World(put_scenario()), 500, 0, strategy)
    assert found.walk is not None
    assert found.walk.healed
    assert found.walk.finding is not None
    assert found.walk.finding.monitor == "Progress"
    assert "wait for their answer" in found.walk.finding.text


def test_a_step_that_violates_a_property_is_taken_whenever_it_is_enabled() -> None:
    with careless():
        world = World(put_scenario())
        walks = [walk(world, seed, "random") for seed in range(300)]
    for one in walks:
        state = one.world.initial()
        for action_id in one.action_ids:
            options = one.world.expand(state)
            broken = [each for each, after in options if one.world.violation(after) is not None]
            assert not broken or action_id in broken
            state = dict(options)[action_id]
    assert any(one.finding for one in walks)


def test_the_fair_phase_restarts_a_process_that_has_no_restart_left() -> None:
    scenario = put_scenario()
    world = World(replace(scenario, faults=replace(scenario.faults, restart=0)))
    crash = next(each for each in world.expand(world.initial()) if world.action(each[0]).text() == "crash k")
    healing = Healer(world).heal(crash[1], 100)
    assert healing.finding is None
    assert next(world.action(each).text() for each in healing.action_ids) == "restart k"


def test_the_fair_phase_reports_a_needed_process_that_stays_down() -> None:
    world = World(replace(put_scenario(), stays_down=("k",)))
    crash = next(each for each in world.expand(world.initial()) if world.action(each[0]).text() == "crash k")
    healing = Healer(world).heal(crash[1], 100)
    assert healing.finding is not None
    assert healing.finding.text.startswith("not reached within 100 fair steps")


def test_the_fair_phase_has_no_faults_and_serves_every_caller() -> None:
    world = World(put_scenario(2, 3))
    healing = Healer(world).heal(world.initial(), 200)
    assert healing.finding is None
    assert not any(world.is_fault(each) for each in healing.action_ids)
    assert len(healing.action_ids) == 2 * 2 * 3  # a request and an answer for each value of each caller


class Wanderer:
    """Done only when it goes right; going left leads back to the fork."""

    @property
    def phase(self) -> str:
        return "wandering"

    def on_start(self) -> Effects:
        return []

    def on_message(self, source: Address, message: Message) -> Effects:
        return [SetTimer("fork", 10)]

    def on_timer(self, key: str) -> Effects:
        return [Choose("way", ("left", "right"))]

    def on_choice(self, key: str, option: object) -> Effects:
        return [SetTimer("fork", 10)] if option == "left" else [Complete(1, Acknowledged(1))]


def test_the_fair_phase_tries_every_option_of_a_choice() -> None:
    journey = (Operation("wanderer", Put(1, 1)),)
    process = ProcessSpec("w", lambda boot: {"wanderer": Wanderer()}, ValuesDisk(), (), journey)
    world = World(Scenario("fork", "one choice", (process,), (Answered(),)))
    healing = Healer(world).heal(world.initial(), 10)
    assert healing.finding is None
    assert [world.action(each).text() for each in healing.action_ids] == [
        "timer[0] w.wanderer fork",
        "timer[1] w.wanderer fork",
    ]


def test_worlds_are_discarded_when_they_hold_too_many_steps_with_the_same_results(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual = search(World(put_scenario()), 60, 0, "swarm")
    monkeypatch.setattr(random_search, "STEPS_KEPT_MAX", 10)
    renewed = search(World(put_scenario()), 60, 0, "swarm")
    assert (renewed.transitions, renewed.depth, renewed.coverage) == (usual.transitions, usual.depth, usual.coverage)
    assert renewed.distinct > usual.distinct
    assert not renewed.exact


def test_a_mix_only_removes_faults() -> None:
    scenario = put_scenario()
    mixes = [draw_mix(scenario, Random(seed)) for seed in range(50)]
    assert {mix.fifo for mix in mixes} == {True, False}
    assert {mix.faults.loss for mix in mixes} == {0, scenario.faults.loss}
    assert {mix.faults.restart for mix in mixes} == {scenario.faults.restart}
    assert all(draw_mix(replace(scenario, fifo=True), Random(seed)).fifo for seed in range(20))


def test_schedules_do_not_depend_on_the_hash_seed() -> None:
    program = (
        "from toy_store import put_scenario\n"
        "from trunkline.check.random_search import walk\n"
        "from trunkline.check.replay import lines, replay_walk\n"
        "from trunkline.check.world import World\n"
        "for strategy in ('random', 'pct', 'swarm'):\n"
        "    for seed in range(10):\n"
        "        print(*lines(replay_walk(walk(World(put_scenario(2, 2)), seed, strategy))), sep='\\n')\n"
    )
    root = Path(__file__).parents[2]
    outputs = []
    for hash_seed in ("1", "2"):
        path = os.pathsep.join([str(root / "src"), str(root / "tests")])
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path}
        done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True)
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1]
    assert len(outputs[0]) > 1000
