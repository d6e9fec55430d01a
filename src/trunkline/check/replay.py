"""Replays a schedule step by step and keeps the view of every step and state."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trunkline.check.action_file import ActionFile, ActionFileError
from trunkline.check.actions import Action
from trunkline.check.heal import Healer
from trunkline.check.random_search import Walk
from trunkline.check.views import Finding, StateView, StepView
from trunkline.check.world import State, World


@dataclass(frozen=True)
class Replay:
    """``states[0]`` is the initial state and ``states[i]`` the one after ``steps[i - 1]``."""

    steps: tuple[StepView, ...]
    states: tuple[StateView, ...]
    finding: Finding | None
    fair_from: int | None  # steps before the fair phase; None: no fair phase


def replay_walk(walk: Walk) -> Replay:
    """Replay a schedule that was drawn from a seed."""
    return _replay(walk.world, walk.action_ids, walk.finding, walk.healing_ids if walk.healed else None)


def replay_file(world: World, file: ActionFile) -> Replay:
    """Replay a file's actions in the world of ``ActionFile.version_of``.

    Raises ``ActionFileError`` at the first action that cannot happen: a replay never skips one.
    """
    state, taken = world.initial(), list[int]()
    for offset, text in enumerate(file.actions):
        enabled = world.expand(state)
        following = next((each for each in enabled if world.action(each[0]).text() == text), None)
        if following is None:
            raise ActionFileError(f"action {offset + 1} cannot happen here: {text}")
        taken.append(following[0])
        state = following[1]
    return _replay_from(world, state, taken, file.fair_steps)


def replay_actions(world: World, actions: Sequence[Action], fair_steps: int | None) -> Replay:
    """Replay actions that are all enabled, as ``shrink`` returns them."""
    state, taken = world.initial(), list[int]()
    for action in actions:
        action_id, state = next(each for each in world.expand(state) if world.action(each[0]) == action)
        taken.append(action_id)
    return _replay_from(world, state, taken, fair_steps)


def lines(replay: Replay) -> Iterable[str]:
    """One line per step: its number, the action, and its outcome."""
    width = len(str(len(replay.steps)))
    for step in replay.steps:
        mark = "fair " if replay.fair_from is not None and step.index > replay.fair_from else ""
        outcome = "; ".join(_outcome(step))
        yield f"{step.index:>{width}}  {mark}{step.action}" + (f"  => {outcome}" if outcome else "")


def _outcome(step: StepView) -> Iterable[str]:
    yield from step.notes
    for record in step.persisted:
        yield f"persists {record}"
    for sent in step.sent:
        yield f"sends {sent.target}.{sent.target_role} {sent.label}"
    for event in step.announced:
        yield f"announces {event}"
    for result in step.completed:
        yield f"completes {result}"


def _replay_from(world: World, state: State, taken: Sequence[int], fair_steps: int | None) -> Replay:
    finding = world.violation(state)
    if finding is not None or fair_steps is None:
        return _replay(world, taken, finding, None)
    healing = Healer(world).heal(state, fair_steps)
    return _replay(world, taken, healing.finding, healing.action_ids)


def _replay(world: World, taken: Sequence[int], finding: Finding | None, healing: Sequence[int] | None) -> Replay:
    """Run the actions again and decode each step and state."""
    state = world.initial()
    steps, states = list[StepView](), [world.describe(state)]
    for number, action_id in enumerate([*taken, *(healing or ())]):
        if healing is not None and number == len(taken):
            state = world.heal_state(state)
        steps.append(dataclasses.replace(world.explain(state, action_id), index=number + 1))
        state = next(after for each, after in world.expand(state) if each == action_id)
        states.append(world.describe(state))
    return Replay(tuple(steps), tuple(states), finding, None if healing is None else len(taken))
