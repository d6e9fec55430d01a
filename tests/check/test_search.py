"""Exhaustive search: its counts and findings, which depend on the scenario alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from alternating_bit import alternating_bit
from toy_world import (
    Never,
    Note,
    Quiet,
    Reporter,
    Saw,
    Sender,
    Story,
    main,
    pair,
    process,
    reachable,
    run,
    scenario,
)
from trunkline.check.scenario import Boot, Faults, Scenario
from trunkline.check.search import SearchProgress, explore
from trunkline.check.world import World
from trunkline.core.effects import Address, Announce, Complete, Effects, Message, Send, SetTimer


class Poller(Quiet):
    """Asks both ``n1`` and ``n2`` and is done when both have answered."""

    def __init__(self, boot: Boot) -> None:
        self.waits_for = frozenset({"n1", "n2"})

    def on_message(self, source: Address, message: Message) -> Effects:
        if source.role == "application":
            return [Send(main("n1"), Note(1)), Send(main("n2"), Note(1)), SetTimer("retry", 10)]
        self.waits_for -= {source.process}
        return [] if self.waits_for else [Announce(Saw(1)), Complete(1, Saw(1))]

    def on_timer(self, key: str) -> Effects:
        asked = [Send(main(name), Note(1)) for name in ("n1", "n2") if name in self.waits_for]
        return [*asked, SetTimer("retry", 10)] if asked else []


class Answerer(Quiet):
    def __init__(self, boot: Boot) -> None:
        self.answers = 0

    def on_message(self, source: Address, message: Message) -> Effects:
        self.answers = min(2, self.answers + 1)
        return [Send(source, Note(2))]


class Forgetful(Poller):
    """Never asks again."""

    def on_timer(self, key: str) -> Effects:
        return []


class Asked:
    """Hot from the beginning of the operation to its end."""

    name = "Asked"

    def initial(self) -> int:
        return 0

    def observe(self, state: int, observed: object) -> int:
        return state + 1

    def hot(self, state: int) -> str:
        return "" if state == 3 else "no answer yet"


def polling(role: type[Poller] = Poller, **options: Any) -> Scenario:
    processes = (process("c", role, 1), process("n1", Answerer), process("n2", Answerer))
    return scenario(
        *processes,
        **{"monitors": (Asked(),), "faults": Faults(loss=2), "symmetric": (("n1", "n2"),), **options},
    )


def test_every_state_is_counted_once() -> None:
    found = explore(World(polling()))
    states = reachable(World(polling()))
    assert (found.distinct, found.complete) == (len(states), True)


def test_breadth_first_finds_a_shortest_run_that_replays() -> None:
    world = World(pair(monitors=(Never("b saw 2"),), fifo=True, faults=Faults(duplicate=3, loss=1)))
    found = explore(world)
    assert found.finding is not None
    assert (found.finding.monitor, len(found.actions), found.complete) == ("Never", 2, False)
    assert world.violation(run(world, *(action.text() for action in found.actions))) == found.finding


def test_depth_first_sees_the_same_states() -> None:
    breadth, depth = (explore(World(polling()), order=order) for order in ("breadth", "depth"))
    assert (depth.distinct, depth.transitions, depth.complete) == (breadth.distinct, breadth.transitions, True)


def test_depth_first_finds_the_violation_and_its_run_replays() -> None:
    world = World(pair(monitors=(Never("b saw 2"),), faults=Faults(duplicate=3)))
    found = explore(world, order="depth")
    assert found.finding is not None
    assert world.violation(run(world, *(action.text() for action in found.actions))) == found.finding


def test_a_search_that_reaches_a_limit_is_not_complete() -> None:
    whole = explore(World(polling()))
    assert whole.complete
    assert not explore(World(polling()), max_states=50).complete
    shallow = explore(World(polling()), max_depth=3)
    assert (shallow.depth, shallow.complete) == (3, False)
    assert explore(World(polling()), max_depth=whole.depth + 1).complete


def test_a_search_counts_the_same_with_and_without_memo() -> None:
    faults = Faults(loss=1, duplicate=1, crash=1, restart=1, early_timer=1)
    crashing = polling(faults=faults, crashable=("n1", "c"))
    worlds = [World(crashing, memo=memo) for memo in (True, False)]
    remembered, again = (explore(world) for world in worlds)
    assert (again.distinct, again.transitions, again.depth) == (
        remembered.distinct,
        remembered.transitions,
        remembered.depth,
    )
    assert worlds[1].steps_computed > 10 * worlds[0].steps_computed


def test_symmetry_gives_the_same_verdict_with_fewer_states() -> None:
    whole, reduced = (explore(World(polling()), symmetry=symmetry) for symmetry in (False, True))
    assert (whole.finding, whole.complete) == (reduced.finding, reduced.complete) == (None, True)
    assert whole.distinct / 2 <= reduced.distinct < whole.distinct * 0.6
    broken = [explore(World(polling(monitors=(Never("c saw 1"),))), symmetry=symmetry) for symmetry in (False, True)]
    assert broken[0].finding == broken[1].finding is not None
    assert len(broken[0].actions) == len(broken[1].actions)
    assert broken[1].distinct < broken[0].distinct


def test_symmetry_halves_the_alternating_bit_protocol() -> None:
    # 1,109 of its 79,365 states are their own mirror image: there are (79,365 + 1,109) / 2 up to swapping s0 and s1.
    assert explore(World(alternating_bit()), symmetry=True).distinct == 40_237


def test_a_scenario_that_depends_on_the_order_of_processes_is_not_symmetric() -> None:
    class ByPlace(Poller):
        """Holds a flag for each node where a set of names belongs; the first is asked twice."""

        def __init__(self, boot: Boot) -> None:
            self.answered = (False, False)

        def on_message(self, source: Address, message: Message) -> Effects:
            if source.role == "application":
                return [Send(main("n1"), Note(1)), Send(main("n2"), Note(1))]
            first, second = self.answered
            self.answered = (first or source.process == "n1", second or source.process == "n2")
            return [Send(main("n1"), Note(3))] if self.answered == (True, False) else []

    assert explore(World(polling(ByPlace))).complete
    with pytest.raises(ValueError, match="not symmetric"):
        explore(World(polling(ByPlace)), symmetry=True)


def test_liveness_holds_if_lost_requests_are_repeated() -> None:
    found = explore(World(polling()), keep_edges=True)
    assert found.liveness is not None
    assert found.liveness.finding is None


def test_liveness_is_judged_on_the_reduced_graph_as_well() -> None:
    for role, holds in ((Poller, True), (Forgetful, False)):
        found = explore(World(polling(role)), keep_edges=True, symmetry=True)
        assert found.liveness is not None
        assert (found.liveness.finding is None) == holds


def test_liveness_names_the_first_state_from_which_the_goal_is_unreachable() -> None:
    found = explore(World(polling(Forgetful)), keep_edges=True)
    assert found.liveness is not None
    assert found.liveness.finding is not None
    assert found.liveness.finding.monitor == "Progress"
    assert "Asked: no answer yet" in found.liveness.finding.text
    assert [action.kind for action in found.liveness.actions] == ["lose"]


def test_a_goal_that_only_a_fault_can_reach_is_not_reached() -> None:
    class WantsTwo(Reporter):
        """Announces when it has got two notes; only one is ever sent."""

        def __init__(self, boot: Boot) -> None:
            self.got = 0

        def on_message(self, source: Address, message: Message) -> Effects:
            self.got += 1
            return [Announce(Saw(2))] if self.got == 2 else []

    class SendsOne(Sender):
        def on_start(self) -> Effects:
            return [Send(main("b"), Note(1))]

    doubling = scenario(
        process("a", SendsOne),
        process("b", WantsTwo),
        monitors=(Story(rest=lambda story: "b saw 2" in story),),
        faults=Faults(duplicate=1),
    )
    found = explore(World(doubling), keep_edges=True)
    assert found.liveness is not None
    assert found.liveness.finding is not None
    assert found.liveness.actions == ()


def test_liveness_is_not_judged_on_a_graph_that_was_cut_short() -> None:
    assert explore(World(polling(Forgetful)), keep_edges=True, max_states=20).liveness is None


def test_a_search_reports_its_progress() -> None:
    reports: list[SearchProgress] = []
    found = explore(World(alternating_bit()), on_progress=reports.append)
    assert [progress.distinct // 50_000 for progress in reports] == [1]
    assert reports[0].distinct <= found.distinct


def test_a_violation_in_the_initial_state_has_an_empty_run() -> None:
    found = explore(World(polling(monitors=(Never("c began 1"),))))
    assert found.finding is not None
    assert (found.actions, found.distinct) == ((), 1)


SCRIPT = """
from test_search import polling
from toy_world import Story
from trunkline.check.scenario import Faults
from trunkline.check.search import explore
from trunkline.check.world import World

world = World(polling(faults=Faults(loss=1, crash=1, restart=1), crashable=("c", "n1"), monitors=(Story(),)))
found = explore(world)
state = world.initial()
lines = []
for step in range(12):
    options = world.expand(state)
    if not options:
        break
    action_id, state = options[step * 7 % len(options)]
    lines.append(world.action(action_id).text())
print(found.distinct, found.transitions, found.depth, sorted(world.coverage), lines, hash(state))
"""


@pytest.mark.parametrize("other_seed", ["1", "4711"])
def test_counts_orders_and_states_are_the_same_under_any_hash_seed(repository: Path, other_seed: str) -> None:
    folders = [str(repository / "tests" / "check"), str(repository / "tests"), str(repository / "src")]
    printed = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(folders)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", other_seed)
    ]
    assert printed[0] == printed[1]
    assert "deliver" in printed[0]
