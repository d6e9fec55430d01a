"""Steps and states of a world as text, decoded from numbers. Not used while exploring."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trunkline.check.actions import OF_MESSAGE, Action
from trunkline.check.budgets import Budgets
from trunkline.check.frozen import fields_of, text
from trunkline.check.moves import LocalMoves
from trunkline.check.network import Network
from trunkline.check.process_values import Crash, ProcessState, StepOutcome
from trunkline.check.processes import Processes
from trunkline.check.role_steps import RoleSteps
from trunkline.check.scenario import Completed
from trunkline.check.verdicts import Verdicts
from trunkline.check.views import MessageView, NamedTexts, ProcessView, RoleView, StateView, StepView

# Fields that identify a message, the most significant first.
_LABEL_FIELDS = (
    "frame",
    "existing",
    "glsn",
    "projection",
    "end",
    "next",
    "first",
    "point",
    "seq",
    "expected",
    "epoch",
    "value",
)
LABEL_LENGTH_MAX = 24


class Narrator:
    def __init__(
        self,
        network: Network,
        budgets: Budgets,
        verdicts: Verdicts,
        roles: RoleSteps,
        processes: Processes,
        moves: LocalMoves,
    ) -> None:
        self._network = network
        self._budgets = budgets
        self._verdicts = verdicts
        self._roles = roles
        self._processes = processes
        self._moves = moves

    def describe(self, state: Sequence[int]) -> StateView:
        count = len(state) // 2 - 1
        in_flight = [message for inbox in state[count:-2] for message in self._network.contents(inbox)]
        return StateView(
            tuple(map(self._process, self._decoded(state))),
            tuple(self._sent(each) for each in sorted(in_flight, key=self._network.texts.__getitem__)),
            self._budgets.described(state[-2]),
            self._verdicts.described(state[-1]),
        )

    def explain(self, state: Sequence[int], action: Action, index: int) -> StepView:
        step = action.cause or action
        message = self._message(step)
        handled = None if message is None else self._sent(message)
        before = self._actor(state, action.actor)
        if before is None or action.kind in ("lose", "drop", "crash", "rot"):
            return StepView(index, action.text(), action.kind, action.actor or None, None, handled, notes=_note(action))
        outcome = self._outcome(before, step, message)
        shown: StepOutcome | Crash = outcome
        notes = outcome.notes
        if action.cause is not None:
            shown = next(each for each in outcome.crashes if each.effects == action.effects)
            notes = (*notes, f"crashed after {action.effects} effects")
        role = handled.target_role if handled is not None else step.subject.partition(" ")[0] or None
        return self._step(index, action, role, handled, shown, notes)

    def _step(
        self,
        index: int,
        action: Action,
        role: str | None,
        handled: MessageView | None,
        shown: StepOutcome | Crash,
        notes: tuple[str, ...],
    ) -> StepView:
        observed = [each.observed for each in shown.notices if each.observed is not None]
        failures = tuple(each.finding.text for each in shown.notices if each.finding is not None)
        return StepView(
            index,
            action.text(),
            action.kind,
            action.actor,
            role,
            handled,
            sent=tuple(map(self._sent, shown.sent)),
            announced=tuple(text(each.event) for each in observed if not isinstance(each.event, Completed)),
            completed=tuple(_completed(each.event) for each in observed if isinstance(each.event, Completed)),
            persisted=shown.persisted,
            notes=notes + failures,
        )

    def _outcome(self, process: ProcessState, step: Action, message: int | None) -> StepOutcome:
        outcomes = self._processes.step(process, self._moves.cause(step, message))
        return next(each for each in outcomes if each.choice == step.choice)

    def _actor(self, state: Sequence[int], name: str) -> ProcessState | None:
        return next((each for each in self._decoded(state) if self._processes.spec(each).name == name), None)

    def _decoded(self, state: Sequence[int]) -> list[ProcessState]:
        return [self._moves.locals[each].process for each in state[: len(state) // 2 - 1]]

    def _message(self, step: Action) -> int | None:
        if step.kind not in OF_MESSAGE:
            return None
        return self._network.texts.index(step.subject)

    def _sent(self, message: int) -> MessageView:
        source, target, content = self._network.messages.values[message]
        return MessageView(message, *source, *target, label(content), text(content))

    def _process(self, process: ProcessState) -> ProcessView:
        timers = tuple(f"{role}.{key}" for role, key in process.timers)
        roles = tuple(self._role(name, number) for name, number in process.roles)
        name = self._processes.spec(process).name
        disk = list(_named("image", process.image))
        if process.withheld:
            disk += [("withheld", f"{role}: {text(effect)}") for role, effect in process.withheld]
        return ProcessView(name, process.up, process.incarnation, process.start, roles, timers, tuple(disk))

    def _role(self, name: str, number: int) -> RoleView:
        role = self._roles.roles[number]
        fields = tuple((field, text(value)) for field, value in fields_of(role))
        return RoleView(name, type(role).__name__, role.phase, fields)


def label(message: Any) -> str:
    """A message for an arrow: its type and its most significant field, if that is short."""
    name = type(message).__name__
    known = dict(fields_of(message))
    value = next((known[field] for field in _LABEL_FIELDS if field in known), None)
    if value is None:
        return name
    shown = f"epoch {value.epoch}" if hasattr(value, "epoch") else text(value).split("=")[0]
    return f"{name} {shown}" if len(name) + len(shown) < LABEL_LENGTH_MAX else name


def _named(name: str, value: Any) -> NamedTexts:
    """The fields of a struct one by one; any other value as one text."""
    if hasattr(value, "__struct_fields__") or hasattr(value, "_fields"):
        return tuple((field, text(each)) for field, each in fields_of(value))
    return ((name, text(value)),)


def _completed(event: Completed) -> str:
    return f"operation {event.operation}: {text(event.result)}"


def _note(action: Action) -> tuple[str, ...]:
    return (action.subject,) if action.kind in ("power_cut", "cut", "rot") else ()
