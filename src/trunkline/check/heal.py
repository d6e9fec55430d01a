"""The fair phase at the end of a schedule: faults stop, and the goal must be reached.

No fault happens any more, cuts are healed, and every process that is down and may come back is started. From there the
schedule is *fair*, because an unfair one starves timers and accuses correct code:

1. A step that breaks a property is taken at once: all that is enabled is judged. Restarts and healing come next.
2. Then whatever has waited longest: a message, a sync or the next operation. Among equals the process that was served
   longest ago is next.
3. A timer fires only when nothing of the above is possible, and each timer in its turn.
4. Where a step offers a choice, the option taken least often so far is taken.

The phase ends well when no monitor is hot. It ends with a finding when a property breaks, when nothing more can happen
while a monitor is hot, or after ``max_steps``.
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
    """How a fair phase ended. ``action_ids`` were taken from ``start`` on, which is the healed state."""

    finding: Finding | None
    start: State
    action_ids: tuple[int, ...]


class _Cause(NamedTuple):
    """What the fair order needs to know of an action."""

    rank: int  # 0: restart or heal, 1: anything that was waiting, 2: a timer
    key: Action  # the action without the choices taken in it
    process: str


class Healer:
    """Runs fair phases in one world; it remembers how to rank the world's actions, nothing else."""

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
            finding = Finding(PROGRESS, f"not reached by {max_steps} fair steps: {'; '.join(hot)}")
        return Healing(finding, start, tuple(taken))

    def _cause(self, action_id: int) -> _Cause:
        cause = self._causes.get(action_id)
        if cause is None:
            action = self._world.action(action_id)
            rank = {"restart": 0, "heal": 0, "timer": 2}.get(action.kind, 1)
            cause = self._causes[action_id] = _Cause(rank, action.without_choice(), action.actor)
        return cause


class _FairOrder:
    """The memory of one fair phase: what waits since when, and who was served when."""

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
        """Smaller goes first."""
        cause, action_id, _ = option
        waiting = self._timer_fired.get(cause.key, 0) if cause.rank == 2 else self._waiting_since[cause.key]
        return cause.rank, waiting, self._served.get(cause.process, 0), self._times_taken.get(action_id, 0)
