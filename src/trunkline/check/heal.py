"""The fair phase at the end of a schedule: faults stop, and the goal must be reached.

No more faults happen, network cuts end, and every process that may restart does. From there the schedule is *fair*: an
unfair one would starve timers and report correct code.

1. A step that violates a property is taken at once, as all enabled steps are judged. Restarts and the end of a cut come
   next.
2. Then what has waited longest: a message, a sync or the next operation. Among equals, the process that was served
   longest ago is next.
3. A timer fires only when nothing else is possible, each timer in turn.
4. Of the options of a choice, the one taken least often is next.

The phase succeeds when no monitor is hot. It ends with a finding when a property is violated, when nothing more can
happen while a monitor is hot, or after ``max_steps``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from trunkline.check.actions import Action
from trunkline.check.strategies import breaking
from trunkline.check.views import Finding
from trunkline.check.world import State, World

PROGRESS = "Progress"


@dataclass(frozen=True)
class Healing:
    """How a fair phase ended. ``action_ids`` begin at ``start``, the state after healing."""

    finding: Finding | None
    start: State
    action_ids: tuple[int, ...]


class _Cause(NamedTuple):
    """The properties of an action that the fair order uses."""

    rank: int  # 0: restart or heal, 1: anything that was waiting, 2: a timer
    key: Action  # the action without its choices
    process: str


class Healer:
    """Runs fair phases in one world. It caches only the ranks of actions."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._causes: dict[int, _Cause] = {}

    def heal(self, state: State, max_steps: int) -> Healing:
        world = self._world
        state = start = world.heal_state(state)
        order = _FairOrder()
        taken: list[int] = []
        for _ in range(max_steps):
            finding = world.violation(state)
            if finding is not None or not world.hot(state):
                return Healing(finding, start, tuple(taken))
            options = [(self._cause(action_id), action_id, after) for action_id, after in world.expand(state)]
            options = [option for option in options if not world.is_fault(option[1])]
            if not options:
                reasons = "; ".join(world.hot(state))
                return Healing(Finding(PROGRESS, f"nothing more can happen: {reasons}"), start, tuple(taken))
            broken = breaking(world, [(action_id, after) for _, action_id, after in options])
            action_id, state = broken or order.pick(options)
            taken.append(action_id)
        finding, hot = world.violation(state), world.hot(state)
        if finding is None and hot:
            finding = Finding(PROGRESS, f"not reached within {max_steps} fair steps: {'; '.join(hot)}")
        return Healing(finding, start, tuple(taken))

    def _cause(self, action_id: int) -> _Cause:
        cause = self._causes.get(action_id)
        if cause is None:
            action = self._world.action(action_id)
            rank = {"restart": 0, "heal": 0, "timer": 2}.get(action.kind, 1)
            cause = self._causes[action_id] = _Cause(rank, action.without_choice(), action.actor)
        return cause


class _FairOrder:
    """The memory of one fair phase: since when each action waits, and when each process was served."""

    def __init__(self) -> None:
        self._step = 0
        self._waiting_since: dict[Action, int] = {}
        self._timer_fired: dict[Action, int] = {}
        self._served: dict[str, int] = {}
        self._times_taken: dict[int, int] = {}

    def pick(self, options: list[tuple[_Cause, int, State]]) -> tuple[int, State]:
        self._step += 1
        since = self._waiting_since
        self._waiting_since = {cause.key: since.get(cause.key, self._step) for cause, _, _ in options}
        index = min(range(len(options)), key=lambda each: (*self._claim(options[each]), each))
        cause, action_id, state = options[index]
        del self._waiting_since[cause.key]
        if cause.rank == 2:
            self._timer_fired[cause.key] = self._step
        self._served[cause.process] = self._step
        self._times_taken[action_id] = self._times_taken.get(action_id, 0) + 1
        return action_id, state

    def _claim(self, option: tuple[_Cause, int, State]) -> tuple[int, int, int, int]:
        """The smallest goes first."""
        cause, action_id, _ = option
        waiting = self._timer_fired.get(cause.key, 0) if cause.rank == 2 else self._waiting_since[cause.key]
        return cause.rank, waiting, self._served.get(cause.process, 0), self._times_taken.get(action_id, 0)
