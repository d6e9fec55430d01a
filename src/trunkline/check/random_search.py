"""Random schedules: long runs through a world, each drawn from one seed and ended by the fair phase of ``heal``.

Scenario, strategy, seed and bounds determine a schedule: the same four give the same steps on any machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from trunkline.check.actions import Action
from trunkline.check.heal import Healer
from trunkline.check.mutant import Strategy
from trunkline.check.strategies import breaking, draw_mix, picker
from trunkline.check.views import Finding
from trunkline.check.world import State, World

STEPS_MAX = 300
HEAL_STEPS_MAX = 2000
MIXES = 24  # variants that swarm draws from, each with its own world and memoised steps
DISTINCT_MAX = 4_000_000  # counted states; beyond it counting stops
STEPS_KEPT_MAX = 150_000  # memoised steps of all worlds together (about 700 MiB) before they are discarded


@dataclass(frozen=True)
class Walk:
    """One schedule. ``world`` is the one it ran in: for ``swarm``, that of a variant of the scenario."""

    seed: int
    world: World
    action_ids: tuple[int, ...]  # up to the fair phase
    healing_ids: tuple[int, ...]  # the fair phase; empty if a property was violated before it
    finding: Finding | None
    healed: bool  # True: the schedule reached the fair phase, so a finding belongs to it

    @property
    def steps(self) -> int:
        return len(self.action_ids) + len(self.healing_ids)

    @property
    def actions(self) -> list[Action]:
        """The schedule's own steps, without the fair phase, which they determine."""
        return [self.world.action(action_id) for action_id in self.action_ids]


@dataclass
class RandomSearch:
    """The totals of several schedules."""

    strategy: Strategy
    schedules: int = 0
    transitions: int = 0
    depth: int = 0
    distinct: int = 0
    exact: bool = True  # False: ``distinct`` counts some states once per world, or counting stopped
    seconds: float = 0.0
    walk: Walk | None = None  # the first schedule with a finding
    coverage: set[tuple[str, str, str]] = field(default_factory=set)
    events_seen: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Mix:
    number: int  # unique, so that states of two worlds are never mistaken for one another
    world: World
    healer: Healer


class Schedules:
    """Draws and runs schedules of one scenario under one strategy.

    ``on_state`` receives each state before the fair phase, with the number of its world.
    """

    def __init__(
        self,
        world: World,
        strategy: Strategy,
        *,
        max_steps: int = STEPS_MAX,
        heal_steps: int = HEAL_STEPS_MAX,
        on_state: Callable[[int, State], None] | None = None,
    ) -> None:
        if strategy == "breadth":
            raise ValueError("breadth is not a random strategy")
        self.strategy: Strategy = strategy
        self._scenario = world.scenario
        self._max_steps = max_steps
        self._heal_steps = heal_steps
        self._on_state = on_state
        self._mixes: dict[int, _Mix] = {0: _Mix(0, world, Healer(world))}
        self._worlds_made = 1
        self._coverage: set[tuple[str, str, str]] = set()
        self._events_seen: dict[str, int] = {}

    def walk(self, seed: int) -> Walk:
        random = Random(seed)
        mix = self._mix(random)
        world = mix.world
        horizon = random.randint(1, self._max_steps)
        choose = picker(self.strategy, world, random, horizon).pick
        on_state = self._on_state
        state, taken = world.initial(), list[int]()
        for step in range(horizon):
            if on_state is not None:
                on_state(mix.number, state)
            finding = world.violation(state)
            if finding is not None:
                return Walk(seed, world, tuple(taken), (), finding, healed=False)
            options = world.expand(state)
            if not options:
                break
            action_id, state = breaking(world, options) or choose(step, options)
            taken.append(action_id)
        finding = world.violation(state)
        if finding is not None:
            return Walk(seed, world, tuple(taken), (), finding, healed=False)
        healing = mix.healer.heal(state, self._heal_steps)
        return Walk(seed, world, tuple(taken), healing.action_ids, healing.finding, healed=True)

    @property
    def worlds_made(self) -> int:
        return self._worlds_made

    def seen(self) -> tuple[set[tuple[str, str, str]], dict[str, int]]:
        """Coverage, and the number of steps with each event, over all schedules so far."""
        coverage, events = set(self._coverage), dict(self._events_seen)
        for mix in self._mixes.values():
            coverage |= mix.world.coverage
            for name, times in mix.world.events_seen.items():
                events[name] = events.get(name, 0) + times
        return coverage, events

    def _mix(self, random: Random) -> _Mix:
        """The scenario's own world, or for ``swarm`` that of one of ``MIXES`` mixes (0: the scenario itself)."""
        if sum(mix.world.steps_computed for mix in self._mixes.values()) > STEPS_KEPT_MAX:
            self._coverage, self._events_seen = self.seen()
            self._mixes = {}
        drawn = random.randrange(MIXES) if self.strategy == "swarm" else 0
        if drawn not in self._mixes:
            world = World(draw_mix(self._scenario, Random(drawn)) if drawn else self._scenario)
            self._mixes[drawn] = _Mix(self._worlds_made, world, Healer(world))
            self._worlds_made += 1
        return self._mixes[drawn]


def walk(
    world: World,
    seed: int,
    strategy: Strategy,
    max_steps: int = STEPS_MAX,
    heal_steps: int = HEAL_STEPS_MAX,
) -> Walk:
    """Run one schedule."""
    return Schedules(world, strategy, max_steps=max_steps, heal_steps=heal_steps).walk(seed)


def search(
    world: World,
    schedules: int,
    first_seed: int,
    strategy: Strategy,
    *,
    max_steps: int = STEPS_MAX,
    heal_steps: int = HEAL_STEPS_MAX,
    on_progress: Callable[[RandomSearch], None] | None = None,
) -> RandomSearch:
    """Run the schedules of ``schedules`` consecutive seeds; stop at the first finding."""
    found = RandomSearch(strategy)
    seen: set[int] = set()

    def count(world_number: int, state: State) -> None:
        if len(seen) < DISTINCT_MAX:
            seen.add(hash((world_number, state)))
        else:
            found.exact = False

    started = time.process_time()
    drawn = Schedules(world, strategy, max_steps=max_steps, heal_steps=heal_steps, on_state=count)
    for seed in range(first_seed, first_seed + schedules):
        one = drawn.walk(seed)
        found.schedules += 1
        found.transitions += one.steps
        found.depth = max(found.depth, one.steps)
        found.distinct = len(seen)
        found.seconds = time.process_time() - started
        if one.finding is not None:
            found.walk = one
            break
        if on_progress is not None:
            on_progress(found)
    found.exact = found.exact and drawn.worlds_made == 1
    found.coverage, found.events_seen = drawn.seen()
    return found
