"""The monitors of a scenario, run over interned states: what they have seen is one number in a state of the world."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from trunkline.check.frozen import rename, text
from trunkline.check.interner import Interner
from trunkline.check.process_values import Notice
from trunkline.check.scenario import Completed, Monitor, ObservedEvent, OperationEnd, Violation
from trunkline.check.views import Finding, NamedTexts


class _Acknowledged:
    """No property, but a memory: which of the operations that others wait for have ended."""

    name = "Acknowledged"

    def __init__(self, awaited: frozenset[OperationEnd]) -> None:
        self._awaited = awaited

    def initial(self) -> frozenset[OperationEnd]:
        return frozenset()

    def observe(self, state: frozenset[OperationEnd], observed: ObservedEvent) -> frozenset[OperationEnd]:
        if isinstance(observed.event, Completed):
            ended = OperationEnd(observed.process, observed.event.operation)
            return state | {ended} if ended in self._awaited else state
        return state

    def hot(self, state: frozenset[OperationEnd]) -> str:
        return ""


class Verdicts:
    """A number stands for the states of all monitors together, or for the finding that ended the run."""

    def __init__(
        self, monitors: tuple[Monitor, ...], awaited: frozenset[OperationEnd] = frozenset(), *, memo: bool
    ) -> None:
        """``awaited``: operations after which others begin (``Operation.after``)."""
        self._monitors = monitors = (*monitors, _Acknowledged(awaited)) if awaited else monitors
        self._memo = memo
        self._states: list[Interner[Hashable]] = [Interner() for _ in monitors]
        self._joint: Interner[tuple[int, ...] | Finding] = Interner()
        self._steps: list[dict[tuple[int, ObservedEvent], int | Finding]] = [{} for _ in monitors]
        self._after: dict[int, dict[int, int]] = {}
        self._hot: dict[int, tuple[str, ...]] = {}
        self.stories: Interner[tuple[Notice, ...]] = Interner()  # what one step tells, in order
        self.findings: dict[int, Finding] = {}
        self.story(())

    def initial(self) -> int:
        pairs = zip(self._states, self._monitors, strict=True)
        return self._number(tuple(states.intern(monitor.initial()) for states, monitor in pairs))

    def story(self, told: tuple[Notice, ...]) -> int:
        """A step's events as a number; 0 is the empty story."""
        return self.stories.intern(told)

    def after(self, verdict: int, story: int) -> int:
        known = self._after.get(verdict)
        if known is None:
            known = self._after[verdict] = {}
        number = known.get(story)
        if number is None or not self._memo:
            number = known[story] = self._observe(verdict, self.stories.values[story])
        return number

    def have_ended(self, verdict: int, awaited: tuple[OperationEnd, ...]) -> bool:
        """Whether all of these operations have ended."""
        joint = self._joint.values[verdict]
        if isinstance(joint, Finding):
            return False
        ended = self._states[-1].values[joint[-1]]
        assert isinstance(ended, frozenset), "operations that wait for others need the memory of those that ended"
        return ended.issuperset(awaited)

    def hot(self, verdict: int) -> tuple[str, ...]:
        """``Monitor: reason`` of each monitor that may not rest here."""
        reasons = self._hot.get(verdict)
        if reasons is None:
            named = [(monitor.name, monitor.hot(state)) for monitor, state in self._decoded(verdict)]
            reasons = self._hot[verdict] = tuple(f"{name}: {reason}" for name, reason in named if reason)
        return reasons

    def described(self, verdict: int) -> NamedTexts:
        finding = self.findings.get(verdict)
        if finding is not None:
            return ((finding.monitor, finding.text),)
        return tuple((monitor.name, text(state)) for monitor, state in self._decoded(verdict))

    def renamed(self, verdict: int, names: dict[str, str]) -> int:
        """The same with processes renamed. A finding stays as it is: it ends the run."""
        if verdict in self.findings:
            return verdict
        pairs = zip(self._states, self._decoded(verdict), strict=True)
        return self._number(tuple(states.intern(rename(state, names)) for states, (_, state) in pairs))

    def _decoded(self, verdict: int) -> list[tuple[Monitor, Any]]:
        joint = self._joint.values[verdict]
        if isinstance(joint, Finding):
            return []
        parts = zip(self._monitors, self._states, joint, strict=True)
        return [(monitor, states.values[number]) for monitor, states, number in parts]

    def _number(self, joint: tuple[int, ...] | Finding) -> int:
        number = self._joint.intern(joint)
        if isinstance(joint, Finding):
            self.findings[number] = joint
        return number

    def _observe(self, verdict: int, told: tuple[Notice, ...]) -> int:
        joint = self._joint.values[verdict]
        if isinstance(joint, Finding):
            return verdict
        states = list(joint)
        for each in told:
            if each.observed is None:
                return self._number(each.finding) if each.finding is not None else verdict
            for index, state in enumerate(states):
                after = self._step(index, state, each.observed)
                if isinstance(after, Finding):
                    return self._number(after)
                states[index] = after
        return self._number(tuple(states))

    def _step(self, index: int, state: int, observed: ObservedEvent) -> int | Finding:
        steps, key = self._steps[index], (state, observed)
        after = steps.get(key)
        if after is None or not self._memo:
            monitor, states = self._monitors[index], self._states[index]
            try:
                after = states.intern(monitor.observe(states.values[state], observed))
            except Violation as violation:
                after = Finding(monitor.name, str(violation))
            steps[key] = after
        return after
