"""The world in which roles are explored: processes, disks, timers and a network, and the possible next steps.

A state is a short tuple of integers:

    (process 0, process 1, ..., inbox 0, inbox 1, ..., budget, verdict)

Each part is the number of an interned value, so a step costs a few look-ups once the parts it touches are known. Two
states are equal exactly if their tuples are. Numbers have no meaning outside their world; actions do: their texts, and
the order in which ``expand`` lists them, do not depend on what a world has seen before.

Time: a timer fires without cost only when no message can be delivered, no disk waits for a sync and no operation can
begin. At other moments it costs one ``early_timer``, or one of the scenario's ``free_timers``.
"""

from __future__ import annotations

import fnmatch

from trunkline.check.actions import Action
from trunkline.check.budgets import Budgets
from trunkline.check.moves import LocalMoves
from trunkline.check.narration import Narrator
from trunkline.check.network import Network
from trunkline.check.processes import Processes
from trunkline.check.role_steps import Coverage, RoleSteps
from trunkline.check.scenario import OperationEnd, Scenario
from trunkline.check.successors import Expansion, State, Successors
from trunkline.check.symmetry import Symmetry
from trunkline.check.verdicts import Verdicts
from trunkline.check.views import Finding, StateView, StepView

__all__ = ["State", "World"]


class World:
    """One scenario, ready to be explored. Not thread-safe; each worker process builds its own."""

    def __init__(self, scenario: Scenario, *, memo: bool = True) -> None:
        """``memo=False`` computes every step again: slow, with the same results."""
        _validate(scenario)
        self.scenario = scenario
        self.transitions = 0  # listed by ``expand`` so far
        self._coverage = Coverage()
        names = tuple(spec.name for spec in scenario.processes)
        self._network = Network(names, fifo=scenario.fifo, copies=scenario.copies)
        self._budgets = Budgets(scenario)
        self._verdicts = Verdicts(scenario.monitors, _awaited(scenario), memo=memo)
        self._roles = RoleSteps(self._coverage, memo=memo)
        self._processes = Processes(scenario, self._network, self._roles, self._coverage)
        self._moves = LocalMoves(scenario, self._processes, self._network, self._verdicts, self._coverage, memo=memo)
        self._successors = Successors(scenario, self._network, self._budgets, self._verdicts, self._moves)
        self._initial = self._begin()

    # For searches

    def initial(self) -> State:
        return self._initial

    def expand(self, state: State) -> Expansion:
        """All possible next actions (by number) with their states, in a fixed order."""
        found = self._successors.expand(state)
        self.transitions += len(found)
        return found

    def action(self, action_id: int) -> Action:
        return self._moves.actions.values[action_id]

    def is_fault(self, action_id: int) -> bool:
        return self._moves.faults[action_id]

    def violation(self, state: State) -> Finding | None:
        return self._verdicts.findings.get(state[-1])

    def hot(self, state: State) -> tuple[str, ...]:
        """``Monitor: reason`` of each hot monitor."""
        return self._verdicts.hot(state[-1])

    def apply(self, state: State, action: Action) -> State | None:
        """The state after an action, or None if it is not enabled."""
        found = self.expand(state)
        action_id = self._moves.actions.find(action)
        return next((after for each, after in found if each == action_id), None)

    def heal_state(self, state: State) -> State:
        """The state when faults are over: no budget left, no cut, free restarts for all but ``stays_down``."""
        return self._successors.settled((*state[:-2], self._budgets.healing(), state[-1]))

    def symmetry(self) -> Symmetry:
        """The renamings of processes that leave this world the same."""
        return Symmetry(self.scenario, self._network, self._roles, self._verdicts, self._moves)

    # For reports

    def describe(self, state: State) -> StateView:
        return self._narrator().describe(state)

    def explain(self, state: State, action_id: int, index: int = 0) -> StepView:
        """What one step from ``state`` does; ``index`` is its number in a run."""
        return self._narrator().explain(state, self.action(action_id), index)

    @property
    def coverage(self) -> set[tuple[str, str, str]]:
        """(role class, phase, event name) of each handler that ran."""
        return self._coverage.pairs

    @property
    def events_seen(self) -> dict[str, int]:
        """By type of event: the number of distinct steps with it."""
        return self._coverage.events

    @property
    def choices_seen(self) -> set[tuple[str, str, int]]:
        """(role class, key, index) of each option that was tried."""
        return self._coverage.choices

    @property
    def crash_points(self) -> set[tuple[str, str, int]]:
        """(process, event name, effects carried out) of each crash inside a step."""
        return self._coverage.crash_points

    @property
    def steps_computed(self) -> int:
        """How often a handler ran."""
        return self._coverage.steps_computed

    @property
    def steps_memoised(self) -> int:
        """Transitions whose steps were already known."""
        return max(0, self.transitions - self._coverage.steps_computed)

    def _begin(self) -> State:
        specs = self.scenario.processes
        down = [self._moves.number(self._processes.not_started(index)) for index in range(len(specs))]
        empty = [Network.EMPTY for _ in specs]
        state: State = (*down, *empty, self._budgets.initial(), self._verdicts.initial())
        for index, spec in enumerate(specs):
            if spec.up and self.violation(state) is None:
                state = self._successors.begin(state, index)
        return self._successors.settled(state)

    def _narrator(self) -> Narrator:
        return Narrator(self._network, self._budgets, self._verdicts, self._roles, self._processes, self._moves)


def _awaited(scenario: Scenario) -> frozenset[OperationEnd]:
    return frozenset(ended for spec in scenario.processes for each in spec.operations for ended in each.after)


def _validate(scenario: Scenario) -> None:
    """A budget that nothing can spend is a mistake in the scenario: it would seem explored but is not."""
    names = [spec.name for spec in scenario.processes]
    if len(set(names)) != len(names) or any(set(" .>") & set(name) or not name for name in names):
        raise ValueError(f"{scenario.name}: process names must be unique, without space, dot or arrow: {names}")
    cut_ends = [end for cut in scenario.cuts for pair in cut.blocked for end in pair]
    groups = (scenario.crashable, scenario.lossy, scenario.power_domain, scenario.stays_down, *scenario.symmetric)
    awaited = [ended.process for ended in _awaited(scenario)]
    unknown = sorted({name for group in (*groups, cut_ends, awaited) for name in group if name not in names})
    if unknown:
        raise ValueError(f"{scenario.name}: no such process: {', '.join(unknown)}")
    patterns = {each.process for each in scenario.free_timers}
    patterns |= {end for drop in scenario.drops for end in (drop.source, drop.target)}
    matchless = sorted(each for each in patterns if not fnmatch.filter(names, each))
    if matchless:
        raise ValueError(f"{scenario.name}: no process matches {', '.join(matchless)}")
    counts = [each.count for each in scenario.free_timers] + [each.count for each in scenario.drops]
    if scenario.copies < 1 or min([1, *counts]) < 1:
        raise ValueError(f"{scenario.name}: counts must be 1 or more")
    for budget, means in (("crash", scenario.crashable), ("power_cut", scenario.power_domain), ("cut", scenario.cuts)):
        if getattr(scenario.faults, budget) and not means:
            raise ValueError(f"{scenario.name}: a budget for {budget}, but nothing it applies to")
