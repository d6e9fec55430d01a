"""Makes a failing run small enough to read.

First it explores the scenario's smaller versions breadth-first within a limit: a finding there has a shortest run.
Otherwise it reduces the run by delta debugging: it leaves out chunks of actions, then single ones, and skips actions
that become impossible, as long as the same monitor reports a violation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trunkline.check.actions import Action
from trunkline.check.heal import Healer
from trunkline.check.scenario import Scenario
from trunkline.check.search import Exploration, explore
from trunkline.check.views import Finding
from trunkline.check.world import World

SMALLER_STATES_MAX = 100_000
ATTEMPTS_MAX = 5_000


@dataclass(frozen=True)
class Failure:
    """A run that ends with a finding. ``fair_steps``: the finding belongs to the fair phase after the actions."""

    world: World
    actions: tuple[Action, ...]
    finding: Finding
    fair_steps: int | None = None


@dataclass(frozen=True)
class Shrunk:
    failure: Failure
    scenario: str
    smaller: int | None  # the index of the smaller version; None: the scenario itself
    attempts: int


def shrink(
    scenario: Scenario,
    failure: Failure,
    *,
    smaller_states: int = SMALLER_STATES_MAX,
    attempts_max: int = ATTEMPTS_MAX,
) -> Shrunk:
    """The smallest failure of the same monitor found within the limits.

    ``scenario`` is the named one; the failure may be of a variant of it (a mix of ``swarm``). If the run also fails in
    the scenario itself, that replaces the variant.
    """
    for index, smaller in enumerate(scenario.smaller):
        found = _in_smaller(smaller(), failure, smaller_states)
        if found is not None:
            return Shrunk(found, scenario.name, index, 0)
    if failure.world.scenario != scenario:
        failure = _attempt(World(scenario), failure.actions, failure) or failure
    return _thin_out(scenario.name, failure, attempts_max)


def explored_failure(world: World, explored: Exploration, heal_steps: int) -> Failure | None:
    """The finding of an exhaustive search as a run.

    A state from which rest is unreachable in the graph counts only if the fair phase also fails from it: that phase
    restarts processes for which the scenario has no restart left.
    """
    if explored.finding is not None:
        return Failure(world, explored.actions, explored.finding)
    if explored.liveness is None or explored.liveness.finding is None:
        return None
    stuck = Failure(world, explored.liveness.actions, explored.liveness.finding, heal_steps)
    return _attempt(world, stuck.actions, stuck)


def _in_smaller(scenario: Scenario, failure: Failure, smaller_states: int) -> Failure | None:
    """A shortest failure of the same monitor."""
    world = World(scenario)
    explored = explore(world, max_states=smaller_states, keep_edges=failure.fair_steps is not None)
    found = explored_failure(world, explored, failure.fair_steps or 0)
    return found if found is not None and found.finding.monitor == failure.finding.monitor else None


def _thin_out(scenario: str, failure: Failure, attempts_max: int) -> Shrunk:
    attempts = 0
    size = max(1, len(failure.actions) // 2)
    while attempts < attempts_max:
        start, before = 0, len(failure.actions)
        while start < len(failure.actions) and attempts < attempts_max:
            attempts += 1
            rest = failure.actions[:start] + failure.actions[start + size :]
            thinner = _attempt(failure.world, rest, failure)
            if thinner is None:
                start += size
            else:
                failure = thinner
        if size > 1:
            size //= 2
        elif len(failure.actions) == before:
            break
    return Shrunk(failure, scenario, None, attempts)


def _attempt(world: World, actions: Sequence[Action], failure: Failure) -> Failure | None:
    """The failure that these actions lead to, if the same monitor reports it."""
    state, taken = world.initial(), list[Action]()
    finding = world.violation(state)
    for action in actions:
        if finding is not None:
            break
        after = world.apply(state, action)
        if after is None:
            continue
        state = after
        taken.append(action)
        finding = world.violation(state)
    fair_steps = None
    if finding is None and failure.fair_steps is not None:
        fair_steps = failure.fair_steps
        finding = Healer(world).heal(state, fair_steps).finding
    if finding is None or finding.monitor != failure.finding.monitor:
        return None
    return Failure(world, tuple(taken), finding, fair_steps)
