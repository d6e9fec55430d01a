"""Exhaustive search: all states that a world can reach within its scenario's bounds.

Breadth-first finds a shortest run to a violation; depth-first needs a smaller frontier on deep graphs.

Memory: a seen state takes 64 bits for its hash, 32 for its parent and 16 for the index of its action there. Two
states with the same hash count as one: with ten million states the chance of any collision is about three in a million.
A run is reconstructed by following the indexes from the initial state.
"""

from __future__ import annotations

import gc
import resource
import sys
import time
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from trunkline.check.actions import Action
from trunkline.check.liveness import Graph, Liveness
from trunkline.check.symmetry import Audit
from trunkline.check.views import Finding
from trunkline.check.world import State, World

Order = Literal["breadth", "depth"]
PROGRESS_EVERY = 50_000
ACTIONS_MAX = 1 << 16  # out of one state


@dataclass(frozen=True)
class Exploration:
    """``complete``: all states within the scenario's bounds were expanded. ``actions`` lead to ``finding``.

    ``depth`` is the number of steps to the farthest state. ``memory_bytes`` is the process's peak.
    """

    distinct: int
    transitions: int
    depth: int
    complete: bool
    finding: Finding | None
    actions: tuple[Action, ...]
    seconds: float  # of CPU
    memory_bytes: int
    liveness: Liveness | None  # only with ``keep_edges``, on a complete graph without a finding


@dataclass(frozen=True)
class SearchProgress:
    distinct: int
    transitions: int
    depth: int
    frontier: int
    seconds: float


def explore(
    world: World,
    *,
    order: Order = "breadth",
    max_states: int | None = None,
    max_depth: int | None = None,
    symmetry: bool = False,
    on_progress: Callable[[SearchProgress], None] | None = None,
    keep_edges: bool = False,
) -> Exploration:
    """Explore until all states are seen, a property is violated, or a limit is reached.

    Raises ValueError if ``symmetry`` is set and the scenario turns out not to be symmetric.
    """
    search = _Search(world, symmetry=symmetry, keep_edges=keep_edges)
    collecting = gc.isenabled()
    gc.disable()  # states hold no cycles, and collection of millions of them takes a third of the time
    try:
        return search.run(order, max_states, max_depth, on_progress)
    finally:
        if collecting:
            gc.enable()


class _Search:
    def __init__(self, world: World, *, symmetry: bool, keep_edges: bool) -> None:
        self._world = world
        self._key = _audited(world) if symmetry and world.scenario.symmetric else None
        self._seen: dict[int, int] | set[int] = {} if keep_edges else set()
        self._graph = Graph() if keep_edges else None
        self._parents = array("I")
        self._places = array("H")
        self._transitions = 0
        self._depth = 0
        self._cut_short = False
        self._started = 0.0

    def run(
        self,
        order: Order,
        max_states: int | None,
        max_depth: int | None,
        on_progress: Callable[[SearchProgress], None] | None,
    ) -> Exploration:
        self._started = time.process_time()
        start = self._world.initial()
        self._enter(hash(self._key(start) if self._key else start), start, 0, 0)
        bad = 0 if self._world.violation(start) else None
        frontier: deque[tuple[int, State, int]] = deque([(0, start, 0)])
        take = frontier.popleft if order == "breadth" else frontier.pop
        next_report = PROGRESS_EVERY
        while frontier and bad is None:
            if max_states is not None and len(self._parents) >= max_states:
                self._cut_short = True
                break
            index, state, depth = take()
            if depth == max_depth:
                self._cut_short = True
                continue
            first_new = len(self._parents)
            entered, bad = self._visit(index, state)
            if entered:
                self._depth = max(self._depth, depth + 1)
                frontier.extend((first_new + each, after, depth + 1) for each, after in enumerate(entered))
            if on_progress is not None and len(self._parents) >= next_report:
                next_report += PROGRESS_EVERY
                on_progress(self._progress(len(frontier)))
        return self._result(bad)

    def _visit(self, index: int, state: State) -> tuple[list[State], int | None]:
        """Expand one state: the new states, and the number of the one that violates a property."""
        seen, key, graph, world = self._seen, self._key, self._graph, self._world
        entered: list[State] = []
        found = world.expand(state)
        self._transitions += len(found)
        if len(found) > ACTIONS_MAX:
            raise ValueError(f"{len(found)} actions out of one state; at most {ACTIONS_MAX} can be kept")
        for place, (action, after) in enumerate(found):
            hashed = hash(after if key is None else key(after))
            if hashed not in seen:
                number = self._enter(hashed, after, index, place)
                entered.append(after)
                if world.violation(after) is not None:
                    return entered, number
            if graph is not None and not world.is_fault(action):
                graph.connect(index, self._seen[hashed])  # type: ignore[index]
        return entered, None

    def _enter(self, hashed: int, state: State, parent: int, place: int) -> int:
        number = len(self._parents)
        self._parents.append(parent)
        self._places.append(place)
        if self._graph is None:
            self._seen.add(hashed)  # type: ignore[union-attr]
        else:
            self._seen[hashed] = number  # type: ignore[index]
            self._graph.enter(hot=bool(self._world.hot(state)))
        return number

    def _result(self, bad: int | None) -> Exploration:
        complete = bad is None and not self._cut_short
        liveness = None
        if complete and self._graph is not None:
            stuck = self._graph.first_stuck()
            liveness = self._stuck(stuck)
        actions, end = self._path_to(bad) if bad is not None else ((), self._world.initial())
        return Exploration(
            distinct=len(self._parents),
            transitions=self._transitions,
            depth=self._depth,
            complete=complete,
            finding=self._world.violation(end),
            actions=actions,
            seconds=time.process_time() - self._started,
            memory_bytes=peak_memory_bytes(),
            liveness=liveness,
        )

    def _stuck(self, number: int | None) -> Liveness:
        if number is None:
            return Liveness(None, ())
        actions, state = self._path_to(number)
        reasons = "; ".join(self._world.hot(state))
        return Liveness(Finding("Progress", f"rest is unreachable: {reasons}"), actions)

    def _path_to(self, number: int) -> tuple[tuple[Action, ...], State]:
        """The actions from the initial state to the state of this number, and that state."""
        places: list[int] = []
        while number:
            places.append(self._places[number])
            number = self._parents[number]
        state, actions = self._world.initial(), list[Action]()
        for place in reversed(places):
            action, state = self._world.expand(state)[place]
            actions.append(self._world.action(action))
        return tuple(actions), state

    def _progress(self, frontier: int) -> SearchProgress:
        seconds = time.process_time() - self._started
        return SearchProgress(len(self._parents), self._transitions, self._depth, frontier, seconds)


def _audited(world: World) -> Callable[[State], State]:
    """The key of a state under the scenario's symmetry, with an audit of that symmetry."""
    symmetry = world.symmetry()
    audit = Audit(symmetry, world.scenario.name, world.expand)

    def key(state: State) -> State:
        found = symmetry.key(state)
        audit.meet(found, state)
        return found

    return key


def peak_memory_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
