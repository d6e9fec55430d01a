"""The monitors of a scenario over interned states: their joint state is one number in a state of the world."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from trunkline.check.frozen import rename, text
from trunkline.check.interner import Interner
from trunkline.check.process_values import Notice
from trunkline.check.scenario import Completed, Monitor, ObservedEvent, OperationEnd, SafetyMonitor, Violation
from trunkline.check.views import Finding, NamedTexts


class _Acknowledged(SafetyMonitor):
    """Not a property: remembers which operations have ended, of those that others wait for."""

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


class Verdicts:
    """A number is the joint state of all monitors, or the finding that ended the run."""

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
        self._notices: Interner[tuple[Notice, ...]] = Interner()  # of one step, in order
        self.findings: dict[int, Finding] = {}
        self.number_of(())

    def initial(self) -> int:
        pairs = zip(self._states, self._monitors, strict=True)
        return self._number(tuple(states.intern(monitor.initial()) for states, monitor in pairs))

    def number_of(self, notices: tuple[Notice, ...]) -> int:
        """The number of a step's notices; 0: none."""
        return self._notices.intern(notices)

    def after(self, verdict: int, notices: int) -> int:
        known = self._after.get(verdict)
        if known is None:
            known = self._after[verdict] = {}
        number = known.get(notices)
        if number is None or not self._memo:
            number = known[notices] = self._observe(verdict, self._notices.values[notices])
        return number

    def have_ended(self, verdict: int, awaited: tuple[OperationEnd, ...]) -> bool:
        """Whether all of these operations have ended."""
        joint = self._joint.values[verdict]
        if isinstance(joint, Finding):
            return False
        ended = self._states[-1].values[joint[-1]]
        assert isinstance(ended, frozenset), "operations that wait for others need the monitor _Acknowledged"
        return ended.issuperset(awaited)

    def hot(self, verdict: int) -> tuple[str, ...]:
        """``Monitor: reason`` of each hot monitor."""
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
        """The same with processes renamed. A finding is not renamed: it ends the run."""
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

    def _observe(self, verdict: int, notices: tuple[Notice, ...]) -> int:
        joint = self._joint.values[verdict]
        if isinstance(joint, Finding):
            return verdict
        states = list(joint)
        for each in notices:
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
