"""How a random schedule picks its next step. ``Random(seed)`` is the only source of randomness.

random  Uniform over enabled steps that are not faults; faults with a small probability, also drawn from the seed.
pct     Each process has a random priority, and the highest that can act acts; at a few drawn moments that process drops
        to the lowest priority, and at a few others a fault happens. Finds bugs that need a few exact orderings with a
        probability that does not shrink with the length of the run.
swarm   Each seed draws a mix: which fault budgets exist, bag or FIFO network, the likelihood of each kind of fault.
        Then as ``random``.

With each strategy, an enabled step that violates a property is always taken (``breaking``). A world computes all
enabled steps and counts them as covered, so all of them must be judged, not only the one that was drawn.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from random import Random
from typing import Protocol

from trunkline.check.mutant import Strategy
from trunkline.check.scenario import Faults, Scenario
from trunkline.check.world import State, World

Option = tuple[int, State]

FAULT_PROBABILITIES = (0.0, 0.01, 0.03, 0.1, 0.3)
SWARM_LIKELIHOODS = (0.1, 1.0, 10.0)
CHANGE_POINTS_MAX = 4
FAULT_POINTS_MAX = 4


def breaking(world: World, options: Sequence[Option]) -> Option | None:
    """The first step that violates a property."""
    return next((option for option in options if world.violation(option[1]) is not None), None)


class Picker(Protocol):
    def pick(self, step: int, options: Sequence[Option]) -> Option:
        """The next of the enabled steps, of which there is at least one."""
        ...


class RandomPicker:
    """Uniform over steps that are not faults. A fault is drawn by kind first, so that rare kinds get their share.

    Each kind's likelihood is drawn from ``likelihoods`` when the kind first occurs.
    """

    def __init__(self, world: World, random: Random, likelihoods: tuple[float, ...] = (1.0,)) -> None:
        self._world = world
        self._random = random
        self._likelihoods = likelihoods
        self._fault_probability = random.choice(FAULT_PROBABILITIES)
        self._weights: dict[str, float] = {}

    def pick(self, step: int, options: Sequence[Option]) -> Option:
        world, random = self._world, self._random
        if random.random() >= self._fault_probability:
            usual = [option for option in options if not world.is_fault(option[0])]
            if usual:
                return random.choice(usual)
        faults = [option for option in options if world.is_fault(option[0])]
        return self._fault(faults) if faults else random.choice(options)

    def _fault(self, faults: Sequence[Option]) -> Option:
        by_kind: dict[str, list[Option]] = {}
        for option in faults:
            by_kind.setdefault(self._world.action(option[0]).kind, []).append(option)
        weights = [self._weight(kind) for kind in by_kind]
        return self._random.choice(by_kind[self._random.choices(list(by_kind), weights)[0]])

    def _weight(self, kind: str) -> float:
        if kind not in self._weights:
            self._weights[kind] = self._random.choice(self._likelihoods)
        return self._weights[kind]


class PriorityPicker:
    """PCT over processes."""

    def __init__(self, world: World, random: Random, horizon: int) -> None:
        self._world = world
        self._random = random
        names = [process.name for process in world.scenario.processes]
        random.shuffle(names)
        self._priority = {name: priority for priority, name in enumerate(names, start=1)}
        self._lowest = 0
        # The length of a run is unknown, so its expected length is drawn as well, short as often as long.
        length = min(horizon, 1 << random.randint(2, max(2, horizon.bit_length())))
        self._changes = self._moments(length, CHANGE_POINTS_MAX)
        self._faults = self._moments(length, FAULT_POINTS_MAX)

    def pick(self, step: int, options: Sequence[Option]) -> Option:
        world = self._world
        if step in self._faults:
            faults = [option for option in options if world.is_fault(option[0])]
            if faults:
                return self._random.choice(faults)
        usual = [option for option in options if not world.is_fault(option[0])] or list(options)
        top = max(usual, key=self._rank)
        if step in self._changes:
            self._lowest -= 1
            self._priority[world.action(top[0]).actor] = self._lowest
            top = max(usual, key=self._rank)
        best = self._rank(top)
        return self._random.choice([option for option in usual if self._rank(option) == best])

    def _rank(self, option: Option) -> int:
        """An action of the whole world (the end of a cut) has no process and comes first."""
        return self._priority.get(self._world.action(option[0]).actor, len(self._priority) + 1)

    def _moments(self, length: int, count_max: int) -> frozenset[int]:
        count = self._random.randint(0, count_max)
        return frozenset(self._random.randrange(length) for _ in range(count))


def picker(strategy: Strategy, world: World, random: Random, horizon: int) -> Picker:
    """``strategy`` is a random one; ``world`` is the one that the seed drew."""
    if strategy == "pct":
        return PriorityPicker(world, random, horizon)
    return RandomPicker(world, random, SWARM_LIKELIHOODS) if strategy == "swarm" else RandomPicker(world, random)


def draw_mix(scenario: Scenario, random: Random) -> Scenario:
    """A variant with fewer kinds of faults and perhaps a FIFO network: each of its runs is a run of ``scenario``.

    Restarts stay: without them, bugs of restarts would go unnoticed.
    """
    names = [field.name for field in dataclasses.fields(Faults) if field.name != "restart"]
    left_out = {name: 0 for name in names if getattr(scenario.faults, name) and random.random() < 0.5}
    fifo = scenario.fifo or random.random() < 0.25
    return dataclasses.replace(scenario, faults=dataclasses.replace(scenario.faults, **left_out), fifo=fifo)
